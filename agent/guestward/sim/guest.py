"""One guest of the simulated host: what PVE knows of it, what its configuration says, and what its starts do."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from guestward.config import LONGEST, duration
from guestward.model.guest import GuestConfig, GuestId, GuestKind, ListedGuest
from guestward.model.task import bounded
from guestward.sim.wording import guess, quoted

# What is written in the configuration file; a change of any of these changes the file.
IN_FILE = frozenset({"name", "onboot", "lock", "template", "startup", "storages", "tags", "protection", "snapshots", "identity", "note"})
# pve-facts B1: the enums of both kinds, and the two that PVE writes besides.
LOCKS = (
    *("backup", "clone", "create", "destroyed", "disk", "fstrim", "import", "migrate", "mounted", "rollback"),
    *("snapshot", "snapshot-delete", "suspended", "suspending"),
)
# HA's own states of a service, and what an operator can ask of it (pve-facts G).
HA_STATES = (
    *("disabled", "enabled", "error", "fence", "freeze", "ignored", "migrate", "recovery", "relocate"),
    *("request_start", "request_start_balance", "request_stop", "started", "stopped"),
)
BOOLEANS = ("1", "on", "yes", "true", "0", "off", "no", "false")  # as PVE reads them in a file, in any case
SNAPSHOT_STATES = ("prepare", "delete", "rollback")
STORAGE_NAME = re.compile(r"[A-Za-z0-9._-]+")
SNAPSHOT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_POOL = re.compile(r"[A-Za-z][A-Za-z0-9.\-_]*(/[A-Za-z][A-Za-z0-9.\-_]*){0,2}")  # AccessControl.pm:verify_poolname
_STARTUP = re.compile(r"((order=)?|up=|down=)[0-9]{1,9}")
_PLAIN_STARTS = ("ok", "ok: stays stopped", "hang", "lost before", "lost after")


@dataclass(slots=True)
class SimGuest:
    """A guest. ha: state as HA knows it, in a tuple because it may be None; None is not managed.

    snapshots: name -> snapstate, "" for a whole one. start: what each start by the agent does, the last repeats. changed: called after
    each change, with the name of what changed. locker: who set its lock, `vzdump` or `our delete`; "" for anybody else. written: when
    its file was, in seconds since the epoch. shown: what `/cluster/resources` still shows, and until which broadcast. passing: what PVE's
    live views show for a moment while it goes down or fails to start: `reset` (status 500), `no pid` or `starting` (runs, without a pid).
    """

    id: GuestId
    name: str
    identity: str
    node: str
    changed: Callable[[SimGuest, str], None]
    onboot: bool | str = True
    running: bool = True
    pool: str | None = "guestward"
    lock: str | None = None
    locker: str = ""
    template: bool = False
    startup: str = ""
    storages: frozenset[str] = frozenset({"local"})
    ha: tuple[str | None] | None = None
    qmp: str = "running"
    frozen: bool = False
    tags: str = ""
    protection: bool = False
    snapshots: dict[str, str] = field(default_factory=dict)
    replication: bool = False
    since: float = -86400.0
    pid: int = 0
    no_pid: bool = False
    passing: str = ""
    start: tuple[str, ...] = ("ok",)
    start_takes: float = 1.0
    started: int = 0
    note: str = ""
    edits: int = 0
    written: float = 0.0
    only_lock: bool = False
    listed: ListedGuest | None = None
    parsed: GuestConfig | None = None
    shown: tuple[float, str] = (-1.0, "")

    def __setattr__(self, name: str, value: object) -> None:
        """Everything that was derived from the old value is derived anew."""
        if name in ("listed", "parsed", "shown", "edits", "written", "locker"):
            object.__setattr__(self, name, value)
            return
        told = hasattr(self, "parsed") and getattr(self, name) != value
        if told:
            self.changed(self, name)
        object.__setattr__(self, name, value)
        if told:
            object.__setattr__(self, "listed", None)
            if name == "lock":
                object.__setattr__(self, "locker", "")
            if name in IN_FILE:
                object.__setattr__(self, "parsed", None)
                object.__setattr__(self, "edits", self.edits + 1)

    @property
    def noun(self) -> str:
        """How PVE's messages call it."""
        return "CT" if self.id.kind is GuestKind.LXC else "VM"

    @property
    def managed(self) -> bool:
        """Whether HA manages it for the purpose of a start (pve-facts G)."""
        return self.ha is not None and self.ha[0] != "ignored"

    @property
    def kept_up(self) -> bool:
        """Whether HA is to keep it running (HA/Config.pm:vm_is_ha_managed with `started`; without a state that is what is wanted)."""
        return self.ha is not None and self.ha[0] not in ("ignored", "stopped", "disabled", "request_stop")

    def script(self) -> str:
        """What the next start by the agent does."""
        return self.start[min(self.started, len(self.start) - 1)]

    def task_type(self, what: str) -> str:
        """The type of a task about it: `vzstart`, `qmstart`."""
        return ("vz" if self.id.kind is GuestKind.LXC else "qm") + what

    def options(self) -> dict[str, str]:
        """Its configuration, as `GET .../config` has it. A restore that was killed leaves the lock as the only line (timelines 8)."""
        vmid, seed = self.id.vmid, zlib.crc32(self.identity.encode())
        lock = {"lock": self.lock} if self.lock is not None else {}
        if self.only_lock:
            return {"digest": f"{self.edits:040x}", **lock}
        disks = sorted(self.storages) or ["local"]
        mac = ":".join(["BC", "24", "11", *(f"{seed >> shift & 255:02X}" for shift in (16, 8, 0))])
        if self.id.kind is GuestKind.LXC:
            own = {"hostname": self.name, "arch": "amd64", "ostype": "debian", "memory": "512", "swap": "0"}
            own |= {"net0": f"name=eth0,bridge=vmbr0,hwaddr={mac},type=veth"}
            names = ["rootfs", *(f"mp{i}" for i in range(len(disks) - 1))]
            own |= {key: f"{disk}:{vmid}/vm-{vmid}-{seed:08x}-{key}.raw,size=8G" for key, disk in zip(names, disks, strict=True)}
        else:
            own = {"name": self.name, "cores": "1", "memory": "2048", "net0": f"virtio={mac},bridge=vmbr0"}
            own |= {"smbios1": f"uuid=00000000-0000-4000-8000-{seed:012x}", "meta": f"creation-qemu=9.0.2,ctime={1_700_000_000 + seed}"}
            own |= {f"scsi{i}": f"{disk}:{vmid}/vm-{vmid}-disk-{i}.raw,size=8G" for i, disk in enumerate(disks)}
        optional = {"startup": self.startup, "tags": self.tags, "description": self.note}
        own |= {key: value for key, value in optional.items() if value}
        own |= {key: "1" for key in ("template", "protection") if getattr(self, key)}
        if self.onboot is not False:
            own["onboot"] = "1" if self.onboot is True else self.onboot
        if self.snapshots.get("vzdump", "prepare") != "prepare" and self.id.kind is GuestKind.LXC:
            own["parent"] = "vzdump"
        return own | {"digest": f"{self.edits:040x}"} | lock

    def volumes(self) -> tuple[str, ...]:
        """Its volumes, as a storage names them."""
        return tuple(value.partition(",")[0] for value in self.options().values() if re.fullmatch(r"[\w.-]+:\S+/vm-\S+", value))

    def config(self) -> GuestConfig:
        """Its configuration, read as the agent reads PVE's answer."""
        if self.parsed is None:
            object.__setattr__(self, "parsed", GuestConfig.from_api(self.id.kind, self.options()))
        assert self.parsed is not None  # noqa: S101 - just made
        return self.parsed


def _flag(value: object) -> bool:
    if not isinstance(value, int) or value not in (0, 1):
        raise ValueError("must be true or false, without quotes")
    return bool(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("must be printable text, in quotes")
    if value and not value.strip():
        raise ValueError("must not be blank")
    if value[:1] in ('"', "'") and value.endswith(value[0]):
        raise ValueError(f"has quotes in its quotes: {bounded(value, 80)}")
    return value


def known_word(value: object, known: Collection[str]) -> str:
    """Any text, but none that is only nearly one of the known words. Raises ValueError."""
    word = _text(value)
    if word not in known and guess(word, known):
        raise ValueError(f"there is no {quoted(word)}{guess(word, known)}")
    return word


def _onboot(value: object) -> dict[str, object]:
    """Text stays as it is: what is none of PVE's booleans PVE leaves out with a warning, so that it counts as unset."""
    if isinstance(value, str) and value.strip():
        if value.strip().lower() not in BOOLEANS:
            known_word(value, BOOLEANS)
        return {"onboot": _text(value)}
    if isinstance(value, int) and value in (0, 1):
        return {"onboot": bool(value)}
    raise ValueError('must be true or false, 1 or 0, or text as it stands in the file, like "yes"')


def _status(value: object) -> dict[str, object]:
    if value not in ("running", "stopped"):
        raise ValueError('must be "running" or "stopped"')
    return {"running": value == "running"}


def _state(value: object) -> dict[str, object]:
    """A state in which it runs: of QEMU, or frozen (pve-facts K)."""
    known = ("running", "paused", "io-error", "prelaunch", "internal-error", "suspended", "guest-panicked", "frozen")
    if value not in known:
        raise ValueError(f"must be one of {', '.join(known)}")
    return {"running": True, "qmp": "running" if value == "frozen" else value, "frozen": value == "frozen"}


def _ha(value: object) -> dict[str, object]:
    word = known_word(value, (*HA_STATES, "null", "off"))
    if word in ("off", ""):
        return {"ha": None}
    return {"ha": (None if word == "null" else word,)}


def _storage(value: object) -> dict[str, object]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and STORAGE_NAME.fullmatch(name) for name in names):
        raise ValueError("must be the name of a storage, or a list of names")
    return {"storages": frozenset(names)}


def _snapshots(value: object) -> dict[str, object]:
    found: dict[str, str] = {}
    for entry in value if isinstance(value, list) else [None]:
        if not isinstance(entry, dict) or not entry.keys() <= {"name", "state"} or not isinstance(entry.get("name"), str):
            raise ValueError('must be a list like [{name = "vzdump", state = "prepare"}]; state may be left out')
        name, state = entry["name"], entry.get("state", "")
        if SNAPSHOT_NAME.fullmatch(name) is None or name in found:
            raise ValueError(f"{quoted(name)} {'is there twice' if name in found else 'is no name of a snapshot'}")
        if state not in ("", *SNAPSHOT_STATES):
            raise ValueError(f"state must be one of {', '.join(SNAPSHOT_STATES)}")
        found[name] = state
    return {"snapshots": found}


def _start(value: object) -> dict[str, object]:
    scripts = [value] if isinstance(value, str) else value
    if not isinstance(scripts, list) or not scripts:
        raise ValueError('must be a list with one entry an attempt, like ["fail: no space", "ok"]')
    return {"start": tuple(start_script(script) for script in scripts), "started": 0}


def start_script(value: object) -> str:
    """Check one entry of `start`. Raises ValueError."""
    text = _text(value)
    if text in _PLAIN_STARTS or re.fullmatch(r"warnings: \d{1,6}", text) or re.fullmatch(r"fail: \S.*", text):
        return text
    if text.startswith("flap "):
        return f"flap {_seconds(text.removeprefix('flap ').strip()):g}"
    raise ValueError(f'{quoted(text)} is none of {", ".join(_PLAIN_STARTS)}, "warnings: N", "fail: TEXT", "flap DURATION"')


def _seconds(value: object) -> float:
    found = duration(value)
    if found > LONGEST:
        raise ValueError("must be at most 366d")
    return found


def _startup(value: object) -> dict[str, object]:
    text = _text(value)
    if any(part.strip() and _STARTUP.fullmatch(part) is None for part in text.split(",")):
        raise ValueError('must be as PVE has it, like "order=1,up=5"')
    return {"startup": text}


def _pool(value: object) -> dict[str, object]:
    name = _text(value)
    if name and _POOL.fullmatch(name) is None:
        raise ValueError(f"{quoted(name)} is no name of a pool: letters, digits, . - and _, a letter first")
    return {"pool": name or None}


def _lock(value: object) -> dict[str, object]:
    return {"lock": known_word(value, LOCKS) or None}


# One function a key: what it sets, or a ValueError that says what it should be.
TRAITS: dict[str, Callable[[object], dict[str, object]]] = {
    "onboot": _onboot,
    "status": _status,
    "pool": _pool,
    "name": lambda value: {"name": _text(value)},
    "lock": _lock,
    "template": lambda value: {"template": _flag(value)},
    "ha": _ha,
    "tags": lambda value: {"tags": _text(value)},
    "startup": _startup,
    "protection": lambda value: {"protection": _flag(value)},
    "snapshots": _snapshots,
    "storage": _storage,
    "identity": lambda value: {"identity": _text(value)},
    "start": _start,
    "start_takes": lambda value: {"start_takes": _seconds(value)},
}
LATER: dict[str, Callable[[object], dict[str, object]]] = {
    **TRAITS,
    "state": _state,
    "replication": lambda value: {"replication": _flag(value)},
}


def traits(key: str, value: object, *, later: bool = False) -> dict[str, object]:
    """Check one guest key of a scenario, and say which attributes it sets. later: for the verb `set`, which knows two more keys.

    Raises KeyError for an unknown key, ValueError with a plain sentence for a wrong value.
    """
    return (LATER if later else TRAITS)[key](value)
