"""Whether a lock is stale: only what can be proven is (I7). Every witness but the lock itself must be readable and say no, on two
looks a minute apart, and something must show that a vzdump of ours left it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from guestward.model.decision import Gate, Guard
from guestward.model.events import Event, EventKind, Notice
from guestward.model.guest import GuestId, GuestKind, ListedGuest
from guestward.model.helper import SNAPSHOT, STATE_OF_LOCK, Answer, HelperCode
from guestward.model.locks import LockCheck, LockDecision, LockMemory, LockStep, LockVerdict
from guestward.model.memory import Hold
from guestward.model.observation import Observation
from guestward.model.reading import Reading, Unreadable
from guestward.model.rules import Rules
from guestward.model.task import Error, Task, Unknown, Upid
from guestward.policy.backups import backup_of
from guestward.policy.causes import of_this_boot
from guestward.policy.vzdumplog import Visit, VisitEnd, visit

NOT_READ = Unreadable("not read")
UNLOCKS, UNLOCK_WAITS = 6, (60.0, 120.0, 600.0, 3600.0, 6 * 3600.0)  # one that changes nothing does no harm, and the guest is down
REFUSAL_WAIT, LONGEST_REFUSAL_WAIT = 60.0, 3600.0
DELETES, DELETE_WAITS = 3, (3600.0, 6 * 3600.0)  # a failed delete locks the guest anew (C39), and the next backup tidies up as well
PASSING = frozenset(
    {
        *(HelperCode.BUSY, HelperCode.BACKUP_RUNNING, HelperCode.TASK_RUNNING, HelperCode.LOCK_CHANGED, HelperCode.LOCKED),
        *(HelperCode.NO_GUEST, HelperCode.WRONG_KIND, HelperCode.NO_SNAPSHOT, HelperCode.SNAPSHOT_CHANGED, HelperCode.TOO_SLOW),
        *(HelperCode.BOOTING, HelperCode.STOPPING, HelperCode.NO_QUORUM, HelperCode.NO_PMXCFS, HelperCode.HELD),
    }
)
"""Refusals that say that the world is another one than was seen a moment ago; told only when they come again and again."""
OFTEN = 3  # refusals of that kind in a row
EARLY = 1.0  # looks come once a minute, and now and then one comes milliseconds early
HISTORY_PAGE = 500  # ended vzdumps that are asked for; PVE keeps about 2000 tasks of all types (pve-facts D6)
CLOCK_SLACK = 2.0  # starts and ends of tasks are whole seconds


@dataclass(frozen=True, slots=True)
class LockCase:
    """All that is asked about one lock.

    obs: with its backup witnesses. snapshots: of a container, name -> snapstate. history: ended vzdumps of any boot, newest first.
    logs: of those of them that `suspects` names. written: when the files of locked guests were last written, in seconds since the epoch;
    a file of which that cannot be read is not in it. hold: of this guest. offsets: what wall clock less boot clock has been in this boot.
    """

    obs: Observation
    memory: LockMemory
    gate: Gate
    confirm: float
    snapshots: Reading[Mapping[str, str]] = NOT_READ
    history: Reading[tuple[Task, ...]] = NOT_READ
    logs: Mapping[Upid, Reading[tuple[str, ...]]] = field(default_factory=dict)
    written: Mapping[GuestId, float] = field(default_factory=dict)
    hold: tuple[Hold, float] | None = None
    offsets: tuple[float, ...] = ()

    @property
    def id(self) -> GuestId:
        """The guest."""
        return self.memory.id


def judge(case: LockCase) -> LockDecision:
    """Ask everything in order; what is thought of the lock is what the first answer says that recovery cannot live with."""
    checks: list[LockCheck] = []
    verdict = LockVerdict.STALE
    for bad, check in _questions(case):
        checks.append(check)
        if check.ok is not True:
            verdict = LockVerdict.UNKNOWN if check.ok is None else bad
            break
    memory = case.memory
    return LockDecision(memory.id, memory.name, memory.kind, verdict, checks[-1].evidence, tuple(checks), _since(case))


def _since(case: LockCase) -> float:
    """Since when it is there at least, in seconds since host boot: where nobody saw it come, since its file was last written."""
    memory, written = case.memory, case.written.get(case.id)
    if memory.free_at is not None or written is None:
        return memory.since
    return min(memory.since, case.obs.at - (case.obs.wall - written))


def needs_snapshots(memory: LockMemory) -> bool:
    """Whether only a container's snapshots tell what its lock is."""
    return memory.id.kind is GuestKind.LXC and memory.kind in ("", *STATE_OF_LOCK)


def asks_history(decision: LockDecision) -> bool:
    """Whether everything else is as recovery needs it, and only the task history, or a log, can tell more."""
    return decision.verdict is LockVerdict.UNKNOWN and decision.checks[-1].name == "trace"


@dataclass(frozen=True, slots=True)
class Settled:
    """What is remembered of a lock after it was judged, and what there is to tell."""

    memory: LockMemory
    decision: LockDecision
    notices: tuple[Notice, ...] = ()


def settle(memory: LockMemory, decision: LockDecision, at: float, rules: Rules) -> Settled:
    """Remember whether this look found an owner; say once that a lock is stale, and once that it is old."""
    clear = decision.verdict in (LockVerdict.UNCONFIRMED, LockVerdict.STALE)
    memory = replace(memory, clear_since=(memory.clear_since if memory.clear_since is not None else at) if clear else None)
    if decision.verdict is LockVerdict.UNCONFIRMED and memory.clear_since is not None:
        decision = replace(decision, next_at=memory.clear_since + rules.lock_confirm)
    decision = replace(decision, next_step=_next_step(memory, decision, at, rules))
    notices = []
    known = memory.told or (not memory.kind and memory.deletes > 0)  # that its snapshot could not be deleted was told
    if decision.verdict is LockVerdict.STALE and not known and not memory.asked:
        text = f"has a {in_words(memory)} that nobody owns: {_proof(decision)}; {decision.next_step}"
        notices.append(notice(Event.LOCK_STALE, memory, text, lock=memory.kind or SNAPSHOT, evidence=_proof(decision)))
        memory = replace(memory, told=True)
    age = at - decision.since
    if memory.kind and not memory.warned and age >= rules.lock_warn_after:
        text = f"has been locked ({memory.kind}) for {age / 3600:.0f} h: {decision.verdict} ({decision.evidence})"
        notices.append(notice(Event.LOCK_OLD, memory, text, lock=memory.kind, age_s=round(age), evidence=decision.evidence))
        memory = replace(memory, warned=True)
    return Settled(memory, decision, tuple(notices))


def due(memory: LockMemory, decision: LockDecision, at: float, rules: Rules) -> LockStep | None:
    """What is to be done about a lock now."""
    if decision.verdict is not LockVerdict.STALE or not rules.lock_recovery or memory.asked or at < not_before(memory):
        return None
    if memory.kind:
        return LockStep.UNLOCK if memory.unlocks < UNLOCKS else None
    return LockStep.DELETE_SNAPSHOT if memory.deletes < DELETES else None


def asking(memory: LockMemory, step: LockStep) -> LockMemory:
    """Written down before the helper is asked."""
    return replace(memory, step=step, asked=True)


def looked_at_anew(memory: LockMemory) -> LockMemory:
    """There is another world than was seen; or the helper was not asked: the proof begins anew, and nothing has failed."""
    return replace(memory, step=LockStep.PROVE, asked=False, clear_since=None, follows=False)


def refused(memory: LockMemory, answer: Answer, at: float) -> tuple[LockMemory, tuple[Notice, ...]]:
    """The helper has done nothing, and says why: no attempt is used up, the next one waits longer each time, and it is told once.

    At once where nothing but a person changes that; what passes by itself only when it comes again and again. A lock that came while we
    asked for a delete is not of that delete.
    """
    step, count = memory.step, memory.refusals + 1
    wait = min(REFUSAL_WAIT * 2 ** min(count - 1, 10), LONGEST_REFUSAL_WAIT)
    words = f"{answer.code}: {without_id(memory, answer)}"
    told = memory.refused_told
    tell = told != answer.code and (answer.code not in PASSING or (told is None and count >= OFTEN))
    memory = replace(put_off(memory, at + wait), refusals=count, refusal=words, refused_told=answer.code if tell else told)
    memory = replace(memory, ours=memory.ours and step is LockStep.UNLOCK)
    if not tell:
        return memory, ()
    times = f" {count} times in a row" if count > 1 else ""
    text = f"{step} refused by the root helper{times}, nothing was changed, asked again with longer and longer waits: {words}"
    return memory, (notice(Event.LOCK_STEP_REFUSED, memory, text, step=str(step), code=str(answer.code), reason=answer.message),)


def without_id(memory: LockMemory, answer: Answer) -> str:
    """What the helper said, for a sentence that begins with the guest's id already."""
    return answer.message.removeprefix(f"{memory.id}: ")


def failed(memory: LockMemory, at: float) -> LockMemory:
    """A step that was tried and did not come about. The next attempt waits, and needs fresh evidence."""
    unlock = memory.step is LockStep.UNLOCK
    made = (memory.unlocks if unlock else memory.deletes) + 1
    waits = UNLOCK_WAITS if unlock else DELETE_WAITS
    memory, again = replace(looked_at_anew(memory), refusals=0, refusal="", refused_told=None), at + waits[min(made, len(waits)) - 1]
    return replace(memory, unlocks=made, next_at=again) if unlock else replace(memory, deletes=made, delete_at=again)


def unlocked(memory: LockMemory) -> LockMemory:
    """Its lock is gone; what may be left is the snapshot."""
    return replace(looked_at_anew(memory), kind="", unlocks=0, next_at=0.0, refusals=0, refusal="", refused_told=None, ours=False)


def recovering(memory: LockMemory, decision: LockDecision | None, rules: Rules) -> bool:
    """Whether the guest is not to be started yet: the helper is at work on it, or its snapshot is deleted in a minute or two."""
    soon = decision is not None and decision.verdict in (LockVerdict.UNCONFIRMED, LockVerdict.STALE)
    return memory.asked or (memory.follows and soon and rules.lock_recovery)


def left_by_our_delete(memory: LockMemory, at: float) -> LockMemory:
    """A delete that failed has left its lock: that one is ours to clear at once, before anything else (C39)."""
    return replace(memory, kind="snapshot-delete", since=at, free_at=at, ours=True)


def rearmed(memory: LockMemory) -> LockMemory:
    """`guestward rearm`: all attempts again, at once."""
    return replace(memory, unlocks=0, deletes=0, next_at=0.0, delete_at=0.0, refusals=0, refusal="", refused_told=None)


def not_before(memory: LockMemory) -> float:
    """When the next step may be taken. A delete that waits makes no unlock wait: power comes before tidiness (C39)."""
    return memory.next_at if memory.kind else memory.delete_at


def put_off(memory: LockMemory, until: float) -> LockMemory:
    """The helper could not be asked."""
    memory = looked_at_anew(memory)
    return replace(memory, next_at=until) if memory.kind else replace(memory, delete_at=until)


def in_words(memory: LockMemory) -> str:
    """What it is about."""
    return f"lock `{memory.kind}`" if memory.kind else f"snapshot `{SNAPSHOT}`"


def notice(event: EventKind, memory: LockMemory, message: str, **fields: object) -> Notice:
    """An event about the guest of a lock."""
    return Notice(event, memory.id, memory.name, str(Guard.LOCKED) if memory.kind else "", message, tuple(fields.items()))


def _next_step(memory: LockMemory, decision: LockDecision, at: float, rules: Rules) -> str:
    what = "it is unlocked" if memory.kind else f"the snapshot `{SNAPSHOT}` is deleted"
    if decision.verdict is LockVerdict.UNCONFIRMED:
        would = what if rules.lock_recovery else f"{what}, were `[locks] recover` not `report`"
        return f"if nobody owns it at the next look either, {would}"
    if decision.verdict is not LockVerdict.STALE:
        return ""
    if not rules.lock_recovery:
        return f"nothing is done, since `[locks] recover` is `report`; with `prove` {what}"
    if (memory.unlocks >= UNLOCKS) if memory.kind else (memory.deletes >= DELETES):
        return f"given up after {UNLOCKS if memory.kind else DELETES} attempts; {to_do(memory)}"
    again = not_before(memory)
    said = f" (the root helper refused that: {memory.refusal})" if memory.refusal else ""
    return f"{what} in {again - at:.0f} s{said}" if at < again else f"{what} now{said}"


def to_do(memory: LockMemory) -> str:
    """What a person does when all attempts are used up. A snapshot that was being made is in the configuration, and perhaps nowhere else:
    then no deletion succeeds but one with --force (pve-facts B1).
    """
    again = f"mend the cause, then: guestward rearm {memory.id.vmid}"
    force = f"; or, where the storage has no such snapshot: pct delsnapshot {memory.id.vmid} {SNAPSHOT} --force"
    return again if memory.kind else again + force


def _proof(decision: LockDecision) -> str:
    """The evidence of every answer but the first, which is what the message begins with."""
    return "; ".join(check.evidence for check in decision.checks if check.name in ("no backup at work", "trace"))


def _questions(case: LockCase) -> Iterator[tuple[LockVerdict, LockCheck]]:
    """Each with what is thought of the lock when the answer is not yes."""
    yield LockVerdict.NOBODYS_BUSINESS, _kind(case)
    gate = case.gate
    yield LockVerdict.HOST_GATE, LockCheck("host", gate.open, gate.evidence or "the host is up, quorate and not held")
    yield LockVerdict.HELD, _held(case)
    yield LockVerdict.OWNED, _no_backup(case)
    yield LockVerdict.OWNED, _no_task(case)
    yield LockVerdict.NO_TRACE, _trace(case)
    yield LockVerdict.UNCONFIRMED, _confirmed(case)


def _kind(case: LockCase) -> LockCheck:
    """`backup`; for a container also what it becomes while vzdump makes and deletes its snapshot, or that snapshot alone."""
    kind = case.memory.kind
    if kind == "backup":
        return LockCheck("kind", True, "lock `backup`")
    if not needs_snapshots(case.memory):
        return LockCheck("kind", False, f"lock `{kind}`: clearing it could do harm, and is nobody's business here")
    if isinstance(case.snapshots, Unreadable):
        return LockCheck("kind", None, f"{'lock `' + kind + '`: ' if kind else ''}its snapshots cannot be read: {case.snapshots.reason}")
    state = case.snapshots.get(SNAPSHOT)
    if kind == "":
        return LockCheck(
            "kind", state is not None, f"snapshot `{SNAPSHOT}` without a lock" if state is not None else "no snapshot of vzdump"
        )
    wanted = STATE_OF_LOCK[kind]
    words = "is not there" if state is None else f"is in state `{state or 'whole'}`"
    return LockCheck("kind", state == wanted, f"lock `{kind}`, and the snapshot `{SNAPSHOT}` {words}")


def _held(case: LockCase) -> LockCheck:
    if case.hold is None:
        return LockCheck("hold", True, "not held")
    hold, remaining = case.hold
    return LockCheck("hold", False, f"held by {hold.by} for another {remaining:.0f} s")


def _no_backup(case: LockCase) -> LockCheck:
    """Every witness but the lock itself. The flock must be free of any backup, since an unlock is made under it."""
    found = backup_of(case.id.vmid, None, case.obs.tasks, case.obs.backups)
    flock = case.obs.backups.flock
    if found.running is False and flock is not None and not isinstance(flock, Unreadable):
        return LockCheck("no backup at work", False, f"/var/run/vzdump.lock is held by pid {flock.pid}, for another guest; waited for")
    words = found.evidence.removeprefix("no lock, ")  # that one is not asked here
    return LockCheck("no backup at work", None if found.running is None else not found.running, words)


def _no_task(case: LockCase) -> LockCheck:
    tasks = case.obs.tasks
    if isinstance(tasks, Unreadable):
        return LockCheck("no task", None, tasks.reason)
    at_work = [task.upid for task in tasks if task.running and task.upid.id == str(case.id.vmid)]
    return LockCheck(
        "no task", not at_work, f"{at_work[0].type} by {at_work[0].user} is running" if at_work else "no task for it is running"
    )


def _trace(case: LockCase) -> LockCheck:
    """Who left it. A container's snapshot of that name needs no trace: only vzdump makes one. Ours is what our own delete left."""
    memory = case.memory
    if memory.ours:
        return LockCheck("trace", True, "left by our own delete of the snapshot")
    if memory.kind == "":
        return LockCheck("trace", True, f"only vzdump makes a snapshot called `{SNAPSHOT}`")
    if isinstance(case.history, Unreadable):
        return LockCheck("trace", None, f"task history: {case.history.reason}")
    if case.id not in case.written:
        return LockCheck("trace", None, "when its configuration was last written cannot be read")
    return _left_by_vzdump(case, case.history)


def suspects(case: LockCase) -> tuple[Upid, ...]:
    """The vzdumps that can have left it; their logs tell whether one did."""
    return () if isinstance(case.history, Unreadable) else tuple(task.upid for task in _suspects(case, case.history))


def _left_by_vzdump(case: LockCase, history: tuple[Task, ...]) -> LockCheck:
    for task in _suspects(case, history):
        log = case.logs.get(task.upid, NOT_READ)
        if isinstance(log, Unreadable):
            return LockCheck("trace", None, f"the log of a vzdump by {task.upid.user} that may have left it: {log.reason}")
        how = _left(case, task, visit(log, case.id.vmid))
        if how:
            return LockCheck("trace", True, f"a vzdump by {task.upid.user} for {task.upid.id or 'several guests'} {how}")
    written = case.written[case.id]
    if len(history) >= HISTORY_PAGE and min(task.upid.starttime for task in history) > written:
        return LockCheck("trace", None, f"the lock is older than the {len(history)} newest backups, and more are not shown")
    return LockCheck("trace", False, "no vzdump that died was at this guest when the lock came")


def _suspects(case: LockCase, history: tuple[Task, ...]) -> Iterator[Task]:
    if case.id in case.written:
        yield from (task for task in _this_boot_at_least(case, history) if _at_work_then(task, case))


def _left(case: LockCase, task: Task, seen: Visit | None) -> str:
    """How that vzdump left the lock, in words; "" where it did not, or nobody can say.

    One that was killed at this guest left whatever was there. One that failed cleans up after itself; where that fails, too, the task is
    over a moment later, if it was for this guest alone. A snapshot that it cannot delete keeps the lock `snapshot-delete` however it ends,
    and it says so and ends well (VZDump/LXC.pm:cleanup).
    """
    if seen is None or not seen.locked:
        return ""
    status = task.status
    if case.memory.kind == "snapshot-delete" and seen.not_removed:
        return "could not delete its snapshot"
    if seen.end is VisitEnd.NONE and isinstance(status, (Unknown, Error)):
        return f"died when the lock was there: {status.detail}"
    failed = seen.end is VisitEnd.FAILED and task.upid.id != "" and isinstance(status, Error)
    return f"failed when the lock was there: {status.detail}" if failed and isinstance(status, Error) else ""


def _this_boot_at_least(case: LockCase, history: tuple[Task, ...]) -> Iterable[Task]:
    """The tasks that can have left it: a lock that came while we looked came in this boot."""
    return history if case.memory.free_at is None else of_this_boot(history, case.obs.at, case.offsets)


def _at_work_then(task: Task, case: LockCase) -> bool:
    """Whether that was a vzdump that may have been for this guest, and the lock came while it was at work.

    The configuration file, of which a lock is a line, was last written then; and where we were looking, it came between two looks.
    """
    if task.upid.type != "vzdump" or not task.upid.covers(case.id.vmid) or not _in(task, case.written[case.id]):
        return False
    memory, end = case.memory, _end(task)
    if memory.free_at is None:
        return True
    end -= task.upid.starttime - task.upid.started_boottime
    return task.upid.started_boottime - CLOCK_SLACK <= memory.since and end + CLOCK_SLACK >= memory.free_at


def _in(task: Task, at: float) -> bool:
    """Whether that second of the wall clock was while the task ran, as PVE noted it."""
    return task.upid.starttime - CLOCK_SLACK <= at <= _end(task) + CLOCK_SLACK


def _end(task: Task) -> float:
    return -math.inf if task.endtime is None else task.endtime


def _confirmed(case: LockCase) -> LockCheck:
    since = case.memory.clear_since
    seen = 0.0 if since is None else case.obs.at - since
    return LockCheck(
        "seen twice", since is not None and seen >= case.confirm - EARLY, f"nobody has owned it for {seen:.0f} s of {case.confirm:.0f} s"
    )


def seen_now(known: LockMemory | None, guest: ListedGuest, stamp: str, obs: Observation, free_at: float | None) -> LockMemory:
    """Bring what is remembered of a guest's lock up to what is seen of it now. free_at: the last look, if the guest was seen at it.

    Another kind, or a file that was written meanwhile, is another lock: what was known of the last one proves nothing for it. That is so
    for what our own delete left too, but whose it is, is known.
    """
    kind = guest.lock or ""
    memory = LockMemory(guest.id) if known is None else known
    if memory.asked and memory.step is LockStep.UNLOCK and not kind:
        return memory  # gone as we asked; what comes next begins when that has been told
    another = known is None or (memory.kind, memory.stamp) != (kind, stamp)
    deleting = memory.asked and memory.step is LockStep.DELETE_SNAPSHOT
    ours = kind == "snapshot-delete" and (memory.ours or deleting)
    if memory.kind != kind:
        memory = replace(memory, unlocks=0, next_at=0.0, refusals=0, refusal="", refused_told=None, warned=False)
    if memory.kind != kind == "backup":  # the next vzdump has deleted the old snapshot, or is refused for it
        memory = replace(memory, deletes=0, delete_at=0.0)
    if another:
        memory = replace(memory, kind=kind, stamp=stamp, since=obs.at, free_at=free_at, clear_since=None, told=False)
    return replace(memory, name=guest.name, ours=ours)


def after_boot(memories: Iterable[LockMemory]) -> tuple[LockMemory, ...]:
    """In another boot all times are void. What is known on is whose the lock of a delete of ours is, which outlives a boot, and who was
    told that a lock is old.
    """
    ours = {m.id: m.ours or (m.asked and m.step is LockStep.DELETE_SNAPSHOT) for m in memories}
    return tuple(LockMemory(m.id, m.name, m.kind, ours=ours[m.id], warned=m.warned) for m in memories if ours[m.id] or m.warned)
