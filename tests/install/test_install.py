"""host-install.sh on one host: what it refuses, keeps, changes and takes back. The grants themselves: test_interrupted, test_verify."""

from __future__ import annotations

from pathlib import Path

import pytest

from guestward.config import load

from .host import TOKEN, USER, Host

BAND = ("--band", "990000-990001")


def test_a_second_run_changes_nothing(installed: Host) -> None:
    before = installed.state()
    again = installed.ran("install", "--yes", *BAND, "--add-guests", "101")
    assert (installed.steps, again.steps("done"), installed.state()) == ([], [], before)
    assert f"token {TOKEN}: it works, and is kept" in again.steps("already so")
    assert (installed.ran("repair", "--yes").steps("done"), installed.steps) == ([], [])


def test_the_agent_accepts_the_configuration(installed: Host) -> None:
    config = load(installed.config)
    assert (config.pve.token_id, config.pve.node, config.scope.pools) == (TOKEN, "pve1", ("guestward",))
    assert (config.pve.ca_file, config.pve.fingerprint) == (installed.pve / "pve-root-ca.pem", None)
    assert (config.scratch.first, config.scratch.last) == (990000, 990001)
    assert installed.secret.stat().st_mode & 0o777 == 0o640
    assert (installed.at / "owner-token").read_text() == "root:guestward"
    assert installed.config.stat().st_mode & 0o777 == 0o644, "the root helper believes what only root can write"


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("uid", "1000", "this is not root"),
        ("pveversion", "pve-manager/7.4-19/f98bf8d4 (running kernel: 5.15)", "this is version 7.4; Guestward knows 8 and 9"),
        ("pveversion", "pve-manager/10.0.1/f98bf8d4 (running kernel: 7.1)", "Guestward knows 8 and 9"),
        ("pmxcfs-down", "", "Unable to load access control list: Connection refused"),
    ],
)
def test_what_is_looked_at_first(host: Host, file: str, text: str, words: str) -> None:
    host.write(file, text)
    before = host.state()
    assert words in host.ran("install", "--yes", code=1).err
    assert (host.steps, host.state()) == ([], before)


def test_without_quorum_or_pmxcfs_nothing_begins(host: Host) -> None:
    (host.pve / "nodes/pve1").chmod(0o555)
    for command in ("install", "repair", "uninstall"):
        assert "the cluster has no quorum" in host.ran(command, "--yes", code=1).err
    (host.pve / "nodes/pve1").chmod(0o755)
    (host.pve / "local").unlink()
    assert "the cluster file system is down" in host.ran("install", "--yes", code=1).err
    assert host.steps == []


def test_nobody_is_asked_where_nobody_is(host: Host) -> None:
    for words in (["install"], ["repair"], ["uninstall"]):
        assert "say --yes" in host.ran(*words, code=2).err
    assert host.steps == []


@pytest.mark.parametrize(
    "words",
    [
        "", "instal", "install --pol x", "install --band 990009", "install --pool 9bad", "install --add-guests", "install --add-guests 12",
        "install --metrics-listen 9612", "install --metrics-listen 127.0.0.1:96120", "install --purge", "install --node a_b",
        "verify --add-guests 101",
        "install --deb /no/such/file", "install --node",
    ],
)  # fmt: skip
def test_wrong_usage(host: Host, words: str) -> None:
    assert host.ran(*words.split(), code=2).err


def test_a_dry_run_does_nothing(host: Host) -> None:
    before = host.state()
    said = host.ran("install", "--dry-run", "--add-guests", "101")
    assert (host.steps, host.state(), said.steps("done")) == ([], before, [])
    assert {"pool guestward", f"user {USER}", "GuestwardScratch at /vms/990009", "verify"} <= {*said.steps("would do")}
    host.ran("install", "--yes", *BAND)
    before = host.state()
    assert f"user {USER}" in host.ran("uninstall", "--dry-run", "--purge").steps("would do")
    host.ran("repair", "--dry-run")
    assert (host.steps, host.state()) == ([], before)


def test_another_node_and_its_band(host: Host) -> None:
    assert "this is pve1, not pve2" in host.ran("install", "--yes", "--node", "pve2", code=1).err
    host.pveum("user", "add", "guestward-pve2@pve")
    host.pveum("role", "add", "GuestwardScratch", "--privs", "VM.Audit")
    host.pveum("acl", "modify", "/vms/990005", "--users", "guestward-pve2@pve", "--roles", "GuestwardScratch")
    before = host.state()
    refused = host.ran("install", "--yes", "--band", "990005-990014", code=1)
    assert "/vms/990005 belongs to guestward-pve2@pve" in refused.err and "--band" in refused.err
    assert (host.steps, host.state()) == ([], before)
    host.ran("install", "--yes", "--band", "990006-990007")


def test_another_band_or_pool_takes_the_old_entries_back(installed: Host) -> None:
    said = installed.ran("install", "--yes", "--band", "990001-990002", "--pool", "other")
    assert {"GuestwardScratch at /vms/990000 taken back", "GuestwardPool at /pool/guestward taken back"} <= {*said.steps("done")}
    assert {*installed.access.acl} == {"/pool/other", "/nodes/pve1", "/storage", "/vms/990001", "/vms/990002"}
    assert load(installed.config).scope.pools == ("other",)
    assert "unit guestward.service reads the new configuration" in said.steps("done")
    assert installed.access.pools["guestward"][1] == [101], "the pool and its guests stay as they are"


# ---------------------------------------------------------------------------------------------------------- token and secret


def test_the_secret_is_told_to_nobody(host: Host) -> None:
    """Neither with `bash -x`, nor in an argument or the environment of any program; `calls` looks at those."""
    traced = host.run("install", "--yes", *BAND, trace=True)
    secret = host.secret.read_text().strip()
    assert (traced.code, len(secret)) == (0, 36)
    assert secret not in traced.out + traced.err
    assert len(host.calls) > 10
    kept = {file for file in host.root.rglob("*") if file.is_file() and not file.is_symlink() and secret.encode() in file.read_bytes()}
    assert kept == {host.pve / "priv/token.cfg", host.secret}


@pytest.mark.parametrize("loss", ["file gone", "file empty", "another secret", "token gone"])
def test_a_token_that_is_of_no_use_is_made_anew(installed: Host, loss: str) -> None:
    old = installed.secret.read_text()
    if loss == "file gone":
        installed.secret.unlink()
    elif loss == "token gone":
        installed.pveum("user", "token", "remove", USER, "agent")
    else:
        installed.secret.write_text("" if loss == "file empty" else "no-longer\n")
    installed.ran("repair", "--yes")
    assert installed.access.secrets == {TOKEN: installed.secret.read_text().strip()}
    assert installed.secret.read_text() != old
    assert installed.access.warnings == [] and TOKEN in installed.access.acl["/vms/990001"]


def test_a_token_that_nobody_can_try_is_left_alone(installed: Host) -> None:
    """The API is down: that says nothing about the token, and the agent uses it."""
    installed.write("api-down", "")
    before = installed.state()
    assert "nobody can say whether its secret works" in installed.ran("install", "--yes", *BAND, code=1).err
    assert (installed.steps, installed.state()) == ([], before)


def test_a_token_without_rights_of_its_own_gets_them(installed: Host) -> None:
    installed.pveum("user", "token", "modify", USER, "agent", "--privsep", "0")
    installed.secret.chmod(0o644)
    said = installed.ran("repair", "--yes").steps("done")
    assert installed.access.tokens[TOKEN]["privsep"] == "1"
    assert installed.secret.stat().st_mode & 0o777 == 0o640
    assert len(said) == 2


def test_users_that_stand_in_the_way(host: Host) -> None:
    host.pveum("user", "add", USER)
    assert "nothing says that it is Guestward's" in host.ran("install", "--yes", *BAND, code=1).err
    host.pveum("user", "modify", USER, "--comment", "Guestward on pve1", "--enable", "0")
    assert "somebody disabled it" in host.ran("install", "--yes", *BAND, code=1).err
    host.pveum("user", "modify", USER, "--enable", "1", "--expire", "1000")
    assert "it has expired" in host.ran("install", "--yes", *BAND, code=1).err
    host.pveum("user", "modify", USER, "--expire", "0")
    host.ran("install", "--yes", *BAND)


# -------------------------------------------------------------------------------------------------------- package, guests, units


def test_the_package(host: Host, tmp_path: Path) -> None:
    (host.bin / "guestward").unlink()
    assert "guestward is not installed" in host.ran("install", "--yes", *BAND, code=1).err
    package = tmp_path / "guestward_0.2.0-1_all.deb"
    package.touch()
    assert "package guestward_0.2.0-1_all.deb" in host.ran("install", "--yes", *BAND, "--deb", str(package)).steps("done")
    assert "package guestward 0.2.0-1" in host.ran("install", "--yes", *BAND, "--deb", str(package)).steps("already so")
    assert "package guestward" in host.ran("uninstall", "--yes").steps("done")
    assert host.steps[-1] == "apt-get remove -y guestward"


def test_guests(host: Host) -> None:
    host.pveum("pool", "add", "db")
    host.pveum("pool", "modify", "db", "--vms", "200")
    host.guest(990001)
    for vmid, words in (("999", "there is no such guest"), ("990001", "in the band")):
        assert words in host.ran("install", "--yes", *BAND, "--add-guests", vmid, code=1).err
        assert host.steps == []
    assert "belongs already to pool 'db'" in host.ran("install", "--yes", *BAND, "--add-guests", "101", "200", code=1).err
    said = host.ran("install", "--yes", "--add-guests", "101", *BAND)
    assert "guest 101 in pool guestward" in said.steps("done")
    assert host.access.pools == {"db": ("", [200]), "guestward": ("Guests that Guestward keeps up", [101])}


def test_units_that_are_not_there(host: Host) -> None:
    (host.at / "units/guestward.service").unlink()
    said = host.ran("install", "--yes", *BAND, code=1)
    assert "unit guestward.service: systemd does not know it" in said.err
    host.write("units/guestward.service", "")
    assert host.ran("install", "--yes", *BAND).steps("done") == ["unit guestward.service enabled and started"]


@pytest.mark.parametrize(
    ("version", "privileges"), [("8.4.21", {"VM.Monitor"}), ("9.1.3", {"VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted"})]
)
def test_commands_in_guests_only_when_asked(version: str, privileges: set[str], tmp_path: Path) -> None:
    host = Host(tmp_path / "host", version)
    host.ran("install", "--yes", "--pool", "guestward", *BAND)
    held = set(host.access.effective(TOKEN, "/pool/guestward"))
    host.ran("install", "--yes", *BAND, "--enable-exec")
    assert set(host.access.effective(TOKEN, "/pool/guestward")) == held | privileges
    host.pveum("acl", "delete", "/pool/guestward", "--users", USER, "--roles", "GuestwardExec")
    host.ran("repair", "--yes")
    assert set(host.access.effective(TOKEN, "/pool/guestward")) == held | privileges
    host.ran("install", "--yes", *BAND)
    assert set(host.access.effective(TOKEN, "/pool/guestward")) == held


# ---------------------------------------------------------------------------------------------------------------- configuration


def test_what_is_not_ours_in_the_configuration_stays(host: Host) -> None:
    host.config.write_text(
        '# mine\n[pve]\nport = 8006 # as it is\nserver_name = "old"\n\n[scope]\npools = [\n  "a",\n  "b", # both\n]\n[scratch]\n'
        'first = 990000\nlast = 990000\ngrantees = ["tester@pve!t1"]\n'
    )
    host.pveum("user", "add", "tester@pve")
    host.pveum("user", "token", "add", "tester@pve", "t1")
    host.ran("install", "--yes", "--metrics-listen", "[::1]:9612")
    text = host.config.read_text()
    assert all(line in text for line in ("# mine\n", "port = 8006 # as it is\n", '  "b", # both\n', "grantees = "))
    config = load(host.config)
    assert (config.scope.pools, config.scratch.last, config.metrics.listen) == (("a", "b"), 990000, "[::1]:9612")
    assert config.pve.server_name is None, "nothing but PVE's own certificate is served"
    assert {*host.access.acl} == {"/pool/a", "/pool/b", "/nodes/pve1", "/storage", "/vms/990000"}


def test_a_configuration_that_cannot_be_changed_is_left_alone(host: Host) -> None:
    for text, words in (("[pve\n", "Expected"), ('scope.pools = ["a"]\n[pve]\n', 'in [scope] pools = ["b"]')):
        host.config.write_text(text)
        said = host.ran("install", "--yes", "--pool", "b", *BAND, code=1)
        assert words in said.err and host.config.read_text() == text
