"""How commands speak: aligned tables and plain words for people, one JSON object for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

OK, FAILED, USAGE, UNKNOWN, REFUSED, GRANTS = range(6)
GAP = "  "
LEAST_LAST = 30  # columns that the last column keeps on a narrow terminal


class CommandError(Exception):
    """A command that cannot do what was asked. code: a word for programs; hint: what to do; exit_code: see DESIGN.md."""

    def __init__(self, code: str, message: str, hint: str = "", exit_code: int = FAILED) -> None:
        """See the class."""
        super().__init__(message)
        self.code, self.message, self.hint, self.exit_code = code, message, hint, exit_code


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, the first row may be a head. The last column is wrapped on a terminal; shrink: the one that may be cut there."""

    rows: Sequence[Sequence[object]]
    shrink: int | None = None

    def lines(self, width: int | None) -> Iterator[str]:
        """Columns aligned to the left. width: of the terminal; None: nothing is wrapped or cut."""
        cells = [[plain(cell) for cell in row] for row in self.rows]
        if not cells:
            return
        widths = [max(columns(row[i]) for row in cells) for i in range(len(cells[0]) - 1)]
        left = None
        if width is not None:
            over = sum(widths) + len(GAP) * len(widths) + LEAST_LAST - width
            if self.shrink is not None and over > 0:
                widths[self.shrink] = min(widths[self.shrink], max(12, widths[self.shrink] - over))
            left = max(LEAST_LAST, width - sum(widths) - len(GAP) * len(widths))
        indent = " " * (sum(widths) + len(GAP) * len(widths))
        for row in cells:
            front = "".join(_fit(cell, wide) + GAP for cell, wide in zip(row[:-1], widths, strict=True))
            for number, piece in enumerate(_wrapped(row[-1], left)):
                yield ((indent if number else front) + piece).rstrip()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has to say. parts: lines and tables for people; data: for programs; warning: goes to stderr for people."""

    node: str
    at: float
    parts: Sequence[str | Table]
    data: Any
    exit_code: int = OK
    warning: str = ""


def say(answer: Answer, output: str) -> int:
    """Print an answer and return its exit code."""
    if output == "json":
        return answer.exit_code if put(envelope(answer.node, answer.at, answer.data)) else answer.exit_code or FAILED
    width = terminal_width(sys.stdout)
    lines: list[str] = []
    for part in answer.parts:
        lines += part.lines(width) if isinstance(part, Table) else [plain(part)]
    said = put("\n".join(lines))
    if answer.warning:
        put(f"\n{plain(answer.warning)}", sys.stderr)
    return answer.exit_code if said else answer.exit_code or FAILED


def envelope(node: str, at: float, data: Any) -> str:
    """The one object that a program gets."""
    return json.dumps({"schema": 1, "node": node, "at": round(at, 3), "data": data}, allow_nan=False)


def say_error(error: CommandError, output: str) -> int:
    """Print what went wrong and return the exit code."""
    if output == "json":
        put(json.dumps({"schema": 1, "error": {"code": error.code, "message": error.message, "hint": error.hint}}))
    else:
        hint = f"\n  what to do: {plain(error.hint)}" if error.hint else ""
        put(f"guestward: {plain(error.message)}{hint}", sys.stderr)
    return error.exit_code


def put(text: str, stream: TextIO | None = None) -> bool:
    """Print at once. False when it cannot be written; a reader that has gone away has read what it wanted."""
    stream = stream or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except UnicodeEncodeError:
        return put(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding), stream)
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _silence(stream)
        if stream is not sys.stderr:
            put(f"guestward: the answer cannot be written: {error.strerror}", sys.stderr)
        return False
    return True


def _silence(stream: TextIO) -> None:
    """What is still in the buffer would be tried again, and complained about, when the interpreter ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def plain(value: object) -> str:
    """One line that does nothing to a terminal: whatever is not printable is shown as Python writes it (`\\x1b`)."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def terminal_width(stream: TextIO | None) -> int | None:
    """Columns of the terminal behind a stream; None when there is none, and nothing must be cut."""
    try:
        is_terminal = stream is not None and stream.isatty()
    except ValueError:
        is_terminal = False
    return max(60, shutil.get_terminal_size((100, 24)).columns) if is_terminal else None


def columns(text: str) -> int:
    """How wide a text is on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _fit(text: str, width: int) -> str:
    """Padded to a width; what is longer is cut, and shows it."""
    if columns(text) > width:
        text = _head(text, width - 3) + "..."
    return text + " " * (width - columns(text))


def _head(text: str, width: int) -> str:
    while columns(text) > width:
        text = text[: min(len(text) - 1, width)]
    return text


def _wrapped(text: str, width: int | None) -> list[str]:
    """Broken between words; a word that is wider than the column is broken inside."""
    if width is None or columns(text) <= width:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if columns(longer) <= width:
            line = longer
            continue
        lines += [line] if line else []
        line = word
        while columns(line) > width:
            lines.append(_head(line, width))
            line = line[len(lines[-1]) :]
    return [*lines, line]


def span(seconds: float | None) -> str:
    """A stretch of time as a person says it: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`; `-` when there is none."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    hours, days = whole // 3600, whole // 86400
    parts = ((hours, "h"), (whole % 3600 // 60, "min")) if hours < 48 else ((days, "d"), (whole % 86400 // 3600, "h"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def count(number: int, what: str) -> str:
    """A number of things: `1 guest`, `2 guests`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def moment(wall: float) -> str:
    """A moment in the local time of whoever calls, as in `Tue 2026-12-01 03:08 CET`."""
    try:
        return time.strftime("%a %Y-%m-%d %H:%M %Z", time.localtime(wall)).rstrip()
    except (OverflowError, ValueError, OSError):
        return "some day"
