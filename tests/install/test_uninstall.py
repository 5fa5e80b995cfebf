"""uninstall: what goes, what stays, and that nothing dangles. After each step of an installation or of itself: test_interrupted."""

from __future__ import annotations

from .host import TESTER, TESTER_TOKEN, TOKEN, USER, Host


def test_what_others_use_stays(installed: Host) -> None:
    """Another node's agent and its roles, the pool, its guests, the configuration and the state."""
    other = "guestward-pve2@pve"
    installed.pveum("user", "add", other)
    installed.pveum("acl", "modify", "/vms/990010", "--users", other, "--roles", "GuestwardScratch")
    installed.pveum("acl", "modify", "/storage", "--users", other, "--roles", "GuestwardStorage")
    (installed.root / "var/lib/guestward").mkdir(parents=True)
    said = installed.ran("uninstall", "--yes")
    assert {*installed.access.own_roles} == {"GuestwardScratch", "GuestwardStorage"}
    assert f"role GuestwardStorage stays: {other} at /storage uses it" in said.steps("already so")
    assert {*installed.access.acl} == {"/vms/990010", "/storage"} and other in installed.access.users
    assert installed.access.pools["guestward"][1] == [101]
    assert installed.config.exists() and (installed.root / "var/lib/guestward").exists() and not installed.secret.exists()
    assert installed.steps[:2] == ["systemctl disable --now guestward.service", "systemctl disable --now guestward-helper.socket"]
    again = installed.ran("uninstall", "--yes", "--purge")
    assert not installed.config.exists() and not (installed.root / "var/lib/guestward").exists()
    assert again.steps("checked") == [f"no entry, token or secret of {USER} is left"]


def test_whatever_order_somebody_else_began_in(installed: Host) -> None:
    """The user first: PVE keeps the token's secret and its entries, which mean nothing any more."""
    installed.pveum("user", "delete", USER)
    assert installed.access.warnings and TOKEN in installed.access.secrets
    said = installed.ran("uninstall", "--yes")
    assert f"secret of {TOKEN} that PVE had kept" in said.steps("done")
    access = installed.access
    assert (access.warnings, access.secrets, access.acl, access.own_roles, USER in access.users) == ([], {}, {}, {}, False)


def test_roles_first(installed: Host) -> None:
    for role in ("GuestwardPool", "GuestwardScratch"):
        installed.pveum("role", "delete", role)
    installed.ran("uninstall", "--yes")
    assert (installed.access.warnings, installed.access.acl) == ([], {})


def test_more_of_the_user_than_we_made(installed: Host) -> None:
    """Its other tokens and entries go with it: they would dangle."""
    installed.pveum("user", "token", "add", USER, "second")
    installed.pveum("acl", "modify", "/vms/200", "--tokens", f"{USER}!second", "--roles", "PVEVMUser")
    installed.pveum("acl", "modify", "/vms/200", "--users", USER, "--roles", "PVEVMUser")
    installed.ran("uninstall", "--yes")
    assert (installed.access.warnings, installed.access.secrets, installed.access.acl) == ([], {}, {})


def test_what_was_granted_to_a_restore_tester(installed: Host) -> None:
    """And the script. A role of its own stays, and so does what it has in another band; one that is gone is no obstacle."""
    installed.tester("gone@pve!t1", "root@pam")
    for path in ("/vms/990001", "/vms/880000"):
        installed.pveum("acl", "modify", path, "--users", TESTER, "--tokens", TESTER_TOKEN, "--roles", "GuestwardScratch")
    installed.pveum("acl", "modify", "/vms/990001", "--users", TESTER, "--roles", "PVEVMUser")
    installed.ran("uninstall", "--yes")
    access = installed.access
    assert access.acl == {
        "/vms/880000": {who: {"GuestwardScratch": 1} for who in (TESTER, TESTER_TOKEN)},
        "/vms/990001": {TESTER: {"PVEVMUser": 1}},
    }
    assert ({*access.secrets}, {*access.own_roles}, access.warnings) == ({TESTER_TOKEN}, {"GuestwardScratch"}, [])


def test_a_node_that_is_gone(installed: Host) -> None:
    """From another node: what PVE knows of it, and nothing on this host."""
    gone = "guestward-pve9@pve"
    installed.pveum("user", "add", gone)
    installed.pveum("acl", "modify", "/vms/990500", "--users", gone, "--roles", "GuestwardScratch")
    before = installed.secret.read_text()
    installed.ran("uninstall", "--yes", "--node", "pve9")
    assert gone not in installed.access.users and "/vms/990500" not in installed.access.acl
    assert installed.secret.read_text() == before and not [step for step in installed.steps if step.startswith(("systemctl", "rm"))]
    installed.ran("verify")


def test_a_broken_configuration_is_no_obstacle(installed: Host) -> None:
    installed.config.write_text("[pve\n")
    installed.ran("uninstall", "--yes", "--purge")
    assert installed.access.acl == {} and not installed.config.exists()


def test_where_nothing_was_installed(host: Host) -> None:
    before = host.state()
    host.ran("uninstall", "--yes")
    assert (host.steps, host.state()) == ([], before)
