"""The codec: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guestward.adapters import codec
from guestward.model.decision import Decision, Guard, Outcome
from guestward.model.guest import GuestId, GuestKind
from guestward.model.memory import Attempt, GuestMemory, Hold, NodeMemory
from guestward.ports import Board

FINITE = st.floats(allow_nan=False, allow_infinity=False)
GUEST_IDS = st.builds(GuestId, st.sampled_from(GuestKind), st.integers(100, 999999999))
st.register_type_strategy(GuestId, GUEST_IDS)
st.register_type_strategy(float, FINITE)
FAST = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


class Colour(Enum):
    RED = 1
    GREEN = "green"


@dataclass(frozen=True)
class Box:
    pair: tuple[int, str]
    counts: Mapping[GuestId, int] = field(default_factory=dict)
    either: int | str | None = None
    colour: Colour = Colour.RED
    bits: frozenset[str] = frozenset()


@FAST
@given(st.one_of(*(st.from_type(kind) for kind in (GuestMemory, NodeMemory, Hold, Attempt, Decision))))
def test_round_trip(value: object) -> None:
    assert codec.loads(type(value), codec.dumps(value)) == value


@FAST
@given(st.from_type(Board))
def test_round_trip_of_the_board(board: Board) -> None:
    text = codec.dumps(board)
    assert codec.loads(Board, text) == board
    assert text.isascii()
    assert "\n" not in text


@FAST
@given(
    st.builds(Box, st.tuples(st.integers(), st.text()), st.dictionaries(GUEST_IDS, st.integers()), st.none() | st.integers() | st.text())
)
def test_round_trip_of_what_the_model_may_hold_one_day(box: Box) -> None:
    assert codec.loads(Box, codec.dumps(box)) == box


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*GuestMemory.__dataclass_fields__, "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@FAST
@given(JSON)
def test_anything_else_is_a_value_error(data: object) -> None:
    text = json.dumps(data)
    for kind in (GuestMemory, NodeMemory, Hold, Board):
        try:
            value = codec.loads(kind, text)
        except ValueError:
            continue
        assert isinstance(value, kind)
        assert codec.loads(kind, codec.dumps(value)) == value


def test_defaults_are_left_out_and_filled_in() -> None:
    memory = GuestMemory(GuestId(GuestKind.LXC, 101), attempts=(Attempt(1, 2.0, 3.0, outcome=Outcome.FAILED),), announced=(Guard.HELD,))
    assert json.loads(codec.dumps(memory)) == {
        "id": "lxc/101",
        "announced": ["held"],
        "attempts": [{"number": 1, "begun_at": 2.0, "deadline": 3.0, "outcome": "failed"}],
    }
    assert codec.loads(NodeMemory, b"{}") == NodeMemory()


def test_false_is_not_left_out_for_zero() -> None:
    @dataclass(frozen=True)
    class Odd:
        flag: object = 0

    assert codec.encode(Odd(False)) == {"flag": False}
    assert codec.encode(Odd(0)) == {}


def test_sets_are_written_in_order() -> None:
    assert codec.dumps(frozenset({"b", "a", "c"})) == '["a","b","c"]'


HOLD: dict[str, Any] = {"vmid": 101, "reason": "r", "by": "b", "duration": 1, "boot_id": "x", "boottime": 2, "wall": 3}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vmid": True}, "Hold.vmid"),
        ({"vmid": 1.0}, "whole number"),
        ({"vmid": "101"}, "whole number"),
        ({"reason": None}, "Hold.reason: None where text"),
        ({"duration": True}, "a number"),
        ({"duration": "1"}, "a number"),
        ({"duration": 10**400}, "too large"),
        ({"surprise": 1}, "unknown key surprise"),
        ({"x" * 500: 1}, "unknown key xxx"),
    ],
)
def test_refusals(change: dict[str, Any], words: str) -> None:
    assert codec.decode(Hold, HOLD) == Hold(101, "r", "b", 1.0, "x", 2.0, 3.0)
    with pytest.raises(ValueError, match=words) as caught:
        codec.decode(Hold, HOLD | change)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (NodeMemory, "[]"),
        (NodeMemory, "{"),
        (NodeMemory, "\0\0\0"),
        (NodeMemory, b"\xff\xfe\xff"),
        (NodeMemory, "[" * 100_000),
        (NodeMemory, '{"sweeps": NaN}'),
        (NodeMemory, '{"mass_stop_until": Infinity}'),
        (NodeMemory, '{"mass_stop_until": 1e999}'),
        (NodeMemory, '{"watched": 1}'),
        (NodeMemory, '{"sweeps": ' + "9" * 5000 + "}"),
        (Hold, '{"vmid": 1}'),
        (GuestMemory, '{"id": "lxc/99"}'),
        (GuestMemory, '{"id": "lxc/101", "announced": "held"}'),
        (GuestMemory, '{"id": "lxc/101", "announced": ["nonsense"]}'),
        (GuestMemory, '{"id": "lxc/101", "announced": [[]]}'),
        (Box, '{"pair": [1]}'),
        (Box, '{"pair": [1, "a"], "counts": []}'),
        (Box, '{"pair": [1, "a"], "either": []}'),
        (Box, '{"pair": [1, "a"], "colour": true}'),
        (type(None), "0"),
    ],
)
def test_what_does_not_fit_is_refused(kind: type, text: str | bytes) -> None:
    with pytest.raises(ValueError):
        codec.loads(kind, text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Path("/"), {1: 2}, b"x", NodeMemory(mass_stop_until=float("inf"))])
def test_what_cannot_be_written_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        codec.dumps(value)


@pytest.mark.parametrize("hint", [list[int], Path, set])
def test_hints_that_it_does_not_know(hint: Any) -> None:
    with pytest.raises(ValueError, match="does not know"):
        codec.decode(hint, [])


def test_plain_hints() -> None:
    assert codec.decode(type(None), None) is None
    assert codec.decode(bool, True) is True
