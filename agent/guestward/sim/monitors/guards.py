"""Whether what a guard says of a guest is so in the world."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from guestward.sim.monitors import truth
from guestward.sim.monitors.past import Facts, Of, Past, Snap


def guard_holds(past: Past, snap: Snap, vmid: int, guard: str) -> bool:
    """Whether what a guard says of a guest is so in the world. What the agent alone can know counts as so."""
    facts = snap.guests.get(vmid)
    if facts is None:
        return guard in ("not_owned", "unreadable")
    check = _GUARDS.get(guard)
    return check is None or check(past, snap, facts)


def recently(past: Past, moment: float) -> bool:
    """Whether a look may still come from before that virtual second."""
    return past.world.now - moment <= 2 * past.sim.config.watchdog.interval + 30


def _new(of: Of, past: Past) -> bool:
    """One that was made anew a moment ago may have been seen running since: a backup of a stopped VM runs it without starting it."""
    return bool(of.maybe_new) or recently(past, of.born_at)


def _held(past: Past, snap: Snap, facts: Facts) -> bool:
    vmid = facts.id.vmid
    hold_mode = past.rules.operator_stop_holds
    unclear = truth.task_on(snap, facts.id) is not None or _unread(past)  # while a task stops it nobody knows how that ends
    return truth.held(past, snap, vmid) or (hold_mode and (truth.may_be_stopped_on_purpose(past, vmid) or unclear))


def _unread(past: Past) -> bool:
    return recently(past, past.api_failed) or bool(past.lost())


def _ha(past: Past, snap: Snap, facts: Facts) -> bool:
    handed = any(task.upid.type == "hastart" and task.upid.id == str(facts.id.vmid) for task in past.world.archive)
    unlisted = not facts.visible or past.concealed()  # `/cluster/resources` leaves it out, so that HA's state is not known
    return facts.ha or handed or unlisted or recently(past, past.api_failed)


def _locked(past: Past, snap: Snap, facts: Facts) -> bool:
    """What came of a step may be unknown for longer than the helper takes, when it could not be read."""
    unread = past.requests.last(facts.id.vmid) is not None and recently(past, past.api_failed)
    return facts.lock is not None or facts.dangling is not None or past.helper_at_work(facts.id.vmid) or unread


def _task(past: Past, snap: Snap, facts: Facts) -> bool:
    ours = any(not sent.outcome for sent in past.memory(facts.id.vmid).sent)
    return ours or truth.task_on(snap, facts.id) is not None


def _unknown_backup(past: Past, snap: Snap, facts: Facts) -> bool:
    return bool(truth.unprovable(past, snap)) or recently(past, past.api_failed)


def _gate(past: Past, snap: Snap, facts: Facts) -> bool:
    return bool(truth.gate(past, snap)) or truth.may_be_mass_stop(past, past.rules.mass_stop, 2 * truth.MASS_PAUSE + 120)


def _nothing_before(past: Past, snap: Snap, facts: Facts) -> bool:
    """Whether none of the guards before `unconfirmed` surely stands: each of them would have been named in its place."""
    vmid = facts.id.vmid
    if not facts.wanted or facts.shown or facts.ha or facts.lock is not None or truth.held(past, snap, vmid):
        return False
    of, began = past.memory(vmid), past.job[0] if past.job else None
    unread = of.new.startswith("made anew") and not past.asked_ok("archive")  # only the history tells that
    if of.new and not unread and began is not None and of.new_at <= began.t and vmid in began.snap.guests:
        return False
    at_work = not truth.tasks_unseen(past) and truth.task_on(snap, facts.id) is not None and all(sent.outcome for sent in of.sent)
    saved = not snap.node.unreadable and truth.backup(snap, facts)
    return not at_work and not saved and not truth.gate(past, snap)


def _last_tried(past: Past, vmid: int) -> float:
    """When the last attempt was made, or came to its end, in seconds since host boot, as far as the agent may know."""
    of = past.memory(vmid)
    ends = (past.world.boottime if sent.ended is None else max(sent.at, sent.ended) for sent in of.sent if sent.at <= past.world.boottime)
    return max([of.told_at, of.cut_at, *ends])


def _backoff(past: Past, snap: Snap, facts: Facts) -> bool:
    """Some attempt, sent or not, is not over for longer than the longest back-off."""
    rules, vmid = past.rules, facts.id.vmid
    longest = max(rules.backoff) + rules.start_timeout + 2 * past.sim.config.watchdog.interval + 30
    return _nothing_before(past, snap, facts) and past.world.boottime - _last_tried(past, vmid) <= longest


def _exhausted(past: Past, snap: Snap, facts: Facts) -> bool:
    """All attempts were told, but those that the agent was killed at, or knows from PVE's history only (C08)."""
    of = past.memory(facts.id.vmid)
    made = of.told + len(of.cuts) + (len(of.sent) if past.lost_state > -math.inf else 0)
    return _nothing_before(past, snap, facts) and made >= past.rules.attempts


_GUARDS: Mapping[str, Callable[[Past, Snap, Facts], bool]] = {
    "not_owned": lambda past, snap, facts: not facts.owned,
    "scratch_band": lambda past, snap, facts: facts.band,
    "template": lambda past, snap, facts: facts.template,
    "running": lambda past, snap, facts: facts.shown,
    "unreadable": lambda past, snap, facts: recently(past, past.memory(facts.id.vmid).failed) or recently(past, past.api_failed),
    "onboot_off": lambda past, snap, facts: not facts.onboot,
    "new_here": lambda past, snap, facts: _new(past.memory(facts.id.vmid), past) or facts.lock in ("create", "import", "clone"),
    "held": _held,
    "ha": _ha,
    "locked": _locked,
    "task": _task,
    "backup": lambda past, snap, facts: bool(truth.backup(snap, facts)),
    "backup_unknown": _unknown_backup,
    "host_gate": _gate,
    "storage_offline": lambda past, snap, facts: bool(truth.offline(snap, facts)),
    "unconfirmed": _nothing_before,
    "backoff": _backoff,
    "exhausted": _exhausted,
    "start": _nothing_before,
}
