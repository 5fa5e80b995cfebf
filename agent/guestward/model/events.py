"""The closed set of events that the agent logs. `docs/events.md` is generated from here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from guestward.model.guest import GuestId


class Level(StrEnum):
    """How much an event matters to somebody who reads `journalctl -p`."""

    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class EventKind:
    """One kind of event. levels: the first is the usual one. fields: what it carries besides `event`, `level`, `message`."""

    name: str
    levels: tuple[Level, ...]
    fields: tuple[str, ...]
    meaning: str
    guest: bool = False


GUEST_FIELDS = ("vmid", "kind", "name", "guard")
_I, _W, _E = Level.INFO, Level.WARN, Level.ERROR


def _kind(name: str, levels: Level | tuple[Level, ...], fields: str, meaning: str, *, guest: bool = False) -> EventKind:
    return EventKind(name, levels if isinstance(levels, tuple) else (levels,), tuple(fields.split()), meaning, guest)


class Event:
    """Every event there is; nothing else can be logged."""

    DAEMON_STARTED = _kind("daemon_started", _I, "version node config interval_s", "The agent is up and begins to watch.")
    DAEMON_STOPPING = _kind(
        "daemon_stopping", _I, "signal in_flight", "The agent was asked to end; attempts in flight are followed at its next start."
    )
    CONFIG_REJECTED = _kind("config_rejected", _E, "file key reason", "A configuration was refused; the last valid one stays in force.")
    CONFIG_RELOADED = _kind("config_reloaded", _I, "file", "The configuration was read again and is in force.")
    SWEEP_ABORTED = _kind(
        "sweep_aborted",
        (_W, _E),
        "reason aborted_in_a_row aborted_for_s",
        "A sweep saw too little to judge: nothing was examined or changed. WARN at the first, ERROR at the third in a row or after 5 min.",
    )
    SWEEP_INCOMPLETE = _kind(
        "sweep_incomplete",
        (_W, _E),
        "reason incomplete_for_s",
        "A sweep could not read all that it needs; what depends on that was left undone, the other guests were served. "
        "WARN when something new is missing, ERROR once after 5 min.",
    )
    SWEEP_RESUMED = _kind("sweep_resumed", _I, "reason missed_s", "Sweeps are complete again.")
    HEARTBEAT = _kind(
        "heartbeat",
        _I,
        "sweeps_since_boot guests_evaluated currently_stopped left_down holds host_gate",
        "Every 10th complete sweep: what was seen, with names and guards of the guests left down.",
    )
    HOST_GATE_CLOSED = _kind(
        "host_gate_closed", (_I, _W), "reasons evidence", "Nothing is started until the gate opens. WARN for a mass stop."
    )
    HOST_GATE_OPENED = _kind("host_gate_opened", _I, "closed_s", "Guests are guarded again.")
    HOST_WARNING = _kind("host_warning", _W, "reason", "Something about the host's boot needs a person's eye.")
    GUEST_DOWN = _kind("guest_down", _I, "evidence cause", "A guest that ran, or should run, was seen stopped.", guest=True)
    GUEST_WAITING = _kind("guest_waiting", _I, "evidence cause", "The guest stays down for now, and why; once per guard.", guest=True)
    GUEST_UP = _kind(
        "guest_up",
        _I,
        "down_s",
        "A guest that was down runs again and we did not start it. down_s: since it was first seen down.",
        guest=True,
    )
    GUEST_FORGOTTEN = _kind("guest_forgotten", _I, "reason", "The guest left the pool, moved to another node or was destroyed.", guest=True)
    START_ATTEMPT = _kind("start_attempt", _I, "attempt of cause upid", "A start was sent.", guest=True)
    START_RESULT = _kind(
        "start_result",
        (_I, _W),
        "attempt outcome reason upid down_s",
        "How the attempt ended: started (seen running with a pid in two reads), failed, unknown, unchanged or handed_to_ha. "
        "down_s: since it was first seen down.",
        guest=True,
    )
    GIVEN_UP = _kind(
        "given_up", _E, "attempts reason", "All attempts are used up; the guest stays down until something changes or `rearm`.", guest=True
    )
    REARMED = _kind("rearmed", _I, "reason", "The guest has all its attempts again.", guest=True)
    HELD = _kind("held", _I, "scope by for_s reason", "A hold is in force, or a claim on a VMID of the scratch band.")
    RELEASED = _kind("released", _I, "scope reason", "A hold or a claim ended.")
    NOT_WORKING = _kind(
        "not_working", _W, "state", "The guest runs but does not work (paused, io-error, frozen ...). It is never touched.", guest=True
    )
    WORKING_AGAIN = _kind("working_again", _I, "state", "The guest works again.", guest=True)
    BACKUP_WAIT_LONG = _kind(
        "backup_wait_long", _W, "evidence waited_s", "The guest has waited for a backup for longer than `backup_wait_warn`.", guest=True
    )
    LOCK_STALE = _kind(
        "lock_stale", _W, "lock evidence", "A lock, or a snapshot of vzdump, that provably nobody owns; with what proves it.", guest=True
    )
    UNLOCKED = _kind("unlocked", _I, "lock reason", "The stale lock is gone: seen after the helper was asked to clear it.", guest=True)
    SNAPSHOT_DELETED = _kind(
        "snapshot_deleted", _I, "reason", "The dangling snapshot of vzdump is gone: seen after the delete.", guest=True
    )
    LOCK_STEP_FAILED = _kind(
        "lock_step_failed",
        _E,
        "step reason attempt of",
        "A step of lock recovery failed; it is tried again so often, later, and the guest is started if it can run without it.",
        guest=True,
    )
    LOCK_STEP_REFUSED = _kind(
        "lock_step_refused",
        _W,
        "step code reason",
        "The root helper refuses a step of lock recovery and has changed nothing; said once, asked again with longer and longer waits.",
        guest=True,
    )
    LOCK_OLD = _kind(
        "lock_old", _W, "lock age_s evidence", "A lock is older than `[locks] warn_after`; whose it is, as far as known.", guest=True
    )
    SCRATCH_FOUND = _kind(
        "scratch_found",
        _I,
        "verdict evidence",
        "A guest in the scratch band is provably ours, and goes when nobody uses it.",
        guest=True,
    )
    SCRATCH_REFUSED = _kind(
        "scratch_refused",
        _W,
        "verdict evidence",
        "A guest in the scratch band is not torn down, whatever its age: nothing proves that it is ours, or it must not be.",
        guest=True,
    )
    SCRATCH_STEP_FAILED = _kind(
        "scratch_step_failed",
        _E,
        "step reason attempt of",
        "A step of a teardown failed, or what came of it is not known; it is tried again so often, later, from what is seen then.",
        guest=True,
    )
    SCRATCH_DESTROYED = _kind(
        "scratch_destroyed",
        (_I, _W),
        "outcome reason evidence",
        "A scratch guest was destroyed by us. `outcome`: gone, when it was seen that no volume is left; unknown (WARN) when that could not "
        "be seen.",
        guest=True,
    )
    SCRATCH_LEFTOVER = _kind(
        "scratch_leftover",
        _E,
        "volumes reason",
        "A scratch guest was destroyed, and volumes with its VMID are left; the message has the commands that free them.",
        guest=True,
    )
    SCRATCH_STRANDED = _kind(
        "scratch_stranded",
        _E,
        "path privilege reason",
        "A scratch guest cannot be torn down: the token, or its user, lacks a grant that could not be put back.",
        guest=True,
    )
    HELPER_FAILED = _kind(
        "helper_failed", _E, "reason", "The root helper cannot be asked; locks and lost grants of the band stay as they are until it can."
    )
    HELPER_RESTORED = _kind("helper_restored", _I, "", "The root helper answers again.")
    GRANT_LOST = _kind(
        "grant_lost",
        _E,
        "path privilege",
        "The token lost a privilege that it needs. Of the scratch band only when the root helper could not put it back.",
    )
    GRANT_RESTORED = _kind(
        "grant_restored", _I, "path privilege", "The privilege is back. Of the scratch band: the root helper has put it back."
    )
    GRANT_EXCESS = _kind("grant_excess", _W, "path privilege", "The token may do more than it needs, and that is dangerous.")
    STORE_FAILED = _kind(
        "store_failed",
        _E,
        "reason",
        "The state could not be read or written. The message says what is still known; where holds are not, nothing is started.",
    )
    STORE_RESTORED = _kind("store_restored", _I, "", "The state is written again.")
    METRICS_FAILED = _kind("metrics_failed", _E, "listen reason", "The metrics cannot be served; the guests are guarded all the same.")
    METRICS_RESTORED = _kind("metrics_restored", _I, "listen", "The metrics are served.")
    LIBRARY = _kind("library", (_W, _E), "where reason", "A library that the agent uses had something to say.")
    ALREADY_RUNNING = _kind("already_running", _E, "pid folder", "Another agent uses the same state folder; this one does not start.")
    INTERNAL_ERROR = _kind("internal_error", _E, "where reason", "A defect in the agent; the look is given up and the next one comes.")


@dataclass(frozen=True, slots=True)
class Notice:
    """One event that a decision wants told. fields: besides those that every guest's event has."""

    event: EventKind
    id: GuestId
    name: str
    guard: str
    message: str
    fields: tuple[tuple[str, object], ...] = ()
    level: Level | None = None


def all_events() -> tuple[EventKind, ...]:
    """Every event in the order of its definition."""
    return tuple(value for name, value in vars(Event).items() if name.isupper())
