"""What must be true of a guest, and of the host, when the agent asks PVE to start it: one class a guard, judged at its last look."""

from __future__ import annotations

from typing import ClassVar

from guestward.sim.log import Effect
from guestward.sim.monitors import truth
from guestward.sim.monitors.base import Watch
from guestward.sim.monitors.past import Asked, Facts, Past, Snap

EPS = 0.01


class StartRule(Watch):
    """One reason for which a guest must not be started. kinds: the questions whose answers show it."""

    kinds: ClassVar[tuple[str, ...]] = ()

    def effect(self, effect: Effect) -> None:
        """Judge a start."""
        if effect.verb == "start" and effect.vmid is not None:
            found = self.past.as_seen(effect.vmid, self.kinds, self._bad)
            if found:
                self.broken(f"start of {effect.vmid} at {effect.t:.1f} s although {found}")

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        raise NotImplementedError


class OnbootOnly(StartRule):
    """I1."""

    invariant, rule = "I1", "a guest whose onboot is not 1 is never started"
    kinds = ("config",)

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        return "its onboot is not 1" if facts is not None and not facts.onboot else ""


class OwnedOnly(StartRule):
    """I1: whose it is."""

    invariant, rule = "I1", "only a guest of our pools, on our node, not excluded, is ever started"
    kinds = ("members", "config")

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        return truth.not_ours(facts)


class NoScratch(StartRule):
    """I1: the band."""

    invariant, rule = "I1", "nothing in the scratch band is ever started, whatever its onboot"
    kinds = ("live",)

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        return "its VMID is in the scratch band" if facts is not None and facts.band else ""


class NoTemplate(StartRule):
    """I1: templates."""

    invariant, rule = "I1", "a template is never started"
    kinds = ("config",)

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        return "it is a template" if facts is not None and facts.template else ""


class RunningUntouched(StartRule):
    """I2."""

    invariant, rule = "I2", "nothing is done to a guest that runs"
    kinds = ("live",)

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        return "it runs" if facts is not None and facts.running else ""


class LockedLeftAlone(StartRule):
    """I3."""

    invariant, rule = "I3", "a guest with any lock is never started, and no lock is cleared but by the helper"
    kinds = ("live", "config")

    def effect(self, effect: Effect) -> None:
        """Judge a start, and an unlock through the API."""
        if effect.verb == "unlock" and effect.door != "helper":
            self.broken(f"unlock of {effect.vmid} at {effect.t:.1f} s through {effect.door}: only the helper may")
        super().effect(effect)

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        return f"its lock is `{facts.lock}`" if facts is not None and facts.lock is not None else ""


class NoBackup(StartRule):
    """I4: a backup is at work."""

    invariant, rule = "I4", "no guest is started while a backup is at work on it"
    kinds = ("active", "backups")

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        return truth.backup(snap, facts) if facts is not None else ""


class BackupProvable(StartRule):
    """I4: nobody can say."""

    invariant, rule = "I4", "no guest is started while nobody can say whether a backup is at work on it"
    kinds = ("backups",)

    def effect(self, effect: Effect) -> None:
        """Judge a start: all witnesses must have been asked, and must have answered."""
        if effect.verb != "start" or effect.vmid is None:
            return
        asked = [one for one in self.past.last_look(effect.vmid) if one.kind in ("active", "backups")]
        for kind, what in (("active", "the list of active tasks"), ("backups", "the host's own witnesses")):
            if not any(one.kind == kind and not one.failed for one in asked):
                self.broken(f"start of {effect.vmid} at {effect.t:.1f} s although {what} did not answer right before it")
        super().effect(effect)

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        return truth.unprovable(self.past, snap)


class NoTask(StartRule):
    """Somebody is at work."""

    invariant, rule = "TASK", "no guest is started while a task of it runs"
    kinds = ("active",)

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        upid = truth.task_on(snap, facts.id) if facts is not None else None
        return f"{upid.type} by {upid.user} runs" if upid is not None and upid.type != "hastart" else ""


class GateOpen(StartRule):
    """The host gate."""

    invariant, rule = "GATE", "nothing is started while the host boots, stops, has no quorum, is held, or is in maintenance"
    kinds = ("host", "active", "holds")

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        return "; ".join(truth.gate(self.past, snap).values())


class MassStop(Watch):
    """The host gate, for what looks like a staged shutdown."""

    invariant, rule = "GATE", "after several guests were stopped by others within 60 s nothing is started or unlocked for 15 min"

    def __init__(self, past: Past) -> None:
        """Nothing was seen yet."""
        super().__init__(past)
        self.until, self.since, self.who, self.boot = -1.0, -1.0, [0], 0
        self.version = -1
        self._known: frozenset[int] = frozenset()

    def looked(self, job: str) -> None:
        """A look that saw them all down, and could read who stopped them, knows."""
        past = self.past
        if job == "follow" or past.world.version == self.version:
            return
        if past.world.boot != self.boot:
            self.boot, self.until = past.world.boot, -1.0
        candidates = frozenset(vmid for vmid, of in past.of.items() if of.stop is not None)
        if not candidates - self._known:
            self._known, self.version = candidates, past.world.version
            return
        if self._could_see():
            lists = next(asked for asked in past.job if asked.kind == "list")
            group = truth.mass_stop(past, lists.snap, past.rules.mass_stop)
            self._known = candidates
            if group and past.world.boottime >= self.until:
                self.until, self.since, self.who = lists.boot + truth.MASS_PAUSE, past.world.now, group

    def _could_see(self) -> bool:
        past = self.past
        return all(past.asked_ok(kind) for kind in ("list", "members", "active", "archive")) and not past.lost() and past.life > 0

    def effect(self, effect: Effect) -> None:
        """Judge a start."""
        now = self.past.world.boottime
        judged = effect.verb in ("start", "unlock", "delete-snapshot")
        if judged and self.past.world.boot == self.boot and now < self.until - EPS and self.past.lost_state <= self.since:
            self.broken(
                f"{effect.verb} of {effect.vmid} at {effect.t:.1f} s, {self.until - now:.0f} s before the pause after the stop of "
                f"{', '.join(map(str, self.who))} is over"
            )


class HeldLeftAlone(StartRule):
    """An operator's hold."""

    invariant, rule = "HELD", "a guest that an operator holds is not started"
    kinds = ("holds",)

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        return "it is held" if facts is not None and truth.held(self.past, snap, facts.id.vmid) else ""


class OperatorStopHolds(StartRule):
    """`operator_stop = "hold"`."""

    invariant, rule = "HELD", 'with operator_stop = "hold" a guest that somebody stopped through PVE is not started'
    kinds = ("nothing asks for it",)

    def effect(self, effect: Effect) -> None:
        """Judge a start."""
        if self.past.rules.operator_stop_holds:
            super().effect(effect)

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        stop = truth.stopped_on_purpose(self.past, facts.id.vmid) if facts is not None and not facts.running else None
        return f"{stop.task.upid.type} by {stop.task.upid.user} stopped it" if stop is not None else ""


class NewHereLeftAlone(StartRule):
    """Restored, cloned, moved."""

    invariant, rule = "NEW", "a guest that was made, restored or moved here while we watched is not started before it has run here"
    kinds = ("host",)

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        of = self.past.memory(facts.id.vmid) if facts is not None else None
        return f"it is new here ({of.new})" if of is not None and of.new and of.new_at < self._look_began() else ""

    def _look_began(self) -> float:
        live = next((asked for asked in reversed(self.past.job) if asked.kind == "live"), None)
        return live.t if live is not None else self.past.world.now


class HaLeftAlone(StartRule):
    """HA."""

    invariant, rule = "HA", "a guest that HA manages is left to HA"
    kinds = ("resources", "live")

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        return "HA manages it" if facts is not None and facts.ha else ""


class StorageOnline(StartRule):
    """Storages."""

    invariant, rule = "STORAGE", "a guest is not started while a storage that it needs is seen offline"
    kinds = ("resources",)

    def _bad(self, snap: Snap, facts: Facts | None) -> str:
        gone = truth.offline(snap, facts) if facts is not None else frozenset()
        return f"storage {', '.join(sorted(gone))} is offline" if gone and ("/storage", "Datastore.Audit") not in self.past.lost() else ""


class LookedRightBefore(Watch):
    """I12."""

    invariant, rule = "I12", "target, status and configuration are read again right before the request"

    def effect(self, effect: Effect) -> None:
        """Judge a start: both reads came after the decision, in the same job, and were answered."""
        if effect.verb != "start" or effect.vmid is None:
            return
        vmid, job = effect.vmid, self.past.job
        until = next((i for i in range(len(job) - 1, -1, -1) if job[i].kind == "start" and job[i].vmid == vmid), len(job))
        decided = max((i for i in range(until) if job[i].kind in ("list", "start")), default=-1)
        reads = job[decided + 1 : until]
        last_live = max((i for i, one in enumerate(reads) if self._is(one, "live", vmid)), default=-1)
        if last_live < 0:
            self.broken(f"start of {vmid} at {effect.t:.1f} s without a read of its status right before it")
        before = max(
            (i for i in range(last_live) if reads[i].vmid != vmid and reads[i].kind in ("resources", "live", "archive")), default=-1
        )
        if not any(self._is(one, "config", vmid) for one in reads[before + 1 :]):
            self.broken(f"start of {vmid} at {effect.t:.1f} s without a read of its configuration right before it")

    def _is(self, asked: Asked, kind: str, vmid: int) -> bool:
        return asked.kind == kind and asked.vmid == vmid and asked.answered


class Confirmed(Watch):
    """Two looks."""

    invariant, rule = "CONFIRM", "a guest is started only after two looks, `confirm` apart, that saw it stopped"

    def effect(self, effect: Effect) -> None:
        """Judge a start."""
        if effect.verb != "start" or effect.vmid is None:
            return
        past = self.past
        since, confirm = past.memory(effect.vmid).seen_down, past.rules.confirm
        if since is None:
            self.broken(f"start of {effect.vmid} at {effect.t:.1f} s although no list has shown it stopped")
        if past.world.boottime - since < confirm - EPS:
            self.broken(f"start of {effect.vmid} at {effect.t:.1f} s, {past.world.boottime - since:.1f} s after it was first seen stopped")


class InOrder(Watch):
    """`startup` order and `parallel`."""

    invariant, rule = "ORDER", "guests are started in `startup` order with its delays, at most `parallel` at a time"

    def effect(self, effect: Effect) -> None:
        """Judge a start."""
        if effect.verb != "start" or effect.vmid is None:
            return
        past = self.past
        mine = past.memory(effect.vmid).sent[-1]
        others = [sent for sent in past.in_flight() if sent is not mine and sent.life == past.life]
        if len(others) + 1 > past.rules.parallel:
            names = ", ".join(str(sent.id) for sent in others)
            self.broken(f"start of {mine.id} at {effect.t:.1f} s while {names} are under way; at most {past.rules.parallel}")
        earlier = next((sent for sent in others if sent.order < mine.order), None)
        if earlier is not None:
            self.broken(
                f"start of {mine.id} (order {mine.order:g}) at {effect.t:.1f} s while {earlier.id} (order {earlier.order:g}) is under way"
            )
        self._delays(mine.id.vmid, effect.t)

    def _delays(self, vmid: int, t: float) -> None:
        """After a guest with `up=S` the next one waits so long from the moment at which it was seen to run."""
        past = self.past
        for sent in past.all_sent():
            if (
                sent.id.vmid == vmid
                or not sent.up
                or sent.outcome != "started"
                or sent.life != past.life
                or sent.gone
                or sent.up_at is None
            ):
                continue
            waits = sent.up_at + sent.up - past.world.boottime
            if waits > EPS:
                self.broken(f"start of {vmid} at {t:.1f} s, {waits:.0f} s before the delay after {sent.id} (up={sent.up}) is over")


ALL: tuple[type[Watch], ...] = (
    LookedRightBefore,
    OwnedOnly,
    NoScratch,
    NoTemplate,
    RunningUntouched,
    OnbootOnly,
    LockedLeftAlone,
    NoBackup,
    BackupProvable,
    NoTask,
    GateOpen,
    MassStop,
    HeldLeftAlone,
    OperatorStopHolds,
    NewHereLeftAlone,
    HaLeftAlone,
    StorageOnline,
    Confirmed,
    InOrder,
)
