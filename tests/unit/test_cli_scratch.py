"""`scratch list`, `claim` and `teardown`: what is torn down and why not, who may say so, and what nobody may."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guestward.adapters import store
from guestward.cli import main
from guestward.cli.orders import hold, release
from guestward.cli.output import Answer, CommandError
from guestward.cli.scratch import STAYS, claim, scratch_list, teardown
from guestward.cli.show import explain, status
from guestward.config import Config
from guestward.model.decision import Closure, Gate, GateReason, Guard
from guestward.model.events import Event
from guestward.model.guest import GuestId
from guestward.model.memory import Hold
from guestward.model.scratch import REFUSALS, SCRATCH_MEANING, ScratchDecision, ScratchVerdict
from tests.unit.build import golden, simulation
from tests.unit.test_cli import fresh
from tests.unit.test_cli_show import (  # noqa: F401 - fixtures among them
    BOOT,
    HOLD,
    NOW,
    WALL,
    WEB,
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

TAGGED = "tag guestward-scratch"
RESTORED = "vzrestore by restic@pve!restore"


def guest(vmid: int, name: str, verdict: ScratchVerdict, evidence: str, *, kind: str = "lxc", **more: Any) -> ScratchDecision:
    return ScratchDecision(GuestId.parse(f"{kind}/{vmid}"), name, verdict, evidence, **more)


LEFTOVER = guest(990003, "web", ScratchVerdict.LEFTOVER, f"{RESTORED}; unused for 9120 s", proof=RESTORED)
YOUNG = guest(
    990004,
    "mail",
    ScratchVerdict.YOUNG,
    f"{RESTORED}; unused for 600 s, 7200 s are asked for",
    proof=RESTORED,
    next_at=NOW - 12 + 6600,
)
FOREIGN = guest(
    990005,
    "customer-db",
    ScratchVerdict.UNPROVEN,
    "no tag, no claim, and PVE's record names no restore by one of [scratch] origins",
    kind="qemu",
)
STRANDED = guest(990006, "", ScratchVerdict.STRANDED, "the token, or its user, lacks VM.Allocate on /vms/990006")
CLAIMED = guest(990007, "shop", ScratchVerdict.CLAIMED, "claimed by restic (sudo): nightly")
CLAIM = Hold(990007, "nightly", "restic (sudo)", 7200.0, BOOT, NOW - 600, WALL - 600, claim=True)
ALL = (LEFTOVER, YOUNG, FOREIGN, STRANDED, CLAIMED)


@pytest.fixture
def there(config: Config, tmp_path: Path) -> Iterator[Path]:
    """The node's folder under /etc/pve, with the guests of ALL."""
    folder = tmp_path / "etc/pve/nodes/pve1"
    for name in ("lxc", "qemu-server"):
        (folder / name).mkdir(parents=True)
    for found in ALL:
        (folder / ("lxc" if found.id.kind == "lxc" else "qemu-server") / f"{found.id.vmid}.conf").touch()
    yield folder


def wishes(config: Config) -> tuple[int, ...]:
    """What was asked for, taken as the agent takes it."""
    opened = store.SqliteStore(config.state.dir, Deaf())
    try:
        return opened.take_rearms()
    finally:
        opened.close()


def holds(config: Config) -> tuple[Hold, ...]:
    return store.list_holds(config.state.dir)


def one(vmid: int, config: Config, clock: StillClock, *, dry_run: bool = False) -> Answer:
    return teardown(config, clock, vmid, everything=False, dry_run=dry_run)


def every(config: Config, clock: StillClock, *, dry_run: bool = False) -> Answer:
    return teardown(config, clock, None, everything=True, dry_run=dry_run)


def refused(vmid: int, config: Config, clock: StillClock, *, dry_run: bool = False) -> CommandError:
    with pytest.raises(CommandError) as caught:
        one(vmid, config, clock, dry_run=dry_run)
    assert (caught.value.code, caught.value.exit_code) == ("refused", 4)
    return caught.value


# ------------------------------------------------------------------ list


@pytest.mark.parametrize("width", [100, 140])
def test_what_is_in_the_band(width: int, config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, scratch=ALL, lost=("VM.Allocate on /vms/990006", "VM.Audit on /vms/990006")))
    store.add_hold(config.state.dir, CLAIM)
    answer = scratch_list(config, clock)
    text = shown(answer, width)
    golden(f"cli_scratch_list_{width}.txt", text)
    table = text[text.index("GUEST") :].splitlines()
    assert max(map(len, table)) <= width
    assert answer.exit_code == 5, "grants are missing, and nothing else is wrong"


def test_nothing_is_in_the_band(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB))
    answer = scratch_list(config, clock)
    assert shown(answer).endswith("band 990000-990009: looked at every 5 min\n\nno guest is in the band on this node\n")
    assert (answer.exit_code, answer.data["scratch"], answer.data["claims"]) == (0, [], [])


def test_nothing_was_ever_seen(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(aborted="no answer", seen_at=None, seen_wall=None))
    answer = scratch_list(config, clock)
    assert shown(answer).endswith("guests in the band: not known yet\n")
    assert answer.exit_code == 1


def test_without_a_look(config: Config, clock: StillClock) -> None:
    with pytest.raises(CommandError) as caught:
        scratch_list(config, clock)
    assert (caught.value.code, caught.value.exit_code) == ("no_look", 1)


def test_for_programs(config: Config, clock: StillClock, publish: Publish, capsys: pytest.CaptureFixture[str]) -> None:
    publish(board(WEB, scratch=(LEFTOVER, YOUNG)))
    store.add_hold(config.state.dir, CLAIM)
    data = scratch_list(config, clock).data
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert (data["band"], data["observed_age_s"]) == ({"first": 990000, "last": 990009}, 12.0)
    assert data["scratch"] == [
        {
            "id": "lxc/990003",
            "kind": "lxc",
            "vmid": 990003,
            "name": "web",
            "verdict": "leftover",
            "evidence": f"{RESTORED}; unused for 9120 s",
            "proof": RESTORED,
            "next_action_s": None,
        },
        {
            "id": "lxc/990004",
            "kind": "lxc",
            "vmid": 990004,
            "name": "mail",
            "verdict": "young",
            "evidence": YOUNG.evidence,
            "proof": RESTORED,
            "next_action_s": 6588,
        },
    ]
    (claimed,) = data["claims"]
    assert (claimed["scope"], claimed["claim"], claimed["by"], claimed["remaining_s"]) == (990007, True, "restic (sudo)", 6600)
    call(config, "scratch", "list", "--output", "json")
    envelope = json.loads(capsys.readouterr().out)
    assert (envelope["schema"], envelope["node"]) == (1, "pve1")


def test_a_look_that_is_old_promises_nothing(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, scratch=ALL))
    clock.later(3600)
    answer = scratch_list(config, clock)
    assert (answer.exit_code, "nobody guards the guests" in answer.warning) == (1, True)
    assert "to be torn down now: 0" in shown(answer)
    assert {found["next_action_s"] for found in answer.data["scratch"]} == {None}


def test_a_guest_that_came_after_the_look_is_shown(config: Config, clock: StillClock, publish: Publish, there: Path) -> None:
    """The band is looked at every five minutes, and the file says at once what is there."""
    publish(board(WEB, row("lxc/990008", Guard.SCRATCH_BAND, "", name="new"), scratch=(LEFTOVER,)))
    (there / "lxc/990008.conf").touch()
    (there / "lxc/990004.conf").unlink()
    text = shown(scratch_list(config, clock))
    assert "lxc/990008   new   unknown   -     not looked at yet: the band is looked at every 5 min" in text
    assert "lxc/990003   web   leftover" in text and "990004" not in text
    assert "5 guests in the band; to be torn down now: 1" in text


def test_a_guest_that_is_gone_is_not_shown(config: Config, clock: StillClock, publish: Publish, there: Path) -> None:
    publish(board(WEB, scratch=ALL))
    (there / "lxc/990003.conf").unlink()
    answer = scratch_list(config, clock)
    assert [found["vmid"] for found in answer.data["scratch"]] == [990004, 990006, 990007, 990005]


def test_a_file_outside_of_the_band_is_no_scratch_guest(config: Config, clock: StillClock, publish: Publish, there: Path) -> None:
    publish(board(WEB, scratch=()))
    for name in ("lxc/9201.conf", "lxc/990010.conf", "qemu-server/989999.conf", "lxc/990001.conf.tmp", "lxc/0990001.conf"):
        (there / name).touch()
    assert {found["vmid"] for found in scratch_list(config, clock).data["scratch"]} == {found.id.vmid for found in ALL}


@pytest.mark.parametrize("verdict", ScratchVerdict)
def test_every_verdict_is_explained(verdict: ScratchVerdict, config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, scratch=(guest(990001, "x", verdict, "because"),)))
    assert f"{verdict}  {SCRATCH_MEANING[verdict]}" in shown(scratch_list(config, clock))


# ----------------------------------------------------------------- claim


def test_a_vmid_is_claimed(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB))
    answer = claim(config, clock, 990003, "2h", "nightly", "restic (sudo)")
    assert holds(config) == (Hold(990003, "nightly", "restic (sudo)", 7200.0, BOOT, NOW, WALL, claim=True),)
    golden("cli_scratch_claim.txt", shown(answer))
    assert answer.exit_code == 0 and answer.warning == ""
    assert answer.data == {
        "vmid": 990003,
        "changed": True,
        "for_s": 7200.0,
        "until": round(WALL + 7200),
        "by": "restic (sudo)",
        "reason": "nightly",
        "replaced": False,
        "there": None,
        "agent_runs": True,
    }


def test_a_claim_on_a_guest_that_is_there_says_so(config: Config, clock: StillClock, publish: Publish) -> None:
    """Whoever takes the wrong number has to see that."""
    publish(board(WEB, scratch=ALL))
    answer = claim(config, clock, 990005, "2h", "", "restic")
    assert "qemu/990005 customer-db was there already at the last look; a claim does not make it ours" in shown(answer)
    assert answer.data["there"] == "qemu/990005"


def test_claiming_again_replaces(config: Config, clock: StillClock) -> None:
    store.add_hold(config.state.dir, CLAIM)
    answer = claim(config, clock, 990007, "30m", "longer", "bob")
    assert "this replaces the claim by restic (sudo), until Mon 2026-11-30 02:43 UTC (1 h 50 min more): nightly" in shown(answer)
    assert answer.data["replaced"] is True
    assert [(found.by, found.claim) for found in holds(config)] == [("bob", True)]


def test_a_hold_and_a_claim_replace_each_other_by_name(config: Config, clock: StillClock) -> None:
    hold(config, clock, 990003, "2h", "look at it", "alice")
    assert "this replaces the hold by alice" in shown(claim(config, clock, 990003, "2h", "", "bob"))
    text = shown(hold(config, clock, 990003, "2h", "look at it", "alice"))
    assert "this replaces the claim by bob" in text
    assert "it is in the scratch band, where nothing is started anyway; it is not torn down meanwhile" in text


@pytest.mark.parametrize("vmid", [989999, 990010, 9201, 100])
def test_nothing_outside_of_the_band_is_claimed(vmid: int, config: Config, clock: StillClock) -> None:
    with pytest.raises(CommandError) as caught:
        claim(config, clock, vmid, "2h", "", "bob")
    assert (caught.value.code, caught.value.exit_code) == ("refused", 4)
    assert "990000-990009" in caught.value.message
    assert not (config.state.dir / store.FILE).exists()


@pytest.mark.parametrize("how_long", ["2x", "0s", "-1h", "367d", "", "２h", "2h\x1b[2J"])
def test_a_time_that_is_none(how_long: str, config: Config, clock: StillClock) -> None:
    with pytest.raises(CommandError) as caught:
        claim(config, clock, 990003, how_long, "", "bob")
    assert (caught.value.code, caught.value.exit_code, caught.value.hint) == ("usage", 2, "guestward scratch claim --help")
    assert " hold " not in caught.value.message and caught.value.message.isprintable()
    assert holds(config) == ()


def test_a_claim_that_nobody_takes_up(config: Config, clock: StillClock) -> None:
    answer = claim(config, clock, 990003, "2h", "", "bob")
    assert "The agent does not seem to run" in answer.warning
    assert (answer.exit_code, answer.data["agent_runs"]) == (0, False)
    assert len(holds(config)) == 1


def test_a_claim_is_called_a_claim_everywhere(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, row("lxc/990007", Guard.SCRATCH_BAND, "VMID inside 990000-990009", name="shop"), scratch=ALL))
    store.add_hold(config.state.dir, CLAIM)
    answer = status(config, clock)
    words = "claim: guest 990007, by restic (sudo), until Mon 2026-11-30 02:43 UTC (1 h 50 min more): nightly"
    assert words in shown(answer)
    assert [(found["scope"], found["claim"]) for found in answer.data["holds"]] == [(990007, True)]
    assert words in shown(scratch_list(config, clock))
    answer = explain(config, clock, 990007)
    assert "claim    guest 990007, by restic (sudo)" in shown(answer)
    assert "next     no start, ever; whether it is torn down: guestward scratch list" in shown(answer)
    store.add_hold(config.state.dir, replace(HOLD, vmid=990003))
    assert "hold: guest 990003, by alice (sudo)" in shown(status(config, clock))


def test_a_claim_is_released(config: Config, clock: StillClock, publish: Publish) -> None:
    """Also one on a VMID that no guest has; and a second time that is no error."""
    publish(board(WEB))
    store.add_hold(config.state.dir, CLAIM)
    words = (
        "guest 990007 is no longer claimed; ended: the claim by restic (sudo), until Mon 2026-11-30 02:43 UTC (1 h 50 min more): nightly\n"
    )
    assert shown(release(config, clock, 990007)) == words
    assert shown(release(config, clock, 990007)) == "nothing changed: guest 990007 is not held or claimed\n"
    assert holds(config) == ()


def test_the_log_calls_it_a_claim_too() -> None:
    """In virtual time, as the agent sees it begin, be replaced by a hold, and end."""
    sim = simulation()
    sim.world.at(30.0, lambda: sim.claim(990007, 3600.0))
    sim.world.at(200.0, lambda: sim.hold(990007, 600.0))
    sim.world.at(400.0, lambda: sim.claim(990007, 100.0))
    sim.run(900.0)
    said = [entry.message for entry in sim.journal.log if entry.event in (Event.HELD.name, Event.RELEASED.name)]
    assert [re.sub(r"[0-9]{3,4} s", "N s", text) for text in said] == [
        "990007 is claimed by root for N s: work",
        "990007 is held by root for N s: work",
        "990007 is claimed by root for 80 s: work",
        "990007 is no longer claimed",
    ]


# -------------------------------------------------------------- teardown


def test_a_leftover_is_looked_at_now(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, scratch=ALL))
    answer = one(990003, config, clock)
    golden("cli_scratch_teardown.txt", shown(answer))
    assert (answer.exit_code, answer.warning) == (0, "")
    assert (answer.data["changed"], answer.data["agent_runs"]) == (True, True)
    assert [(found["vmid"], found["refused"]) for found in answer.data["scratch"]] == [(990003, None)]
    assert wishes(config) == (990003,)


@pytest.mark.parametrize("width", [100, 140])
def test_all_of_them(width: int, config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, scratch=ALL))
    store.add_hold(config.state.dir, CLAIM)
    answer = every(config, clock)
    golden(f"cli_scratch_teardown_all_{width}.txt", shown(answer, width))
    assert answer.exit_code == 0
    assert {found["vmid"]: found["refused"] is None for found in answer.data["scratch"]} == {
        990003: True,
        990004: False,
        990005: False,
        990006: True,
        990007: False,
    }
    assert wishes(config) == (990003, 990004, 990005, 990006, 990007)


def test_a_dry_run_changes_nothing(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, scratch=ALL))
    before = state_of(config)
    for answer in (one(990003, config, clock, dry_run=True), every(config, clock, dry_run=True)):
        assert shown(answer).endswith(
            "this command has changed nothing; what is a leftover is torn down at the agent's next look at the band\n"
        )
        assert answer.data["changed"] is False and answer.exit_code == 0
    assert "nothing was changed" in refused(990005, config, clock, dry_run=True).hint
    assert state_of(config) == before
    assert wishes(config) == ()


def state_of(config: Config) -> list[object]:
    with closing(store.sqlite3.connect(config.state.dir / store.FILE)) as connection:
        return list(connection.iterdump())


@pytest.mark.parametrize("verdict", sorted(STAYS))
def test_what_speaks_against_it_is_said(verdict: ScratchVerdict, config: Config, clock: StillClock, publish: Publish) -> None:
    """It is looked at once more all the same: what was seen is up to five minutes old."""
    publish(board(WEB, scratch=(guest(990003, "web", verdict, "because of this"),)))
    error = refused(990003, config, clock)
    assert error.message == f"lxc/990003 web is not torn down: {verdict}: because of this"
    assert "the agent looks at it once more within 60 s" in error.hint
    assert wishes(config) == (990003,)


@pytest.mark.parametrize("verdict", sorted(set(ScratchVerdict) - STAYS - {ScratchVerdict.CLAIMED, ScratchVerdict.HELD}))
def test_what_may_change_with_a_look_is_asked_for(verdict: ScratchVerdict, config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, scratch=(guest(990003, "web", verdict, "because of this"),)))
    assert one(990003, config, clock).exit_code == 0
    assert wishes(config) == (990003,)


def test_long_times_are_told_as_people_say_them(config: Config, clock: StillClock, publish: Publish) -> None:
    found = guest(990001, "x3 9000 s", ScratchVerdict.YOUNG, "unused for 60 s, 172800 s are asked for")
    publish(board(WEB, scratch=(found,)))
    assert "x3 9000 s  young    -     unused for 60 s, 2 d are asked for" in shown(scratch_list(config, clock))
    assert scratch_list(config, clock).data["scratch"][0]["evidence"] == found.evidence


def test_every_refusal_for_good_stays() -> None:
    assert REFUSALS < STAYS


def test_a_claim_of_this_moment_counts(config: Config, clock: StillClock, publish: Publish) -> None:
    """Not that of the last look: it may be over, or have begun since."""
    publish(board(WEB, scratch=(LEFTOVER, CLAIMED)))
    assert one(990007, config, clock).exit_code == 0, "released since"
    store.add_hold(config.state.dir, replace(CLAIM, vmid=990003))
    error = refused(990003, config, clock)
    assert "claimed by restic (sudo), until Mon 2026-11-30 02:43 UTC (1 h 50 min more): nightly" in error.message


def test_holds_count_too(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, scratch=(LEFTOVER, YOUNG)))
    store.add_hold(config.state.dir, replace(HOLD, vmid=990003))
    assert "web is not torn down: held by alice (sudo)" in refused(990003, config, clock).message
    store.remove_hold(config.state.dir, 990003)
    store.add_hold(config.state.dir, HOLD)
    assert "web is not torn down: the whole node is held by alice (sudo)" in refused(990003, config, clock).message


def test_a_guest_that_came_after_the_look_can_be_named(config: Config, clock: StillClock, publish: Publish, there: Path) -> None:
    publish(board(WEB, scratch=()))
    assert "not looked at yet" in shown(one(990003, config, clock))
    assert len(every(config, clock).data["scratch"]) == len(ALL)


@pytest.mark.parametrize("vmid", [990000, 990009])
def test_an_unknown_vmid(vmid: int, config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, scratch=ALL))
    with pytest.raises(CommandError) as caught:
        one(vmid, config, clock)
    assert (caught.value.code, caught.value.exit_code) == ("unknown_vmid", 2)
    assert wishes(config) == ()


@pytest.mark.parametrize("looked", [True, False])
@pytest.mark.parametrize("vmid", [989999, 990010, 9201])
def test_nothing_outside_of_the_band_is_torn_down(vmid: int, looked: bool, config: Config, clock: StillClock, publish: Publish) -> None:
    if looked:
        publish(board(row(f"lxc/{vmid}", Guard.RUNNING, ""), scratch=(guest(vmid, "x", ScratchVerdict.LEFTOVER, ""),)))
    assert "990000-990009, and nothing outside of it is ever torn down" in refused(vmid, config, clock).message
    assert wishes(config) == ()


def test_nothing_to_do(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB))
    answer = every(config, clock)
    assert shown(answer) == "no guest is in the band on this node: nothing to do\n"
    assert (answer.exit_code, answer.data["changed"], answer.data["scratch"]) == (0, False, [])


@pytest.mark.parametrize("case", ["old look", "booted", "ended"])
def test_nobody_takes_it_up(case: str, config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, scratch=ALL, ended=case == "ended"))
    if case != "ended":
        clock.later(169) if case == "old look" else clock.rebooted()
    answer = one(990003, config, clock)
    assert "The agent does not seem to run" in answer.warning and answer.exit_code == 0
    assert "as soon as it runs" in shown(answer)
    assert "nobody guards the guests" in every(config, clock, dry_run=True).warning


def test_while_sweeps_are_aborted(config: Config, clock: StillClock, publish: Publish) -> None:
    publish(board(WEB, scratch=ALL, aborted="no answer", gate=Gate((Closure(GateReason.NO_QUORUM, "x"),))))
    assert "the agent looks at the band as soon as its sweeps are not aborted any more" in shown(one(990003, config, clock))


# ------------------------------------------------------------- the words


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list"], 0),
        (["claim", "990001", "--for", "10m", "--reason", "test"], 0),
        (["teardown", "990003"], 0),
        (["teardown", "--all"], 0),
        (["teardown", "--all", "--dry-run"], 0),
        (["teardown", "990005"], 4),
        (["teardown", "990005", "--dry-run"], 4),
        (["teardown", "9201"], 4),
        (["claim", "9201"], 4),
        (["teardown", "990000"], 2),
        (["teardown"], 2),
        (["teardown", "990003", "--all"], 2),
        (["teardown", "--dry-run"], 2),
        (["teardown", "0990003"], 2),
        (["teardown", "990000/../9201"], 2),
        (["teardown", "９９０００３"], 2),
        (["teardown", "990003.0"], 2),
        (["teardown", "990003", "990004"], 2),
        (["claim"], 2),
        (["claim", "990003", "--for", "soon"], 2),
        (["claim", "990003", "--for"], 2),
        (["claim", "990003", "--force"], 2),
        (["list", "990003"], 2),
        (["destroy", "990003"], 2),
        ([], 2),
    ],
)
def test_exit_codes(words: list[str], code: int, config: Config, publish: Publish, capsys: pytest.CaptureFixture[str]) -> None:
    """By the whole command line, for people and for programs; the same both times."""
    publish(fresh(board(WEB, scratch=ALL)))
    assert call(config, "scratch", *words) == code
    out, err = capsys.readouterr()
    assert bool(out) is (code == 0) and ("--help" in err or code != 2 or "scratch list" in err)
    assert call(config, "scratch", *words, "--output", "json") == code
    out, err = capsys.readouterr()
    body = json.loads(out)
    assert err == "" and body["schema"] == 1
    if code == 0:
        assert set(body) == {"schema", "node", "at", "data"}
    else:
        assert body["error"]["code"] == {4: "refused", 2: "unknown_vmid" if words == ["teardown", "990000"] else "usage"}[code]


def test_without_a_command_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scratch"]) == 2
    err = capsys.readouterr().err
    assert "usage: guestward scratch" in err and "teardown" in err and "what to do: guestward scratch --help" in err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, wanted in {
        ("--help",): ["scratch"],
        ("scratch", "--help"): ["list", "claim", "teardown"],
        ("scratch", "claim", "--help"): ["--for TIME", "--reason TEXT", "default: 2h"],
        ("scratch", "teardown", "--help"): ["--all", "--dry-run", "nothing is changed"],
    }.items():
        with pytest.raises(SystemExit) as caught:
            main(list(words))
        assert caught.value.code == 0
        out = capsys.readouterr().out
        assert all(word in out for word in wanted), out


def test_a_state_that_cannot_be_written(config: Config, publish: Publish, capsys: pytest.CaptureFixture[str]) -> None:
    (config.state.dir / store.FILE).write_text("rubbish " * 2000)
    for words in (["claim", "990003"], ["list"], ["teardown", "--all"]):
        assert call(config, "scratch", *words, "--output=json") == 1
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "state"


def test_nothing_from_outside_reaches_the_terminal_as_it_is(config: Config, publish: Publish, capsys: pytest.CaptureFixture[str]) -> None:
    odd = guest(990003, "a\x1b[2Jb", ScratchVerdict.LEFTOVER, "x\x07y\nz")
    publish(fresh(board(WEB, scratch=(odd,))))
    for words in (["list"], ["teardown", "990003"], ["claim", "990003", "--reason", "r\x1b[31m"]):
        call(config, "scratch", *words)
        out, err = capsys.readouterr()
        assert (out + err).replace("\n", "").isprintable()
