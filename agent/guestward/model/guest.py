"""Guests: who they are, what a list says of them, what their configuration says."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class GuestKind(StrEnum):
    """The two kinds of guest that PVE has; the value is PVE's own word in API paths."""

    LXC = "lxc"
    QEMU = "qemu"


@dataclass(frozen=True, order=True, slots=True)
class GuestId:
    """What addresses a guest on its node. A VMID alone is no identity: see `GuestConfig.identity`."""

    kind: GuestKind
    vmid: int

    def __hash__(self) -> int:
        """The VMID: nearly all of a look at a large node is looking guests up, and hardly ever have two the same."""
        return self.vmid

    def __str__(self) -> str:
        """The join label of logs and metrics, as in `lxc/9201`."""
        return f"{self.kind}/{self.vmid}"

    @classmethod
    def parse(cls, text: str) -> GuestId:
        """Read `lxc/9201` back. Raises ValueError when the text is not that."""
        match = re.fullmatch(r"(lxc|qemu)/([1-9][0-9]{2,8})", text)
        if match is None:
            raise ValueError(f"not a guest id: {text[:40]!r}")
        return cls(GuestKind(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class ListedGuest:
    """One row of `/nodes/N/lxc` or `/nodes/N/qemu`: the live view of PVE (pve-facts A2).

    up_since: when its process began, in seconds since host boot; None when it does not run. PVE tells whole seconds of uptime.
    """

    id: GuestId
    name: str
    running: bool
    pid: int | None = None
    up_since: float | None = None
    lock: str | None = None
    template: bool = False

    def uptime(self, at: float) -> float:
        """Seconds for which it has run at a moment in seconds since host boot; 0 when it does not run."""
        return at - self.up_since if self.up_since is not None else 0.0


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """One read of `status/current` (pve-facts A3)."""

    running: bool
    pid: int | None = None
    uptime: int = 0
    lock: str | None = None
    qmpstatus: str | None = None
    ha_managed: bool = False

    @property
    def really_running(self) -> bool:
        """Running with a process behind it: `running` without pid is a start that fails or a stop that ends (pve-facts K)."""
        return self.running and self.pid is not None and self.qmpstatus in (None, "running")


@dataclass(frozen=True, slots=True)
class Startup:
    """PVE's `startup` option (pve-facts A4): `[order=]N,up=S,down=S`."""

    order: int | None = None
    up: int = 0

    @classmethod
    def parse(cls, text: str) -> Startup:
        """Read the option as `PVE::JSONSchema::pve_parse_startup_order` does; what it would not accept counts as unset."""
        order, up = None, 0
        for part in text.split(","):
            if match := re.fullmatch(r"(?:order=)?([0-9]{1,9})", part.strip()):
                order = int(match[1])
            elif match := re.fullmatch(r"up=([0-9]{1,9})", part.strip()):
                up = int(match[1])
        return cls(order, up)


@dataclass(frozen=True, slots=True)
class GuestConfig:
    """What the watchdog needs of a guest's configuration.

    identity: what tells this guest from another with the same VMID; empty when the configuration has nothing of the kind.
    fingerprint: changes with every change of configuration, but not with locks, snapshots and `parent`.
    storages: the storages without which the guest cannot start. base: it has a volume that linked clones may live on.
    """

    identity: str
    fingerprint: str
    onboot: bool
    template: bool = False
    lock: str | None = None
    startup: Startup = Startup()
    storages: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    protection: bool = False
    base: bool = False

    @classmethod
    def from_api(cls, kind: GuestKind, values: Mapping[str, str]) -> GuestConfig:
        """Build from the answer of `GET .../config` with every value as text."""
        return cls(
            identity=_identity(kind, values),
            fingerprint=_fingerprint(values),
            onboot=truthy(values.get("onboot")),
            template=truthy(values.get("template")),
            lock=values.get("lock") or None,
            startup=Startup.parse(values.get("startup", "")),
            storages=frozenset(_storages(values)),
            tags=frozenset(re.split(r"[;,\s]+", values.get("tags", "").lower())) - {""},
            protection=truthy(values.get("protection")),
            base=any(_volume(value).rpartition("/")[2].rpartition(":")[2].startswith(_BASE) for _, value in _disks(values)),
        )


_TRUE = frozenset({"1", "on", "yes", "true"})
_VOLATILE = frozenset({"lock", "parent", "digest", "snapstate", "snaptime", "vmstate", "runningmachine", "runningcpu"})
_BASE = ("base-", "basevol-")  # the latter is a container's on ZFS
_VOLUME_KEY = re.compile(r"(rootfs|mp\d+|(ide|sata|scsi|virtio|efidisk|tpmstate)\d+)")
_MAC = re.compile(r"([0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5})")


def truthy(value: str | None) -> bool:
    """PVE's booleans (`LXC/Config.pm:parse_pct_config`): 1, on, yes, true in any case; absent is false."""
    return value is not None and value.strip().lower() in _TRUE


def _identity(kind: GuestKind, values: Mapping[str, str]) -> str:
    """Marks of one guest that stay for its life and differ in the next one with its VMID, as words.

    A VM has a smbios uuid and `meta: ctime=`; the vmgenid, which PVE draws anew at each restore and rollback, stands in for both. A
    container has neither: its root volume and the MAC addresses that PVE draws at creation are what it has.
    """
    if kind is GuestKind.QEMU:
        marks = {"uuid": _field(values.get("smbios1", ""), "uuid"), "ctime": _field(values.get("meta", ""), "ctime")}
        if not any(marks.values()):
            marks = {"vmgenid": values.get("vmgenid", "")}
        return " ".join(f"{name}={mark}" for name, mark in marks.items() if mark)
    macs = {m.upper() for key, value in values.items() if re.fullmatch(r"net[0-9]+", key) for m in _MAC.findall(value)}
    return " ".join(sorted({f"root={_volume(values['rootfs'])}"} if values.get("rootfs") else set()) + sorted(f"mac={m}" for m in macs))


def same_guest(kind: GuestKind, one: str, other: str) -> bool:
    """Whether two identities can be of one guest.

    Whoever configures a container may move its root volume or change a network card, and it stays the same guest: one mark in common
    is enough for it. A VM's marks are nobody's to change. That a guest was made anew with all its marks, as a restore does it, only
    PVE's task history tells.
    """
    if one == other or kind is GuestKind.QEMU:
        return one == other
    return not set(one.split()).isdisjoint(other.split())


def _fingerprint(values: Mapping[str, str]) -> str:
    lines = sorted(f"{key}={value}" for key, value in values.items() if key not in _VOLATILE)
    return hashlib.sha256("\n".join(lines).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _field(text: str, name: str) -> str:
    return next((part.partition("=")[2] for part in text.split(",") if part.startswith(f"{name}=")), "")


def _volume(text: str) -> str:
    return text.split(",", maxsplit=1)[0].removeprefix("volume=").removeprefix("file=")


def _storages(values: Mapping[str, str]) -> set[str]:
    """Storages of all disks that a start opens. `none`, bind mounts and devices (`/path`) belong to no storage."""
    volumes = [_volume(value) for _, value in _disks(values)]
    return {volume.partition(":")[0] for volume in volumes if ":" in volume and not volume.startswith("/")}


def _disks(values: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(key, value) for key, value in values.items() if _VOLUME_KEY.fullmatch(key)]
