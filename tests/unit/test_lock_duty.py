"""Lock recovery on a simulated host: what is asked of whom and when, what survives a restart, and what is told (C33-C41)."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from guestward.config import parse
from guestward.model.helper import TRIED, Answer, HelperCode, Request
from guestward.model.locks import LockMemory, LockStep, LockVerdict
from guestward.ports import PveError, PveRefused
from guestward.sim.doors import Fault, SimPve, SimStore
from guestward.sim.helper import SimCall, SimHelper
from guestward.sim.log import Effect
from guestward.sim.monitors.heard import HeardHelper
from guestward.sim.run import Simulation
from guestward.sim.world import World

TOLD = (
    "lock_stale",
    "unlocked",
    "snapshot_deleted",
    "lock_step_failed",
    "lock_step_refused",
    "lock_old",
    "helper_failed",
    "helper_restored",
)


def simulation(**settings: Any) -> Simulation:
    """An agent with its first sweep ahead. settings: whole sections of the configuration."""
    return Simulation(World(), settings)


def killed(sim: Simulation, *vmids: int, **traits: Any) -> Simulation:
    """The vzdumps of these are killed, the last one at 180 s; their locks are proven stale at the second look after that, at 240 s."""
    for number, vmid in enumerate(vmids or (101,)):
        sim.world.add(vmid, **traits)
        sim.world.at(65.0 + 100 * number, lambda vmid=vmid: sim.world.backup_begin(vmid))  # type: ignore[misc]
    for number in range(len(vmids or (101,))):
        sim.world.at(180.0 - number, sim.world.backup_kill)
    return sim


def asked(sim: Simulation) -> list[tuple[float, str, int | None, str]]:
    """Everything that reached the helper."""
    return [(e.t, e.verb, e.vmid, e.result) for e in sim.world.effects if e.door == "helper"]


def told(sim: Simulation, *names: str) -> list[tuple[float, str]]:
    return [(entry.t, entry.event) for entry in sim.events(*(names or TOLD))]


def failures(sim: Simulation) -> list[dict[str, object]]:
    return [dict(entry.fields) for entry in sim.events("lock_step_failed")]


def known(sim: Simulation) -> tuple[LockMemory, ...]:
    """What a restart of the agent would find."""
    return sim.store.node_memory.locks


def verdicts(sim: Simulation) -> dict[int, LockVerdict]:
    assert sim.store.board is not None
    return {decision.id.vmid: decision.verdict for decision in sim.store.board.locks}


def reads(sim: Simulation, what: str = "/snapshot") -> Counter[float]:
    """How often that was asked of PVE, by second."""
    return Counter(call.t for call in sim.pve.calls if call.route.endswith(what))


def guest(sim: Simulation, vmid: int = 101) -> tuple[str | None, dict[str, str], bool]:
    found = sim.world.guests[vmid]
    return found.lock, found.snapshots, found.running


CLEAN = (None, {}, True)


# ---------------------------------------------------------------------------------------------------- the whole of it


def test_unlock_then_delete_then_nothing_is_left_to_remember() -> None:
    sim = killed(simulation())
    sim.run(600)
    assert asked(sim) == [(240.0, "unlock", 101, "ok"), (241.0, "delete-snapshot", 101, "ok")]
    assert told(sim) == [(240.0, "lock_stale"), (241.0, "unlocked"), (244.0, "snapshot_deleted")]
    assert guest(sim) == CLEAN and known(sim) == () and verdicts(sim) == {} and sim.violation is None


def test_a_vm_is_unlocked_and_its_snapshots_are_not_even_read() -> None:
    """C41."""
    sim = killed(simulation(), kind="qemu", snapshots={"vzdump": ""})
    sim.run(600)
    assert asked(sim) == [(240.0, "unlock", 101, "ok")]
    assert guest(sim) == (None, {"vzdump": ""}, True) and not reads(sim)


def test_a_guest_that_is_down_is_started_right_after_its_lock_is_gone() -> None:
    sim = killed(simulation())
    sim.world.at(100, lambda: sim.world.reboot(101))
    sim.run(400)
    assert guest(sim) == CLEAN
    assert 244 <= sim.starts(101)[0] <= 275


def test_what_the_board_shows_on_the_way() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(65, lambda: sim.world.backup_begin(101))
    seen = {}
    for at in (30, 130, 190, 240):
        if at == 190:
            sim.world.at(180, sim.world.backup_kill)
        sim.run(at)
        seen[at] = verdicts(sim)
    assert seen == {
        30: {},
        130: {101: LockVerdict.OWNED},
        190: {101: LockVerdict.UNCONFIRMED},
        240: {101: LockVerdict.STALE},
    }
    assert sim.store.board is not None
    (decision,) = sim.store.board.locks
    assert (str(decision.id), decision.name, decision.kind, decision.next_step) == ("lxc/101", "guest101", "backup", "it is unlocked now")
    assert decision.since == sim.world.boot_offset + 120


# ---------------------------------------------------------------------------------------------------- the helper is asked for nothing else


def live_backup(sim: Simulation) -> None:
    sim.world.backup_begin(101)


def by_hand(sim: Simulation) -> None:
    sim.world.lock(101, "backup")


def migrating(sim: Simulation) -> None:
    sim.world.lock(101, "migrate")


def by_hand_and_then_a_failed_backup(sim: Simulation) -> None:
    """The backup of several finds it locked and fails; it holds the flock for the others meanwhile."""
    sim.world.lock(101, "backup")
    sim.world.add(102)
    sim.world.later(1000, lambda: sim.world.backup_begin(101, 102))
    sim.world.later(1500, lambda: sim.world.backup_end(102))


def an_operators_snapshot(sim: Simulation) -> None:
    sim.world.snapshot(101, "vzdump-2024")
    sim.world.snapshot(101, "before", "prepare")
    sim.world.lock(101, "snapshot")


@pytest.mark.parametrize("do", [live_backup, by_hand, migrating, by_hand_and_then_a_failed_backup, an_operators_snapshot])
def test_without_a_stale_lock_the_helper_is_never_asked(do: Callable[[Simulation], None]) -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.helper.down()
    sim.world.at(50, lambda: do(sim))
    sim.run(7200)
    assert told(sim) == [] and sim.world.guests[101].lock is not None and sim.violation is None


def test_while_another_guests_backup_holds_the_flock_it_is_waited_for() -> None:
    sim = killed(simulation())
    sim.world.add(102)
    sim.world.at(200, lambda: sim.world.backup_begin(102))
    sim.world.at(1000, lambda: sim.world.backup_end(102))
    sim.run(990)
    assert asked(sim) == [] and verdicts(sim)[101] is LockVerdict.OWNED
    sim.run(1200)
    assert guest(sim) == CLEAN and asked(sim)[0][0] == 1080.0


@pytest.mark.parametrize(("settings", "traits"), [({"scope": {"exclude": [101]}}, {}), ({}, {"pool": None})])
def test_guests_that_are_not_ours_are_not_judged(settings: dict[str, Any], traits: dict[str, Any]) -> None:
    sim = killed(simulation(**settings), **traits)
    sim.run(1200)
    assert (asked(sim), told(sim), known(sim), verdicts(sim)) == ([], [], (), {})
    assert sim.world.guests[101].lock == "backup" and not reads(sim)


def test_nor_is_a_guest_in_the_scratch_band() -> None:
    sim = simulation()
    sim.world.add(990000, lock="backup", onboot=False)
    sim.run(600)
    assert (known(sim), verdicts(sim)) == ((), {})


@pytest.mark.breaks_a_monitor  # that counts sweeps: one is made by hand
def test_a_guest_that_leaves_the_pool_meanwhile_is_forgotten_and_nothing_of_it_is_told() -> None:
    sim = killed(simulation())
    sim.world.helper.hang()
    sim.world.at(265, lambda: setattr(sim.world.guests[101], "pool", None))
    sim.run(266)
    assert sim.watch is not None
    sim._plan(sim.watch.sweep())
    assert known(sim) == () and verdicts(sim) == {}
    sim.run(900)
    assert told(sim, "unlocked", "lock_step_failed") == [] and sim.watch.locks.calls == {}


def test_an_answer_for_one_that_has_left_is_not_taken_for_that_of_the_one_that_is_back() -> None:
    sim = killed(simulation())
    sim.world.at(240.5, sim.world.helper.hang)
    for t, pool in ((290, None), (850, "guestward")):
        sim.world.at(t, lambda pool=pool: setattr(sim.world.guests[101], "pool", pool))  # type: ignore[misc]
    sim.run(900)
    assert sim.watch is not None
    assert [(memory.id.vmid, memory.asked) for memory in known(sim)] == [(101, False)]
    assert sim.watch.locks.calls  # nobody has answered yet; nobody does, at 901 s
    sim.run(910)
    assert (sim.watch.locks.calls, failures(sim)) == ({}, [])


# ---------------------------------------------------------------------------------------------------- over restarts


class Killed(BaseException):
    """kill -9 of the agent at this very point."""


def crashes(point: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Simulation, int]:
    """Kill the agent at its n-th touch of a door after the lock was proven stale; 0: never. Returns how many there were."""
    sim, touches = killed(simulation()), 0
    sim.world.at(100, lambda: sim.world.reboot(101))
    note, save, ask = SimPve._note, SimStore.save, SimHelper.ask

    def touch() -> None:
        nonlocal touches
        if sim.world.now >= 240:
            touches += 1
            if touches == point:
                raise Killed

    def called(self: SimPve, route: str) -> None:
        touch()
        note(self, route)

    def saved(self: SimStore, *args: Any) -> None:
        touch()  # lost before it is on disk
        save(self, *args)
        touch()

    def sent(self: SimHelper, request: Request) -> SimCall:
        touch()  # lost before it is sent
        call = ask(self, request)
        touch()
        return call

    monkeypatch.setattr(SimPve, "_note", called)
    monkeypatch.setattr(SimStore, "save", saved)
    monkeypatch.setattr(SimHelper, "ask", sent)
    with contextlib.suppress(Killed):
        sim.run(246)
    monkeypatch.undo()
    return sim, touches


def test_killed_at_any_point_of_it_the_agent_goes_on_from_what_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    _, points = crashes(0, monkeypatch)
    assert points > 20
    for point in range(1, points + 1):
        sim, _ = crashes(point, monkeypatch)
        sim.restart()
        sim.run(480)
        assert guest(sim) == CLEAN and known(sim) == () and sim.violation is None, point
        assert Counter(verb for _, verb, _, result in asked(sim) if result == "ok") == {"unlock": 1, "delete-snapshot": 1}, point
        assert len(sim.starts(101)) == 1, point
        lost = [f["reason"] == "the helper's answer was lost when the agent was restarted" for f in failures(sim)]
        assert lost in ([], [True]), point  # written down and not sent, for all that the next agent knows
        assert {event for _, event in told(sim)} - {"lock_step_failed"} == {"lock_stale", "unlocked", "snapshot_deleted"}, point


@pytest.mark.parametrize(("verb", "step"), [("unlock", LockStep.UNLOCK), ("delete-snapshot", LockStep.DELETE_SNAPSHOT)])
def test_that_the_helper_was_asked_is_on_disk_before_it_is_asked(verb: str, step: LockStep) -> None:
    sim = killed(simulation())
    before: list[LockMemory] = []
    sim.world.on_effect = lambda effect: before.extend(known(sim) if effect.verb == verb else ())
    sim.run(600)
    assert [(memory.step, memory.asked) for memory in before] == [(step, True)]


def test_an_unlock_whose_answer_was_lost_with_the_agent_is_told_when_it_is_seen() -> None:
    sim = killed(simulation())
    sim.world.react("unlock", 101, 0.0, sim.kill)
    sim.world.at(300, sim.restart)
    sim.run(310)
    (entry,) = sim.events("unlocked")
    assert entry.t == 300
    assert entry.fields == {"lock": "backup", "reason": "the helper's answer was lost when the agent was restarted"}


def test_what_came_of_it_is_not_judged_while_a_task_of_the_guest_runs() -> None:
    """It may be the helper's own; afterwards it is told all the same, with the lock that it was."""
    sim = killed(simulation())
    sim.world.react("unlock", 101, 0.0, sim.kill)
    sim.world.at(300, lambda: (sim.world.task("vzsnapshot", "101"), sim.restart()))
    sim.world.at(400, lambda: sim.world.task_end("vzsnapshot", "101"))
    sim.run(700)
    assert [(entry.t, entry.fields["lock"]) for entry in sim.events("unlocked")] == [(420.0, "backup")]
    assert guest(sim) == CLEAN


def test_an_unlock_that_takes_longer_than_a_look_is_told_with_the_lock_that_it_was() -> None:
    sim = killed(simulation(watchdog={"interval": "10s"}))
    sim.world.helper.slow(25.0)
    sim.run(400)
    assert [entry.fields["lock"] for entry in sim.events("unlocked")] == ["backup"]
    assert [entry.guard for entry in sim.events("unlocked")] == ["locked"]


def test_attempts_survive_a_restart() -> None:
    sim = killed(simulation())
    for _ in range(3):
        sim.world.fail_next("unlock", "no")
    for at in (250, 370, 600, 1000):
        sim.world.at(at, sim.restart)
    sim.run(3600)
    assert [(entry["attempt"], entry["of"]) for entry in failures(sim)] == [(1, 6), (2, 6), (3, 6)]
    assert [t for t, verb, _, _ in asked(sim) if verb == "unlock"] == [240.0, 310.0, 490.0, 1120.0] and guest(sim) == CLEAN
    assert [event for _, event in told(sim)].count("lock_stale") == 1


def test_a_boot_of_the_host_forgets_all_of_it_but_who_was_warned() -> None:
    """Its times mean nothing any more."""
    sim = simulation(locks={"warn_after": "60s"})
    sim.world.add(101)
    sim.world.at(30, lambda: sim.world.lock(101, "migrate"))
    sim.run(200)
    (memory,) = known(sim)
    assert (memory.since, memory.free_at) == (sim.world.boot_offset + 60, sim.world.boot_offset) and memory.warned
    sim.host("booting")
    sim.run(230)
    (memory,) = known(sim)
    assert memory.since < 60 and memory.free_at is None and memory.warned
    assert len(sim.events("lock_old")) == 1


# ---------------------------------------------------------------------------------------------------- what the helper says


def test_an_ok_that_is_not_seen_is_a_failure_and_nobody_is_told_that_it_is_unlocked() -> None:
    sim = killed(simulation())
    sim.world.helper.lie()
    sim.run(36000)
    times = [t for t, event in told(sim) if event == "lock_step_failed"]
    assert told(sim)[0] == (240.0, "lock_stale") and times == [241.0, 361.0, 541.0, 1201.0, 4861.0, 26521.0]
    assert [(f["step"], f["attempt"], f["of"], f["reason"]) for f in failures(sim)] == [
        ("unlock", n, 6, "it has the lock `backup`; done") for n in range(1, 7)
    ]
    assert "given up" in sim.events("lock_step_failed")[-1].message and guest(sim)[0] == "backup"
    sim.world.helper.up()
    sim.rearm(101)
    sim.run(36300)
    assert guest(sim) == CLEAN


def test_a_delete_that_is_not_seen_is_a_failure_and_keeps_nobody_down() -> None:
    sim = killed(simulation())
    sim.world.at(100, lambda: sim.world.reboot(101))
    sim.world.react("unlock", 101, 0.0, sim.world.helper.lie)
    sim.run(1200)
    assert told(sim) == [(240.0, "lock_stale"), (241.0, "unlocked"), (242.0, "lock_step_failed")]
    assert failures(sim) == [{"step": "delete-snapshot", "reason": "done", "attempt": 1, "of": 3}]
    assert guest(sim) == (None, {"vzdump": ""}, True)


@dataclass
class Says:
    """A helper that does nothing and answers with one code."""

    code: HelperCode

    def ask(self, _request: Request) -> Says:
        return self

    def answer(self) -> Answer:
        return Answer(self.code, "so it is")


def with_helper(sim: Simulation, helper: Any) -> None:
    assert sim.watch is not None
    heard = sim.watch.locks.state.env.helper
    assert isinstance(heard, HeardHelper)
    heard.inner = helper


@pytest.mark.parametrize("code", HelperCode)
def test_an_unlock_is_a_failure_only_where_it_was_tried(code: HelperCode) -> None:
    sim = killed(simulation())
    with_helper(sim, Says(code))
    sim.run(242)
    (memory,) = known(sim)
    assert (memory.asked, memory.step, memory.clear_since, guest(sim)[0]) == (False, LockStep.PROVE, None, "backup")
    tried = code in TRIED or code is HelperCode.OK
    assert (memory.unlocks, len(failures(sim)), memory.refusals) == (tried, tried, not tried)
    assert told(sim, "unlocked") == []


@pytest.mark.parametrize("code", HelperCode)
def test_a_delete_is_a_failure_only_where_it_was_tried(code: HelperCode) -> None:
    sim = simulation()
    sim.world.add(101, snapshots={"vzdump": ""})
    with_helper(sim, Says(code))
    sim.run(65)
    (memory,) = known(sim)
    assert (memory.asked, memory.step, guest(sim)) == (False, LockStep.PROVE, (None, {"vzdump": ""}, True))
    tried = code in TRIED or code is HelperCode.OK
    assert (memory.deletes, len(failures(sim)), memory.refusals) == (tried, tried, not tried)
    assert told(sim, "snapshot_deleted") == []


def test_refusals_are_told_once_and_asked_again_more_and_more_seldom_without_end() -> None:
    sim, asked_at = killed(simulation()), []
    helper = Says(HelperCode.BUSY)
    with_helper(sim, helper)
    ask = helper.ask
    helper.ask = lambda request: (asked_at.append(sim.world.now), ask(request))[1]  # type: ignore[method-assign]
    sim.run(4 * 3600)
    assert asked_at[:5] == [240.0, 360.0, 540.0, 840.0, 1380.0] and 8 <= len(asked_at) <= 11
    assert told(sim) == [(240.0, "lock_stale"), (541.0, "lock_step_refused")]
    assert known(sim)[0].unlocks == 0
    assert sim.store.board is not None
    assert "(the root helper refused that: busy: so it is)" in sim.store.board.locks[0].next_step


def test_a_lock_that_somebody_else_has_cleared_is_not_told_as_our_work() -> None:
    sim = killed(simulation())
    sim.world.helper.slow(5.0)
    sim.world.at(239, lambda: with_helper(sim, Says(HelperCode.LOCK_CHANGED)))
    sim.world.at(240.5, lambda: sim.world.unlock(101))
    sim.run(290)
    assert told(sim, "unlocked", "lock_step_failed", "lock_step_refused") == []
    assert guest(sim) == (None, {"vzdump": ""}, True)


# ---------------------------------------------------------------------------------------------------- against nobody's will


@pytest.mark.parametrize("hold", [101, None])
def test_a_hold_that_came_after_the_look_is_heeded_before_the_next_step(hold: int | None) -> None:
    sim = killed(simulation())
    sim.world.react("unlock", 101, 0.0, lambda: sim.hold(hold, 600.0))
    sim.run(600)
    assert [verb for _, verb, _, _ in asked(sim)] == ["unlock"]
    assert guest(sim) == (None, {"vzdump": ""}, True)
    sim.run(1200)
    assert guest(sim) == CLEAN


def test_after_a_hold_the_snapshot_goes_before_the_start() -> None:
    sim = killed(simulation())
    sim.world.at(100, lambda: sim.world.reboot(101))
    sim.world.react("unlock", 101, 0.0, lambda: sim.hold(101, 600.0))
    sim.run(1200)
    assert [e.verb for e in ends(sim, "unlock", "delete-snapshot", "start")] == ["unlock", "delete-snapshot", "start"]
    assert guest(sim) == CLEAN and sim.violation is None


def test_a_hold_is_heeded_by_what_a_restart_goes_on_with() -> None:
    """The helper could not clear what its delete had left."""
    sim = killed(simulation())
    sim.world.react("delete-snapshot", 101, 0.0, lambda: (sim.world.fail_next("unlock", "no"), sim.kill()))
    sim.world.fail_next("delete-snapshot", "storage is gone")
    sim.world.at(300, lambda: (sim.hold(101, 600.0), sim.restart()))
    sim.run(800)
    assert [verb for _, verb, _, _ in asked(sim)] == ["unlock", "delete-snapshot"]
    assert guest(sim)[0] == "snapshot-delete"
    sim.run(1200)
    assert guest(sim)[0] is None


def test_an_agent_that_is_ending_begins_no_step() -> None:
    sim = killed(simulation())
    assert sim.watch is not None
    sim.world.react("unlock", 101, 0.0, sim.watch.end)
    sim.run(600)
    assert [verb for _, verb, _, _ in asked(sim)] == ["unlock"]


def test_report_begins_no_step_that_prove_had_left() -> None:
    sim = killed(simulation())
    assert sim.watch is not None
    env = sim.watch.env
    only_reports = replace(env.config, locks=replace(env.config.locks, recover="report"))
    sim.world.react("unlock", 101, 0.0, lambda: setattr(env, "config", only_reports))
    sim.run(600)
    assert [verb for _, verb, _, _ in asked(sim)] == ["unlock"]


def test_a_power_cut_during_our_own_delete_leaves_a_lock_that_is_known_to_be_ours() -> None:
    """It is left by no vzdump, PVE's own boot clears `backup` only (pve-facts B4), and the guest would stay down."""
    sim = killed(simulation())
    sim.world.at(242, lambda: sim.host("booting"))
    sim.world.at(400, lambda: sim.host("up"))
    sim.run(390)
    assert guest(sim) == ("snapshot-delete", {"vzdump": "delete"}, False)
    sim.run(3600)
    assert guest(sim) == CLEAN
    assert [verb for _, verb, _, _ in asked(sim)] == ["unlock", "delete-snapshot"] * 2


def test_the_wait_of_a_failed_delete_survives_a_restart() -> None:
    sim = killed(simulation())
    sim.world.fail_next("delete-snapshot", "storage is gone")
    sim.run(900)
    assert guest(sim) == (None, {"vzdump": "delete"}, True)
    sim.restart()
    sim.run(3000)
    assert [verb for _, verb, _, _ in asked(sim)].count("delete-snapshot") == 1
    sim.run(8000)
    assert guest(sim) == CLEAN


def test_an_answer_that_is_lost_is_not_missed_when_the_lock_is_seen_to_be_gone() -> None:
    sim = killed(simulation())
    sim.world.helper.slow(31.0)
    sim.world.at(272, sim.world.helper.up)
    sim.run(600)
    assert told(sim)[:2] == [(240.0, "lock_stale"), (270.0, "unlocked")]
    assert sim.events("unlocked")[0].fields["reason"] == "the helper did not answer in time"


def test_an_answer_that_is_lost_while_the_lock_is_there_is_a_failure() -> None:
    sim = killed(simulation())
    sim.world.helper.hang()
    sim.run(275)
    assert told(sim) == [(240.0, "lock_stale"), (270.0, "lock_step_failed")]


LIVE, SNAPSHOTS = "GET /nodes/pve1/lxc/101/status", "GET /nodes/pve1/lxc/101/snapshot"


def oops(sim: Simulation, at: float, route: str, times: int | None = None) -> None:
    sim.world.at(at, lambda: sim.pve.faults.__setitem__(route, Fault(lambda: PveRefused("500 oops", 500), times=times)))


@pytest.mark.parametrize(("at", "route"), [(240, LIVE), (241, LIVE), (241, SNAPSHOTS)])
@pytest.mark.parametrize("times", [1, 2])
def test_what_came_of_a_step_is_not_judged_before_it_can_be_read(at: float, route: str, times: int) -> None:
    """Nobody is told that something failed that did not, and the guest is not started before its snapshot is deleted."""
    sim = killed(simulation())
    sim.world.at(100, lambda: sim.world.reboot(101))
    oops(sim, at, route, times)
    sim.run(600)
    assert [event for _, event in told(sim)] == ["lock_stale", "unlocked", "snapshot_deleted"]
    assert [(e.verb, e.result) for e in ends(sim, "unlock", "delete-snapshot", "start")] == [
        ("unlock", "ok"),
        ("delete-snapshot", "ok"),
        ("start", "ok"),
    ]
    assert guest(sim) == CLEAN and sim.violation is None


def test_what_stays_unreadable_for_three_looks_may_have_failed() -> None:
    sim = killed(simulation())
    oops(sim, 240, LIVE)
    sim.run(300)
    assert failures(sim) == []
    sim.run(400)
    (failed,) = sim.events("lock_step_failed")
    said = "whether it is still locked cannot be read: 500 oops; lxc/101: lock backup cleared"
    words = "lxc/101 unlock may have failed, what came of it is not known (1 of 6), tried again in 60 s at the earliest: "
    assert failed.message.startswith(words)
    assert failed.fields["reason"] == said and failed.t == 360.0


def test_a_delete_that_fails_unseen_keeps_nobody_down() -> None:
    """The helper could not clear the lock either, and right after that nothing could be read."""
    sim = killed(simulation())
    sim.world.at(100, lambda: sim.world.reboot(101))
    sim.world.react("delete-snapshot", 101, 0.0, lambda: sim.world.fail_next("unlock", "no"))
    sim.world.fail_next("delete-snapshot", "busy")
    oops(sim, 241, SNAPSHOTS, 1)
    sim.run(600)
    assert [event for _, event in told(sim)] == ["lock_stale", "unlocked", "lock_step_failed", "unlocked"]
    assert guest(sim) == (None, {"vzdump": "delete"}, True)


def test_another_lock_that_comes_right_after_the_unlock_is_no_failure() -> None:
    sim = killed(simulation())
    sim.world.react("unlock", 101, 0.0, lambda: sim.world.lock(101, "migrate"))
    sim.run(600)
    assert told(sim) == [(240.0, "lock_stale")]
    assert guest(sim)[0] == "migrate" and verdicts(sim) == {101: LockVerdict.NOBODYS_BUSINESS}


def test_a_helper_that_cannot_be_asked_is_told_once_and_so_is_its_return() -> None:
    sim = killed(simulation())
    sim.world.helper.down()
    sim.world.at(1000, sim.world.helper.up)
    sim.run(1500)
    assert [event for _, event in told(sim)] == ["lock_stale", "helper_failed", "helper_restored", "unlocked", "snapshot_deleted"]
    assert failures(sim) == [] and guest(sim) == CLEAN


# ---------------------------------------------------------------------------------------------------- one at a time


def test_one_unlock_at_a_time() -> None:
    sim = killed(simulation(), 101, 102)
    sim.world.helper.slow(20.0)
    sim.run(1200)
    unlocks = [(t, vmid) for t, verb, vmid, _ in asked(sim) if verb == "unlock"]
    assert unlocks == [(240.0, 101), (260.0, 102)]
    assert guest(sim, 101) == guest(sim, 102) == CLEAN


def test_one_delete_at_a_time() -> None:
    sim = killed(simulation(), 101, 102)
    sim.world.react("unlock", 101, 0.0, lambda: sim.world.helper.slow(100.0))
    sim.world.react("delete-snapshot", 101, 0.0, sim.world.helper.up)
    sim.run(1200)
    deletes = [(t, vmid) for t, verb, vmid, _ in asked(sim) if verb == "delete-snapshot"]
    (begun, first), (then, second) = deletes
    assert (first, second) == (101, 102) and then >= begun + 103
    assert guest(sim, 101) == guest(sim, 102) == CLEAN and failures(sim) == []


# ---------------------------------------------------------------------------------------------------- snapshots


def test_at_most_ten_containers_snapshots_are_read_at_a_look_and_none_again_until_a_file_changes() -> None:
    sim = simulation()
    for vmid in range(101, 126):
        sim.world.add(vmid)
    sim.world.add(201, "qemu")
    sim.world.at(1000, lambda: sim.world.set(103, "tags", "web"))
    sim.run(2000)
    assert reads(sim) == {0.0: 10, 60.0: 10, 120.0: 5, 1020.0: 1}
    assert known(sim) == ()


def test_those_that_cannot_be_read_keep_nobody_from_being_read() -> None:
    sim = simulation()
    for vmid in range(101, 116):
        sim.world.add(vmid, snapshots={"vzdump": ""} if vmid == 115 else {})
    for vmid in range(101, 112):
        sim.pve.faults[f"GET /nodes/pve1/lxc/{vmid}/snapshot"] = Fault(lambda: PveError("500 oops", 500))
    sim.run(400)
    assert guest(sim, 115) == CLEAN


def test_no_snapshots_are_read_while_the_host_gate_is_closed() -> None:
    sim = simulation()
    sim.world.add(101, snapshots={"vzdump": ""})
    sim.hold()
    sim.run(200)
    assert not reads(sim)
    sim.release()
    sim.run(400)
    assert guest(sim) == CLEAN


def test_a_snapshot_without_a_lock_is_found_at_the_look_after_its_file_changed_and_told_once() -> None:
    """C36: PVE's own boot clears the lock and leaves it."""
    sim = simulation(locks={"recover": "report"})
    sim.world.add(101)
    sim.world.at(70, lambda: sim.world.snapshot(101, "vzdump"))
    sim.run(1200)
    assert told(sim) == [(180.0, "lock_stale")] and asked(sim) == []
    assert verdicts(sim) == {101: LockVerdict.STALE}
    sim.world.snapshot(101, "vzdump", None)
    sim.run(1400)
    assert (verdicts(sim), known(sim)) == ({}, ())


def test_the_history_is_read_only_for_a_lock_that_nothing_else_speaks_against_and_once_for_all() -> None:
    sim = simulation()
    for vmid in (101, 102, 103):
        sim.world.add(vmid)
    sim.world.at(30, lambda: sim.world.lock(103, "migrate"))
    sim.run(301)
    assert not [t for t in reads(sim, "typefilter=vzdump") if t > 0]
    sim.world.lock(101, "backup")
    sim.world.lock(102, "backup")
    sim.run(601)
    assert {t: n for t, n in reads(sim, "typefilter=vzdump").items() if t > 301} == {t: 1 for t in (360.0, 420.0, 480.0, 540.0, 600.0)}
    assert verdicts(sim) == {101: LockVerdict.NO_TRACE, 102: LockVerdict.NO_TRACE, 103: LockVerdict.NOBODYS_BUSINESS}


def test_the_log_of_a_dead_backup_is_read_once() -> None:
    sim = killed(simulation(locks={"recover": "report"}))
    sim.run(1800)
    assert verdicts(sim) == {101: LockVerdict.STALE}
    assert sum(reads(sim, "/log").values()) == 1


# ---------------------------------------------------------------------------------------------------- people


def test_a_held_guest_is_left_alone_and_proven_anew_afterwards() -> None:
    sim = killed(simulation())
    sim.world.at(200, lambda: sim.hold(101))
    sim.world.at(500, lambda: sim.release(101))
    sim.run(420)
    assert verdicts(sim) == {101: LockVerdict.HELD} and asked(sim) == []
    sim.run(900)
    assert next(t for t, *_ in asked(sim)) == 600.0 and guest(sim) == CLEAN


def test_a_held_node_is_left_alone() -> None:
    sim = killed(simulation())
    sim.world.at(200, sim.hold)
    sim.run(420)
    assert verdicts(sim) == {101: LockVerdict.HOST_GATE} and asked(sim) == []


def test_rearm_gives_all_attempts_again_at_once() -> None:
    sim = killed(simulation())
    for _ in range(4):
        sim.world.fail_next("unlock", "no")
    sim.run(900)
    assert len(failures(sim)) == 3
    sim.rearm(101)
    sim.run(1300)
    assert [entry["attempt"] for entry in failures(sim)] == [1, 2, 3, 1]
    assert guest(sim) == CLEAN


def reload(sim: Simulation, **settings: Any) -> None:
    assert sim.watch is not None
    values = {"pve": {"token_id": sim.world.token_id}, "locks": settings}
    env = sim.watch.locks.state.env
    sim.config = env.config = parse(values, Path("scenario"))
    helper = getattr(env.helper, "inner", env.helper)
    assert isinstance(helper, SimHelper)
    helper.report_only = not sim.config.rules().lock_recovery


def test_a_new_configuration_is_in_force_at_the_next_look() -> None:
    sim = killed(simulation(locks={"recover": "report"}))
    sim.run(900)
    assert asked(sim) == [] and told(sim) == [(240.0, "lock_stale")]
    reload(sim, recover="prove", confirm="1h")
    sim.run(3000)
    assert asked(sim) == [] and verdicts(sim) == {101: LockVerdict.UNCONFIRMED}
    reload(sim, warn_after="10m", confirm="1m")
    sim.run(3300)
    assert guest(sim) == CLEAN and [event for _, event in told(sim)][1] == "lock_old"


# ---------------------------------------------------------------------------------------------------- power before tidiness


def ends(sim: Simulation, *verbs: str) -> list[Effect]:
    return [effect for effect in sim.world.effects if effect.verb in verbs]


@pytest.mark.parametrize("cleared", [True, False])
def test_what_our_delete_left_is_cleared_at_once_or_soon(cleared: bool) -> None:
    """C39: the delete waits for an hour, and the guest does not, whether another backup has begun or not. What the helper cannot clear the
    agent asks for, once no backup is at work.
    """
    sim = killed(simulation())
    sim.world.add(102)
    sim.world.at(100, lambda: sim.world.reboot(101))
    sim.world.fail_next("delete-snapshot", "zfs error: dataset is busy")
    sim.world.react("delete-snapshot", 101, 0.0, lambda: None if cleared else sim.world.fail_next("unlock", "no"))
    sim.world.react("delete-snapshot", 101, 0.2, lambda: sim.world.backup_begin(102))
    sim.world.at(400, lambda: sim.world.backup_end(102))
    sim.run(600)
    again = [] if cleared else [("unlock", "refused"), ("unlock", "ok")]
    assert [(e.verb, e.result) for e in ends(sim, "unlock", "delete-snapshot", "start")] == [
        ("unlock", "ok"),
        ("delete-snapshot", "failed"),
        *again,
        ("start", "ok"),
    ]
    assert (ends(sim, "start")[0].t < 280) is cleared
    assert guest(sim) == (None, {"vzdump": "delete"}, True)
    sim.run(3700)
    assert len(ends(sim, "delete-snapshot")) == 1
    sim.run(4200)
    assert guest(sim) == CLEAN and sim.violation is None


def test_a_new_lock_does_not_wait_for_the_next_delete() -> None:
    sim = killed(simulation())
    sim.world.fail_next("delete-snapshot", "busy")
    sim.world.at(1000, lambda: sim.world.backup_begin(101))
    sim.world.at(1100, lambda: sim.world.backup_kill(101))
    sim.run(1300)
    assert [(e.t, e.result) for e in ends(sim, "unlock")] == [(240.0, "ok"), (1200.0, "ok")]


def test_a_delete_that_fails_for_good_is_bounded() -> None:
    sim = killed(simulation(watchdog={"interval": "10m"}))
    for _ in range(5):
        sim.world.fail_next("delete-snapshot", "busy")
    sim.run(86400)
    assert [(entry["step"], entry["attempt"]) for entry in failures(sim)] == [("delete-snapshot", n) for n in (1, 2, 3)]
    assert guest(sim) == (None, {"vzdump": "delete"}, True)
