"""The simulated root helper: what it does, what it refuses, and what becomes of its answer (pve-facts B2, B3, C6; timelines 6, 8).

What concerns the scratch band is asked of the real one, too, in the same state of its own host: both must answer with the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from guestward.helper.child import Programs
from guestward.helper.desk import Desk
from guestward.helper.facts import Host
from guestward.helper.trust import Refused, Scope
from guestward.helper.verbs import VERBS
from guestward.model.guest import GuestId, GuestKind
from guestward.model.helper import ANSWERED_WITHIN, Answer, HelperCode, Request, Verb
from guestward.ports import HelperLost, HelperUnreachable
from guestward.sim.doors import AgentGone, Life
from guestward.sim.helper import DELETE_FAILS_IN, DELETE_TAKES, SimCall, SimHelper
from guestward.sim.verbs import LOCKS
from guestward.sim.world import World
from tests.helper.tree import NODE, ROLE, TOKEN, USER, Tree, upid

BAND = range(990000, 990010)
CT, VM, SCRATCH = GuestId(GuestKind.LXC, 101), GuestId(GuestKind.QEMU, 200), GuestId(GuestKind.LXC, 990000)


def host() -> World:
    world = World()
    world.install(("guestward",), BAND)
    world.add(101)
    world.add(200, "qemu")
    world.add(990000, running=False, onboot=False, pool=None)
    return world


def ask(world: World, request: Request, *, report_only: bool = False) -> SimCall:
    return SimHelper(world, Life(), ("guestward",), BAND, frozenset({777}), report_only).ask(request)


def answered(world: World, request: Request, *, within: float = DELETE_TAKES) -> Answer:
    """What it said, when it has had the time that it takes."""
    call = ask(world, request)
    world.advance(within)
    answer = call.answer()
    assert answer is not None
    return answer


def unlock(guest: GuestId = CT, expect: str = "backup") -> Request:
    return Request(Verb.UNLOCK, guest.kind, guest.vmid, expect)


def delete(vmid: int = 101) -> Request:
    return Request(Verb.DELETE_SNAPSHOT, vmid=vmid)


def left_by_a_killed_vzdump(world: World) -> None:
    world.backup_begin(101)
    world.advance(5.0)
    world.backup_kill(101)


def effects(world: World) -> list[tuple[str, int | None, str]]:
    assert all(effect.door == "helper" for effect in world.effects)
    return [(effect.verb, effect.vmid, effect.result) for effect in world.effects]


def shown(world: World) -> dict[int, tuple[str | None, dict[str, str]]]:
    return {vmid: (guest.lock, dict(guest.snapshots)) for vmid, guest in world.guests.items()}


def test_recovery_as_it_was_recorded() -> None:
    """timelines 6c, 6d: locked, the snapshot cannot be deleted; unlocked it can, and the container starts."""
    world = host()
    left_by_a_killed_vzdump(world)
    guest = world.guests[101]
    assert (guest.lock, guest.snapshots) == ("backup", {"vzdump": ""})
    assert answered(world, delete()).code is HelperCode.LOCKED
    assert answered(world, unlock()).ok and (guest.lock, guest.snapshots) == (None, {"vzdump": ""})
    assert answered(world, delete()).ok and guest.snapshots == {} and "parent" not in guest.options()
    assert effects(world) == [("delete-snapshot", 101, "refused"), ("unlock", 101, "ok"), ("delete-snapshot", 101, "ok")]


def test_a_delete_is_a_task_with_a_lock_and_its_answer_comes_when_it_has_ended() -> None:
    """timelines 6c: lock `snapshot-delete` and a task `vzdelsnapshot` by root@pam, as long as it takes."""
    world = host()
    world.snapshot(101, "vzdump")
    world.snapshot(101, "mine")
    guest, call = world.guests[101], ask(world, delete())
    world.advance(DELETE_TAKES - 0.1)
    assert call.answer() is None
    assert (guest.lock, guest.snapshots) == ("snapshot-delete", {"vzdump": "delete", "mine": ""})
    assert [(task.upid.type, task.upid.id, task.upid.user) for task in world.tasks] == [("vzdelsnapshot", "101", "root@pam")]
    world.advance(0.1)
    answer = call.answer()
    assert answer is not None and answer.ok
    assert (guest.lock, guest.snapshots) == (None, {"mine": ""})
    assert [(task.upid.type, task.said) for task in world.archive] == [("vzdelsnapshot", "OK")] and world.tasks == []


STILL = "lxc/101: the snapshot vzdump is still there"
DOWN = f"{STILL}; the lock snapshot-delete is there now, and keeps the guest down"


def fails(world: World, meanwhile: Callable[[World], object] = lambda world: None) -> str:
    """A delete of a dataset that is busy. Returns what is said of it."""
    world.snapshot(101, "vzdump")
    world.fail_next("delete-snapshot", "zfs error: dataset is busy")
    call, guest = ask(world, delete()), world.guests[101]
    assert (guest.lock, guest.snapshots["vzdump"]) == ("snapshot-delete", "delete")
    meanwhile(world)
    world.advance(DELETE_FAILS_IN)
    answer = call.answer()
    assert answer is not None and answer.code is HelperCode.FAILED
    assert effects(world) == [("delete-snapshot", 101, "failed")]
    return answer.message


def test_a_delete_that_fails_leaves_the_section_and_its_lock_goes_at_once() -> None:
    """C39."""
    world = host()
    said = fails(world)
    assert said == f"{STILL}; its lock snapshot-delete was cleared, so that the guest can start; zfs error: dataset is busy"
    assert (world.guests[101].lock, world.guests[101].snapshots) == (None, {"vzdump": "delete"})
    assert [(task.upid.type, task.said) for task in world.archive] == [("vzdelsnapshot", "zfs error: dataset is busy")]
    assert answered(world, delete()).ok and world.guests[101].snapshots == {}


def test_a_backup_of_another_guest_keeps_no_lock_of_a_failed_delete() -> None:
    world = host()
    assert "was cleared" in fails(world, lambda world: world.backup_begin(200)) and world.guests[101].lock is None


def operators(world: World) -> None:
    world.unlock(101)
    world.lock(101, "snapshot-delete")


CANNOT_CLEAR: dict[str, tuple[Callable[[World], object], str]] = {
    "a-task": (lambda world: world.task("vzmigrate", "101"), f"{DOWN}: a task of this guest is running: UPID:pve1:"),
    "another-snapshot": (lambda world: world.snapshot(101, "mine", "prepare"), f"{DOWN}: somebody is at work on it; zfs"),
    "another-state": (lambda world: world.snapshot(101, "vzdump", "prepare"), f"{DOWN}: somebody is at work on it; zfs"),
    "somebody-elses": (operators, f"{DOWN}: somebody is at work on it; zfs"),
    "no-quorum": (
        lambda world: setattr(world, "quorate", False),
        f"{DOWN}; `pct unlock`: unable to open file '/etc/pve/nodes/pve1/lxc/101.",
    ),
    "unlock-fails": (lambda world: world.fail_next("unlock", "got timeout"), f"{DOWN}; `pct unlock`: got timeout; zfs"),
}


@pytest.mark.parametrize("name", CANNOT_CLEAR)
def test_the_lock_of_a_failed_delete_that_cannot_be_cleared_is_told(name: str) -> None:
    meanwhile, words = CANNOT_CLEAR[name]
    world = host()
    assert fails(world, meanwhile).startswith(words)
    assert world.guests[101].lock == "snapshot-delete"


def test_of_another_lock_or_none_only_that_is_said() -> None:
    world = host()
    assert fails(world, lambda world: world.unlock(101)) == f"{STILL}; zfs error: dataset is busy"
    world = host()
    assert fails(world, lambda world: world.lock(101, "backup")) == (
        f"{STILL}; the lock backup is there now, and keeps the guest down; zfs error: dataset is busy"
    )


@pytest.mark.parametrize("goes", [lambda world: world.destroy(101), lambda world: world.migrate(101, "pve2")])
def test_the_guest_of_a_delete_goes(goes: Callable[[World], object]) -> None:
    assert fails(host(), goes) == "the guest is gone: lxc/101: no such configuration on this node"


@pytest.mark.parametrize("request_", [unlock(), delete()])
def test_roots_own_words(request_: Request) -> None:
    world = host()
    left_by_a_killed_vzdump(world)
    answer = ask(world, request_, report_only=True).answer()
    assert answer is not None and answer.code is HelperCode.REPORT_ONLY
    world.hold_file = True
    answer = ask(world, request_).answer()
    assert answer is not None and answer.code is HelperCode.HELD
    assert world.guests[101].lock == "backup"


def test_a_delete_that_the_boot_of_the_host_cuts_off_is_never_answered() -> None:
    world = host()
    world.snapshot(101, "vzdump")
    call = ask(world, delete())
    world.phases.enter("booting")
    world.advance(DELETE_TAKES)
    assert call.answer() is None
    assert (world.guests[101].lock, world.guests[101].snapshots) == ("snapshot-delete", {"vzdump": "delete"})
    world.advance(ANSWERED_WITHIN[Verb.DELETE_SNAPSHOT])
    with pytest.raises(HelperLost):
        call.answer()


@pytest.mark.parametrize(("lock", "state"), [("snapshot", "prepare"), ("snapshot-delete", "delete")])
def test_a_lock_of_a_snapshot_goes_with_the_section_in_that_state_only(lock: str, state: str) -> None:
    """pve-facts C6: what a vzdump that died within those steps leaves."""
    world = host()
    world.lock(101, lock)
    assert answered(world, unlock(expect=lock)).code is HelperCode.LOCK_KIND
    world.snapshot(101, "vzdump", state)
    world.snapshot(101, "mine", "delete")
    assert answered(world, unlock(expect=lock)).code is HelperCode.LOCK_KIND
    world.snapshot(101, "mine", None)
    world.snapshot(101, "vzdump", "")
    assert answered(world, unlock(expect=lock)).code is HelperCode.LOCK_KIND
    world.snapshot(101, "vzdump", state)
    assert answered(world, unlock(expect=lock)).ok and world.guests[101].lock is None
    assert world.guests[101].snapshots == {"vzdump": state}


@pytest.mark.parametrize("lock", sorted({*LOCKS} - {"backup", "snapshot", "snapshot-delete"}))
def test_no_other_lock_can_be_asked_for(lock: str) -> None:
    world = host()
    world.lock(101, lock)
    assert answered(world, unlock(expect=lock)).code is HelperCode.BAD_REQUEST
    assert world.guests[101].lock == lock and effects(world) == [("unlock", 101, "refused")]


@pytest.mark.parametrize(
    "request_", [Request(Verb.UNLOCK), Request(Verb.DELETE_SNAPSHOT), Request(Verb.UNLOCK, GuestKind.LXC, 99, "backup")]
)
def test_what_the_real_one_cannot_read_is_refused(request_: Request) -> None:
    world = host()
    world.lock(101, "backup")
    assert answered(world, request_).code is HelperCode.BAD_REQUEST


def test_a_vm_has_no_lock_of_a_snapshot_that_is_ours() -> None:
    """A snapshot `vzdump` of a VM is its owner's."""
    world = host()
    world.lock(200, "snapshot")
    world.snapshot(200, "vzdump", "prepare")
    assert answered(world, unlock(VM, "snapshot")).code is HelperCode.LOCK_KIND
    world.lock(200, "backup")
    assert answered(world, unlock(VM, "backup")).ok
    assert answered(world, delete(200)).code is HelperCode.WRONG_KIND
    assert world.guests[200].snapshots == {"vzdump": "prepare"}


def locked(lock: str, vmid: int = 101) -> Callable[[World], object]:
    return lambda world: world.lock(vmid, lock)


def saved(world: World) -> None:
    world.backup_begin(101)
    world.advance(5.0)


def other_saved(world: World) -> None:
    world.lock(101, "backup")
    world.backup_begin(200)


def still_archived(world: World) -> None:
    world.backup_begin(101)
    world.advance(5.0)
    world.backup_kill(101, archive_for=60.0)


def worked_on(world: World) -> None:
    world.lock(101, "backup")
    world.task("vzmigrate", "101")


def dangling(world: World) -> None:
    world.snapshot(101, "vzdump")


def both(*what: Callable[[World], object]) -> Callable[[World], object]:
    return lambda world: [one(world) for one in what]


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


REFUSALS: dict[str, tuple[Callable[[World], object], Request, HelperCode]] = {
    "unlock-without-quorum": (no_quorum, unlock(), HelperCode.NO_QUORUM),
    "unlock-while-booting": (booting, unlock(), HelperCode.BOOTING),
    "unlock-while-stopping": (stopping, unlock(), HelperCode.STOPPING),
    "unlock-of-nobody": (locked("backup"), unlock(GuestId(GuestKind.LXC, 555)), HelperCode.NO_GUEST),
    "unlock-of-the-other-kind": (locked("backup"), unlock(GuestId(GuestKind.QEMU, 101)), HelperCode.WRONG_KIND),
    "unlock-of-a-guest-elsewhere": (away, unlock(), HelperCode.NO_GUEST),
    "unlock-in-the-band": (locked("backup", 990000), unlock(SCRATCH), HelperCode.SCRATCH_BAND),
    "unlock-of-an-excluded-guest": (lambda world: world.add(777), unlock(GuestId(GuestKind.LXC, 777)), HelperCode.EXCLUDED),
    "unlock-of-a-foreign-guest": (out_of_the_pool, unlock(), HelperCode.NOT_OWNED),
    "unlock-during-its-backup": (saved, unlock(), HelperCode.BUSY),
    "unlock-during-another-backup": (other_saved, unlock(), HelperCode.BUSY),
    "unlock-while-its-archive-is-written": (still_archived, unlock(), HelperCode.BACKUP_RUNNING),
    "unlock-during-a-task": (worked_on, unlock(), HelperCode.TASK_RUNNING),
    "unlock-of-another-lock": (locked("migrate"), unlock(), HelperCode.LOCK_CHANGED),
    "unlock-of-none": (lambda world: None, unlock(), HelperCode.LOCK_CHANGED),
    "delete-without-quorum": (both(dangling, no_quorum), delete(), HelperCode.NO_QUORUM),
    "delete-while-booting": (both(dangling, booting), delete(), HelperCode.BOOTING),
    "delete-while-stopping": (both(dangling, stopping), delete(), HelperCode.STOPPING),
    "delete-of-nobody": (lambda world: None, delete(555), HelperCode.NO_GUEST),
    "delete-of-a-guest-elsewhere": (both(dangling, away), delete(), HelperCode.NO_GUEST),
    "delete-of-a-foreign-guest": (both(dangling, out_of_the_pool), delete(), HelperCode.NOT_OWNED),
    "delete-of-an-excluded-guest": (lambda world: world.add(777, snapshots={"vzdump": ""}), delete(777), HelperCode.EXCLUDED),
    "delete-in-the-band": (lambda world: world.snapshot(990000, "vzdump"), delete(990000), HelperCode.SCRATCH_BAND),
    "delete-of-none": (lambda world: world.snapshot(101, "mine"), delete(), HelperCode.NO_SNAPSHOT),
    "delete-of-another-name": (lambda world: world.snapshot(101, "vzdump-2024"), delete(), HelperCode.NO_SNAPSHOT),
    "delete-while-locked": (both(dangling, locked("migrate")), delete(), HelperCode.LOCKED),
    "delete-during-another-backup": (both(dangling, lambda world: world.backup_begin(200)), delete(), HelperCode.BUSY),
    "delete-while-its-archive-is-written": (both(still_archived, lambda world: world.unlock(101)), delete(), HelperCode.BACKUP_RUNNING),
    "delete-during-a-task": (both(dangling, lambda world: world.task("vzmigrate", "101")), delete(), HelperCode.TASK_RUNNING),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_change_nothing(name: str) -> None:
    prepare, request, code = REFUSALS[name]
    world = host()
    prepare(world)
    before = shown(world)
    answer = ask(world, request).answer()
    assert answer is not None and (answer.ok, answer.code) == (False, code) and answer.message
    assert before == shown(world)
    world.advance(DELETE_TAKES)
    assert [result for *_, result in effects(world)] == ["refused"]


def test_down() -> None:
    world = host()
    left_by_a_killed_vzdump(world)
    world.helper.down()
    with pytest.raises(HelperUnreachable):
        ask(world, unlock())
    assert effects(world) == [] and world.guests[101].lock == "backup"
    world.helper.up()
    assert answered(world, unlock()).ok


def test_slow_and_slower_than_the_agent_waits() -> None:
    """It acts when it is asked. An answer that comes too late is lost, and what it did is done."""
    world = host()
    left_by_a_killed_vzdump(world)
    world.helper.slow(20.0)
    begun, call = world.now, ask(world, unlock())
    world.until(begun + 19.9)
    assert call.answer() is None
    world.until(begun + 20.0)
    answer = call.answer()
    assert answer is not None and answer.ok
    world.lock(101, "backup")
    world.helper.slow(31.0)
    call = ask(world, unlock())
    assert world.guests[101].lock is None
    world.until(begun + 49.9)
    assert call.answer() is None
    world.until(begun + 50.0)
    with pytest.raises(HelperLost):
        call.answer()
    assert effects(world) == [("unlock", 101, "ok"), ("unlock", 101, "lost")]


def test_hang_has_no_effect() -> None:
    world = host()
    left_by_a_killed_vzdump(world)
    world.helper.hang()
    call = ask(world, unlock())
    world.advance(29.9)
    assert call.answer() is None
    world.advance(0.1)
    with pytest.raises(HelperLost):
        call.answer()
    assert world.guests[101].lock == "backup"
    assert effects(world) == [("unlock", 101, "lost")]


def test_a_lie_is_an_ok_without_an_effect() -> None:
    world = host()
    left_by_a_killed_vzdump(world)
    world.helper.lie()
    before = shown(world)
    assert [answered(world, request).code for request in (unlock(), delete())] == [HelperCode.OK] * 2
    assert shown(world) == before
    assert effects(world) == [("unlock", 101, "refused"), ("delete-snapshot", 101, "refused")]
    world.helper.up()
    assert answered(world, unlock()).ok and world.guests[101].lock is None


def test_fail_next_is_used_up() -> None:
    world = host()
    left_by_a_killed_vzdump(world)
    said = "can't lock file '/run/lock/lxc/pve-config-101.lock' - got timeout"
    world.fail_next("unlock", said)
    answer = answered(world, unlock())
    assert (answer.code, said in answer.message) == (HelperCode.FAILED, True)
    assert world.guests[101].lock == "backup"
    assert answered(world, unlock()).ok
    assert effects(world) == [("unlock", 101, "failed"), ("unlock", 101, "ok")]


def test_a_refusal_uses_up_no_failure() -> None:
    world = host()
    world.fail_next("unlock", "no")
    assert answered(world, unlock()).code is HelperCode.LOCK_CHANGED
    world.lock(101, "backup")
    assert answered(world, unlock()).code is HelperCode.FAILED


def test_a_reaction_comes_after_the_effect() -> None:
    world = host()
    left_by_a_killed_vzdump(world)
    world.react("unlock", 101, 0.0, lambda: world.lock(101, "migrate"))
    assert answered(world, unlock()).ok and world.guests[101].lock == "migrate"


def test_an_agent_that_is_gone_hears_no_answer_and_the_effect_is_there() -> None:
    world, life = host(), Life()
    left_by_a_killed_vzdump(world)
    world.react("unlock", 101, 0.0, lambda: setattr(life, "over", True))
    with pytest.raises(AgentGone):
        SimHelper(world, life, ("guestward",), BAND).ask(unlock())
    assert world.guests[101].lock is None


# --- the scratch band, with the real helper beside the simulated one ---

REGRANT = Request(Verb.REGRANT)


def release(vmid: int = 990000) -> Request:
    return Request(Verb.RELEASE_SCRATCH, vmid=vmid)


def killed(world: World) -> None:
    world.restore(990000, "guestward-pve1@pve!agent", killed=True)


def real(tree: Tree, request: Request) -> HelperCode:
    programs = Programs(str(tree.root / "bin"))
    scope = Scope(exclude=frozenset({777, 990009}), token_id=TOKEN)
    try:
        return VERBS[request.verb](Desk(Host(str(tree.root), programs), programs, scope), request).code
    except Refused as refused:
        return refused.answer.code


def simulated(world: World, request: Request) -> HelperCode:
    answer = SimHelper(world, Life(), ("guestward",), BAND, frozenset({777, 990009})).ask(request).answer()
    assert answer is not None
    return answer.code


def leftover(text: str = "lock: create\n", kind: str = "lxc") -> Callable[[Tree], object]:
    return lambda tree: (tree.lxc if kind == "lxc" else tree.vm)(990000, text)


def task(type_: str, vmid: int) -> Callable[[Tree], object]:
    return lambda t: (leftover()(t), t.process(4711, "perl"), t.put("var/log/pve/tasks/active", f"{upid(4711, type_, str(vmid))} 0\n"))


def gone(world: World) -> None:
    world.destroy(990000)


def booting_tree(tree: Tree) -> None:
    tree.systemd(ActiveState="activating", SubState="start")


def stopping_tree(tree: Tree) -> None:
    tree.systemd(SystemState="stopping")


def no_quorum_tree(tree: Tree) -> None:
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o555)


def lost_tree(tree: Tree) -> None:
    tree.users(without="/vms/990003:")


def lost(world: World) -> None:
    world.acl.wipe(990003)


def held(world: World) -> None:
    world.hold_file = True


def trees(*what: Callable[[Tree], object]) -> Callable[[Tree], object]:
    return lambda tree: [one(tree) for one in what]


SAME: dict[str, tuple[Callable[[World], object], Callable[[Tree], object], Request, HelperCode]] = {
    "release": (killed, leftover(), release(), HelperCode.OK),
    "release-of-a-destroy": (locked("destroyed", 990000), leftover("lock: destroyed\n"), release(), HelperCode.OK),
    "release-of-a-vm": (
        both(gone, lambda world: world.add(990000, "qemu", lock="create", pool=None)),
        leftover(kind="qemu"),
        release(),
        HelperCode.OK,
    ),
    "release-outside": (locked("create"), lambda tree: tree.lxc(101, "lock: create\n"), release(101), HelperCode.NOT_SCRATCH),
    "release-of-an-excluded-guest": (
        lambda world: world.add(990009, lock="create"),
        lambda tree: tree.lxc(990009, "lock: create\n"),
        release(990009),
        HelperCode.EXCLUDED,
    ),
    "release-while-booting": (both(killed, booting), trees(leftover(), booting_tree), release(), HelperCode.BOOTING),
    "release-while-stopping": (both(killed, stopping), trees(leftover(), stopping_tree), release(), HelperCode.STOPPING),
    "release-without-quorum": (both(killed, no_quorum), trees(leftover(), no_quorum_tree), release(), HelperCode.NO_QUORUM),
    "release-while-held": (
        both(killed, held),
        trees(leftover(), lambda tree: tree.put("etc/guestward/hold")),
        release(),
        HelperCode.HELD,
    ),
    "release-of-nobody": (gone, lambda tree: None, release(), HelperCode.NO_GUEST),
    "release-of-a-guest-elsewhere": (
        both(killed, lambda world: world.migrate(990000, "pve2")),
        lambda tree: tree.put("etc/pve/nodes/pve2/lxc/990000.conf", "lock: create\n"),
        release(),
        HelperCode.NO_GUEST,
    ),
    "release-of-a-template": (
        both(killed, lambda world: setattr(world.guests[990000], "template", True)),
        leftover("lock: create\ntemplate: 1\n"),
        release(),
        HelperCode.TEMPLATE,
    ),
    "release-of-no-lock": (lambda world: None, leftover("arch: amd64\n"), release(), HelperCode.NOT_LOCKED),
    "release-of-another-lock": (locked("migrate", 990000), leftover("lock: migrate\n"), release(), HelperCode.LOCK_KIND),
    "release-during-a-restore": (
        both(killed, lambda world: world.task("vzrestore", "990000")),
        task("vzrestore", 990000),
        release(),
        HelperCode.TASK_RUNNING,
    ),
    "release-during-a-clone": (
        both(killed, lambda world: world.task("vzclone", "101")),
        task("vzclone", 101),
        release(),
        HelperCode.TASK_RUNNING,
    ),
    "release-during-another-clone": (
        both(killed, lambda world: world.task("qmclone", "200")),
        task("qmclone", 200),
        release(),
        HelperCode.OK,
    ),
    "regrant-of-nothing": (lambda world: None, lambda tree: None, REGRANT, HelperCode.OK),
    "regrant": (lost, lost_tree, REGRANT, HelperCode.OK),
    "regrant-while-booting": (both(lost, booting), trees(lost_tree, booting_tree), REGRANT, HelperCode.OK),
    "regrant-while-held": (both(lost, held), trees(lost_tree, lambda t: t.put("etc/guestward/hold")), REGRANT, HelperCode.OK),
    "regrant-while-stopping": (both(lost, stopping), trees(lost_tree, stopping_tree), REGRANT, HelperCode.STOPPING),
    "regrant-without-quorum": (both(lost, no_quorum), trees(lost_tree, no_quorum_tree), REGRANT, HelperCode.NO_QUORUM),
    "regrant-under-no-access": (
        lambda world: world.acl.grant("NoAccess", "/vms/990003", "token"),
        lambda tree: tree.users(f"acl:1:/vms/990003:{TOKEN}:NoAccess:"),
        REGRANT,
        HelperCode.FAILED,
    ),
    "regrant-that-fails": (
        both(lost, lambda world: world.fail_next("regrant", "got timeout")),
        trees(lost_tree, lambda tree: tree.before("pveum", "say 'got timeout' 13")),
        REGRANT,
        HelperCode.FAILED,
    ),
    "release-that-fails": (
        both(killed, lambda world: world.fail_next("release-scratch", "got timeout")),
        trees(leftover(), lambda tree: tree.before("pct", "say 'got timeout' 255")),
        release(),
        HelperCode.FAILED,
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_both_helpers_answer_alike_in_the_band(name: str, tmp_path: Path) -> None:
    prepare, prepare_tree, request, code = SAME[name]
    world, tree = host(), Tree(tmp_path)
    tree.users()
    prepare(world)
    prepare_tree(tree)
    before = shown(world), {key: dict(entry) for key, entry in world.acl.entries.items()}
    answers = simulated(world, request), real(tree, request)
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o755)
    assert answers == (code, code)
    if code is not HelperCode.OK:
        assert before == (shown(world), world.acl.entries)
        assert [result for *_, result in effects(world)] == ["failed" if code is HelperCode.FAILED else "refused"]


def test_a_leftover_of_a_killed_restore_can_be_destroyed_once_it_is_released() -> None:
    """timelines 8n: until then even `force` is refused with `CT is locked (create)`."""
    world = host()
    killed(world)
    guest = world.guests[990000]
    assert (guest.lock, world.obstacle(guest)) == ("create", "CT is locked (create)")
    assert answered(world, release()) == Answer(HelperCode.OK, "lxc/990000: lock create cleared")
    assert (guest.lock, world.obstacle(guest)) == (None, None)
    assert effects(world) == [("release-scratch", 990000, "ok")]


def test_the_band_is_released_where_locks_are_only_reported() -> None:
    world = host()
    killed(world)
    answer = ask(world, release(), report_only=True).answer()
    assert answer is not None and answer.ok


def test_a_regrant_has_one_effect_for_each_vmid_that_it_put_back() -> None:
    """C45: a destroy by anybody takes the entries away, for user and token."""
    world = host()
    granted = {key: dict(entry) for key, entry in world.acl.entries.items()}
    world.destroy(990000)
    world.acl.wipe(990007)
    world.acl.revoke("VM.Audit", "/vms/990008", "token")
    assert answered(world, REGRANT).ok
    assert effects(world) == [("regrant", 990000, "ok"), ("regrant", 990007, "ok"), ("regrant", 990008, "ok")]
    assert world.acl.entries == granted


def test_a_regrant_of_nothing_has_one_effect_for_nobody() -> None:
    world = host()
    assert answered(world, REGRANT).ok and effects(world) == [("regrant", None, "ok")]


def test_an_entry_that_is_not_handed_down_is_put_back() -> None:
    world = host()
    world.acl.grant("VM.Allocate", "/vms/990001", propagate=False)
    assert answered(world, REGRANT).ok and effects(world) == [("regrant", 990001, "ok")]
    assert world.acl.held("/vms/990001")["VM.Allocate"] is True


def test_no_access_stays_and_the_rest_is_put_back() -> None:
    world = host()
    world.acl.wipe(990001)
    world.acl.grant("NoAccess", "/vms/990002", "token")
    world.acl.wipe(990003)
    world.acl.grant("NoAccess", "/vms/990003", "user")
    answer = answered(world, REGRANT)
    assert (answer.code, answer.message) == (HelperCode.FAILED, "NoAccess bars user or token at 990002, 990003")
    assert effects(world) == [("regrant", 990001, "ok"), ("regrant", 990003, "ok"), ("regrant", None, "failed")]
    assert [bool(world.acl.held(f"/vms/99000{n}")) for n in (1, 2, 3)] == [True, False, False]


def test_a_failure_of_a_regrant_is_used_up_only_where_something_is_missing() -> None:
    world = host()
    world.fail_next("regrant", "got timeout")
    assert answered(world, REGRANT).ok
    world.acl.wipe(990001)
    answer = answered(world, REGRANT)
    assert (answer.code, answer.message) == (HelperCode.FAILED, "GuestwardScratch is missing at 990001; got timeout")
    assert answered(world, REGRANT).ok
    assert [(vmid, result) for _, vmid, result in effects(world)] == [(None, "ok"), (None, "failed"), (990001, "ok")]


def test_the_world_reacts_to_a_regrant_of_one_vmid() -> None:
    world = host()
    world.acl.wipe(990001)
    world.react("regrant", 990001, 0.0, lambda: world.acl.wipe(990001))
    assert answered(world, REGRANT).ok
    assert world.acl.held("/vms/990001") == {}


@pytest.mark.parametrize("request_", [release(), REGRANT])
def test_in_the_band_too_a_hang_has_no_effect_and_a_lie_neither(request_: Request) -> None:
    world = host()
    killed(world)
    world.acl.wipe(990001)
    world.helper.hang()
    call = ask(world, request_)
    world.advance(ANSWERED_WITHIN[request_.verb])
    with pytest.raises(HelperLost):
        call.answer()
    world.helper.up()
    world.helper.lie()
    assert answered(world, request_).ok
    assert (world.guests[990000].lock, world.acl.held("/vms/990001")) == ("create", {})
    assert [(vmid, result) for _, vmid, result in effects(world)] == [(request_.vmid, "lost"), (request_.vmid, "refused")]


def test_a_regrant_whose_answer_comes_too_late_is_lost_and_done() -> None:
    world = host()
    world.acl.wipe(990001)
    world.acl.wipe(990002)
    world.helper.slow(ANSWERED_WITHIN[Verb.REGRANT] + 1)
    call = ask(world, REGRANT)
    assert effects(world) == [("regrant", 990001, "lost"), ("regrant", 990002, "lost")] and world.acl.held("/vms/990001")
    world.advance(ANSWERED_WITHIN[Verb.REGRANT])
    with pytest.raises(HelperLost):
        call.answer()


def test_what_the_install_script_grants_is_what_a_regrant_wants() -> None:
    script = (Path(__file__).parents[2] / "install/host-install.sh").read_text()
    assert f'echo "/vms/$vmid {ROLE} 1"' in script
    world = World()
    world.grant_band([990001])
    assert f"{ROLE}) echo {' '.join(world.acl.held('/vms/990001'))} ;;" in script
    assert (world.token_id.partition("!")[0], world.token_id) == (USER, TOKEN)
