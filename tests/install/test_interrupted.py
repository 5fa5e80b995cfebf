"""The power goes after every single step, or the step fails; the script is run again, and ends where an undisturbed run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from .host import SCRATCH, TESTER, TESTER_TOKEN, TOKEN, USER, Host

VERSIONS = ("8.4.21", "9.1.3")
INSTALL = ("install", "--yes", "--band", "990000-990000", "--add-guests", "101")
KILLED = -9


def fresh(folder: Path, version: str) -> Host:
    """With a restore tester, whom the configuration names."""
    host = Host(folder, version)
    host.tester()
    return host


def clean(folder: Path, version: str) -> Host:
    host = fresh(folder, version)
    host.ran(*INSTALL)
    return host


def state(host: Host) -> dict[str, str]:
    return {name: text.replace(str(host.root), "") for name, text in host.state().items()}


def interrupted(host: Host, *words: str) -> list[str]:
    """Run again and again, each time to the next step. Returns the steps, one for each run.

    A file is put in place in two steps, a token in three, and both begin anew; so that this ends, they are allowed more the next time.
    """
    steps: list[str] = []
    while True:
        last = steps[-1] if steps else ""
        number = 2 if "token remove" in last or "chown root:root" in last else 4 if "chown root:guestward" in last else 1
        if host.run(*words, STANDIN_KILL=str(number)).code == 0:
            return steps
        assert len(host.steps) == number, "it did not end by itself"
        steps.append(host.steps[-1])
        assert len(steps) < 60


@pytest.mark.parametrize("version", VERSIONS)
def test_install_interrupted_after_every_step(version: str, tmp_path: Path) -> None:
    undisturbed = clean(tmp_path / "clean", version)
    host = fresh(tmp_path / "host", version)
    (host.at / "user").unlink()
    host.write("groups", "")
    steps = interrupted(host, *INSTALL)
    assert {*undisturbed.steps} - {*steps} == {step for step in undisturbed.steps if str(undisturbed.root) in step}
    assert state(host) == state(undisturbed)
    assert host.access.secrets.keys() == {TOKEN, TESTER_TOKEN} and host.access.secrets[TOKEN] == host.secret.read_text().strip()
    assert host.access.acl["/vms/990000"] == {who: {"GuestwardScratch": 1} for who in (USER, TOKEN, TESTER, TESTER_TOKEN)}
    assert steps.count("pveum acl modify /vms/990000") == 2, "ours, and then the tester's"
    assert host.access.warnings == []
    host.ran("verify")


@pytest.mark.parametrize("version", VERSIONS)
def test_uninstall_interrupted_after_every_step(version: str, tmp_path: Path) -> None:
    host = clean(tmp_path / "host", version)
    before = fresh(tmp_path / "before", version).state()
    del before["etc/guestward/guestward.toml"]
    steps = interrupted(host, "uninstall", "--yes", "--purge")
    roles = next(number for number, step in enumerate(steps) if "role delete" in step)
    assert all("acl" not in step for step in steps[roles:]), "entries go before the roles that they name"
    left = host.state()
    assert left["etc/pve/priv/token.cfg"] == f"644 {TESTER_TOKEN} SECRET-0\n"
    stays = {"pool:guestward:Guests that Guestward keeps up:101::"}
    assert {*left.pop("etc/pve/user.cfg").splitlines()} - {""} == stays | {*before.pop("etc/pve/user.cfg").splitlines()} - {""}
    assert left == before
    assert host.access.warnings == []


def test_a_step_that_fails_says_why_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """Each step in turn. Where several steps are one, as for a file and its owner, the next run begins with the first of them."""
    undisturbed = clean(tmp_path / "clean", VERSIONS[0])
    host, done = fresh(tmp_path / "host", VERSIONS[0]), 0
    before: list[str] = []
    seen: list[str] = []
    failed: set[str] = set()
    while True:
        found = host.run(*INSTALL, STANDIN_FAIL=str(done + 1))
        if found.code == 0:
            break
        assert found.code == 1 and len(host.steps) == done
        what, hint = found.err.splitlines()
        assert what.startswith("FAILED      ") and hint.startswith("            what to do: ")
        assert what.endswith((": it failed", ": cfs-lock 'file-user_cfg' error: no quorum!"))
        failed.add(what)
        last = host.steps[-1] if done else ""
        again = host.steps == before or not done
        done, before = (4 if "token" in last else done + 1 if again else 1), host.steps
        assert len(seen := [*seen, last]) < 60
    assert len(failed) >= 13
    assert state(host) == state(undisturbed)


def test_uninstall_of_what_is_half_installed(tmp_path: Path) -> None:
    """After every second step of an installation."""
    number = -1
    while True:
        number += 2
        host = fresh(tmp_path / f"host-{number}", VERSIONS[1])
        if host.run(*INSTALL, STANDIN_KILL=str(number)).code == 0:
            break
        host.ran("uninstall", "--yes")
        access = host.access
        assert (access.own_roles, access.acl, access.warnings, {*access.secrets}) == ({}, {}, [], {TESTER_TOKEN})
        assert USER not in access.users and not host.secret.exists()
    assert number > 16


def test_what_is_granted(tmp_path: Path) -> None:
    """To the user and the token, each of them; to a grantee in the band alone."""
    host = clean(tmp_path / "host", VERSIONS[1])
    host.ran(*INSTALL, "--enable-exec")
    access = host.access
    for who in (USER, TOKEN):
        assert {path: set(access.effective(who, path)) for path in access.acl} == {
            "/pool/guestward": {"VM.Audit", "VM.PowerMgmt", "Pool.Audit", "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted"},
            "/nodes/pve1": {"Sys.Audit"},
            "/storage": {"Datastore.Audit"},
            "/vms/990000": SCRATCH,
        }
    for who in (TESTER, TESTER_TOKEN):
        assert {path: set(held) for path, held in access.listed(who).items()} == {"/vms/990000": SCRATCH}
    assert access.acl["/nodes/pve1"] == {who: {"GuestwardNode": 0} for who in (USER, TOKEN)}
