"""The host's witnesses, on trees of files, on the kernel's own /proc, and as a user who may not read.

A root that is a tree of files is made below a directory which everybody may enter, since some cases run as nobody.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guestward.adapters import host as host_module
from guestward.adapters.host import LinuxHost
from guestward.model.archives import archived_guest
from guestward.model.guest import GuestId, GuestKind
from guestward.model.observation import BackupWitnesses, FlockHolder, HostState, NodeNames, UnitState
from guestward.model.pvefiles import flock_holder
from guestward.model.reading import Reading, Unreadable
from guestward.model.task import Upid
from guestward.ports import HostWitness

NOBODY = 65534
NODE = "pve1"
SYSTEMCTL = "#!/bin/sh\nprintf '%s\\n' LoadState=loaded ActiveState=active SubState=exited UnitFileState=enabled SystemState=running\n"


class Tree:
    """A small PVE host as files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("usr/bin/systemctl", SYSTEMCTL).chmod(0o755)
        self.put(f"etc/pve/nodes/{NODE}/lrm_status", '{"mode":"active","state":"wait_for_agent_lock","results":{},"timestamp":1796081478}')
        for folder in ("lxc", "qemu-server"):
            (root / f"etc/pve/nodes/{NODE}/{folder}").mkdir()
        (root / "etc/pve/local").symlink_to(f"nodes/{NODE}")
        (root / "etc/guestward").mkdir()
        (root / "run").mkdir()
        (root / "proc").mkdir()

    def put(self, path: str, content: str | bytes = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def real_proc(self) -> None:
        (self.root / "proc").rmdir()
        (self.root / "proc").symlink_to("/proc")

    def process(self, pid: int, *argv: str) -> None:
        self.put(f"proc/{pid}/cmdline", "".join(f"{argument}\0" for argument in argv))

    @property
    def witness(self) -> HostWitness:
        return LinuxHost(self.root, NODE)

    def host(self) -> HostState:
        return self.witness.host()

    def backups(self) -> BackupWitnesses:
        return self.witness.backups()


@pytest.fixture
def tree() -> Iterator[Tree]:
    root = Path(tempfile.mkdtemp(prefix="guestward-host-"))
    root.chmod(0o755)
    yield Tree(root)
    for folder, folders, _ in os.walk(root):
        for name in folders:
            if not (path := Path(folder, name)).is_symlink():
                path.chmod(0o755)
    shutil.rmtree(root)


def as_nobody(read: Callable[[], Any]) -> Any:
    """What an unprivileged process would get: as root, in a forked child that gives its rights up; else we are one (mode 0 stops us)."""
    if os.getuid() != 0:
        return read()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside another test's thread; the child only reads files
        pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, pickle.dumps(read()))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)


def until(true: Callable[[], bool], limit: float = 5) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, "did not come true in time"
        threading.Event().wait(0.005)


def why(reading: Reading[Any]) -> str:
    assert isinstance(reading, Unreadable), reading
    return reading.reason


def lxc(vmid: int) -> GuestId:
    return GuestId(GuestKind.LXC, vmid)


def qemu(vmid: int) -> GuestId:
    return GuestId(GuestKind.QEMU, vmid)


# --- the host as a whole ---


def test_a_host_that_is_well(tree: Tree) -> None:
    assert tree.host() == HostState(
        pmxcfs=True,
        quorate=True,
        pve_guests=UnitState("loaded", "active", "exited", "enabled"),
        system="running",
        hold_file=False,
        maintenance=False,
        names=NodeNames({}, {}),
        local_node="pve1",
    )
    assert tree.backups() == BackupWitnesses(flock=None, live_upid=None, archives=frozenset())
    assert tree.witness.frozen([110]) == frozenset()


def test_a_local_link_that_names_no_node_tells_none(tree: Tree) -> None:
    link = tree.root / "etc/pve/local"
    link.unlink()
    link.symlink_to("elsewhere")
    assert tree.host().local_node is None


def test_an_empty_tree_says_of_everything_that_it_cannot_be_told(tree: Tree) -> None:
    shutil.rmtree(tree.root / "etc")
    (tree.root / "proc").rmdir()
    state, backups = tree.host(), tree.backups()
    assert state.pmxcfs is False
    assert why(state.quorate) == f"{tree.root}/etc/pve/local: No such file or directory"
    assert why(state.names) == f"{tree.root}/etc/pve/nodes: No such file or directory"
    assert (state.hold_file, state.maintenance) == (False, False)
    assert why(backups.archives) == f"{tree.root}/proc: No such file or directory"
    assert (backups.flock, backups.live_upid) == (None, None)


def test_a_root_may_be_relative(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.root.parent)
    witness = LinuxHost(Path(tree.root.name), NODE)
    monkeypatch.chdir("/")
    assert witness.host() == tree.host()


# --- pmxcfs and quorum ---


def test_without_the_link_pmxcfs_is_down(tree: Tree) -> None:
    (tree.root / "etc/pve/local").unlink()
    assert tree.host().pmxcfs is False
    (tree.root / "etc/pve/local").mkdir()
    assert tree.host().pmxcfs is False


@pytest.mark.parametrize(("mode", "quorate"), [(0o755, True), (0o555, False), (0o577, False)])
def test_quorum_is_the_owners_write_bit_even_for_root(tree: Tree, mode: int, quorate: bool) -> None:
    node = tree.root / f"etc/pve/nodes/{NODE}"
    node.chmod(mode)
    assert tree.host().quorate is quorate
    assert as_nobody(lambda: tree.host().quorate) is quorate
    node.chmod(0o755)


def test_a_link_to_nowhere_is_no_quorum_that_can_be_told(tree: Tree) -> None:
    (tree.root / "etc/pve/local").unlink()
    (tree.root / "etc/pve/local").symlink_to("nodes/other")
    assert tree.host().pmxcfs is True
    assert why(tree.host().quorate) == f"{tree.root}/etc/pve/local: No such file or directory"


def test_a_dead_mount_is_unreadable(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(path: str, *args: object, **kwargs: object) -> object:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), path)

    for name in ("stat", "lstat", "listdir", "scandir"):
        monkeypatch.setattr(os, name, dead)
    state = tree.host()
    assert state.pmxcfs is False
    assert why(state.quorate).endswith("/etc/pve/local: Transport endpoint is not connected")
    assert why(state.names).endswith("/etc/pve/nodes: Transport endpoint is not connected")
    assert why(state.hold_file).endswith("/etc/guestward/hold: Transport endpoint is not connected")


# --- names ---


def test_names_are_told_apart_by_kind_and_node_and_carry_a_stamp(tree: Tree) -> None:
    file = tree.put(f"etc/pve/nodes/{NODE}/lxc/110.conf", "onboot: 1\n")
    tree.put(f"etc/pve/nodes/{NODE}/qemu-server/200.conf")
    tree.put("etc/pve/nodes/pve2/lxc/101.conf")
    tree.put("etc/pve/nodes/pve3/qemu-server/990000.conf")
    names = tree.host().names
    assert isinstance(names, NodeNames)
    seen = file.stat()
    assert set(names.here) == {lxc(110), qemu(200)}
    assert names.here[lxc(110)] == f"{seen.st_mtime_ns}-{seen.st_size}-{seen.st_ino}"
    assert names.elsewhere == {lxc(101): "pve2", qemu(990000): "pve3"}


def test_the_stamp_changes_with_the_file(tree: Tree) -> None:
    file = tree.put(f"etc/pve/nodes/{NODE}/lxc/110.conf", "onboot: 1\n")

    def stamp() -> str:
        names = tree.host().names
        assert isinstance(names, NodeNames)
        return names.here[lxc(110)]

    first = stamp()
    assert stamp() == first
    file.write_text("onboot: 10\n")
    os.utime(file, ns=(0, 1))
    second = stamp()
    other = tree.put(f"etc/pve/nodes/{NODE}/110.new", "onboot: 01\n")
    os.utime(other, ns=(0, 1))
    other.rename(file)
    assert len({first, second, stamp()}) == 3


@pytest.mark.parametrize("name", ["110.conf.tmp.42", "99.conf", "0110.conf", "1234567890.conf", "x110.conf", "110.CONF", "110", ".conf"])
def test_other_files_are_no_guests(tree: Tree, name: str) -> None:
    tree.put(f"etc/pve/nodes/{NODE}/lxc/{name}")
    assert tree.host().names == NodeNames({}, {})


def test_a_node_without_folders_has_no_guests_and_files_are_no_nodes(tree: Tree) -> None:
    (tree.root / "etc/pve/nodes/pve2").mkdir()
    tree.put("etc/pve/nodes/README")
    (tree.root / f"etc/pve/nodes/{NODE}/lxc").rmdir()
    assert tree.host().names == NodeNames({}, {})


def test_a_node_that_is_not_there_is_not_a_node_without_guests(tree: Tree) -> None:
    tree.put("etc/pve/nodes/pve2/lxc/101.conf")
    assert why(LinuxHost(tree.root, "pve9").host().names) == f"{tree.root}/etc/pve/nodes: no node pve9 in it"


def test_a_guest_that_moves_away_while_we_look_is_left_out(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.put(f"etc/pve/nodes/{NODE}/lxc/110.conf")
    tree.put(f"etc/pve/nodes/{NODE}/lxc/111.conf")
    stamp = host_module._stamp

    def leaving(entry: os.DirEntry[str]) -> str:
        if entry.name == "110.conf":
            os.unlink(entry.path)
        return stamp(entry)

    monkeypatch.setattr(host_module, "_stamp", leaving)
    names = tree.host().names
    assert isinstance(names, NodeNames)
    assert set(names.here) == {lxc(111)}


def test_names_need_no_right_to_read_the_files(tree: Tree) -> None:
    tree.put(f"etc/pve/nodes/{NODE}/lxc/110.conf").chmod(0o640)
    names = as_nobody(lambda: tree.host().names)
    assert isinstance(names, NodeNames)
    assert set(names.here) == {lxc(110)}


@pytest.mark.parametrize("path", ["etc/pve/nodes", f"etc/pve/nodes/{NODE}/lxc", "etc/pve/nodes/pve2/qemu-server"])
def test_a_folder_that_may_not_be_listed_is_unreadable(tree: Tree, path: str) -> None:
    (tree.root / "etc/pve/nodes/pve2/qemu-server").mkdir(parents=True)
    (tree.root / path).chmod(0)
    assert why(as_nobody(lambda: tree.host().names)) == f"{tree.root}/{path}: Permission denied"


# --- maintenance and hold ---


@pytest.mark.parametrize(
    ("content", "maintenance"),
    [
        ('{"mode":"maintenance","state":"maintenance"}', True),
        ('{"mode":"maintenance"}', True),
        ('{"mode":"active","state":"active"}', False),
        ('{"mode":"disarm"}', False),
        ('{"mode":null}', False),
        ("{}", False),
        ("", False),
    ],
)
def test_maintenance_is_the_mode_of_the_lrm(tree: Tree, content: str, maintenance: bool) -> None:
    tree.put(f"etc/pve/nodes/{NODE}/lrm_status", content)
    assert tree.host().maintenance is maintenance


def test_a_node_that_never_had_an_lrm_is_not_in_maintenance(tree: Tree) -> None:
    (tree.root / f"etc/pve/nodes/{NODE}/lrm_status").unlink()
    assert tree.host().maintenance is False


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"{", "Expecting"), (b"[1]", "not a JSON object"), (b"\xff\xfe\xfd", "codec can't decode"), (b"\0" * 50, ""), (b"[" * 50_000, "")],
)
def test_an_lrm_status_that_is_not_json_is_unreadable(tree: Tree, content: bytes, reason: str) -> None:
    path = tree.put(f"etc/pve/nodes/{NODE}/lrm_status", content)
    assert re.match(rf"{re.escape(str(path))}: .*{reason}", why(tree.host().maintenance))


def test_an_lrm_status_that_may_not_be_read_is_unreadable(tree: Tree) -> None:
    path = tree.root / f"etc/pve/nodes/{NODE}/lrm_status"
    path.chmod(0)
    assert why(as_nobody(lambda: tree.host().maintenance)) == f"{path}: Permission denied"


def test_the_hold_file_holds_whatever_it_is(tree: Tree) -> None:
    hold = tree.root / "etc/guestward/hold"
    makes: tuple[Callable[[], object], ...] = (hold.touch, lambda: hold.symlink_to("/nowhere"), hold.mkdir)
    for make in makes:
        make()
        assert tree.host().hold_file is True
        hold.rmdir() if hold.is_dir() else hold.unlink()
        assert tree.host().hold_file is False


def test_a_hold_file_that_may_not_be_looked_for_is_unreadable(tree: Tree) -> None:
    (tree.root / "etc/guestward").chmod(0)
    assert why(as_nobody(lambda: tree.host().hold_file)) == f"{tree.root}/etc/guestward/hold: Permission denied"


# --- flock ---

RECORDED = """\
1: FLOCK  ADVISORY  WRITE 19448 00:2d:{inode} 0 EOF
1: -> FLOCK  ADVISORY  WRITE 19614 00:2d:{inode} 0 EOF
1:  -> FLOCK  ADVISORY  WRITE 19756 00:2d:{inode} 0 EOF
2: POSIX  ADVISORY  READ  512 00:1a:{inode} 128 128
3: OFDLCK ADVISORY  WRITE -1 fe:00:{inode} 0 EOF
4: LEASE  ACTIVE    READ  77 08:01:{inode} 0 EOF
5: POSIX  *NOINODE* READ  9 <none>:0 0 EOF
6: FLOCK  ADVISORY  READ  9 <none>:0 0 EOF
"""


def locks(tree: Tree, text: str) -> Reading[FlockHolder | None]:
    inode = tree.put("run/vzdump.lock").stat().st_ino
    tree.put("proc/locks", text.replace("{inode}", str(inode)))
    return tree.backups().flock


def test_the_recorded_queue_has_one_holder(tree: Tree) -> None:
    assert locks(tree, RECORDED) == FlockHolder(19448)


def test_those_who_wait_and_other_locks_hold_nothing(tree: Tree) -> None:
    assert locks(tree, RECORDED.partition("\n")[2] + "\n") is None
    assert locks(tree, "1: FLOCK  ADVISORY  WRITE 19448 00:2d:1{inode} 0 EOF\n") is None
    assert locks(tree, "") is None


def test_the_exclusive_holder_is_vzdump_and_a_pid_may_be_unknown(tree: Tree) -> None:
    line = "1: FLOCK  ADVISORY  {} {} 00:2d:{{inode}} 0 EOF\n"
    assert locks(tree, line.format("READ ", 5) + line.format("READ ", 6)) == FlockHolder(5)
    assert locks(tree, line.format("READ ", 5) + line.format("WRITE", 7)) == FlockHolder(7)
    assert locks(tree, line.format("WRITE", -1)) == FlockHolder(0)


def test_without_a_lock_file_nobody_holds_it(tree: Tree) -> None:
    tree.put("proc/locks", "garbage")
    assert tree.backups().flock is None


@pytest.mark.parametrize("line", ["garbage", "1: FLOCK  ADVISORY  WRITE x 00:2d:1 0 EOF", "1: FLOCK  ADVISORY", "\ufffd"])
def test_locks_of_unknown_form_are_unreadable(tree: Tree, line: str) -> None:
    assert "/proc/locks has a" in why(locks(tree, f"{line}\n{RECORDED}"))
    assert locks(tree, f"{RECORDED}{line}\n") == FlockHolder(19448)  # a yes is a yes


def test_locks_that_may_not_be_read_are_unreadable(tree: Tree) -> None:
    tree.put("run/vzdump.lock")
    assert why(tree.backups().flock) == f"{tree.root}/proc/locks: No such file or directory"
    tree.put("proc/locks").chmod(0)
    assert why(as_nobody(lambda: tree.backups().flock)) == f"{tree.root}/proc/locks: Permission denied"


def test_a_lock_file_that_may_not_be_looked_for_is_unreadable(tree: Tree) -> None:
    tree.put("run/vzdump.lock")
    (tree.root / "run").chmod(0)
    assert why(as_nobody(lambda: tree.backups().flock)) == f"{tree.root}/run/vzdump.lock: Permission denied"


FLOCKER = """
import fcntl, sys
file = open(sys.argv[1], "a")
print("opened", flush=True)
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def flocker() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    started = []

    def start(path: Path) -> subprocess.Popen[str]:
        argv = [sys.executable, "-ISc", FLOCKER, str(path)]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_kernels_own_locks_by_real_processes(tree: Tree, flocker: Callable[[Path], subprocess.Popen[str]]) -> None:
    tree.real_proc()
    path = tree.put("run/vzdump.lock")
    assert tree.backups().flock is None

    holder = flocker(path)
    assert (said(holder), said(holder)) == ("opened", "locked")
    assert tree.backups().flock == FlockHolder(holder.pid)
    path.chmod(0)
    assert as_nobody(lambda: tree.backups().flock) == FlockHolder(holder.pid)
    path.chmod(0o644)

    waiter = flocker(path)
    assert said(waiter) == "opened"
    until(lambda: f" {waiter.pid} " in Path("/proc/locks").read_text())
    assert tree.backups().flock == FlockHolder(holder.pid)

    holder.communicate("")
    assert said(waiter) == "locked"
    assert tree.backups().flock == FlockHolder(waiter.pid)
    waiter.communicate("")
    assert tree.backups().flock is None


def test_a_lock_on_the_same_inode_of_another_file_system_is_not_ours(tree: Tree) -> None:
    tree.real_proc()
    path = tree.put("run/vzdump.lock")
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        real = Path("/proc/locks").read_text()
        line = next(line for line in real.splitlines() if f":{path.stat().st_ino} " in line)
    device = tuple(int(part, 16) for part in line.split()[5].split(":")[:2])
    inode = path.stat().st_ino
    assert flock_holder(line, inode, (device[0], device[1])) == FlockHolder(os.getpid())
    assert flock_holder(line, inode, (device[0], device[1] + 1)) is None


@pytest.mark.parametrize(
    ("fdinfo", "mountinfo", "device"),
    [
        # btrfs, as this machine showed it: st_dev of the file was 00:28, /proc/locks printed 00:27
        ("pos:\t0\nflags:\t02\nmnt_id:\t43\nino:\t257\n", "43 27 0:39 / /mnt rw - btrfs /dev/loop0 rw\n", (0, 0x27)),
        ("mnt_id:\t4\n", "43 27 0:39 / /mnt rw - btrfs /dev/loop0 rw\n", None),
        ("pos:\t0\n", "43 27 0:39 / /mnt rw - btrfs /dev/loop0 rw\n", None),
        ("mnt_id:\t43\n", None, None),
    ],
)
def test_the_device_is_the_superblocks(tree: Tree, fdinfo: str, mountinfo: str | None, device: tuple[int, int] | None) -> None:
    tree.put("proc/self/fdinfo/7", fdinfo)
    if mountinfo is not None:
        tree.put("proc/self/mountinfo", mountinfo)
    assert host_module._lock_device(7, str(tree.root / "proc")) == device


# --- the pid file ---


def upid(pid: int, pstart: int, type_: str = "vzdump") -> str:
    return f"UPID:pve1:{pid:08X}:{pstart:08X}:6B0E0471:{type_}:110:guestward@pve!agent:"


def stat_line(pid: int, start: int, state: str = "S", comm: str = "task UPID:pve1:0") -> str:
    return f"{pid} ({comm}) {state} 1 {pid} {pid} 0 -1 4194560 1 0 0 0 2 1 0 0 20 0 1 0 {start} 9000000 2000 184467 1 1 0 0\n"


@pytest.mark.parametrize(
    ("stat", "lives"),
    [
        (stat_line(14973, 519129), True),
        (stat_line(14973, 519129, comm="a) R 1 (b 2"), True),
        (stat_line(14973, 519129, comm=")"), True),
        (stat_line(14973, 519130), False),
        (stat_line(14973, 519129, state="Z"), False),
        (stat_line(14973, 519129, state="X"), False),
        (None, False),
    ],
)
def test_the_worker_lives_if_it_is_the_one_that_began_then(tree: Tree, stat: str | None, lives: bool) -> None:
    text = upid(14973, 519129)
    tree.put("run/vzdump.pid", text)
    if stat is not None:
        tree.put("proc/14973/stat", stat)
    assert tree.backups().live_upid == (Upid.parse(text) if lives else None)


@pytest.mark.parametrize("content", ["", "\n"])
def test_an_empty_pid_file_names_nobody(tree: Tree, content: str) -> None:
    tree.put("run/vzdump.pid", content)
    assert tree.backups().live_upid is None


@pytest.mark.parametrize("content", [b"14973", b"\0" * 57, b"\xff" * 57, b"UPID:pve1:" + b"0" * 500, upid(1, 1).encode()[:-20]])
def test_garbage_in_the_pid_file_is_unreadable(tree: Tree, content: bytes) -> None:
    path = tree.put("run/vzdump.pid", content)
    assert why(tree.backups().live_upid).startswith(f"{path}: ")
    assert len(why(tree.backups().live_upid)) < 400


@pytest.mark.parametrize("content", ["", "14973", "14973 (x) S 1 2 3", stat_line(14973, 5).replace(" 5 ", " five ")])
def test_a_status_of_unknown_form_is_unreadable(tree: Tree, content: str) -> None:
    tree.put("run/vzdump.pid", upid(14973, 5))
    tree.put("proc/14973/stat", content)
    assert "not a process status in 14973/stat" in why(tree.backups().live_upid)


def test_what_may_not_be_read_is_no_dead_worker(tree: Tree) -> None:
    pid_file, stat_file = tree.put("run/vzdump.pid", upid(14973, 5)), tree.put("proc/14973/stat", stat_line(14973, 5))
    stat_file.chmod(0)
    assert why(as_nobody(lambda: tree.backups().live_upid)) == f"{stat_file}: Permission denied"
    pid_file.chmod(0)
    assert why(as_nobody(lambda: tree.backups().live_upid)) == f"{pid_file}: Permission denied"


def test_a_worker_that_ends_while_we_read_is_dead(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.put("run/vzdump.pid", upid(14973, 5))
    read = host_module._read

    def gone(path: str, limit: int) -> bytes:
        if path.endswith("/stat"):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return read(path, limit)

    monkeypatch.setattr(host_module, "_read", gone)
    assert tree.backups().live_upid is None


def test_real_workers(tree: Tree) -> None:
    tree.real_proc()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as worker:
        start = int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[19])
        tree.put("run/vzdump.pid", upid(worker.pid, start))
        assert tree.backups().live_upid == Upid.parse(upid(worker.pid, start))
        tree.put("run/vzdump.pid", upid(worker.pid, start + 1))
        assert tree.backups().live_upid is None
        tree.put("run/vzdump.pid", upid(worker.pid, start))
        worker.kill()
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # dead and not yet reaped
        assert Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        assert tree.backups().live_upid is None
    assert tree.backups().live_upid is None


# --- archive processes ---

TMP = "/var/lib/vz/dump/vzdump-lxc-110-2026_11_30-23_19_13.tmp"
DAT = "/var/lib/vz/dump/vzdump-lxc-110-2026_11_30-23_19_13.tar.dat"
VMA = "/var/lib/vz/dump/vzdump-qemu-200-2026_11_30-23_19_13.vma.zst"
TAR = ["tar", "cpf", "-", "--totals", "--one-file-system", "-p", "--sparse", "--warning=no-file-ignored", f"--directory={TMP}"]
TAR += [
    "./etc/vzdump/pct.conf",
    "--directory=/mnt/vzsnap0",
    "--no-anchored",
    "--exclude=lost+found",
    "--anchored",
    "--exclude=./tmp/?*",
    "./",
]
USERNS = ["lxc-usernsexec", "-m", "u:0:100000:65536", "-m", "g:0:100000:65536", "--"]
PIPE = (
    "set -o pipefail && lxc-usernsexec -m u:0:100000:65536 -m g:0:100000:65536 -- tar cpf - --totals --one-file-system -p --sparse "
    "--numeric-owner --acls --xattrs '--xattrs-include=user.*' '--warning=no-xattr-write' "
    f"'--directory={TMP}' ./etc/vzdump/pct.conf '--directory=/mnt/vzsnap0' --no-anchored '--exclude=lost+found' --anchored "
    "'--exclude=./tmp/?*' ./ | cstream -t 9155584"
)
PBS = ["/usr/bin/proxmox-backup-client", "backup", "--crypt-mode=none", "pct.conf:/var/tmp/vzdumptmp812_110/etc/vzdump/pct.conf"]
PBS += ["root.pxar:/mnt/vzsnap0", "--include-dev", "/mnt/vzsnap0/./", "--skip-lost-and-found", "--exclude=/tmp/?*", "--backup-type", "ct"]
PBS += ["--backup-id", "110", "--backup-time", "1796081478", "--repository", "root@pam@pbs:store"]
RSYNC = ["rsync", "--stats", "-h", "-X", "-A", "--numeric-ids", "-aH", "--delete", "--relative", "/proc/42/root/./"]
CLIENT_VM = ["/usr/bin/proxmox-backup-client", "backup", "--repository", "pbs:store", "--backup-type", "vm", "--backup-id"]

ARCHIVING = {
    "tar of a privileged container": (TAR, 110),
    "tar in its user namespace": ([*USERNS, *TAR], 110),
    "tar with a temporary directory of its own": (["/usr/bin/tar", "cpf", "-", "--directory=/tmp/vzdumptmp4711_110/", "."], 110),
    "tar by long option": (["tar", "--create", f"--directory={TMP}"], 110),
    "tar by dashed option": (["tar", "--zstd", "-cf", DAT], 110),
    "the pipeline of 6c": (["/bin/bash", "-c", f"{PIPE}"], 110),
    "the same into a file": (["/bin/bash", "-c", f"{PIPE} | zstd --threads=1 >{DAT}"], 110),
    "only the target names it": (["sh", "-c", f"cat > {VMA}"], 200),
    "appending": (["sh", "-c", f"cat x >>{VMA} 2>/dev/null"], 200),
    "compressor with a target": (["zstd", "--threads=1", "-o", DAT], 110),
    "pigz": (["pigz", "-p", "4", "--rsyncable", DAT], 110),
    "cstream with a target": (["cstream", "-t", "9155584", "-o", DAT], 110),
    "vma of a VM without disks": (["/usr/bin/vma", "create", "-v", "-c", "/tmp/vzdumptmp1_200/qemu-server.conf", f"exec:cat > {VMA}"], 200),
    "suspend mode": ([*RSYNC, "/var/tmp/vzdumptmp4711_110"], 110),
    "suspend mode into the dump directory": ([*RSYNC, TMP], 110),
    "to a backup server": (PBS, 110),
    "to a backup server, unprivileged": ([*USERNS, *PBS], 110),
    "a VM without disks to a backup server": ([*CLIENT_VM, "200"], 200),
    "with =": (["proxmox-backup-client", "backup", "root.pxar:/", "--backup-type=ct", "--backup-id=110"], 110),
    "the largest VMID": ([*CLIENT_VM, "999999999"], 999999999),
}

OTHERS = {
    "nothing": [],
    "grep": ["grep", "vzdump-lxc-110-"],
    "an editor": ["vim", DAT],
    "kvm": ["/usr/bin/kvm", "-id", "200", "-drive", f"file={VMA}", "create"],
    "the worker itself": ["task UPID:pve1:00003A7D:0007EBD9:6B0E0471:vzdump:110:guestward@pve!agent:"],
    "another tar": ["tar", "cpf", "-", "/etc"],
    "tar without anything": ["tar"],
    "a restore": [*USERNS, "tar", "xpf", "-", "--zstd", "--totals", "-C", "/var/lib/lxc/990000/rootfs"],
    "a restore that names the archive": ["tar", "xpf", DAT, "-C", "/var/lib/lxc/990000/rootfs"],
    "a look into an archive": ["tar", "-tvf", DAT, "--zstd"],
    "restore of a VM": ["/bin/bash", "-c", f"set -o pipefail && zstd -q -d -c {VMA} | vma extract -v -r /var/tmp/x.fifo - /var/tmp/x"],
    "throttled restore": ["bash", "-c", f"set -o pipefail && cstream -t 1024 -- {VMA} | zstd -q -d -c - | vma extract -v - /x"],
    "its decompressor": ["zstd", "-q", "-d", "-c", VMA],
    "its throttle": ["cstream", "-t", "1024", "--", VMA],
    "a check of an archive": ["gzip", "--test", VMA],
    "vma extract": ["vma", "extract", "-v", VMA, "/x"],
    "archives copied away": ["rsync", "-a", VMA, "nas:/dump/"],
    "rsync without anything": ["rsync"],
    "a script about archives": ["bash", "-c", f"ls -l {DAT} | mail root; test -e {DAT}"],
    "a script with open quotes": ["bash", "-c", f"echo 'it is {DAT}"],
    "a hook script": ["bash", "/root/hook.sh", "backup-start", "vzdump-lxc-110-x"],
    "a shell without anything": ["bash"],
    "user namespace without command": ["lxc-usernsexec", "-m", "u:0:100000:65536", DAT],
    "backup of the host": ["proxmox-backup-client", "backup", "root.pxar:/", "--backup-type", "host", "--backup-id", "110"],
    "backup of a named machine": ["proxmox-backup-client", "backup", "root.pxar:/", "--backup-id", "pve1"],
    "backup without an id": ["proxmox-backup-client", "backup", "root.pxar:/", "--backup-id"],
    "a restore from a backup server": ["proxmox-backup-client", "restore", "ct/110/2026-11-30T23:19:13Z", "--backup-id", "110"],
    "a VMID that is none": ["tar", "cpf", "-", "--directory=/x/vzdump-lxc-0110-2026.tmp", "--directory=/x/vzdump-lxc-99-2026.tmp"],
}


@pytest.mark.parametrize("name", ARCHIVING)
def test_a_command_line_that_archives_a_guest(tree: Tree, name: str) -> None:
    argv, vmid = ARCHIVING[name]
    assert archived_guest(argv) == vmid
    tree.process(4711, *argv)
    assert tree.backups().archives == frozenset({vmid})


@pytest.mark.parametrize("name", OTHERS)
def test_a_command_line_that_does_not(tree: Tree, name: str) -> None:
    assert archived_guest(OTHERS[name]) is None
    tree.process(4711, *OTHERS[name])
    assert tree.backups().archives == frozenset()


def test_several_processes_and_guests(tree: Tree) -> None:
    for pid, argv in enumerate((TAR, [*USERNS, *TAR], [*CLIENT_VM, "200"], ["kvm", "-id", "300"], []), start=100):
        tree.process(pid, *argv)
    tree.put("proc/cmdline", "tar\0cpf\0" + TMP)
    (tree.root / "proc/4711").mkdir()  # vanished
    assert tree.backups().archives == frozenset({110, 200})


def test_a_long_command_line_is_read_past_its_head(tree: Tree) -> None:
    tree.process(4711, "proxmox-backup-client", "backup", *["--exclude=/some/path/or/other"] * 3000, "--backup-id", "110")
    assert tree.backups().archives == frozenset({110})
    tree.process(4711, "tar", "cpf", "-", *["--exclude=/some/path/or/other"] * 30000, TMP)
    assert tree.backups().archives == frozenset()  # bounded


def test_a_process_inside_a_container_claims_nothing(tree: Tree) -> None:
    tree.process(4711, *TAR)
    for namespaces, archives in (("4711", frozenset({110})), ("4711\t12", frozenset())):
        tree.put("proc/4711/status", f"Name:\ttar\nNSpid:\t{namespaces}\nNSpgid:\t1\n")
        assert tree.backups().archives == archives
    tree.put("proc/4711/status", "Name:\ttar\n")
    assert tree.backups().archives == frozenset({110})


def test_processes_that_may_not_be_seen_are_unreadable(tree: Tree) -> None:
    tree.process(4711, *TAR)
    tree.process(1, "/sbin/init")
    (tree.root / "proc/self").symlink_to("4711")
    assert as_nobody(lambda: tree.backups().archives) == {110}
    file = tree.root / "proc/4711/cmdline"
    file.chmod(0)  # hidepid=1
    assert why(as_nobody(lambda: tree.backups().archives)) == f"{file}: Permission denied"
    (tree.root / "proc").chmod(0)
    assert why(as_nobody(lambda: tree.backups().archives)) == f"{tree.root}/proc: Permission denied"


def test_hidden_processes_are_neither_absent_nor_dead(tree: Tree) -> None:
    tree.process(4711, "guestward", "run")
    (tree.root / "proc/self").symlink_to("4711")  # hidepid=2: only our own are there
    tree.put("run/vzdump.pid", upid(14973, 5))
    for reading in (tree.backups().archives, tree.backups().live_upid):
        assert why(reading) == f"{tree.root}/proc: processes of other users are hidden (hidepid, or ProtectProc= of our own unit)"


def test_a_process_that_ends_while_we_read_is_left_out(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.process(4711, *TAR)

    def gone(descriptor: int, size: int) -> bytes:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    monkeypatch.setattr(os, "read", gone)
    assert tree.backups().archives == frozenset()


def test_a_real_tar_that_is_stuck(tree: Tree) -> None:
    tree.real_proc()
    dump = tree.root / "vzdump-lxc-999999110-2026_11_30-23_19_13.tmp"
    dump.mkdir()
    (dump / "data").write_bytes(b"x" * 1_000_000)  # more than a pipe holds
    with subprocess.Popen(["tar", "cpf", "-", f"--directory={dump}", "."], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tar:
        assert tar.stdout is not None
        tar.stdout.read(1)  # it is past its exec, and has its own command line
        assert tree.backups().archives == frozenset({999999110})
        assert as_nobody(lambda: tree.backups().archives) == {999999110}
        tar.kill()
        os.waitid(os.P_PID, tar.pid, os.WEXITED | os.WNOWAIT)
        assert tree.backups().archives == frozenset()  # a zombie archives nothing


@pytest.mark.parametrize(("name", "counts"), [("lxc-usernsexec", True), ("/usr/bin/lxc-usernsexec", True), ("kvm", False), ("grep", False)])
def test_a_real_process_is_told_by_its_own_name(tree: Tree, name: str, counts: bool) -> None:
    tree.real_proc()
    argv = [name, "-c", "echo; read line", "--", "tar", "cpf", "-", f"--directory={TMP.replace('110', '999999111')}"]
    with subprocess.Popen(argv, executable="/bin/sh", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        assert tree.backups().archives == frozenset({999999111} if counts else ())


# --- frozen ---


def test_frozen_containers(tree: Tree) -> None:
    for vmid, frozen in ((101, 0), (102, 1), (103, 1)):
        tree.put(f"sys/fs/cgroup/lxc/{vmid}/cgroup.events", f"populated 1\nfrozen {frozen}\n")
    assert tree.witness.frozen([101, 102, 110]) == frozenset({102})
    assert tree.witness.frozen(iter([])) == frozenset()


def test_a_cgroup_that_may_not_be_read_is_unreadable(tree: Tree) -> None:
    path = tree.put("sys/fs/cgroup/lxc/102/cgroup.events", "frozen 1\n")
    path.chmod(0)
    assert why(as_nobody(lambda: tree.witness.frozen([101, 102]))) == f"{path}: Permission denied"


def test_a_cgroup_removed_while_we_read_is_not_frozen(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def removed(path: str, limit: int) -> bytes:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(host_module, "_read", removed)
    assert tree.witness.frozen([101]) == frozenset()


# --- the machine that the tests run on ---


def test_the_real_root_answers_and_does_not_raise() -> None:
    witness = LinuxHost(Path("/"), NODE)
    state, backups = witness.host(), witness.backups()
    assert isinstance(state.pmxcfs, bool)
    assert isinstance(backups.archives, frozenset)
    assert isinstance(witness.frozen([100]), frozenset | Unreadable)
