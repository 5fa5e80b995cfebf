"""The doors of `ports` onto a simulated host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from guestward.model.decision import Guard
from guestward.model.events import EventKind, Level
from guestward.model.guest import GuestConfig, GuestId, GuestKind, ListedGuest, LiveStatus
from guestward.model.memory import GuestMemory, Hold, NodeMemory
from guestward.model.observation import (
    BackupWitnesses,
    FlockHolder,
    HostState,
    Member,
    NodeNames,
    Resources,
    StorageState,
)
from guestward.model.reading import Reading, Unreadable
from guestward.model.task import Task, TaskStatus, Unknown, Upid, task_status
from guestward.policy import rights
from guestward.ports import Board, GuestLabel, PveAnswerLost, PveError, PveRefused
from guestward.sim.world import SimGuest, SimTask, World

T = TypeVar("T")


@dataclass(slots=True)
class SimClock:
    """Virtual time."""

    world: World

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


@dataclass(slots=True)
class Fault:
    """What a route answers instead. times None: until it is taken away."""

    error: Callable[[], PveError]
    times: int | None = None
    after_effect: bool = False


@dataclass(slots=True)
class SimPve:
    """The API. A token sees only what its grants show it, silently (pve-facts A2, C1)."""

    world: World
    pools: tuple[str, ...] = ("guestward",)
    calls: list[str] = field(default_factory=list)
    faults: dict[str, Fault] = field(default_factory=dict)
    before: dict[str, Callable[[], object]] = field(default_factory=dict)

    @property
    def node(self) -> str:
        """Our node."""
        return self.world.node

    @property
    def token_id(self) -> str:
        """Our token."""
        return self.world.token_id

    def _call(self, route: str, *, after_effect: bool = False) -> None:
        """Note a call, let happen once what was to happen right before it, and fail it if a fault is set for it."""
        if not after_effect:
            self.calls.append(route)
            for prefix in [prefix for prefix in self.before if route.startswith(prefix)]:
                self.before.pop(prefix)()
        for prefix, fault in list(self.faults.items()):
            if route.startswith(prefix) and fault.after_effect == after_effect:
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        del self.faults[prefix]
                raise fault.error()

    def _may(self, privilege: str, path: str) -> bool:
        return (privilege, path) not in self.world.revoked

    def _visible(self) -> Iterable[SimGuest]:
        for guest in self.world.guests.values():
            pool = f"/pool/{guest.pool}"
            in_band = 990000 <= guest.id.vmid <= 990009
            if self.world.is_here(guest) and (in_band or (guest.pool in self.pools and self._may("VM.Audit", pool))):
                yield guest

    def guests(self, kind: GuestKind, *, deadline: float) -> Mapping[GuestId, ListedGuest]:
        """The live list of one kind."""
        self._call(f"GET /nodes/{self.node}/{kind}")
        return {g.id: self._listed(g) for g in self._visible() if g.id.kind is kind and g.id.vmid not in self.world.hidden}

    def _listed(self, guest: SimGuest) -> ListedGuest:
        pid = 1000 + guest.id.vmid if guest.running and not guest.no_pid else None
        up_since = self.world.boot_offset + guest.since if guest.running else None
        return ListedGuest(guest.id, guest.name, guest.running, pid, up_since, guest.lock, guest.template)

    def members(self, pool: str, *, deadline: float) -> tuple[Member, ...]:
        """The pool, on whatever node."""
        self._call(f"GET /pools?poolid={pool}")
        return tuple(
            Member(g.id, g.node, pool, (g.qmp if g.running else "stopped"), g.name) for g in self.world.guests.values() if g.pool == pool
        )

    def active_tasks(self, *, deadline: float) -> tuple[Task, ...]:
        """Running tasks; only our own without Sys.Audit."""
        self._call(f"GET /nodes/{self.node}/tasks?source=active")
        return tuple(_row(t) for t in self.world.tasks if self._sees(t))

    def _sees(self, task: SimTask) -> bool:
        return self._may("Sys.Audit", f"/nodes/{self.node}") or task.upid.user == self.token_id

    def past_tasks(self, *, deadline: float) -> tuple[Task, ...]:
        """Ended tasks; only our own without Sys.Audit."""
        self._call(f"GET /nodes/{self.node}/tasks?source=archive")
        return tuple(_row(t) for t in self.world.archive if self._sees(t))

    def privileges(self, *, deadline: float) -> Mapping[str, Mapping[str, bool]]:
        """The complete grants of the install table less what was revoked."""
        self._call("GET /access/permissions")
        held: dict[str, dict[str, bool]] = {}
        for grant in rights.needed(self.pools, self.node):
            held.setdefault(grant.path, {})
            if self._may(grant.privilege, grant.path):
                held[grant.path][grant.privilege] = True
        return held

    def resources(self, *, deadline: float) -> Resources:
        """HA and storages of our node."""
        self._call("GET /cluster/resources")
        visible = list(self._visible())
        states = {name: StorageState.AVAILABLE if online else StorageState.OFFLINE for name, online in self.world.storages.items()}
        return Resources(
            listed=frozenset(g.id for g in visible),
            ha={g.id: g.ha[0] for g in visible if g.ha is not None},
            storages=states,
            maintenance=self.world.maintenance,
        )

    def _find(self, guest: GuestId, route: str, method: str = "GET") -> SimGuest:
        self._call(f"{method} /nodes/{self.node}/{guest.kind}/{guest.vmid}/{route}")
        found = self.world.guests.get(guest.vmid)
        if found is None or found.id != guest or not self.world.is_here(found):
            raise PveRefused(f"Configuration file 'nodes/{self.node}/{guest}.conf' does not exist", 500)
        return found

    def config(self, guest: GuestId, *, deadline: float) -> GuestConfig:
        """The configuration of one guest."""
        found = self._find(guest, "config")
        return GuestConfig(
            identity=f"id-{found.born}",
            fingerprint=f"{found.born}/{found.onboot}/{found.startup}/{sorted(found.storages)}/{found.note}",
            onboot=found.onboot,
            template=found.template,
            lock=found.lock,
            startup=found.startup,
            storages=found.storages,
        )

    def live(self, guest: GuestId, *, deadline: float) -> LiveStatus:
        """status/current of one guest."""
        found = self._find(guest, "status/current")
        listed = self._listed(found)
        qmp = found.qmp if found.running and guest.kind is GuestKind.QEMU else None
        uptime = int(self.world.now - found.since) if found.running else 0
        managed = found.ha is not None and found.ha[0] != "ignored"
        return LiveStatus(listed.running, listed.pid, uptime, listed.lock, qmp, managed)

    def task(self, upid: Upid, *, deadline: float) -> TaskStatus:
        """The status of one task."""
        self._call(f"GET /nodes/{self.node}/tasks/{upid}/status")
        for task in (*self.world.tasks, *self.world.archive):
            if task.upid == upid:
                return task_status("running" if task.said is None else "stopped", task.said)
        return Unknown("no such task")

    def start(self, guest: GuestId, *, deadline: float) -> Upid:
        """Start one guest."""
        found = self._find(guest, "status/start", "POST")
        if not self.world.quorate:
            self.world.effect("start", guest.vmid, "refused")
            raise PveRefused("cluster not ready - no quorum?", 500)
        if found.running and guest.kind is GuestKind.LXC:
            self.world.effect("start", guest.vmid, "refused")
            raise PveRefused(f"CT {guest.vmid} already running", 500)
        script = found.start[min(found.started, len(found.start) - 1)]
        if script == "lost before":
            found.started += 1
            self.world.effect("start", guest.vmid, "lost")
            raise PveAnswerLost("connection reset")
        task = self.world.run_start(found, self.token_id)
        self.world.effect("start", guest.vmid, "lost" if script == "lost after" else "ok")
        if script == "lost after":
            raise PveAnswerLost("connection reset")
        self._call(f"POST /nodes/{self.node}/{guest.kind}/{guest.vmid}/status/start", after_effect=True)
        return task.upid


def _row(task: SimTask) -> Task:
    return Task(task.upid, task_status("running" if task.said is None else "stopped", task.said), task.ended_wall)


@dataclass(slots=True)
class SimWitness:
    """The host's witnesses. `world.unreadable` names those that cannot be read, with the reason."""

    world: World

    def host(self) -> HostState:
        """Boot, quorum, hold file, maintenance, names."""
        world = self.world
        here = {
            g.id: f"{g.born}/{g.onboot}/{g.startup}/{g.storages}/{g.note}/{g.written}" for g in world.guests.values() if world.is_here(g)
        }
        away = {g.id: g.node for g in world.guests.values() if not world.is_here(g)}
        return HostState(
            pmxcfs=world.pmxcfs,
            quorate=self._read("quorum", world.quorate),
            pve_guests=self._read("pve-guests", world.pve_guests),
            system=self._read("system", world.system),
            hold_file=self._read("hold_file", world.hold_file),
            maintenance=self._read("maintenance", world.maintenance),
            names=self._read("names", NodeNames(here, away)),
            local_node=(world.local_name or world.node) if world.pmxcfs else None,
        )

    def backups(self) -> BackupWitnesses:
        """flock, pid file, archive processes."""
        newest = self.world.backups[0][0].upid if self.world.backups else None
        holder = FlockHolder(newest.pid) if newest is not None else None
        return BackupWitnesses(
            flock=self._read("flock", holder),
            live_upid=self._read("pidfile", newest),
            archives=self._read("archives", frozenset(self.world.archives)),
        )

    def frozen(self, vmids: Iterable[int]) -> Reading[frozenset[int]]:
        """Frozen containers."""
        return self._read("frozen", frozenset(v for v in vmids if self.world.guests[v].frozen))

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


@dataclass(frozen=True, slots=True)
class Logged:
    """One event in virtual time."""

    t: float
    event: str
    level: Level
    guest: GuestId | None
    guard: str
    fields: Mapping[str, object]
    message: str


@dataclass(slots=True)
class SimJournal:
    """Keeps every event."""

    world: World
    log: list[Logged] = field(default_factory=list)

    def emit(
        self, event: EventKind, level: Level | None = None, *, message: str, guest: GuestLabel | None = None, **fields: object
    ) -> None:
        """Keep one; an event that says more or less than it declares is a defect."""
        unknown = fields.keys() - set(event.fields)
        if unknown or (level is not None and level not in event.levels) or (event.guest != (guest is not None)):
            raise AssertionError(f"{event.name} was told with {sorted(fields)} at {level}, guest {guest}")
        guard = guest.guard if guest is not None else ""
        if guard and guard not in set(Guard):
            raise AssertionError(f"unknown guard {guard}")
        id = guest.id if guest is not None else None
        self.log.append(Logged(self.world.now, event.name, level or event.levels[0], id, guard, fields, message))
