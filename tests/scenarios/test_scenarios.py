"""The golden scenarios: each is played by the real watchdog under all monitors, and must give the very log that lies beside it.

`make scenarios` compares; `make scenarios UPDATE=1` writes the logs anew, to be read before they are committed.
"""

from __future__ import annotations

import difflib
import os
import re
from functools import cache
from pathlib import Path

import pytest

from guestward.model.decision import GateReason, Guard, Outcome
from guestward.model.events import all_events
from guestward.model.scratch import REFUSALS
from guestward.sim.log import as_text
from guestward.sim.run import Simulation
from guestward.sim.scenario import load

HERE = Path(__file__).parent
NAMES = sorted(path.parent.name for path in HERE.glob("*/scenario.toml"))
LAST_MINUTES = 15
UPDATE = os.environ.get("GUESTWARD_SCENARIOS") == "update"

# What no time line can bring about, or what other tests show.
NOT_PLAYED = {
    *("config_rejected", "config_reloaded", "store_failed", "store_restored", "metrics_failed", "metrics_restored"),  # the daemon's
    *("library", "already_running", "internal_error"),
    "host_warning",  # a pve-guests.service that failed or is disabled has no verb
}


@cache
def played(name: str) -> tuple[Simulation, str]:
    """One scenario from its first second to its last, and its log."""
    scenario = load(HERE / name / "scenario.toml")
    sim = scenario.simulation()
    sim.run(scenario.until)
    sim.finish()
    return sim, "".join(f"{as_text(entry)}\n" for entry in sim.stream)


def explained(name: str, sim: Simulation) -> str:
    """Why a monitor broke, in one sentence, and what came before it; where it is not enough: `guestward simulate` has it all."""
    assert sim.violation is not None
    lines = [as_text(entry) for entry in sim.stream if entry.t >= sim.violation.t - LAST_MINUTES * 60]
    return "\n".join([f"{name}: {sim.violation.message}", f"the last {LAST_MINUTES} minutes:", *lines])


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_gives_its_golden_log(name: str) -> None:
    sim, log = played(name)
    assert sim.violation is None, explained(name, sim)
    golden = HERE / name / "expect.log"
    if UPDATE:
        golden.write_text(log, encoding="utf-8")
    known = golden.read_text(encoding="utf-8") if golden.exists() else ""
    difference = list(difflib.unified_diff(known.splitlines(), log.splitlines(), "expect.log", "now", lineterm="", n=2))
    assert not difference, "\n".join(["", f"{name}: {load(HERE / name / 'scenario.toml').summary}", *difference[:60]])


def test_every_golden_log_has_a_scenario() -> None:
    assert {path.parent.name for path in HERE.glob("*/expect.log")} == set(NAMES)


def test_summaries_are_sentences_that_differ() -> None:
    summaries = [load(HERE / name / "scenario.toml").summary for name in NAMES]
    assert len(set(summaries)) == len(summaries) >= 60
    assert all(len(summary.split()) >= 5 for summary in summaries)


def test_every_red_proof_has_a_scenario() -> None:
    assert len([name for name in NAMES if name.startswith("red-")]) == 8


def words_of_all_logs(pattern: str) -> set[str]:
    return {word for name in NAMES for found in re.findall(pattern, played(name)[1]) for word in found.split(",")}


def test_every_guard_keeps_a_guest_down_in_some_scenario() -> None:
    """`running` and `start` keep none down; the band, templates and other people's guests are never spoken of."""
    silent = {Guard.RUNNING, Guard.NOT_OWNED, Guard.SCRATCH_BAND, Guard.TEMPLATE}
    assert {str(guard) for guard in Guard if guard not in silent} <= words_of_all_logs(r"guard=(\w+)")


def test_every_reason_closes_the_gate_in_some_scenario() -> None:
    """`unknown` needs witnesses that cannot be read, for which there is no verb."""
    assert {str(reason) for reason in GateReason if reason is not GateReason.UNKNOWN} <= words_of_all_logs(r"reasons=(\S+)")


def test_every_outcome_of_an_attempt_is_in_some_scenario() -> None:
    assert {str(outcome) for outcome in Outcome} == words_of_all_logs(r"start_result .* outcome=(\w+)")


def test_every_reason_for_which_a_scratch_guest_stays_is_in_some_scenario() -> None:
    assert {verdict.value for verdict in REFUSALS} <= words_of_all_logs(r"scratch_refused .* verdict=(\w+)")


def test_every_event_is_in_some_scenario() -> None:
    told = {entry.event for name in NAMES for entry in played(name)[0].journal.log}
    assert {kind.name for kind in all_events()} - NOT_PLAYED == told


def test_a_refused_token_is_used_once_a_look() -> None:
    """C65: what counts failed logins bans the host that makes many."""
    sim, _ = played("token-refused")
    refused = [call for call in sim.pve.calls if 300 <= call.t < 7200]
    assert len(refused) == (7200 - 300) // 60


def test_a_broken_monitor_explains_itself() -> None:
    """At the end of the shortest scenario something happens that no agent may do."""
    scenario = load(HERE / "incident-2-killed-backup" / "scenario.toml")
    sim = scenario.simulation()
    sim.run(1200)
    sim.world.at(1201, lambda: sim.world.effect("api", "destroy", 101, "ok"))
    sim.run(1260)
    said = explained("incident-2-killed-backup", sim).splitlines()
    assert said[0] == "incident-2-killed-backup: destroy of 101 at 1201.0 s"
    assert said[1] == "the last 15 minutes:"
    assert "violation of I8" in said[-1]
    assert all(float(line[:10]) >= 301 for line in said[2:])
