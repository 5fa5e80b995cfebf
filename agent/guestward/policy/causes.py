"""Who stopped a guest, as far as PVE's task history knows, and whether many were stopped at once."""

from __future__ import annotations

from collections.abc import Iterable

from guestward.model.memory import StopCause
from guestward.model.rules import MASS_STOP_PAUSE, MASS_STOP_WINDOW
from guestward.model.task import Task, Upid

STOPS = frozenset({"vzstop", "vzshutdown", "qmstop", "qmshutdown", "vzsuspend", "qmsuspend", "hastop"})
REBOOTS = frozenset({"vzreboot", "qmreboot"})
STARTS = frozenset({"vzstart", "qmstart", "hastart", "qmresume", "vzresume"})


def stop_cause(tasks: Iterable[Task], vmid: int, token_id: str, not_before: float | None) -> StopCause | None:
    """The newest task that stopped this guest, or None when the newest one that touched its power did something else.

    tasks: the node's history, in any order. not_before: seconds since host boot; an older stop cannot explain a guest that ran later.
    """
    history = tuple(tasks)
    power = [t.upid for t in history if t.upid.id == str(vmid) and t.upid.type in STOPS | REBOOTS | STARTS]
    newest = max(power, key=lambda upid: (upid.starttime, upid.pstart), default=None)
    if newest is None or newest.type in STARTS or (not_before is not None and newest.started_boottime < not_before):
        return None
    return StopCause(
        task=newest.type,
        user=newest.user,
        at=newest.started_boottime,
        wall=float(newest.starttime),
        by_vzdump=_by_vzdump(newest, history),
        foreign=newest.user != token_id,
    )


def _by_vzdump(stop: Upid, history: Iterable[Task]) -> bool:
    """A stop-mode backup of a VM runs `qm shutdown`, which is a qmshutdown task of its own (pve-facts C4)."""
    if stop.type != "qmshutdown":
        return False
    return any(
        task.upid.type == "vzdump"
        and task.upid.covers(int(stop.id))
        and task.upid.starttime <= stop.starttime
        and (task.endtime is None or stop.starttime <= task.endtime)
        for task in history
    )


def is_deliberate(cause: StopCause | None) -> bool:
    """Whether somebody asked for the guest to be down: a stop that is not a backup's and not a reboot."""
    return cause is not None and cause.task in STOPS and not cause.by_vzdump


def mass_stop(causes: Iterable[StopCause], at: float, least: int) -> bool:
    """Whether at least so many guests were stopped by others within 60 s, and lately: a staged shutdown, a UPS, a clean-up (C14).

    A stop that lies ahead is one of an earlier boot, whose seconds mean nothing in this one.
    """
    times = sorted(c.at for c in causes if c.foreign and is_deliberate(c) and 0 <= at - c.at <= MASS_STOP_PAUSE)
    return any(times[i + least - 1] - times[i] <= MASS_STOP_WINDOW for i in range(len(times) - least + 1))


def describe(cause: StopCause | None) -> str:
    """One phrase for logs: who and how, or that no task tells."""
    if cause is None:
        return "no stop task found: shut down from inside, or crashed"
    return f"{cause.task} by {cause.user}" + (" (part of a backup)" if cause.by_vzdump else "")
