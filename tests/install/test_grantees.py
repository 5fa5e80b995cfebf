"""`[scratch] grantees`: restore testers get our role in the band, after us, and nobody else is troubled by what they lack.

Interrupted after every step, on both versions: test_interrupted, where one of them is part of the host. Taken away: test_uninstall.
"""

from __future__ import annotations

import pytest

from guestward.model import usercfg

from .host import SCRATCH, SCRIPT, TESTER, TESTER_TOKEN, TOKEN, USER, Host

BAND = ("/vms/990000", "/vms/990001")
ROLE = "GuestwardScratch"
ALL = "VM.Audit VM.PowerMgmt VM.Allocate VM.Config.Disk VM.Config.Options"
VERIFIED = "verified: the grantees have what they need in the band"
MEND = f"{SCRIPT} repair --yes; or take it out of [scratch] grantees in "


def entries(host: Host, path: str, *whos: str) -> bool:
    """Whether exactly these have an entry there, besides us."""
    return host.access.acl[path] == {who: {ROLE: 1} for who in (USER, TOKEN, *whos)}


@pytest.fixture
def granted(installed: Host) -> Host:
    """A restore tester with its token has its entries, as the root helper writes them."""
    installed.tester()
    for path in BAND:
        installed.pveum("acl", "modify", path, "--users", TESTER, "--tokens", TESTER_TOKEN, "--roles", ROLE, "--propagate", "1")
    return installed


def test_what_is_granted_and_to_whom(installed: Host) -> None:
    """To token and user; a plain user has no token, root@pam may do everything, what is ours is ours, and nobody is served twice."""
    installed.tester("ops@pve", "root@pam", "root@pam!t2", TOKEN, USER, TESTER, TESTER_TOKEN)
    installed.pveum("user", "token", "add", "root@pam", "t2")
    would = installed.ran("repair", "--dry-run").steps("would do")
    assert would[:2] == [f"{ROLE} at {path} for {TESTER}, ops@pve, {TESTER_TOKEN}, root@pam!t2" for path in BAND] and installed.steps == []
    said = installed.ran("repair", "--yes")
    assert (said.steps("done"), installed.steps) == (would[:2], [f"pveum acl modify {path}" for path in BAND])
    assert all(entries(installed, path, TESTER, TESTER_TOKEN, "ops@pve", "root@pam!t2") for path in BAND)
    assert VERIFIED in said.out
    rows = [line.split() for line in said.out.splitlines() if line.startswith("/vms/990001 ")]
    assert rows[0] == ["/vms/990001", *ALL.split(), "ok", "ok"]
    told = {row[-1]: row[-3:-1] for row in rows[1:]}
    assert told.keys() == {TESTER, TESTER_TOKEN, "ops@pve", "root@pam", "root@pam!t2", USER, TOKEN}
    assert all(cells == ["ok" if "!" in who else "-", "ok"] for who, cells in told.items())
    again = installed.ran("install", "--yes")
    assert (again.steps("done"), installed.steps) == ([], [])
    assert [f"{ROLE} at {path} for the grantees" for path in BAND] == [step for step in again.steps("already so") if "grantees" in step]


def test_a_destroy_took_the_entries_of_a_vmid(granted: Host) -> None:
    """Ours come back first, and are there whatever happens to the others."""
    access = granted.access
    del access.acl["/vms/990001"]
    (granted.pve / "user.cfg").write_text(access.text())
    said = granted.ran("verify", code=5)
    lost = [f"missing for the grantee {who}: {ALL} at /vms/990001" for who in (TESTER_TOKEN, TESTER)]
    assert [line for line in said.err.splitlines() if "grantee" in line] == lost
    assert granted.run("repair", "--yes", STANDIN_KILL="1").code != 0
    assert entries(granted, "/vms/990001")
    failed = granted.ran("repair", "--yes", code=1, STANDIN_FAIL="1").err
    assert failed.startswith(f"FAILED      {ROLE} at /vms/990001 for {TESTER}, {TESTER_TOKEN}: ACL update failed: cfs-lock")
    done = granted.ran("repair", "--yes").steps("done")
    assert done == [f"{ROLE} at /vms/990001 for {TESTER}, {TESTER_TOKEN}"]
    assert all(entries(granted, path, TESTER, TESTER_TOKEN) for path in BAND)


def test_grantees_that_do_not_exist(granted: Host) -> None:
    """Told with what makes them; all others are served, and the units run. The user of a token that is not there gets nothing either."""
    granted.tester("gone@pve", "gone@pve!t1", "ops@pve!t1")
    granted.pveum("acl", "delete", BAND[0], "--users", USER, "--tokens", TESTER_TOKEN, "--roles", ROLE)
    granted.write("units/guestward.service", "")
    said = granted.ran("repair", "--yes", code=5)
    assert said.steps("done") == [
        f"{ROLE} at {BAND[0]}",
        f"{ROLE} at {BAND[0]} for {TESTER_TOKEN}",
        "unit guestward.service enabled and started",
    ]
    assert all(entries(granted, path, TESTER, TESTER_TOKEN) for path in BAND)
    absent = {
        "gone@pve": ("PVE knows no user gone@pve", "pveum user add 'gone@pve'"),
        "gone@pve!t1": ("PVE knows no user gone@pve", "pveum user add 'gone@pve' && pveum user token add 'gone@pve' 't1' --privsep 1"),
        "ops@pve!t1": ("PVE knows no token t1 of user ops@pve", "pveum user token add 'ops@pve' 't1' --privsep 1"),
    }
    step = [
        line
        for who, (why, make) in absent.items()
        for line in (
            f"FAILED      grantee {who}: {why}, so it gets no rights in the band; all else is done all the same",
            f"            what to do: {make} && {MEND}{granted.config}",
        )
    ]
    proof = [f"missing for the grantee {who}: all in the band, since {why}" for who, (why, _) in absent.items()]
    proof += [f"repair it:  {make} && {MEND}{granted.config}" for _, make in absent.values()]
    assert said.err.splitlines() == step + proof
    assert granted.ran("verify", code=5).err.splitlines() == proof and granted.steps == []
    for words in (["add", "gone@pve"], ["token", "add", "gone@pve", "t1"], ["token", "add", "ops@pve", "t1"]):
        granted.pveum("user", *words)
    assert VERIFIED in granted.ran("repair", "--yes").out
    assert all(entries(granted, path, TESTER, TESTER_TOKEN, "gone@pve", "gone@pve!t1", "ops@pve", "ops@pve!t1") for path in BAND)


def test_each_right_of_a_grantee_is_missed(granted: Host) -> None:
    """What the user lacks the token lacks, too. Nothing is ever tried out, and ours are as they were."""
    for who, option, sides in ((TESTER, "--users", (TESTER_TOKEN, TESTER)), (TESTER_TOKEN, "--tokens", (TESTER_TOKEN,))):
        granted.pveum("acl", "delete", BAND[1], option, who, "--roles", ROLE)
        said = granted.ran("verify", code=5)
        assert said.err.splitlines() == [
            *(f"missing for the grantee {side}: {ALL} at {BAND[1]}" for side in sides),
            f"repair it:  {SCRIPT} repair --yes",
        ]
        row = next(line for line in said.out.splitlines() if line.startswith(BAND[1]) and line.endswith(TESTER_TOKEN))
        assert row.split()[-3:-1] == ["MISSING", "MISSING" if who == TESTER else "ok"]
        assert "verified" not in said.out and granted.steps == []
        granted.pveum("acl", "modify", BAND[1], option, who, "--roles", ROLE)
    granted.pveum("acl", "modify", BAND[0], "--users", TESTER, "--roles", "NoAccess")
    assert f"repair it:  pveum acl delete {BAND[0]} --users '{TESTER}' --roles NoAccess" in granted.ran("verify", code=5).err


def test_what_counts_is_what_they_may_do(granted: Host) -> None:
    """Effective rights: inherited, or not handed down (PVE's value is 0, the key counts); an entry with less replaces what is inherited."""
    for path in BAND:
        granted.pveum("acl", "delete", path, "--users", TESTER, "--roles", ROLE)
    granted.pveum("acl", "modify", "/vms", "--users", TESTER, "--roles", "PVEAdmin")
    granted.pveum("acl", "modify", BAND[0], "--tokens", TESTER_TOKEN, "--roles", ROLE, "--propagate", "0")
    assert set(granted.access.effective(TESTER_TOKEN, BAND[0]).values()) == {0}
    assert VERIFIED in granted.ran("verify").out
    granted.pveum("acl", "modify", BAND[1], "--users", TESTER, "--roles", "PVEVMUser")
    said = granted.ran("verify", code=5).err
    assert f"missing for the grantee {TESTER}: VM.Allocate VM.Config.Disk VM.Config.Options at {BAND[1]}\n" in said
    granted.ran("repair", "--yes")
    assert set(granted.access.effective(TESTER, BAND[0])) == SCRATCH, "deeper replaces: what it inherited there is gone (docs/install.md)"


def test_a_grantee_of_before_is_left_and_told(granted: Host) -> None:
    """Who wrote an entry cannot be known: nobody's is taken on a guess. Another node's tester is none of ours."""
    granted.pveum("user", "add", "guestward-pve2@pve")
    for vmid, who in (("990002", "guestward-pve2@pve"), ("990002", TESTER), ("990005", TESTER), ("990001", "ops@pve")):
        granted.pveum("acl", "modify", f"/vms/{vmid}", "--users", who, "--roles", ROLE)
    before = granted.state()
    said = granted.ran("repair", "--yes")
    assert granted.state() == before
    assert said.steps("note") == [
        "'ops@pve' has GuestwardScratch at VMID 990001 and is no grantee there; it is left. To take it away:",
        f"'{TESTER}' has GuestwardScratch at VMID 990005 and is no grantee there; it is left. To take it away:",
    ]
    granted.config.write_text(granted.config.read_text().partition("grantees = ")[0])
    told = granted.ran("verify").out.splitlines()
    commands = [line.strip() for line in told if line.lstrip().startswith("for vmid in ")]
    assert commands == [
        f"for vmid in 990000 990001; do pveum acl delete /vms/$vmid --tokens '{TESTER_TOKEN}' --roles {ROLE}; done",
        f"for vmid in 990001; do pveum acl delete /vms/$vmid --users 'ops@pve' --roles {ROLE}; done",
        f"for vmid in 990000 990001 990005; do pveum acl delete /vms/$vmid --users '{TESTER}' --roles {ROLE}; done",
    ]
    said = granted.ran("uninstall", "--yes")
    assert any(step.startswith(f"role {ROLE} stays: ") for step in said.steps("already so"))
    assert granted.access.acl[BAND[0]] == {TESTER: {ROLE: 1}, TESTER_TOKEN: {ROLE: 1}} and granted.access.warnings == []


@pytest.mark.parametrize("value", ['"tester@pve!t1"', "[1]", '["tester"]', '["a@pve,root@pam"]', '["@admins@pve"]', '["a b@pve"]'])
def test_grantees_that_the_agent_would_not_accept(installed: Host, value: str) -> None:
    installed.config.write_text(f"{installed.config.read_text()}grantees = {value}\n")
    before = installed.state()
    assert "scratch.grantees must be a list of USER@REALM!TOKEN or USER@REALM" in installed.ran("repair", "--yes", code=1).err
    assert (installed.steps, installed.state()) == ([], before)


def test_the_script_knows_them_as_agent_and_helper_do() -> None:
    _, _, name = usercfg.TOKEN_ID.rpartition("!")
    assert f'r"{usercfg.USER_ID}(!{name})?"' in SCRIPT.read_text("utf-8")
