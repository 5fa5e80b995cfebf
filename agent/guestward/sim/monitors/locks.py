"""Lock recovery: what must be true when the agent asks the helper for a step, whatever the helper makes of it, and that it does ask (I7).

What is judged is the request. A helper that refuses is the second line of defence, and no excuse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import takewhile
from typing import ClassVar

from guestward.model.guest import GuestKind
from guestward.sim.helper import OUR_DELETE
from guestward.sim.log import Effect, Logged
from guestward.sim.monitors import truth
from guestward.sim.monitors.base import Watch
from guestward.sim.monitors.past import Asked, Facts, Of, Past, Snap
from guestward.sim.monitors.requests import STEPS, Request
from guestward.sim.tasks import SimTask
from guestward.sim.vzdump import UNEXPECTED, VZDUMP

EPS = 0.01
EARLY = 1.0  # looks come once a minute, and now and then one comes a moment early
MOST = {"unlock": 6, "delete-snapshot": 3}  # tried for one lock, or snapshot
LEAST_WAIT = 60.0
AFTER_A_DELETE = 3600.0  # that failed: the guest can run without it (docs/decisions/0013)
WAITS = {"unlock": (60.0, 120.0, 600.0, 3600.0, 6 * 3600.0), "delete-snapshot": (3600.0, 6 * 3600.0)}
LONGEST_REFUSAL_WAIT = 3600.0
LOOKS = 5.0  # what the looks themselves may take


def step_of(past: Past, effect: Effect) -> Request | None:
    """The request to the helper that has just had this effect; None where it was none. What comes through the API is judged by I3."""
    if effect.verb not in STEPS or effect.door != "helper" or effect.vmid is None:
        return None
    return past.requests.last(effect.vmid)


class StepRule(Watch):
    """One reason for which the helper must not be asked for a step. kind: the question that shows it."""

    kind: ClassVar[str] = ""

    def effect(self, effect: Effect) -> None:
        """Judge a request. What came after the agent's last look at it is no fault of the agent."""
        request = step_of(self.past, effect)
        if request is None:
            return
        found, known = self._bad(request.before, request), self._known(request)
        if found and (known is None or self._bad(known, request)):
            self.broken(f"{effect.verb} of {effect.vmid} at {effect.t:.1f} s although {found}")

    def _known(self, request: Request) -> Snap | None:
        return self.past.as_known(request.vmid, self.kind)

    def _bad(self, snap: Snap, request: Request) -> str:
        raise NotImplementedError


class RecoversOnlyIfTold(StepRule):
    """`[locks] recover = "report"`."""

    invariant, rule = "I7", 'with recover = "report" nothing is asked of the helper'

    def _bad(self, snap: Snap, request: Request) -> str:
        return "" if self.past.rules.lock_recovery else "recover is `report`"


class OwnLocksOnly(StepRule):
    """Whose guest it is."""

    invariant, rule = "I7", "only the lock of a guest of our pools, on our node, not excluded, outside the band, is ever touched"
    kind = "members"

    def _bad(self, snap: Snap, request: Request) -> str:
        rules = self.past.rules
        if rules.scratch_first <= request.vmid <= rules.scratch_last:
            return "its VMID is in the scratch band"
        return truth.not_ours(snap.guests.get(request.vmid))


class HostReadyForSteps(StepRule):
    """The host gate."""

    invariant, rule = "GATE", "no lock is touched while the host boots, stops, has no quorum, has the hold file, or is in maintenance"
    kind = "host"

    def _bad(self, snap: Snap, request: Request) -> str:
        found = {reason: why for reason, why in truth.gate(self.past, snap).items() if reason not in ("bulk_task", "hold")}
        if "maintenance" in snap.node.unreadable:
            found.pop("maintenance", None)
        return "; ".join([*found.values(), *(["the hold file is there"] if snap.node.hold_file else [])])


class NoBulkTaskAtSteps(StepRule):
    """The host gate, by its tasks."""

    invariant, rule = "GATE", "no lock is touched while a task acts on all guests at once"
    kind = "active"

    def _bad(self, snap: Snap, request: Request) -> str:
        return truth.gate(self.past, snap).get("bulk_task", "")


class HeldLocksLeftAlone(StepRule):
    """An operator's hold, on the guest or on the node."""

    invariant, rule = "HELD", "nothing is done to the lock of a guest that an operator holds, nor on a node that he holds"

    def _known(self, request: Request) -> Snap | None:
        """The agent's own store has them at any time, so that a hold counts which was there as this job began."""
        job = [asked for asked in self.past.job if asked.kind not in STEPS]
        return job[0].snap if job else None

    def _bad(self, snap: Snap, request: Request) -> str:
        if truth.held(self.past, snap, request.vmid):
            return "it is held"
        return "the node is held" if any(hold.vmid is None and truth.lasts(self.past, hold) for hold in snap.node.holds) else ""


class NobodyAtWork(StepRule):
    """I7: the owner's tasks."""

    invariant, rule = "I7", "no lock is touched while a vzdump that may be its owner, or another task of the guest, runs"
    kind = "active"

    def _bad(self, snap: Snap, request: Request) -> str:
        facts = snap.guests.get(request.vmid)
        upid = None if facts is None else truth.vzdump_on(snap, request.vmid) or truth.task_on(snap, facts.id)
        return f"{upid.type} by {upid.user} runs" if upid is not None else ""


class NoArchiveProcess(StepRule):
    """I7: what a killed vzdump leaves alive."""

    invariant, rule = "I7", "no lock is touched while an archive process of the guest lives"
    kind = "backups"

    def _bad(self, snap: Snap, request: Request) -> str:
        return "its archive process lives" if request.vmid in snap.node.archives else ""


class BackupLocksOnly(StepRule):
    """I7: the kind of the lock, and who set it."""

    invariant, rule = "I7", "only a lock is cleared, and only a snapshot deleted, that vzdump or our own delete left"
    kind = "list"

    def _bad(self, snap: Snap, request: Request) -> str:
        facts = snap.guests.get(request.vmid)
        if facts is None:
            return ""
        return self._unlock(facts) if request.verb == "unlock" else self._delete(facts)

    def _unlock(self, facts: Facts) -> str:
        if facts.lock is None or not truth.left_over(facts):
            return f"its lock is `{facts.lock}`"
        if not truth.proven(facts):
            return f"its lock `{facts.lock}` was set by somebody else than vzdump or us"
        told = any(task.upid.type == "vzdump" and task.upid.covers(facts.id.vmid) for task in self.past.world.archive)
        return "" if told or facts.locker == OUR_DELETE else "no vzdump of it stands in PVE's history"

    def _delete(self, facts: Facts) -> str:
        if facts.id.kind is GuestKind.QEMU:
            return "a VM's snapshot of that name is its owner's"
        return "" if facts.dangling is not None else "it has no snapshot of vzdump"


class UnlockedBeforeDeleted(StepRule):
    """I7: the order."""

    invariant, rule = "I7", "a snapshot is deleted only when the lock is gone"
    kind = "live"

    def _bad(self, snap: Snap, request: Request) -> str:
        facts = snap.guests.get(request.vmid)
        locked = request.verb == "delete-snapshot" and facts is not None and facts.lock is not None
        return f"its lock is `{facts.lock}`" if locked and facts is not None else ""


class SnapshotFirst(Watch):
    """I7: the order of the last two steps."""

    invariant, rule = "I7", "a guest that was unlocked is started only after its snapshot was deleted, or after that was tried"

    def __init__(self, past: Past) -> None:
        """unlocked: VMID -> virtual second; deleted: of which the snapshot was tried."""
        super().__init__(past)
        self.unlocked: dict[int, float] = {}
        self.deleted: set[int] = set()

    def effect(self, effect: Effect) -> None:
        """Keep the steps, and judge a start."""
        vmid = effect.vmid
        if vmid is None:
            return
        if effect.verb == "unlock":
            self._unlock(effect, vmid)
        elif effect.verb == "delete-snapshot":
            self.deleted.add(vmid)
        elif effect.verb == "start" and vmid in self.unlocked:
            self._start(effect, vmid)

    def _unlock(self, effect: Effect, vmid: int) -> None:
        facts = self.past.snap.guests.get(vmid)
        request = self.past.requests.last(vmid)
        was = request.before.guests.get(vmid) if request is not None else None
        if facts is None or effect.result == "refused":
            return
        if facts.lock is None:
            self.unlocked[vmid] = effect.t  # one that was lost on its way changed nothing
        if was is not None and was.lock == "backup":  # what our own failed delete left is unlocked so that nobody waits for tidiness (C39)
            self.deleted.discard(vmid)

    def looked(self, job: str) -> None:
        """Once it runs, has no such snapshot or is locked anew, its recovery is over: what comes then is another story."""
        guests = self.past.snap.guests
        for vmid in list(self.unlocked):
            facts = guests.get(vmid)
            if facts is None or facts.running or facts.lock is not None or facts.dangling is None:
                del self.unlocked[vmid]

    def _start(self, effect: Effect, vmid: int) -> None:
        facts = self.past.snap.guests.get(vmid)
        since = self.unlocked.pop(vmid)
        if facts is not None and facts.dangling is not None and vmid not in self.deleted:
            self.broken(f"start of {vmid} at {effect.t:.1f} s after its unlock at {since:.1f} s, before its snapshot was deleted")


class SeenTwice(Watch):
    """I7: two looks."""

    invariant, rule = "I7", "a lock is cleared only after two looks, `lock_confirm` apart, at which nobody owned it"

    def __init__(self, past: Past) -> None:
        """clear: VMID -> number of its lock, and since when, in seconds since host boot, every look has found nobody who owns it."""
        super().__init__(past)
        self.clear: dict[int, tuple[int, float]] = {}
        self.boot, self.life = past.world.boot, past.life
        self._locked: tuple[Snap, list[Facts]] = (past.snap._replace(guests={}), [])  # of no world

    def event(self, logged: Logged) -> None:
        """An agent that was started anew has done nothing yet: the locks are those that the one before it left."""
        if logged.event == "daemon_started":
            self._catch_up()

    def looked(self, job: str) -> None:
        """What this look found."""
        self._catch_up()
        if job != "follow":
            self._look(self.past.job, [*self._snaps(self.past.job), self.past.snap])

    def _catch_up(self) -> None:
        """In another boot all times are void. An agent that was killed in the middle of a look may have kept what it had found by then."""
        past = self.past
        if past.world.boot != self.boot:
            self.boot = past.world.boot
            self.clear.clear()
        if past.life != self.life:
            self.life = past.life
            self._look(past.cut_off, self._snaps(past.cut_off))

    def _snaps(self, job: Iterable[Asked]) -> list[Snap]:
        """The world at each question, as far as there is anything to judge."""
        return list({id(asked.snap): asked.snap for asked in job}.values()) if self.clear or self._those_locked() else []

    def _look(self, job: list[Asked], snaps: list[Snap]) -> None:
        if not any(asked.kind == "list" and asked.answered for asked in job):
            return
        locked = self._those_locked()
        for vmid in self.clear.keys() - {facts.id.vmid for facts in locked}:
            del self.clear[vmid]
        for facts in locked:
            vmid, lock = facts.id.vmid, self.past.memory(facts.id.vmid).locks
            if all(self._owned(snap, vmid) for snap in snaps):
                self.clear.pop(vmid, None)
            elif vmid not in self.clear or (self.clear[vmid][0] != lock and job is not self.past.cut_off):
                self.clear[vmid] = (lock, job[0].boot)

    def _those_locked(self) -> list[Facts]:
        snap = self.past.snap
        if self._locked[0].guests is not snap.guests:
            self._locked = (snap, [facts for facts in snap.guests.values() if facts.lock is not None or facts.dangling is not None])
        return self._locked[1]

    def _owned(self, snap: Snap, vmid: int) -> bool:
        facts, past = snap.guests.get(vmid), self.past
        if facts is None or not facts.owned or not truth.left_over(facts) or not truth.proven(facts):
            return True
        return bool(truth.at_work_on(snap, facts) or truth.held(past, snap, vmid) or truth.gate(past, snap))

    def effect(self, effect: Effect) -> None:
        """Judge a request."""
        request = step_of(self.past, effect)
        if request is None:
            return
        self._catch_up()
        if self._follows(request):
            return
        lock, since = self.clear.get(request.vmid, (-1, math.inf))
        confirm = self.past.rules.lock_confirm
        if lock != request.lock and not (lock >= 0 and self._changed_since_listed(request)):
            self.broken(f"{request.verb} of {request.vmid} at {effect.t:.1f} s, and no look before has shown that nobody owns its lock")
        if request.at - since < confirm - EARLY - EPS:
            self.broken(
                f"{request.verb} of {request.vmid} at {effect.t:.1f} s, {request.at - since:.1f} s after the first look that found nobody "
                f"who owns its lock; it takes {confirm:g} s"
            )

    def _changed_since_listed(self, request: Request) -> bool:
        """Whether the lock is another one than this look can have seen."""
        listed = self.past.last.get(("list", 0))
        return listed is not None and self.past.memory(request.vmid).lock_at >= listed.t

    def _follows(self, request: Request) -> bool:
        """A step of the same recovery: the snapshot after our unlock, what our own delete locked (C39), what the agent was killed at."""
        past, facts = self.past, request.before.guests.get(request.vmid)
        if request.verb == "unlock":
            return facts is not None and facts.locker == OUR_DELETE and past.requests.before(request, "delete-snapshot") is not None
        unlock, delete = (past.requests.before(request, verb) for verb in ("unlock", "delete-snapshot"))
        if unlock is not None and unlock.lock + 1 == request.lock and unlock.boot == request.boot:
            return True
        return delete is not None and delete.lock == request.lock and delete.life != request.life and delete.answer is None


class StepsBounded(Watch):
    """I7: how often."""

    invariant = "I7"
    rule = "a step is tried so often for one lock, or snapshot, and no more, over restarts of the agent too"

    def effect(self, effect: Effect) -> None:
        """Judge a request by those that were tried before."""
        request = step_of(self.past, effect)
        if request is None:
            return
        made, most = len(tried(self.past, request)), MOST[request.verb]
        if made >= most:
            self.broken(f"{request.verb} of {request.vmid} at {effect.t:.1f} s after {made} that were tried; at most {most}")


def refusal_wait(in_a_row: int) -> float:
    """How long the agent waits after so many refusals; a minute in any case."""
    return min(LEAST_WAIT * (1 << min(max(in_a_row - 1, 0), 10)), LONGEST_REFUSAL_WAIT)


def tried(past: Past, request: Request) -> list[Request]:
    """Those of the same verb that were tried before it, for the same lock or snapshot, since there was a reason for new ones."""
    same = [one for one in since_rearmed(past, request.vmid, request.verb) if one is not request and one.tried]
    if request.verb == "unlock":
        return [one for one in same if one.lock == request.lock]
    return [one for one in same if one.dangling_at == request.dangling_at]


def since_rearmed(past: Past, vmid: int, verb: str, *, strict: bool = True) -> list[Request]:
    """All of one verb since the agent may have begun to count anew: in this boot, after a rearm, a loss of its memory, another guest.

    strict: only those that it surely counts; a guest that was away for a moment it may not have missed.
    """
    of = past.memory(vmid)
    anew = max(of.rearmed, past.lost_state, of.gone_at if strict else -math.inf)
    return [one for one in past.requests.of.get(vmid, ()) if one.verb == verb and one.t >= anew and one.boot == past.world.boot]


class StepsSpaced(Watch):
    """I7: how soon again."""

    invariant = "I7"
    rule = (
        "between two requests for the same step of one guest lies a minute, longer after each refusal, an hour after a delete that failed"
    )

    def effect(self, effect: Effect) -> None:
        """Judge a request by the one before."""
        past, request = self.past, step_of(self.past, effect)
        if request is None:
            return
        before = past.requests.before(request, request.verb)
        if before is None or self._another(before, request):
            return
        wait = AFTER_A_DELETE if request.verb == "delete-snapshot" and before.tried else refusal_wait(self._refused_before(request))
        if request.at - before.at < wait - EPS:
            self.broken(
                f"{request.verb} of {request.vmid} at {effect.t:.1f} s, {request.at - before.at:.1f} s after the last one; "
                f"at least {wait:g} s lie between two"
            )

    def _refused_before(self, request: Request) -> int:
        """How often in a row, at least, as the agent counts: while nothing else happened to the lock."""
        same = [one for one in self.past.requests.of[request.vmid] if one is not request and one.verb == request.verb]
        row = takewhile(lambda one: one.refused and one.lock == request.lock and not self._another(one, request), reversed(same))
        return sum(1 for _ in row)

    def _another(self, before: Request, request: Request) -> bool:
        """Another lock or snapshot; or something happened after which the agent may ask at once. One that is cut off asks again."""
        of, past = self.past.memory(request.vmid), self.past
        if (before.boot, before.life) != (request.boot, request.life) or before.t < max(of.rearmed, of.gone_at, past.lost_state):
            return True
        if request.verb == "unlock":
            return before.lock != request.lock
        unlock = past.requests.before(request, "unlock")
        return before.dangling_at != request.dangling_at or (not before.tried and unlock is not None and unlock.t > before.t)


class ClearedInTime(Watch):
    """Recovery happens."""

    invariant = "LIVENESS"
    rule = "what a killed vzdump left of an owned guest, with nothing in the way, is cleared within `lock_confirm`, three intervals and 5 s"

    def __init__(self, past: Past) -> None:
        """since: VMID and verb -> virtual second from which on nothing stands in the way. clear: the same for node, API and helper."""
        super().__init__(past)
        self.since: dict[tuple[int, str], float] = {}
        self.clear = past.world.now
        self._left: tuple[Snap, list[Facts]] = (past.snap._replace(guests={}), [])  # of no world
        self._traces: dict[int, tuple[tuple[float, object], bool]] = {}

    def effect(self, effect: Effect) -> None:
        """A request is what was waited for."""
        if effect.verb in STEPS and effect.vmid is not None:
            self.since.pop((effect.vmid, effect.verb), None)

    def looked(self, job: str) -> None:
        """Judge those that have something left over."""
        past = self.past
        left = self._those_left() if past.rules.lock_recovery else []
        if not left and not self.since:
            self.clear = past.world.now
            return
        if not self._is_clear():
            self.clear = past.world.now
        waiting = {(facts.id.vmid, "delete-snapshot" if facts.lock is None else "unlock"): facts for facts in left}
        for key in self.since.keys() - waiting.keys():
            del self.since[key]
        for key, facts in waiting.items():
            self._judge(key, facts)

    def _those_left(self) -> list[Facts]:
        snap = self.past.snap
        if self._left[0].guests is not snap.guests:
            mine = [facts for facts in snap.guests.values() if facts.owned and not facts.band]
            self._left = (snap, [facts for facts in mine if truth.left_over(facts) and truth.proven(facts)])
        return self._left[1]

    def _is_clear(self) -> bool:
        """Whether nothing is in the way on the node: host, API, witnesses, other backups, and the helper."""
        past, helper, watch = self.past, self.past.world.helper, self.past.sim.watch
        if watch is None or watch.locks.ending or past.trouble or past.lost() or past.concealed():
            return False
        if helper.is_down or helper.delay or helper.says is not None or past.world.now - past.api_failed < 1:
            return False
        if any(upid.type == "vzdump" for upid in past.snap.tasks) or truth.gate(past, past.snap):
            return False
        node = past.snap.node
        if node.unreadable or node.hidden or not node.pmxcfs or node.local_name not in ("", past.world.node):
            return False
        return not any(asked.failed for asked in past.job)

    def _judge(self, key: tuple[int, str], facts: Facts) -> None:
        past, (vmid, verb) = self.past, key
        free = not truth.at_work_on(past.snap, facts) and not truth.held(past, past.snap, vmid) and not past.helper_at_work(vmid)
        asked = since_rearmed(past, vmid, verb, strict=False)
        if not free or not self._traced(facts) or len(failed(past, asked)) >= MOST[verb]:
            self.since.pop(key, None)
            return
        now, of = past.world.now, past.memory(vmid)
        since = max(self.since.setdefault(key, now), self.clear, past.alive_since, of.changed, of.gone_at)
        if now - since > self._bound() + waits(verb, past, asked):
            if truth.may_be_mass_stop(past, past.rules.mass_stop, 2 * truth.MASS_PAUSE + 120):
                self.since.pop(key)
                return
            what = "snapshot `vzdump`" if facts.lock is None else f"lock `{facts.lock}`"
            words = f"nothing stood in the way from {since:.1f} s to {now:.1f} s, and it is still there"
            self.broken(f"nobody owns the {what} of {facts.id}, {words}")

    def _bound(self) -> float:
        """One unlock, and one delete, is asked for at a time; of many containers not all are looked into at one look."""
        interval = self.past.sim.config.watchdog.interval
        return self.past.rules.lock_confirm + (2 + len(self.since) + len(self.past.snap.guests) / 10) * interval + LOOKS

    def _traced(self, facts: Facts) -> bool:
        """Whether PVE's history shows a vzdump that was killed with the lock that is there, by clocks that nobody has set."""
        if facts.lock is None or facts.locker == OUR_DELETE:
            return facts.locker != OUR_DELETE
        of, archive = self.past.memory(facts.id.vmid), self.past.world.archive
        head = archive[0] if archive else None
        known = self._traces.get(facts.id.vmid)
        written = self.past.world.guests[facts.id.vmid].written
        if known is None or known[0][0] != written or known[0][1] is not head:
            found = facts.locker == VZDUMP and any(self._left_by(task, facts, written) for task in archive)
            known = self._traces[facts.id.vmid] = ((written, head), found)
        return known[1] and of.config_changed < of.lock_at and len(self.past.offsets) == 1

    def _left_by(self, task: SimTask, facts: Facts, written: float) -> bool:
        upid, offset = task.upid, self.past.world.wall - self.past.world.boottime
        if upid.type != "vzdump" or not upid.covers(facts.id.vmid) or task.said != UNEXPECTED or not task.log or task.ended_wall is None:
            return False
        return upid.starttime <= written <= task.ended_wall + 1 and abs(upid.starttime - upid.started_boottime - offset) <= 1


def failed(past: Past, asked: list[Request]) -> list[Request]:
    """Those that were not refused, and that have not cleared lock or snapshot."""
    if not asked:
        return []
    of = past.memory(asked[0].vmid)
    return [one for one in asked if not one.refused and not _done(one, of)]


def _done(request: Request, of: Of) -> bool:
    """By the agent's own lights; of an answer that it never had it cannot know."""
    there = request.lock == of.locks if request.verb == "unlock" else request.dangling_at == of.dangling_at
    return request.answer is not None and request.answer.ok and not there


def waits(verb: str, past: Past, asked: list[Request]) -> float:
    """How long the agent may wait until it asks again, at most."""
    made, refusals = len(failed(past, asked)), sum(1 for one in asked if one.refused)
    return (refusal_wait(refusals) if refusals else 0.0) + (WAITS[verb][min(made, len(WAITS[verb])) - 1] if made else 0.0)


ALL: tuple[type[Watch], ...] = (
    RecoversOnlyIfTold,
    OwnLocksOnly,
    HostReadyForSteps,
    NoBulkTaskAtSteps,
    HeldLocksLeftAlone,
    NobodyAtWork,
    NoArchiveProcess,
    BackupLocksOnly,
    UnlockedBeforeDeleted,
    SnapshotFirst,
    SeenTwice,
    StepsBounded,
    StepsSpaced,
    ClearedInTime,
)
