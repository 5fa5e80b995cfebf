"""What the agent and its root helper say to each other: one line of JSON each way, and a closed set of answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from guestward.model.guest import GuestKind
from guestward.model.task import bounded

MAX_REQUEST = 4096
MAX_ANSWER = 4096
MAX_MESSAGE = 600
SNAPSHOT = "vzdump"
STATE_OF_LOCK: Mapping[str, str] = {"snapshot": "prepare", "snapshot-delete": "delete"}
"""The lock of a snapshot -> the state of the section `[vzdump]` that makes it vzdump's own (pve-facts B1)."""
EXPECTABLE = ("backup", *STATE_OF_LOCK)
SCRATCH_LOCKS = ("create", "destroyed")
"""What a restore or a destroy that died leaves; the guest is then incomplete, and only a destroy is right (pve-facts B1)."""


class HelperCode(StrEnum):
    """Every answer there is. All but OK and those of TRIED are refusals: nothing was changed."""

    OK = "ok"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"
    BAD_REQUEST = "bad_request"
    FORBIDDEN = "forbidden"
    CONFIG = "config"
    REPORT_ONLY = "report_only"
    UNREADABLE = "unreadable"
    HELD = "held"
    BOOTING = "booting"
    STOPPING = "stopping"
    NO_PMXCFS = "no_pmxcfs"
    NO_QUORUM = "no_quorum"
    NOT_INSTALLED = "not_installed"
    SCRATCH_BAND = "scratch_band"
    NOT_SCRATCH = "not_scratch"
    EXCLUDED = "excluded"
    NOT_OWNED = "not_owned"
    NO_GUEST = "no_guest"
    WRONG_KIND = "wrong_kind"
    TEMPLATE = "template"
    BUSY = "busy"
    BACKUP_RUNNING = "backup_running"
    TASK_RUNNING = "task_running"
    LOCKED = "locked"
    NOT_LOCKED = "not_locked"
    LOCK_CHANGED = "lock_changed"
    LOCK_KIND = "lock_kind"
    NO_SNAPSHOT = "no_snapshot"
    SNAPSHOT_CHANGED = "snapshot_changed"
    TOO_SLOW = "too_slow"


TRIED = frozenset({HelperCode.FAILED, HelperCode.INCOMPLETE, HelperCode.TIMEOUT, HelperCode.UNKNOWN})
"""It was tried, and what was asked for was not seen afterwards."""

HELPER_CODE_MEANING: dict[HelperCode, str] = {
    HelperCode.OK: "done, and seen to be done",
    HelperCode.FAILED: "afterwards lock or snapshot were still there, or another lock, or no guest; or an entry of ours is missing",
    HelperCode.INCOMPLETE: "all entries of our own user and token are there, and one of `[scratch] grantees` has not all of its own",
    HelperCode.TIMEOUT: "the time was up, and PVE's program was killed; the lock or the snapshot is still there, or an entry is missing",
    HelperCode.UNKNOWN: "it was tried, and nobody can say what came of it",
    HelperCode.BAD_REQUEST: "not one line with one request of the known form",
    HelperCode.FORBIDDEN: "the caller is neither root nor the service user",
    HelperCode.CONFIG: "the configuration is missing, not root's alone, or lacks or has something that cannot be",
    HelperCode.REPORT_ONLY: "`[locks] recover` is `report`",
    HelperCode.UNREADABLE: "something that has to be known first could not be read",
    HelperCode.HELD: "the file /etc/guestward/hold is there",
    HelperCode.BOOTING: "PVE has not finished starting guests; its startall clears backup locks itself and needs the same flock",
    HelperCode.STOPPING: "the host or pve-guests.service is stopping",
    HelperCode.NO_PMXCFS: "/etc/pve is not mounted",
    HelperCode.NO_QUORUM: "the cluster has no quorum: /etc/pve is read-only",
    HelperCode.NOT_INSTALLED: "PVE knows no role, user or token of that name; `host-install.sh repair` makes them",
    HelperCode.SCRATCH_BAND: "the VMID is in the scratch band",
    HelperCode.NOT_SCRATCH: "the VMID is not in the scratch band",
    HelperCode.EXCLUDED: "the VMID is in [scope] exclude",
    HelperCode.NOT_OWNED: "the guest is in none of the pools of [scope]",
    HelperCode.NO_GUEST: "no such configuration on this node",
    HelperCode.WRONG_KIND: "the VMID belongs to a guest of the other kind, or to one of each kind",
    HelperCode.TEMPLATE: "the guest is a template",
    HelperCode.BUSY: "somebody holds the flock on /run/vzdump.lock (a backup, or PVE's startall), or that of the guest's configuration",
    HelperCode.BACKUP_RUNNING: "a vzdump, or what one left behind and still archives the guest, is alive",
    HelperCode.TASK_RUNNING: "a task, a replication or a migration of this guest is running, or a clone that may become this guest",
    HelperCode.LOCKED: "the guest has a lock; PVE deletes no snapshot of a locked guest",
    HelperCode.NOT_LOCKED: "the guest has no lock: there is nothing to clear",
    HelperCode.LOCK_CHANGED: "the guest has another lock than the expected one, or none, or it changed while it was looked at",
    HelperCode.LOCK_KIND: "a lock of that kind is not vzdump's here, may be of another snapshot, or is not left by a restore or destroy",
    HelperCode.NO_SNAPSHOT: "the container has no snapshot named exactly `vzdump`",
    HelperCode.SNAPSHOT_CHANGED: "the snapshot changed while it was looked at",
    HelperCode.TOO_SLOW: "the checks took so long that PVE would have had to wait for the flock",
}


class Verb(StrEnum):
    """What can be asked for."""

    UNLOCK = "unlock"
    DELETE_SNAPSHOT = "delete-snapshot"
    RELEASE_SCRATCH = "release-scratch"
    REGRANT = "regrant"


ARGUMENTS: Mapping[Verb, tuple[str, ...]] = {
    Verb.UNLOCK: ("kind", "vmid", "expect"),
    Verb.DELETE_SNAPSHOT: ("vmid",),
    Verb.RELEASE_SCRATCH: ("vmid",),
    Verb.REGRANT: (),
}
"""The keys that a request has besides `verb`, no more and no fewer."""


ANSWERED_WITHIN: Mapping[Verb, float] = {
    Verb.UNLOCK: 30.0,
    Verb.DELETE_SNAPSHOT: 660.0,
    Verb.RELEASE_SCRATCH: 45.0,
    Verb.REGRANT: 75.0,
}
"""Seconds after which no answer is waited for any more: what the helper takes at most, and some more."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. An argument that its verb does not have is None."""

    verb: Verb
    kind: GuestKind | None = None
    vmid: int | None = None
    expect: str | None = None

    def fields(self) -> dict[str, object]:
        """As it goes over the socket."""
        return {"verb": self.verb.value} | {name: getattr(self, name) for name in ARGUMENTS[self.verb]}

    def encode(self) -> bytes:
        """One line."""
        return json.dumps(self.fields()).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Request:
        """Read one line. Raises ValueError, without a word of the line in it, for whatever is not exactly a request."""
        try:
            found = json.loads(
                line.decode("utf-8"), object_pairs_hook=_distinct, parse_int=_integer, parse_float=_no_number, parse_constant=_no_number
            )
        except UnicodeDecodeError:
            raise ValueError("not UTF-8") from None
        except json.JSONDecodeError:
            raise ValueError("not JSON") from None
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
        verb = _one_of(Verb, found.pop("verb", None), "verb")
        wanted = ARGUMENTS[verb]
        if set(found) != set(wanted):
            raise ValueError(f"{verb} has the arguments {', '.join(wanted) or 'none'}, all of them and no others")
        return cls(verb, **{name: _CHECKS[name](found[name]) for name in wanted})


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. message: one line for people: what happened, what it means, what to do."""

    code: HelperCode
    message: str

    @property
    def ok(self) -> bool:
        """Whether what was asked for was done and seen."""
        return self.code is HelperCode.OK

    def encode(self) -> bytes:
        """One line of at most MAX_ANSWER bytes."""
        message = bounded(self.message, MAX_MESSAGE).encode("ascii", "backslashreplace").decode()
        return json.dumps({"ok": self.ok, "code": self.code.value, "message": bounded(message, MAX_MESSAGE)}).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Answer:
        """Read one line. Raises ValueError for whatever the helper does not say."""
        if len(line) > MAX_ANSWER or not line.endswith(b"\n"):
            raise ValueError("not one whole line")
        try:
            found = json.loads(line.decode("utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            raise ValueError("not JSON") from None
        if not isinstance(found, dict) or not isinstance(found.get("message"), str):
            raise ValueError("not an answer")
        answer = cls(_one_of(HelperCode, found.get("code"), "code"), bounded(found["message"], MAX_MESSAGE))
        if found.get("ok") is not answer.ok:
            raise ValueError("`ok` and `code` contradict each other")
        return answer


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands there twice")
    return dict(pairs)


def _integer(text: str) -> int:
    if len(text) > 9:
        raise ValueError("a number out of range")
    return int(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError("a number that is no integer")


def _one_of(words: type[Any], value: object, what: str) -> Any:
    if not isinstance(value, str) or value not in {word.value for word in words}:
        raise ValueError(f"{what} is none of {', '.join(word.value for word in words)}")
    return words(value)


def _vmid(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 100 <= value <= 999_999_999:
        raise ValueError("vmid is no integer from 100 to 999999999")
    return value


def _expect(value: object) -> str:
    if not isinstance(value, str) or value not in EXPECTABLE:
        raise ValueError(f"expect is none of {', '.join(EXPECTABLE)}: any other lock is nobody's business")
    return value


_CHECKS: Mapping[str, Callable[[object], Any]] = {"kind": lambda value: _one_of(GuestKind, value, "kind"), "vmid": _vmid, "expect": _expect}
