"""Every event's claim against the world: what it says happened, happened (I9, I10, I12)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from guestward.model.events import Level
from guestward.model.guest import GuestId
from guestward.model.task import Ok, Unknown, Warnings, exit_status
from guestward.sim.log import Logged
from guestward.sim.monitors import truth
from guestward.sim.monitors.base import BrokenError, Watch
from guestward.sim.monitors.guards import guard_holds, recently
from guestward.sim.monitors.past import BIRTHS, STARTS, Facts, Past, Sent, Snap, Stop
from guestward.sim.tasks import SimTask

INTERRUPTED = ("received interrupt", "interrupted by signal")
CAUSE = re.compile(r"(\S+) by (\S+) at ")
UNREAD_CAUSE = "the task history could not be read"
SHOWN_FOR = 12.0  # pvestatd's word is that old at most (pve-facts A1)
LENGTH_SLACK = 15.0  # what a slow look may take from the list to the word
ROTATES = 1900  # tasks in the archive, from which on the oldest may be gone
GOOD = ("started", "unchanged", "handed_to_ha")


class LabelsTrue(Watch):
    """Who it is about, and how loud."""

    invariant, rule = "CLAIMS", "an event of a guest names a guest that is or was there, by a name that it has or had"

    def event(self, logged: Logged) -> None:
        """Judge the label."""
        if logged.guest is None:
            return
        of = self.past.memory(logged.about.vmid)
        if logged.guest not in of.kinds:
            self.broken(f"{logged.event} at {logged.t:.1f} s is about {logged.guest}, and no such guest was ever there")
        if logged.name and logged.name not in of.names:
            self.broken(f"{logged.event} of {logged.guest} at {logged.t:.1f} s calls it {logged.name!r}; it never had that name")


class StartsTrue(Watch):
    """start_attempt."""

    invariant, rule = "CLAIMS", "start_attempt tells of a start that was sent, with its task and its number"
    judges = frozenset({"start_attempt"})

    def event(self, logged: Logged) -> None:
        """Judge an attempt."""
        if logged.event != "start_attempt" or logged.guest is None:
            return
        past, id, upid = self.past, logged.guest, str(logged.fields.get("upid") or "")
        request = next((asked for asked in reversed(past.job) if asked.kind == "start" and asked.vmid == id.vmid), None)
        if request is None:
            self.broken(f"start_attempt of {id} at {logged.t:.1f} s, and none was sent")
        sent = self._sent(id.vmid, request.t)
        if sent is None and not request.failed.startswith("PveUnreachable"):
            self.broken(f"start_attempt of {id} at {logged.t:.1f} s, and nothing reached PVE")
        if upid and (sent is None or sent.task is None or str(sent.task.upid) != upid):
            self.broken(f"start_attempt of {id} at {logged.t:.1f} s names the task {upid}, which is not that of its start")
        number, most = logged.fields.get("attempt"), logged.fields.get("of")
        if most != past.rules.attempts or not isinstance(number, int) or not (sent.number if sent is not None else 1) <= number <= most:
            self.broken(f"start_attempt of {id} at {logged.t:.1f} s is told as {number} of {most}")
        self._cause(logged)

    def _sent(self, vmid: int, since: float) -> Sent | None:
        return next((sent for sent in reversed(self.past.memory(vmid).sent) if sent.t >= since), None)

    def _cause(self, logged: Logged) -> None:
        found = wrong_cause(self.past, logged)
        if found:
            self.broken(found)


def wrong_cause(past: Past, logged: Logged) -> str:
    """What is untrue in what an event says of who stopped the guest, or that it says nothing; "" when nothing is."""
    cause, vmid = str(logged.fields.get("cause") or ""), str(logged.about.vmid)
    where = f"{logged.event} of {logged.guest} at {logged.t:.1f} s says `{cause}`"
    match = CAUSE.match(cause)
    if match is not None:
        tasks = (*past.world.tasks, *past.world.archive)
        known = any((t.upid.type, t.upid.user, t.upid.id) == (match[1], match[2], vmid) for t in tasks)
        return "" if known or len(past.world.archive) >= ROTATES else f"{where}, and there was no such task"
    stop = _sure_stop(past, logged)
    if stop is None or (cause == UNREAD_CAUSE and _history_unread(past, logged.about)):
        return ""
    return f"{where}; {stop.task.upid.type} by {stop.task.upid.user} did it"


def _sure_stop(past: Past, logged: Logged) -> Stop | None:
    """The task that surely is why it is down: none that is only just over, and none after which it was started."""
    vmid = logged.about.vmid
    of, stop = past.memory(vmid), truth.stopped_on_purpose(past, vmid)
    if stop is None or logged.t <= of.down_at or any(sent.at > stop.at for sent in of.sent):
        return None
    born = any(t.upid.id == str(vmid) and t.upid.type in STARTS and t.upid.started_boottime >= stop.at for t in past.world.archive)
    return None if born else stop


def _history_unread(past: Past, id: GuestId) -> bool:
    """Whether this look has not got to know how it was stopped: nobody answered, or a task that may change that runs, or just ran."""
    if not past.asked_ok("archive") or truth.tasks_unseen(past) or any(truth.task_on(snap, id) for snap in past.snaps):
        return True
    return recently(past, past.memory(id.vmid).gone_at) or recently(past, past.memory(id.vmid).born_at)


class OutcomesTrue(Watch):
    """start_result: I9, I10, I12."""

    invariant, rule = "I9", "an outcome is told only as it was: unknown is never told as success or failure"
    judges = frozenset({"start_result"})

    def __init__(self, past: Past) -> None:
        """pending: VMID -> the start of which the end is not told yet."""
        super().__init__(past)
        self.unsent: set[int] = set()

    def event(self, logged: Logged) -> None:
        """Judge a result. Runs before `ResultsTold` notes it."""
        if logged.guest is None:
            return
        if logged.event == "start_attempt":
            sent = self._open(logged.about.vmid)
            if sent is None or sent.attempt_told:
                self.unsent.add(logged.about.vmid)
        elif logged.event == "start_result":
            self._result(logged, logged.about.vmid)

    def _open(self, vmid: int) -> Sent | None:
        return next((sent for sent in reversed(self.past.memory(vmid).sent) if not sent.outcome), None)

    def _told_before_a_kill(self, vmid: int) -> Sent | None:
        """An agent that is killed after it told a result and before it wrote it down tells it once more."""
        last = next(reversed(self.past.memory(vmid).sent), None)
        if last is None or not self.past.cut or last.life == self.past.life or last.repeated:
            return None
        last.repeated = True
        return last

    def _result(self, logged: Logged, vmid: int) -> None:
        outcome, sent = str(logged.fields.get("outcome")), self._open(vmid)
        if (logged.level is Level.INFO) != (outcome in GOOD):
            self.broken(f"start_result {outcome} of {logged.guest} at {logged.t:.1f} s is told as {logged.level}")
        if sent is None:
            sent = self._told_before_a_kill(vmid)
        if sent is None:
            if vmid in self.unsent:
                self.unsent.discard(vmid)
                if outcome in ("started", "handed_to_ha"):
                    self.broken(f"start_result {outcome} of {logged.guest} at {logged.t:.1f} s, and nothing was sent")
            elif outcome != "unknown" or self.past.life < 2:
                self.broken(f"start_result {outcome} of {logged.guest} at {logged.t:.1f} s, and there was no start without a result")
            return
        {"started": self._started, "failed": self._failed, "unknown": self._unknown, "unchanged": self._unchanged}.get(
            outcome, self._handed_over
        )(logged, sent)
        self._down(logged, sent)

    def _started(self, logged: Logged, sent: Sent) -> None:
        self._in_time(logged, sent)
        snaps = [asked.snap for asked in self.past.job if asked.kind == "live"] or [self.past.sample()]
        if not any(facts is not None and facts.seen for facts in (snap.guests.get(sent.id.vmid) for snap in snaps)):
            raise BrokenError(
                "I12", "success is claimed only of what was seen", f"{sent.id} is told as started at {logged.t:.1f} s and does not run"
            )
        if sent.result == "refused":
            self.broken(f"{sent.id} is told as started at {logged.t:.1f} s although PVE refused the request")

    def _failed(self, logged: Logged, sent: Sent) -> None:
        if sent.result == "refused":
            return
        self._in_time(logged, sent)
        task = sent.task or self._by_our_token(sent)
        said = task.said if task is not None else None
        if said is None:
            self.broken(
                f"{sent.id} is told as failed at {logged.t:.1f} s; nobody knows: {'its task runs' if sent.task else 'the answer was lost'}"
            )
        status = exit_status(said)
        if isinstance(status, Unknown) or said.startswith(INTERRUPTED):
            self.broken(f"{sent.id} is told as failed at {logged.t:.1f} s; nobody knows: its task said {said!r}")
        if isinstance(status, Ok | Warnings) and all(self._seen(snap, sent) for snap in self.past.snaps):
            self.broken(f"{sent.id} is told as failed at {logged.t:.1f} s and runs")

    def _by_our_token(self, sent: Sent) -> SimTask | None:
        """Where the answer was lost, a start that somebody else sent with our token meanwhile is taken for ours: nobody could tell."""
        world, vmid = self.past.world, str(sent.id.vmid)
        known = (t for t in (*world.archive, *world.tasks) if t.upid.id == vmid and t.upid.type in STARTS and t.upid.user == world.token_id)
        return next((task for task in known if task.upid.started_boottime >= sent.at - 1), None)

    def _seen(self, snap: Snap, sent: Sent) -> bool:
        facts = snap.guests.get(sent.id.vmid)
        return facts is not None and facts.seen and facts.works

    def _unknown(self, logged: Logged, sent: Sent) -> None:
        """Where the truth was plain and could be read it must be told."""
        past = self.past
        over = past.world.boottime >= sent.deadline(past.rules.start_timeout) - 0.01
        said = sent.task.said if sent.task is not None else None
        plain = said is not None and not isinstance(exit_status(said), Unknown) and not said.startswith(INTERRUPTED)
        made_anew = any(
            task.upid.id == str(sent.id.vmid) and task.upid.type in BIRTHS and task.upid.started_boottime >= sent.at
            for task in past.world.archive
        )
        doubt = (
            sent.gone
            or made_anew
            or sent.life != past.life
            or past.world.now - past.api_failed < 30
            or any(asked.failed for asked in past.job)
        )
        facts = past.snap.guests.get(sent.id.vmid)
        if not over and plain and not doubt and facts is not None and facts.owned:
            self.broken(f"{sent.id} is told as unknown at {logged.t:.1f} s; its task said {said!r}")
        if not over and said is None and sent.task is not None and not doubt and facts is not None and facts.owned:
            self.broken(f"{sent.id} is told as unknown at {logged.t:.1f} s, before its deadline, while its task runs")

    def _unchanged(self, logged: Logged, sent: Sent) -> None:
        said = sent.task.said if sent.task is not None else ""
        if not sent.ran and not (said or "").endswith("already running"):
            self.broken(f"{sent.id} is told as unchanged at {logged.t:.1f} s; it did not run when the start at {sent.t:.1f} s was sent")

    def _handed_over(self, logged: Logged, sent: Sent) -> None:
        if sent.task is None or sent.task.upid.type != "hastart":
            self.broken(f"{sent.id} is told as {logged.fields.get('outcome')} at {logged.t:.1f} s, and PVE did not hand it to HA")

    def _in_time(self, logged: Logged, sent: Sent) -> None:
        late = self.past.world.boottime - sent.deadline(self.past.rules.start_timeout)
        if late > 0.01:
            raise BrokenError(
                "I10",
                "what comes after the deadline is not accepted",
                f"{sent.id} is told as {logged.fields.get('outcome')} at {logged.t:.1f} s, {late:.1f} s after its deadline",
            )

    def _down(self, logged: Logged, sent: Sent) -> None:
        """It was down since the first list that showed it so."""
        found = "" if sent.gone else wrong_length(self.past, logged)
        if found:
            self.broken(f"start_result of {sent.id} at {logged.t:.1f} s {found}")


def wrong_length(past: Past, logged: Logged) -> str:
    """What is untrue in `down_s`; "" when nothing is. It counts from the first list that showed it down.

    It may be less only where the agent may not have taken that list in: it was killed, lost its memory, or a look failed or took long.
    """
    said, of = logged.fields.get("down_s"), past.memory(logged.about.vmid)
    since = of.seen_down if of.seen_down is not None else of.was_down
    if since is None or not isinstance(said, int | float):
        return ""
    lasted = past.world.boottime - since
    if said > lasted + 2:
        return f"says that it was down for {said} s; it was {lasted:.0f} s"
    began = past.world.now - lasted
    doubtful = (
        max(past.lost_state, past.api_failed, past.slow_at, past.cut_at, of.gone_at, of.born_at, of.anew_at, of.config_changed) >= began - 1
    )
    ran = any(sent.outcome in GOOD and sent.at >= since for sent in of.sent)  # between two lists
    if said < lasted - LENGTH_SLACK and not doubtful and not ran and not past.lost():
        return f"says that it was down for {said} s; it was {lasted:.0f} s"
    return ""


Check = Callable[[Any, Logged], None]


class EventClaims(Watch):
    """A watch with a checker of its own for each of its events. checks: by the event's name."""

    invariant, rule = "CLAIMS", "what an event says is so in the world, or was at the look that it comes from"
    checks: ClassVar[Mapping[str, Check]] = {}

    def event(self, logged: Logged) -> None:
        """Judge it by its checker."""
        check = self.checks.get(logged.event)
        if check is not None:
            check(self, logged)

    def never(self, logged: Logged, what: str) -> None:
        """That is not so."""
        self.broken(f"{logged.event} of {logged.guest} at {logged.t:.1f} s: {what}")


class EventsTrue(EventClaims):
    """Guests, the host and the looks."""

    def __init__(self, past: Past) -> None:
        """bulk_told: the life of the agent in which a bulk task was told as a reason of the gate that is closed; 0: it was not."""
        super().__init__(past)
        self.bulk_told = 0

    # ------------------------------------------------------------------------------------------------ guests

    def _facts(self, logged: Logged) -> list[Facts | None]:
        return [snap.guests.get(logged.about.vmid) for snap in self.past.snaps]

    def down(self, logged: Logged) -> None:
        """guest_down, guest_waiting: it does not run, its guard is so, and whoever is named stopped it."""
        known = self._facts(logged)
        if all(facts is not None and facts.seen for facts in known):
            self.never(logged, "it runs")
        if not any(guard_holds(self.past, snap, logged.about.vmid, logged.guard) for snap in self.past.snaps):
            self.never(logged, f"its guard is {logged.guard}, and that is not so")
        found = wrong_cause(self.past, logged)
        if found:
            self.broken(found)

    def up(self, logged: Logged) -> None:
        """guest_up: it runs, and was not down for longer than it was seen down."""
        if not any(facts is not None and facts.seen for facts in self._facts(logged)):
            self.never(logged, "it does not run")
        of, said = self.past.memory(logged.about.vmid), logged.fields.get("down_s")
        since = of.was_down if of.seen_down is None else of.seen_down
        found = wrong_length(self.past, logged)
        if since is None or not isinstance(said, int) or found:
            self.never(logged, found or f"it says that it was down for {said} s")

    def forgotten(self, logged: Logged) -> None:
        """guest_forgotten, by its reason."""
        reason, known = str(logged.fields.get("reason")), self._facts(logged)
        of = self.past.memory(logged.about.vmid)
        gone = any(facts is None or facts.id != logged.guest for facts in known)
        if reason in ("identity changed", "made anew"):
            true = bool(of.maybe_new) or recently(self.past, of.born_at)
        elif reason == "it was destroyed":
            true = gone or any(facts is not None and not facts.here for facts in known)
        elif reason.startswith("it moved to node "):
            guest = self.past.world.guests.get(logged.about.vmid)
            true = guest is not None and (
                guest.node == reason.removeprefix("it moved to node ") or any(f is not None and not f.here for f in known)
            )
        else:
            true = gone or any(facts is not None and not _in_pool(self.past, facts) for facts in known)
        if not true:
            self.never(logged, f"it says that {reason}, and that is not so")

    def rearmed(self, logged: Logged) -> None:
        """Rearmed, by its reason."""
        reason, past = str(logged.fields.get("reason")), self.past
        of = past.memory(logged.about.vmid)
        if reason == "by an operator":
            true = logged.about.vmid in past.took
        elif reason == "its configuration changed":
            true = of.config_changed > -math.inf or bool(of.maybe_new)
        else:
            true = any(f"storage {name}" in reason or f" {name}" in reason for name in past.back_online)
        if not true:
            self.never(logged, f"it says that it is so {reason}, and that is not so")

    def given_up(self, logged: Logged) -> None:
        """given_up: it does not run."""
        if all(facts is not None and facts.seen for facts in self._facts(logged)):
            self.never(logged, "it runs")

    def not_working(self, logged: Logged) -> None:
        """not_working: it is in that state, as far as pvestatd's word can tell."""
        guest, state = self.past.world.guests.get(logged.about.vmid), logged.fields.get("state")
        if guest is None or self._fresh(logged.about.vmid):
            return
        if not guest.running or not (guest.frozen if state == "frozen" else state == guest.qmp):
            self.never(logged, f"it says {state}; it is {guest.qmp if guest.running else 'stopped'}")

    def working_again(self, logged: Logged) -> None:
        """working_again: it runs and works."""
        if not self._fresh(logged.about.vmid) and not any(facts is not None and facts.works for facts in self._facts(logged)):
            guest = self.past.world.guests.get(logged.about.vmid)
            state = "gone" if guest is None else "frozen" if guest.frozen else guest.qmp if guest.running else "stopped"
            self.never(logged, f"it is {state}")

    def _fresh(self, vmid: int) -> bool:
        return self.past.world.now - self.past.memory(vmid).state_at <= SHOWN_FOR

    def backup_wait_long(self, logged: Logged) -> None:
        """backup_wait_long: it is down, for so long, and a backup may be the reason."""
        known, said = self._facts(logged), logged.fields.get("waited_s")
        since = self.past.memory(logged.about.vmid).seen_down
        if all(facts is not None and facts.seen for facts in known):
            self.never(logged, "it runs")
        if not isinstance(said, int) or since is None or said > self.past.world.boottime - since + 2:
            self.never(logged, f"it says that it has waited for {said} s")
        snaps = self.past.snaps
        pairs = [(snap, snap.guests.get(logged.about.vmid)) for snap in snaps]
        busy = any(facts is not None and truth.backup(snap, facts) for snap, facts in pairs)
        if not busy and not truth.unprovable(self.past, snaps[-1]) and not any(asked.failed for asked in self.past.job):
            self.never(logged, "no backup is at work on it")

    # ------------------------------------------------------------------------------------------------ the node

    def gate_closed(self, logged: Logged) -> None:
        """host_gate_closed: each reason holds, and it is a warning only for two of them."""
        reasons = logged.fields.get("reasons")
        known: set[str] = set()
        for snap in self.past.snaps:
            known |= truth.gate(self.past, snap).keys()
        if truth.may_be_mass_stop(self.past, self.past.rules.mass_stop, 2 * truth.MASS_PAUSE + 120):
            known.add("mass_stop")
        for reason in reasons if isinstance(reasons, list) else ():
            if reason not in known:
                self.broken(f"host_gate_closed at {logged.t:.1f} s says {reason}, and that is not so")
            if reason == "bulk_task":
                self.bulk_told = self.past.life
        loud = isinstance(reasons, list) and ("mass_stop" in reasons or "unknown" in reasons)
        if loud != (logged.level is Level.WARN):
            self.broken(f"host_gate_closed at {logged.t:.1f} s for {reasons} is told as {logged.level}")

    def gate_opened(self, logged: Logged) -> None:
        """host_gate_opened: no reason holds. A bulk task that was not told before and cannot be seen is none that it speaks of."""
        found = [truth.gate(self.past, snap) for snap in self.past.snaps]
        if self.bulk_told != self.past.life and truth.tasks_unseen(self.past):
            found = [{reason: why for reason, why in known.items() if reason != "bulk_task"} for known in found]
        self.bulk_told = 0
        if all(found):
            self.broken(f"host_gate_opened at {logged.t:.1f} s although {'; '.join(found[-1].values())}")

    def host_warning(self, logged: Logged) -> None:
        """host_warning: pve-guests has not done its work."""
        if all(snap.node.unit.active == "active" for snap in self.past.snaps):
            self.broken(f"host_warning at {logged.t:.1f} s although pve-guests is active")

    def held(self, logged: Logged) -> None:
        """Held: there is such a hold."""
        scope = logged.fields.get("scope")
        vmid = None if scope == "node" else int(str(scope))
        known = [hold for snap in self.past.snaps for hold in snap.node.holds if hold.vmid == vmid and truth.lasts(self.past, hold)]
        if not known:
            self.broken(f"held at {logged.t:.1f} s says {scope}, and there is no such hold")

    def released(self, logged: Logged) -> None:
        """Released: there is no such hold any more."""
        scope = logged.fields.get("scope")
        vmid = None if scope == "node" else int(str(scope))
        lasting = [any(hold.vmid == vmid and truth.lasts(self.past, hold) for hold in snap.node.holds) for snap in self.past.snaps]
        if all(lasting):
            self.broken(f"released at {logged.t:.1f} s says {scope}, and that hold is in force")

    def aborted(self, logged: Logged) -> None:
        """sweep_aborted: something that ownership needs could not be seen; an ERROR at the third or after 5 min."""
        past, count, lasting = self.past, logged.fields.get("aborted_in_a_row"), logged.fields.get("aborted_for_s")
        failed = any(asked.failed for asked in past.job if asked.kind in ("privileges", "list", "members"))
        nodes = [asked.snap.node for asked in past.job if asked.kind == "host"]
        lost = any(grant[1] != "Sys.Audit" and grant[0] != "/storage" for asked in past.job for grant in asked.lost)
        moved = len({asked.version for asked in past.job}) > 1
        blind = any(not node.pmxcfs or node.local_name not in ("", past.world.node) or node.hidden for node in nodes)
        if not (failed or lost or moved or blind or past.concealed()):
            self.broken(f"sweep_aborted at {logged.t:.1f} s although everything that it needs was answered: {logged.fields.get('reason')}")
        loud = isinstance(count, int) and isinstance(lasting, int) and (count >= 3 or lasting >= 300)
        if loud != (logged.level is Level.ERROR):
            self.broken(f"sweep_aborted at {logged.t:.1f} s, {count} in a row for {lasting} s, is told as {logged.level}")

    def incomplete(self, logged: Logged) -> None:
        """sweep_incomplete: something could not be read."""
        past, lasting = self.past, logged.fields.get("incomplete_for_s")
        failed = any(asked.failed for asked in past.job) or past.world.now - past.again_failed < 3 * past.sim.config.watchdog.interval
        blind = any(snap.node.unreadable for snap in past.snaps) or any(asked.lost for asked in past.job)
        if not failed and not blind:
            self.broken(f"sweep_incomplete at {logged.t:.1f} s although everything could be read: {logged.fields.get('reason')}")
        if (logged.level is Level.ERROR) and not (isinstance(lasting, int) and lasting >= 300):
            self.broken(f"sweep_incomplete at {logged.t:.1f} s is told as an error after {lasting} s")

    def resumed(self, logged: Logged) -> None:
        """sweep_resumed: this look could see whose the guests are."""
        if not all(self.past.asked_ok(kind) for kind in ("privileges", "list", "members")):
            self.broken(f"sweep_resumed at {logged.t:.1f} s although not all that it needs was answered")

    def started(self, logged: Logged) -> None:
        """daemon_started: now, on this node."""
        if logged.fields.get("node") != self.past.world.node or logged.t != self.past.world.now:
            self.broken(f"daemon_started at {logged.t:.1f} s on {logged.fields.get('node')}")

    def defect(self, logged: Logged) -> None:
        """internal_error: there are to be none."""
        self.broken(f"a defect at {logged.t:.1f} s: {logged.message}")


def _in_pool(past: Past, facts: Facts) -> bool:
    guest = past.world.guests.get(facts.id.vmid)
    return facts.here and guest is not None and guest.pool in past.rules.pools


EventsTrue.checks = {
    "guest_down": EventsTrue.down,
    "guest_waiting": EventsTrue.down,
    "guest_up": EventsTrue.up,
    "guest_forgotten": EventsTrue.forgotten,
    "rearmed": EventsTrue.rearmed,
    "given_up": EventsTrue.given_up,
    "not_working": EventsTrue.not_working,
    "working_again": EventsTrue.working_again,
    "backup_wait_long": EventsTrue.backup_wait_long,
    "host_gate_closed": EventsTrue.gate_closed,
    "host_gate_opened": EventsTrue.gate_opened,
    "host_warning": EventsTrue.host_warning,
    "held": EventsTrue.held,
    "released": EventsTrue.released,
    "sweep_aborted": EventsTrue.aborted,
    "sweep_incomplete": EventsTrue.incomplete,
    "sweep_resumed": EventsTrue.resumed,
    "daemon_started": EventsTrue.started,
    "internal_error": EventsTrue.defect,
}
EventsTrue.judges = frozenset(EventsTrue.checks)

ALL: tuple[type[Watch], ...] = (LabelsTrue, OutcomesTrue, StartsTrue, EventsTrue)
