"""Which privileges are needed, which are missing, and what follows."""

from __future__ import annotations

import pytest

from guestward.model.observation import LostGrant
from guestward.policy.rights import missing, needed, on_path, sees_all_tasks, unproven_ownership

ALL = {
    "/pool/guestward": {"VM.Audit": True, "VM.PowerMgmt": True, "Pool.Audit": True},
    "/nodes/pve1": {"Sys.Audit": False},
    "/storage": {"Datastore.Audit": True},
}
NEEDED = needed(["guestward"], "pve1")


def without(path: str, privilege: str) -> dict[str, dict[str, bool]]:
    return {p: {name: flag for name, flag in held.items() if (p, name) != (path, privilege)} for p, held in ALL.items()}


def test_the_install_tables_grants_are_enough_and_all_of_them_are_needed() -> None:
    assert missing(NEEDED, ALL) == ()
    assert {(g.path, g.privilege) for g in NEEDED} == {(path, name) for path, held in ALL.items() for name in held}


@pytest.mark.parametrize("grant", NEEDED, ids=str)
def test_a_lost_privilege_is_missed_by_name(grant: LostGrant) -> None:
    assert missing(NEEDED, without(grant.path, grant.privilege)) == (grant,)


@pytest.mark.parametrize("grant", NEEDED, ids=str)
def test_only_the_pools_privileges_prove_ownership(grant: LostGrant) -> None:
    """C01: without one of them the lists may be silently short."""
    assert unproven_ownership([grant], ["guestward"]) == ((grant,) if grant.path == "/pool/guestward" else ())


def test_every_pool_needs_its_own() -> None:
    lost = missing(needed(["guestward", "web"], "pve1"), ALL)
    assert {str(g) for g in lost} == {"VM.Audit on /pool/web", "VM.PowerMgmt on /pool/web", "Pool.Audit on /pool/web"}
    assert unproven_ownership(lost, ["guestward", "web"]) == lost


def test_a_privilege_without_propagation_counts_on_its_own_path() -> None:
    """pve-facts E3: the value is the propagate flag, the key is the grant."""
    assert on_path("/nodes/pve1", {"/nodes/pve1": {"Sys.Audit": False}}) == {"Sys.Audit"}


def test_a_path_that_is_not_listed_inherits_what_propagates_from_its_nearest_ancestor() -> None:
    held = {"/": {"Sys.Audit": True, "Sys.Modify": False}, "/nodes": {"Sys.Console": True, "Sys.Audit": False}}
    assert on_path("/storage", held) == {"Sys.Audit"}
    assert on_path("/nodes/pve1", held) == {"Sys.Console"}
    assert on_path("/pool/a/b", {"/pool/a": {"VM.Audit": True}}) == {"VM.Audit"}


def test_a_listed_path_inherits_nothing() -> None:
    """pve-facts E2: a deeper entry replaces what it would inherit."""
    assert on_path("/nodes/pve1", {"/": {"Sys.Audit": True}, "/nodes/pve1": {}}) == frozenset()


def test_no_grants_at_all_are_none_anywhere() -> None:
    assert on_path("/nodes/pve1", {}) == frozenset()
    assert on_path("/", {}) == frozenset()
    assert missing(NEEDED, {}) == NEEDED


def test_a_path_that_begins_alike_is_another_path() -> None:
    assert on_path("/nodes/pve10", {"/nodes/pve1": {"Sys.Audit": True}}) == frozenset()


def test_only_sys_audit_shows_the_tasks_of_others() -> None:
    """C02."""
    assert not sees_all_tasks([LostGrant("/nodes/pve1", "Sys.Audit")])
    assert sees_all_tasks([LostGrant("/storage", "Datastore.Audit")])
    assert sees_all_tasks([])
