"""Starting guests: whose turn it is, the last look before the request, the request itself, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from guestward.duties.observe import LookAbortedError, proven_grants, read_config, read_tasks, with_witnesses
from guestward.duties.state import WatchState
from guestward.model.decision import Decision, Guard, Outcome
from guestward.model.events import Event, Level
from guestward.model.guest import GuestConfig, GuestId, ListedGuest, LiveStatus, Startup
from guestward.model.memory import Attempt, GuestMemory
from guestward.model.observation import Observation, Resources
from guestward.model.reading import Reading, Unreadable
from guestward.model.task import Task, TaskStatus, Upid
from guestward.policy import attempts, causes, recall
from guestward.policy.guards import decide
from guestward.policy.turns import Turn, whose_turn
from guestward.ports import GuestLabel, PveAnswerLost, PveError, PveUnreachable

READ_BUDGET = 20.0
FOLLOW_BUDGET = 10.0
SEND_BUDGET = 15.0
RETRY = 5.0


@dataclass(slots=True)
class Starter:
    """Starts guests and follows the attempts.

    Nothing here waits for a guest: a start is sent, and `step` is called about once a second until it ended or its deadline passed,
    so that one hanging start delays nobody else.
    """

    state: WatchState
    due: dict[GuestId, Turn] = field(default_factory=dict)
    under_way: dict[GuestId, Turn] = field(default_factory=dict)
    retry_at: dict[GuestId, float] = field(default_factory=dict)
    failing: dict[str, str] = field(default_factory=dict)
    next_turn_at: float = 0.0
    ending: bool = False

    def in_flight(self) -> list[GuestMemory]:
        """Guests with an attempt under way; none of them is quiet."""
        awake = self.state.quiet.awake
        return (
            [memory for memory in list(self.state.memories.values()) if memory.id in awake and memory.in_flight is not None]
            if awake
            else []
        )

    def queue(self, seen: Observation, only: Iterable[GuestId] | None) -> None:
        """Those that are due, in place of what was due before. A confirming look adds only those that it was made for."""
        wanted = None if only is None else set(only)
        found = {
            decision.id: Turn(decision.id, _startup(seen, decision.id))
            for decision in self.state.awake()
            if decision.guard is Guard.START and (wanted is None or decision.id in wanted)
        }
        self.due = found if wanted is None else self.due | found
        due = {str(id) for id in self.due} if self.failing else set()
        self.failing = {what: why for what, why in self.failing.items() if what in due}

    def begin_turns(self) -> None:
        """Begin with those whose turn it is. After a guest with `up=S` the next one waits so long."""
        seen, now = self.state.obs, self.state.env.clock.boottime()
        if self.ending or seen is None or now < self.next_turn_at:
            return
        if not self.due:
            return
        under_way = [self.under_way.get(memory.id, Turn(memory.id, Startup())) for memory in self.in_flight()]
        due = [turn for turn in self.due.values() if self.retry_at.get(turn.id, now) <= now]
        for turn in whose_turn(due, under_way, self.state.rules.parallel):
            self._begin(turn, seen)
            if self.ending or self.state.env.clock.boottime() < self.next_turn_at:
                return

    def _begin(self, turn: Turn, seen: Observation) -> None:
        """Everything that decided is read again right before the request is sent (I12); then intent first, request second."""
        state, id = self.state, turn.id
        try:
            fresh = self._look_again(id, seen)
        except (PveError, LookAbortedError) as error:
            self._cannot_look(id, str(error))
            return
        holds = state.holds()
        self.due.pop(id, None)
        self.retry_at.pop(id, None)
        self.failing.pop(str(id), None)
        state.take(recall.recall(state.memories[id], fresh.guests[id], fresh, state.rules, state.node.looked_at))
        state.gate = state.judge_gate(fresh, holds)
        decision = decide(state.case(fresh, id, holds))
        state.decided(decision)
        if decision.guard is Guard.START and not self.ending:
            self.under_way[id] = Turn(id, _startup(fresh, id))
            state.remember(attempts.begin(state.memories[id], state.env.clock.boottime(), state.rules))
            state.save()
            self._send(state.memories[id])
        else:
            state.take(recall.settle(state.memories[id], decision, fresh, state.rules, ran_before=False))
        state.save()

    def _cannot_look(self, id: GuestId, why: str) -> None:
        """It stays due and is looked at again soon, and nobody waits for it; said once, and a gap of the sweeps while it lasts."""
        state, memory = self.state, self.state.memories[id]
        self.retry_at[id] = state.env.clock.boottime() + RETRY
        self.failing[str(id)] = f"the look right before its start: {why}"
        decision = Decision(id, memory.name, Guard.UNREADABLE, f"not started yet, the look before the start failed: {why}", ())
        state.decided(decision)
        if Guard.UNREADABLE not in memory.announced and state.obs is not None:
            told = recall.settle(memory, decision, state.obs, state.rules, ran_before=False)
            state.take(replace(told, memory=replace(told.memory, startable_since=memory.startable_since)))
            state.save()
        state.publish()

    def _look_again(self, id: GuestId, last: Observation) -> Observation:
        env, deadline = self.state.env, self.state.env.clock.boottime() + READ_BUDGET
        live = env.pve.live(id, deadline=deadline)
        members = {m.id: m for pool in self.state.rules.pools for m in env.pve.members(pool, deadline=deadline) if m.node == env.pve.node}
        lost = proven_grants(env, self.state.rules, self.state.sight, deadline)
        now = env.clock.boottime()
        up_since = now - live.uptime if live.running else None
        fresh = replace(
            last,
            at=now,
            wall=env.clock.wall(),
            guests={**last.guests, id: ListedGuest(id, last.guests[id].name, live.running, live.pid, up_since, live.lock)},
            members=members,
            tasks=read_tasks(env, lost, deadline),
            lost=lost,
            configs={id: read_config(env, self.state.sight.cache, id, None, deadline)},
        )
        fresh = with_witnesses(env, fresh, deadline)
        # The host itself last: it costs nothing, and PVE's answers may have taken their time.
        return replace(fresh, host=env.host.host(), resources=_with_live_ha(fresh.resources, id, live))

    def _send(self, memory: GuestMemory) -> None:
        attempt, clock = memory.attempts[-1], self.state.env.clock
        try:
            upid = self.state.env.pve.start(memory.id, deadline=min(attempt.deadline, clock.boottime() + SEND_BUDGET))
        except PveAnswerLost as error:
            sent, how = attempt, f"the answer was lost ({error}); its task or the guest will tell"
        except PveUnreachable as error:
            sent, how = attempts.end(attempt, clock.boottime(), Outcome.FAILED, f"not sent: {error}"), "it could not be sent"
        except PveError as error:
            sent, how = attempts.refused(attempt, clock.boottime(), str(error)), "PVE refused it"
        else:
            sent, how = attempts.answered(attempt, upid, clock.boottime()), "sent"
        self._tell_attempt(memory, sent, how)
        self._advance(memory, sent)

    def _tell_attempt(self, memory: GuestMemory, attempt: Attempt, how: str) -> None:
        cause, of = causes.describe(memory.cause), self.state.rules.attempts
        self.state.env.journal.emit(
            Event.START_ATTEMPT,
            message=f"{memory.id} start {attempt.number} of {of}: {how}. Why it was down: {cause}",
            guest=_label(memory),
            attempt=attempt.number,
            of=of,
            cause=cause,
            upid=attempt.upid,
        )

    def step(self, memory: GuestMemory) -> None:
        """Ask the task and the guest; what cannot be asked now is asked again in a second, never beyond the deadline (I10)."""
        attempt, clock = memory.attempts[-1], self.state.env.clock
        deadline = min(clock.boottime() + FOLLOW_BUDGET, attempt.deadline)
        upid = memory.in_flight_upid or self._find_task(memory, attempt, deadline)
        if upid is not None and not attempt.upid:
            attempt = attempts.answered(attempt, upid, clock.boottime())
        if attempt.in_flight:
            said = self._task(upid, deadline) if upid is not None else None
            live = self._live(memory.id, deadline)
            attempt = attempts.follow(attempt, clock.boottime(), said, live)
        self._advance(memory, attempt)
        self.state.save()

    def _find_task(self, memory: GuestMemory, attempt: Attempt, deadline: float) -> Upid | None:
        """The task of a start whose answer was lost: the first of ours after the request. One list that fails does not hide the other's."""
        pve, clock = self.state.env.pve, self.state.env.clock
        now, offset = clock.boottime(), clock.wall() - clock.boottime()
        tasks: list[Task] = []
        for ask in (pve.active_tasks, pve.past_tasks):
            try:
                tasks += ask(deadline=deadline)
            except PveError:
                continue  # asked again in a second, until the deadline
        ours = causes.of_this_boot(tasks, now, (*self.state.node.offsets, offset))  # after each boot starts come at the same seconds
        found = attempts.own_starts(ours, memory.id, pve.token_id, attempt.begun_at - 1, now)
        return found[0] if found else None

    def _task(self, upid: Upid, deadline: float) -> TaskStatus | None:
        try:
            return self.state.env.pve.task(upid, deadline=deadline)
        except PveError:
            return None  # a poll that fails ends nothing (C66)

    def _live(self, id: GuestId, deadline: float) -> LiveStatus | None:
        try:
            return self.state.env.pve.live(id, deadline=deadline)
        except PveError:
            return None  # as for the task

    def _advance(self, memory: GuestMemory, attempt: Attempt) -> None:
        memory = replace(memory, attempts=(*memory.attempts[:-1], attempt))
        self.state.remember(memory)
        if not attempt.in_flight:
            self.ended(memory, attempt)

    def ended(self, memory: GuestMemory, attempt: Attempt) -> None:
        """Say how an attempt ended, and remember what follows from it."""
        at = self.state.env.clock.boottime()
        down_s = round(at - memory.down_since) if memory.down_since is not None else None
        good = attempt.outcome in (Outcome.STARTED, Outcome.UNCHANGED, Outcome.HANDED_TO_HA)
        after = f", {down_s} s after it was first seen down" if attempt.outcome is Outcome.STARTED and down_s is not None else ""
        self.state.env.journal.emit(
            Event.START_RESULT,
            Level.INFO if good else Level.WARN,
            message=f"{memory.id} start {attempt.number}: {attempt.outcome}{after} ({attempt.reason})",
            guest=_label(memory),
            attempt=attempt.number,
            outcome=str(attempt.outcome),
            reason=attempt.reason,
            upid=attempt.upid,
            down_s=down_s,
        )
        if attempt.outcome is Outcome.STARTED:
            self.state.remember(recall.came_up(memory))
            turn = self.under_way.get(memory.id)
            self.next_turn_at = max(self.next_turn_at, at + (turn.startup.up if turn is not None else 0))
        elif memory.id in self.state.memories:  # somebody may have stopped it meanwhile: the history is read again
            self.state.remember(replace(self.state.memories[memory.id], cause_read=False))
        self.under_way.pop(memory.id, None)
        self.state.publish()


def _label(memory: GuestMemory) -> GuestLabel:
    return GuestLabel(memory.id, memory.name, str(Guard.START))


def _startup(seen: Observation, id: GuestId) -> Startup:
    config = seen.configs.get(id)
    return config.startup if isinstance(config, GuestConfig) else Startup()


def _with_live_ha(resources: Reading[Resources], id: GuestId, live: LiveStatus) -> Reading[Resources]:
    """`status/current` reads HA's own configuration: it knows of a guest that was just put under HA before the resources do."""
    if isinstance(resources, Unreadable) or not live.ha_managed or id in resources.ha:
        return resources
    return replace(resources, ha={**resources.ha, id: None})
