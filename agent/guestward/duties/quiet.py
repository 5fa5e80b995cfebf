"""Quiet guests: those of which a look says just what the one before said. They cost it nothing until something wakes them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from guestward.model.decision import Gate
from guestward.model.guest import GuestId
from guestward.model.observation import Observation
from guestward.model.reading import Unreadable
from guestward.model.rules import Rules
from guestward.ports import Row


@dataclass(slots=True)
class Quiet:
    """Which guests of the list are quiet, with their rows on the board, and which are awake: to be recalled and decided.

    Quiet is whom a look left as it was, if `recall.lasting` holds: then the next look comes to the same as long as it sees the same. It
    wakes when its memory or decision is changed outside of a look (`wake`), and at a look that sees otherwise than the last one what
    memory (`wake_changed`) or decision (`wake_stopped`) depend on.
    """

    rows: dict[GuestId, Row] = field(default_factory=dict)
    awake: set[GuestId] = field(default_factory=set)
    rules: Rules | None = None
    around: tuple[object, ...] = ()

    def wake(self, id: GuestId) -> None:
        """It was changed."""
        if self.rows.pop(id, None) is not None:
            self.awake.add(id)

    def wake_all(self) -> None:
        """Nothing said of any guest is worth keeping."""
        self.awake.update(self.rows)
        self.rows.clear()

    def wake_changed(self, seen: Observation, last: Observation | None, rules: Rules, holds: Container[int | None]) -> None:
        """Those of whom their memory, or one of the guards before HA, may say otherwise than at the last look."""
        now, then = _stamps(seen), _stamps(last)
        if last is None or now is None or then is None or rules is not self.rules or seen.frozen != last.frozen:
            self.wake_all()
        else:
            self._wake_differing(seen.guests, last.guests)
            self._wake_differing(seen.members, last.members)
            self._wake_differing(now, then)
            for id, config in seen.configs.items():
                if config is not last.configs.get(id):  # however alike: the row says when it was read
                    self.wake(id)
            for id in [id for id in self.rows if id.vmid in holds] if holds else ():  # the evidence says how long a hold still lasts
                self.wake(id)
        if last is None or seen.guests is not last.guests:
            self.awake = seen.guests.keys() - self.rows.keys()
        self.rules = rules

    def _wake_differing(self, now: Mapping[GuestId, object], then: Mapping[GuestId, object]) -> None:
        if now is not then:
            for id in [id for id in self.rows if now.get(id) != then.get(id)]:
                self.wake(id)

    def wake_stopped(self, seen: Observation, gate: Gate) -> None:
        """Of a running guest nothing more is asked; of the others every guard says something, and some look around."""
        around = (gate.evidence, seen.tasks, seen.resources, seen.backups)
        if around != self.around:
            for id in [id for id in self.rows if not seen.guests[id].running]:
                self.wake(id)
        self.around = around

    def in_order(self, listed: Mapping[GuestId, object]) -> list[GuestId]:
        """Those of the list that are awake, in its order: that of the log."""
        return [id for id in listed if id in self.awake] if self.awake else []

    def keep(self, row: Row) -> None:
        """This guest is quiet from now on."""
        id = row.decision.id
        self.awake.discard(id)
        self.rows[id] = row


def _stamps(seen: Observation | None) -> Mapping[GuestId, str] | None:
    """None where they cannot be read: then it is asked at every look whether a guest is still the same."""
    return None if seen is None or isinstance(seen.host.names, Unreadable) else seen.host.names.here
