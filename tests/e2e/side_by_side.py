"""Scenarios of a real process wait most of the time, so those that a run has selected are played side by side.

`@scenario` makes a test of a function that takes a `Stage`; the first such test of a run starts all of them in a few threads, and each
test then reports how its own went.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from guestward.demo.pvehost import PveHost

from .agent import Agent

AT_ONCE = 6 * (os.cpu_count() or 2)  # they wait most of the time; more of them make each other late
LONGEST = 300.0


@dataclass
class Stage:
    """What a scenario is given: a folder, a host that already serves, agents on demand; all of it is ended afterwards."""

    folder: Path
    stack: ExitStack
    host: PveHost = field(init=False)
    agents: int = 0

    def __post_init__(self) -> None:
        """Start the host."""
        self.host = self.another_host("host")

    def another_host(self, name: str, **options: Any) -> PveHost:
        """One more host."""
        return self.stack.enter_context(PveHost(self.folder / name, **options))

    def agent_of(self, environ: dict[str, str] | None = None, host: PveHost | None = None, **settings: dict[str, object]) -> Agent:
        """An agent that is not started yet; enter it to start it."""
        self.agents += 1
        return Agent(host or self.host, self.folder / f"agent{self.agents}", environ or {}, settings)

    def agent(self, environ: dict[str, str] | None = None, host: PveHost | None = None, **settings: dict[str, object]) -> Agent:
        """An agent that has made its first sweep."""
        agent = self.stack.enter_context(self.agent_of(environ, host, **settings))
        agent.wait_for("daemon_started")
        agent.until_swept(1)
        return agent


def scenario(play: Callable[..., None]) -> Callable[..., None]:
    """Make a test of it. Further parameters are pytest's, from `parametrize`."""

    def test(**given: Any) -> None:
        outcomes, request = given["outcomes"], given["request"]
        outcomes[request.node.nodeid].result(LONGEST)

    plays = inspect.signature(play).parameters
    names = ["outcomes", "request", *list(plays)[1:]]
    test.__name__, test.__qualname__, test.__doc__, test.__module__ = play.__name__, play.__qualname__, play.__doc__, play.__module__
    test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    test.play = play  # type: ignore[attr-defined]
    return test


def _play(play: Callable[..., None], folder: Path, given: dict[str, Any]) -> None:
    with ExitStack() as stack:
        play(Stage(folder, stack), **given)


def playing(items: Sequence[pytest.Item], folder: Path) -> Iterator[dict[str, Future[None]]]:
    """Start the scenarios among these tests, those marked `long` first; yields how each goes."""
    found = [item for item in items if hasattr(getattr(item, "function", None), "play")]
    found.sort(key=lambda item: item.function.play.__name__ not in LONG)  # type: ignore[attr-defined]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="scenario") as pool:
        outcomes = {}
        for number, item in enumerate(found):
            given = dict(getattr(item, "callspec").params) if hasattr(item, "callspec") else {}  # noqa: B009
            outcomes[item.nodeid] = pool.submit(_play, item.function.play, folder / str(number), given)  # type: ignore[attr-defined]
        yield outcomes
        for outcome in outcomes.values():
            outcome.cancel()


LONG: set[str] = set()


def long(play: Callable[..., None]) -> Callable[..., None]:
    """Begin with this one, since it takes long."""
    LONG.add(play.__name__)
    return play
