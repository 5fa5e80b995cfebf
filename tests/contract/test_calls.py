"""Every recorded answer to a call that the agent makes, read by the real client, against the simulated host in the same state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from guestward.model.guest import GuestConfig, GuestId, GuestKind, ListedGuest, LiveStatus
from guestward.model.observation import Member, Resources
from guestward.model.task import Error, Ok, Running, Task, Unknown, Upid
from guestward.ports import PveAnswerLost, PveError, PveRefused, PveUnreachable
from guestward.sim.doors import SimPve
from guestward.sim.world import World
from tests.contract.recordings import EVERY_VMID, ROLE, TOKEN, VERSIONS, Ask, Recorded, load, replayed

CT, OTHER = GuestId(GuestKind.LXC, 101), GuestId(GuestKind.LXC, 102)
VM = GuestId(GuestKind.QEMU, 200)
RECORDED = {version: load(f"calls-{version}") for version in VERSIONS}
ROOT, PROBE = "root@pam", "root@pam!probe"
NEVER = Upid.parse("UPID:pve1:00001234:00001234:6B0DF801:vzstart:101:guestward@pve!agent:")

# Calls that the simulated host answers otherwise, by the id of docs/simulated-host.md.
SIMPLIFIED = {
    "unknown-node": "node-name",
    **dict.fromkeys(("unknown-token-id", "wrong-secret", "user-disabled", "user-expired", "token-expired"), "login-words"),
    "pmxcfs-down": "fault-words",
    "pvedaemon-down": "fault-words",
}


def host() -> World:
    """The node of the recordings, at its beginning."""
    world = World(token_id=TOKEN)
    for vmid, pool in ((101, "guestward"), (102, None), (990000, None)):
        world.add(vmid, name=f"ct{vmid}", running=False, onboot=False, pool=pool, storages=frozenset({"btr"}))
    world.add(200, "qemu", name="vm200", running=False, onboot=False)
    for path in ("/pool/guestward", *(f"/vms/{vmid}" for vmid in range(990000, 990010))):
        for privilege in ROLE:
            world.acl.grant(privilege, path)
    world.until(12.0)
    return world


Prepare = Callable[[World], object]


def running(world: World, vmid: int = 101) -> None:
    world.start(vmid)


def locked(world: World, vmid: int = 101) -> None:
    world.lock(vmid, "backup")


def saved(world: World) -> None:
    running(world)
    world.backup_begin(101, by=PROBE)
    world.advance(8.0)


def killed(world: World) -> None:
    saved(world)
    world.backup_kill(101)


def sees_tasks(world: World, who: str = "both") -> None:
    world.acl.grant("Sys.Audit", "/nodes/pve1", who)


def both(*steps: Prepare) -> Prepare:
    def do(world: World) -> None:
        for step in steps:
            step(world)

    return do


def history(recorded: Recorded, *, foreign: bool) -> Prepare:
    """The tasks of a recorded list, oldest first; foreign: and some that the list leaves out, of root or of another VMID."""

    def do(world: World) -> None:
        with replayed(recorded) as (client, _):
            rows = client.past_tasks(deadline=2000.0)
        for row in reversed(rows):
            text = "OK" if row.status == Ok() else row.status.detail if isinstance(row.status, (Error, Unknown)) else "?"
            world.task(row.upid.type, row.upid.id, row.upid.user, said=text)
            if recorded.id.startswith("tasks-of-a-guest"):
                world.task("vzstop", "1010", TOKEN, said="OK")
            if foreign:
                world.task("vzstop", "101", ROOT, said="OK")

    return do


def guests(kind: GuestKind) -> Ask:
    return lambda pve: pve.guests(kind, deadline=1e9)


def live(guest: GuestId) -> Ask:
    return lambda pve: pve.live(guest, deadline=1e9)


def start(guest: GuestId) -> Ask:
    return lambda pve: pve.start(guest, deadline=1e9)


def config(guest: GuestId) -> Ask:
    return lambda pve: pve.config(guest, deadline=1e9)


def snapshots(guest: GuestId) -> Ask:
    return lambda pve: pve.snapshots(guest, deadline=1e9)


def active(pve: Any) -> object:
    return pve.active_tasks(deadline=1e9)


def past(pve: Any) -> object:
    return pve.past_tasks(deadline=1e9)


def past_of(pve: Any) -> object:
    return pve.past_tasks_of(101, deadline=1e9)


def destroy(guest: GuestId) -> Ask:
    return lambda pve: pve.destroy_scratch(guest.kind, EVERY_VMID.claim(guest.vmid), deadline=1e9)


def stop(guest: GuestId) -> Ask:
    return lambda pve: pve.stop_scratch(guest.kind, EVERY_VMID.claim(guest.vmid), deadline=1e9)


def storages(pve: Any) -> object:
    return pve.volume_storages(deadline=1e9)


def volumes(vmid: int) -> Ask:
    return lambda pve: pve.volumes("local", EVERY_VMID.claim(vmid), deadline=1e9)


def task(of: Callable[[World], Upid]) -> Ask:
    """Of the recorded task for the client, of the world's own for the simulated host."""
    return lambda pve: pve.task(of(pve.world) if isinstance(pve, SimPve) else NEVER, deadline=1e9)


def log(of: Callable[[World], Upid]) -> Ask:
    """As `task`, its log."""
    return lambda pve: pve.task_log(of(pve.world) if isinstance(pve, SimPve) else NEVER, deadline=1e9)


def started(guest: GuestId, after: float) -> Callable[[World], Upid]:
    def do(world: World) -> Upid:
        upid = SimPve(world).start(guest, deadline=1e9)
        world.advance(after)
        return upid

    return do


def destroyed(guest: GuestId) -> Callable[[World], Upid]:
    """It is destroyed, and that is over."""

    def do(world: World) -> Upid:
        upid = SimPve(world).destroy_scratch(guest.kind, EVERY_VMID.claim(guest.vmid), deadline=1e9)
        world.advance(10.0)
        return upid

    return do


def newest(world: World) -> Upid:
    return world.archive[0].upid


def resources(pve: Any) -> object:
    return pve.resources(deadline=1e9)


def members(pve: Any) -> object:
    return pve.members("guestward", deadline=1e9)


def no_login(world: World) -> None:
    world.api.fault("/", 401)


def a_vm_of_the_band(world: World) -> None:
    world.add(990003, "qemu", pool=None)


def granted(*privileges: str, who: str = "both") -> Prepare:
    """Nothing but that on the path of CT 990000."""

    def do(world: World) -> None:
        world.acl.wipe(SCRATCH.vmid)
        for privilege in privileges:
            world.acl.grant(privilege, f"/vms/{SCRATCH.vmid}", who)

    return do


def scratch(vmid: int, kind: str = "lxc", **traits: Any) -> Prepare:
    """Another guest of the band."""
    return lambda world: world.add(vmid, kind, **{"running": False, "pool": None} | traits)


def with_trait(name: str) -> Prepare:
    return lambda world: setattr(world.guests[SCRATCH.vmid], name, True)


def granted_on_all_guests(world: World) -> None:
    granted()(world)
    world.acl.grant("VM.Allocate", "/vms")


def restored(world: World) -> None:
    world.restore(990004, TOKEN)
    world.guests[990004].storages = frozenset({"btr"})


def of_root(world: World) -> Upid:
    world.start(101)
    world.stop(101)
    return newest(world)


NOTHING: Prepare = lambda world: None  # noqa: E731
GONE = GuestId(GuestKind.LXC, 990007)
SCRATCH, SCRATCH_VM = GuestId(GuestKind.LXC, 990000), GuestId(GuestKind.QEMU, 990002)
CASES: Mapping[str, tuple[Prepare, Ask]] = {
    **dict.fromkeys(
        ("unknown-token-id", "wrong-secret", "user-disabled", "user-expired", "token-expired"), (no_login, guests(GuestKind.LXC))
    ),
    "unknown-node": (NOTHING, guests(GuestKind.LXC)),
    "status-of-the-wrong-kind": (a_vm_of_the_band, live(GuestId(GuestKind.LXC, 990003))),
    "status-stopped": (NOTHING, live(CT)),
    "status-running": (running, live(CT)),
    "status-not-granted": (NOTHING, live(OTHER)),
    "status-vm-running": (partial(running, vmid=200), live(VM)),
    "status-locked": (locked, live(CT)),
    "status-vm-locked": (partial(locked, vmid=200), live(VM)),
    "status-in-a-backup": (saved, live(CT)),
    "status-after-a-killed-backup": (killed, live(CT)),
    "start": (NOTHING, start(CT)),
    "start-task-at-once": (NOTHING, task(started(CT, 0.0))),
    "start-task-at-the-end": (NOTHING, task(started(CT, 5.0))),
    "start-while-running": (running, start(CT)),
    "start-not-granted": (NOTHING, start(OTHER)),
    "start-no-such-guest": (NOTHING, start(GONE)),
    "start-no-such-guest-task": (NOTHING, past),
    "start-locked": (locked, start(CT)),
    "start-locked-task-at-the-end": (locked, task(started(CT, 5.0))),
    "start-vm": (NOTHING, start(VM)),
    "start-vm-task-at-the-end": (NOTHING, task(started(VM, 5.0))),
    "start-vm-while-running": (partial(running, vmid=200), start(VM)),
    "start-vm-while-running-task": (NOTHING, past),
    "start-vm-locked": (partial(locked, vmid=200), start(VM)),
    "start-vm-locked-task-at-the-end": (partial(locked, vmid=200), task(started(VM, 5.0))),
    "list-lxc": (NOTHING, guests(GuestKind.LXC)),
    "list-qemu": (NOTHING, guests(GuestKind.QEMU)),
    "pool-without-pool-audit": (NOTHING, members),
    "resources-without-storages": (NOTHING, resources),
    "resources": (lambda world: world.acl.grant("Datastore.Audit", "/storage/local"), resources),
    "tasks-without-sys-audit": (NOTHING, past),
    "tasks-with-sys-audit": (sees_tasks, past),
    "tasks-with-sys-audit-for-the-token-only": (partial(sees_tasks, who="token"), past),
    "foreign-task-without-sys-audit": (NOTHING, task(of_root)),
    "foreign-task-with-sys-audit": (sees_tasks, task(of_root)),
    "start-task-log": (NOTHING, log(started(CT, 5.0))),
    "foreign-task-log-without-sys-audit": (NOTHING, log(of_root)),
    "foreign-task-log-with-sys-audit": (sees_tasks, log(of_root)),
    "active-without-sys-audit": (saved, active),
    "active-with-sys-audit": (both(saved, sees_tasks), active),
    "task-of-a-killed-worker": (both(killed, sees_tasks), task(newest)),
    "task-unknown": (NOTHING, task(lambda world: NEVER)),
    "config-not-granted": (NOTHING, config(OTHER)),
    "snapshots": (lambda world: world.snapshot(101, "pre1"), snapshots(CT)),
    "snapshots-after-a-killed-backup": (killed, snapshots(CT)),
    "config-restored": (restored, config(GuestId(GuestKind.LXC, 990004))),
    "destroy-not-granted": (granted(), destroy(SCRATCH)),
    "destroy-granted-to-the-token-only": (granted(*ROLE, who="token"), destroy(SCRATCH)),
    "destroy-granted-to-the-user-only": (granted(*ROLE, who="user"), destroy(SCRATCH)),
    "destroy-without-vm-allocate": (granted(*(name for name in ROLE if name != "VM.Allocate")), destroy(SCRATCH)),
    "destroy-no-such-guest": (NOTHING, destroy(GuestId(GuestKind.LXC, 990005))),
    "destroy-no-such-guest-not-granted": (NOTHING, destroy(GuestId(GuestKind.LXC, 777))),
    "destroy-running": (partial(running, vmid=990000), destroy(SCRATCH)),
    "destroy-locked": (partial(locked, vmid=990000), destroy(SCRATCH)),
    "destroy-protected": (with_trait("protection"), destroy(SCRATCH)),
    "destroy": (NOTHING, destroy(SCRATCH)),
    "destroy-task-at-the-end": (NOTHING, task(destroyed(SCRATCH))),
    "destroy-again": (destroyed(SCRATCH), destroy(SCRATCH)),
    "destroy-after-a-new-restore": (both(destroyed(SCRATCH), scratch(990000)), destroy(SCRATCH)),
    "destroy-granted-on-all-guests": (granted_on_all_guests, destroy(SCRATCH)),
    "destroy-in-a-pool": (scratch(990001, pool="guestward"), destroy(GuestId(GuestKind.LXC, 990001))),
    "destroy-vm": (scratch(990002, "qemu"), destroy(SCRATCH_VM)),
    "destroy-vm-task-at-the-end": (scratch(990002, "qemu"), task(destroyed(SCRATCH_VM))),
    "destroy-of-the-wrong-kind": (a_vm_of_the_band, destroy(GuestId(GuestKind.LXC, 990003))),
    "destroy-with-purge": (scratch(990004), destroy(GuestId(GuestKind.LXC, 990004))),
    "stop-while-stopped": (NOTHING, stop(CT)),
    "stop": (scratch(990004, running=True), stop(GuestId(GuestKind.LXC, 990004))),
    "stop-vm": (partial(running, vmid=200), stop(VM)),
    "storages-without-datastore-audit": (NOTHING, storages),
    "volumes": (lambda world: world.acl.grant("Datastore.Audit", "/storage/local"), volumes(200)),
    "tasks-of-a-guest-without-sys-audit": (NOTHING, past_of),
    "tasks-of-a-guest-with-sys-audit": (sees_tasks, past_of),
}


def fact(value: object) -> object:
    """What PVE decides in an answer: all but numbers that only identify, and moments."""
    if isinstance(value, Mapping):
        return {id: fact(row) for id, row in value.items()}
    if isinstance(value, tuple):
        rows: list[object] = [fact(row) for row in value]
        return sorted(rows, key=repr) if all(isinstance(row, Member) for row in value) else rows
    if isinstance(value, ListedGuest):
        return value.id, value.name, value.running, value.pid is None, value.up_since is None, value.lock, value.template
    if isinstance(value, LiveStatus):
        return value.running, value.pid is None, value.uptime > 0, value.lock, value.qmpstatus, value.ha_managed
    if isinstance(value, GuestConfig):
        return value.onboot, value.template, value.lock, value.startup, value.storages, value.identity != ""
    if isinstance(value, Task):
        return fact(value.upid), value.status, value.endtime is None
    if isinstance(value, Upid):
        return value.node, value.type, value.id, value.user
    assert isinstance(value, (Resources, Member, Ok, Running, Error, Unknown, str, bool)), value
    return value


def outcome(ask: Ask, pve: object) -> tuple[object, str]:
    """The answer's facts, or the kind of error with its status; and what the error says."""
    try:
        return fact(ask(pve)), ""
    except PveError as error:
        return (type(error), error.status), str(error)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("id", RECORDED["9.1"])
def test_call(version: str, id: str) -> None:
    recorded = RECORDED[version][id]
    prepare, ask = CASES[id]
    with replayed(recorded) as (client, asked):
        of_pve, said = outcome(ask, client)
    if (
        id not in ("unknown-node", *SIMPLIFIED)
        and "-task-" not in id
        and not id.endswith("-task")
        and not id.startswith(("task", "foreign"))
    ):
        assert asked == [recorded.path], "the client asks for something else than what was recorded"
    if id in SIMPLIFIED:
        assert recorded.words in said
    if SIMPLIFIED.get(id) == "node-name":
        assert of_pve == (PveRefused, 500)
        return
    world = host()
    if id.startswith("tasks-") or id.endswith("-guest-task") or id.endswith("-running-task"):
        history(recorded, foreign="without" in id or "only" in id)(world)
    prepare(world)
    of_sim, told = outcome(ask, SimPve(world))
    assert of_sim == of_pve
    if said and id not in SIMPLIFIED:
        assert recorded.words in said and recorded.words in told


@pytest.mark.parametrize("version", VERSIONS)
def test_all_versions_have_the_same_calls(version: str) -> None:
    assert RECORDED[version].keys() == CASES.keys()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("id", "guest"), [("start-no-such-guest-task", GONE), ("start-vm-while-running-task", VM)])
def test_what_the_task_of_such_a_start_says(version: str, id: str, guest: GuestId) -> None:
    """HTTP 200 and a UPID prove nothing (pve-facts, surprise 10)."""
    world = host()
    if guest == VM:
        running(world, 200)
    with replayed(RECORDED[version][id]) as (client, _):
        (recorded,) = client.past_tasks(deadline=1e9)
    upid = started(guest, 5.0)(world)
    assert SimPve(world).task(upid, deadline=1e9) == recorded.status
    assert fact(upid) == fact(recorded.upid)


OUTAGES = load("outages-9.1")


@pytest.mark.parametrize(("id", "status"), [("pvedaemon-down", 595), ("pmxcfs-down", 500)])
def test_outages(id: str, status: int) -> None:
    with replayed(OUTAGES[id]) as (client, _):
        of_pve, said = outcome(start(CT), client)
    world = host()
    world.api.fault("/", status)
    of_sim, _ = outcome(start(CT), SimPve(world))
    assert of_sim == of_pve == (PveAnswerLost if status == 595 else PveRefused, status)
    assert OUTAGES[id].words in said


def test_an_unprotected_call_needs_no_pvedaemon() -> None:
    """With nothing granted, so nothing is listed."""
    with replayed(OUTAGES["pvedaemon-down-resources"]) as (client, _):
        of_pve, _ = outcome(resources, client)
    world = World(token_id=TOKEN)
    world.api.fault("POST /", 595)
    assert outcome(resources, SimPve(world))[0] == of_pve


def test_without_pveproxy_nothing_is_asked() -> None:
    world = host()
    world.api.down()
    assert outcome(start(CT), SimPve(world))[0] == (PveUnreachable, 0)
    assert not world.tasks and not world.archive


def test_gone_and_forbidden_look_the_same_to_the_token() -> None:
    """C46: after a destroy the grant is gone too, so that a second request is refused as one for a guest that is still there."""
    said = {
        RECORDED[version][id].status
        for version in VERSIONS
        for id in ("destroy-again", "destroy-not-granted", "destroy-after-a-new-restore")
    }
    assert said == {"403 Permission check failed (/vms/990000, VM.Allocate)"}
    world = host()
    destroyed(SCRATCH)(world)
    assert 990000 not in world.guests and outcome(destroy(SCRATCH), SimPve(world))[0] == (PveRefused, 403)
    world.add(990000, pool=None, running=False)
    assert outcome(destroy(SCRATCH), SimPve(world))[0] == (PveRefused, 403)
    assert 990000 in world.guests


def test_what_a_destroy_takes_with_it() -> None:
    """The grants on its own path and its place in the pool, recorded in the same scenario; a grant on /vms stays."""
    world = host()
    world.add(990001, pool="guestward", running=False)
    world.acl.grant("Pool.Audit", "/pool/guestward")
    granted_on_all_guests(world)
    assert GuestId(GuestKind.LXC, 990001) in [member.id for member in SimPve(world).members("guestward", deadline=1e9)]
    for vmid in (990000, 990001):
        destroyed(GuestId(GuestKind.LXC, vmid))(world)
    held = SimPve(world).privileges(deadline=1e9)
    assert "/vms/990001" not in held and "VM.Allocate" in held["/vms"]
    assert [member.id for member in SimPve(world).members("guestward", deadline=1e9)] == [CT, VM]
