"""The invariants I1 to I18 of the field cases, as small classes over what reached the world and what was said, in force in every run."""

from __future__ import annotations

from collections.abc import Iterable

from guestward.sim.log import Effect, Logged
from guestward.sim.monitors import attempts, claims, liveness, lockclaims, locks, scratch, starts, telling
from guestward.sim.monitors.base import Monitor, Watch
from guestward.sim.monitors.past import Past

# Claims come before what notes them as made.
CLASSES: tuple[type[Watch], ...] = (
    *scratch.ALL,
    *locks.ALL,
    *starts.ALL,
    *claims.ALL,
    *lockclaims.ALL,
    *attempts.ALL,
    *telling.ALL,
    *liveness.ALL,
)


class Panel:
    """Many monitors as one that asks each only what it minds."""

    def __init__(self, watches: Iterable[Watch]) -> None:
        """watches: in the order in which they are asked."""
        self.watches = tuple(watches)
        self._effect = tuple(watch.effect for watch in self.watches if type(watch).effect is not Watch.effect)
        self._event = tuple(watch.event for watch in self.watches if type(watch).event is not Watch.event)
        self._looked = tuple(watch.looked for watch in self.watches if type(watch).looked is not Watch.looked)

    def effect(self, effect: Effect) -> None:
        """Something of the agent reached the world."""
        for ask in self._effect:
            ask(effect)

    def event(self, logged: Logged) -> None:
        """The agent said something."""
        for ask in self._event:
            ask(logged)

    def looked(self, job: str) -> None:
        """The agent ended one of its jobs."""
        for ask in self._looked:
            ask(job)

    def end(self) -> None:
        """The run is over."""
        for watch in self.watches:
            watch.end()


def standard_monitors(past: Past) -> tuple[Monitor, ...]:
    """All monitors, for an agent that has not been started yet and whose doors go through `past`, which is asked before all others."""
    return (past, Panel(kind(past) for kind in CLASSES))
