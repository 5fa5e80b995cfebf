"""Where in a TOML text its keys and values stand: `tomllib` reads them and does not tell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence

Key = str | int  # a key, or the number of an element of an array
Where = tuple[Key, ...]

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL)
_OTHER = re.compile(r"[^,\]}#\n]+")


class Lines:
    """The line of each table, key and element of an array in a text that `tomllib` accepts.

    A place is a path from the root, as in `("guest", 0, "start", 1)`: what the value is reached by once the text has been read.
    """

    def __init__(self, text: str) -> None:
        """text: a whole document, with `\\n` at the ends of its lines."""
        self._text, self._at, self._line, self._counted = text, 0, 1, 0
        self._found: dict[Where, int] = {}
        self._elements: dict[Where, int] = {}  # how many elements an array of tables has so far
        self._document()

    def of(self, where: Sequence[Key]) -> int:
        """The line on which that begins; where it stands nowhere, the line of what it would be in. 1 for the document."""
        place = tuple(where)
        while place and place not in self._found:
            place = place[:-1]
        return self._found.get(place, 1)

    # The grammar, as far as it matters where something is; that the text is valid is known.

    def _document(self) -> None:
        table: Where = ()
        while self._skip(_BLANK) < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Where:
        line, many = self._here(), self._text.startswith("[[", self._at)
        self._at += 2 if many else 1
        keys = self._keys()
        self._at += 2 if many else 1
        place: Where = ()
        for key in keys[:-1]:
            place = (*place, key)
            self._note(place, line)
            if place in self._elements:
                place = (*place, self._elements[place] - 1)
        place = (*place, keys[-1])
        self._note(place, line)
        if many:
            number = self._elements.get(place, 0)
            self._elements[place] = number + 1
            place = (*place, number)
            self._note(place, line)
        return place

    def _pair(self, table: Where) -> None:
        line, keys = self._here(), self._keys()
        for length in range(len(keys)):
            self._note((*table, *keys[: length + 1]), line)
        self._at += 1  # the "="
        self._value((*table, *keys))

    def _keys(self) -> list[str]:
        """A key with its dots, up to and without what follows it."""
        keys: list[str] = []
        while True:
            self._skip(_SPACE)
            word = self._take(_STRING if self._text[self._at] in "\"'" else _BARE)
            keys.append(str(tomllib.loads(f"x = {word}")["x"]) if word[0] in "\"'" else word)
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return keys
            self._at += 1

    def _value(self, place: Where) -> None:
        self._skip(_SPACE)
        opening = self._text[self._at]
        if opening in "\"'":
            self._take(_STRING)
        elif opening == "[":
            self._array(place)
        elif opening == "{":
            self._inline_table(place)
        else:
            self._take(_OTHER)

    def _array(self, place: Where) -> None:
        self._at += 1
        number = 0
        while self._text[self._skip(_BLANK)] != "]":
            self._note((*place, number), self._here())
            self._value((*place, number))
            number += 1
            if self._text[self._skip(_BLANK)] == ",":
                self._at += 1
        self._at += 1

    def _inline_table(self, place: Where) -> None:
        self._at += 1
        while self._text[self._skip(_BLANK)] != "}":
            self._pair(place)
            if self._text[self._skip(_BLANK)] == ",":
                self._at += 1
        self._at += 1

    # The text

    def _skip(self, what: re.Pattern[str]) -> int:
        match = what.match(self._text, self._at)
        self._at = match.end() if match is not None else self._at
        return self._at

    def _take(self, what: re.Pattern[str]) -> str:
        match = what.match(self._text, self._at)
        if match is None:
            raise ValueError(f"not TOML on line {self._here()}")
        self._at = match.end()
        return match[0]

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _note(self, place: Where, line: int) -> None:
        self._found.setdefault(place, line)
