"""One process a request: who asks, what for, and the answer. Started by systemd with the connection as stdin and stdout, or as fd 3."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from guestward.helper.child import Programs
from guestward.helper.desk import HOLD, LONGEST, REGRANT, Desk
from guestward.helper.facts import Host
from guestward.helper.trust import Peer, Refused, check_peer, peer_of, read_scope
from guestward.helper.verbs import VERBS
from guestward.model.events import Level
from guestward.model.helper import MAX_MESSAGE, MAX_REQUEST, TRIED, Answer, HelperCode, Request
from guestward.model.task import bounded

CONFIG = "etc/guestward/guestward.toml"
USER = "guestward"
PATIENCE = 5.0
_FIRST_PASSED = 3  # SD_LISTEN_FDS_START
_PRIORITY = {Level.INFO: "<6>", Level.WARN: "<4>", Level.ERROR: "<3>"}
_LEVEL = {
    HelperCode.FORBIDDEN: Level.WARN,
    HelperCode.BAD_REQUEST: Level.WARN,
    HelperCode.CONFIG: Level.ERROR,
    HelperCode.UNREADABLE: Level.WARN,
} | dict.fromkeys(TRIED, Level.ERROR)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one request. Returns 0 when an answer was made, whatever it is: a refusal is no failure of the unit."""
    options = _options(arguments)
    os.umask(0o022)
    connection = _connection()
    if connection is None:
        _log(Level.ERROR, "helper_failed", "started without a connection: `systemctl start guestward-helper.socket`", {})
        return 2
    with connection:
        peer = peer_of(connection)
        about: dict[str, object] = {"peer_uid": peer.uid, "peer_pid": peer.pid}
        answer = _serve(connection, peer, options, about)
        about["code"] = answer.code.value
        _log(_LEVEL.get(answer.code, Level.INFO), "helper_answer", answer.message, about)
        if not _send(connection, answer.encode()):
            _log(Level.WARN, "helper_undelivered", "the caller did not wait for the answer", about)
    return 0


def _serve(connection: socket.socket, peer: Peer, options: argparse.Namespace, about: dict[str, object]) -> Answer:
    """Carry out one request. about: what the log says of it, completed here."""
    try:
        check_peer(peer, options.user)
        try:
            request = Request.decode(_line(connection, options.patience))
        except ValueError as error:
            raise Refused(HelperCode.BAD_REQUEST, f"refused: {error}") from None
        about.update(request.fields())
        _log(Level.INFO, "helper_request", "asked", about)
        programs = Programs(options.programs)
        scope = read_scope(os.path.join(options.root, CONFIG))
        limits = min(options.hold, HOLD), min(options.longest, LONGEST), min(options.regrant, REGRANT)
        desk = Desk(Host(options.root, programs), programs, scope, *limits)
        return VERBS[request.verb](desk, request)
    except Refused as refused:
        return refused.answer
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer and not a silence
        return Answer(HelperCode.UNKNOWN, f"a defect in the helper, and what was done is not known: {type(error).__name__}: {error}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """They come from root's unit file, never over the socket."""
    parser = argparse.ArgumentParser(prog="guestward-helper", description="Guestward's root helper; systemd starts it for each request.")
    parser.add_argument("--user", default=USER, help="the service user, who may ask besides root")
    parser.add_argument("--root", default="/", help="for tests: where the host's files are")
    parser.add_argument("--programs", default=None, help="for tests: one folder with all of PVE's programs")
    parser.add_argument("--hold", type=float, default=HOLD, help="for tests: longest time for the flock")
    parser.add_argument("--longest", type=float, default=LONGEST, help="for tests: longest time for a snapshot's deletion")
    parser.add_argument("--regrant", type=float, default=REGRANT, help="for tests: longest time for the writes of a regrant")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="for tests: longest time for the request to come")
    return parser.parse_args(arguments)


def _connection() -> socket.socket | None:
    """The one that systemd passed as fd 3 (sd_listen_fds(3)), else stdin, which is stdout too (Accept=yes, StandardInput=socket)."""
    passed = os.environ.get("LISTEN_FDS") == "1" and os.environ.get("LISTEN_PID") == str(os.getpid())
    try:
        connection = socket.socket(fileno=_FIRST_PASSED if passed else os.dup(0))
    except OSError:
        return None
    if connection.family != socket.AF_UNIX or connection.type != socket.SOCK_STREAM:
        connection.close()
        return None
    os.set_inheritable(connection.fileno(), False)
    return connection


def _line(connection: socket.socket, patience: float) -> bytes:
    """The one line of the request. Raises ValueError."""
    data, deadline = b"", time.monotonic() + patience
    while b"\n" not in data and len(data) <= MAX_REQUEST:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            more = connection.recv(MAX_REQUEST + 1 - len(data))
        except TimeoutError:
            raise ValueError(f"no whole line within {patience:g} s") from None
        except OSError as error:
            raise ValueError(f"the connection broke: {error.strerror}") from None
        if not more:
            raise ValueError(f"the connection ended after {len(data)} bytes without a whole line")
        data += more
    line, end, rest = data.partition(b"\n")
    if len(data) > MAX_REQUEST:
        raise ValueError(f"longer than {MAX_REQUEST} bytes")
    if not end or rest:
        raise ValueError("more than one line")
    return line


def _send(connection: socket.socket, line: bytes) -> bool:
    """Whether the answer went out; the caller may be gone."""
    try:
        connection.settimeout(PATIENCE)
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return False
    return True


def _log(level: Level, event: str, message: str, about: Mapping[str, object]) -> None:
    """One line of JSON as the agent's, with the priority that journald reads (sd-daemon(3)). Never raises."""
    now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = {"ts": now, "level": level.value, "event": event, "message": bounded(message, MAX_MESSAGE), **about}
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{_PRIORITY[level]}{json.dumps(record)}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
