"""Runs the real watchdog on a simulated host: its cadence in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guestward.config import Config, parse
from guestward.duties.env import Env, Report
from guestward.duties.power import PowerWatch
from guestward.model.memory import Hold
from guestward.sim.doors import Logged, SimClock, SimJournal, SimPve, SimStore, SimWitness
from guestward.sim.world import World

FOLLOW_EVERY = 1.0


@dataclass(slots=True)
class Simulation:
    """One agent on one world. `run` may be called again and again."""

    world: World = field(default_factory=World)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pve: SimPve = field(init=False)
    store: SimStore = field(default_factory=SimStore)
    journal: SimJournal = field(init=False)
    config: Config = field(init=False)
    watch: PowerWatch | None = field(init=False, default=None)
    next_sweep: float = 0.0
    next_confirm: float | None = None
    next_follow: float | None = None

    def __post_init__(self) -> None:
        """Open the doors and start the agent at t = 0."""
        values: dict[str, Any] = {"pve": {"token_id": self.world.token_id}} | {k: dict(v) for k, v in self.settings.items()}
        values["pve"].setdefault("token_id", self.world.token_id)
        self.config = parse(values, Path("scenario"))
        self.pve = SimPve(self.world, self.config.scope.pools)
        self.journal = SimJournal(self.world)
        self.start()

    def start(self) -> None:
        """The agent starts, with what its store remembers."""
        env = Env(SimClock(self.world), self.pve, SimWitness(self.world), self.store, self.journal, self.config)
        self.watch = PowerWatch(env)
        self.next_sweep, self.next_confirm, self.next_follow = self.world.now, None, None
        if any(memory.in_flight is not None for memory in self.store.guest_memories.values()):
            self.next_follow = self.world.now

    def kill(self) -> None:
        """The agent is gone, without a word."""
        self.watch = None
        self.store.empty = False

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def hold(self, vmid: int | None, seconds: float = 7200.0) -> None:
        """`guestward hold`."""
        clock = SimClock(self.world)
        self.store.hold_list.append(Hold(vmid, "work", "root", seconds, clock.boot_id(), clock.boottime(), clock.wall()))

    def run(self, until: float) -> list[Logged]:
        """Let world and agent live until that second; what the world does at a second comes before the agent. Returns the log."""
        while True:
            due = self._next_job()
            event = self.world.next_event()
            moment = min(x for x in (due, event, until) if x is not None)
            self.world.until(moment)
            if moment >= until and (due is None or due > until):
                return self.journal.log
            if due is not None and due <= self.world.now:
                self._run_job()

    def _next_job(self) -> float | None:
        if self.watch is None:
            return None
        return min(x for x in (self.next_sweep, self.next_confirm, self.next_follow) if x is not None)

    def _run_job(self) -> None:
        watch, now = self.watch, self.world.now
        assert watch is not None  # noqa: S101 - a job is due only while the agent lives
        if self.next_sweep <= now:
            self.next_sweep = now + self.config.watchdog.interval
            self._plan(watch.sweep())
        elif self.next_confirm is not None and self.next_confirm <= now:
            self.next_confirm = None
            self._plan(watch.confirm())
        else:
            self.next_follow = None
            self._plan(watch.follow())

    def _plan(self, report: Report) -> None:
        if report.confirm_at is not None and self.next_confirm is None:
            self.next_confirm = max(report.confirm_at - self.world.boot_offset, self.world.now)
        if report.busy and self.next_follow is None:
            self.next_follow = self.world.now + FOLLOW_EVERY

    def starts(self, vmid: int | None = None) -> list[float]:
        """Virtual seconds at which a start of the agent reached PVE."""
        return [t for t, verb, of, _ in self.world.effects if verb == "start" and vmid in (None, of)]

    def events(self, *names: str) -> list[Logged]:
        """The log, less all other events."""
        return [entry for entry in self.journal.log if entry.event in names]
