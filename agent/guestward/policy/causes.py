"""Who stopped a guest, as far as PVE's task history knows, and whether many were stopped at once."""

from __future__ import annotations

import math
from collections.abc import Iterable

from guestward.model.memory import StopCause
from guestward.model.moment import utc
from guestward.model.rules import MASS_STOP_PAUSE, MASS_STOP_WINDOW
from guestward.model.task import Error, Ok, Task, Upid, Warnings

CLOCK_SLACK = 60.0
TASK_SLACK = 90.0  # a shutdown that waits for the guest
END_SLACK = 2.0  # ends are whole seconds
STOPS = frozenset({"vzstop", "vzshutdown", "qmstop", "qmshutdown", "vzsuspend", "qmsuspend", "hastop"})
REBOOTS = frozenset({"vzreboot", "qmreboot"})
BIRTHS = frozenset({"vzcreate", "vzrestore", "vzdestroy", "qmcreate", "qmrestore", "qmdestroy"})
DESTROYS = frozenset({"vzdestroy", "qmdestroy"})
STARTS = frozenset({"vzstart", "qmstart", "hastart", "qmresume", "vzresume"})


def of_this_boot(tasks: Iterable[Task], at: float, offsets: Iterable[float]) -> tuple[Task, ...]:
    """The tasks of this boot of the host, in the same order.

    offsets: what wall clock less boot clock has been in this boot; there are several when somebody set the clock. A task's start is
    known by both clocks, pstart counting from its own boot, so their difference tells of which boot it is (I16, C77).
    """
    known = tuple(offsets)
    return tuple(
        task
        for task in tasks
        if task.upid.started_boottime <= at + 1 and any(abs(_offset(task.upid) - offset) <= CLOCK_SLACK for offset in known)
    )


def _offset(upid: Upid) -> float:
    """The boot in seconds since the epoch, as the wall clock was when the task began."""
    return upid.starttime - upid.started_boottime


def is_changing(tasks: Iterable[Task], vmid: int, began: float) -> bool:
    """Whether a task that stops, reboots or makes this guest still runs: only after its end the history tells how it ended.

    began: when this look did, in seconds since host boot. A destroy that ended since then leaves open whether the listed guest is the
    old one or a new one: the next look tells.
    """
    of_guest = [task for task in tasks if task.upid.id == str(vmid)]
    runs = any(task.running and task.upid.type in STOPS | REBOOTS | BIRTHS for task in of_guest)
    return runs or any(task.upid.type in DESTROYS and _ended(task) >= began - END_SLACK for task in of_guest)


def stop_cause(tasks: Iterable[Task], vmid: int, token_id: str, ran_until: float | None) -> StopCause | None:
    """The newest task that stopped this guest, or None when the newest one that touched its power did something else.

    tasks: of this boot, newest first. ran_until: when it was seen running, in seconds since host boot; a stop that was over
    before that cannot explain that it is down, one that was under way then can, however long it waited for the guest.
    """
    history = tuple(tasks)
    last = next((t for t in history if t.upid.id == str(vmid) and _touched_power(t)), None)
    if last is None or last.upid.type in STARTS or (ran_until is not None and _over_before(last, ran_until)):
        return None
    newest = last.upid
    return StopCause(
        task=newest.type,
        user=newest.user,
        at=newest.started_boottime,
        wall=float(newest.starttime),
        by_vzdump=_by_vzdump(newest, history),
        foreign=newest.user != token_id,
    )


def _over_before(task: Task, moment: float) -> bool:
    """Two ways to tell, since the wall clock, by which ends are noted, may have been set meanwhile."""
    return task.upid.started_boottime < moment - TASK_SLACK and _ended(task) < moment - END_SLACK


def _ended(task: Task) -> float:
    """In seconds since host boot."""
    return math.inf if task.endtime is None else task.endtime - _offset(task.upid)


def _touched_power(task: Task) -> bool:
    """A stop or start that failed changed nothing; a reboot that failed has stopped the guest (timelines 5b)."""
    if task.running:
        return False
    return task.upid.type in REBOOTS or (task.upid.type in STOPS | STARTS and not isinstance(task.status, Error))


def born_since(tasks: Iterable[Task], vmid: int, since: float) -> bool:
    """Whether a guest was made or destroyed under this VMID after a moment (seconds since host boot) and not started since.

    Then the one that was there is gone, however alike the new one looks: a restore keeps names, disks and MAC addresses.
    """
    started: float | None = None  # when the newest start that went well began
    for task in tasks:
        if task.upid.id != str(vmid) or isinstance(task.status, Error):
            continue
        if task.upid.type in STARTS and isinstance(task.status, (Ok, Warnings)):
            started = task.upid.started_boottime if started is None else started
        if task.upid.type in BIRTHS:
            ended = _ended(task)
            has_run = started is not None and started >= max(task.upid.started_boottime, ended - END_SLACK / 2)
            return not has_run and ended >= since - END_SLACK
    return False


def _by_vzdump(stop: Upid, history: Iterable[Task]) -> bool:
    """A stop-mode backup of a VM runs `qm shutdown`, which is a qmshutdown task of its own (pve-facts C4).

    Both clocks must say that it began inside: somebody may have set the wall clock, by which alone ends are noted.
    """
    if stop.type != "qmshutdown":
        return False
    return any(task.upid.type == "vzdump" and task.upid.covers(int(stop.id)) and _began_inside(stop, task) for task in history)


def _began_inside(stop: Upid, task: Task) -> bool:
    if not (task.upid.starttime <= stop.starttime and task.upid.started_boottime <= stop.started_boottime):
        return False
    return task.endtime is None or (stop.starttime <= task.endtime and stop.started_boottime <= _ended(task) + END_SLACK)


def is_deliberate(cause: StopCause | None) -> bool:
    """Whether somebody asked for the guest to be down: a stop that is not a backup's and not a reboot."""
    return cause is not None and cause.task in STOPS and not cause.by_vzdump


def mass_stop(fresh: Iterable[StopCause], known: Iterable[StopCause], at: float, least: int) -> bool:
    """Whether at least so many guests were stopped by others within 60 s: a staged shutdown, a UPS, a clean-up (C14).

    fresh: causes found just now, of which one at least must be among them; known: those of all guests that are down. A stop that
    lies ahead is one of an earlier boot, whose seconds mean nothing in this one.
    """
    new = {cause.at for cause in fresh}
    times = sorted(c.at for c in known if c.foreign and is_deliberate(c) and 0 <= at - c.at <= MASS_STOP_PAUSE)
    groups = (times[i : i + least] for i in range(len(times) - least + 1))
    return any(group[-1] - group[0] <= MASS_STOP_WINDOW and not new.isdisjoint(group) for group in groups)


def describe(cause: StopCause | None) -> str:
    """One phrase for logs: how, by whom and when, or that no task tells."""
    if cause is None:
        return "no stop task found: shut down from inside, or crashed"
    return f"{cause.task} by {cause.user} at {utc(cause.wall)}" + (" (part of a backup)" if cause.by_vzdump else "")
