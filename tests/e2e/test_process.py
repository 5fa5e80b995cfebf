"""The process itself: signals, sudden death, state, systemd, configuration, and a log that nobody reads."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from .agent import CLOSED, Agent, free_port, has, is_json_line, wait_until
from .side_by_side import Stage, long, scenario

START = "POST /nodes/pve1/lxc/101/status/start"
LIST = "GET /nodes/pve1/lxc"


# ------------------------------------------------------------ sudden death


@scenario
def test_killed_right_after_a_start_was_sent_it_follows_that_start_and_sends_no_other(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start_takes=1)
    agent = stage.agent()
    host.die(101)
    sent = agent.wait_for("start_attempt")
    agent.kill9()
    agent.start()
    result = agent.wait_for("start_result")
    assert (result["attempt"], result["outcome"], result["upid"]) == (1, "started", sent["upid"])
    agent.sweeps(2)
    assert host.effects() == [("start", 101)] and len(agent.events("start_attempt")) == 1


@scenario
def test_killed_while_the_start_hangs_it_is_unknown_and_the_bound_holds(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start=["hang"], start_takes=0.1)
    agent = stage.agent(watchdog={"start_timeout": "5s"})
    host.die(101)
    for number in (1, 2, 3):
        assert has("vzstart:101")(agent.wait_for("start_attempt", attempt=number)["upid"])
        agent.kill9()
        agent.start()
        assert agent.wait_for("start_result", attempt=number)["outcome"] == "unknown"
        host.task_end("vzstart", "unexpected status", 101)
    assert agent.wait_for("given_up")["attempts"] == 3
    agent.sweeps(1)  # told first and then written down: a crash in between tells it twice, never not at all
    agent.kill9()
    agent.start()
    agent.wait_for("daemon_started", after=agent.mark)
    agent.sweeps(3)
    assert host.effects() == [("start", 101)] * 3 and len(agent.events("given_up")) == 1


@scenario
def test_killed_between_intent_and_answer_the_attempt_counts(stage: Stage) -> None:
    """The request went out and nobody heard what became of it: unknown, one attempt, and not sent again at once."""
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    agent = stage.agent(watchdog={"start_timeout": "5s"})
    host.fault(START, kind="hang", times=1)
    host.die(101)
    wait_until(lambda: any(method == "POST" for method, _ in host.requests_seen()))
    agent.kill9()
    host.clear_faults()
    agent.start()
    assert agent.wait_for("start_result", attempt=1)["outcome"] == "unknown"
    assert agent.wait_for("start_result", attempt=2)["outcome"] == "started"
    assert host.effects() == [("start", 101)]


@scenario
def test_killed_while_a_lost_answer_is_looked_for_the_start_is_found_by_the_next_run(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start_takes=1)
    agent = stage.agent()
    host.fault(START, kind="reset_after", times=1)
    host.die(101)
    agent.wait_for("start_attempt", upid="")
    agent.kill9()
    agent.start()
    result = agent.wait_for("start_result")
    assert result["outcome"] == "started" and has("vzstart:101")(result["upid"])
    assert host.effects() == [("start", 101)]


@scenario
def test_killed_again_and_again_it_sends_no_more_than_three_starts(stage: Stage) -> None:
    """I5: whatever was not yet written down when the power went."""
    host = stage.host
    host.add_guest(101, start=["fail: no space left"], start_takes=0.1)
    agent = stage.agent()
    host.die(101)
    for event in ("start_attempt", "start_result") * 3:
        mark = agent.mark
        agent.wait_for(event, after=mark)
        agent.kill9()
        agent.start()
    agent.wait_for("given_up")
    agent.sweeps(3)
    assert host.effects() == [("start", 101)] * 3


@scenario
def test_a_lost_state_hands_out_no_fresh_attempts(stage: Stage) -> None:
    """C08: PVE's own task list tells what was tried."""
    host = stage.host
    host.add_guest(101, start=["fail: no space left"], start_takes=0.1)
    agent = stage.agent()
    host.die(101)
    agent.wait_for("given_up")
    agent.sigterm()
    for file in agent.state.iterdir():
        file.unlink()
    agent.start()
    agent.wait_for("given_up", after=agent.mark)
    agent.sweeps(2)
    assert host.effects() == [("start", 101)] * 3


# ----------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@scenario
def test_it_ends_in_good_order(stage: Stage, number: int) -> None:
    stage.host.add_guest(101)
    agent = stage.agent()
    assert agent.sigterm(number) < 5
    assert agent.events("daemon_stopping")[0]["signal"] == signal.Signals(number).name
    assert agent.records[-1]["event"] == "daemon_stopping" and agent.records[-1]["in_flight"] == 0
    status = agent.cli("status")
    assert status.code == 1 and has("lxc/101", "nobody guards")(status.out + status.err)  # what was seen stays readable


@scenario
def test_sigterm_while_a_call_hangs(stage: Stage) -> None:
    """C74: the call may take 35 s, the end may not."""
    host = stage.host
    agent = stage.agent_of(pve={"timeout": "35s"})
    host.fault(LIST, kind="hang")
    with agent:
        wait_until(lambda: any(path == "/nodes/pve1/lxc" for _, path in host.requests_seen()))
        assert agent.sigterm() < 5
        assert agent.records[-1]["event"] == "daemon_stopping"
    host.clear_faults()


@scenario
def test_sigterm_while_a_start_is_in_flight(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start_takes=2)
    agent = stage.agent(watchdog={"start_timeout": "60s"})
    host.die(101)
    agent.wait_for("start_attempt")
    assert agent.sigterm() < 5
    assert agent.records[-1]["in_flight"] == 1
    agent.start()
    assert agent.wait_for("start_result")["outcome"] == "started"
    assert host.effects() == [("start", 101)]


@scenario
def test_sigterm_while_the_request_to_start_hangs(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101)
    agent = stage.agent(pve={"timeout": "35s"}, watchdog={"start_timeout": "60s"})
    host.fault(START, kind="hang")
    host.die(101)
    wait_until(lambda: any(method == "POST" for method, _ in host.requests_seen()))
    assert agent.sigterm() < 5
    assert agent.records[-1]["in_flight"] == 1


@scenario
def test_sighup_takes_a_good_configuration_and_refuses_a_broken_one(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    host.add_guest(102, start_takes=0.1)
    agent = stage.agent()
    agent.configure(scope={"exclude": [102]})
    agent.hup()
    agent.wait_for("config_reloaded")
    host.die(102)
    agent.sweeps(3)
    assert host.effects() == []

    good = agent.config_file.read_text()
    agent.config_file.write_text(good.replace("exclude", "exclud"))
    agent.hup()
    refused = agent.wait_for("config_rejected")
    assert (refused["level"], refused["key"], refused["file"]) == ("error", "scope.exclud", str(agent.config_file))
    agent.config_file.unlink()
    agent.hup()
    agent.wait_for("config_rejected", key="")
    host.die(101)
    agent.wait_for("start_result", vmid=101, outcome="started")
    assert host.effects() == [("start", 101)]

    agent.config_file.write_text(good)
    agent.configure(scope={"exclude": []}, log={"level": "warn"}, metrics={"listen": "127.0.0.1:0"})
    agent.hup()
    reloaded = agent.wait_for("config_reloaded", after=agent.events().index(refused))
    assert has("[log]", "next start")(reloaded["message"])
    assert agent.metrics() == {}  # it listens elsewhere now
    agent.wait_for("start_result", vmid=102, outcome="started")


# ------------------------------------------------------------ configuration


@scenario
def test_a_configuration_that_is_refused_ends_run_with_2_and_one_line(stage: Stage) -> None:
    for text, key in (
        (None, ""),
        ("[pve\n", ""),
        ("[watchdog]\nattemps = 3\n", "watchdog.attemps"),
        ("[scope]\nexclude = [101, 99]\n", "scope.exclude"),
        ("", "pve.token_id"),
    ):
        agent = stage.agent_of()
        agent.config_file.unlink()
        if text is not None:
            agent.config_file.write_text(text)
        with agent:
            assert agent.wait() == 2
            assert [(r["event"], r["level"], r["key"]) for r in agent.records] == [("config_rejected", "error", key)]
            assert has(str(agent.config_file), "no guest is guarded")(agent.records[0]["message"])
    status = agent.cli("status", "--output", "json")
    assert status.code == 2 and json.loads(status.out)["error"]["code"] == "configuration" and status.err == ""


@scenario
def test_check_finds_what_would_stop_the_agent(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101)
    with stage.agent_of() as agent:
        agent.wait_for("daemon_started")
        agent.sweeps(1)
        good = agent.cli("check")
        assert (good.code, good.err) == (0, ""), good.out
        host.revoke("Sys.Audit", "/nodes/pve1")
        assert agent.cli("check").code == 5
        host.fault(LIST, 500)
        found = agent.cli("check", "--output", "json")
        assert found.code == 1 and not found.data["ok"]
        host.clear_faults()
        host.auth(False)
        assert has("401")(agent.cli("check").out)


@scenario
def test_explain_says_why_with_every_guard(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, name="web", onboot=False)
    agent = stage.agent()
    host.stop(101, by="alice@pam")
    agent.wait_for("guest_down", vmid=101)
    told = agent.cli("explain", "101")
    assert told.code == 0 and has("onboot_off", "vzstop by alice@pam", "DECIDES")(told.out)
    data = agent.cli("explain", "101", "--output", "json").data
    assert data["guard"] == "onboot_off" and [v["guard"] for v in data["verdicts"] if v["verdict"] == "decides"] == ["onboot_off"]
    for words in ("explain 999", "hold 999", "rearm 999", "explain web", "hold 101 --for soon", "nonsense"):
        assert agent.cli(*words.split()).code == 2, words


@scenario
def test_without_an_agent_status_says_so(stage: Stage) -> None:
    agent = stage.agent_of()
    status = agent.cli("status")
    assert status.code == 1 and has("is the agent running?")(status.err.lower())


# ------------------------------------------------------------------- state


def errors(agent: Agent) -> list[str]:
    return [record["event"] for record in agent.events(level="error")]


def recovers(stage: Stage, agent: Agent) -> None:
    """It guards all the same."""
    with agent:
        agent.wait_for("start_result", outcome="started")
        agent.sweeps(3)
        assert stage.host.effects() == [("start", 101)]
        assert errors(agent) == ["store_failed"]


@scenario
def test_a_state_folder_that_cannot_be_written_is_one_error(stage: Stage) -> None:
    stage.host.add_guest(101, status="stopped", start_takes=0.1)
    recovers(stage, stage.agent_of(state={"dir": "/proc"}))  # not even root can write there


@pytest.mark.parametrize("damage", ["noise", "empty", "folder", "newer"])
@scenario
def test_a_damaged_state_is_one_error_and_no_outage(stage: Stage, damage: str) -> None:
    """C80: after the power cut for which it is there it must not stay away."""
    stage.host.add_guest(101, status="stopped", start_takes=0.1)
    agent = stage.agent_of()
    agent.state.mkdir()
    file = agent.state / "guestward.db"
    if damage == "folder":
        file.mkdir()
    elif damage == "newer":
        with closing(sqlite3.connect(file)) as database:
            database.execute("PRAGMA user_version = 99")
            database.execute("CREATE TABLE hold (vmid INTEGER PRIMARY KEY, hold TEXT NOT NULL)")
            database.commit()
    else:
        file.write_bytes(os.urandom(8192) if damage == "noise" else b"")
    before = file.read_bytes() if damage == "newer" else b""
    recovers(stage, agent)
    aside = sorted(path.name for path in agent.state.glob("guestward.db.corrupt-*"))
    assert aside == (["guestward.db.corrupt-1"] if damage in ("noise", "empty") else [])
    assert bool(agent.events("store_restored")) == bool(aside)
    assert damage != "newer" or file.read_bytes() == before


# ----------------------------------------------------------------- metrics


@long
@scenario
def test_a_metrics_port_that_is_taken_costs_no_sweep(stage: Stage) -> None:
    """C92: said once, tried again every half minute."""
    host = stage.host
    host.add_guest(101, status="stopped", start_takes=0.1)
    agent = stage.agent_of()
    with socket.socket() as other:
        other.bind(("127.0.0.1", agent.metrics_port))
        other.listen()
        stage.stack.enter_context(agent)
        failed = agent.wait_for("metrics_failed")
        assert failed["level"] == "error" and has(str(agent.metrics_port))(failed["listen"])
        agent.wait_for("start_result", outcome="started")
    agent.wait_for("metrics_restored", timeout=60)
    assert agent.metrics()['guest_up{id="lxc/101"}'] == 1
    assert len(agent.events("metrics_failed")) == 1 and len(agent.events("metrics_restored")) == 1


@scenario
def test_metrics_that_move_to_a_free_port_are_restored(stage: Stage) -> None:
    agent = stage.agent_of()
    with socket.socket() as other, agent:
        other.bind(("127.0.0.1", agent.metrics_port))
        other.listen()
        agent.wait_for("metrics_failed")
        agent.metrics_port = free_port()
        agent.configure()
        agent.hup()
        restored = agent.wait_for("metrics_restored")
        assert restored["listen"] == f"127.0.0.1:{agent.metrics_port}"
        agent.sweeps(1)


# ----------------------------------------------------------------- systemd


class Systemd:
    """What arrives at the notify socket."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.told: list[str] = []
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        while message := self.socket.recv(4096).decode():
            self.told.append(message)

    def count(self, message: str) -> int:
        return self.told.count(message)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", self.address)
        self.thread.join()
        self.socket.close()


@contextmanager
def systemd(stage: Stage) -> Iterator[Systemd]:
    manager = Systemd(stage.folder / "notify")
    try:
        yield manager
    finally:
        manager.close()


@scenario
def test_systemd_is_told_of_progress_and_of_nothing_else(stage: Stage) -> None:
    """C105: READY after the first sweep, a ping after every one, none while a call hangs."""
    host = stage.host
    host.add_guest(101)
    host.fault(LIST, kind="hang")
    with systemd(stage) as manager:
        agent = stage.agent_of({"NOTIFY_SOCKET": manager.address})
        with agent:
            wait_until(lambda: any(path == "/nodes/pve1/lxc" for _, path in host.requests_seen()))
            assert manager.told == []
            host.clear_faults()
            wait_until(lambda: manager.count("WATCHDOG=1") >= 3)
            assert [m.partition("=")[0] for m in manager.told[:3]] == ["STATUS", "READY", "WATCHDOG"]
            assert manager.told[0] == "STATUS=1 guests, 0 stopped; 1 complete sweeps since boot"
            assert manager.count("READY=1") == 1

            host.fault(LIST, 500)
            agent.wait_for("sweep_aborted")
            pings = manager.count("WATCHDOG=1")
            wait_until(lambda: manager.count("WATCHDOG=1") >= pings + 2)  # an aborted sweep is progress
            wait_until(lambda: any(message.startswith("STATUS=examines nothing") for message in manager.told))
            host.clear_faults()
            agent.wait_for("sweep_resumed")

            agent.hup()
            agent.wait_for("config_reloaded")
            wait_until(lambda: manager.count("READY=1") == 2)
            assert any(message.startswith("RELOADING=1\nMONOTONIC_USEC=") for message in manager.told)
            agent.sigterm()
        wait_until(lambda: manager.count("STOPPING=1") == 1)


DEFECT = """
from guestward.duties.power import PowerWatch
sweep, left = PowerWatch.sweep, [3]
def broken(self):
    left[0] -= 1
    if left[0] >= 0:
        raise KeyError("defect")
    return sweep(self)
PowerWatch.sweep = broken
"""


@scenario
def test_a_defect_ends_one_sweep_and_is_no_progress(stage: Stage) -> None:
    """C79, C105: said once with its place, the next sweep comes, and systemd is told nothing that sounds like life."""
    host = stage.host
    host.add_guest(101, status="stopped", start_takes=0.1)
    with systemd(stage) as manager:
        agent = stage.agent_of({"NOTIFY_SOCKET": manager.address})
        agent.planted = DEFECT
        with agent:
            agent.wait_for("internal_error")
            assert manager.told == []
            agent.wait_for("start_result", outcome="started")
            assert manager.count("READY=1") == 1
    found = agent.events("internal_error")
    assert [(e["level"], e["where"]) for e in found] == [("error", "sweep")]  # it came three times, and is told once
    assert has("KeyError", "planted.py:", "defect")(found[0]["reason"])
    assert host.effects() == [("start", 101)]


@scenario
def test_ready_comes_with_an_aborted_first_sweep_too(stage: Stage) -> None:
    stage.host.pveproxy(False)
    with systemd(stage) as manager, stage.agent_of({"NOTIFY_SOCKET": manager.address}) as agent:
        agent.wait_for("sweep_aborted")
        wait_until(lambda: manager.count("READY=1") == 1)


# ------------------------------------------------------------------ its log


def goes_on(stage: Stage, agent: Agent) -> None:
    agent.sweeps(2)
    stage.host.die(101)
    wait_until(lambda: stage.host.effects() == [("start", 101)])
    agent.sweeps(2)
    assert agent.sigterm() < 5


@scenario
def test_a_log_that_nobody_reads_stops_no_sweep(stage: Stage) -> None:
    """C96: the pipe is full and stays full."""
    stage.host.add_guest(101, start_takes=0.1)
    agent = stage.agent_of(watchdog={"heartbeat_every": 1})
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * size)
    try:
        with agent.silent(writing):
            goes_on(stage, agent)
    finally:
        os.close(reading)
        os.close(writing)


@scenario
def test_a_log_that_was_closed_stops_no_sweep(stage: Stage) -> None:
    stage.host.add_guest(101, start_takes=0.1)
    agent = stage.agent_of(watchdog={"heartbeat_every": 1})
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with agent.silent(writing):
            goes_on(stage, agent)
    finally:
        os.close(writing)


@scenario
def test_an_agent_that_was_given_no_stdout_at_all_guards_all_the_same(stage: Stage) -> None:
    stage.host.add_guest(101, start_takes=0.1)
    agent = stage.agent_of()
    with agent.silent(CLOSED):
        wait_until(lambda: agent.swept() > 0)
        goes_on(stage, agent)


@scenario
def test_every_line_is_one_json_object_and_under_systemd_has_a_priority(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, name="web", start_takes=0.1)
    agent = stage.agent_of()
    lines: list[bytes] = []
    reading, writing = os.pipe()
    pipe = os.fstat(writing)
    agent.environ = {"JOURNAL_STREAM": f"{pipe.st_dev}:{pipe.st_ino}"}
    with agent.silent(writing):
        os.close(writing)
        agent.sweeps(1)
        host.die(101)
        host.fault("GET /access", 500)
        wait_until(lambda: agent.swept("aborted") >= 3)
        agent.sigterm()
    with os.fdopen(reading, "rb") as stream:
        lines = stream.readlines()
    assert host.token_secret.encode() not in b"".join(lines)
    priorities = [(json.loads(line[3:])["level"], line[:3]) for line in lines]
    assert set(priorities) == {("info", b"<6>"), ("warn", b"<4>"), ("error", b"<3>")}
    assert all(is_json_line(line[3:]) and line.endswith(b"}\n") for line in lines)
