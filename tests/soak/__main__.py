"""`python -m tests.soak`: many seeds on several processors, or one of them again."""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.soak.generate import generate
from tests.soak.liveness import RULE
from tests.soak.runner import Outcome, run
from tests.soak.shrink import shrink
from tests.soak.toml_text import Data, to_toml

FAILURES = Path(__file__).parent / "failures"
SHRUNK_AT_MOST = 5  # of the failing seeds: each takes a minute
LAST_MINUTES = 15


@dataclass(frozen=True, slots=True)
class Job:
    """One seed to run."""

    seed: int
    days: float


@dataclass(slots=True)
class Totals:
    """What all runs came to."""

    runs: int = 0
    sweeps: int = 0
    effects: int = 0
    events: int = 0
    seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, 0)

    def add(self, seed: int, outcome: Outcome) -> None:
        """One run more."""
        self.runs += 1
        self.sweeps += outcome.sweeps
        self.effects += outcome.effects
        self.events += outcome.events
        self.seconds += outcome.seconds
        self.slowest = max(self.slowest, (outcome.seconds, seed))

    def __str__(self) -> str:
        """In one line."""
        rest = f"{self.effects} requests, {self.events} events"
        cpu = f"{self.seconds:.0f} s of CPU, the longest {self.slowest[0]:.1f} s (seed {self.slowest[1]})"
        return f"{self.runs} runs, {self.sweeps} sweeps, {rest}, {cpu}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when every run held, 1 when one did not."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many (300)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--days", type=float, default=7, help="virtual days of each (7)")
    parser.add_argument("--budget", type=float, default=60, help="seconds for shrinking one failure (60); 0: not at all")
    parser.add_argument("--out", type=Path, default=FAILURES, help="folder for the scenario files of failures")
    parser.add_argument("--seed", type=int, help="run this one only, and print its whole log")
    parser.add_argument("--file", type=Path, help="run this scenario file only, liveness included, and print its whole log")
    given = parser.parse_args(arguments)
    if given.file is not None:
        return _one(tomllib.loads(given.file.read_text(encoding="utf-8")))
    if given.seed is not None:
        return _one(generate(given.seed, given.days))
    return _many(given)


def _one(data: Data) -> int:
    outcome = run(data)
    print(outcome.log())
    if outcome.failure is not None:
        print(outcome.failure.trace or f"{outcome.failure.kind} at {outcome.failure.t:.1f} s: {outcome.failure.message}", file=sys.stderr)
    return 0 if outcome.failure is None else 1


def _many(given: argparse.Namespace) -> int:
    totals, failed, began = Totals(), [], time.monotonic()
    for job, outcome in _outcomes([Job(given.first + number, given.days) for number in range(given.seeds)], given.jobs):
        totals.add(job.seed, outcome)
        if outcome.failure is not None:
            failed.append((job, outcome))
            _progress(f"seed {job.seed}: {outcome.failure.kind}: {outcome.failure.message}", last=True)
        _progress(f"{totals.runs}/{given.seeds} seeds, {len(failed)} failed, {totals.sweeps} sweeps, {time.monotonic() - began:.0f} s")
    _progress(f"{totals}; {time.monotonic() - began:.0f} s on {given.jobs} processors", last=True)
    for number, (job, outcome) in enumerate(sorted(failed, key=lambda found: found[0].seed)):
        _report(job, outcome, given.out, given.budget if number < SHRUNK_AT_MOST else 0)
    print(f"{len(failed)} of {totals.runs} seeds failed" if failed else "every seed held")
    return 1 if failed else 0


def _outcomes(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, Outcome]]:
    """As they come. The stream is left behind where nothing failed."""
    if processes <= 1:
        yield from map(_work, jobs)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap_unordered(_work, jobs)


def _work(job: Job) -> tuple[Job, Outcome]:
    gc.disable()  # a run leaves little for it, and its search for that takes a seventh of the time
    outcome = run(generate(job.seed, job.days))
    gc.collect()
    return job, outcome if outcome.failure is not None else replace(outcome, stream=[])


def _report(job: Job, outcome: Outcome, out: Path, budget: float) -> None:
    """What failed, the last minutes before it, and the small scenario that fails in the same way."""
    failure = outcome.failure
    assert failure is not None
    print(f"\nseed {job.seed} ({job.days:g} days): {failure.kind} at {failure.t:.1f} s: {failure.message}\n{failure.trace}")
    print(f"the last {LAST_MINUTES} minutes:\n{outcome.log(LAST_MINUTES * 60)}")
    data = generate(job.seed, job.days)
    if budget > 0:
        data, failure = shrink(data, failure, budget, _progress)
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"seed-{job.seed}.toml"
    file.write_text(to_toml({**data, "summary": f"soak, seed {job.seed}: {failure.kind}"}), encoding="utf-8")
    _progress(
        f"{file}: {len(data['guest'])} guests, {len(data['at'])} entries, {len(data['after'])} reactions, until {data['until']}", last=True
    )
    how = f"python -m tests.soak --file {file}" if failure.kind == "liveness" else f"guestward simulate {file}"
    print(f"again: {how}, or python -m tests.soak --seed {job.seed} --days {job.days:g}")
    if failure.kind == "liveness":
        print(f"rule: {RULE}")


_ticks = itertools.count()


def _progress(text: str, *, last: bool = False) -> None:
    """One line that is written over on a terminal; elsewhere every fiftieth of them."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{text}", end="\n" if last else "", flush=True)
    elif last or next(_ticks) % 50 == 49:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
