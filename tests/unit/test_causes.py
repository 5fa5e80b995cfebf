"""Who stopped a guest, and whether many were stopped at once."""

from __future__ import annotations

from typing import Any

import pytest

from guestward.model.memory import StopCause
from guestward.model.task import Error, Ok, Task
from guestward.policy.causes import born_since, describe, is_changing, is_deliberate, mass_stop, of_this_boot, stop_cause
from tests.unit.build import AT, TOKEN, WALL, cause, golden, task


def ended(kind: str, id: str = "101", user: str = "root@pam", *, at: float = AT - 50, **of: Any) -> Task:
    return task(kind, id, user, **({"said": Ok()} | of), at=at)


def ask(*tasks: Task, vmid: int = 101, ran_until: float | None = None) -> StopCause | None:
    return stop_cause(tasks, vmid, TOKEN, ran_until)


@pytest.mark.parametrize("kind", ["vzstop", "vzshutdown", "qmstop", "qmshutdown", "hastop", "vzsuspend", "qmsuspend"])
def test_a_stop_through_pve_is_found_with_who_and_when(kind: str) -> None:
    found = ask(ended(kind, user="alice@pve", at=AT - 50))
    assert found is not None
    assert (found.task, found.user, found.at, found.wall) == (kind, "alice@pve", AT - 50, WALL - 50)
    assert (found.foreign, found.by_vzdump, is_deliberate(found)) == (True, False, True)
    assert "alice@pve" in describe(found)


@pytest.mark.parametrize("kind", ["vzreboot", "qmreboot"])
def test_a_reboot_is_a_cause_but_no_wish_that_it_stay_down(kind: str) -> None:
    found = ask(ended(kind))
    assert found is not None
    assert not is_deliberate(found)


@pytest.mark.parametrize("kind", ["vzdump", "vzconfig", "vzmigrate", "aptupdate"])
def test_other_tasks_are_no_cause(kind: str) -> None:
    assert ask(ended(kind)) is None


def test_without_a_task_it_was_shut_down_from_inside_or_crashed() -> None:
    """C110."""
    assert ask() is None
    assert ask(ended("vzstop", "102"), ended("vzstop", "1010"), ended("vzstop", "")) is None
    assert "inside" in describe(None)
    assert not is_deliberate(None)


def test_the_newest_task_on_its_power_decides() -> None:
    stop, start = ended("vzstop", at=AT - 100), ended("vzstart", at=AT - 50)
    later = ended("vzshutdown", at=AT - 20, user="bob@pve")
    assert ask(start, stop) is None
    found = ask(later, start, stop)
    assert found is not None
    assert found.user == "bob@pve"


@pytest.mark.parametrize("kind", ["vzstart", "qmstart", "hastart", "qmresume", "vzresume"])
def test_a_stop_before_a_start_explains_nothing(kind: str) -> None:
    assert ask(ended(kind, at=AT - 99), ended("vzstop", at=AT - 100)) is None


def test_a_stop_from_before_it_was_seen_running_explains_nothing() -> None:
    assert ask(ended("vzstop", at=AT - 100), ran_until=AT - 9) is None
    assert ask(ended("vzstop", at=AT - 100), ran_until=AT - 10) is not None


def test_a_stop_that_waited_long_for_the_guest_explains_it_however_early_it_was_asked_for() -> None:
    """A shutdown of a VM waits 180 s and more; a stop that was over before the guest was seen running does not explain it."""
    assert ask(ended("qmshutdown", at=AT - 300, took=240), ran_until=AT - 58) is not None
    assert ask(ended("qmshutdown", at=AT - 300, took=240), ran_until=AT - 57) is None


def test_a_stop_after_the_wall_clock_was_set_back_is_the_newest_all_the_same() -> None:
    """C77, I16: PVE started the guest while the clock was 3 h ahead; PVE lists what ended last first, whatever the clock said."""
    start = ended("vzstart", at=AT - 1000, wall=WALL - 1000 + 3 * 3600)
    found = ask(ended("vzstop", at=AT - 50, wall=WALL - 50), start)
    assert found is not None
    assert found.task == "vzstop"


@pytest.mark.parametrize("kind", ["vzcreate", "vzrestore", "vzdestroy", "qmcreate", "qmrestore", "qmdestroy"])
def test_a_guest_made_or_destroyed_under_the_vmid_since_then_is_another_guest(kind: str) -> None:
    """A restore keeps names, disks and MAC addresses, so the task history is what tells."""
    made = ended(kind, at=AT - 100, took=20)
    assert born_since([ended("vzstop", at=AT - 50), made], 101, AT - 90)
    assert not born_since([made], 101, AT - 70)
    assert not born_since([made], 102, AT - 200)
    assert born_since([task(kind, "101", at=AT - 5)], 101, AT - 1)


def test_ends_are_whole_seconds_so_a_making_may_have_ended_two_before() -> None:
    made = ended("vzrestore", at=AT - 100, took=20)
    assert born_since([made], 101, AT - 78)
    assert not born_since([made], 101, AT - 77.9)


@pytest.mark.parametrize("kind", ["vzstop", "vzdump", "vzconfig", "vzreboot"])
def test_no_other_task_makes_another_guest(kind: str) -> None:
    assert not born_since([ended(kind, at=AT - 50)], 101, AT - 90)


def test_what_was_made_under_other_vmids_or_failed_hides_nothing() -> None:
    made = ended("vzrestore", at=AT - 100)
    others = [ended("vzstart", "102"), ended("vzstart", said=Error("no space left"))]
    assert born_since([*others, made], 101, AT - 200)


def test_a_guest_that_was_started_since_it_was_made_is_itself() -> None:
    made, started = ended("vzrestore", at=AT - 100), ended("vzstart", at=AT - 90)
    assert not born_since([started, made], 101, AT - 200)
    assert born_since([made, started], 101, AT - 200)


def test_the_newest_start_counts_and_one_from_the_second_in_which_the_making_ended() -> None:
    """Ends are whole seconds, so a start may seem to come a second before the end of what it follows."""
    made = ended("vzrestore", at=AT - 100, took=20)
    assert not born_since([ended("vzstart", at=AT - 70), ended("vzstart", at=AT - 300), made], 101, AT - 200)
    assert not born_since([ended("vzstart", at=AT - 81), made], 101, AT - 200)
    assert born_since([ended("vzstart", at=AT - 81.5), made], 101, AT - 200)


def test_a_making_that_failed_made_nobody() -> None:
    assert not born_since([ended("vzrestore", at=AT - 100, said=Error("unable to restore CT 101"))], 101, AT - 200)


def test_a_stop_or_start_that_failed_changed_nothing_but_a_reboot_that_failed_stopped_it() -> None:
    """Timelines 5b: `startup for container '110' failed`."""
    no = Error("CT is locked (backup)")
    assert ask(ended("vzshutdown", said=no)) is None
    assert ask(ended("vzstart", at=AT - 10, said=no), ended("vzstop", at=AT - 50)) is not None
    assert ask(ended("vzreboot", said=no)) is not None


def test_a_stop_that_runs_has_not_stopped_it_yet() -> None:
    running = task("vzshutdown", "101", at=AT - 5)
    assert ask(running) is None
    assert is_changing([running], 101, AT)
    assert not is_changing([running], 102, AT)
    assert not is_changing([ended("vzshutdown"), task("vzstart", "101")], 101, AT)


@pytest.mark.parametrize("kind", ["vzreboot", "qmreboot", "vzrestore", "qmcreate", "vzdestroy"])
def test_a_reboot_and_a_making_that_run_are_changing_it_too(kind: str) -> None:
    assert is_changing([task(kind, "101")], 101, AT)


@pytest.mark.parametrize("kind", ["vzdestroy", "qmdestroy"])
def test_a_destroy_that_ended_since_this_look_began_leaves_open_which_guest_was_listed(kind: str) -> None:
    assert is_changing([ended(kind, at=AT - 22, took=20)], 101, AT)
    assert not is_changing([ended(kind, at=AT - 22, took=19)], 101, AT)
    assert not is_changing([ended(kind, at=AT - 1)], 102, AT)
    assert not is_changing([ended("vzrestore", at=AT - 1)], 101, AT)


@pytest.mark.parametrize(
    ("at", "clock", "kept"),
    [(AT + 1, 0, True), (AT + 1.01, 0, False), (AT - 50, 60, True), (AT - 50, 61, False), (AT - 50, -60, True), (AT - 50, -61, False)],
)
def test_a_task_is_of_this_boot_within_a_second_of_now_and_60_s_of_the_clock(at: float, clock: float, kept: bool) -> None:
    found = ended("vzstop", at=at, wall=WALL - AT + int(at) + clock)
    offset = found.upid.starttime - clock - found.upid.started_boottime
    assert of_this_boot([found], AT, [offset]) == ((found,) if kept else ())


def test_tasks_of_an_earlier_boot_are_left_out() -> None:
    """pstart counts from the worker's own boot, so a task of another boot has another difference of both clocks."""
    now, ahead, before = ended("vzstop", at=AT - 50), ended("vzstop", at=AT + 500), ended("vzstop", at=AT - 50, wall=WALL - 86400)
    assert of_this_boot([now, ahead, before], AT, [WALL - AT]) == (now,)


def test_a_clock_that_was_set_leaves_this_boots_tasks_in() -> None:
    """C77: by NTP after a boot without a clock, further than the host has been up."""
    before, after = ended("vzstop", at=AT - 50), ended("vzstop", at=AT - 5, wall=WALL - 5 + 3 * 86400)
    assert of_this_boot([after, before], AT, [WALL - AT, WALL - AT + 3 * 86400]) == (after, before)


def test_our_own_stop_is_not_foreign() -> None:
    found = ask(ended("vzstop", user=TOKEN))
    assert found is not None
    assert not found.foreign


class TestBackup:
    """vzdump in stop mode runs `qm shutdown`, a qmshutdown task of its own (pve-facts C4)."""

    shutdown = ended("qmshutdown", at=AT - 50)

    @pytest.mark.parametrize("id", ["", "101"])
    def test_inside_a_vzdump_of_this_guest_it_is_part_of_the_backup(self, id: str) -> None:
        for dump in (task("vzdump", id, at=AT - 60), ended("vzdump", id, at=AT - 60, took=30)):
            found = ask(self.shutdown, dump)
            assert found is not None
            assert (found.by_vzdump, is_deliberate(found), "backup" in describe(found)) == (True, False, True)

    @pytest.mark.parametrize(("begun", "took"), [(AT - 50, 30), (AT - 60, 10)], ids=["began in", "ended in"])
    def test_a_vzdump_of_which_the_same_second_is_known_counts(self, begun: float, took: float) -> None:
        found = ask(self.shutdown, ended("vzdump", "101", at=begun, took=took))
        assert found is not None
        assert found.by_vzdump

    @pytest.mark.parametrize(
        "other",
        [
            ended("vzdump", "102", at=AT - 60, took=30),
            ended("vzdump", "101", at=AT - 90, took=30),
            ended("vzdump", "101", at=AT - 40, took=30),
            ended("vzrestore", "101", at=AT - 60, took=30),
        ],
        ids=["another guest's", "ended before", "begun after", "no vzdump"],
    )
    def test_else_it_is_not(self, other: Task) -> None:
        found = ask(self.shutdown, other)
        assert found is not None
        assert is_deliberate(found)

    @pytest.mark.parametrize(
        ("stopped", "dump"),
        [
            ((AT - 50, WALL + 500), task("vzdump", at=AT - 40, wall=WALL - 40)),
            ((AT - 50, WALL - 650), task("vzdump", at=AT - 60, wall=WALL - 60)),
            ((AT - 20, WALL - 50), ended("vzdump", at=AT - 60, wall=WALL - 60, took=30)),
            ((AT - 20, WALL + 580), ended("vzdump", at=AT - 60, wall=WALL - 60, took=630)),
        ],
        ids=["set back before it began", "set back in it", "set back after it", "set on in it"],
    )
    def test_when_the_clock_was_set_a_stop_that_either_clock_places_outside_is_a_persons(
        self, stopped: tuple[float, float], dump: Task
    ) -> None:
        at, wall = stopped
        found = ask(ended("qmshutdown", at=at, wall=wall), dump)
        assert found is not None
        assert is_deliberate(found)

    @pytest.mark.parametrize(("late", "inside"), [(2, True), (2.5, False)])
    def test_an_end_in_whole_seconds_may_be_two_seconds_off_by_the_boot_clock(self, late: float, inside: bool) -> None:
        found = ask(ended("qmshutdown", at=AT - 30 + late, wall=WALL - 30), ended("vzdump", at=AT - 60, wall=WALL - 60, took=30))
        assert found is not None
        assert found.by_vzdump is inside

    def test_any_other_stop_during_a_backup_is_a_persons(self) -> None:
        found = ask(ended("qmstop", at=AT - 50), task("vzdump", "101", at=AT - 60))
        assert found is not None
        assert is_deliberate(found)


def stopped_at_once(causes: list[StopCause], at: float, least: int) -> bool:
    """All of them were found just now."""
    return mass_stop(causes, causes, at, least)


class TestMassStop:
    """Three or more guests stopped by others within 60 s (C14)."""

    def test_one_of_them_at_least_was_found_just_now(self) -> None:
        """Else a guest that crashes later would prolong it."""
        known, later = [cause(at=AT - 300)] * 3, cause(at=AT - 30)
        assert not mass_stop([later], [*known, later], AT, 3)
        assert not mass_stop([], known, AT, 3)
        assert mass_stop([cause(at=AT - 250)], [*known[:2], cause(at=AT - 250)], AT, 3)

    @pytest.mark.parametrize(
        ("times", "right"),
        [
            ((0, 0, 0), True),
            ((0, 30, 60), True),
            ((0, 30, 61), False),
            ((0, 60), False),
            ((0, 100, 130, 160), True),
            ((0, 59, 118, 177), False),
            ((), False),
        ],
    )
    def test_within_a_window_of_60_s(self, times: tuple[float, ...], right: bool) -> None:
        assert stopped_at_once([cause(at=AT - 300 + t) for t in times], AT, 3) is right
        assert stopped_at_once([cause(at=AT - 300 + t) for t in reversed(times)], AT, 3) is right

    @pytest.mark.parametrize(
        "third", [cause(foreign=False), cause("qmshutdown", by_vzdump=True), cause("vzreboot")], ids=["ours", "vzdump's", "a reboot"]
    )
    def test_neither_our_own_nor_vzdumps_stops_count(self, third: StopCause) -> None:
        assert not stopped_at_once([cause(), cause(), third], AT, 3)
        assert stopped_at_once([cause(), cause(), third, cause()], AT, 3)

    def test_stops_of_long_ago_do_not_count(self) -> None:
        assert not stopped_at_once([cause(at=AT - 901)] * 3, AT, 3)
        assert stopped_at_once([cause(at=AT - 900)] * 3, AT, 3)

    def test_stops_of_this_very_moment_count(self) -> None:
        assert stopped_at_once([cause(at=AT)] * 3, AT, 3)
        assert stopped_at_once([cause(at=AT - 0.5)] * 3, AT, 3)
        assert not stopped_at_once([cause(at=AT + 0.5)] * 3, AT, 3)

    def test_the_number_is_the_configurations(self) -> None:
        assert stopped_at_once([cause()] * 2, AT, 2)
        assert not stopped_at_once([cause()] * 4, AT, 5)

    def test_stops_of_an_earlier_boot_do_not_count(self) -> None:
        """Seconds since boot of another boot mean nothing: a host that was up for a month and stopped its guests is not stopping now."""
        assert not stopped_at_once([cause(at=2_600_000.0)] * 3, 120.0, 3)


def test_who_stopped_it_is_told_in_words_that_a_person_can_read() -> None:
    """The field `cause` of the log."""
    causes = (None, cause("vzshutdown", "alice@pve"), cause("qmshutdown", by_vzdump=True))
    golden("words_of_causes.txt", "".join(f"{describe(found)}\n" for found in causes))
