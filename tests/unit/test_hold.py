"""When a hold ends: by boot time within its boot, by wall time in later ones (I16)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.build import AT, WALL, hold

HELD = hold(101, duration=3600)


@pytest.mark.parametrize(
    ("passed", "jump", "left"),
    [(0, 0, 3600), (600, 0, 3000), (3600, 0, 0), (4000, 0, -400), (600, 10_800, 3000), (600, -10_800, 3000), (600, 3.2e8, 3000)],
)
def test_within_its_boot_it_ends_by_boot_time_whatever_the_wall_clock_does(passed: float, jump: float, left: float) -> None:
    assert HELD.remaining("boot-1", AT + passed, WALL + passed + jump) == left


@pytest.mark.parametrize(("passed", "left"), [(0, 3600), (600, 3000), (3600, 0), (7200, -3600)])
def test_in_a_later_boot_it_ends_by_wall_time(passed: float, left: float) -> None:
    """Boot time begins anew, and may even be the same number."""
    for boottime in (5.0, AT, AT + 10_000):
        assert HELD.remaining("boot-2", boottime, WALL + passed) == left


@pytest.mark.parametrize("behind", [0.5, 3600, 1e9])
def test_it_lasts_on_while_the_wall_clock_is_behind_its_own_writing(behind: float) -> None:
    """A dead RTC battery: nobody can say how long ago that was, so it is still in force."""
    assert HELD.remaining("boot-2", 5.0, WALL - behind) > 0


@given(
    duration=st.integers(1, 10**6),
    boottime=st.integers(0, 10**7),
    wall=st.integers(0, 4 * 10**9),
    boot=st.sampled_from(["boot-1", "boot-2"]),
)
def test_it_never_lasts_longer_than_it_was_made_for(duration: int, boottime: int, wall: int, boot: str) -> None:
    """Counted from a moment that is not before its writing."""
    later = max(boottime, AT) if boot == "boot-1" else boottime
    assert hold(101, duration).remaining(boot, later, wall) <= duration
