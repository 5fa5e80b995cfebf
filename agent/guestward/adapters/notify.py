"""sd_notify(3) without a library: one datagram, never blocking, never failing."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

from guestward.model.task import bounded


class Notifier:
    """Tells the service manager how the daemon is. Each call says whether the datagram went out; without a socket nothing happens."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Take NOTIFY_SOCKET from the environment; it stays as it is."""
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def ready(self) -> bool:
        """The first sweep ended."""
        return self._send("READY=1")

    def status(self, text: str) -> bool:
        """One line for `systemctl status`; a line break in it could otherwise say something else to systemd."""
        return self._send(f"STATUS={bounded(text)}")

    def watchdog(self) -> bool:
        """The daemon lives."""
        return self._send("WATCHDOG=1")

    def stopping(self) -> bool:
        """The daemon is ending."""
        return self._send("STOPPING=1")

    def reloading(self) -> bool:
        """A reload begins; `ready()` ends it. Type=notify-reload wants CLOCK_MONOTONIC with it (sd_notify(3), 253)."""
        return self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def _send(self, message: str) -> bool:
        if self._address[:1] not in ("/", "\0"):  # absent, or an address family that we do not speak (vsock:)
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError:
            return False
        return True
