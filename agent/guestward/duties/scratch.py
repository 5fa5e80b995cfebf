"""Scratch teardown: a leftover of a restore test is destroyed step by step, each seen before the next, and told only as it was seen (I8).

One guest at a time. Nothing waits: `follow` takes the next step when the one before it is over. Right before every request that changes
something all that speaks for and against it is looked at anew.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from guestward.duties.grants import Grants
from guestward.duties.observe import read_tasks
from guestward.duties.state import WatchState
from guestward.model.decision import Guard
from guestward.model.events import Event, EventKind, Level, Notice
from guestward.model.guest import GuestId, ListedGuest
from guestward.model.helper import Answer, HelperCode, Request, Verb
from guestward.model.observation import NOT_READ, Observation
from guestward.model.reading import Reading, Unreadable
from guestward.model.scratch import REFUSALS, Claimed, ScratchBand, ScratchDecision, ScratchId, ScratchMemory, ScratchStep, ScratchVerdict
from guestward.model.task import Error, Running, TaskStatus, Unknown, Upid
from guestward.policy import rights, scratch
from guestward.ports import HelperCall, HelperLost, PveAnswerLost, PveError, PveRefused

T = TypeVar("T")
READ_BUDGET = 20.0
WITHIN = {
    ScratchStep.RELEASE: 60.0,
    ScratchStep.STOP: 120.0,
    ScratchStep.DESTROY: 1800.0,
    ScratchStep.REGRANT: 120.0,
}
"""Seconds for each step, from before its request."""
UNSEEN_FOR = 15.0  # seconds after which a request without an answer has begun no task that could still be seen
TOLD = REFUSALS | {ScratchVerdict.YOUNG, ScratchVerdict.LEFTOVER}
_FORBIDDEN = re.compile(r"Permission check failed \((?P<path>/[^,)]*), (?P<privilege>[^)]+)\)")
_OPEN = frozenset({ScratchVerdict.TASK, ScratchVerdict.STRANDED, ScratchVerdict.UNKNOWN})
_ASKED = frozenset({ScratchStep.DESTROY, ScratchStep.REGRANT, ScratchStep.VERIFY})


@dataclass(slots=True)
class Work:
    """A teardown under way. begun, deadline: of the step, in seconds since host boot. evidence: why it is a leftover."""

    scratch: ScratchId
    id: GuestId
    name: str
    evidence: str
    step: ScratchStep = ScratchStep.RELEASE
    begun: float = 0.0
    deadline: float = 0.0
    upid: Upid | None = None
    call: HelperCall | None = None


@dataclass(frozen=True, slots=True)
class Now:
    """What is thought of a guest this very moment, and how it is listed."""

    decision: ScratchDecision
    listed: ListedGuest | None


@dataclass(slots=True)
class Teardown:
    """`look` comes after each look of the watchdog, `follow` about once a second while it is `busy`.

    memories: by VMID. next_look: when the band is looked at again, in seconds since host boot. ending: nothing more is begun.
    """

    state: WatchState
    grants: Grants
    memories: dict[int, ScratchMemory] = field(init=False)
    boot_id: str = ""
    next_look: float = 0.0
    work: Work | None = None
    ending: bool = False

    def __post_init__(self) -> None:
        """Take up what is remembered."""
        self.boot_id = self.state.node.boot_id
        self.memories = {memory.vmid: memory for memory in self.state.node.scratch}

    @property
    def busy(self) -> bool:
        """Whether a guest is being torn down."""
        return self.work is not None

    @property
    def band(self) -> ScratchBand:
        """As configured."""
        return ScratchBand(self.state.rules.scratch_first, self.state.rules.scratch_last)

    # ------------------------------------------------------------------------------------------------ looking

    def look(self) -> None:
        """Judge all guests of the band by what is seen now, and begin with the first leftover."""
        seen = self.state.obs
        if seen is None or self.state.aborted or isinstance(seen.host.names, Unreadable):
            return
        self._new_boot()
        self._note_claims()
        self._take_wishes()
        if not self.busy and seen.at >= self.next_look:
            self.next_look = seen.at + self.state.env.config.scratch.interval
            self._look(seen, seen.host.names.here.keys(), {id.vmid for id in seen.host.names.elsewhere})
        self._keep()

    def _new_boot(self) -> None:
        """Times of an earlier boot mean nothing, and what was under way in it is over."""
        boot_id = self.state.node.boot_id
        if self.boot_id != boot_id:
            self.boot_id, self.next_look, self.work = boot_id, 0.0, None
            self.memories = {m.vmid: replace(m, failures=0, next_at=0.0) for m in self.memories.values()}

    def _note_claims(self) -> None:
        """A claim proves whose the guest is for longer than it lasts."""
        for vmid, (hold, remaining) in self.state.lasting.items():
            if vmid is not None and hold.claim and vmid in self.band:
                known = self.memories.get(vmid, ScratchMemory(vmid))
                if known.claimed is None or known.claimed.since != hold.wall:
                    claimed = Claimed(hold.by, hold.wall, self.state.env.clock.wall() + remaining)
                    self.memories[vmid] = replace(known, claimed=claimed)

    def _take_wishes(self) -> None:
        """`guestward scratch teardown`: looked at now, and whatever failed before is tried again."""
        for vmid in (vmid for vmid in self.state.rearmed if vmid in self.band):
            self.next_look = 0.0
            if vmid in self.memories:
                self.memories[vmid] = replace(self.memories[vmid], failures=0, next_at=0.0)

    def _look(self, seen: Observation, here: Iterable[GuestId], elsewhere: set[int]) -> None:
        ours = {id.vmid: id for id in sorted(here) if id.vmid in self.band}
        self._see_who_is_gone(ours.keys(), elsewhere)
        if self.busy:
            return
        decisions = tuple(self._judge(id, seen, self.state.sight.privileges) for id in ours.values())
        if decisions != self.state.scratch_decisions:
            self.state.scratch_decisions = decisions
            self.state.publish()
        for decision in decisions:
            self._tell(decision)
            self._settle(decision)
        leftover = next((found for found in decisions if found.verdict is ScratchVerdict.LEFTOVER), None)
        if leftover is not None:
            self._go(Work(self.band.claim(leftover.id.vmid), leftover.id, leftover.name, leftover.evidence))

    def _settle(self, decision: ScratchDecision) -> None:
        """A destroy that we asked for has come to nothing when the guest is there and no task of it runs: whoever destroys it later is
        somebody else.
        """
        memory = self.memories[decision.id.vmid]
        if memory.step in _ASKED and decision.verdict not in _OPEN:
            self.memories[decision.id.vmid] = replace(memory, step=None)

    def _see_who_is_gone(self, here: Collection[int], elsewhere: Collection[int]) -> None:
        """Forget them; but one that we have asked PVE to destroy is verified and told, over a restart of the agent, too."""
        for vmid, memory in list(self.memories.items()):
            if vmid in here or memory.id is None:
                continue
            if memory.step in _ASKED and vmid not in elsewhere and vmid in self.band and not self.busy:
                self._gone(Work(self.band.claim(vmid), memory.id, memory.name, "PVE was asked to destroy it", memory.step))
            elif memory.step not in _ASKED or vmid in elsewhere or vmid not in self.band:
                del self.memories[vmid]

    def _judge(self, id: GuestId, seen: Observation, held: rights.Privileges | None) -> ScratchDecision:
        """By one observation and what is read of this guest besides. Nothing more is read where a grant is missing."""
        env, state = self.state.env, self.state
        stamp = "" if isinstance(seen.host.names, Unreadable) else seen.host.names.here.get(id, "")
        memory = self.memories[id.vmid] = self._recalled(id, stamp, seen.guests.get(id))
        lost = rights.missing(rights.of_band(id.vmid, id.vmid), held or {})
        deadline, hold = env.clock.boottime() + READ_BUDGET, state.lasting.get(id.vmid)
        config = NOT_READ if lost else _read(lambda: env.pve.config(id, deadline=deadline))
        if not isinstance(config, Unreadable):
            memory = self.memories[id.vmid] = replace(memory, storages=config.storages)
        past = NOT_READ if lost else _read(lambda: env.pve.past_tasks_of(id.vmid, deadline=deadline))
        resources = NOT_READ if lost else _read(lambda: env.pve.resources(deadline=deadline))
        case = scratch.ScratchCase(
            id,
            memory,
            state.rules,
            state.gate,
            env.pve.token_id,
            env.clock.boottime(),
            env.clock.wall(),
            seen.guests.get(id),
            config=config,
            active=seen.tasks,
            past=past,
            resources=resources,
            written=env.host.written((id,)).get(id),
            lost=lost,
            hold=hold[0] if hold is not None else None,
        )
        return scratch.judge(case)

    def _recalled(self, id: GuestId, stamp: str, listed: ListedGuest | None) -> ScratchMemory:
        """A guest whose file has changed may be another one, and all is tried anew. A claim is on the VMID, whoever has it."""
        known = self.memories.get(id.vmid, ScratchMemory(id.vmid))
        if known.id == id and known.stamp == stamp:
            return known
        told = known.told if known.id == id else None
        name = listed.name if listed is not None else known.name
        return ScratchMemory(id.vmid, id, name, stamp, told=told, step=known.step, claimed=known.claimed)

    def _now(self, work: Work) -> Now | None:
        """Look at it again, host and guest; None when it is gone."""
        env, state, known = self.state.env, self.state, self.state.obs
        assert known is not None  # noqa: S101 - there was a look
        deadline, host = env.clock.boottime() + READ_BUDGET, env.host.host()
        if not isinstance(host.names, Unreadable) and work.id not in host.names.here:
            return None
        listed = _read(lambda: env.pve.guests(work.id.kind, deadline=deadline))
        held = _read(lambda: env.pve.privileges(deadline=deadline))
        unread = [found.reason for found in (listed, held) if isinstance(found, Unreadable)]
        if isinstance(listed, Unreadable) or isinstance(held, Unreadable):
            return Now(ScratchDecision(work.id, work.name, ScratchVerdict.UNKNOWN, "; ".join(unread)), None)
        lost = rights.missing(rights.needed(state.rules.pools, env.pve.node), held)
        tasks = read_tasks(env, lost, deadline)
        seen = replace(known, at=env.clock.boottime(), wall=env.clock.wall(), host=host, guests=listed, tasks=tasks)
        state.gate = state.judge_gate(seen, state.holds())
        return Now(self._judge(work.id, seen, held), listed.get(work.id))

    # ------------------------------------------------------------------------------------------------ acting

    def _go(self, work: Work) -> None:
        """Take the step that is needed now, if it is a leftover still."""
        self.work = None
        now = self._now(work)
        if self.ending or now is None:
            return  # whoever destroyed it, it was not us: that is seen at the next look
        if now.decision.verdict is not ScratchVerdict.LEFTOVER:
            self._tell(now.decision)
            return
        self.work, work.evidence = work, now.decision.evidence
        if now.listed is not None and now.listed.lock is not None:
            self._release(work)
        elif now.listed is not None and now.listed.running:
            self._send(work, ScratchStep.STOP, self.state.env.pve.stop_scratch)
        else:
            self._send(work, ScratchStep.DESTROY, self.state.env.pve.destroy_scratch)

    def _note(self, work: Work, step: ScratchStep) -> None:
        """Intent first, request second."""
        work.step, work.begun, work.upid, work.call = step, self.state.env.clock.boottime(), None, None
        work.deadline = work.begun + WITHIN[step]
        self.memories[work.scratch.vmid] = replace(self.memories[work.scratch.vmid], step=step)
        self._keep()

    def _release(self, work: Work) -> None:
        self._note(work, ScratchStep.RELEASE)
        work.call = self.state.ask_helper(Request(Verb.RELEASE_SCRATCH, vmid=work.scratch.vmid))
        if work.call is None:
            self.work = None  # nothing was tried, and that the helper cannot be asked was told; the next look tries again

    def _send(self, work: Work, step: ScratchStep, send: Callable[..., Upid]) -> None:
        """One request, sent once. Whether one without an answer was carried out is seen later."""
        self._note(work, step)
        try:
            work.upid = send(work.id.kind, work.scratch, deadline=work.begun + READ_BUDGET)
        except PveAnswerLost:
            return
        except PveRefused as refused:
            self._refused(work, refused)
        except PveError as error:
            self._failed(work, str(error))

    def _refused(self, work: Work, refused: PveRefused) -> None:
        forbidden = _FORBIDDEN.search(str(refused))
        if refused.status == 403 and forbidden is not None:
            self._stranded(work, forbidden["path"], forbidden["privilege"], str(refused))
            self._over(work)
            self.grants.put_back()
        elif work.step is ScratchStep.STOP and "not running" in str(refused):
            self._go(work)
        else:
            self._failed(work, str(refused))

    def follow(self) -> None:
        """Go on when the step under way is over."""
        work = self.work
        if work is not None:
            going = {ScratchStep.RELEASE: self._released, ScratchStep.STOP: self._stopped, ScratchStep.DESTROY: self._destroyed}
            going.get(work.step, self._regranted)(work)
            self._keep()

    def _released(self, work: Work) -> None:
        """Only what is seen now counts, whatever the helper says."""
        answer = _answer(work.call)
        if answer is None:
            return
        lock = _read(lambda: self.state.env.pve.live(work.id, deadline=self._soon()).lock)
        if lock is None:
            self._go(work)
        else:
            self._failed(work, answer.message if not isinstance(lock, Unreadable) else f"{lock.reason}; {answer.message}")

    def _stopped(self, work: Work) -> None:
        status = self._task(work)
        if isinstance(status, Running):
            return
        running = _read(lambda: self.state.env.pve.live(work.id, deadline=self._soon()).running)
        if running is False:
            self._go(work)
        else:
            self._failed(work, f"it is still running; {_said(status)}" if running is True else f"{running}; {_said(status)}")

    def _destroyed(self, work: Work) -> None:
        """The host's own view tells whether it is gone: of a guest that is, the API says 403, as of one that it must not show (C46)."""
        status = self._task(work)
        if isinstance(status, Running):
            return
        names = self.state.env.host.host().names
        if isinstance(names, Unreadable):
            self._failed(work, f"whether it is gone cannot be read: {names.reason}; {_said(status)}", known=False)
        elif work.id in names.here:
            self._failed(work, f"it is still there; {_said(status)}", known=not isinstance(status, Unknown))
        else:
            self._gone(work)

    def _task(self, work: Work) -> TaskStatus:
        """How the task of this step is, as far as it can be read before the deadline. Without an answer ours is looked for."""
        env, late = self.state.env, self.state.env.clock.boottime() >= work.deadline
        try:
            if work.upid is None:
                tasks = env.pve.active_tasks(deadline=self._soon())
                vmid, me = str(work.scratch), env.pve.token_id
                mine = (t.upid for t in tasks if (t.upid.id, t.upid.user) == (vmid, me) and t.upid.started_boottime >= work.begun - 1)
                work.upid = next(mine, None)
                waits = env.clock.boottime() - work.begun < UNSEEN_FOR
                return Running() if work.upid is not None or waits else Unknown("there was no answer, and no task of ours was seen")
            status = env.pve.task(work.upid, deadline=self._soon())
        except PveError as error:
            return Unknown(str(error)) if late else Running()
        return Unknown("it did not end in time") if late and isinstance(status, Running) else status

    def _gone(self, work: Work) -> None:
        """It is destroyed, and with it the grant without which PVE does not show what it has left (pve-facts E5)."""
        self.work = work
        self._note(work, ScratchStep.REGRANT)
        self.grants.put_back()

    def _regranted(self, work: Work) -> None:
        if self.grants.busy and self.state.env.clock.boottime() < work.deadline:
            return
        self._tell_destroyed(work, *self._volumes(work))

    def _volumes(self, work: Work) -> tuple[tuple[str, ...], list[str]]:
        """Volumes of this VMID on all storages of this node that can hold any, and where that could not be seen."""
        pve = self.state.env.pve
        found: list[str] = []
        storages = _read(lambda: pve.volume_storages(deadline=self._soon()))
        if isinstance(storages, Unreadable):
            return (), [storages.reason]
        hidden = self.memories[work.scratch.vmid].storages - storages.keys()
        unread = [f"storage {name}: not shown to the token" for name in sorted(hidden)]
        for name, active in storages.items():
            volumes = _read(partial(pve.volumes, name, work.scratch, deadline=self._soon()))
            if not active or isinstance(volumes, Unreadable):
                unread.append(f"storage {name}: {volumes.reason if isinstance(volumes, Unreadable) else 'not active'}")
            else:
                found += volumes
        return tuple(found), unread + self._hidden(work)

    def _hidden(self, work: Work) -> list[str]:
        """What the token may not see, and PVE leaves out without a word; asked after the lists, so that they were complete."""
        held = _read(lambda: self.state.env.pve.privileges(deadline=self._soon()))
        if isinstance(held, Unreadable):
            return [f"own privileges: {held.reason}"]
        lost = (*rights.missing(rights.of_band(work.scratch.vmid, work.scratch.vmid), held), *rights.hidden_storages(held))
        return [f"the token lacks {grant}" for grant in lost]

    def _tell_destroyed(self, work: Work, volumes: tuple[str, ...], unread: list[str]) -> None:
        """Gone is said only where it was seen that nothing is left."""
        outcome = "leftover" if volumes else "unknown" if unread else "gone"
        if volumes:
            free = "; ".join(f"pvesm free {shlex.quote(volume)}" for volume in volumes)
            text = f"is destroyed, but volumes with its VMID are left, and are not freed by us: {free}"
            self._say(Event.SCRATCH_LEFTOVER, work, text, {"volumes": list(volumes), "reason": "; ".join(unread)})
        rest = "and nothing is left of it" if outcome == "gone" else "; whether volumes are left could not be seen: " + "; ".join(unread)
        if outcome != "leftover":
            level = Level.INFO if outcome == "gone" else Level.WARN
            text = f"is destroyed{' ' if outcome == 'gone' else ''}{rest}"
            told: dict[str, object] = {"outcome": outcome, "reason": "; ".join(unread), "evidence": work.evidence}
            self._say(Event.SCRATCH_DESTROYED, work, text, told, level)
        self.memories.pop(work.scratch.vmid, None)
        self.work, self.next_look = None, 0.0

    def _failed(self, work: Work, reason: str, *, known: bool = True) -> None:
        """Tried again from fresh evidence, later and later, and only so often. What somebody else has destroyed meanwhile is no failure.

        known: whether it was seen that nothing came of it; else it may still come about, and is told when it does.
        """
        names = self.state.env.host.host().names
        if work.step is not ScratchStep.DESTROY and not isinstance(names, Unreadable) and work.id not in names.here:
            self.work = None
            return
        self._over(work, known=known)
        memory = self.memories[work.scratch.vmid]
        again = "given up" if memory.failures >= scratch.FAILURES else "tried again later, from what is seen then"
        failed = "failed" if known else "may have failed, what came of it is not known"
        text = f"{work.step} {failed} ({memory.failures} of {scratch.FAILURES}), {again}: {reason}"
        told: dict[str, object] = {"step": str(work.step), "reason": reason, "attempt": memory.failures, "of": scratch.FAILURES}
        self._say(Event.SCRATCH_STEP_FAILED, work, text, told)

    def _over(self, work: Work, *, known: bool = True) -> None:
        self.work = None
        memory = self.memories[work.scratch.vmid]
        after = scratch.failed(memory, self.state.env.clock.boottime())
        self.memories[work.scratch.vmid] = replace(after, step=None) if known else after

    def _soon(self) -> float:
        return self.state.env.clock.boottime() + READ_BUDGET

    # ------------------------------------------------------------------------------------------------ telling

    def _tell(self, decision: ScratchDecision) -> None:
        """Once for each guest and verdict: that a leftover was found, or that somebody has to look at it."""
        memory, verdict = self.memories[decision.id.vmid], decision.verdict
        stranded = verdict is ScratchVerdict.STRANDED and self.grants.failures > 0 and not self.grants.busy
        if (verdict not in TOLD and not stranded) or memory.told is verdict:
            return
        told: dict[str, object] = {"verdict": verdict.value, "evidence": decision.evidence}
        if stranded:
            self._stranded(decision, f"/vms/{decision.id.vmid}", "", decision.evidence)
        elif verdict in REFUSALS:
            self._say(Event.SCRATCH_REFUSED, decision, f"is in the scratch band and stays: {decision.evidence}", told)
        elif memory.told is None or memory.told not in TOLD - REFUSALS:
            self._say(Event.SCRATCH_FOUND, decision, f"is a scratch guest of ours: {decision.evidence}", told)
        self.memories[decision.id.vmid] = replace(memory, told=verdict)

    def _stranded(self, of: ScratchDecision | Work, path: str, privilege: str, reason: str) -> None:
        text = f"cannot be torn down: {reason}; the token and its user both need that grant: host-install.sh repair"
        self._say(Event.SCRATCH_STRANDED, of, text, {"path": path, "privilege": privilege, "reason": reason})

    def _say(self, event: EventKind, of: ScratchDecision | Work, text: str, fields: dict[str, object], level: Level | None = None) -> None:
        self.state.env.tell((Notice(event, of.id, of.name, Guard.SCRATCH_BAND.value, text, tuple(fields.items()), level),))

    def _keep(self) -> None:
        """Make durable what is remembered of the band."""
        memories = tuple(self.memories.values())
        if memories != self.state.node.scratch:
            self.state.node = replace(self.state.node, scratch=memories)
            self.state.save()


def _read(ask: Callable[[], T]) -> Reading[T]:
    try:
        return ask()
    except PveError as error:
        return Unreadable(str(error))


def _answer(call: HelperCall | None) -> Answer | None:
    if call is None:
        return Answer(HelperCode.UNKNOWN, "the helper was not asked")
    try:
        return call.answer()
    except HelperLost as error:
        return Answer(HelperCode.UNKNOWN, str(error))


def _said(status: TaskStatus) -> str:
    """What the task said, for people."""
    return f"its task: {status.detail}" if isinstance(status, (Error, Unknown)) else "its task ended well"
