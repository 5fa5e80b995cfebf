"""How the proof of a lock is shown: `locks --dry-run` and `explain` show the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from guestward.cli.output import Table
from guestward.model.helper import SNAPSHOT
from guestward.model.locks import VERDICT_MEANING, LockCheck, LockDecision, LockVerdict

if TYPE_CHECKING:
    from guestward.cli.show import View


def what(lock: LockDecision) -> str:
    """The lock, or the snapshot that is left without one."""
    return lock.kind or f"(snapshot {SNAPSHOT})"


def owner(lock: LockDecision) -> str:
    """Whose it is: nobody's only where that is proven."""
    if lock.verdict is LockVerdict.OWNED:
        return "at work"
    return "nobody" if lock.verdict in (LockVerdict.STALE, LockVerdict.UNCONFIRMED) else "unknown"


def proof_of(lock: LockDecision) -> Iterator[str | Table]:
    """Every question that was asked of one lock; the last one is the one that recovery stopped at."""
    yield f"{lock.id} {lock.name}, {what(lock)}: {lock.verdict} - {VERDICT_MEANING[lock.verdict]}"
    yield Table([("", "QUESTION", "ANSWER", "EVIDENCE"), *(_check_line(lock, check) for check in lock.checks)])
    yield f"next: {lock.next_step or 'nothing, as long as that is so'}"


def _check_line(lock: LockDecision, check: LockCheck) -> tuple[str, str, str, str]:
    answer = "unknown" if check.ok is None else "yes" if check.ok else "NO"
    return ">>" if check is lock.checks[-1] and check.ok is not True else "", check.name, answer, check.evidence


def lock_data(seen: View, lock: LockDecision) -> dict[str, Any]:
    """One lock for programs. seen_for_s: since it was first seen; it may be older."""
    return {
        "id": str(lock.id),
        "kind": str(lock.id.kind),
        "vmid": lock.id.vmid,
        "name": lock.name,
        "lock": lock.kind or None,
        "snapshot_only": not lock.kind,
        "seen_for_s": round(seen.since(lock.since), 1),
        "owner": owner(lock),
        "verdict": str(lock.verdict),
        "evidence": lock.evidence,
        "next": lock.next_step or None,
        "proof": [{"question": check.name, "ok": check.ok, "evidence": check.evidence} for check in lock.checks],
    }
