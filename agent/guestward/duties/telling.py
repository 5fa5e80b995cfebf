"""What is said about the node as a whole: on the edges only, so that nothing is said every minute and nothing goes unsaid (C100)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from guestward.duties.env import Env
from guestward.duties.observe import in_words
from guestward.model.decision import Gate, GateReason
from guestward.model.events import Event, Level
from guestward.model.memory import Hold
from guestward.model.observation import LostGrant
from guestward.policy.gate import reasons
from guestward.policy.rights import REPAIR

ABORTED_ERROR_AFTER = 3
ABORTED_ERROR_SECONDS = 300.0


@dataclass(slots=True)
class Missed:
    """A run of sweeps that did not see everything."""

    since: float
    count: int = 0
    escalated: bool = False


@dataclass(slots=True)
class Teller:
    """Remembers what was said last. Lives as long as the agent; after a restart what is still so is said once more."""

    env: Env
    missed: Missed | None = None
    gaps: frozenset[str] = frozenset()
    gaps_since: float = 0.0
    gaps_escalated: bool = False
    closed_since: float | None = None
    closures: tuple[GateReason, ...] = ()
    warnings: tuple[str, ...] = ()
    lost: frozenset[LostGrant] = frozenset()
    holds: dict[int | None, Hold] = field(default_factory=dict)

    def aborted(self, reason: str, at: float) -> None:
        """WARN at the first, ERROR once at the third in a row or after 5 min."""
        missed = self.missed = self.missed or Missed(since=at)
        missed.count += 1
        lasting = at - missed.since
        error = missed.count >= ABORTED_ERROR_AFTER or lasting >= ABORTED_ERROR_SECONDS
        if missed.count == 1 or (error and not missed.escalated):
            missed.escalated = missed.escalated or error
            text = f"nothing was examined, and no guest is started until this ends: {reason}"
            self.env.journal.emit(
                Event.SWEEP_ABORTED,
                Level.ERROR if error else Level.WARN,
                message=text,
                reason=reason,
                aborted_in_a_row=missed.count,
                aborted_for_s=round(lasting),
            )

    def looked(self, missing: Mapping[str, str], at: float) -> None:
        """A sweep that was not aborted ends a run of aborted ones; one that was complete ends a run of incomplete ones, too.

        What is missing is told when something new is, and as an ERROR once when it has lasted 5 min.
        """
        if self.missed is not None or (self.gaps and not missing):
            since = min([self.gaps_since] * bool(self.gaps) + ([self.missed.since] if self.missed is not None else []))
            text = "guests are examined again" + (", though not everything can be read" if missing else "")
            self.env.journal.emit(Event.SWEEP_RESUMED, message=text, reason=in_words(missing), missed_s=round(at - since))
        if missing and not self.gaps:
            self.gaps_since, self.gaps_escalated = at, False
        lasting = missing and at - self.gaps_since >= ABORTED_ERROR_SECONDS and not self.gaps_escalated
        if missing.keys() - self.gaps or lasting:
            self.gaps_escalated = self.gaps_escalated or bool(lasting)
            words = in_words(missing)
            text = f"not everything could be read, and what depends on it is left undone: {words}"
            level = Level.ERROR if lasting else Level.WARN
            self.env.journal.emit(Event.SWEEP_INCOMPLETE, level, message=text, reason=words, incomplete_for_s=round(at - self.gaps_since))
        self.missed, self.gaps = None, frozenset(missing)

    def gate(self, gate: Gate, at: float, *, tasks_known: bool) -> None:
        """Each reason on entry, the gate as a whole on exit. As long as tasks cannot be read, a bulk task has not been seen to end."""
        if not gate.closures and not self.closures and gate.warnings == self.warnings:
            return
        closures = reasons(gate.closures)
        if not tasks_known and GateReason.BULK_TASK in self.closures:
            closures = tuple(dict.fromkeys((*closures, GateReason.BULK_TASK)))
        new = [reason for reason in closures if reason not in self.closures]
        if new:
            evidence = "; ".join(c.evidence for c in gate.closures if c.reason in new)
            level = Level.WARN if GateReason.MASS_STOP in new or GateReason.UNKNOWN in new else Level.INFO
            words = [str(reason) for reason in new]
            self.env.journal.emit(
                Event.HOST_GATE_CLOSED, level, message=f"no guest is started for now: {evidence}", reasons=words, evidence=evidence
            )
            self.closed_since = self.closed_since if self.closed_since is not None else at
        if self.closures and not closures:
            closed = round(at - (self.closed_since if self.closed_since is not None else at))
            self.env.journal.emit(Event.HOST_GATE_OPENED, message="guests are guarded again", closed_s=closed)
            self.closed_since = None
        self.closures = closures
        for warning in gate.warnings:
            if warning not in self.warnings:
                self.env.journal.emit(Event.HOST_WARNING, message=warning, reason=warning)
        self.warnings = gate.warnings

    def grants(self, lost: tuple[LostGrant, ...]) -> None:
        """One ERROR for each privilege that goes, one INFO when it comes back."""
        if not lost and not self.lost:
            return
        for grant in sorted(frozenset(lost) - self.lost, key=str):
            text = f"the token has lost {grant}; {REPAIR}"
            self.env.journal.emit(Event.GRANT_LOST, message=text, path=grant.path, privilege=grant.privilege)
        for grant in sorted(self.lost - frozenset(lost), key=str):
            self.env.journal.emit(Event.GRANT_RESTORED, message=f"the token has {grant} again", path=grant.path, privilege=grant.privilege)
        self.lost = frozenset(lost)

    def hold(self, holds: dict[int | None, tuple[Hold, float]]) -> None:
        """Holds and claims that begin, are replaced, or end. holds: scope -> hold in force and the seconds that it still lasts."""
        if not holds and not self.holds:
            return
        for scope, (hold, remaining) in holds.items():
            if self.holds.get(scope) != hold:
                name = scope_name(scope)
                text = f"{name} is {_state(hold)} by {hold.by} for {remaining:.0f} s: {hold.reason or 'no reason given'}"
                self.env.journal.emit(Event.HELD, message=text, scope=name, by=hold.by, for_s=round(remaining), reason=hold.reason)
        for scope in self.holds.keys() - holds.keys():
            name = scope_name(scope)
            text = f"{name} is no longer {_state(self.holds[scope])}"
            self.env.journal.emit(Event.RELEASED, message=text, scope=name, reason=self.holds[scope].reason)
        self.holds = {scope: hold for scope, (hold, _) in holds.items()}


def _state(hold: Hold) -> str:
    """A claim is a hold on a VMID of the scratch band, and is called what it is."""
    return "claimed" if hold.claim else "held"


def scope_name(scope: int | None) -> str:
    """What a hold is on, as logs and metrics name it."""
    return "node" if scope is None else str(scope)
