"""Who stopped a guest, as far as PVE's task history knows, and whether many were stopped at once."""

from __future__ import annotations

from collections.abc import Iterable

from guestward.model.memory import StopCause
from guestward.model.rules import MASS_STOP_PAUSE, MASS_STOP_WINDOW
from guestward.model.task import Task, Upid

STOPS = frozenset({"vzstop", "vzshutdown", "qmstop", "qmshutdown", "vzsuspend", "qmsuspend", "hastop"})
REBOOTS = frozenset({"vzreboot", "qmreboot"})
BIRTHS = frozenset({"vzcreate", "vzrestore", "vzdestroy", "qmcreate", "qmrestore", "qmdestroy"})
STARTS = frozenset({"vzstart", "qmstart", "hastart", "qmresume", "vzresume"})


def stop_cause(tasks: Iterable[Task], vmid: int, token_id: str, not_before: float | None) -> StopCause | None:
    """The newest task that stopped this guest, or None when the newest one that touched its power did something else.

    tasks: the node's history, newest first. not_before: seconds since host boot; an older stop cannot explain a guest that ran later.
    """
    history = tuple(tasks)
    newest = _newest(history, vmid, STOPS | REBOOTS | STARTS)
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


def born_again(tasks: Iterable[Task], vmid: int) -> bool:
    """Whether the last thing that happened to a VMID is that a guest was made or destroyed under it, and not that one was started.

    Then the guest that ran under it is gone, however alike the new one looks: a restore keeps names, disks and MAC addresses.
    """
    newest = _newest(tasks, vmid, STARTS | BIRTHS)
    return newest is not None and newest.type in BIRTHS


def _newest(tasks: Iterable[Task], vmid: int, types: frozenset[str]) -> Upid | None:
    """By PVE's own order, newest first: of two tasks of different boots, or around a clock that was set, no number tells."""
    return next((task.upid for task in tasks if task.upid.id == str(vmid) and task.upid.type in types), None)


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
    """One phrase for logs: who and how, or that no task tells."""
    if cause is None:
        return "no stop task found: shut down from inside, or crashed"
    return f"{cause.task} by {cause.user}" + (" (part of a backup)" if cause.by_vzdump else "")
