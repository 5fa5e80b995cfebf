"""How an attempt to start a guest goes on and ends. Success is what was seen of the guest, never what a task said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from guestward.model.decision import Outcome
from guestward.model.guest import GuestId, LiveStatus
from guestward.model.memory import Attempt, GuestMemory
from guestward.model.rules import SETTLE, Rules
from guestward.model.task import Error, Ok, Running, Task, TaskStatus, Unknown, Upid, Warnings

START_TYPES = {"lxc": "vzstart", "qemu": "qmstart"}
INTERRUPTED = ("received interrupt", "interrupted by signal")
LIVE_READS = 2


def begin(memory: GuestMemory, at: float, rules: Rules) -> GuestMemory:
    """Write down the intent, with a deadline that is fixed before the request is sent (I10)."""
    attempt = Attempt(number=len(memory.attempts) + 1, begun_at=at, deadline=at + rules.start_timeout)
    return replace(memory, attempts=(*memory.attempts, attempt))


def end(attempt: Attempt, at: float, outcome: Outcome, reason: str) -> Attempt:
    """Close an attempt; the back-off counts from here."""
    return replace(attempt, ended_at=at, outcome=outcome, reason=reason)


def answered(attempt: Attempt, upid: Upid, at: float) -> Attempt:
    """PVE took the request. For an HA guest it only asks HA, and says OK before anything has happened (pve-facts D2)."""
    attempt = replace(attempt, upid=upid.text)
    if upid.type == "hastart":
        return end(attempt, at, Outcome.HANDED_TO_HA, "PVE handed the start to HA; whether it runs is HA's business now")
    return attempt


def refused(attempt: Attempt, at: float, reason: str) -> Attempt:
    """PVE said no. A container that runs is refused at once, in the very words that mean that nothing is to be done."""
    if reason.rstrip().endswith("already running"):
        return end(attempt, at, Outcome.UNCHANGED, "it was running already; nothing was changed")
    return end(attempt, at, Outcome.FAILED, reason)


def own_starts(tasks: Iterable[Task], guest: GuestId, token_id: str, since: float, until: float) -> list[Upid]:
    """Our token's start tasks for this guest, oldest first, of workers born between two moments (seconds since host boot).

    That is how a start is found whose answer was lost: token and pstart, which no clock jump can falsify (C20). tasks: of this boot.
    """
    wanted = (START_TYPES[guest.kind], "hastart")
    found = {
        task.upid
        for task in tasks
        if task.upid.type in wanted
        and task.upid.id == str(guest.vmid)
        and task.upid.user == token_id
        and since <= task.upid.started_boottime <= until
    }
    return sorted(found, key=lambda upid: (upid.pstart, upid.text))


def follow(attempt: Attempt, at: float, said: TaskStatus | None, live: LiveStatus | None) -> Attempt:
    """One step of an attempt in flight.

    said: what its task says, None when the task is not known or could not be asked. live: None when the guest could not be read.
    An answer that comes after the deadline is not accepted, however good it is.
    """
    if at > attempt.deadline:
        return end(attempt, at, Outcome.UNKNOWN, f"the deadline passed; {_last_seen(attempt, said)}")
    if isinstance(said, Error) and not said.detail.startswith(INTERRUPTED):
        return _task_failed(attempt, at, said.detail, live)
    attempt = _note_end(attempt, at, said)
    if live is not None and live.really_running and not isinstance(said, Running):
        attempt = replace(attempt, live_reads=attempt.live_reads + 1)
        return end(attempt, at, Outcome.STARTED, _how(attempt)) if attempt.live_reads >= LIVE_READS else attempt
    attempt = replace(attempt, live_reads=0)
    if attempt.task_ended_at is not None and live is not None and at - attempt.task_ended_at >= SETTLE:
        return _not_there(attempt, at)
    return attempt


def _task_failed(attempt: Attempt, at: float, detail: str, live: LiveStatus | None) -> Attempt:
    """A VM that runs already is refused by the task and not by the request (pve-facts D2)."""
    if detail.endswith("already running") and live is not None and live.running:
        return end(attempt, at, Outcome.UNCHANGED, "it was running already; nothing was changed")
    return end(attempt, at, Outcome.FAILED, detail)


def _note_end(attempt: Attempt, at: float, said: TaskStatus | None) -> Attempt:
    """API workers may differ for a moment (C59): a task seen running again has not ended, and a clear word takes the place of none."""
    if said is None or (isinstance(said, Unknown) and attempt.task_said):
        return attempt
    if isinstance(said, Running):
        return replace(attempt, task_ended_at=None, task_said="")
    return replace(attempt, task_ended_at=at if attempt.task_ended_at is None else attempt.task_ended_at, task_said=_words(said))


def _words(said: Ok | Warnings | Error | Unknown) -> str:
    if isinstance(said, Ok):
        return "OK"
    return f"WARNINGS: {said.count}" if isinstance(said, Warnings) else said.detail


def _how(attempt: Attempt) -> str:
    if not attempt.upid:
        return "seen running; the answer to the request was lost"
    return "seen running" if attempt.task_said == "OK" else f"seen running; its task said: {attempt.task_said or 'nothing'}"


def _not_there(attempt: Attempt, at: float) -> Attempt:
    if attempt.task_said == "OK" or attempt.task_said.startswith("WARNINGS: "):
        return end(attempt, at, Outcome.FAILED, f"the task said {attempt.task_said}, but the guest does not run")
    return end(attempt, at, Outcome.UNKNOWN, f"the task was cut off ({attempt.task_said}), and the guest does not run")


def _last_seen(attempt: Attempt, said: TaskStatus | None) -> str:
    if attempt.task_said:
        return f"its task had said {attempt.task_said}, but the guest was not seen running twice"
    if isinstance(said, Running):
        return "its task was still running"
    return "its task was not seen to end" if attempt.upid else "the answer was lost and its task is not known"
