"""The random simulation itself: a seed is a scenario, replays exactly, uses every verb, finds a planted defect and makes it small."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from guestward.cli import simulate
from guestward.config import duration
from guestward.model.decision import Guard
from guestward.policy import guards, locks
from guestward.sim import verbs
from guestward.sim.scenario import load
from tests.soak import __main__ as soak
from tests.soak.episodes import EPISODES
from tests.soak.generate import generate
from tests.soak.liveness import bounds
from tests.soak.runner import Counter as Sweeps
from tests.soak.runner import Failure, build, run
from tests.soak.shrink import minimize, shrink
from tests.soak.toml_text import to_toml

ROOT = Path(__file__).parents[2]
SEEDS = range(12)
DAYS = 0.25
EXCUSES = (
    *("lock 101 backup", "quorum lost", "agent kill", "set 101 onboot=false", "ha 101 started", "api down", "maintenance on"),
    *("task begin vzmigrate 101", "hold 101 for 1d", "set 101 pool=other", "revoke Pool.Audit /pool/guestward", "host booting"),
)
LEFT = ("backup begin stop 101", "backup kill")
NOT_OWED = (
    *("lock 101 migrate", "hold 101 for 1d", "set 101 pool=other", "helper down", "clock wall +1h", "fail next unlock x"),
    *("task begin vzmigrate 101", "migrate 101 away", 'set 101 name="written"', "host booting"),
)


# --------------------------------------------------------------------- what is generated


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_is_a_valid_scenario(seed: int, tmp_path: Path) -> None:
    data = generate(seed)
    file = tmp_path / "scenario.toml"
    file.write_text(to_toml(data))
    assert tomllib.loads(file.read_text()) == {key: value for key, value in data.items() if value != {} and value != []}
    scenario = load(file)
    assert len(scenario.deeds) == len(data["at"])
    assert 7 * 86400 <= scenario.until <= 8 * 86400


def test_together_the_seeds_use_every_verb_and_every_episode() -> None:
    texts = [entry["do"] for seed in range(40) for name in ("at", "after") for entry in generate(seed)[name]]
    unused = [name for name in verbs.VERBS if not any(f"{text} ".startswith(f"{name} ") for text in texts)]
    assert unused == []
    assert len({kind.name for kind in EPISODES}) == len(EPISODES)


def test_the_seeds_react_to_every_act_of_recovery_and_let_each_of_its_steps_fail() -> None:
    together = [generate(seed) for seed in range(40)]
    acts = {entry["effect"].split()[0] for data in together for entry in data["after"]}
    ordered = {entry["do"].split()[2] for data in together for entry in data["at"] if entry["do"].startswith("fail next ")}
    of_scratch = {"stop", "destroy", "release-scratch", "regrant"}
    assert acts == {"start", "unlock", "delete-snapshot", *of_scratch}
    assert ordered == {"start", "unlock", "delete-snapshot", "backup-cleanup", *of_scratch}
    assert {data["config"].get("locks", {}).get("recover", "prove") for data in together} == {"prove", "report"}
    assert any(entry["do"] == "grant VM.Audit /pool/other" for data in together for entry in data["at"])


def test_the_faults_end_and_it_is_quiet_for_as_long_as_the_bound() -> None:
    for seed in SEEDS:
        data = generate(seed)
        last = max(duration(entry["t"]) for entry in data["at"])
        others = max(duration(entry["t"]) for entry in data["at"] if not entry["do"].startswith("rearm "))
        assert duration(data["until"]) - last >= bounds(data).bound
        assert others == last or last - others >= bounds(data).settle


# --------------------------------------------------------------------- exact replay


REPLAY = """
import hashlib
from tests.soak.generate import generate
from tests.soak.runner import run
from tests.soak.toml_text import to_toml
data = generate({seed}, {days})
print(hashlib.sha256((to_toml(data) + run(data).json()).encode()).hexdigest())
"""


def test_a_seed_replays_to_the_byte_in_any_process() -> None:
    seed, days = 5, 0.25
    data = generate(seed, days)
    here = hashlib.sha256((to_toml(data) + run(data).json()).encode()).hexdigest()
    for hash_seed in ("1", "4"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", REPLAY.format(seed=seed, days=days)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == here


def test_different_seeds_differ() -> None:
    assert len({to_toml({**generate(seed, 1), "summary": ""}) for seed in SEEDS}) == len(SEEDS)


# --------------------------------------------------------------------- finding and shrinking


def _never(*_: object) -> guards.Answer:
    return False, "planted"


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> tuple[int, Failure]:
    """The guard `onboot_off` never applies; the first seed that finds it, and how."""
    monkeypatch.setitem(guards._QUESTIONS, Guard.ONBOOT_OFF, _never)
    found = ((seed, run(generate(seed, DAYS)).failure) for seed in range(100))
    return next((seed, failure) for seed, failure in found if failure is not None and failure.kind == "I1")


@pytest.mark.breaks_a_monitor
def test_a_planted_defect_is_found_made_small_and_replayed(planted: tuple[int, Failure], tmp_path: Path) -> None:
    seed, found = planted
    small, failure = shrink(generate(seed, DAYS), found, budget=10)
    assert failure.kind == "I1"
    assert len(small["at"]) + len(small["after"]) <= 6
    assert len(small["guest"]) <= 2
    file = tmp_path / "small.toml"
    file.write_text(to_toml(small))
    assert simulate.simulate(file, "json") == 1
    sim = build(small, Sweeps())
    sim.run(duration(small["until"]))
    assert sim.violation is not None
    assert (sim.violation.invariant, sim.violation.t) == ("I1", failure.t)


def test_an_exception_of_a_duty_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> guards.Answer:
        raise TypeError("planted")

    monkeypatch.setitem(guards._QUESTIONS, Guard.ONBOOT_OFF, breaks)
    data: dict[str, Any] = {"summary": "x", "until": "10m", "host": {}, "config": {}, "after": []}
    data["guest"] = [{"vmid": 101, "pool": "guestward", "onboot": True}, {"vmid": 102, "name": "other"}]
    data["at"] = [{"t": "10s", "do": "api down"}, {"t": "20s", "do": "api up"}, {"t": "1m", "do": "die 101"}, {"t": "2m", "do": "die 102"}]
    failure = run(data).failure
    assert failure is not None
    assert failure.kind == "TypeError in test_soak.py:breaks"
    small, again = shrink(data, failure, budget=10)
    assert again.kind == failure.kind
    assert [entry["do"] for entry in small["at"]] == ["die 101"]
    assert small["guest"] == [{"vmid": 101, "pool": "guestward"}]


@pytest.mark.breaks_a_monitor
def test_a_guest_that_is_never_started_breaks_liveness_unless_there_is_an_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(*_: object) -> guards.Answer:
        return True, "planted"

    monkeypatch.setitem(guards._QUESTIONS, Guard.NEW_HERE, always)
    data: dict[str, Any] = {"summary": "x", "until": "4h", "host": {}, "config": {}, "after": []}
    data["guest"] = [{"vmid": 101, "pool": "guestward", "onboot": True}]
    data["at"] = [{"t": "1m", "do": "die 101"}]
    found = _unmonitored(data, monkeypatch)
    assert found is not None
    assert found.kind == "liveness"
    for excuse in EXCUSES:
        assert _unmonitored({**data, "at": [*data["at"], {"t": "2m", "do": excuse}]}, monkeypatch) is None, excuse
    assert _unmonitored({**data, "at": [*data["at"], {"t": "3h", "do": "rearm 101"}]}, monkeypatch) is not None
    assert _unmonitored({**data, "until": "20m"}, monkeypatch) is None


@pytest.mark.breaks_a_monitor
def test_a_lock_of_a_dead_vzdump_that_is_never_cleared_breaks_liveness_unless_there_is_an_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        return None

    data: dict[str, Any] = {"summary": "x", "until": "6h", "host": {}, "config": {}, "after": []}
    data["guest"] = [{"vmid": 101, "pool": "guestward", "onboot": True}]
    data["at"] = [{"t": f"{number + 1}m", "do": do} for number, do in enumerate(LEFT)]
    assert _unmonitored(data, monkeypatch) is None
    monkeypatch.setattr(locks, "due", never)
    found = _unmonitored(data, monkeypatch)
    assert found is not None
    assert found.kind == "liveness"
    assert "lxc/101 has had the lock backup of a dead vzdump" in found.message
    for excuse in NOT_OWED:
        assert _unmonitored({**data, "at": [*data["at"], {"t": "3m", "do": excuse}]}, monkeypatch) is None, excuse
    assert _unmonitored({**data, "config": {"locks": {"recover": "report"}}}, monkeypatch) is None
    rearmed = [{"t": "2.5m", "do": "helper down"}, {"t": "3m", "do": "helper up"}, {"t": "3h", "do": "rearm 101"}]
    assert _unmonitored({**data, "at": [*data["at"], *rearmed]}, monkeypatch) is not None


def _unmonitored(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Failure | None:
    """Without the monitors, which would be first."""
    with monkeypatch.context() as patch:
        patch.setattr("guestward.sim.run.standard_monitors", lambda past: (past,))
        return run(data).failure


def test_minimize_leaves_what_is_needed_together() -> None:
    tried: list[list[int]] = []

    def fails(items: list[int]) -> bool:
        tried.append(items)
        return {3, 17, 40} <= set(items)

    assert minimize(list(range(64)), fails) == [3, 17, 40]
    assert len(tried) < 200
    assert minimize([1, 2, 3], lambda items: True) == []
    assert minimize([], lambda items: True) == []


# --------------------------------------------------------------------- the command


@pytest.mark.breaks_a_monitor
def test_the_command_reports_a_failure_and_writes_its_file(
    planted: tuple[int, Failure], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, _ = planted
    given = ["--seeds", "1", "--first", str(seed), "--jobs", "1", "--days", str(DAYS), "--budget", "1", "--out", str(tmp_path)]
    assert soak.main(given) == 1
    said = capsys.readouterr().out
    assert f"seed {seed}: I1" in said
    assert "1 of 1 seeds failed" in said
    assert "violation of I1" in said
    assert soak.main(["--file", str(tmp_path / f"seed-{seed}.toml")]) == 1


def test_the_command_on_seeds_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--seeds", "2", "--jobs", "2", "--days", "0.2"]) == 0
    assert "every seed held" in capsys.readouterr().out
