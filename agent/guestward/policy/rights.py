"""Which privileges the watchdog needs, and which of them are missing."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from functools import cache

from guestward.model.observation import LostGrant
from guestward.model.rules import Rules

Privileges = Mapping[str, Mapping[str, bool]]
REPAIR = "grant it to the token and to its user: host-install.sh repair"
OWNERSHIP = ("VM.Audit", "VM.PowerMgmt", "Pool.Audit")
SCRATCH = ("VM.Audit", "VM.PowerMgmt", "VM.Allocate", "VM.Config.Disk", "VM.Config.Options")
_OF_GUEST = re.compile(r"/vms/([1-9][0-9]{2,8})")
NEVER = frozenset({"Permissions.Modify", "Sys.Modify"})  # whoever has one of them can give himself all others, or the host


def needed(pools: Iterable[str], node: str) -> tuple[LostGrant, ...]:
    """The grants of DESIGN.md's table that the watchdog lives on."""
    of_pools = tuple(LostGrant(f"/pool/{pool}", privilege) for pool in pools for privilege in OWNERSHIP)
    return (*of_pools, LostGrant(f"/nodes/{node}", "Sys.Audit"), LostGrant("/storage", "Datastore.Audit"))


@cache
def in_words(rules: Rules, node: str) -> tuple[str, ...]:
    """These and those of the band, for people; every look shows them."""
    return tuple(str(grant) for grant in (*needed(rules.pools, node), *of_band(rules.scratch_first, rules.scratch_last)))


@cache
def of_band(first: int, last: int) -> tuple[LostGrant, ...]:
    """What the scratch band needs, VMID by VMID. Whoever destroys a guest takes the grants on its path away (pve-facts E5)."""
    return tuple(LostGrant(f"/vms/{vmid}", privilege) for vmid in range(first, last + 1) for privilege in SCRATCH)


def excess(held: Privileges, band: Container[int]) -> tuple[LostGrant, ...]:
    """What is held beyond what is needed and is dangerous: everything on `/`, VM.Allocate outside the band, and NEVER.

    What comes from a path above, or from a pool, is told of that path only. Wherever the key of a privilege is there, it is held
    (pve-facts E3).
    """
    found = [LostGrant(path, name) for path in sorted(held) for name in sorted(held[path]) if _is_too_much(path, name, band)]
    return tuple(grant for grant in found if not any(_comes_from(grant, other) for other in found))


def _comes_from(grant: LostGrant, other: LostGrant) -> bool:
    above = grant.path.startswith(other.path.rstrip("/") + "/") and grant.path != other.path
    through_pool = grant.path.startswith(("/vms/", "/storage/")) and other.path.startswith("/pool/")
    return grant.privilege == other.privilege and (above or through_pool)


def _is_too_much(path: str, privilege: str, band: Container[int]) -> bool:
    guest = _OF_GUEST.fullmatch(path)
    in_band = guest is not None and int(guest[1]) in band
    return path == "/" or privilege in NEVER or (privilege == "VM.Allocate" and not in_band)


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


def hidden_storages(held: Privileges) -> tuple[LostGrant, ...]:
    """Where the token may not see storages: PVE leaves them out of every list in silence (pve-facts F3).

    A deeper entry replaces what comes from above; a storage that no entry names has what `/storage` hands down.
    """
    others = () if "Datastore.Audit" in on_path("/storage/", held) else (LostGrant("/storage", "Datastore.Audit"),)
    named = (LostGrant(path, "Datastore.Audit") for path in sorted(held) if path.startswith("/storage/"))
    return (*others, *missing(named, held))


def sees_all_tasks(lost: Iterable[LostGrant]) -> bool:
    """Without Sys.Audit on the node the task list holds only the token's own tasks, with status 200 (pve-facts C1)."""
    return all(grant.privilege != "Sys.Audit" for grant in lost)
