"""`hold`, `release`, `rearm`: an operator's wishes, written into the agent's state; it takes them up at its next look.

`scratch claim` and `scratch teardown` are written down at the same desk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from guestward.adapters import store
from guestward.adapters.clock import node_name
from guestward.cli.output import OK, USAGE, Answer, CommandError, Table, moment, span
from guestward.cli.show import PATIENCE, find, hold_words, lasting, noun, scope, unavailable
from guestward.config import Config, duration
from guestward.model.decision import Guard
from guestward.model.memory import Hold
from guestward.model.task import bounded
from guestward.ports import Board, Clock, Row

T = TypeVar("T")
LONGEST = 366 * 86400.0
NO_AGENT = "The agent does not seem to run; this takes effect as soon as it does. systemctl status guestward; journalctl -u guestward"

# HELD too, where it is `operator_stop` and no hold that says it.
_ENDED_BY_REARM = frozenset({Guard.RUNNING, Guard.START, Guard.BACKOFF, Guard.EXHAUSTED, Guard.NEW_HERE})


@dataclass(frozen=True, slots=True)
class Desk:
    """Where wishes are written down, and what is known there: the last look and the holds that last."""

    config: Config
    clock: Clock
    board: Board | None
    holds: tuple[tuple[Hold, float], ...]

    @classmethod
    def open(cls, config: Config, clock: Clock) -> Desk:
        """Read what is there. Raises CommandError; a look that cannot be read, as after an upgrade, is no reason to refuse a hold."""
        holds = lasting(attempt(lambda: store.list_holds(config.state.dir)), clock)
        try:
            board = store.read_board(config.state.dir)
        except store.StoreUnavailable:
            board = None
        return cls(config, clock, board, holds)

    def row(self, vmid: int | None) -> Row | None:
        """The guest at the last look; None for the node, or when nobody has looked. Raises CommandError for an unknown VMID."""
        looked = self.board is not None and self.board.seen_at is not None
        return find(self.board, vmid, self.config) if self.board is not None and looked and vmid is not None else None

    def hold_on(self, vmid: int | None) -> tuple[Hold, float] | None:
        """The hold that lasts on a guest, or on the node."""
        return next((entry for entry in self.holds if entry[0].vmid == vmid), None)

    def agent_runs(self) -> bool:
        """Whether somebody is there to take a wish up soon."""
        board, limit = self.board, 2 * self.config.watchdog.interval + PATIENCE
        return board is not None and not board.ended and board.boot_id == self.clock.boot_id() and self.clock.boottime() - board.at <= limit

    def replaced(self, wish: Hold) -> Iterator[str]:
        """That there was a hold or a claim already, of which there is one for each guest."""
        before = self.hold_on(wish.vmid)
        if before is not None:
            yield f"this replaces the {noun(before[0])} {hold_words(*before, wish.wall)}"

    def answer(self, lines: Iterable[str | Table], data: dict[str, Any]) -> Answer:
        """The answer, with a warning where nobody takes the wish up."""
        runs = self.agent_runs()
        node = self.config.pve.node if self.config.pve.node != "auto" else node_name()
        data = {**data, "agent_runs": runs}
        return Answer(node, self.clock.wall(), tuple(lines), data, OK, "" if runs or not data["changed"] else NO_AGENT)


def hold(config: Config, clock: Clock, vmid: int | None, how_long: str, reason: str, by: str) -> Answer:
    """`guestward hold [VMID] --for 2h --reason TEXT`: nothing is started until it ends; it ends by itself."""
    seconds = seconds_of(how_long)
    desk = Desk.open(config, clock)
    row = desk.row(vmid)
    wish = Hold(vmid, bounded(reason, 200), bounded(by, 80), seconds, clock.boot_id(), clock.boottime(), clock.wall())
    attempt(lambda: store.add_hold(config.state.dir, wish))
    ends = wish.wall + seconds
    lines = [f"{scope(vmid)} is held until {moment(ends)}, for {span(seconds)}; by {wish.by}: {wish.reason or 'no reason given'}"]
    lines += desk.replaced(wish)
    if config.rules().in_scratch_band(vmid or 0):
        lines.append("it is in the scratch band, where nothing is started anyway; it is not torn down meanwhile")
    elif row is not None and not row.owned:
        lines.append(f"it is not guarded anyway ({row.decision.evidence})")
    lines.append(f"it ends by itself, or with: guestward release{'' if vmid is None else f' {vmid}'}")
    data = {
        "scope": "node" if vmid is None else vmid,
        "changed": True,
        "for_s": seconds,
        "until": round(ends),
        "by": wish.by,
        "reason": wish.reason,
        "replaced": desk.hold_on(vmid) is not None,
    }
    return desk.answer(lines, data)


def seconds_of(how_long: str, command: str = "hold") -> float:
    """The value of `--for`. command: whose it is. Raises CommandError."""
    hint = f"guestward {command} --help"
    try:
        seconds = duration(how_long if how_long.isascii() else "")
    except ValueError as error:
        raise CommandError("usage", f"--for {bounded(how_long, 40)}: {error}", hint, USAGE) from None
    if not 1 <= seconds <= LONGEST:
        raise CommandError("usage", f"--for {how_long}: a {command.rpartition(' ')[2]} lasts from 1s to 366d", hint, USAGE)
    return seconds


def release(config: Config, clock: Clock, vmid: int | None) -> Answer:
    """`guestward release [VMID]`: of a hold or a claim. That of a guest that is gone, or not there yet, can be released too."""
    desk = Desk.open(config, clock)
    lasted = desk.hold_on(vmid)
    in_band = config.rules().in_scratch_band(vmid or 0)
    if lasted is None and not in_band:
        desk.row(vmid)
    changed = attempt(lambda: store.remove_hold(config.state.dir, vmid)) is not None and lasted is not None
    lines = [f"nothing changed: {scope(vmid)} is not held{' or claimed' if in_band else ''}"]
    if changed and lasted is not None:
        state = "claimed" if lasted[0].claim else "held"
        lines = [f"{scope(vmid)} is no longer {state}; ended: the {noun(lasted[0])} {hold_words(*lasted, clock.wall())}"]
    node = desk.hold_on(None)
    if vmid is not None and node is not None:
        lines.append(f"the whole node is held, and this guest with it: {hold_words(*node, clock.wall())}; end that: guestward release")
    file = os.path.join(config.host.root, "etc/guestward/hold")
    if os.path.lexists(file):
        lines.append(f"the file {file} holds the whole node, until it is removed")
    return desk.answer(lines, {"scope": "node" if vmid is None else vmid, "changed": changed})


def rearm(config: Config, clock: Clock, vmid: int) -> Answer:
    """`guestward rearm VMID`: the guest has all its attempts again."""
    desk = Desk.open(config, clock)
    row = desk.row(vmid)
    attempt(lambda: store.request_rearm(config.state.dir, vmid))
    had = f" ({row.attempts} of {config.watchdog.attempts} are used now)" if row is not None else ""
    soon = f", within {span(config.watchdog.interval)}" if desk.agent_runs() else ""
    lines = [f"guest {vmid} gets all its attempts again with the next sweep{soon}{had}"]
    ends = _ENDED_BY_REARM if desk.hold_on(vmid) is not None else _ENDED_BY_REARM | {Guard.HELD}
    if row is not None and row.decision.guard not in ends:
        lines.append(f"other guards go on; at the last look: {row.decision.guard} ({row.decision.evidence})")
    return desk.answer(lines, {"vmid": vmid, "changed": True})


def attempt(do: Callable[[], T]) -> T:
    """Read or write the agent's state. Raises CommandError where that cannot be."""
    try:
        return do()
    except store.StoreUnavailable as error:
        raise unavailable(error) from None
