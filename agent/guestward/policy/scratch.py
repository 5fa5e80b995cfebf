"""Which guests of the scratch band are leftovers that may be destroyed: inside the band, proven ours, and used by nobody (I8)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from guestward.model.decision import Gate
from guestward.model.guest import GuestConfig, GuestId, ListedGuest
from guestward.model.memory import Hold
from guestward.model.observation import LostGrant, Resources
from guestward.model.reading import Reading, Unreadable
from guestward.model.rules import Rules
from guestward.model.scratch import Claimed, ScratchDecision, ScratchMemory, ScratchVerdict
from guestward.model.task import Error, Task, Unknown, Upid

FAILURES = 3
WAITS = (900.0, 3600.0)  # after the first and the second failure
RELEASED = frozenset({"create", "destroyed"})  # locks that a dead restore or destroy leaves (pve-facts B1)
WRITTEN_SLACK = 60.0  # between the end of a task and the last write that it does
READ_SLACK = 60.0  # between the look at the clock and the end of the reads
MADE = frozenset({"vzcreate", "vzrestore", "qmcreate", "qmrestore"})
GONE = frozenset({"vzdestroy", "qmdestroy"})
MOVED = frozenset({"vzclone", "qmclone", "vzmigrate", "qmigrate", "qmmigrate"})


@dataclass(frozen=True, slots=True)
class ScratchCase:
    """One guest of the band with all that is asked about it.

    listed: None where the token does not see it. config, active, past, resources: as read; past: ended tasks of this VMID, newest
    first. token_id: our own token. written: when its file was last written, in seconds since the epoch. at: seconds since host boot;
    wall: seconds since the epoch. lost: grants that the token lacks on its path. hold: of an operator, or a claim.
    """

    id: GuestId
    memory: ScratchMemory
    rules: Rules
    gate: Gate
    token_id: str
    at: float
    wall: float
    listed: ListedGuest | None
    config: Reading[GuestConfig]
    active: Reading[tuple[Task, ...]]
    past: Reading[tuple[Task, ...]]
    resources: Reading[Resources]
    written: float | None
    lost: tuple[LostGrant, ...] = ()
    hold: Hold | None = None

    @property
    def name(self) -> str:
        """As listed; "" where it is not."""
        return self.listed.name if self.listed is not None else ""


def judge(case: ScratchCase) -> ScratchDecision:
    """What is thought of that guest."""
    if case.lost:
        words = ", ".join(grant.privilege for grant in case.lost)
        return _decision(case, ScratchVerdict.STRANDED, f"the token, or its user, lacks {words} on {case.lost[0].path}")
    readings = {"configuration": case.config, "active tasks": case.active, "past tasks": case.past, "HA": case.resources}
    unread = [f"{what}: {found.reason}" for what, found in readings.items() if isinstance(found, Unreadable)]
    if case.listed is None:
        unread.append("the list of guests: it is not in there")
    if unread:
        return _decision(case, ScratchVerdict.UNKNOWN, "; ".join(unread))
    return next(_judgements(case))


def _judgements(case: ScratchCase) -> Iterator[ScratchDecision]:
    """Each that applies, in order; the last one always does."""
    for verdict, evidence in (*_never(case), *_not_now(case)):
        if evidence:
            yield _decision(case, verdict, evidence)
    proof = origin(case)
    if not proof:
        yield _decision(case, ScratchVerdict.UNPROVEN, "no tag, no claim, and PVE's record names no restore by one of [scratch] origins")
    yield from _later(case, proof)
    yield _decision(case, ScratchVerdict.LEFTOVER, f"{proof}; unused for {unused_for(case):.0f} s", proof)


def _never(case: ScratchCase) -> Iterator[tuple[ScratchVerdict, str]]:
    config, resources = case.config, case.resources
    assert isinstance(config, GuestConfig)  # noqa: S101 - asked before
    assert isinstance(resources, Resources)  # noqa: S101
    template = config.template or (case.listed is not None and case.listed.template)
    yield ScratchVerdict.TEMPLATE, "it is a template" if template else "it has a base volume" if config.base else ""
    yield ScratchVerdict.PROTECTED, "`protection` is set" if config.protection else ""
    managed = case.id in resources.ha and resources.ha[case.id] != "ignored"
    unlisted = case.id not in resources.listed
    yield ScratchVerdict.HA, f"hastate {resources.ha[case.id]}" if managed else "HA's state of it is not shown" if unlisted else ""
    lock = config.lock
    yield ScratchVerdict.LOCKED, f"lock {lock}" if lock is not None and lock not in RELEASED else ""


def _not_now(case: ScratchCase) -> Iterator[tuple[ScratchVerdict, str]]:
    assert not isinstance(case.active, Unreadable)  # noqa: S101 - asked before
    running = [t for t in case.active if t.running and _may_be_of(t.upid, case)]
    yield ScratchVerdict.TASK, f"{running[0].upid.type} by {running[0].upid.user} is running" if running else ""
    hold = case.hold
    yield ScratchVerdict.CLAIMED, f"claimed by {hold.by}: {hold.reason}" if hold is not None and hold.claim else ""
    yield ScratchVerdict.HELD, f"held by {hold.by}: {hold.reason}" if hold is not None and not hold.claim else ""
    yield ScratchVerdict.HOST_GATE, "; ".join(closure.evidence for closure in case.gate.closures)


def _may_be_of(upid: Upid, case: ScratchCase) -> bool:
    """A backup of several guests names none of them, and a clone only the guest that it is taken from; the new container is locked."""
    assert isinstance(case.config, GuestConfig)  # noqa: S101 - asked before
    nameless = (upid.type == "vzdump" and upid.id == "") or (upid.type == "vzclone" and case.config.lock is not None)
    return nameless or upid.id == str(case.id.vmid)


def _later(case: ScratchCase, proof: str) -> Iterator[ScratchDecision]:
    age, least, memory = unused_for(case), case.rules.scratch_min_age, case.memory
    if age < least:
        text = f"{proof}; unused for {age:.0f} s, {least:.0f} s are asked for"
        yield _decision(case, ScratchVerdict.YOUNG, text, proof, case.at + least - age)
    if memory.failures >= FAILURES:
        yield _decision(case, ScratchVerdict.GIVEN_UP, f"{proof}; tearing it down has failed {memory.failures} times", proof)
    if case.at < memory.next_at:
        text = f"{proof}; tearing it down has failed, it is tried again in {memory.next_at - case.at:.0f} s"
        yield _decision(case, ScratchVerdict.WAITING, text, proof, memory.next_at)


def _decision(case: ScratchCase, verdict: ScratchVerdict, evidence: str, proof: str = "", next_at: float | None = None) -> ScratchDecision:
    return ScratchDecision(case.id, case.name, verdict, evidence, proof, next_at)


def origin(case: ScratchCase) -> str:
    """What proves that the guest is ours; "" when nothing does. Past tasks and configuration must be known."""
    assert isinstance(case.config, GuestConfig)  # noqa: S101 - asked before
    if case.rules.scratch_tag in case.config.tags:
        return f"tag {case.rules.scratch_tag}"
    makers = _makers(case)
    if makers and all(task.upid.user in case.rules.scratch_origins for task in makers):
        return f"{makers[0].upid.type} by {makers[0].upid.user}"
    claimed = case.memory.claimed
    return f"claimed by {claimed.by}" if claimed is not None and _within(claimed, makers) else ""


def _within(claimed: Claimed, makers: tuple[Task, ...]) -> bool:
    """Whether the guest was made while its VMID was claimed. Who claims a VMID may not know that somebody's guest has it already."""
    since = math.floor(claimed.since)  # PVE notes whole seconds
    return bool(makers) and all(since <= task.upid.starttime <= claimed.until for task in makers)


def _makers(case: ScratchCase) -> tuple[Task, ...]:
    """The tasks one of which made the guest, by PVE's own record, newest first; none where that does not tell.

    A restore over a guest makes it anew. One that failed has left the file alone, or was the last to write it and has left either what it
    began or the guest that it found; otherwise nobody knows. A clone's task is under the VMID that it was taken from: what is there after
    a destroy, nobody knows. Only one that was killed leaves its guest, with the lock `destroyed`.
    """
    assert not isinstance(case.past, Unreadable)  # noqa: S101 - asked before
    found: list[Task] = []
    for task in case.past:
        kind, failed = task.upid.type, isinstance(task.status, Error)
        if kind in MADE and failed and _left_alone(task, case.written):
            continue
        if kind in MOVED or (kind in MADE and failed and not found and not _wrote_last(task, case.written)):
            return ()
        if kind in MADE:
            found.append(task)
        if (kind in MADE and not failed) or (kind in GONE and not failed and not _was_killed(task, case)):
            break
    return tuple(found)


def _left_alone(task: Task, written: float | None) -> bool:
    return written is not None and written < task.upid.starttime - 1


def _wrote_last(task: Task, written: float | None) -> bool:
    """Of one that has not left the file alone."""
    return written is not None and task.endtime is not None and written <= task.endtime + WRITTEN_SLACK


def _was_killed(destroy: Task, case: ScratchCase) -> bool:
    assert isinstance(case.config, GuestConfig)  # noqa: S101 - asked before
    return isinstance(destroy.status, Unknown) and case.config.lock == "destroyed"


def unused_for(case: ScratchCase) -> float:
    """For how many seconds nothing has touched it, at least.

    By the tasks on it. Where none of them made it, as with a clone, the last write of its file counts too, by the wall clock and the boot.
    """
    assert not isinstance(case.past, Unreadable)  # noqa: S101 - asked before
    used = (task for task in case.past if task.upid.user != case.token_id)  # what we do to it is no use of it
    ages = [_over_for(task, case) for task in used]
    if not _makers(case):
        ages.append(min(case.at, case.wall - case.written) if case.written is not None else 0.0)
    return max(0.0, min(ages, default=0.0))


def _over_for(task: Task, case: ScratchCase) -> float:
    """By the boot clock, by which PVE notes the begin only: one of an earlier boot is as old as this boot at least.

    The end is noted by the wall clock, which may have been set during the task or since: of the two ends that follow, the later one of
    those that are possible counts.
    """
    began, at = task.upid.started_boottime, case.at
    if began > at + READ_SLACK:
        return at
    offsets = (task.upid.starttime - began, case.wall - at)
    ends = () if task.endtime is None else tuple(task.endtime - offset for offset in offsets)
    return at - max((end for end in ends if began - 1 <= end <= at), default=at)


def failed(memory: ScratchMemory, at: float) -> ScratchMemory:
    """One more failure: it waits, or is given up."""
    failures = memory.failures + 1
    wait = WAITS[min(failures, len(WAITS)) - 1]
    return replace(memory, failures=failures, next_at=at + wait)
