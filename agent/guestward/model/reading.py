"""A reading of the world is a value or the reason why there is none; there is no third, silent kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar, Union

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The witness could not be read. reason: one line for people."""

    reason: str

    def __bool__(self) -> bool:
        """Unreadable must never pass for a yes or a no by accident."""
        raise TypeError(f"an unreadable witness was used as a yes or no: {self.reason}")


Reading: TypeAlias = Union[T, Unreadable]  # noqa: UP007 - a generic alias needs the long form
