"""The host's clocks, the id of its boot, and its name."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_BOOT_ID = "proc/sys/kernel/random/boot_id"
UNKNOWN_BOOT = "unknown"


class HostClock:
    """`Clock` on a real host. A stop event that is set ends every pause."""

    def __init__(self, root: Path, stop: threading.Event | None = None) -> None:
        """Root is where the host's files are; the boot id falls back to the real /proc when the tree has none."""
        self._root = root
        self._stop = stop if stop is not None else threading.Event()

    def boottime(self) -> float:
        """Seconds since host boot, suspend included (clock_gettime(2), CLOCK_BOOTTIME)."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Seconds since the epoch; may jump (field case C77)."""
        return time.time()

    def boot_id(self) -> str:
        """A random id that the kernel draws at each boot (random(4)); "unknown" when nothing can be read."""
        for path in (self._root / _BOOT_ID, Path("/") / _BOOT_ID):
            try:
                text = path.read_text("ascii").strip()
            except (OSError, UnicodeDecodeError):
                continue
            if text:
                return text
        return UNKNOWN_BOOT

    def pause(self, seconds: float) -> None:
        """Wait, or less when the agent is asked to end. Event.wait uses the monotonic clock."""
        self._stop.wait(max(0.0, seconds))


def node_name() -> str:
    """The name of this PVE node: `uname -n` up to the first dot (pve-common `INotify.pm:nodename`)."""
    return os.uname().nodename.partition(".")[0]
