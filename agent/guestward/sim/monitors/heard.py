"""The agent's doors with an ear in them: what it asked, when, and whether it was answered. What they give is what lies behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from guestward.model.guest import GuestConfig, GuestId, GuestKind, ListedGuest, LiveStatus
from guestward.model.helper import ANSWERED_WITHIN, Answer, Request
from guestward.model.memory import GuestMemory, Hold, NodeMemory
from guestward.model.observation import BackupWitnesses, HostState, Member, Resources
from guestward.model.reading import Reading
from guestward.model.scratch import ScratchId
from guestward.model.task import Task, TaskStatus, Upid
from guestward.ports import Board, Helper, HelperCall, HelperLost, HelperUnreachable, HostWitness, Pve, PveError, Store

if TYPE_CHECKING:
    from guestward.sim.monitors.past import Past
    from guestward.sim.monitors.requests import Request as Step

T = TypeVar("T")
CANARY = "5ec4e7f0-0dd5-4bad-beef-canary000000"  # in place of the token's secret, which the simulated API does not ask for


@dataclass(slots=True)
class HeardPve:
    """`ports.Pve`. secret: as a real client would hold it, so that whoever writes his doors into a log is found out (I17)."""

    inner: Pve
    past: Past
    secret: str = CANARY

    node: str = field(init=False)
    token_id: str = field(init=False)

    def __post_init__(self) -> None:
        """Neither changes while the agent lives."""
        self.node, self.token_id = self.inner.node, self.inner.token_id

    def _ask(self, kind: str, vmid: int, answer: Callable[[], T]) -> T:
        asked = self.past.asked(kind, vmid)
        try:
            found = answer()
        except PveError as error:
            self.past.not_answered(asked, f"{type(error).__name__}: {error}")
            raise
        asked.answered = True
        self.past.answered(asked)
        return found

    def guests(self, kind: GuestKind, *, deadline: float) -> Mapping[GuestId, ListedGuest]:
        """The live list of one kind."""
        return self._ask("list", 0, lambda: self.inner.guests(kind, deadline=deadline))

    def members(self, pool: str, *, deadline: float) -> tuple[Member, ...]:
        """The guests of a pool."""
        return self._ask("members", 0, lambda: self.inner.members(pool, deadline=deadline))

    def active_tasks(self, *, deadline: float) -> tuple[Task, ...]:
        """Running tasks."""
        return self._ask("active", 0, lambda: self.inner.active_tasks(deadline=deadline))

    def past_tasks(self, *, deadline: float) -> tuple[Task, ...]:
        """Ended tasks."""
        return self._ask("archive", 0, lambda: self.inner.past_tasks(deadline=deadline))

    def past_tasks_of(self, vmid: int, *, deadline: float) -> tuple[Task, ...]:
        """Ended tasks of one VMID."""
        return self._ask("archive", vmid, lambda: self.inner.past_tasks_of(vmid, deadline=deadline))

    def past_backups(self, *, deadline: float) -> tuple[Task, ...]:
        """Ended vzdumps."""
        return self._ask("archive", 0, lambda: self.inner.past_backups(deadline=deadline))

    def privileges(self, *, deadline: float) -> Mapping[str, Mapping[str, bool]]:
        """The token's privileges."""
        return self._ask("privileges", 0, lambda: self.inner.privileges(deadline=deadline))

    def resources(self, *, deadline: float) -> Resources:
        """HA and storages."""
        return self._ask("resources", 0, lambda: self.inner.resources(deadline=deadline))

    def config(self, guest: GuestId, *, deadline: float) -> GuestConfig:
        """One configuration."""
        return self._ask("config", guest.vmid, lambda: self.inner.config(guest, deadline=deadline))

    def live(self, guest: GuestId, *, deadline: float) -> LiveStatus:
        """One status."""
        return self._ask("live", guest.vmid, lambda: self.inner.live(guest, deadline=deadline))

    def snapshots(self, guest: GuestId, *, deadline: float) -> Mapping[str, str]:
        """The snapshots of one guest."""
        return self._ask("snapshots", guest.vmid, lambda: self.inner.snapshots(guest, deadline=deadline))

    def task(self, upid: Upid, *, deadline: float) -> TaskStatus:
        """One task."""
        return self._ask("task", int(upid.id or 0), lambda: self.inner.task(upid, deadline=deadline))

    def task_log(self, upid: Upid, *, deadline: float) -> tuple[str, ...]:
        """The log of one task."""
        return self._ask("log", int(upid.id or 0), lambda: self.inner.task_log(upid, deadline=deadline))

    def start(self, guest: GuestId, *, deadline: float) -> Upid:
        """Start one guest."""
        return self._ask("start", guest.vmid, lambda: self.inner.start(guest, deadline=deadline))

    def stop_scratch(self, kind: GuestKind, scratch: ScratchId, *, deadline: float) -> Upid:
        """Stop a guest of the band."""
        return self._ask("stop", scratch.vmid, lambda: self.inner.stop_scratch(kind, scratch, deadline=deadline))

    def destroy_scratch(self, kind: GuestKind, scratch: ScratchId, *, deadline: float) -> Upid:
        """Destroy a guest of the band."""
        return self._ask("destroy", scratch.vmid, lambda: self.inner.destroy_scratch(kind, scratch, deadline=deadline))

    def volume_storages(self, *, deadline: float) -> Mapping[str, bool]:
        """Storages that may hold volumes."""
        return self._ask("storages", 0, lambda: self.inner.volume_storages(deadline=deadline))

    def volumes(self, storage: str, scratch: ScratchId, *, deadline: float) -> tuple[str, ...]:
        """Volumes with a VMID of the band."""
        return self._ask("volumes", scratch.vmid, lambda: self.inner.volumes(storage, scratch, deadline=deadline))


@dataclass(slots=True)
class HeardHost:
    """`ports.HostWitness`."""

    inner: HostWitness
    past: Past

    def host(self) -> HostState:
        """Boot, quorum, hold file, maintenance, names."""
        self.past.asked("host", 0)
        return self.inner.host()

    def backups(self) -> BackupWitnesses:
        """flock, pid file, archive processes."""
        self.past.asked("backups", 0)
        return self.inner.backups()

    def written(self, guests: Iterable[GuestId]) -> Mapping[GuestId, float]:
        """When the guests' files were last written."""
        return self.inner.written(guests)

    def frozen(self, vmids: Iterable[int]) -> Reading[frozenset[int]]:
        """Frozen containers."""
        return self.inner.frozen(vmids)


@dataclass(slots=True)
class HeardStore:
    """`ports.Store`."""

    inner: Store
    past: Past

    def node(self) -> NodeMemory:
        """What is remembered of the node."""
        return self.inner.node()

    def guests(self) -> dict[GuestId, GuestMemory]:
        """What is remembered of the guests."""
        return self.inner.guests()

    def save(self, node: NodeMemory, changed: Iterable[GuestMemory], forgotten: Iterable[GuestId]) -> None:
        """Keep it."""
        self.inner.save(node, changed, forgotten)

    def holds(self) -> Reading[tuple[Hold, ...]]:
        """All holds."""
        self.past.asked("holds", 0)
        return self.inner.holds()

    def drop_holds(self, holds: Iterable[Hold]) -> None:
        """Delete some."""
        self.inner.drop_holds(holds)

    def take_rearms(self) -> tuple[int, ...]:
        """Requests since the last call."""
        taken = self.inner.take_rearms()
        if taken:
            self.past.rearmed(taken)
        return taken

    def begins_empty(self) -> bool:
        """Whether nothing was remembered when the agent began."""
        empty = self.inner.begins_empty()
        if empty:
            self.past.begins_empty()
        return empty

    def publish(self, board: Board) -> None:
        """Keep the last look."""
        self.inner.publish(board)


@dataclass(slots=True)
class HeardCall:
    """`ports.HelperCall`."""

    inner: HelperCall
    past: Past
    step: Step

    def answer(self) -> Answer | None:
        """What it said, if it has said anything."""
        try:
            found = self.inner.answer()
        except HelperLost:
            self.step.lost = True
            self.past.helper_ended(self.step.vmid)
            raise
        if found is not None:
            self.step.answer = found
            self.past.helper_ended(self.step.vmid)
        return found


@dataclass(slots=True)
class HeardHelper:
    """`ports.Helper`."""

    inner: Helper
    past: Past

    def ask(self, request: Request) -> HeardCall:
        """One request."""
        step = self.past.step_begins(request.verb.value, request.vmid or 0)
        try:
            call = self.inner.ask(request)
        except BaseException as error:
            self.past.requests.reachable = not isinstance(error, HelperUnreachable)
            self.past.requests.not_sent(step)
            raise
        self.past.requests.under_way = None
        self.past.requests.reachable = True
        self.past.helper_begins(step.vmid, ANSWERED_WITHIN[request.verb])
        return HeardCall(call, self.past, step)
