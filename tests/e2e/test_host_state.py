"""The host gate as the process sees it: boot, shutdown, quorum, maintenance, mass stop."""

from __future__ import annotations

import pytest

from .agent import has
from .side_by_side import Stage, scenario


@scenario
def test_while_the_host_boots_pve_starts_its_guests_and_not_the_agent(stage: Stage) -> None:
    """C15: what pve-guests starts is not ours, what it leaves down is."""
    host = stage.host
    host.add_guest(101, status="stopped", start_takes=0.1)
    host.boot_phase("booting")
    agent = stage.agent()
    agent.wait_for("host_gate_closed", reasons=["booting"])
    agent.wait_for("guest_down", vmid=101, guard="host_gate")
    agent.sweeps(2)
    assert host.effects() == []
    host.boot_phase("up")
    agent.wait_for("host_gate_opened")
    agent.wait_for("guest_up", vmid=101)
    assert host.effects() == []
    host.die(101)
    agent.wait_for("start_result", outcome="started")


@scenario
def test_a_power_cut_forgets_every_history(stage: Stage) -> None:
    """A guest that was given up has all its attempts again in the next boot."""
    host = stage.host
    host.add_guest(101, status="stopped", start=["fail: no space left"], start_takes=0.1)
    agent = stage.agent(watchdog={"attempts": 1})
    agent.wait_for("given_up")
    agent.kill9()
    host.reboot_host()
    host.plan(101, "ok")
    agent.start()
    agent.wait_for("host_gate_closed", reasons=["booting"])
    host._do(setattr, host._world, "phase", "failed")  # pve-guests started nothing
    agent.wait_for("host_warning")
    assert agent.wait_for("start_result", outcome="started")["attempt"] == 1


@pytest.mark.parametrize("reason", ["stopping", "no_quorum", "maintenance", "bulk_task"])
@scenario
def test_nothing_is_started_until_the_gate_opens(stage: Stage, reason: str) -> None:
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    agent = stage.agent(watchdog={"heartbeat_every": 2})
    close, open_ = {
        "stopping": (lambda: host.boot_phase("stopping"), lambda: host._do(setattr, host._world, "phase", "up")),
        "no_quorum": (lambda: host.quorum(False), lambda: host.quorum(True)),
        "maintenance": (lambda: host.maintenance(True), lambda: host.maintenance(False)),
        "bulk_task": (lambda: host.task_begin("stopall"), lambda: host.task_end("stopall")),
    }[reason]
    close()
    agent.wait_for("host_gate_closed", reasons=[reason], level="info")
    host.die(101)
    agent.wait_for("guest_down", vmid=101, guard="host_gate")
    mark = agent.mark
    agent.sweeps(3)
    assert host.effects() == [] and agent.metrics()[f'host_gate{{reason="{reason}"}}'] == 1
    assert agent.wait_for("heartbeat", after=mark)["host_gate"] == [reason]  # it saw everything, so it counts
    assert has(reason)(agent.cli("status").out)
    open_()
    agent.wait_for("host_gate_opened")
    assert agent.wait_for("start_result", outcome="started")["attempt"] == 1
    assert len(agent.events("host_gate_closed")) == 1


@scenario
def test_three_guests_stopped_by_others_at_once_are_left_alone(stage: Stage) -> None:
    """C14: a UPS script, a staged shutdown."""
    host = stage.host
    for vmid in (101, 102, 103):
        host.add_guest(vmid, start_takes=0.1)
    agent = stage.agent(watchdog={"confirm": "5s"})
    for vmid in (101, 102, 103):
        host.stop(vmid)
    agent.wait_for("host_gate_closed", reasons=["mass_stop"], level="warn")
    agent.sweeps(7)
    assert host.effects() == []
    agent.restart()
    agent.wait_for("daemon_started", after=agent.mark - 1)
    agent.sweeps(3)
    assert host.effects() == []
