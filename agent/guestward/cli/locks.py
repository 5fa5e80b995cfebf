"""`guestward locks`: every lock of a guest of ours, whose it is as far as anybody can tell, and what recovery thinks of it."""

from __future__ import annotations

from collections.abc import Iterator

from guestward.cli.output import Answer, Table, count, span
from guestward.cli.proof import lock_data, meaning, next_words, owner, proof_of, what
from guestward.cli.show import View, freshness, view, warning
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
    yield f"node {seen.board.node}: {freshness(seen)}"
    if seen.config.locks.recover == "prove":
        yield 'recovery: clears what is proven to be nobody\'s ([locks] recover = "prove")'
    else:
        yield 'recovery: only reports, nothing is cleared ([locks] recover = "report")'
    yield ""
    if seen.board.seen_at is None:
        yield "locks: not known yet"
        return
    if not found:
        yield f"no guest in the pools {', '.join(seen.config.scope.pools)} is locked, and no vzdump left a snapshot behind"
        return
    yield Table([("GUEST", "NAME", "LOCK", "SEEN FOR", "OWNER", "VERDICT"), *(_line(seen, lock) for lock in found)], shrink=1)
    for lock in found if proof else ():
        yield ""
        yield from proof_of(seen, lock)
    if not proof:
        yield ""
        yield Table([line for lock in found for line in _words(seen, lock)])
    yield ""
    yield _sum(found)
    yield "this command has changed nothing" if proof else "the whole proof of each: guestward locks --dry-run"


def _line(seen: View, lock: LockDecision) -> tuple[object, ...]:
    return str(lock.id), lock.name, what(lock), span(seen.since(lock.since)), owner(lock), lock.verdict


def _words(seen: View, lock: LockDecision) -> Iterator[tuple[str, str, str]]:
    yield str(lock.id), "why", meaning(lock)
    yield "", "next", next_words(seen, lock)


def _sum(found: tuple[LockDecision, ...]) -> str:
    stale = sum(lock.verdict is LockVerdict.STALE for lock in found)
    left = sum(not lock.kind for lock in found)
    words = count(len(found) - left, "lock") + (f" and {count(left, 'snapshot')} left without one" if left else "")
    return f"{words}; proven to be nobody's: {stale}"
