"""The agent process and the real root helper clear what a dead vzdump left, and nothing else."""

from __future__ import annotations

import time

import pytest

from guestward.demo.pvehost import PveHost

from .agent import Agent, has, wait_until
from .side_by_side import Stage, scenario

STEPS = ("lock_stale", "unlocked", "snapshot_deleted", "start_result")
DONE = ["pct unlock 110", "pct delsnapshot 110 vzdump"]


def killed_backup(host: PveHost, vmid: int = 110, archive_seconds: float = 0) -> None:
    """Incident 2: a container goes down in its backup, and then the vzdump dies: lock, snapshot, pid file and a dead task stay."""
    host.backup_begin(vmid)
    if host.guest(vmid)["snapshots"] == ["vzdump"]:
        host.die(vmid)
    host.backup_kill(archive_seconds)


def recovering(stage: Stage, **locks: object) -> Agent:
    return stage.agent(locks={"confirm": "1s", **locks})


def assert_recovered(host: PveHost) -> None:
    """Each step was done once, whatever was killed meanwhile."""
    guest = host.guest(110)
    assert (guest["status"], guest["lock"], guest["snapshots"]) == ("running", None, [])
    assert host.programs_run() == DONE and host.effects() == [("start", 110)]


def assert_told_in_order(agent: Agent) -> None:
    told = [record["event"] for record in agent.records if record.get("event") in STEPS]
    assert told == list(STEPS), "in order, and nothing twice"


@scenario
def test_incident_2_a_killed_backup_is_cleared_step_by_step(stage: Stage) -> None:
    host = stage.host
    host.add_guest(110, name="mail", start_takes=0.1)
    host.add_guest(111, "qemu", name="db")
    agent = recovering(stage)
    killed_backup(host, archive_seconds=4)
    agent.wait_for("guest_down", vmid=110, guard="locked")
    shown = agent.cli("locks", "--output", "json")

    # An archive process outlives the vzdump that began it: nothing is done while it is there.
    assert host.programs_run() == []
    (lock,) = shown.data["locks"]
    assert (shown.code, lock["id"], lock["lock"], lock["verdict"], lock["owner"]) == (0, "lxc/110", "backup", "owned", "a backup")
    assert has("archive")(lock["evidence"]) and lock["proof"][-1]["ok"] is False

    stale = agent.wait_for("lock_stale", vmid=110)
    assert (stale["level"], stale["lock"], stale["name"], stale["guard"]) == ("warn", "backup", "mail", "locked")
    assert has("unexpected status")(stale["evidence"])
    assert agent.wait_for("unlocked", vmid=110)["lock"] == "backup"
    agent.wait_for("snapshot_deleted", vmid=110)
    assert agent.wait_for("start_result", vmid=110)["outcome"] == "started"
    agent.sweeps(2)
    assert_recovered(host)
    assert_told_in_order(agent)
    assert [record["code"] for record in host.helper_log() if record["event"] == "helper_answer"] == ["ok", "ok"]
    assert agent.events(level="error") == []
    assert agent.cli("locks", "--output", "json").data["locks"] == []
    assert not [name for name in agent.metrics() if name.startswith(("guest_locked", "guest_lock_verdict"))]


@scenario
def test_a_vm_under_a_stale_lock_is_unlocked_and_goes_on(stage: Stage) -> None:
    """It runs all the time; its snapshots are its owner's, whatever they are called."""
    host = stage.host
    host.add_guest(120, "qemu", name="db")
    host.snapshot(120, "vzdump")
    agent = recovering(stage)
    host.backup_begin(120)
    host.backup_kill()
    agent.wait_for("unlocked", vmid=120)
    agent.sweeps(2)
    guest = host.guest(120)
    assert (guest["status"], guest["lock"], guest["snapshots"]) == ("running", None, ["vzdump"])
    (ran,) = host.programs_run()
    assert ran.startswith("pvesh set /nodes/localhost/qemu/120/config --delete lock --skiplock 1 --digest ")
    assert host.effects() == [] and not agent.events("guest_down")
    assert agent.cli("locks", "--output", "json").data["locks"] == []
    assert not [name for name in agent.metrics() if name.startswith(("guest_locked", "guest_lock_verdict"))]


@scenario
def test_without_the_helper_locks_stay_and_that_is_said_once(stage: Stage) -> None:
    host = stage.host
    host.add_guest(110, name="mail", start_takes=0.1)
    host.add_guest(101, name="web", start_takes=0.1)
    host.helper(False)
    agent = recovering(stage)
    killed_backup(host)
    failed = agent.wait_for("helper_failed")
    assert failed["level"] == "error" and has("helper.sock", "No such file")(failed["reason"])
    agent.cli("rearm", "110")  # the next attempt at once, not a minute later
    agent.wait_for("rearmed", vmid=110)
    host.die(101)
    agent.wait_for("start_result", vmid=101, outcome="started")  # guests are guarded all the same
    agent.sweeps(2)
    assert len(agent.events("helper_failed")) == 1 and host.guest(110)["lock"] == "backup"
    host.helper(True)
    agent.cli("rearm", "110")
    agent.wait_for("helper_restored")
    agent.wait_for("start_result", vmid=110, outcome="started")
    assert host.programs_run() == DONE and len(agent.events("lock_stale")) == 1
    assert [event["event"] for event in agent.events(level="error")] == ["helper_failed"]


@scenario
def test_report_tells_what_is_stale_and_touches_nothing(stage: Stage) -> None:
    host = stage.host
    host.add_guest(110, name="mail", start_takes=0.1)
    agent = recovering(stage, recover="report")
    killed_backup(host)
    assert has("`report`")(agent.wait_for("lock_stale", vmid=110)["message"])
    agent.sweeps(3)
    assert (host.programs_run(), host.effects(), host.helper_log()) == ([], [], [])
    assert len(agent.events("lock_stale")) == 1 and host.guest(110)["lock"] == "backup"

    shown = agent.cli("locks", "--output", "json")
    (lock,) = shown.data["locks"]
    assert (shown.code, shown.data["recover"], lock["verdict"], lock["owner"]) == (0, "report", "stale", "nobody")
    assert all(check["ok"] for check in lock["proof"]) and has("report")(lock["next"])
    table, dry = agent.cli("locks"), agent.cli("locks", "--dry-run")
    assert (table.code, dry.code, table.err, dry.err) == (0, 0, "", "")
    assert has("lxc/110", "mail", "backup", "stale")(table.out) and "vzdump.lock not held" not in table.out
    assert has("unexpected status", "vzdump.lock not held", "seen twice")(dry.out)
    explained = agent.cli("explain", "110", "--output", "json").data
    assert (explained["guard"], explained["lock_proof"]["verdict"]) == ("locked", "stale")
    seen = agent.metrics()
    assert seen['guest_lock_verdict{id="lxc/110",verdict="stale"}'] == seen['guest_locked{id="lxc/110",kind="backup"}'] == 1
    assert 0 < seen['guest_locked_seconds{id="lxc/110",kind="backup"}'] < 120

    agent.configure(locks={"recover": "prove"})
    agent.hup()
    agent.wait_for("start_result", vmid=110, outcome="started")
    assert_recovered(host)
    assert_told_in_order(agent)


@scenario
def test_a_lock_set_by_hand_is_shown_and_never_cleared(stage: Stage) -> None:
    host = stage.host
    host.add_guest(110, name="mail")
    host.add_guest(111, name="web")
    agent = recovering(stage)
    host.lock(110, "backup")
    host.lock(111, "migrate")
    host.die(110)
    agent.wait_for("guest_down", vmid=110, guard="locked")
    agent.sweeps(4)
    assert (host.programs_run(), host.effects(), host.helper_log()) == ([], [], [])
    assert not agent.events("lock_stale") and host.guest(110)["lock"] == "backup"
    shown = {lock["id"]: lock for lock in agent.cli("locks", "--output", "json").data["locks"]}
    assert {id: (lock["verdict"], lock["owner"], lock["next"]) for id, lock in shown.items()} == {
        "lxc/110": ("no_trace", "unknown", None),
        "lxc/111": ("nobodys_business", "not asked", None),
    }
    assert agent.metrics()['guest_locked{id="lxc/111",kind="migrate"}'] == 1


@scenario
def test_a_delete_that_fails_does_not_keep_the_guest_down(stage: Stage) -> None:
    host = stage.host
    host.add_guest(110, name="mail", start_takes=0.1)
    host.program_fails("delsnapshot", "lvremove: Logical volume in use")
    agent = recovering(stage)
    killed_backup(host)
    failed = agent.wait_for("lock_step_failed", vmid=110)
    assert (failed["step"], failed["attempt"], failed["level"]) == ("delete-snapshot", 1, "error") and has("volume in use")(
        failed["reason"]
    )
    assert agent.wait_for("start_result", vmid=110)["outcome"] == "started"
    agent.sweeps(2)
    assert host.programs_run() == [*DONE, "pct unlock 110"] and host.effects() == [("start", 110)]
    assert host.guest(110)["lock"] is None and host.guest(110)["snapshots"] == ["vzdump"]
    assert len(agent.events("lock_step_failed")) == 1
    (left,) = agent.cli("locks", "--output", "json").data["locks"]
    assert (left["lock"], left["snapshot_only"]) == (None, True)


@pytest.mark.parametrize("after", ["lock_stale", "unlocked", "snapshot_deleted"])
@scenario
def test_killed_after_a_step_it_goes_on_from_there(stage: Stage, after: str) -> None:
    host = stage.host
    host.add_guest(110, name="mail", start_takes=0.1)
    agent = recovering(stage)
    killed_backup(host)
    agent.wait_for(after, vmid=110)
    killed = agent.mark
    agent.kill9()
    agent.start()
    if after == "lock_stale":  # perhaps it was written down that the helper is asked, and not asked any more: then it waits a minute
        wait_until(lambda: agent.events("lock_step_failed") or agent.events("unlocked"))
        agent.cli("rearm", "110")
    agent.wait_for("start_result", after=killed, vmid=110, outcome="started")
    assert_recovered(host)


@pytest.mark.parametrize("step", ["unlock", "delsnapshot"])
@scenario
def test_killed_while_the_helper_is_at_work_it_does_no_step_twice(stage: Stage, step: str) -> None:
    host = stage.host
    host.add_guest(110, name="mail", start_takes=0.1)
    agent = recovering(stage)
    if step == "unlock":
        host.helper_slow(3)
        killed_backup(host)
        agent.wait_for("lock_stale", vmid=110)
        time.sleep(0.3)  # the request is out, and the helper has not begun
    else:
        host.snapshot_deletion(3)
        killed_backup(host)
        wait_until(lambda: host.guest(110)["lock"] == "snapshot-delete")
    agent.kill9()
    agent.start()
    agent.wait_for("start_result", vmid=110, outcome="started")
    agent.wait_for("snapshot_deleted", vmid=110)
    assert_recovered(host)


@scenario
def test_what_was_left_before_the_agent_came_is_cleared_too(stage: Stage) -> None:
    """Nobody saw the lock begin: its file, and PVE's task that died, tell when."""
    host = stage.host
    host.add_guest(110, name="mail", start_takes=0.1)
    killed_backup(host)
    agent = recovering(stage)
    agent.wait_for("start_result", vmid=110, outcome="started")
    assert_recovered(host)
    assert_told_in_order(agent)
    assert has("unexpected status")(agent.events("lock_stale")[0]["evidence"])
