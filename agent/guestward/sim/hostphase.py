"""The host boots, is up, and goes down, and what PVE does with the guests then (pve-facts B4, H; timelines 11)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from guestward.model.guest import Startup
from guestward.model.observation import UnitState
from guestward.sim.guest import SimGuest
from guestward.sim.tasks import SimTask

if TYPE_CHECKING:
    from guestward.sim.world import World

UP = UnitState("loaded", "active", "exited", "enabled")
BOOTING = UnitState("loaded", "activating", "start", "enabled")
GOING_DOWN = UnitState("loaded", "deactivating", "stop", "enabled")
UPTIME_AT_BOOT = 10.0
START_TAKES = 1.0
STARTS_IN = 0.5  # of which fine grained, from its task to running (timelines 1a)
VM_UP = 3  # PVE's own delay after a VM that has no `up`
AT_ONCE = 3  # starts of one order, from that version of PVE on: as many as cores less one (pve-facts H)
AT_ONCE_FROM = (9, 1, 2)
FLOCK_WAIT = 10  # seconds for which startall waits for a vzdump before it looks for what one left


@dataclass(slots=True)
class Phases:
    """Which phase the host is in. turn: counts phases, so that what an earlier one had planned does not happen any more."""

    world: World
    phase: str = "up"
    turn: int = 0
    bulk: list[SimTask] = field(default_factory=list)

    def enter(self, phase: str) -> bool:
        """`booting` (a crash, unless it boots already), `up`, `stopping`, `reboot`. Whether that was a boot of the host."""
        if phase == self.phase or (phase == "up" and self.bulk and self.phase == "booting"):
            return False
        boots = phase in ("booting", "reboot")
        if phase == "reboot":
            self._shut_down()
        if boots:
            self._boot()
        elif phase == "up":
            self._up()
        else:
            self._stop()
        return boots

    def begin(self, phase: str) -> None:
        """Be in a phase from the first second on; guests are as they are."""
        world = self.world
        if phase == "booting":
            world.boot_offset, world.pve_guests = UPTIME_AT_BOOT, BOOTING
        elif phase == "stopping":
            world.system, world.pve_guests = "stopping", GOING_DOWN
            self.bulk.append(world.task("stopall"))
        self.phase = phase

    def _boot(self) -> None:
        """All guests are down, PVE has started none yet, and tasks were cut off. `/var/run` is empty."""
        world = self.world
        self.phase, self.turn = "booting", self.turn + 1
        self.bulk.clear()
        world.vzdump.crash()
        for task in list(world.tasks):
            world.end_task(task, "unexpected status")
        for guest in world.guests.values():
            if world.is_here(guest):
                guest.running = False
        world.forget_shown()
        world.boot += 1
        world.boot_offset = UPTIME_AT_BOOT - world.now
        world.pve_guests, world.system = BOOTING, "starting"
        world.touch()

    def _shut_down(self) -> None:
        """A clean shutdown, all of it at once: `vzdump -stop`, then every guest is stopped by `stopall`."""
        world = self.world
        world.vzdump.interrupt()
        for guest in self._here():
            if guest.running:
                world.task(guest.task_type("shutdown"), str(guest.id.vmid), said="OK")
                guest.running = False

    def _up(self) -> None:
        world = self.world
        was, self.turn = self.phase, self.turn + 1
        world.system = "running"
        world.touch()
        if was == "booting":
            self._startall()
            return
        self.phase = "up"
        world.pve_guests = UP
        self._end_bulk()

    def _startall(self) -> None:
        """PVE first takes away the `backup` locks of all guests, and no others; then it starts by order, with delays."""
        self.bulk.append(self.world.task("startall"))
        self._unlock_all(self.turn, FLOCK_WAIT)

    def _unlock_all(self, turn: int, wait: int) -> None:
        """Under vzdump's flock, so never those of a vzdump that runs by then (`Nodes.pm:startall`)."""
        if turn != self.turn:
            return
        saving = self.world.vzdump.running is not None
        if saving and wait:
            self.world.later(1.0, lambda: self._unlock_all(turn, wait - 1))
            return
        for guest in self._here():
            if guest.lock == "backup" and not guest.template and not saving:
                guest.lock = None
        self._start_all(turn)

    def _start_all(self, turn: int) -> None:
        """In turn; in newer versions (pve-facts H) several of one order at once, and each order when all before it have ended."""
        world, several = self.world, _parts(self.world.pve_version) >= AT_ONCE_FROM
        begin, order, ends = 0.0, math.nan, [0.0]
        for guest in sorted((g for g in self._here() if g.config().onboot and not g.template and not g.managed), key=_rank):
            if several:
                begin = max(begin, ends[-1] if _rank(guest)[0] != order else ends[-AT_ONCE:][0])
            order = _rank(guest)[0]
            ends.append(begin + START_TAKES)
            world.later(ends[-1] - world.takes(STARTS_IN), partial(self._start, guest, turn))
            begin = (begin if several else ends[-1]) + _delay(guest)
        world.later(max(begin, ends[-1]) + 0.1 + world.takes(START_TAKES), lambda: self._started(turn))

    def _start(self, guest: SimGuest, turn: int) -> None:
        if turn == self.turn and self.world.guests.get(guest.id.vmid) is guest:
            self.world.start(guest.id.vmid)

    def _started(self, turn: int) -> None:
        if turn == self.turn:
            self.phase, self.world.pve_guests = "up", UP
            self._end_bulk()
            self.world.touch()

    def _stop(self) -> None:
        """systemd stops: `stopall` takes one guest after the other down, last started first (pve-facts H)."""
        world = self.world
        self.phase, self.turn = "stopping", self.turn + 1
        world.system, world.pve_guests = "stopping", GOING_DOWN
        world.vzdump.interrupt()
        self.bulk.append(world.task("stopall"))
        world.touch()
        running = sorted((g for g in self._here() if g.running), key=_rank, reverse=True)
        for number, guest in enumerate(running):
            world.later(float(number), partial(self._take_down, guest, self.turn))

    def _take_down(self, guest: SimGuest, turn: int) -> None:
        if turn == self.turn and guest.running:
            task = self.world.task(guest.task_type("shutdown"), str(guest.id.vmid))
            self.world.take_down(guest, lambda: self.world.end_task(task, "OK"))

    def _end_bulk(self) -> None:
        for task in self.bulk:
            self.world.end_task(task, "OK")
        self.bulk.clear()

    def _here(self) -> Iterator[SimGuest]:
        return (guest for guest in list(self.world.guests.values()) if self.world.is_here(guest))


def _rank(guest: SimGuest) -> tuple[float, int]:
    order = Startup.parse(guest.startup).order
    return (math.inf if order is None else order, guest.id.vmid)


def _delay(guest: SimGuest) -> int:
    return VM_UP if guest.noun == "VM" and "up=" not in guest.startup else Startup.parse(guest.startup).up


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
