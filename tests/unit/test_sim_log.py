"""The stream of a simulation as text and as JSON."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping

import pytest

from guestward.adapters.journal import JsonJournal
from guestward.model.decision import GateReason, Guard, Outcome
from guestward.model.events import Event, EventKind, Level, all_events
from guestward.model.guest import GuestId
from guestward.model.memory import StopCause
from guestward.policy.causes import describe
from guestward.ports import GuestLabel
from guestward.sim.log import HIDDEN, PARTLY, SHOWN, Effect, Entry, Logged, Violation, as_json, as_text

WEB = GuestId.parse("lxc/9201")
WALL = 1_900_000_095.0625
# Values of every type that fields have; a field gets one after the other.
VALUES: tuple[object, ...] = (
    3,
    1.5,
    None,
    "",
    "two words",
    True,
    ("a", "b"),
    [GateReason.BOOTING],
    Outcome.STARTED,
    {"id": "lxc/1", "n": 2},
    "é\x1b",
)


class StoppedClock:
    def __init__(self, wall: float) -> None:
        self.now = wall

    def wall(self) -> float:
        return self.now

    def boottime(self) -> float:
        return self.now

    def boot_id(self) -> str:
        return "boot"

    def pause(self, seconds: float) -> None:
        self.now += seconds


Said = tuple[EventKind, Level, Mapping[str, object]]


def written(said: Iterable[Said], message: str, name: str, wall: float) -> list[dict[str, object]]:
    """The lines of the agent's own log."""
    stream = io.StringIO()
    journal = JsonJournal(stream, "info", StoppedClock(wall), False)
    for kind, level, fields in said:
        guest = GuestLabel(WEB, name, str(Guard.BACKOFF)) if kind.guest else None
        journal.emit(kind, level, message=message, guest=guest, **fields)
    assert journal.flush(5.0)
    journal.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def logged(
    kind: EventKind, level: Level, fields: Mapping[str, object], message: str = "m", name: str = "web", wall: float = WALL
) -> Logged:
    guard = str(Guard.BACKOFF) if kind.guest else ""
    return Logged(95.0, kind.name, level, WEB if kind.guest else None, guard, fields, message, name if kind.guest else "", wall)


@pytest.mark.parametrize("kind", all_events(), ids=lambda kind: kind.name)
def test_a_record_is_what_the_agent_writes(kind: EventKind) -> None:
    said: list[Said] = []
    for turn, level in enumerate(kind.levels * len(VALUES)):
        said.append((kind, level, {name: VALUES[(turn + number) % len(VALUES)] for number, name in enumerate(reversed(kind.fields))}))
    for (_, level, fields), expected in zip(said, written(said, "what\nhappened", "web", WALL), strict=True):
        entry = logged(kind, level, fields, "what\nhappened")
        assert entry.record() == expected
        assert list(entry.record()) == list(expected)
        assert json.loads(as_json(entry)) == {"t": 95.0, "kind": "event", "record": expected}


@pytest.mark.parametrize(
    ("fields", "message", "name", "wall"),
    [
        ({}, "", "", 0.0),
        ({"attempt": 1, "nobody_declared_this": 2}, "m", "web", WALL),
        ({"cause": "x" * 5000, "upid": "\ud800", "of": math.nan, "attempt": -math.inf}, "m" * 1001, "n" * 2000, -5.5),
        ({"cause": {"a": {"b": [1, (2, {3: Level.WARN})]}}, "upid": {"x"}, "of": 1 << 60}, "m", "w\x07b", 1e300),
    ],
)
def test_a_record_of_an_event_that_nobody_expects(fields: dict[str, object], message: str, name: str, wall: float) -> None:
    kind = Event.START_ATTEMPT
    entry = logged(kind, Level.INFO, fields, message, name, wall)
    assert [entry.record()] == written([(kind, Level.INFO, fields)], message, name, wall)
    assert as_json(entry).isascii()


def test_an_effect_and_a_violation_as_json() -> None:
    assert as_json(Effect(30.00049, "api", "start", 101, "ok")) == (
        '{"t": 30.0, "kind": "effect", "door": "api", "verb": "start", "vmid": 101, "result": "ok"}'
    )
    assert json.loads(as_json(Violation(1 / 3, "I1", "a rule", 'it "broke"\n'))) == {
        "t": 0.333,
        "kind": "violation",
        "invariant": "I1",
        "rule": "a rule",
        "message": 'it "broke"\n',
    }


TEXT: list[tuple[Entry, str]] = [
    (
        logged(Event.START_ATTEMPT, Level.INFO, {"attempt": 1, "of": 3, "cause": "it died", "upid": "UPID:x"}),
        "      95.0  event   start_attempt           info     lxc/9201 web  guard=backoff attempt=1 of=3",
    ),
    (Effect(95.0, "api", "start", 9201, "ok"), "      95.0  effect  start 9201              ok       api"),
    (Effect(1234567.25, "helper", "release-scratch", 990003, "refused"), " 1234567.2  effect  release-scratch 990003  refused  helper"),
    (Effect(0.0, "helper", "regrant", None, "failed"), "       0.0  effect  regrant                 failed   helper"),
    (
        logged(Event.START_RESULT, Level.WARN, {"attempt": 1, "outcome": Outcome.FAILED, "reason": "no space", "down_s": None}, name=""),
        "      95.0  event   start_result            warn     lxc/9201  guard=backoff attempt=1 outcome=failed",
    ),
    (
        logged(Event.GUEST_DOWN, Level.INFO, {"evidence": "e", "cause": "c"}, name="a b=\x1b"),
        '      95.0  event   guest_down              info     lxc/9201 "a b=\\u001b"  guard=backoff',
    ),
    (
        logged(Event.HOST_GATE_CLOSED, Level.WARN, {"reasons": ["booting", "no_quorum"], "evidence": "e"}),
        "      95.0  event   host_gate_closed        warn     reasons=booting,no_quorum",
    ),
    (
        logged(
            Event.HEARTBEAT,
            Level.INFO,
            {
                "sweeps_since_boot": 10,
                "guests_evaluated": 2,
                "currently_stopped": 1,
                "left_down": [{"id": "lxc/101", "name": "x", "guard": "onboot_off"}, {"id": "qemu/102", "name": "y", "guard": "ha"}],
                "holds": ["node", "101"],
                "host_gate": [],
            },
        ),
        "      95.0  event   heartbeat               info     sweeps_since_boot=10 guests_evaluated=2 currently_stopped=1 "
        "left_down=lxc/101:onboot_off,qemu/102:ha holds=node,101 host_gate=none",
    ),
    (
        logged(Event.HELD, Level.INFO, {"scope": "node", "by": "root", "for_s": 7200.0, "reason": "why not"}),
        "      95.0  event   held                    info     scope=node for_s=7200",
    ),
    (
        logged(Event.GRANT_LOST, Level.ERROR, {"path": "/pool/guestward", "privilege": "VM.Audit"}),
        "      95.0  event   grant_lost              error    path=/pool/guestward privilege=VM.Audit",
    ),
    (logged(Event.STORE_RESTORED, Level.INFO, {}), "      95.0  event   store_restored          info"),
    (
        Violation(125.0, "I1", "a guest whose onboot is not 1 is never started", "lxc/101 was\nstarted"),
        "     125.0  violation of I1 (a guest whose onboot is not 1 is never started): lxc/101 was\\nstarted",
    ),
]


@pytest.mark.parametrize(("entry", "line"), TEXT, ids=[line.split()[2] for _, line in TEXT])
def test_a_line_of_a_golden_log(entry: Entry, line: str) -> None:
    assert as_text(entry) == line


def test_every_field_is_shown_or_not_on_purpose() -> None:
    declared = {name for kind in all_events() for name in kind.fields}
    assert len({*SHOWN, *HIDDEN, *PARTLY}) == len(SHOWN) + len(HIDDEN) + len(PARTLY)
    assert declared <= {*SHOWN, *HIDDEN, *PARTLY}
    assert {"message", "reason", "evidence", "cause", "by"}.isdisjoint(SHOWN)


@pytest.mark.parametrize(
    ("cause", "shown"),
    [
        (describe(None), " cause=none"),
        (describe(StopCause("vzstop", "alice@pve", 1.0, WALL)), ' cause="vzstop by alice@pve"'),
        (describe(StopCause("qmshutdown", "root@pam", 1.0, WALL, by_vzdump=True)), ' cause="qmshutdown by root@pam (part of a backup)"'),
        ("the task history could not be read", " cause=unread"),
        ("it died", ""),
        ("", ""),
    ],
)
def test_of_a_cause_it_is_shown_who_but_not_when(cause: str, shown: str) -> None:
    line = "      95.0  event   guest_down              info     lxc/9201 web  guard=backoff"
    assert as_text(logged(Event.GUEST_DOWN, Level.INFO, {"evidence": "e", "cause": cause})) == f"{line}{shown}"


@pytest.mark.parametrize("kind", all_events(), ids=lambda kind: kind.name)
def test_prose_never_gets_into_a_golden_log(kind: EventKind) -> None:
    fields = {name: "PROSE" for name in kind.fields if name in (*HIDDEN, *PARTLY)}
    assert "PROSE" not in as_text(logged(kind, kind.levels[0], fields, "PROSE"))
