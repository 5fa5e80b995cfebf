"""Backups as vzdump runs them: one job at a time, one guest after the other (facts C; timelines 3-7)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from guestward.sim.backuplog import BackupLog, Saved

from ._state import Config, Guest, Task

if TYPE_CHECKING:
    from ._world import World

STEP = 0.05  # the moments between two states, 0.1 s at most on a real node


@dataclass
class Job:
    """One vzdump job."""

    task: Task
    mode: str
    waiting: list[int]
    command: str
    log: BackupLog
    current: int | None = None
    was_running: bool = False
    holding: bool = False
    failed: bool = False
    archive: list[int] = field(default_factory=list)

    def online_again(self) -> None:
        """A guest that it stopped runs again."""
        self.log.up_at = time.time()
        self.log.online_again()


class Backups:
    """The queue of jobs; the first holds the flock on run/vzdump.lock, really and in proc/locks."""

    def __init__(self, world: World) -> None:
        """Begin with no job and, as on a fresh host, no lock file."""
        self._world = world
        self.jobs: list[Job] = []
        self.archives: dict[int, tuple[list[str], int]] = {}
        self._flock: int | None = None
        self._pump: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ verbs

    async def begin(self, vmids: Sequence[int], mode: str, by: str) -> str:
        """Start a job; its task runs at once, its guests wait for their turn (timelines, summary 11)."""
        world = self._world
        # The id is empty as soon as a job has more than one guest (facts C1).
        task = world.start_task("vzdump", str(vmids[0]) if len(vmids) == 1 else "", by, by_api="!" in by)
        command = f"vzdump {' '.join(str(vmid) for vmid in vmids)} --mode {mode} --node {world.node} --storage local"
        job = Job(task, mode, list(vmids), command, BackupLog(task.log))
        self.jobs.append(job)
        await self._turn()
        if not job.holding:
            job.log.waits()
        return task.upid

    async def end(self, vmid: int | None, restart_window: float) -> None:
        """Finish one guest of the running job, or the whole job."""
        job = self.jobs[0] if self.jobs else None
        if job is None or not job.holding or (vmid is not None and job.current != vmid):
            raise ValueError(f"no backup to end (asked for {vmid})")
        while job.current is not None:
            ended = job.current
            await self._end_guest(job, restart_window)
            await self._next_guest(job)
            if ended == vmid:
                break
        if job.current is None:
            await self._finish(job)

    async def kill(self, archive_seconds: float) -> None:
        """kill -9 of the worker: the flock is free, lock, section and pid file stay (timelines 6c)."""
        job = self.jobs[0]
        for pid in job.archive:
            asyncio.get_running_loop().call_later(archive_seconds, self._archive_gone, pid)
        self._drop(job)
        self._world.end_task(job.task, "unexpected status")
        await self._turn()

    async def interrupt(self, task: Task) -> None:
        """SIGTERM: vzdump cleans up after itself; the pid file stays all the same (timelines, summary 9)."""
        job = next((job for job in self.jobs if job.task is task), None)
        if job is None:
            return
        guest = self._world.guests.get(job.current or 0)
        if guest is not None:
            self._undo(job, guest)
        elif not job.holding:
            job.log.waits_in_vain()
        self._archives_gone(job)
        self._drop(job)
        self._world.end_task(task, "job errors")
        await self._turn()

    def _undo(self, job: Job, guest: Guest) -> None:
        failure = job.log.interruption
        if "vzdump" in guest.snapshots:
            job.log.cleans_up()
        _clear(guest)
        if job.mode == "stop" and job.was_running and not guest.running:
            job.log.starts_again()
            self._world.go_up(guest)
            job.online_again()
        job.log.failed(guest.vmid, failure, time.time())
        job.log.ends(well=False)

    def power_cut(self) -> None:
        """The host died: nothing runs any more, the guests' files stay, /run starts empty."""
        for job in list(self.jobs):
            self._drop(job)
        self.archives.clear()
        self._world.vzdump_pid = None
        (self._world.root / "run/vzdump.lock").unlink(missing_ok=True)

    def close(self) -> None:
        """Stop waiting and let go of the flock."""
        if self._pump is not None:
            self._pump.cancel()
        self._release()

    # ------------------------------------------------------------ queue

    async def _turn(self) -> None:
        """Let the first job run if the flock can be had, otherwise try again: another process may hold it for seconds."""
        if self.jobs and not self.jobs[0].holding:
            if self._take():
                await self._run(self.jobs[0])
            elif self._pump is None or self._pump.done():
                self._pump = asyncio.create_task(self._wait())
        self._world.changed()

    async def _wait(self) -> None:
        while self.jobs and not self._take():
            await asyncio.sleep(STEP)
        if self.jobs:
            await self._run(self.jobs[0])

    async def _run(self, job: Job) -> None:
        job.holding = True
        self._world.vzdump_pid = job.task.upid
        job.log.begins(job.command)
        await self._next_guest(job)
        if job.current is None:
            await self._finish(job)

    async def _finish(self, job: Job) -> None:
        if not job.failed:
            self._world.vzdump_pid = None  # removed only after success (facts C1)
        job.log.ends(well=not job.failed)
        self._drop(job)
        self._world.end_task(job.task, "job errors" if job.failed else "OK")
        await self._turn()

    def _drop(self, job: Job) -> None:
        if job.holding:
            self._release()
        self.jobs.remove(job)

    def _take(self) -> bool:
        descriptor = os.open(self._world.root / "run/vzdump.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._flock = descriptor
        return True

    def _release(self) -> None:
        if self._flock is not None:
            os.close(self._flock)
            self._flock = None

    # ----------------------------------------------------------- guests

    async def _next_guest(self, job: Job) -> None:
        job.current = None
        while job.waiting and job.current is None:
            vmid = job.waiting.pop(0)
            guest, now = self._world.guests.get(vmid), time.time()
            if guest is not None:
                job.log.comes_to(_as_saved(guest), now, now)
            if guest is None or guest.lock is not None:
                job.failed = True
                job.log.failed(vmid, f"{guest.label} is locked ({guest.lock})" if guest else f"unable to find VM '{vmid}'", now)
                continue
            job.current = guest.vmid
            await self._begin_guest(job, guest)
        self._world.changed()

    async def _begin_guest(self, job: Job, guest: Guest) -> None:
        job.was_running = guest.running
        guest.lock = "backup"
        job.log.locked(job.mode, time.time())
        self._world.changed()
        if job.mode == "snapshot" and guest.running and guest.kind == "lxc":
            job.log.snapshots()
            await self._snapshot(guest)
        elif job.mode == "stop" and guest.running:
            await self._stop(guest)
            job.log.up_at = time.time() if guest.running else None
        job.log.archives(starts=guest.kind == "qemu" and (job.mode == "stop" or not job.was_running))
        if guest.kind == "lxc":  # QEMU writes its archive itself
            self._start_archive(job, guest)

    async def _snapshot(self, guest: Guest) -> None:
        """backup, snapshot with snapstate=prepare, backup again (timelines 4)."""
        saved: Config = {k: v for k, v in guest.config.items() if k not in ("lock", "parent")}
        saved |= {"description": "vzdump backup snapshot", "snaptime": int(time.time()), "snapstate": "prepare"}
        guest.lock = "snapshot"
        guest.snapshots["vzdump"] = saved
        self._world.changed()
        await asyncio.sleep(STEP)
        del saved["snapstate"]
        guest.config["parent"] = "vzdump"
        guest.lock = "backup"

    async def _stop(self, guest: Guest) -> None:
        """A container stops without a task of its own; a VM gets one by root and comes back at once (facts C3, C4)."""
        if guest.kind == "lxc":
            self._world.go_down(guest)
            return
        task = self._world.start_task("qmshutdown", str(guest.vmid), "root@pam")
        await asyncio.sleep(STEP)
        self._world.go_down(guest)
        self._world.end_task(task, "OK")
        await asyncio.sleep(STEP)
        self._world.go_up(guest)

    async def _end_guest(self, job: Job, restart_window: float) -> None:
        self._archives_gone(job)
        guest = self._world.guests.get(job.current or 0)
        if guest is None:
            return
        if "vzdump" in guest.snapshots and job.mode == "snapshot":
            job.log.cleans_up()
            await self._delete_snapshot(guest)
        _clear(guest)
        self._world.changed()
        if job.mode == "stop" and job.was_running:
            await self._bring_back(job, guest, restart_window)
        elif guest.kind == "qemu" and not job.was_running:
            job.log.stops_again()
        job.log.finished(time.time(), time.time())

    async def _bring_back(self, job: Job, guest: Guest, window: float) -> None:
        """Stopped, unlocked, the task still running: vzdump's own start makes no task (timelines 3). A VM has run again for long."""
        if guest.kind != "lxc":
            job.log.online_again()
            return
        await asyncio.sleep(window)
        if not guest.running:
            job.log.starts_again()
            self._world.go_up(guest)
        job.online_again()

    async def _delete_snapshot(self, guest: Guest) -> None:
        """A moment without any lock, then snapshot-delete (timelines 4)."""
        guest.lock = None
        self._world.changed()
        await asyncio.sleep(STEP)
        guest.lock = "snapshot-delete"
        guest.snapshots["vzdump"]["snapstate"] = "delete"
        self._world.changed()
        await asyncio.sleep(STEP)

    # --------------------------------------------------------- archives

    def _start_archive(self, job: Job, guest: Guest) -> None:
        """The processes that write a container's archive (recorded, timelines 6c)."""
        stamp = time.strftime("%Y_%m_%d-%H_%M_%S")
        target = f"/var/lib/vz/dump/vzdump-lxc-{guest.vmid}-{stamp}"
        tar = [
            "tar",
            "cpf",
            "-",
            "--totals",
            "--one-file-system",
            "-p",
            "--sparse",
            "--numeric-owner",
            "--acls",
            "--xattrs",
            "--xattrs-include=user.*",
            "--xattrs-include=security.capability",
            "--warning=no-file-ignored",
            "--warning=no-xattr-write",
            f"--directory={target}.tmp",
            "./etc/vzdump/pct.conf",
            "./etc/vzdump/pct.fw",
            "--directory=/mnt/vzsnap0",
            "--no-anchored",
            "--exclude=lost+found",
            "--anchored",
            "./",
        ]
        shell = ["/bin/bash", "-c", f"set -o pipefail && {' '.join(tar)} | cstream -t 9155584 >{target}.dat"]
        for command in (shell, tar):
            pid, pstart = self._world.new_pid()
            self.archives[pid] = (command, pstart)
            job.archive.append(pid)

    def _archive_gone(self, pid: int) -> None:
        self.archives.pop(pid, None)
        self._world.changed()

    def _archives_gone(self, job: Job) -> None:
        for pid in job.archive:
            self.archives.pop(pid, None)
        job.archive.clear()


def _as_saved(guest: Guest) -> Saved:
    return Saved(guest.vmid, guest.kind, guest.name, guest.running, "vzdump" in guest.snapshots)


def _clear(guest: Guest) -> None:
    guest.lock = None
    guest.snapshots.pop("vzdump", None)
    if guest.config.get("parent") == "vzdump":
        del guest.config["parent"]
