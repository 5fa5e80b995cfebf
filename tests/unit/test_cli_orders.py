"""`hold`, `release`, `rearm`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from guestward.adapters import store
from guestward.cli.orders import hold, rearm, release
from guestward.cli.output import CommandError
from guestward.config import Config
from guestward.model.decision import Guard
from guestward.model.memory import Hold
from tests.unit.test_cli_show import (  # noqa: F401 - fixtures
    BOOT,
    DB,
    HOLD,
    LAB,
    NOW,
    OTHER,
    WALL,
    Deaf,
    Publish,
    StillClock,
    board,
    call,
    clock,
    config,
    publish,
    row,
    shown,
    utc,
)

# ruff: noqa: F811 - pytest's way of asking for a fixture

HELD_DB = replace(HOLD, vmid=103, reason="disk swap")


def holds(config: Config) -> tuple[Hold, ...]:
    return store.list_holds(config.state.dir)


def test_a_guest_is_held(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(DB))
    answer = hold(config, clock, 103, "2h", "disk swap", "alice (sudo)")
    assert holds(config) == (Hold(103, "disk swap", "alice (sudo)", 7200.0, BOOT, NOW, WALL),)
    assert shown(answer) == (
        "guest 103 is held until Mon 2026-11-30 02:53 UTC, for 2 h; by alice (sudo): disk swap\n"
        "it ends by itself, or with: guestward release 103\n"
    )
    assert (answer.node, answer.exit_code, answer.warning) == ("pve1", 0, "")
    assert answer.data == {
        "scope": 103,
        "changed": True,
        "for_s": 7200.0,
        "until": round(WALL + 7200),
        "by": "alice (sudo)",
        "reason": "disk swap",
        "replaced": False,
        "agent_runs": True,
    }


def test_the_node_is_held(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(DB))
    answer = hold(config, clock, None, "1d", "", "root")
    assert holds(config)[0].vmid is None
    assert answer.data["scope"] == "node"
    assert "the whole node is held until" in shown(answer)
    assert "for 24 h; by root: no reason given" in shown(answer)
    assert shown(answer).endswith("with: guestward release\n")


def test_holding_again_replaces(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(DB))
    hold(config, clock, 103, "2h", "disk swap", "alice (sudo)")
    clock.later(3600)
    publish(board(DB, at=clock.now))
    answer = hold(config, clock, 103, "30m", "longer", "bob (sudo)")
    assert "this replaces the hold by alice (sudo), until Mon 2026-11-30 02:53 UTC (1 h more): disk swap" in shown(answer)
    assert answer.data["replaced"] is True
    assert [(held.by, held.duration) for held in holds(config)] == [("bob (sudo)", 1800.0)]
    clock.later(1801)
    assert hold(config, clock, 103, "30m", "", "bob")
    assert "replaces" not in shown(hold(config, clock, None, "30m", "", "bob"))


def test_a_hold_that_has_ended_is_not_replaced(config: Config, clock: StillClock, publish: Publish) -> None:
    store.add_hold(config.state.dir, replace(HELD_DB, duration=60.0))
    assert hold(config, clock, 103, "2h", "", "bob").data["replaced"] is False


def test_what_makes_no_difference_is_said(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(OTHER))
    assert "it is not guarded anyway (in none of the pools guestward)" in shown(hold(config, clock, 300, "2h", "", "alice"))


@pytest.mark.parametrize("how_long", ["2x", "0s", "0.5s", "-1h", "1000d", "367d", "", "2", "h", "２h", "2h\x1b[2J", "1e3s", " 2h"])
def test_a_time_that_is_none(how_long: str, config: Config, clock: StillClock) -> None:
    with pytest.raises(CommandError) as caught:
        hold(config, clock, None, how_long, "", "alice")
    assert (caught.value.code, caught.value.exit_code, caught.value.message.isprintable()) == ("usage", 2, True)
    assert not (config.state.dir / store.FILE).exists()


@pytest.mark.parametrize("how_long", ["1s", "366d", "8784h", "1.5h"])
def test_a_time_that_is_one(how_long: str, config: Config, clock: StillClock) -> None:
    assert hold(config, clock, None, how_long, "", "alice").exit_code == 0


def test_reasons_are_one_harmless_line(config: Config, clock: StillClock) -> None:
    hold(config, clock, None, "2h", "a\nb\x1b[31m\udcff" + "x" * 500, "al\x07ice")
    (held,) = holds(config)
    assert held.reason.isprintable()
    assert (held.reason[:8], len(held.reason), held.by) == ("a b [31m", 200, "al ice")


@pytest.mark.parametrize("order", ["hold", "release", "rearm"])
def test_an_unknown_vmid_changes_nothing(order: str, config: Config, publish: Publish, capsys: pytest.CaptureFixture[str]) -> None:
    publish(board(DB))
    assert call(config, order, "999", "--output", "json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "unknown_vmid"
    assert holds(config) == ()


def test_without_a_look_nobody_can_tell_which_vmids_there_are(config: Config, clock: StillClock) -> None:
    answer = hold(config, clock, 999, "2h", "", "alice")
    assert "does not seem to run" in answer.warning
    assert answer.data["agent_runs"] is False
    assert holds(config)[0].vmid == 999


@pytest.mark.parametrize("case", ["old look", "booted"])
def test_nobody_takes_it_up(case: str, config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(DB))
    clock.later(169) if case == "old look" else clock.rebooted()
    for answer in (
        hold(config, clock, 103, "2h", "", "alice"),
        release(config, clock, 103),
        rearm(config, clock, 103),
    ):
        assert "The agent does not seem to run" in answer.warning
        assert answer.exit_code == 0
    assert release(config, clock, 103).warning == "", "nothing is to be taken up"


def test_a_hold_is_released(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(DB))
    store.add_hold(config.state.dir, HELD_DB)
    answer = release(config, clock, 103)
    assert holds(config) == ()
    assert answer.data["changed"] is True
    assert shown(answer) == (
        "guest 103 is no longer held; ended: the hold by alice (sudo), until Mon 2026-11-30 02:43 UTC (1 h 50 min more): disk swap\n"
    )
    assert shown(release(config, clock, 103)) == "nothing changed: guest 103 is not held\n"
    assert release(config, clock, 103).data == {"scope": 103, "changed": False, "agent_runs": True}


def test_the_hold_of_a_guest_that_is_gone_can_be_released(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(LAB))
    store.add_hold(config.state.dir, HELD_DB)
    assert release(config, clock, 103).data["changed"] is True


def test_a_hold_that_has_ended_by_itself_is_nothing_to_release(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(DB))
    store.add_hold(config.state.dir, replace(HELD_DB, duration=60.0))
    assert "nothing changed: guest 103 is not held" in shown(release(config, clock, 103))


def test_what_still_holds_is_said(config: Config, clock: StillClock, publish: Publish, tmp_path: Path) -> None:
    publish(board(DB))
    store.add_hold(config.state.dir, HELD_DB)
    store.add_hold(config.state.dir, HOLD)
    assert "the whole node is held, and this guest with it: by alice (sudo)" in shown(release(config, clock, 103))
    (tmp_path / "etc/guestward").mkdir(parents=True)
    (tmp_path / "etc/guestward/hold").touch()
    text = shown(release(config, clock, None))
    assert text.startswith("the whole node is no longer held; ended: the hold by alice (sudo)")
    assert f"the file {tmp_path}/etc/guestward/hold holds the whole node, until it is removed" in text


def test_rearm_is_written_down(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(DB, LAB))
    answer = rearm(config, clock, 103)
    assert shown(answer) == "guest 103 gets all its attempts again with the next sweep, within 60 s (2 of 3 are used now)\n"
    assert "other guards go on; at the last look: onboot_off (onboot is not 1)" in shown(rearm(config, clock, 102))
    opened = store.SqliteStore(config.state.dir, Deaf())
    assert opened.take_rearms() == (102, 103)
    opened.close()


def test_rearm_ends_what_operator_stop_holds_but_no_hold(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(row("lxc/101", Guard.HELD, "operator_stop is hold")))
    assert "other guards" not in shown(rearm(config, clock, 101))
    store.add_hold(config.state.dir, replace(HOLD, vmid=101))
    assert "other guards go on; at the last look: held" in shown(rearm(config, clock, 101))


def test_a_look_of_another_version_does_not_stop_a_hold(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(DB))
    with closing(sqlite3.connect(config.state.dir / store.FILE)) as connection, connection:
        connection.execute("UPDATE board SET board = '{\"later\":1}'")
    assert hold(config, clock, 103, "2h", "", "alice").data["agent_runs"] is False
    assert len(holds(config)) == 1


@pytest.mark.parametrize("words", [["hold"], ["hold", "101"], ["release"], ["rearm", "101"]])
def test_a_state_that_cannot_be_written(words: list[str], config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    (config.state.dir / store.FILE).write_text("rubbish " * 2000)
    assert call(config, *words, "--output=json") == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], "systemctl restart guestward" in error["hint"]) == ("state", True)


def test_the_node_is_named_without_a_look(config: Config, clock: StillClock, monkeypatch: pytest.MonkeyPatch) -> None:
    auto = replace(config, pve=replace(config.pve, node="auto"))
    monkeypatch.setattr("guestward.cli.orders.node_name", lambda: "pve7")
    assert release(auto, clock, None).node == "pve7"
