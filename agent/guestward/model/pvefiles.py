"""What stands in the files of a PVE host and of its kernel, as pure functions over their text. What has an unknown form raises ValueError.

Sources: pve-container 94f5585 (LXC/Config.pm), qemu-server e6352be6 (QemuServer.pm), pve-access-control 5ccd07d (AccessControl.pm),
pve-common f665029 (INotify.pm, ProcFSTools.pm), kernel fs/locks.c.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from guestward.model.guest import GuestKind
from guestward.model.observation import FlockHolder
from guestward.model.task import Upid, bounded

# --- a guest's configuration ---

_KEY = re.compile(r"([a-z][a-z_\-]*\d*):\s*(.+?)\s*")
_SNAPSHOT = re.compile(r"\[([a-z][a-z0-9_\-]+)\]\s*", re.IGNORECASE)
_PENDING = {GuestKind.LXC: re.compile(r"\[pve:pending\]\s*", re.I), GuestKind.QEMU: re.compile(r"\[PENDING\]\s*", re.I)}
_FALSE = ("0", "off", "no", "false")  # QemuServer.pm:check_type, and any case; what is none of PVE's booleans counts as a yes here
_SPECIAL = re.compile(r"\[special:([a-z]+)\]\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GuestFile:
    """A guest's configuration file as it stands in /etc/pve, and not as the API merges it.

    digest: what PVE calls so: the SHA-1 of the file's bytes (QemuServer.pm:parse_vm_config, LXC/Config.pm:parse_pct_config).
    lock, template: of the main section. pending: changes that wait, None where there is no such section. special: names of `[special:...]`.
    snapshots: name -> key -> value; `snapstate` is there while a snapshot is made (`prepare`) or deleted (`delete`).
    """

    digest: str
    lock: str | None
    snapshots: Mapping[str, Mapping[str, str]]
    pending: Mapping[str, str] | None = None
    special: frozenset[str] = frozenset()
    template: bool = False

    @classmethod
    def parse(cls, kind: GuestKind, data: bytes) -> GuestFile:
        """Read the file's bytes. Raises ValueError where a section or lock stands there twice, or a section is of no known form."""
        reader = _Sections(kind)
        for line in data.decode("utf-8", "replace").split("\n"):
            reader.take(line)
        pending = reader.found.get("pending:")
        return cls(
            digest=hashlib.sha1(data, usedforsecurity=False).hexdigest(),
            lock=reader.found["main:"].get("lock"),
            snapshots={name.removeprefix("snapshot:"): keys for name, keys in reader.found.items() if name.startswith("snapshot:")},
            pending=pending,
            special=frozenset(name.removeprefix("special:") for name in reader.found if name.startswith("special:")),
            template=reader.found["main:"].get("template", "0").lower() not in _FALSE,
        )

    @property
    def waits_to_drop_lock(self) -> bool:
        """Whether a pending change would delete the lock: an API call that was cut off between its two writes leaves that."""
        words = re.split(r"[\s,;]+", (self.pending or {}).get("delete", ""))
        return "lock" in [word.lstrip("!") for word in words]


@dataclass(slots=True)
class _Sections:
    kind: GuestKind
    found: dict[str, dict[str, str]] = field(default_factory=lambda: {"main:": {}})
    current: str = "main:"

    def take(self, line: str) -> None:
        if not line.strip() or line.startswith("#"):
            return
        if line.startswith("["):
            self.current = self._section(line)
            if self.current in self.found:
                raise ValueError(f"section {bounded(line, 60)} stands there twice")
            self.found[self.current] = {}
        elif match := _KEY.fullmatch(line):
            keys = self.found[self.current]
            if match[1] in keys and match[1] in ("lock", "snapstate"):
                raise ValueError(f"`{match[1]}` stands there twice in one section")
            keys[match[1]] = match[2]

    def _section(self, line: str) -> str:
        if _PENDING[self.kind].fullmatch(line):
            return "pending:"
        if match := _SNAPSHOT.fullmatch(line):
            return f"snapshot:{match[1]}"
        if self.kind is GuestKind.QEMU and (match := _SPECIAL.fullmatch(line)):
            return f"special:{match[1].lower()}"
        raise ValueError(f"a section of unknown form: {bounded(line, 60)}")


# --- pools ---


def pool_of(user_cfg: str, vmid: int) -> str | None:
    """The pool of a guest by /etc/pve/user.cfg, lines `pool:NAME:COMMENT:VMIDS:STORAGES:`.

    A guest is in one pool; PVE ignores it in every later one (AccessControl.pm:parse_user_config). A comment has its colons encoded.
    """
    for line in user_cfg.split("\n"):
        fields = [part.strip() for part in line.strip().split(":")]
        if fields[0] == "pool" and len(fields) > 3 and str(vmid) in re.split(r"[\s,;]+", fields[3]):
            return fields[1]
    return None


# --- tasks and processes ---

_TASK = re.compile(r"(\S+)\s[01](\s[0-9A-Za-z]{8}(\s\s*\S.*)?)?")


def unended_tasks(text: str) -> tuple[Upid, ...]:
    """The tasks of /var/log/pve/tasks/active without an end time (INotify.pm:read_active_workers).

    Whether one still runs only its process tells: after a power cut the list is as it was.
    """
    found = []
    for line in filter(str.strip, text.split("\n")):
        match = _TASK.fullmatch(line)
        if match is None:
            raise ValueError(f"a line of unknown form: {bounded(line, 80)}")
        if match[2] is None:
            found.append(Upid.parse(match[1]))
    return tuple(found)


def lives(stat: str, upid: Upid) -> bool:
    """Whether this is the status of the process that began then, and no zombie's (ProcFSTools.pm:check_process_running).

    The command name may hold spaces and parentheses: fields count from the last one. Field 3 is the state, 22 the start time.
    """
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or not fields[19].isdecimal():
        raise ValueError(f"not a process status in {upid.pid}/stat: {bounded(stat, 80)}")
    return int(fields[19]) == upid.pstart and fields[0] not in ("Z", "X")


def in_a_guest(status: str) -> bool:
    """Whether the process lives in a PID namespace below ours: a container could else claim that any guest is in a backup.

    vzdump's tar has a user namespace of its own, but no PID namespace (pve-container LXC.pm:userns_command).
    """
    pids = re.search(r"^NSpid:(.*)$", status, re.MULTILINE)
    return pids is not None and len(pids[1].split()) > 1


# --- flocks ---

_LOCK = re.compile(r"\d+:\s+(?P<waits>->\s+)?(?P<type>[A-Z]+|UNKNOWN \S+)\s")
_FLOCK = re.compile(
    r"\d+:\s+(?:->\s+)?FLOCK\s+\S+\s+(?P<access>READ|WRITE|UNLCK)\s+(?P<pid>-?\d+)\s+"
    r"(?:<none>|(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+)):(?P<inode>\d+)\s.*"
)


def flock_holder(locks: str, inode: int, device: tuple[int, int] | None) -> FlockHolder | None:
    """Find the holder in /proc/locks (kernel fs/locks.c:lock_get_status). `->` is one who waits; device None matches any."""
    found = None
    for line in filter(str.strip, locks.splitlines()):
        kind = _LOCK.match(line)
        if kind is None:
            raise ValueError(f"/proc/locks has a line of unknown form: {bounded(line, 80)}")
        if kind["type"] != "FLOCK" or kind["waits"]:
            continue
        lock = _FLOCK.fullmatch(line)
        if lock is None:
            raise ValueError(f"/proc/locks has a FLOCK line of unknown form: {bounded(line, 80)}")
        if int(lock["inode"]) == inode and device in (None, (int(lock["major"] or "0", 16), int(lock["minor"] or "0", 16))):
            holder = FlockHolder(max(0, int(lock["pid"])))  # -1 where the owner is a description, 0 outside our PID namespace
            if lock["access"] == "WRITE":  # vzdump's own (VZDump.pm:getlock); a shared one is somebody's probe
                return holder
            found = found or holder
    return found
