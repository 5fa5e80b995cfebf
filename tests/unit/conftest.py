"""For all unit tests: no monitor that breaks goes unnoticed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from guestward.sim.run import Simulation


def pytest_configure(config: pytest.Config) -> None:
    """A test whose simulation may end with a broken monitor says so, and judges that itself."""
    config.addinivalue_line("markers", "breaks_a_monitor: the test expects a violation, or judges for itself whether there is one")


@pytest.fixture(autouse=True)
def _no_monitor_is_mute(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test fails when one of its simulations ended with a violation that it does not expect, whatever else it looked at."""
    if request.node.get_closest_marker("breaks_a_monitor") is not None:
        yield
        return
    made: list[Simulation] = []
    begin = Simulation.__post_init__

    def noted(self: Simulation) -> None:
        made.append(self)
        begin(self)

    with pytest.MonkeyPatch.context() as patch:  # not the test's own, which has to be undone before its other fixtures are
        patch.setattr(Simulation, "__post_init__", noted)
        yield
    broken = [sim.violation for sim in made if sim.violation is not None]
    if broken:
        pytest.fail(f"a monitor broke: {broken[0].invariant}: {broken[0].message}", pytrace=False)
