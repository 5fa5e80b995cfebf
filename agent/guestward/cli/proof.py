"""How a lock and its proof are shown: `locks` and `explain` say the same of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from guestward.cli.output import Table, span
from guestward.model.guest import GuestKind
from guestward.model.helper import SNAPSHOT
from guestward.model.locks import VERDICT_MEANING, LockCheck, LockDecision, LockVerdict

if TYPE_CHECKING:
    from guestward.cli.show import View

# What the policy asks of a lock, in its order, as something that must be so.
QUESTIONS: dict[str, str] = {
    "kind": "a kind that vzdump leaves behind",
    "host": "the host is up and not held",
    "hold": "the guest is not held",
    "no backup at work": "no backup is at work",
    "no task": "no other task is at work on it",
    "trace": "a vzdump that died left it",
    "seen twice": "all of that seen twice",
}
_NOT_ASKED = (LockVerdict.NOBODYS_BUSINESS, LockVerdict.HOST_GATE, LockVerdict.HELD)
# What comes next where recovery has nothing to do. {0} is PVE's command that clears the lock, {1} the VMID.
_NEXT: dict[LockVerdict, str] = {
    LockVerdict.NOBODYS_BUSINESS: "nothing, ever: Guestward never clears such a lock. If you know that nobody is at work: {0}",
    LockVerdict.HOST_GATE: "nothing now; it is judged when the host gate opens (guestward status)",
    LockVerdict.HELD: "nothing now; it is judged when the hold ends, at once with: guestward release {1}",
    LockVerdict.OWNED: "nothing while that is so; it is looked at again with every sweep",
    LockVerdict.UNKNOWN: "nothing until that can be read; it is tried with every sweep, and `guestward check` says what is wrong",
    LockVerdict.NO_TRACE: "nothing while that is so: Guestward clears only what a vzdump left. If you know that nobody is at work: {0}",
}


def what(lock: LockDecision) -> str:
    """The lock, or that there is none and only the snapshot is left."""
    return lock.kind or "none"


def owner(lock: LockDecision) -> str:
    """Whose it is: nobody's only where every witness says so."""
    if lock.verdict in _NOT_ASKED:
        return "not asked"
    if lock.verdict is LockVerdict.OWNED:
        return "a backup" if lock.checks[-1].name == "no backup at work" else "a task"
    return "nobody" if lock.verdict in (LockVerdict.STALE, LockVerdict.UNCONFIRMED) else "unknown"


# What is thought of a lock in one sentence: {0} is what decided, {1} what tells who left it.
_WHY: dict[LockVerdict, str] = {
    LockVerdict.NOBODYS_BUSINESS: "{0}",
    LockVerdict.HOST_GATE: "not judged now: {0}",
    LockVerdict.HELD: "not judged now: {0}",
    LockVerdict.OWNED: "somebody is at work: {0}",
    LockVerdict.UNKNOWN: "nobody can say whether somebody is at work: {0}",
    LockVerdict.NO_TRACE: "{0}; it may have been set by hand, or by another backup tool",
    LockVerdict.UNCONFIRMED: "seen once that nobody is at work; {1}",
    LockVerdict.STALE: "proven to be nobody's: no backup or task is at work; {1}",
}


def meaning(lock: LockDecision) -> str:
    """The verdict and what it rests on."""
    trace = next((check.evidence for check in lock.checks if check.name == "trace"), "")
    left = "" if lock.kind else f"not locked, but the snapshot `{SNAPSHOT}` is still there; "
    return left + _WHY[lock.verdict].format(lock.evidence, trace)


def next_words(seen: View, lock: LockDecision) -> str:
    """What happens next, or what a person can do."""
    if seen.board.aborted and seen.alive:
        return f"nothing while sweeps are aborted: {seen.board.aborted}"
    if not seen.acting:
        return "nothing: the agent does not look at guests"
    if lock.next_step:
        left = None if lock.next_at is None else max(0.0, lock.next_at - seen.now)
        return lock.next_step if left is None else f"a second look in {span(left)}; {lock.next_step}"
    tool = "pct" if lock.id.kind is GuestKind.LXC else "qm"
    return _NEXT.get(lock.verdict, "nothing").format(f"{tool} unlock {lock.id.vmid}", lock.id.vmid)


def proof_of(seen: View, lock: LockDecision) -> Iterator[str | Table]:
    """Everything that must be so before recovery clears a lock, and what is missing from it."""
    about = f"lock {lock.kind}" if lock.kind else f"no lock, but the snapshot {SNAPSHOT}"
    yield f"{lock.id} {lock.name}: {about}, there for at least {span(seen.since(lock.since))}"
    yield Table([("", "WHAT MUST BE SO", "IS IT?", "WHAT WAS SEEN"), *_check_lines(lock)])
    yield Table([("verdict", f"{lock.verdict}: {VERDICT_MEANING[lock.verdict]}"), ("next", next_words(seen, lock))])


def _check_lines(lock: LockDecision) -> Iterator[tuple[str, str, str, str]]:
    asked = {check.name: check for check in lock.checks}
    for name in dict.fromkeys((*asked, *QUESTIONS)):
        check = asked.get(name)
        if check is None:
            yield "", QUESTIONS[name], "-", "not asked yet"
        else:
            missing = check is lock.checks[-1] and check.ok is not True
            yield ">>" if missing else "", QUESTIONS.get(name, name), _answer(check), check.evidence


def _answer(check: LockCheck) -> str:
    return "unknown" if check.ok is None else "yes" if check.ok else "NO"


def lock_data(seen: View, lock: LockDecision) -> dict[str, Any]:
    """One lock for programs. age_s: since it is there at least; it may be older."""
    return {
        "id": str(lock.id),
        "kind": str(lock.id.kind),
        "vmid": lock.id.vmid,
        "name": lock.name,
        "lock": lock.kind or None,
        "snapshot_only": not lock.kind,
        "age_s": round(seen.since(lock.since), 1),
        "owner": owner(lock),
        "verdict": str(lock.verdict),
        "evidence": lock.evidence,
        "next": lock.next_step or None,
        "proof": [{"question": check.name, "ok": check.ok, "evidence": check.evidence} for check in lock.checks],
    }
