"""When jobs run: one at a time, at moments of the boot clock, whatever becomes of the wall clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, tzinfo

import apscheduler.schedulers.base
import pytest

from guestward.adapters.cadence import Cadence

HOURS, YEARS = 3600.0, 365 * 86400.0
SOON = 10.0  # within which everything happens that is to happen at once


class SettableClock:
    """The real clocks, with a wall clock and a boot clock that can be set apart; APScheduler is shown the same wall clock."""

    ahead = 0.0
    slept = 0.0

    def boottime(self) -> float:
        return time.monotonic() + self.slept

    def wall(self) -> float:
        return time.time() + self.ahead

    def boot_id(self) -> str:
        return "boot"

    def pause(self, seconds: float) -> None:
        raise NotImplementedError


class Job:
    """Counts its runs, and may be told to take its time."""

    def __init__(self, do: Callable[[], None] = lambda: None) -> None:
        self.times: list[float] = []
        self._do = do
        self._ran = threading.Condition()

    def __call__(self) -> None:
        self._do()
        with self._ran:
            self.times.append(time.monotonic())
            self._ran.notify_all()

    @property
    def runs(self) -> int:
        return len(self.times)

    def ran(self, times: int, within: float = SOON) -> bool:
        with self._ran:
            return self._ran.wait_for(lambda: self.runs >= times, within)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SettableClock:
    clock = SettableClock()

    class Wall(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.fromtimestamp(clock.wall(), tz)

    monkeypatch.setattr(apscheduler.schedulers.base, "datetime", Wall)
    return clock


@pytest.fixture
def cadence(clock: SettableClock) -> Iterator[Cadence]:
    cadence = Cadence(clock)
    cadence.start()
    yield cadence
    assert cadence.stop(SOON)


def due(cadence: Cadence, name: str) -> float:
    found = cadence.due_in(name)
    assert found is not None
    return found


def test_a_job_runs_again_and_again_in_step(cadence: Cadence) -> None:
    job = Job()
    cadence.every("job", 0.05, job, first_in=0.05)
    assert job.runs == 0 and job.ran(10)


def test_the_first_run_is_at_once_unless_it_is_put_off(cadence: Cadence) -> None:
    now, later = Job(), Job()
    cadence.every("now", 60, now)
    cadence.every("later", 60, later, first_in=30)
    assert now.ran(1)
    assert 0 < due(cadence, "later") <= 30 and later.runs == 0


def test_once_is_once_and_what_is_overdue_runs_now(cadence: Cadence, clock: SettableClock) -> None:
    past, future, other = Job(), Job(), Job()
    cadence.once("past", 0.0, past)
    cadence.once("future", clock.boottime() + 0.05, future)
    assert past.ran(1) and future.ran(1)
    assert cadence.due_in("past") is None and cadence.due_in("future") is None
    cadence.every("other", 0.01, other)
    assert other.ran(5)
    assert (past.runs, future.runs) == (1, 1)


def test_a_job_of_the_same_name_is_replaced_and_one_that_is_dropped_runs_no_more(cadence: Cadence) -> None:
    old, new, dropped, other = Job(), Job(), Job(), Job()
    cadence.every("job", 60, old, first_in=0.2)
    cadence.every("job", 0.02, new)
    cadence.every("dropped", 60, dropped, first_in=0.2)
    cadence.drop("dropped")
    cadence.drop("dropped")
    cadence.drop("never was")
    assert cadence.due_in("dropped") is None and cadence.due_in("never was") is None
    cadence.every("other", 0.02, other)
    assert new.ran(15) and other.ran(15)
    assert old.runs == dropped.runs == 0


def test_never_two_at_once_and_what_was_missed_is_made_up_for_once(cadence: Cadence, caplog: pytest.LogCaptureFixture) -> None:
    """C27. No warning for each run that was missed either: they would be errors in the journal."""
    inside, most = [0], [0]
    gate = threading.Event()

    def slow() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        gate.wait(SOON)
        inside[0] -= 1

    long, short, probe = Job(slow), Job(slow), Job()
    cadence.every("long", 0.02, long)
    cadence.every("short", 0.02, short, first_in=0.01)
    cadence.once("probe", 0.0, probe)
    assert not probe.ran(1, 0.3)  # fifteen runs of each are missed meanwhile
    before = time.monotonic()
    gate.set()
    assert long.ran(3) and short.ran(3) and most == [1]
    assert sum(moment < before + 0.015 for moment in long.times) <= 2
    assert caplog.records == []


def test_a_job_may_drop_or_replace_itself_and_others(cadence: Cadence, clock: SettableClock) -> None:
    def drop() -> None:
        cadence.drop("self")
        cadence.every("other", 60, other, first_in=60)

    other, second = Job(), Job()
    first = Job(lambda: cadence.every("renewed", 0.01, second))
    dropper = Job(drop)
    cadence.every("other", 0.01, other, first_in=30)
    cadence.every("self", 0.01, dropper)
    cadence.every("renewed", 0.01, first)
    assert dropper.ran(1) and first.ran(1) and second.ran(3)
    assert (dropper.runs, first.runs, other.runs) == (1, 1, 0)
    assert cadence.due_in("self") is None and due(cadence, "other") > 30


def test_a_job_that_is_replaced_while_it_waits_for_its_turn_does_not_run(cadence: Cadence) -> None:
    gate, began = threading.Event(), threading.Event()
    blocker = Job(lambda: bool(began.set()) or gate.wait(SOON))  # type: ignore[arg-type, func-returns-value]
    old, new = Job(), Job()
    cadence.once("blocker", 0.0, blocker)
    assert began.wait(SOON)
    cadence.once("job", 0.0, old)
    assert not old.ran(1, 0.1)  # handed over, and in the queue behind the blocker
    cadence.once("job", 0.0, new)
    gate.set()
    assert new.ran(1)
    assert old.runs == 0


def test_a_job_that_fails_comes_again(cadence: Cadence, caplog: pytest.LogCaptureFixture) -> None:
    job = Job()

    def fail() -> None:
        job()
        raise RuntimeError("a defect")

    cadence.every("job", 0.01, fail)
    assert job.ran(3)


@pytest.mark.parametrize("jump", [-3 * HOURS, 3 * HOURS, 10 * YEARS, -50 * YEARS])
def test_a_wall_clock_that_is_set_moves_no_run(cadence: Cadence, clock: SettableClock, jump: float) -> None:
    """I16, C77: the gap between two sweeps stays what it is."""
    sweep, confirm = Job(), Job()
    cadence.every("sweep", 0.3, sweep, first_in=0.3)
    cadence.every("far", 60, Job(), first_in=50)
    cadence.once("confirm", clock.boottime() + 0.3, confirm)
    clock.ahead += jump
    cadence.follow_clock()
    assert due(cadence, "sweep") <= 0.3 and 49 < due(cadence, "far") <= 50
    assert sweep.ran(3) and confirm.ran(1)
    assert sweep.times[2] - sweep.times[0] < SOON / 2
    assert confirm.runs == 1


@pytest.mark.parametrize("jump", [-3 * HOURS, 10 * YEARS])
def test_what_is_planned_or_due_before_the_jump_was_noticed_is_not_lost(cadence: Cadence, clock: SettableClock, jump: float) -> None:
    """The jump is noticed up to a second late. Until then jobs are planned by the new clock, and a jump ahead makes old ones due."""
    sweep, confirm, far, again = Job(), Job(), Job(), Job()
    cadence.every("sweep", 0.1, sweep)
    cadence.every("far", 60, far, first_in=50)
    assert sweep.ran(1)
    clock.ahead += jump
    cadence.once("confirm", clock.boottime() + 0.2, confirm)
    cadence.every("again", 0.1, again, first_in=0.1)
    probe = Job()
    cadence.once("probe", 0.0, probe)
    assert probe.ran(1)  # the scheduler has looked at its jobs
    seen = sweep.runs
    cadence.follow_clock()
    assert confirm.ran(1) and again.ran(3) and sweep.ran(seen + 3)
    assert far.runs == 0 and 40 < due(cadence, "far") <= 50


def test_small_steps_of_the_clock_add_up(cadence: Cadence, clock: SettableClock) -> None:
    job = Job()
    cadence.every("job", 0.5, job, first_in=0.5)
    for _ in range(10):
        clock.ahead -= 1000.2  # each is noticed
        cadence.follow_clock()
    for _ in range(10):
        clock.ahead -= 0.2  # not one by one
        cadence.follow_clock()
    assert job.ran(2)


def test_after_the_host_slept_what_is_due_runs_at_once(cadence: Cadence, clock: SettableClock) -> None:
    job = Job()
    cadence.every("job", 3600, job, first_in=1800)
    clock.slept += 7000  # the scheduler's own timer did not count that
    clock.ahead += 7000
    cadence.follow_clock()
    assert job.ran(1)
    assert 0 < due(cadence, "job") <= 2 * 3600  # made up for once, and in step again
    other = Job()
    cadence.once("other", 0.0, other)
    assert other.ran(1) and job.runs == 1


def test_stop_waits_for_the_job_that_runs_and_begins_no_other(clock: SettableClock) -> None:
    cadence = Cadence(clock)
    cadence.start()
    gate, began = threading.Event(), threading.Event()

    def busy() -> None:
        began.set()
        gate.wait(SOON)

    running, queued = Job(busy), Job()
    cadence.every("running", 0.01, running)
    cadence.every("queued", 0.01, queued, first_in=0.01)
    assert began.wait(SOON)
    assert not queued.ran(1, 0.1)
    assert cadence.stop(0.05) is False
    gate.set()
    assert running.ran(1)
    assert not queued.ran(1, 0.1)
    assert running.runs == 1 and queued.runs == 0


def test_stop_without_a_job_under_way_is_immediate(clock: SettableClock) -> None:
    cadence = Cadence(clock)
    cadence.start()
    cadence.every("job", 60, Job(), first_in=30)
    began = time.monotonic()
    assert cadence.stop(SOON) is True
    assert time.monotonic() - began < SOON / 2
