"""The recorded time lines, state by state and view by view, against the simulated host.

Left out of the recordings:

- 3b-pre and 11b, in which nothing happens, and those of 8 that end as 8a, 8m or 8n do.
- 9b: a VM is reset, fails to reboot, is shut down by force, is suspended and resumed. No verb does any of it; nobody acts on these states
  before they are those of 9a, and a lock in the way of a stop is in 5d.
- 3b, 5b and 5d of PVE 8.4: they have the states of 9.1's, in the same order. Other load made the seconds others, of what the simulated host
  has one pace for: a container took 2.3 s to stop instead of 1.1 s.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.contract.timelines import FLEETING, Play, State, States, View, differences, gaps, load

TIMELINES = {timeline.id: timeline for timeline in load()}
PLAYED = [id for id, timeline in TIMELINES.items() if not timeline.not_modelled]
VIEWS = [(id, view.name) for id in PLAYED for view in TIMELINES[id].views]


@cache
def shown(id: str) -> dict[str, States]:
    return Play(TIMELINES[id]).run()


def view_of(id: str, name: str) -> View:
    return next(view for view in TIMELINES[id].views if view.name == name)


def compare(id: str, view: View) -> list[str]:
    return differences(view, shown(id)[view.name], TIMELINES[id].end, loose=bool(view.loose), pace=bool(view.pace))


@pytest.mark.parametrize("id", PLAYED)
def test_timeline(id: str) -> None:
    """What was recorded is shown in that order, within 0.6 s; what is shown besides is too short for the recording's pollers."""
    assert not (wrong := [text for view in TIMELINES[id].views for text in compare(id, view)]), "\n".join(wrong)


def test_what_is_shown_besides_was_recorded_elsewhere() -> None:
    """The simulated host has no state of its own."""
    recorded: dict[str, set[str]] = defaultdict(set)
    besides: dict[str, set[str]] = defaultdict(set)
    for id, name in VIEWS:
        recorded[name.partition("-")[0]] |= {state.state for state in view_of(id, name).states}
        besides[name.partition("-")[0]] |= {state for _, state in shown(id)[name]}
    rest = {kind: states - recorded[kind] for kind, states in besides.items()}
    assert {kind: states for kind, states in rest.items() if states} == {}


MARKED: list[tuple[str, str, dict[str, Any]]] = [
    *((id, view, {"loose": ""}) for id, view in VIEWS if view_of(id, view).loose),
    *((id, view, {"pace": ""}) for id, view in VIEWS if view_of(id, view).pace),
    *(
        (id, view, {"states": tuple(replace(s, simplified="") if s is one else s for s in view_of(id, view).states)})
        for id, view in VIEWS
        for one in view_of(id, view).states
        if one.simplified
    ),
]


@pytest.mark.parametrize(("id", "name", "without"), MARKED, ids=[f"{id}-{name}-{n}" for n, (id, name, _) in enumerate(MARKED)])
def test_every_simplification_is_one(id: str, name: str, without: dict[str, Any]) -> None:
    """Without its mark the time line would differ, so that a mark which is no longer true is found."""
    assert compare(id, replace(view_of(id, name), **without))


# Time for which something is so and that the watchdog lives by: recorded, and as simulated.
WINDOWS: dict[str, tuple[str, str, str, int, float]] = {
    "reboot from inside: stopped, unlocked, no task": ("2", "list-110", "stopped", 0, 0.9),
    "reboot through the API: stopped and unlocked": ("2", "list-110", "stopped", 1, 0.9),
    "reboot through the API: its task": ("2", "active", "vzreboot:110", 0, 2.0),
    "stop mode: stopped and unlocked": ("3b", "list-110", "stopped", 0, 0.9),
    "stop mode with a hook script: stopped and unlocked": ("3a", "list-110", "stopped", 0, 6.3),
    "stop mode: stopped under the lock": ("3b", "list-110", "stopped/backup", 0, 19.5),
    "status of a container that runs by now": ("1a", "pool-101", "stopped", 0, 10.3),
    "status of a container that is down by now": ("5a", "pool-110", "running", 0, 16.1),
    "running without a pid while a stop ends": ("1a", "current-101", "running no pid", 0, 0.9),
    "no answer while a container goes down": ("6c", "list-110", "500 reset", 0, 0.1),
    "seems to run while the start after a reboot fails": ("5c", "current-110", "running no pid/backup", 1, 0.1),
    "boot: the API answers before startall": ("11d", "list-110", "stopped/backup", 0, 0.6),
    "boot: nobody knows what runs": ("11d", "pool-101", "unknown", 0, 12.1),
    "restart of pvedaemon: refused": ("10a", "list-110", "refused", 0, 3.5),
    "restart of pveproxy: refused": ("10c", "list-110", "refused", 0, 1.3),
    "a start: its task": ("1a", "active", "vzstart:101", 0, 0.5),
}


@pytest.mark.parametrize("what", WINDOWS)
def test_window(what: str) -> None:
    id, name, state, number, seconds = WINDOWS[what]
    recorded = [(s.t, s.state) for s in view_of(id, name).states]
    one = [lasted for kind, lasted in gaps(recorded) if kind == state][number]
    other = [lasted for kind, lasted in gaps(shown(id)[name]) if kind == state][number]
    assert one == pytest.approx(seconds, abs=0.2)
    assert other == pytest.approx(one, abs=0.25)


def test_there_is_no_task_in_the_window_of_a_reboot_from_inside() -> None:
    """And the list has no lock: nothing but time tells it from a crash (timelines 2)."""
    play = Play(replace(TIMELINES["2"], end=3.0))
    seen = play.run()
    assert seen["active"] == [(0.0, "none")] and seen["config-110"] == [(0.0, "-")]


def test_views_are_not_compared_with_themselves() -> None:
    """The comparison sees a state too few, too many, another order and another time."""
    view = View("list-1", (State(0.0, "a"), State(5.0, "b"), State(10.0, "a")))
    assert not differences(view, [(0.0, "a"), (5.1, "b"), (9.9, "a")], 20.0)
    assert not differences(view, [(0.0, "a"), (5.0 - FLEETING / 2, "c"), (5.1, "b"), (9.9, "a")], 20.0)
    for wrong in (
        [(0.0, "a")],
        [(0.0, "a"), (5.0, "b")],
        [(0.0, "a"), (7.0, "b"), (10.0, "a")],
        [(0.0, "a"), (3.0, "c"), (5.0, "b"), (10.0, "a")],
        [(0.0, "b"), (5.0, "a"), (10.0, "b")],
    ):
        assert differences(view, wrong, 20.0), wrong
