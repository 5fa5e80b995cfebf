"""Scratch teardown and the grants of the band on a simulated host, where a scenario cannot get between two calls (C45-C51)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from guestward.model.helper import Answer, HelperCode
from guestward.model.scratch import ScratchStep, ScratchVerdict
from guestward.ports import PveAnswerLost, PveRefused
from guestward.sim import world as simulated
from guestward.sim.doors import Fault
from guestward.sim.run import Simulation
from guestward.sim.world import World

VMID = 990003
ROUTE = f"/nodes/pve1/lxc/{VMID}"


def leftover(kind: str = "lxc", scratch: dict[str, Any] | None = None, **traits: Any) -> Simulation:
    """A tagged guest that nobody has used for a day; the agent's first sweep is ahead."""
    sim = Simulation(World(), {"scratch": scratch or {}})
    sim.world.add(VMID, kind, **({"tags": "guestward-scratch", "running": False, "pool": None} | traits))
    return sim


def run(sim: Simulation, until: float = 60) -> Simulation:
    sim.run(until)
    assert sim.violation is None, sim.violation
    return sim


def sent(sim: Simulation) -> list[tuple[str, str]]:
    return [(effect.verb, effect.result) for effect in sim.world.effects]


def told(sim: Simulation, name: str) -> list[dict[str, object]]:
    return [dict(entry.fields) for entry in sim.events(name)]


def verdict(sim: Simulation) -> ScratchVerdict:
    assert sim.store.board is not None
    return sim.store.board.scratch[0].verdict


def revoke(sim: Simulation, privilege: str, path: str) -> None:
    sim.world.acl.revoke(privilege, path, "token")


# ---------------------------------------------------------------------------------------------------- between two calls


def test_403_names_privilege_and_path_once_and_the_grant_is_put_back() -> None:
    sim = leftover()
    sim.pve.before[f"DELETE {ROUTE}"] = lambda: revoke(sim, "VM.Allocate", f"/vms/{VMID}")
    run(sim, 3600)
    assert [(e["path"], e["privilege"]) for e in told(sim, "scratch_stranded")] == [(f"/vms/{VMID}", "VM.Allocate")]
    assert sent(sim) == [("destroy", "refused"), ("regrant", "ok"), ("destroy", "ok"), ("regrant", "ok")]
    assert [e["outcome"] for e in told(sim, "scratch_destroyed")] == ["gone"]


def test_403_for_ever_is_no_storm() -> None:
    sim = leftover()
    sim.world.helper.refuse(HelperCode.BUSY)

    def again() -> None:
        revoke(sim, "VM.Allocate", f"/vms/{VMID}")
        sim.pve.before[f"DELETE {ROUTE}"] = again

    again()
    sim.world.at(1800, lambda: sim.world.grant_band([VMID]))
    sim.run(86400)
    assert len([verb for verb, _ in sent(sim) if verb == "destroy"]) <= 3
    assert len(told(sim, "scratch_stranded")) <= 3


def test_one_that_ends_right_before_it_is_stopped_is_stopped() -> None:
    sim = leftover(running=True)
    sim.pve.before[f"POST {ROUTE}/status/stop"] = lambda: sim.world.die(VMID)
    run(sim)
    assert sent(sim) == [("stop", "refused"), ("destroy", "ok"), ("regrant", "ok")]
    assert told(sim, "scratch_step_failed") == []


def _protect(sim: Simulation) -> None:
    sim.world.set(VMID, "protection", True)


CHANGES: dict[str, Callable[[Simulation], object]] = {
    "protected": _protect,
    "under HA": lambda sim: sim.world.ha(VMID, "started"),
    "without its tag": lambda sim: sim.world.set(VMID, "tags", ""),
    "held": lambda sim: sim.hold(VMID),
    "claimed": lambda sim: sim.claim(VMID),
    "worked on": lambda sim: sim.world.task("vzsnapshot", str(VMID)),
    "on a held node": lambda sim: sim.hold(),
    "without quorum": lambda sim: setattr(sim.world, "quorate", False),
    "gone": lambda sim: sim.world.destroy(VMID),
    "not to be listed": lambda sim: sim.wire.faults.update({"GET /nodes/pve1/lxc": Fault(lambda: PveRefused("no", 500))}),
    "without own privileges to be read": lambda sim: sim.wire.faults.update({"GET /access": Fault(lambda: PveRefused("no", 500))}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_has_changed_since_the_step_before_stops_the_teardown(what: str) -> None:
    sim = leftover(running=True)
    sim.world.react("stop", VMID, 0.5, lambda: CHANGES[what](sim))
    run(sim, 30)
    assert ("destroy", "ok") not in sent(sim)
    assert told(sim, "scratch_destroyed") == []


def test_a_release_that_is_refused_is_a_failed_step_with_the_helpers_words() -> None:
    sim = leftover(scratch={"origins": ["restic@pve!restore"], "min_age": "0s"}, tags="")
    sim.world.restore(VMID, by="restic@pve!restore", killed=True)
    sim.world.helper.refuse(HelperCode.TASK_RUNNING)
    run(sim, 30)
    assert sent(sim)[0] == ("release-scratch", "refused")
    assert [(e["step"], e["attempt"], e["of"]) for e in told(sim, "scratch_step_failed")] == [("release-scratch", 1, 3)]
    assert "task_running" in str(told(sim, "scratch_step_failed")[0]["reason"])
    assert verdict(sim) is ScratchVerdict.LEFTOVER


def test_a_destroy_that_does_not_end_is_told_as_unknown_and_not_sent_again_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "DESTROYED_IN", 5000.0)
    sim = run(leftover(), 4000)
    assert sent(sim) == [("destroy", "ok")]
    assert [e["step"] for e in told(sim, "scratch_step_failed")] == ["destroy"]
    assert "did not end in time" in str(told(sim, "scratch_step_failed")[0]["reason"])
    run(sim, 6000)
    assert sent(sim) == [("destroy", "ok"), ("regrant", "ok")]
    assert [e["outcome"] for e in told(sim, "scratch_destroyed")] == ["gone"]


def test_an_answer_that_is_lost_after_the_effect_is_followed_by_its_task() -> None:
    sim = leftover()
    sim.wire.faults[f"DELETE {ROUTE}"] = Fault(lambda: PveAnswerLost("596"), after_effect=True, times=1)
    run(sim)
    assert sent(sim) == [("destroy", "ok"), ("regrant", "ok")]
    assert [e["outcome"] for e in told(sim, "scratch_destroyed")] == ["gone"]


# ---------------------------------------------------------------------------------------------------- gone, or not known

BLIND: dict[str, tuple[Callable[[Simulation], object], str]] = {
    "no right to see storages": (lambda sim: revoke(sim, "Datastore.Audit", "/storage"), "Datastore.Audit on /storage"),
    "a grant that goes again": (lambda sim: sim.world.later(0.5, lambda: revoke(sim, "VM.Config.Disk", f"/vms/{VMID}")), "VM.Config.Disk"),
    "a list that fails": (
        lambda sim: sim.wire.faults.update({"GET /nodes/pve1/storage": Fault(lambda: PveRefused("no answer", 500))}),
        "no answer",
    ),
    "the helper refuses": (lambda sim: sim.world.helper.refuse(HelperCode.BUSY), "the token lacks"),
}


@pytest.mark.parametrize("what", BLIND)
def test_gone_is_not_said_without_having_been_able_to_look(what: str) -> None:
    do, words = BLIND[what]
    sim = leftover()
    sim.world.react("destroy", VMID, 1.9, lambda: do(sim))
    if what == "a grant that goes again":
        sim.world.reactions.clear()
        sim.world.react("regrant", VMID, 0.5, lambda: revoke(sim, "VM.Config.Disk", f"/vms/{VMID}"))
    run(sim, 30)
    found = told(sim, "scratch_destroyed")
    assert [(e["outcome"], words in str(e["reason"])) for e in found] == [("unknown", True)], found


def test_a_storage_that_the_guest_used_and_the_token_is_not_shown_leaves_it_open() -> None:
    sim = leftover(storages=frozenset({"nas"}))
    sim.world.acl.grant("NoAccess", "/storage/nas", "token")
    run(sim, 30)
    assert [(e["outcome"], e["reason"]) for e in told(sim, "scratch_destroyed")] == [("unknown", "storage nas: not shown to the token")]


# ---------------------------------------------------------------------------------------------------- memory


def test_what_failed_is_forgotten_at_a_boot_and_when_somebody_asks() -> None:
    sim = leftover()
    for _ in range(3):
        sim.world.fail_next("destroy", "dataset is busy")
    run(sim, 9000)
    assert verdict(sim) is ScratchVerdict.GIVEN_UP
    sim.rearm(VMID)
    run(sim, 9300)
    assert [e["outcome"] for e in told(sim, "scratch_destroyed")] == ["gone"]


def test_a_guest_that_somebody_else_destroys_after_our_destroy_came_to_nothing_is_not_told_as_ours() -> None:
    sim = leftover()
    sim.wire.faults[f"DELETE {ROUTE}"] = Fault(lambda: PveAnswerLost("596"), times=1)
    sim.world.at(700, lambda: sim.world.destroy(VMID))
    run(sim, 3000)
    assert [e["step"] for e in told(sim, "scratch_step_failed")] == ["destroy"]
    assert told(sim, "scratch_destroyed") == []


def test_a_step_is_written_down_before_it_is_sent() -> None:
    sim = leftover()
    seen: list[ScratchStep | None] = []
    sim.pve.before[f"DELETE {ROUTE}"] = lambda: seen.append(sim.store.node_memory.scratch[0].step)
    run(sim)
    assert seen == [ScratchStep.DESTROY]
    assert sim.store.node_memory.scratch == ()


# ---------------------------------------------------------------------------------------------------- grants


def test_a_grant_that_cannot_be_put_back_is_asked_for_later_and_later_and_told_once() -> None:
    sim = Simulation(World())
    sim.world.helper.refuse(HelperCode.NO_QUORUM)
    sim.world.at(30, lambda: revoke(sim, "VM.Audit", "/vms/990007"))
    run(sim, 12000)
    asked = [effect.t for effect in sim.world.effects if effect.verb == "regrant"]
    assert [after - before for before, after in pairwise(asked)] == [360, 960, 3660, 3660]  # at the next look
    assert [(e["path"], e["privilege"]) for e in told(sim, "grant_lost")] == [("/vms/990007", "VM.Audit")]
    sim.world.helper.up()
    run(sim, 16000)
    assert [(e["path"], e["privilege"]) for e in told(sim, "grant_restored")] == [("/vms/990007", "VM.Audit")]


def test_a_grant_that_goes_again_and_again_is_put_back_each_time() -> None:
    sim = Simulation(World())
    for t in (30, 90, 150):
        sim.world.at(t, lambda: revoke(sim, "VM.Audit", "/vms/990007"))
    run(sim, 300)
    assert sent(sim) == [("regrant", "ok")] * 3


def test_what_the_grantees_have_is_looked_after_once_a_day_and_told_when_it_fails() -> None:
    sim = Simulation(World(), {"scratch": {"grantees": ["restic@pve!restore"]}})
    run(sim, 60)
    assert [effect.t for effect in sim.world.effects] == [0]
    sim.world.helper.says = Answer(HelperCode.INCOMPLETE, "restic@pve!restore: there is no such token")
    run(sim, 90000)
    lost = told(sim, "grant_lost")
    assert [e["path"] for e in lost] == ["[scratch] grantees"]
    sim.world.helper.up()
    run(sim, 95000)
    assert [e["path"] for e in told(sim, "grant_restored")] == ["[scratch] grantees"]


def test_an_answer_that_is_lost_does_not_matter_when_the_grants_are_there() -> None:
    sim = Simulation(World())
    sim.world.helper.slow(1000)
    sim.world.at(30, lambda: revoke(sim, "VM.Audit", "/vms/990007"))
    run(sim, 300)
    assert [(e["path"], e["privilege"]) for e in told(sim, "grant_restored")] == [("/vms/990007", "VM.Audit")]
    assert told(sim, "grant_lost") == []


def test_whether_they_are_back_may_be_unreadable() -> None:
    sim = Simulation(World())
    sim.world.at(30, lambda: revoke(sim, "VM.Audit", "/vms/990007"))
    sim.world.react("regrant", 990007, 0.0, lambda: sim.wire.faults.update({"GET /access": Fault(lambda: PveRefused("no", 500), times=1)}))
    run(sim, 900)
    assert [e["path"] for e in told(sim, "grant_lost")] == ["/vms/990007"]
    assert [e["path"] for e in told(sim, "grant_restored")] == ["/vms/990007"]


def test_too_much_is_told_once_for_each_path_and_again_when_it_is_more() -> None:
    sim = Simulation(World())
    sim.world.at(30, lambda: sim.world.acl.grant("VM.Allocate", "/pool/guestward"))
    sim.world.at(300, lambda: sim.world.acl.grant("Sys.Modify", "/pool/guestward"))
    run(sim, 900)
    assert [(e["path"], e["privilege"]) for e in told(sim, "grant_excess")] == [
        ("/pool/guestward", "VM.Allocate"),
        ("/pool/guestward", "Sys.Modify VM.Allocate"),
    ]
