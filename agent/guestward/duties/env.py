"""What a duty is given: the doors to the world and the configuration in force."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from guestward.config import Config
from guestward.model.events import Notice
from guestward.ports import Board, Clock, GuestLabel, Helper, HostWitness, Journal, Pve, Store


@dataclass(slots=True)
class Env:
    """The doors. The configuration may be exchanged between two looks."""

    clock: Clock
    pve: Pve
    host: HostWitness
    store: Store
    journal: Journal
    config: Config
    helper: Helper

    def tell(self, notices: tuple[Notice, ...]) -> None:
        """Log what a decision wants told."""
        for notice in notices:
            label = GuestLabel(notice.id, notice.name, notice.guard)
            self.journal.emit(notice.event, notice.level, message=f"{notice.id} {notice.message}", guest=label, **dict(notice.fields))


class Result(StrEnum):
    """How a look ended: only a complete one counts as having watched the guests (I6)."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Report:
    """What a run of the duty asks of its caller.

    board: None before the first look. result: None for a run that was no sweep. confirm_at: seconds since host boot at which guests
    seen stopped once want their second look. busy: an attempt is under way or waits for its turn, so that `follow` is to be called
    about once a second.
    """

    board: Board | None
    result: Result | None = None
    duration: float = 0.0
    confirm_at: float | None = None
    busy: bool = False
