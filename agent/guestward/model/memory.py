"""What is remembered of a guest between looks and over restarts of the agent.

All times are seconds since host boot and mean nothing in another boot, in which the history is forgotten anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from guestward.model.decision import Guard, Outcome
from guestward.model.guest import GuestId
from guestward.model.locks import LockMemory
from guestward.model.scratch import ScratchMemory
from guestward.model.task import Upid


@dataclass(frozen=True, slots=True)
class StopCause:
    """The task that stopped a guest. at: seconds since host boot at which it began; wall: seconds since the epoch, for display."""

    task: str
    user: str
    at: float
    wall: float
    by_vzdump: bool = False
    foreign: bool = True


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to start a guest, written down before the request is sent.

    deadline: fixed before the request. upid: empty until PVE answered or the task was found. outcome is None while it is in flight.
    live_reads: how often it was seen really running. task_ended_at, task_said: when and how its task was seen to have ended.
    """

    number: int
    begun_at: float
    deadline: float
    upid: str = ""
    ended_at: float | None = None
    outcome: Outcome | None = None
    reason: str = ""
    live_reads: int = 0
    task_ended_at: float | None = None
    task_said: str = ""

    @property
    def in_flight(self) -> bool:
        """Whether nobody has said yet how it ended."""
        return self.outcome is None


@dataclass(frozen=True, slots=True)
class GuestMemory:
    """One guest as we knew it at the last look.

    identity: who it is since it last ran; empty until its configuration was read after that. onboot: as last read.
    ran: seen running on this node. new: appeared while we watched. away: lives on another node now. down_since: first seen stopped.
    startable_since: first seen stopped with nothing in the way. ran_until: when it was last seen running before it went down.
    cause_read: the task history was read for this episode. doubt_since: since when another guest may have been made under its VMID.
    stamp: of its configuration file, while it is down. released: an operator or a new configuration lifted what its stop holds.
    announced: guards already told in this episode. stable_since: since when it has run without a break and without a lock.
    blocked_storages: storages seen offline while it was down. suspect, not_working: a state in which it does not work, seen once and told.
    """

    id: GuestId
    name: str = ""
    owned: bool = False
    identity: str = ""
    fingerprint: str = ""
    onboot: bool | None = None
    ran: bool = False
    new: bool = False
    away: bool = False
    running: bool = False
    down_since: float | None = None
    startable_since: float | None = None
    announced: tuple[Guard, ...] = ()
    cause: StopCause | None = None
    cause_read: bool = False
    ran_until: float | None = None
    doubt_since: float | None = None
    stamp: str = ""
    released: bool = False
    attempts: tuple[Attempt, ...] = ()
    given_up: bool = False
    stable_since: float | None = None
    blocked_storages: frozenset[str] = frozenset()
    backup_since: float | None = None
    backup_warned: bool = False
    suspect: str = ""
    not_working: str = ""

    @property
    def in_flight(self) -> Attempt | None:
        """The attempt that has not ended, if there is one; it is always the last."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].in_flight else None

    @property
    def in_flight_upid(self) -> Upid | None:
        """The task of that attempt, once known."""
        attempt = self.in_flight
        return Upid.parse(attempt.upid) if attempt is not None and attempt.upid else None


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator's wish that nothing be done. vmid None: the whole node. duration in seconds. claim: a restore tester's word that the
    guest with this VMID of the scratch band is, or will be, his own and in use.

    It ends by boot time within the boot in which it was written and by wall time in later ones, and lasts on while the wall clock is
    behind its own writing.
    """

    vmid: int | None
    reason: str
    by: str
    duration: float
    boot_id: str
    boottime: float
    wall: float
    claim: bool = False

    def remaining(self, boot_id: str, boottime: float, wall: float) -> float:
        """Seconds until it ends; 0 or less when it has ended."""
        if boot_id == self.boot_id:
            return self.boottime + self.duration - boottime
        if wall < self.wall:
            return self.duration
        return self.wall + self.duration - wall


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """What is remembered of the node.

    boot_id: the boot in which all times are, in seconds since its start. watched: guests were seen in this boot. looked_at: when the last
    look began. offsets: every value that wall clock less boot clock has had. locks: all locks of owned guests. scratch: what was tried
    and claimed in the band. unseeded: the memory was lost, and PVE has not been asked yet what was tried before.
    """

    boot_id: str = ""
    watched: bool = False
    looked_at: float | None = None
    offsets: tuple[float, ...] = ()
    sweeps: int = 0
    mass_stop_until: float | None = None
    locks: tuple[LockMemory, ...] = ()
    scratch: tuple[ScratchMemory, ...] = ()
    unseeded: bool = False
