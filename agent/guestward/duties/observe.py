"""One look at node and host: six calls at most for one pool, however many guests there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from guestward.duties.env import Env
from guestward.model.guest import GuestConfig, GuestId, GuestKind, ListedGuest
from guestward.model.observation import Aborted, HostState, LostGrant, Member, Observation, Resources
from guestward.model.reading import Reading, Unreadable
from guestward.model.rules import Rules
from guestward.model.task import Task
from guestward.policy import rights
from guestward.ports import PveError

T = TypeVar("T")
V = TypeVar("V")
JITTER = 2.0  # seconds; PVE counts the time that a guest runs in whole ones


class LookAbortedError(Exception):
    """Ownership is unproven: this look may not say or do anything."""

    def __init__(self, reason: str, lost: tuple[LostGrant, ...] = ()) -> None:
        """reason: one line for people."""
        super().__init__(reason)
        self.reason, self.lost = reason, lost


@dataclass(slots=True)
class ConfigCache:
    """Configurations by the stamp of their file under /etc/pve: read again only when it changed, always before a start."""

    known: dict[GuestId, tuple[str, GuestConfig, float]] = field(default_factory=dict)

    def get(self, guest: GuestId, stamp: str | None) -> GuestConfig | None:
        """What is known, if the file is still the same."""
        entry = self.known.get(guest)
        return entry[1] if entry is not None and stamp is not None and entry[0] == stamp else None

    def put(self, guest: GuestId, stamp: str | None, config: GuestConfig, at: float) -> None:
        """Remember what was read."""
        self.known[guest] = (stamp or "", config, at)

    def read_at(self, guest: GuestId) -> float | None:
        """When it was read, in seconds since host boot."""
        return self.known[guest][2] if guest in self.known else None

    def keep_only(self, guests: Iterable[GuestId]) -> None:
        """Forget all others."""
        if self.known:
            wanted = set(guests)
            self.known = {guest: entry for guest, entry in self.known.items() if guest in wanted}


@dataclass(frozen=True, slots=True)
class Listing:
    """The guests on our node and those of them that are in our pools, in the order of their ids.

    wanted: those whose configuration is asked for: owned guests that are stopped and unlocked; the others' would change nothing (C26).
    containers: VMIDs of owned containers that run.
    """

    guests: Mapping[GuestId, ListedGuest] = field(default_factory=dict)
    members: Mapping[GuestId, Member] = field(default_factory=dict)
    wanted: tuple[GuestId, ...] = ()
    containers: tuple[int, ...] = ()


@dataclass(slots=True)
class Sight:
    """What was seen last, so that from what is still the same nothing is worked out again; guests and members are the same objects then.

    told, held: what the doors told, with what it was asked for; from them follow the listing and the missing grants. agreed: the
    listing and the names under /etc/pve that were last found to agree. privileges: all own ones, None when they could not be read.
    """

    cache: ConfigCache = field(default_factory=ConfigCache)
    told: tuple[object, ...] = ()
    listing: Listing = field(default_factory=Listing)
    agreed: tuple[object, ...] = ()
    held: tuple[object, ...] = ()
    missing: tuple[LostGrant, ...] = ()
    privileges: rights.Privileges | None = None


def observe(env: Env, rules: Rules, sight: Sight, deadline: float) -> Observation | Aborted:
    """Look at everything that every guest needs. deadline: seconds since host boot at which the look is given up."""
    try:
        return _observe(env, rules, sight, deadline)
    except LookAbortedError as error:
        return Aborted(env.clock.boottime(), error.reason, error.lost)


def _observe(env: Env, rules: Rules, sight: Sight, deadline: float) -> Observation:
    host = env.host.host()
    if not host.pmxcfs:
        raise LookAbortedError("/etc/pve/local is missing: pmxcfs (pve-cluster.service) is down, so nobody knows which guests exist")
    if host.local_node not in (None, env.pve.node):
        raise LookAbortedError(
            f"this host is the node {host.local_node}, but [pve] node says {env.pve.node}: other nodes' guests are not ours"
        )
    lost = proven_grants(env, rules, sight, deadline)
    listing = _listing(env, rules, host, sight, deadline)
    return Observation(
        at=env.clock.boottime(),
        wall=env.clock.wall(),
        node=env.pve.node,
        token_id=env.pve.token_id,
        host=host,
        guests=listing.guests,
        members=listing.members,
        tasks=read_tasks(env, lost, deadline),
        lost=lost,
        frozen=env.host.frozen(listing.containers),
        configs=_configs(env, sight.cache, listing.wanted, host, deadline),
    )


def proven_grants(env: Env, rules: Rules, sight: Sight, deadline: float) -> tuple[LostGrant, ...]:
    """The grants that are missing, none of which ownership needs. Raises LookAbortedError where one does."""
    sight.privileges = None
    try:
        held = sight.privileges = env.pve.privileges(deadline=deadline)
    except PveError as error:
        raise LookAbortedError(f"own privileges: {error}") from error
    asked = (rules, env.pve.node, held)
    if asked != sight.held:
        sight.missing = rights.missing(rights.needed(rules.pools, env.pve.node), held)
    sight.held, lost = asked, sight.missing
    unproven = rights.unproven_ownership(lost, rules.pools) if lost else ()
    if unproven:
        text = ", ".join(str(grant) for grant in unproven)
        raise LookAbortedError(f"the token lacks {text}: the lists of guests may be silently short", lost)
    return lost


def _listing(env: Env, rules: Rules, host: HostState, sight: Sight, deadline: float) -> Listing:
    """Guests and pool members. One that vanishes between two calls makes them differ, so a difference is looked at twice."""
    listing = _lists(env, rules, sight, deadline)
    agreed = (listing, host.names)
    if agreed != sight.agreed and _unaccounted(listing, host):
        env.clock.pause(1)
        listing = _lists(env, rules, sight, deadline)
        unaccounted = _unaccounted(listing, env.host.host())
        if unaccounted:
            raise LookAbortedError(f"{unaccounted}: the lists of guests are not to be trusted")
        return listing
    sight.agreed = agreed
    return listing


def _lists(env: Env, rules: Rules, sight: Sight, deadline: float) -> Listing:
    lists = [_twice(env, partial(env.pve.guests, kind, deadline=deadline), f"list of {kind} guests") for kind in GuestKind]
    pools = [_pool(env, pool, deadline) for pool in rules.pools]
    told = (rules, env.pve.node, *lists, *pools)
    if told != sight.told:
        sight.listing = _put_together(rules, env.pve.node, lists, pools, sight.listing)
    sight.told = told
    return sight.listing


def _put_together(
    rules: Rules, node: str, lists: Iterable[Mapping[GuestId, ListedGuest]], pools: Iterable[tuple[Member, ...]], last: Listing
) -> Listing:
    guests = _ordered({id: _going_on(row, last.guests.get(id)) for rows in lists for id, row in rows.items()}, last.guests)
    members = _ordered({member.id: member for pool in pools for member in pool if member.node == node}, last.members)
    owned = [guest for id, guest in guests.items() if id in members]
    return Listing(
        guests,
        members,
        wanted=tuple(g.id for g in owned if not (g.running or g.lock is not None or g.template or rules.in_scratch_band(g.id.vmid))),
        containers=tuple(g.id.vmid for g in owned if g.running and g.id.kind is GuestKind.LXC),
    )


def _ordered(seen: Mapping[GuestId, V], last: Mapping[GuestId, V]) -> Mapping[GuestId, V]:
    """PVE lists guests in any order."""
    return last if seen == last else {id: seen[id] for id in sorted(seen, key=lambda id: (id.kind, id.vmid))}


def _going_on(row: ListedGuest, last: ListedGuest | None) -> ListedGuest:
    """The row of the last look where this one says the same: a process that goes on began when it was first seen to have begun."""
    if last is None or (row.pid, row.running, row.lock, row.name, row.template) != (
        last.pid,
        last.running,
        last.lock,
        last.name,
        last.template,
    ):
        return row
    if row.up_since is None or last.up_since is None:
        return last if row.up_since is last.up_since else row
    return last if abs(row.up_since - last.up_since) < JITTER else row


def _pool(env: Env, pool: str, deadline: float) -> tuple[Member, ...]:
    return _twice(env, partial(env.pve.members, pool, deadline=deadline), f"members of the pool {pool}")


def _twice(env: Env, read: Callable[[], T], what: str) -> T:
    """While one container dies the whole list answers 500 for 0.1 s (recorded: timelines 2, 5b, 6c), so it is read again after 1 s."""
    try:
        return read()
    except PveError as error:
        if error.status == 401:
            raise LookAbortedError(f"{what}: {error}") from error
    env.clock.pause(1)
    try:
        return read()
    except PveError as error:
        raise LookAbortedError(f"{what}: {error}") from error


def _unaccounted(listing: Listing, host: HostState) -> str:
    """A member of our node that a list or /etc/pve does not know, in words; empty when everything agrees."""
    for id in listing.members:
        if id not in listing.guests:
            return f"{id} is in a pool and on this node, but in no list"
        if not isinstance(host.names, Unreadable) and id not in host.names.here:
            return f"{id} is listed on this node, but /etc/pve has no configuration of it"
    return ""


def read_tasks(env: Env, lost: tuple[LostGrant, ...], deadline: float) -> Reading[tuple[Task, ...]]:
    """Running tasks of the node, or why they cannot be known."""
    if not rights.sees_all_tasks(lost):
        return Unreadable(f"without Sys.Audit on /nodes/{env.pve.node} PVE shows only the token's own tasks")
    try:
        return env.pve.active_tasks(deadline=deadline)
    except PveError as error:
        return Unreadable(str(error))


def _configs(
    env: Env, cache: ConfigCache, wanted: tuple[GuestId, ...], host: HostState, deadline: float
) -> Mapping[GuestId, Reading[GuestConfig]]:
    cache.keep_only(wanted)
    stamps = {} if isinstance(host.names, Unreadable) else host.names.here
    return {id: cache.get(id, stamps.get(id)) or read_config(env, cache, id, stamps.get(id), deadline) for id in wanted}


def read_config(env: Env, cache: ConfigCache, guest: GuestId, stamp: str | None, deadline: float) -> Reading[GuestConfig]:
    """Read one configuration from PVE."""
    try:
        config = env.pve.config(guest, deadline=deadline)
    except PveError as error:
        return Unreadable(f"configuration: {error}")
    cache.put(guest, stamp, config, env.clock.boottime())
    return config


def with_witnesses(env: Env, obs: Observation, deadline: float) -> Observation:
    """Add what only a guest that might be started needs: HA and storages from PVE, backup witnesses from the host."""
    try:
        resources: Reading[Resources] = env.pve.resources(deadline=deadline)
    except PveError as error:
        resources = Unreadable(str(error))
    return replace(obs, resources=resources, backups=env.host.backups())


def gaps(obs: Observation) -> dict[str, str]:
    """What this look had to see and did not: what it is of -> why. Empty when it saw everything (I6)."""
    readings: dict[str, object] = {
        "active tasks": obs.tasks,
        "guests under /etc/pve": obs.host.names,
        "quorum": obs.host.quorate,
        "pve-guests.service": obs.host.pve_guests,
        "systemd": obs.host.system,
        "hold file": obs.host.hold_file,
        "maintenance mode": obs.host.maintenance,
        "frozen containers": obs.frozen,
        **{str(id): config for id, config in obs.configs.items()},
    }
    return {what: reading.reason for what, reading in readings.items() if isinstance(reading, Unreadable)}


def in_words(missing: Mapping[str, str]) -> str:
    """Gaps in one line: the first three, and how many more."""
    shown = "; ".join(f"{what}: {why}" for what, why in list(missing.items())[:3])
    return f"{shown}; and {len(missing) - 3} more" if len(missing) > 3 else shown
