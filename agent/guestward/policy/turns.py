"""In which order guests are started, and how many at once: PVE's own `startup` order, so that a NAS comes before its users (C15)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from guestward.model.guest import GuestId, Startup


@dataclass(frozen=True, slots=True)
class Turn:
    """A guest that is due, or under way."""

    id: GuestId
    startup: Startup

    @property
    def rank(self) -> float:
        """Its place; a guest without an order comes last (`startall`)."""
        return math.inf if self.startup.order is None else self.startup.order


def in_order(due: Iterable[Turn]) -> list[Turn]:
    """By order, then by VMID, as `startall` has it."""
    return sorted(due, key=lambda turn: (turn.rank, turn.id.vmid))


def whose_turn(due: Iterable[Turn], under_way: Sequence[Turn], parallel: int) -> list[Turn]:
    """Those who may be started now. A later order waits until all of an earlier one have ended, well or not."""
    waiting = in_order(due)
    if not waiting:
        return []
    rank = min([waiting[0].rank, *(turn.rank for turn in under_way)])
    free = max(0, parallel - len(under_way))
    return [turn for turn in waiting if turn.rank == rank][:free]
