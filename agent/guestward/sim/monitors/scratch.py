"""What may be done to scratch guests, that nothing else is ever destroyed, and that a dead agent does nothing (I8, I14)."""

from __future__ import annotations

from guestward.policy.rights import SCRATCH
from guestward.sim.log import Effect, Logged
from guestward.sim.monitors import truth
from guestward.sim.monitors.base import Watch
from guestward.sim.monitors.claims import EventClaims
from guestward.sim.monitors.guards import recently
from guestward.sim.monitors.past import BIRTHS, Facts, Past, Snap
from guestward.sim.tasks import SimTask

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


class ScratchStep(Watch):
    """A request to a guest of the band, judged by how it was at the agent's last question."""

    def effect(self, effect: Effect) -> None:
        """Judge what was not refused."""
        if effect.verb not in DESTRUCTIVE or effect.vmid is None or effect.result == "refused":
            return
        job = self.past.job[:-1] if self.past.job and self.past.job[-1].kind in (effect.verb, "helper") else self.past.job
        snap = job[-1].snap if job else self.past.snap
        facts = snap.guests.get(effect.vmid)
        found = self._bad(snap, facts) if facts is not None else ""
        if found:
            self.broken(f"{effect.verb} of {effect.vmid} at {effect.t:.1f} s although {found}")

    def _bad(self, snap: Snap, facts: Facts) -> str:
        raise NotImplementedError


class ScratchProven(ScratchStep):
    """I8: in the band only what is ours."""

    invariant, rule = "I8", "in the band only a guest is touched that is proven ours, and that nobody protects"

    def _bad(self, snap: Snap, facts: Facts) -> str:
        if facts.protection:
            return "it is protected"
        if facts.ha:
            return "HA manages it"
        if facts.template:
            return "it is a template"
        return "" if proven_ours(self.past, facts) else "nothing proves that it is ours"


class ScratchUnused(ScratchStep):
    """I8: and there only what nobody uses."""

    invariant, rule = "I8", "a scratch guest is not touched while a task works on it, while it is claimed or held, or soon after"

    def _bad(self, snap: Snap, facts: Facts) -> str:
        world, vmid = self.past.world, facts.id.vmid
        upid = truth.task_on(snap, facts.id)
        if upid is not None and upid.user != world.token_id:
            return f"{upid.type} by {upid.user} runs"
        if truth.held(self.past, snap, vmid):
            return "it is claimed or held"
        ours = (world.token_id,)
        others = [
            t for t in world.archive if t.upid.id == str(vmid) and t.upid.user not in ours and t.upid.started_boottime <= world.boottime
        ]
        young = [t for t in others if world.boottime - t.upid.started_boottime < self.past.sim.config.scratch.min_age - 1]
        return f"{young[0].upid.type} by {young[0].upid.user} was on it a moment ago" if young else ""


class HostReadyForTeardown(ScratchStep):
    """The host gate."""

    invariant, rule = "GATE", "nothing is torn down while the host boots, stops, has no quorum, is held or in maintenance"

    def _bad(self, snap: Snap, facts: Facts) -> str:
        return "; ".join(truth.gate(self.past, snap).values())


def proven_ours(past: Past, facts: Facts) -> bool:
    """A tag, a claim, or PVE's own record: the newest create or restore came from one of the origins."""
    scratch, vmid = past.sim.config.scratch, facts.id.vmid
    if tagged(past, facts):
        return True
    ours = (task for task in past.world.archive if task.upid.id == str(vmid) and (task.upid.type in BIRTHS or _takes_away(task)))
    last = next(ours, None)
    if last is None or last.upid.type not in BIRTHS:
        return False
    return last.upid.user in scratch.origins or any(since - 1 <= last.upid.starttime <= until for since, until in past.memory(vmid).claims)


def surely_ours(past: Past, facts: Facts) -> bool:
    """Whether nobody may doubt it: a tag, or a record in which all that ever made a guest with this VMID is by the origins."""
    made = [task for task in past.world.archive if task.upid.id == str(facts.id.vmid) and task.upid.type in BIRTHS]
    by_record = bool(made) and all(task.upid.user in past.sim.config.scratch.origins for task in made)
    return proven_ours(past, facts) and (by_record or tagged(past, facts))


def tagged(past: Past, facts: Facts) -> bool:
    """Whether it has the tag."""
    return past.sim.config.scratch.tag in facts.tags.lower().replace(",", ";").replace(" ", ";").split(";")


def _takes_away(task: SimTask) -> bool:
    """Whether the guest with that VMID may be another one after it."""
    return task.upid.type in ("vzmigrate", "qmmigrate", "vzclone", "qmclone") or (task.upid.type in GONE and task.said == "OK")


GONE = ("vzdestroy", "qmdestroy")


class BandKept(Watch):
    """I13: each VMID of the band works more than once."""

    invariant = "I13"
    rule = "a grant of the band that is gone is put back within three looks that could see that, as long as the helper can"
    judges = frozenset({"grant_excess"})

    def __init__(self, past: Past) -> None:
        """missing: VMID -> looks in a row at which its grants were missing and nothing stood in the way."""
        super().__init__(past)
        self.missing: dict[int, int] = {}
        self.version = -1

    def looked(self, job: str) -> None:
        """Judge after each sweep."""
        past, world = self.past, self.past.world
        if job != "sweep" or (self.version == world.version and not self.missing):
            return
        self.version = world.version
        lost = [vmid for vmid in past.band if lacks(past, vmid)]
        if not lost or self._in_the_way():
            self.missing = {}
            return
        self.missing = {vmid: self.missing.get(vmid, 0) + 1 for vmid in lost}
        for vmid, looks in self.missing.items():
            if looks > 3:
                self.broken(f"the grants on /vms/{vmid} are missing at {world.now:.1f} s, and nobody has put them back")

    def _in_the_way(self) -> bool:
        past, helper = self.past, self.past.world.helper
        broken = helper.is_down or helper.delay or helper.says is not None or past.world.failures or past.trouble
        tried = past.world.now - past.regrant_failed < 3700.0
        return bool(broken) or tried or not past.world.quorate or past.snap.node.system != "running" or not past.asked_ok("privileges")

    def event(self, logged: Logged) -> None:
        """What is too much is held."""
        if logged.event == "grant_excess":
            held = self.past.world.acl.held(str(logged.fields.get("path")))
            if not set(str(logged.fields.get("privilege")).split()) <= set(held):
                self.broken(f"grant_excess at {logged.t:.1f} s tells of {logged.fields.get('privilege')}, which the token has not got")


def lacks(past: Past, vmid: int) -> bool:
    """Whether the token lacks something on that VMID's path."""
    return not set(SCRATCH) <= set(past.world.acl.held(f"/vms/{vmid}"))


class ScratchTold(EventClaims):
    """What is said of the band."""

    def found(self, logged: Logged) -> None:
        """scratch_found: it is there, and ours."""
        known = self._there(logged)
        if not any(proven_ours(self.past, facts) for facts in known):
            self.never(logged, "nothing proves that it is ours")

    def refused(self, logged: Logged) -> None:
        """scratch_refused: it is there, and the reason is so."""
        verdict, known = str(logged.fields.get("verdict")), self._there(logged)
        if not any(self._is_so(verdict, facts) for facts in known):
            self.never(logged, f"it says {verdict}, and that is not so")

    def _is_so(self, verdict: str, facts: Facts) -> bool:
        locked = facts.lock not in (None, "create", "destroyed")
        ours = surely_ours(self.past, facts)
        so = {"template": facts.template, "protected": facts.protection, "ha": facts.ha, "locked": locked, "unproven": not ours}
        return so.get(verdict, False)

    def _there(self, logged: Logged) -> list[Facts]:
        vmid = logged.about.vmid
        found = [facts for snap in self.past.snaps if (facts := snap.guests.get(vmid)) is not None]
        if not found or vmid not in self.past.band:
            self.never(logged, "it is not there, or not in the band")
        return found

    def destroyed(self, logged: Logged) -> None:
        """scratch_destroyed: by us; it is gone, and `gone` is said only when nothing is left."""
        vmid, world = logged.about.vmid, self.past.world
        self._asked(logged, "destroy")
        if vmid in world.guests and self.past.memory(vmid).born_at < self.past.world.now - 1:
            self.never(logged, "it is still there")
        if logged.fields.get("outcome") == "gone" and world.volumes_of(vmid):
            self.never(logged, f"it says that nothing is left; there is {', '.join(world.volumes_of(vmid))}")

    def leftover(self, logged: Logged) -> None:
        """scratch_leftover: those volumes are there."""
        self._asked(logged, "destroy")
        volumes = logged.fields.get("volumes")
        if not isinstance(volumes, list) or not volumes or not set(volumes) <= set(self.past.world.volumes_of(logged.about.vmid)):
            self.never(logged, f"there is no {volumes}")

    def stranded(self, logged: Logged) -> None:
        """scratch_stranded: a grant is missing, or was a moment ago."""
        vmid = logged.about.vmid
        if not lacks(self.past, vmid) and not recently(self.past, self.past.regranted_at):
            self.never(logged, "the token has all its grants there")

    def step_failed(self, logged: Logged) -> None:
        """scratch_step_failed: it was asked for, or could not be."""
        step = str(logged.fields.get("step"))
        if step == "release-scratch" and self.past.world.helper.is_down:
            return
        self._asked(logged, step)

    def _asked(self, logged: Logged, verb: str) -> None:
        if not any(effect.verb == verb and effect.vmid == logged.about.vmid for effect in self.past.world.effects):
            self.never(logged, f"nobody has asked for {verb}")


ScratchTold.checks = {
    "scratch_found": ScratchTold.found,
    "scratch_refused": ScratchTold.refused,
    "scratch_destroyed": ScratchTold.destroyed,
    "scratch_leftover": ScratchTold.leftover,
    "scratch_stranded": ScratchTold.stranded,
    "scratch_step_failed": ScratchTold.step_failed,
}
ScratchTold.judges = frozenset(ScratchTold.checks)

ALL: tuple[type[Watch], ...] = (DeadHand, OnlyTheBand, ScratchProven, ScratchUnused, HostReadyForTeardown, BandKept, ScratchTold)
