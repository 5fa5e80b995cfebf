"""The stream of a simulation: what the agent said, what of it reached the world, and which invariant broke; as text and as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from guestward.model.events import Level, all_events
from guestward.model.guest import GuestId

DOORS = ("api", "helper", "host")
EFFECTS = ("start", "stop", "shutdown", "reboot", "reset", "destroy", "unlock", "delete-snapshot", "release-scratch", "regrant")
RESULTS = ("ok", "refused", "failed", "lost")

# Fields that text shows: numbers and words of closed sets, so that a golden log outlives a better wording.
SHOWN = (
    *("attempt", "of", "attempts", "outcome", "down_s", "state", "path", "privilege", "scope", "for_s", "waited_s", "closed_s", "missed_s"),
    *("lock", "step", "age_s", "code", "verdict", "volumes"),
    *("reasons", "sweeps_since_boot", "guests_evaluated", "currently_stopped", "left_down", "holds", "host_gate"),
    *("aborted_in_a_row", "aborted_for_s", "incomplete_for_s", "in_flight", "interval_s", "signal", "key", "where"),
)
# Fields that it does not show: prose, and what differs from one machine or version to the next.
HIDDEN = ("reason", "evidence", "by", "upid", "version", "node", "config", "file", "listen", "pid", "folder")

# Fields of which it shows the part that is of a closed set: who stopped a guest, but not when, nor the words for it.
PARTLY = ("cause",)

_FIELDS_OF = {kind.name: kind.fields for kind in all_events()}
_LONGEST_TEXT = 1_000
_CAUSE = re.compile(r"(\w+ by \S+) at [^(]+(\(part of a backup\))?")
_CAUSES = {"no stop task found": "none", "the task history could not be read": "unread"}
_WORD = re.compile(r"[^\s\"'=,{}\[\]]+")


@dataclass(frozen=True, slots=True)
class Logged:
    """One event of the agent. t: virtual seconds since the agent's start. wall: seconds since the epoch, as the host's clock says.

    guest, guard and name are of the guest that it is about; guest is None where it is about none.
    """

    t: float
    event: str
    level: Level
    guest: GuestId | None
    guard: str
    fields: Mapping[str, object]
    message: str
    name: str = ""
    wall: float = 0.0

    @property
    def about(self) -> GuestId:
        """The guest of an event that is about one. Raises ValueError where it is about none."""
        if self.guest is None:
            raise ValueError(f"{self.event} is about no guest")
        return self.guest

    def record(self) -> dict[str, object]:
        """The line that the agent's own log has for this event, as an object: `adapters.journal.JsonJournal` without its redaction."""
        found: dict[str, object] = {"ts": _moment(self.wall), "level": self.level.value, "event": self.event}
        found["message"] = _plain(self.message)
        if self.guest is not None:
            found |= {"vmid": self.guest.vmid, "kind": self.guest.kind.value, "name": _plain(self.name), "guard": _plain(self.guard)}
        known = [name for name in _FIELDS_OF.get(self.event, ()) if name in self.fields and name not in found]
        extra = {name: value for name, value in self.fields.items() if name not in known}
        found |= {name: _plain(self.fields[name]) for name in known}
        return found | ({"extra": _plain(extra)} if extra else {})


@dataclass(frozen=True, slots=True)
class Effect:
    """One request of the agent that was to change the world. Reads are none.

    t: virtual seconds. door: one of DOORS, verb: one of EFFECTS, result: one of RESULTS. vmid: the guest, None where it is about none.
    """

    t: float
    door: str
    verb: str
    vmid: int | None
    result: str


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold; always the last entry. rule: the invariant in words. message: what happened, for people."""

    t: float
    invariant: str
    rule: str
    message: str


Entry = Logged | Effect | Violation


def as_json(entry: Entry) -> str:
    """One entry as one JSON object on one line: `t`, `kind` and what its kind has (DESIGN.md, Scenarios)."""
    t = round(entry.t, 3)
    if isinstance(entry, Logged):
        return json.dumps({"t": t, "kind": "event", "record": entry.record()}, allow_nan=False)
    if isinstance(entry, Effect):
        about = {"door": entry.door, "verb": entry.verb, "vmid": entry.vmid, "result": entry.result}
        return json.dumps({"t": t, "kind": "effect", **about}, allow_nan=False)
    words = {"invariant": entry.invariant, "rule": entry.rule, "message": entry.message}
    return json.dumps({"t": t, "kind": "violation", **words}, allow_nan=False)


def as_text(entry: Entry) -> str:
    """One entry as one line of a golden log: never prose, but for a violation, which ends every log that has one."""
    if isinstance(entry, Logged):
        guest = " ".join(str(part) for part in (entry.guest, entry.name and _shown(entry.name)) if part)
        return _line(entry.t, "event", entry.event, entry.level.value, guest, *_pairs(entry))
    if isinstance(entry, Effect):
        about = entry.verb if entry.vmid is None else f"{entry.verb} {entry.vmid}"
        return _line(entry.t, "effect", about, entry.result, entry.door)
    return f"{entry.t:10.1f}  violation of {_one_line(entry.invariant)} ({_one_line(entry.rule)}): {_one_line(entry.message)}"


def _line(t: float, kind: str, what: str, how: str, where: str, *pairs: str) -> str:
    rest = "  ".join(part for part in (where, " ".join(pairs)) if part)
    return f"{t:10.1f}  {kind:<6}  {what:<22}  {how:<7}  {rest}".rstrip()


def _pairs(entry: Logged) -> Iterable[str]:
    if entry.guard:
        yield f"guard={_shown(entry.guard)}"
    for name in _FIELDS_OF.get(entry.event, ()):
        value = entry.fields.get(name)
        value = _who(str(value or "")) if name in PARTLY else value
        if name in (*SHOWN, *PARTLY) and value is not None and value != "":
            yield f"{name}={_shown(value)}"


def _who(cause: str) -> str:
    """`vzstop by alice@pve`, `none`, or `unread`; "" of any other text."""
    match = _CAUSE.match(cause)
    if match is not None:
        return " ".join(part for part in match.groups() if part)
    return next((word for text, word in _CAUSES.items() if cause.startswith(text)), "")


def _shown(value: object) -> str:
    """A value as one word; a list as words with commas, a guest left down as `lxc/9201:onboot_off`."""
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        return f"{value.get('id', '?')}:{value.get('guard', '?')}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(_shown(item) for item in value) or "none"
    text = f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return text if text.isprintable() and _WORD.fullmatch(text) else json.dumps(text)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _moment(wall: float) -> str:
    try:
        moment = datetime.fromtimestamp(wall, UTC)
    except (OverflowError, ValueError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> object:
    """A value as the log writes it: what JSON has stays, everything else becomes text of bounded length."""
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    text = str(value)
    text = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
    return re.sub("[\ud800-\udfff]", "\ufffd", text)
