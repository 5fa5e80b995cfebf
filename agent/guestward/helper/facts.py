"""What root sees on the host. Everything here either knows or refuses: a witness that cannot be read never counts as a no."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from guestward.helper.child import Programs
from guestward.helper.trust import Refused
from guestward.model.archives import archived_guest, vzdump_job
from guestward.model.guest import GuestId, GuestKind
from guestward.model.helper import HelperCode
from guestward.model.pvefiles import GuestFile, flock_holder, in_a_guest, lives, pool_of, unended_tasks
from guestward.model.task import Upid, bounded
from guestward.model.usercfg import UserCfg

BOOT_GRACE = 900.0
FLOCK = "run/vzdump.lock"
HOLD_FILE = "etc/guestward/hold"
USERS = "etc/pve/user.cfg"
_FOLDER = {GuestKind.LXC: "lxc", GuestKind.QEMU: "qemu-server"}
_CONFIG_FLOCK = {GuestKind.LXC: "run/lock/lxc/pve-config-{}.lock", GuestKind.QEMU: "run/lock/qemu-server/lock-{}.conf"}
_OTHER = {GuestKind.LXC: GuestKind.QEMU, GuestKind.QEMU: GuestKind.LXC}
_ASK = 5.0  # seconds that systemctl gets
_LARGEST = 2 << 20  # pmxcfs holds no file of more than 1 MiB
_VANISHED = (FileNotFoundError, ProcessLookupError)
_UNIT = ("LoadState", "ActiveState", "SubState", "UnitFileState")


@dataclass(frozen=True, slots=True)
class Host:
    """The host below `root`, which is "/" but in tests."""

    root: str
    programs: Programs

    # --- the state of the host ---

    def check_ready(self) -> None:
        """Boot is over, the host is not stopping, pmxcfs is mounted, the cluster has quorum and nobody holds the node, in this order."""
        self.check_not_stopping()
        self._check_boot()
        self.check_quorum()
        self._check_not_held()

    def check_not_stopping(self) -> None:
        """Systemd is not taking the host down."""
        if self._show(("SystemState",))["SystemState"] == "stopping":
            raise Refused(HelperCode.STOPPING, "systemd is stopping the host; PVE stops the guests itself")

    def _check_boot(self) -> None:
        """As pve-facts H: a oneshot unit that stays active (exited). `startall` waits for quorum without end, so `activating` may last."""
        load, active, sub, file = self._show(_UNIT, "pve-guests.service").values()
        unit = f"pve-guests.service is {active} ({sub})"
        if active == "deactivating":
            raise Refused(HelperCode.STOPPING, f"{unit}: PVE is stopping the guests")
        if (active, sub) == ("active", "exited") or active == "failed":
            return
        if load in ("not-found", "masked") or file in ("disabled", "masked", "masked-runtime"):
            if self._uptime() >= BOOT_GRACE:
                return
            unit = "pve-guests.service is not enabled, and the host booted less than 15 min ago"
        raise Refused(HelperCode.BOOTING, f"{unit}: PVE clears backup locks itself at the end of its boot; ask again afterwards")

    def _uptime(self) -> float:
        """CLOCK_BOOTTIME, as /proc/uptime tells it."""
        words = self._text("proc/uptime").split()
        try:
            return float(words[0])
        except (IndexError, ValueError):
            raise _unreadable("proc/uptime", "not the form of uptime") from None

    def check_quorum(self) -> None:
        """The owner's write bit and not access(2): root may always write (pve-cluster Cluster.pm:check_cfs_quorum).

        PVE looks at the link; pmxcfs takes the bit from the directory too, and only there can a tree on another file system show it.
        """
        self.node()
        try:
            mode = os.stat(self._at("etc/pve/local")).st_mode
        except OSError as error:
            raise _unreadable("etc/pve/local", error.strerror) from None
        if not mode & stat.S_IWUSR:
            raise Refused(HelperCode.NO_QUORUM, "the cluster has no quorum: /etc/pve is read-only and PVE refuses every change")

    def _check_not_held(self) -> None:
        """The file that a UPS or a person touches. Whatever it is, it counts, a dangling link too, as for the agent."""
        try:
            os.lstat(self._at(HOLD_FILE))
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unreadable(HOLD_FILE, error.strerror) from None
        raise Refused(HelperCode.HELD, f"the file /{HOLD_FILE} is there: nothing is done before somebody removes it")

    def _show(self, names: tuple[str, ...], *units: str) -> dict[str, str]:
        """`systemctl show`; not `is-system-running`, whose exit code is a failure for most states."""
        done = self.programs.run("systemctl", "show", f"--property={','.join(names)}", *units, limit=_ASK)
        values = dict(line.split("=", 1) for line in done.output.splitlines() if "=" in line)
        if done.code != 0 or not all(values.get(name, "") or (name == "UnitFileState" and name in values) for name in names):
            reason = done.last_line if done.code is not None else f"no answer within {_ASK:g} s"
            raise Refused(HelperCode.UNREADABLE, f"systemctl show {' '.join(units)}: {reason}; nothing is done while that is not known")
        return {name: bounded(values[name], 60) for name in names}

    # --- pmxcfs ---

    def node(self) -> str:
        """Our node by the link that pmxcfs makes; without it /etc/pve is an empty directory (Cluster.pm:check_cfs_is_mounted)."""
        try:
            kind, _, name = os.readlink(self._at("etc/pve/local")).partition("/")
        except OSError:
            kind, name = "", ""
        if kind != "nodes" or not name or "/" in name or name.startswith("."):
            raise Refused(HelperCode.NO_PMXCFS, "/etc/pve is not mounted (no link /etc/pve/local): `systemctl status pve-cluster`")
        return name

    def pool(self, vmid: int) -> str | None:
        """The pool of a guest."""
        return pool_of(self._text(USERS), vmid)

    def users(self) -> UserCfg:
        """All users, tokens, roles and entries of PVE, as they stand there now."""
        try:
            return UserCfg.parse(self._text(USERS))
        except ValueError as error:
            raise _unreadable(USERS, str(error)) from None

    def find(self, vmid: int) -> GuestId:
        """Which guest with that VMID is on this node."""
        found = [id for id in (GuestId(kind, vmid) for kind in GuestKind) if os.path.lexists(self._at(self._config(id)))]
        if len(found) > 1:
            raise Refused(HelperCode.WRONG_KIND, f"{vmid} is {' and '.join(map(str, found))} at once")
        if not found:
            raise Refused(HelperCode.NO_GUEST, f"{vmid}: no such configuration on this node; it was destroyed or moved")
        return found[0]

    def guest(self, id: GuestId) -> GuestFile:
        """A guest's configuration on this node, as it stands there now."""
        file = self._config(id)
        try:
            return GuestFile.parse(id.kind, self._bytes(file))
        except FileNotFoundError:
            pass
        except ValueError as error:
            raise _unreadable(file, str(error)) from None
        if os.path.lexists(self._at(self._config(GuestId(_OTHER[id.kind], id.vmid)))):
            raise Refused(HelperCode.WRONG_KIND, f"{id}: on this node {id.vmid} is {_OTHER[id.kind]}, not {id.kind}")
        raise Refused(HelperCode.NO_GUEST, f"{id}: no such configuration on this node; it was destroyed or moved")

    def _config(self, id: GuestId) -> str:
        return f"etc/pve/nodes/{self.node()}/{_FOLDER[id.kind]}/{id.vmid}.conf"

    # --- backups and tasks ---

    def check_no_backup(self, vmid: int, *, of_any_guest: bool = False) -> None:
        """No vzdump lives that covers this guest or a set that nobody can tell, and nothing archives it.

        Archive processes outlive a vzdump that was killed; the flock does not (pve-facts C1).
        """
        upid = self._vzdump_upid()
        if upid is not None and (of_any_guest or upid.covers(vmid)) and self._lives(upid):
            raise Refused(HelperCode.BACKUP_RUNNING, f"the vzdump in /run/vzdump.pid is alive: {upid}")
        for pid, argv in self._processes():
            job = vzdump_job(argv)
            if (job is not None and (of_any_guest or job.covers(vmid))) or archived_guest(argv) == vmid:
                if self._is_a_guests(pid):
                    continue
                what = "a vzdump" if job is not None else "a process that archives this guest"
                raise Refused(HelperCode.BACKUP_RUNNING, f"{what} is alive: process {pid}, {bounded(argv[0], 120)}")

    def check_no_task(self, vmid: int, *, of_any_guest: Container[str] = ()) -> None:
        """No task with this VMID runs: its worker lives and the list has no end for it (pve-facts C1).

        of_any_guest: types of which none may run at all, whatever its VMID.
        """
        where = "var/log/pve/tasks/active"
        try:
            listed = unended_tasks(self._text(where, absent=""))
        except ValueError as error:
            raise _unreadable(where, str(error)) from None
        for upid in listed:
            if (upid.id == str(vmid) or upid.type in of_any_guest) and self._lives(upid):
                what = "a task of this guest" if upid.id == str(vmid) else "a task that may be about this guest"
                raise Refused(HelperCode.TASK_RUNNING, f"{what} is running: {upid}")

    def check_no_replication(self, vmid: int) -> None:
        """No replication or migration holds its flock (GuestHelpers.pm:guest_migration_lock); tried and released at once."""
        with self._flock(f"run/lock/pve-manager/pve-migrate-{vmid}", fcntl.LOCK_SH, make=False) as taken:
            if not taken:
                raise Refused(HelperCode.TASK_RUNNING, "a replication or migration of this guest is running")

    def check_config_is_free(self, id: GuestId) -> None:
        """Nobody of PVE works under the flock of the guest's configuration (AbstractConfig.pm:lock_config); tried and released at once.

        Exclusively, since a clone's source is held with a shared one.
        """
        file = _CONFIG_FLOCK[id.kind].format(id.vmid)
        with self._flock(file, fcntl.LOCK_EX, make=False) as taken:
            if not taken:
                raise Refused(HelperCode.BUSY, f"{id}: the flock on /{file} is held{self._holder(file)}: PVE is at work on the guest")

    @contextmanager
    def no_backup_begins(self, limit: float) -> Iterator[Held]:
        """Hold the flock that every vzdump needs, for `limit` seconds at most. Raises Refused when somebody has it.

        PVE's startall waits 10 s for it (Nodes.pm), a vzdump up to its `lockwait`, three hours by default (VZDump.pm:getlock).
        """
        with self._flock(FLOCK, fcntl.LOCK_EX, make=True) as taken:
            if not taken:
                raise Refused(HelperCode.BUSY, f"the flock on /{FLOCK} is held{self._holder(FLOCK)}: a backup or PVE's startall is at work")
            held = Held(taken.pop(), limit)
            try:
                yield held
            finally:
                held.release()

    def check_flock_is_free(self) -> None:
        """Nobody holds vzdump's flock at this moment; it is released at once."""
        with self.no_backup_begins(1.0):
            pass

    @contextmanager
    def _flock(self, file: str, operation: int, *, make: bool) -> Iterator[list[int]]:
        """Take a flock without waiting: the descriptor in a list, or an empty list. No file and not to be made = free.

        vzdump opens it for appending and so makes it 0644; it must be root's, and no link, FIFO or other trap.
        """
        flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_RDWR | os.O_APPEND | os.O_CREAT if make else os.O_RDONLY)
        try:
            descriptor = os.open(self._at(file), flags, 0o644)
        except OSError as error:
            if not make and isinstance(error, FileNotFoundError):
                yield [-1]
                return
            raise _unreadable(file, error.strerror) from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise _unreadable(file, "no regular file of root's")
            try:
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                yield []
            else:
                yield [descriptor]
        finally:
            os.close(descriptor)

    def _holder(self, file: str) -> str:
        """Who holds a flock, for people: any local user may."""
        with suppress(OSError, ValueError, Refused):
            holder = flock_holder(self._text("proc/locks"), os.stat(self._at(file)).st_ino, None)
            if holder is not None and holder.pid:
                return f" by process {holder.pid}"
        return ""

    def _vzdump_upid(self) -> Upid | None:
        """A job that fails leaves the file; then its worker is dead (VZDump.pm:getlock)."""
        where = "run/vzdump.pid"
        text = self._text(where, absent="").strip()
        try:
            return Upid.parse(text) if text else None
        except ValueError as error:
            raise _unreadable(where, str(error)) from None

    def _lives(self, upid: Upid) -> bool:
        where = f"proc/{upid.pid}/stat"
        try:
            return lives(self._bytes(where).decode("utf-8", "replace"), upid)
        except _VANISHED:
            self._check_processes_are_shown()
            return False
        except ValueError as error:
            raise _unreadable(where, str(error)) from None

    def _processes(self) -> Iterator[tuple[int, list[str]]]:
        """Number and command line of every process; kernel threads and zombies have none."""
        self._check_processes_are_shown()
        try:
            names = os.listdir(self._at("proc"))
        except OSError as error:
            raise _unreadable("proc", error.strerror) from None
        for name in filter(str.isdecimal, names):
            try:
                data = self._bytes(f"proc/{name}/cmdline", cut=True)
            except _VANISHED:
                continue
            if data:
                yield int(name), data.rstrip(b"\0").decode("utf-8", "replace").split("\0")

    def _is_a_guests(self, pid: int) -> bool:
        try:
            return in_a_guest(self._bytes(f"proc/{pid}/status").decode("utf-8", "replace"))
        except _VANISHED:
            return False

    def _check_processes_are_shown(self) -> None:
        """An absent process proves nothing where only our own are shown: then even PID 1 is absent (proc(5), hidepid=2)."""
        if os.path.lexists(self._at("proc/self")) and not os.path.lexists(self._at("proc/1")):
            raise _unreadable("proc", "processes of others are hidden (ProtectProc= of our own unit?)")

    # --- files ---

    def _at(self, path: str) -> str:
        return os.path.join(self.root, path)

    def _text(self, path: str, *, absent: str | None = None) -> str:
        try:
            return self._bytes(path).decode("utf-8", "replace")
        except FileNotFoundError as error:
            if absent is None:
                raise _unreadable(path, error.strerror) from None
            return absent

    def _bytes(self, path: str, *, cut: bool = False) -> bytes:
        """A file's content. An absent file or process raises as such; all else is a refusal. cut: the head will do."""
        try:
            with open(os.open(self._at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                data = file.read(_LARGEST + 1)
        except _VANISHED:
            raise
        except OSError as error:
            raise _unreadable(path, error.strerror) from None
        if len(data) > _LARGEST and not cut:
            raise _unreadable(path, "larger than it can be")
        return data


class Held:
    """A flock that is given back after its time even where we hang in a read: pmxcfs may."""

    def __init__(self, descriptor: int, limit: float) -> None:
        """The time begins now."""
        self._descriptor = descriptor
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._timer = threading.Timer(limit, self._unlock)
        self._timer.daemon = True
        self._timer.start()

    def budget(self) -> float:
        """Seconds that PVE's program may take now; an eighth is kept for a look after it. Raises Refused when half of it is gone."""
        left = self._deadline - time.monotonic()
        if left < self._limit / 2:
            raise Refused(HelperCode.TOO_SLOW, "the checks took too long, and PVE must not wait for the flock; nothing was done. Ask again")
        return left - self._limit / 8

    def release(self) -> None:
        """Give it back. A second time does nothing."""
        self._timer.cancel()
        self._timer.join()
        self._unlock()

    def _unlock(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def _unreadable(path: str, reason: object) -> Refused:
    return Refused(HelperCode.UNREADABLE, f"/{path}: {reason}; nothing is done while that is not known")
