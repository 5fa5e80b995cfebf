"""What goes wrong between the agent and PVE's API: refused connections, slow or lost answers, answers that are not PVE's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

METHODS = ("GET", "POST", "PUT", "DELETE")


class Trouble(StrEnum):
    """What a rule does to a call."""

    SLOW = "slow"
    HANG = "hang"
    FAULT = "fault"
    ANSWER = "answer"


@dataclass(slots=True)
class Rule:
    """One kind of trouble for the calls of a route: a path prefix, optionally after a method."""

    trouble: Trouble
    route: str
    seconds: float = 0.0
    status: int = 0
    body: str = ""
    once: bool = False

    def matches(self, method: str, path: str) -> bool:
        """Whether it is about this call."""
        wanted, _, prefix = self.route.rpartition(" ")
        return wanted in ("", method) and path.startswith(prefix)


@dataclass(slots=True)
class ApiState:
    """All rules in force; each lasts until `up`, or for one call."""

    is_down: bool = False
    rules: list[Rule] = field(default_factory=list)

    def down(self) -> None:
        """Nothing listens on port 8006."""
        self.is_down = True

    def up(self) -> None:
        """Everything works again."""
        self.is_down = False
        self.rules.clear()

    def slow(self, seconds: float, route: str = "") -> None:
        """Each answer takes that long."""
        self.rules.append(Rule(Trouble.SLOW, route, seconds=seconds))

    def hang(self, route: str = "") -> None:
        """The request is taken and never answered; it has no effect."""
        self.rules.append(Rule(Trouble.HANG, route))

    def fault(self, route: str, status: int, *, once: bool = False) -> None:
        """Answered with that HTTP status; it has no effect."""
        self.rules.append(Rule(Trouble.FAULT, route, status=status, once=once))

    def answer(self, route: str, body: str, *, once: bool = False) -> None:
        """Carried out and answered with 200 and something that is not PVE's: `null`, `html` or `empty`."""
        self.rules.append(Rule(Trouble.ANSWER, route, body=body, once=once))

    def met_by(self, method: str, path: str) -> Iterator[Rule]:
        """The rules that a call meets; those for one call are used up by it."""
        for rule in [rule for rule in self.rules if rule.matches(method, path)]:
            if rule.once:
                self.rules.remove(rule)
            yield rule
