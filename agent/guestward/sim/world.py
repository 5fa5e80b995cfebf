"""A PVE node in virtual time: guests, tasks, locks, backups, boot, HA, storages. What people and PVE do to it are its verbs.

It behaves as `pve-facts.md` and the recordings say, as far as the power watchdog can see it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from guestward.model.guest import GuestId, GuestKind, Startup
from guestward.model.observation import UnitState
from guestward.model.task import JIFFIES, Upid

BOOTED = 100_000.0  # seconds since host boot at which a simulation begins
EPOCH = 1_900_000_000.0
UP = UnitState("loaded", "active", "exited", "enabled")


@dataclass(slots=True)
class SimTask:
    """One task. said: its exit status, None while it runs."""

    upid: Upid
    said: str | None = None
    ended_wall: int | None = None


@dataclass(slots=True)
class SimGuest:
    """One guest. start: what each start does, the last repeats: ok, ok: stays stopped, warnings: N, fail: TEXT, hang, lost before,
    lost after, flap SECONDS."""

    id: GuestId
    name: str
    born: int
    onboot: bool = True
    running: bool = True
    pool: str | None = "guestward"
    node: str = "pve1"
    lock: str | None = None
    template: bool = False
    startup: Startup = field(default_factory=Startup)
    storages: frozenset[str] = frozenset({"local"})
    ha: tuple[str | None] | None = None
    qmp: str = "running"
    frozen: bool = False
    since: float = 0.0
    start: tuple[str, ...] = ("ok",)
    start_takes: float = 1.0
    started: int = 0
    note: str = ""
    written: int = 0
    no_pid: bool = False
    by_vzdump: bool = False


class World:
    """The node. Verbs change it at once; `at` does so later. Time passes by `advance` only."""

    def __init__(self, *, node: str = "pve1", token_id: str = "guestward-pve1@pve!agent") -> None:  # noqa: S107 - an id
        """An empty node that is up."""
        self.node, self.token_id = node, token_id
        self.local_name = ""  # what /etc/pve/local says, where it is not our node
        self.now = 0.0
        self.boot_offset, self.wall_offset, self.boot = BOOTED, EPOCH, 1
        self.guests: dict[int, SimGuest] = {}
        self.tasks: list[SimTask] = []
        self.archive: list[SimTask] = []
        self.pve_guests, self.system = UP, "running"
        self.quorate, self.pmxcfs, self.hold_file, self.maintenance = True, True, False, False
        self.storages: dict[str, bool] = {"local": True}
        self.revoked: set[tuple[str, str]] = set()
        self.backups: list[tuple[SimTask, tuple[int, ...]]] = []
        self.stale_pid: Upid | None = None
        self.archives: set[int] = set()
        self.unreadable: dict[str, str] = {}
        self.hidden: set[int] = set()  # VMIDs that the lists leave out although the pool names them
        self.most_starts: int | None = None  # more start tasks at once than this wait for a lock in vain (C76)
        self.effects: list[tuple[float, str, int, str]] = []
        self.after: list[tuple[str, int, float, Callable[[], None]]] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count(1)

    # ------------------------------------------------------------------------------------------------ time

    @property
    def boottime(self) -> float:
        """Seconds since host boot."""
        return self.now + self.boot_offset

    @property
    def wall(self) -> float:
        """Seconds since the epoch, as the host's clock says."""
        return self.now + self.wall_offset

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Let something happen at a virtual second; entries of the same second run in the order in which they were made."""
        heapq.heappush(self._heap, (when, next(self._count), lambda: (do(), None)[1]))

    def later(self, delay: float, do: Callable[[], object]) -> None:
        """Let something happen after a delay."""
        self.at(self.now + delay, do)

    def advance(self, seconds: float) -> None:
        """Let time pass, and with it what was to happen."""
        self.until(self.now + seconds)

    def until(self, when: float) -> None:
        """Let everything up to that second happen."""
        while self._heap and self._heap[0][0] <= when:
            moment, _, do = heapq.heappop(self._heap)
            self.now = max(self.now, moment)
            do()
        self.now = max(self.now, when)

    def next_event(self) -> float | None:
        """When the next thing is due to happen."""
        return self._heap[0][0] if self._heap else None

    # ------------------------------------------------------------------------------------------------ guests

    def add(self, vmid: int, kind: str = "lxc", **traits: object) -> SimGuest:
        """Put a guest on the node as it has been for long."""
        guest = SimGuest(GuestId(GuestKind(kind), vmid), f"guest{vmid}", next(self._count), since=-86400.0)
        for key, value in traits.items():
            setattr(guest, key, value)
        self.guests[vmid] = guest
        return guest

    def create(self, vmid: int, kind: str = "lxc") -> SimGuest:
        """A new guest: stopped, onboot off, in no pool, with an identity that none had before."""
        guest = self.add(vmid, kind, running=False, onboot=False, pool=None)
        guest.born = next(self._count)
        return guest

    def destroy(self, vmid: int) -> None:
        """Destroy a guest: with it goes its pool membership (pve-facts E5)."""
        del self.guests[vmid]

    def restore_over(self, vmid: int, by: str = "root@pam") -> None:
        """Restore a guest over itself: stopped, and alike in all its marks (pve-facts F3)."""
        guest = self.guests[vmid]
        guest.running, guest.written = False, guest.written + 1
        self.task("vzrestore" if guest.id.kind is GuestKind.LXC else "qmrestore", str(vmid), by, said="OK")

    def migrate(self, vmid: int, node: str) -> None:
        """Move a guest to a node; it arrives as it left."""
        self.guests[vmid].node = node

    def is_here(self, guest: SimGuest) -> bool:
        """Whether its configuration is on our node."""
        return guest.node == self.node

    def die(self, vmid: int) -> None:
        """The guest ends by itself: no task tells."""
        self.guests[vmid].running = False

    def power_on(self, vmid: int) -> None:
        """The guest runs from now on."""
        guest = self.guests[vmid]
        if not guest.running:
            guest.running, guest.since, guest.qmp, guest.frozen = True, self.now, "running", False

    def stop(self, vmid: int, by: str = "root@pam") -> None:
        """Somebody stops the guest through PVE."""
        guest = self.guests[vmid]
        if guest.running:
            self.task("vzstop" if guest.id.kind is GuestKind.LXC else "qmstop", str(vmid), by, said="OK")
            guest.running = False

    def reboot(self, vmid: int, how: str = "inside") -> None:
        """One second of stopped and unlocked. Under a lock the guest does not come back: the incident (timelines 5a)."""
        guest = self.guests[vmid]
        guest.running = False
        task = self.task("vzreboot", str(vmid), "root@pam") if how == "api" else None

        def back() -> None:
            if guest.lock is None:
                self.power_on(vmid)
            if task is not None:
                self.end_task(task, "OK" if guest.running else f"startup for container '{vmid}' failed")

        self.later(1, back)

    # ------------------------------------------------------------------------------------------------ tasks and backups

    def task(self, kind: str, id: str = "", by: str = "root@pam", said: str | None = None) -> SimTask:
        """A task begins; with `said` it has ended, too."""
        number = next(self._count)
        jiffies = int(self.boottime * JIFFIES)
        text = f"UPID:{self.node}:{number:08X}:{jiffies:08X}:{int(self.wall):08X}:{kind}:{id}:{by}:"
        task = SimTask(Upid.parse(text))
        self.tasks.append(task)
        if said is not None:
            self.end_task(task, said)
        return task

    def end_task(self, task: SimTask, said: str) -> None:
        """A task ends; the active list drops it and the archive has it."""
        if task.said is None:
            task.said, task.ended_wall = said, int(self.wall)
            self.tasks.remove(task)
            self.archive.insert(0, task)

    def running_task(self, kind: str, id: str = "") -> SimTask:
        """The running task of that kind."""
        return next(t for t in self.tasks if t.upid.type == kind and t.upid.id == id)

    def backup_begin(self, *vmids: int, mode: str = "snapshot", by: str = "root@pam") -> None:
        """vzdump begins: lock on each guest; in stop mode it is stopped."""
        task = self.task("vzdump", str(vmids[0]) if len(vmids) == 1 else "", by)
        self.backups.append((task, vmids))
        for vmid in vmids:
            self.guests[vmid].lock = "backup"
            if mode == "stop" and self.guests[vmid].running:
                self.guests[vmid].running, self.guests[vmid].by_vzdump = False, True

    def backup_end(self, said: str = "OK", *, after: float = 1.0, restarts: bool = True) -> None:
        """The oldest vzdump ends: unlock, some time later start what it stopped itself, then the task ends (pve-facts C2, C3)."""
        task, vmids = self.backups[0]
        for vmid in vmids:
            self.guests[vmid].lock = None

        def restart() -> None:
            for vmid in vmids:
                if self.guests[vmid].by_vzdump and restarts:
                    self.power_on(vmid)
                self.guests[vmid].by_vzdump = False
            self.backups.pop(0)
            self.end_task(task, said)

        self.later(after, restart)

    def backup_kill(self, archive_for: float = 0.0) -> None:
        """kill -9 of the worker: flock free, stale pid file, locks stay, the archive process may live on (timelines 6c)."""
        task, vmids = self.backups.pop(0)
        self.stale_pid = task.upid
        self.end_task(task, "unexpected status")
        if archive_for:
            self.archives |= set(vmids)
            self.later(archive_for, lambda: self.archives.difference_update(vmids))

    def restart_pvedaemon(self) -> None:
        """Every task that the API began is cut off (timelines 10a)."""
        for task in list(self.tasks):
            self.end_task(task, "unexpected status")

    # ------------------------------------------------------------------------------------------------ host

    def boot_host(self) -> None:
        """The host crashed and boots: all guests are down and PVE has not started any yet."""
        self.boot += 1
        self.boot_offset = 10.0 - self.now
        self.pve_guests = UnitState("loaded", "activating", "start", "enabled")
        for task in list(self.tasks):
            self.end_task(task, "unexpected status")
        self.backups.clear()
        for guest in self.guests.values():
            guest.running = False

    def boot_over(self) -> None:
        """pve-guests has started what onboot says, and `backup` locks are gone (pve-facts B4)."""
        for guest in self.guests.values():
            guest.lock = None if guest.lock == "backup" else guest.lock
            if guest.onboot and guest.lock is None and self.is_here(guest):
                self.power_on(guest.id.vmid)
        self.pve_guests = UP

    # ------------------------------------------------------------------------------------------------ what the agent does

    def effect(self, verb: str, vmid: int, result: str) -> None:
        """Note what of the agent reached the world, and let the world react."""
        self.effects.append((self.now, verb, vmid, result))
        for wanted, of, delay, do in list(self.after):
            if (wanted, of) == (verb, vmid):
                self.later(delay, do)

    def run_start(self, guest: SimGuest, by: str) -> SimTask:
        """The worker of a start, as its script says."""
        script = guest.start[min(guest.started, len(guest.start) - 1)]
        guest.started += 1
        vmid = guest.id.vmid
        if guest.ha is not None and guest.ha[0] != "ignored":
            return self.task("hastart", str(vmid), by, said="OK")
        at_once = sum(1 for t in self.tasks if t.upid.type in ("vzstart", "qmstart"))
        if self.most_starts is not None and at_once >= self.most_starts:
            script = f"fail: can't lock file '/run/lock/lxc/pve-config-{vmid}.lock' - got timeout"
        task = self.task("vzstart" if guest.id.kind is GuestKind.LXC else "qmstart", str(vmid), by)
        if script != "hang":
            self.later(guest.start_takes, lambda: self._finish_start(guest, task, script))
        return task

    def _finish_start(self, guest: SimGuest, task: SimTask, script: str) -> None:
        if task.said is not None:
            return
        word, _, rest = script.partition(":")
        noun = "CT" if guest.id.kind is GuestKind.LXC else "VM"
        if guest.lock is not None:
            self.end_task(task, f"{noun} is locked ({guest.lock})")
        elif guest.running:
            self.end_task(task, f"{noun} {guest.id.vmid} already running")
        elif word == "fail":
            self.end_task(task, rest.strip())
        else:
            self._come_up(guest, script)
            self.end_task(task, f"WARNINGS: {rest.strip()}" if word == "warnings" else "OK")

    def _come_up(self, guest: SimGuest, script: str) -> None:
        if script == "ok: stays stopped":
            return
        self.power_on(guest.id.vmid)
        if script.startswith("flap "):
            self.later(float(script.split()[1]), lambda: self.die(guest.id.vmid))
