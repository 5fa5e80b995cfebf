"""`locks`, and what `explain` says of a lock: an operator at 3 a.m. has to see whose it is, what is missing, and what comes next."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from guestward.adapters import store
from guestward.cli.locks import locks
from guestward.cli.output import CommandError
from guestward.cli.proof import QUESTIONS
from guestward.cli.show import explain
from guestward.config import Config
from guestward.model.decision import Closure, Gate, GateReason, Guard
from guestward.model.guest import GuestId
from guestward.model.locks import LockDecision, LockVerdict
from guestward.model.memory import Hold
from guestward.model.reading import Unreadable
from guestward.policy.locks import judge, settle
from tests.unit.build import AT, golden, rules
from tests.unit.test_cli_show import (  # noqa: F401 - fixtures among them
    HOLD,
    NOW,
    WEB,
    Publish,
    StillClock,
    board,
    clock,
    config,
    publish,
    row,
    shown,
    utc,
)
from tests.unit.test_locks import SPOILT, case, lock, spoilt

MAIL, GIT, WIKI = GuestId.parse("lxc/9110"), GuestId.parse("lxc/9112"), GuestId.parse("lxc/9113")
DB, NAS = GuestId.parse("qemu/103"), GuestId.parse("qemu/9120")


def decision(id: GuestId, name: str, *, seen_for: float = 240.0, recover: bool = True, **known: Any) -> LockDecision:
    """A decision of the real policy, moved to the look 12 s ago. known: of the memory or of the case."""
    of_memory = {
        key: known.pop(key) for key in tuple(known) if key in ("kind", "clear_since", "deletes", "unlocks", "next_at", "delete_at")
    }
    found = case(lock(id=id, name=name, **of_memory), **known)
    of = replace(rules(), lock_recovery=recover)
    settled = settle(found.memory, judge(found), AT, of).decision
    planned = None if settled.next_at is None else settled.next_at - AT + NOW - 12
    return replace(settled, since=NOW - 12 - seen_for, next_at=planned)


STALE = decision(MAIL, "mail")
FIRST = decision(GIT, "git", seen_for=60, clear_since=None)
BY_HAND = decision(WIKI, "wiki", seen_for=7200, history=())
MIGRATE = decision(DB, "db", seen_for=777_600, kind="migrate")
SNAPSHOT = decision(GuestId.parse("lxc/9114"), "shop", kind="", seen_for=30)
AT_WORK = decision(NAS, "nas", backups=replace(case().obs.backups, archives=frozenset({9120})))
ALL = (STALE, FIRST, BY_HAND, MIGRATE, SNAPSHOT, AT_WORK)


def table(config: Config, clock: StillClock, width: int | None = None, *, proof: bool = False) -> str:  # noqa: F811
    return shown(locks(config, clock, proof=proof), width)


# ---------------------------------------------------------------- golden


@pytest.mark.parametrize("width", [80, 120])
def test_all_kinds_of_locks(width: int, config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    publish(board(WEB, locks=ALL))
    text = table(config, clock, width)
    assert max(map(len, text.splitlines())) <= width
    golden(f"cli_locks_{width}.txt", text)


@pytest.mark.parametrize("width", [80, 120])
def test_dry_run(width: int, config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    publish(board(WEB, locks=(STALE, FIRST, BY_HAND)))
    text = table(config, clock, width, proof=True)
    assert max(map(len, text.splitlines())) <= width
    assert text.count(">>") == 2, "what is missing is marked, and nothing is where all is proven"
    golden(f"cli_locks_dry_run_{width}.txt", text)


def test_explain_of_a_locked_guest(config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    guest = row("lxc/9113", Guard.LOCKED, "lock backup", name="wiki", lock="backup", cause="no stop task found")
    publish(board(guest, locks=(STALE, BY_HAND)))
    answer = explain(config, clock, 9113)
    golden("cli_explain_locked.txt", shown(answer, 100))
    assert answer.data["lock_proof"]["verdict"] == "no_trace"
    assert "pct unlock 9113" in answer.data["next"]
    assert answer.exit_code == 0


def test_no_lock(config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    publish(board(WEB))
    answer = locks(config, clock, proof=True)
    golden("cli_locks_none.txt", shown(answer))
    assert (answer.exit_code, answer.data["locks"]) == (0, [])
    assert explain(config, clock, 9201).data["lock_proof"] is None


# ----------------------------------------------------------------- words


def test_the_questions_are_those_of_the_policy() -> None:
    assert list(QUESTIONS) == [name for _, name, _ in SPOILT]


@pytest.mark.parametrize("at", range(len(SPOILT)), ids=[name for _, name, _ in SPOILT])
def test_every_verdict_says_whose_it_is_what_is_missing_and_what_comes_next(
    at: int,
    config: Config,  # noqa: F811
    clock: StillClock,  # noqa: F811
    publish: Publish,  # noqa: F811
) -> None:
    found = judge(spoilt(SPOILT[at][2]))
    publish(board(WEB, locks=(replace(found, since=NOW - 100),)))
    text = table(config, clock, proof=True)
    assert f">>  {QUESTIONS[SPOILT[at][1]]}" in text
    assert text.count("not asked yet") == len(SPOILT) - 1 - at
    assert "{" not in text
    (data,) = locks(config, clock, proof=False).data["locks"]
    assert data["owner"] in ("not asked", "a backup", "a task", "unknown", "nobody")
    assert (data["owner"] == "nobody") is (found.verdict is LockVerdict.UNCONFIRMED)


def test_a_witness_that_cannot_be_read_is_told(config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    publish(board(WEB, locks=(decision(MAIL, "mail", history=Unreadable("read timed out")),)))
    text = table(config, clock, proof=True)
    assert "unknown" in text and "task history: read timed out" in text and "guestward check" in text


def test_report_only(config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    publish(board(WEB, locks=(decision(MAIL, "mail", recover=False),)))
    reporting = replace(config, locks=replace(config.locks, recover="report"))
    text = shown(locks(reporting, clock, proof=False))
    assert "only reports, nothing is cleared" in text
    assert "next  nothing is done, since `[locks] recover` is `report`; with `prove` it is unlocked" in text


def test_given_up(config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    publish(board(WEB, locks=(decision(MAIL, "mail", unlocks=6),)))
    assert "given up after 6 attempts; mend the cause, then: guestward rearm 9110" in table(config, clock)


def test_a_vm_is_unlocked_by_its_own_program(config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    publish(board(WEB, locks=(MIGRATE,)))
    assert "qm unlock 103" in table(config, clock)


# ------------------------------------------------------------------ json


def test_a_lock_for_programs(config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    publish(board(WEB, locks=(STALE, SNAPSHOT)))
    data = locks(config, clock, proof=False).data
    assert data == locks(config, clock, proof=True).data
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert (data["recover"], data["observed_age_s"]) == ("prove", 12.0)
    first, second = data["locks"]
    assert {key: first[key] for key in ("id", "kind", "vmid", "name", "lock", "snapshot_only", "age_s", "owner", "verdict")} == {
        "id": "lxc/9110",
        "kind": "lxc",
        "vmid": 9110,
        "name": "mail",
        "lock": "backup",
        "snapshot_only": False,
        "age_s": 252.0,
        "owner": "nobody",
        "verdict": "stale",
    }
    assert [(check["question"], check["ok"]) for check in first["proof"]] == [(name, True) for name in QUESTIONS]
    assert first["next"] == "it is unlocked now"
    assert (second["lock"], second["snapshot_only"]) == (None, True)


# ---------------------------------------------------- when nobody looks


def test_nothing_is_promised_while_nobody_looks(config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    publish(board(WEB, locks=(STALE, MIGRATE)))
    clock.later(3600)
    answer = locks(config, clock, proof=False)
    assert answer.exit_code == 1 and "nobody guards the guests" in answer.warning
    assert shown(answer).count("next  nothing: the agent does not look at guests") == 2


def test_while_sweeps_are_aborted(config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    gate = Gate((Closure(GateReason.NO_QUORUM, "the cluster has no quorum"),))
    publish(board(WEB, locks=(STALE,), gate=gate, aborted="the API refuses connections"))
    answer = locks(config, clock, proof=True)
    assert answer.exit_code == 1
    assert "nothing while sweeps are aborted: the API refuses connections" in shown(answer)
    publish(board(aborted="the API refuses connections", seen_at=None, seen_wall=None))
    assert "locks: not known yet" in table(config, clock)


def test_without_a_look(config: Config, clock: StillClock) -> None:  # noqa: F811
    with pytest.raises(CommandError) as caught:
        locks(config, clock, proof=False)
    assert caught.value.code == "no_look"


def test_a_held_guest_is_judged_later(config: Config, clock: StillClock, publish: Publish) -> None:  # noqa: F811
    held: Hold = replace(HOLD, vmid=9110)
    publish(board(WEB, locks=(decision(MAIL, "mail", hold=(held, 600.0)),)))
    store.add_hold(config.state.dir, held)
    text = table(config, clock)
    assert "not asked  held" in text and "guestward release 9110" in text
