"""`guestward locks`: every lock of a guest of ours, whose it is as far as anybody can tell, and what recovery thinks of it."""

from __future__ import annotations

from collections.abc import Iterator

from guestward.cli.output import Answer, Table, count, span
from guestward.cli.proof import lock_data, owner, proof_of, what
from guestward.cli.show import View, view, warning
from guestward.config import Config
from guestward.model.locks import LockDecision, LockVerdict
from guestward.ports import Clock


def locks(config: Config, clock: Clock, *, proof: bool) -> Answer:
    """`guestward locks [--dry-run]`. proof: also every question of each proof, and what recovery does next or would do."""
    seen = view(config, clock)
    found = seen.board.locks
    data = {
        "recover": config.locks.recover,
        "locks": [lock_data(seen, lock) for lock in found],
        "observed_age_s": None if seen.age is None else round(seen.age, 1),
    }
    return Answer(seen.board.node, seen.wall, tuple(_parts(seen, found, proof=proof)), data, seen.verdict, warning(seen))


def _parts(seen: View, found: tuple[LockDecision, ...], *, proof: bool) -> Iterator[str | Table]:
    if not found:
        yield f"no guest in the pools {', '.join(seen.config.scope.pools)} is locked, and no vzdump left a snapshot behind"
        return
    head = ("GUEST", "NAME", "LOCK", "AGE", "OWNER", "VERDICT", "WHY")
    yield Table([head, *(_line(seen, lock) for lock in found)], shrink=1)
    for lock in found if proof else ():
        yield ""
        yield from proof_of(lock)
    yield ""
    stale = sum(lock.verdict is LockVerdict.STALE for lock in found)
    mode = "is cleared by recovery" if seen.config.locks.recover == "prove" else "is reported and left, since [locks] recover is report"
    yield f"{count(len(found), 'lock')}, {stale} stale; what is stale {mode}"


def _line(seen: View, lock: LockDecision) -> tuple[object, ...]:
    return (
        str(lock.id),
        lock.name,
        what(lock),
        f"{span(seen.since(lock.since))}+",
        owner(lock),
        lock.verdict,
        lock.next_step or lock.evidence,
    )
