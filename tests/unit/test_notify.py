"""sd_notify: what arrives at systemd's socket, and that a missing, full or odd socket costs nothing."""

from __future__ import annotations

import re
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestward.adapters.notify import Notifier


@pytest.fixture(params=["file", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = str(tmp_path / "notify") if request.param == "file" else f"@guestward-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        listener.settimeout(5)
        yield listener, name


def test_every_message_arrives_as_systemd_reads_it(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    notifier = Notifier({"NOTIFY_SOCKET": name})
    for call, message in (
        (notifier.ready, b"READY=1"),
        (notifier.watchdog, b"WATCHDOG=1"),
        (notifier.stopping, b"STOPPING=1"),
        (lambda: notifier.status("3 guests, none down"), b"STATUS=3 guests, none down"),
        (lambda: notifier.status("a\nREADY=1\x00" + "\u00e4\ud800"), "STATUS=a READY=1 \u00e4".encode()),
    ):
        assert call() is True
        assert listener.recv(4096) == message


def test_a_reload_carries_the_monotonic_clock(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    assert Notifier({"NOTIFY_SOCKET": name}).reloading()
    match = re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=(\d+)", listener.recv(4096))
    assert match is not None
    assert 0 <= time.monotonic() - int(match[1]) / 1e6 < 5


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "relative", "/nonexistent/socket", "/" + "x" * 200, "@nobody-listens-here"])
def test_without_a_socket_nothing_happens(address: str | None) -> None:
    notifier = Notifier({} if address is None else {"NOTIFY_SOCKET": address})
    assert [notifier.ready(), notifier.status("x"), notifier.watchdog(), notifier.stopping(), notifier.reloading()] == [False] * 5


def test_a_full_socket_does_not_block(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    notifier = Notifier({"NOTIFY_SOCKET": name})
    began = time.monotonic()
    sent = next(count for count in range(100_000) if not notifier.watchdog())
    assert sent > 0
    assert time.monotonic() - began < 5
    listener.recv(4096)
    assert notifier.watchdog()


def test_the_environment_stays_as_it_is() -> None:
    environ = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1"}
    Notifier(environ).ready()
    assert environ == {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1"}
