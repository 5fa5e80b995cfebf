"""The agent process keeps guests up: crashes, backups, attempts, who stopped what."""

from __future__ import annotations

from .agent import has
from .side_by_side import Stage, scenario


@scenario
def test_a_guest_that_crashes_is_started_once_and_seen_running(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, name="web", start_takes=0.1)
    agent = stage.agent()
    host.die(101)
    down = agent.wait_for("guest_down", vmid=101)
    assert (down["guard"], down["level"]) == ("unconfirmed", "info")
    attempt = agent.wait_for("start_attempt", vmid=101, attempt=1)
    assert "no stop task found" in attempt["cause"]
    result = agent.wait_for("start_result", vmid=101)
    assert (result["outcome"], result["level"], result["kind"], result["name"]) == ("started", "info", "lxc", "web")
    assert result["upid"] == attempt["upid"] and 0 <= result["down_s"] <= 10
    agent.sweeps(2)
    assert host.effects() == [("start", 101)]
    seen = agent.metrics()
    assert seen['start_attempts_total{id="lxc/101",outcome="started"}'] == 1
    assert seen['guest_up{id="lxc/101"}'] == 1 and seen["recovery_seconds_count"] == 1


@scenario
def test_incident_1_a_container_that_reboots_inside_its_backup_comes_back(stage: Stage) -> None:
    """Timelines 5a: lock for the rest of the backup, no task, vzdump ends OK, and nobody else starts it."""
    host = stage.host
    host.add_guest(110, name="mail", start_takes=0.1)
    agent = stage.agent()
    upid = host.backup_begin(110, "snapshot")
    agent.sweeps(1)
    host.reboot(110)
    waits = agent.wait_for("guest_down", vmid=110)
    assert waits["guard"] in ("locked", "backup")
    agent.sweeps(2)
    assert host.effects() == [] and host.guest(110)["status"] == "stopped"
    host.backup_end()
    assert host._world.tasks[upid].exitstatus == "OK"
    result = agent.wait_for("start_result", vmid=110)
    assert result["outcome"] == "started"
    agent.sweeps(2)
    assert host.effects() == [("start", 110)] and host.guest(110)["status"] == "running"
    assert len(agent.events("start_attempt")) == 1
    assert has("no stop task found")(agent.events("start_attempt")[0]["cause"])


@scenario
def test_a_deliberate_stop_without_onboot_stays_down(stage: Stage) -> None:
    host = stage.host
    host.add_guest(102, onboot=False)
    host.add_guest(103, "qemu", start_takes=0.1)
    agent = stage.agent()
    host.stop(102)
    host.die(103)
    agent.wait_for("start_result", vmid=103, outcome="started")
    agent.sweeps(3)
    assert host.effects() == [("start", 103)] and host.guest(102)["status"] == "stopped"
    assert [e["guard"] for e in agent.events("guest_down", vmid=102)] == ["onboot_off"]
    assert agent.metrics()['guest_guard{guard="onboot_off",id="lxc/102"}'] == 1


@scenario
def test_the_one_who_stopped_it_is_named_in_the_start(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    agent = stage.agent()
    host.stop(101, by="root@pam")
    assert has("vzstop", "root@pam")(agent.wait_for("start_attempt", vmid=101)["cause"])
    agent.wait_for("start_result", outcome="started")
    agent.sweeps(1)
    mark = agent.mark
    host.stop(101, by="alice@pve!terraform")
    assert has("alice@pve!terraform")(agent.wait_for("start_attempt", after=mark, vmid=101)["cause"])


@scenario
def test_three_failures_are_one_error_and_rearm_brings_it_back(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, "qemu", name="db", start=["fail: no space left on device"], start_takes=0.1)
    agent = stage.agent()
    host.die(101)
    given_up = agent.wait_for("given_up", vmid=101)
    assert given_up["level"] == "error" and given_up["attempts"] == 3 and has("no space left")(given_up["reason"])
    agent.sweeps(3)
    assert host.effects() == [("start", 101)] * 3
    results = agent.events("start_result")
    assert [(r["attempt"], r["outcome"], r["level"]) for r in results] == [(n, "failed", "warn") for n in (1, 2, 3)]
    assert [e["event"] for e in agent.events(level="error")] == ["given_up"]
    status = agent.cli("status", "--output", "json")
    guest = status.data["guests"][0]
    assert (status.code, guest["guard"], guest["attempts"], guest["given_up"]) == (0, "exhausted", 3, True)
    assert agent.metrics()['guest_given_up{id="qemu/101"}'] == 1

    agent.restart()  # hands out no fresh attempts (C08)
    agent.wait_for("daemon_started", after=agent.mark - 1)
    agent.sweeps(3)
    assert host.effects() == [("start", 101)] * 3 and len(agent.events("given_up")) == 1

    host.plan(101, "ok")
    assert agent.cli("rearm", "101").code == 0
    assert agent.wait_for("rearmed", vmid=101)["reason"] == "by an operator"
    assert agent.wait_for("start_result", outcome="started")["attempt"] == 1
    agent.sweeps(1)
    assert host.effects() == [("start", 101)] * 4
    assert agent.metrics()['guest_given_up{id="qemu/101"}'] == 0


@scenario
def test_holds_of_guest_and_node_survive_a_restart_and_end_with_release(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    host.add_guest(102, start_takes=0.1)
    agent = stage.agent()
    assert agent.cli("hold", "101", "--for", "1h", "--reason", "disk swap", environ={"SUDO_USER": "alice"}).code == 0
    held = agent.wait_for("held", scope="101")
    assert has("alice")(held["by"]) and held["reason"] == "disk swap"
    host.die(101)
    agent.wait_for("guest_down", vmid=101, guard="held")
    agent.restart()
    agent.sweeps(2)
    assert host.effects() == []
    assert agent.metrics()['hold_active{id="lxc/101"}'] == 1
    assert agent.cli("release", "101").code == 0
    agent.wait_for("released", scope="101")
    agent.wait_for("start_result", vmid=101, outcome="started")

    assert agent.cli("hold", "--for", "1h", "--reason", "UPS").code == 0
    agent.wait_for("host_gate_closed", reasons=["hold"])
    host.die(102)
    agent.wait_for("guest_down", vmid=102, guard="host_gate")
    agent.restart()
    agent.sweeps(2)
    assert host.effects() == [("start", 101)]
    shown = agent.cli("status", "--output", "json").data
    assert [h["scope"] for h in shown["holds"]] == ["node"] and shown["host_gate"][0]["reason"] == "hold"
    assert agent.cli("release").code == 0
    agent.wait_for("host_gate_opened")
    agent.wait_for("start_result", vmid=102, outcome="started")


@scenario
def test_the_hold_file_that_a_ups_script_touches_holds_the_node(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    agent = stage.agent()
    hold = host.root / "etc/guestward/hold"
    hold.touch()
    agent.wait_for("host_gate_closed", reasons=["hold"])
    host.die(101)
    agent.wait_for("guest_down", vmid=101, guard="host_gate")
    agent.restart()
    agent.sweeps(3)
    assert host.effects() == []
    hold.unlink()
    agent.wait_for("host_gate_opened")
    agent.wait_for("start_result", outcome="started")


@scenario
def test_the_heartbeat_tells_what_was_seen_and_only_complete_sweeps_count(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, name="web")
    host.add_guest(102, name="lab", onboot=False, status="stopped")
    host.add_guest(103, name="foreign", pool=None)
    agent = stage.agent(watchdog={"heartbeat_every": 3})
    beat = agent.wait_for("heartbeat")
    assert (beat["sweeps_since_boot"], beat["guests_evaluated"], beat["currently_stopped"]) == (3, 2, 1)
    assert beat["left_down"] == [{"id": "lxc/102", "name": "lab", "guard": "onboot_off"}] and beat["host_gate"] == []
    assert agent.wait_for("heartbeat", sweeps_since_boot=6)["level"] == "info"
    host.fault("GET /nodes/pve1/lxc", 500)
    agent.wait_for("sweep_aborted")
    aborted = agent.mark
    agent.sweeps(4, "aborted")
    assert agent.events("heartbeat", after=aborted) == []
    complete = agent.swept("complete")
    host.clear_faults()
    beat = agent.wait_for("heartbeat", after=aborted)
    assert beat["sweeps_since_boot"] == (complete // 3 + 1) * 3
    assert len(agent.events("heartbeat")) == beat["sweeps_since_boot"] // 3


@scenario
def test_a_healthy_host_is_quiet(stage: Stage) -> None:
    """Never a line a sweep."""
    stage.host.add_guest(101)
    agent = stage.agent()
    agent.sweeps(5)
    assert [record["event"] for record in agent.records] == ["daemon_started"]
    assert all(value == 0 for name, value in agent.metrics().items() if name.startswith("host_gate"))
    assert {method for method, _ in stage.host.requests_seen()} == {"GET"}
