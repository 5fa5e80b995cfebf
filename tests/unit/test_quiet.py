"""Quiet guests: leaving them out must change nothing that anybody can see."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guestward.config import parse
from guestward.duties.env import Result
from guestward.duties.observe import Sight
from guestward.duties.power import PowerWatch
from guestward.ports import PveUnreachable
from guestward.sim.doors import Fault
from guestward.sim.guest import SimGuest
from guestward.sim.run import Simulation
from tests.unit.build import regrant

SETTINGS: tuple[dict[str, dict[str, Any]], ...] = (
    {},
    {"watchdog": {"confirm": "0s", "parallel": 1, "backoff": ["10s"]}},
    {"watchdog": {"operator_stop": "hold", "stable": "1m"}},
    {"scope": {"exclude": [101, 103]}, "watchdog": {"attempts": 1}},
    {"scope": {"pools": ["guestward", "web"]}, "watchdog": {"backup_wait_warn": "5m", "mass_stop": 2}},
    {"scratch": {"first": 104, "last": 105}},
)
GAPS = (0, 1, 2, 7, 20, 31, 60, 61, 90, 200, 700, 3700)
LISTS = ("names", "quorum", "frozen", "flock", "system", "hold_file")
ROUTES = (
    "GET /nodes/pve1/lxc",
    "GET /pools",
    "GET /access",
    "GET /nodes/pve1/tasks?source=active",
    "GET /nodes/pve1/tasks?source=archive",
    "GET /cluster/resources",
    "GET /nodes/pve1/qemu/102/config",
    "GET /nodes/pve1/lxc/101/status",
)
SCRIPTS = (("ok",), ("fail: no space left",), ("flap 30",), ("flap 200", "ok"), ("lost after", "ok"), ("hang",), ("ok: stays stopped",))


class LoudWatch(PowerWatch):
    """A watchdog for which nobody is ever quiet."""

    def _look(self, *, counted: bool) -> Result:
        self.state.quiet.wake_all()
        self.state.sight = Sight(self.state.sight.cache)
        self.placed = ()
        return super()._look(counted=counted)


class LoudSimulation(Simulation):
    def start(self) -> None:
        super().start()
        assert self.watch is not None
        self.watch.power = LoudWatch(self.watch.env)
        self.watch.locks.state = self.watch.grants.state = self.watch.scratch.state = self.watch.power.state


def _toggle(of: set[Any], what: Any) -> None:
    of.symmetric_difference_update({what})


def _reload(sim: Simulation, pick: random.Random) -> None:
    sim.config = parse({"pve": {"token_id": sim.world.token_id}} | pick.choice(SETTINGS), Path("scenario"))
    sim.pve.pools = sim.config.scope.pools
    if sim.watch is not None:
        sim.watch.env.config = sim.config
        helper: Any = sim.watch.env.helper
        helper.inner = sim._helper()  # the real one reads its configuration at each request


def _boot(sim: Simulation, pick: random.Random) -> None:
    sim.host("booting")
    sim.world.later(pick.choice((30, 200)), lambda: sim.host("up"))


def _backup(sim: Simulation, guest: SimGuest, pick: random.Random) -> None:
    if sim.world.jobs:
        pick.choice((sim.world.backup_end, sim.world.backup_kill))()
    elif guest.lock is None:
        sim.world.backup_begin(guest.id.vmid, mode=pick.choice(("snapshot", "stop")))


def _task(sim: Simulation, guest: SimGuest, pick: random.Random) -> None:
    kind = pick.choice(("vzsnapshot", "qmshutdown", "qmclone", "startall", "vncproxy"))
    task = sim.world.task(kind, "" if kind == "startall" else str(guest.id.vmid))
    sim.world.later(pick.choice((5, 100)), lambda: sim.world.end_task(task, "OK"))


def _unreadable(sim: Simulation, pick: random.Random) -> None:
    name = pick.choice(LISTS)
    if sim.world.unreadable.pop(name, None) is None:
        sim.world.unreadable[name] = "no permission"


def _fault(sim: Simulation, pick: random.Random) -> None:
    sim.pve.faults[pick.choice(ROUTES)] = Fault(lambda: PveUnreachable("connection refused"), pick.choice((1, 2, 5)))


def _recreate(sim: Simulation, guest: SimGuest, pick: random.Random) -> None:
    sim.world.destroy(guest.id.vmid)
    new = sim.world.create(guest.id.vmid, guest.id.kind.value)
    new.pool, new.onboot = pick.choice((None, "guestward")), pick.choice((True, False))
    sim.world.guests = dict(sorted(sim.world.guests.items()))


def _repair(sim: Simulation) -> None:
    """Everything that keeps the agent from looking or from acting ends, or hardly anything else would be seen."""
    world = sim.world
    regrant(sim)
    for broken in (world.unreadable, world.hidden, sim.pve.faults):
        broken.clear()
    world.pmxcfs = world.quorate = True
    world.hold_file = world.maintenance = False
    sim.store.holds_lost = ""


def _set(trait: str, *values: object) -> Callable[[Simulation, SimGuest, random.Random], None]:
    return lambda _, guest, pick: setattr(guest, trait, pick.choice(values))


Step = Callable[[Simulation, SimGuest, random.Random], object]
STEPS: dict[str, Step] = {
    "die": lambda sim, guest, _: sim.world.die(guest.id.vmid),
    "die again": lambda sim, guest, _: sim.world.die(guest.id.vmid),
    "stop": lambda sim, guest, _: sim.world.stop(guest.id.vmid),
    "stop by us": lambda sim, guest, _: sim.world.stop(guest.id.vmid, sim.world.token_id),
    "stop many": lambda sim, guest, _: [sim.world.stop(vmid) for vmid in (101, 102, 103) if vmid in sim.world.guests],
    "start": lambda sim, guest, _: sim.world.power_on(guest.id.vmid),
    "reboot": lambda sim, guest, pick: sim.world.reboot(guest.id.vmid, pick.choice(("inside", "api"))),
    "lock": _set("lock", None, "backup", "snapshot", "create"),
    "onboot": _set("onboot", True, False),
    "onboot off": _set("onboot", False),
    "name": _set("name", "web", "db"),
    "note": _set("note", "a", "b"),
    "startup": _set("startup", "", "order=1,up=20", "order=2"),
    "template": _set("template", False, False, True),
    "pool": _set("pool", None, "guestward", "guestward", "web"),
    "ha": _set("ha", None, None, ("started",), ("ignored",), (None,)),
    "frozen": _set("frozen", False, True),
    "qmp": _set("qmp", "running", "paused", "io-error"),
    "no pid": _set("no_pid", False, False, True),
    "needs": _set("storages", frozenset({"local"}), frozenset({"nas"})),
    "script": _set("start", *SCRIPTS),
    "migrate": lambda sim, guest, pick: sim.world.migrate(guest.id.vmid, pick.choice(("pve1", "pve2"))),
    "restore": lambda sim, guest, _: sim.world.restore(guest.id.vmid),
    "recreate": _recreate,
    "hide": lambda sim, guest, _: _toggle(sim.world.hidden, guest.id.vmid),
    "hold": lambda sim, guest, pick: sim.hold(pick.choice((guest.id.vmid, None)), pick.choice((40.0, 300.0, 5000.0))),
    "release": lambda sim, guest, _: sim.store.hold_list.clear(),
    "holds lost": lambda sim, guest, pick: setattr(sim.store, "holds_lost", pick.choice(("", "", "damaged"))),
    "rearm": lambda sim, guest, _: sim.store.rearms.append(guest.id.vmid),
    "reload": lambda sim, guest, pick: _reload(sim, pick),
    "revoke": lambda sim, guest, pick: sim.world.acl.revoke(
        *pick.choice((("VM.Audit", "/pool/guestward"), ("Sys.Audit", "/nodes/pve1"), ("Datastore.Audit", "/storage")))
    ),
    "boot": lambda sim, guest, pick: _boot(sim, pick),
    "clock": lambda sim, guest, pick: setattr(sim.world, "wall_offset", sim.world.wall_offset + pick.choice((-86400.0, 3600.0, 40.0))),
    "quorum": lambda sim, guest, pick: setattr(sim.world, "quorate", pick.choice((True, False))),
    "hold file": lambda sim, guest, pick: setattr(sim.world, "hold_file", pick.choice((True, False))),
    "maintenance": lambda sim, guest, pick: setattr(sim.world, "maintenance", pick.choice((True, False))),
    "storage": lambda sim, guest, pick: sim.world.storage("nas", pick.choice((True, False))),
    "pmxcfs": lambda sim, guest, pick: setattr(sim.world, "pmxcfs", pick.choice((True, True, False))),
    "unreadable": lambda sim, guest, pick: _unreadable(sim, pick),
    "fault": lambda sim, guest, pick: _fault(sim, pick),
    "backup": _backup,
    "backup again": _backup,
    "task": _task,
    "restart": lambda sim, guest, _: sim.restart(),
    "lose": lambda sim, guest, _: (sim.kill(), sim.store.lose(), sim.start()),
}


def _simulate(kind: type[Simulation], seed: int, steps: int) -> tuple[Simulation, list[object]]:
    """One random life of six guests, the same for the same seed, and what was to be seen after each step."""
    pick = random.Random(seed)
    sim = kind()
    sim.world.storage("nas", True)
    for vmid in range(101, 107):
        sim.world.add(vmid, "lxc" if vmid % 2 else "qemu", start=pick.choice(SCRIPTS))
    sim.world.add(990001, running=False, pool=None)
    seen: list[object] = []
    now = 0.0
    for _ in range(steps):
        name = pick.choice(list(STEPS))
        guest = sim.world.guests[pick.choice(sorted(sim.world.guests))]
        STEPS[name](sim, guest, pick)
        if pick.random() < 0.3:
            _repair(sim)
        now += pick.choice(GAPS)
        sim.run(now)
        seen.append((name, guest.id, sim.store.board, dict(sim.store.guest_memories), sim.store.node_memory))
    return sim, seen


@pytest.mark.parametrize("seed", range(6))
def test_that_quiet_guests_are_left_out_is_not_to_be_seen(seed: int) -> None:
    quiet, seen = _simulate(Simulation, seed, 70)
    loud, shown = _simulate(LoudSimulation, seed, 70)
    assert seen == shown
    assert quiet.journal.log == loud.journal.log
    assert quiet.world.effects == loud.world.effects
    assert quiet.pve.calls == loud.pve.calls
    assert quiet.store.saves == loud.store.saves


Life = list[tuple[float, Callable[[Simulation], object]]]


def _exclude(sim: Simulation) -> None:
    sim.config = parse({"pve": {"token_id": sim.world.token_id}, "scope": {"exclude": [101]}}, Path("scenario"))
    assert sim.watch is not None
    sim.watch.env.config = sim.config


def _fail(route: str, times: int | None = None) -> Callable[[Simulation], object]:
    return lambda sim: sim.pve.faults.update({route: Fault(lambda: PveUnreachable("no answer"), times)})


def _traits(vmid: int, **traits: object) -> Callable[[Simulation], object]:
    return lambda sim: [setattr(sim.world.guests[vmid], name, value) for name, value in traits.items()]


LIVES: dict[str, tuple[dict[str, object], Life]] = {
    "a hold on a guest that is off, and its end": (
        {"running": False, "onboot": False},
        [(200, lambda sim: sim.hold(101, 1000)), (130, lambda sim: sim.store.hold_list.clear()), (130, lambda sim: None)],
    ),
    "a hold that ends by itself": (
        {"running": False, "onboot": False},
        [(200, lambda sim: sim.hold(101, 150)), (70, lambda sim: None), (300, lambda sim: None)],
    ),
    "a container freezes and thaws": ({}, [(200, _traits(101, frozen=True)), (130, _traits(101, frozen=False)), (130, lambda sim: None)]),
    "what a task excused is told when the task is over": (
        {},
        [
            (200, lambda sim: (sim.world.task("qmsnapshot", "102"), _traits(102, qmp="paused")(sim))),
            (200, lambda sim: sim.world.task_end("qmsnapshot", "102")),
            (200, lambda sim: None),
        ],
    ),
    "a guest that waits for its next attempt is excluded": (
        {"running": False, "start": ("fail: no space left",)},
        [(100, _exclude), (70, lambda sim: None), (70, lambda sim: None)],
    ),
    "the task history can be read again": (
        {"onboot": False},
        [
            (100, _fail("GET /nodes/pve1/tasks?source=archive")),
            (10, lambda sim: sim.world.stop(101)),
            (300, lambda sim: sim.pve.faults.clear()),
            (70, lambda sim: None),
        ],
    ),
    "the configuration of an excluded guest cannot be read for a while": (
        {"running": False, "onboot": False},
        [
            (100, _exclude),
            (100, _traits(101, note="changed")),
            (0, _fail("GET /nodes/pve1/lxc/101/config", 3)),
            (130, lambda sim: None),
            (200, lambda sim: None),
        ],
    ),
    "a guest that the token does not see, and a boot of the host": (
        {"running": False, "onboot": False, "pool": None},
        [(100, lambda sim: sim.world.destroy(102)), (100, lambda sim: sim.host("booting")), (100, lambda sim: None)],
    ),
    "a re-armed guest that is new here": (
        {},
        [
            (100, lambda sim: (sim.world.create(103), setattr(sim.world.guests[103], "pool", "guestward"), _traits(103, onboot=True)(sim))),
            (200, lambda sim: sim.store.rearms.append(103)),
            (200, lambda sim: None),
        ],
    ),
}


@pytest.mark.parametrize("name", LIVES)
def test_what_wakes_a_quiet_guest(name: str) -> None:
    traits, life = LIVES[name]
    shown = []
    for kind in (Simulation, LoudSimulation):
        sim = kind()
        sim.world.add(101, **traits)
        sim.world.add(102, "qemu")
        now, boards = 0.0, []
        for seconds, step in life:
            now += seconds
            sim.run(now)
            step(sim)
            boards.append(sim.store.board)
        shown.append((boards, sim.journal.log, sim.store.guest_memories, sim.pve.calls))
    assert shown[0] == shown[1]


def _still() -> Simulation:
    sim = Simulation()
    for vmid in range(101, 131):
        sim.world.add(vmid, "lxc" if vmid % 2 else "qemu", running=vmid % 10 > 0, onboot=vmid % 10 > 0)
    sim.run(200)
    return sim


def test_nobody_is_awake_where_nothing_happens() -> None:
    sim = _still()
    assert sim.watch is not None
    quiet = sim.watch.state.quiet
    assert (len(quiet.rows), quiet.awake) == (30, set())
    rows = sim.watch.state.board.rows if sim.watch.state.board else ()
    sim.run(500)
    assert sim.store.board is not None
    assert sim.store.board.rows is rows
    sim.world.die(101)
    sim.run(560)
    assert {id.vmid for id in quiet.awake} == {101}


def test_a_process_that_goes_on_began_when_it_was_first_seen_to_have_begun() -> None:
    """PVE tells whole seconds of uptime: from one list to the next the same process seems to have begun up to a second earlier or later."""
    sim = _still()
    assert sim.watch is not None
    awake = sim.watch.state.quiet.awake
    for step in range(10):
        for guest in sim.world.guests.values():
            guest.since += (-1) ** step * 0.9
        sim.run(260 + 60 * step)
        assert not awake
