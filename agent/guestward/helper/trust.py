"""What the helper trusts: who may ask, and a configuration that only root can have written."""

from __future__ import annotations

import errno
import os
import pwd
import re
import socket
import stat
import struct
import tomllib
from dataclasses import dataclass
from typing import Any

from guestward.model.helper import Answer, HelperCode
from guestward.model.usercfg import TOKEN_ID, USER_ID

_LARGEST = 1 << 20
_POOL = re.compile(r"[A-Za-z][A-Za-z0-9.\-_]*(/[A-Za-z][A-Za-z0-9.\-_]*){0,2}")
_KEYS = {
    "scope": ("pools", "exclude"),
    "scratch": ("first", "last", "tag", "origins", "grantees", "min_age", "interval"),
    "locks": ("recover", "confirm", "warn_after"),
}
"""Of the sections that say what may be touched; of the others only the keys that are read matter here."""
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Refused(Exception):
    """Nothing was changed, and why."""

    def __init__(self, code: HelperCode, message: str) -> None:
        """message: for people."""
        super().__init__(message)
        self.answer = Answer(code, message)


@dataclass(frozen=True, slots=True)
class Peer:
    """Who connected, as the kernel saw it at that moment (socket(7), SO_PEERCRED)."""

    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class Scope:
    """What root says may be touched. The same keys, bounds and defaults as in the agent's configuration.

    token_id: the agent's own, None where none is said. grantees: tokens and users whose grants in the band are kept, too.
    """

    pools: tuple[str, ...] = ("guestward",)
    exclude: frozenset[int] = frozenset()
    first: int = 990_000
    last: int = 990_009
    report_only: bool = False
    token_id: str | None = None
    grantees: tuple[str, ...] = ()


def peer_of(connection: socket.socket) -> Peer:
    """The process on the other side."""
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return Peer(pid, uid)


def check_peer(peer: Peer, user: str) -> None:
    """Root and the service user may ask, nobody else. user: its name, which comes from root's unit file."""
    try:
        allowed = {0, pwd.getpwnam(user).pw_uid}
    except KeyError:
        allowed = {0}
    if peer.uid not in allowed:
        raise Refused(HelperCode.FORBIDDEN, f"uid {peer.uid} (process {peer.pid}) is neither root nor {user}; use `guestward` as root")


def read_scope(file: str) -> Scope:
    """Read [scope], [scratch], [locks] and [pve] of the agent's configuration, if only root can have written it. Raises Refused."""
    try:
        return _scope(tomllib.loads(_root_owned(file).decode("utf-8")))
    except OSError as error:
        reason = "is a symbolic link, and those are not followed" if error.errno == errno.ELOOP else f"{error.strerror}"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:  # not UTF-8, not TOML, not possible
        reason = str(error)
    raise Refused(HelperCode.CONFIG, f"{file}: {reason}. Nothing is done before that is mended; see `guestward check`")


def _root_owned(file: str) -> bytes:
    """Neither file nor folder may be anybody else's to write; a link could lead to a place where that is not so."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        status, folder = os.fstat(opened.fileno()), os.stat(os.path.dirname(file))
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is no regular file")
        for what, seen in (("it", status), ("its folder", folder)):
            if seen.st_uid != os.geteuid() or seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):  # we are root
                raise ValueError(f"{what} is not root's, or others may write it: `chown root` and `chmod go-w`")
        content = opened.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError("is larger than 1 MiB")
    return content


def _scope(values: dict[str, Any]) -> Scope:
    scope, scratch = _section(values, "scope"), _section(values, "scratch")
    default = Scope()
    pools = scope.get("pools", list(default.pools))
    if not isinstance(pools, list) or not pools or not all(isinstance(pool, str) and _POOL.fullmatch(pool) for pool in pools):
        raise ValueError("scope.pools must be a list of names of pools that is not empty")
    exclude = scope.get("exclude", [])
    if not isinstance(exclude, list):
        raise ValueError("scope.exclude must be a list of VMIDs")
    first, last = _vmid(scratch.get("first", default.first), "scratch.first"), _vmid(scratch.get("last", default.last), "scratch.last")
    if not 0 <= last - first <= 99:
        raise ValueError("scratch.last must be from scratch.first to 99 more")
    recover = _section(values, "locks").get("recover", "prove")
    if recover not in ("prove", "report"):
        raise ValueError('locks.recover must be "prove" or "report"')
    return Scope(
        tuple(pools),
        frozenset(_vmid(vmid, "scope.exclude") for vmid in exclude),
        first,
        last,
        recover == "report",
        _token_id(_section(values, "pve").get("token_id")),
        _grantees(scratch.get("grantees", [])),
    )


def _token_id(value: object) -> str | None:
    if value is not None and not (isinstance(value, str) and re.fullmatch(TOKEN_ID, value)):
        raise ValueError("pve.token_id must be USER@REALM!TOKEN")
    return value


def _grantees(value: object) -> tuple[str, ...]:
    known = re.compile(f"{TOKEN_ID}|{USER_ID}")
    if not isinstance(value, list) or not all(isinstance(id, str) and known.fullmatch(id) for id in value):
        raise ValueError("scratch.grantees must be a list of USER@REALM!TOKEN or USER@REALM")
    return tuple(value)


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name, {})
    if not isinstance(section, dict):
        raise ValueError(f"{name} must be a section")
    unknown = section.keys() - _KEYS.get(name, section.keys())
    if unknown:  # an exclusion that is written wrong would exclude nobody
        raise ValueError(f"{name}.{min(unknown)[:40]!r} is no key; known are {', '.join(_KEYS[name])}")
    return section


def _vmid(value: object, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 100 <= value <= 999_999_999:
        raise ValueError(f"{key} must be a whole number from 100 to 999999999")
    return value
