"""What the power watchdog knows between two looks, and the small things that looking and starting both do with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from guestward.duties.env import Env
from guestward.duties.observe import ConfigCache
from guestward.duties.telling import Teller
from guestward.model.decision import Closure, Decision, Gate, GateReason, Guard
from guestward.model.guest import GuestId
from guestward.model.memory import GuestMemory, Hold, NodeMemory
from guestward.model.observation import Observation
from guestward.model.reading import Unreadable
from guestward.model.rules import Rules
from guestward.policy import causes, gate, recall, rights
from guestward.policy.guards import Case
from guestward.ports import Board, Row

Holds = dict[int | None, tuple[Hold, float]]


@dataclass(slots=True)
class WatchState:
    """One node's watchdog. obs, decisions and gate are those of the last look that was not aborted."""

    env: Env
    teller: Teller = field(init=False)
    cache: ConfigCache = field(default_factory=ConfigCache)
    memories: dict[GuestId, GuestMemory] = field(init=False)
    node: NodeMemory = field(init=False)
    decisions: dict[GuestId, Decision] = field(default_factory=dict)
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
    saved: dict[GuestId, GuestMemory] = field(init=False)

    def __post_init__(self) -> None:
        """Take up what the store remembers, attempts in flight included."""
        self.teller = Teller(self.env)
        self.memories = self.env.store.guests()
        self.saved = dict(self.memories)
        self.node = self.env.store.node()

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
        return Case(seen, seen.guests[id], self.memories[id], self.rules, self.gate, holds.get(id.vmid))

    def take(self, recalled: recall.Recalled) -> None:
        """Remember, and tell what is new."""
        self.memories[recalled.memory.id] = recalled.memory
        self.env.tell(recalled.notices)

    def save(self) -> None:
        """Make durable what has changed since the last time."""
        changed = [memory for id, memory in self.memories.items() if self.saved.get(id) != memory]
        forgotten = [id for id in self.saved if id not in self.memories]
        self.env.store.save(self.node, changed, forgotten)
        self.saved = dict(self.memories)

    def publish(self) -> None:
        """Show the last look to `status`, `explain` and the metrics."""
        self.board = self._board()
        self.env.store.publish(self.board)

    def _board(self) -> Board:
        clock, obs = self.env.clock, self.obs
        rows = () if obs is None else tuple(self._row(obs, decision) for _, decision in sorted(self.decisions.items()))
        grants = rights.needed(self.env.config.scope.pools, self.env.pve.node)
        return Board(
            node=self.env.pve.node,
            boot_id=clock.boot_id(),
            at=clock.boottime(),
            wall=clock.wall(),
            seen_at=obs.at if obs is not None else None,
            seen_wall=obs.wall if obs is not None else None,
            sweeps=self.node.sweeps,
            gate=self.gate,
            rows=rows,
            aborted=self.aborted,
            incomplete=self.incomplete,
            last_complete_at=self.last_complete[0] if self.last_complete else None,
            last_complete_wall=self.last_complete[1] if self.last_complete else None,
            lost=tuple(sorted(str(grant) for grant in self.teller.lost)),
            required=tuple(str(grant) for grant in grants),
            ended=self.ended,
        )

    def _row(self, obs: Observation, decision: Decision) -> Row:
        guest, memory = obs.guests[decision.id], self.memories.get(decision.id, GuestMemory(decision.id))
        return Row(
            decision=decision,
            running=guest.running,
            owned=decision.guard is not Guard.NOT_OWNED,
            attempts=len(memory.attempts),
            down_since=memory.down_since,
            given_up=memory.given_up and not guest.running,
            not_working=memory.not_working,
            lock=guest.lock,
            config_read_at=self.cache.read_at(decision.id),
            cause=causes.describe(memory.cause) if memory.cause_read and memory.down_since is not None else "",
        )
