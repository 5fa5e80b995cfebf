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
from guestward.model.guest import Startup
from guestward.ports import PveUnreachable
from guestward.sim.doors import Fault
from guestward.sim.run import Simulation
from guestward.sim.world import SimGuest

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
        self.watch = LoudWatch(self.watch.env)


def _toggle(of: set[Any], what: Any) -> None:
    of.symmetric_difference_update({what})


def _reload(sim: Simulation, pick: random.Random) -> None:
    sim.config = parse({"pve": {"token_id": sim.world.token_id}} | pick.choice(SETTINGS), Path("scenario"))
    sim.pve.pools = sim.config.scope.pools
    if sim.watch is not None:
        sim.watch.env.config = sim.config


def _boot(sim: Simulation, pick: random.Random) -> None:
    sim.world.boot_host()
    sim.world.later(pick.choice((30, 200)), sim.world.boot_over)


def _backup(sim: Simulation, guest: SimGuest, pick: random.Random) -> None:
    if sim.world.backups:
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
    for broken in (world.revoked, world.unreadable, world.hidden, sim.pve.faults):
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
    "written": _set("written", 1, 2, 3),
    "startup": _set("startup", Startup(), Startup(1, 20), Startup(2)),
    "template": _set("template", False, False, True),
    "pool": _set("pool", None, "guestward", "guestward", "web"),
    "ha": _set("ha", None, None, ("started",), ("ignored",), (None,)),
    "frozen": _set("frozen", False, True),
    "qmp": _set("qmp", "running", "paused", "io-error"),
    "no pid": _set("no_pid", False, False, True),
    "needs": _set("storages", frozenset({"local"}), frozenset({"nas"})),
    "script": _set("start", *SCRIPTS),
    "migrate": lambda sim, guest, pick: sim.world.migrate(guest.id.vmid, pick.choice(("pve1", "pve2"))),
    "restore": lambda sim, guest, _: sim.world.restore_over(guest.id.vmid),
    "recreate": _recreate,
    "hide": lambda sim, guest, _: _toggle(sim.world.hidden, guest.id.vmid),
    "hold": lambda sim, guest, pick: sim.hold(pick.choice((guest.id.vmid, None)), pick.choice((40.0, 300.0, 5000.0))),
    "release": lambda sim, guest, _: sim.store.hold_list.clear(),
    "holds lost": lambda sim, guest, pick: setattr(sim.store, "holds_lost", pick.choice(("", "", "damaged"))),
    "rearm": lambda sim, guest, _: sim.store.rearms.append(guest.id.vmid),
    "reload": lambda sim, guest, pick: _reload(sim, pick),
    "revoke": lambda sim, guest, pick: _toggle(
        sim.world.revoked, pick.choice((("VM.Audit", "/pool/guestward"), ("Sys.Audit", "/nodes/pve1"), ("Datastore.Audit", "/storage")))
    ),
    "boot": lambda sim, guest, pick: _boot(sim, pick),
    "clock": lambda sim, guest, pick: setattr(sim.world, "wall_offset", sim.world.wall_offset + pick.choice((-86400.0, 3600.0, 40.0))),
    "quorum": lambda sim, guest, pick: setattr(sim.world, "quorate", pick.choice((True, False))),
    "hold file": lambda sim, guest, pick: setattr(sim.world, "hold_file", pick.choice((True, False))),
    "maintenance": lambda sim, guest, pick: setattr(sim.world, "maintenance", pick.choice((True, False))),
    "storage": lambda sim, guest, pick: sim.world.storages.update(nas=pick.choice((True, False))),
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
    sim.world.storages["nas"] = True
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
