"""For all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Programs started in the background of a shell inherit an ignored SIGINT, and so would those that the tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
