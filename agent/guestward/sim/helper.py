"""The root helper of a simulated host, with the refusals that the real one owes (DESIGN.md, Processes and rights)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guestward.model.guest import GuestId, GuestKind
from guestward.model.helper import ANSWERED_WITHIN, SNAPSHOT, STATE_OF_LOCK, Answer, HelperCode, Request, Verb
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
            self._effect(request, "lost")
            return SimCall(world, None, math.inf, until)
        if state.says is not None:
            self._effect(request, "refused")
            return SimCall(world, state.says, world.now, until)
        call = SimCall(world, None, world.now + state.delay, until)
        try:
            Request.decode(request.encode())
        except ValueError as error:
            call.answered = Answer(HelperCode.BAD_REQUEST, str(error))
            self._effect(request, "refused")
            return call
        act: Callable[[Request, SimCall], str] = {Verb.UNLOCK: self._unlock, Verb.DELETE_SNAPSHOT: self._delete}[request.verb]
        result = act(request, call)
        self._effect(request, "lost" if state.delay > ANSWERED_WITHIN[request.verb] else result)
        return call

    def _effect(self, request: Request, result: str) -> None:
        self.world.effect("helper", request.verb.value, request.vmid, result)
        self.life.check()

    def _unlock(self, request: Request, call: SimCall) -> str:
        guest = GuestId(request.kind or GuestKind.LXC, request.vmid or 0)
        found = self.world.guests.get(guest.vmid)
        refused = self._not_ready() or self._not_ours(found, guest) or self._not_stale(found, request.expect or "")
        ordered = self.world.take_failure("unlock") if refused is None else None
        if refused is not None or ordered is not None or found is None:
            call.answered = refused or Answer(HelperCode.FAILED, f"{guest}: {ordered}")
            return "failed" if refused is None else "refused"
        found.lock = None
        call.answered = Answer(HelperCode.OK, f"{guest}: lock {request.expect} cleared")
        return "ok"

    def _delete(self, request: Request, call: SimCall) -> str:
        """`pct delsnapshot`: a task of its own, a lock of its own; a storage that fails leaves both, and the lock goes at once (C39)."""
        guest = GuestId(GuestKind.LXC, request.vmid or 0)
        found = self.world.guests.get(guest.vmid)
        refused = self._not_ready() or self._not_ours(found, guest) or self._no_snapshot(found)
        if refused is not None or found is None:
            call.answered = refused or Answer(HelperCode.NO_GUEST, f"there is no {guest}")
            return "refused"
        ordered = self.world.take_failure("delete-snapshot")
        task = self.world.task("vzdelsnapshot", str(guest.vmid), "root@pam")
        found.lock, found.locker, found.snapshots = LOCK, OUR_DELETE, {**found.snapshots, SNAPSHOT: "delete"}
        takes = DELETE_FAILS_IN if ordered is not None else DELETED_IN if self.world.fine_grained else DELETE_TAKES
        call.at += takes
        self.world.later(takes, lambda: self._deleted(found, task, call, ordered))
        return "ok" if ordered is None else "failed"

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

    def _not_ready(self) -> Answer | None:
        if self.report_only:
            return Answer(HelperCode.REPORT_ONLY, "[locks] recover is `report`")
        if self.world.phases.phase in PHASES:
            return Answer(PHASES[self.world.phases.phase], f"the host is {self.world.phases.phase}")
        if not self.world.quorate:
            return Answer(HelperCode.NO_QUORUM, "the cluster has no quorum")
        return Answer(HelperCode.HELD, "the file /etc/guestward/hold is there") if self.world.hold_file else None

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
