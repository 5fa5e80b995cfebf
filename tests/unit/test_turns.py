"""In which order guests are started, and how many at once (C15, C76)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from guestward.model.guest import GuestId, GuestKind, Startup
from guestward.policy.turns import Turn, in_order, whose_turn


def turn(vmid: int, order: int | None = None, kind: GuestKind = GuestKind.LXC) -> Turn:
    return Turn(GuestId(kind, vmid), Startup(order))


def vmids(turns: list[Turn]) -> list[int]:
    return [t.id.vmid for t in turns]


turns = st.lists(
    st.builds(turn, st.integers(100, 130), st.one_of(st.none(), st.integers(0, 4)), st.sampled_from(GuestKind)),
    unique_by=lambda t: t.id,
    max_size=12,
)


def test_by_order_then_by_vmid_and_without_an_order_last() -> None:
    due = [turn(101), turn(105, 2), turn(104, 1), turn(103, 2), turn(102, 0), turn(100)]
    assert vmids(in_order(due)) == [102, 104, 103, 105, 100, 101]


def test_nobody_is_due() -> None:
    assert whose_turn([], [turn(101)], 2) == []


def test_those_of_the_lowest_order_go_first_and_at_most_so_many_at_once() -> None:
    due = [turn(101, 1), turn(102, 1), turn(103, 1), turn(104, 2)]
    assert vmids(whose_turn(due, [], 2)) == [101, 102]
    assert vmids(whose_turn(due, [turn(100, 1)], 2)) == [101]
    assert vmids(whose_turn(due, [turn(99, 1), turn(100, 1)], 2)) == []


def test_a_later_order_waits_until_an_earlier_one_has_ended() -> None:
    assert whose_turn([turn(102, 2)], [turn(101, 1)], 2) == []
    assert whose_turn([turn(102)], [turn(101, 1)], 2) == []
    assert vmids(whose_turn([turn(102, 2)], [], 2)) == [102]


def test_an_earlier_order_that_turns_up_late_does_not_wait_for_a_later_one() -> None:
    assert vmids(whose_turn([turn(101, 1)], [turn(102, 2)], 2)) == [101]


@given(turns, turns, st.integers(1, 4))
def test_whoever_is_waiting_and_under_way(due: list[Turn], under_way: list[Turn], parallel: int) -> None:
    """Never more at once than allowed, never before an earlier order has ended, and never nobody when nothing is under way."""
    now = whose_turn(due, under_way, parallel)
    assert len(now) + len(under_way) <= max(parallel, len(under_way))
    assert all(t in due for t in now)
    assert all(t.rank <= other.rank for t in now for other in (*due, *under_way))
    assert now == in_order(now)
    assert bool(now) or not due or under_way
