"""The root helper of a simulated host, with the refusals that the real one owes (DESIGN.md, Processes and rights)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guestward.model.guest import GuestId, GuestKind
from guestward.model.helper import ANSWERED_WITHIN, SCRATCH_LOCKS, SNAPSHOT, STATE_OF_LOCK, Answer, HelperCode, Request, Verb
from guestward.ports import HelperLost, HelperUnreachable
from guestward.sim.guest import SimGuest
from guestward.sim.tasks import SimTask

if TYPE_CHECKING:
    from guestward.sim.doors import Life
    from guestward.sim.world import World

LOCK = "snapshot-delete"
OUR_DELETE = "our delete"  # as the one who set a lock
DELETE_TAKES = 3.0
DELETE_FAILS_IN = 0.4  # a dataset that is busy says so at once
DELETED_IN = 0.1  # fine grained, as recorded of a small container (timelines 6c)
NO_WRITE = "unable to open file '/etc/pve/nodes/{node}/lxc/{vmid}.conf.tmp': Permission denied"
Acted = list[tuple[int | None, str]]
"""What reached the world: VMIDs, None for none in particular, and the result of each."""
PHASES = {"booting": HelperCode.BOOTING, "stopping": HelperCode.STOPPING}


@dataclass(slots=True)
class HelperState:
    """What is the matter with the helper. delay: seconds that an answer takes, infinite when none comes. says: that to anything."""

    is_down: bool = False
    delay: float = 0.0
    says: Answer | None = None

    def down(self) -> None:
        """Its socket does not answer."""
        self.is_down = True

    def up(self) -> None:
        """It works again."""
        self.is_down, self.delay, self.says = False, 0.0, None

    def lie(self) -> None:
        """It says ok to anything."""
        self.says = Answer(HelperCode.OK, "done")

    def refuse(self, code: HelperCode) -> None:
        """It refuses everything with that code."""
        self.says = Answer(code, f"refused: {code}")

    def slow(self, seconds: float) -> None:
        """It takes that long to answer."""
        self.delay = seconds

    def hang(self) -> None:
        """It takes the request and never answers; the request has no effect."""
        self.delay = math.inf


@dataclass(slots=True)
class SimCall:
    """One request under way. at: virtual second at which its answer is there. until: at which nobody waits for it any more."""

    world: World
    answered: Answer | None
    at: float
    until: float

    def answer(self) -> Answer | None:
        """See `ports.HelperCall`."""
        if self.answered is not None and self.world.now >= self.at:
            return self.answered
        if self.world.now >= self.until:
            raise HelperLost("the helper did not answer in time")
        return None


@dataclass(slots=True)
class SimHelper:
    """`ports.Helper` on a world. pools, band, exclude, report_only: from its own root-owned configuration."""

    world: World
    life: Life
    pools: tuple[str, ...]
    band: range
    exclude: frozenset[int] = frozenset()
    report_only: bool = False

    def ask(self, request: Request) -> SimCall:
        """One request, one short-lived process."""
        world, state = self.world, self.world.helper
        if state.is_down:
            raise HelperUnreachable("its socket does not answer; `systemctl status guestward-helper.socket`")
        until = world.now + ANSWERED_WITHIN[request.verb]
        if math.isinf(state.delay):
            self._effects(request, [(request.vmid, "lost")])
            return SimCall(world, None, math.inf, until)
        if state.says is not None:
            self._effects(request, [(request.vmid, "refused")])
            return SimCall(world, state.says, world.now, until)
        call = SimCall(world, None, world.now + state.delay, until)
        try:
            Request.decode(request.encode())
        except ValueError as error:
            call.answered = Answer(HelperCode.BAD_REQUEST, str(error))
            self._effects(request, [(request.vmid, "refused")])
            return call
        acts: dict[Verb, Callable[[Request, SimCall], Acted]] = {
            Verb.UNLOCK: self._unlock,
            Verb.DELETE_SNAPSHOT: self._delete,
            Verb.RELEASE_SCRATCH: self._release,
            Verb.REGRANT: self._regrant,
        }
        self._effects(request, acts[request.verb](request, call))
        return call

    def _effects(self, request: Request, acted: Acted) -> None:
        lost = self.world.helper.delay > ANSWERED_WITHIN[request.verb]
        for vmid, result in acted:
            self.world.effect("helper", request.verb.value, vmid, "lost" if lost else result)
        self.life.check()

    def _unlock(self, request: Request, call: SimCall) -> Acted:
        guest = GuestId(request.kind or GuestKind.LXC, request.vmid or 0)
        found = self.world.guests.get(guest.vmid)
        refused = self._held_back() or self._not_ready() or self._not_ours(found, guest) or self._not_stale(found, request.expect or "")
        return self._clear(request, call, found, refused)

    def _release(self, request: Request, call: SimCall) -> Acted:
        """Any kind, the band alone, and whatever `[locks] recover` says."""
        vmid = request.vmid or 0
        found = self.world.guests.get(vmid)
        refused = self._not_scratch(vmid) or self._not_ready() or self._not_left(vmid, found)
        return self._clear(request, call, found, refused)

    def _clear(self, request: Request, call: SimCall, found: SimGuest | None, refused: Answer | None) -> Acted:
        if refused is not None or found is None:
            call.answered = refused or Answer(HelperCode.NO_GUEST, f"there is no {request.vmid}")
            return [(request.vmid, "refused")]
        ordered = self.world.take_failure(request.verb.value)
        if ordered is not None:
            call.answered = Answer(HelperCode.FAILED, f"{found.id}: the lock {found.lock} is still there; {ordered}")
            return [(request.vmid, "failed")]
        call.answered = Answer(HelperCode.OK, f"{found.id}: lock {found.lock} cleared")
        found.lock = None
        return [(request.vmid, "ok")]

    def _regrant(self, request: Request, call: SimCall) -> Acted:
        """For our user and token: of others the simulated access control knows nothing. Neither a boot nor a hold stands in the way."""
        refused = self._no_quorum() or (self._phase() if self.world.phases.phase == "stopping" else None)
        if refused is not None:
            call.answered = refused
            return [(None, "refused")]
        lost, acl = self._lost(), self.world.acl
        ordered = self.world.take_failure("regrant") if lost else None
        if ordered is not None:
            call.answered = Answer(HelperCode.FAILED, f"GuestwardScratch is missing at {', '.join(map(str, lost))}; {ordered}")
            return [(None, "failed")]
        for vmid, whos in lost.items():
            for who in whos:
                if not acl.is_barred(who, f"/vms/{vmid}"):
                    self.world.grant_scratch(vmid, who)
        still = self._lost()
        back = [vmid for vmid, whos in lost.items() if whos != still.get(vmid, [])]
        call.answered = Answer(HelperCode.OK, f"put back at {', '.join(map(str, back)) or 'none: nothing was missing'}")
        if still:
            call.answered = Answer(HelperCode.FAILED, f"NoAccess bars user or token at {', '.join(map(str, still))}")
        return [*((vmid, "ok") for vmid in back), *([(None, "failed")] if still else [] if back else [(None, "ok")])]

    def _lost(self) -> dict[int, list[str]]:
        """VMID of the band -> who of user and token has no entry there that counts."""
        return {vmid: whos for vmid in self.band if (whos := self.world.lacks_scratch(vmid))}

    def _delete(self, request: Request, call: SimCall) -> Acted:
        """`pct delsnapshot`: a task of its own, a lock of its own; a storage that fails leaves both, and the lock goes at once (C39)."""
        guest = GuestId(GuestKind.LXC, request.vmid or 0)
        found = self.world.guests.get(guest.vmid)
        refused = self._held_back() or self._not_ready() or self._not_ours(found, guest) or self._no_snapshot(found)
        if refused is not None or found is None:
            call.answered = refused or Answer(HelperCode.NO_GUEST, f"there is no {guest}")
            return [(request.vmid, "refused")]
        ordered = self.world.take_failure("delete-snapshot")
        task = self.world.task("vzdelsnapshot", str(guest.vmid), "root@pam")
        found.lock, found.locker, found.snapshots = LOCK, OUR_DELETE, {**found.snapshots, SNAPSHOT: "delete"}
        takes = DELETE_FAILS_IN if ordered is not None else DELETED_IN if self.world.fine_grained else DELETE_TAKES
        call.at += takes
        self.world.later(takes, lambda: self._deleted(found, task, call, ordered))
        return [(request.vmid, "ok" if ordered is None else "failed")]

    def _deleted(self, guest: SimGuest, task: SimTask, call: SimCall, ordered: str | None) -> None:
        if task.said is not None:  # the host went down meanwhile
            return
        self.world.end_task(task, ordered or "OK")
        if self.world.guests.get(guest.id.vmid) is not guest or not self.world.is_here(guest):
            call.answered = Answer(HelperCode.FAILED, f"the guest is gone: {guest.id}: no such configuration on this node")
            return
        if ordered is not None:
            lock = self._clear_ours(guest)
            call.answered = Answer(HelperCode.FAILED, f"{guest.id}: the snapshot {SNAPSHOT} is still there{lock}; {ordered}")
            return
        guest.lock, guest.snapshots = None, {name: state for name, state in guest.snapshots.items() if name != SNAPSHOT}
        call.answered = Answer(HelperCode.OK, f"{guest.id}: snapshot {SNAPSHOT} deleted")

    def _clear_ours(self, guest: SimGuest) -> str:
        """`pct unlock`, where the lock is what our delete left. Returns what became of it, for the end of a sentence."""
        if guest.lock is None:
            return ""
        down = f"; the lock {guest.lock} is there now, and keeps the guest down"
        if guest.lock != LOCK:
            return down
        tasks = [task.upid for task in self.world.tasks if task.upid.id == str(guest.id.vmid)]
        if guest.locker != OUR_DELETE or tasks or self._others(guest) or guest.snapshots.get(SNAPSHOT) != STATE_OF_LOCK[LOCK]:
            return f"{down}: {f'a task of this guest is running: {tasks[0]}' if tasks else 'somebody is at work on it'}"
        why = NO_WRITE.format(node=self.world.node, vmid=guest.id.vmid) if not self.world.quorate else self.world.take_failure("unlock")
        if why is not None:
            return f"{down}; `pct unlock`: {why}"
        guest.lock = None
        return f"; its lock {LOCK} was cleared, so that the guest can start"

    @staticmethod
    def _others(guest: SimGuest) -> list[str]:
        return [name for name, state in guest.snapshots.items() if name != SNAPSHOT and state]

    # ------------------------------------------------------------------------------------------------ refusals

    def _held_back(self) -> Answer | None:
        return Answer(HelperCode.REPORT_ONLY, "[locks] recover is `report`") if self.report_only else None

    def _not_ready(self) -> Answer | None:
        held = Answer(HelperCode.HELD, "the file /etc/guestward/hold is there") if self.world.hold_file else None
        return self._phase() or self._no_quorum() or held

    def _phase(self) -> Answer | None:
        phase = self.world.phases.phase
        return Answer(PHASES[phase], f"the host is {phase}") if phase in PHASES else None

    def _no_quorum(self) -> Answer | None:
        return Answer(HelperCode.NO_QUORUM, "the cluster has no quorum") if not self.world.quorate else None

    def _not_scratch(self, vmid: int) -> Answer | None:
        if vmid not in self.band:
            return Answer(HelperCode.NOT_SCRATCH, f"{vmid} is not in the scratch band")
        return Answer(HelperCode.EXCLUDED, f"{vmid} is excluded") if vmid in self.exclude else None

    def _not_left(self, vmid: int, found: SimGuest | None) -> Answer | None:
        if found is None or not self.world.is_here(found):
            return Answer(HelperCode.NO_GUEST, f"there is no {vmid} on this node")
        if found.template:
            return Answer(HelperCode.TEMPLATE, f"{found.id} is a template")
        if found.lock is None:
            return Answer(HelperCode.NOT_LOCKED, f"{found.id} has no lock")
        if found.lock not in SCRATCH_LOCKS:
            return Answer(HelperCode.LOCK_KIND, f"the lock {found.lock} is not of a dead restore or destroy")
        if any(task.upid.id == str(vmid) or task.upid.type == "vzclone" for task in self.world.tasks):
            return Answer(HelperCode.TASK_RUNNING, f"a task that is or may be about {vmid} is running")
        return None

    def _not_ours(self, found: SimGuest | None, guest: GuestId) -> Answer | None:
        if guest.vmid in self.band:
            return Answer(HelperCode.SCRATCH_BAND, f"{guest} is in the scratch band")
        if guest.vmid in self.exclude:
            return Answer(HelperCode.EXCLUDED, f"{guest} is excluded")
        if found is None or not self.world.is_here(found):
            return Answer(HelperCode.NO_GUEST, f"there is no {guest} on this node")
        if found.id != guest:
            return Answer(HelperCode.WRONG_KIND, f"{guest.vmid} is {found.id}")
        return None if found.pool in self.pools else Answer(HelperCode.NOT_OWNED, f"{guest} is in none of our pools")

    def _at_work(self, vmid: int) -> Answer | None:
        if self.world.vzdump.running is not None:
            return Answer(HelperCode.BUSY, "somebody holds the flock on /run/vzdump.lock")
        if vmid in self.world.vzdump.archives:
            return Answer(HelperCode.BACKUP_RUNNING, f"an archive process of {vmid} is alive")
        if any(task.upid.id == str(vmid) for task in self.world.tasks):
            return Answer(HelperCode.TASK_RUNNING, f"a task for {vmid} is running")
        return None

    def _not_stale(self, found: SimGuest | None, expect: str) -> Answer | None:
        if found is None:
            return None
        at_work = self._at_work(found.id.vmid)
        if at_work is not None or found.lock != expect:
            return at_work or Answer(HelperCode.LOCK_CHANGED, f"the lock is {found.lock}, not {expect}")
        if expect in STATE_OF_LOCK and (found.id.kind is not GuestKind.LXC or found.snapshots.get(SNAPSHOT) != STATE_OF_LOCK[expect]):
            return Answer(HelperCode.LOCK_KIND, f"the lock {expect} is not vzdump's")
        if expect in STATE_OF_LOCK and self._others(found):
            return Answer(HelperCode.LOCK_KIND, f"the lock {expect} may be that of another snapshot: {', '.join(self._others(found))}")
        return None

    def _no_snapshot(self, found: SimGuest | None) -> Answer | None:
        if found is None:
            return None
        if found.lock is not None:
            return Answer(HelperCode.LOCKED, f"{found.id} has the lock {found.lock}")
        if SNAPSHOT not in found.snapshots:
            return Answer(HelperCode.NO_SNAPSHOT, f"{found.id} has no snapshot {SNAPSHOT}")
        return self._at_work(found.id.vmid)
