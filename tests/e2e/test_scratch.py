"""The agent process and the real root helper tear down what a restore test leaves, keep the grants for it, and touch nothing else."""

from __future__ import annotations

import re

import pytest

from guestward.demo.pvehost import PveHost
from guestward.policy.rights import SCRATCH

from .agent import Agent, has, wait_until
from .side_by_side import Stage, scenario

TESTER = "restic@pve!restore"
SLOT = 990003
BAND = range(990000, 990010)
SPARED = re.compile(r"/nodes/pve1/(?:lxc|qemu)/(\d+)")


def tearing_down(stage: Stage, **scratch: object) -> Agent:
    stage.host.add_grantee(TESTER)
    settings = {"origins": [TESTER], "grantees": [TESTER], "min_age": "2s", "interval": "1s", **scratch}
    return stage.agent(scratch=settings)


def changes(host: PveHost) -> list[tuple[str, str]]:
    """All requests that were not reads, whatever PVE said to them."""
    return [(method, path) for method, path in host.requests_seen() if method != "GET"]


def deletes(kind: str, *vmids: int) -> list[tuple[str, str]]:
    return [("DELETE", f"/nodes/pve1/{kind}/{vmid}?purge=1") for vmid in vmids]


def put_back(host: PveHost, *vmids: int) -> list[str]:
    """The helper's command for each of them, for us and for the restore tester."""
    lists = f"--users {host.token_id.partition('!')[0]},restic@pve --tokens {host.token_id},{TESTER}"
    return [f"pveum acl modify /vms/{vmid} {lists} --roles GuestwardScratch --propagate 1" for vmid in vmids]


def assert_granted(host: PveHost, vmid: int = SLOT) -> None:
    assert host.held(host.token_id, f"/vms/{vmid}") == host.held(TESTER, f"/vms/{vmid}") == set(SCRATCH)


def assert_only_the_band_was_changed(host: PveHost) -> None:
    """I8: no DELETE and no stop for any VMID outside of it."""
    for method, path in changes(host):
        found = SPARED.match(path)
        assert found is not None and (int(found[1]) in BAND or path.endswith("/status/start")), (method, path)


@pytest.mark.parametrize("kind", ["lxc", "qemu"])
@scenario
def test_incident_3_a_dead_restore_is_torn_down_and_the_slot_works_twice_over(stage: Stage, kind: str) -> None:
    host = stage.host
    host.add_guest(101, name="web")
    agent = tearing_down(stage)
    for disk in ("local-lvm:vm-990003-disk-0", "local-lvm:vm-990003-disk-1"):  # the first is still there at the second time
        after, before = agent.mark, len(host.programs_run())
        host.create(SLOT, kind, by=TESTER, how="restore", killed=True)
        found = agent.wait_for("scratch_found", after=after, vmid=SLOT)
        assert (found["level"], found["kind"], found["guard"]) == ("info", kind, "scratch_band")
        assert found["verdict"] in ("young", "leftover")  # two seconds may be over by then
        assert has(f"restore by {TESTER}")(found["evidence"])
        assert agent.wait_for("grant_restored", after=after)["path"] == f"/vms/{SLOT}"
        left = agent.wait_for("scratch_leftover", after=after, vmid=SLOT)
        assert left["level"] == "error" and disk in left["volumes"] and has(f"pvesm free {disk}")(left["message"])
        unlocked, *granted = host.programs_run()[before:]
        assert has(f"unlock {SLOT}" if kind == "lxc" else f"/{SLOT}/config --delete lock")(unlocked)
        assert granted == put_back(host, SLOT)
        assert_granted(host)
        assert disk in host.volumes(SLOT), "it is not the agent's to free"
    agent.sweeps(2)
    assert changes(host) == deletes(kind, SLOT, SLOT) and host.effects() == [("destroy", SLOT)] * 2
    told = [record["event"] for record in agent.records if record["event"].startswith(("scratch_", "grant_"))]
    assert told == ["scratch_found", "grant_restored", "scratch_leftover"] * 2
    assert agent.events(level="error") == agent.events("scratch_leftover")
    assert host.guest(101)["status"] == "running" and agent.metrics()["scratch_leftovers"] == 0
    assert has("no guest is in the band")(agent.cli("scratch", "list").out)


@scenario
def test_a_running_leftover_is_stopped_and_nothing_is_left_of_it(stage: Stage) -> None:
    host = stage.host
    agent = tearing_down(stage)
    host.create(SLOT, by=TESTER, how="restore", onboot=True)
    host.start(SLOT, by=TESTER)
    host.create(990009, "qemu", tags="nightly;guestward-scratch")
    host.start(990009)
    for vmid, evidence in ((SLOT, f"vzrestore by {TESTER}"), (990009, "tag guestward-scratch")):
        gone = agent.wait_for("scratch_destroyed", vmid=vmid)
        assert (gone["level"], gone["outcome"], gone["reason"]) == ("info", "gone", "") and has(evidence)(gone["evidence"])
        assert host.volumes(vmid) == []
    agent.sweeps(1)
    assert sorted(host.effects()) == [(verb, vmid) for verb in ("destroy", "stop") for vmid in (SLOT, 990009)]
    assert sorted(host.programs_run()) == put_back(host, SLOT, 990009)
    assert agent.events(level="error") == agent.events(level="warn") == []


@scenario
def test_foreign_guests_and_those_one_past_each_end_of_the_band_stay(stage: Stage) -> None:
    host = stage.host
    agent = tearing_down(stage)
    host.create(990001, by="root@pam")
    host.start(990001)
    for vmid in (989999, 990010):
        host.create(vmid, by=TESTER, how="restore", tags="guestward-scratch")
        host.start(vmid, by=TESTER)
    for vmid in (989998, 990011):
        host.create(vmid, by=TESTER, how="restore", killed=True)
    refused = agent.wait_for("scratch_refused", vmid=990001)
    assert (refused["level"], refused["verdict"]) == ("warn", "unproven")
    host.create(SLOT, by=TESTER, how="restore")
    agent.wait_for("scratch_destroyed", vmid=SLOT, outcome="gone")
    agent.sweeps(3)
    assert changes(host) == deletes("lxc", SLOT)
    assert_only_the_band_was_changed(host)
    assert all(host.guest(vmid)["status"] == "running" for vmid in (989999, 990001, 990010))
    assert all(host.guest(vmid)["lock"] == "create" for vmid in (989998, 990011))
    assert host.programs_run() == put_back(host, SLOT) and len(agent.events("scratch_refused")) == 1
    listed = {found["vmid"]: found["verdict"] for found in agent.cli("scratch", "list", "--output", "json").data["scratch"]}
    assert listed == {990001: "unproven"} and agent.metrics()["scratch_leftovers"] == 1
    for vmid in (989999, 990001):
        assert agent.cli("scratch", "teardown", str(vmid)).code == 4


@pytest.mark.parametrize("who", ["token", "user"])
@scenario
def test_a_grant_that_somebody_removes_is_put_back(stage: Stage, who: str) -> None:
    host = stage.host
    agent = tearing_down(stage)
    wait_until(lambda: any(record["event"] == "helper_answer" for record in host.helper_log()))  # of the look at the grantees'
    host.revoke("VM.Allocate", "/vms/990004", who)
    restored = agent.wait_for("grant_restored")
    assert (restored["level"], restored["path"], restored["privilege"]) == ("info", "/vms/990004", "VM.Allocate")
    user = host.token_id.partition("!")[0]
    whose = f"--users {user}" if who == "user" else f"--tokens {host.token_id}"
    assert host.programs_run() == [f"pveum acl modify /vms/990004 {whose} --roles GuestwardScratch --propagate 1"]
    agent.sweeps(2)
    assert len(host.programs_run()) == 1 and agent.events(level="error") == [] and changes(host) == []
    assert agent.metrics()['permission_ok{path="/vms/990004",privilege="VM.Allocate"}'] == 1
    assert agent.cli("check").code == 0


@scenario
def test_without_the_helper_a_dead_restore_waits_and_that_is_said_once(stage: Stage) -> None:
    host = stage.host
    agent = tearing_down(stage)
    host.helper(False)
    host.create(SLOT, by=TESTER, how="restore", killed=True)
    failed = agent.wait_for("helper_failed")
    assert failed["level"] == "error" and has("helper.sock")(failed["reason"])
    agent.sweeps(3)
    assert len(agent.events("helper_failed")) == 1 and changes(host) == [] and host.guest(SLOT)["lock"] == "create"
    host.helper(True)
    agent.wait_for("helper_restored")
    agent.wait_for("scratch_leftover", vmid=SLOT)
    assert changes(host) == deletes("lxc", SLOT) and host.programs_run() == [f"pct unlock {SLOT}", *put_back(host, SLOT)]


@scenario
def test_without_the_helper_what_is_left_is_unknown_and_the_slot_comes_back_with_it(stage: Stage) -> None:
    """A guest that nobody may be shown any more is not called gone."""
    host = stage.host
    agent = tearing_down(stage)
    host.helper(False)
    host.create(SLOT, by=TESTER, how="restore")
    told = agent.wait_for("scratch_destroyed", vmid=SLOT)
    assert (told["level"], told["outcome"]) == ("warn", "unknown") and has("VM.Config.Disk", f"/vms/{SLOT}")(told["reason"])
    lost = agent.wait_for("grant_lost")
    assert (lost["level"], lost["path"]) == ("error", f"/vms/{SLOT}") and not host.held(TESTER, f"/vms/{SLOT}")
    agent.sweeps(2)
    assert len(agent.events("grant_lost")) == 1 and changes(host) == deletes("lxc", SLOT)
    host.create(SLOT, by=TESTER, how="restore", killed=True)
    agent.sweeps(3)
    assert changes(host) == deletes("lxc", SLOT), "no request that PVE would refuse"

    host.helper(True)
    agent.restart()  # or 5 minutes
    agent.wait_for("grant_restored", path=f"/vms/{SLOT}")
    agent.wait_for("scratch_leftover", vmid=SLOT)
    assert changes(host) == deletes("lxc", SLOT, SLOT)
    assert_granted(host)


@pytest.mark.parametrize("asked", ["destroy", "regrant"])
@scenario
def test_killed_between_delete_and_regrant_it_verifies_and_tells_when_it_is_back(stage: Stage, asked: str) -> None:
    host = stage.host
    agent = tearing_down(stage)
    if asked == "destroy":
        host.fault("GET /nodes/pve1/tasks/", kind="hang")  # so that it is at the destroy until it is killed
    else:
        host.helper_slow(3)
    host.create(SLOT, by=TESTER, how="restore")
    wait_until(lambda: host.effects() and not host.held(host.token_id, f"/vms/{SLOT}"))
    if asked == "regrant":
        gone = len(host.requests_seen())
        wait_until(lambda: ("GET", "/access/permissions") in host.requests_seen()[gone:])
    agent.kill9()
    assert not agent.events("scratch_destroyed") and host.programs_run() == []
    host.clear_faults()
    agent.start()
    told = agent.wait_for("scratch_destroyed", vmid=SLOT)
    assert (told["level"], told["outcome"], told["kind"]) == ("info", "gone", "lxc")
    agent.sweeps(2)
    assert_granted(host)
    assert changes(host) == deletes("lxc", SLOT) and host.programs_run() == put_back(host, SLOT)
    assert len(agent.events("scratch_destroyed")) == 1


@scenario
def test_a_protected_guest_stays_until_its_protection_is_taken_away(stage: Stage) -> None:
    """`protection` comes back with a restore, and means that a person has to look."""
    host = stage.host
    agent = tearing_down(stage)
    host.create(SLOT, by=TESTER, how="restore", protection=1)
    host.start(SLOT)
    refused = agent.wait_for("scratch_refused", vmid=SLOT)
    assert (refused["level"], refused["verdict"]) == ("warn", "protected") and has("protection")(refused["evidence"])
    agent.sweeps(4)
    assert changes(host) == [] and host.guest(SLOT)["status"] == "running" and len(agent.events("scratch_refused")) == 1
    host.set(SLOT, protection=None)
    agent.wait_for("scratch_destroyed", vmid=SLOT, outcome="gone")
    assert host.effects() == [("stop", SLOT), ("destroy", SLOT)]


@scenario
def test_a_claim_keeps_a_guest_and_proves_whose_it_is(stage: Stage) -> None:
    host = stage.host
    agent = tearing_down(stage, origins=[])
    assert agent.cli("scratch", "claim", str(SLOT), "--for", "1h", "--reason", "restore test").code == 0
    host.create(SLOT, by=TESTER, how="restore")
    agent.wait_for("held", scope=str(SLOT))
    agent.sweeps(4)
    assert changes(host) == []
    assert agent.cli("release", str(SLOT)).code == 0
    gone = agent.wait_for("scratch_destroyed", vmid=SLOT, outcome="gone")
    assert has("claimed by")(gone["evidence"]) and changes(host) == deletes("lxc", SLOT)
