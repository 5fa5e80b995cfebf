"""What an unprivileged process can see on the PVE host itself. Nothing here raises: what could not be read is Unreadable.

Sources are named with the commit that was read: pve-cluster 7091d92, pve-common f665029, pve-container 94f5585,
pve-ha-manager b71218f, pve-manager 14a22df3, pve-storage 0c56bad, qemu-server e6352be6.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from guestward.adapters.units import system_state, unit_state
from guestward.model.archives import ARCHIVERS, archived_guest
from guestward.model.guest import GuestId, GuestKind
from guestward.model.observation import BackupWitnesses, FlockHolder, HostState, NodeNames
from guestward.model.pvefiles import flock_holder, in_a_guest, lives
from guestward.model.reading import Reading, Unreadable
from guestward.model.task import Upid, bounded

T = TypeVar("T")
_FOLDERS = ((GuestKind.LXC, "lxc"), (GuestKind.QEMU, "qemu-server"))
_CONF = re.compile(r"([1-9][0-9]{2,8})\.conf")
_SMALL, _LARGE = 64 * 1024, 16 * 1024 * 1024  # bytes read of a file at most
_VANISHED = (FileNotFoundError, ProcessLookupError)


class LinuxHost:
    """`HostWitness` on a real host. root is "/" in production; tests make a tree of files."""

    def __init__(self, root: Path, node: str) -> None:
        """Node: the name under which pmxcfs knows this host."""
        self._root = root.absolute()
        self._node = node
        self._proc = self._at("proc")

    def host(self) -> HostState:
        """Boot, quorum, hold file, maintenance, names under /etc/pve."""
        return HostState(
            pmxcfs=os.path.islink(self._at("etc/pve/local")),  # pve-cluster Cluster.pm:check_cfs_is_mounted asks the same
            quorate=self._quorate(),
            pve_guests=unit_state(self._root, "pve-guests.service"),
            system=system_state(self._root),
            hold_file=self._hold_file(),
            maintenance=self._maintenance(),
            names=self._names(),
            local_node=self._local_node(),
        )

    def backups(self) -> BackupWitnesses:
        """flock, pid file, archive processes."""
        return BackupWitnesses(flock=self._flock(), live_upid=self._live_upid(), archives=self._archives())

    def written(self, guests: Iterable[GuestId]) -> dict[GuestId, float]:
        """See `ports.Host`. pmxcfs keeps the time of each write (memdb.c); stat needs no right to read the file."""
        return {guest: at for guest in guests if (at := self._written(guest)) is not None}

    def _written(self, guest: GuestId) -> float | None:
        folder = dict(_FOLDERS)[guest.kind]
        with suppress(OSError):
            return os.stat(self._at(f"etc/pve/nodes/{self._node}/{folder}/{guest.vmid}.conf")).st_mtime
        return None

    def frozen(self, vmids: Iterable[int]) -> Reading[frozenset[int]]:
        """Which of these containers' cgroups are frozen: a vzdump killed in suspend mode leaves one so (pve-facts C5)."""
        where = self._at("sys/fs/cgroup/lxc")
        return _reading(where, lambda: frozenset(vmid for vmid in vmids if _frozen(f"{where}/{vmid}/cgroup.events")))

    def _at(self, path: str) -> str:
        return os.path.join(self._root, path)

    def _local_node(self) -> str | None:
        try:
            target = os.readlink(self._at("etc/pve/local"))
        except OSError:
            return None  # `pmxcfs` says so
        return target.removeprefix("nodes/") if target.startswith("nodes/") else None

    def _quorate(self) -> Reading[bool]:
        """The owner's write bit, not access(2): root may always write (pve-cluster Cluster.pm:check_cfs_quorum).

        PVE looks at the link; pmxcfs takes the bit from the directory too, and only there can a tree on another file system show it.
        """
        path = self._at("etc/pve/local")
        return _reading(path, lambda: bool(os.stat(path).st_mode & stat.S_IWUSR))

    def _hold_file(self) -> Reading[bool]:
        path = self._at("etc/guestward/hold")
        return _reading(path, lambda: _exists(path))

    def _maintenance(self) -> Reading[bool]:
        path = self._at(f"etc/pve/nodes/{self._node}/lrm_status")
        return _reading(path, lambda: _in_maintenance(path))

    def _names(self) -> Reading[NodeNames]:
        nodes = self._at("etc/pve/nodes")
        return _reading(nodes, lambda: _node_names(nodes, self._node))

    def _flock(self) -> Reading[FlockHolder | None]:
        """Who holds `/run/vzdump.lock`; no file = nobody (PVE makes it at the first use after a boot and leaves it)."""
        path = self._at("run/vzdump.lock")
        return _reading(path, lambda: _flock_holder(path, self._proc))

    def _live_upid(self) -> Reading[Upid | None]:
        """The UPID in `/run/vzdump.pid` if that worker lives; a job that fails leaves the file (pve-facts C1)."""
        path = self._at("run/vzdump.pid")
        upid = _reading(path, lambda: _upid_in(path))
        if not isinstance(upid, Upid):
            return upid
        alive = _reading(self._proc, lambda: _lives(self._proc, upid))
        if isinstance(alive, Unreadable):
            return alive
        return upid if alive else None

    def _archives(self) -> Reading[frozenset[int]]:
        return _reading(self._proc, lambda: frozenset(_archived_guests(self._proc)))


def _reading(path: str, read: Callable[[], T]) -> Reading[T]:
    """The one place where a failure to read becomes a value. path: named when the error itself names none."""
    try:
        return read()
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else path
        return Unreadable(f"{where}: {error.strerror}")
    except (ValueError, RecursionError) as error:  # recursion: JSON that is nested without end
        return Unreadable(f"{path}: {bounded(str(error))}")


def _read(path: str, limit: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        data = bytearray()
        while len(data) < limit and (more := file.read(min(_SMALL, limit - len(data)))):
            data += more
        return bytes(data)


def _exists(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


# --- /etc/pve ---


def _in_maintenance(path: str) -> bool:
    """`mode` is one of active, reboot, shutdown, restart, maintenance, disarm (pve-ha-manager LRM.pm:new).

    A missing or empty file says nothing, as for PVE (Config.pm:read_lrm_status, json_reader).
    """
    try:
        text = _read(path, _LARGE)
    except FileNotFoundError:
        return False
    status = json.loads(text) if text else {}
    if not isinstance(status, dict):
        raise ValueError("not a JSON object")
    return status.get("mode") == "maintenance"


def _node_names(nodes: str, node: str) -> NodeNames:
    here: dict[GuestId, str] = {}
    elsewhere: dict[GuestId, str] = {}
    names = sorted(os.listdir(nodes))
    if node not in names:
        raise ValueError(f"no node {bounded(node)} in it")
    for name in names:
        for kind, folder in _FOLDERS:
            for vmid, entry in _configurations(f"{nodes}/{name}/{folder}"):
                if name != node:
                    elsewhere[GuestId(kind, vmid)] = name
                else:
                    with suppress(FileNotFoundError):  # moved or destroyed a moment ago
                        here[GuestId(kind, vmid)] = _stamp(entry)
    return NodeNames(here, elsewhere)


def _configurations(folder: str) -> Iterator[tuple[int, os.DirEntry[str]]]:
    """The guests of one kind on one node. A folder that is not there holds none: its node was removed, or never had one."""
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            if match := _CONF.fullmatch(entry.name):
                yield int(match[1]), entry


def _stamp(entry: os.DirEntry[str]) -> str:
    """Changes with the file. stat needs no right to read it: those are 0640 root:www-data (pve-facts A5)."""
    seen = entry.stat(follow_symlinks=False)
    return f"{seen.st_mtime_ns}-{seen.st_size}-{seen.st_ino}"


# --- the flock on vzdump.lock ---


def _flock_holder(path: str, proc: str) -> FlockHolder | None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)  # needs no right to read it
    except FileNotFoundError:
        return None
    try:
        inode, device = os.fstat(descriptor).st_ino, _lock_device(descriptor, proc)
    finally:
        os.close(descriptor)
    locks = f"{proc}/locks"
    return flock_holder(_read(locks, _LARGE).decode("utf-8", "replace"), inode, device)


def _lock_device(descriptor: int, proc: str) -> tuple[int, int] | None:
    """The device number that /proc/locks prints for an open file: that of its superblock.

    st_dev is another one on btrfs, where each subvolume has its own; mountinfo prints the superblock's (proc_pid_mountinfo(5)). None
    when it cannot be told (a test tree without /proc/self): then the inode alone has to do.
    """
    try:
        info = _read(f"{proc}/self/fdinfo/{descriptor}", _SMALL).decode("ascii", "replace")
        mounts = _read(f"{proc}/self/mountinfo", _LARGE).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    mount = re.search(r"^mnt_id:\s*(\d+)$", info, re.MULTILINE)
    device = re.search(rf"^{mount[1]} \d+ (\d+):(\d+) ", mounts, re.MULTILINE) if mount else None
    return (int(device[1]), int(device[2])) if device else None


# --- the worker in vzdump.pid ---


def _upid_in(path: str) -> Upid | None:
    try:
        text = _read(path, _SMALL).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    return Upid.parse(text) if text else None


def _lives(proc: str, upid: Upid) -> bool:
    try:
        text = _read(f"{proc}/{upid.pid}/stat", _SMALL).decode("utf-8", "replace")
    except _VANISHED:
        _refuse_hidden(proc)
        return False
    return lives(text, upid)


def _refuse_hidden(proc: str) -> None:
    """An absent process proves nothing where only our own are shown: then even PID 1 is absent (proc(5), hidepid=2)."""
    if os.path.lexists(f"{proc}/self") and not os.path.lexists(f"{proc}/1"):
        raise ValueError("processes of other users are hidden (hidepid, or ProtectProc= of our own unit)")


def _frozen(path: str) -> bool:
    try:
        lines = _read(path, _SMALL).decode("ascii", "replace").splitlines()
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ENODEV:  # the cgroup was removed while it was open
            return False
        raise
    return "frozen 1" in lines


# --- processes that archive a guest ---

_HINT = re.compile(rb"vzdump|--backup-id")
_HEAD, _CMDLINE = 1024, 256 * 1024


def _archived_guests(proc: str) -> set[int]:
    """VMIDs of all live archive processes. They outlive a vzdump that was killed (recorded/timelines.md, 6c)."""
    found = set()
    _refuse_hidden(proc)
    for name in os.listdir(proc):
        if name.isdecimal():
            argv = _command_line(f"{proc}/{name}/cmdline")
            if argv and not _in_a_guest(f"{proc}/{name}/status"):
                found.add(archived_guest(argv))
    return {vmid for vmid in found if vmid is not None}


def _command_line(path: str) -> list[str]:
    """The arguments of a process if it may be one of ours, else nothing; kernel threads and zombies have none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except _VANISHED:
        return []
    try:
        data = os.read(descriptor, _HEAD)
        if os.path.basename(data.partition(b"\0")[0]).decode("utf-8", "replace") not in ARCHIVERS:
            return []
        while len(data) < _CMDLINE and (more := os.read(descriptor, _CMDLINE)):
            data += more
    except _VANISHED:
        return []
    finally:
        os.close(descriptor)
    return data.rstrip(b"\0").decode("utf-8", "replace").split("\0") if _HINT.search(data) else []


def _in_a_guest(path: str) -> bool:
    try:
        return in_a_guest(_read(path, _SMALL).decode("utf-8", "replace"))
    except _VANISHED:
        return False
