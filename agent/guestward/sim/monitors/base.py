"""What a monitor is, and how it says that an invariant does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn, Protocol

from guestward.sim.log import Effect, Logged

if TYPE_CHECKING:
    from guestward.sim.monitors.past import Past


class BrokenError(BaseException):
    """An invariant does not hold. A BaseException, so that no duty can catch it."""

    def __init__(self, invariant: str, rule: str, message: str) -> None:
        """invariant: its name; rule: what it says; message: what happened instead."""
        super().__init__(message)
        self.invariant, self.rule, self.message = invariant, rule, message


class Monitor(Protocol):
    """Watches a run. Each method may raise BrokenError; nothing else may leave it."""

    def effect(self, effect: Effect) -> None:
        """Something of the agent reached the world; the world is still as it was when the request arrived, or already changed by it."""
        ...

    def event(self, logged: Logged) -> None:
        """The agent said something."""
        ...

    def looked(self, job: str) -> None:
        """The agent ended one of its jobs: sweep, confirm or follow."""
        ...

    def end(self) -> None:
        """The run is over."""
        ...


class Watch:
    """A monitor that minds nothing yet. invariant: its name (I1 to I18, or a word). rule: what it says, for somebody who knows no name.

    judges: names of the events whose every claim it holds against the world.
    """

    invariant: ClassVar[str] = ""
    rule: ClassVar[str] = ""
    judges: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, past: Past) -> None:
        """past: what was true when, and what the agent asked."""
        self.past = past

    def effect(self, effect: Effect) -> None:
        """Something of the agent reached the world."""

    def event(self, logged: Logged) -> None:
        """The agent said something."""

    def looked(self, job: str) -> None:
        """The agent ended one of its jobs: sweep, confirm or follow."""

    def end(self) -> None:
        """The run is over."""

    def broken(self, message: str) -> NoReturn:
        """It does not hold. message: what happened, with guest, numbers and virtual times. Raises BrokenError, always."""
        raise BrokenError(self.invariant, self.rule, message)
