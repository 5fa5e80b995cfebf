"""Runs one scenario as `guestward simulate` does, and judges it: broken invariants, exceptions that left the agent, and liveness."""

from __future__ import annotations

import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from guestward.config import duration
from guestward.sim.log import Entry, Violation, as_json, as_text
from guestward.sim.run import BrokenError, Simulation
from guestward.sim.scenario import ScenarioError, load
from tests.soak.liveness import verify
from tests.soak.toml_text import Data, to_toml

LONGEST = 300  # seconds of CPU for one run; one that takes longer hangs


class StuckError(BaseException):
    """A run that does not end. A BaseException, so that no duty can catch it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """kind: the invariant, or the exception's type and where it was raised; a shrunk scenario fails with the same. t: virtual seconds."""

    kind: str
    message: str
    t: float
    trace: str = ""


@dataclass(slots=True)
class Outcome:
    """What became of one run. seconds: of this machine. stream: everything that the agent said and did."""

    failure: Failure | None
    sweeps: int
    effects: int
    events: int
    seconds: float
    stream: list[Entry] = field(default_factory=list)

    def log(self, last: float | None = None) -> str:
        """The stream as text, or its last so many virtual seconds."""
        end = self.failure.t if self.failure is not None else max((entry.t for entry in self.stream), default=0.0)
        return "\n".join(as_text(entry) for entry in self.stream if last is None or entry.t >= end - last)

    def json(self) -> str:
        """The stream as `guestward simulate --output json` prints it."""
        return "\n".join(as_json(entry) for entry in self.stream)


def run(data: Data) -> Outcome:
    """Run scenario data. Nothing that goes wrong in it leaves this function but KeyboardInterrupt."""
    began = time.process_time()
    counter = Counter()
    sim: Simulation | None = None
    try:
        with _limited():
            sim = build(data, counter)
            failure = _run(sim, data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever leaves the agent is what is looked for
        failure = _of_exception(error, sim.world.now if sim is not None else 0.0)
    seconds = time.process_time() - began
    stream = list(sim.stream) if sim is not None else []
    effects = len(sim.world.effects) if sim is not None else 0
    return Outcome(failure, counter.sweeps, effects, len(stream) - effects, seconds, stream)


@contextmanager
def _limited() -> Iterator[None]:
    def stuck(*_: object) -> None:
        raise StuckError(f"still running after {LONGEST} s of CPU")

    before = signal.signal(signal.SIGVTALRM, stuck)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def build(data: Data, counter: Counter) -> Simulation:
    """Agent and world, by way of the very file that is written for a failure. Raises ScenarioError."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(to_toml(data))
        file.flush()
        scenario = load(Path(file.name))
    sim = scenario.simulation()
    sim.monitors = (*sim.monitors, counter)
    return sim


def _run(sim: Simulation, data: Data) -> Failure | None:
    sim.run(duration(data["until"]))
    sim.finish()
    if sim.violation is None:
        try:
            verify(sim, data)
        except BrokenError as broken:
            sim.violation = Violation(sim.world.now, broken.invariant, broken.rule, broken.message)
            sim.stream.append(sim.violation)
    broken_one = sim.violation
    return Failure(broken_one.invariant, broken_one.message, broken_one.t) if broken_one is not None else None


def _of_exception(error: BaseException, t: float) -> Failure:
    if isinstance(error, (ScenarioError, StuckError)):
        return Failure(type(error).__name__, str(error), t)
    where = traceback.extract_tb(error.__traceback__)[-1]
    kind = f"{type(error).__name__} in {Path(where.filename).name}:{where.name}"
    return Failure(kind, f"{type(error).__name__}: {error}", t, "".join(traceback.format_exception(error)))


@dataclass(slots=True)
class Counter:
    """A monitor that counts sweeps."""

    sweeps: int = 0

    def effect(self, effect: object) -> None: ...

    def event(self, logged: object) -> None: ...

    def looked(self, job: str) -> None:
        self.sweeps += job == "sweep"

    def end(self) -> None: ...
