"""What happens on a stand-in PVE host: power, tasks, HA, host boot. Runs on the event loop; nothing here speaks HTTP."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from guestward.model.usercfg import subjects

from ._backups import Backups
from ._state import DISK_SIZE, Acl, Guest, Storage, Task, TaskFailed, Value, boottime, conf_path, new_config, volumes_of
from ._tls import Authority
from ._tree import PHASES, HostTree

Body = Callable[[Task], Awaitable[str | None]]

ROLES = {
    "GuestwardPool": ("VM.Audit", "VM.PowerMgmt", "Pool.Audit"),
    "GuestwardNode": ("Sys.Audit",),
    "GuestwardStorage": ("Datastore.Audit",),
    "GuestwardScratch": ("VM.Audit", "VM.PowerMgmt", "VM.Allocate", "VM.Config.Disk", "VM.Config.Options"),
}
BAND = range(990000, 990010)
STOP_TAKES = 0.2
REBOOT_GAP = 0.9  # stopped and unlocked for about a second (timelines 2)
HA_TAKES = 0.3


class World:
    """The state of the host, and what changes it."""

    def __init__(self, root: Path, *, node: str, pool: str, token_id: str, key_usage: bool, stats_lag: float) -> None:
        """Make a host without guests, with the grants of the install table."""
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.node = node
        self.token_id = token_id
        self.user_id = token_id.partition("!")[0]
        self.known = [self.user_id, token_id]  # users and tokens; those beside ours cannot log in
        self.guests: dict[int, Guest] = {}
        self.pools: dict[str, set[int]] = {pool: set()}
        self.storages = {"local": Storage("local", content="backup,vztmpl,iso"), "local-lvm": Storage("local-lvm", type="lvmthin")}
        self.volumes: dict[str, int] = {}
        self.tasks: dict[str, Task] = {}
        self.acl = Acl()
        self.authority = Authority(node, key_usage)
        self.authority.renew(root)
        self.quorate = True
        self.pmxcfs_up = True
        self.phase = "up"
        self.maintenance = False
        self.boot_id = str(uuid.uuid4())
        self.booted = int(time.time())
        self.vzdump_pid: str | None = None
        self.backups = Backups(self)
        self.delete_takes = 0.05
        self.stats_lag = stats_lag
        self.pvestatd_up = True
        self._published: dict[int, tuple[str, int]] = {}
        self._stats_at = 0.0
        self._pid = 4000
        self._background: set[asyncio.Task[None]] = set()
        self._tree = HostTree(self)
        self._grant_all(pool)
        self.changed()

    def changed(self) -> None:
        """Write the host tree; to be called after every change."""
        self._tree.sync()

    def close(self) -> None:
        """Cancel everything that still runs."""
        self.backups.close()
        for work in [*self._background, *(task.job for task in self.tasks.values() if task.job)]:
            work.cancel()

    # ------------------------------------------------------------ access

    def _grant_all(self, pool: str) -> None:
        for who in (self.user_id, self.token_id):
            self.acl.grant(f"/pool/{pool}", who, ROLES["GuestwardPool"])
            self.acl.grant(f"/nodes/{self.node}", who, ROLES["GuestwardNode"], propagate=False)
            self.acl.grant("/storage", who, ROLES["GuestwardStorage"])
        self.regrant(BAND)

    def regrant(self, vmids: Iterable[int]) -> None:
        """What the root helper does: GuestwardScratch at each /vms/VMID, for user and token."""
        for vmid in vmids:
            for who in (self.user_id, self.token_id):
                self.grant_scratch(f"/vms/{vmid}", who)

    def grant_scratch(self, path: str, who: str) -> None:
        """That role for user or token."""
        self.acl.grant(path, who, ROLES["GuestwardScratch"])

    def know(self, token_id: str) -> None:
        """One more token with its user, granted the scratch band."""
        for who in subjects(token_id):
            if who not in self.known:
                self.known.append(who)
            for vmid in BAND:
                self.grant_scratch(f"/vms/{vmid}", who)

    def scratch_role(self) -> str:
        """The role as its line of user.cfg."""
        return f"role:GuestwardScratch:{','.join(sorted(ROLES['GuestwardScratch']))}:"

    def scratch_entries(self) -> list[tuple[str, str]]:
        """Path and user or token of each entry of a guest that has all of that role, and hands it down."""
        scratch, paths = set(ROLES["GuestwardScratch"]), sorted(path for path in self.acl.paths() if path.startswith("/vms/"))
        return [(path, who) for path in paths for who, entry in self.acl.at(path).items() if scratch <= {p for p in entry if entry[p]}]

    def change_grant(self, grant: bool, priv: str, path: str, who: str, propagate: bool) -> None:
        """Give or take one privilege."""
        ids = {"both": (self.user_id, self.token_id), "user": (self.user_id,), "token": (self.token_id,)}.get(who, (who,))
        for ugid in ids:
            if grant:
                self.acl.grant(path, ugid, [priv], propagate)
            else:
                self.acl.revoke(path, ugid, priv)

    # ------------------------------------------------------- tasks, pids

    def new_pid(self) -> tuple[int, int]:
        """A process id and its start in jiffies."""
        self._pid += 7
        return self._pid, int(boottime() * 100)

    def start_task(self, type_: str, id_: str, user: str, body: Body | None = None, by_api: bool = False) -> Task:
        """Begin a task; without a body it runs until `end_task`."""
        pid, pstart = self.new_pid()
        now = int(time.time())
        upid = f"UPID:{self.node}:{pid:08X}:{pstart:08X}:{now:08X}:{type_}:{id_}:{user}:"
        task = Task(upid, self.node, pid, pstart, now, type_, id_, user, by_api)
        self.tasks[upid] = task
        if body is not None:
            task.job = asyncio.get_running_loop().create_task(self._run(task, body))
        self.changed()
        return task

    async def _run(self, task: Task, body: Body) -> None:
        try:
            status = await body(task) or "OK"
        except TaskFailed as failure:
            status = str(failure)
        self.end_task(task, status)

    def end_task(self, task: Task, status: str) -> None:
        """End a running task with this exit status."""
        if not task.running:
            return
        task.endtime, task.exitstatus = int(time.time()), status
        warnings = status.startswith("WARNINGS: ")
        if status != "unexpected status":  # a worker that was killed writes no last line
            task.log.append(f"TASK {status}" if warnings or status == "OK" else f"TASK ERROR: {status}")
        self.changed()

    async def interrupt(self, task: Task) -> None:
        """SIGTERM to a task's process group, as DELETE task and a restart of pvedaemon do."""
        if task.job is not None:
            task.job.cancel()
        await self.backups.interrupt(task)
        self.end_task(task, "received interrupt")

    def active(self, type_: str | None = None, vmid: int | None = None) -> list[Task]:
        """The running tasks, newest first."""
        found = [task for task in self.tasks.values() if task.running]
        return [task for task in reversed(found) if type_ in (None, task.type) and vmid in (None, int(task.id or 0))]

    def processes(self) -> dict[int, tuple[list[str], int]]:
        """Every process that proc/ shows: pid -> (command line, start)."""
        found = {task.pid: ([f"task {task.upid}"], task.pstart) for task in self.tasks.values() if task.running}
        for guest in self.guests.values():
            if guest.pid is not None and guest.node == self.node:
                command = ["/sbin/init"] if guest.kind == "lxc" else ["/usr/bin/kvm", "-id", str(guest.vmid)]
                found[guest.pid] = (command, max(0, int(guest.started * 100)))
        return found | self.backups.archives

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ------------------------------------------------------------ guests

    def add(self, guest: Guest, pool: str | None, uptime: float = 0) -> None:
        """Put a guest on the host."""
        if guest.vmid in self.guests:
            raise ValueError(f"guest {guest.vmid} exists already")
        self.guests[guest.vmid] = guest
        for volume in guest.volumes():
            self.volumes[volume] = guest.vmid
            self.storages.setdefault(volume.partition(":")[0], Storage(volume.partition(":")[0], type="nfs", shared=1))
        if pool is not None:
            self.pools.setdefault(pool, set()).add(guest.vmid)
        if guest.running:
            self.go_up(guest, uptime)
        self.changed()

    def here(self, kind: str, vmid: int) -> Guest | None:
        """The guest of this kind whose configuration is on this node."""
        guest = self.guests.get(vmid)
        return guest if guest and guest.kind == kind and guest.node == self.node else None

    def go_up(self, guest: Guest, uptime: float = 0) -> None:
        """It runs from now on."""
        guest.status = guest.qmpstatus = "running"
        guest.pid = self.new_pid()[0]
        guest.started = boottime() - uptime
        self.changed()

    def go_down(self, guest: Guest) -> None:
        """It is stopped from now on."""
        guest.status = guest.qmpstatus = "stopped"
        guest.pid = None
        guest.frozen = False
        self.changed()

    def forget(self, guest: Guest) -> None:
        """What every destroy removes: the configuration, each ACL entry at /vms/VMID, the pool membership (facts E5)."""
        self.guests.pop(guest.vmid, None)
        self.acl.forget_guest(guest.vmid)
        for members in self.pools.values():
            members.discard(guest.vmid)
        self.changed()

    # ------------------------------------------------------------- power

    def next_step(self, guest: Guest) -> str:
        """The plan's entry for this start attempt; one that cannot begin does not use it up."""
        if guest.running or guest.template or guest.lock or self.offline(guest):
            return "ok"
        step = guest.plan[min(guest.attempts, len(guest.plan) - 1)]
        guest.attempts += 1
        return step

    def offline(self, guest: Guest) -> str | None:
        """The first storage that it needs and that is offline."""
        return next((name for name in sorted(guest.storages()) if not self.storages[name].online), None)

    def start(self, kind: str, vmid: int, user: str, step: str = "ok", by_api: bool = False) -> Task:
        """Begin a vzstart or qmstart; what cannot start ends as a task error (facts D1, D2)."""

        async def body(task: Task) -> str | None:
            guest = self._startable(kind, vmid)
            if guest.lock == "backup":  # a running VM, the only one that gets here with a lock: resume (facts B2)
                return None
            await asyncio.sleep(guest.start_takes)
            if step == "hang":
                await asyncio.Event().wait()
            if step.startswith("fail:"):
                raise TaskFailed(step.removeprefix("fail:").strip())
            if guest.lock == "suspended":
                guest.lock = None  # a start resumes from it (facts B1)
            if step != "ok: stays stopped":
                self.go_up(guest)
                await asyncio.sleep(0.05)  # the task outlives the change that it makes by 0.1 s (timelines 1b)
            if step.startswith("flap"):
                self.later(self._die_after(guest, float(step.split()[1])))
            return step.upper() if step.startswith("warnings:") else None

        return self.start_task("vzstart" if kind == "lxc" else "qmstart", str(vmid), user, body, by_api)

    def _startable(self, kind: str, vmid: int) -> Guest:
        guest = self.here(kind, vmid)
        if guest is None:
            raise TaskFailed(f"Configuration file '{conf_path(self.node, kind, vmid)}' does not exist")
        if guest.template:
            raise TaskFailed("you can't start a CT if it's a template" if kind == "lxc" else "you can't start a vm if it's a template")
        if guest.lock not in (None, "suspended", "mounted") and not (kind == "qemu" and guest.lock == "backup" and guest.running):
            raise TaskFailed(f"{guest.label} is locked ({guest.lock})")
        if guest.running and guest.lock is None:
            raise TaskFailed(f"{guest.label} {vmid} already running")
        storage = self.offline(guest)
        if storage is not None:
            raise TaskFailed(f"storage '{storage}' is not online")
        return guest

    async def _die_after(self, guest: Guest, seconds: float) -> None:
        pid = guest.pid
        await asyncio.sleep(seconds)
        if guest.pid == pid:
            self.go_down(guest)

    def stop(self, guest: Guest, user: str, by_api: bool = False) -> Task:
        """Begin a vzstop or qmstop."""

        async def body(task: Task) -> str | None:
            self._check_lock(guest)
            await self._wind_down(guest)
            return None

        return self.start_task(f"{guest.task_prefix}stop", str(guest.vmid), user, body, by_api)

    def shutdown(self, guest: Guest, user: str, timeout: float, force: bool, by_api: bool = False) -> Task:
        """Begin a vzshutdown or qmshutdown."""

        async def body(task: Task) -> str | None:
            self._check_lock(guest)
            if guest.ignores_shutdown and guest.running:
                await asyncio.sleep(timeout)
                if not force:
                    raise TaskFailed("container did not stop" if guest.kind == "lxc" else "VM quit/powerdown failed - got timeout")
                task.log.append("VM still running - terminating now with SIGTERM")
            await self._wind_down(guest)
            return None

        return self.start_task(f"{guest.task_prefix}shutdown", str(guest.vmid), user, body, by_api)

    def reboot(self, guest: Guest, user: str, by_api: bool = False) -> Task:
        """Begin a vzreboot or qmreboot; for a container the lock is not checked, so it stays down (facts C5; timelines 5c)."""

        async def body(task: Task) -> str | None:
            if guest.kind == "qemu":
                self._check_lock(guest)
            await self._wind_down(guest)
            if guest.kind == "qemu":
                self.later(self._clean_up(guest))
                return None
            await self._come_back(guest)
            if not guest.running:
                raise TaskFailed(f"startup for container '{guest.vmid}' failed")
            return None

        return self.start_task(f"{guest.task_prefix}reboot", str(guest.vmid), user, body, by_api)

    def reset(self, guest: Guest, user: str, by_api: bool = False) -> Task:
        """Begin a qmreset; the process goes on, so does its uptime (facts K)."""

        async def body(task: Task) -> str | None:
            self._check_lock(guest)
            return None

        return self.start_task("qmreset", str(guest.vmid), user, body, by_api)

    async def reboot_inside(self, guest: Guest) -> None:
        """The guest reboots itself: no task at all. A VM's process stays (facts D3)."""
        if guest.kind == "lxc" and guest.running:
            self.go_down(guest)
            self.later(self._come_back(guest))

    def _check_lock(self, guest: Guest) -> None:
        if guest.lock is not None:
            raise TaskFailed(f"{guest.label} is locked ({guest.lock})")

    async def _wind_down(self, guest: Guest) -> None:
        """`running` without a pid for a while, then stopped (timelines, summary 2)."""
        if guest.running:
            guest.pid = None
            self.changed()
            await asyncio.sleep(STOP_TAKES)
            self.go_down(guest)

    async def _come_back(self, guest: Guest) -> None:
        """The second half of a container's reboot; the pre-start hook refuses a locked one (timelines 5a)."""
        await asyncio.sleep(REBOOT_GAP)
        if guest.lock is None:
            if not guest.running:
                self.go_up(guest)
            return
        guest.status = "running"  # false, and without a pid, for a moment
        self.changed()
        await asyncio.sleep(0.05)
        self.go_down(guest)

    async def _clean_up(self, guest: Guest) -> None:
        """`qm cleanup` starts a rebooted VM again, as a task of root's (facts D3)."""
        await asyncio.sleep(REBOOT_GAP)
        self.start("qemu", guest.vmid, "root@pam")

    # ---------------------------------------------------------------- HA

    def ha_request(self, guest: Guest, state: str, user: str) -> Task:
        """hastart and hastop: OK means requested (facts D2, G)."""

        async def body(task: Task) -> str | None:
            guest.ha_state = state
            self.later(self._ha_acts(guest, state))
            return None

        verb = "start" if state == "started" else "stop"
        task = self.start_task(f"ha{verb}", str(guest.vmid), user, body, by_api=True)
        task.log.append(f"Requesting HA {verb} for {guest.label} {guest.vmid}")
        return task

    async def _ha_acts(self, guest: Guest, state: str) -> None:
        await asyncio.sleep(HA_TAKES)
        if state == "started" and not guest.running:
            self.go_up(guest)
        elif state == "stopped" and guest.running:
            self.go_down(guest)

    # ----------------------------------------------------- create, destroy

    async def create(self, vmid: int, kind: str, by: str, how: str, killed: bool, **config: Value) -> str:
        """A new guest with a new identity: stopped, in no pool.

        Killed half-way, lock `create` is the only line that it has, and nothing refers to the volume that was made (timelines 8).
        """
        types = {"create": "create", "restore": "restore", "clone": "clone"}
        task = self.start_task(f"{'vz' if kind == 'lxc' else 'qm'}{types[how]}", str(vmid), by, by_api="!" in by)
        disk = next(n for n in itertools.count() if f"local-lvm:vm-{vmid}-disk-{n}" not in self.volumes)
        guest = Guest(vmid, kind, self.node, new_config(vmid, kind, ["local-lvm"], net=True, name=None, disk=disk))
        self.volumes |= dict.fromkeys(guest.volumes(), vmid)
        guest.config = {**({"lock": "create"} if killed else guest.config), **config}
        self.add(guest, None)
        self.end_task(task, "unexpected status" if killed else "OK")
        return task.upid

    def why_kept(self, guest: Guest, *, force: bool = False, purge: bool = True) -> str:
        """Why PVE does not destroy it, in its order; "" where it does. Of a VM's lock only the task speaks (facts E5)."""
        if str(guest.config.get("protection", 0)) == "1":
            return f"can't remove {guest.label} {guest.vmid} - protection mode enabled"
        if guest.kind == "lxc" and guest.lock is not None:
            return f"CT is locked ({guest.lock})"
        if guest.ha_managed and not purge:
            return f"unable to remove {guest.label} {guest.vmid} - used in HA resources and purge parameter not set."
        if guest.running and not force:
            ct = f"unable to destroy CT {guest.vmid} - container is running"
            return ct if guest.kind == "lxc" else f"VM {guest.vmid} is running - destroy failed"
        return ""

    def destroy(self, guest: Guest, user: str, *, by_api: bool = False, force: bool = False, unreferenced: bool = False) -> Task:
        """Begin a vzdestroy or qmdestroy. It frees what the configuration names, `unreferenced` all that has this VMID (facts E5)."""

        async def body(task: Task) -> str | None:
            if guest.lock != "suspended" or guest.kind == "lxc":
                self._check_lock(guest)
            if kept := self.why_kept(guest, force=force):
                raise TaskFailed(kept)
            await self._wind_down(guest)
            await asyncio.sleep(0.05)
            if guest.leaves_volumes and guest.kind == "lxc":
                raise TaskFailed(f"unable to free volume '{guest.volumes()[0]}'")
            if not guest.leaves_volumes:
                self._free(guest, unreferenced)
            guest.config, guest.snapshots = {"lock": "destroyed"}, {}
            self.changed()
            await asyncio.sleep(0.05)
            self.forget(guest)
            # A VM's volume that cannot be freed is only a warning: the disk is orphaned (facts E5).
            return "WARNINGS: 1" if guest.leaves_volumes else None

        return self.start_task(f"{guest.task_prefix}destroy", str(guest.vmid), user, body, by_api)

    def _free(self, guest: Guest, unreferenced: bool) -> None:
        named = {volume for config in (guest.config, *guest.snapshots.values()) for volume in volumes_of(config)}
        self.volumes = {
            volume: owner for volume, owner in self.volumes.items() if owner != guest.vmid or not (unreferenced or volume in named)
        }

    def delete_snapshot(self, guest: Guest, name: str, user: str, *, by_api: bool = True, failure: str = "") -> Task:
        """Begin a vzdelsnapshot or qmdelsnapshot; a lock stops it, `force` or not, and one that fails leaves its own (facts C6)."""

        async def body(task: Task) -> str | None:
            self._check_lock(guest)
            if name not in guest.snapshots:
                raise TaskFailed(f"snapshot '{name}' does not exist")
            guest.lock = "snapshot-delete"
            guest.snapshots[name]["snapstate"] = "delete"
            self.changed()
            await asyncio.sleep(self.delete_takes)
            if failure:
                raise TaskFailed(failure)
            guest.lock = None
            del guest.snapshots[name]
            if guest.config.get("parent") == name:
                del guest.config["parent"]
            return None

        return self.start_task(f"{guest.task_prefix}delsnapshot", str(guest.vmid), user, body, by_api)

    # -------------------------------------------------------------- host

    async def set_phase(self, phase: str) -> None:
        """What systemd says; going from booting to up runs pve-guests' startall first."""
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r}: one of {', '.join(PHASES)}")
        if self.phase == "booting" and phase == "up":
            await self._startall()
        self.phase = phase
        self.changed()

    async def _startall(self) -> None:
        """Backup locks go, nothing else does; then every onboot guest starts (facts B4, H; timelines 11d)."""
        task = self.start_task("startall", "", "root@pam")
        mine = [guest for guest in self.guests.values() if guest.node == self.node and not guest.template]
        for guest in mine:
            if guest.lock == "backup":
                guest.lock = None
        self.changed()
        starts = [self.start(guest.kind, guest.vmid, "root@pam") for guest in mine if _wants_boot(guest)]
        await asyncio.gather(*(start.job for start in starts if start.job))
        self.end_task(task, "OK")

    async def power_cut(self) -> None:
        """The host starts again without having stopped: a new boot id, nothing runs, locks and sections stay."""
        for task in self.active():
            if task.job is not None:
                task.job.cancel()
            self.end_task(task, "unexpected status")
        self.backups.power_cut()
        for work in list(self._background):
            work.cancel()
        for guest in self.guests.values():
            if guest.node == self.node:
                self.go_down(guest)
        self.boot_id = str(uuid.uuid4())
        self.booted = int(time.time())
        self.phase = "booting"
        self.changed()

    # -------------------------------------------------------------- stats

    def broadcast(self, guest: Guest) -> tuple[str, int] | None:
        """Status and uptime as pvestatd last published them, None when it never did (facts A1)."""
        if self.stats_lag <= 0 and self.pvestatd_up:
            return guest.qmpstatus, guest.uptime()
        if self.pvestatd_up and boottime() - self._stats_at >= self.stats_lag:
            self.publish()
        return self._published.get(guest.vmid)

    def publish(self) -> None:
        """One round of pvestatd."""
        self._stats_at = boottime()
        self._published = {guest.vmid: (guest.qmpstatus, guest.uptime()) for guest in self.guests.values()}

    def capacity(self, storage: Storage) -> tuple[int, int]:
        """Size of a storage and how much of it is used."""
        used = sum(DISK_SIZE for volume in self.volumes if volume.startswith(storage.name + ":"))
        return (1 << 38, used) if storage.online else (0, 0)


def _wants_boot(guest: Guest) -> bool:
    return str(guest.config.get("onboot", 0)) == "1" and not guest.running and not guest.ha_starts_it
