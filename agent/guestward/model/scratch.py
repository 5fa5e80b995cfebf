"""The band of scratch guests: who may be destroyed at all, what is thought of a guest there, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn, final

from guestward.model.guest import GuestId

_MADE_BY_CLAIM = object()


class NotScratchError(ValueError):
    """That is no VMID of the band. The message says why."""


@final
class ScratchId:
    """A VMID inside the band: the only thing that can be destroyed. Made by `ScratchBand.claim` and by nothing else, and never changed."""

    __slots__ = ("_vmid",)
    _vmid: int

    def __init__(self, vmid: int, made_by: object) -> None:
        """Raises TypeError for everybody but `ScratchBand.claim`."""
        if made_by is not _MADE_BY_CLAIM:
            raise TypeError("only ScratchBand.claim makes a ScratchId")
        object.__setattr__(self, "_vmid", vmid)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """It stays what it was made."""
        raise AttributeError(f"a ScratchId does not change: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        """The same."""
        raise AttributeError(f"a ScratchId does not change: {name}")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Neither copied nor written down: what comes back would not have been claimed."""
        raise TypeError("a ScratchId is neither copied nor pickled")

    @property
    def vmid(self) -> int:
        """The number."""
        return self._vmid

    def __str__(self) -> str:
        """The number as PVE writes it."""
        return str(self._vmid)


@dataclass(frozen=True, slots=True)
class ScratchBand:
    """All VMIDs from `first` to `last`."""

    first: int
    last: int

    def claim(self, vmid: object) -> ScratchId:
        """The id of a guest that may be destroyed, if everything else says so too. Raises NotScratchError for all that is no int inside."""
        if type(vmid) is not int or not self.first <= vmid <= self.last:
            what = f"a {type(vmid).__name__}" if type(vmid) is not int else str(vmid) if vmid.bit_length() < 64 else "a number that long"
            raise NotScratchError(f"{what} is no VMID from {self.first} to {self.last}")
        return ScratchId(vmid, _MADE_BY_CLAIM)

    def __contains__(self, vmid: object) -> bool:
        """Whether it is one of them."""
        return type(vmid) is int and self.first <= vmid <= self.last

    def __iter__(self) -> Iterator[int]:
        """All of them."""
        return iter(range(self.first, self.last + 1))


class ScratchVerdict(StrEnum):
    """What is thought of one guest in the band, in the order in which it is asked; the first that applies."""

    STRANDED = "stranded"
    UNKNOWN = "unknown"
    TEMPLATE = "template"
    PROTECTED = "protected"
    HA = "ha"
    LOCKED = "locked"
    TASK = "task"
    CLAIMED = "claimed"
    HELD = "held"
    HOST_GATE = "host_gate"
    UNPROVEN = "unproven"
    YOUNG = "young"
    GIVEN_UP = "given_up"
    WAITING = "waiting"
    LEFTOVER = "leftover"


SCRATCH_MEANING: dict[ScratchVerdict, str] = {
    ScratchVerdict.STRANDED: "the token lacks a grant on its path, which the root helper is asked to put back",
    ScratchVerdict.UNKNOWN: "something that has to be known first is not known",
    ScratchVerdict.TEMPLATE: "a template, or the base of linked clones: never torn down",
    ScratchVerdict.PROTECTED: "`protection` is set: never torn down",
    ScratchVerdict.HA: "HA manages it: never torn down",
    ScratchVerdict.LOCKED: "a lock that no dead restore leaves: somebody is at work, or was",
    ScratchVerdict.TASK: "a task for it is running, or a backup or a clone that may be of it",
    ScratchVerdict.CLAIMED: "claimed with `guestward scratch claim`: in use",
    ScratchVerdict.HELD: "held by an operator",
    ScratchVerdict.HOST_GATE: "the host is not in a state in which anything may be done",
    ScratchVerdict.UNPROVEN: "nothing proves that it is ours: no tag, no claim, and no restore by one of [scratch] origins",
    ScratchVerdict.YOUNG: "the last task on it is not `min_age` old",
    ScratchVerdict.GIVEN_UP: "tearing it down has failed too often; tried again when it changes, the host boots, or by `scratch teardown`",
    ScratchVerdict.WAITING: "tearing it down has failed, and is tried again later",
    ScratchVerdict.LEFTOVER: "a scratch guest of ours that nobody uses: it is torn down",
}
REFUSALS = frozenset({ScratchVerdict.TEMPLATE, ScratchVerdict.PROTECTED, ScratchVerdict.HA, ScratchVerdict.LOCKED, ScratchVerdict.UNPROVEN})
"""Those that only a person can change."""


IN_USE = frozenset({ScratchVerdict.YOUNG, ScratchVerdict.CLAIMED, ScratchVerdict.TASK, ScratchVerdict.HELD})
"""Those of a guest that somebody works with; all others are left over, whether they are torn down or not."""


class ScratchStep(StrEnum):
    """What a teardown is at; written down before it is done."""

    RELEASE = "release-scratch"
    STOP = "stop"
    DESTROY = "destroy"
    REGRANT = "regrant"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class Claimed:
    """That a VMID was claimed, by whom, and from when until when in seconds since the epoch."""

    by: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class ScratchMemory:
    """What is remembered of a VMID of the band. Times are seconds since host boot.

    id, name: of the guest that was there, with the stamp of its configuration file; None when there was none. told: the verdict that
    was told of it. failures: how often its teardown failed; next_at: not before. step: at which a teardown is. storages: that its
    configuration named. claimed: the last claim.
    """

    vmid: int
    id: GuestId | None = None
    name: str = ""
    stamp: str = ""
    told: ScratchVerdict | None = None
    failures: int = 0
    next_at: float = 0.0
    step: ScratchStep | None = None
    storages: frozenset[str] = frozenset()
    claimed: Claimed | None = None


@dataclass(frozen=True, slots=True)
class ScratchDecision:
    """What is thought of one guest of the band and why. proof: that it is ours; "" where there is none. next_at: when that may change."""

    id: GuestId
    name: str
    verdict: ScratchVerdict
    evidence: str
    proof: str = ""
    next_at: float | None = None
