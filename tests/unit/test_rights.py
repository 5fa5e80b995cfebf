"""Which privileges are needed, which are missing, and what follows."""

from __future__ import annotations

import pytest

from guestward.model.observation import LostGrant
from guestward.policy.rights import (
    excess,
    hidden_storages,
    in_words,
    missing,
    needed,
    of_band,
    on_path,
    sees_all_tasks,
    unproven_ownership,
)
from tests.unit.build import rules

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


# ---------------------------------------------------------------------------------------------------- the scratch band


SCRATCH = ("VM.Audit", "VM.PowerMgmt", "VM.Allocate", "VM.Config.Disk", "VM.Config.Options")
BAND = range(990000, 990010)


def test_every_vmid_of_the_band_needs_five_privileges_on_its_own_path() -> None:
    """C45: whoever destroys a guest takes those on its path away, so they are looked for one by one."""
    grants = [str(grant) for grant in of_band(990000, 990001)]
    assert grants == [f"{privilege} on /vms/{vmid}" for vmid in (990000, 990001) for privilege in SCRATCH]
    assert [str(grant) for grant in of_band(990003, 990003)] == [f"{privilege} on /vms/990003" for privilege in SCRATCH]
    assert of_band(1, 0) == ()


def test_what_is_left_after_a_destroy_is_missed_by_name() -> None:
    held = {f"/vms/{vmid}": dict.fromkeys(SCRATCH, True) for vmid in BAND}
    assert missing(of_band(990000, 990009), held) == ()
    del held["/vms/990004"]
    assert missing(of_band(990000, 990009), held) == of_band(990004, 990004)


def test_a_narrow_role_on_the_path_hides_what_is_granted_above() -> None:
    """C83."""
    held = {"/vms": dict.fromkeys(SCRATCH, True), "/vms/990000": {"VM.Allocate": True}}
    assert [grant.privilege for grant in missing(of_band(990000, 990000), held)] == [name for name in SCRATCH if name != "VM.Allocate"]
    assert missing(of_band(990001, 990001), held) == ()


def test_all_of_them_in_words() -> None:
    words = in_words(rules(pools=["web", "db"]), "pve1")
    assert words == tuple(str(grant) for grant in (*needed(["web", "db"], "pve1"), *of_band(990000, 990009)))
    assert (len(words), words[0], words[-1]) == (58, "VM.Audit on /pool/web", "VM.Config.Options on /vms/990009")


# ---------------------------------------------------------------------------------------------------- what is held beyond that


INSTALLED = ALL | {f"/vms/{vmid}": dict.fromkeys(SCRATCH, False) for vmid in BAND}


def too_much(held: dict[str, dict[str, bool]]) -> list[str]:
    return [str(grant) for grant in excess(held, BAND)]


def test_what_the_install_table_grants_is_not_too_much() -> None:
    assert too_much(INSTALLED) == []
    assert too_much({}) == []


@pytest.mark.parametrize("propagates", [True, False])
@pytest.mark.parametrize("path", ["/", "/vms", "/vms/101", "/vms/989999", "/vms/990010", "/pool/guestward", "/storage", "/nodes/pve1"])
def test_allocate_outside_the_band_can_destroy_guests(path: str, propagates: bool) -> None:
    """pve-facts E3: the value is the propagate flag, the key is the grant."""
    assert too_much(INSTALLED | {path: {"VM.Allocate": propagates}}) == [f"VM.Allocate on {path}"]


@pytest.mark.parametrize("vmid", [990000, 990009])
def test_allocate_inside_the_band_is_needed(vmid: int) -> None:
    assert too_much({f"/vms/{vmid}": {"VM.Allocate": True}}) == []


@pytest.mark.parametrize(
    "path", ["/vms/0990000", "/vms/990000/", "/vms/９９００００", "/vms/", "/vms/x", "/990000", "/x/vms/990000", "/vms/" + "9" * 5000]
)
def test_a_path_that_is_not_that_of_a_guest_is_none_of_the_band(path: str) -> None:
    """C53. Python itself refuses to read a number of more than 4300 digits."""
    assert too_much({path: {"VM.Allocate": True}}) == [f"VM.Allocate on {path}"]


@pytest.mark.parametrize("vmid", [100, 999_999_999])
def test_the_band_may_be_anywhere(vmid: int) -> None:
    held = {f"/vms/{vmid}": {"VM.Allocate": True}}
    assert excess(held, range(vmid, vmid + 1)) == ()
    assert excess(held, range(0)) == (LostGrant(f"/vms/{vmid}", "VM.Allocate"),)


@pytest.mark.parametrize("privilege", ["Permissions.Modify", "Sys.Modify"])
@pytest.mark.parametrize("path", ["/", "/vms/990000", "/pool/guestward", "/access", "/nodes/pve1"])
def test_whoever_may_give_himself_all_others_has_too_much_anywhere(path: str, privilege: str) -> None:
    assert too_much({path: {privilege: False}}) == [f"{privilege} on {path}"]


def test_everything_on_the_root_is_too_much_and_is_told_of_the_root_only() -> None:
    held = {path: {"VM.Audit": True, "VM.Allocate": True, "Sys.Modify": True} for path in ("/vms/101", "/", "/pool/x")}
    assert too_much(held) == ["Sys.Modify on /", "VM.Allocate on /", "VM.Audit on /"]


def test_what_comes_from_above_is_told_of_the_path_above_only() -> None:
    held = {path: {"VM.Allocate": True} for path in ("/vms/101", "/vms", "/vms/102", "/vmsx/103")}
    assert too_much(held) == ["VM.Allocate on /vms", "VM.Allocate on /vmsx/103"]


def test_what_comes_from_a_pool_is_told_of_the_pool_only() -> None:
    """pve-facts E2: rights on a pool are rights on its members, guests and storages."""
    held = {path: {"Permissions.Modify": False} for path in ("/vms/101", "/pool/guestward", "/storage/nas", "/nodes/pve1")}
    assert too_much(held) == ["Permissions.Modify on /nodes/pve1", "Permissions.Modify on /pool/guestward"]


def test_another_privilege_on_a_path_above_or_a_pool_explains_nothing() -> None:
    held = {"/pool/guestward": {"Sys.Modify": True}, "/vms": {"Permissions.Modify": True}, "/vms/101": {"VM.Allocate": True}}
    assert too_much(held) == ["Sys.Modify on /pool/guestward", "Permissions.Modify on /vms", "VM.Allocate on /vms/101"]


@pytest.mark.parametrize("paths", [("/poolx/a", "/storage/nas", "/vms/101", "/vms/1010"), ("/pool/a/b", "/pool/aX", "/poolx/a")], ids=str)
def test_what_is_held_on_paths_of_which_none_is_above_another_is_told_of_each(paths: tuple[str, ...]) -> None:
    assert too_much({path: {"VM.Allocate": True} for path in reversed(paths)}) == [f"VM.Allocate on {path}" for path in paths]


AUDIT = LostGrant("/storage", "Datastore.Audit")


@pytest.mark.parametrize(
    ("held", "hidden"),
    [
        ({"/storage": {"Datastore.Audit": True}}, ()),
        ({"/": {"Datastore.Audit": True}}, ()),
        ({"/storage": {"Datastore.Audit": True}, "/storage/nas": {"Datastore.Audit": False}}, ()),
        ({}, (AUDIT,)),
        ({"/storage": {"Datastore.Allocate": True}}, (AUDIT,)),
        ({"/storage": {"Datastore.Audit": False}}, (AUDIT,)),
        ({"/": {"Datastore.Audit": True}, "/storage": {}}, (AUDIT,)),
        ({"/storage/nas": {"Datastore.Audit": True}}, (AUDIT,)),
        (
            {"/storage": {"Datastore.Audit": True}, "/storage/nas": {"Datastore.Allocate": True}},
            (LostGrant("/storage/nas", "Datastore.Audit"),),
        ),
        (
            {"/storage": {"Datastore.Audit": True}, "/storage/b": {}, "/storage/a": {}, "/storages/c": {}},
            (LostGrant("/storage/a", "Datastore.Audit"), LostGrant("/storage/b", "Datastore.Audit")),
        ),
        ({"/storage/nas": {}}, (AUDIT, LostGrant("/storage/nas", "Datastore.Audit"))),
    ],
)
def test_where_storages_are_left_out_in_silence(held: dict[str, dict[str, bool]], hidden: tuple[LostGrant, ...]) -> None:
    """pve-facts F3: what cannot be seen must not be called gone."""
    assert hidden_storages(held) == hidden
