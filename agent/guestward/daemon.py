"""`guestward run`: opens the doors, keeps the cadence, obeys signals. What is done to guests is the duties' business."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TextIO

from guestward import __version__
from guestward.adapters.cadence import Cadence
from guestward.adapters.clock import HostClock, node_name
from guestward.adapters.helper import SocketHelper
from guestward.adapters.host import LinuxHost
from guestward.adapters.journal import JsonJournal, under_systemd
from guestward.adapters.metrics import Metrics, MetricsServer
from guestward.adapters.notify import Notifier
from guestward.adapters.pve import ProxmoxPve
from guestward.adapters.secret import SecretFile
from guestward.adapters.statelock import StateLock
from guestward.adapters.store import SqliteStore
from guestward.config import Config, ConfigError, load
from guestward.duties.agent import Agent
from guestward.duties.env import Env, Report
from guestward.model.events import Event
from guestward.model.scratch import ScratchBand
from guestward.model.task import bounded
from guestward.ports import Board

FOLLOW_EVERY = 1.0
PATIENCE = 3.5
NEEDS_RESTART = ("state", "host", "log")


class Daemon:
    """The agent process: one thread works, the main thread waits for signals and watches the clock."""

    def __init__(self, config: Config, environ: Mapping[str, str] = os.environ) -> None:
        """Open all doors. Nothing is asked of PVE yet."""
        self._stop, self._reload = threading.Event(), threading.Event()
        self._signal = ""
        self._told_ready = False
        self._defects: dict[str, str] = {}
        self._environ = environ
        self.clock = HostClock(config.host.root, self._stop)
        log = _log_stream()
        self.journal = JsonJournal(log, config.log.level, self.clock, under_systemd(log, environ))
        self.journal.capture_libraries()
        self.metrics = Metrics()
        self.journal.listen(self.metrics.hear)
        self.notifier = Notifier(environ)
        node = node_name() if config.pve.node == "auto" else config.pve.node
        self.store = SqliteStore(config.state.dir, self.journal)
        helper = SocketHelper(config.host.root, self.clock)
        self.env = Env(self.clock, self._pve(config, node), LinuxHost(config.host.root, node), self.store, self.journal, config, helper)
        self.watch = Agent(self.env)
        self.server = MetricsServer(config.metrics.listen, self.metrics.expose, self.journal, self.clock)
        self.cadence = Cadence(self.clock)

    def _pve(self, config: Config, node: str) -> ProxmoxPve:
        secret = SecretFile(config.pve.token_file, config.pve.token_id, self._environ)

        def read_secret() -> str:
            value = secret.read()
            self.journal.protect(value)
            return value

        band = ScratchBand(config.scratch.first, config.scratch.last)
        return ProxmoxPve(config.pve, node, read_secret, self.clock, band=band)

    def run(self) -> int:
        """Watch until a signal ends it. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_end)
        signal.signal(signal.SIGHUP, self._ask_to_reload)
        config = self.env.config
        self.journal.emit(
            Event.DAEMON_STARTED,
            message=f"guestward {__version__} watches the guests of pool {', '.join(config.scope.pools)} on node {self.env.pve.node}",
            version=__version__,
            node=self.env.pve.node,
            config=str(config.file),
            interval_s=config.watchdog.interval,
        )
        self.server.start()
        self.cadence.start()
        self._plan_sweeps()
        while not self._stop.wait(1.0):
            self.cadence.follow_clock()
            self.server.tick()
            if self._reload.is_set():
                self._reload.clear()
                self.cadence.once("reload", 0.0, self._guarded("reload", self._take_config))
        return self._end()

    def _plan_sweeps(self, *, first_in: float = 0.0) -> None:
        sweep = self._guarded("sweep", lambda: self._after(self.watch.sweep()))
        self.cadence.every("sweep", self.env.config.watchdog.interval, sweep, first_in=first_in)

    def _ask_to_end(self, number: int, _frame: FrameType | None) -> None:
        self._signal = signal.Signals(number).name
        self._stop.set()

    def _ask_to_reload(self, _number: int, _frame: FrameType | None) -> None:
        self._reload.set()

    def _guarded(self, where: str, do: Callable[[], None]) -> Callable[[], None]:
        """A defect ends the look and not the agent, and is told once. It is no progress: if it lasts, systemd restarts us (C105)."""

        def job() -> None:
            try:
                do()
                self._defects.pop(where, None)
            except Exception as error:  # noqa: BLE001 - the one edge at which a defect of ours is caught
                trace = error.__traceback__
                while trace is not None and trace.tb_next is not None:
                    trace = trace.tb_next
                spot = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else "?"
                reason = bounded(f"{type(error).__name__} at {spot}: {error}")
                if self._defects.get(where) == reason:
                    return
                self._defects[where] = reason
                text = f"a defect in guestward ended this {where}; the next one comes as planned. Please report it: {reason}"
                self.journal.emit(Event.INTERNAL_ERROR, message=text, where=where, reason=reason)

        return job

    def _after(self, report: Report) -> None:
        """Plan what the duty asked for, and show that it got somewhere."""
        if report.result is not None:
            self.metrics.swept(report.result, report.duration)
        if report.board is not None:
            self.metrics.show(report.board, self.watch.state.teller.holds.values())
            self.notifier.status(_status(report.board))
        if report.confirm_at is not None:
            self.cadence.once("confirm", report.confirm_at, self._guarded("confirmation", lambda: self._after(self.watch.confirm())))
        if report.busy and self.cadence.due_in("follow") is None:
            follow = self._guarded("follow", lambda: self._after(self.watch.follow()))
            self.cadence.every("follow", FOLLOW_EVERY, follow, first_in=FOLLOW_EVERY)
        elif not report.busy:
            self.cadence.drop("follow")
        if report.result is not None and not self._told_ready:
            self._told_ready = self.notifier.ready()
        self.notifier.watchdog()

    def _take_config(self) -> None:
        """SIGHUP. A configuration that is refused changes nothing."""
        self.notifier.reloading()
        old = self.env.config
        try:
            new = load(old.file)
        except ConfigError as error:
            text = f"the configuration is refused and the one from before stays in force: {error}"
            self.journal.emit(Event.CONFIG_REJECTED, message=text, file=error.file, key=error.key, reason=error.reason)
        else:
            self._apply(old, new)
        finally:
            self.notifier.ready()

    def _apply(self, old: Config, new: Config) -> None:
        self.env.config = new
        if new.pve != old.pve:
            node = node_name() if new.pve.node == "auto" else new.pve.node
            self.env.pve = self._pve(new, node)
            self.env.host = LinuxHost(old.host.root, node)  # [host] waits for the next start
        if new.metrics != old.metrics:
            self._move_metrics(new.metrics.listen)
        late = [f"[{name}]" for name in NEEDS_RESTART if getattr(new, name) != getattr(old, name)]
        rest = f"; what changed in {', '.join(late)} takes effect at the next start" if late else ""
        self.journal.emit(Event.CONFIG_RELOADED, message=f"the configuration was read again and is in force{rest}", file=str(new.file))
        self._plan_sweeps()

    def _move_metrics(self, listen: str) -> None:
        failing = self.server.address is None
        self.server.stop()
        self.server = MetricsServer(listen, self.metrics.expose, self.journal, self.clock)
        self.server.start()
        if failing and self.server.address is not None:  # the new server does not know what the old one told
            self.journal.emit(Event.METRICS_RESTORED, message=f"metrics are served on {listen}", listen=listen)

    def _end(self) -> int:
        """Within 5 s. What was begun is in the store and is followed at the next start; nothing is begun any more."""
        self.notifier.stopping()
        self.watch.end()
        ended = self.cadence.stop(PATIENCE)
        in_flight = len(self.watch.power.starter.in_flight())
        rest = f"; starts under way, to be followed at the next start: {in_flight}" if in_flight else ""
        asked = ", ".join(str(id) for id in self.watch.locks.calls)
        rest += f"; the root helper is at work on {asked}, and what comes of that is seen at the next start" if asked else ""
        text = f"ends on {self._signal}; guests are no longer guarded{rest}"
        self.journal.emit(Event.DAEMON_STOPPING, message=text, signal=self._signal, in_flight=in_flight)
        self.server.stop()
        if ended:
            self.watch.state.ended = True
            self.watch.state.publish()
            self.store.close()
        self.journal.close(0.5)
        if not ended:
            # A call that hangs would keep the interpreter alive; all that matters is in the store.
            os._exit(0)
        return 0


def _status(board: Board) -> str:
    """One line for `systemctl status`."""
    if board.aborted:
        return f"examines nothing: {board.aborted}"
    mine = [row for row in board.rows if row.owned]
    down = sum(1 for row in mine if not row.running)
    gate = "" if board.gate.open else f"; no starts: {', '.join(c.reason for c in board.gate.closures)}"
    return f"{len(mine)} guests, {down} stopped; {board.sweeps} complete sweeps since boot{gate}"


def _log_stream() -> TextIO:
    """stdout; Python has none when it was closed before the start, and then nobody wants the log."""
    return sys.stdout if sys.stdout is not None else open(os.devnull, "w", encoding="ascii")


def reject(error: ConfigError) -> int:
    """Say in the journal that the agent does not start, and why. Returns the exit code."""
    log = _log_stream()
    journal = JsonJournal(log, "info", HostClock(Path("/")), under_systemd(log, os.environ))
    text = f"the agent does not start and no guest is guarded: {error}"
    journal.emit(Event.CONFIG_REJECTED, message=text, file=error.file, key=error.key, reason=error.reason)
    journal.close()
    return 2


def run(config: Config) -> int:
    """Run the agent in this process until a signal ends it. Returns the exit code; 2 when another agent has the state folder."""
    lock = StateLock(config.state.dir)
    other = lock.take()
    if isinstance(other, int):
        return _already_running(config, other)
    try:
        return Daemon(config).run()
    finally:
        lock.release()


def _already_running(config: Config, pid: int) -> int:
    """Two agents on one state would start guests twice."""
    log = _log_stream()
    journal = JsonJournal(log, config.log.level, HostClock(config.host.root), under_systemd(log, os.environ))
    who = f"process {pid}" if pid else "another process"
    text = f"not started: {who} guards the guests already, with the state in {config.state.dir}; end it first, or use another [state] dir"
    journal.emit(Event.ALREADY_RUNNING, message=text, pid=pid, folder=str(config.state.dir))
    journal.close()
    return 2
