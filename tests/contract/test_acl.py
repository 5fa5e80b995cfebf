"""What `/access/permissions` answered to the token, against the simulated access control."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest

from guestward.sim.acl import NO_ACCESS
from guestward.sim.doors import SimPve
from guestward.sim.world import World
from tests.contract.recordings import ROLE, TOKEN, VERSIONS, Recorded, permissions, replayed

BAND = range(990000, 990010)
RECORDED = {version: {entry["id"]: entry for entry in permissions(version)} for version in VERSIONS}
Prepare = Callable[[World], object]


def grant(path: str, *privileges: str, who: str = "both") -> Prepare:
    def do(world: World) -> None:
        for privilege in privileges or ROLE:
            world.acl.grant(privilege, path, who)

    return do


def installed(world: World) -> None:
    for path in ("/pool/guestward", *(f"/vms/{vmid}" for vmid in BAND)):
        grant(path)(world)
    world.add(101)
    world.add(102, pool=None)
    world.add(200, "qemu")
    world.add(990000, pool=None)


def destroyed(world: World) -> None:
    installed(world)
    world.destroy(990000)


def destroyed_with_a_grant_above(world: World) -> None:
    destroyed(world)
    grant("/vms", "VM.Allocate")(world)


def role_of_one_privilege(world: World) -> None:
    installed(world)
    grant("/vms/102", "VM.Audit")(world)


def role_deleted(world: World) -> None:
    role_of_one_privilege(world)
    world.acl.revoke("VM.Audit", "/vms/102")


CASES: Mapping[str, Prepare] = {
    "nothing-granted-to-the-user": grant("/vms/990000", who="token"),
    "nothing-granted-to-the-token": grant("/vms/990000", who="user"),
    "after-destroy": destroyed,
    "after-destroy-granted-above": destroyed_with_a_grant_above,
    **dict.fromkeys(("granted", "pool-member", "outside", "pool", "root", "listed", "no-such-guest", "no-such-path"), installed),
    "one-privilege": role_of_one_privilege,
    "role-deleted": role_deleted,
    "role-back": role_deleted,
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("id", CASES)
def test_permissions(version: str, id: str) -> None:
    """The value is whether it is handed down: roles of a pool are not (pve-facts E2, E3)."""
    recorded, world = RECORDED[version][id], World(token_id=TOKEN)
    CASES[id](world)
    path = recorded["path"]
    of_sim = {path: dict(world.acl.held(path))} if path else {path: dict(held) for path, held in world.acl.listed().items()}
    assert of_sim == {path: {name: bool(flag) for name, flag in held.items()} for path, held in recorded["body"].items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_client_reads_the_list_as_the_simulated_host_tells_it(version: str) -> None:
    body = json.dumps({"data": RECORDED[version]["listed"]["body"]})
    world = World(token_id=TOKEN)
    installed(world)
    with replayed(Recorded("listed", "", "GET /access/permissions", "200 OK", body)) as (client, asked):
        assert client.privileges(deadline=1e9) == SimPve(world).privileges(deadline=1e9)
    assert asked == ["GET /access/permissions"]


def test_all_versions_have_the_same_cases() -> None:
    assert all(entries.keys() == CASES.keys() for entries in RECORDED.values())


# What the recordings do not have, and pve-facts E2 has from PVE's own code, which was run.


def test_an_entry_that_is_not_handed_down_holds_on_its_path_only() -> None:
    world = World()
    world.acl.grant("Sys.Audit", "/nodes/pve1", propagate=False)
    assert world.acl.held("/nodes/pve1") == {"Sys.Audit": False}
    assert world.acl.held("/nodes/pve1/x") == {}
    assert world.acl.listed() == {"/nodes/pve1": {"Sys.Audit": False}}


def test_a_deeper_entry_replaces_what_comes_from_above() -> None:
    world = World()
    world.add(101, pool=None)
    grant("/", "VM.Audit", "VM.PowerMgmt")(world)
    grant("/vms/101", "VM.Audit")(world)
    assert world.acl.held("/vms/101") == {"VM.Audit": True}
    assert world.acl.held("/vms/102") == {"VM.Audit": True, "VM.PowerMgmt": True}
    world.acl.revoke("VM.Audit", "/vms/101")
    assert world.acl.held("/vms/101") == {"VM.Audit": True, "VM.PowerMgmt": True}


def test_no_access_takes_away_what_is_there_with_it() -> None:
    """Its own level's and a pool's, but not what a deeper entry gives; and of the user's what the token has, and the other way round."""
    world = World()
    world.add(101)
    grant("/vms", "VM.Audit", NO_ACCESS)(world)
    grant("/pool/guestward", "VM.PowerMgmt")(world)
    assert world.acl.held("/vms") == world.acl.held("/vms/101") == {} and "/vms" not in world.acl.listed()
    grant("/vms/101", "VM.Audit")(world)
    assert world.acl.held("/vms/101") == {"VM.Audit": True, "VM.PowerMgmt": False}
    grant("/pool/guestward", NO_ACCESS, who="user")(world)
    assert world.acl.held("/vms/101") == world.acl.held("/pool/guestward") == {}
    world.acl.revoke(NO_ACCESS, "/pool/guestward")
    assert world.acl.held("/vms/101") == {"VM.Audit": True, "VM.PowerMgmt": False}


def test_roles_of_a_pool_are_added() -> None:
    world = World()
    world.add(101)
    grant("/vms", "VM.Audit")(world)
    grant("/pool/guestward", "VM.PowerMgmt")(world)
    assert world.acl.held("/vms/101") == {"VM.Audit": True, "VM.PowerMgmt": False}
    world.guests[101].pool = None
    assert world.acl.held("/vms/101") == {"VM.Audit": True}


def test_each_of_user_and_token_has_its_own_deepest_entry() -> None:
    """The intersection is taken on the path that is asked for."""
    world = World()
    grant("/", "VM.Audit", "VM.PowerMgmt")(world)
    grant("/vms/101", "VM.Allocate", who="token")(world)
    assert world.acl.held("/vms/101") == {}
