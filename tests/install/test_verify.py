"""verify: what token and user may do, against the ACL model; over real HTTPS with the real `guestward`, where that matters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from guestward.config import load
from guestward.demo._world import ROLES
from guestward.policy import rights
from tests.unit._tlsserver import Ca

from .api import Api
from .host import SCRATCH, SCRIPT, TOKEN, USER, Host

AGENT = SCRIPT.parents[1] / "agent"
GRANTS = {
    "/pool/guestward": ("GuestwardPool", {"VM.Audit", "VM.PowerMgmt", "Pool.Audit"}),
    "/nodes/pve1": ("GuestwardNode", {"Sys.Audit"}),
    "/storage": ("GuestwardStorage", {"Datastore.Audit"}),
    "/vms/990000": ("GuestwardScratch", SCRATCH),
    "/vms/990001": ("GuestwardScratch", SCRATCH),
}
VERIFIED = "verified: token and user have what they need, and no more"


def test_each_grant_of_token_and_user_is_missed_and_repaired(installed: Host) -> None:
    """One by one. A privilege that the user lacks the token lacks, too."""
    for path, (role, privileges) in GRANTS.items():
        for who, option in ((USER, "--users"), (TOKEN, "--tokens")):
            installed.pveum("acl", "delete", path, option, who, "--roles", role)
            said = installed.ran("verify", code=5)
            sides = ("token", "user") if who == USER else ("token",)
            faults = {f"missing for the {side}: {privilege} at {path}" for side in sides for privilege in privileges}
            assert {line for line in said.err.splitlines() if "repair it" not in line} == faults
            assert f"repair it:  {SCRIPT} repair --yes" in said.err
            assert installed.steps == []
            propagate = "0" if path == "/nodes/pve1" else "1"
            installed.pveum("acl", "modify", path, option, who, "--roles", role, "--propagate", propagate)
    for path, (role, _) in GRANTS.items():
        installed.pveum("acl", "delete", path, "--users", USER, "--tokens", TOKEN, "--roles", role)
    assert VERIFIED in installed.ran("repair", "--yes").out
    assert installed.ran("verify").err == ""


def test_a_role_that_was_narrowed_or_deleted(installed: Host) -> None:
    """Effective rights, not entries: those are there all the time."""
    installed.pveum("role", "modify", "GuestwardScratch", "--privs", "VM.Allocate")
    assert "missing for the user: VM.PowerMgmt at /vms/990001" in installed.ran("verify", code=5).err
    installed.pveum("role", "delete", "GuestwardStorage")
    assert "missing for the token: Datastore.Audit at /storage" in installed.ran("verify", code=5).err
    installed.ran("repair", "--yes")


@pytest.mark.parametrize(
    ("path", "privilege", "shown"),
    [
        ("/vms", "VM.Allocate", "/vms/989999"),
        ("/", "VM.Allocate", "/vms/990002"),
        ("/vms/990002", "VM.Allocate", "/vms/990002"),
        ("/vms/989999", "VM.Allocate", "/vms/989999"),
        ("/pool/guestward", "VM.Allocate", "/vms/101"),
        ("/vms/200", "VM.Allocate", "/vms/200"),
        ("/", "Permissions.Modify", "/access"),
        ("/nodes/pve1", "Sys.Modify", "/nodes/pve1"),
    ],
)
def test_too_much_for_token_and_user(installed: Host, path: str, privilege: str, shown: str) -> None:
    installed.pveum("role", "add", "Wide", "--privs", privilege)
    installed.pveum("acl", "modify", path, "--users", USER, "--tokens", TOKEN, "--roles", "Wide")
    said = installed.ran("verify", code=5).err.splitlines()
    assert {f"too much for the {who}: {privilege} at {shown}" for who in ("token", "user")} <= {*said}
    assert {f"repair it:  pveum acl delete {path} --{kind} '{who}' --roles Wide" for kind, who in (("users", USER), ("tokens", TOKEN))} <= {
        *said
    }


def test_too_much_for_the_user_only(installed: Host) -> None:
    """The token does not have it yet; also when it comes by a group."""
    file = installed.pve / "user.cfg"
    file.write_text(f"{file.read_text()}group:admins:{USER}::\nacl:1:/:@admins:Administrator:\n")
    said = installed.ran("verify", code=5).err
    assert "too much for the user: Permissions.Modify at /access" in said and "for the token" not in said
    assert "the user is in a group" in said


def test_what_is_not_handed_down_counts_too(installed: Host) -> None:
    """The value in PVE's answer is 0 there, as it is for a guest of the pool: the key is the grant."""
    assert installed.access.effective(TOKEN, "/nodes/pve1") == {"Sys.Audit": 0}
    assert installed.access.effective(TOKEN, "/vms/101") == {"VM.Audit": 0, "VM.PowerMgmt": 0, "Pool.Audit": 0}
    said = installed.ran("verify").out
    assert next(line.split() for line in said.splitlines() if line.startswith("/nodes/pve1")) == ["/nodes/pve1", "Sys.Audit", "ok", "ok"]
    assert "/vms/101  " in said, "a guest of the pool is one of the places that are looked at"


def test_verify_without_what_it_needs(installed: Host) -> None:
    installed.write("api-down", "")
    assert "refuses connections" in installed.ran("verify", code=1).err
    (installed.at / "api-down").unlink()
    installed.secret.write_text("another\n")
    assert "401 invalid token value!" in installed.ran("verify", code=1).err
    installed.config.unlink()
    assert "there is no" in installed.ran("verify", code=1).err
    (installed.bin / "guestward").unlink()
    assert "guestward is not installed" in installed.ran("verify", code=1).err


def test_the_table_is_that_of_the_agent(installed: Host) -> None:
    """What the agent needs, and what the stand-in host of the demo grants."""
    assert {grant.path: None for grant in rights.needed(("guestward",), "pve1")}.keys() <= GRANTS.keys()
    for grant in rights.needed(("guestward",), "pve1"):
        assert grant.path not in GRANTS or grant.privilege in installed.access.effective(TOKEN, grant.path)
    assert {role: set(privileges) for role, privileges in ROLES.items()} == installed.access.own_roles


# -------------------------------------------------------------------------------------------------------------- over HTTPS


def over_https(host: Host, api: Api) -> None:
    """The real program in place of the stand-in, and the port of the test's API."""
    host.program("guestward", f'#!/bin/sh\nPYTHONPATH={AGENT} exec {sys.executable} -m guestward "$@"\n')
    host.config.write_text(f"[pve]\nport = {api.port}\n")


def test_over_https_with_pves_own_ca(host: Host, tmp_path: Path) -> None:
    ca = Ca(tmp_path, key_usage=False)
    (host.pve / "pve-root-ca.pem").write_bytes(ca.pem)
    with Api(host, ca.leaf().file) as api:
        over_https(host, api)
        said = host.ran("install", "--yes", "--band", "990000-990001", "--add-guests", "101")
        assert VERIFIED in said.out and host.secret.read_text().strip() not in said.out + said.err
        assert load(host.config).pve.ca_file == host.pve / "pve-root-ca.pem"
        assert {"GET /access/permissions?path=%2Fvms%2F990001", "GET /access/permissions?path=%2Fvms", "GET /access/permissions"} <= {
            *api.asked
        }
        host.pveum("acl", "delete", "/vms/990001", "--tokens", TOKEN, "--roles", "GuestwardScratch")
        assert "missing for the token: VM.Allocate at /vms/990001" in host.ran("verify", code=5).err
        host.pveum("role", "add", "Wide", "--privs", "VM.Allocate")
        host.pveum("acl", "modify", "/vms", "--users", USER, "--tokens", TOKEN, "--roles", "Wide")
        said = host.ran("verify", code=5)
        assert {
            f"too much for the {who}: VM.Allocate at {path}" for who in ("token", "user") for path in ("/vms", "/vms/989999", "/vms/990002")
        } <= {*said.err.splitlines()}
        host.secret.write_text("another\n")
        assert "401 invalid token value!" in host.ran("verify", code=1).err
        assert all(request.startswith("GET ") for request in api.asked), "nothing is ever tried out"


def test_over_https_with_an_acme_certificate(host: Host, tmp_path: Path) -> None:
    """It is served on all addresses; PVE's CA did not sign it, and its leaf changes: the system's CAs and its name are trusted."""
    own, public = Ca(tmp_path), Ca(tmp_path, name="Public CA")
    (host.pve / "pve-root-ca.pem").write_bytes(own.pem)
    leaf = public.leaf(["pve1.example.org", "www.example.org"])
    (host.pve / "local/pveproxy-ssl.pem").write_bytes(leaf.file.read_bytes())
    (host.pve / "local/pveproxy-ssl.key").touch()
    system = {"SSL_CERT_FILE": str(public.file)}
    with Api(host, leaf.file) as api:
        over_https(host, api)
        host.config.write_text(f'{host.config.read_text()}fingerprint = "{leaf.fingerprint}"\n')
        assert VERIFIED in host.ran("install", "--yes", "--band", "990000-990001", **system).out
        pve = load(host.config).pve
        assert (pve.server_name, pve.ca_file, pve.fingerprint) == ("pve1.example.org", None, None), "an ACME leaf is never pinned"


# ------------------------------------------------------------------------------------------------------------ ways of trust


def custom(host: Host, ca: Ca, *names: str) -> None:
    (host.pve / "local/pveproxy-ssl.pem").write_bytes(ca.leaf(names).file.read_bytes())
    (host.pve / "local/pveproxy-ssl.key").touch()


def test_the_way_of_trust_follows_what_is_served(installed: Host, tmp_path: Path) -> None:
    own, other = Ca(tmp_path), Ca(tmp_path, name="Company CA")
    system = {"SSL_CERT_FILE": str(other.file)}
    (installed.pve / "pve-root-ca.pem").write_bytes(own.pem)
    custom(installed, other, "*.example.org")
    assert "no CA of this system signed it" in installed.ran("repair", "--yes", code=1).err
    installed.ran("repair", "--yes", **system)
    assert (load(installed.config).pve.server_name, load(installed.config).pve.ca_file) == ("pve1.example.org", None)
    custom(installed, other, "elsewhere.example.net")
    installed.ran("repair", "--yes", **system)
    assert load(installed.config).pve.server_name == "elsewhere.example.net"
    (installed.pve / "local/pveproxy-ssl.pem").unlink()
    installed.ran("repair", "--yes")
    assert (load(installed.config).pve.server_name, load(installed.config).pve.ca_file) == (None, installed.pve / "pve-root-ca.pem")


def test_an_owners_own_trust_is_kept(installed: Host, tmp_path: Path) -> None:
    company = Ca(tmp_path, name="Company CA")
    custom(installed, company, "pve1.example.org")
    text = installed.config.read_text()
    for line in (f'ca_file = "{company.file}"\nserver_name = "pve1"', f'fingerprint = "{"ab" * 32}"'):
        installed.config.write_text(text.replace(f'ca_file = "{installed.pve}/pve-root-ca.pem"', line))
        installed.ran("repair", "--yes")
        assert line in installed.config.read_text()
