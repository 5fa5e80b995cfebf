"""The numbers and choices of the configuration that decisions depend on. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass

MASS_STOP_WINDOW = 60.0
MASS_STOP_PAUSE = 900.0
BOOT_GRACE = 900.0
SETTLE = 10.0


@dataclass(frozen=True, slots=True)
class Rules:
    """See `docs/configuration.md` for the meaning of each; the names are the same there."""

    pools: tuple[str, ...]
    exclude: frozenset[int]
    scratch_first: int
    scratch_last: int
    confirm: float
    attempts: int
    backoff: tuple[float, ...]
    stable: float
    parallel: int
    start_timeout: float
    operator_stop_holds: bool
    backup_wait_warn: float
    mass_stop: int
    lock_recovery: bool
    lock_confirm: float
    lock_warn_after: float
    scratch_tag: str
    scratch_origins: frozenset[str]
    scratch_min_age: float

    def in_scratch_band(self, vmid: int) -> bool:
        """Whether no duty may ever start that guest."""
        return self.scratch_first <= vmid <= self.scratch_last

    def backoff_after(self, attempt: int) -> float:
        """Seconds to wait after the end of that attempt (the first is 1); the last wait repeats."""
        return self.backoff[min(attempt, len(self.backoff)) - 1]
