"""The doors of `ports` onto a simulated host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeVar

from guestward.model.decision import Guard
from guestward.model.events import EventKind, Level
from guestward.model.guest import GuestConfig, GuestId, GuestKind, ListedGuest, LiveStatus
from guestward.model.memory import GuestMemory, Hold, NodeMemory
from guestward.model.observation import BackupWitnesses, FlockHolder, HostState, Member, Resources, StorageState
from guestward.model.reading import Reading, Unreadable
from guestward.model.scratch import ScratchId
from guestward.model.task import Task, TaskStatus, Unknown, Upid, task_status
from guestward.ports import Board, GuestLabel, PveAnswerLost, PveError, PveRefused, PveUnreachable
from guestward.sim.api import Trouble
from guestward.sim.guest import SimGuest
from guestward.sim.log import Logged
from guestward.sim.tasks import SimTask
from guestward.sim.world import World

T = TypeVar("T")
ARCHIVE_PAGE = 500
RESET = "500 failed to read from command socket: Connection reset by peer"  # while a container goes down (timelines 2, 6c)
_PREFIX = {GuestKind.LXC: "vz", GuestKind.QEMU: "qm"}
LOST = frozenset({502, 503, 504, *range(595, 600)})  # pveproxy's own word, not PVE's (pve-facts D4)


class AgentGone(BaseException):
    """The agent was killed in the middle of what it did. No duty may catch it."""


@dataclass(slots=True)
class Life:
    """One run of the agent: once it is over, none of its doors opens any more."""

    over: bool = False

    def check(self) -> None:
        """Raises AgentGone when this run is over."""
        if self.over:
            raise AgentGone


@dataclass(slots=True)
class SimClock:
    """Virtual time."""

    world: World
    life: Life = field(default_factory=Life)

    def boottime(self) -> float:
        """Seconds since host boot."""
        return self.world.boottime

    def wall(self) -> float:
        """Seconds since the epoch."""
        return self.world.wall

    def boot_id(self) -> str:
        """The number of this boot."""
        return f"boot-{self.world.boot}"

    def pause(self, seconds: float) -> None:
        """Virtual time passes."""
        self.world.advance(seconds)
        self.life.check()


@dataclass(slots=True)
class Fault:
    """What a route answers instead, for tests that no verb serves. times None: until it is taken away."""

    error: Callable[[], PveError]
    times: int | None = None
    after_effect: bool = False


class Call(NamedTuple):
    """One request of the agent."""

    t: float
    route: str


@dataclass(slots=True)
class Wire:
    """What lies between agent and API, and outlives a run of the agent: calls made, and faults that tests set.

    before: happens once, right before the first call whose route begins so.
    """

    calls: deque[Call] = field(default_factory=lambda: deque(maxlen=2000))
    faults: dict[str, Fault] = field(default_factory=dict)
    before: dict[str, Callable[[], object]] = field(default_factory=dict)


@dataclass(slots=True)
class Fate:
    """What becomes of one answer. left: seconds that the caller waits for it."""

    route: str
    left: float
    seconds: float = 0.0
    garbled: bool = False

    @property
    def lost(self) -> bool:
        """Whether the caller will not have it."""
        return self.garbled or self.seconds > self.left


class _HungError(PveAnswerLost):
    """The request was taken and hangs."""


class _AnswerGone(Exception):
    """The request was carried out, or was lost on its way; its effect is noted."""


@dataclass(slots=True)
class SimPve:
    """The API as the token sees it: what it may not see is silently left out (pve-facts A2, C1). timeout: seconds for one call."""

    world: World
    pools: tuple[str, ...] = ("guestward",)
    timeout: float = 35.0
    life: Life = field(default_factory=Life)
    wire: Wire = field(default_factory=Wire)

    @property
    def node(self) -> str:
        """Our node."""
        return self.world.node

    @property
    def token_id(self) -> str:
        """Our token."""
        return self.world.token_id

    @property
    def calls(self) -> deque[Call]:
        """The newest calls, oldest first."""
        return self.wire.calls

    @property
    def faults(self) -> dict[str, Fault]:
        """Faults by the beginning of a route."""
        return self.wire.faults

    @property
    def before(self) -> dict[str, Callable[[], object]]:
        """What happens right before the first call whose route begins so."""
        return self.wire.before

    # ------------------------------------------------------------------------------------------------ one call

    def _ask(self, method: str, path: str, deadline: float, answer: Callable[[], T]) -> T:
        """One call. The answer is made when the request arrives, and comes when the API is done with it."""
        self._note(f"{method} {path}")
        if not (self.wire.before or self.wire.faults or self.world.api.is_down or self.world.api.rules):
            return answer()
        fate = self._arrive(method, path, deadline)
        found = answer()
        self._depart(fate)
        return found

    def _note(self, route: str) -> None:
        self.wire.calls.append(Call(self.world.now, route))

    def _arrive(self, method: str, path: str, deadline: float, hangs: Callable[[], None] = lambda: None) -> Fate:
        """A request on its way. Raises PveError when something keeps it from being carried out."""
        world, route = self.world, f"{method} {path}"
        for prefix in [prefix for prefix in self.wire.before if route.startswith(prefix)]:
            self.wire.before.pop(prefix)()
            self.life.check()
        self._fail(route, after_effect=False)
        if world.api.is_down:
            raise PveUnreachable(f"{route}: {world.node}:8006 refuses connections; is pveproxy running?")
        left = max(0.0, min(self.timeout, deadline - world.boottime))
        fate = Fate(route, left)
        for rule in world.api.met_by(method, path):
            if rule.trouble is Trouble.HANG:
                hangs()
                self._pass(left)
                raise _HungError(f"{route}: {world.node}:8006 did not answer in time")
            if rule.trouble is Trouble.FAULT:
                raise (PveAnswerLost if rule.status in LOST else PveRefused)(f"{route}: {rule.status}", rule.status)
            fate.seconds += rule.seconds
            fate.garbled |= rule.trouble is Trouble.ANSWER
        return fate

    def _depart(self, fate: Fate) -> None:
        """An answer on its way back. Raises PveAnswerLost when it never comes, or is not PVE's."""
        self._pass(min(fate.seconds, fate.left))
        if fate.seconds > fate.left:
            raise PveAnswerLost(f"{fate.route}: {self.world.node}:8006 did not answer in time")
        if fate.garbled:
            raise PveAnswerLost(f"{fate.route}: the answer is not PVE's JSON")
        self._fail(fate.route, after_effect=True)

    def _pass(self, seconds: float) -> None:
        if seconds:
            self.world.advance(seconds)
            self.life.check()

    def _fail(self, route: str, *, after_effect: bool) -> None:
        for prefix, fault in list(self.wire.faults.items()):
            if route.startswith(prefix) and fault.after_effect == after_effect:
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        del self.wire.faults[prefix]
                raise fault.error()

    def may(self, privilege: str, path: str) -> bool:
        """Whether the token has that privilege there."""
        world = self.world
        return privilege in world.made(("held", path), lambda: world.acl.held(path), "acl")

    # ------------------------------------------------------------------------------------------------ what it answers

    def guests(self, kind: GuestKind, *, deadline: float) -> Mapping[GuestId, ListedGuest]:
        """The live list of one kind."""
        world = self.world
        view = (kind, frozenset(world.hidden)) if world.hidden else kind
        path = f"/nodes/{world.node}/{kind.value}"
        return self._ask("GET", path, deadline, lambda: world.made(view, lambda: self._list(kind), "guests", "acl"))

    def _list(self, kind: GuestKind) -> dict[GuestId, ListedGuest]:
        world = self.world
        if kind is GuestKind.LXC and any(g.passing == "reset" for g in world.guests.values() if world.is_here(g)):
            raise PveRefused(f"GET /nodes/{self.node}/lxc: {RESET}", 500)
        return {g.id: self._listed(g) for g in self._visible() if g.id.kind is kind and g.id.vmid not in world.hidden}

    def _visible(self) -> Iterable[SimGuest]:
        world = self.world
        return [g for g in world.guests.values() if world.is_here(g) and self.may("VM.Audit", f"/vms/{g.id.vmid}")]

    def _listed(self, guest: SimGuest) -> ListedGuest:
        if guest.listed is None:
            running = guest.running or guest.passing == "starting"
            pid = guest.pid if running and not (guest.no_pid or guest.passing) else None
            up_since = self.world.boot_offset + guest.since if guest.running else None
            guest.listed = ListedGuest(guest.id, guest.name, running, pid, up_since, guest.lock, guest.template)
        return guest.listed

    def members(self, pool: str, *, deadline: float) -> tuple[Member, ...]:
        """The pool, on whatever node; what it says of a status is up to 10 s old. Asked so it tells without any privilege (recorded)."""
        world = self.world

        def answer() -> tuple[Member, ...]:
            shown = world.made("shown", lambda: max((g.shown[0] for g in world.guests.values()), default=-1.0), "guests")
            if world.now < shown:
                return self._members(pool)
            found: tuple[Member, ...] = world.made(("members", pool), lambda: self._members(pool), "guests", "acl")
            return found

        return self._ask("GET", f"/pools?poolid={pool}", deadline, answer)

    def _members(self, pool: str) -> tuple[Member, ...]:
        world = self.world
        return tuple(Member(g.id, g.node, pool, world.shown_state(g), g.name) for g in world.guests.values() if g.pool == pool)

    def active_tasks(self, *, deadline: float) -> tuple[Task, ...]:
        """Running tasks; only our own without Sys.Audit."""
        path = f"/nodes/{self.node}/tasks?source=active"
        return self._ask("GET", path, deadline, lambda: self.world.made("active", lambda: self._rows(self.world.tasks), "tasks", "acl"))

    def past_tasks(self, *, deadline: float) -> tuple[Task, ...]:
        """Ended tasks, newest first; only our own without Sys.Audit."""
        path = f"/nodes/{self.node}/tasks?source=archive"
        return self._ask("GET", path, deadline, lambda: self._rows(self.world.archive, ARCHIVE_PAGE))

    def past_tasks_of(self, vmid: int, *, deadline: float) -> tuple[Task, ...]:
        """Those of one VMID."""
        path = f"/nodes/{self.node}/tasks?source=archive&vmid={vmid}"
        mine = (task for task in self.world.archive if task.upid.id == str(vmid))
        return self._ask("GET", path, deadline, lambda: self._rows(mine, ARCHIVE_PAGE))

    def past_backups(self, *, deadline: float) -> tuple[Task, ...]:
        """The vzdumps among them."""
        path = f"/nodes/{self.node}/tasks?source=archive&typefilter=vzdump"
        backups = (task for task in self.world.archive if task.upid.type == "vzdump")
        return self._ask("GET", path, deadline, lambda: self._rows(backups, ARCHIVE_PAGE))

    def _rows(self, tasks: Iterable[SimTask], limit: int | None = None) -> tuple[Task, ...]:
        sees_all = self.may("Sys.Audit", f"/nodes/{self.node}")
        shown = (task.as_row() for task in tasks if sees_all or task.upid.user == self.token_id)
        return tuple(islice(shown, limit))

    def privileges(self, *, deadline: float) -> Mapping[str, Mapping[str, bool]]:
        """What the token has, on every path that is listed."""
        world = self.world
        return self._ask("GET", "/access/permissions", deadline, lambda: world.made("privileges", world.acl.listed, "acl"))

    def resources(self, *, deadline: float) -> Resources:
        """HA and storages of our node."""
        return self._ask("GET", "/cluster/resources", deadline, self._resources)

    def _resources(self) -> Resources:
        visible = list(self._visible())
        seen = [(name, online) for name, online in self.world.storages.items() if self.may("Datastore.Audit", f"/storage/{name}")]
        states = {name: StorageState.AVAILABLE if online else StorageState.OFFLINE for name, online in seen}
        return Resources(
            listed=frozenset(g.id for g in visible),
            ha={g.id: g.ha[0] for g in visible if g.ha is not None},
            storages=states,
            maintenance=self.world.maintenance,
        )

    def _find(self, guest: GuestId, privilege: str) -> SimGuest:
        """Permission is checked before existence (pve-facts, request life-cycle)."""
        self._check(guest, privilege)
        found = self._here(guest)
        if found is None:
            raise PveRefused(f"500 {self._no_file(guest)}", 500)
        return found

    def _check(self, guest: GuestId, privilege: str) -> None:
        if not self.may(privilege, f"/vms/{guest.vmid}"):
            raise PveRefused(f"403 Permission check failed (/vms/{guest.vmid}, {privilege})", 403)

    def _here(self, guest: GuestId) -> SimGuest | None:
        found = self.world.guests.get(guest.vmid)
        return found if found is not None and found.id == guest and self.world.is_here(found) else None

    def _no_file(self, guest: GuestId) -> str:
        return f"Configuration file 'nodes/{self.node}/{_folder(guest)}/{guest.vmid}.conf' does not exist"

    def config(self, guest: GuestId, *, deadline: float) -> GuestConfig:
        """The configuration of one guest."""
        return self._ask("GET", f"{self._path(guest)}/config", deadline, lambda: self._find(guest, "VM.Audit").config())

    def live(self, guest: GuestId, *, deadline: float) -> LiveStatus:
        """status/current of one guest."""
        return self._ask("GET", f"{self._path(guest)}/status/current", deadline, lambda: self._live(guest))

    def _live(self, guest: GuestId) -> LiveStatus:
        found = self._find(guest, "VM.Audit")
        if found.passing == "reset":
            raise PveRefused(RESET, 500)
        listed = self._listed(found)
        qmp = None if guest.kind is GuestKind.LXC else found.qmp if found.running else "stopped"
        return LiveStatus(listed.running, listed.pid, int(listed.uptime(self.world.boottime)), listed.lock, qmp, found.managed)

    def snapshots(self, guest: GuestId, *, deadline: float) -> Mapping[str, str]:
        """The snapshots of one guest, with their states."""
        return self._ask("GET", f"{self._path(guest)}/snapshot", deadline, lambda: dict(self._find(guest, "VM.Audit").snapshots))

    def task(self, upid: Upid, *, deadline: float) -> TaskStatus:
        """The status of one task."""
        return self._ask("GET", f"/nodes/{self.node}/tasks/{upid}/status", deadline, lambda: self._task(upid))

    def _task(self, upid: Upid) -> TaskStatus:
        task = self._known(upid)
        if task is None:
            return Unknown("rotated away or unknown")
        self._check_owner(upid)
        return task_status("running" if task.said is None else "stopped", task.said)

    def _known(self, upid: Upid) -> SimTask | None:
        return next((task for task in (*self.world.tasks, *self.world.archive) if task.upid == upid), None)

    def _check_owner(self, upid: Upid) -> None:
        if upid.user != self.token_id and not self.may("Sys.Audit", f"/nodes/{self.node}"):
            raise PveRefused(f"403 Permission check failed (/nodes/{self.node}, Sys.Audit)", 403)

    def task_log(self, upid: Upid, *, deadline: float) -> tuple[str, ...]:
        """The log of one task; of somebody else's only with Sys.Audit, which is asked about before the file is (pve-facts D6)."""
        path = f"/nodes/{self.node}/tasks/{upid}/log"
        return self._ask("GET", path, deadline, lambda: self._task_log(upid, f"GET {path}"))

    def _task_log(self, upid: Upid, route: str) -> tuple[str, ...]:
        self._check_owner(upid)
        task = self._known(upid)
        if task is None:
            raise PveAnswerLost(f"{route}: the log is gone: unable to open file - No such file or directory")
        return task.lines()

    def start(self, guest: GuestId, *, deadline: float) -> Upid:
        """Start one guest."""
        return self._change("start", "POST", f"{self._path(guest)}/status/start", guest, deadline, self._start)

    def stop_scratch(self, kind: GuestKind, scratch: ScratchId, *, deadline: float) -> Upid:
        """Stop a guest of the band."""
        guest = GuestId(kind, scratch.vmid)
        return self._change("stop", "POST", f"{self._path(guest)}/status/stop", guest, deadline, self._stop)

    def destroy_scratch(self, kind: GuestKind, scratch: ScratchId, *, deadline: float) -> Upid:
        """Destroy a guest of the band."""
        guest = GuestId(kind, scratch.vmid)
        return self._change("destroy", "DELETE", self._path(guest), guest, deadline, self._destroy)

    def _change(self, verb: str, method: str, path: str, guest: GuestId, deadline: float, act: Callable[[GuestId, bool], Upid]) -> Upid:
        """A request that changes something. act: carries it out, and knows whether the answer will be lost."""
        self._note(f"{method} {path}")
        try:
            fate = self._arrive(method, path, deadline, lambda: self._effect(verb, guest, "lost"))
            upid = act(guest, fate.lost)
        except (PveUnreachable, _HungError):
            raise  # it was never sent, or is noted
        except _AnswerGone:
            raise PveAnswerLost(f"{method} {path}: the connection broke off before the answer") from None
        except PveError as error:
            self._effect(verb, guest, "lost" if isinstance(error, PveAnswerLost) else "refused")
            raise
        self._depart(fate)
        return upid

    def _stop(self, guest: GuestId, lost: bool) -> Upid:
        """A hard stop (API2/LXC/Status.pm, API2/Qemu.pm): what does not run is refused; a lock, the task says."""
        self._check(guest, "VM.PowerMgmt")
        found = self._here(guest)
        if found is None:
            raise PveRefused(f"500 {self._no_file(guest)}", 500)
        if not found.running:
            raise PveRefused(f"500 {found.noun} {guest.vmid} not running", 500)
        task, failed = self.world.asked_to_stop(found, self.token_id)
        self._effect("stop", guest, "lost" if lost else "failed" if failed else "ok")
        return task.upid

    def _destroy(self, guest: GuestId, lost: bool) -> Upid:
        """In PVE's order (pve-facts E5). With `purge`, neither HA nor a replication job is in the way."""
        self._check(guest, "VM.Allocate")
        found = self._here(guest)
        if found is None:
            raise PveRefused(f"500 {self._no_file(guest)}", 500)
        container = guest.kind is GuestKind.LXC
        if found.protection:
            raise PveRefused(f"500 can't remove {found.noun} {guest.vmid} - protection mode enabled", 500)
        if container and found.lock is not None:
            raise PveRefused(f"500 CT is locked ({found.lock})", 500)
        if found.running:
            what = (
                f"unable to destroy CT {guest.vmid} - container is running" if container else f"VM {guest.vmid} is running - destroy failed"
            )
            raise PveRefused(f"500 {what}", 500)
        if not self.world.quorate:
            raise PveRefused("500 cluster not ready - no quorum?", 500)
        task, failed = self.world.asked_to_destroy(found, self.token_id)
        self._effect("destroy", guest, "lost" if lost else "failed" if failed else "ok")
        return task.upid

    def volume_storages(self, *, deadline: float) -> Mapping[str, bool]:
        """Storages that the token may see."""
        return self._ask("GET", f"/nodes/{self.node}/storage", deadline, self._storages)

    def _storages(self) -> dict[str, bool]:
        return {name: online for name, online in self.world.storages.items() if self.may("Datastore.Audit", f"/storage/{name}")}

    def volumes(self, storage: str, scratch: ScratchId, *, deadline: float) -> tuple[str, ...]:
        """Volumes of a VMID; those that the token may not see are left out in silence (pve-facts F3)."""
        path = f"/nodes/{self.node}/storage/{storage}/content?vmid={scratch}"
        return self._ask("GET", path, deadline, lambda: self._volumes(storage, scratch.vmid))

    def _volumes(self, storage: str, vmid: int) -> tuple[str, ...]:
        if not self.may("Datastore.Audit", f"/storage/{storage}"):
            raise PveRefused(f"403 Permission check failed (/storage/{storage}, Datastore.Audit)", 403)
        if not self.world.storages.get(storage, False):
            raise PveRefused(f"500 storage '{storage}' is not online", 500)
        visible = self.may("VM.Config.Disk", f"/vms/{vmid}")
        return tuple(volume for volume in self.world.volumes_of(vmid) if visible and volume.startswith(f"{storage}:"))

    def _start(self, guest: GuestId, lost: bool) -> Upid:
        """In PVE's order: permission, a container that runs, quorum; all else, even that it does not exist, its task says (D1, D2)."""
        self._check(guest, "VM.PowerMgmt")
        found = self._here(guest)
        if found is not None and found.running and guest.kind is GuestKind.LXC:
            raise PveRefused(f"500 CT {guest.vmid} already running", 500)
        if not self.world.quorate:
            raise PveRefused("500 cluster not ready - no quorum?", 500)
        if found is None:
            self._effect("start", guest, "lost" if lost else "failed")
            return self.world.task(f"{_PREFIX[guest.kind]}start", str(guest.vmid), self.token_id, said=self._no_file(guest)).upid
        task, result = self.world.asked_to_start(found, self.token_id)
        self._effect("start", guest, "lost" if lost else result)
        if task is None or result == "lost":
            raise _AnswerGone
        return task.upid

    def _effect(self, verb: str, guest: GuestId, result: str) -> None:
        self.world.effect("api", verb, guest.vmid, result)
        self.life.check()

    def _path(self, guest: GuestId) -> str:
        return f"/nodes/{self.node}/{guest.kind.value}/{guest.vmid}"


def _folder(guest: GuestId) -> str:
    return "lxc" if guest.kind is GuestKind.LXC else "qemu-server"


@dataclass(slots=True)
class SimWitness:
    """The host's witnesses. `world.unreadable` names those that cannot be read, with the reason."""

    world: World

    def host(self) -> HostState:
        """Boot, quorum, hold file, maintenance, names."""
        world = self.world
        return HostState(
            pmxcfs=world.pmxcfs,
            quorate=self._read("quorum", world.quorate),
            pve_guests=self._read("pve-guests", world.pve_guests),
            system=self._read("system", world.system),
            hold_file=self._read("hold_file", world.hold_file),
            maintenance=self._read("maintenance", world.maintenance),
            names=self._read("names", world.names()),
            local_node=(world.local_name or world.node) if world.pmxcfs else None,
        )

    def backups(self) -> BackupWitnesses:
        """flock, pid file, archive processes."""
        job = self.world.vzdump.running
        upid = job.task.upid if job is not None else None
        holder = FlockHolder(upid.pid) if upid is not None else None
        return BackupWitnesses(
            flock=self._read("flock", holder),
            live_upid=self._read("pidfile", upid),
            archives=self._read("archives", frozenset(self.world.vzdump.archives)),
        )

    def written(self, guests: Iterable[GuestId]) -> dict[GuestId, float]:
        """When the guests' files were last written."""
        return {id: self.world.guests[id.vmid].written for id in guests if id.vmid in self.world.guests}

    def frozen(self, vmids: Iterable[int]) -> Reading[frozenset[int]]:
        """Frozen containers."""
        frozen = self.world.made("frozen", lambda: frozenset(g.id.vmid for g in self.world.guests.values() if g.frozen), "guests")
        return self._read("frozen", frozen.intersection(vmids) if frozen else frozen)

    def _read(self, name: str, value: T) -> Reading[T]:
        reason = self.world.unreadable.get(name)
        return value if reason is None else Unreadable(reason)


@dataclass(slots=True)
class SimStore:
    """Memory that survives a restart of the agent, and is lost with `lose`."""

    node_memory: NodeMemory = field(default_factory=NodeMemory)
    guest_memories: dict[GuestId, GuestMemory] = field(default_factory=dict)
    hold_list: list[Hold] = field(default_factory=list)
    rearms: list[int] = field(default_factory=list)
    empty: bool = True
    holds_lost: str = ""
    board: Board | None = None
    saves: int = 0

    def lose(self) -> None:
        """The state is gone, what operators wrote included."""
        self.node_memory, self.guest_memories, self.hold_list, self.rearms = NodeMemory(), {}, [], []
        self.empty = True

    def node(self) -> NodeMemory:
        """What is remembered of the node."""
        return self.node_memory

    def guests(self) -> dict[GuestId, GuestMemory]:
        """What is remembered of the guests."""
        return dict(self.guest_memories)

    def save(self, node: NodeMemory, changed: Iterable[GuestMemory], forgotten: Iterable[GuestId]) -> None:
        """Keep it."""
        self.node_memory, self.saves = node, self.saves + 1
        for memory in changed:
            self.guest_memories[memory.id] = memory
        for id in forgotten:
            self.guest_memories.pop(id, None)

    def holds(self) -> Reading[tuple[Hold, ...]]:
        """All holds."""
        return Unreadable(self.holds_lost) if self.holds_lost else tuple(self.hold_list)

    def drop_holds(self, holds: Iterable[Hold]) -> None:
        """Delete some."""
        gone = tuple(holds)
        self.hold_list = [hold for hold in self.hold_list if hold not in gone]

    def take_rearms(self) -> tuple[int, ...]:
        """Requests since the last call."""
        taken, self.rearms = tuple(self.rearms), []
        return taken

    def begins_empty(self) -> bool:
        """Whether nothing was remembered when the agent began."""
        return self.empty

    def publish(self, board: Board) -> None:
        """Keep the last look."""
        self.board = board


@dataclass(slots=True)
class SimJournal:
    """Takes every event into the stream; one that says more or less than it declares is a defect."""

    world: World
    on_event: Callable[[Logged], None] = lambda entry: None
    log: list[Logged] = field(default_factory=list)

    def emit(
        self, event: EventKind, level: Level | None = None, *, message: str, guest: GuestLabel | None = None, **fields: object
    ) -> None:
        """Keep one."""
        unknown = fields.keys() - set(event.fields)
        if unknown or (level is not None and level not in event.levels) or (event.guest != (guest is not None)):
            raise AssertionError(f"{event.name} was told with {sorted(fields)} at {level}, guest {guest}")
        id, guard, name = (guest.id, guest.guard, guest.name) if guest is not None else (None, "", "")
        if guard and guard not in set(Guard):
            raise AssertionError(f"unknown guard {guard}")
        entry = Logged(self.world.now, event.name, level or event.levels[0], id, guard, fields, message, name, self.world.wall)
        self.log.append(entry)
        self.on_event(entry)
