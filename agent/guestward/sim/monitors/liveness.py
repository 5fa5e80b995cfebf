"""What should happen does: a guest with nothing in its way is started within the bound, and a guard on the board is true of the world."""

from __future__ import annotations

import math

from guestward.model.decision import Guard
from guestward.sim.log import Effect, Logged
from guestward.sim.monitors import truth
from guestward.sim.monitors.base import Watch
from guestward.sim.monitors.guards import guard_holds
from guestward.sim.monitors.past import STARTS, Facts, Past, Snap

LOOKS = 5.0  # what the looks themselves may take: PVE's list is read again after a second, twice, and a start is looked at again


def bound(past: Past) -> float:
    """Seconds from the moment at which nothing stands in the way to the request: 95 at the defaults (DESIGN.md, Bounds)."""
    watchdog = past.sim.config.watchdog
    return watchdog.interval + (watchdog.confirm or watchdog.interval) + LOOKS


class StartedInTime(Watch):
    """Nothing is in its way."""

    invariant, rule = (
        "LIVENESS",
        "a guest that should run, with nothing in its way, is started within one interval, one confirmation and 5 s",
    )

    def __init__(self, past: Past) -> None:
        """since: VMID -> virtual second from which on nothing stands in the way. clear: the same for node and API."""
        super().__init__(past)
        self.since: dict[int, float] = {}
        self.clear = past.world.now
        self.tries: dict[int, int] = {}
        self.untold: set[int] = set()
        self._wanted: tuple[Snap, list[Facts]] = (past.snap._replace(guests={}), [])  # of no world

    def effect(self, effect: Effect) -> None:
        """Count a start."""
        if effect.verb == "start" and effect.vmid is not None:
            self.tries[effect.vmid] = self.tries.get(effect.vmid, 0) + 1
            self.untold.add(effect.vmid)
            self.since.pop(effect.vmid, None)

    def event(self, logged: Logged) -> None:
        """Count an attempt that did not reach PVE, too."""
        if logged.guest is None or logged.event not in ("start_attempt", "rearmed"):
            return
        vmid = logged.guest.vmid
        if logged.event == "rearmed":
            self.tries[vmid] = sum(1 for sent in self.past.memory(vmid).sent[-1:] if not sent.outcome)  # one that is under way stays
        elif vmid in self.untold:
            self.untold.discard(vmid)
        else:
            self.tries[vmid] = self.tries.get(vmid, 0) + 1
            self.since.pop(vmid, None)

    def looked(self, job: str) -> None:
        """Judge those that are down."""
        past = self.past
        wanted = self._those_down()
        if not wanted and not self.since:
            self.clear = past.world.now
            return
        now = past.world.now
        if not self._node_is_clear():
            self.clear = now
        for vmid in self.since.keys() - {facts.id.vmid for facts in wanted}:
            del self.since[vmid]
        for facts in wanted:
            self._judge(facts, now)

    def _those_down(self) -> list[Facts]:
        snap = self.past.snap
        if self._wanted[0].guests is not snap.guests:
            self._wanted = (snap, [facts for facts in snap.guests.values() if facts.wanted and not facts.running])
        return self._wanted[1]

    def _node_is_clear(self) -> bool:
        """Whether nothing is in anybody's way: host, API, witnesses, and other starts under way or waiting."""
        past = self.past
        watch = past.sim.watch
        if past.trouble or watch is None or watch.power.starter.ending or past.snap.node.unreadable or past.snap.node.hidden:
            return False
        if past.in_flight() or past.world.now - past.api_failed < 1 or truth.gate(past, past.snap) or past.lost():
            return False
        return past.snap.node.pmxcfs and past.snap.node.local_name in ("", past.world.node) and not any(asked.failed for asked in past.job)

    def _judge(self, facts: Facts, now: float) -> None:
        vmid, past = facts.id.vmid, self.past
        if not all(self._free(snap, vmid) for snap in past.snaps) or self._waits_for_others():
            self.since.pop(vmid, None)
            return
        since = max(self.since.setdefault(vmid, now), self.clear, past.alive_since, past.memory(vmid).changed)
        if now - since > bound(past) + self._turns():
            if self._mass_stop():
                self.since.pop(vmid)
                return
            where = "" if past.sim.store.board is None else self._guard(vmid)
            self.broken(
                f"{facts.id} should run, and nothing has stood in its way from {since:.1f} s to {now:.1f} s; its guard is {where or 'none'}"
            )

    def _turns(self) -> float:
        """What those who wait as well may take, who are started before it."""
        return 5.0 * len(self.since)

    def _waits_for_others(self) -> bool:
        """Whether a delay of `startup` runs, or a start is told of that is not over."""
        past = self.past
        for sent in past.all_sent():
            if not sent.outcome and not sent.gone and sent.life == past.life:
                return True
            if sent.up and sent.up_at is not None and past.world.boottime < sent.up_at + sent.up + 5:
                return True
        return False

    def _free(self, snap: Snap, vmid: int) -> bool:
        """Whether nothing that is its own is in its way, and it surely has attempts left."""
        facts, past = snap.guests.get(vmid), self.past
        if facts is None or facts.shown or not facts.wanted or facts.lock is not None or facts.ha:
            return False
        of = past.memory(vmid)
        in_the_way = (
            of.new
            or of.maybe_new
            or truth.held(past, snap, vmid)
            or truth.task_on(snap, facts.id)
            or truth.backup(snap, facts)
            or truth.offline(snap, facts)
            or facts.dangling is not None
            or past.helper_at_work(vmid)
            or any(name for name in facts.storages if past.world.now - past.back_online.get(name, -math.inf) < 1)
        )
        if in_the_way or past.snap.node.unreadable:
            return False
        if past.rules.operator_stop_holds and truth.may_be_stopped_on_purpose(past, vmid):
            return False
        return self._has_attempts(vmid)

    def _mass_stop(self) -> bool:
        """Asked only of a guest that waits for too long: it reads PVE's whole history."""
        return truth.may_be_mass_stop(self.past, self.past.rules.mass_stop, 2 * truth.MASS_PAUSE + 120)

    def _has_attempts(self, vmid: int) -> bool:
        """By the longest count and the longest wait: after a reason for new attempts that the agent may not know, none is demanded."""
        past = self.past
        of = past.memory(vmid)
        if of.sent and of.surely_stable > of.sent[-1].t:
            self.tries.pop(vmid, None)
        tries = self.tries.get(vmid, 0)
        if past.lost_state > 0 and self._others_by_our_token(vmid):
            return False
        if tries >= past.rules.attempts or any(sent.task is not None and sent.task.upid.type == "hastart" for sent in of.sent):
            return False
        if past.world.boottime - of.cut_at < past.rules.start_timeout + max(past.rules.backoff) + bound(past):
            return False
        tries += sum(1 for cut in of.cuts if cut > max(of.surely_stable, of.rearmed))
        if tries >= past.rules.attempts:
            return False
        last = of.sent[-1] if of.sent else None
        if last is None:
            return tries == 0 or past.world.now - past.api_failed > max(past.rules.backoff)
        ended = last.ended if last.ended is not None else math.inf
        return past.world.boottime >= max(ended, last.at) + max(past.rules.backoff) + 12.0

    def _others_by_our_token(self, vmid: int) -> bool:
        """Without its memory the agent takes every start by its token in the hour before for its own."""
        world, since = self.past.world, self.past.lost_boot - 3600.0
        own = [task for task in world.archive if task.upid.type in STARTS and task.upid.user == world.token_id]
        return any(task.upid.id == str(vmid) and task.upid.started_boottime >= since for task in own)

    def _guard(self, vmid: int) -> str:
        board = self.past.sim.store.board
        rows = () if board is None else board.rows
        return next((f"{row.decision.guard} ({row.decision.evidence})" for row in rows if row.decision.id.vmid == vmid), "")


class BoardTrue(Watch):
    """What `status` shows."""

    invariant, rule = "LIVENESS", "a guard that `status` shows is true of the world, or was within one interval, one confirmation and 5 s"

    def __init__(self, past: Past) -> None:
        """since: VMID and guard -> virtual second from which on it is not so."""
        super().__init__(past)
        self.since: dict[tuple[int, str], float] = {}
        self.version = -1

    def looked(self, job: str) -> None:
        """Judge the rows of the last look; while looks are aborted they are old, and say so."""
        past = self.past
        board = past.sim.store.board
        if job != "sweep" or board is None or board.aborted or board.incomplete:
            self.since.clear()
            return
        if past.world.version == self.version and not self.since:
            return
        self.version = past.world.version
        now, false = past.world.now, {}
        for row in board.rows:
            vmid, guard = row.decision.id.vmid, row.decision.guard
            facts = past.snap.guests.get(vmid)
            if guard is Guard.RUNNING and facts is not None and facts.shown:
                continue
            if not guard_holds(past, past.snap, vmid, str(guard)):
                since = self.since.get((vmid, str(guard)), now)
                false[(vmid, str(guard))] = since
                if now - max(since, past.memory(vmid).changed) > bound(past) + 10:
                    self.broken(f"{row.decision.id} is shown as {guard} ({row.decision.evidence}), and that is not so since {since:.1f} s")
        self.since = false


ALL: tuple[type[Watch], ...] = (StartedInTime, BoardTrue)
