"""Liveness: once faults cease, every guest that should run does within the bound, and a lock that a dead vzdump left is gone.

What should run is read from the world as it is at the end of a run and from the time line, so that a shrunk scenario is judged as well:
where it leaves a fault in force, or something happens too late, there is nothing to demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from guestward.config import Config, duration
from guestward.config import parse as parse_config
from guestward.model.events import Event
from guestward.model.guest import GuestKind, Startup
from guestward.model.helper import STATE_OF_LOCK
from guestward.model.rules import MASS_STOP_PAUSE
from guestward.model.task import Unknown, exit_status
from guestward.policy import rights
from guestward.policy.gate import is_bulk
from guestward.policy.recall import BIRTH_LOCKS
from guestward.sim.guest import SimGuest
from guestward.sim.helper import DELETE_TAKES
from guestward.sim.monitors.past import Past
from guestward.sim.monitors.scratch import proven_ours
from guestward.sim.run import BrokenError, Simulation
from guestward.sim.tasks import SimTask
from guestward.sim.vzdump import SNAPSHOT, VZDUMP
from tests.soak.plan import deed
from tests.soak.toml_text import Data

RULE = "once faults cease, every guest that should run does within the bound"
FOLLOW = 15.0  # from the end of a start to its two reads, and to the next one's turn
SLACK = 120.0
CLOCK_SLACK = 2.0  # starts and ends of tasks are whole seconds
NEW_OR_HANDED_OVER = ("create", "restore", "destroy", "migrate", "ha")


@dataclass(frozen=True, slots=True)
class Bounds:
    """settle: from the last deed until the agent has seen all of it. bound: from then, or from a rearm, until every guest runs."""

    settle: float
    bound: float


def bounds(data: Data) -> Bounds:
    """The one place that says how long it may take, and why.

    settle: pve-guests may start all guests first, one after the other; an attempt under way ends by its deadline; three sweeps see
    the rest. bound: a mass stop that was seen at the last moment pauses everything for 15 min; an attempt under way then ends by its
    deadline, and its back-off follows; two sweeps and a confirming look find the guest; and in the worst case all guests wait for each
    other's turn (`startup`). An order `fail next start` that nobody has used yet costs one attempt more, with its back-off. A lock that a
    dead vzdump left is cleared first: two looks prove it, one unlock is made at a look, and deleting a snapshot takes seconds.
    """
    config = _config(data)
    dog = config.watchdog
    texts = [entry["do"] for entry in (*data.get("at", []), *data.get("after", []))]
    made = {vmid for text in texts for vmid in deed(text).makes}
    guests = len({guest["vmid"] for guest in data.get("guest", [])} | made)
    ups = [Startup.parse(text.strip('"')).up for text in _values(data, texts, "startup")]
    takes = [duration(text) for text in _values(data, texts, "start_takes")]
    turn = min(max(takes, default=1.0), dog.start_timeout) + max(ups, default=0) + 3.0 + FOLLOW
    look = 2 * dog.interval + dog.confirm
    failures = sum(1 for text in texts if text.startswith("fail next start"))
    kills = sum(1 for text in texts if text.startswith("backup kill"))
    unlocks = config.locks.confirm + (2 + min(guests, kills)) * (dog.interval + DELETE_TAKES) if kills else 0.0
    settle = guests * turn + dog.start_timeout + 3 * dog.interval + SLACK
    bound = MASS_STOP_PAUSE + dog.start_timeout + (1 + failures) * (max(dog.backoff) + turn + look) + guests * turn + unlocks + SLACK
    return Bounds(settle, bound)


def _values(data: Data, texts: Iterable[str], key: str) -> Iterator[str]:
    """Every value that a guest's key ever has."""
    yield from (guest[key] for guest in data.get("guest", []) if key in guest)
    yield from (text.partition(f" {key}=")[2] for text in texts if f" {key}=" in text)


def _config(data: Data) -> Config:
    values = data.get("config", {})
    values = {**values, "pve": {"token_id": "agent@pve!agent", **values.get("pve", {})}}
    return parse_config(values, Path("scenario"))


def verify(sim: Simulation, data: Data) -> None:
    """Judge a run that has ended. Raises BrokenError for the first guest that should run and does not."""
    line = TimeLine.of(data)
    if not line.quiet or not _host_is_well(sim) or _interferes(sim, line):
        return
    for guest in sim.world.guests.values():
        if _is_leftover(sim, guest, line):
            raise BrokenError("liveness", RULE, f"{guest.id} is a leftover that nobody uses, and is still there: {_of_band(sim, guest)}")
        if not guest.running and _should_run(sim, guest) and not _in_its_way(sim, guest, line) and line.is_sure(sim, guest):
            message = f"{guest.id} should run for {line.limits.bound:.0f} s and does not; the agent's guard: {_guard(sim, guest)}"
            raise BrokenError("liveness", RULE, message)
        if _lock_is_provable(sim, guest, line) and line.is_sure_of_help(guest):
            message = f"{guest.id} has had the lock {guest.lock} of a dead vzdump for {line.limits.bound:.0f} s: {_thought(sim, guest)}"
            raise BrokenError("liveness", RULE, message)


def _is_leftover(sim: Simulation, guest: SimGuest, line: TimeLine) -> bool:
    """Whether it should have been torn down by now: proven ours, with nothing in the way, and no step of its teardown has failed."""
    world, vmid, past = sim.world, guest.id.vmid, sim.monitors[0]
    scratch = _config(line.data).scratch
    if not scratch.first <= vmid <= scratch.last or not world.is_here(guest) or not isinstance(past, Past):
        return False
    facts = past.snap.guests.get(vmid)
    waited = line.end - line.last >= scratch.min_age + line.limits.bound + 2 * scratch.interval
    traits = facts is None or facts.protection or facts.template or facts.ha or facts.lock not in (None, "create", "destroyed")
    held = any(hold.vmid in (None, vmid) for hold in sim.store.hold_list) or any(task.upid.id == str(vmid) for task in world.tasks)
    tried = any(effect.vmid == vmid and effect.result != "ok" for effect in world.effects)
    if facts is None or traits or held or tried or not waited or not proven_ours(past, facts):
        return False
    return world.boottime >= scratch.min_age + line.limits.bound + 2 * scratch.interval


def _of_band(sim: Simulation, guest: SimGuest) -> str:
    """What the agent thinks of it."""
    decisions = sim.watch.state.scratch_decisions if sim.watch is not None else ()
    return next((f"{found.verdict}: {found.evidence}" for found in decisions if found.id == guest.id), "nothing")


@dataclass(frozen=True, slots=True)
class TimeLine:
    """When what happens. last: the last deed that is no rearm. rearmed: VMID -> its last rearm."""

    data: Data
    limits: Bounds
    end: float
    last: float
    rearmed: dict[int, float]

    @classmethod
    def of(cls, data: Data) -> TimeLine:
        """Read the entries of a scenario."""
        entries = [(duration(entry["t"]), entry["do"]) for entry in data.get("at", [])]
        last = max((t for t, do in entries if not do.startswith("rearm ")), default=0.0)
        rearmed = {int(do.split()[1]): t for t, do in sorted(entries) if do.startswith("rearm ")}
        return cls(data, bounds(data), duration(data["until"]), last, rearmed)

    @property
    def quiet(self) -> bool:
        """Whether nothing has happened for as long as the bound."""
        return self.end - self.last >= self.limits.bound

    def is_sure(self, sim: Simulation, guest: SimGuest) -> bool:
        """Whether it is certain that the agent may start it: an operator re-armed it, or nothing was ever done that could forbid it."""
        vmid, dog = guest.id.vmid, sim.config.watchdog
        if self._is_rearmed(vmid):
            return True
        if self.end - self.last < self.limits.bound + self.limits.settle or dog.operator_stop == "hold":
            return False
        if any(_makes_unsure(do) and vmid in _vmids(do) for do in (*self._deeds(), *self._locked_at_first())):
            return False
        tried = sum(1 for entry in sim.events(Event.START_ATTEMPT.name) if entry.guest == guest.id)
        return tried < dog.attempts

    def _is_rearmed(self, vmid: int) -> bool:
        return self.last + self.limits.settle <= self.rearmed.get(vmid, -1.0) <= self.end - self.limits.bound

    def is_sure_of_help(self, guest: SimGuest) -> bool:
        """Whether recovery surely has attempts left: an operator re-armed the guest, or nothing ever kept the helper from unlocking."""
        if self._is_rearmed(guest.id.vmid):
            return True
        hindered = any(do.startswith(("helper ", "fail next unlock")) and do != "helper up" for do in self._deeds())
        return not hindered and self.end - self.last >= self.limits.bound + self.limits.settle

    @property
    def one_clock(self) -> bool:
        """Whether wall clock and boot clock went together: times of files and of tasks are compared."""
        return not any(do.startswith("clock ") for do in self._deeds())

    def _locked_at_first(self) -> Iterator[str]:
        return (f"lock {guest['vmid']} {guest['lock']}" for guest in self.data.get("guest", []) if guest.get("lock"))

    def _deeds(self) -> Iterator[str]:
        return (entry["do"] for name in ("at", "after") for entry in self.data.get(name, []))


def _makes_unsure(do: str) -> bool:
    """Whether only a rearm makes sure that a guest may be started after that: it may be another one by then, or HA's."""
    words = do.split()
    return words[0] in NEW_OR_HANDED_OVER or " identity=" in do or (words[0] == "lock" and words[2] in BIRTH_LOCKS)


def _vmids(do: str) -> tuple[int, ...]:
    about = deed(do)
    return (*about.names, *about.makes)


def _host_is_well(sim: Simulation) -> bool:
    world = sim.world
    if sim.watch is None or world.api.is_down or world.api.rules or not world.quorate or world.maintenance or world.phases.phase != "up":
        return False
    bulk = any(is_bulk(task.upid.type) for task in world.tasks)
    grants = rights.missing(rights.needed(sim.config.scope.pools, world.node), world.acl.listed())
    held = any(hold.vmid is None for hold in sim.store.hold_list)
    ordered = sum(1 for verb, _ in world.failures if verb == "start")
    return ordered < sim.config.watchdog.attempts and not (bulk or grants or held or world.jobs or world.vzdump.archives)


def _interferes(sim: Simulation, line: TimeLine) -> bool:
    """Whether a reaction to the agent's own acts still changed more than guests at the end."""
    return any(not _vmids(do) or do.startswith("backup ") for do in _reactions(sim, line))


def _reactions(sim: Simulation, line: TimeLine) -> Iterator[str]:
    acts = {f"{effect.verb} {effect.vmid}" for effect in sim.world.effects if effect.t >= line.last}
    return (entry["do"] for entry in line.data.get("after", []) if entry["effect"] in acts)


def _is_ours(sim: Simulation, guest: SimGuest) -> bool:
    rules, vmid = sim.config.rules(), guest.id.vmid
    return guest.pool in rules.pools and vmid not in rules.exclude and not rules.in_scratch_band(vmid) and sim.world.is_here(guest)


def _should_run(sim: Simulation, guest: SimGuest) -> bool:
    config = guest.config()
    return _is_ours(sim, guest) and config.onboot and not config.template and not guest.template and not guest.managed


def _in_its_way(sim: Simulation, guest: SimGuest, line: TimeLine) -> bool:
    world, vmid = sim.world, guest.id.vmid
    busy = any(task.upid.id == str(vmid) for task in world.tasks) or any(vmid in _vmids(do) for do in _reactions(sim, line))
    scripts = guest.start[min(guest.started, len(guest.start) - 1) :]
    bad = any(script != "ok" and not script.startswith("warnings") for script in scripts)
    offline = any(not world.storages.get(name, True) for name in guest.storages)
    return busy or bad or offline or _is_held(sim, vmid) or guest.lock is not None or not sim.pve.may("VM.PowerMgmt", f"/vms/{vmid}")


def _lock_is_provable(sim: Simulation, guest: SimGuest, line: TimeLine) -> bool:
    """Whether a vzdump that died set its lock, nobody has written its file since, and nothing but recovery is to be expected of it."""
    vmid, kind = guest.id.vmid, guest.lock or ""
    if guest.locker != VZDUMP or not sim.config.rules().lock_recovery or not _is_ours(sim, guest) or not line.one_clock:
        return False
    if kind != "backup" and (guest.id.kind is not GuestKind.LXC or guest.snapshots != {SNAPSHOT: STATE_OF_LOCK[kind]}):
        return False
    busy = any(task.upid.id == str(vmid) for task in sim.world.tasks) or any(vmid in _vmids(do) for do in _reactions(sim, line))
    return not busy and not _is_held(sim, vmid) and any(_left_by(task, guest) for task in sim.world.archive)


def _left_by(task: SimTask, guest: SimGuest) -> bool:
    """Whether that vzdump was at work when the guest's file was last written, and was killed, or could not delete its snapshot."""
    if task.upid.type != "vzdump" or not task.upid.covers(guest.id.vmid) or task.ended_wall is None:
        return False
    died = guest.lock == "snapshot-delete" or isinstance(exit_status(task.said or ""), Unknown)
    return died and task.upid.starttime - CLOCK_SLACK <= guest.written <= task.ended_wall + CLOCK_SLACK


def _is_held(sim: Simulation, vmid: int) -> bool:
    return any(hold.vmid == vmid for hold in sim.store.hold_list)


def _thought(sim: Simulation, guest: SimGuest) -> str:
    board = sim.store.board
    locks = (f"{lock.verdict} ({lock.evidence})" for lock in (board.locks if board else ()) if lock.id == guest.id)
    return next(locks, "the agent knows of none")


def _guard(sim: Simulation, guest: SimGuest) -> str:
    decision = sim.watch.state.decisions.get(guest.id) if sim.watch is not None else None
    return f"{decision.guard} ({decision.evidence})" if decision is not None else "none, it does not know of it"
