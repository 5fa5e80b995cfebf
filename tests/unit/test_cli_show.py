"""`status` and `explain`, with a clock that stands still; helpers for the other tests of the command line."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guestward.adapters import store
from guestward.cli import main
from guestward.cli.output import Answer, CommandError, Table
from guestward.cli.show import explain, status
from guestward.config import Config, parse
from guestward.model.decision import Closure, Decision, Gate, GateReason, Guard, Verdict
from guestward.model.guest import GuestId
from guestward.model.memory import Hold
from guestward.ports import Board, Row
from tests.unit.build import golden

NOW, WALL, BOOT = 500_000.0, 1_796_000_000.0, "boot-1"
PASSED = {
    Guard.NOT_OWNED: "in the pool guestward",
    Guard.SCRATCH_BAND: "VMID outside 990000-990009",
    Guard.TEMPLATE: "is no template",
    Guard.RUNNING: "stopped in the node's live list",
    Guard.UNREADABLE: "configuration read",
    Guard.ONBOOT_OFF: "onboot is 1",
    Guard.NEW_HERE: "known here",
    Guard.HELD: "no hold",
    Guard.HA: "not managed by HA",
    Guard.LOCKED: "no lock",
    Guard.TASK: "no task for it is running",
    Guard.BACKUP: "no lock, no vzdump task, vzdump.lock not held for it, no live worker, no archive process",
    Guard.BACKUP_UNKNOWN: "every witness could be read",
    Guard.HOST_GATE: "open",
    Guard.UNCONFIRMED: "seen stopped twice, 30 s apart",
    Guard.STORAGE_OFFLINE: "none that it needs is known to be offline",
    Guard.BACKOFF: "no wait after an attempt",
    Guard.EXHAUSTED: "0 of 3 attempts made",
}


class StillClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now, self.at, self.id = NOW, WALL, BOOT

    def boottime(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.at

    def boot_id(self) -> str:
        return self.id

    def pause(self, seconds: float) -> None:
        raise AssertionError("nothing waits here")

    def later(self, seconds: float) -> None:
        self.now, self.at = self.now + seconds, self.at + seconds

    def rebooted(self, seconds: float = 60) -> None:
        self.now, self.at, self.id = 30.0, self.at + seconds, "boot-2"


class Deaf:
    """A journal that forgets."""

    def emit(self, *_: Any, **__: Any) -> None:
        pass


def row(id: str, guard: Guard, evidence: str, *, next_in: float | None = None, also: dict[Guard, str] | None = None, **traits: Any) -> Row:
    """A guest on the board, 12 s ago. also: other guards that apply, or evidence that differs from the usual."""
    words = PASSED | (also or {})
    guards = list(PASSED)
    if guard is Guard.RUNNING:
        guards = guards[: guards.index(Guard.RUNNING) + 1]
    found = [Verdict(g, g is guard or g in (also or {}), evidence if g is guard else words[g]) for g in guards]
    if guard is Guard.START:
        found.append(Verdict(Guard.START, True, evidence))
    name = traits.pop("name", f"guest{id.partition('/')[2]}")
    decision = Decision(GuestId.parse(id), name, guard, evidence, tuple(found), None if next_in is None else NOW + next_in)
    running = guard is Guard.RUNNING
    plain = Row(decision, running, guard is not Guard.NOT_OWNED, 0, None if running else NOW - 95, False, "", None, NOW - 12)
    return replace(plain, **traits)


def board(*rows: Row, **seen: Any) -> Board:
    """A look 12 s ago."""
    times = {"at": NOW - 12, "wall": WALL - 12, "seen_at": NOW - 12, "seen_wall": WALL - 12, "last_complete_wall": WALL - 12}
    return replace(Board("pve1", BOOT, NOW - 12, WALL - 12, None, None, 1402, Gate(), rows), **(times | seen))


WEB = row("lxc/9201", Guard.RUNNING, "running, pid 4711", name="web", up_since=NOW - 86400)
LAB = row("lxc/102", Guard.ONBOOT_OFF, "onboot is not 1", also={Guard.HA: "hastate started"}, name="lab", cause="vzstop by root@pam")
DB = row(
    "qemu/103",
    Guard.BACKOFF,
    "attempt 2 of 3: failed (start failed: no space left on device); 75 s to wait",
    next_in=63,
    name="db",
    attempts=2,
    cause="no stop task found: shut down from inside, or crashed",
)
MAIL = row(
    "qemu/104",
    Guard.EXHAUSTED,
    "3 of 3 attempts made; the last: timeout: no answer from the storage nas",
    name="mail",
    attempts=3,
    given_up=True,
)
OTHER = row("lxc/300", Guard.NOT_OWNED, "in none of the pools guestward", name="other")
HOLD = Hold(None, "UPS test", "alice (sudo)", 7200.0, BOOT, NOW - 600, WALL - 600)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    values = {
        "pve": {"token_id": "agent@pve!one", "node": "pve1"},
        "state": {"dir": str(tmp_path / "state")},
        "host": {"root": str(tmp_path)},
    }
    (tmp_path / "state").mkdir()
    return parse(values, tmp_path / "guestward.toml")


@pytest.fixture
def publish(config: Config) -> Callable[[Board], None]:
    def write(look: Board) -> None:
        opened = store.SqliteStore(config.state.dir, Deaf())
        opened.publish(look)
        opened.close()

    return write


def shown(answer: Answer, width: int | None = None) -> str:
    """What a person reads on stdout."""
    lines: list[str] = []
    for part in answer.parts:
        lines += part.lines(width) if isinstance(part, Table) else [part]
    return "\n".join(lines) + "\n"


Publish = Callable[[Board], None]


# ---------------------------------------------------------------- golden


def test_status_of_a_whole_node(config: Config, clock: StillClock, publish: Publish) -> None:
    held = replace(HOLD, vmid=102, reason="disk swap")
    publish(board(WEB, LAB, DB, MAIL, OTHER, lost=("Sys.Audit on /nodes/pve1",)))
    store.add_hold(config.state.dir, held)
    answer = status(config, clock)
    golden("cli_status.txt", shown(answer))
    golden("cli_status_narrow.txt", shown(answer, 80))
    assert answer.exit_code == 5
    assert answer.warning == ""


def test_status_when_nothing_is_right(config: Config, clock: StillClock, publish: Publish) -> None:
    gate = Gate((Closure(GateReason.NO_QUORUM, "the cluster has no quorum"),), ("pve-guests.service failed",))
    publish(board(WEB, DB, gate=gate, aborted="own privileges: GET /access/permissions: 127.0.0.1:8006 refuses connections"))
    clock.later(30)
    answer = status(config, clock)
    golden("cli_status_aborted.txt", f"{shown(answer)}\n{answer.warning}\n")
    assert answer.exit_code == 1


EXPLAINED = {
    "running": (WEB, {}),
    "deliberately_off": (LAB, {}),
    "backoff": (DB, {}),
    "given_up": (MAIL, {}),
    "not_in_the_pool": (OTHER, {}),
    "scratch": (row("lxc/990000", Guard.SCRATCH_BAND, "VMID inside 990000-990009", also={Guard.ONBOOT_OFF: "onboot is not 1"}), {}),
    "held": (row("lxc/105", Guard.HELD, "held by alice (sudo) for 6612 s more: disk swap", next_in=6600), {}),
    "gate": (
        row("lxc/106", Guard.HOST_GATE, "mass_stop: several guests were stopped by others at once", next_in=840),
        {"gate": Gate((Closure(GateReason.MASS_STOP, "several guests were stopped by others at once", NOW + 840),))},
    ),
    "start": (row("lxc/107", Guard.START, "attempt 1 of 3", next_in=-12), {}),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_explain(name: str, config: Config, clock: StillClock, publish: Publish) -> None:
    guest, seen = EXPLAINED[name]
    publish(board(guest, **seen))
    if name == "held":
        store.add_hold(config.state.dir, replace(HOLD, vmid=105, reason="disk swap"))
    answer = explain(config, clock, guest.decision.id.vmid)
    golden(f"cli_explain_{name}.txt", shown(answer))
    assert answer.exit_code == 0
    verdicts = answer.data["verdicts"]
    assert [verdict["guard"] for verdict in verdicts if verdict["verdict"] == "decides"] == [guest.decision.guard]
    assert shown(answer).count(">>") == 1


# ------------------------------------------------------------------ json


def test_a_guest_has_the_keys_that_were_promised(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, DB))
    data = status(config, clock).data
    promised = {
        "id": "qemu/103",
        "kind": "qemu",
        "vmid": 103,
        "name": "db",
        "status": "stopped",
        "guard": "backoff",
        "evidence": DB.decision.evidence,
        "attempts": 2,
        "next_action_s": 63.0,
        "observed_age_s": 12.0,
    }
    assert promised.items() <= data["guests"][1].items()
    assert data["guests"][0]["next_action_s"] is None
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_nothing_is_cut_for_programs(config: Config, clock: StillClock, publish: Publish) -> None:
    long = "no space left " * 40
    publish(board(row("lxc/101", Guard.EXHAUSTED, long, name="n" * 200)))
    guest = status(config, clock).data["guests"][0]
    assert (guest["evidence"], guest["name"]) == (long, "n" * 200)
    assert long.strip() in shown(status(config, clock))
    on_a_terminal = shown(status(config, clock), 100)
    assert max(map(len, on_a_terminal.splitlines())) <= 100
    assert "n" * 30 + "..." not in shown(status(config, clock))
    assert on_a_terminal.count("space") == 40


# --------------------------------------------------- how old it all is


def test_a_look_that_is_old_is_a_failure(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, DB))
    clock.later(168)
    assert status(config, clock).exit_code == 0
    clock.later(1)
    answer = status(config, clock)
    assert (answer.exit_code, answer.data["agent"]["stale"], answer.data["agent"]["alive"]) == (1, True, False)
    assert "the agent last looked 3 min ago" in answer.warning
    assert answer.data["guests"][1]["next_action_s"] is None, "nobody is there to do it"
    told = explain(config, clock, 103)
    assert told.exit_code == 1
    assert "stopped when it was last seen" in shown(told)
    assert "nothing: the agent does not look at guests" in shown(told)


def test_a_look_from_before_a_boot_is_never_fresh(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, DB, gate=Gate((Closure(GateReason.HOLD, "held"),))))
    clock.rebooted(20)
    answer = status(config, clock)
    assert (answer.exit_code, answer.data["agent"]["booted_since"]) == (1, True)
    assert "NOT LOOKED AT since the host booted; guests last seen 32 s ago, before that" in shown(answer)
    assert "host gate" not in shown(answer), "it was that of another boot"
    assert "The host has booted since" in answer.warning
    assert "since before the host booted" in shown(explain(config, clock, 103))


def test_a_wall_clock_set_back_over_a_boot_leaves_the_age_unknown(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(DB))
    clock.rebooted(-3600)
    answer = status(config, clock)
    assert answer.data["agent"]["observed_age_s"] is None
    assert "nobody can say when" in shown(answer)
    assert "nobody can say when" in shown(explain(config, clock, 103))


def test_aborted_from_the_first_look_on(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(seen_at=None, seen_wall=None, aborted="pmxcfs is down", sweeps=0))
    store.add_hold(config.state.dir, replace(HOLD, boottime=NOW, wall=WALL))
    answer = status(config, clock)
    assert answer.exit_code == 1
    assert "ABORTED, nothing is examined or started (pmxcfs is down); no guest was ever seen" in shown(answer)
    assert "(from the agent's next look on)" in shown(answer)
    assert "guestward check" in answer.warning


def test_explain_while_sweeps_are_aborted(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(DB, aborted="the token lacks VM.Audit"))
    assert "nothing while sweeps are aborted: the token lacks VM.Audit" in shown(explain(config, clock, 103))


def test_incomplete_is_said_and_is_no_failure(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, incomplete="configuration of lxc/102: 500"))
    answer = status(config, clock)
    assert answer.exit_code == 0
    assert "INCOMPLETE (configuration of lxc/102: 500)" in shown(answer)


def test_no_guests_at_all(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(OTHER))
    assert "no guests in the pools guestward" in shown(status(config, clock))


# ------------------------------------------------------- single guests


def test_a_guest_that_runs_but_does_not_work(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(replace(WEB, not_working="io-error", lock="backup")))
    assert "does not work: io-error" in shown(status(config, clock))
    text = shown(explain(config, clock, 9201))
    assert "running, but does not work (io-error), locked (backup)" in text
    assert "neither resumed nor reset" in text


def test_an_unknown_vmid_is_wrong_usage(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB))
    with pytest.raises(CommandError) as caught:
        explain(config, clock, 999)
    assert (caught.value.code, caught.value.exit_code) == ("unknown_vmid", 2)


@pytest.mark.parametrize(
    ("node", "folder", "message"),
    [
        ("pve1", "lxc", "guest 300 is not guarded: the agent's token does not see it; in the pools guestward it would"),
        ("pve2", "qemu-server", "guest 300 is on node pve2; this is node pve1"),
        ("pve2", "elsewhere", "no guest 300 was seen on node pve1 at the last look"),
    ],
)
def test_a_guest_that_the_token_does_not_see(
    node: str, folder: str, message: str, config: Config, clock: StillClock, publish: Publish
) -> None:
    home = config.host.root / "etc/pve/nodes" / node / folder
    home.mkdir(parents=True)
    (home / "300.conf").touch()
    publish(board(WEB))
    with pytest.raises(CommandError, match=message) as caught:
        explain(config, clock, 300)
    assert caught.value.exit_code == 2


def test_a_vmid_that_was_given_anew_as_another_kind(config: Config, clock: StillClock, publish: Publish) -> None:
    old = row("lxc/103", Guard.NOT_OWNED, "in none of the pools guestward")
    publish(board(old, DB))
    answer = explain(config, clock, 103)
    assert answer.data["kind"] == "qemu", "the one that is guarded"
    assert "the last look saw lxc/103 too" in shown(answer)


def test_what_was_not_asked_is_not_said_to_apply(config: Config, clock: StillClock, publish: Publish) -> None:
    also = {Guard.HA: "HA state: not read: no guest needs it", Guard.ONBOOT_OFF: "not read"}
    guest = row("lxc/101", Guard.LOCKED, "lock snapshot", also=also, lock="snapshot")
    start = Verdict(Guard.START, True, "attempt 4 of 3")
    guest = replace(guest, decision=replace(guest.decision, verdicts=(*guest.decision.verdicts, start)))
    publish(board(guest))
    verdicts = {verdict["guard"]: verdict for verdict in explain(config, clock, 101).data["verdicts"]}
    for guard in ("ha", "onboot_off", "start"):
        assert (verdicts[guard]["verdict"], verdicts[guard]["applies"], verdicts[guard]["age_s"]) == ("not asked", False, None)
    assert verdicts["start"]["evidence"] == "asked only when no guard applies"


def test_a_guard_of_the_configuration_is_as_old_as_its_reading(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(replace(LAB, config_read_at=NOW - 900)))
    verdicts = {verdict["guard"]: verdict for verdict in explain(config, clock, 102).data["verdicts"]}
    assert (verdicts["onboot_off"]["age_s"], verdicts["held"]["age_s"]) == (900.0, 12.0)


def test_a_guest_that_a_closed_gate_will_stop_next(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(DB, gate=Gate((Closure(GateReason.HOLD, "the file /etc/guestward/hold is there"),))))
    store.add_hold(config.state.dir, HOLD)
    text = shown(explain(config, clock, 103))
    assert "closed: hold: the file /etc/guestward/hold is there" in text
    assert "the whole node, by alice (sudo), until" in text


@pytest.mark.parametrize("guard", [guard for guard in Guard if guard is not Guard.RUNNING])
def test_every_guard_says_what_comes_next(guard: Guard, config: Config, clock: StillClock, publish: Publish) -> None:
    for next_in in (None, 90.0):
        publish(board(row("qemu/101", guard, "evidence", next_in=next_in)))
        words = explain(config, clock, 101).data["next"]
        assert words
        assert "{" not in words


# ----------------------------------------------------------- the state


def call(config: Config, *words: str) -> int:
    file = config.file
    lines = f'[pve]\ntoken_id = "agent@pve!one"\nnode = "pve1"\n[state]\ndir = "{config.state.dir}"\n[host]\nroot = "{config.host.root}"\n'
    file.write_text(lines)
    return main([*words, "--config", str(file)])


@pytest.mark.parametrize("command", [["status"], ["explain", "101"]])
@pytest.mark.parametrize("damage", ["none", "no folder", "newer", "text", "empty", "folder", "loop", "other look"])
def test_a_state_that_is_not_there(
    command: list[str], damage: str, config: Config, publish: Publish, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config.state.dir / store.FILE
    if damage == "no folder":
        config.state.dir.rmdir()
    elif damage == "text":
        file.write_text("rubbish " * 2000)
    elif damage == "empty":
        file.touch()
    elif damage == "folder":
        file.mkdir()
    elif damage == "loop":
        config.state.dir.rmdir()
        config.state.dir.symlink_to(config.state.dir)
    elif damage in ("newer", "other look"):
        publish(board(WEB))
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("PRAGMA user_version=99" if damage == "newer" else "UPDATE board SET board = '{\"later\":1}'")
    assert call(config, *command, "--output", "json") == 1
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert (err, error["code"]) == ("", "no_look" if damage in ("none", "no folder") else "state")
    assert str(config.state.dir) in error["message"] or damage == "other look"
    assert error["hint"]
    assert call(config, *command) == 1
    out, err = capsys.readouterr()
    assert (out, "what to do: " in err) == ("", True)
