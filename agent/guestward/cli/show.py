"""`status` and `explain`: the agent's last look, read from its state; PVE is not asked."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guestward.adapters import store
from guestward.cli.output import FAILED, GRANTS, OK, USAGE, Answer, CommandError, Table, count, moment, span
from guestward.cli.proof import lock_data, next_words, proof_of
from guestward.config import Config
from guestward.model.decision import GUARD_MEANING, Guard, Verdict
from guestward.model.locks import LockDecision
from guestward.model.memory import Hold
from guestward.model.observation import NOT_READ
from guestward.policy.rights import REPAIR
from guestward.ports import Board, Clock, Row

NOT_RUNNING = "Is the agent running? systemctl status guestward; journalctl -u guestward"
PATIENCE = 60.0  # seconds beyond two sweeps until a look counts as old


@dataclass(frozen=True, slots=True)
class View:
    """The last look and how old it is now. now: in the look's own time, which is seconds since the host boot in which it was made.

    age: seconds since guests were seen; None when they never were, or nobody can say.
    """

    board: Board
    config: Config
    holds: tuple[tuple[Hold, float], ...]
    now: float
    wall: float
    same_boot: bool
    age: float | None

    @property
    def alive(self) -> bool:
        """Whether the agent has looked lately, whatever it saw."""
        return self.same_boot and not self.board.ended and self.now - self.board.at <= self.limit

    @property
    def stale(self) -> bool:
        """Whether guests have not been seen for longer than two sweeps: then nobody guards them."""
        return not self.same_boot or self.age is None or self.age > self.limit

    @property
    def limit(self) -> float:
        """Age in seconds beyond which a look is old."""
        return 2 * self.config.watchdog.interval + PATIENCE

    @property
    def acting(self) -> bool:
        """Whether what was planned at the last look is going to happen."""
        return not self.stale and not self.board.aborted and not self.board.ended

    @property
    def verdict(self) -> int:
        """The exit code: whether guests are guarded."""
        if not self.acting:
            return FAILED
        return GRANTS if self.board.lost else OK

    def since(self, at: float) -> float:
        """Seconds since a moment of the look's boot."""
        return max(0.0, self.now - at)

    def next_in(self, row: Row) -> float | None:
        """Seconds until the next step for this guest; None when none is planned, or nobody is there to make it."""
        planned = row.decision.next_at
        return None if planned is None or not self.acting else max(0.0, planned - self.now)

    def hold_on(self, vmid: int | None) -> tuple[Hold, float] | None:
        """The hold on a guest, or with None on the node, and the seconds that it still lasts."""
        return next((entry for entry in self.holds if entry[0].vmid == vmid), None)


def view(config: Config, clock: Clock) -> View:
    """Read the last look. Raises CommandError when there is none."""
    try:
        board = store.read_board(config.state.dir)
        holds = lasting(store.list_holds(config.state.dir), clock)
    except store.StoreUnavailable as error:
        raise unavailable(error) from None
    if board is None:
        raise CommandError("no_look", f"the agent has not looked at any guest yet (nothing is in {config.state.dir})", NOT_RUNNING)
    same_boot = board.boot_id == clock.boot_id()
    wall = clock.wall()
    now = clock.boottime() if same_boot else board.at + max(0.0, wall - board.wall)
    known = board.seen_at is not None and (same_boot or wall >= board.wall)
    age = max(0.0, now - board.seen_at) if known and board.seen_at is not None else None
    return View(board, config, holds, now, wall, same_boot, age)


def lasting(holds: tuple[Hold, ...], clock: Clock) -> tuple[tuple[Hold, float], ...]:
    """The holds that have not ended, each with the seconds that it still lasts."""
    now = (clock.boot_id(), clock.boottime(), clock.wall())
    return tuple((hold, left) for hold in holds if (left := hold.remaining(*now)) > 0)


def unavailable(error: store.StoreUnavailable) -> CommandError:
    """The state cannot be read or written."""
    return CommandError("state", error.message, error.advice or NOT_RUNNING)


def find(board: Board, vmid: int, config: Config) -> Row:
    """The row of a guest. Raises CommandError for a VMID that is not on this node or not visible to the token."""
    rows = [row for row in board.rows if row.decision.id.vmid == vmid]
    if not rows:
        where = _whereabouts(config, vmid)
        hint = "`guestward status` lists the guests that are guarded; `pvesh get /cluster/resources --type vm` lists all"
        if where == board.node:
            pool = config.scope.pools[0]
            hint = f"put it there, if it is to be guarded: pvesh set /pools/{pool} -vms {vmid}; the next look sees it then"
        pools = ", ".join(config.scope.pools)
        message = {
            "": f"no guest {vmid} was seen on node {board.node} at the last look",
            board.node: f"guest {vmid} is not guarded: the agent's token does not see it; in the pools {pools} it would",
        }.get(where, f"guest {vmid} is on node {where}; this is node {board.node}, whose agent has no business with it")
        raise CommandError("unknown_vmid", message, hint, USAGE)
    return next((row for row in rows if row.owned), rows[0])


def _whereabouts(config: Config, vmid: int) -> str:
    """The node that has a guest with this VMID, as its configuration file under /etc/pve says; "" when there is none, or nobody can say."""
    pattern = os.path.join(glob.escape(str(config.host.root)), "etc/pve/nodes/*/*", f"{vmid}.conf")
    found = [Path(name).parts for name in glob.iglob(pattern)]
    return next((parts[-3] for parts in found if parts[-2] in ("lxc", "qemu-server")), "")


def status(config: Config, clock: Clock) -> Answer:
    """`guestward status`."""
    seen = view(config, clock)
    board = seen.board
    rows = [row for row in board.rows if row.owned]
    data = {
        "agent": _agent_data(seen),
        "host_gate": [{"reason": str(closure.reason), "evidence": closure.evidence} for closure in board.gate.closures],
        "holds": [hold_data(hold, left, seen.wall) for hold, left in seen.holds],
        "grants_missing": list(board.lost),
        "guests": [guest_data(seen, row) for row in rows],
    }
    parts = (*_head(seen), "", *_guests(seen, rows))
    return Answer(board.node, seen.wall, parts, data, seen.verdict, warning(seen))


def _head(seen: View) -> Iterator[str]:
    board = seen.board
    yield f"node {board.node}: {freshness(seen)}"
    if board.seen_at is None:
        yield "host gate: not known yet"
    elif seen.same_boot:
        yield f"host gate: {'open' if board.gate.open else 'CLOSED, nothing is started - ' + board.gate.evidence}"
        yield from (f"host: {warning}" for warning in board.gate.warnings)
    for hold, left in seen.holds:
        late = "" if board.seen_at is not None and _taken_up(seen, hold) else " (from the agent's next look on)"
        yield f"{noun(hold)}: {scope(hold.vmid)}, {hold_words(hold, left, seen.wall)}{late}"
    if board.lost:
        yield f"grants MISSING: {grants_words(board.lost)}; {REPAIR}"


def _taken_up(seen: View, hold: Hold) -> bool:
    return hold.boot_id != seen.board.boot_id or (seen.board.seen_at or 0.0) >= hold.boottime


def _guests(seen: View, rows: list[Row]) -> Iterator[str | Table]:
    if seen.board.seen_at is None:
        yield "guests: not known yet"
        return
    if not rows:
        yield "no guests in the pools " + ", ".join(seen.config.scope.pools)
        return
    yield Table([("GUEST", "NAME", "STATUS", "GUARD", "STARTS", "NEXT", "WHY"), *(_line(seen, row) for row in rows)], shrink=1)
    yield ""
    down = sum(not row.running for row in rows)
    given_up = sum(row.given_up for row in rows)
    others = len(seen.board.rows) - len(rows)
    words = f"{count(len(rows), 'guest')}{'' if seen.acting else ' as last seen'}: {len(rows) - down} running, {down} stopped"
    words += f", {given_up} GIVEN UP" if given_up else ""
    yield words + (f"; {others} more on this node in no pool of ours" if others else "")


def _line(seen: View, row: Row) -> tuple[object, ...]:
    decision = row.decision
    why = f"does not work: {row.not_working}" if row.not_working else "" if decision.guard is Guard.RUNNING else decision.evidence
    starts = f"{row.attempts}/{seen.config.watchdog.attempts}" if row.attempts else "-"
    return str(decision.id), decision.name, _state(row), decision.guard, starts, span(seen.next_in(row)), why


def _state(row: Row) -> str:
    return "running" if row.running else "stopped"


def explain(config: Config, clock: Clock, vmid: int) -> Answer:
    """`guestward explain VMID`."""
    seen = view(config, clock)
    row = find(seen.board, vmid, config)
    facts = Table([*_facts(seen, row)])
    head = ("", "GUARD", "VERDICT", "AGE", "EVIDENCE")
    verdicts = Table([head, *(_verdict_line(seen, row, verdict) for verdict in row.decision.verdicts)])
    data = {
        **guest_data(seen, row),
        "verdicts": [_verdict_data(seen, row, verdict) for verdict in row.decision.verdicts],
        "stop_cause": row.cause,
        "next": _next_words(seen, row),
        "agent": _agent_data(seen),
        "holds": [hold_data(hold, left, seen.wall) for hold, left in seen.holds if hold.vmid in (None, vmid)],
    }
    title = f"{row.decision.id} {row.decision.name}: {_state_words(seen, row)}"
    lock = lock_of(seen, row)
    proof = () if lock is None else ("", *proof_of(seen, lock))
    data["lock_proof"] = None if lock is None else lock_data(seen, lock)
    return Answer(seen.board.node, seen.wall, (title, "", facts, "", verdicts, *proof), data, seen.verdict, warning(seen))


def lock_of(seen: View, row: Row) -> LockDecision | None:
    """What recovery thinks of a guest's lock, or of the snapshot that a vzdump left it."""
    return next((lock for lock in seen.board.locks if lock.id == row.decision.id), None)


def _state_words(seen: View, row: Row) -> str:
    words = _state(row)
    if row.running and row.not_working:
        words = f"running, but does not work ({row.not_working})"
    if row.lock:
        words += f", locked ({row.lock})"
    if row.given_up:
        words += ", GIVEN UP"
    return words if seen.acting else f"{words} when it was last seen"


def _facts(seen: View, row: Row) -> Iterator[tuple[str, str]]:
    decision, board = row.decision, seen.board
    yield "guard", f"{decision.guard}: {GUARD_MEANING[decision.guard]}"
    yield "because", decision.evidence
    yield "next", _next_words(seen, row)
    yield "seen", f"{span(seen.age)} ago" if seen.age is not None else "nobody can say when: the clock has been set back"
    if row.running and row.up_since is not None and seen.same_boot:
        yield "up", span(seen.since(row.up_since))
    if row.down_since is not None and not row.running:
        down = span(seen.since(row.down_since)) if seen.same_boot else "since before the host booted"
        yield "down", f"{down}; {row.cause}" if row.cause else down
    if row.attempts or decision.guard not in _NEVER:
        yield "starts", f"{row.attempts} of {seen.config.watchdog.attempts} used" + (", given up" if row.given_up else "")
    for entry in (seen.hold_on(decision.id.vmid), seen.hold_on(None)):
        if entry is not None:
            yield noun(entry[0]), f"{scope(entry[0].vmid)}, {hold_words(*entry, seen.wall)}"
    if not board.gate.open and decision.guard is not Guard.HOST_GATE:
        yield "gate", f"closed: {board.gate.evidence}"
    twins = [str(other.decision.id) for other in board.rows if other.decision.id.vmid == decision.id.vmid and other is not row]
    if twins:
        yield "beside", f"the last look saw {', '.join(twins)} too; the VMID was given anew"


_NEVER = frozenset({Guard.NOT_OWNED, Guard.SCRATCH_BAND, Guard.TEMPLATE, Guard.RUNNING})
# What ends a guard, for a guest for which no moment is known. {0} is the VMID, {1} PVE's command for its kind.
_ENDS: dict[Guard, str] = {
    Guard.NOT_OWNED: "nothing, ever: it is not guarded; that begins when it is in one of the pools of [scope]",
    Guard.SCRATCH_BAND: "no start, ever; whether it is torn down: guestward scratch list",
    Guard.TEMPLATE: "nothing, ever: a template cannot run",
    Guard.RUNNING: "nothing to do",
    Guard.UNREADABLE: "its configuration is read again with every sweep (each {2})",
    Guard.ONBOOT_OFF: "nothing, until it is to run at boot: {1} set {0} --onboot 1",
    Guard.NEW_HERE: "nothing, until it has run, the host boots, or: guestward rearm {0}",
    Guard.HELD: "nothing, until it runs, its configuration changes, or: guestward rearm {0}",
    Guard.HA: "nothing by Guestward: PVE's HA starts its guests itself (ha-manager status)",
    Guard.LOCKED: "nothing while the lock is there, unless it is proven to be nobody's: guestward locks --dry-run",
    Guard.TASK: "when the task has ended; looked at with every sweep (each {2})",
    Guard.BACKUP: "when the backup has ended; looked at with every sweep (each {2})",
    Guard.BACKUP_UNKNOWN: "when every witness can be read; `guestward check` says what is wrong with them",
    Guard.HOST_GATE: "when the host gate opens; looked at with every sweep (each {2})",
    Guard.UNCONFIRMED: "a second look with the next sweep (each {2}), then a start",
    Guard.STORAGE_OFFLINE: "when the storage is seen back; looked at with every sweep (each {2})",
    Guard.BACKOFF: "the next attempt when the wait is over; looked at with every sweep (each {2})",
    Guard.EXHAUSTED: "nothing, until its configuration changes, the host boots, or: guestward rearm {0}",
    Guard.START: "a start, as soon as its turn comes",
}
# The same where a moment is known. {3} is the time until then.
_COMES: dict[Guard, str] = {
    Guard.HELD: "in {3} the hold ends; at once with: guestward release {0}",
    Guard.HOST_GATE: "in {3} the host gate opens, if nothing else closes it",
    Guard.UNCONFIRMED: "in {3} a second look, then a start",
    Guard.BACKOFF: "in {3} the next attempt, with the first sweep after it (each {2})",
}


def _next_words(seen: View, row: Row) -> str:
    if seen.board.aborted and seen.alive:
        return f"nothing while sweeps are aborted: {seen.board.aborted}"
    if not seen.acting:
        return "nothing: the agent does not look at guests"
    guard, left = row.decision.guard, seen.next_in(row)
    if row.running and row.not_working:
        return "nothing, ever: a guest that runs is neither resumed nor reset; look at it"
    lock = lock_of(seen, row)
    if guard is Guard.LOCKED and lock is not None:
        return next_words(seen, lock)
    words = _ENDS[guard] if left is None else _COMES.get(guard, _ENDS[guard])
    tool = "pct" if row.decision.id.kind == "lxc" else "qm"
    return words.format(row.decision.id.vmid, tool, span(seen.config.watchdog.interval), span(left))


_FROM_CONFIG = frozenset({Guard.ONBOOT_OFF, Guard.UNREADABLE})
_NOT_REACHED = "asked only when no guard applies"


def _verdict_word(row: Row, verdict: Verdict) -> str:
    if verdict.guard is row.decision.guard:
        return "DECIDES"
    if verdict.guard is Guard.START or NOT_READ.reason in verdict.evidence or verdict.evidence.startswith("not read"):
        return "not asked"
    return "applies" if verdict.applies else "no"


def _evidence(row: Row, verdict: Verdict) -> str:
    """START is what is left when no guard applies, so elsewhere it has nothing to say."""
    return _NOT_REACHED if verdict.guard is Guard.START is not row.decision.guard else verdict.evidence


def _verdict_age(seen: View, row: Row, verdict: Verdict) -> float | None:
    if _verdict_word(row, verdict) == "not asked":
        return None
    if verdict.guard in _FROM_CONFIG and row.config_read_at is not None and seen.age is not None:
        return max(seen.age, seen.since(row.config_read_at))
    return seen.age


def _verdict_line(seen: View, row: Row, verdict: Verdict) -> tuple[object, ...]:
    word = _verdict_word(row, verdict)
    mark = ">>" if word == "DECIDES" else ""
    return mark, verdict.guard, word, span(_verdict_age(seen, row, verdict)), _evidence(row, verdict)


def _verdict_data(seen: View, row: Row, verdict: Verdict) -> dict[str, Any]:
    word = _verdict_word(row, verdict)
    return {
        "guard": str(verdict.guard),
        "verdict": word.lower(),
        "applies": word in ("DECIDES", "applies"),
        "evidence": _evidence(row, verdict),
        "age_s": _rounded(_verdict_age(seen, row, verdict)),
    }


def guest_data(seen: View, row: Row) -> dict[str, Any]:
    """One guest for programs."""
    decision = row.decision
    return {
        "id": str(decision.id),
        "kind": str(decision.id.kind),
        "vmid": decision.id.vmid,
        "name": decision.name,
        "status": _state(row),
        "guard": str(decision.guard),
        "evidence": decision.evidence,
        "attempts": row.attempts,
        "next_action_s": _rounded(seen.next_in(row)),
        "observed_age_s": _rounded(seen.age),
        "given_up": row.given_up,
        "not_working": row.not_working or None,
        "lock": row.lock,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def freshness(seen: View) -> str:
    """How old the look is, and what is the matter with it."""
    board = seen.board
    words = f"guests last seen {span(seen.age)} ago" if seen.age is not None else "guests were seen, nobody can say when"
    if board.seen_at is None:
        words = "no guest was ever seen"
    if not seen.same_boot:
        return f"NOT LOOKED AT since the host booted; {words}, before that"
    if board.aborted:
        return f"sweeps are ABORTED, nothing is examined or started ({board.aborted}); {words}"
    gaps = f", INCOMPLETE ({board.incomplete})" if board.incomplete else ""
    return f"{words}{gaps}; {count(board.sweeps, 'complete sweep')} since boot"


def warning(seen: View) -> str:
    """What makes an answer from this view less than it seems, for people."""
    if not seen.same_boot:
        return f"The host has booted since the agent last looked: what is shown is from before, and nobody guards the guests. {NOT_RUNNING}"
    if seen.board.ended:
        return f"The agent was stopped {span(seen.since(seen.board.at))} ago, and nobody guards the guests. {NOT_RUNNING}"
    if not seen.alive:
        return f"This is old: the agent last looked {span(seen.since(seen.board.at))} ago, and nobody guards the guests. {NOT_RUNNING}"
    if seen.board.aborted:
        shown = "nothing was ever seen" if seen.board.seen_at is None else "what is shown is from its last good look"
        return f"The agent runs, but cannot see enough to judge; {shown}. What is wrong: guestward check"
    return ""


def grants_words(lost: Iterable[str]) -> str:
    """Privileges by path, and the paths that lack the same ones together: a band has ten paths with five each."""
    on_path: dict[str, list[str]] = {}
    for privilege, _, path in (text.partition(" on ") for text in lost):
        on_path.setdefault(path, []).append(privilege)
    alike: dict[str, list[str]] = {}
    for path, privileges in on_path.items():
        alike.setdefault(" ".join(privileges), []).append(path)
    return ", ".join(f"{privileges} on {' '.join(paths)}" for privileges, paths in alike.items())


def scope(vmid: int | None) -> str:
    """What a hold or a claim is about, in words."""
    return "the whole node" if vmid is None else f"guest {vmid}"


def noun(hold: Hold) -> str:
    """What it is called."""
    return "claim" if hold.claim else "hold"


def hold_words(hold: Hold, left: float, wall: float) -> str:
    """Who, until when, how long that is, and why."""
    return f"by {hold.by}, until {moment(wall + left)} ({span(left)} more): {hold.reason or 'no reason given'}"


def hold_data(hold: Hold, left: float, wall: float) -> dict[str, Any]:
    """One hold for programs."""
    return {
        "scope": "node" if hold.vmid is None else hold.vmid,
        "claim": hold.claim,
        "by": hold.by,
        "reason": hold.reason,
        "remaining_s": round(left),
        "until": round(wall + left),
    }


def _agent_data(seen: View) -> dict[str, Any]:
    board = seen.board
    return {
        "observed_age_s": _rounded(seen.age),
        "stale": seen.stale,
        "alive": seen.alive,
        "booted_since": not seen.same_boot,
        "aborted": board.aborted or None,
        "incomplete": board.incomplete or None,
        "sweeps_since_boot": board.sweeps,
        "last_complete_sweep": board.last_complete_wall,
    }
