"""Who is who in PVE's access control, and what stands in /etc/pve/user.cfg, as pure functions over its text.

Source: pve-access-control 5ccd07d (AccessControl.pm:parse_user_config, write_user_config, roles; Auth/Plugin.pm).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_NAME = r"[A-Za-z][A-Za-z0-9.\-_]+"  # of a realm or a token: two characters at least
USER_ID = rf"(?![-@])[^\s:/!,;\x00-\x20\x7f]+@{_NAME}"
"""USER@REALM, as narrow as lists of them have to be: PVE splits those at commas, semicolons and blanks, and takes `@x` for a group."""
TOKEN_ID = rf"{USER_ID}!{_NAME}"
SCRATCH_ROLE = "GuestwardScratch"
NO_ACCESS = "NoAccess"
ROOT = "root@pam"


def subjects(id: str) -> tuple[str, ...]:
    """Whose entries a user or a token needs: a token has at most what its user has, so both (pve-facts E2).

    root@pam may do everything, and PVE never writes an entry of it (write_user_config).
    """
    user, mark, _ = id.partition("!")
    return tuple(subject for subject in ((user, id) if mark else (user,)) if subject != ROOT)


@dataclass(frozen=True, slots=True)
class UserCfg:
    """user.cfg. entries: (path, user or token or @group) -> role -> whether it propagates. PVE's own roles do not stand in the file."""

    users: frozenset[str]
    tokens: frozenset[str]
    roles: frozenset[str]
    entries: Mapping[tuple[str, str], Mapping[str, bool]]

    @classmethod
    def parse(cls, text: str) -> UserCfg:
        """Read it. Raises ValueError, without a word of the file in it: old ones hold second factors of users."""
        reader = _Lines()
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip() and not reader.take([part.strip() for part in line.strip().split(":")]):
                raise ValueError(f"line {number} is of unknown form")
        return cls(frozenset(reader.users), frozenset(reader.tokens), frozenset(reader.roles), reader.entries)

    def knows(self, subject: str) -> bool:
        """Whether that user or token exists; PVE ignores a token whose user does not, and adds root@pam (userconfig_force_defaults)."""
        return subject.partition("!")[0] in {*self.users, ROOT} and ("!" not in subject or subject in self.tokens)

    def holds(self, path: str, subject: str, role: str) -> bool:
        """Whether the entry is there, is handed down, and counts: PVE ignores those whose role or subject is gone (pve-facts E4)."""
        here = self.entries.get((path, subject), {})
        return here.get(role, False) and role in self.roles and self.knows(subject) and NO_ACCESS not in here

    def is_barred(self, path: str, subject: str) -> bool:
        """Whether `NoAccess` takes away there whatever else is granted there."""
        return NO_ACCESS in self.entries.get((path, subject), {})


@dataclass(slots=True)
class _Lines:
    users: set[str] = field(default_factory=set)
    tokens: set[str] = field(default_factory=set)
    roles: set[str] = field(default_factory=set)
    entries: dict[tuple[str, str], dict[str, bool]] = field(default_factory=dict)

    def take(self, fields: list[str]) -> bool:
        """One line. Whether it is as PVE writes it: each ends with a colon, so that one that was cut off is none."""
        match fields:
            case ["group" | "pool", _, *_, ""]:
                return True
            case ["user", user, "0" | "1", expire, *_, ""] if user and expire.isdecimal():
                self.users.add(user)
            case ["token", token, expire, "0" | "1", *_, ""] if token and expire.isdecimal():
                self.tokens.add(token)
            case ["role", role, _, *_, ""] if role:
                self.roles.add(role)
            case ["acl", "0" | "1" as flag, path, whos, roles, *_, ""] if path.startswith("/") and whos and roles:
                self._entry(path, _split(whos), _split(roles), propagate=flag == "1")
            case _:
                return False
        return True

    def _entry(self, path: str, whos: list[str], roles: list[str], *, propagate: bool) -> None:
        for who in whos:
            self.entries.setdefault((path, who), {}).update(dict.fromkeys(roles, propagate))


def _split(text: str) -> list[str]:
    return [part for part in re.split(r"[\s,;]+", text) if part]
