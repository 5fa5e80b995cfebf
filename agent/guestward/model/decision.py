"""Guards, verdicts and decisions: the one value that log, metric, `explain` and tests read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from guestward.model.guest import GuestId


class Guard(StrEnum):
    """Why a guest is left alone, in the order in which the guards are asked; the first that applies wins. START is none."""

    NOT_OWNED = "not_owned"
    SCRATCH_BAND = "scratch_band"
    TEMPLATE = "template"
    RUNNING = "running"
    UNREADABLE = "unreadable"
    ONBOOT_OFF = "onboot_off"
    NEW_HERE = "new_here"
    HELD = "held"
    HA = "ha"
    LOCKED = "locked"
    TASK = "task"
    BACKUP = "backup"
    BACKUP_UNKNOWN = "backup_unknown"
    HOST_GATE = "host_gate"
    UNCONFIRMED = "unconfirmed"
    STORAGE_OFFLINE = "storage_offline"
    BACKOFF = "backoff"
    EXHAUSTED = "exhausted"
    START = "start"


GUARD_MEANING: dict[Guard, str] = {
    Guard.NOT_OWNED: "in none of the pools of [scope], or excluded there",
    Guard.SCRATCH_BAND: "its VMID is in the scratch band; no duty ever starts a guest there",
    Guard.TEMPLATE: "a template cannot be started",
    Guard.RUNNING: "it runs",
    Guard.UNREADABLE: "its configuration could not be read, so nothing is known of its onboot",
    Guard.ONBOOT_OFF: "onboot is not 1: somebody wants it down",
    Guard.NEW_HERE: "appeared on this node while it was watched (restored, cloned, moved) and has not run here yet",
    Guard.HELD: "held by an operator",
    Guard.HA: "managed by PVE's HA, or nobody can say whether it is",
    Guard.LOCKED: "has a configuration lock; left to lock recovery",
    Guard.TASK: "a task for this guest is running",
    Guard.BACKUP: "a backup is at work on it",
    Guard.BACKUP_UNKNOWN: "nobody can say whether a backup is at work on it",
    Guard.HOST_GATE: "the host is not in a state in which anything may be started",
    Guard.UNCONFIRMED: "seen stopped only once, or it is not known yet who stopped it",
    Guard.STORAGE_OFFLINE: "a storage that it needs is offline",
    Guard.BACKOFF: "waits after a failed attempt",
    Guard.EXHAUSTED: "all attempts are used up",
    Guard.START: "nothing stands in the way of a start",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one guard says of one guest, and what it saw that makes it say so."""

    guard: Guard
    applies: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done with one guest.

    next_at: seconds since host boot at which the next step comes if nothing changes; None when nothing is planned.
    verdicts: what every guard says, in order; for a running guest only the one that decided.
    """

    id: GuestId
    name: str
    guard: Guard
    evidence: str
    verdicts: tuple[Verdict, ...]
    next_at: float | None = None


class GateReason(StrEnum):
    """Why the host gate is closed."""

    BOOTING = "booting"
    STOPPING = "stopping"
    BULK_TASK = "bulk_task"
    NO_QUORUM = "no_quorum"
    HOLD = "hold"
    MAINTENANCE = "maintenance"
    MASS_STOP = "mass_stop"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Closure:
    """One reason for which the gate is closed. until: seconds since host boot, where the end is known."""

    reason: GateReason
    evidence: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """The host gate: open when there is no closure. warnings: things about the host that a person should look at."""

    closures: tuple[Closure, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """Whether guests may be acted on."""
        return not self.closures

    @property
    def evidence(self) -> str:
        """All reasons in one line."""
        return "; ".join(f"{c.reason}: {c.evidence}" for c in self.closures)


class Outcome(StrEnum):
    """How an attempt to start a guest ended."""

    STARTED = "started"
    FAILED = "failed"
    UNKNOWN = "unknown"
    UNCHANGED = "unchanged"
    HANDED_TO_HA = "handed_to_ha"
