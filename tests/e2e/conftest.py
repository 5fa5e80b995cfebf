"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

pytest.register_assert_rewrite("tests.e2e.agent", "tests.e2e.side_by_side")

from .side_by_side import playing  # noqa: E402


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """How each scenario of this run goes; see `side_by_side`."""
    yield from playing(request.session.items, tmp_path_factory.mktemp("e2e"))
