"""The command line as a whole: words, exit codes, output, and what the terminal and the shell do to it."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guestward import cli
from guestward.adapters import store
from guestward.cli import main
from guestward.cli.output import Answer, CommandError, Table, columns, moment, plain, put, say, span, terminal_width
from guestward.config import Config
from guestward.model.decision import Guard
from guestward.ports import Board
from tests.unit.test_cli_show import DB, HOLD, LAB, WEB, Publish, board, call, config, publish, row, utc  # noqa: F401 - fixtures

# ruff: noqa: F811 - pytest's way of asking for a fixture

EVIL = "a\x1b[2J\x1b]0;title\x07\rb\nlxc/1 running\u202e"


@pytest.fixture
def looked(config: Config, publish: Publish) -> Config:
    """A state with a look of just now, for the real clock."""
    publish(fresh(board(WEB, LAB, DB)))
    return config


def fresh(look: Board) -> Board:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return replace(look, boot_id=boot_id, at=now, seen_at=now, wall=time.time(), seen_wall=time.time())


def command(config: Config, *words: str) -> list[str]:
    return [sys.executable, "-m", "guestward", *words, "--config", str(config.file)]


# ------------------------------------------------------------------- words


@pytest.mark.parametrize(
    "vmid", ["0101", "１０１", "101.0", "-1", "-101", "99", "1000000000", "9" * 5000, "1e3", "", " 101", "101\n", "\x1b[2J"]
)
@pytest.mark.parametrize("words", [["explain"], ["hold", "--for", "2h"], ["release"], ["rearm"]])
def test_a_vmid_that_is_none(words: list[str], vmid: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, vmid]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.replace("\n", "").isprintable()
    assert len(err) < 500


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["explain"],
        ["rearm"],
        ["explain", "101", "102"],
        ["status", "101"],
        ["hold", "101", "102"],
        ["hold", "--for"],
        ["hold", "--for", "-1h"],
        ["hold", "--reason"],
        ["status", "--output", "yaml"],
        ["status", "--output"],
        ["status", "--out", "json"],
        ["stat"],
        ["--nonsense"],
        ["hold", "\x1b[2J\nx"],
        [],
    ],
)
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--help" in err
    assert main(["--output", "json", *words]) == 2
    out, err = capsys.readouterr()
    if "--output" not in words and "--out" not in words:
        body = json.loads(out)
        assert err == ""
        assert (body["schema"], set(body), set(body["error"])) == (1, {"schema", "error"}, {"code", "message", "hint"})
        assert (body["error"]["code"], "--help" in body["error"]["hint"]) == ("usage", True)


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--output", "json"],
        ["--output", "json", "status"],
        ["--output=json", "status"],
        ["status", "--output=json"],
        ["--output", "table", "status", "--output", "json"],
    ],
)
def test_output_may_be_chosen_before_and_after_the_command(words: list[str], looked: Config, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(looked, *words) == 0
    out, err = capsys.readouterr()
    body = json.loads(out)
    assert (err, set(body), body["schema"], body["node"]) == ("", {"schema", "node", "at", "data"}, 1, "pve1")
    assert abs(body["at"] - time.time()) < 60
    assert [guest["id"] for guest in body["data"]["guests"]] == ["lxc/9201", "lxc/102", "qemu/103"]


def test_config_may_be_chosen_before_the_command_or_by_the_environment(
    looked: Config, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call(looked, "status")
    assert main(["--config", str(looked.file), "status"]) == 0
    monkeypatch.setenv("GUESTWARD_CONFIG", str(looked.file))
    assert main(["status"]) == 0
    assert capsys.readouterr().out.count("node pve1") == 3


def test_words_that_look_like_an_option_are_none(looked: Config, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(looked, "hold", "103", "--for", "9x", "--reason", "with --output json") == 2
    assert "what to do" in capsys.readouterr().err
    assert cli._wanted_output(["hold", "--", "--output", "json"]) == "table"


def test_a_configuration_that_is_refused(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["status"], ["check"], ["hold"], ["explain", "101"]):
        assert main([*words, "--config", "/nowhere/\x1bx.toml", "--output", "json"]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert (error["code"], "cannot be read" in error["message"]) == ("configuration", True)
        assert main([*words, "--config", "/nowhere/\x1bx.toml"]) == 2
        assert "/nowhere/\\x1bx.toml: cannot be read" in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["--version"], ["hold", "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 0
        assert capsys.readouterr().out.startswith(("usage: guestward", "guestward 0."))


def test_every_command_is_heard(looked: Config, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(looked, "hold", "103", "--for", "2h", "--reason", "disk swap") == 0
    assert call(looked, "status") == 0
    assert "hold: guest 103, by" in capsys.readouterr().out
    assert call(looked, "explain", "103") == 0
    assert ">>  backoff" in capsys.readouterr().out
    assert call(looked, "release", "103") == 0
    assert call(looked, "rearm", "103") == 0
    assert call(looked, "explain", "999") == 2
    assert capsys.readouterr().err.count("what to do") == 1


def test_run_and_demo_are_handed_on(looked: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import guestward.daemon
    import guestward.demo.play

    monkeypatch.setattr(guestward.daemon, "run", lambda config: 40 + len(config.scope.pools))
    assert call(looked, "run") == 41
    monkeypatch.setattr(guestward.demo.play, "play", lambda output: {"table": 42, "json": 43}[output])
    assert (main(["demo"]), main(["--output", "json", "demo"])) == (42, 43)
    assert main(["run", "--config", "/nowhere"]) == 2
    assert '"event": "config_rejected"' in capsys.readouterr().out


# ------------------------------------------------------------- what goes wrong


def test_a_defect_is_told_and_not_thrown(looked: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("x\x1b")

    monkeypatch.setattr("guestward.cli.show.view", broken)
    assert call(looked, "status", "--output", "json") == 1
    out, err = capsys.readouterr()
    assert (json.loads(out)["error"]["code"], err) == ("defect", "")
    assert call(looked, "status") == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_an_outcome_that_nobody_knows(
    looked: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("guestward.cli.show.view", interrupted)
    assert call(looked, "status", "--output", "json") == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "interrupted"
    assert call(looked, "status") == 3
    assert "Traceback" not in capsys.readouterr().err


INTERRUPTED = """
import signal, sys
from guestward import cli

def wait(_):
    print("reading", flush=True)
    signal.pause()

cli.load = wait
sys.exit(cli.main(["status"]))
"""


def test_ctrl_c_for_real() -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, out) == (3, b"")
    assert b"Traceback" not in err


@pytest.mark.parametrize("words", [["status"], ["--help"]])
def test_a_reader_that_goes_away_is_no_fault(words: list[str], looked: Config) -> None:
    call(looked, "status")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command(looked, *words), stdout=write, stderr=subprocess.PIPE, timeout=20, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_answer_that_cannot_be_written_is_a_failure(looked: Config) -> None:
    call(looked, "status")
    with open("/dev/full", "w") as full:
        done = subprocess.run(command(looked, "status"), stdout=full, stderr=subprocess.PIPE, timeout=20, check=False)
    assert done.returncode == 1
    assert done.stderr == b"guestward: the answer cannot be written: No space left on device\n"


def test_without_any_output_the_exit_code_remains(looked: Config) -> None:
    call(looked, "status")
    done = subprocess.run(["/bin/sh", "-c", '"$@" >&- 2>&-', "sh", *command(looked, "status")], timeout=20, check=False)
    assert done.returncode == 0


# -------------------------------------------------------------- what is shown


def test_nothing_from_outside_reaches_the_terminal_as_it_is(config: Config, publish: Publish, capsys: pytest.CaptureFixture[str]) -> None:
    guest = row("lxc/101", Guard.EXHAUSTED, EVIL, name=EVIL, cause=EVIL)
    publish(fresh(board(guest, lost=(EVIL,), incomplete=EVIL)))
    store.add_hold(config.state.dir, replace(HOLD, by=EVIL, reason=EVIL, boot_id="another", wall=time.time()))
    for words in (["status"], ["explain", "101"], ["release"], ["hold", "101"], ["rearm", "101"]):
        call(config, *words)
        out, err = capsys.readouterr()
        assert ("a\\x1b[2J\\x1b]0;title\\x07\\rb\\nlxc/1 running\\u202e" in out) is (words[0] not in ("hold", "rearm"))
        for line in (out + err).split("\n"):
            assert line.isprintable(), (words, line)
            assert not line.startswith("lxc/1 ")
    call(config, "status", "--output", "json")
    assert json.loads(capsys.readouterr().out)["data"]["guests"][0]["name"] == EVIL


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}])
def test_any_locale(locale: dict[str, str], config: Config, publish: Publish) -> None:
    publish(fresh(board(row("lxc/101", Guard.LOCKED, "Sperre von Jürgen ✓ 日本", name="bücher"))))
    call(config, "release")
    program = "import sys; from guestward.cli import main; sys.exit(main(['status']) or main(['explain', '101']))"
    env = {**os.environ, "GUESTWARD_CONFIG": str(config.file), **locale}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=env, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"lxc/101") == 2


def test_a_reason_that_is_no_text(looked: Config) -> None:
    call(looked, "status")
    done = subprocess.run([*command(looked, "hold"), "--reason", b"\xff\xfe"], capture_output=True, timeout=20, check=False)
    assert done.returncode == 0
    assert store.list_holds(looked.state.dir)[0].reason.isprintable()


def test_a_terminal_gets_lines_that_fit(config: Config, publish: Publish) -> None:
    publish(fresh(board(row("lxc/101", Guard.EXHAUSTED, "no space left " * 20, name="n" * 63))))
    call(config, "release")
    leader, follower = pty.openpty()
    env = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(command(config, "status"), stdout=follower, stderr=subprocess.PIPE, env=env, timeout=20, check=False)
    os.close(follower)
    seen = b"".join(read_all(leader)).decode().replace("\r", "")
    assert done.returncode == 0
    assert max(map(len, seen.splitlines())) <= 100
    assert seen.count("space") == 20, "wrapped, not cut"


def read_all(descriptor: int) -> Iterator[bytes]:
    with suppress(OSError):
        while data := os.read(descriptor, 65536):
            yield data
    os.close(descriptor)


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    closed, tty = io.StringIO(), io.StringIO()
    closed.close()
    monkeypatch.setattr(tty, "isatty", lambda: True)
    assert [terminal_width(stream) for stream in (None, io.StringIO(), closed, tty)] == [None, None, None, 60]


def test_wide_and_combining_characters_are_counted_as_shown() -> None:
    assert (columns("abc"), columns("日本"), columns("e\u0301")) == (3, 4, 1)
    table = Table([("日本", 1), ("ab", 2)])
    assert list(table.lines(None)) == ["日本  1", "ab    2"]
    assert list(Table([("x" * 50, "y")], shrink=0).lines(60)) == ["x" * 25 + "...  y"]
    assert list(Table([("日" * 20, "y" * 40)], shrink=0).lines(60)) == ["日" * 12 + "...   " + "y" * 30, " " * 30 + "y" * 10]
    assert list(Table([]).lines(60)) == []


def test_words_longer_than_a_line_are_broken() -> None:
    lines = list(Table([("a", f"short {'x' * 70} end")]).lines(43))
    assert lines == ["a  short", "   " + "x" * 40, "   " + "x" * 30 + " end"]


def test_a_stream_with_a_poor_encoding() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    assert put("Jürgen", stream) is True
    assert raw.getvalue() == b"J\\xfcrgen\n"


def test_stderr_that_is_gone_is_not_complained_about(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert put("x", full) is False
        monkeypatch.undo()


def test_numbers_that_json_does_not_have_are_a_defect() -> None:
    with pytest.raises(ValueError, match="JSON"):
        say(Answer("pve1", 1.0, ("",), {"x": float("nan")}), "json")


def test_plain_text_is_left_alone() -> None:
    assert plain("bücher ✓ 日本") == "bücher ✓ 日本"
    assert plain("\x00\x7f\x9b\u2028\udcff") == "\\x00\\x7f\\x9b\\u2028\\udcff"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (-5, "0 s"),
        (0.4, "0 s"),
        (119.4, "119 s"),
        (120, "2 min"),
        (3599, "59 min"),
        (7199, "1 h 59 min"),
        (7200, "2 h"),
        (12000, "3 h 20 min"),
        (172799, "47 h 59 min"),
        (172800, "2 d"),
        (187200, "2 d 4 h"),
    ],
)
def test_spans(seconds: float | None, words: str) -> None:
    assert span(seconds) == words


def test_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert moment(1_796_000_000) == "Mon 2026-11-30 00:53 UTC"
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    assert moment(1_796_000_000) == "Mon 2026-11-30 01:53 CET"
    assert moment(1e300) == "some day"


def test_errors_have_a_code_and_a_hint() -> None:
    error = CommandError("state", "message", "hint")
    assert (str(error), error.exit_code) == ("message", 1)


# ------------------------------------------------------------------- speed

HEAVY = ("requests", "urllib3", "proxmoxer", "apscheduler", "prometheus_client", "pythonjsonlogger", "subprocess", "ssl", "http.client")


def test_nothing_heavy_is_imported(looked: Config) -> None:
    call(looked, "status")
    program = f"""
import sys
from guestward.cli import main
for words in ("status", "explain 103", "hold 103", "release 103", "rearm 103", "hold --for 2x"):
    main(words.split())
    found = [name for name in {HEAVY} if name in sys.modules]
    assert not found, (words, found)
"""
    env = {**os.environ, "GUESTWARD_CONFIG": str(looked.file)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=env, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
