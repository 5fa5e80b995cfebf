"""Locks that a vzdump left behind: what is remembered of them, what is asked of them, and what is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from guestward.model.guest import GuestId
from guestward.model.helper import HelperCode


class LockVerdict(StrEnum):
    """What is thought of one lock, in the order in which it is asked; the first that applies."""

    NOBODYS_BUSINESS = "nobodys_business"
    HOST_GATE = "host_gate"
    HELD = "held"
    OWNED = "owned"
    UNKNOWN = "unknown"
    NO_TRACE = "no_trace"
    UNCONFIRMED = "unconfirmed"
    STALE = "stale"


VERDICT_MEANING: dict[LockVerdict, str] = {
    LockVerdict.NOBODYS_BUSINESS: "not a lock that vzdump leaves behind: never touched, at any age",
    LockVerdict.HOST_GATE: "the host is not in a state in which anything may be done",
    LockVerdict.HELD: "the guest is held by an operator",
    LockVerdict.OWNED: "somebody is at work: a backup, or another task for this guest",
    LockVerdict.UNKNOWN: "a witness cannot be read, so nobody can say whether somebody owns it",
    LockVerdict.NO_TRACE: "nothing shows that a vzdump of this node left it",
    LockVerdict.UNCONFIRMED: "proven once; a second observation follows",
    LockVerdict.STALE: "nobody owns it: seen twice, and a vzdump that died left it",
}


class LockStep(StrEnum):
    """What recovery is at with a guest; written down before it is done."""

    PROVE = "prove"
    UNLOCK = "unlock"
    DELETE_SNAPSHOT = "delete-snapshot"


@dataclass(frozen=True, slots=True)
class LockMemory:
    """One lock of one guest, or the snapshot that vzdump left without a lock. Times are seconds since host boot.

    kind: the lock's value, "" where only the snapshot is left. since: when it was first seen. free_at: when the guest was last seen
    without it, None where nobody was looking. stamp: of the configuration file, in which a lock is a line. clear_since: since when every
    look has found nobody who owns it. step: of recovery; asked: the helper was asked to do it. unlocks, deletes: how often that failed.
    next_at, delete_at: no unlock, and no delete, before. refusals: how often in a row the helper refused, refusal: with which words
    last, refused_told: with which code when that was told.
    told: that it is stale was told; warned: that it is old was. ours: the lock is what our own delete left (C39).
    follows: it was unlocked by us, and its snapshot is to go before it is started.
    """

    id: GuestId
    name: str = ""
    kind: str = ""
    since: float = 0.0
    free_at: float | None = None
    stamp: str = ""
    clear_since: float | None = None
    step: LockStep = LockStep.PROVE
    asked: bool = False
    unlocks: int = 0
    deletes: int = 0
    next_at: float = 0.0
    delete_at: float = 0.0
    refusals: int = 0
    refusal: str = ""
    refused_told: HelperCode | None = None
    warned: bool = False
    told: bool = False
    ours: bool = False
    follows: bool = False


@dataclass(frozen=True, slots=True)
class LockCheck:
    """One question of the proof. ok: the answer that recovery needs; None: it cannot be told. evidence: what was seen."""

    name: str
    ok: bool | None
    evidence: str


@dataclass(frozen=True, slots=True)
class LockDecision:
    """What is thought of one lock and why. next_step: what recovery does next, in words for people; "" for
    nothing. next_at: when the second observation is due."""

    id: GuestId
    name: str
    kind: str
    verdict: LockVerdict
    evidence: str
    checks: tuple[LockCheck, ...]
    since: float
    next_step: str = ""
    next_at: float | None = None
