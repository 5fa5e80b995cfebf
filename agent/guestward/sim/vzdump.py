"""vzdump, step by step: lock, stop or snapshot, archive, unlock, clean-up, start (pve-facts C2-C6; timelines 4-7).

A job takes the node's flock for its whole length; others wait for it with a running task. It saves one guest after the other, and only
the one that it is at has a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from guestward.model.guest import GuestKind
from guestward.model.task import Error, Upid, exit_status
from guestward.sim.backuplog import BROKEN, SIGNAL, BackupLog, Saved
from guestward.sim.guest import SimGuest
from guestward.sim.tasks import SimTask

if TYPE_CHECKING:
    from guestward.sim.world import World

SNAPSHOT = "vzdump"
UNEXPECTED = "unexpected status"  # of a worker that wrote no last line
STOPS_AFTER = 1.1  # a container that has stopped (timelines 3, 6e)
STEP = 0.1  # from one lock to the next in snapshot mode
WINDOW = 0.9  # stopped and unlocked before vzdump starts it again
STOPS_IN = 0.9  # of which fine grained, from running without a pid to stopped
VZDUMP = "vzdump"  # as the one who set a lock
LONGEST_WAIT = 600.0  # for replication, before the snapshot is deleted
CLEANUP = "backup-cleanup"  # as what can be ordered to fail
KEPT_UP = "Cannot execute a backup with stop mode on a HA managed and enabled Service. Use snapshot mode or disable the Service."


@dataclass(slots=True)
class Job:
    """One vzdump task. command: as its log has it. todo: guests not saved yet. at: the one that it is at.

    stopped, started: what it did to that one itself; failure: why that one is not saved.
    """

    task: SimTask
    mode: str
    todo: list[int]
    command: str
    log: BackupLog
    at: SimGuest | None = None
    phase: str = "waiting"
    stopped: bool = False
    started: bool = False
    failure: str = ""
    said: str = "OK"
    step: int = 0


@dataclass(slots=True)
class Vzdump:
    """All jobs of the node. jobs: the first holds the flock, the others wait. stale: what `/var/run/vzdump.pid` was left with."""

    world: World
    jobs: list[Job] = field(default_factory=list)
    stale: Upid | None = None
    archives: set[int] = field(default_factory=set)
    restarts: bool = True
    window: float = WINDOW

    @property
    def running(self) -> Job | None:
        """The job that holds the flock."""
        return self.jobs[0] if self.jobs and self.jobs[0].phase != "waiting" else None

    def job_of(self, vmid: int | None) -> Job | None:
        """The job of a guest; without a VMID the oldest one."""
        covered = (job for job in self.jobs if vmid is None or vmid in job.todo or (job.at is not None and job.at.id.vmid == vmid))
        return next(covered, None)

    def keeps(self, guest: SimGuest) -> bool:
        """Whether it keeps the process of a VM that shuts down (qmeventd)."""
        return guest.id.kind is GuestKind.QEMU and any(job.at is guest and job.phase == "saving" and job.log.writing for job in self.jobs)

    def begin(self, vmids: tuple[int, ...], mode: str, by: str) -> None:
        """A job begins; its task's id is empty when it is for more than one guest (pve-facts C1)."""
        task = self.world.task("vzdump", str(vmids[0]) if len(vmids) == 1 else "", by)
        command = f"vzdump {' '.join(str(vmid) for vmid in vmids)} --mode {mode} --node {self.world.node} --storage local"
        job = Job(task, mode, list(vmids), command, BackupLog(task.log))
        if self.jobs:
            job.log.waits()
        self.jobs.append(job)
        self._next_job()

    def end(self, vmid: int | None, said: str) -> None:
        """The archive is written. With a VMID only that guest's: the job goes on with the next one."""
        job = self.job_of(vmid)
        if job is None:
            return
        failed = isinstance(exit_status(said), Error)
        job.said = said if said != "OK" else job.said
        if vmid is not None and vmid in job.todo:
            job.todo.remove(vmid)
        if vmid is None:
            job.todo.clear()
        if job.at is None or (vmid is not None and job.at.id.vmid != vmid):
            if not job.todo and job.at is None:
                self._end_job(job)
            return
        if job.phase == "saving":
            job.failure = (BROKEN[job.at.id.kind.value] if said == "job errors" else said) if failed else ""
            self._clean_up(job, job.at)

    def kill(self, vmid: int | None, archive_for: float) -> None:
        """kill -9 of the worker: flock free, pid file stale, locks and snapshot stay, the archive process may live on (timelines 6c)."""
        job = self.job_of(vmid)
        if job is None:
            return
        job.step += 1
        self.jobs.remove(job)
        if job.phase != "waiting":
            self.stale = job.task.upid
        self.world.end_task(job.task, UNEXPECTED)
        self._let_go(job.at)
        if archive_for and job.at is not None:
            saved = job.at.id.vmid
            self.archives.add(saved)
            self.world.later(archive_for, lambda: self.archives.discard(saved))
        self._next_job()

    def abort(self) -> None:
        """SIGTERM to the workers, as `DELETE /tasks/UPID` and a restart of pvedaemon send it: all clean up and fail (timelines 6a, 10a).

        A job whose command for an archive says that it was interrupted goes on with its next guest (`VZDump.pm:exec_backup_task`).
        """
        for job in self.jobs:
            if job.phase == "waiting":
                job.said = UNEXPECTED
                job.todo.clear()
                job.log.waits_in_vain()
                self._end_job(job)
            elif job.phase == "saving" and job.at is not None:
                self._interrupted(job)
                self._clean_up(job, job.at)

    def crash(self) -> None:
        """The host went down: no job is left, and /var/run is empty after it."""
        for job in self.jobs:
            job.step += 1
        self.jobs.clear()
        self.archives.clear()
        self.stale = None

    def interrupt(self) -> None:
        """`vzdump -stop` or SIGTERM: every job cleans up after itself and fails; the pid file stays (timelines 6a)."""
        for job in self.jobs:
            job.step += 1
            if job.at is not None:
                self._undo(job, job.at)
                self.stale = job.task.upid
            elif job.phase == "waiting":
                job.said = UNEXPECTED
                job.log.waits_in_vain()
            self.world.end_task(job.task, job.said)
        self.jobs.clear()

    def _undo(self, job: Job, guest: SimGuest) -> None:
        """All of the clean-up at once."""
        job.failure, job.said = "", "job errors"
        if job.phase == "saving":
            self._interrupted(job)
        deletes, guest.lock = guest.lock == "snapshot-delete", None
        if SNAPSHOT in guest.snapshots:
            if not deletes:
                job.log.cleans_up()
            self._remove_snapshot(job, guest)
        if job.stopped:
            job.log.starts_again()
            self.world.power_on(guest.id.vmid)
            self._online_again(job)
        self._let_go(guest)
        self._close(job, guest)
        self._finish_log(job)

    def _interrupted(self, job: Job) -> None:
        """A signal came while it saved a guest; only its bare text ends the job."""
        job.failure = job.log.interruption
        job.said = job.failure if job.failure == SIGNAL else "job errors"
        if job.failure == SIGNAL:
            job.todo.clear()

    def _let_go(self, guest: SimGuest | None) -> None:
        """A VM that shut down while it was saved ends now."""
        if guest is not None and guest.running and guest.qmp == "shutdown":
            guest.running = False

    # ---------------------------------------------------------------------------------------------- one job

    def _next_job(self) -> None:
        if self.jobs and self.jobs[0].phase == "waiting":
            self.jobs[0].log.begins(self.jobs[0].command)
            self._next_guest(self.jobs[0])

    def _next_guest(self, job: Job) -> None:
        """Lock the next guest that can be saved; one that is locked, or gone, makes the job fail and is left alone."""
        job.phase, job.at, job.stopped, job.started, job.failure = "saving", None, False, False, ""
        while job.todo:
            vmid = job.todo.pop(0)
            guest, world = self.world.guests.get(vmid), self.world
            obstacle = KEPT_UP if guest is not None and guest.kept_up and job.mode == "stop" else ""
            if guest is not None and not obstacle:
                job.log.comes_to(_as_saved(guest), world.now, world.wall)
            obstacle = obstacle or self._obstacle(vmid, guest)
            if guest is None or obstacle:
                job.said = "job errors"
                job.log.failed(vmid, obstacle, world.wall)
                continue
            job.at, guest.lock, guest.locker = guest, "backup", VZDUMP
            job.log.locked(job.mode, world.now)
            self._prepare(job, guest)
            return
        self._end_job(job)

    def _obstacle(self, vmid: int, guest: SimGuest | None) -> str:
        """Why it cannot be locked."""
        if guest is None:
            return f"unable to find VM '{vmid}'"
        if guest.node != self.world.node:
            return self._no_file(guest)
        return f"{guest.noun} is locked ({guest.lock})" if guest.lock is not None else ""

    def _no_file(self, guest: SimGuest) -> str:
        folder = "lxc" if guest.id.kind is GuestKind.LXC else "qemu-server"
        return f"Configuration file 'nodes/{self.world.node}/{folder}/{guest.id.vmid}.conf' does not exist"

    def _leave(self, job: Job, guest: SimGuest) -> None:
        """It is done with that guest."""
        self._close(job, guest)
        self._next_guest(job)

    def _online_again(self, job: Job) -> None:
        job.log.up_at = self.world.now
        job.log.online_again()

    def _close(self, job: Job, guest: SimGuest) -> None:
        vmid, world = guest.id.vmid, self.world
        if job.failure:
            job.log.failed(vmid, job.failure, world.wall)
        else:
            job.log.finished(world.now, world.wall)

    def _end_job(self, job: Job) -> None:
        if job.phase == "saving":
            self._finish_log(job)
        job.phase, job.at = "ending", None
        self._then(job, STEP, lambda: self._ended(job))

    def _finish_log(self, job: Job) -> None:
        if job.said == SIGNAL:
            job.log.breaks_off()
        else:
            job.log.ends(well=not isinstance(exit_status(job.said), Error))

    def _ended(self, job: Job) -> None:
        self.jobs.remove(job)
        if job.said != UNEXPECTED:  # one that never had the flock wrote no pid file
            self.stale = None if job.said == "OK" else job.task.upid
        self.world.end_task(job.task, job.said)
        self._next_job()

    def _then(self, job: Job, delay: float, do: Callable[[], None]) -> None:
        """The job's next step, unless something else has become of the job by then."""
        job.step += 1
        step = job.step
        self.world.later(delay, lambda: do() if job.step == step else None)

    def _prepare(self, job: Job, guest: SimGuest) -> None:
        container = guest.id.kind is GuestKind.LXC
        if job.mode == "stop" and guest.running:
            self._then(job, STOPS_AFTER - self.world.takes(STOPS_IN), lambda: self._stop(job, guest))
        elif container and guest.running:
            job.log.snapshots()
            self._then(job, STEP, lambda: self._snapshot(job, guest))
        else:
            starts = not container and not guest.running
            job.log.archives(starts=starts)
            if starts:
                self._then(job, STEP, lambda: self._start_paused(job, guest))

    def _stop(self, job: Job, guest: SimGuest) -> None:
        """A container by vzdump itself; a VM by a `qmshutdown` task, and it runs again as soon as its backup has begun (pve-facts C4)."""
        if not guest.running:
            job.log.archives(starts=guest.id.kind is GuestKind.QEMU)
            return
        if guest.id.kind is GuestKind.LXC:
            step, job.stopped = job.step, True
            self.world.take_down(guest, lambda: job.log.archives() if job.step == step else None)
            return
        self.world.task("qmshutdown", str(guest.id.vmid), "root@pam", said="OK")
        guest.running = False
        self._then(job, 1.0, lambda: self._resume(job, guest))

    def _resume(self, job: Job, guest: SimGuest) -> None:
        job.log.archives(starts=True)
        job.log.up_at = self.world.now
        self.world.power_on(guest.id.vmid)

    def _start_paused(self, job: Job, guest: SimGuest) -> None:
        """A VM that was stopped runs, paused, for as long as it is saved."""
        self.world.power_on(guest.id.vmid)
        job.started, guest.qmp = True, "prelaunch"

    def _snapshot(self, job: Job, guest: SimGuest) -> None:
        guest.lock, guest.locker, guest.snapshots = "snapshot", VZDUMP, {**guest.snapshots, SNAPSHOT: "prepare"}
        self._then(job, STEP, lambda: self._snapshotted(job, guest))

    def _snapshotted(self, job: Job, guest: SimGuest) -> None:
        job.log.archives()
        guest.lock, guest.locker, guest.snapshots = "backup", VZDUMP, {**guest.snapshots, SNAPSHOT: ""}

    def _clean_up(self, job: Job, guest: SimGuest) -> None:
        """Unlock first, whatever the lock is by now; then the snapshot; then start what it stopped itself."""
        job.phase = "cleaning"
        if guest.lock is None:
            job.log.warns("no lock found trying to remove 'backup' lock")
        guest.lock = None
        if guest.id.kind is GuestKind.LXC and SNAPSHOT in guest.snapshots:
            self._then(job, STEP, lambda: self._delete_snapshot(job, guest, LONGEST_WAIT))
        elif job.stopped:
            self._then(job, self.window, lambda: self._start_again(job, guest))
        else:
            if job.started and guest.qmp == "prelaunch":
                guest.running = False
                job.log.stops_again()
            elif job.started:
                job.log.keeps_running(guest.qmp)
            self._let_go(guest)
            job.log.online_again()
            self._then(job, STEP, lambda: self._leave(job, guest))

    def _start_again(self, job: Job, guest: SimGuest) -> None:
        """Its own start, without a task; a guest that runs by then is left alone (pve-facts C3)."""
        if not guest.running:
            job.log.starts_again()
        if self.restarts and self.world.obstacle(guest) is None:
            self.world.power_on(guest.id.vmid)
        if guest.running:
            self._online_again(job)
        self._then(job, STEP, lambda: self._leave(job, guest))

    def _delete_snapshot(self, job: Job, guest: SimGuest, wait: float) -> None:
        """While replication runs the guest stays unlocked with its snapshot, for up to 600 s (pve-facts C5)."""
        if self.world.guests.get(guest.id.vmid) is not guest or guest.node != self.world.node:
            job.log.warns(self._no_file(guest))
            self._then(job, STEP, lambda: self._leave(job, guest))
            return
        if guest.replication:
            self._wait_for_replication(job, guest, wait)
            return
        job.log.cleans_up()
        if guest.lock is not None:
            job.log.not_removed(f"{guest.noun} is locked ({guest.lock})")
            self._then(job, STEP, lambda: self._leave(job, guest))
            return
        guest.lock, guest.locker, guest.snapshots = "snapshot-delete", VZDUMP, {**guest.snapshots, SNAPSHOT: "delete"}
        self._then(job, STEP, lambda: self._deleted(job, guest))

    def _wait_for_replication(self, job: Job, guest: SimGuest, wait: float) -> None:
        if wait == LONGEST_WAIT:
            job.log.cannot_clean_up_yet()
        if wait > 0:
            self._then(job, 1.0, lambda: self._delete_snapshot(job, guest, wait - 1.0))
            return
        job.log.not_removed(f"can't lock file '/var/lock/pve-manager/pve-migrate-{guest.id.vmid}' - got timeout")
        self._then(job, STEP, lambda: self._leave(job, guest))

    def _deleted(self, job: Job, guest: SimGuest) -> None:
        self._remove_snapshot(job, guest)
        self._then(job, STEP, lambda: self._leave(job, guest))

    def _remove_snapshot(self, job: Job, guest: SimGuest) -> None:
        """A delete that fails leaves the lock and the section as they are while it is at it (C39); the job does not count that."""
        failure = self.world.take_failure(CLEANUP)
        if failure is None:
            guest.lock = None
            guest.snapshots = {name: state for name, state in guest.snapshots.items() if name != SNAPSHOT}
        else:
            guest.lock, guest.locker, guest.snapshots = "snapshot-delete", VZDUMP, {**guest.snapshots, SNAPSHOT: "delete"}
            job.log.not_removed(failure)


def _as_saved(guest: SimGuest) -> Saved:
    return Saved(guest.id.vmid, guest.id.kind.value, guest.name, guest.running, SNAPSHOT in guest.snapshots)
