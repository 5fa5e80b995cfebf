"""`hold`, `release`, `rearm`: an operator's wishes, written into the agent's state; it takes them up at its next look."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from guestward.adapters import store
from guestward.cli.output import OK, USAGE, Answer, CommandError, span
from guestward.cli.show import find
from guestward.config import Config, duration
from guestward.model.memory import Hold
from guestward.ports import Board, Clock

T = TypeVar("T")
LONGEST = 366 * 86400.0


def hold(config: Config, clock: Clock, vmid: int | None, how_long: str, reason: str, by: str) -> Answer:
    """`guestward hold [VMID] --for 2h --reason TEXT`: nothing is started until it ends; it ends by itself."""
    try:
        seconds = duration(how_long)
    except ValueError as error:
        raise CommandError("usage", f"--for {how_long}: {error}", exit_code=USAGE) from None
    if not 0 < seconds <= LONGEST:
        raise CommandError("usage", f"--for {how_long}: a hold lasts from 1s to 366d", exit_code=USAGE)
    board = _known(config, vmid)
    wish = Hold(vmid, reason, by, seconds, clock.boot_id(), clock.boottime(), clock.wall())
    _try(lambda: store.add_hold(config.state.dir, wish))
    data = {"scope": "node" if vmid is None else vmid, "for_s": seconds, "by": by, "reason": reason}
    text = f"{_scope(vmid)} held for {span(seconds)}. It ends by itself, or with: guestward release{'' if vmid is None else f' {vmid}'}"
    return Answer(_node(board, config), text, data, OK, _when(board, config, clock))


def release(config: Config, clock: Clock, vmid: int | None) -> Answer:
    """`guestward release [VMID]`."""
    board = _board(config)
    found = _try(lambda: store.remove_hold(config.state.dir, vmid))
    text = f"{_scope(vmid)} no longer held" if found is not None else f"nothing changed: {_scope(vmid)} not held"
    note = "" if found is None else _when(board, config, clock)
    return Answer(_node(board, config), text, {"scope": "node" if vmid is None else vmid, "changed": found is not None}, OK, note)


def rearm(config: Config, clock: Clock, vmid: int) -> Answer:
    """`guestward rearm VMID`: the guest has all its attempts again."""
    board = _known(config, vmid)
    _try(lambda: store.request_rearm(config.state.dir, vmid))
    text = f"guest {vmid} gets all its attempts again with the next sweep"
    return Answer(_node(board, config), text, {"vmid": vmid}, OK, _when(board, config, clock))


def _known(config: Config, vmid: int | None) -> Board | None:
    """Refuse a VMID that is not there; without a look nobody can tell."""
    board = _board(config)
    if board is not None and vmid is not None:
        find(board, vmid)
    return board


def _board(config: Config) -> Board | None:
    return _try(lambda: store.read_board(config.state.dir))


def _try(do: Callable[[], T]) -> T:
    try:
        return do()
    except store.StoreUnavailable as error:
        raise CommandError("state", str(error), getattr(error, "advice", "")) from None


def _node(board: Board | None, config: Config) -> str:
    return board.node if board is not None else config.pve.node


def _scope(vmid: int | None) -> str:
    return "the whole node is" if vmid is None else f"guest {vmid} is"


def _when(board: Board | None, config: Config, clock: Clock) -> str:
    """Said where it will not come true soon: nobody takes the wish up while no agent runs."""
    interval = config.watchdog.interval
    fresh = board is not None and board.boot_id == clock.boot_id() and clock.boottime() - board.at <= 2 * interval + 60
    return "" if fresh else "The agent does not seem to run; this takes effect as soon as it does."
