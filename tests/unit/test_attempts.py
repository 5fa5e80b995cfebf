"""How an attempt goes on and ends: success is what was seen of the guest, in time, and never what a task said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestward.model.decision import Outcome
from guestward.model.guest import LiveStatus
from guestward.model.memory import Attempt
from guestward.model.task import Error, Ok, Running, TaskStatus, Unknown, Warnings
from guestward.policy.attempts import answered, begin, end, follow, own_starts, refused
from tests.unit.build import AT, CT, TOKEN, VM, golden, live, memory, rules, task, upid

SENT = Attempt(1, AT, AT + 120, upid=upid("vzstart", "101", TOKEN, at=AT).text)
UP, DOWN, NO_PID = live(), live(running=False), live(pid=None)
Step = tuple[float, TaskStatus | None, LiveStatus | None]


def play(*steps: Step, of: Attempt = SENT) -> Attempt:
    """Follow an attempt through what was answered at those seconds after its begin; what comes after its end is not looked at."""
    for after, said, seen in steps:
        if of.in_flight:
            of = follow(of, AT + after, said, seen)
    return of


def test_the_deadline_is_fixed_before_the_request() -> None:
    """I10."""
    begun = begin(memory(), AT, rules(start_timeout="90s"))
    assert begun.in_flight == Attempt(1, AT, AT + 90)
    assert begin(replace(begun, attempts=(end(SENT, AT, Outcome.FAILED, "x"),)), AT, rules()).attempts[-1].number == 2


class TestAnswer:
    """What PVE answers to the request itself."""

    def test_a_upid_is_kept_and_ends_nothing(self) -> None:
        found = answered(Attempt(1, AT, AT + 120), upid("vzstart", "101", TOKEN), AT)
        assert (found.in_flight, found.upid[:5]) == (True, "UPID:")

    def test_hastart_is_handed_to_ha_and_never_started(self) -> None:
        """C12: it is OK at once and nothing has started."""
        found = answered(Attempt(1, AT, AT + 120), upid("hastart", "101", TOKEN), AT + 1)
        assert (found.outcome, found.ended_at) == (Outcome.HANDED_TO_HA, AT + 1)

    def test_a_container_that_runs_already_is_refused_and_unchanged(self) -> None:
        """pve-facts D1: HTTP 500 at once."""
        found = refused(SENT, AT + 1, "CT 101 already running\n")
        assert (found.outcome, found.ended_at) == (Outcome.UNCHANGED, AT + 1)

    def test_any_other_refusal_is_a_failure_with_its_reason(self) -> None:
        found = refused(SENT, AT + 1, "Permission check failed (/vms/101, VM.PowerMgmt)")
        assert (found.outcome, found.reason) == (Outcome.FAILED, "Permission check failed (/vms/101, VM.PowerMgmt)")
        assert found.ended_at == AT + 1


class TestStarted:
    """Seen running with a pid, in two reads."""

    def test_after_two_reads(self) -> None:
        once = play((1, Ok(), UP))
        assert (once.in_flight, once.live_reads) == (True, 1)
        twice = play((1, Ok(), UP), (2, Ok(), UP))
        assert (twice.outcome, twice.ended_at, twice.reason) == (Outcome.STARTED, AT + 2, "seen running")

    def test_the_two_reads_follow_one_another(self) -> None:
        """A false `running` of 0.1 s while a start fails (recorded) is not half a proof."""
        for between in (DOWN, NO_PID, None):
            assert play((1, Ok(), UP), (2, Ok(), between), (3, Ok(), UP)).in_flight

    def test_running_without_a_pid_is_not_running(self) -> None:
        assert play(*[(n, Ok(), NO_PID) for n in range(1, 5)]).in_flight

    @pytest.mark.parametrize("state", ["prelaunch", "paused", "io-error", "internal-error"])
    def test_a_vm_that_does_no_work_is_not_running(self, state: str) -> None:
        found = play(*[(n, Ok(), live(qmpstatus=state)) for n in range(1, 5)])
        assert found.in_flight

    def test_while_its_task_runs_nothing_is_decided(self) -> None:
        """vzstart holds its task until after the socket exists (timelines 1a); the start may still fail."""
        assert play(*[(n, Running(), UP) for n in range(1, 100)]).in_flight
        assert play((1, Running(), UP), (2, Ok(), UP)).in_flight

    def test_task_ok_is_no_proof(self) -> None:
        """Incident 5."""
        found = play(*[(n, Ok(), DOWN) for n in range(1, 12)])
        assert (found.outcome, "OK" in found.reason) == (Outcome.FAILED, True)

    def test_with_warnings_it_is_started_and_they_are_told(self) -> None:
        """C60."""
        found = play((1, Warnings(2), UP), (2, Warnings(2), UP))
        assert (found.outcome, "WARNINGS: 2" in found.reason) == (Outcome.STARTED, True)

    def test_without_a_task_to_ask_the_guest_alone_tells(self) -> None:
        lost = replace(SENT, upid="")
        found = play((1, None, UP), (2, None, UP), of=lost)
        assert (found.outcome, "lost" in found.reason) == (Outcome.STARTED, True)
        found = play((1, None, UP), (2, None, UP))
        assert (found.outcome, "nothing" in found.reason) == (Outcome.STARTED, True)


class TestFailed:
    """What the task says counts when it says that it failed."""

    def test_with_the_tasks_own_reason(self) -> None:
        found = play((1, Running(), DOWN), (2, Error("storage 'nas' is not online"), DOWN))
        assert (found.outcome, found.reason, found.ended_at) == (Outcome.FAILED, "storage 'nas' is not online", AT + 2)

    def test_even_in_a_false_running(self) -> None:
        """timelines 5a: `running` for 0.1 s while the pre-start hook refuses."""
        assert play((1, Error("CT is locked (backup)"), UP)).outcome is Outcome.FAILED

    @pytest.mark.parametrize(
        ("seen", "right"), [(UP, Outcome.UNCHANGED), (NO_PID, Outcome.UNCHANGED), (DOWN, Outcome.FAILED), (None, Outcome.FAILED)]
    )
    def test_a_vm_that_runs_already_is_refused_by_its_task_and_unchanged(self, seen: LiveStatus | None, right: Outcome) -> None:
        """pve-facts D2; the task's word alone is not enough."""
        found = play((1, Error("VM 201 already running"), seen))
        assert (found.outcome, found.ended_at) == (right, AT + 1)

    @pytest.mark.parametrize("said", [Ok(), Warnings(1)])
    def test_a_second_look_comes_before_the_effect_is_denied(self, said: TaskStatus) -> None:
        """C109: after the task ended, `running` may need a moment; 10 s it has."""
        steps: list[Step] = [(2.0 + n, said, DOWN) for n in range(10)]
        assert play(*steps).in_flight
        assert play(*steps, (12.0, said, DOWN)).outcome is Outcome.FAILED
        assert play(*steps, (11.5, said, UP), (12.5, said, UP)).outcome is Outcome.STARTED

    def test_a_guest_that_cannot_be_read_is_not_said_to_be_down(self) -> None:
        assert play(*[(n, Ok(), None) for n in range(1, 120)]).in_flight


class TestUnknown:
    """Nobody can say: never success, never failure (I9)."""

    @pytest.mark.parametrize(
        "said",
        [
            Unknown("unexpected status"),
            Unknown("no such task"),
            Unknown("stopped without an exit status"),
            Error("received interrupt"),
            Error("interrupted by signal"),
        ],
        ids=str,
    )
    def test_a_task_that_was_cut_off_and_a_guest_that_is_down(self, said: TaskStatus) -> None:
        """A restart of pvedaemon kills the tasks that it runs (timelines 10a); C59, C61."""
        found = play(*[(n, said, DOWN) for n in range(1, 12)])
        assert (found.outcome, found.ended_at) == (Outcome.UNKNOWN, AT + 11)

    @pytest.mark.parametrize("said", [Unknown("unexpected status"), Error("received interrupt")], ids=str)
    def test_a_task_that_was_cut_off_and_a_guest_that_runs_is_started(self, said: TaskStatus) -> None:
        found = play((1, said, UP), (2, said, UP))
        assert (found.outcome, found.reason != "seen running") == (Outcome.STARTED, True)

    def test_a_reader_that_was_a_moment_too_early_is_corrected(self) -> None:
        """C59: from "unexpected status" to OK at the third poll is Ok."""
        early: list[Step] = [(1, Unknown("unexpected status"), DOWN), (2, Unknown("unexpected status"), DOWN)]
        assert play(*early, (3, Ok(), UP), (4, Ok(), UP)).reason == "seen running"
        found = play(*early, *[(n, Ok(), DOWN) for n in range(3, 15)])
        assert (found.outcome, "OK" in found.reason) == (Outcome.FAILED, True)

    def test_a_task_that_is_seen_running_after_all_has_not_ended(self) -> None:
        """Two API workers may differ for a moment: "no such task" and then running is running, for as long as it takes."""
        steps: list[Step] = [(1, Unknown("no such task"), DOWN), *[(float(n), Running(), DOWN) for n in range(2, 40)]]
        assert play(*steps).in_flight
        assert play(*steps, (40, Ok(), UP), (41, Ok(), UP)).outcome is Outcome.STARTED

    @pytest.mark.parametrize(
        ("said", "of", "words"),
        [
            (Running(), SENT, "still running"),
            (None, SENT, "not seen to end"),
            (None, replace(SENT, upid=""), "answer was lost"),
            (None, replace(SENT, task_ended_at=AT + 1, task_said="OK"), "OK"),
        ],
    )
    def test_at_the_deadline_what_was_seen_last_is_told(self, said: TaskStatus | None, of: Attempt, words: str) -> None:
        """C58: never "is running" without having looked."""
        found = follow(of, AT + 120.1, said, None)
        assert (found.outcome, words in found.reason) == (Outcome.UNKNOWN, True)

    def test_a_clear_word_is_not_replaced_by_none(self) -> None:
        """C59: the task said OK, so a guest that does not come is a failure, whatever another API worker says later."""
        steps: list[Step] = [(1, Ok(), DOWN), *[(n, Unknown("unexpected status"), DOWN) for n in range(2, 12)]]
        found = play(*steps)
        assert (found.task_said, found.outcome) == ("OK", Outcome.FAILED)

    def test_a_task_that_is_seen_running_again_has_said_nothing(self) -> None:
        """C59: what an API worker said a moment too early is taken back."""
        again = play((1, Unknown("unexpected status"), DOWN), (2, Running(), DOWN))
        assert (again.task_ended_at, again.task_said) == (None, "")
        assert "still running" in play((121, Running(), DOWN), of=again).reason

    @pytest.mark.parametrize("said", [Ok(), Warnings(1), Error("no space left"), Running(), Unknown("x"), None], ids=str)
    def test_a_late_answer_is_not_accepted_however_good_or_bad(self, said: TaskStatus | None) -> None:
        ready = replace(SENT, live_reads=1, task_ended_at=AT + 1, task_said="OK")
        assert follow(ready, AT + 120.001, said, UP).outcome is Outcome.UNKNOWN

    def test_an_answer_at_the_deadline_is_in_time(self) -> None:
        assert follow(replace(SENT, live_reads=1), AT + 120, Ok(), UP).outcome is Outcome.STARTED


statuses = st.sampled_from([None, Running(), Ok(), Warnings(1), Error("x"), Error("received interrupt"), Unknown("unexpected status")])
lives = st.sampled_from([None, UP, DOWN, NO_PID, live(qmpstatus="running"), live(qmpstatus="paused")])


@given(st.lists(st.tuples(st.floats(0, 90), statuses, lives), max_size=30), st.floats(5, 120))
def test_started_means_two_good_reads_in_time_for_any_delays(delays: list[tuple[float, Any, Any]], timeout: float) -> None:
    """C58: for any delays STARTED implies that the answer came by the deadline, and that the last two reads saw a process at work."""
    tried, at, reads = replace(SENT, deadline=AT + timeout), AT, []
    for delay, said, seen in delays:
        at += delay
        tried = follow(tried, at, said, seen)
        reads.append(seen)
        if not tried.in_flight:
            break
    assert tried.in_flight or tried.ended_at == at
    if tried.outcome is Outcome.STARTED:
        assert at <= tried.deadline
        assert len(reads) >= 2
        assert all(seen is not None and seen.really_running for seen in reads[-2:])
    if at > tried.deadline:
        assert not tried.in_flight


class TestOwnStarts:
    """A start whose answer was lost is found by our token and the birth of its worker, which no clock can falsify (C20)."""

    def test_ours_since_then_oldest_first(self) -> None:
        first, second = task("vzstart", "101", TOKEN, at=AT), task("vzstart", "101", TOKEN, at=AT + 5, said=Ok())
        assert own_starts([second, first, first], CT, TOKEN, AT, AT + 60) == [first.upid, second.upid]

    def test_one_that_was_handed_to_ha_is_ours(self) -> None:
        assert len(own_starts([task("hastart", "201", TOKEN, at=AT)], VM, TOKEN, AT, AT + 60)) == 1
        assert len(own_starts([task("qmstart", "201", TOKEN, at=AT)], VM, TOKEN, AT, AT + 60)) == 1

    def test_one_born_at_the_last_moment_is_ours(self) -> None:
        assert len(own_starts([task("vzstart", "101", TOKEN, at=AT + 60)], CT, TOKEN, AT, AT + 60)) == 1

    def test_the_wall_clock_does_not_matter(self) -> None:
        assert len(own_starts([task("vzstart", "101", TOKEN, at=AT, wall=17)], CT, TOKEN, AT, AT + 60)) == 1

    @pytest.mark.parametrize(
        "other",
        [
            task("vzstart", "101", "root@pam", at=AT),
            task("vzstart", "101", "guestward-pve1@pve!other", at=AT),
            task("vzstart", "101", "guestward-pve1@pve", at=AT),
            task("vzstart", "102", TOKEN, at=AT),
            task("vzstart", "", TOKEN, at=AT),
            task("vzstop", "101", TOKEN, at=AT),
            task("qmstart", "101", TOKEN, at=AT),
            task("vzstart", "101", TOKEN, at=AT - 1),
            task("vzstart", "101", TOKEN, at=AT + 61),
        ],
        ids=[
            "root's",
            "another token's",
            "its user's",
            "another guest's",
            "nobody's",
            "a stop",
            "of the other kind",
            "an older one",
            "of an earlier boot, ahead of now",
        ],
    )
    def test_no_other(self, other: Any) -> None:
        assert own_starts([other], CT, TOKEN, AT, AT + 60) == []


def test_how_an_attempt_ended_is_told_in_words_that_a_person_can_read() -> None:
    """The field `reason` of `start_result`; PVE's own words are passed on as they are."""
    begun, lost, off = Attempt(1, AT, AT + 120), replace(SENT, upid=""), Unknown("unexpected status")
    ends = {
        "handed to HA": answered(begun, upid("hastart", "101", TOKEN), AT + 1),
        "refused, since it runs": refused(begun, AT + 1, "CT 101 already running"),
        "failed, since it runs": play((1, Error("VM 201 already running"), UP)),
        "started": play((1, Ok(), UP), (2, Ok(), UP)),
        "started, with warnings": play((1, Warnings(2), UP), (2, Warnings(2), UP)),
        "started, cut off": play((1, off, UP), (2, off, UP)),
        "started, without a word": play((1, None, UP), (2, None, UP)),
        "started, answer lost": play((1, None, UP), (2, None, UP), of=lost),
        "not there": play(*[(n, Ok(), DOWN) for n in range(1, 12)]),
        "not there, with warnings": play(*[(n, Warnings(2), DOWN) for n in range(1, 12)]),
        "not there, cut off": play(*[(n, off, DOWN) for n in range(1, 12)]),
        "late, task running": play((121, Running(), None)),
        "late, task not seen": play((121, None, None)),
        "late, answer lost": play((121, None, None), of=lost),
        "late, task had ended": play((119, Ok(), DOWN), (121, Ok(), None)),
    }
    golden("words_of_attempts.txt", "".join(f"{name}: {found.outcome}: {found.reason}\n" for name, found in ends.items()))
