"""Whether a backup is at work on a guest: five witnesses, any yes is yes, and without a yes any silence is "cannot tell" (I4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from guestward.model.observation import BackupWitnesses, FlockHolder
from guestward.model.reading import Reading, Unreadable
from guestward.model.task import Task, Upid


@dataclass(frozen=True, slots=True)
class BackupVerdict:
    """running None: nobody can say. evidence: what was seen."""

    running: bool | None
    evidence: str


def backup_of(vmid: int, lock: str | None, tasks: Reading[tuple[Task, ...]], witnesses: BackupWitnesses) -> BackupVerdict:
    """Ask all witnesses about one guest."""
    yes = tuple(_yes(vmid, lock, tasks, witnesses))
    if yes:
        return BackupVerdict(True, "; ".join(yes))
    silent = tuple(_silent(tasks, witnesses))
    if silent:
        return BackupVerdict(None, "; ".join(silent))
    return BackupVerdict(False, "no lock, no vzdump task, vzdump.lock not held for it, no live worker, no archive process")


def _yes(vmid: int, lock: str | None, tasks: Reading[tuple[Task, ...]], witnesses: BackupWitnesses) -> Iterator[str]:
    if lock == "backup":
        yield "configuration lock `backup`"
    known = () if isinstance(tasks, Unreadable) else tuple(t.upid for t in tasks if t.running and t.upid.type == "vzdump")
    yield from (f"vzdump by {upid.user} is running, for {upid.id or 'several guests'}" for upid in known if upid.covers(vmid))
    live = witnesses.live_upid
    if not isinstance(live, Unreadable) and live is not None:
        if live.covers(vmid):
            yield f"vzdump.pid names a live worker (pid {live.pid}), for {live.id or 'several guests'}"
        known = (*known, live)
    yield from _flock(vmid, witnesses.flock, known)
    if not isinstance(witnesses.archives, Unreadable) and vmid in witnesses.archives:
        yield "an archive process of this guest is alive"


def _flock(vmid: int, flock: Reading[FlockHolder | None], known: Iterable[Upid]) -> Iterator[str]:
    """A held lock speaks for every guest, unless its holder is known to be a job for one other guest."""
    if isinstance(flock, Unreadable) or flock is None:
        return
    of_holder = [upid for upid in known if upid.pid == flock.pid]
    if not of_holder:
        yield f"/var/run/vzdump.lock is held by pid {flock.pid}, of which no task is known"
    elif any(upid.covers(vmid) for upid in of_holder):
        yield f"/var/run/vzdump.lock is held by vzdump (pid {flock.pid})"


def _silent(tasks: Reading[tuple[Task, ...]], witnesses: BackupWitnesses) -> Iterator[str]:
    for name, reading in (
        ("task list", tasks),
        ("/proc/locks", witnesses.flock),
        ("vzdump.pid", witnesses.live_upid),
        ("archive processes", witnesses.archives),
    ):
        if isinstance(reading, Unreadable):
            yield f"{name}: {reading.reason}"
