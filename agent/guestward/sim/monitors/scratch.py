"""What may be done to scratch guests, that nothing else is ever destroyed, and that a dead agent does nothing (I8, I14)."""

from __future__ import annotations

from guestward.sim.log import Effect
from guestward.sim.monitors import truth
from guestward.sim.monitors.base import Watch
from guestward.sim.monitors.past import BIRTHS, Facts, Snap

DESTRUCTIVE = ("destroy", "stop", "release-scratch")


class DeadHand(Watch):
    """I14: an agent that is dead."""

    invariant, rule = "I14", "an agent that does not live does nothing"

    def effect(self, effect: Effect) -> None:
        """Judge anything."""
        if self.past.sim.watch is None:
            self.broken(f"{effect.verb} {effect.vmid or ''} at {effect.t:.1f} s, and the agent was killed before")


class OnlyTheBand(Watch):
    """I8, I14: nothing else is ever stopped or destroyed."""

    invariant, rule = "I8", "nothing outside the scratch band is ever stopped, destroyed or released"

    def effect(self, effect: Effect) -> None:
        """Judge what cannot be taken back."""
        rules = self.past.rules
        if effect.verb in (*DESTRUCTIVE, "reset", "reboot", "shutdown"):
            inside = effect.vmid is not None and rules.scratch_first <= effect.vmid <= rules.scratch_last
            if not inside or effect.verb not in DESTRUCTIVE:
                self.broken(f"{effect.verb} of {effect.vmid} at {effect.t:.1f} s")


class ScratchProven(Watch):
    """I8: and there only what is ours."""

    invariant, rule = "I8", "in the band only a guest is touched that is proven ours, and that nobody protects or works on"

    def effect(self, effect: Effect) -> None:
        """Judge a teardown by the guest as it was at the agent's last question."""
        if effect.verb not in DESTRUCTIVE or effect.vmid is None or effect.result not in ("ok", "lost", "failed"):
            return
        snap = self.past.job[-1].snap if self.past.job else self.past.snap
        facts = snap.guests.get(effect.vmid)
        if facts is None:
            return
        found = self._obstacle(snap, facts) or self._unproven(facts)
        if found:
            self.broken(f"{effect.verb} of {facts.id} at {effect.t:.1f} s although {found}")

    def _obstacle(self, snap: Snap, facts: Facts) -> str:
        if facts.protection:
            return "it is protected"
        if facts.ha:
            return "HA manages it"
        if facts.template:
            return "it is a template"
        upid = truth.task_on(snap, facts.id)
        if upid is not None and upid.user != self.past.world.token_id:
            return f"{upid.type} by {upid.user} runs"
        return ""

    def _unproven(self, facts: Facts) -> str:
        """A tag, or PVE's own record: the newest create or restore came from one of the origins."""
        scratch = self.past.sim.config.scratch
        if scratch.tag in facts.tags.replace(",", ";").replace(" ", ";").split(";") or facts.id.vmid in self._claimed():
            return ""
        births = [task for task in self.past.world.archive if task.upid.id == str(facts.id.vmid) and task.upid.type in BIRTHS]
        if births and births[0].upid.user in scratch.origins:
            return ""
        return "nothing proves that it is ours"

    def _claimed(self) -> tuple[int, ...]:
        return tuple(getattr(self.past.sim.store, "claims", ()))


ALL: tuple[type[Watch], ...] = (DeadHand, OnlyTheBand, ScratchProven)
