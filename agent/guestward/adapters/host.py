"""What an unprivileged process can see on the PVE host itself. Nothing here raises: what could not be read is Unreadable.

Sources are named with the commit that was read: pve-cluster 7091d92, pve-common f665029, pve-container 94f5585,
pve-ha-manager b71218f, pve-manager 14a22df3, pve-storage 0c56bad, qemu-server e6352be6.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from guestward.adapters.units import system_state, unit_state
from guestward.model.guest import GuestId, GuestKind
from guestward.model.observation import BackupWitnesses, FlockHolder, HostState, NodeNames
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

_LOCK = re.compile(r"\d+:\s+(?P<waits>->\s+)?(?P<type>[A-Z]+|UNKNOWN \S+)\s")
_FLOCK = re.compile(
    r"\d+:\s+(?:->\s+)?FLOCK\s+\S+\s+(?P<access>READ|WRITE|UNLCK)\s+(?P<pid>-?\d+)\s+"
    r"(?:<none>|(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+)):(?P<inode>\d+)\s.*"
)


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
    return _holder(_read(locks, _LARGE).decode("utf-8", "replace"), inode, device)


def _holder(text: str, inode: int, device: tuple[int, int] | None) -> FlockHolder | None:
    """Find the holder in /proc/locks (kernel fs/locks.c:lock_get_status). `->` is one who waits; device None matches any."""
    found = None
    for line in filter(str.strip, text.splitlines()):
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
    """Whether the process is the one that began then, and no zombie (pve-common ProcFSTools.pm:check_process_running).

    The command name may hold spaces and parentheses: fields count from the last one. Field 3 is the state, 22 the start time.
    """
    try:
        text = _read(f"{proc}/{upid.pid}/stat", _SMALL).decode("utf-8", "replace")
    except _VANISHED:
        _refuse_hidden(proc)
        return False
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20 or not fields[19].isdecimal():
        raise ValueError(f"not a process status in {upid.pid}/stat: {bounded(text, 80)}")
    return int(fields[19]) == upid.pstart and fields[0] not in ("Z", "X")


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

_COMPRESSORS = frozenset({"zstd", "gzip", "lzop", "pigz"})  # pve-manager VZDump.pm:compressor_info
_SHELLS = frozenset({"bash", "sh", "dash"})
_WRITERS = _COMPRESSORS | {"tar", "cstream", "rsync", "vma"}
_PROGRAMS = _WRITERS | _SHELLS | {"lxc-usernsexec", "proxmox-backup-client"}
_HINT = re.compile(rb"vzdump|--backup-id")
_ARCHIVE = re.compile(r"vzdump-(?:lxc|qemu)-([1-9]\d{2,8})-|vzdumptmp\d+_([1-9]\d{2,8})(?!\d)")  # VZDump.pm:exec_backup_task
_TMPDIR = re.compile(r".*/(?:vzdump-lxc-\d+-[^/]*\.tmp|vzdumptmp\d+_\d+)/*")
_VMID = re.compile(r"[1-9]\d{2,8}")
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
        if os.path.basename(data.partition(b"\0")[0]).decode("utf-8", "replace") not in _PROGRAMS:
            return []
        while len(data) < _CMDLINE and (more := os.read(descriptor, _CMDLINE)):
            data += more
    except _VANISHED:
        return []
    finally:
        os.close(descriptor)
    return data.rstrip(b"\0").decode("utf-8", "replace").split("\0") if _HINT.search(data) else []


def _in_a_guest(path: str) -> bool:
    """Whether the process lives in a PID namespace below ours: a container could else claim that any guest is in a backup.

    vzdump's tar has a user namespace of its own, but no PID namespace (pve-container LXC.pm:userns_command).
    """
    try:
        text = _read(path, _SMALL).decode("utf-8", "replace")
    except _VANISHED:
        return False
    pids = re.search(r"^NSpid:(.*)$", text, re.MULTILINE)
    return pids is not None and len(pids[1].split()) > 1


def archived_guest(argv: Sequence[str]) -> int | None:
    """The guest that this command line archives, None when it does not: restores read the same archives, and `grep` names them.

    The command lines are those of pve-container VZDump/LXC.pm:archive and qemu-server VZDump/QemuServer.pm:archive_vma, archive_pbs.
    kvm never counts: it names volumes, and a VM's own backup job lives and dies inside it.
    """
    if argv and os.path.basename(argv[0]) in _SHELLS:
        return _in_script(argv[1:])
    return _in_command(argv)


def _in_command(argv: Sequence[str]) -> int | None:
    """One program, with or without the user namespace of an unprivileged container around it."""
    if argv and os.path.basename(argv[0]) == "lxc-usernsexec" and "--" in argv:
        argv = argv[argv.index("--") + 1 :]
    program, arguments = os.path.basename(argv[0]) if argv else "", argv[1:]
    if program == "proxmox-backup-client":
        return _in_client_call(arguments)
    return _named(arguments) if program in _WRITERS and _writes_archive(program, arguments) else None


def _writes_archive(program: str, arguments: Sequence[str]) -> bool:
    if program == "tar":  # `tar cpf - ...`; a restore is `tar xpf -`
        bundle = arguments[0] if arguments else ""
        return (not bundle.startswith("-") and "c" in bundle) or _option("c", "--create", arguments)
    if program == "vma":  # `vma create`; a restore is `vma extract`
        return arguments[:1] == ["create"]
    if program == "rsync":  # suspend mode copies the container into the temporary directory (VZDump/LXC.pm:rsync_vm)
        return bool(arguments) and _TMPDIR.fullmatch(arguments[-1]) is not None
    if program == "cstream":  # a restore reads `cstream -t N -- ARCHIVE` (QemuServer.pm:restore_vma_archive)
        return "--" not in arguments
    return not _option("dtlx", "--(?:decompress|uncompress|extract|test|list)", arguments)  # `zstd -q -d -c ARCHIVE`


def _option(letters: str, words: str, arguments: Sequence[str]) -> bool:
    pattern = re.compile(rf"-[A-Za-z]*[{letters}][A-Za-z]*|{words}")
    return any(pattern.fullmatch(argument) for argument in arguments)


def _named(arguments: Iterable[str]) -> int | None:
    match = next(filter(None, map(_ARCHIVE.search, arguments)), None)
    return int(match[1] or match[2]) if match else None


def _in_client_call(arguments: Sequence[str]) -> int | None:
    """`proxmox-backup-client backup ... --backup-type ct --backup-id VMID`; a backup of the host itself has the type `host`."""
    if arguments[:1] != ["backup"] or _value("--backup-type", arguments) == "host":
        return None
    vmid = _value("--backup-id", arguments)
    return int(vmid) if _VMID.fullmatch(vmid) else None


def _value(option: str, arguments: Sequence[str]) -> str:
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == option:
            return following
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return ""


def _in_script(arguments: Sequence[str]) -> int | None:
    """`bash -c "set -o pipefail && tar cpf ... | zstd >ARCHIVE"` (pve-common Cmd.pm:run), and `sh -c` of `vma create exec:...`."""
    if len(arguments) < 2 or arguments[0] != "-c":
        return None
    lexer = shlex.shlex(arguments[1], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:  # quotes that do not close: not a line that PVE wrote
        return None
    written = _named(target for redirect, target in pairwise(words) if redirect in (">", ">>"))
    if written is not None:
        return written
    return next((vmid for command in _commands(words) if (vmid := _in_command(command)) is not None), None)


def _commands(words: Iterable[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in words:
        if set(word) <= set("|&;()"):
            yield command
            command = []
        else:
            command.append(word)
    yield command
