"""The guards, each a small question about one guest, asked in the order of `Guard`; the first that applies wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from guestward.model.decision import Decision, Gate, Guard, Outcome, Verdict
from guestward.model.guest import GuestConfig, ListedGuest
from guestward.model.memory import GuestMemory, Hold
from guestward.model.observation import Observation, Resources, StorageState
from guestward.model.reading import Reading, Unreadable
from guestward.model.rules import Rules
from guestward.policy.backups import backup_of
from guestward.policy.causes import describe, is_deliberate

Answer = tuple[bool, str]


@dataclass(frozen=True, slots=True)
class Case:
    """One guest and all that is known of it. hold: the operator's hold on it with the seconds that it still lasts.

    recovering: whether lock recovery has asked the helper for something and does not know yet what came of it.
    """

    obs: Observation
    guest: ListedGuest
    memory: GuestMemory
    rules: Rules
    gate: Gate
    hold: tuple[Hold, float] | None = None
    recovering: bool = False

    @property
    def config(self) -> GuestConfig | Unreadable | None:
        """Its configuration; None where it is not read: of running, locked or foreign guests."""
        return self.obs.configs.get(self.guest.id)


def decide(case: Case) -> Decision:
    """Ask the guards. A running guest is asked only until it is known to run: nothing else matters for it (I2)."""
    verdicts = tuple(_ask(case))
    first = next(verdict for verdict in verdicts if verdict.applies)
    if first.guard is Guard.RUNNING:
        verdicts = (first,)  # of a thousand running guests nobody wants to read more
    return Decision(case.guest.id, case.guest.name, first.guard, first.evidence, verdicts, _next_at(case, first.guard))


def may_start(case: Case) -> bool:
    """Whether no guard before HA applies: only then HA, storages and backup witnesses are worth asking."""
    return not any(_QUESTIONS[guard](case)[0] for guard in BEFORE_WITNESSES)


def _ask(case: Case) -> Iterator[Verdict]:
    stands = False
    for guard, question in _QUESTIONS.items():
        if guard is Guard.START and stands:
            return
        applies, evidence = question(case)
        yield Verdict(guard, applies, evidence)
        if applies and guard is Guard.RUNNING:
            return
        stands = stands or applies


def _not_owned(case: Case) -> Answer:
    member = case.obs.members.get(case.guest.id)
    if member is None:
        return True, f"in none of the pools {', '.join(case.rules.pools)}"
    if case.guest.id.vmid in case.rules.exclude:
        return True, "excluded in [scope]"
    return False, f"in the pool {member.pool}"


def _scratch_band(case: Case) -> Answer:
    band = f"{case.rules.scratch_first}-{case.rules.scratch_last}"
    inside = case.rules.in_scratch_band(case.guest.id.vmid)
    return inside, f"VMID {'inside' if inside else 'outside'} {band}"


def _template(case: Case) -> Answer:
    by_config = isinstance(case.config, GuestConfig) and case.config.template
    return case.guest.template or by_config, "is a template" if case.guest.template or by_config else "is no template"


def _running(case: Case) -> Answer:
    if not case.guest.running:
        return False, "stopped in the node's live list"
    return True, f"running, pid {case.guest.pid}" if case.guest.pid else "running, no pid yet"


def _unreadable(case: Case) -> Answer:
    if isinstance(case.config, Unreadable):
        return True, case.config.reason
    return False, "not read while locked or running" if case.config is None else "configuration read"


def _onboot_off(case: Case) -> Answer:
    if not isinstance(case.config, GuestConfig):
        return False, "not read"
    return not case.config.onboot, f"onboot is {'1' if case.config.onboot else 'not 1'}"


def _new_here(case: Case) -> Answer:
    if case.memory.new:
        return True, "appeared on this node while it was watched and has not run here; ends when it runs, at a host boot or by rearm"
    return False, "known here"


def _held(case: Case) -> Answer:
    if case.hold is not None:
        hold, remaining = case.hold
        return True, f"held by {hold.by} for {minutes(remaining)} more: {hold.reason or 'no reason given'}"
    if not case.rules.operator_stop_holds:
        return False, "no hold"
    if is_deliberate(case.memory.cause) and not case.memory.released:
        return True, f"operator_stop is hold, and it was stopped: {describe(case.memory.cause)}"
    if not case.guest.running and not case.memory.cause_read:
        return True, "operator_stop is hold, and the task history could not be read yet"
    return False, "no hold, and nobody stopped it through PVE"


def minutes(seconds: float) -> str:
    """A stretch of time that need not be exact: `40 s`, `119 min`."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _ha(case: Case) -> Answer:
    if any(attempt.outcome is Outcome.HANDED_TO_HA for attempt in case.memory.attempts):
        return True, "handed to HA: PVE answered the start with hastart"
    resources = case.obs.resources
    if isinstance(resources, Unreadable):
        return True, f"HA state: {resources.reason}"
    if case.guest.id not in resources.listed:
        return True, "HA state unreadable: /cluster/resources does not list it"
    if case.guest.id not in resources.ha:
        return False, "not managed by HA"
    state = resources.ha[case.guest.id]
    return state != "ignored", f"hastate {state if state is not None else 'null'}"


def _locked(case: Case) -> Answer:
    config_lock = case.config.lock if isinstance(case.config, GuestConfig) else None
    lock = case.guest.lock or config_lock
    if lock is None and case.recovering:  # its deletion locks it in a moment, and a start would fail
        return True, "lock recovery is at work on it"
    return lock is not None, f"lock {lock}" if lock else "no lock"


def _task(case: Case) -> Answer:
    own = case.memory.in_flight
    if own is not None:
        return True, f"our own start (attempt {own.number}) has been under way for {case.obs.at - own.begun_at:.0f} s"
    if isinstance(case.obs.tasks, Unreadable):
        return False, f"cannot tell: {case.obs.tasks.reason}"
    for task in case.obs.tasks:
        if task.running and task.upid.type != "vzdump" and task.upid.id == str(case.guest.id.vmid):
            return True, f"{task.upid.type} by {task.upid.user} is running"
    return False, "no task for it is running"


def _backup(case: Case) -> Answer:
    verdict = backup_of(case.guest.id.vmid, case.guest.lock, case.obs.tasks, case.obs.backups)
    return verdict.running is True, verdict.evidence


def _backup_unknown(case: Case) -> Answer:
    verdict = backup_of(case.guest.id.vmid, case.guest.lock, case.obs.tasks, case.obs.backups)
    return verdict.running is None, verdict.evidence if verdict.running is None else "every witness could be read"


def _host_gate(case: Case) -> Answer:
    return not case.gate.open, case.gate.evidence or "open"


def _unconfirmed(case: Case) -> Answer:
    since = case.memory.startable_since
    if not case.memory.cause_read and not case.guest.running:
        return True, "who stopped it, and whether it was made anew, is not known: the task history was not read yet"
    if since is None:
        return True, f"seen stopped with nothing in its way for the first time; a second look after {case.rules.confirm:g} s decides"
    ago = case.obs.at - since
    if ago < case.rules.confirm:
        return True, f"seen stopped with nothing in its way once, {ago:.0f} s ago; a second look after {case.rules.confirm:g} s decides"
    return False, f"seen stopped twice, {ago:.0f} s apart"


def offline_storages(config: object, resources: Reading[Resources]) -> frozenset[str]:
    """Storages that a guest of this configuration needs and that were seen offline. Nothing is known of a configuration not read."""
    if not isinstance(config, GuestConfig) or isinstance(resources, Unreadable):
        return frozenset()
    return frozenset(name for name in config.storages if resources.storages.get(name) is StorageState.OFFLINE)


def _storage_offline(case: Case) -> Answer:
    offline = sorted(offline_storages(case.config, case.obs.resources))
    return bool(offline), f"offline: {', '.join(offline)}" if offline else "none that it needs is known to be offline"


def _backoff_ends(case: Case) -> float | None:
    last = case.memory.attempts[-1] if case.memory.attempts else None
    if last is None or last.ended_at is None:
        return None
    return last.ended_at + case.rules.backoff_after(last.number)


def _backoff(case: Case) -> Answer:
    ends = _backoff_ends(case)
    if ends is not None and case.obs.at < ends:
        last = case.memory.attempts[-1]
        return True, f"attempt {last.number} of {case.rules.attempts}: {last.outcome} ({last.reason}); {ends - case.obs.at:.0f} s to wait"
    return False, "no wait after an attempt"


def _exhausted(case: Case) -> Answer:
    made = len(case.memory.attempts)
    if made >= case.rules.attempts:
        last = case.memory.attempts[-1]
        how = "it started, but did not stay up" if last.outcome is Outcome.STARTED else last.reason
        return True, f"{made} of {case.rules.attempts} attempts made; the last: {how}"
    return False, f"{made} of {case.rules.attempts} attempts made"


def _start(case: Case) -> Answer:
    return True, f"attempt {len(case.memory.attempts) + 1} of {case.rules.attempts}"


_QUESTIONS: dict[Guard, Callable[[Case], Answer]] = {
    Guard.NOT_OWNED: _not_owned,
    Guard.SCRATCH_BAND: _scratch_band,
    Guard.TEMPLATE: _template,
    Guard.RUNNING: _running,
    Guard.UNREADABLE: _unreadable,
    Guard.ONBOOT_OFF: _onboot_off,
    Guard.NEW_HERE: _new_here,
    Guard.HELD: _held,
    Guard.HA: _ha,
    Guard.LOCKED: _locked,
    Guard.TASK: _task,
    Guard.BACKUP: _backup,
    Guard.BACKUP_UNKNOWN: _backup_unknown,
    Guard.HOST_GATE: _host_gate,
    Guard.UNCONFIRMED: _unconfirmed,
    Guard.STORAGE_OFFLINE: _storage_offline,
    Guard.BACKOFF: _backoff,
    Guard.EXHAUSTED: _exhausted,
    Guard.START: _start,
}
BEFORE_WITNESSES = (
    Guard.NOT_OWNED,
    Guard.SCRATCH_BAND,
    Guard.TEMPLATE,
    Guard.RUNNING,
    Guard.UNREADABLE,
    Guard.ONBOOT_OFF,
    Guard.NEW_HERE,
    Guard.HELD,
)
STARTABLE = frozenset({Guard.UNCONFIRMED, Guard.STORAGE_OFFLINE, Guard.BACKOFF, Guard.EXHAUSTED, Guard.START})
OUT_OF_SCOPE = frozenset({Guard.NOT_OWNED, Guard.SCRATCH_BAND, Guard.TEMPLATE})


def _next_at(case: Case, guard: Guard) -> float | None:
    if guard is Guard.HELD and case.hold is not None:
        return case.obs.at + case.hold[1]
    if guard is Guard.HOST_GATE:
        ends = [closure.until for closure in case.gate.closures]
        return max(end for end in ends if end is not None) if None not in ends else None
    if guard is Guard.UNCONFIRMED:
        since = case.obs.at if case.memory.startable_since is None else case.memory.startable_since
        look = since + case.rules.confirm
        return (
            look if look > case.obs.at else None
        )  # what waits for the task history waits for the next sweep, not for a moment that is over
    if guard is Guard.BACKOFF:
        return _backoff_ends(case)
    return case.obs.at if guard is Guard.START else None
