"""Whose guest it is, and who else looks after it: what is not the agent's business is left alone."""

from __future__ import annotations

from .agent import has
from .side_by_side import Stage, scenario


@scenario
def test_guests_that_leave_are_forgotten_once_and_never_started(stage: Stage) -> None:
    host = stage.host
    for vmid in (101, 102, 103, 104):
        host.add_guest(vmid, start_takes=0.1)
    agent = stage.agent()
    host.leave_pool(101)
    host.migrate(102, "away")
    host.destroy(103)
    reasons = {vmid: agent.wait_for("guest_forgotten", vmid=vmid)["reason"] for vmid in (101, 102, 103)}
    assert has("left the pool")(reasons[101]) and has("pve2")(reasons[102]) and has("destroyed")(reasons[103])
    host.die(101)
    host.die(102)
    agent.sweeps(3)
    assert host.effects() == [] and len(agent.events("guest_forgotten")) == 3 and agent.swept("aborted") == 0

    host.migrate(102, "here")  # it ran here before, so it is not new
    host.join_pool(101)
    for vmid in (101, 102):
        assert agent.wait_for("start_result", vmid=vmid)["outcome"] == "started"
    assert sorted(host.effects()) == [("start", 101), ("start", 102)]


@scenario
def test_another_guest_with_the_same_vmid_is_not_started_before_it_ran_here(stage: Stage) -> None:
    """A restore brings `onboot` with it, and nobody has looked at the guest yet."""
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    host.add_guest(105)
    agent = stage.agent()
    host.destroy(101)
    agent.wait_for("guest_forgotten", vmid=101)
    host.create(101, "lxc", how="restore", onboot=True)
    host.join_pool(101)
    agent.wait_for("guest_down", vmid=101, guard="new_here")
    agent.restart()
    agent.sweeps(3)
    assert host.effects() == []
    host.start(101)
    agent.wait_for("guest_up", vmid=101)
    agent.sweeps(1)
    host.die(101)
    assert agent.wait_for("start_result", vmid=101)["outcome"] == "started"


@scenario
def test_ha_scratch_templates_locks_and_excluded_guests_are_left_alone(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    host.add_guest(102, ha="started", status="stopped")
    host.add_guest(103, ha=None, status="stopped")
    host.ha(103, None)  # a resource without a requested state: `hastate: null`
    host.add_guest(104, lock="snapshot", status="stopped")
    host.add_guest(105, status="stopped", template=True)
    host.add_guest(106, status="stopped")
    host.add_guest(107, status="stopped", pool=None)
    host.add_guest(990001, status="stopped")
    agent = stage.agent(scope={"exclude": [106]})
    host.die(101)
    agent.wait_for("start_result", vmid=101, outcome="started")
    agent.sweeps(3)
    assert host.effects() == [("start", 101)]
    guards = {guest["vmid"]: guest["guard"] for guest in agent.cli("status", "--output", "json").data["guests"]}
    assert guards.items() >= {102: "ha", 103: "ha", 104: "locked"}.items()
    host.unlock(104)
    host.ha(103, "off")
    for vmid in (103, 104):
        agent.wait_for("start_result", vmid=vmid, outcome="started")
    assert sorted(host.effects()) == [("start", 101), ("start", 103), ("start", 104)]


@scenario
def test_the_last_look_before_a_start_that_fails_puts_the_start_off(stage: Stage) -> None:
    """I12: nothing is sent on the strength of an older look."""
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    host.add_guest(102, start_takes=0.1)
    agent = stage.agent()
    host.fault("GET /nodes/pve1/lxc/101/status/current", 500, message="got timeout")
    host.die(101)
    waits = agent.wait_for("guest_waiting", vmid=101, guard="unreadable")
    assert has("got timeout")(waits["evidence"])
    agent.sweeps(3)
    assert host.effects() == []
    host.die(102)  # one guest that cannot be read does not keep the others down (C28)
    agent.wait_for("start_result", vmid=102, outcome="started")
    host.clear_faults()
    agent.wait_for("start_result", vmid=101, outcome="started")
    assert len(agent.events("guest_waiting", vmid=101, guard="unreadable")) == 1


@scenario
def test_a_guest_whose_configuration_cannot_be_read_is_left_alone_and_the_others_are_served(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    host.add_guest(102, start_takes=0.1)
    agent = stage.agent(watchdog={"heartbeat_every": 1})
    host.fault("GET /nodes/pve1/lxc/101/config", 500, message="unable to read")
    host.die(101)
    host.die(102)
    agent.wait_for("guest_down", vmid=101, guard="unreadable")
    agent.wait_for("start_result", vmid=102, outcome="started")
    blind = agent.mark
    agent.sweeps(3, "incomplete")
    assert agent.events("heartbeat", after=blind) == [] and len(agent.events("sweep_incomplete")) == 1
    assert host.effects() == [("start", 102)]
    host.clear_faults()
    agent.wait_for("sweep_resumed")
    agent.wait_for("start_result", vmid=101, outcome="started")


@scenario
def test_a_guest_that_hangs_in_one_call_does_not_keep_others_down(stage: Stage) -> None:
    """C28: the storage of one guest hangs, and every call that touches it."""
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    host.add_guest(102, start_takes=0.1)
    agent = stage.agent(pve={"timeout": "1s"})
    host.fault("GET /nodes/pve1/lxc/101", kind="hang")
    host.die(101)
    host.die(102)
    agent.wait_for("start_result", vmid=102, outcome="started")
    assert host.effects() == [("start", 102)]
    host.clear_faults()
    agent.wait_for("start_result", vmid=101, outcome="started")
