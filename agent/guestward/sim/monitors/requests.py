"""What the agent asked the root helper for, what became of it, and what it heard of that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from guestward.model.helper import TRIED, Answer

if TYPE_CHECKING:
    from guestward.sim.monitors.past import Snap

STEPS = frozenset({"unlock", "delete-snapshot"})
KEPT = 40  # of one guest: more than recovery asks for in a day


@dataclass(slots=True)
class Request:
    """One request. t: virtual seconds; at: seconds since host boot, of the boot with that number. life: of the agent.

    before: the world right before it. lock: the number of the guest's lock then (`Of.locks`); dangling_at: of its snapshot. result: of the
    effect. answer: what the agent heard; lost: it knows that it never will hear anything. told: that it was done was told, in which life.
    """

    verb: str
    vmid: int
    t: float
    at: float
    life: int
    boot: int
    before: Snap
    lock: int
    dangling_at: float
    result: str = ""
    answer: Answer | None = None
    lost: bool = False
    told: int = 0

    @property
    def tried(self) -> bool:
        """Whether the agent knows that it may have been done: an answer of the agent's own life that is no refusal, or none at all."""
        return self.lost if self.answer is None else self.answer.ok or self.answer.code in TRIED

    @property
    def refused(self) -> bool:
        """Whether the helper said no."""
        return self.answer is not None and not self.tried


@dataclass(slots=True)
class Requests:
    """All of them, oldest first. under_way: the one that is just being asked. reachable: whether the helper could be asked last."""

    of: dict[int, list[Request]] = field(default_factory=dict)
    under_way: Request | None = None
    reachable: bool = True

    def add(self, request: Request) -> None:
        """The agent begins to ask."""
        known = self.of.setdefault(request.vmid, [])
        known.append(request)
        del known[:-KEPT]
        self.under_way = request

    def not_sent(self, request: Request) -> None:
        """It could not, or did not live to; what reached the helper all the same stays."""
        self.under_way = None
        if not request.result:
            self.of[request.vmid].remove(request)

    def last(self, vmid: int, verb: str = "") -> Request | None:
        """The newest of that guest, of one verb or of any."""
        return next((request for request in reversed(self.of.get(vmid, ())) if verb in ("", request.verb)), None)

    def before(self, request: Request, verb: str) -> Request | None:
        """The newest of that verb that is older."""
        return next((one for one in reversed(self.of[request.vmid]) if one is not request and one.verb == verb), None)
