"""The simulated root helper: what it does, what it refuses, and what becomes of its answer (pve-facts B2, B3, C6; timelines 6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from guestward.model.guest import GuestId, GuestKind
from guestward.ports import HelperAnswer, HelperLost, HelperUnreachable
from guestward.sim.doors import Life, SimPve
from guestward.sim.helper import SimHelper
from guestward.sim.verbs import LOCKS
from guestward.sim.world import World

BAND = range(990000, 990010)
CT, VM, SCRATCH = GuestId(GuestKind.LXC, 101), GuestId(GuestKind.QEMU, 200), GuestId(GuestKind.LXC, 990000)
Ask = Callable[[SimHelper], HelperAnswer]


def host() -> World:
    world = World()
    world.install(("guestward",), BAND)
    world.add(101)
    world.add(200, "qemu")
    world.add(990000, running=False, onboot=False, pool=None)
    return world


def helper(world: World, timeout: float = 30.0) -> SimHelper:
    return SimHelper(world, Life(), ("guestward",), BAND, timeout)


def unlock(guest: GuestId = CT, expect: str = "backup") -> Ask:
    return lambda of: of.unlock(guest, expect)


def delete(vmid: int = 101) -> Ask:
    return lambda of: of.delete_snapshot(vmid)


def release(vmid: int = 990000) -> Ask:
    return lambda of: of.release_scratch(vmid)


def regrant(of: SimHelper) -> HelperAnswer:
    return of.regrant()


def left_by_a_killed_vzdump(world: World) -> None:
    world.backup_begin(101)
    world.advance(5.0)
    world.backup_kill(101)


def effects(world: World) -> list[tuple[str, int | None, str]]:
    assert all(effect.door == "helper" for effect in world.effects)
    return [(effect.verb, effect.vmid, effect.result) for effect in world.effects]


def test_recovery_as_it_was_recorded() -> None:
    """timelines 6c, 6d: locked, the snapshot cannot be deleted; unlocked it can, and the container starts."""
    world = host()
    left_by_a_killed_vzdump(world)
    guest, of = world.guests[101], helper(world)
    assert (guest.lock, guest.snapshots) == ("backup", {"vzdump": ""})
    assert delete()(of) == HelperAnswer(False, "failed", "CT is locked (backup)")
    assert unlock()(of).ok and guest.lock is None and guest.snapshots == {"vzdump": ""}
    assert delete()(of).ok and guest.snapshots == {} and "parent" not in guest.options()
    assert effects(world) == [("delete-snapshot", 101, "failed"), ("unlock", 101, "ok"), ("delete-snapshot", 101, "ok")]


@pytest.mark.parametrize(("lock", "state"), [("snapshot", "prepare"), ("snapshot-delete", "delete")])
def test_a_lock_of_a_snapshot_goes_with_the_section_in_that_state_only(lock: str, state: str) -> None:
    """pve-facts C6: what a vzdump that died within those steps leaves."""
    world = host()
    world.lock(101, lock)
    assert unlock(expect=lock)(helper(world)).code == "lock_kind"
    world.snapshot(101, "vzdump", state)
    assert unlock(expect=lock)(helper(world)).ok and world.guests[101].lock is None
    assert world.guests[101].snapshots == {"vzdump": state}


@pytest.mark.parametrize("lock", sorted({*LOCKS} - {"backup", "snapshot", "snapshot-delete"}))
def test_no_other_lock_is_cleared(lock: str) -> None:
    world = host()
    world.lock(101, lock)
    assert unlock(expect=lock)(helper(world)).code == "lock_kind"
    assert world.guests[101].lock == lock


def test_a_vm_has_no_lock_of_a_snapshot_that_is_ours() -> None:
    """A snapshot `vzdump` of a VM is its owner's."""
    world = host()
    world.lock(200, "snapshot")
    world.snapshot(200, "vzdump", "prepare")
    assert unlock(VM, "snapshot")(helper(world)).code == "lock_kind"
    world.lock(200, "backup")
    assert unlock(VM, "backup")(helper(world)).ok
    assert delete(200)(helper(world)).code == "no_guest"


def locked(lock: str, vmid: int = 101) -> Callable[[World], object]:
    return lambda world: world.lock(vmid, lock)


def saved(world: World) -> None:
    world.backup_begin(101)
    world.advance(5.0)


def other_saved(world: World) -> None:
    world.lock(101, "backup")
    world.backup_begin(200)


def no_quorum(world: World) -> None:
    world.quorate = False


def away(world: World) -> None:
    world.migrate(101, "pve2")


def out_of_the_pool(world: World) -> None:
    world.guests[101].pool = None


def booting(world: World) -> None:
    world.phases.enter("booting")


def stopping(world: World) -> None:
    world.phases.enter("stopping")


REFUSALS: dict[str, tuple[Callable[[World], object], Ask, str]] = {
    "unlock-without-quorum": (no_quorum, unlock(), "no_quorum"),
    "unlock-while-booting": (booting, unlock(), "host_booting"),
    "unlock-while-stopping": (stopping, unlock(), "host_stopping"),
    "unlock-of-nobody": (locked("backup"), unlock(GuestId(GuestKind.LXC, 555)), "no_guest"),
    "unlock-of-the-other-kind": (locked("backup"), unlock(GuestId(GuestKind.QEMU, 101)), "no_guest"),
    "unlock-of-a-guest-elsewhere": (away, unlock(), "no_guest"),
    "unlock-in-the-band": (locked("backup", 990000), unlock(SCRATCH), "scratch_band"),
    "unlock-of-a-foreign-guest": (out_of_the_pool, unlock(), "not_owned"),
    "unlock-during-its-backup": (saved, unlock(), "backup_running"),
    "unlock-during-another-backup": (other_saved, unlock(), "backup_running"),
    "unlock-of-another-lock": (locked("migrate"), unlock(), "lock_changed"),
    "unlock-of-none": (lambda world: None, unlock(), "lock_changed"),
    "delete-without-quorum": (no_quorum, delete(), "no_quorum"),
    "delete-while-booting": (booting, delete(), "host_booting"),
    "delete-of-nobody": (lambda world: None, delete(555), "no_guest"),
    "delete-of-a-foreign-guest": (out_of_the_pool, delete(), "not_owned"),
    "delete-in-the-band": (lambda world: None, delete(990000), "scratch_band"),
    "delete-of-none": (lambda world: world.snapshot(101, "mine"), delete(), "no_snapshot"),
    "release-without-quorum": (no_quorum, release(), "no_quorum"),
    "release-while-stopping": (stopping, release(), "host_stopping"),
    "release-outside": (locked("create"), release(101), "not_scratch"),
    "release-of-another-lock": (locked("backup", 990000), release(), "lock_changed"),
    "release-of-nobody": (lambda world: None, release(990005), "lock_changed"),
    "regrant-without-quorum": (no_quorum, regrant, "no_quorum"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_change_nothing(name: str) -> None:
    prepare, ask, code = REFUSALS[name]
    world = host()
    prepare(world)
    before = {vmid: (guest.lock, dict(guest.snapshots)) for vmid, guest in world.guests.items()}
    answer = ask(helper(world))
    assert (answer.ok, answer.code) == (False, code) and answer.message
    assert before == {vmid: (guest.lock, dict(guest.snapshots)) for vmid, guest in world.guests.items()}
    assert [result for *_, result in effects(world)] == ["refused"]


@pytest.mark.parametrize("lock", ["create", "destroyed"])
def test_release(lock: str) -> None:
    """timelines 8n: a restore that was killed; no API call gets rid of it before (pve-facts, surprise 2)."""
    world = host()
    world.restore(990000, killed=True)
    world.lock(990000, lock)
    assert release()(helper(world)).ok and world.guests[990000].lock is None


def test_regrant_puts_back_what_a_destroy_took() -> None:
    """timelines 8a: after the destroy `/access/permissions` has nothing on that path. It may act while the host boots."""
    world = host()
    before = world.acl.listed()
    world.destroy(990000)
    assert "/vms/990000" not in SimPve(world).privileges(deadline=1e9)
    booting(world)
    assert regrant(helper(world)).ok
    assert world.acl.listed() == before
    assert effects(world) == [("regrant", None, "ok")]


def test_down() -> None:
    world = host()
    left_by_a_killed_vzdump(world)
    world.helper.down()
    with pytest.raises(HelperUnreachable):
        unlock()(helper(world))
    assert effects(world) == [] and world.guests[101].lock == "backup"
    world.helper.up()
    assert unlock()(helper(world)).ok


def test_slow_and_slower_than_the_agent_waits() -> None:
    """It acts when it is asked. An answer that comes too late is lost, and what it did is done."""
    world = host()
    left_by_a_killed_vzdump(world)
    world.helper.slow(20.0)
    begun = world.now
    assert unlock()(helper(world)).ok and world.now == begun + 20.0
    world.lock(101, "backup")
    world.helper.slow(31.0)
    with pytest.raises(HelperLost):
        unlock()(helper(world))
    assert world.guests[101].lock is None and world.now == begun + 50.0
    assert effects(world) == [("unlock", 101, "ok"), ("unlock", 101, "lost")]


def test_hang_has_no_effect() -> None:
    world = host()
    left_by_a_killed_vzdump(world)
    world.helper.hang()
    begun = world.now
    with pytest.raises(HelperLost):
        unlock()(helper(world))
    assert world.guests[101].lock == "backup" and world.now == begun + 30.0
    assert effects(world) == [("unlock", 101, "lost")]


def test_fail_next_is_used_up() -> None:
    world = host()
    left_by_a_killed_vzdump(world)
    said = "can't lock file '/run/lock/lxc/pve-config-101.lock' - got timeout"
    world.fail_next("unlock", said)
    assert unlock()(helper(world)) == HelperAnswer(False, "failed", said)
    assert world.guests[101].lock == "backup"
    assert unlock()(helper(world)).ok
    assert effects(world) == [("unlock", 101, "failed"), ("unlock", 101, "ok")]


def test_a_reaction_comes_after_the_effect() -> None:
    world = host()
    left_by_a_killed_vzdump(world)
    world.react("unlock", 101, 0.0, lambda: world.lock(101, "migrate"))
    assert unlock()(helper(world)).ok and world.guests[101].lock == "migrate"
