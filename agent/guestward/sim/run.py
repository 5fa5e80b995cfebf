"""Runs the real watchdog on a simulated host: its cadence in virtual time, and everything that it says and does in one stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from guestward import __version__
from guestward.config import Config, parse
from guestward.duties.agent import Agent
from guestward.duties.env import Env, Report
from guestward.model.events import Event
from guestward.model.memory import Hold
from guestward.sim.doors import AgentGone, Life, SimClock, SimJournal, SimPve, SimStore, SimWitness, Wire
from guestward.sim.helper import SimHelper
from guestward.sim.log import Effect, Entry, Logged, Violation
from guestward.sim.monitors import standard_monitors
from guestward.sim.monitors.base import BrokenError, Monitor
from guestward.sim.monitors.past import Past
from guestward.sim.world import World

__all__ = ["FOLLOW_EVERY", "BrokenError", "Monitor", "Simulation"]

FOLLOW_EVERY = 1.0


@dataclass(slots=True)
class Simulation:
    """One agent on one world. `run` may be called again and again. due: when which job is due, in seconds since host boot.

    monitors: those that are wanted besides the standard ones, which are in force unless monitored is False.
    """

    world: World = field(default_factory=World)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    phase: str = "up"
    pve: SimPve = field(init=False)
    store: SimStore = field(default_factory=SimStore)
    journal: SimJournal = field(init=False)
    config: Config = field(init=False)
    watch: Agent | None = field(init=False, default=None)
    stream: list[Entry] = field(default_factory=list)
    monitors: Sequence[Monitor] = ()
    monitored: bool = True
    past: Past | None = field(init=False, default=None)
    violation: Violation | None = None
    wire: Wire = field(default_factory=Wire)
    life: Life = field(default_factory=Life)
    due: dict[str, float] = field(default_factory=dict)
    started_at: float = 0.0

    def __post_init__(self) -> None:
        """Open the doors and start the agent at t = 0."""
        values: dict[str, Any] = {key: dict(of) for key, of in self.settings.items()}
        values.setdefault("pve", {}).setdefault("token_id", self.world.token_id)
        self.config = parse(values, Path("scenario"))
        rules = self.config.rules()
        self.world.install(rules.pools, range(rules.scratch_first, rules.scratch_last + 1))
        self.world.phases.begin(self.phase)
        self.world.on_effect = self._effect
        self.journal = SimJournal(self.world, self._event)
        if self.monitored:
            self.past = Past(self)
            self.monitors = (*standard_monitors(self.past), *self.monitors)
        self.start()

    # ------------------------------------------------------------------------------------------------ the agent

    def start(self) -> None:
        """The agent starts, with what its store remembers."""
        world, self.life = self.world, Life()
        self.pve = SimPve(world, self.config.scope.pools, self.config.pve.timeout, self.life, self.wire)
        clock = SimClock(world, self.life)
        self.due = {"sweep": clock.boottime()}
        self.started_at = world.now
        env = Env(clock, self.pve, SimWitness(world), self.store, self.journal, self.config, self._helper())
        self.watch = Agent(env if self.past is None else self.past.listens_to(env))
        interval = self.config.watchdog.interval
        self.journal.emit(
            Event.DAEMON_STARTED,
            message=f"watches {world.node}",
            version=__version__,
            node=world.node,
            config="scenario",
            interval_s=interval,
        )
        if any(memory.in_flight is not None for memory in self.store.guest_memories.values()):
            self.due["follow"] = clock.boottime()

    def _helper(self) -> SimHelper:
        rules = self.config.rules()
        band = range(rules.scratch_first, rules.scratch_last + 1)
        return SimHelper(self.world, self.life, rules.pools, band, rules.exclude, report_only=not rules.lock_recovery)

    def kill(self) -> None:
        """The agent is gone, without a word; one that is gone already has nothing more to lose."""
        if self.watch is None:
            return
        self.watch, self.life.over = None, True
        self.due.clear()
        self.store.empty = False

    def stop(self) -> None:
        """Stop it as systemd does, if it lives."""
        if self.watch is not None:
            in_flight = len(self.watch.power.starter.in_flight())
            self.journal.emit(Event.DAEMON_STOPPING, message="asked to end", signal="SIGTERM", in_flight=in_flight)
            self.kill()

    def restart(self) -> None:
        """Stop it, if it lives, and start it again."""
        self.stop()
        self.start()

    def lose_state(self) -> None:
        """The agent is gone and so is its state, what operators wrote included."""
        self.kill()
        self.store.lose()

    def host(self, phase: str) -> None:
        """Let the host enter a phase. A boot ends the agent and starts it again, unless somebody had killed it.

        The agent is ordered after pve-guests, so that a clean reboot stops it before that stops the guests (pve-facts H).
        """
        alive = self.watch is not None
        if phase == "reboot":
            self.stop()
        if self.world.phases.enter(phase) and alive:
            self.kill()
            self.start()

    def hold(self, vmid: int | None = None, seconds: float = 7200.0) -> None:
        """`guestward hold`."""
        self.release(vmid)
        clock = SimClock(self.world)
        self.store.hold_list.append(Hold(vmid, "work", "root", seconds, clock.boot_id(), clock.boottime(), clock.wall()))

    def claim(self, vmid: int, seconds: float = 7200.0) -> None:
        """`guestward scratch claim`."""
        self.hold(vmid, seconds)
        self.store.hold_list[-1] = replace(self.store.hold_list[-1], claim=True)

    def release(self, vmid: int | None = None) -> None:
        """`guestward release`."""
        self.store.hold_list = [hold for hold in self.store.hold_list if hold.vmid != vmid]

    def rearm(self, vmid: int) -> None:
        """`guestward rearm`."""
        self.store.rearms.append(vmid)

    # ------------------------------------------------------------------------------------------------ time

    def run(self, until: float) -> list[Logged]:
        """Let world and agent live until that second; what the world does at a second comes before the agent. Returns the log.

        A broken invariant ends the run: it is the stream's last entry, and `violation`.
        """
        if self.violation is None:
            try:
                self._run(until)
            except BrokenError as broken:
                self.violation = Violation(self.world.now, broken.invariant, broken.rule, broken.message)
                self.stream.append(self.violation)
        return self.journal.log

    def _run(self, until: float) -> None:
        world = self.world
        while True:
            due, event = self._next_due(), world.next_event()
            moment = min(x for x in (due, event, until) if x is not None)
            world.until(moment)
            due = self._next_due()
            if world.now > until or (moment >= until and (due is None or due > until)):
                return  # what is overdue because a job took long begins after the end
            if due is not None and due <= world.now:
                self._run_job()

    def _next_due(self) -> float | None:
        """In virtual seconds: a moment at which the boot clock has reached it, however the difference was rounded."""
        if not self.due:
            return None
        due = min(self.due.values())
        moment = due - self.world.boot_offset
        return moment if moment + self.world.boot_offset >= due else moment + max(math.ulp(due), math.ulp(moment))

    def _run_job(self) -> None:
        watch, now = self.watch, self.world.boottime
        assert watch is not None  # noqa: S101 - a job is due only while the agent lives
        job = next(job for job in ("sweep", "confirm", "follow") if job in self.due and self.due[job] <= now)
        del self.due[job]
        try:
            if job == "sweep":
                self.due["sweep"] = now + self.config.watchdog.interval
            run: Callable[[], Report] = {"sweep": watch.sweep, "confirm": watch.confirm, "follow": watch.follow}[job]
            report = run()
        except AgentGone:
            return
        self._plan(report)
        for monitor in self.monitors:
            monitor.looked(job)

    def _plan(self, report: Report) -> None:
        now = self.world.boottime
        if report.confirm_at is not None:
            self.due["confirm"] = min(self.due.get("confirm", math.inf), max(report.confirm_at, now))
        if report.busy and "follow" not in self.due:
            self.due["follow"] = now + FOLLOW_EVERY

    def finish(self) -> None:
        """The run is over: the monitors have their last word."""
        if self.violation is None:
            try:
                for monitor in self.monitors:
                    monitor.end()
            except BrokenError as broken:
                self.violation = Violation(self.world.now, broken.invariant, broken.rule, broken.message)
                self.stream.append(self.violation)

    # ------------------------------------------------------------------------------------------------ the stream

    def _effect(self, effect: Effect) -> None:
        self.stream.append(effect)
        for monitor in self.monitors:
            monitor.effect(effect)

    def _event(self, logged: Logged) -> None:
        self.stream.append(logged)
        for monitor in self.monitors:
            monitor.event(logged)

    def starts(self, vmid: int | None = None) -> list[float]:
        """Virtual seconds at which a start of the agent reached PVE."""
        return [effect.t for effect in self.world.effects if effect.verb == "start" and vmid in (None, effect.vmid)]

    def events(self, *names: str) -> list[Logged]:
        """The log, less all other events."""
        return [entry for entry in self.journal.log if entry.event in names]
