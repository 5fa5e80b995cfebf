"""What was seen of the world at one moment. Frozen: a decision is a pure function over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from guestward.model.guest import GuestConfig, GuestId, ListedGuest
from guestward.model.reading import Reading, Unreadable
from guestward.model.task import Task, Upid

NOT_READ = Unreadable("not read: no guest needs it")


@dataclass(frozen=True, slots=True)
class UnitState:
    """What `systemctl show` says of one unit: LoadState, ActiveState, SubState, UnitFileState."""

    load: str
    active: str
    sub: str
    file: str


@dataclass(frozen=True, slots=True)
class NodeNames:
    """Configuration files under `/etc/pve/nodes`: on our node with a stamp that changes with the file, and on other nodes."""

    here: Mapping[GuestId, str]
    elsewhere: Mapping[GuestId, str]


@dataclass(frozen=True, slots=True)
class HostState:
    """The host's own witnesses.

    pmxcfs: whether `/etc/pve/local` is there (`Cluster.pm:check_cfs_is_mounted`). local_node: the node that it points at, None where
    that cannot be told.
    """

    pmxcfs: bool
    quorate: Reading[bool]
    pve_guests: Reading[UnitState]
    system: Reading[str]
    hold_file: Reading[bool]
    maintenance: Reading[bool]
    names: Reading[NodeNames]
    local_node: str | None = None


@dataclass(frozen=True, slots=True)
class FlockHolder:
    """Who holds the flock on `/var/run/vzdump.lock`. pid is 0 where the kernel does not tell."""

    pid: int


@dataclass(frozen=True, slots=True)
class BackupWitnesses:
    """The host's witnesses of a backup, besides config lock and task list.

    flock: the holder, or None when nobody holds it. live_upid: the UPID in `/var/run/vzdump.pid` if that worker lives (same start
    time), else None: the file is often stale. archives: VMIDs that a live archive process works on.
    """

    flock: Reading[FlockHolder | None]
    live_upid: Reading[Upid | None]
    archives: Reading[frozenset[int]]


class StorageState(StrEnum):
    """OFFLINE only where it was seen; UNKNOWN does not block a start."""

    AVAILABLE = "available"
    OFFLINE = "offline"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Resources:
    """From `/cluster/resources`: HA states (the value may be None for a managed guest), storages and maintenance of our node."""

    listed: frozenset[GuestId]
    ha: Mapping[GuestId, str | None]
    storages: Mapping[str, StorageState]
    maintenance: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """A guest in one of our pools. state: what pvestatd last published (up to 10 s old): the QMP state for a VM."""

    id: GuestId
    node: str
    pool: str
    state: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class LostGrant:
    """A privilege that the token needs and does not have."""

    path: str
    privilege: str

    def __str__(self) -> str:
        """As PVE writes it in its refusals."""
        return f"{self.privilege} on {self.path}"


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at node and host.

    at: seconds since host boot. wall: seconds since the epoch, for display. configs: of owned guests seen stopped and unlocked.
    """

    at: float
    wall: float
    node: str
    token_id: str
    host: HostState
    guests: Mapping[GuestId, ListedGuest]
    members: Mapping[GuestId, Member]
    tasks: Reading[tuple[Task, ...]]
    lost: tuple[LostGrant, ...] = ()
    configs: Mapping[GuestId, Reading[GuestConfig]] = field(default_factory=dict)
    resources: Reading[Resources] = NOT_READ
    backups: BackupWitnesses = BackupWitnesses(NOT_READ, NOT_READ, NOT_READ)
    frozen: Reading[frozenset[int]] = NOT_READ


@dataclass(frozen=True, slots=True)
class Aborted:
    """The look saw too little to say anything: nothing was examined, nothing may be changed. reason: one line for people."""

    at: float
    reason: str
    lost: tuple[LostGrant, ...] = ()
