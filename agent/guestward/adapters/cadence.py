"""When things are done: APScheduler, kept right when the wall clock is set or the host was asleep.

APScheduler 3 thinks in wall time: after the clock was set back by three hours it would sleep for three hours, and after it was set ahead
by years it would count every run that it missed (I16, C77). So each run is planned by itself, at a moment of CLOCK_BOOTTIME that is kept
here; APScheduler only knows when that is by the wall clock of now, and is told anew when that clock is set.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from guestward.ports import Clock

NOTICEABLE = 0.5
# That never two run at once is our doing: APScheduler would log a warning and drop the run for good.
_NO_LIMIT = 1_000_000


@dataclass(slots=True, eq=False)
class _Plan:
    """due: seconds since host boot. period None: it is run once."""

    name: str
    due: float
    period: float | None
    do: Callable[[], None]


class Cadence:
    """Runs jobs one after the other in one thread: never two at once, and what was missed is made up for once."""

    def __init__(self, clock: Clock) -> None:
        """Nothing runs before `start`."""
        self._clock = clock
        self._busy = threading.Lock()
        self._guard = threading.RLock()
        self._plans: dict[str, _Plan] = {}
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": _NO_LIMIT, "misfire_grace_time": None},
        )
        self._wall_offset = clock.wall() - clock.boottime()
        self._sleep_offset = clock.boottime() - time.monotonic()

    def start(self) -> None:
        """Begin to run jobs."""
        self._scheduler.start()

    def every(self, name: str, seconds: float, do: Callable[[], None], *, first_in: float = 0.0) -> None:
        """Run a job again and again; one of the same name is replaced."""
        self._plan(_Plan(name, self._clock.boottime() + first_in, seconds, do))

    def once(self, name: str, at: float, do: Callable[[], None]) -> None:
        """Run a job once, at seconds since host boot or right now when that is over; one of the same name is replaced."""
        self._plan(_Plan(name, max(at, self._clock.boottime()), None, do))

    def drop(self, name: str) -> None:
        """Run a job no more."""
        with self._guard:
            self._plans.pop(name, None)
            with suppress(JobLookupError):  # it runs, or never was
                self._scheduler.remove_job(name)

    def due_in(self, name: str) -> float | None:
        """Seconds until a job runs next, 0 or less while it does; None when it does not."""
        with self._guard:
            plan = self._plans.get(name)
            return None if plan is None else plan.due - self._clock.boottime()

    def follow_clock(self) -> None:
        """To be called about once a second: plan all jobs anew when the wall clock was set, and wake up after the host slept."""
        offset = self._clock.wall() - self._clock.boottime()
        if abs(offset - self._wall_offset) >= NOTICEABLE:
            self._wall_offset = offset
            with self._guard:
                for plan in self._plans.values():
                    with suppress(JobLookupError):  # it runs
                        self._scheduler.modify_job(plan.name, next_run_time=self._moment(plan.due))
        asleep = (self._clock.boottime() - time.monotonic()) - self._sleep_offset
        if asleep >= NOTICEABLE:
            self._sleep_offset += asleep
            self._scheduler.wakeup()

    def stop(self, patience: float) -> bool:
        """Begin no more jobs. Returns whether the one that was running ended within so many seconds."""
        with self._guard:
            self._plans.clear()
        self._scheduler.shutdown(wait=False)
        ended = self._busy.acquire(timeout=patience)
        if ended:
            self._busy.release()
        return ended

    def _plan(self, plan: _Plan) -> None:
        with self._guard:
            self._plans[plan.name] = plan
            self._scheduler.add_job(self._run, "date", (plan,), run_date=self._moment(plan.due), id=plan.name, replace_existing=True)

    def _run(self, plan: _Plan) -> None:
        with self._busy:
            if not self._begins(plan):
                return
            try:
                plan.do()
            finally:
                self._again(plan)

    def _begins(self, plan: _Plan) -> bool:
        with self._guard:
            if self._plans.get(plan.name) is not plan:  # dropped or replaced while it waited for its turn
                return False
            if self._clock.boottime() < plan.due - NOTICEABLE:  # the wall clock was set ahead a moment ago
                self._plan(plan)
                return False
            if plan.period is None:
                del self._plans[plan.name]
            return True

    def _again(self, plan: _Plan) -> None:
        with self._guard:
            if plan.period is not None and self._plans.get(plan.name) is plan:
                missed = max(0, math.floor((self._clock.boottime() - plan.due) / plan.period))
                plan.due += (missed + 1) * plan.period
                self._plan(plan)

    def _moment(self, at: float) -> datetime:
        return datetime.fromtimestamp(self._clock.wall() + (at - self._clock.boottime()), UTC)
