"""The real duty on a simulated host: the watchdog's field cases, its bounds, and what it says (DESIGN.md, Power watchdog)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guestward.duties.env import Result
from guestward.model.events import Level
from guestward.model.observation import UnitState
from guestward.ports import PveAnswerLost, PveError, PveRefused, PveUnreachable
from guestward.sim.doors import Fault, Logged, SimPve, SimStore
from guestward.sim.run import Simulation
from tests.unit.build import CT, down, every, regrant, simulation

BOUND = 95.0
LXC = "GET /nodes/pve1/lxc"
START = "POST /nodes/pve1/lxc/101/status/start"
CURRENT = "GET /nodes/pve1/lxc/101/status/current"
DISABLED = UnitState("loaded", "inactive", "dead", "disabled")
FAILED = UnitState("loaded", "failed", "failed", "enabled")


def lines(sim: Simulation, *names: str, level: Level | None = None) -> list[Logged]:
    return [entry for entry in sim.journal.log if (not names or entry.event in names) and level in (None, entry.level)]


def said(sim: Simulation, *names: str) -> list[tuple[str, str]]:
    return [(entry.event, entry.guard) for entry in lines(sim, *names)]


def outcomes(sim: Simulation, vmid: int = 101) -> list[object]:
    return [entry.fields["outcome"] for entry in lines(sim, "start_result") if entry.guest and entry.guest.vmid == vmid]


def guards(sim: Simulation) -> dict[int, str]:
    """What the last look decided, as `status` shows it."""
    assert sim.store.board is not None
    return {row.decision.id.vmid: str(row.decision.guard) for row in sim.store.board.rows}


def fails(error: type[PveError] = PveError, text: str = "500 oops", status: int = 500, **how: Any) -> Fault:
    return Fault(lambda: error(text, status), **how)


def set_fault(sim: Simulation, route: str, fault: Fault) -> Callable[[], None]:
    return lambda: sim.pve.faults.__setitem__(route, fault)


def lose_state(sim: Simulation) -> None:
    sim.kill()
    sim.store.lose()
    sim.start()


def clear(sim: Simulation) -> None:
    sim.pve.faults.clear()


# ---------------------------------------------------------------------------------------------------- the bound


@settings(max_examples=60)
@given(st.floats(0, 240), st.sampled_from(["lxc", "qemu"]), st.floats(0.1, 40))
def test_a_stopped_guest_is_started_within_95_s_wherever_the_stop_falls_between_two_sweeps(at: float, kind: str, takes: float) -> None:
    sim = simulation()
    down(sim, 101, at, kind=kind, start_takes=takes)
    sim.run(at + 300)
    assert len(sim.starts()) == 1
    assert sim.starts()[0] - at <= BOUND
    assert outcomes(sim) == ["started"]
    assert sim.world.guests[101].running


@settings(max_examples=30)
@given(st.lists(st.floats(0, 200), min_size=2, max_size=6))
def test_each_of_several_guests_is_started_within_the_bound_if_a_turn_is_free(stops: list[float]) -> None:
    sim = simulation(parallel=16, mass_stop=1000)
    for number, at in enumerate(stops):
        down(sim, 101 + number, at)
    sim.run(500)
    assert {vmid: len(sim.starts(vmid)) for vmid in sim.world.guests} == dict.fromkeys(sim.world.guests, 1)
    assert all(sim.starts(101 + number)[0] - at <= BOUND for number, at in enumerate(stops))


def test_the_second_look_is_30_s_after_the_first_and_no_sweep() -> None:
    sim = simulation()
    down(sim, 101, 30)
    sim.run(91)
    assert sim.starts() == [90.0]
    assert sim.store.node_memory.sweeps == 2


def test_a_list_that_fails_once_while_a_container_dies_costs_a_second() -> None:
    """Recorded: one dying container makes the whole list answer 500 for 0.1 s."""
    sim = simulation()
    down(sim, 101, 1)
    sim.world.at(60, set_fault(sim, LXC, fails(times=1)))
    sim.run(200)
    assert lines(sim, "sweep_aborted") == []
    assert sim.starts() == [91.0]


# ---------------------------------------------------------------------------------------------------- attempts


def test_three_attempts_with_1_2_and_4_min_between_them_and_then_exactly_one_error() -> None:
    """C18, I5: whatever the reason, for a whole day."""
    sim = simulation()
    down(sim, 101, start=("fail: start failed: Cannot allocate memory",))
    sim.run(86400)
    assert outcomes(sim) == ["failed"] * 3
    ends = [entry.t for entry in lines(sim, "start_result")]
    waits = [start - end for start, end in zip(sim.starts()[1:], ends, strict=False)]
    assert all(least <= wait < least + 60 for least, wait in zip((60, 120), waits, strict=True))
    (error,) = lines(sim, level=Level.ERROR)
    assert (error.event, error.guard, error.fields["attempts"]) == ("given_up", "exhausted", 3)
    assert 240 <= error.t - ends[-1] < 300
    assert "Cannot allocate memory" in str(error.fields["reason"])
    assert [entry.fields["attempt"] for entry in lines(sim, "start_attempt")] == [1, 2, 3]


def test_the_number_of_attempts_is_the_configurations() -> None:
    sim = simulation(attempts=1, backoff=["10s"])
    down(sim, 101, start=("fail: no",))
    sim.run(3600)
    assert (len(sim.starts()), len(lines(sim, "given_up"))) == (1, 1)


def test_c07_a_guest_that_lives_30_s_gets_three_starts_in_two_hours_and_is_given_up() -> None:
    sim = simulation()
    down(sim, 101, start=("flap 30",))
    sim.run(7200)
    assert outcomes(sim) == ["started"] * 3
    assert len(lines(sim, level=Level.ERROR)) == 1


def test_c07_a_guest_that_was_up_for_a_day_has_all_its_attempts_again() -> None:
    sim = simulation(interval="5m")
    down(sim, 101, start=("ok", "ok", "ok", "fail: x"))
    for day in (1, 2):
        sim.world.at(86400.0 * day, lambda: sim.world.die(101))
    sim.world.at(86400.0 * 3, lambda: sim.world.die(101))
    sim.run(86400 * 3 + 7200)
    assert outcomes(sim) == ["started"] * 3 + ["failed"] * 3
    assert len(lines(sim, "given_up")) == 1


def test_c08_a_restart_of_the_agent_grants_no_attempt_and_repeats_no_error() -> None:
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    for again in range(5):
        sim.world.at(900 + 360 * again, sim.restart)
    sim.run(7200)
    assert len(sim.starts()) == 3
    assert len(lines(sim, "given_up")) == 1


def test_c08_a_lost_state_takes_the_attempts_from_pves_history() -> None:
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    sim.run(900)
    lose_state(sim)
    sim.run(3000)
    assert len(sim.starts()) == 3
    assert guards(sim)[101] == "exhausted"


def test_c08_a_lost_state_does_not_forget_the_attempt_that_is_under_way() -> None:
    """Its task is in the list of active tasks, and not yet in the archive."""
    sim = simulation()
    down(sim, 101, start=("fail: x",), start_takes=20.0)
    sim.world.react("start", 101, 5.0, lambda: lose_state(sim) if len(sim.starts()) == 3 else None)
    sim.run(3000)
    assert len(sim.starts()) == 3


class Killed(BaseException):
    """kill -9 of the agent at this very point."""


def crashes(points: int, *, start: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> tuple[Simulation, int]:
    """Kill the agent at its n-th touch of a door after the first start was decided; points < 0: never. Returns how many there were."""
    sim = simulation()
    down(sim, 101, start=start)
    touches = 0
    note, save = SimPve._note, SimStore.save

    def touch() -> None:
        nonlocal touches
        if sim.world.now >= 90:
            touches += 1
            if touches == points:
                raise Killed

    def called(self: SimPve, route: str) -> None:
        touch()
        note(self, route)

    def saved(self: SimStore, *args: Any) -> None:
        touch()  # lost before it is on disk
        save(self, *args)
        touch()  # on disk, and then dead

    monkeypatch.setattr(SimPve, "_note", called)
    monkeypatch.setattr(SimStore, "save", saved)
    try:
        sim.run(sim.world.now + 130)
        if points < 0:
            return sim, touches
        raise AssertionError(f"point {points} of {touches} was never reached")
    except Killed:
        monkeypatch.undo()
        sim.restart()
        sim.run(1500)
    return sim, touches


@pytest.mark.parametrize(("start", "step"), [(("fail: x",), 1), (("lost before",), 29), (("ok: stays stopped",), 2)], ids=str)
def test_an_agent_killed_at_any_point_of_an_attempt_makes_three_in_all(
    start: tuple[str, ...], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5, I11: before the intent is written, after it, after the request, and at the polls; never a fourth effect, one ERROR."""
    with monkeypatch.context() as patch:
        _, points = crashes(-1, start=start, monkeypatch=patch)
    assert points > 10
    for point in (*range(1, 12), *range(12, points + 1, step)):
        with monkeypatch.context() as patch:
            sim, _ = crashes(point, start=start, monkeypatch=patch)
        assert 2 <= len(sim.starts()) <= 3, point
        assert len(lines(sim, "given_up")) == 1, point
        assert guards(sim)[101] == "exhausted"


@pytest.mark.parametrize("second", range(0, 14))
def test_an_agent_restarted_at_each_second_of_an_attempt_follows_it_and_sends_nothing_twice(second: int) -> None:
    sim = simulation()
    down(sim, 101, start_takes=10.0)
    sim.world.at(90.5 + second, sim.restart)
    sim.run(600)
    assert len(sim.starts()) == 1
    assert outcomes(sim) == ["started"]


def test_an_agent_killed_between_intent_and_request_says_unknown_and_tries_again_later() -> None:
    sim = simulation()
    down(sim, 101)

    def die() -> None:
        raise Killed

    sim.pve.before[START] = die
    with pytest.raises(Killed):
        sim.run(600)
    sim.restart()
    sim.run(900)
    assert outcomes(sim) == ["unknown", "started"]
    assert len(sim.starts()) == 1


# ---------------------------------------------------------------------------------------------------- what PVE answers


@pytest.mark.parametrize("script", ["lost after", "lost before"])
def test_c20_a_start_whose_answer_is_lost_is_one_attempt_and_not_sent_again_blindly(script: str) -> None:
    sim = simulation()
    down(sim, 101, start=(script, "ok"))
    sim.run(900)
    assert outcomes(sim) == (["started"] if script == "lost after" else ["unknown", "started"])
    assert len(sim.starts()) == len(outcomes(sim))
    assert all(b - a >= 120 for a, b in zip(sim.starts(), sim.starts()[1:], strict=False))


def test_c20_a_lost_answer_is_followed_by_its_task() -> None:
    sim = simulation()
    down(sim, 101, start=("lost after",), start_takes=20.0)
    sim.run(900)
    (result,) = lines(sim, "start_result")
    assert (result.fields["outcome"], ":vzstart:101:" in str(result.fields["upid"])) == ("started", True)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (fails(PveUnreachable, "connection refused", 0, times=1), "failed"),
        (fails(PveRefused, "Permission check failed (/vms/101, VM.PowerMgmt)", 403, times=1), "failed"),
        (fails(PveAnswerLost, "596", 596, times=1), "unknown"),
        (fails(PveAnswerLost, "596", 596, times=1, after_effect=True), "started"),
    ],
    ids=["not sent", "refused", "lost before the effect", "lost after the effect"],
)
def test_c66_a_start_that_meets_a_restarting_proxy_has_at_most_one_effect(error: Fault, outcome: str) -> None:
    sim = simulation()
    down(sim, 101)
    sim.pve.faults[START] = error
    sim.run(600)
    assert outcomes(sim)[0] == outcome
    assert [effect.result for effect in sim.world.effects].count("ok") == 1
    assert sim.world.guests[101].running


def test_c66_polls_that_fail_for_20_s_end_nothing() -> None:
    sim = simulation()
    down(sim, 101, start_takes=30.0)
    sim.world.at(95, set_fault(sim, "GET /nodes/pve1/tasks/", fails(PveAnswerLost, "596", 596)))
    sim.world.at(96, set_fault(sim, CURRENT, fails(PveAnswerLost, "596", 596)))
    sim.world.at(116, partial(clear, sim))
    sim.run(600)
    assert outcomes(sim) == ["started"]


def test_a_refusal_of_pvedaemon_for_4_s_during_a_sweep_aborts_it_and_the_next_one_serves() -> None:
    """timelines 10a."""
    sim = simulation()
    down(sim, 101, 30)
    for at, do in ((59, set_fault(sim, "GET /nodes/", fails(PveAnswerLost, "595", 595))), (63, partial(clear, sim))):
        sim.world.at(at, do)
    sim.run(400)
    assert [entry.level for entry in lines(sim, "sweep_aborted")] == [Level.WARN]
    assert sim.starts() == [150.0]


def test_a_start_cut_off_by_a_restart_of_pvedaemon_is_unknown_and_tried_again() -> None:
    sim = simulation()
    down(sim, 101, start_takes=20.0)
    sim.world.at(95, sim.world.restart_pvedaemon)
    sim.run(900)
    assert outcomes(sim) == ["unknown", "started"]


@pytest.mark.parametrize(
    "status", ["unexpected status", "unable to read tail (got 0 bytes)", "unable to get last line from task log - x", ""]
)
def test_c59_a_task_without_a_clear_end_is_neither_success_nor_failure(status: str) -> None:
    sim = simulation()
    down(sim, 101, start=("hang", "ok"))
    sim.world.at(95, lambda: sim.world.task_end("vzstart", "101", said=status))
    sim.run(600)
    assert outcomes(sim) == ["unknown", "started"]


def test_c60_a_start_with_warnings_is_started_and_no_failed_attempt() -> None:
    sim = simulation()
    down(sim, 101, start=("warnings: 1",))
    sim.run(900)
    assert outcomes(sim) == ["started"]
    assert len(sim.starts()) == 1
    assert "WARNINGS: 1" in str(lines(sim, "start_result")[0].fields["reason"])


def test_c61_a_task_that_cannot_be_asked_leaves_the_word_to_the_guest() -> None:
    for error in (fails(PveError, "403", 403), fails(PveError, "500", 500), fails(PveAnswerLost, "595", 595)):
        sim = simulation()
        down(sim, 101)
        sim.pve.faults["GET /nodes/pve1/tasks/"] = error
        sim.run(600)
        assert outcomes(sim) == ["started"]
        sim = simulation()
        down(sim, 101, start=("fail: x", "ok"))
        sim.pve.faults["GET /nodes/pve1/tasks/"] = error
        sim.run(215)
        assert outcomes(sim) == ["unknown"]


def test_a_task_that_says_ok_for_a_guest_that_stays_down_is_a_failure() -> None:
    """Incident 5."""
    sim = simulation()
    down(sim, 101, start=("ok: stays stopped",))
    sim.run(3600)
    assert outcomes(sim) == ["failed"] * 3


def test_c58_a_start_that_hangs_is_unknown_at_its_deadline_and_delays_nobody() -> None:
    sim = simulation()
    down(sim, 101, start=("hang",))
    down(sim, 102)
    sim.run(400)
    (result,) = [entry for entry in lines(sim, "start_result") if entry.guest and entry.guest.vmid == 101]
    assert result.fields["outcome"] == "unknown"
    assert 210 <= result.t <= 212
    assert sim.starts(102) == [90.0]
    assert guards(sim)[101] == "task"


@pytest.mark.parametrize("kind", ["lxc", "qemu"])
def test_a_guest_that_somebody_else_started_a_moment_before_is_unchanged(kind: str) -> None:
    """C10: `already running` means that nothing was changed; for a VM the task says it."""
    sim = simulation()
    down(sim, 101, kind=kind)
    sim.pve.before[START.replace("lxc", kind)] = lambda: sim.world.power_on(101)
    sim.run(600)
    assert outcomes(sim) == ["unchanged"]
    assert len(sim.starts()) == 1
    assert lines(sim, level=Level.WARN) == []


def test_a_lock_that_comes_between_look_and_request_makes_the_start_fail_and_nothing_more() -> None:
    sim = simulation()
    down(sim, 101)
    sim.pve.before[START] = lambda: setattr(sim.world.guests[101], "lock", "backup")
    sim.run(400)
    assert outcomes(sim) == ["failed"]
    assert guards(sim)[101] == "locked"


@pytest.mark.parametrize(
    ("change", "guard"),
    [
        (lambda sim: setattr(sim.world.guests[101], "onboot", False), "onboot_off"),
        (lambda sim: setattr(sim.world.guests[101], "pool", None), "unreadable"),
        (lambda sim: setattr(sim.world.guests[101], "lock", "backup"), "locked"),
        (lambda sim: setattr(sim.world.guests[101], "ha", ("started",)), "ha"),
        (lambda sim: setattr(sim.world.guests[101], "identity", "another"), "new_here"),
        (lambda sim: sim.world.task("vzdump"), "backup"),
        (lambda sim: sim.world.task("vzmigrate", "101"), "task"),
        (lambda sim: sim.world.task("stopall"), "host_gate"),
        (lambda sim: setattr(sim.world, "quorate", False), "host_gate"),
        (lambda sim: setattr(sim.world, "hold_file", True), "host_gate"),
        (lambda sim: sim.hold(101), "held"),
        (lambda sim: sim.world.storage("local", online=False), "storage_offline"),
        (lambda sim: sim.world.acl.revoke("Sys.Audit", "/nodes/pve1"), "backup_unknown"),
        (lambda sim: sim.world.power_on(101), "running"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_changed_between_the_decision_and_the_request_is_seen_right_before_it(change: Callable[[Simulation], Any], guard: str) -> None:
    """I12: target, identity and guards are read again right before the request."""
    sim = simulation()
    down(sim, 101)
    sim.run(89)
    # The look at 90 s decides to start; the first call of the second look, status/current, is preceded by the change.
    sim.pve.before[CURRENT] = lambda: change(sim)
    sim.run(91)
    assert sim.starts() == []
    assert sim.watch is not None
    assert sim.watch.state.decisions[CT].guard == guard


def test_one_guest_that_cannot_be_looked_at_before_its_start_delays_nobody_else() -> None:
    """ "The others are served": 101 comes first by its order, and its status answers 500 for an hour."""
    sim = simulation()
    down(sim, 101, startup="order=1")
    down(sim, 102)
    sim.pve.faults[CURRENT] = fails()
    sim.run(3600)
    assert sim.starts(101) == []
    assert sim.starts(102) != []
    assert sim.starts(102)[0] <= 30 + BOUND + 10
    assert Counter(entry.event for entry in sim.journal.log if entry.guest and entry.guest.vmid == 101)["guest_waiting"] <= 2


# ---------------------------------------------------------------------------------------------------- seeing too little


def test_c01_a_lost_privilege_is_no_empty_host() -> None:
    """Both lists answer 200 with nothing: no sweep is counted, one ERROR names the privilege, the histories stay."""
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    sim.world.add(102)
    sim.world.at(300, lambda: sim.world.acl.revoke("VM.Audit", "/pool/guestward"))
    sim.run(300)
    before, attempts = sim.store.node_memory.sweeps, len(sim.starts())
    sim.run(1500)
    assert sim.store.node_memory.sweeps == before
    assert len(sim.starts()) == attempts
    (lost,) = lines(sim, "grant_lost")
    assert (lost.level, lost.fields["privilege"], lost.fields["path"]) == (Level.ERROR, "VM.Audit", "/pool/guestward")
    assert [entry.level for entry in lines(sim, "sweep_aborted")] == [Level.WARN, Level.ERROR]
    assert lines(sim, "guest_forgotten") == []
    regrant(sim)
    sim.run(6000)
    assert len(lines(sim, "grant_restored")) == 1
    assert len(sim.starts()) == 3


@pytest.mark.parametrize("privilege", ["VM.Audit", "VM.PowerMgmt", "Pool.Audit"])
def test_without_a_privilege_that_proves_ownership_nothing_is_examined_or_started(privilege: str) -> None:
    sim = simulation()
    down(sim, 101)
    sim.world.acl.revoke(privilege, "/pool/guestward")
    sim.run(1200)
    assert (sim.starts(), sim.store.node_memory.sweeps, lines(sim, "heartbeat")) == ([], 0, [])


def test_where_the_pool_cannot_be_read_nobody_is_owned_and_nobody_is_started() -> None:
    """Never the unfiltered list: 101 is listed, stopped, and may be anybody's."""
    sim = simulation()
    sim.world.add(101, running=False)
    sim.pve.faults["GET /pools"] = fails()
    sim.run(1200)
    assert (sim.starts(), sim.store.node_memory.sweeps) == ([], 0)
    assert sim.store.board is not None
    assert (sim.store.board.aborted != "", sim.store.board.last_complete_at) == (True, None)


def test_c01_a_pool_member_that_no_list_shows_makes_the_list_a_lie() -> None:
    sim = simulation()
    sim.world.add(101)
    down(sim, 102)
    sim.world.at(10, lambda: sim.world.hidden.add(102))
    sim.run(1200)
    assert sim.store.node_memory.sweeps == 1
    assert sim.starts() == []
    assert "102" in str(lines(sim, "sweep_aborted")[0].fields["reason"])


def test_a_node_name_that_is_another_nodes_aborts_and_touches_nobody() -> None:
    """One agent a node: asked for pve2 on pve1, the API would answer for pve2, and its guests would be started twice (C31)."""
    sim = simulation()
    down(sim, 101)
    sim.world.local_name = "pve2"
    sim.run(300)
    assert (sim.starts(), [entry.level for entry in lines(sim, "sweep_aborted")]) == ([], ["warn", "error"])
    assert "pve2" in str(lines(sim, "sweep_aborted")[0].fields["reason"])


def test_a_missing_etc_pve_is_no_empty_host() -> None:
    sim = simulation()
    down(sim, 101)
    sim.world.pmxcfs = False
    sim.run(600)
    assert (sim.starts(), sim.store.node_memory.sweeps) == ([], 0)
    assert "pmxcfs" in str(lines(sim, "sweep_aborted")[0].fields["reason"])


def test_an_empty_pool_is_a_counted_sweep_of_no_guests() -> None:
    sim = simulation()
    sim.run(541)
    (beat,) = lines(sim, "heartbeat")
    assert (beat.fields["sweeps_since_boot"], beat.fields["guests_evaluated"], beat.fields["currently_stopped"]) == (10, 0, 0)


@pytest.mark.parametrize(
    ("how_many", "levels"),
    [(1, ["warn"]), (2, ["warn"]), (3, ["warn", "error"]), (20, ["warn", "error"])],
)
def test_aborting_is_a_warning_then_an_error_at_the_third_and_then_silence(how_many: int, levels: list[str]) -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(50, set_fault(sim, LXC, fails()))
    sim.world.at(50 + 60 * how_many, partial(clear, sim))
    sim.run(3600)
    assert [str(entry.level) for entry in lines(sim, "sweep_aborted")] == levels
    (resumed,) = lines(sim, "sweep_resumed")
    assert (resumed.level, resumed.fields["missed_s"]) == (Level.INFO, 60 * how_many - 1)


def test_with_a_long_interval_the_error_comes_after_5_min() -> None:
    sim = simulation(interval="4m")
    sim.world.at(50, set_fault(sim, LXC, fails()))
    sim.run(1200)
    assert [(str(entry.level), entry.fields["aborted_in_a_row"]) for entry in lines(sim, "sweep_aborted")] == [("warn", 1), ("error", 3)]
    sim = simulation(interval="6m")
    sim.world.at(50, set_fault(sim, LXC, fails()))
    sim.run(1200)
    assert [(str(entry.level), entry.fields["aborted_in_a_row"]) for entry in lines(sim, "sweep_aborted")] == [("warn", 1), ("error", 2)]


def test_an_aborted_look_ends_what_was_due() -> None:
    """Nothing is started from a look that is older than one which saw too little."""
    sim = simulation(parallel=1)
    down(sim, 101, start_takes=25.0)
    down(sim, 102)
    sim.world.at(100, set_fault(sim, LXC, fails()))
    sim.run(180)
    assert (sim.starts(101), sim.starts(102)) == ([90.0], [])


def test_one_configuration_that_cannot_be_read_leaves_its_guest_alone_and_serves_the_others() -> None:
    """C26, C97."""
    sim = simulation()
    down(sim, 101)
    down(sim, 102)
    sim.pve.faults["GET /nodes/pve1/lxc/101/config"] = fails()
    sim.run(1300)
    assert (sim.starts(101), sim.starts(102)) == ([], [90.0])
    assert guards(sim)[101] == "unreadable"
    assert ([entry.level for entry in lines(sim, "sweep_incomplete")], sim.store.node_memory.sweeps) == ([Level.WARN, Level.ERROR], 1)
    sim.pve.faults.clear()
    sim.run(1500)
    assert len(lines(sim, "sweep_resumed")) == 1
    assert len(sim.starts(101)) == 1


def test_the_end_of_an_incomplete_time_says_how_long_it_was() -> None:
    sim = simulation()
    down(sim, 101)
    sim.pve.faults["GET /nodes/pve1/lxc/101/config"] = fails()
    sim.world.at(650, partial(clear, sim))
    sim.run(700)
    assert [entry.fields["missed_s"] for entry in lines(sim, "sweep_resumed")] == [600]


def test_c02_without_sys_audit_an_empty_task_list_is_unknown_and_not_no_backup() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(20, lambda: sim.world.backup_begin(101, mode="stop"))
    sim.world.at(21, lambda: setattr(sim.world.guests[101], "lock", None))
    sim.world.at(10, lambda: sim.world.acl.revoke("Sys.Audit", "/nodes/pve1"))
    sim.world.at(11, lambda: sim.world.unreadable.update(flock="denied", pidfile="denied", archives="denied"))
    sim.run(1200)
    assert sim.starts() == []
    assert guards(sim)[101] == "backup_unknown"
    assert (len(lines(sim, "grant_lost")), sim.store.node_memory.sweeps) == (1, 1)
    regrant(sim)
    sim.world.unreadable.clear()
    sim.run(1300)
    assert guards(sim)[101] == "backup"


def test_c02_the_hosts_own_witness_alone_is_a_yes() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(20, lambda: sim.world.backup_begin(101, mode="stop"))
    sim.world.at(21, lambda: setattr(sim.world.guests[101], "lock", None))
    sim.world.acl.revoke("Sys.Audit", "/nodes/pve1")
    sim.run(600)
    assert (sim.starts(), guards(sim)[101]) == ([], "backup")


def test_without_sys_audit_nobody_says_that_no_stop_task_was_found() -> None:
    """The history, too, holds only the token's own tasks then: with operator_stop = hold the guest of a person would be started."""
    sim = simulation(operator_stop="hold")
    sim.world.add(101)
    sim.world.at(10, lambda: sim.world.acl.revoke("Sys.Audit", "/nodes/pve1"))
    sim.world.at(30, lambda: sim.world.stop(101, by="alice@pve"))
    sim.world.at(300, lambda: regrant(sim))
    sim.run(1200)
    assert (sim.starts(), guards(sim)[101]) == ([], "held")
    assert all("no stop task" not in str(entry.fields["cause"]) for entry in lines(sim, "guest_down", "guest_waiting"))


# ---------------------------------------------------------------------------------------------------- heartbeat and calls


def test_the_heartbeat_comes_every_tenth_counted_sweep_and_carries_what_was_seen() -> None:
    sim = simulation()
    sim.world.add(100)
    down(sim, 101, start=("fail: x",))
    sim.world.add(102, onboot=False, running=False)
    sim.world.add(103, lock="migrate", running=False)
    sim.world.add(104, template=True, running=False)
    sim.world.add(105, pool=None, running=False)
    sim.world.add(990000, pool=None, running=False)
    sim.hold(106)
    sim.run(3600)
    beats = lines(sim, "heartbeat")
    assert [entry.t for entry in beats] == [540, 1140, 1740, 2340, 2940, 3540]
    assert [entry.fields["sweeps_since_boot"] for entry in beats] == [10, 20, 30, 40, 50, 60]
    last = beats[-1].fields
    assert (last["guests_evaluated"], last["currently_stopped"]) == (4, 3)
    assert last["left_down"] == [
        {"id": "lxc/101", "name": "guest101", "guard": "exhausted"},
        {"id": "lxc/102", "name": "guest102", "guard": "onboot_off"},
        {"id": "lxc/103", "name": "guest103", "guard": "locked"},
    ]
    assert (last["holds"], last["host_gate"]) == (["106"], [])


def test_the_count_goes_on_over_a_restart_of_the_agent_and_begins_anew_with_the_host() -> None:
    sim = simulation()
    sim.run(300)
    sim.restart()
    sim.run(599)
    assert [entry.fields["sweeps_since_boot"] for entry in lines(sim, "heartbeat")] == [10]
    sim.host("booting")
    sim.host("up")
    sim.run(660)
    assert sim.store.node_memory.sweeps < 3


@pytest.mark.parametrize("pattern", ["all", "every second"])
def test_c97_aborted_sweeps_are_no_life(pattern: str) -> None:
    """Only complete sweeps count, for the heartbeat and for the age of the last one."""
    sim = simulation()
    sim.world.add(101)
    for minute in range(1, 40):
        bad = pattern == "all" or minute % 2
        sim.world.at(60 * minute - 5, set_fault(sim, LXC, fails()) if bad else partial(clear, sim))
    sim.run(60 * 39 + 5)
    board = sim.store.board
    assert board is not None
    counted = 1 if pattern == "all" else 20
    assert sim.store.node_memory.sweeps == board.sweeps == counted
    assert len(lines(sim, "heartbeat")) == counted // 10
    assert board.last_complete_at == sim.world.boot_offset + (0 if pattern == "all" else 60 * 38)


def test_an_aborted_sweep_is_reported_as_one() -> None:
    sim = simulation()
    assert sim.watch is not None
    assert sim.watch.sweep().result is Result.COMPLETE
    sim.pve.faults[LXC] = fails()
    assert sim.watch.sweep().result is Result.ABORTED
    assert sim.watch.confirm().result is None


def test_c26_six_calls_a_sweep_with_3_of_300_guests_stopped() -> None:
    sim = simulation()
    for vmid in range(1000, 1297):
        sim.world.add(vmid, "lxc" if vmid % 2 else "qemu")
    sim.world.add(101, onboot=False, running=False)
    down(sim, 102, start=("fail: x",))
    sim.world.add(103, running=False, lock="migrate")
    sim.run(1190)  # 102 is given up, and still looked at
    for sweep in range(5):
        sim.pve.calls.clear()
        sim.run(1190 + 60 * (sweep + 1))
        assert len(sim.pve.calls) <= 6, sim.pve.calls
    sim.world.guests[101].note = "changed"
    sim.pve.calls.clear()
    sim.run(1190 + 60 * 6)
    assert Counter(call.route for call in sim.pve.calls)["GET /nodes/pve1/lxc/101/config"] == 1
    assert len(sim.pve.calls) <= 9  # and its history and its snapshots are read again: it may have been made anew


def test_a_quiet_host_is_asked_five_things() -> None:
    """HA and storages only when there is a candidate; C109: /cluster/resources never decides what runs."""
    sim = simulation()
    sim.world.add(101)
    sim.run(0)
    sim.pve.calls.clear()  # the very first look seeds the attempts from PVE's history
    sim.run(600)
    assert not any("/cluster/resources" in call.route for call in sim.pve.calls)
    assert len(sim.pve.calls) == 5 * 10


def test_c100_alarms_are_told_on_their_edges_for_seven_days() -> None:
    """Three guests given up, one locked: a line when it begins, and nothing but the heartbeat after it."""
    sim = simulation(interval="10m")
    for vmid in (101, 102, 103):
        down(sim, vmid, start=("fail: x",))
    sim.world.add(104, running=False, lock="migrate")
    sim.world.add(105, running=False, onboot=False)
    sim.run(7 * 86400)
    counted = Counter(entry.event for entry in sim.journal.log)
    assert counted.pop("heartbeat") == 7 * 144 // 10
    assert counted["given_up"] == 3
    assert counted["start_attempt"] == counted["start_result"] == 9
    assert counted["guest_down"] == 4
    assert counted["guest_waiting"] <= 6
    assert sum(counted.values()) <= 3 + 18 + 4 + 6


def test_c100_api_down_for_12_h_is_three_lines() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(30, set_fault(sim, "GET", fails(PveUnreachable, "connection refused", 0)))
    sim.world.at(12 * 3600, partial(clear, sim))
    sim.run(12 * 3600 + 100)
    told = [entry.event for entry in sim.journal.log if entry.event not in ("heartbeat", "daemon_started")]
    assert told == ["sweep_aborted", "sweep_aborted", "sweep_resumed"]


# ---------------------------------------------------------------------------------------------------- backups


def test_incident_1_a_container_that_reboots_in_a_backup_is_started_when_the_backup_is_over() -> None:
    """timelines 5: stopped, unlocked, no task, and vzdump ended OK."""
    sim = simulation()
    sim.world.add(9201)
    sim.world.at(65, lambda: sim.world.backup_begin(9201))
    sim.world.at(70, lambda: sim.world.reboot(9201))
    sim.world.at(600, sim.world.backup_end)
    sim.run(1200)
    assert len(sim.starts()) == 1
    assert 600 < sim.starts()[0] <= 600 + 1 + BOUND
    assert outcomes(sim, 9201) == ["started"]


def test_c03_a_job_of_several_guests_carries_no_vmid_and_defers_all() -> None:
    sim = simulation()
    down(sim, 101)
    sim.world.add(102)
    sim.world.at(25, lambda: sim.world.backup_begin(102, 103))
    sim.world.add(103)
    sim.world.at(600, sim.world.backup_end)
    sim.run(900)
    assert len(sim.starts()) == 1
    assert sim.starts(101)[0] > 601


def test_a_backup_of_one_other_guest_defers_nobody() -> None:
    sim = simulation()
    down(sim, 101)
    sim.world.add(102)
    sim.world.at(25, lambda: sim.world.backup_begin(102))
    sim.run(200)
    assert sim.starts() == [90.0]


@pytest.mark.parametrize("restarts", [True, False])
def test_c04_unlocked_and_stopped_while_vzdump_cleans_up_for_ten_minutes(restarts: bool) -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(10, lambda: sim.world.backup_begin(101, mode="stop"))
    sim.world.vzdump.window, sim.world.vzdump.restarts = 540, restarts
    sim.world.at(60, lambda: sim.world.backup_end(said="OK" if restarts else "WARNINGS: 1"))
    sim.run(1200)
    assert [start for start in sim.starts() if start <= 600] == []
    assert len(sim.starts()) == (0 if restarts else 1)
    assert all(start - 600 <= BOUND for start in sim.starts())
    assert sim.world.guests[101].running


def test_c43_a_job_that_failed_for_another_guest_has_ended_for_this_one_too() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.add(102)
    sim.world.at(10, lambda: sim.world.backup_begin(101, 102, mode="stop"))
    sim.world.vzdump.restarts = False
    sim.world.at(300, lambda: sim.world.backup_end(said="job errors"))
    sim.run(600)
    assert [len(sim.starts(101)), len(sim.starts(102))] == [1, 0]  # 102 was never reached
    assert all(301 <= start <= 301 + BOUND for start in sim.starts())


def test_a_killed_backup_leaves_its_lock_to_lock_recovery_and_its_archive_process_still_reads() -> None:
    """timelines 6c: the flock is free, and that proves nothing."""
    sim = simulation()
    sim.world.add(101)
    sim.world.at(10, lambda: sim.world.backup_begin(101, mode="stop"))
    sim.world.at(100, lambda: sim.world.backup_kill(archive_for=300))
    sim.world.at(200, lambda: setattr(sim.world.guests[101], "lock", None))
    sim.run(190)
    assert guards(sim)[101] == "locked"
    sim.run(390)
    assert guards(sim)[101] == "backup"
    sim.run(900)
    assert len(sim.starts()) == 1
    assert sim.starts()[0] > 400


def test_a_backup_of_more_than_3_h_is_one_warning() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(10, lambda: sim.world.backup_begin(101, mode="stop"))
    sim.run(9 * 3600)
    (warning,) = lines(sim, level=Level.WARN)
    assert (warning.event, sim.starts()) == ("backup_wait_long", [])
    assert 3 * 3600 <= warning.t <= 3 * 3600 + 120


def test_a_guest_that_is_off_on_purpose_waits_for_no_backup() -> None:
    """C100: its nightly backup takes 4 h, and nobody waits for it to come up."""
    sim = simulation()
    sim.world.add(101, running=False, onboot=False)
    sim.world.at(300, lambda: sim.world.backup_begin(101))
    sim.world.at(300 + 4 * 3600, sim.world.backup_end)
    sim.run(5 * 3600)
    assert lines(sim, "backup_wait_long", "guest_down", "guest_waiting") == []


# ---------------------------------------------------------------------------------------------------- guests that are left alone


def test_i1_a_guest_without_onboot_is_never_started() -> None:
    sim = simulation()
    down(sim, 101, onboot=False)
    sim.run(86400 / 4)
    assert sim.starts() == []
    assert said(sim, "guest_down", "guest_waiting") == [("guest_down", "onboot_off")]


def test_c09_onboot_set_to_0_takes_effect_at_the_next_sweep() -> None:
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    sim.world.at(100, lambda: setattr(sim.world.guests[101], "onboot", False))
    sim.run(3600)
    assert len(sim.starts()) == 1


def test_c09_the_start_names_who_stopped_the_guest() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(30, lambda: sim.world.stop(101, by="alice@pve"))
    sim.run(200)
    assert "alice@pve" in str(lines(sim, "start_attempt")[0].fields["cause"])


def test_c10_a_tool_that_stops_changes_and_starts_within_a_minute_is_not_disturbed() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(50, lambda: sim.world.stop(101, by="terraform@pve!t"))
    sim.world.at(80, lambda: sim.world.power_on(101))
    sim.run(600)
    assert sim.starts() == []


def test_c10_while_any_task_for_the_guest_runs_it_is_left_alone() -> None:
    sim = simulation()
    down(sim, 101)
    sim.world.at(40, lambda: sim.world.task("vzconfig", "101", "terraform@pve!t"))
    sim.world.at(500, lambda: sim.world.task_end("vzconfig", "101", said="OK"))
    sim.run(900)
    assert len(sim.starts()) == 1
    assert 500 < sim.starts()[0] <= 500 + BOUND


@pytest.mark.parametrize("phase", [59.5, 60.0, 60.5, 89.5, 90.0])
def test_c110_a_reboot_from_inside_meets_no_start_wherever_its_second_falls(phase: float) -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(phase, lambda: sim.world.reboot(101))
    sim.run(600)
    assert sim.starts() == []


def test_c110_two_reboots_that_fall_on_both_looks_meet_at_most_a_start_that_changes_nothing() -> None:
    sim = simulation()
    sim.world.add(101)
    for at in (59.5, 89.5):
        sim.world.at(at, lambda: sim.world.reboot(101))
    sim.run(600)
    assert set(outcomes(sim)) <= {"unchanged", "started"}
    assert lines(sim, level=Level.ERROR) == []


def test_c110_a_poweroff_from_inside_is_started_and_told_as_one() -> None:
    sim = simulation()
    down(sim, 101)
    sim.run(200)
    assert "shut down from inside, or crashed" in str(lines(sim, "start_attempt")[0].fields["cause"])


@pytest.mark.parametrize("state", [(None,), ("started",), ("stopped",), ("error",)])
def test_c12_a_guest_of_ha_is_left_to_ha(state: tuple[str | None]) -> None:
    sim = simulation()
    down(sim, 101, ha=state)
    sim.run(1200)
    assert (sim.starts(), guards(sim)[101]) == ([], "ha")


def test_c12_ignored_is_not_managed() -> None:
    sim = simulation()
    down(sim, 101, ha=("ignored",))
    sim.run(200)
    assert outcomes(sim) == ["started"]


def test_c12_where_ha_cannot_be_read_nobody_is_started() -> None:
    sim = simulation()
    down(sim, 101)
    sim.pve.faults["GET /cluster/resources"] = fails()
    sim.run(1200)
    assert (sim.starts(), guards(sim)[101]) == ([], "ha")


def test_c12_a_guest_that_came_under_ha_in_the_last_moment_is_handed_over_once_and_never_again() -> None:
    sim = simulation()
    down(sim, 101)
    sim.pve.before[START] = lambda: setattr(sim.world.guests[101], "ha", ("stopped",))
    sim.run(3600)
    assert outcomes(sim) == ["handed_to_ha"]
    assert len(sim.starts()) == 1
    assert lines(sim, level=Level.ERROR) == []


@pytest.mark.parametrize(
    "lock", ["migrate", "clone", "create", "rollback", "disk", "fstrim", "mounted", "suspended", "suspending", "frobnicate"]
)
def test_c22_c23_a_lock_is_nobodys_business_whatever_its_age_and_is_told_once(lock: str) -> None:
    sim = simulation(interval="10m")
    down(sim, 101, lock=lock)
    sim.run(2 * 86400)
    assert sim.starts() == []
    assert len(lines(sim, "guest_down", "guest_waiting")) == 1


def test_c24_a_template_is_no_guest_that_needs_care() -> None:
    sim = simulation()
    sim.world.add(9000, template=True, running=False)
    sim.run(700)
    assert (sim.starts(), lines(sim, "heartbeat")[0].fields["currently_stopped"]) == ([], 0)


def test_c32_the_scratch_band_is_never_started_whatever_its_onboot_and_pool() -> None:
    sim = simulation()
    for vmid, pool in ((990000, None), (990009, "guestward")):
        sim.world.add(vmid, running=False, pool=pool)
    sim.run(6000)
    assert (sim.starts(), guards(sim)[990009]) == ([], "scratch_band")


def test_a_guest_outside_the_pools_is_nobody_here() -> None:
    sim = simulation()
    down(sim, 101, pool="other")
    sim.run(600)
    assert sim.starts() == []


@pytest.mark.parametrize("state", ["paused", "io-error", "internal-error"])
def test_c21_a_vm_that_runs_and_does_not_work_is_one_warning_and_never_touched(state: str) -> None:
    sim = simulation()
    sim.world.add(110, "qemu")
    sim.world.at(30, lambda: setattr(sim.world.guests[110], "qmp", state))
    sim.run(3600)
    assert [(entry.event, entry.fields["state"]) for entry in lines(sim, level=Level.WARN)] == [("not_working", state)]
    assert sim.world.effects == []
    sim.world.guests[110].qmp = "running"
    sim.run(3800)
    assert len(lines(sim, "working_again")) == 1


def test_c21_a_frozen_container_is_one_warning() -> None:
    sim = simulation()
    sim.world.add(101, frozen=True)
    sim.run(3600)
    assert [entry.event for entry in lines(sim, level=Level.WARN)] == ["not_working"]


# ---------------------------------------------------------------------------------------------------- the host


@pytest.mark.parametrize("kind", ["stopall", "suspendall", "migrateall", "startall", "bulk-shutdown"])
def test_c14_while_a_task_on_all_guests_runs_nothing_is_started(kind: str) -> None:
    sim = simulation()
    sim.world.at(20, lambda: sim.world.task(kind))
    down(sim, 101)
    sim.world.at(900, lambda: sim.world.task_end(kind, said="OK"))
    sim.run(1200)
    assert 900 < sim.starts()[0] <= 900 + BOUND
    assert len(lines(sim, "host_gate_closed")) == len(lines(sim, "host_gate_opened")) == 1


def test_c14_while_systemd_stops_the_host_nothing_is_started() -> None:
    sim = simulation()
    sim.world.at(20, lambda: setattr(sim.world, "system", "stopping"))
    down(sim, 101)
    sim.run(900)
    assert sim.starts() == []


def test_c14_three_guests_stopped_by_others_at_once_are_a_mass_stop_for_15_min() -> None:
    sim = simulation()
    for vmid in (101, 102, 103):
        sim.world.add(vmid)
        sim.world.at(vmid - 80, lambda vmid=vmid: sim.world.stop(vmid))
    sim.run(1200)
    (closed,) = lines(sim, "host_gate_closed")
    assert (closed.level, closed.fields["reasons"], closed.t) == (Level.WARN, ["mass_stop"], 60)
    assert len(lines(sim, "host_gate_opened")) == 1
    assert 60 + 900 <= sim.starts()[0] <= 60 + 900 + BOUND
    assert set(sim.world.guests) == {effect.vmid for effect in sim.world.effects}


def test_all_guests_of_a_host_that_goes_down_are_no_mass_stop() -> None:
    sim = simulation()
    sim.world.at(20, lambda: setattr(sim.world, "pve_guests", UnitState("loaded", "deactivating", "stop", "enabled")))
    for vmid in (101, 102, 103):
        sim.world.add(vmid)
        sim.world.at(30, lambda vmid=vmid: sim.world.stop(vmid))
    sim.run(300)
    assert [entry.fields["reasons"] for entry in lines(sim, "host_gate_closed")] == [["stopping"]]


def test_a_mass_stop_is_not_prolonged_by_a_guest_that_crashes_in_it() -> None:
    """It counts from its detection."""
    sim = simulation()
    for vmid in (101, 102, 103):
        sim.world.add(vmid)
        sim.world.at(30, lambda vmid=vmid: sim.world.stop(vmid))
    down(sim, 104, 700)
    sim.run(2400)
    assert 960 <= sim.starts()[0] <= 960 + BOUND


def test_two_stops_or_three_crashes_are_no_mass_stop() -> None:
    sim = simulation()
    for vmid in (101, 102):
        sim.world.add(vmid)
        sim.world.at(30, lambda vmid=vmid: sim.world.stop(vmid))
    for vmid in (103, 104, 105):
        down(sim, vmid)
    sim.run(300)
    assert len(sim.starts()) == 5


def test_a_mass_stop_outlasts_a_restart_of_the_agent() -> None:
    sim = simulation()
    for vmid in (101, 102, 103):
        sim.world.add(vmid)
        sim.world.at(30, lambda vmid=vmid: sim.world.stop(vmid))
    sim.world.at(300, sim.restart)
    sim.run(950)
    assert sim.starts() == []


def test_c15_during_boot_nothing_is_started_and_afterwards_what_is_still_down_in_order() -> None:
    sim = simulation(parallel=1)
    sim.world.add(101, startup="order=2", lock="snapshot")
    sim.world.add(102, startup="order=1", lock="snapshot")
    sim.run(100)
    sim.host("booting")
    sim.run(1000)
    assert sim.starts() == []
    sim.host("up")
    sim.run(1005)
    for guest in sim.world.guests.values():
        guest.lock = None
    sim.run(1300)
    assert [effect.vmid for effect in sim.world.effects] == [102, 101]
    assert all(start - 1000 <= BOUND + 60 for start in sim.starts())


def test_c15_a_boot_that_pve_finished_leaves_nothing_to_do() -> None:
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    sim.run(900)
    sim.kill()
    sim.host("booting")
    sim.start()
    sim.run(1100)
    sim.host("up")
    sim.run(2000)
    assert len(sim.starts()) == 3
    assert sim.world.guests[101].running


def test_a_host_boot_gives_all_attempts_again() -> None:
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    sim.run(900)
    sim.kill()
    sim.host("booting")
    sim.world.pve_guests = FAILED
    sim.start()
    sim.run(2400)
    assert len(sim.starts()) == 6
    assert len(lines(sim, "host_warning")) == 1


def test_guests_that_were_stopped_before_a_boot_are_no_mass_stop_in_it() -> None:
    """stopall at the shutdown stops them all; pve-guests failed, so it is for us to start them."""
    sim = simulation()
    for vmid in (101, 102, 103):
        sim.world.add(vmid)
    sim.run(100)
    sim.kill()
    for vmid in (101, 102, 103):
        sim.world.stop(vmid)
    sim.host("booting")
    sim.world.pve_guests = FAILED
    sim.start()
    sim.run(100 + BOUND)
    assert sim.starts() != []
    assert lines(sim, "host_gate_closed") == []


def test_without_pve_guests_the_boot_is_over_after_15_min() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.kill()
    sim.host("booting")
    sim.world.pve_guests = DISABLED
    sim.start()
    sim.run(1100)
    assert 890 <= sim.starts()[0] <= 890 + BOUND
    assert len(lines(sim, "host_warning")) == 1


def test_c16_two_hours_without_quorum_use_no_attempt() -> None:
    sim = simulation()
    down(sim, 101)
    sim.world.quorate = False
    sim.run(7200)
    assert (sim.starts(), len(lines(sim, "host_gate_closed"))) == ([], 1)
    assert lines(sim, "heartbeat")[-1].fields["host_gate"] == ["no_quorum"]
    sim.world.quorate = True
    sim.run(7300)
    assert outcomes(sim) == ["started"]
    assert lines(sim, "start_attempt")[0].fields["attempt"] == 1


def test_c17_a_storage_that_comes_back_after_an_hour_finds_the_guest_with_all_its_attempts() -> None:
    sim = simulation()
    sim.world.storage("nas", online=False)
    down(sim, 101, storages=frozenset({"local", "nas"}))
    sim.world.at(3600, lambda: sim.world.storage("nas", online=True))
    sim.run(4000)
    assert 3600 <= sim.starts()[0] <= 3600 + 180
    assert (len(sim.starts()), outcomes(sim)) == (1, ["started"])


def test_c17_a_guest_that_was_given_up_is_armed_again_when_its_storage_is_seen_back() -> None:
    """The storage went away after the third attempt had failed."""
    sim = simulation()
    sim.world.storage("nas", online=True)
    down(sim, 101, storages=frozenset({"nas"}), start=("fail: x", "fail: x", "fail: x", "ok"))
    sim.world.at(900, lambda: sim.world.storage("nas", online=False))
    sim.world.at(1500, lambda: sim.world.storage("nas", online=True))
    sim.run(1800)
    assert outcomes(sim) == ["failed"] * 3 + ["started"]
    assert 1500 <= sim.starts()[3] <= 1500 + 180
    assert [entry.event for entry in lines(sim, "rearmed")] == ["rearmed"]


def test_c31_a_hold_file_stops_everything_and_says_so_once() -> None:
    sim = simulation()
    for vmid in (101, 102, 103):
        sim.world.add(vmid, running=False)
    sim.world.hold_file = True
    sim.run(3600)
    assert sim.world.effects == []
    assert len(lines(sim, "host_gate_closed")) == 1
    sim.world.hold_file = False
    sim.run(3800)
    assert len(sim.starts()) == 3


def test_maintenance_stops_everything() -> None:
    sim = simulation()
    down(sim, 101)
    sim.world.maintenance = True
    sim.run(900)
    assert sim.starts() == []


def test_c76_twelve_guests_on_a_slow_store_come_up_two_at_a_time() -> None:
    sim = simulation()
    sim.world.most_starts = 2
    for vmid in range(101, 113):
        down(sim, vmid, start_takes=40.0)
    sim.run(1200)
    assert all(guest.running for guest in sim.world.guests.values())
    assert Counter(effect.vmid for effect in sim.world.effects) == Counter(range(101, 113))
    assert max(sim.starts()) <= 90 + 6 * 45


@pytest.mark.parametrize("jump", [-3 * 3600, 3 * 3600, 10 * 365 * 86400])
def test_c77_a_jump_of_the_wall_clock_changes_neither_sweeps_nor_waits(jump: float) -> None:
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    sim.world.at(95, lambda: setattr(sim.world, "wall_offset", sim.world.wall_offset + jump))
    sim.run(1200)
    calm = simulation()
    down(calm, 101, start=("fail: x",))
    calm.run(1200)
    assert sim.starts() == calm.starts()
    assert [entry.t for entry in lines(sim, "heartbeat")] == [entry.t for entry in lines(calm, "heartbeat")]


@pytest.mark.parametrize("jump", [-3 * 3600, 3 * 3600])
def test_c77_a_jump_while_the_answer_is_lost_does_not_hide_our_task(jump: float) -> None:
    sim = simulation()
    down(sim, 101, start=("lost after",), start_takes=20.0)
    sim.world.at(95, lambda: setattr(sim.world, "wall_offset", sim.world.wall_offset + jump))
    sim.run(600)
    assert outcomes(sim) == ["started"]
    assert len(sim.starts()) == 1


def test_c109_the_node_lists_decide_and_the_resources_are_asked_for_ha_and_storages_only() -> None:
    """`/cluster/resources` has no status that could be read: what runs comes from the lists and status/current."""
    sim = simulation()
    sim.world.add(101)
    sim.world.at(57, lambda: sim.world.die(101))
    sim.run(95)
    assert said(sim, "guest_down") == [("guest_down", "unconfirmed")]
    assert outcomes(sim) == ["started"]


# ---------------------------------------------------------------------------------------------------- operators


def test_c09_a_held_guest_is_started_after_its_hold_and_the_hold_is_told_on_its_edges() -> None:
    sim = simulation()
    down(sim, 101)
    sim.hold(101, 1800)
    sim.run(3600)
    assert 1800 < sim.starts()[0] <= 1800 + BOUND
    assert [entry.fields["scope"] for entry in lines(sim, "held", "released")] == ["101", "101"]


def test_a_held_node_starts_nobody_until_its_hold_ends() -> None:
    sim = simulation()
    down(sim, 101)
    down(sim, 102)
    sim.hold(None, 1800)
    sim.run(3600)
    assert 1800 < min(sim.starts()) <= 1800 + BOUND
    assert [entry.fields["scope"] for entry in lines(sim, "held", "released")] == ["node", "node"]


def test_a_hold_outlasts_a_restart_of_the_agent() -> None:
    sim = simulation()
    down(sim, 101)
    sim.hold(101, 1800)
    sim.world.at(600, sim.restart)
    sim.run(1799)
    assert sim.starts() == []


def test_a_hold_outlasts_a_boot_of_the_host_by_the_wall_clock() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.hold(101, 1800)
    sim.run(300)
    sim.kill()
    sim.host("booting")
    sim.world.pve_guests = FAILED
    sim.start()
    sim.run(3600)
    assert 1800 < sim.starts()[0] <= 1800 + BOUND


def test_released_before_its_end_a_guest_is_started_within_the_bound() -> None:
    sim = simulation()
    down(sim, 101)
    sim.hold(101)
    sim.world.at(600, sim.store.hold_list.clear)
    sim.run(900)
    assert 600 < sim.starts()[0] <= 600 + BOUND
    assert len(lines(sim, "released")) == 1


def test_rearm_gives_a_guest_that_was_given_up_three_more_attempts() -> None:
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    sim.world.at(1000, lambda: sim.store.rearms.append(101))
    sim.run(3000)
    assert len(sim.starts()) == 6
    assert len(lines(sim, "given_up")) == 2
    assert len(lines(sim, "rearmed")) == 1


def test_a_change_of_configuration_gives_three_more_attempts() -> None:
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    sim.world.at(1000, lambda: setattr(sim.world.guests[101], "note", "memory 1024"))
    sim.run(3000)
    assert len(sim.starts()) == 6


class TestOperatorStop:
    """`operator_stop = "hold"`."""

    def stopped(self, by: str = "alice@pve") -> Simulation:
        sim = simulation(operator_stop="hold")
        sim.world.add(101)
        sim.world.at(30, lambda: sim.world.stop(101, by=by))
        return sim

    def test_a_stop_by_a_person_holds_until_it_ran(self) -> None:
        sim = self.stopped()
        sim.run(7200)
        assert (sim.starts(), guards(sim)[101]) == ([], "held")
        assert "alice@pve" in str(lines(sim, "guest_down")[0].fields["evidence"])
        sim.world.task("vzstart", "101", "alice@pve", said="OK")
        sim.world.power_on(101)
        sim.run(7400)
        sim.world.die(101)
        sim.run(7400 + BOUND)
        assert len(sim.starts()) == 1

    @pytest.mark.parametrize("how", ["rearm", "configuration", "restart of the agent"])
    def test_until_it_is_rearmed_or_reconfigured(self, how: str) -> None:
        sim = self.stopped()
        sim.run(1000)
        if how == "rearm":
            sim.store.rearms.append(101)
        elif how == "configuration":
            sim.world.guests[101].note = "changed"
        else:
            sim.restart()
        sim.run(1500)
        assert len(sim.starts()) == (0 if how == "restart of the agent" else 1)

    def test_a_crash_is_started(self) -> None:
        sim = simulation(operator_stop="hold")
        down(sim, 101)
        sim.run(200)
        assert len(sim.starts()) == 1

    def test_a_crash_is_not_explained_by_a_stop_of_long_ago(self) -> None:
        sim = simulation(operator_stop="hold")
        sim.world.add(101)
        sim.world.task("vzstop", "101", "alice@pve", said="OK")
        sim.run(3600)
        sim.world.die(101)
        sim.run(3600 + BOUND)
        assert len(sim.starts()) == 1

    def test_while_the_history_cannot_be_read_it_holds(self) -> None:
        sim = self.stopped()
        sim.pve.faults["GET /nodes/pve1/tasks?source=archive"] = fails()
        sim.run(600)
        assert (sim.starts(), guards(sim)[101]) == ([], "held")


# ---------------------------------------------------------------------------------------------------- order


def test_guests_are_started_in_order_and_after_the_delay_of_the_one_before() -> None:
    sim = simulation(parallel=4)
    down(sim, 103, startup="order=1,up=30")
    down(sim, 102, startup="order=2,up=15")
    down(sim, 101, startup="order=3")
    down(sim, 100)
    sim.run(600)
    assert [effect.vmid for effect in sim.world.effects] == [103, 102, 101, 100]
    ran = {entry.guest.vmid: entry.t for entry in lines(sim, "start_result") if entry.guest}
    assert sim.starts(102)[0] - ran[103] >= 30
    assert sim.starts(101)[0] - ran[102] >= 15


@pytest.mark.parametrize("takes", [1.0, 20.0, 27.0, 28.0, 29.0, 30.0, 45.0, 89.0])
def test_the_delay_holds_wherever_a_sweep_falls_into_the_start(takes: float) -> None:
    sim = simulation()
    down(sim, 101, startup="order=1,up=30", start_takes=takes)
    down(sim, 102, startup="order=2")
    sim.run(600)
    ran = next(entry.t for entry in lines(sim, "start_result") if entry.guest and entry.guest.vmid == 101)
    assert sim.starts(102)[0] >= ran + 30


def test_a_later_order_waits_for_an_earlier_one_that_a_sweep_sees_running_before_its_start_has_ended() -> None:
    """A VM is listed as running long before its qmstart task ends."""
    sim = simulation()
    down(sim, 101, startup="order=1", start=("hang", "ok"))
    down(sim, 102, startup="order=2")
    sim.world.at(100, lambda: sim.world.power_on(101))
    sim.world.at(180, lambda: sim.world.task_end("vzstart", "101", said="OK"))
    sim.run(600)
    assert sim.starts(102)[0] >= 180


def test_an_earlier_order_that_fails_does_not_keep_the_later_ones_down() -> None:
    sim = simulation()
    down(sim, 101, startup="order=1", start=("fail: x",))
    down(sim, 102, startup="order=2")
    sim.run(600)
    assert sim.starts(102)[0] <= 30 + BOUND


def test_the_world_that_reacts_to_a_start_is_met_as_it_is() -> None:
    """A person stops the guest again one second after each of our starts: three times, and then it is given up."""
    sim = simulation()
    down(sim, 101)
    sim.world.react("start", 101, 0.5, lambda: sim.world.later(0.6, lambda: sim.world.stop(101)))
    sim.run(3600)
    assert len(sim.starts()) == 3
    assert len(lines(sim, "given_up")) == 1


# ---------------------------------------------------------------------------------------------------- who is here


def test_a_guest_created_under_our_eyes_is_not_started_until_it_ran() -> None:
    """A restored or cloned guest is somebody's work, whatever its onboot says."""
    sim = simulation()

    def create() -> None:
        guest = sim.world.create(101)
        guest.onboot, guest.pool = True, "guestward"

    sim.world.at(100, create)
    sim.run(3600)
    assert (sim.starts(), guards(sim)[101]) == ([], "new_here")
    sim.world.power_on(101)
    sim.run(3700)
    sim.world.die(101)
    sim.run(3900)
    assert len(sim.starts()) == 1


@pytest.mark.parametrize("how", ["rearm", "boot"])
def test_new_here_ends_by_rearm_and_at_a_host_boot(how: str) -> None:
    sim = simulation()
    sim.run(100)
    guest = sim.world.create(101)
    guest.onboot, guest.pool = True, "guestward"
    sim.run(300)
    if how == "rearm":
        sim.store.rearms.append(101)
    else:
        sim.kill()
        sim.host("booting")
        sim.world.pve_guests = FAILED
        sim.start()
    sim.run(600)
    assert len(sim.starts()) == 1


def test_guests_found_down_at_the_very_first_sweep_are_not_new() -> None:
    sim = simulation()
    sim.world.add(101, running=False)
    sim.run(100)
    assert sim.starts() == [30.0]


def test_a_guest_that_was_replaced_under_its_vmid_is_another_guest() -> None:
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    sim.world.at(600, lambda: setattr(sim.world.guests[101], "identity", "another"))
    sim.run(3600)
    assert len(sim.starts()) == 3
    assert guards(sim)[101] == "new_here"
    assert len(lines(sim, "guest_forgotten")) == 1


@pytest.mark.parametrize("how", ["leaves the pool", "moves away", "is destroyed"])
def test_a_guest_that_goes_is_forgotten_with_one_line(how: str) -> None:
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    sim.world.add(102)
    go = {
        "leaves the pool": lambda: setattr(sim.world.guests[101], "pool", None),
        "moves away": lambda: sim.world.migrate(101, "pve2"),
        "is destroyed": lambda: sim.world.destroy(101),
    }
    sim.world.at(200, go[how])
    sim.run(1800)
    assert len(sim.starts()) == 2
    (entry,) = lines(sim, "guest_forgotten")
    assert (entry.level, entry.guest is not None and entry.guest.vmid == 101) == (Level.INFO, True)
    assert lines(sim, "sweep_aborted") == []


@pytest.mark.parametrize("between", ["GET /nodes/pve1/qemu", "GET /pools", "GET /nodes/pve1/tasks"])
@pytest.mark.parametrize(("how", "reason"), [("moves away", "it moved to node pve2"), ("is destroyed", "it was destroyed")])
def test_a_guest_that_goes_between_two_calls_of_one_look_is_told_as_what_it_did(between: str, how: str, reason: str) -> None:
    """/etc/pve is read before the lists and these before the pools: a guest that is in no pool at the end may be on no list either."""
    sim = simulation()
    down(sim, 101, start=("fail: x",))
    sim.world.add(102)
    go = {"moves away": lambda: sim.world.migrate(101, "pve2"), "is destroyed": lambda: sim.world.destroy(101)}
    sim.world.at(200, lambda: sim.pve.before.__setitem__(between, go[how]))
    sim.run(1800)
    assert [entry.fields["reason"] for entry in lines(sim, "guest_forgotten")] == [reason]


def test_a_guest_that_comes_back_to_the_node_it_ran_on_is_not_new() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(100, lambda: sim.world.migrate(101, "pve2"))
    sim.world.at(1000, lambda: (sim.world.die(101), sim.world.migrate(101, "pve1")))
    sim.run(1200)
    assert len(sim.starts()) == 1


def test_a_guest_that_moves_here_for_the_first_time_is_new() -> None:
    sim = simulation()
    sim.world.add(101, node="pve2", running=False)
    sim.world.at(100, lambda: sim.world.migrate(101, "pve1"))
    sim.run(1200)
    assert (sim.starts(), guards(sim)[101]) == ([], "new_here")


def test_a_guest_that_vanishes_during_its_attempt_ends_it_as_unknown() -> None:
    sim = simulation()
    down(sim, 101, start=("hang",))
    sim.world.at(100, lambda: sim.world.destroy(101))
    sim.run(600)
    assert outcomes(sim) == ["unknown"]
    assert len(sim.starts()) == 1


def test_an_agent_that_is_asked_to_end_begins_nothing_more() -> None:
    sim = simulation()
    down(sim, 101)
    sim.run(89)
    assert sim.watch is not None
    sim.watch.end()
    sim.run(600)
    assert sim.starts() == []


def test_looks_at_a_host_that_flaps_between_good_and_bad_never_overlap_or_start_twice() -> None:
    """Every 7 s the API fails or recovers, for two hours: a guest that dies is started once, and nothing else happens."""
    sim = simulation()
    down(sim, 101, 1000)
    every(sim, 14, set_fault(sim, LXC, fails()), until=7200)
    every(sim, 14, partial(clear, sim), until=7200, start=7)
    sim.run(7200)
    assert len(sim.starts()) == 1
    assert outcomes(sim) == ["started"]


# ---------------------------------------------------------------------------------------------------- what the history tells


ARCHIVE = "GET /nodes/pve1/tasks?source=archive"


def test_a_guest_restored_over_itself_between_two_looks_is_new_though_alike_in_every_mark() -> None:
    """C32: it ran at the last look, and the one that is there now did not."""
    sim = simulation()
    sim.world.add(101)
    sim.world.at(70, partial(sim.world.restore, 101))
    sim.run(3600)
    assert (sim.starts(), guards(sim)[101]) == ([], "new_here")
    assert len(lines(sim, "guest_forgotten")) == 1


def test_such_a_guest_is_not_started_because_the_history_could_not_be_read_at_first() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(70, partial(sim.world.restore, 101))
    sim.world.at(119, set_fault(sim, ARCHIVE, fails(times=2)))
    sim.run(3600)
    assert (sim.starts(), guards(sim)[101]) == ([], "new_here")


def test_a_guest_restored_over_itself_while_it_is_known_to_be_down_is_new() -> None:
    sim = simulation()
    down(sim, 101, 5)
    sim.world.at(63, partial(sim.world.restore, 101))
    sim.run(3600)
    assert (sim.starts(), guards(sim)[101]) == ([], "new_here")


def test_a_guest_that_ran_since_it_was_made_without_a_start_task_is_itself() -> None:
    """A live restore, or `systemctl start pve-container@`: nothing but its making is in the history."""
    sim = simulation()
    sim.world.add(200, "qemu")
    sim.world.at(40, partial(sim.world.restore, 200))
    sim.world.at(41, partial(sim.world.power_on, 200))
    sim.world.at(3600, partial(sim.world.die, 200))
    sim.run(4000)
    assert len(sim.starts()) == 1


def test_a_guest_that_ran_only_just_after_it_was_made_is_itself_when_it_dies() -> None:
    """It was seen running once: whether by a start task or by a live restore, it is no stranger."""
    for start in (True, False):
        sim = simulation()
        sim.world.add(101)
        sim.world.at(100, partial(sim.world.restore, 101))
        if start:
            sim.world.at(109, partial(sim.world.task, "vzstart", "101", said="OK"))
        sim.world.at(110, partial(sim.world.power_on, 101))
        sim.world.at(130, partial(sim.world.die, 101))
        sim.run(400)
        assert len(sim.starts()) == 1


def test_a_guest_that_appears_while_sweeps_are_incomplete_is_new_all_the_same() -> None:
    sim = simulation()
    down(sim, 102)
    sim.pve.faults["GET /nodes/pve1/lxc/102/config"] = fails()
    sim.world.at(3605, lambda: setattr(sim.world.create(104), "onboot", True))
    sim.world.at(3606, lambda: setattr(sim.world.guests[104], "pool", "guestward"))
    sim.run(5000)
    assert (sim.starts(104), guards(sim)[104]) == ([], "new_here")


def test_a_stop_task_that_still_runs_at_the_look_is_the_cause_when_it_has_ended() -> None:
    """Recorded: the list says `stopped` before the task has ended."""
    sim = simulation(operator_stop="hold")
    sim.world.add(101)

    def stop() -> None:
        task = sim.world.task("vzshutdown", "101")
        sim.world.guests[101].running = False
        sim.world.later(6, partial(sim.world.end_task, task, "OK"))

    sim.world.at(59, stop)
    sim.run(900)
    assert (sim.starts(), guards(sim)[101]) == ([], "held")


def test_nobody_is_started_while_the_history_cannot_be_read_and_that_is_said() -> None:
    """Three guests stopped by a UPS script could be among them (C14)."""
    sim = simulation()
    for vmid in (101, 102, 103):
        sim.world.add(vmid)
        sim.world.at(130, partial(sim.world.stop, vmid, "ups@pam"))
    sim.world.at(60, set_fault(sim, ARCHIVE, fails()))
    sim.run(1000)
    assert (sim.starts(), lines(sim, "start_attempt")) == ([], [])
    assert [entry.level for entry in lines(sim, "sweep_incomplete")] == [Level.WARN, Level.ERROR]
    assert not any("no stop task" in str(entry.fields) for entry in lines(sim))
    sim.pve.faults.clear()
    sim.run(1100)
    assert "mass_stop" in str(lines(sim, "host_gate_closed")[0].fields["reasons"])


def test_vzdumps_own_shutdown_is_no_operators_stop_while_vzdump_still_runs() -> None:
    """pve-facts C4: stop mode runs `qm shutdown`, a task of root's."""
    sim = simulation(operator_stop="hold")
    sim.world.add(200, "qemu")

    def backup() -> None:
        sim.world.task("vzdump", "200")
        sim.world.task("qmshutdown", "200", said="OK")
        sim.world.guests[200].running = False

    sim.world.at(30, backup)
    sim.world.at(300, lambda: sim.world.task_end("vzdump", "200", said="OK"))
    sim.run(900)
    assert len(sim.starts()) == 1


def test_a_stop_that_failed_stopped_nobody() -> None:
    sim = simulation(operator_stop="hold")
    sim.world.add(101)
    sim.world.at(20, lambda: sim.world.task("vzshutdown", "101", said="CT is locked (backup)"))
    down(sim, 101, 30)
    sim.run(300)
    assert len(sim.starts()) == 1


def test_the_line_before_a_start_says_who_stopped_it_and_when() -> None:
    """C09."""
    sim = simulation()
    sim.world.add(101)
    sim.world.at(30, partial(sim.world.stop, 101, "alice@pve"))
    sim.run(300)
    (attempt,) = lines(sim, "start_attempt")
    assert str(attempt.fields["cause"]) == "vzstop by alice@pve at 2030-03-17 17:47:10 UTC"


def test_a_stop_of_an_earlier_boot_holds_nobody() -> None:
    sim = simulation(operator_stop="hold")
    sim.world.add(101)
    sim.world.at(30, partial(sim.world.stop, 101))
    sim.world.at(300, lambda: sim.host("booting"))
    sim.world.at(400, lambda: setattr(sim.world, "pve_guests", FAILED))
    sim.run(900)
    assert len(sim.starts()) == 1


def test_starts_of_an_earlier_boot_are_no_attempts_when_the_state_is_lost_at_the_crash() -> None:
    """C80: the power cut that damaged the state."""
    sim = simulation()
    down(sim, 101, 5)
    sim.run(200)
    assert len(sim.starts()) == 1
    sim.host("booting")
    lose_state(sim)
    sim.world.at(300, lambda: setattr(sim.world, "pve_guests", FAILED))
    sim.run(600)
    assert len(sim.starts()) == 2


def test_an_attempt_that_the_host_crash_ended_is_told_as_unknown() -> None:
    sim = simulation()
    down(sim, 101, 5, start=("hang",))
    sim.run(95)
    sim.host("booting")
    sim.run(200)
    assert outcomes(sim) == ["unknown"]


def test_a_moment_of_running_without_a_pid_ends_nothing() -> None:
    """Recorded (timelines 5a): a start that fails in the pre-start hook shows `running` for 0.1 s."""
    sim = simulation(operator_stop="hold")
    sim.world.add(101)
    sim.world.at(30, partial(sim.world.stop, 101))
    sim.world.at(179, lambda: (setattr(sim.world.guests[101], "running", True), setattr(sim.world.guests[101], "no_pid", True)))
    sim.world.at(181, lambda: (setattr(sim.world.guests[101], "running", False), setattr(sim.world.guests[101], "no_pid", False)))
    sim.run(900)
    assert (sim.starts(), guards(sim)[101], lines(sim, "guest_up")) == ([], "held", [])


def test_each_new_thing_that_cannot_be_read_is_told_and_an_error_when_it_lasts() -> None:
    """C97, I18."""
    sim = simulation()
    down(sim, 101)
    sim.pve.faults["GET /nodes/pve1/lxc/101/config"] = fails()
    sim.world.at(1000, set_fault(sim, "GET /nodes/pve1/tasks?source=active", fails()))
    sim.run(86400)
    told = lines(sim, "sweep_incomplete")
    assert [(entry.t, entry.level) for entry in told] == [(60, Level.WARN), (360, Level.ERROR), (1020, Level.WARN)]
    assert "active tasks" in str(told[-1].fields["reason"])


def test_a_look_before_the_start_that_always_fails_is_not_silent() -> None:
    sim = simulation()
    down(sim, 101, 5)
    sim.world.at(6, set_fault(sim, CURRENT, fails()))
    sim.run(3600)
    assert (sim.starts(), guards(sim)[101]) == ([], "unreadable")
    assert Level.ERROR in [entry.level for entry in lines(sim, "sweep_incomplete")]


@pytest.mark.parametrize("witness", ["names", "maintenance", "frozen", "hold_file", "quorum", "pve-guests", "system"])
def test_a_witness_of_the_host_that_cannot_be_read_makes_sweeps_incomplete(witness: str) -> None:
    sim = simulation()
    sim.world.add(101)
    sim.run(1)
    sim.world.unreadable[witness] = "Permission denied"
    sim.run(400)
    assert [entry.level for entry in lines(sim, "sweep_incomplete")] == [Level.WARN, Level.ERROR]
    assert sim.store.node_memory.sweeps == 1


def test_names_that_cannot_be_read_for_a_moment_make_nobody_forgotten() -> None:
    sim = simulation()
    sim.world.add(101, pool=None)
    sim.world.at(100, lambda: sim.world.unreadable.update(names="blink"))
    sim.world.at(130, sim.world.unreadable.clear)
    sim.world.at(200, lambda: setattr(sim.world.guests[101], "pool", "guestward"))
    sim.world.at(250, partial(sim.world.die, 101))
    sim.run(600)
    assert len(sim.starts()) == 1


def test_holds_that_cannot_be_known_close_the_gate() -> None:
    sim = simulation()
    down(sim, 101, 5)
    sim.store.holds_lost = "the state is of a newer version"
    sim.run(900)
    assert (sim.starts(), guards(sim)[101]) == ([], "host_gate")
    sim.store.holds_lost = ""
    sim.run(1100)
    assert len(sim.starts()) == 1


def test_c07_what_starts_but_does_not_stay_up_is_given_up_in_these_words() -> None:
    sim = simulation()
    down(sim, 101, start=("flap 30",))
    sim.run(7200)
    (error,) = lines(sim, "given_up")
    assert error.fields["reason"] == "it starts, but does not stay up"


def test_a_guest_restored_over_itself_right_before_its_start_is_not_started() -> None:
    """I12: the file that changed between the decision and the request makes who it is a question again."""
    sim = simulation()
    down(sim, 101, 5)
    sim.pve.before[CURRENT] = partial(sim.world.restore, 101)
    sim.run(3600)
    assert (sim.starts(), guards(sim)[101]) == ([], "new_here")


def outside(sim: Simulation, vmid: int) -> Callable[[], None]:
    return lambda: setattr(sim.world.guests[vmid], "pool", None)


def inside(sim: Simulation, vmid: int) -> Callable[[], None]:
    return lambda: setattr(sim.world.guests[vmid], "pool", "guestward")


@pytest.mark.parametrize("left_at", [10.0, 100.0])
def test_a_guest_restored_while_it_was_outside_the_pool_is_new_when_it_joins(left_at: float) -> None:
    """The file under /etc/pve is watched for guests that the token may not see, too."""
    sim = simulation()
    sim.world.add(101)
    sim.world.at(left_at, outside(sim, 101))
    sim.world.at(200, partial(sim.world.restore, 101))
    sim.world.at(400, inside(sim, 101))
    sim.run(900)
    assert (sim.starts(), guards(sim)[101]) == ([], "new_here")


def test_a_guest_that_was_outside_the_pool_and_is_still_the_same_is_started() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(100, outside(sim, 101))
    sim.world.at(250, partial(sim.world.die, 101))
    sim.world.at(400, inside(sim, 101))
    sim.run(900)
    assert len(sim.starts()) == 1


def set_clock(sim: Simulation, seconds: float) -> Callable[[], None]:
    return lambda: setattr(sim.world, "wall_offset", sim.world.wall_offset + seconds)


@pytest.mark.parametrize("step", [3 * 3600.0, 3 * 86400.0, -3 * 3600.0])
def test_c77_a_clock_that_is_set_hides_no_restore(step: float) -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(100, partial(sim.world.restore, 101))
    sim.world.at(110, set_clock(sim, step))
    sim.run(900)
    assert (sim.starts(), guards(sim)[101]) == ([], "new_here")


@pytest.mark.parametrize("step", [3 * 3600.0, 3 * 86400.0, -3 * 3600.0])
def test_c77_a_clock_that_is_set_hides_no_mass_stop(step: float) -> None:
    sim = simulation()
    for vmid in range(101, 106):
        sim.world.add(vmid)
        sim.world.at(100, partial(sim.world.stop, vmid))
    sim.world.at(110, set_clock(sim, step))
    sim.run(900)
    assert sim.starts() == []
    assert "mass_stop" in str(lines(sim, "host_gate_closed")[0].fields["reasons"])


def test_a_restore_while_the_names_cannot_be_read_is_found_all_the_same() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.hold(101, 900)
    sim.world.at(70, partial(sim.world.die, 101))
    sim.world.at(200, lambda: sim.world.unreadable.update(names="EIO"))
    sim.world.at(300, partial(sim.world.restore, 101))
    sim.world.at(500, sim.world.unreadable.clear)
    sim.run(2000)
    assert (sim.starts(), guards(sim)[101]) == ([], "new_here")


def test_c08_a_state_lost_while_a_flapping_guest_happens_to_run_grants_nothing() -> None:
    sim = simulation()
    down(sim, 101, 10, start=("flap 200",))
    for at in (700, 1500, 2300, 3100):
        sim.world.at(at, partial(lose_state, sim))
    sim.run(3500)
    assert len(sim.starts()) <= 3


@pytest.mark.parametrize("again", [False, True])
def test_a_stop_right_after_a_rearmed_guest_came_up_holds_again(again: bool) -> None:
    """What a rearm lifted was the stop before it; no sweep need have seen the guest run in between."""
    sim = simulation(operator_stop="hold")
    sim.world.add(101)
    sim.world.at(30, partial(sim.world.stop, 101))
    sim.world.at(110, lambda: sim.store.rearms.append(101))
    if again:
        sim.world.at(160, partial(sim.world.stop, 101))
    sim.run(900)
    assert (len(sim.starts()), guards(sim)[101]) == (1, "held" if again else "running")


def test_a_rearm_of_a_running_guest_lifts_no_stop_that_comes_later() -> None:
    sim = simulation(operator_stop="hold")
    sim.world.add(101)
    sim.world.at(100, lambda: sim.rearm(101))
    sim.world.at(230, lambda: sim.world.stop(101, by="alice@pve"))
    sim.run(900)
    assert (sim.starts(), guards(sim)[101]) == ([], "held")


def test_a_rearm_before_the_stop_was_seen_lifts_it() -> None:
    sim = simulation(operator_stop="hold")
    sim.world.add(101)
    sim.world.at(100, lambda: sim.world.stop(101, by="alice@pve"))
    sim.world.at(101, lambda: sim.rearm(101))
    sim.run(900)
    assert len(sim.starts()) == 1
