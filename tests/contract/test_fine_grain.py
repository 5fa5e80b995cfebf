"""The real watchdog on a host that shows, for moments, what a real one shows: it copes, whenever these moments are."""

from __future__ import annotations

import pytest

from guestward.sim.run import Simulation
from guestward.sim.world import World
from tests.unit.build import down

BOUND = 95.0
OFFSETS = [step / 20 for step in range(-6, 7)]


def simulation() -> Simulation:
    sim = Simulation(World())
    sim.world.fine_grained = True
    return sim


def outcomes(sim: Simulation) -> list[object]:
    assert sim.violation is None
    return [entry.fields["outcome"] for entry in sim.events("start_result")]


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_container_that_dies_while_the_list_is_read_hides_nobody_for_long(offset: float) -> None:
    """timelines 2, 6c: status 500 for the whole list, so it is read again after a second."""
    sim = simulation()
    sim.world.add(101)
    down(sim, 102, 60.0 + offset)
    sim.run(400)
    assert not sim.events("sweep_aborted", "sweep_incomplete")
    reads = [call.t for call in sim.pve.calls if call.route == "GET /nodes/pve1/lxc" and 59 < call.t < 62]
    assert reads == ([60.0, 61.0] if -0.1 < offset <= 0 else [60.0])
    assert [vmid for vmid in (101, 102) if sim.starts(vmid)] == [102]
    (sent,) = sim.starts(102)
    assert sent - (60.0 + offset) <= BOUND and outcomes(sim) == ["started"]


@pytest.mark.parametrize("begin", [float(tenth) / 5 for tenth in range(288, 303)])
@pytest.mark.parametrize("how", ["inside", "api"])
def test_a_reboot_is_nobody_s_business(how: str, begin: float) -> None:
    """timelines 2: half a second without an answer or a pid, a second of stopped and unlocked, and no task from inside."""
    sim = simulation()
    sim.world.add(101)
    sim.world.at(begin, lambda: sim.world.reboot(101, how))
    sim.run(400)
    assert outcomes(sim) == [] == sim.starts() and sim.world.guests[101].running
    assert not sim.events("sweep_aborted", "not_working")


@pytest.mark.parametrize("takes", [0.5, 1.0, 29.9, 29.95, 30.0, 30.05, 30.1, 59.95, 60.0, 60.05])
def test_a_start_that_fails_in_the_hook_is_not_taken_for_running(takes: float) -> None:
    """timelines 5a: it seems to run for 0.1 s, without a pid; that ends no history, at whatever moment a sweep looks."""
    sim = simulation()
    down(sim, 101, 30.0, start=("fail: storage 'nas' is not online", "ok"), start_takes=takes)
    sim.run(900)
    assert outcomes(sim) == ["failed", "started"]
    assert [entry.fields["attempt"] for entry in sim.events("start_attempt")] == [1, 2]
    first, second = sim.starts()
    assert second - (first + takes) >= 60.0


def test_the_incident() -> None:
    """timelines 5a: rebooted within its backup a container stays down, and is started once the backup is over."""
    sim = simulation()
    sim.world.add(101)
    sim.world.at(65, lambda: sim.world.backup_begin(101))
    sim.world.at(75, lambda: sim.world.reboot(101))
    sim.world.at(95, lambda: sim.world.backup_end(101))
    sim.run(400)
    (sent,) = sim.starts()
    assert 95 < sent <= 95 + BOUND and outcomes(sim) == ["started"]


@pytest.mark.parametrize("offset", OFFSETS)
def test_stop_mode_is_left_to_vzdump(offset: float) -> None:
    """timelines 3b: stopped and unlocked for 0.9 s, then vzdump's own start, without a task."""
    sim = simulation()
    sim.world.add(101)
    sim.world.at(20, lambda: sim.world.backup_begin(101, mode="stop"))
    sim.world.at(119.5 + offset, lambda: sim.world.backup_end(101))
    sim.run(400)
    assert outcomes(sim) == [] == sim.starts() and sim.world.guests[101].running
