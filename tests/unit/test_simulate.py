"""`guestward simulate`: what is printed, and with which exit code it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from guestward.cli import main, simulate
from guestward.sim.log import Effect, Logged
from guestward.sim.run import BrokenError
from guestward.sim.scenario import Scenario
from guestward.sim.verbs import VERBS

SCENARIO = """
summary = "A guest dies"
until = "5m"

[[guest]]
vmid = 101
name = "web"
onboot = true
pool = "guestward"

[[at]]
t = "65s"
do = "die 101"
"""
TEXT = """\
       0.0  event   daemon_started          info     interval_s=60
     120.0  event   guest_down              info     lxc/101 web  guard=unconfirmed cause=none
     150.0  effect  start 101               ok       api
     150.0  event   start_attempt           info     lxc/101 web  guard=start attempt=1 of=3 cause=none
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO)
    return file


class NoStarts:
    """A monitor of an invariant that no scenario keeps."""

    def effect(self, effect: Effect) -> None:
        raise BrokenError("I99", "nothing is ever started", f"{effect.verb} {effect.vmid}")

    def event(self, logged: Logged) -> None:
        pass

    def looked(self, job: str) -> None:
        pass

    def end(self) -> None:
        pass


class NoEnd(NoStarts):
    def effect(self, effect: Effect) -> None:
        pass

    def end(self) -> None:
        raise BrokenError("I98", "nothing ever ends", "it ended")


def broken_by(monitor: NoStarts, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Scenario.simulation
    monkeypatch.setattr(Scenario, "simulation", lambda self: build(self, [monitor]))


def test_the_log_as_text(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(TEXT)
    assert err == ""
    assert all(line == line.rstrip() for line in out.splitlines())


def test_the_log_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(file), "--output", "json"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert err == ""
    assert [(line["t"], line["kind"]) for line in lines[:4]] == [(0, "event"), (120, "event"), (150, "effect"), (150, "event")]
    assert lines[2] == {"t": 150.0, "kind": "effect", "door": "api", "verb": "start", "vmid": 101, "result": "ok"}
    record = lines[3]["record"]
    assert (record["event"], record["vmid"], record["kind"], record["name"], record["guard"]) == (
        "start_attempt",
        101,
        "lxc",
        "web",
        "start",
    )
    assert list(record)[:8] == ["ts", "level", "event", "message", "vmid", "kind", "name", "guard"]


def test_it_is_the_same_every_time(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = []
    for _ in range(2):
        main(["simulate", str(file), "--output=json"])
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1]


def test_a_long_one_comes_in_pieces_and_without_seams(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(SCENARIO.replace("5m", "3h"))
    main(["simulate", str(file)])
    whole = capsys.readouterr().out
    monkeypatch.setattr(simulate, "STEP", 7.0)
    main(["simulate", str(file)])
    assert capsys.readouterr().out == whole


def test_nothing_begins_after_the_end(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """While each answer takes long the agent is behind with its looks when the run ends."""
    file.write_text(SCENARIO.replace("5m", "20m") + '[[at]]\nt = "70s"\ndo = "api slow 9s"')
    assert main(["simulate", str(file), "--output", "json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[-1])["t"] < 1400
    monkeypatch.setattr(simulate, "STEP", 7.0)
    assert main(["simulate", str(file), "--output", "json"]) == 0
    assert capsys.readouterr().out == out


def test_a_scenario_of_no_length_is_the_first_sweep(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('summary = "x"\nuntil = "0s"')
    assert main(["simulate", str(file)]) == 0
    assert capsys.readouterr().out == TEXT.splitlines(keepends=True)[0]


@pytest.mark.breaks_a_monitor
def test_a_broken_monitor_ends_it(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    broken_by(NoStarts(), monkeypatch)
    assert main(["simulate", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "     150.0  violation of I99 (nothing is ever started): start 101"
    assert err == ""
    assert main(["simulate", str(file), "--output", "json"]) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"t": 150.0, "kind": "violation", "invariant": "I99", "rule": "nothing is ever started", "message": "start 101"}


@pytest.mark.breaks_a_monitor
def test_a_monitor_has_the_last_word(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    broken_by(NoEnd(), monkeypatch)
    assert main(["simulate", str(file)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "     300.0  violation of I98 (nothing ever ends): it ended"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SCENARIO.replace("die 101", "dye 101"), ':13: "dye 101": there is no verb dye; did you mean die?'),
        (b"\xff", ":1: is not UTF-8 text"),
        (b"#" * ((1 << 20) + 1), ": is larger than 1024 KiB"),
        (None, ": cannot be read: No such file or directory"),
    ],
)
def test_a_bad_file(file: Path, content: str | bytes | None, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    file.unlink()
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    assert main(["simulate", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == f"guestward: {file}{message}"
    assert "docs/simulate.md" in err.splitlines()[1]
    assert main(["--output", "json", "simulate", str(file)]) == 2
    out, err = capsys.readouterr()
    assert (json.loads(out)["error"]["code"], json.loads(out)["error"]["message"], err) == ("scenario", f"{file}{message}", "")


def test_what_is_hardly_meant_so_is_noted_and_played(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(SCENARIO.replace('pool = "guestward"', 'pool = "guestwrad"'))
    assert main(["simulate", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [TEXT.splitlines()[0]]
    assert err == f'guestward: {file}:9: guest 101 is not guarded: its pool is not "guestward", as in [scope] pools\n'


def test_a_request_that_hangs_has_the_second_at_which_it_was_sent(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(SCENARIO + '[[at]]\nt = "100s"\ndo = "api hang POST /nodes"')
    assert main(["simulate", str(file)]) == 0
    assert "     150.0  effect  start 101               lost     api" in capsys.readouterr().out.splitlines()


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"guestward: {tmp_path}: cannot be read: Is a directory\n")


def test_what_becomes_impossible_on_the_way(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(SCENARIO + '[[at]]\nt = "1s"\ndo = "destroy 101"')
    assert main(["simulate", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f'guestward: {file}:13: "die 101", 65 s: there is no guest 101 any more')


def test_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate"]) == 2
    assert "guestward: FILE is missing" in capsys.readouterr().err


def test_all_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--verbs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [verb.form for verb in VERBS.values()]
    assert main(["simulate", "--verbs", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["verbs"][0] == {"usage": "die VMID", "meaning": VERBS["die"].meaning}


def test_a_terminal_is_told_how_it_went(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    main(["simulate", str(file)])
    assert capsys.readouterr().err == '5 min of "A guest dies": every monitor held\n'


def test_it_needs_no_configuration_and_writes_nothing(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "guestward", "simulate", file.name],
        cwd=file.parent,
        env={**os.environ, "GUESTWARD_CONFIG": "/nowhere", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(TEXT)
    assert os.listdir(file.parent) == [file.name]


def test_interrupted(file: Path) -> None:
    file.write_text(SCENARIO.replace("5m", "366d"))
    with subprocess.Popen(
        [sys.executable, "-m", "guestward", "simulate", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=10)[1]
    assert (process.returncode, err) == (3, "guestward: interrupted; what would have come after that is not known\n")


def test_a_reader_that_goes_away(file: Path) -> None:
    file.write_text(SCENARIO.replace("5m", "3h"))
    with subprocess.Popen(
        [sys.executable, "-m", "guestward", "simulate", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_a_disk_that_is_full(file: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "guestward", "simulate", str(file)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "guestward: the answer cannot be written: No space left on device\n")
