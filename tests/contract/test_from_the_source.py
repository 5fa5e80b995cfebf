"""What no recording shows and pve-facts has from PVE's own code: starts, stops and boots of guests in unusual states."""

from __future__ import annotations

import pytest

from guestward.model.guest import GuestId, GuestKind
from guestward.model.task import Error, Ok, TaskStatus
from guestward.sim.doors import SimPve
from guestward.sim.run import Simulation
from guestward.sim.world import World
from tests.contract.steps import do, unwatched

VM = GuestId(GuestKind.QEMU, 200)


def host(version: str = "9.1", **values: object) -> Simulation:
    """A node with VM 200 and without an agent."""
    world = World(version=version)
    world.add(200, "qemu", **values)
    return unwatched(world)


def asked(sim: Simulation) -> TaskStatus:
    """What becomes of a start by the agent."""
    pve = SimPve(sim.world)
    upid = pve.start(VM, deadline=1e9)
    do(sim, 5.0)
    return pve.task(upid, deadline=1e9)


def ended(sim: Simulation) -> list[tuple[str, str, str | None]]:
    """Tasks that have ended, oldest first."""
    return [(task.upid.type, task.upid.user, task.said) for task in reversed(sim.world.archive)]


# ---------------------------------------------------------------------------------------------------- pve-facts B1, B2


@pytest.mark.parametrize("by_agent", [True, False])
def test_a_vm_that_was_suspended_to_disk_is_resumed(by_agent: bool) -> None:
    sim = host(running=False, lock="suspended")
    if by_agent:
        assert asked(sim) == Ok()
    else:
        do(sim, "start 200")
    assert sim.world.guests[200].running and sim.world.guests[200].lock is None


def test_it_is_resumed_when_the_host_boots() -> None:
    sim = host(running=False, lock="suspended")
    do(sim, "host booting", "host up", 60.0)
    assert sim.world.guests[200].running and sim.world.guests[200].lock is None


@pytest.mark.parametrize(("kind", "lock"), [("lxc", "suspended"), ("qemu", "mounted"), ("qemu", "suspending")])
def test_any_other_lock_is_in_the_way(kind: str, lock: str) -> None:
    world = World()
    world.add(101, kind, running=False, lock=lock)
    world.start(101)
    assert not world.guests[101].running and world.archive[0].said == f"{world.guests[101].noun} is locked ({lock})"


@pytest.mark.parametrize("state", ["running", "paused", "prelaunch", "shutdown"])
def test_a_start_of_a_vm_that_is_being_saved_resumes_it(state: str) -> None:
    sim = host(lock="backup", qmp=state)
    assert asked(sim) == Ok() and sim.world.guests[200].qmp == "running"


def test_a_start_of_any_other_vm_that_runs_fails() -> None:
    sim = host(qmp="paused")
    assert asked(sim) == Error("VM 200 already running") and sim.world.guests[200].qmp == "paused"


# ---------------------------------------------------------------------------------------------------- pve-facts C4


@pytest.mark.parametrize("over", ["backup end", "backup kill", "host stopping"])
def test_a_vm_that_powers_off_while_it_is_saved_stays_until_that_is_over(over: str) -> None:
    sim = host()
    do(sim, "backup begin snapshot 200", 5.0, "die 200", 5.0)
    live = SimPve(sim.world).live(VM, deadline=1e9)
    assert (live.running, live.qmpstatus) == (True, "shutdown")
    do(sim, over, 0.0)
    assert not sim.world.guests[200].running and "qmstop" not in [type for type, _, _ in ended(sim)]


def test_it_runs_on_when_it_was_started_meanwhile() -> None:
    sim = host()
    do(sim, "backup begin snapshot 200", 5.0, "die 200", 5.0, "start 200", 5.0, "backup end", 5.0)
    assert sim.world.guests[200].running and sim.world.guests[200].qmp == "running"
    assert ended(sim) == [("qmstart", "root@pam", "OK"), ("vzdump", "root@pam", "OK")]


# ---------------------------------------------------------------------------------------------------- pve-facts D3, G, H


def test_a_stop_of_a_guest_that_ha_manages_is_ha_s() -> None:
    sim = host(ha=("started",))
    do(sim, "stop 200 by name@pve")
    assert ended(sim) == [("hastop", "name@pve", "OK"), ("qmstop", "root@pam", "OK")] and sim.world.guests[200].ha == ("stopped",)
    sim = host(ha=("ignored",))
    do(sim, "stop 200")
    assert ended(sim) == [("qmstop", "root@pam", "OK")] and sim.world.guests[200].ha == ("ignored",)


@pytest.mark.parametrize(("version", "seconds"), [("8.4", [1, 2, 7, 8, 9]), ("9.1", [1, 2, 7, 8, 9]), ("9.1.2", [1, 1, 5, 6, 6])])
def test_newer_versions_start_several_of_an_order_at_once(version: str, seconds: list[int]) -> None:
    """And wait for all of an order before the next; `up` counts from the beginning of a start then."""
    world = World(version=version)
    for vmid, startup in ((101, "order=1"), (102, "order=1,up=4"), (103, "order=1"), (104, ""), (105, "")):
        world.add(vmid, running=False, startup=startup)
    world.phases.enter("booting")
    world.phases.enter("up")
    world.advance(60.0)
    assert [world.guests[vmid].since for vmid in (101, 102, 103, 104, 105)] == seconds and world.phases.phase == "up"


@pytest.mark.parametrize(("length", "lock"), [(5.0, None), (60.0, "backup")])
def test_startall_takes_no_lock_from_a_vzdump_that_runs(length: float, lock: str | None) -> None:
    """It waits 10 s for its flock, and goes on without."""
    sim = host()
    sim.world.add(101, running=False, onboot=False, lock="backup")
    do(sim, "host booting", "backup begin snapshot 200", 1.0, "host up", length)
    assert sim.world.guests[200].lock == "backup" and sim.world.guests[101].lock == "backup"
    do(sim, "backup end", 30.0)
    assert sim.world.guests[101].lock == lock and sim.world.phases.phase == "up"


def test_a_clean_reboot_stops_the_agent_first() -> None:
    sim = Simulation(World())
    sim.world.add(101)
    sim.run(100.0)
    sim.host("reboot")
    sim.run(200.0)
    assert [entry.event for entry in sim.events("daemon_started", "daemon_stopping")] == [
        "daemon_started",
        "daemon_stopping",
        "daemon_started",
    ]
    sim.kill()
    sim.host("reboot")
    assert len(sim.events("daemon_stopping")) == 1
