"""Recorded time lines, and how they are played in the simulated host and looked at through its doors."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from guestward.model.guest import GuestConfig, GuestId, GuestKind, LiveStatus
from guestward.model.helper import Request, Verb
from guestward.model.observation import BackupWitnesses
from guestward.model.task import Task
from guestward.ports import PveError, PveUnreachable
from guestward.sim import verbs
from guestward.sim.doors import SimPve, SimWitness
from guestward.sim.guest import traits
from guestward.sim.helper import SimHelper
from guestward.sim.run import Simulation
from guestward.sim.world import BROADCAST, BROADCAST_AT, World
from tests.contract.recordings import FOLDER, TOKEN

GRID = 0.1
FLEETING = 0.35  # a poll every 0.1 s may miss a state that is shorter, or see it twice
TOLERANCE = 0.6
EVER = 1e9
BAND = range(990000, 990010)

States = list[tuple[float, str]]


@dataclass(frozen=True)
class State:
    """One state of a view. simplified: the id of what the simulated host does otherwise; instead: what it shows, None for nothing."""

    t: float
    state: str
    simplified: str = ""
    instead: str | None = None


@dataclass(frozen=True)
class View:
    """What one poller saw. loose: only the order is compared; pace: order and states, but no seconds. Both are ids of simplifications."""

    name: str
    states: tuple[State, ...]
    loose: str = ""
    pace: str = ""

    def expected(self) -> States:
        """What the simulated host has to show."""
        shown = ((s.t, s.instead if s.simplified else s.state) for s in self.states)
        return collapsed((t, state) for t, state in shown if state is not None)


@dataclass(frozen=True)
class Timeline:
    """One recorded scenario. do: verbs at seconds; those before 0 make the beginning. broadcast: a second at which pvestatd spoke."""

    id: str
    end: float
    do: tuple[tuple[float, str], ...]
    guests: tuple[dict[str, Any], ...]
    views: tuple[View, ...]
    broadcast: float | None = None
    not_modelled: str = ""

    def simplified(self) -> set[str]:
        """All ids that it mentions."""
        of_views = {id for view in self.views for id in (view.loose, view.pace, *(s.simplified for s in view.states))}
        return (of_views | {self.not_modelled}) - {""}


def load() -> list[Timeline]:
    return [_timeline(tomllib.loads(file.read_text("utf-8"))) for file in sorted((FOLDER / "timelines").glob("*.toml"))]


def _timeline(value: dict[str, Any]) -> Timeline:
    views = tuple(View(name, tuple(State(*entry) for entry in view.pop("states")), **view) for name, view in value.pop("view").items())
    do = tuple((step["t"], step["verb"]) for step in value.pop("do"))
    return Timeline(do=do, guests=tuple(value.pop("guest", ())), views=views, **value)


def collapsed(states: Iterable[tuple[float, str]]) -> States:
    found: States = []
    for t, state in states:
        if not found or found[-1][1] != state:
            found.append((t, state))
    return found


def lasting(states: States, end: float) -> States:
    """Without those that a poll may miss."""
    ends = [t for t, _ in states[1:]] + [max(end, states[-1][0] + 1.0)]
    return collapsed(entry for entry, until in zip(states, ends, strict=True) if until - entry[0] > FLEETING)


def is_part(some: States, of: States) -> bool:
    """Whether all states of one sequence come in the other in the same order."""
    rest = iter(state for _, state in of)
    return all(state in rest for _, state in some)


# ---------------------------------------------------------------------------------------------------- the play


@dataclass
class Play:
    """A simulated host without an agent, on which a time line is played at its recorded seconds."""

    timeline: Timeline
    sim: Simulation = field(init=False)
    shown: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world = World(token_id=TOKEN)
        world.fine_grained = True
        for guest in self.timeline.guests:
            values = {
                name: value for key, entry in guest.items() if key not in ("vmid", "kind") for name, value in traits(key, entry).items()
            }
            world.add(guest["vmid"], guest.get("kind", "lxc"), **{"onboot": False, **values})
        self.sim = Simulation(world, monitored=False)
        self.sim.kill()
        phase = BROADCAST_AT - self.timeline.broadcast if self.timeline.broadcast is not None else 0.0
        self.zero = 40.0 + phase % BROADCAST
        for t, verb in self.timeline.do:
            world.at(self.zero + t, self.deed(verb))

    @property
    def world(self) -> World:
        return self.sim.world

    def deed(self, text: str) -> Callable[[], object]:
        """A verb of scenarios; or one of the few that only recordings need."""
        word, _, rest = text.partition(" ")
        world = self.world
        if word == "ask":
            return lambda: self.ask(self.guest(rest.rpartition(" ")[2]))
        if word == "down":
            return lambda: world.take_down(world.guests[int(rest)])
        if word == "pvedaemon":
            return world.restart_pvedaemon
        if word == "helper":
            helper = SimHelper(world, self.pve.life, ("guestward",), BAND)
            return lambda: helper.ask(Request(Verb.DELETE_SNAPSHOT, vmid=int(rest.split()[1])))
        if text == "vzdump terminated":
            return world.vzdump.abort
        if text == "vzdump killed long ago":
            return lambda: setattr(world.vzdump, "stale", world.task("vzdump", "110", said="unexpected status").upid)
        if text.startswith("vzdump pre-restart takes "):
            return lambda: setattr(world.vzdump, "window", float(text.rpartition(" ")[2]))
        found = verbs.parse(text)
        return lambda: found.run(self.sim)

    def ask(self, guest: GuestId) -> None:
        """What the agent does, and what PVE may refuse."""
        with suppress(PveError):
            self.pve.start(guest, deadline=EVER)

    @property
    def pve(self) -> SimPve:
        return SimPve(self.world)

    def guest(self, vmid: str) -> GuestId:
        """What has that VMID; a container, as long as nothing has."""
        found = self.world.guests.get(int(vmid))
        return found.id if found is not None else GuestId(GuestKind.LXC, int(vmid))

    def run(self) -> dict[str, States]:
        """Look at every view every 0.1 s."""
        for step in range(round(self.timeline.end / GRID) + 1):
            t = step * GRID
            self.world.until(self.zero + t + 1e-6)
            for view in self.timeline.views:
                self.shown.setdefault(view.name, []).append((t, self.look(view.name)))
        return {name: collapsed(states) for name, states in self.shown.items()}

    def look(self, name: str) -> str:
        kind, _, vmid = name.partition("-")
        look: Callable[..., str] = getattr(self, f"see_{kind}")
        try:
            return look(self.guest(vmid)) if vmid else look()
        except PveUnreachable:
            return "refused"
        except PveError as error:
            return next((short for words, short in SHORT.items() if words in str(error)), str(error))

    def see_list(self, guest: GuestId) -> str:
        found = self.pve.guests(guest.kind, deadline=EVER).get(guest)
        return "absent" if found is None else _status(found.running, found.lock)

    def see_pool(self, guest: GuestId) -> str:
        """What pvestatd last said: a pool's members, or `/cluster/resources` for a guest outside of it."""
        here = self.world.guests.get(guest.vmid)
        if here is not None and here.pool is None:
            return self.world.shown_state(here)
        return next((m.state for m in self.pve.members("guestward", deadline=EVER) if m.id == guest), "absent")

    def see_current(self, guest: GuestId) -> str:
        live: LiveStatus = self.pve.live(guest, deadline=EVER)
        words = ("running pid" if live.pid else "running no pid") if live.running else "stopped"
        return words + (f"/{live.lock}" if live.lock else "")

    def see_config(self, guest: GuestId) -> str:
        """The file itself: no door shows the agent its sections yet."""
        found = self.world.guests.get(guest.vmid)
        if found is None:
            return "absent"
        config = GuestConfig.from_api(guest.kind, found.options())
        section = f" [{found.snapshots['vzdump'] or 'whole'}]" if "vzdump" in found.snapshots else ""
        return (config.lock or "-") + section + (" parent" if "parent" in found.options() else "")

    def see_active(self) -> str:
        tasks: tuple[Task, ...] = self.pve.active_tasks(deadline=EVER)
        return ", ".join(sorted(f"{task.upid.type}:{task.upid.id}" for task in tasks)) or "none"

    def see_flock(self) -> str:
        return "held" if self.backups.flock is not None else "free"

    def see_pidfile(self) -> str:
        if self.backups.live_upid is not None:
            return "live"
        return "absent" if self.world.vzdump.stale is None else "stale"

    def see_archive(self, guest: GuestId) -> str:
        archives = self.backups.archives
        assert isinstance(archives, frozenset)
        return "alive" if guest.vmid in archives else "none"

    @property
    def backups(self) -> BackupWitnesses:
        return SimWitness(self.world).backups()


SHORT = {"failed to read from command socket": "500 reset", "does not exist": "500 no file", "403": "403"}


def _status(running: bool, lock: str | None) -> str:
    return ("running" if running else "stopped") + (f"/{lock}" if lock else "")


# ---------------------------------------------------------------------------------------------------- the comparison


def differences(view: View, shown: States, end: float, *, loose: bool = False, pace: bool = False) -> list[str]:
    """What a recorded view and the simulated one differ in; nothing, if the one is as the other."""
    expected = view.expected()
    found = []
    if not is_part(expected, shown):
        found.append(f"{view.name}: recorded {expected}, shown {shown}")
    if loose:
        return found
    wanted, got = lasting(expected, end), lasting(shown, end)
    if [state for _, state in wanted] != [state for _, state in got]:
        return [*found, f"{view.name}: of those that last recorded {wanted}, shown {got}"]
    if not pace:
        late = [(w, g) for w, g in zip(wanted, got, strict=True) if abs(w[0] - g[0]) > TOLERANCE]
        found += [f"{view.name}: {state} at {at}, shown at {g:.1f}" for (at, state), (g, _) in late]
    return found


def gaps(states: States) -> list[tuple[str, float]]:
    """Each state with how long it lasted; the last one is left out."""
    return [(state, later - t) for (t, state), (later, _) in pairwise(states)]
