"""The root helper of a simulated host: four verbs, each with every refusal that the real one owes (DESIGN.md, Processes and rights)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guestward.model.guest import GuestId, GuestKind
from guestward.ports import HelperAnswer, HelperLost, HelperUnreachable
from guestward.sim.guest import SimGuest

if TYPE_CHECKING:
    from guestward.sim.doors import Life
    from guestward.sim.world import World

SNAPSHOT = "vzdump"
STATE_OF_LOCK = {"snapshot": "prepare", "snapshot-delete": "delete"}


@dataclass(slots=True)
class HelperState:
    """What is the matter with the helper. delay: seconds that an answer takes, infinite when none comes."""

    is_down: bool = False
    delay: float = 0.0

    def down(self) -> None:
        """Its socket does not answer."""
        self.is_down = True

    def up(self) -> None:
        """It works again."""
        self.is_down, self.delay = False, 0.0

    def slow(self, seconds: float) -> None:
        """It takes that long."""
        self.delay = seconds

    def hang(self) -> None:
        """It takes the request and never answers; the request has no effect."""
        self.delay = math.inf


@dataclass(slots=True)
class SimHelper:
    """`ports.Helper` on a world. pools, band: from its own root-owned configuration. timeout: seconds that the agent waits for it."""

    world: World
    life: Life
    pools: tuple[str, ...]
    band: range
    timeout: float = 30.0

    def unlock(self, guest: GuestId, expect: str) -> HelperAnswer:
        """Clear one lock, if it is the expected one and nobody's."""
        return self._ask("unlock", guest.vmid, lambda: self._unlock(guest, expect))

    def delete_snapshot(self, vmid: int) -> HelperAnswer:
        """Delete a container's dangling snapshot, exactly `vzdump`."""
        return self._ask("delete-snapshot", vmid, lambda: self._delete_snapshot(vmid))

    def release_scratch(self, vmid: int) -> HelperAnswer:
        """Clear `create` or `destroyed`, inside the band only."""
        return self._ask("release-scratch", vmid, lambda: self._release(vmid))

    def regrant(self) -> HelperAnswer:
        """Put back what is missing of the band's entries, for user and token."""
        return self._ask("regrant", None, self._regrant)

    def _ask(self, verb: str, vmid: int | None, act: Callable[[], HelperAnswer]) -> HelperAnswer:
        """One request, one short-lived process; it acts when it is asked and answers when it is done."""
        state = self.world.helper
        if state.is_down:
            raise HelperUnreachable(f"{verb}: the helper's socket does not answer; `systemctl status guestward-helper.socket`")
        lost = state.delay > self.timeout
        if lost and math.isinf(state.delay):
            self._effect(verb, vmid, "lost")
            self._pass(self.timeout)
            raise HelperLost(f"{verb}: no answer within {self.timeout:.0f} s")
        ordered = self.world.take_failure(verb)
        answer = HelperAnswer(False, "failed", ordered) if ordered is not None else act()
        result = "lost" if lost else "ok" if answer.ok else "failed" if answer.code == "failed" else "refused"
        self._effect(verb, vmid, result)
        self._pass(min(state.delay, self.timeout))
        if lost:
            raise HelperLost(f"{verb}: no answer within {self.timeout:.0f} s")
        return answer

    def _effect(self, verb: str, vmid: int | None, result: str) -> None:
        self.world.effect("helper", verb, vmid, result)
        self.life.check()

    def _pass(self, seconds: float) -> None:
        if seconds:
            self.world.advance(seconds)
            self.life.check()

    def _host_refuses(self) -> HelperAnswer | None:
        world = self.world
        if not world.quorate:
            return _refused("no_quorum", "the cluster has no quorum")
        if world.phases.phase != "up":
            return _refused("host_" + world.phases.phase, f"the host is {world.phases.phase}")
        return None

    def _unlock(self, guest: GuestId, expect: str) -> HelperAnswer:
        """Boot is over, the flock is free, no worker lives, and the lock is the expected one; then whatever is there is cleared."""
        found = self.world.guests.get(guest.vmid)
        refused = self._host_refuses() or self._not_ours(found, guest) or self._not_stale(found, expect)
        if refused is not None or found is None:
            return refused or _refused("no_guest", f"there is no {guest}")
        found.lock = None
        return HelperAnswer(True, "ok", f"{guest}: lock {expect} cleared")

    def _not_ours(self, found: SimGuest | None, guest: GuestId) -> HelperAnswer | None:
        if found is None or found.id != guest or not self.world.is_here(found):
            return _refused("no_guest", f"there is no {guest} on this node")
        if guest.vmid in self.band:
            return _refused("scratch_band", f"{guest} is in the scratch band")
        if found.pool not in self.pools:
            return _refused("not_owned", f"{guest} is in none of our pools")
        return None

    def _not_stale(self, found: SimGuest | None, expect: str) -> HelperAnswer | None:
        if self.world.vzdump.running is not None:
            return _refused("backup_running", "vzdump holds its lock")
        if found is None or found.lock != expect:
            return _refused("lock_changed", f"the lock is {found.lock if found is not None else None}, not {expect}")
        if expect == "backup":
            return None
        wanted = STATE_OF_LOCK.get(expect)
        if wanted is None or found.id.kind is not GuestKind.LXC or found.snapshots.get(SNAPSHOT) != wanted:
            return _refused("lock_kind", f"a lock `{expect}` is nobody's business here")
        return None

    def _delete_snapshot(self, vmid: int) -> HelperAnswer:
        """While the guest is locked PVE refuses (timelines 6: `CT is locked`)."""
        found = self.world.guests.get(vmid)
        refused = self._host_refuses() or self._not_ours(found, GuestId(GuestKind.LXC, vmid))
        if refused is not None or found is None:
            return refused or _refused("no_guest", f"there is no lxc/{vmid}")
        if found.lock is not None:
            return HelperAnswer(False, "failed", f"CT is locked ({found.lock})")
        if SNAPSHOT not in found.snapshots:
            return _refused("no_snapshot", f"lxc/{vmid} has no snapshot {SNAPSHOT}")
        found.snapshots = {name: state for name, state in found.snapshots.items() if name != SNAPSHOT}
        return HelperAnswer(True, "ok", f"lxc/{vmid}: snapshot {SNAPSHOT} deleted")

    def _release(self, vmid: int) -> HelperAnswer:
        found = self.world.guests.get(vmid)
        refused = self._host_refuses()
        if refused is not None:
            return refused
        if vmid not in self.band:
            return _refused("not_scratch", f"{vmid} is outside the scratch band")
        if found is None or not self.world.is_here(found) or found.lock not in ("create", "destroyed"):
            return _refused("lock_changed", f"{vmid} has no lock `create` or `destroyed`")
        found.lock = None
        return HelperAnswer(True, "ok", f"{found.id}: released")

    def _regrant(self) -> HelperAnswer:
        """Refused at once without quorum; otherwise each missing entry of the band is put back (pve-facts E5)."""
        if not self.world.quorate:
            return _refused("no_quorum", "the cluster has no quorum")
        self.world.grant_band(self.band)
        return HelperAnswer(True, "ok", "the band's grants are complete")


def _refused(code: str, message: str) -> HelperAnswer:
    return HelperAnswer(False, code, message)
