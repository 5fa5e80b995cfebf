"""What a stand-in PVE host consists of: guests, tasks, access rules. Plain values, no I/O but the clock."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Value = str | int
Config = dict[str, Value]

GIB = 1 << 30
DISK_SIZE = 8 * GIB
_DISK = re.compile(r"^(rootfs|mp\d+|scsi\d+)$")


class TaskFailed(Exception):
    """Ends a task with this text as its exit status."""


def boottime() -> float:
    """Seconds since the machine started; pstart in a UPID counts the same clock in jiffies (facts D5)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Guest:
    """A container or VM: its configuration file and what runs."""

    vmid: int
    kind: str
    node: str
    config: Config
    status: str = "stopped"
    qmpstatus: str = "stopped"
    pid: int | None = None
    started: float = 0.0
    snapshots: dict[str, Config] = field(default_factory=dict)
    ha_managed: bool = False
    ha_state: str | None = None
    frozen: bool = False
    agent: bool = False
    plan: list[str] = field(default_factory=lambda: ["ok"])
    attempts: int = 0
    start_takes: float = 0.3
    ignores_shutdown: bool = False
    leaves_volumes: bool = False

    @property
    def lock(self) -> str | None:
        """The config lock."""
        value = self.config.get("lock")
        return None if value is None else str(value)

    @lock.setter
    def lock(self, value: str | None) -> None:
        if value is None:
            self.config.pop("lock", None)
        else:
            self.config["lock"] = value

    @property
    def name(self) -> str:
        """The name that lists show."""
        key = "hostname" if self.kind == "lxc" else "name"
        default = f"CT{self.vmid}" if self.kind == "lxc" else f"VM {self.vmid}"
        return str(self.config.get(key, default))

    @property
    def label(self) -> str:
        """CT or VM, as error texts say it."""
        return "CT" if self.kind == "lxc" else "VM"

    @property
    def template(self) -> bool:
        """Whether it is a template."""
        return str(self.config.get("template", 0)) == "1"

    @property
    def running(self) -> bool:
        """Whether lists say running."""
        return self.status == "running"

    @property
    def ha_starts_it(self) -> bool:
        """Whether HA owns its starts; requested state `ignored` does not count (facts G)."""
        return self.ha_managed and self.ha_state != "ignored"

    @property
    def conf_path(self) -> str:
        """The configuration file's path below /etc/pve, as error texts name it."""
        return conf_path(self.node, self.kind, self.vmid)

    @property
    def task_prefix(self) -> str:
        """First letters of its task types."""
        return "vz" if self.kind == "lxc" else "qm"

    def uptime(self) -> int:
        """Whole seconds since its process began; 0 while it has no pid (timelines, summary 2)."""
        return int(boottime() - self.started) if self.running and self.pid else 0

    def volumes(self) -> list[str]:
        """The volume ids that its configuration names."""
        return volumes_of(self.config)

    def storages(self) -> set[str]:
        """The storages that it needs to start."""
        return {volume.partition(":")[0] for volume in self.volumes()}


def volumes_of(config: Config) -> list[str]:
    """The volume ids that this configuration names."""
    return [str(v).split(",")[0] for k, v in sorted(config.items()) if _DISK.match(k)]


def conf_path(node: str, kind: str, vmid: int) -> str:
    """Path of a guest's configuration file below /etc/pve."""
    return f"nodes/{node}/{'lxc' if kind == 'lxc' else 'qemu-server'}/{vmid}.conf"


def new_config(vmid: int, kind: str, storages: Iterable[str], *, net: bool, name: str | None, disk: int = 0) -> Config:
    """A fresh configuration: every call is a new identity (hwaddr, or smbios1, vmgenid and meta). disk: the first one's number."""
    mac = "BC:24:11:" + ":".join(f"{b:02X}" for b in secrets.token_bytes(3))
    disks = [f"{storage}:vm-{vmid}-disk-{n}" for n, storage in enumerate(storages, disk)]
    return _ct_config(vmid, disks, mac if net else None, name) if kind == "lxc" else _vm_config(vmid, disks, mac if net else None, name)


def _ct_config(vmid: int, disks: list[str], mac: str | None, name: str | None) -> Config:
    config: Config = {"arch": "amd64", "hostname": name or f"ct{vmid}", "memory": 512, "ostype": "debian", "swap": 0, "unprivileged": 1}
    for n, disk in enumerate(disks):
        config["rootfs" if n == 0 else f"mp{n - 1}"] = f"{disk},size=8G" if n == 0 else f"{disk},mp=/mnt/{n - 1},size=8G"
    if mac:
        config["net0"] = f"name=eth0,bridge=vmbr0,hwaddr={mac},ip=dhcp,type=veth"
    return config


def _vm_config(vmid: int, disks: list[str], mac: str | None, name: str | None) -> Config:
    config: Config = {
        "boot": "order=scsi0",
        "cores": 1,
        "memory": "512",  # a property string since PVE 8, so the API sends text
        "meta": f"creation-qemu=10.1.2,ctime={int(time.time())}",
        "name": name or f"vm{vmid}",
        "ostype": "l26",
        "scsihw": "virtio-scsi-single",
        "smbios1": f"uuid={uuid.uuid4()}",
        "vmgenid": str(uuid.uuid4()),
    }
    config.update({f"scsi{n}": f"{disk},size=8G" for n, disk in enumerate(disks)})
    if mac:
        config["net0"] = f"virtio={mac},bridge=vmbr0"
    return config


def render_config(guest: Guest) -> str:
    """The configuration file's text: current section first, then one section a snapshot (recorded, pve-9.1 section 9)."""
    return "\n".join([_section(guest.config), *(f"[{name}]\n{_section(snap)}" for name, snap in guest.snapshots.items())])


def _section(config: Config) -> str:
    comment = "".join(f"#{line}\n" for line in str(config.get("description", "")).splitlines())
    return comment + "".join(f"{key}: {value}\n" for key, value in sorted(config.items()) if key != "description")


def digest(guest: Guest) -> str:
    """The sha1 of the configuration file."""
    return hashlib.sha1(render_config(guest).encode(), usedforsecurity=False).hexdigest()


@dataclass
class Task:
    """A PVE task; `user` is the whole id, token included, as in the UPID."""

    upid: str
    node: str
    pid: int
    pstart: int
    starttime: int
    type: str
    id: str
    user: str
    by_api: bool = False
    log: list[str] = field(default_factory=list)
    endtime: int | None = None
    exitstatus: str | None = None
    job: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.exitstatus is None

    def fields(self) -> dict[str, Value]:
        """What every view of a task has."""
        return {
            "upid": self.upid,
            "node": self.node,
            "pid": self.pid,
            "pstart": self.pstart,
            "starttime": self.starttime,
            "type": self.type,
            "id": self.id,
        }

    def split_user(self) -> dict[str, Value]:
        """`user` without the token, which moves to `tokenid` (facts D6)."""
        user, bang, token = self.user.partition("!")
        return {"user": user, "tokenid": token} if bang else {"user": user}


class Acl:
    """Access rules with PVE's evaluation (facts E2): deeper replaces, pool roles add, a token has at most what its user has."""

    def __init__(self) -> None:
        """Begin with no rule at all."""
        self._entries: dict[tuple[str, str], dict[str, int]] = {}

    def grant(self, path: str, who: str, privs: Iterable[str], propagate: bool = True) -> None:
        """Give `who` (user or token id) privileges at a path."""
        self._entries.setdefault((path, who), {}).update(dict.fromkeys(privs, int(propagate)))

    def revoke(self, path: str, who: str, priv: str | None = None) -> None:
        """Take one privilege, or the whole entry, from `who` at a path."""
        entry = self._entries.get((path, who), {})
        entry.pop(priv or "", None)
        if priv is None or not entry:
            self._entries.pop((path, who), None)

    def forget_guest(self, vmid: int) -> None:
        """Destroying a guest deletes every entry at /vms/VMID (facts, surprise 1)."""
        self._entries = {key: entry for key, entry in self._entries.items() if key[0] != f"/vms/{vmid}"}

    def paths(self) -> set[str]:
        """Every path that has an entry."""
        return {path for path, _ in self._entries}

    def at(self, path: str) -> dict[str, dict[str, int]]:
        """The entries at exactly this path, by user or token."""
        return {who: entry for (where, who), entry in self._entries.items() if where == path}

    def effective(self, who: str, path: str, pools: Mapping[str, set[int]]) -> dict[str, int]:
        """Privileges of a user or token at a path, each with its propagate flag (0 when it comes from a pool)."""
        own = self._own(who, path, pools)
        if "!" not in who:
            return own
        user = self._own(who.partition("!")[0], path, pools)
        return {priv: flag and user[priv] for priv, flag in own.items() if priv in user}

    def _own(self, who: str, path: str, pools: Mapping[str, set[int]]) -> dict[str, int]:
        perms = self._walk(who, path)
        match = re.fullmatch(r"/vms/(\d+)", path)
        for pool, members in pools.items() if match else ():
            if match and int(match.group(1)) in members:
                for priv in self._walk(who, f"/pool/{pool}"):
                    perms.setdefault(priv, 0)
        return perms

    def _walk(self, who: str, path: str) -> dict[str, int]:
        perms: dict[str, int] = {}
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            level = "/" + "/".join(parts[:depth])
            entry = self._entries.get((level, who), {})
            found = {priv: flag for priv, flag in entry.items() if flag or depth == len(parts)}
            perms = found or perms
        return dict(perms)


@dataclass
class Storage:
    """A storage; offline, it stays in the lists as `unknown`."""

    name: str
    type: str = "dir"
    content: str = "images,rootdir"
    shared: int = 0
    online: bool = True


@dataclass
class Fault:
    """What happens to requests whose path begins with `prefix`."""

    method: str | None
    prefix: str
    kind: str
    status: int
    message: str
    times: int | None
    delay: float

    def matches(self, method: str, path: str) -> bool:
        """Whether this request is meant."""
        return self.times != 0 and self.method in (None, method) and path.startswith(self.prefix)
