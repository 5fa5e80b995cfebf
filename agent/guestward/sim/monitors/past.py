"""What was true of the world when the agent asked, and since when: the ground on which all monitors judge.

It is sampled at each question of the agent, so that what changed after the agent's last possible look is known to be no fault of it.
Nothing here comes from the agent's memory or from its policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from guestward.duties.env import Env
from guestward.model.guest import GuestId, GuestKind, Startup, truthy
from guestward.model.helper import SNAPSHOT
from guestward.model.memory import Hold
from guestward.model.observation import UnitState
from guestward.model.task import Error, Ok, Upid, Warnings, exit_status
from guestward.sim.guest import SimGuest
from guestward.sim.log import Effect, Logged
from guestward.sim.monitors.base import Watch
from guestward.sim.monitors.heard import HeardHelper, HeardHost, HeardPve, HeardStore
from guestward.sim.monitors.requests import STEPS, Request, Requests
from guestward.sim.tasks import SimTask

if TYPE_CHECKING:
    from guestward.sim.run import Simulation

IN_CONFIG = frozenset({"name", "onboot", "template", "startup", "storages", "tags", "protection", "identity", "note", "only_lock"})
STOPS = frozenset({"vzstop", "vzshutdown", "qmstop", "qmshutdown", "vzsuspend", "qmsuspend", "hastop"})
BIRTHS = frozenset({"vzcreate", "vzrestore", "qmcreate", "qmrestore"})
BIRTH_LOCKS = frozenset({"create", "import", "clone"})
STARTS = frozenset({"vzstart", "qmstart", "hastart"})
TELLING = frozenset({"list", "config"})
NODE_KINDS = frozenset({"host", "live", "backups", "start", "unlock", "delete-snapshot"})
FIRST_COUNTS = frozenset({"host", "active"})  # a look judges host and tasks by what it saw first; before a start they are asked again
ALWAYS_ANSWERED = frozenset({"host", "holds", "backups"})
SLOW = 5.0
FOLLOWED = 2.0  # seconds after which an answer is seen


class Facts(NamedTuple):
    """One guest as it is.

    visible: the lists show it to the token. owned: here and in a pool of ours, and not excluded. shown: a list says `running`.
    seen: and it has a pid. works: and is not paused or frozen. order: of `startup`. config: changes with its configuration, locks and
    snapshots apart. locker: who set its lock. dangling: of a container, the state of a snapshot that only vzdump makes; None: it has none.
    """

    id: GuestId
    name: str
    here: bool
    visible: bool
    owned: bool
    running: bool
    shown: bool
    seen: bool
    works: bool
    lock: str | None
    onboot: bool
    template: bool
    band: bool
    ha: bool
    storages: frozenset[str]
    identity: str
    order: float
    up: int
    tags: str
    protection: bool
    snapshots: tuple[str, ...]
    config: tuple[object, ...]
    locker: str
    dangling: str | None

    @property
    def wanted(self) -> bool:
        """Whether it is one of those that are to be kept up at all."""
        return self.owned and self.onboot and not self.template and not self.band


class Node(NamedTuple):
    """What the host itself shows."""

    quorate: bool
    hold_file: bool
    maintenance: bool
    pmxcfs: bool
    system: str
    unit: UnitState
    local_name: str
    unreadable: tuple[str, ...]
    archives: frozenset[int]
    hidden: frozenset[int]
    holds: tuple[Hold, ...]
    holds_lost: bool


class Snap(NamedTuple):
    """The world at one moment; the same object as long as nothing changes. tasks: those that run."""

    guests: Mapping[int, Facts]
    tasks: tuple[Upid, ...]
    node: Node
    offline: frozenset[str]


@dataclass(slots=True)
class Asked:
    """One question of the agent. t: virtual seconds. boot: seconds since host boot. failed: why it got no answer. lost: missing grants."""

    kind: str
    vmid: int
    t: float
    boot: float
    snap: Snap
    version: int
    failed: str = ""
    answered: bool = False
    lost: frozenset[tuple[str, str]] = frozenset()


@dataclass(slots=True)
class Sent:
    """One start that reached PVE.

    at, ended: seconds since host boot; ended by the world's truth, None while the outcome is open. number: how many starts since there
    was a reason for new ones. ran: the guest ran already. gone: the guest that it was for is no longer
    guarded, or not known any more. repeated: its outcome was told again by an agent that had been killed right after it.
    """

    id: GuestId
    t: float
    at: float
    result: str
    task: SimTask | None
    number: int
    life: int
    ran: bool
    order: float
    up: int
    ended: float | None = None
    up_at: float | None = None
    gone: bool = False
    attempt_told: bool = False
    outcome: str = ""
    repeated: bool = False

    def deadline(self, start_timeout: float) -> float:
        """After which nothing counts any more, in seconds since host boot."""
        return self.at + start_timeout


@dataclass(slots=True)
class Stop:
    """Somebody stopped a guest through PVE. at: seconds since host boot; offset: wall clock less boot clock at that moment."""

    task: SimTask
    at: float
    offset: float

    @property
    def done(self) -> bool:
        """Whether the task says that it did."""
        return self.task.said is not None and isinstance(exit_status(self.task.said), Ok | Warnings)


@dataclass(slots=True)
class Of:
    """What is remembered of one VMID. changed: virtual seconds. seen_down, was_down, steady: seconds since host boot, by the lists.

    cut_at: the agent was killed after it had begun to look whether to start it, so that it may have noted a start that was never sent.
    cuts: when that was, in virtual seconds. needed: storages that its configuration ever named. told: the number of the attempt that
    was told last; told_at: when, in seconds since host boot. locks: how often its lock changed, so that each lock has a number;
    lock_at: when it last did; dangling_at: when a snapshot of vzdump came; claims: from when until when it was claimed, by the wall
    clock; gone_at: when it was last another guest, or not ours; anew_at: when it was last seen under a lock under which guests are
    made: in virtual seconds.
    """

    names: set[str] = field(default_factory=set)
    kinds: set[GuestId] = field(default_factory=set)
    changed: float = 0.0
    down_at: float = -math.inf
    state_at: float = -math.inf
    stop: Stop | None = None
    new: str = ""
    new_at: float = -math.inf
    maybe_new: str = ""
    born_at: float = -math.inf
    left_at: float = -math.inf
    ran: bool = False
    seen_down: float | None = None
    was_down: float | None = None
    steady: float | None = None
    sure_steady: float | None = None
    surely_stable: float = -math.inf
    config_read: float = -math.inf
    config_changed: float = -math.inf
    resets: set[str] = field(default_factory=set)
    sent: list[Sent] = field(default_factory=list)
    rearmed: float = -math.inf
    failed: float = -math.inf
    cut_at: float = -math.inf
    cuts: list[float] = field(default_factory=list)
    needed: set[str] = field(default_factory=set)
    told: int = 0
    told_at: float = -math.inf
    locks: int = 0
    lock_at: float = -math.inf
    dangling_at: float = -math.inf
    claims: list[tuple[float, float]] = field(default_factory=list)
    gone_at: float = -math.inf
    anew_at: float = -math.inf


def _order(startup: str) -> tuple[float, int]:
    parsed = Startup.parse(startup)
    return (math.inf if parsed.order is None else float(parsed.order), parsed.up)


def _another_snapshot(before: str | None, now: str) -> bool:
    """Whether a snapshot of that state is not the one that was there: one that is made is in `prepare` first, and `delete` ends it."""
    return before is None or (now not in (before, "delete") and (before, now) != ("prepare", ""))


class Past(Watch):
    """Keeps the ground. It must be the first of the monitors, and the agent's doors must go through `doors`."""

    def __init__(self, sim: Simulation) -> None:
        """sim: the world is as it is at the first second; the agent has not been started yet."""
        self.sim, self.world = sim, sim.world
        self.config, self.rules = sim.config, sim.config.rules()
        self.of: dict[int, Of] = {}
        self.life, self.alive_since, self.cut, self.all_cuts = 0, self.world.now, False, 0
        self.boot = self.world.boot
        self.watched = False
        self.job: list[Asked] = []
        self.job_over = True
        self.cut_at = -math.inf  # virtual second at which an agent that was killed in the middle of a job was started again
        self.regranted_at = self.regrant_failed = -math.inf  # virtual seconds of the last request to put grants back, and of one in vain
        self.boot_offset = self.world.boot_offset  # as this boot began, or the run
        self.cut_off: list[Asked] = []  # the questions of the job in which the agent was killed last
        self.last: dict[tuple[str, int], Asked] = {}  # the last question of each kind, and VMID, that was answered
        self.requests = Requests()
        self.offsets: list[float] = []
        self.archived: list[SimTask] = []  # of one sample: tasks that have ended since the one before
        self.api_failed = -math.inf  # virtual second of the last question without an answer
        self.slow_at = -math.inf  # virtual second of the last question of a job in which answers took their time
        self.again_failed = -math.inf  # virtual second of the last one in a look before a start
        self.took: set[int] = set()  # VMIDs that an operator re-armed, as this job heard
        self.lost_state = self.lost_boot = -math.inf
        self.listed_at = -math.inf
        self.back_online: dict[str, float] = {}
        self.started: set[int] = set()  # VMIDs that the agent ever asked PVE to start
        self.counted: tuple[object, int, bool | None] = (None, 0, None)  # of one job: whether it counts as a sweep
        self._helper_until: dict[int, float] = {}  # VMID -> virtual second until which its answer is waited for
        self._open: list[Sent] = []
        self._dirty: set[int] = set()
        self._objects: dict[int, SimGuest] = {}
        self._version, self._lost_version = -1, -1
        self._concealed = (-1, False)
        self._lost: frozenset[tuple[str, str]] = frozenset()
        self._head: SimTask | None = self.world.archive[0] if self.world.archive else None
        self._results = 0  # how often the agent told how a start ended
        self._listed_snaps: dict[GuestKind, tuple[Snap, int]] = {}
        self.snap = Snap({}, (), self._node(), frozenset())
        self.world.watchers.append(self._changed)
        self.sample()
        for known in self.of.values():
            known.new = known.maybe_new = ""

    def memory(self, vmid: int) -> Of:
        """What is remembered of a VMID."""
        found = self.of.get(vmid)
        if found is None:
            found = self.of[vmid] = Of()
        return found

    # ------------------------------------------------------------------------------------------------ the agent's doors

    def listens_to(self, env: Env) -> Env:
        """The agent starts: give it these doors in place of its own."""
        self.cut = bool(self.job) and not self.job_over
        self.all_cuts += self.cut
        if self.cut:
            for vmid in {asked.vmid for asked in self.job if asked.kind == "live"}:
                self.memory(vmid).cut_at = self.world.boottime
                self.memory(vmid).cuts.append(self.world.now)
        self.cut_off = self.job if self.cut else []
        self.cut_at = self.world.now if self.cut else self.cut_at
        self.job, self.job_over = [], True
        self.life, self.alive_since = self.life + 1, self.world.now
        self._helper_until.clear()
        if env.store.begins_empty():
            self.begins_empty()
        doors = HeardPve(env.pve, self), HeardHost(env.host, self), HeardStore(env.store, self), HeardHelper(env.helper, self)
        return replace(env, pve=doors[0], host=doors[1], store=doors[2], helper=doors[3])

    def _reloaded(self) -> None:
        """A new configuration is in force from the next job on."""
        watch = self.sim.watch
        if watch is None or watch.env.config is self.config:
            return
        self.config, self.rules = watch.env.config, watch.env.config.rules()
        self._dirty.update(self.world.guests)
        self._version = -1

    def helper_begins(self, vmid: int, longest: float) -> None:
        """The helper was asked for something; its answer may take that long, whenever it acts."""
        self._helper_until[vmid] = self.world.now + longest + FOLLOWED

    def helper_ended(self, vmid: int) -> None:
        """It answered, or it is known that it never will."""
        self._helper_until.pop(vmid, None)

    def helper_at_work(self, vmid: int) -> bool:
        """Whether the agent cannot know yet what the helper has done to that guest."""
        return self.world.now <= self._helper_until.get(vmid, -math.inf)

    def asked(self, kind: str, vmid: int) -> Asked:
        """The agent asks something. Returns the entry, in which the door notes how it went."""
        if self.job_over:
            self.job, self.job_over = [], False
            self.took = set()
            self._reloaded()
        elif self.job and self.job[-1].kind in TELLING:
            self._answered(self.job[-1])
        world = self.world
        snap, node = self.snap, kind in NODE_KINDS
        if node or world.version != self._version or self._open or kind == "holds" or world.boot != self.boot:
            snap = self.sample(node=node)
        if self.job and world.now - self.job[0].t > SLOW:
            self.slow_at = world.now
        entry = Asked(kind, vmid, world.now, world.now + world.boot_offset, snap, world.version)
        if kind == "privileges":
            entry.lost = self.lost()
        if kind in ALWAYS_ANSWERED:
            self.answered(entry)
        self.job.append(entry)
        return entry

    def answered(self, asked: Asked) -> None:
        """The agent knows what it asked for. Must come before it asks for something else."""
        if asked.kind not in FIRST_COUNTS or not any(one.kind == asked.kind and one is not asked for one in self.job):
            self.last[(asked.kind, asked.vmid)] = asked

    def as_known(self, vmid: int, kind: str) -> Snap | None:
        """The world at the last question of that kind, about the node or that guest, in this job or an earlier one."""
        found = [asked for key in ((kind, 0), (kind, vmid)) if (asked := self.last.get(key)) is not None]
        return max(found, key=lambda asked: (asked.t, asked.version)).snap if found else None

    def not_answered(self, asked: Asked, why: str) -> None:
        """The door says that there was no answer."""
        asked.failed, self.api_failed = why, self.world.now
        if asked.vmid:
            self.memory(asked.vmid).failed = self.world.now
        if any(one.kind == "live" for one in self.job):
            self.again_failed = self.world.now

    def _answered(self, asked: Asked) -> None:
        if asked.kind == "list":
            self._both_listed()
        elif asked.kind == "config" and asked.answered:
            self._config_read(asked)

    def looked(self, job: str) -> None:
        """The job is over; its questions stay until the next one asks."""
        for hold in self.snap.node.holds:
            lasts = (hold.wall, hold.wall + hold.duration)
            if hold.claim and hold.vmid is not None and lasts not in self.memory(hold.vmid).claims:
                self.memory(hold.vmid).claims.append(lasts)
        if self.job and not self.job_over:
            self._answered(self.job[-1])
        self.sample(node=self.job_over)
        self.job_over = True
        if job != "follow" and any(asked.kind == "list" and asked.answered for asked in self.job):
            self.watched = True
            offset = self.world.wall - self.world.boottime
            if not any(abs(offset - known) <= 1 for known in self.offsets):
                self.offsets.append(offset)

    def rearmed(self, vmids: Iterable[int]) -> None:
        """The agent took an operator's requests; before its first question of a look."""
        for vmid in vmids:
            known = self.memory(vmid)
            known.rearmed, known.new, known.stop = self.world.now, "", None
            self._reset(vmid, "rearmed")
        if self.job_over:
            self.job, self.job_over, self.took = [], False, set()
        self.took |= set(vmids)

    def begins_empty(self) -> None:
        """The agent began without a memory: of its starts it can know only what PVE's task list of the last hour has (C08)."""
        self.watched, self.lost_state = False, self.world.now
        self.lost_boot, self.offsets = self.world.boottime, []
        for known in self.of.values():
            known.new = ""
            known.sent = [s for s in known.sent if s.task is not None and 0 <= self.world.boottime - s.at < 3600.0]
            for number, sent in enumerate(known.sent[-self.rules.attempts :], 1):
                sent.number = min(sent.number, number)
            for sent in known.sent:
                if sent.life != self.life:
                    sent.gone, sent.outcome = True, sent.outcome or "forgotten"
        self._open = [sent for sent in self._open if sent.task is not None]

    # ------------------------------------------------------------------------------------------------ samples

    def sample(self, *, node: bool = True) -> Snap:
        """The world as it is now."""
        world = self.world
        if world.boot != self.boot:
            self._booted()
        if world.version != self._version:
            self._look_around()
        if node or self.snap.node.holds != tuple(self.sim.store.hold_list):
            seen = self._node()
            if seen != self.snap.node:
                self.snap = self.snap._replace(node=seen)
        if self._open:
            self._follow_open()
        return self.snap

    def _node(self) -> Node:
        world, store = self.world, self.sim.store
        return Node(
            world.quorate,
            world.hold_file,
            world.maintenance,
            world.pmxcfs,
            world.system,
            world.pve_guests,
            world.local_name,
            tuple(world.unreadable),
            frozenset(world.vzdump.archives),
            frozenset(world.hidden),
            tuple(store.hold_list),
            bool(store.holds_lost),
        )

    def _look_around(self) -> None:
        world = self.world
        self._version = world.version
        self._new_tasks()
        known = self.snap.guests
        fresh: dict[int, Facts] | None = None
        for vmid, guest in world.guests.items():
            if self._objects.get(vmid) is not guest or vmid in self._dirty:
                fresh = dict(known) if fresh is None else fresh
                fresh[vmid] = self._look_at(vmid, guest)
        if len(fresh if fresh is not None else known) != len(world.guests):
            fresh = dict(known) if fresh is None else fresh
            for vmid in fresh.keys() - world.guests.keys():
                del fresh[vmid]
                self._gone(vmid, "destroyed")
                self._objects.pop(vmid, None)
        self._dirty.clear()
        offline = frozenset(name for name, online in world.storages.items() if not online)
        for name in self.snap.offline - offline:
            self._back_online(name)
        self.snap = Snap(known if fresh is None else fresh, tuple(task.upid for task in world.tasks), self.snap.node, offline)

    def _look_at(self, vmid: int, guest: SimGuest) -> Facts:
        of, rules, known = self.memory(vmid), self.rules, self.snap.guests.get(vmid)
        here = guest.node == self.world.node
        options_there = not guest.only_lock
        order, up = _order(guest.startup) if options_there else (math.inf, 0)
        found = Facts(
            id=guest.id,
            name=guest.name,
            here=here,
            visible=here and (guest.pool in rules.pools or rules.scratch_first <= vmid <= rules.scratch_last),
            owned=here and guest.pool in rules.pools and vmid not in rules.exclude,
            running=guest.running,
            shown=guest.running or guest.passing == "starting",
            seen=guest.running and not guest.no_pid and not guest.passing,
            works=guest.running and guest.qmp == "running" and not (guest.frozen and guest.id.kind is GuestKind.LXC),
            lock=guest.lock,
            onboot=options_there and (truthy(guest.onboot) if isinstance(guest.onboot, str) else guest.onboot),
            template=guest.template,
            band=rules.scratch_first <= vmid <= rules.scratch_last,
            ha=guest.managed,
            storages=guest.storages if options_there else frozenset(),
            identity=guest.identity,
            order=order,
            up=up,
            tags=guest.tags if options_there else "",
            protection=guest.protection and options_there,
            snapshots=tuple(sorted(guest.snapshots)),
            config=tuple(getattr(guest, name) for name in sorted(IN_CONFIG)),
            locker=guest.locker,
            dangling=guest.snapshots.get(SNAPSHOT) if guest.id.kind is GuestKind.LXC else None,
        )
        if found.dangling is not None and _another_snapshot(None if known is None else known.dangling, found.dangling):
            of.dangling_at = self.world.now
        of.names.add(guest.name)
        of.needed |= guest.storages
        of.kinds.add(guest.id)
        if self._objects.get(vmid) is not guest:
            self._objects[vmid] = guest
            of.ran = False
            self._appeared(vmid, "appeared here" if here else "")
            self._gone(vmid, "another guest")
        elif known is not None:
            self._moved(vmid, known, found)
        if guest.running and here:
            of.ran, of.new = True, ""
        return found

    def _moved(self, vmid: int, before: Facts, now: Facts) -> None:
        of = self.memory(vmid)
        if now.here and not before.here and not of.ran:
            self._appeared(vmid, "moved here" if self.listed_at > of.left_at else "")  # away between two looks, it never was
        if before.here and not now.here:
            of.maybe_new, of.left_at = "was away", self.world.now
        if before.owned and not now.owned:
            self._gone(vmid, "left")
        if before.identity != now.identity and not now.running:
            of.ran = False
            of.maybe_new = "another identity"
            if of.config_read > of.down_at and self.watched:
                of.new, of.new_at = "another identity", self.world.now
            self._gone(vmid, "another identity")

    def _appeared(self, vmid: int, how: str) -> None:
        of = self.memory(vmid)
        of.maybe_new = how or "appeared"
        if how and self.watched:
            of.new, of.new_at = how, self.world.now

    def _gone(self, vmid: int, why: str) -> None:
        """Whatever was tried for that guest counts no more."""
        of = self.memory(vmid)
        of.resets.add(why)
        of.gone_at = self.world.now
        for sent in of.sent:
            sent.gone = True
        of.steady = of.sure_steady = None
        self.last = {key: asked for key, asked in self.last.items() if key[1] != vmid}

    def _reset(self, vmid: int, why: str) -> None:
        self.memory(vmid).resets.add(why)

    def _back_online(self, name: str) -> None:
        self.back_online[name] = self.world.now
        for vmid, of in self.of.items():
            if name in of.needed:
                self._reset(vmid, f"storage {name} is back")

    def _booted(self) -> None:
        """In another boot all seconds since host boot are void."""
        self.boot, self.watched, self.offsets = self.world.boot, False, []
        self.boot_offset = self.world.boot_offset
        for vmid, of in self.of.items():
            self._gone(vmid, "host boot")
            of.new = ""
            of.stop, of.seen_down, of.was_down = None, None, None
        self._open.clear()
        self.last.clear()

    def _new_tasks(self) -> None:
        archive = self.world.archive
        head = archive[0] if archive else None
        if head is self._head:
            return
        for task in archive:
            if task is self._head:
                break
            self._task_ended(task)
        self._head = head

    def _task_ended(self, task: SimTask) -> None:
        upid = task.upid
        if upid.type not in BIRTHS or not upid.id.isdigit() or task.said is None or isinstance(exit_status(task.said), Error):
            return
        vmid = int(upid.id)
        of, guest = self.memory(vmid), self.world.guests.get(vmid)
        of.born_at = self.world.now
        of.maybe_new = of.maybe_new or upid.type
        if guest is None or guest.running or guest.since + self.world.boot_offset >= upid.started_boottime:
            return
        of.ran, of.stop = False, None
        if self.watched:
            of.new, of.new_at = f"made anew by {upid.type}", self.world.now
        self._gone(vmid, upid.type)

    def _follow_open(self) -> None:
        """When a start came to its end, by the world's truth."""
        now, still = self.world.boottime, []
        for sent in self._open:
            guest = self.world.guests.get(sent.id.vmid)
            running = guest is not None and guest.running
            if sent.up_at is None and running and not sent.ran:
                sent.up_at = now
            if running or (sent.task is not None and sent.task.said is not None) or now >= sent.deadline(self.rules.start_timeout):
                sent.ended = min(now, sent.deadline(self.rules.start_timeout))
            else:
                still.append(sent)
        self._open = still

    # ------------------------------------------------------------------------------------------------ changes of guests

    def _changed(self, guest: SimGuest, what: str) -> None:
        """Called by the world right before an attribute of a guest changes."""
        vmid = guest.id.vmid
        if self.world.guests.get(vmid) is not guest:
            return
        now, of = self.world.now, self.memory(vmid)
        self._dirty.add(vmid)
        if what not in ("start", "started", "start_takes", "pid", "since"):
            of.changed = now
        if what == "running":
            self._power_changes(guest, of)
        elif what == "lock":
            of.locks, of.lock_at = of.locks + 1, now
        elif what in ("qmp", "frozen"):
            of.state_at = now
        elif what == "name":
            of.names.add(guest.name)
        if what in IN_CONFIG:
            of.config_changed, of.stop = now, None
            self._reset(vmid, "configuration changed")

    def _power_changes(self, guest: SimGuest, of: Of) -> None:
        of.state_at = self.world.now
        if not guest.running:
            of.stop = None
            if guest.node == self.world.node:
                of.ran, of.new = True, ""
            return
        of.down_at = self.world.now
        of.stop = self._stopped_by(str(guest.id.vmid))

    def _stopped_by(self, vmid: str) -> Stop | None:
        """A task of somebody else's that is stopping it right now, or has just done so; none of vzdump's."""
        world = self.world
        newest = [t for t in world.archive[:1] if t.upid.starttime == int(world.wall)]
        stops = [t for t in (*world.tasks, *newest) if t.upid.id == vmid and t.upid.type in STOPS and t.upid.user != world.token_id]
        saved = any(t.upid.type == "vzdump" and t.upid.id in ("", vmid) for t in world.tasks)
        return Stop(stops[0], stops[0].upid.started_boottime, world.wall - world.boottime) if stops and not saved else None

    # ------------------------------------------------------------------------------------------------ what the lists showed

    def _both_listed(self) -> None:
        """The agent asks for containers, then for VMs; one list alone tells it nothing."""
        lists = [one for one in self.job if one.kind == "list" and one.answered]
        if not self.job[-1].answered or len(lists) % 2:
            return
        self.listed_at = self.world.now
        for kind, one in zip(GuestKind, lists[-2:], strict=True):
            self._listed(kind, one)
        for vmid in self.started:
            guest = self.world.guests.get(vmid)
            self._steady(vmid, self.of[vmid], lists[-1] if guest is not None and guest.id.kind is GuestKind.QEMU else lists[-2])

    def _listed(self, kind: GuestKind, asked: Asked) -> None:
        """What a list showed the agent: who is down since when."""
        snap, results = self._listed_snaps.get(kind, (None, 0))
        if asked.snap is snap and results == self._results:
            return
        self._listed_snaps[kind] = (asked.snap, self._results)
        for vmid, facts in asked.snap.guests.items():
            if not facts.visible or facts.id.kind is not kind:
                continue
            of = self.memory(vmid)
            if facts.seen and of.sent and not of.sent[-1].outcome:
                of.maybe_new = ""  # it may be up for a moment, by a start that comes to nothing
            elif facts.seen:
                of.was_down = of.seen_down if of.seen_down is not None else of.was_down
                of.seen_down, of.maybe_new = None, ""
            elif not facts.shown:
                of.seen_down = asked.boot if of.seen_down is None else of.seen_down
                if facts.lock in BIRTH_LOCKS:
                    of.maybe_new, of.anew_at = f"seen under the lock `{facts.lock}`", asked.t

    def _steady(self, vmid: int, of: Of, asked: Asked) -> None:
        facts, guest = asked.snap.guests.get(vmid), self.world.guests.get(vmid)
        idle = guest is not None and not facts_work(facts) and self.world.now - of.state_at > 2 * self._interval + 20
        if facts is None or guest is None or not facts.seen or facts.lock is not None or idle:
            of.steady = of.sure_steady = None
            return
        up_since = guest.since + self.world.boot_offset
        of.steady = up_since if of.steady is None else max(of.steady, up_since)
        of.sure_steady = asked.boot if of.sure_steady is None else max(of.sure_steady, up_since)
        if asked.boot - of.steady >= self.rules.stable:
            self._reset(vmid, "ran stably")
        if asked.boot - of.sure_steady > self.rules.stable + 2 * self._interval:
            of.surely_stable = asked.t

    @property
    def _interval(self) -> float:
        return self.sim.config.watchdog.interval

    def _config_read(self, asked: Asked) -> None:
        self.memory(asked.vmid).config_read = asked.t

    # ------------------------------------------------------------------------------------------------ starts

    def effect(self, effect: Effect) -> None:
        """Note a start, before any monitor judges it."""
        self.sample()
        if effect.verb == "regrant":
            self.regranted_at = self.world.now
            self.regrant_failed = self.regrant_failed if effect.result == "ok" else self.world.now
        if effect.verb in STEPS and effect.door == "helper" and effect.vmid is not None:
            self._step(effect, effect.vmid)
        if effect.verb != "start" or effect.vmid is None:
            return
        vmid, world = effect.vmid, self.world
        of, facts = self.memory(vmid), self.snap.guests.get(vmid)
        of.sent = [sent for sent in of.sent if sent.at <= world.boottime]  # those of an earlier boot have no meaning in this one
        number = 1 if of.resets or not of.sent else of.sent[-1].number + 1
        id = facts.id if facts is not None else GuestId(GuestKind.LXC, vmid)
        order, up = (facts.order, facts.up) if facts is not None else (math.inf, 0)
        task = self._own_task(vmid)
        asked = next((one for one in reversed(self.job) if one.kind == "start" and one.vmid == vmid), None)
        at = asked.boot if asked is not None and not self.job_over else world.boottime  # the answer to a request may hang for long
        ran = facts is not None and facts.running
        sent = Sent(id, world.now, at, effect.result, task, number, self.life, ran, order, up)
        of.resets.clear()
        of.sent.append(sent)
        self.started.add(vmid)
        del of.sent[:-20]
        if effect.result == "refused" or (task is not None and task.upid.type == "hastart"):
            sent.ended = sent.at
        else:
            self._open.append(sent)
            self._follow_open()

    @property
    def band(self) -> range:
        """VMIDs of scratch guests."""
        return range(self.rules.scratch_first, self.rules.scratch_last + 1)

    def _step(self, effect: Effect, vmid: int) -> None:
        """A request to the helper; one that came through no door of the agent is judged by the world as it is now."""
        request = self.requests.under_way
        if request is None or (request.verb, request.vmid) != (effect.verb, vmid):
            request = self.step_begins(effect.verb, vmid)
            self.requests.under_way = None
        request.result = effect.result

    def step_begins(self, verb: str, vmid: int) -> Request:
        """The agent asks the helper for something, which has not reached it yet."""
        asked, of = self.asked(verb, vmid), self.memory(vmid)
        request = Request(verb, vmid, asked.t, asked.boot, self.life, self.world.boot, asked.snap, of.locks, of.dangling_at)
        self.requests.add(request)
        return request

    def event(self, logged: Logged) -> None:
        """Keep how many attempts the agent says that it made, and that it knows how one ended."""
        self._results += logged.event == "start_result"
        if logged.event == "start_attempt" and logged.guest is not None:
            of, number = self.memory(logged.guest.vmid), logged.fields.get("attempt")
            of.told, of.told_at = number if isinstance(number, int) else 0, self.world.boottime

    def _own_task(self, vmid: int) -> SimTask | None:
        """The task that the request has just made."""
        world = self.world
        just = int(world.boottime * 100)
        for task in (*reversed(world.tasks), *world.archive[:5]):
            upid = task.upid
            if upid.id == str(vmid) and upid.user == world.token_id and upid.type in STARTS and abs(upid.pstart - just) <= 1:
                return task
        return None

    def all_sent(self) -> Iterator[Sent]:
        """Every start that is still remembered."""
        return (sent for vmid in self.started for sent in self.of[vmid].sent)

    def in_flight(self) -> list[Sent]:
        """Starts of which the outcome is open by the world's truth."""
        return [sent for sent in self._open if not sent.gone]

    # ------------------------------------------------------------------------------------------------ questions about a look

    def lost(self) -> frozenset[tuple[str, str]]:
        """Privileges of the install table that the token does not have now: path and privilege."""
        if self._lost_version != self.world.version:
            self._lost_version = self.world.version
            held = self.world.acl.held
            needed = [(f"/pool/{pool}", name) for pool in self.rules.pools for name in ("VM.Audit", "VM.PowerMgmt", "Pool.Audit")]
            needed += [(f"/nodes/{self.world.node}", "Sys.Audit"), ("/storage", "Datastore.Audit")]
            self._lost = frozenset((path, name) for path, name in needed if name not in held(path))
        return self._lost

    def concealed(self) -> bool:
        """Whether a deeper ACL entry keeps a guest of ours out of the lists, though its pool names it (pve-facts E2)."""
        version, found = self._concealed
        if version != self.world.version:
            self._concealed = (self.world.version, found := self._conceals())
        return found

    def _conceals(self) -> bool:
        rules, acl = self.rules, self.world.acl
        band = {f"/vms/{vmid}" for vmid in range(rules.scratch_first, rules.scratch_last + 1)}
        if not any(path.startswith("/vms") and path not in band for _, path in acl.entries):
            return False
        return any(facts.visible and "VM.Audit" not in acl.held(f"/vms/{vmid}") for vmid, facts in self.snap.guests.items())

    def last_look(self, vmid: int) -> list[Asked]:
        """The questions from the last `status/current` of that guest in this job up to the request to start it, in order."""
        until = next(
            (i for i in range(len(self.job) - 1, -1, -1) if self.job[i].kind == "start" and self.job[i].vmid == vmid), len(self.job)
        )
        begin = next((i for i in range(until - 1, -1, -1) if self.job[i].kind == "live" and self.job[i].vmid == vmid), None)
        return self.job[until : until + 1] if begin is None else self.job[begin : until + 1]

    def as_seen(self, vmid: int, kinds: Iterable[str], bad: Callable[[Snap, Facts | None], str]) -> str:
        """What was bad in the answers that the agent had to one of those questions right before a start; "" when nothing was.

        It must have been bad when it asked and still be so at its next question: what changed meanwhile is no fault of it. Where it did
        not ask at all, it must have been bad all along.
        """
        look, wanted = self.last_look(vmid), set(kinds)
        if not look:
            return bad(self.snap, self.snap.guests.get(vmid))
        asked = False
        for one, after in pairwise(look):
            if one.kind in wanted and one.vmid in (0, vmid):
                asked = True
                found = bad(one.snap, one.snap.guests.get(vmid))
                if found and bad(after.snap, after.snap.guests.get(vmid)):
                    return found
        if asked:
            return ""
        first, last = look[0].snap, look[-1].snap
        return bad(last, last.guests.get(vmid)) if bad(first, first.guests.get(vmid)) else ""

    @property
    def snaps(self) -> list[Snap]:
        """The world at the questions of this job and now, without repetition."""
        found: list[Snap] = []
        for asked in self.job:
            if not found or found[-1] is not asked.snap:
                found.append(asked.snap)
        now = self.sample()
        return found if found and found[-1] is now else [*found, now]

    def asked_ok(self, kind: str) -> bool:
        """Whether the last question of that kind in this job was answered."""
        return next((asked.answered for asked in reversed(self.job) if asked.kind == kind), False)

    @property
    def trouble(self) -> bool:
        """Whether something lies between agent and API right now."""
        world, wire = self.world, self.sim.wire
        return bool(world.api.is_down or world.api.rules or wire.faults or wire.before)


def facts_work(facts: Facts | None) -> bool:
    """Whether it runs and does its work."""
    return facts is not None and facts.works
