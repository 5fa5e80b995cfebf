"""The root helper over its socket: one connection, one line each way. Nothing here waits for an answer."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from guestward.model.helper import ANSWERED_WITHIN, MAX_ANSWER, Answer, Request
from guestward.ports import Clock, HelperLost, HelperUnreachable

SOCKET = "run/guestward/helper.sock"
CONNECT = 2.0  # seconds; systemd takes a connection as long as its backlog has room


@dataclass(slots=True)
class SocketCall:
    """One request under way. until: seconds since host boot."""

    connection: socket.socket
    clock: Clock
    until: float
    heard: bytearray = field(default_factory=bytearray)

    def answer(self) -> Answer | None:
        """See `ports.HelperCall`."""
        try:
            while len(self.heard) <= MAX_ANSWER:
                data = self.connection.recv(MAX_ANSWER + 1)
                if not data:
                    return self._whole()
                self.heard += data
                if data.endswith(b"\n"):
                    return self._whole()
        except BlockingIOError:
            if self.clock.boottime() < self.until:
                return None
            raise self._lost("it did not answer in time") from None
        except OSError as error:
            raise self._lost(f"the connection broke off ({error.strerror})") from None
        raise self._lost("its answer is too long")

    def _whole(self) -> Answer:
        try:
            answer = Answer.decode(bytes(self.heard))
        except ValueError as error:
            raise self._lost(f"its answer is none: {error}" if self.heard else "it ended without an answer") from None
        self.connection.close()
        return answer

    def _lost(self, why: str) -> HelperLost:
        self.connection.close()
        return HelperLost(f"the root helper: {why}; `journalctl -u 'guestward-helper@*'` tells what it did")


@dataclass(frozen=True, slots=True)
class SocketHelper:
    """`ports.Helper`. root: "/" in production."""

    root: Path
    clock: Clock

    def ask(self, request: Request) -> SocketCall:
        """See `ports.Helper`."""
        path = self.root / SOCKET
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(CONNECT)
            connection.connect(str(path))
            connection.sendall(request.encode())
            connection.setblocking(False)
        except OSError as error:
            with suppress(OSError):
                connection.close()
            why = error.strerror or str(error)
            raise HelperUnreachable(f"{path}: {why}; see `systemctl status guestward-helper.socket`") from None
        return SocketCall(connection, self.clock, self.clock.boottime() + ANSWERED_WITHIN[request.verb])
