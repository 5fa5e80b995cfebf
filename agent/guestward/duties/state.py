"""What the power watchdog knows between two looks, and the small things that looking and starting both do with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from guestward.duties.env import Env
from guestward.duties.observe import Sight
from guestward.duties.quiet import Quiet
from guestward.duties.telling import Teller
from guestward.model.decision import Closure, Decision, Gate, GateReason, Guard
from guestward.model.events import Event
from guestward.model.guest import GuestId
from guestward.model.helper import Request
from guestward.model.locks import LockDecision
from guestward.model.memory import GuestMemory, Hold, NodeMemory
from guestward.model.observation import LostGrant, Observation
from guestward.model.reading import Unreadable
from guestward.model.rules import Rules
from guestward.model.scratch import ScratchDecision
from guestward.policy import causes, gate, recall, rights
from guestward.policy.guards import Case
from guestward.ports import Board, HelperCall, HelperUnreachable, Row

Holds = dict[int | None, tuple[Hold, float]]


@dataclass(slots=True)
class WatchState:
    """One node's watchdog. obs, decisions and gate are those of the last look that was not aborted.

    Memories and decisions change by `remember`, `forget` and `decided` only: those know which guests are quiet.
    """

    env: Env
    teller: Teller = field(init=False)
    sight: Sight = field(default_factory=Sight)
    quiet: Quiet = field(default_factory=Quiet)
    _memories: dict[GuestId, GuestMemory] = field(init=False)
    node: NodeMemory = field(init=False)
    _decisions: dict[GuestId, Decision] = field(default_factory=dict)
    obs: Observation | None = None
    gate: Gate = field(default_factory=Gate)
    aborted: str = ""
    incomplete: str = ""
    last_complete: tuple[float, float] | None = None
    seeded: bool = False
    gaps: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    holds_unknown: str = ""
    board: Board | None = None
    lasting: Holds = field(default_factory=dict)
    rearmed: tuple[int, ...] = ()
    lock_decisions: tuple[LockDecision, ...] = ()
    recovering: frozenset[GuestId] = frozenset()
    lost_in_band: tuple[LostGrant, ...] = ()
    scratch_decisions: tuple[ScratchDecision, ...] = ()
    helper_failing: bool = False
    _saved: dict[GuestId, GuestMemory] = field(init=False)
    _rows: tuple[Row, ...] | None = None

    def __post_init__(self) -> None:
        """Take up what the store remembers, attempts in flight included."""
        self.teller = Teller(self.env)
        self._memories = self.env.store.guests()
        self._saved = dict(self._memories)
        self.quiet.awake = set(self._memories)
        self.node = self.env.store.node()

    @property
    def memories(self) -> Mapping[GuestId, GuestMemory]:
        """What is remembered of every guest."""
        return self._memories

    @property
    def decisions(self) -> Mapping[GuestId, Decision]:
        """What was decided of every guest on the list, in its order."""
        return self._decisions

    @property
    def rules(self) -> Rules:
        """What the configuration in force says."""
        return self.env.config.rules()

    def holds(self) -> Holds:
        """The holds in force with the seconds that they still last; those that have ended are dropped."""
        clock = self.env.clock
        now = (clock.boot_id(), clock.boottime(), clock.wall())
        lasting: Holds = {}
        ended = []
        written = self.env.store.holds()
        self.holds_unknown = written.reason if isinstance(written, Unreadable) else ""
        for hold in () if isinstance(written, Unreadable) else written:
            remaining = hold.remaining(*now)
            if remaining > 0:
                lasting[hold.vmid] = (hold, remaining)
            else:
                ended.append(hold)
        if ended:
            self.env.store.drop_holds(ended)
        self.teller.hold(lasting)
        self.lasting = lasting
        return lasting

    def judge_gate(self, seen: Observation, holds: Holds) -> Gate:
        """The host gate for one observation."""
        found = gate.gate(seen.host, seen.tasks, seen.resources, seen.at, holds.get(None), self.node.mass_stop_until)
        if not self.holds_unknown:
            return found
        unknown = Closure(GateReason.UNKNOWN, f"holds cannot be read: {self.holds_unknown}")
        return replace(found, closures=(*found.closures, unknown))

    def case(self, seen: Observation, id: GuestId, holds: Holds) -> Case:
        """All that the guards ask about one guest."""
        return Case(seen, seen.guests[id], self._memories[id], self.rules, self.gate, holds.get(id.vmid), id in self.recovering)

    def recovers(self, ids: Iterable[GuestId]) -> None:
        """From now on lock recovery is at work on these guests and on no others: they are not started meanwhile."""
        now = frozenset(ids)
        for id in now ^ self.recovering:
            self._changed(id)
        self.recovering = now

    def take(self, recalled: recall.Recalled) -> None:
        """Remember, and tell what is new."""
        self.remember(recalled.memory)
        self.env.tell(recalled.notices)

    def remember(self, memory: GuestMemory) -> None:
        """From now on this is known of the guest."""
        self._memories[memory.id] = memory
        self._changed(memory.id)

    def forget(self, id: GuestId) -> None:
        """From now on nothing is known of the guest."""
        del self._memories[id]
        self._changed(id)

    def decided(self, decision: Decision) -> None:
        """From now on this is so of one guest on the list."""
        self._decisions[decision.id] = decision
        self._changed(decision.id)

    def _changed(self, id: GuestId) -> None:
        self.quiet.wake(id)
        self._rows = None

    def decide_listed(self, listed: Mapping[GuestId, object], decisions: Iterable[Decision]) -> None:
        """These are decided anew; of the other guests on the list is so what was so, and of those that have left it nothing."""
        if self.obs is None or listed is not self.obs.guests:
            fresh = {decision.id: decision for decision in decisions}
            self._decisions = {id: fresh[id] if id in fresh else self._decisions[id] for id in listed}
            self._rows = None
            return
        for decision in decisions:
            self.decided(decision)

    def awake(self) -> list[Decision]:
        """What was decided of the guests that are not quiet, in the order of the list."""
        return [self._decisions[id] for id in self.quiet.in_order(self._decisions)]

    def keep_quiet(self, seen: Observation, before: Mapping[GuestId, GuestMemory], holds: Holds) -> None:
        """From now on those are quiet that are so. before: what was remembered when this look began."""
        for decision in self.awake():
            if decision.id.vmid not in holds and recall.lasting(before.get(decision.id), self._memories[decision.id], decision, seen):
                self.quiet.keep(self._row(seen, decision))

    def ask_helper(self, request: Request) -> HelperCall | None:
        """Ask the root helper for something; None when it cannot be asked. Told once, as is that it can be asked again."""
        try:
            call = self.env.helper.ask(request)
        except HelperUnreachable as error:
            if not self.helper_failing:
                text = f"the root helper cannot be asked; until it can, locks and lost grants of the scratch band stay as they are: {error}"
                self.env.journal.emit(Event.HELPER_FAILED, message=text, reason=str(error))
            self.helper_failing = True
            return None
        if self.helper_failing:
            self.env.journal.emit(Event.HELPER_RESTORED, message="the root helper answers again")
        self.helper_failing = False
        return call

    def save(self) -> None:
        """Make durable what has changed since the last time."""
        if self._memories == self._saved:
            self.env.store.save(self.node, (), ())
            return
        changed = [memory for id, memory in self._memories.items() if self._saved.get(id) != memory]
        forgotten = [id for id in self._saved if id not in self._memories]
        self.env.store.save(self.node, changed, forgotten)
        self._saved = dict(self._memories)

    def publish(self) -> None:
        """Show the last look to `status`, `explain` and the metrics."""
        self.board = self._board()
        self.env.store.publish(self.board)

    def _board(self) -> Board:
        clock, obs = self.env.clock, self.obs
        return Board(
            node=self.env.pve.node,
            boot_id=clock.boot_id(),
            at=clock.boottime(),
            wall=clock.wall(),
            seen_at=obs.at if obs is not None else None,
            seen_wall=obs.wall if obs is not None else None,
            sweeps=self.node.sweeps,
            gate=self.gate,
            rows=self._all_rows(obs) if obs is not None else (),
            aborted=self.aborted,
            incomplete=self.incomplete,
            last_complete_at=self.last_complete[0] if self.last_complete else None,
            last_complete_wall=self.last_complete[1] if self.last_complete else None,
            lost=tuple(sorted(str(grant) for grant in {*self.teller.lost, *self.lost_in_band})),
            required=rights.in_words(self.rules, self.env.pve.node),
            ended=self.ended,
            locks=self.lock_decisions,
            scratch=self.scratch_decisions,
        )

    def _all_rows(self, obs: Observation) -> tuple[Row, ...]:
        if self._rows is None:
            quiet = self.quiet.rows
            self._rows = tuple(quiet[id] if id in quiet else self._row(obs, decision) for id, decision in self._decisions.items())
        return self._rows

    def _row(self, obs: Observation, decision: Decision) -> Row:
        guest, memory = obs.guests[decision.id], self._memories.get(decision.id, GuestMemory(decision.id))
        return Row(
            decision=decision,
            running=guest.running,
            owned=decision.guard is not Guard.NOT_OWNED,
            attempts=len(memory.attempts),
            down_since=memory.down_since,
            given_up=memory.given_up and not guest.running,
            not_working=memory.not_working,
            lock=guest.lock,
            config_read_at=self.sight.cache.read_at(decision.id),
            cause=causes.describe(memory.cause) if memory.cause_read and memory.down_since is not None else "",
            up_since=guest.up_since,
        )
