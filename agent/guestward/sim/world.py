"""A PVE node in virtual time. What people, guests and PVE itself do to it are its verbs; each changes the world at once.

It behaves as `pve-facts.md` and the recordings say; where it is simpler, `docs/simulated-host.md` tells. A verb whose state is there
already changes nothing.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from guestward.model.guest import GuestId, GuestKind
from guestward.model.observation import NodeNames
from guestward.model.task import JIFFIES, Upid
from guestward.sim.acl import SUBJECTS, Acl
from guestward.sim.api import ApiState
from guestward.sim.guest import IN_FILE, SimGuest, traits
from guestward.sim.helper import HelperState
from guestward.sim.hostphase import STARTS_IN, UP, Phases
from guestward.sim.log import Effect
from guestward.sim.tasks import KEPT, SimTask
from guestward.sim.vzdump import STOPS_IN, Job, Vzdump

T = TypeVar("T")
TOPICS = ("guests", "tasks", "acl")

BOOTED = 100_000.0  # seconds since host boot at which a simulation begins
EPOCH = 1_900_000_000.0
BROADCAST, BROADCAST_AT = 10.0, 3.0  # pvestatd tells the cluster what runs every 10 s (pve-facts A1)
FIRST_BROADCAST = 12.0  # after the boot of the host (timelines 11d)
STOPPED_IN, DESTROYED_IN = 1.0, 2.0  # of scratch guests, by the agent
RESET, HOOK_FAILS_AFTER, RESTORES_IN = 0.1, 0.3, 0.3  # of a container, fine grained (timelines 1, 2, 5, 8a)
GRANTS_POOL = ("VM.Audit", "VM.PowerMgmt", "Pool.Audit")
GRANTS_SCRATCH = ("VM.Audit", "VM.PowerMgmt", "VM.Allocate", "VM.Config.Disk", "VM.Config.Options")


@dataclass(slots=True)
class Reaction:
    """What the world does whenever a certain act of the agent reaches it."""

    verb: str
    vmid: int
    delay: float
    do: Callable[[], object]


class World:
    """The node. Time passes by `until` and `advance` only."""

    def __init__(
        self,
        *,
        node: str = "pve1",
        token_id: str = "guestward-pve1@pve!agent",  # noqa: S107 - an id
        version: str = "9.1",
    ) -> None:
        """A node that is up and has no guests, on which nothing is granted yet."""
        self.node, self.token_id, self.pve_version = node, token_id, version
        self.local_name = ""  # what /etc/pve/local says, where it is not our node
        self.now = 0.0
        self.boot_offset, self.wall_offset, self.boot = BOOTED, EPOCH, 1
        self.version = 0
        self._versions = dict.fromkeys(TOPICS, 0)
        self._made: dict[object, tuple[int, Any]] = {}
        self.guests: dict[int, SimGuest] = {}
        self.tasks: list[SimTask] = []
        self.archive: list[SimTask] = []
        self.pve_guests, self.system = UP, "running"
        self.quorate, self.pmxcfs, self.hold_file, self.maintenance = True, True, False, False
        self.storages: dict[str, bool] = {"local": True}
        self.unreadable: dict[str, str] = {}
        self.orphans: dict[int, tuple[str, ...]] = {}  # VMID -> volumes that no configuration names
        self.torn_down: set[int] = set()  # VMIDs of guests that the agent has destroyed
        self.hidden: set[int] = set()  # VMIDs that the lists leave out although the pool names them
        self.fine_grained = False  # whether others' starts and stops take their time, and show what PVE shows meanwhile
        self.most_starts: int | None = None  # more start tasks at once than this wait for a lock in vain (C76)
        self.effects: list[Effect] = []
        self.on_effect: Callable[[Effect], None] = lambda effect: None
        self.watchers: list[Callable[[SimGuest, str], None]] = []  # called right before an attribute of a guest changes
        self.failures: list[tuple[str, str]] = []
        self.reactions: list[Reaction] = []
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count(1)
        self.acl = Acl(self._pools, lambda: self.touch("acl"))
        self.api, self.helper = ApiState(), HelperState()
        self.vzdump, self.phases = Vzdump(self), Phases(self)

    def install(self, pools: Iterable[str], band: Iterable[int]) -> None:
        """Grant what the install table of DESIGN.md says, to user and token."""
        for privilege in GRANTS_POOL:
            for pool in tuple(pools):
                self.acl.grant(privilege, f"/pool/{pool}")
        self.acl.grant("Sys.Audit", f"/nodes/{self.node}", propagate=False)
        self.acl.grant("Datastore.Audit", "/storage")
        self.grant_band(band)

    def grant_band(self, band: Iterable[int]) -> None:
        """What the scratch band needs, one entry a VMID: a grant on `/vms` would cover every guest (pve-facts E5)."""
        for vmid in band:
            self.grant_scratch(vmid)

    def grant_scratch(self, vmid: int, who: str = "both") -> None:
        """The role GuestwardScratch at `/vms/VMID`, for user, token or both."""
        for privilege in GRANTS_SCRATCH:
            self.acl.grant(privilege, f"/vms/{vmid}", who)

    def lacks_scratch(self, vmid: int) -> list[str]:
        """Who of user and token has no such entry that counts."""
        path = f"/vms/{vmid}"
        return [who for who in SUBJECTS if self.acl.is_barred(who, path) or not self.acl.has(who, path, GRANTS_SCRATCH)]

    def _pools(self) -> Mapping[str, set[int]]:
        return self.made("pools", self._make_pools, "acl")

    def _make_pools(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for guest in self.guests.values():
            if guest.pool is not None:
                found.setdefault(guest.pool, set()).add(guest.id.vmid)
        return found

    def touch(self, topic: str = "guests") -> None:
        """Something that the doors show has changed: one of TOPICS."""
        self.version += 1
        self._versions[topic] += 1

    def made(self, key: object, make: Callable[[], T], *topics: str) -> T:
        """A view of the world, made once for each state of what it is made of; as long as nothing changes it is the very same object."""
        stamp = sum(self._versions[topic] for topic in topics)
        known = self._made.get(key)
        if known is None or known[0] != stamp:
            known = self._made[key] = (stamp, make())
        found: T = known[1]
        return found

    # ------------------------------------------------------------------------------------------------ time

    @property
    def boottime(self) -> float:
        """Seconds since host boot."""
        return self.now + self.boot_offset

    @property
    def wall(self) -> float:
        """Seconds since the epoch, as the host's clock says."""
        return self.now + self.wall_offset

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Let something happen at a virtual second; entries of the same second run in the order in which they were made."""
        heapq.heappush(self._heap, (when, next(self._count), do))

    def later(self, delay: float, do: Callable[[], object]) -> None:
        """Let something happen after a delay."""
        self.at(self.now + delay, do)

    def advance(self, seconds: float) -> None:
        """Let time pass, and with it what was to happen."""
        self.until(self.now + seconds)

    def until(self, when: float) -> None:
        """Let everything up to that second happen."""
        while self._heap and self._heap[0][0] <= when:
            moment, _, do = heapq.heappop(self._heap)
            self.now = max(self.now, moment)
            do()
        self.now = max(self.now, when)

    def next_event(self) -> float | None:
        """When the next thing is due to happen."""
        return self._heap[0][0] if self._heap else None

    def clock_wall(self, delta: float) -> None:
        """Somebody, or NTP, sets the wall clock."""
        self.wall_offset += delta

    def suspend(self, seconds: float) -> None:
        """The host sleeps: both clocks go on, nothing else does, and virtual time stands still."""
        self.boot_offset += seconds
        self.wall_offset += seconds
        for guest in self.guests.values():
            guest.since -= seconds  # it has run on the boot clock all the time

    # ------------------------------------------------------------------------------------------------ guests

    def add(self, vmid: int, kind: str = "lxc", **values: object) -> SimGuest:
        """Put a guest on our node, or on that of the values, as it has been for long. values: attributes of SimGuest."""
        name = str(values.pop("name", f"guest{vmid}"))
        identity = str(values.pop("identity", f"born{next(self._count)}"))
        node = str(values.pop("node", self.node))
        guest = SimGuest(GuestId(GuestKind(kind), vmid), name, identity, node, self._changed)
        for key, value in values.items():
            setattr(guest, key, value)
        guest.pid = 10_000 + next(self._count)
        guest.shown, guest.written = (-1.0, ""), self.wall - 86400.0
        self.guests[vmid] = guest
        for storage in guest.storages:
            self.storages.setdefault(storage, True)
        self.touch()
        self.touch("acl")
        return guest

    def _changed(self, guest: SimGuest, what: str) -> None:
        for watcher in self.watchers:
            watcher(guest, what)
        self.touch()
        if what == "pool":
            self.touch("acl")
        if what in IN_FILE:
            guest.written = self.wall
        if what in ("running", "qmp"):
            self._remember_shown(guest)

    def _remember_shown(self, guest: SimGuest) -> None:
        """Until its next broadcast pvestatd's word is the old one (pve-facts A1)."""
        if guest.shown[0] <= self.now:
            guest.shown = (self._broadcast(), _state(guest))

    def _broadcast(self) -> float:
        return ((self.now - BROADCAST_AT) // BROADCAST + 1) * BROADCAST + BROADCAST_AT

    def forget_shown(self) -> None:
        """The host boots: until pvestatd's first broadcast nobody knows what its guests do (timelines 11d)."""
        for guest in self.guests.values():
            if self.is_here(guest):
                guest.shown = (self.now + FIRST_BROADCAST, "unknown")

    def shown_state(self, guest: SimGuest) -> str:
        """What `/cluster/resources` and a pool's members say of its status: up to 10 s old, beside a lock that is always fresh."""
        return guest.shown[1] if self.now < guest.shown[0] else _state(guest)

    def create(self, vmid: int, kind: str = "lxc", by: str = "root@pam") -> SimGuest:
        """A new guest: stopped, onboot off, in no pool, with an identity that none had before."""
        if vmid not in self.guests:
            guest = self.add(vmid, kind, running=False, onboot=False, pool=None)
            guest.shown = (self._broadcast(), "unknown")
            self.task(guest.task_type("create"), str(vmid), by, said="OK")
        return self.guests[vmid]

    def destroy(self, vmid: int, by: str = "root@pam") -> None:
        """A guest is destroyed, and with it go its pool membership and every ACL entry on its path (pve-facts E5)."""
        guest = self.guests.pop(vmid, None)
        if guest is not None:
            self.touch()
            self.task(guest.task_type("destroy"), str(vmid), by, said="OK")
            self.acl.wipe(vmid)

    def migrate(self, vmid: int, node: str, by: str = "root@pam") -> None:
        """A guest moves to a node and arrives as it left; the task is on the node that it leaves."""
        guest = self.guests[vmid]
        if guest.node == node:
            return
        if self.is_here(guest):
            self.task(guest.task_type("migrate"), str(vmid), by, said="OK")
        guest.node = node

    def restore(self, vmid: int, by: str = "root@pam", *, killed: bool = False) -> None:
        """A backup is restored, over a guest that is there or as a new container. What is restored is alike in all its marks.

        killed: the worker died: lock `create` is all that is in the configuration, and it joins no pool (timelines 8, pve-facts F1).
        """
        guest = self.guests.get(vmid) or self.add(vmid, running=False, onboot=False, pool=None)
        task = self.task("vzrestore" if guest.id.kind is GuestKind.LXC else "qmrestore", str(vmid), by)
        guest.running, guest.lock, guest.snapshots, guest.only_lock = False, "create", {}, True
        if killed:
            guest.pool = None
            self.orphans[vmid] = (f"local:{vmid}/vm-{vmid}-disk-0.raw",)
        self._soon(RESTORES_IN, lambda: self._restored(guest, task, killed=killed))

    def _restored(self, guest: SimGuest, task: SimTask, *, killed: bool) -> None:
        if not killed:
            guest.lock, guest.only_lock = None, False
        guest.edits, guest.written = guest.edits + 1, self.wall
        self.end_task(task, "unexpected status" if killed else "OK")

    def set(self, vmid: int, key: str, value: object) -> None:
        """Change one trait of a guest, by the keys of a scenario. Raises KeyError or ValueError as `guest.traits` does."""
        guest = self.guests[vmid]
        wanted = traits(key, value, later=True)
        for name, now in wanted.items():
            if name != "running":
                setattr(guest, name, now)
        if wanted.get("running") is True:
            qmp, frozen = guest.qmp, guest.frozen
            self.power_on(vmid)
            guest.qmp, guest.frozen = qmp, frozen
        elif wanted.get("running") is False:
            guest.running = False
        for storage in guest.storages:
            self.storages.setdefault(storage, True)

    def lock(self, vmid: int, kind: str) -> None:
        """A lock of any kind, set by whoever."""
        self.guests[vmid].lock = kind

    def unlock(self, vmid: int) -> None:
        """`pct unlock`: whatever lock there is goes."""
        self.guests[vmid].lock = None

    def snapshot(self, vmid: int, name: str, state: str | None = "") -> None:
        """A snapshot section with that snapstate ("": a whole one), or None: it goes."""
        guest = self.guests[vmid]
        rest = {known: of for known, of in guest.snapshots.items() if known != name}
        guest.snapshots = rest if state is None else {**rest, name: state}

    def ha(self, vmid: int, state: str | None) -> None:
        """Put a guest under HA in that state ("null": HA manages it and has not said anything yet), or None: take it off."""
        self.guests[vmid].ha = None if state is None else (None if state == "null" else state,)

    def storage(self, name: str, online: bool) -> None:
        """A storage goes away, or is back."""
        self.storages[name] = online
        self.touch()

    def is_here(self, guest: SimGuest) -> bool:
        """Whether its configuration is on our node."""
        return guest.node == self.node

    def die(self, vmid: int) -> None:
        """The guest ends by itself: no task tells. A VM that is being saved stays as a process until that is over (pve-facts C4)."""
        guest = self.guests[vmid]
        if guest.running and self.vzdump.keeps(guest):
            guest.qmp = "shutdown"
        else:
            self._end(guest)

    def _end(self, guest: SimGuest) -> None:
        """At once. Fine grained, PVE cannot list containers for 0.1 s after it: one that dies hides them all (timelines 2)."""
        if guest.running:
            guest.running = False
            self._pass(guest, "reset", RESET)

    def takes(self, seconds: float) -> float:
        """How long something of others takes that is at once unless the world is fine grained."""
        return seconds if self.fine_grained else 0.0

    def _soon(self, delay: float, do: Callable[[], object]) -> None:
        if self.takes(delay):
            self.later(delay, do)
        else:
            do()

    def _pass(self, guest: SimGuest, what: str, seconds: float) -> None:
        """Fine grained, the live views of a container show that for a moment."""
        if self.fine_grained and guest.id.kind is GuestKind.LXC:
            guest.passing = what
            self.later(seconds, lambda: self._passed(guest, what))

    def _passed(self, guest: SimGuest, what: str) -> None:
        if guest.passing == what:
            guest.passing = ""

    def take_down(self, guest: SimGuest, then: Callable[[], object] = lambda: None) -> None:
        """PVE stops a guest. Fine grained, a container takes 0.9 s for it: PVE cannot list it, then it has no pid (timelines 1, 6c)."""
        pid = guest.pid
        if guest.id.kind is GuestKind.LXC and self.fine_grained:
            self._pass(guest, "reset", RESET)
            self.later(RESET, lambda: self._pass(guest, "no pid", STOPS_IN - RESET) if guest.running and guest.pid == pid else None)
            self.later(STOPS_IN, lambda: self._downed(guest, pid, then))
        else:
            self._downed(guest, pid, then)

    def _downed(self, guest: SimGuest, pid: int, then: Callable[[], object]) -> None:
        if guest.pid == pid:
            guest.passing, guest.running = "", False
        then()

    def power_on(self, vmid: int) -> None:
        """The guest runs from now on."""
        guest = self.guests.get(vmid)
        if guest is not None and not guest.running:
            guest.qmp, guest.frozen, guest.since = "running", False, self.now
            guest.pid = 10_000 + next(self._count)
            guest.running = True

    def stop(self, vmid: int, by: str = "root@pam") -> None:
        """Somebody stops the guest through PVE, which refuses while it is locked (timelines 5d). Of HA's guests HA is asked (D3)."""
        guest = self.guests[vmid]
        if not guest.running:
            return
        if guest.managed:
            self.task("hastop", str(vmid), by, said="OK")
            guest.ha, by = ("stopped",), "root@pam"
        task = self.task(guest.task_type("stop"), str(vmid), by)
        if guest.lock is None:
            self.take_down(guest, lambda: self.end_task(task, "OK"))
        else:
            self.end_task(task, f"{guest.noun} is locked ({guest.lock})")

    def start(self, vmid: int, by: str = "root@pam") -> None:
        """Somebody else starts the guest; of the script of its starts nothing is used up."""
        guest = self.guests[vmid]
        if (guest.running and not (self.resumes(guest) and guest.qmp != "running")) or not self.is_here(guest):
            return
        task = self.task(guest.task_type("start"), str(vmid), by)
        obstacle = self.obstacle(guest)
        if obstacle is None:
            self._soon(STARTS_IN, lambda: self._start_ended(guest, task))
        else:
            self.end_task(task, obstacle)

    def _start_ended(self, guest: SimGuest, task: SimTask) -> None:
        if task.said is None and self.guests.get(guest.id.vmid) is guest:
            self._come_up(guest)
        self.end_task(task, "OK")

    def _come_up(self, guest: SimGuest) -> None:
        """What a start does. One that was suspended to disk has its lock no longer (pve-facts B1)."""
        if self.resumes(guest):
            guest.qmp = "running"
        else:
            self.power_on(guest.id.vmid)
        if guest.lock == "suspended":
            guest.lock = None

    def resumes(self, guest: SimGuest) -> bool:
        """Whether a start of it, though it runs, resumes it and is OK: a VM that is being saved (pve-facts B2)."""
        return guest.running and guest.lock == "backup" and guest.id.kind is GuestKind.QEMU

    def obstacle(self, guest: SimGuest) -> str | None:
        """Why PVE's own start of it fails, in PVE's words; None when nothing is in the way."""
        if guest.template:
            return f"you can't start a {guest.noun.lower() if guest.noun == 'VM' else guest.noun} if it's a template"
        if self.resumes(guest):
            return None
        if guest.lock not in (None, "mounted" if guest.id.kind is GuestKind.LXC else "suspended"):
            return f"{guest.noun} is locked ({guest.lock})"
        offline = sorted(name for name in guest.storages if not self.storages.get(name, True))
        return f"storage '{offline[0]}' is not online" if offline else None

    def reboot(self, vmid: int, how: str = "inside") -> None:
        """From inside a container's reboot is a second of stopped and unlocked without a task; QEMU's process stays (timelines 3).

        Under a lock a container goes down and does not come back: the incident (timelines 5). A VM's reboot is refused then.
        """
        guest = self.guests[vmid]
        container = guest.id.kind is GuestKind.LXC
        if not guest.running or (how == "inside" and not container):
            return
        task = self.task(guest.task_type("reboot"), str(vmid), "root@pam") if how == "api" else None
        if task is not None and not container:
            self.end_task(task, f"VM is locked ({guest.lock})" if guest.lock is not None else "OK")
            if guest.lock is not None:
                return
        if how == "inside":
            self._end(guest)
            self._back_soon(guest, None)
        else:
            self.take_down(guest, lambda: self._back_soon(guest, task if container else None))

    def _back_soon(self, guest: SimGuest, task: SimTask | None) -> None:
        """A start that the pre-start hook refuses is over sooner; fine grained, the container seems to run meanwhile (timelines 5a)."""
        if self.fine_grained and self.obstacle(guest) is not None:
            self.later(HOOK_FAILS_AFTER, lambda: self._pass(guest, "starting", RESET))
            self.later(HOOK_FAILS_AFTER + RESET, lambda: self._back(guest, task))
        else:
            self.later(1.0, lambda: self._back(guest, task))

    def _back(self, guest: SimGuest, task: SimTask | None) -> None:
        vmid = guest.id.vmid
        if self.guests.get(vmid) is guest and self.obstacle(guest) is None:
            self.power_on(vmid)
        if task is not None:
            self.end_task(task, "OK" if guest.running else f"startup for container '{vmid}' failed")
        elif guest.id.kind is GuestKind.QEMU and guest.running:
            self.task("qmstart", str(vmid), "root@pam", said="OK")

    # ------------------------------------------------------------------------------------------------ tasks and backups

    def task(self, type: str, id: str = "", by: str = "root@pam", said: str | None = None) -> SimTask:
        """A task begins; with `said` it has ended, too."""
        pid, jiffies = next(self._count), int(self.boottime * JIFFIES)
        task = SimTask(Upid.parse(f"UPID:{self.node}:{pid:08X}:{jiffies:08X}:{int(self.wall):08X}:{type}:{id}:{by}:"))
        self.tasks.append(task)
        self.touch("tasks")
        if said is not None:
            self.end_task(task, said)
        return task

    def end_task(self, task: SimTask, said: str) -> None:
        """A task ends; the active list drops it and the archive has it, until it is rotated away."""
        if task.said is None:
            task.end(said, int(self.wall))
            self.tasks.remove(task)
            self.archive.insert(0, task)
            del self.archive[KEPT:]
            self.touch("tasks")

    def running_task(self, type: str, id: str = "") -> SimTask | None:
        """The oldest running task of that type and id."""
        return next((t for t in self.tasks if t.upid.type == type and t.upid.id == id), None)

    def task_end(self, type: str, id: str = "", said: str = "OK") -> None:
        """That task ends, if it runs."""
        task = self.running_task(type, id)
        if task is not None:
            self.end_task(task, said)

    def backup_begin(self, *vmids: int, mode: str = "snapshot", by: str = "root@pam") -> None:
        """vzdump begins, or waits for the one that runs."""
        self.vzdump.begin(vmids, mode, by)

    def backup_end(self, vmid: int | None = None, said: str = "OK") -> None:
        """The archive is written: vzdump unlocks, cleans up, starts what it stopped, and its task ends."""
        self.vzdump.end(vmid, said)

    def backup_kill(self, vmid: int | None = None, archive_for: float = 0.0) -> None:
        """kill -9 of vzdump's worker. archive_for: seconds that its archive process lives on."""
        self.vzdump.kill(vmid, archive_for)

    @property
    def jobs(self) -> list[Job]:
        """vzdump's jobs; the first holds the flock."""
        return self.vzdump.jobs

    def restart_pvedaemon(self) -> None:
        """Every task that the API began is cut off; vzdump cleans up after itself first (timelines 10a)."""
        self.vzdump.abort()
        saving = [job.task for job in self.vzdump.jobs]
        for task in [task for task in self.tasks if task not in saving]:
            self.end_task(task, "unexpected status")

    # ------------------------------------------------------------------------------------------------ what the agent does

    def react(self, verb: str, vmid: int, delay: float, do: Callable[[], object]) -> None:
        """Whenever that act of the agent reaches the world: do this, some seconds later or at once."""
        self.reactions.append(Reaction(verb, vmid, delay, do))

    def effect(self, door: str, verb: str, vmid: int | None, result: str) -> None:
        """Note what of the agent reached the world, and let the world react."""
        effect = Effect(self.now, door, verb, vmid, result)
        self.effects.append(effect)
        self.on_effect(effect)
        for reaction in self.reactions:
            if (reaction.verb, reaction.vmid) == (verb, vmid):
                if reaction.delay:
                    self.later(reaction.delay, reaction.do)
                else:
                    reaction.do()

    def fail_next(self, verb: str, text: str) -> None:
        """The next act of that kind by the agent fails with PVE's words."""
        self.failures.append((verb, text))

    def take_failure(self, verb: str) -> str | None:
        """The failure that was ordered for an act, used up by it."""
        for ordered in self.failures:
            if ordered[0] == verb:
                self.failures.remove(ordered)
                return ordered[1]
        return None

    def asked_to_stop(self, guest: SimGuest, by: str) -> tuple[SimTask, bool]:
        """PVE takes the agent's request. Returns the task, and whether it will fail."""
        failure = self.take_failure("stop") or (f"{guest.noun} is locked ({guest.lock})" if guest.lock is not None else None)
        task = self.task(guest.task_type("stop"), str(guest.id.vmid), by)
        if failure is not None:
            self.end_task(task, failure)
        else:
            self.later(STOPPED_IN, lambda: self.take_down(guest, lambda: self.end_task(task, "OK")))
        return task, failure is not None

    def asked_to_destroy(self, guest: SimGuest, by: str) -> tuple[SimTask, bool]:
        """The same. A container of which a volume cannot be removed stays; of a VM the volume stays, and it is a warning (pve-facts E5)."""
        failure, vmid = self.take_failure("destroy"), guest.id.vmid
        if guest.lock is not None:
            failure = f"VM is locked ({guest.lock})"
        task = self.task(guest.task_type("destroy"), str(vmid), by)
        stays = failure is not None and (guest.id.kind is GuestKind.LXC or guest.lock is not None)
        if stays:
            self.later(DESTROYED_IN, lambda: self.end_task(task, failure or ""))
        else:
            self.later(DESTROYED_IN, lambda: self._destroyed(guest, task, failure))
        return task, stays

    def _destroyed(self, guest: SimGuest, task: SimTask, failure: str | None) -> None:
        vmid = guest.id.vmid
        if task.said is not None or self.guests.get(vmid) is not guest:
            self.end_task(task, "OK")
            return
        if failure is not None:
            self.orphans[vmid] = (*self.orphans.get(vmid, ()), *guest.volumes())
        del self.guests[vmid]
        self.torn_down.add(vmid)
        self.touch()
        self.acl.wipe(vmid)
        self.end_task(task, "OK" if failure is None else "WARNINGS: 1")

    def volumes_of(self, vmid: int) -> tuple[str, ...]:
        """All volumes with that VMID: of its guest, and those that nothing refers to."""
        guest = self.guests.get(vmid)
        return (*(guest.volumes() if guest is not None else ()), *self.orphans.get(vmid, ()))

    def asked_to_start(self, guest: SimGuest, by: str) -> tuple[SimTask | None, str]:
        """PVE takes the agent's request; the guest's script says what comes of it. Returns the task, if any, and the effect's result."""
        vmid, script = guest.id.vmid, guest.script()
        guest.started += 1
        ordered = self.take_failure("start")
        if script == "lost before":
            return None, "lost"
        if guest.managed:
            return self.task("hastart", str(vmid), by, said="OK"), "ok"
        failure = ordered or self._start_failure(guest, script)
        task = self.task(guest.task_type("start"), str(vmid), by)
        if script != "hang" or failure is not None:
            locked = self.fine_grained and failure is not None and " is locked (" in failure
            delay = 0.0 if locked else guest.start_takes  # a lock is seen at once (timelines 6e)
            if failure is not None and not locked and not guest.running:
                self.later(max(0.0, delay - RESET), lambda: self._pass(guest, "starting", RESET))
            self.later(delay, lambda: self._finish_start(guest, task, script, failure))
        return task, "failed" if failure is not None else "lost" if script == "lost after" else "ok"

    def _start_failure(self, guest: SimGuest, script: str) -> str | None:
        at_once = sum(1 for t in self.tasks if t.upid.type in ("vzstart", "qmstart"))
        if self.most_starts is not None and at_once >= self.most_starts:
            return f"can't lock file '/run/lock/lxc/pve-config-{guest.id.vmid}.lock' - got timeout"
        if guest.running and guest.id.kind is GuestKind.QEMU and not self.resumes(guest):
            return f"VM {guest.id.vmid} already running"
        return script.removeprefix("fail: ") if script.startswith("fail: ") else self.obstacle(guest)

    def _finish_start(self, guest: SimGuest, task: SimTask, script: str, failure: str | None) -> None:
        if task.said is not None:
            return
        if self.guests.get(guest.id.vmid) is not guest or not self.is_here(guest):
            failure = f"Configuration file 'nodes/{self.node}/{guest.id}.conf' does not exist"
        failure = failure or self.obstacle(guest)
        if failure is None and guest.running and not self.resumes(guest):
            failure = f"{guest.noun} {guest.id.vmid} already running"
        if failure is None and script != "ok: stays stopped":
            self._come_up(guest)
            if script.startswith("flap "):
                pid = guest.pid
                self.later(float(script.split()[1]), lambda: self._flap(guest, pid))
        self.end_task(task, failure or (script.replace("warnings", "WARNINGS") if script.startswith("warnings") else "OK"))

    def _flap(self, guest: SimGuest, pid: int) -> None:
        if guest.pid == pid:
            guest.running = False

    # ------------------------------------------------------------------------------------------------ views

    def names(self) -> NodeNames:
        """The files under `/etc/pve/nodes`; a stamp changes with every change of its file."""
        return self.made("names", self._make_names, "guests")

    def _make_names(self) -> NodeNames:
        here = {g.id: f"{g.identity}/{g.edits}" for g in self.guests.values() if self.is_here(g)}
        return NodeNames(here, {g.id: g.node for g in self.guests.values() if not self.is_here(g)})


def _state(guest: SimGuest) -> str:
    return guest.qmp if guest.running else "stopped"
