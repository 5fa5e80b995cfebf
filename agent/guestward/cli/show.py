"""`status` and `explain`: the agent's last look, read from its state; PVE is not asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from guestward.adapters import store
from guestward.cli.output import FAILED, OK, USAGE, Answer, CommandError, span, table
from guestward.config import Config
from guestward.model.decision import GUARD_MEANING, Decision, Guard, Verdict
from guestward.model.memory import Hold
from guestward.model.observation import NOT_READ
from guestward.ports import Board, Clock, Row

NOT_RUNNING = "is the agent running? systemctl status guestward; journalctl -u guestward"


@dataclass(frozen=True, slots=True)
class View:
    """The last look and how old it is now. age: seconds since something was seen, None when nothing ever was."""

    board: Board
    config: Config
    holds: tuple[tuple[Hold, float], ...]
    now: float
    age: float | None

    @property
    def stale(self) -> bool:
        """Whether the look is older than two sweeps: then nobody guards the guests."""
        return self.age is None or self.age > 2 * self.config.watchdog.interval + 60

    def since(self, at: float) -> float:
        """Seconds since a moment of the look's boot; the age of the look stands in where the host has booted since."""
        return max(0.0, self.now - at)


def view(config: Config, clock: Clock) -> View:
    """Read the last look. Raises CommandError when there is none."""
    try:
        board = store.read_board(config.state.dir)
        holds = store.list_holds(config.state.dir)
    except store.StoreUnavailable as error:
        raise CommandError("state", str(error), getattr(error, "advice", "") or NOT_RUNNING) from None
    if board is None:
        raise CommandError("no_look", f"the agent has not looked at any guest yet (no state in {config.state.dir})", NOT_RUNNING)
    same_boot = board.boot_id == clock.boot_id()
    now = clock.boottime() if same_boot else board.at + max(0.0, clock.wall() - board.wall)
    age = None if board.seen_at is None else max(0.0, now - board.seen_at)
    lasting = tuple((h, left) for h in holds if (left := h.remaining(clock.boot_id(), clock.boottime(), clock.wall())) > 0)
    return View(board, config, lasting, now, age)


def status(config: Config, clock: Clock) -> Answer:
    """`guestward status`."""
    seen = view(config, clock)
    board = seen.board
    rows = [row for row in board.rows if row.owned]
    head = [f"node {board.node}: {_freshness(seen)}", f"host gate: {'open' if board.gate.open else 'closed - ' + board.gate.evidence}"]
    head += [_hold_line(hold, left) for hold, left in seen.holds]
    head += [f"grants missing: {', '.join(board.lost)} (repair: /usr/share/guestward/host-install.sh repair)"] if board.lost else []
    body = table(("GUEST", "NAME", "STATUS", "GUARD", "STARTS", "NEXT", "WHY"), (_line(seen, row) for row in rows))
    data = {
        "agent": _agent_data(seen),
        "host_gate": [{"reason": str(c.reason), "evidence": c.evidence} for c in board.gate.closures],
        "holds": [_hold_data(hold, left) for hold, left in seen.holds],
        "grants_missing": list(board.lost),
        "guests": [guest_data(seen, row) for row in rows],
    }
    guests = body if rows else "no guests in the pools " + ", ".join(config.scope.pools)
    text = "\n".join(head) + "\n\n" + guests
    return Answer(board.node, text, data, FAILED if seen.stale or board.aborted else OK, _warning(seen))


def explain(config: Config, clock: Clock, vmid: int) -> Answer:
    """`guestward explain VMID`."""
    seen = view(config, clock)
    row = find(seen.board, vmid)
    decision = row.decision
    facts = [
        f"{decision.id} {decision.name}: {_state_words(row)}",
        f"guard    {decision.guard}: {GUARD_MEANING[decision.guard]}",
        f"because  {decision.evidence}",
        f"seen     {span(seen.age)} ago" + (f"; down for {span(seen.since(row.down_since))}" if row.down_since is not None else ""),
        f"starts   {row.attempts} of {config.watchdog.attempts} used" + (", given up" if row.given_up else ""),
        f"next     {_next_words(seen, row)}",
    ]
    facts += [f"stopped  {row.cause}"] if row.cause else []
    verdicts = table(("GUARD", "VERDICT", "AGE", "EVIDENCE"), (_verdict_line(seen, row, verdict) for verdict in decision.verdicts))
    data = {**guest_data(seen, row), "verdicts": [_verdict_data(seen, row, v) for v in decision.verdicts], "stop_cause": row.cause}
    return Answer(seen.board.node, "\n".join(facts) + "\n\n" + verdicts, data, OK, _warning(seen))


def find(board: Board, vmid: int) -> Row:
    """The row of a guest. Raises CommandError for a VMID that is not on this node or not visible to the token."""
    for row in board.rows:
        if row.decision.id.vmid == vmid:
            return row
    hint = "`guestward status` lists the guests that are; a guest must be in one of the pools of [scope]"
    raise CommandError("unknown_vmid", f"no guest {vmid} was seen on node {board.node} at the last look", hint, USAGE)


def guest_data(seen: View, row: Row) -> dict[str, Any]:
    """One guest for programs."""
    decision = row.decision
    return {
        "id": str(decision.id),
        "kind": str(decision.id.kind),
        "vmid": decision.id.vmid,
        "name": decision.name,
        "status": "running" if row.running else "stopped",
        "guard": str(decision.guard),
        "evidence": decision.evidence,
        "attempts": row.attempts,
        "next_action_s": _next_in(seen, decision),
        "observed_age_s": None if seen.age is None else round(seen.age, 1),
        "given_up": row.given_up,
        "not_working": row.not_working or None,
        "lock": row.lock,
    }


def _next_in(seen: View, decision: Decision) -> float | None:
    return None if decision.next_at is None else round(max(0.0, decision.next_at - seen.now), 1)


def _line(seen: View, row: Row) -> tuple[object, ...]:
    decision = row.decision
    why = "" if decision.guard is Guard.RUNNING and not row.not_working else row.not_working or decision.evidence
    state = "running" if row.running else "stopped"
    starts = f"{row.attempts}/{seen.config.watchdog.attempts}" if row.attempts else "-"
    return str(decision.id), decision.name, state, decision.guard, starts, span(_next_in(seen, decision)), why


def _state_words(row: Row) -> str:
    if row.running:
        return f"running, but does not work ({row.not_working})" if row.not_working else "running"
    return "stopped" + (f", locked ({row.lock})" if row.lock else "")


def _next_words(seen: View, row: Row) -> str:
    if seen.board.aborted:
        return f"nothing is done while sweeps are aborted: {seen.board.aborted}"
    if row.running:
        return "nothing to do"
    left = _next_in(seen, row.decision)
    if left is None:
        return f"looked at again with every sweep (each {span(seen.config.watchdog.interval)}); acts when the guard no longer applies"
    return f"in {span(left)}, if nothing changes"


def _verdict_word(row: Row, verdict: Verdict) -> str:
    if verdict.guard is row.decision.guard:
        return "DECIDES"
    if NOT_READ.reason in verdict.evidence:
        return "not asked"
    return "applies" if verdict.applies else "no"


_FROM_CONFIG = frozenset({Guard.ONBOOT_OFF, Guard.UNREADABLE})


def _verdict_age(seen: View, row: Row, verdict: Verdict) -> float | None:
    if verdict.guard in _FROM_CONFIG and row.config_read_at is not None:
        return seen.since(row.config_read_at)
    return seen.age


def _verdict_line(seen: View, row: Row, verdict: Verdict) -> tuple[object, ...]:
    return verdict.guard, _verdict_word(row, verdict), span(_verdict_age(seen, row, verdict)), verdict.evidence


def _verdict_data(seen: View, row: Row, verdict: Verdict) -> dict[str, Any]:
    age = _verdict_age(seen, row, verdict)
    return {
        "guard": str(verdict.guard),
        "verdict": _verdict_word(row, verdict).lower(),
        "applies": verdict.applies,
        "evidence": verdict.evidence,
        "age_s": None if age is None else round(age, 1),
    }


def _freshness(seen: View) -> str:
    board = seen.board
    seen_words = f"guests last seen {span(seen.age)} ago" if seen.age is not None else "no guest was ever seen"
    if board.aborted:
        return f"sweeps are ABORTED, nothing is examined ({board.aborted}); {seen_words}"
    gaps = f", INCOMPLETE ({board.incomplete})" if board.incomplete else ""
    return f"{seen_words}{gaps}; {board.sweeps} complete sweeps since boot"


def _warning(seen: View) -> str:
    if seen.stale:
        return f"This is old: no guest has been looked at for {span(seen.age)}, and nobody guards them. {NOT_RUNNING.capitalize()}"
    return ""


def _hold_line(hold: Hold, left: float) -> str:
    what = "the whole node" if hold.vmid is None else f"guest {hold.vmid}"
    return f"hold: {what}, by {hold.by}, for {span(left)} more: {hold.reason or 'no reason given'}"


def _hold_data(hold: Hold, left: float) -> dict[str, Any]:
    return {"scope": "node" if hold.vmid is None else hold.vmid, "by": hold.by, "reason": hold.reason, "remaining_s": round(left)}


def _agent_data(seen: View) -> dict[str, Any]:
    board = seen.board
    return {
        "observed_age_s": None if seen.age is None else round(seen.age, 1),
        "stale": seen.stale,
        "aborted": board.aborted or None,
        "incomplete": board.incomplete or None,
        "sweeps_since_boot": board.sweeps,
        "last_complete_sweep": board.last_complete_wall,
    }
