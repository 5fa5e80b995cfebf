"""The doors to the world. Duties know these and nothing else; adapters open them on a real host, `sim` on a simulated one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from guestward.model.decision import Decision, Gate
from guestward.model.events import EventKind, Level
from guestward.model.guest import GuestConfig, GuestId, GuestKind, ListedGuest, LiveStatus
from guestward.model.helper import Answer, Request
from guestward.model.locks import LockDecision
from guestward.model.memory import GuestMemory, Hold, NodeMemory
from guestward.model.observation import BackupWitnesses, HostState, Member, Resources
from guestward.model.reading import Reading
from guestward.model.scratch import ScratchDecision, ScratchId
from guestward.model.task import Task, TaskStatus, Upid


class PveError(Exception):
    """PVE said no, or could not be asked. The message is one line for people and never holds a secret.

    status: PVE's HTTP status, 0 when there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        """Keep the message bounded by its maker; status as above."""
        super().__init__(message)
        self.status = status


class PveRefused(PveError):
    """PVE answered and refused: the request had no effect."""


class PveUnreachable(PveError):
    """The request was certainly not carried out: it was never sent (connection refused, TLS not trusted, no budget left)."""


class PveAnswerLost(PveError):
    """The request may or may not have been carried out: 595-599, a timeout, a reset, an answer that is not PVE's."""


class Clock(Protocol):
    """Time is a door. boottime counts while the host sleeps; wall is for display."""

    def boottime(self) -> float:
        """Seconds since host boot (CLOCK_BOOTTIME)."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    def boot_id(self) -> str:
        """The id of this boot of the host."""
        ...

    def pause(self, seconds: float) -> None:
        """Let a short time pass, or less when the agent is asked to end."""
        ...


class Pve(Protocol):
    """The PVE API of our node. Every call raises PveError and nothing else; numbers and booleans arrive as such.

    deadline: seconds since host boot after which no answer is of use; it bounds every socket wait.
    """

    @property
    def node(self) -> str:
        """Our node's name."""
        ...

    @property
    def token_id(self) -> str:
        """The full id of our token, as it stands in the UPIDs of our tasks."""
        ...

    def guests(self, kind: GuestKind, *, deadline: float) -> Mapping[GuestId, ListedGuest]:
        """`GET /nodes/N/{lxc,qemu}`: the live list, silently filtered by VM.Audit."""
        ...

    def members(self, pool: str, *, deadline: float) -> tuple[Member, ...]:
        """`GET /pools?poolid=P`: all guests of the pool, on whatever node."""
        ...

    def active_tasks(self, *, deadline: float) -> tuple[Task, ...]:
        """`GET /nodes/N/tasks?source=active`: running and just ended tasks. Raises PveError on a full page: it may hide more."""
        ...

    def past_tasks(self, *, deadline: float) -> tuple[Task, ...]:
        """`GET /nodes/N/tasks?source=archive`: the newest ended tasks, in the order in which they ended, newest first.

        Without a limit in time: that would be one in wall time, which somebody may have set meanwhile (I16).
        """
        ...

    def past_backups(self, *, deadline: float) -> tuple[Task, ...]:
        """The same of vzdumps alone: 500 of them reach back further than 500 tasks of any type."""
        ...

    def past_tasks_of(self, vmid: int, *, deadline: float) -> tuple[Task, ...]:
        """The newest ended tasks of one VMID, in the order in which they ended, newest first."""
        ...

    def privileges(self, *, deadline: float) -> Mapping[str, Mapping[str, bool]]:
        """`GET /access/permissions`: path -> privilege -> whether it is handed down. A key means that it is held (pve-facts E3)."""
        ...

    def resources(self, *, deadline: float) -> Resources:
        """`GET /cluster/resources`: HA states, storages and maintenance of our node."""
        ...

    def config(self, guest: GuestId, *, deadline: float) -> GuestConfig:
        """`GET .../config`."""
        ...

    def live(self, guest: GuestId, *, deadline: float) -> LiveStatus:
        """`GET .../status/current`."""
        ...

    def snapshots(self, guest: GuestId, *, deadline: float) -> Mapping[str, str]:
        """`GET .../snapshot`: name -> snapstate, "" for a whole one."""
        ...

    def task(self, upid: Upid, *, deadline: float) -> TaskStatus:
        """`GET /nodes/N/tasks/UPID/status`. A rotated or unknown task is Unknown, not an error."""
        ...

    def task_log(self, upid: Upid, *, deadline: float) -> tuple[str, ...]:
        """`GET /nodes/N/tasks/UPID/log`: all its lines, oldest first. Raises PveError where not all can be read, or the log is gone.

        A worker that was killed wrote no last line.
        """
        ...

    def start(self, guest: GuestId, *, deadline: float) -> Upid:
        """`POST .../status/start`, sent once. Raises PveRefused, PveUnreachable or PveAnswerLost."""
        ...

    def stop_scratch(self, kind: GuestKind, scratch: ScratchId, *, deadline: float) -> Upid:
        """`POST .../status/stop` of a guest in the band, sent once. Raises as `start` does."""
        ...

    def destroy_scratch(self, kind: GuestKind, scratch: ScratchId, *, deadline: float) -> Upid:
        """`DELETE /nodes/N/KIND/VMID?purge=1` of a guest in the band, sent once. Raises as `start` does.

        Never with `destroy-unreferenced-disks`, which would free the volumes of another cluster on a storage that both use.
        """
        ...

    def volume_storages(self, *, deadline: float) -> Mapping[str, bool]:
        """`GET /nodes/N/storage`: enabled storages that may hold volumes of guests -> whether they are active."""
        ...

    def volumes(self, storage: str, scratch: ScratchId, *, deadline: float) -> tuple[str, ...]:
        """`GET /nodes/N/storage/S/content?vmid=V`: volumes with that VMID; PVE shows them to whoever may see storage and guest."""
        ...


class HostWitness(Protocol):
    """What an unprivileged process can see on the host itself. Never raises; what cannot be read says so."""

    def host(self) -> HostState:
        """Boot, quorum, hold file, maintenance, names under /etc/pve."""
        ...

    def backups(self) -> BackupWitnesses:
        """flock, pid file, archive processes."""
        ...

    def written(self, guests: Iterable[GuestId]) -> Mapping[GuestId, float]:
        """When these guests' configuration files were last written, in seconds since the epoch; one that cannot be read is not in it."""
        ...

    def frozen(self, vmids: Iterable[int]) -> Reading[frozenset[int]]:
        """Which of these containers' cgroups are frozen."""
        ...


class HelperError(Exception):
    """The root helper could not be asked, or its answer is not known. The message is one line for people."""


class HelperUnreachable(HelperError):
    """It was certainly not asked."""


class HelperLost(HelperError):
    """It was asked and its answer never came: it may have acted."""


class HelperCall(Protocol):
    """One request to the helper, under way."""

    def answer(self) -> Answer | None:
        """What it said, None while it works. Raises HelperLost once it is known that no answer will come. Never waits."""
        ...


class Helper(Protocol):
    """The root helper: it re-checks for itself whatever it is told (see `model.helper`)."""

    def ask(self, request: Request) -> HelperCall:
        """Send one request; nobody waits for its answer. Raises HelperUnreachable when it was certainly not asked."""
        ...


class Store(Protocol):
    """The agent's memory over restarts. Never raises: a failure is told once through the journal, and memory goes on."""

    def node(self) -> NodeMemory:
        """What is remembered of the node."""
        ...

    def guests(self) -> dict[GuestId, GuestMemory]:
        """What is remembered of every guest."""
        ...

    def save(self, node: NodeMemory, changed: Iterable[GuestMemory], forgotten: Iterable[GuestId]) -> None:
        """Write in one transaction and make it durable before returning."""
        ...

    def holds(self) -> Reading[tuple[Hold, ...]]:
        """All holds written down, ended ones included; Unreadable where there may be some that cannot be known."""
        ...

    def drop_holds(self, holds: Iterable[Hold]) -> None:
        """Delete holds that have ended."""
        ...

    def take_rearms(self) -> tuple[int, ...]:
        """VMIDs that an operator asked to be re-armed since the last call."""
        ...

    def begins_empty(self) -> bool:
        """Whether there was no readable memory when it was opened: attempts before then are only in PVE's task list."""
        ...

    def publish(self, board: Board) -> None:
        """Keep the last look for `status` and `explain`."""
        ...


class Journal(Protocol):
    """Where events go."""

    def emit(
        self, event: EventKind, level: Level | None = None, *, message: str, guest: GuestLabel | None = None, **fields: object
    ) -> None:
        """Log one event. level None: the event's usual one. Never raises and never blocks the caller for long."""
        ...


@dataclass(frozen=True, slots=True)
class GuestLabel:
    """How a guest is named in an event."""

    id: GuestId
    name: str
    guard: str


@dataclass(frozen=True, slots=True)
class Row:
    """One guest on the board. down_since, config_read_at, up_since: seconds since host boot."""

    decision: Decision
    running: bool
    owned: bool
    attempts: int
    down_since: float | None
    given_up: bool
    not_working: str
    lock: str | None
    config_read_at: float | None = None
    cause: str = ""
    up_since: float | None = None


@dataclass(frozen=True, slots=True)
class Board:
    """The last look, for people and metrics. All times but wall are seconds since host boot.

    aborted: why the last look saw nothing; the rows are then those of an earlier one, seen at `seen_at`. ended: the agent was stopped.
    """

    node: str
    boot_id: str
    at: float
    wall: float
    seen_at: float | None
    seen_wall: float | None
    sweeps: int
    gate: Gate
    rows: tuple[Row, ...]
    aborted: str = ""
    incomplete: str = ""
    last_complete_at: float | None = None
    last_complete_wall: float | None = None
    lost: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    ended: bool = False
    locks: tuple[LockDecision, ...] = ()
    scratch: tuple[ScratchDecision, ...] = ()
