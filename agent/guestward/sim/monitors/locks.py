"""What may be done to locks, snapshots and scratch guests, and that a dead agent does nothing (I7, I8, I14)."""

from __future__ import annotations

from guestward.model.guest import GuestKind
from guestward.sim.helper import OUR_DELETE
from guestward.sim.log import Effect
from guestward.sim.monitors import truth
from guestward.sim.monitors.base import Watch
from guestward.sim.monitors.past import BIRTHS, Facts, Past, Snap

SNAPSHOT = "vzdump"
STATE_OF = {"snapshot": "prepare", "snapshot-delete": "delete"}
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


class LockProven(Watch):
    """I7."""

    invariant, rule = "I7", "only a lock of a backup that provably has no owner is cleared; then its snapshot, then the start"

    def __init__(self, past: Past) -> None:
        """unlocked: VMID -> virtual second; deleted: of which the snapshot was tried."""
        super().__init__(past)
        self.unlocked: dict[int, float] = {}
        self.deleted: set[int] = set()

    def effect(self, effect: Effect) -> None:
        """Judge the steps of a recovery."""
        vmid = effect.vmid
        if vmid is None:
            return
        if effect.verb == "unlock":
            self._unlock(effect, vmid)
        elif effect.verb == "delete-snapshot":
            self._delete(effect, vmid)
        elif effect.verb == "start" and vmid in self.unlocked:
            self._start(effect, vmid)

    def looked(self, job: str) -> None:
        """Once it runs, has no such snapshot or is locked anew, its recovery is over: what comes then is another story."""
        guests = self.past.snap.guests
        for vmid in list(self.unlocked):
            facts = guests.get(vmid)
            if facts is None or facts.running or facts.lock is not None or SNAPSHOT not in facts.snapshots:
                del self.unlocked[vmid]

    def _unlock(self, effect: Effect, vmid: int) -> None:
        """By the lock that was there: when it was cleared at this moment the guest's own memory has it."""
        past = self.past
        when, was, by = past.memory(vmid).lock_was
        facts = past.snap.guests.get(vmid)
        if when != effect.t and vmid in past.world.guests:
            by = past.world.guests[vmid].locker
        lock = was if when == effect.t and effect.result in ("ok", "lost") else facts.lock if facts is not None else None
        where = f"unlock of {vmid} at {effect.t:.1f} s"
        if facts is None or effect.result == "refused":
            return
        container = facts.id.kind is GuestKind.LXC
        if lock != "backup" and not (container and lock in STATE_OF and SNAPSHOT in facts.snapshots):
            self.broken(f"{where}: its lock is `{lock}`")
        owner = truth.vzdump_on(past.snap, vmid)
        if owner is not None or vmid in past.snap.node.archives:
            self.broken(f"{where}: {f'{owner.type} by {owner.user} runs' if owner is not None else 'its archive process lives'}")
        if not by:
            self.broken(f"{where}: its lock `{lock}` was set by somebody else than vzdump or us")
        told = any(task.upid.type == "vzdump" and task.upid.covers(vmid) for task in past.world.archive)
        if by != OUR_DELETE and not told:
            self.broken(f"{where}: no vzdump of it stands in PVE's history")
        if facts.lock is None:
            self.unlocked[vmid] = effect.t  # one that was lost on its way changed nothing
        if lock == "backup":  # what our own failed delete left is unlocked so that the start need not wait for tidiness (C39)
            self.deleted.discard(vmid)

    def _delete(self, effect: Effect, vmid: int) -> None:
        facts, where = self.past.snap.guests.get(vmid), f"delete-snapshot of {vmid} at {effect.t:.1f} s"
        if facts is not None and facts.id.kind is GuestKind.QEMU:
            self.broken(f"{where}: a VM's snapshot of that name is its owner's")
        owner = truth.vzdump_on(self.past.snap, vmid)
        if owner is not None and effect.result != "refused":
            self.broken(f"{where}: {owner.type} by {owner.user} runs")
        self.deleted.add(vmid)

    def _start(self, effect: Effect, vmid: int) -> None:
        facts = self.past.snap.guests.get(vmid)
        since = self.unlocked.pop(vmid)
        dangling = facts is not None and facts.id.kind is GuestKind.LXC and SNAPSHOT in facts.snapshots
        if dangling and vmid not in self.deleted:
            self.broken(f"start of {vmid} at {effect.t:.1f} s after its unlock at {since:.1f} s, before its snapshot was deleted")


ALL: tuple[type[Watch], ...] = (DeadHand, OnlyTheBand, ScratchProven, LockProven)
