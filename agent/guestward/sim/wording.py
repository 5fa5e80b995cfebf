"""Words of a scenario in messages: pieces of the file as they are shown, and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from guestward.model.task import bounded


def guess(word: str, known: Collection[str]) -> str:
    """What was probably meant, as the end of a sentence; "" where nothing is near."""
    near = difflib.get_close_matches(word, sorted(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def quoted(text: str) -> str:
    """A piece of the file in a message: in quotes, one line, of bounded length."""
    return f'"{bounded(text, 80)}"'
