"""How commands speak: aligned tables and plain words for people, one JSON object for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

OK, FAILED, USAGE, UNKNOWN, REFUSED, GRANTS = range(6)


class CommandError(Exception):
    """A command that cannot do what was asked. code: a word for programs; hint: what to do; exit_code: see DESIGN.md."""

    def __init__(self, code: str, message: str, hint: str = "", exit_code: int = FAILED) -> None:
        """See the class."""
        super().__init__(message)
        self.code, self.message, self.hint, self.exit_code = code, message, hint, exit_code


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has to say. text: for people; data: for programs; warning: goes to stderr for people."""

    node: str
    text: str
    data: Any
    exit_code: int = OK
    warning: str = ""


def say(answer: Answer, output: str, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Print an answer and return its exit code."""
    out, err = out or sys.stdout, err or sys.stderr
    if output == "json":
        print(json.dumps({"schema": 1, "node": answer.node, "at": time.time(), "data": answer.data}, default=str), file=out)
    else:
        print(answer.text, file=out)
        if answer.warning:
            print(f"\n{answer.warning}", file=err)
    return answer.exit_code


def say_error(error: CommandError, output: str, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Print what went wrong and return the exit code."""
    out, err = out or sys.stdout, err or sys.stderr
    if output == "json":
        body = {"code": error.code, "message": error.message, "hint": error.hint}
        print(json.dumps({"schema": 1, "error": body}), file=out)
    else:
        print(f"guestward: {error.message}", file=err)
        if error.hint:
            print(f"  what to do: {error.hint}", file=err)
    return error.exit_code


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns aligned to the left, two blanks apart; the last one is as long as it is."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head) - 1)]
    lines = ("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def span(seconds: float | None) -> str:
    """A stretch of time as a person says it: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`; `-` when there is none."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    hours, days = whole // 3600, whole // 86400
    return f"{hours} h {whole % 3600 // 60} min" if hours < 48 else f"{days} d {whole % 86400 // 3600} h"
