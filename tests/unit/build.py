"""Builders of the values that the policy judges; every test changes only what it is about."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from guestward.config import parse
from guestward.model.decision import Decision, Gate, Outcome, Verdict
from guestward.model.guest import GuestConfig, GuestId, GuestKind, ListedGuest, LiveStatus
from guestward.model.memory import Attempt, GuestMemory, Hold, StopCause
from guestward.model.observation import (
    BackupWitnesses,
    HostState,
    Member,
    NodeNames,
    Observation,
    Resources,
    StorageState,
    UnitState,
)
from guestward.model.rules import Rules
from guestward.model.task import Running, Task, TaskStatus, Upid
from guestward.policy.guards import Case
from guestward.sim.run import Simulation
from guestward.sim.world import World

AT = 100_000.0  # seconds since host boot of every observation that says nothing else
WALL = 1_900_000_000.0 + AT
TOKEN = "guestward-pve1@pve!agent"
CT = GuestId(GuestKind.LXC, 101)
VM = GuestId(GuestKind.QEMU, 201)
SCRATCH = GuestId(GuestKind.LXC, 990000)
GOLDEN = Path(__file__).with_name("golden")
_numbers = itertools.count(4000)


def golden(name: str, text: str) -> None:
    """A text that people read must be the one of its file."""
    file = GOLDEN / name
    if os.environ.get("GOLDEN_WRITE"):
        file.write_text(text)
    assert text == file.read_text(), f"differs from {file}; GOLDEN_WRITE=1 writes it anew, and git shows what changed"


def rules(**settings: Any) -> Rules:
    """The rules of the default configuration, with those of [watchdog] that a test changes."""
    scope = {key: settings.pop(key) for key in ("pools", "exclude") if key in settings}
    return parse({"pve": {"token_id": TOKEN}, "watchdog": settings, "scope": scope}, Path("test")).rules()


def upid(
    kind: str, id: str = "", user: str = "root@pam", *, at: float = AT - 50, wall: float | None = None, pid: int | None = None
) -> Upid:
    """A UPID of a worker born at that second since host boot."""
    pid, born = next(_numbers) if pid is None else pid, int(WALL - AT + at if wall is None else wall)
    return Upid.parse(f"UPID:pve1:{pid:08X}:{int(at * 100):08X}:{born:08X}:{kind}:{id}:{user}:")


def task(kind: str, id: str = "", user: str = "root@pam", *, said: TaskStatus | None = None, took: float = 1, **of: Any) -> Task:
    """A task; it runs unless `said` tells how it ended."""
    found = upid(kind, id, user, **of)
    return Task(found, Running() if said is None else said, None if said is None else found.starttime + int(took))


def host(**seen: Any) -> HostState:
    """A host that is up and quorate."""
    up = HostState(
        pmxcfs=True,
        quorate=True,
        pve_guests=UnitState("loaded", "active", "exited", "enabled"),
        system="running",
        hold_file=False,
        maintenance=False,
        names=NodeNames({}, {}),
    )
    return replace(up, **seen)


def listed(id: GuestId = CT, *, running: bool = False, **seen: Any) -> ListedGuest:
    """A row of the node's list."""
    traits: dict[str, Any] = {"pid": 4711, "up_since": AT - 3600} if running else {}
    return ListedGuest(id, f"guest{id.vmid}", running, **(traits | seen))


def config(**values: Any) -> GuestConfig:
    """A configuration of a guest that is to run."""
    return replace(GuestConfig("identity", "fingerprint", onboot=True, storages=frozenset({"local"})), **values)


def resources(*ids: GuestId, **seen: Any) -> Resources:
    """What /cluster/resources says of guests that HA does not manage."""
    plain = Resources(frozenset(ids or (CT, VM)), {}, {"local": StorageState.AVAILABLE})
    return replace(plain, **seen)


def member(id: GuestId = CT, state: str = "running", node: str = "pve1") -> Member:
    """A pool's member on our node."""
    return Member(id, node, "guestward", state, f"guest{id.vmid}")


QUIET = BackupWitnesses(flock=None, live_upid=None, archives=frozenset())


def observation(guest: ListedGuest | None = None, **seen: Any) -> Observation:
    """A look in which one owned guest is stopped and nothing stands in the way of its start."""
    guest = listed() if guest is None else guest
    plain = Observation(
        at=AT,
        wall=WALL,
        node="pve1",
        token_id=TOKEN,
        host=host(),
        guests={guest.id: guest},
        members={guest.id: member(guest.id)},
        tasks=(),
        configs={} if guest.running or guest.lock else {guest.id: config()},
        resources=resources(),
        backups=QUIET,
        frozen=frozenset(),
    )
    return replace(plain, **seen)


def memory(id: GuestId = CT, **known: Any) -> GuestMemory:
    """The memory of a guest that ran here and was first seen stopped, with nothing in its way, a minute ago."""
    plain = GuestMemory(
        id,
        name=f"guest{id.vmid}",
        owned=True,
        identity="identity",
        fingerprint="fingerprint",
        ran=True,
        down_since=AT - 60,
        startable_since=AT - 60,
        cause_read=True,
    )
    return replace(plain, **known)


def case(**parts: Any) -> Case:
    """All that the guards ask; without changes the answer is `start`."""
    obs = parts.pop("obs", None) or observation()
    guest = next(iter(obs.guests.values()))
    plain = Case(obs, guest, memory(guest.id), rules(), Gate())
    return replace(plain, **parts)


def attempt(number: int = 1, *, ended: float | None = AT - 1000, outcome: Outcome | None = Outcome.FAILED, **known: Any) -> Attempt:
    """An attempt that failed long ago."""
    begun = (ended if ended is not None else AT) - 5
    plain = Attempt(number, begun, begun + 120, "", ended, outcome if ended is not None else None, "no space left")
    return replace(plain, **known)


def live(*, running: bool = True, **seen: Any) -> LiveStatus:
    """One read of status/current."""
    return LiveStatus(running, **({"pid": 4711, "uptime": 1} if running else {}) | seen)


def cause(kind: str = "vzstop", user: str = "root@pam", at: float = AT - 70, **known: Any) -> StopCause:
    """A stop through PVE."""
    return replace(StopCause(kind, user, at, WALL - AT + at), **known)


def hold(vmid: int | None = None, duration: float = 7200.0, **known: Any) -> Hold:
    """An operator's hold of two hours, written at `AT`."""
    return replace(Hold(vmid, "disk swap", "alice", duration, "boot-1", AT, WALL), **known)


def verdict(decision: Decision, guard: object) -> Verdict:
    """What one guard said."""
    return next(verdict for verdict in decision.verdicts if verdict.guard == guard)


def simulation(**watchdog: Any) -> Simulation:
    """An agent with its first sweep ahead, on a host without guests."""
    return Simulation(World(), {"watchdog": watchdog} if watchdog else {})


def down(sim: Simulation, vmid: int, at: float = 30.0, **traits: Any) -> None:
    """A guest that dies at that second, without a task."""
    sim.world.add(vmid, **traits)
    sim.world.at(at, lambda: sim.world.die(vmid))


def every(sim: Simulation, period: float, do: Callable[[], object], *, until: float, start: float = 0.0) -> None:
    """Let something happen again and again."""
    moment = start
    while moment <= until:
        sim.world.at(moment, do)
        moment += period


def regrant(sim: Simulation) -> None:
    """Everything is granted again that the install table names."""
    sim.world.install(sim.config.scope.pools, range(990000, 990010))
