"""The power watchdog: guests that should run and do not are started again, where that is provably right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from guestward.duties.env import Env, Report, Result
from guestward.duties.observe import gaps, in_words, observe, with_witnesses
from guestward.duties.starts import READ_BUDGET, Starter
from guestward.duties.state import Holds, WatchState
from guestward.model.decision import Guard, Outcome
from guestward.model.events import Event, Notice
from guestward.model.guest import GuestId
from guestward.model.memory import Attempt, GuestMemory, NodeMemory
from guestward.model.observation import Aborted, Observation
from guestward.model.reading import Unreadable
from guestward.model.rules import MASS_STOP_PAUSE
from guestward.model.task import Task, Upid
from guestward.policy import attempts, causes, locks, recall
from guestward.policy.guards import OUT_OF_SCOPE, decide, may_start
from guestward.ports import PveError

SEED_SECONDS = 3600.0
MOST_OFFSETS = 20


@dataclass(slots=True)
class PowerWatch:
    """One watchdog for one node. `sweep`, `confirm` and `follow` are called from one thread, never at once.

    placed: lists and names by which it is known where every guest is. began: when the last look did, in seconds since host boot.
    """

    env: Env
    state: WatchState = field(init=False)
    starter: Starter = field(init=False)
    placed: tuple[object, ...] = ()
    began: float = 0.0

    def __post_init__(self) -> None:
        """Take up what the store remembers."""
        self.state = WatchState(self.env)
        self.starter = Starter(self.state)

    def sweep(self) -> Report:
        """Look at everything, decide, tell, and begin the starts that are due."""
        begun = self.env.clock.boottime()
        return self._report(self._look(counted=True), begun)

    def confirm(self) -> Report:
        """The second look at guests that the last sweep saw stopped for the first time. It is no sweep and counts as none."""
        begun = self.env.clock.boottime()
        self._look(counted=False)
        return self._report(None, begun)

    def follow(self) -> Report:
        """One step of every attempt under way; then those whose turn it is."""
        begun = self.env.clock.boottime()
        for memory in self.starter.in_flight():
            self.starter.step(memory)
        self.starter.begin_turns()
        return self._report(None, begun)

    def end(self) -> None:
        """Begin nothing more; may be called from another thread. Attempts under way are in the store and are followed at the next start."""
        self.starter.ending = True

    def _look(self, *, counted: bool) -> Result:
        state = self.state
        self.began = self.env.clock.boottime()
        deadline = self.began + max(10.0, 0.9 * self.env.config.watchdog.interval)
        self._new_boot()
        state.gaps = {}
        seen = observe(self.env, state.rules, state.sight, deadline)
        if isinstance(seen, Aborted):
            return self._abort(seen, counted=counted)
        self._note_clock(seen)
        self._seed_attempts(seen)
        unconfirmed = {decision.id for decision in state.awake() if decision.guard is Guard.UNCONFIRMED}
        holds = state.holds()
        state.quiet.wake_changed(seen, state.obs, state.rules, holds)
        before = dict(state.memories)
        self._find_all(seen)
        self._recall_awake(seen)
        self._rearm_requests()
        self._read_causes(seen, deadline)
        state.gate = state.judge_gate(seen, holds)
        seen = self._ask_witnesses(seen, holds, deadline)
        state.quiet.wake_stopped(seen, state.gate)
        self._decide_awake(seen, holds, before)
        self.starter.queue(seen, only=None if counted else unconfirmed)
        self._after_look(seen, counted=counted)
        state.save()
        self.starter.begin_turns()
        return Result.INCOMPLETE if state.incomplete else Result.COMPLETE

    def _new_boot(self) -> None:
        """In another boot all times are void, and PVE has started what it should (boot id, not agent start: C15)."""
        state, boot_id = self.state, self.env.clock.boot_id()
        if state.node.boot_id == boot_id:
            return
        if state.node.boot_id:
            for memory in self.starter.in_flight():
                attempt = memory.attempts[-1]
                down = replace(memory, down_since=None)  # a moment of the boot before; how long it was down is not known
                self.starter.ended(down, attempts.end(attempt, attempt.begun_at, Outcome.UNKNOWN, "the host went down"))
            for memory in list(state.memories.values()):
                state.remember(recall.after_boot(memory))
            self.placed = ()
            state.recovers(())  # whatever the helper was asked, it is not at it any more
        state.node = NodeMemory(boot_id=boot_id, unseeded=self._lost(), locks=locks.after_boot(state.node.locks))
        state.save()

    def _note_clock(self, seen: Observation) -> None:
        """Remember every value that the wall clock has had against the boot clock, for what PVE noted by it (C77)."""
        node, offset = self.state.node, seen.wall - seen.at
        if not any(abs(offset - known) <= 1 for known in node.offsets):
            self.state.node = replace(node, offsets=(*node.offsets, offset)[-MOST_OFFSETS:])

    def _rearm_requests(self) -> None:
        self.state.rearmed = self.env.store.take_rearms()
        for vmid in (vmid for vmid in self.state.rearmed if not self.state.rules.in_scratch_band(vmid)):
            for memory in [m for m in self.state.memories.values() if m.id.vmid == vmid and not m.away]:
                self.state.take(recall.rearmed_by_operator(memory))

    def _abort(self, seen: Aborted, *, counted: bool) -> Result:
        state = self.state
        state.aborted = seen.reason
        if seen.lost:
            state.teller.grants(seen.lost)
        if counted:
            state.teller.aborted(seen.reason, seen.at)
        self.starter.due.clear()
        self.starter.failing.clear()
        state.save()
        state.publish()
        return Result.ABORTED

    def _find_all(self, seen: Observation) -> None:
        """Where every guest is: only where somebody came, went or was changed there is something to find."""
        places = (seen.guests, seen.members, seen.host.names)
        if places != self.placed:
            self._forget_gone(seen)
            self._note_names(seen)
        self.placed = places

    def _note_names(self, seen: Observation) -> None:
        state, names = self.state, seen.host.names
        for id in () if isinstance(names, Unreadable) else names.here:
            known = state.memories.get(id)
            memory = known or recall.first_seen(id, watched=state.node.watched)
            memory = memory if id in seen.guests else recall.compare_stamp(memory, seen, state.node.looked_at)
            if memory is not known:
                state.remember(memory)

    def _recall_awake(self, seen: Observation) -> None:
        state = self.state
        for id in state.quiet.in_order(seen.guests):
            memory = state.memories.get(id) or recall.first_seen(id, watched=state.node.watched)
            state.take(recall.recall(memory, seen.guests[id], seen, state.rules, state.node.looked_at))

    def _forget_gone(self, seen: Observation) -> None:
        """A guest that left the pool, moved or was destroyed. One that lives elsewhere now is remembered: it may come back."""
        left = [memory for id, memory in self.state.memories.items() if id not in seen.members]
        # Asked again: the pool was read after the names, and what was on its way between the two has not left the pool.
        names = self.env.host.host().names if any(memory.owned for memory in left) else seen.host.names
        for memory in left:
            id = memory.id
            if id in (seen.guests if isinstance(names, Unreadable) else names.here):
                if memory.owned:
                    self._forget(memory, "it left the pool")
            elif isinstance(names, Unreadable):
                if memory.owned:
                    self._forget(memory, "it is seen no more")
            elif id in names.elsewhere:
                if not memory.away:
                    self._forget(memory, f"it moved to node {names.elsewhere[id]}", away=True)
            else:
                self._forget(memory, "it was destroyed")
                self.state.forget(id)

    def _forget(self, memory: GuestMemory, reason: str, *, away: bool = False) -> None:
        """Drop history and episode; who it is, and whether it ran here, stays known."""
        if memory.in_flight is not None:
            self.starter.ended(memory, attempts.end(memory.in_flight, self.env.clock.boottime(), Outcome.UNKNOWN, reason))
        if memory.owned:
            text = f"is no longer guarded: {reason}"
            self.env.tell((Notice(Event.GUEST_FORGOTTEN, memory.id, memory.name, "", text, (("reason", reason),)),))
        left = GuestMemory(
            memory.id,
            name=memory.name,
            identity=memory.identity,
            ran=memory.ran,
            new=memory.new or (away and not memory.ran),
            away=away,
            stamp=memory.stamp,
            doubt_since=memory.doubt_since if memory.doubt_since is not None else self.state.node.looked_at,
        )
        self.state.remember(left)

    def _lost(self) -> bool:
        """Whether what was tried before is only in PVE's task list. That is durable: a look that is aborted cannot ask."""
        return self.state.node.unseeded or (not self.state.seeded and self.env.store.begins_empty())

    def _seed_attempts(self, seen: Observation) -> None:
        """Without a memory of our own PVE's task list tells what we tried lately, so that a lost state grants no new attempts (C08)."""
        state = self.state
        if not self._lost():
            return
        history = self._history(seen, seen.at + READ_BUDGET)
        if history is None:
            return  # asked again at the next look; this one is incomplete
        state.seeded, state.node = True, replace(state.node, unseeded=False)
        for id in seen.guests:
            memory = state.memories.get(id) or recall.first_seen(id, watched=state.node.watched)
            own = attempts.own_starts(history, id, seen.token_id, seen.at - SEED_SECONDS, seen.at)
            if own and not memory.attempts:
                tried = tuple(_past_attempt(number, upid) for number, upid in enumerate(own[-state.rules.attempts :], 1))
                state.remember(replace(memory, attempts=tried))

    def _history(self, seen: Observation, deadline: float) -> tuple[Task, ...] | None:
        """This boot's tasks, newest first; None when they cannot be known, which makes the look incomplete."""
        if isinstance(seen.tasks, Unreadable):
            return None  # told as a gap by itself; without Sys.Audit the archive, too, holds only the token's own tasks
        try:
            past = self.env.pve.past_tasks(deadline=deadline)
        except PveError as error:
            self.state.gaps["task history"] = str(error)
            return None
        return causes.of_this_boot((*seen.tasks, *past), seen.at, self.state.node.offsets)

    def _read_causes(self, seen: Observation, deadline: float) -> None:
        """One call for all guests of which the history is not known yet; then whether many were stopped at once."""
        state = self.state
        if all(state.memories[id].cause_read or state.memories[id].down_since is None for id in state.quiet.in_order(seen.members)):
            return
        down = [m for id, m in state.memories.items() if id in seen.members and m.down_since is not None]
        unread = [memory for memory in down if not memory.cause_read]
        history = self._history(seen, deadline) if unread else None
        if history is None:
            return  # nobody is started of whom it is not known; asked again at the next look
        for memory in unread:
            if not causes.is_changing(history, memory.id.vmid, self.began):
                self._explain(memory, history, seen)
        fresh, known = (tuple(c for m in of if (c := state.memories[m.id].cause) is not None) for of in (unread, down))
        if causes.mass_stop(fresh, known, seen.at, state.rules.mass_stop):
            state.node = replace(state.node, mass_stop_until=seen.at + MASS_STOP_PAUSE)

    def _explain(self, memory: GuestMemory, history: tuple[Task, ...], seen: Observation) -> None:
        doubt = memory.doubt_since
        if doubt is not None and causes.born_since(history, memory.id.vmid, doubt):
            if memory.in_flight is not None:
                gone = attempts.end(memory.in_flight, self.env.clock.boottime(), Outcome.UNKNOWN, "another guest was made under this VMID")
                self.starter.ended(memory, gone)
            self.state.take(recall.reborn(memory))
            memory = self.state.memories[memory.id]
        cause = causes.stop_cause(history, memory.id.vmid, seen.token_id, memory.ran_until) or memory.cause
        self.state.remember(replace(memory, cause=cause, cause_read=True, doubt_since=None))

    def _ask_witnesses(self, seen: Observation, holds: Holds, deadline: float) -> Observation:
        state = self.state
        if not any(may_start(state.case(seen, id, holds)) for id in state.quiet.in_order(seen.guests)):
            return seen
        seen = with_witnesses(self.env, seen, deadline)
        state.gate = state.judge_gate(seen, holds)
        for id in seen.configs:
            if state.memories[id].blocked_storages:
                state.take(recall.storages_back(state.memories[id], seen))
        return seen

    def _decide_awake(self, seen: Observation, holds: Holds, before: Mapping[GuestId, GuestMemory]) -> None:
        state = self.state
        state.teller.gate(state.gate, seen.at, tasks_known=not isinstance(seen.tasks, Unreadable))
        state.teller.grants(seen.lost)
        state.decide_listed(seen.guests, [decide(state.case(seen, id, holds)) for id in state.quiet.in_order(seen.guests)])
        for decision in state.awake():
            ran_before = decision.id in before and before[decision.id].running
            state.take(recall.settle(state.memories[decision.id], decision, seen, state.rules, ran_before=ran_before))
        state.keep_quiet(seen, before, holds)

    def _after_look(self, seen: Observation, *, counted: bool) -> None:
        state = self.state
        state.obs, state.aborted = seen, ""
        state.gaps |= gaps(seen) | self.starter.failing
        state.incomplete = in_words(state.gaps)
        complete = counted and not state.incomplete
        state.node = replace(state.node, watched=True, looked_at=self.began, sweeps=state.node.sweeps + complete)
        if counted:
            state.teller.looked(state.gaps, seen.at)
        if complete:
            state.last_complete = (seen.at, seen.wall)
            if state.node.sweeps % self.env.config.watchdog.heartbeat_every == 0:
                self._heartbeat()
        state.publish()

    def _heartbeat(self) -> None:
        """It carries what was seen, so that a watchdog which sees nothing cannot look like one that has nothing to do (C97)."""
        state = self.state
        mine = [(id, decision) for id, decision in state.decisions.items() if decision.guard not in OUT_OF_SCOPE]
        down = [
            {"id": str(id), "name": decision.name, "guard": str(decision.guard)}
            for id, decision in mine
            if decision.guard is not Guard.RUNNING
        ]
        words = ", ".join(f"{entry['id']} {entry['guard']}" for entry in down) or "none"
        self.env.journal.emit(
            Event.HEARTBEAT,
            message=f"{len(mine)} guests examined, {len(down)} stopped: {words}",
            sweeps_since_boot=state.node.sweeps,
            guests_evaluated=len(mine),
            currently_stopped=len(down),
            left_down=down,
            holds=[str(scope or "node") for scope in state.teller.holds],
            host_gate=[str(reason) for reason in state.teller.closures],
        )

    def _report(self, result: Result | None, begun: float) -> Report:
        state = self.state
        times = [d.next_at for d in state.awake() if d.guard is Guard.UNCONFIRMED and d.next_at is not None]
        return Report(
            board=state.board,
            result=result,
            duration=self.env.clock.boottime() - begun,
            confirm_at=min(times, default=None) if not state.aborted else None,
            busy=bool(self.starter.due) or bool(self.starter.in_flight()),
        )


def _past_attempt(number: int, upid: Upid) -> Attempt:
    at = upid.started_boottime
    return Attempt(number, at, at, upid=upid.text, ended_at=at, outcome=Outcome.UNKNOWN, reason="found in PVE's task history")
