"""Which privileges the watchdog needs, and which of them are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from guestward.model.observation import LostGrant

Privileges = Mapping[str, Mapping[str, bool]]
REPAIR = "grant it to the token and to its user: host-install.sh repair"
OWNERSHIP = ("VM.Audit", "VM.PowerMgmt", "Pool.Audit")


def needed(pools: Iterable[str], node: str) -> tuple[LostGrant, ...]:
    """The grants of DESIGN.md's table that the watchdog lives on."""
    of_pools = tuple(LostGrant(f"/pool/{pool}", privilege) for pool in pools for privilege in OWNERSHIP)
    return (*of_pools, LostGrant(f"/nodes/{node}", "Sys.Audit"), LostGrant("/storage", "Datastore.Audit"))


@cache
def in_words(pools: tuple[str, ...], node: str) -> tuple[str, ...]:
    """The same for people; every look shows them."""
    return tuple(str(grant) for grant in needed(pools, node))


def missing(grants: Iterable[LostGrant], held: Privileges) -> tuple[LostGrant, ...]:
    """Those of the grants that are not held."""
    return tuple(grant for grant in grants if grant.privilege not in on_path(grant.path, held))


def on_path(path: str, held: Privileges) -> frozenset[str]:
    """Effective privileges on a path.

    `/access/permissions` without a path lists every path that an ACL names; there a deeper path replaces what it would inherit, and
    the value of a privilege is its propagate flag (pve-facts E2, E3). A path that is not listed inherits from its nearest ancestor.
    """
    if path in held:
        return frozenset(held[path])
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        if path in held:
            return frozenset(privilege for privilege, propagates in held[path].items() if propagates)
    return frozenset()


def unproven_ownership(lost: Iterable[LostGrant], pools: Iterable[str]) -> tuple[LostGrant, ...]:
    """Those lost grants without which a list of guests may be silently short (pve-facts A2) or nothing may be started."""
    paths = {f"/pool/{pool}" for pool in pools}
    return tuple(grant for grant in lost if grant.path in paths)


def sees_all_tasks(lost: Iterable[LostGrant]) -> bool:
    """Without Sys.Audit on the node the task list holds only the token's own tasks, with status 200 (pve-facts C1)."""
    return all(grant.privilege != "Sys.Audit" for grant in lost)
