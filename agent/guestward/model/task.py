"""PVE's tasks: their UPID and how they end."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_UPID = 256
_UPID = re.compile(
    r"UPID:(?P<node>[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?):(?P<pid>[0-9A-Fa-f]{8}):(?P<pstart>[0-9A-Fa-f]{8,9}):"
    r"(?P<starttime>[0-9A-Fa-f]{8}):(?P<type>[^:\s/]+):(?P<id>[^:\s/]*):(?P<user>[^:\s/]+):"
)
JIFFIES = 100  # a second has 100 of them on every PVE kernel (USER_HZ)


class UpidError(ValueError):
    """The text is not a UPID; the message says why in a bounded number of characters."""


@dataclass(frozen=True, slots=True)
class Upid:
    """`UPID:node:pid:pstart:starttime:type:id:user:` (pve-common UPID.pm, pve-facts D5).

    pstart: jiffies since boot at which the worker started. starttime: seconds since the epoch. id: may be empty.
    user: `user@realm` or `user@realm!token`.
    """

    node: str
    pid: int
    pstart: int
    starttime: int
    type: str
    id: str
    user: str
    text: str

    @classmethod
    def parse(cls, text: object) -> Upid:
        """Read a UPID. Raises UpidError for anything that PVE itself would not write."""
        if not isinstance(text, str):
            raise UpidError(f"a UPID is text, not {type(text).__name__}")
        if len(text.encode("utf-8", "replace")) > MAX_UPID:
            raise UpidError(f"longer than {MAX_UPID} bytes: {text[:40]!r}...")
        match = _UPID.fullmatch(text)
        if match is None:
            raise UpidError(f"not of the form UPID:node:pid:pstart:starttime:type:id:user: {text[:80]!r}")
        return cls(
            node=match["node"],
            pid=int(match["pid"], 16),
            pstart=int(match["pstart"], 16),
            starttime=int(match["starttime"], 16),
            type=match["type"],
            id=match["id"],
            user=match["user"],
            text=text,
        )

    @property
    def started_boottime(self) -> float:
        """Seconds since host boot at which the worker started."""
        return self.pstart / JIFFIES

    def covers(self, vmid: int) -> bool:
        """Whether a vzdump with this UPID may be about that guest: an empty id is a job of several (pve-facts C1)."""
        return self.id in ("", str(vmid))

    def __str__(self) -> str:
        """The text as PVE wrote it."""
        return self.text


@dataclass(frozen=True, slots=True)
class Running:
    """The task has not ended."""


@dataclass(frozen=True, slots=True)
class Ok:
    """The task says that it succeeded."""


@dataclass(frozen=True, slots=True)
class Warnings:
    """The task succeeded and counted warnings (`WARNINGS: n` is success)."""

    count: int


@dataclass(frozen=True, slots=True)
class Error:
    """The task says that it failed."""

    detail: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can say how the task ended. Never to be told as success or failure (I9)."""

    detail: str


TaskStatus = Running | Ok | Warnings | Error | Unknown


def task_status(status: object, exitstatus: object = None) -> TaskStatus:
    """What `/tasks/UPID/status` says (pve-facts D6).

    `unexpected status` is a worker that was killed, `unable to ...` a log that could not be read: neither says how the work ended.
    """
    if status == "running":
        return Running()
    if status != "stopped":
        return Unknown(f"status is {bounded(status)}")
    if not isinstance(exitstatus, str) or not exitstatus:
        return Unknown("stopped without an exit status")
    return exit_status(exitstatus)


def exit_status(text: str) -> TaskStatus:
    """What a task's last line says, as the archive keeps it."""
    if not text:
        return Unknown("no exit status")
    if text == "OK":
        return Ok()
    if match := re.fullmatch(r"WARNINGS: ([0-9]{1,9})", text):
        return Warnings(int(match[1]))
    if text.startswith(("unexpected status", "unable to get last line from task log", "unable to read tail")):
        return Unknown(bounded(text))
    return Error(bounded(text))


@dataclass(frozen=True, slots=True)
class Task:
    """One row of a task list. endtime: seconds since the epoch, None while it runs."""

    upid: Upid
    status: TaskStatus
    endtime: int | None = None

    @property
    def running(self) -> bool:
        """Whether the list shows the task as not ended."""
        return isinstance(self.status, Running)


def bounded(value: object, limit: int = 300) -> str:
    """Text for people out of anything that came from outside: one line, printable, at most `limit` characters."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= limit and text.isprintable() and "  " not in text and text == text.strip():
        return text
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
