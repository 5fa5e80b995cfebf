"""When things are done: APScheduler, kept right when the wall clock is set or the host was asleep.

APScheduler 3 thinks in wall time: after the clock was set back by three hours it would sleep for three hours (I16, C77). So once a second
the difference of wall clock and CLOCK_BOOTTIME is looked at, and the times of all jobs move with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from guestward.ports import Clock

NOTICEABLE = 0.5


class Cadence:
    """Runs jobs one after the other in one thread: never two at once, and what was missed is made up for once."""

    def __init__(self, clock: Clock) -> None:
        """Nothing runs before `start`."""
        self._clock = clock
        self._busy = threading.Lock()
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._wall_offset = clock.wall() - clock.boottime()
        self._sleep_offset = clock.boottime() - time.monotonic()

    def start(self) -> None:
        """Begin to run jobs."""
        self._scheduler.start()

    def every(self, name: str, seconds: float, do: Callable[[], None], *, first_in: float = 0.0) -> None:
        """Run a job again and again; one of the same name is replaced."""
        first = self._moment(self._clock.boottime() + first_in)
        self._scheduler.add_job(
            self._alone(do), "interval", seconds=seconds, start_date=first, next_run_time=first, id=name, replace_existing=True
        )

    def once(self, name: str, at: float, do: Callable[[], None]) -> None:
        """Run a job once, at seconds since host boot or right now when that is over; one of the same name is replaced."""
        moment = self._moment(max(at, self._clock.boottime()))
        self._scheduler.add_job(self._alone(do), "date", run_date=moment, id=name, replace_existing=True)

    def drop(self, name: str) -> None:
        """Run a job no more."""
        try:
            self._scheduler.remove_job(name)
        except JobLookupError:
            return  # it has run, or never was

    def due_in(self, name: str) -> float | None:
        """Seconds until a job runs next; None when it does not."""
        job = self._scheduler.get_job(name)
        if job is None or job.next_run_time is None:
            return None
        return float(job.next_run_time.timestamp()) - self._clock.wall()

    def follow_clock(self) -> None:
        """To be called about once a second: move all jobs when the wall clock was set, and wake up after the host slept."""
        moved = (self._clock.wall() - self._clock.boottime()) - self._wall_offset
        if abs(moved) >= NOTICEABLE:
            self._wall_offset += moved
            for job in self._scheduler.get_jobs():
                if job.next_run_time is not None:
                    job.modify(next_run_time=job.next_run_time + timedelta(seconds=moved))
        asleep = (self._clock.boottime() - time.monotonic()) - self._sleep_offset
        if asleep >= NOTICEABLE:
            self._sleep_offset += asleep
            self._scheduler.wakeup()

    def stop(self, patience: float) -> bool:
        """Begin no more jobs. Returns whether the one that was running ended within so many seconds."""
        self._scheduler.shutdown(wait=False)
        ended = self._busy.acquire(timeout=patience)
        if ended:
            self._busy.release()
        return ended

    def _alone(self, do: Callable[[], None]) -> Callable[[], None]:
        def job() -> None:
            with self._busy:
                do()

        return job

    def _moment(self, at: float) -> datetime:
        return datetime.fromtimestamp(self._clock.wall() + (at - self._clock.boottime()), UTC)
