"""`guestward simulate FILE`: what the agent would do in a scenario, in virtual time. It touches nothing of this host."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from guestward.cli.output import FAILED, OK, UNKNOWN, USAGE, CommandError, Table, plain, put, span, terminal_width
from guestward.sim.log import as_json, as_text
from guestward.sim.run import Simulation
from guestward.sim.scenario import ScenarioError, load
from guestward.sim.verbs import VERBS

HINT = "docs/simulate.md tells the format; `guestward simulate --verbs` lists what a time line can do"
STEP = 3600.0  # virtual seconds after which what there is so far is printed


def simulate(file: Path, output: str) -> int:
    """Run a scenario and print its log as it comes. Returns 0 when every monitor held and 1 when one broke.

    Raises CommandError for a scenario that is refused.
    """
    try:
        scenario = load(file)
        for note in scenario.notes:
            put(f"guestward: {plain(note)}", sys.stderr)
        sim = scenario.simulation()
        said = _print_all(sim, scenario.until, output)
    except ScenarioError as error:
        raise CommandError("scenario", str(error), HINT, USAGE) from None
    except KeyboardInterrupt:
        raise CommandError("interrupted", "interrupted; what would have come after that is not known", "", UNKNOWN) from None
    if sys.stderr.isatty() and output == "table":
        verdict = "a monitor broke" if sim.violation else "every monitor held"
        put(f'{span(sim.world.now)} of "{plain(scenario.summary)}": {verdict}', sys.stderr)
    return OK if said and sim.violation is None else FAILED


def _print_all(sim: Simulation, until: float, output: str) -> bool:
    """Run to the end, printing. False when something could not be written."""
    told, moment = 0, 0.0
    while True:
        moment = min(until, moment + STEP)
        sim.run(moment)
        if moment >= until:
            sim.finish()
        if not _print(sim, told, output):
            return False
        if moment >= until or sim.violation is not None:
            return True
        told = len(sim.stream)


def _print(sim: Simulation, told: int, output: str) -> bool:
    as_line = as_json if output == "json" else lambda entry: plain(as_text(entry))
    lines = [as_line(entry) for entry in sim.stream[told:]]
    return put("\n".join(lines)) if lines else True


def list_verbs(output: str) -> int:
    """Print every verb with its usage and meaning."""
    if output == "json":
        verbs = [{"usage": verb.form, "meaning": verb.meaning} for verb in VERBS.values()]
        return OK if put(json.dumps({"schema": 1, "verbs": verbs})) else FAILED
    rows = [(verb.form, verb.meaning.replace("`", "")) for verb in VERBS.values()]
    return OK if put("\n".join(Table(rows).lines(terminal_width(sys.stdout)))) else FAILED
