"""Lock recovery: what a dead vzdump left is cleared where that is provably right: unlock, delete its snapshot, and leave the start to the
power watchdog. Each step is verified before the next one, and nothing waits for a step to end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from guestward.duties.state import WatchState
from guestward.model.events import Event
from guestward.model.guest import GuestId, GuestKind
from guestward.model.helper import SNAPSHOT, TRIED, Answer, HelperCode, Request, Verb
from guestward.model.locks import LockDecision, LockMemory, LockStep
from guestward.model.observation import Observation
from guestward.model.reading import Reading, Unreadable
from guestward.model.task import Task, Upid
from guestward.policy import locks
from guestward.ports import HelperCall, HelperLost, PveError

READ_BUDGET = 20.0
CHECKS_A_LOOK = 10  # containers whose snapshots are read at one look
HELPER_AGAIN = 60.0  # seconds before a helper that cannot be asked is asked again
UNSEEN = 3  # looks at which what came of a request may be unreadable, before that counts as a failure


@dataclass(slots=True)
class LockRecovery:
    """All locks of one node. `look` comes after each look of the watchdog, `follow` about once a second while it is `busy`.

    owned: guests whose locks are ours to judge. to_check: containers whose snapshots are to be read; checked: with which stamp of their
    file they were; left: those that have a snapshot of vzdump. known: guests seen at the last look, which was at `looked_at`. calls:
    requests to the helper, under way. unseen: what it has answered to whom, and how often it could not be read what came of that.
    logs: of the vzdumps that may have left a lock. freed: somebody was unlocked, so that the watchdog should look. ending: nothing more
    is begun. deadline: seconds since host boot at which what is read for this look or step is given up.
    """

    state: WatchState
    memories: dict[GuestId, LockMemory] = field(init=False)
    boot_id: str = field(init=False)
    looked_at: float | None = field(init=False)
    known: frozenset[GuestId] = field(init=False)
    places: tuple[object, ...] = ()
    owned: tuple[GuestId, ...] = ()
    to_check: list[GuestId] = field(default_factory=list)
    checked: dict[GuestId, str] = field(default_factory=dict)
    left: set[GuestId] = field(default_factory=set)
    calls: dict[GuestId, HelperCall] = field(default_factory=dict)
    unseen: dict[GuestId, tuple[Answer, int]] = field(default_factory=dict)
    logs: dict[Upid, tuple[str, ...]] = field(default_factory=dict)
    freed: bool = False
    ending: bool = False
    deadline: float = 0.0

    def __post_init__(self) -> None:
        """Take up what is remembered. What came of a request that the helper got before this start is seen at the first look."""
        state = self.state
        self.memories = {memory.id: memory for memory in state.node.locks}
        self.left = {memory.id for memory in state.node.locks if not memory.kind}
        self.boot_id, self.looked_at = state.node.boot_id, state.node.looked_at
        self.known = frozenset(memory.id for memory in state.memories.values() if memory.owned)

    @property
    def busy(self) -> bool:
        """Whether the helper is at work."""
        return bool(self.calls)

    # ------------------------------------------------------------------------------------------------ looking

    def look(self) -> None:
        """Judge every lock of owned guests by what the watchdog has just seen, and begin what is due."""
        seen = self.state.obs
        if seen is None or self.state.aborted:
            return
        self.deadline = self.state.env.clock.boottime() + READ_BUDGET
        self._new_boot()
        self._find(seen)
        self._resume(seen)
        self._check_snapshots(seen)
        asked = {memory.id for memory in self.memories.values() if memory.asked}
        locked = [id for id in self.owned if seen.guests[id].lock is not None or id in self.left or id in asked]
        if locked or self.memories or self.state.node.locks or self.state.lock_decisions:
            self._note(seen, locked)
            self._judge(seen)
            self._keep()
        self.known, self.looked_at = frozenset(self.owned), seen.at

    def _new_boot(self) -> None:
        """Times of an earlier boot mean nothing; the node's memory has what outlives one."""
        if self.boot_id == self.state.node.boot_id:
            return
        self.boot_id, self.looked_at, self.known, self.places = self.state.node.boot_id, None, frozenset(), ()
        self.memories, self.checked, self.left = {memory.id: memory for memory in self.state.node.locks}, {}, set()
        self.calls.clear()
        self.unseen.clear()

    def _find(self, seen: Observation) -> None:
        """Whose locks are ours to judge, and whose file has changed since its snapshots were read: PVE's own boot clears a lock and
        leaves the snapshot (C36).
        """
        names, rules = seen.host.names, self.state.rules
        places = (seen.guests, seen.members, names, rules)
        if places == self.places:
            return
        self.places = places
        ours = [id for id in seen.guests if id in seen.members and id.vmid not in rules.exclude]
        self.owned = tuple(id for id in ours if not rules.in_scratch_band(id.vmid))
        stamps = {} if isinstance(names, Unreadable) else names.here
        free = [id for id in self.owned if id.kind is GuestKind.LXC and seen.guests[id].lock is None]
        self.to_check = [id for id in free if id in stamps and self.checked.get(id) != stamps[id]]
        self.left.intersection_update(self.owned)
        # One that comes back, from another node or into the pool, may have the stamp that it had: it is checked anew.
        self.checked = {id: self.checked[id] for id in self.owned if id in self.checked}

    def _check_snapshots(self, seen: Observation) -> None:
        names = seen.host.names
        if not self.to_check or isinstance(names, Unreadable) or not self.state.gate.open:
            return
        for id in self.to_check[:CHECKS_A_LOOK]:
            found = self._snapshots(id)
            self.to_check.remove(id)
            if isinstance(found, Unreadable):
                self.to_check.append(id)  # again after all others
            else:
                self.checked[id] = names.here.get(id, "")
                (self.left.add if SNAPSHOT in found else self.left.discard)(id)

    def _resume(self, seen: Observation) -> None:
        """What the helper was asked before a restart of the agent, or what came of it could not be read: that is seen now, unless it is
        still at work. A delete that was not begun is asked for again before the watchdog starts the guest.
        """
        tasks = () if isinstance(seen.tasks, Unreadable) else seen.tasks
        at_work = {task.upid.id for task in tasks if task.running}
        for memory in [m for m in self.memories.values() if m.asked and m.id not in self.calls]:
            if memory.id not in self.owned or str(memory.id.vmid) in at_work or isinstance(seen.tasks, Unreadable):
                continue
            if memory.id in self.unseen:
                self._ended(memory, self.unseen[memory.id][0])
            elif memory.step is LockStep.DELETE_SNAPSHOT and seen.guests[memory.id].lock is None and self._is_whole(memory.id):
                self._delete_next(locks.looked_at_anew(memory))
            else:
                self._ended(memory, Answer(HelperCode.UNKNOWN, "the helper's answer was lost when the agent was restarted"))

    def _is_whole(self, id: GuestId) -> bool:
        """Whether nobody has begun to delete the snapshot of vzdump: PVE marks it first."""
        found = self._snapshots(id)
        return not isinstance(found, Unreadable) and found.get(SNAPSHOT) == ""

    def _snapshots(self, id: GuestId) -> Reading[Mapping[str, str]]:
        try:
            return self.state.env.pve.snapshots(id, deadline=self.deadline)
        except PveError as error:
            return Unreadable(str(error))

    def _note(self, seen: Observation, locked: list[GuestId]) -> None:
        """What is locked now, and what has a snapshot of vzdump without a lock."""
        names = seen.host.names
        stamps = {} if isinstance(names, Unreadable) else names.here
        seen = replace(seen, backups=self.state.env.host.backups())
        fresh = {}
        for id in locked:
            free_at = self.looked_at if id in self.known else None
            memory = locks.seen_now(self.memories.get(id), seen.guests[id], stamps.get(id, ""), seen, free_at)
            if id.vmid in self.state.rearmed:
                memory = locks.rearmed(memory)
            fresh[id] = memory
        self.memories = fresh
        self.unseen = {id: said for id, said in self.unseen.items() if id in fresh}

    def _judge(self, seen: Observation) -> None:
        seen = replace(seen, backups=self.state.env.host.backups())
        written = self.state.env.host.written(self.memories.keys())
        history: Reading[tuple[Task, ...]] = locks.NOT_READ
        wanted: set[Upid] = set()
        decisions, offsets = [], self.state.node.offsets
        for memory in list(self.memories.values()):
            snapshots = self._snapshots(memory.id) if locks.needs_snapshots(memory) else locks.NOT_READ
            hold = self.state.lasting.get(memory.id.vmid)
            case = locks.LockCase(
                seen,
                memory,
                self.state.gate,
                self.state.rules.lock_confirm,
                snapshots,
                history,
                written=written,
                hold=hold,
                offsets=offsets,
            )
            decision = locks.judge(case)
            if locks.asks_history(decision):
                history = self._history() if history is locks.NOT_READ else history
                suspects = locks.suspects(replace(case, history=history))
                decision = locks.judge(replace(case, history=history, logs=self._logs(suspects)))
                wanted.update(suspects)
            decisions.append(self._settle(memory, decision, seen.at))
        self.logs = {upid: lines for upid, lines in self.logs.items() if upid in wanted}
        self._show(tuple(decisions))

    def _history(self) -> Reading[tuple[Task, ...]]:
        """Ended vzdumps of any boot: a lock of snapshots outlives one."""
        try:
            return self.state.env.pve.past_backups(deadline=self.deadline)
        except PveError as error:
            return Unreadable(str(error))

    def _logs(self, upids: tuple[Upid, ...]) -> Mapping[Upid, Reading[tuple[str, ...]]]:
        """What these ended tasks have said; that changes no more, and is read once."""
        found: dict[Upid, Reading[tuple[str, ...]]] = {}
        for upid in upids:
            try:
                found[upid] = self.logs.get(upid) or self.state.env.pve.task_log(upid, deadline=self.deadline)
            except PveError as error:
                found[upid] = Unreadable(str(error))
        self.logs.update({upid: lines for upid, lines in found.items() if not isinstance(lines, Unreadable)})
        return found

    def _settle(self, memory: LockMemory, decision: LockDecision, at: float) -> LockDecision:
        settled = locks.settle(memory, decision, at, self.state.rules)
        self.memories[memory.id] = settled.memory
        self.state.env.tell(settled.notices)
        step = locks.due(settled.memory, settled.decision, at, self.state.rules)
        if step is not None:
            self._ask(settled.memory, step)
        return settled.decision

    def _show(self, decisions: tuple[LockDecision, ...]) -> None:
        if decisions != self.state.lock_decisions:
            self.state.lock_decisions = decisions
            self.state.publish()

    def _keep(self) -> None:
        """Make durable what is remembered of locks."""
        memories = tuple(self.memories.values())
        if memories != self.state.node.locks:
            self.state.node = replace(self.state.node, locks=memories)
            self.state.save()

    # ------------------------------------------------------------------------------------------------ acting

    def _may_ask(self, id: GuestId, step: LockStep) -> bool:
        """Nothing is begun against anybody's will, that of a minute ago included; the helper itself looks at the host once more.

        One of each kind at a time: unlocks need the same flock, deletes the same storage.
        """
        state = self.state
        at_work = any(self.memories[other].step is step for other in self.calls if other in self.memories)
        if self.ending or at_work or not state.rules.lock_recovery or not state.gate.open:
            return False
        return {None, id.vmid}.isdisjoint(state.holds()) and not state.holds_unknown

    def _ask(self, memory: LockMemory, step: LockStep) -> None:
        """Intent first, request second; what may not be asked now is judged again at the next look."""
        id = memory.id
        if not self._may_ask(id, step):
            self.memories[id] = memory
            return
        unlock = Request(Verb.UNLOCK, id.kind, id.vmid, memory.kind)
        request = unlock if step is LockStep.UNLOCK else Request(Verb.DELETE_SNAPSHOT, vmid=id.vmid)
        self.memories[id] = locks.asking(memory, step)
        self._keep()
        call = self.state.ask_helper(request)
        if call is None:
            self.memories[id] = locks.put_off(memory, self.state.env.clock.boottime() + HELPER_AGAIN)
        else:
            self.calls[id] = call

    def follow(self) -> None:
        """See whether the helper has answered, and go on from what is seen then."""
        self.deadline = self.state.env.clock.boottime() + READ_BUDGET
        for id, call in list(self.calls.items()):
            try:
                answer = call.answer()
            except HelperLost as error:
                answer = Answer(HelperCode.UNKNOWN, str(error))
            if answer is not None:
                del self.calls[id]
                if id in self.memories and self.memories[id].asked:  # one that left us meanwhile and is back has asked for nothing
                    self._ended(self.memories[id], answer)
                    self._keep()

    def _ended(self, memory: LockMemory, answer: Answer) -> None:
        if answer.ok or answer.code in TRIED:
            (self._unlock_ended if memory.step is LockStep.UNLOCK else self._delete_ended)(memory, answer)
        else:
            self.memories[memory.id], notices = locks.refused(memory, answer, self.state.env.clock.boottime())
            self.state.env.tell(notices)

    def _unlock_ended(self, memory: LockMemory, answer: Answer) -> None:
        """Only what is seen now counts: an answer may be lost, and one that says `ok` is no proof."""
        lock = self._lock_now(memory.id)
        if isinstance(lock, Unreadable) and self._seen_later(memory, answer):
            return
        if lock is None:
            text = f"is unlocked: {locks.without_id(memory, answer)}"
            self.state.env.tell((locks.notice(Event.UNLOCKED, memory, text, lock=memory.kind, reason=answer.message),))
            self.freed = True
            self.unseen.pop(memory.id, None)
            self._delete_next(locks.unlocked(memory))
        elif answer.ok and not isinstance(lock, Unreadable) and lock != memory.kind:
            self.unseen.pop(memory.id, None)
            self.memories[memory.id] = locks.looked_at_anew(memory)
        elif answer.ok or isinstance(lock, Unreadable):
            seen = lock.reason if isinstance(lock, Unreadable) else f"it has the lock `{lock}`"
            self._failed(memory, f"{seen}; {answer.message}", known=not isinstance(lock, Unreadable))
        else:
            self._failed(memory, answer.message)

    def _delete_next(self, memory: LockMemory) -> None:
        """The step after an unlock, unless there is nothing to delete or it has failed before and waits."""
        found = self._snapshots(memory.id) if memory.id.kind is GuestKind.LXC else {}
        if not isinstance(found, Unreadable) and SNAPSHOT not in found:
            self.left.discard(memory.id)
            del self.memories[memory.id]
            return
        memory = replace(memory, follows=memory.deletes == 0)
        self.memories[memory.id] = memory
        self.left.add(memory.id)
        if memory.follows:
            self._ask(memory, LockStep.DELETE_SNAPSHOT)

    def _delete_ended(self, memory: LockMemory, answer: Answer) -> None:
        found, lock = self._snapshots(memory.id), self._lock_now(memory.id)
        if (isinstance(found, Unreadable) or isinstance(lock, Unreadable)) and self._seen_later(memory, answer):
            return
        if not isinstance(found, Unreadable) and SNAPSHOT not in found:
            text = f"has no snapshot `{SNAPSHOT}` any more: {locks.without_id(memory, answer)}"
            self.state.env.tell((locks.notice(Event.SNAPSHOT_DELETED, replace(memory, kind=""), text, reason=answer.message),))
            self.freed = True
            self.unseen.pop(memory.id, None)
            self.left.discard(memory.id)
            del self.memories[memory.id]
        else:
            reason = f"{found.reason}; {answer.message}" if isinstance(found, Unreadable) else answer.message
            self._failed(memory, reason, known=not isinstance(found, Unreadable))
            self.freed = self.freed or lock is None
            self._free_of_our_lock(self.memories[memory.id], found, lock)

    def _free_of_our_lock(self, memory: LockMemory, found: Reading[Mapping[str, str]], lock: Reading[str | None]) -> None:
        """Power comes before tidiness: what our own delete has locked is unlocked at once, and the delete waits for hours (C39).

        The helper does so itself, in the same request, unless it is killed or cannot.
        """
        if lock == "snapshot-delete" and not isinstance(found, Unreadable) and found.get(SNAPSHOT) == "delete":
            self._ask(locks.left_by_our_delete(memory, self.state.env.clock.boottime()), LockStep.UNLOCK)

    def _seen_later(self, memory: LockMemory, answer: Answer) -> bool:
        """Whether to look again at the next looks, since what came of it cannot be read now: until then nobody says that it failed."""
        often = self.unseen.get(memory.id, (answer, 0))[1] + 1
        if often >= UNSEEN:
            return False
        self.unseen[memory.id], self.memories[memory.id] = (answer, often), memory
        return True

    def _lock_now(self, id: GuestId) -> Reading[str | None]:
        try:
            return self.state.env.pve.live(id, deadline=self.deadline).lock
        except PveError as error:
            return Unreadable(f"whether it is still locked cannot be read: {error}")

    def _failed(self, memory: LockMemory, reason: str, *, known: bool = True) -> None:
        """known: whether it was seen that it has not come about."""
        self.unseen.pop(memory.id, None)
        unlock = memory.step is LockStep.UNLOCK
        self.memories[memory.id] = after = locks.failed(memory, self.state.env.clock.boottime())
        made, most = (after.unlocks, locks.UNLOCKS) if unlock else (after.deletes, locks.DELETES)
        wait = (after.next_at if unlock else after.delete_at) - self.state.env.clock.boottime()
        what = replace(after, kind=memory.kind if unlock else "")
        again = f"tried again in {wait:.0f} s at the earliest" if made < most else f"given up, {locks.to_do(what)}"
        what_came = "failed" if known else "may have failed, what came of it is not known"
        text = f"{memory.step} {what_came} ({made} of {most}), {again}: {reason}"
        told = locks.notice(Event.LOCK_STEP_FAILED, memory, text, step=str(memory.step), reason=reason, attempt=made, of=most)
        self.state.env.tell((told,))
