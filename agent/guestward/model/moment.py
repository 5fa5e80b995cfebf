"""Moments of wall time, for display."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(wall: float) -> str:
    """Seconds since the epoch as `2026-11-30 23:16:32 UTC`."""
    try:
        return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "an impossible time"
