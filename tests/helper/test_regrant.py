"""`regrant`: what it writes and for whom, everything that it refuses, and that only user.cfg counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from guestward.helper import grants
from guestward.helper.child import Ended, Programs
from guestward.helper.desk import Desk
from guestward.helper.facts import Host
from guestward.helper.trust import Scope
from guestward.model.helper import HelperCode, Request, Verb
from tests.helper.server import Server
from tests.helper.tree import NODE, REGRANT, ROLE, TOKEN, USER, Tree

BOTH = f"{USER} and {TOKEN}"
TESTER = "tester@pve"


def call(vmid: int, *lists: str) -> str:
    """As the install script calls it."""
    whos = " ".join(lists or (f"--users {USER}", f"--tokens {TOKEN}"))
    return f"pveum acl modify /vms/{vmid} {whos} --roles {ROLE} --propagate 1"


def grantees(tree: Tree, *ids: str) -> None:
    named = ", ".join(f'"{id}"' for id in ids)
    tree.put("etc/guestward/guestward.toml", f'[pve]\ntoken_id = "{TOKEN}"\n[scratch]\ngrantees = [{named}]\n')


def users(tree: Tree) -> str:
    return (tree.root / "etc/pve/user.cfg").read_text()


@pytest.fixture(autouse=True)
def granted(tree: Tree) -> None:
    tree.users()


# --- what it does ---


def test_where_nothing_is_missing_nothing_is_run(server: Server, tree: Tree) -> None:
    message = "GuestwardScratch is there at every VMID of the band: nothing was missing"
    assert server.ask(REGRANT) == {"ok": True, "code": "ok", "message": message}
    assert tree.calls == []


def test_a_destroyed_guests_entries_are_put_back_with_one_call(server: Server, tree: Tree) -> None:
    tree.users(without="/vms/990003:")
    answer = server.ask(REGRANT)
    assert answer == {"ok": True, "code": "ok", "message": f"GuestwardScratch put back for {BOTH} at /vms/990003"}
    assert tree.calls == [call(990003)]
    assert f"acl:1:/vms/990003:{USER},{TOKEN}:{ROLE}:\n" in users(tree)
    assert server.code(REGRANT) == "ok"
    assert tree.calls == [call(990003)]


def test_the_whole_band(server: Server, tree: Tree) -> None:
    tree.users(without="/vms/")
    assert server.ask(REGRANT)["message"] == f"GuestwardScratch put back for {BOTH} at /vms/990000 to /vms/990009"
    assert tree.calls == [call(vmid) for vmid in range(990000, 990010)]


def test_the_configuration_says_where_the_band_is(server: Server, tree: Tree) -> None:
    tree.put("etc/guestward/guestward.toml", f'[pve]\ntoken_id = "{TOKEN}"\n[scratch]\nfirst = 990008\nlast = 990011\n')
    assert server.code(REGRANT) == "ok"
    assert tree.calls == [call(990010), call(990011)]


def test_only_what_is_missing_is_written(server: Server, tree: Tree) -> None:
    own = (f"acl:1:/vms/990000:{USER}:{ROLE}:", f"acl:1:/vms/990002:{TOKEN}:{ROLE}:")
    tree.users(*own, without=f"{USER},{TOKEN}")
    other = [call(vmid) for vmid in range(990000, 990010)]
    other[0], other[2] = call(990000, f"--tokens {TOKEN}"), call(990002, f"--users {USER}")
    answer = server.ask(REGRANT)
    assert (answer["code"], tree.calls) == ("ok", other)
    assert f"{TOKEN} at /vms/990000" in answer["message"]
    assert f"{BOTH} at /vms/990001, /vms/990003 to /vms/990009" in answer["message"]


@pytest.mark.parametrize(
    "line",
    [
        f"acl:0:/vms/990004:{USER},{TOKEN}:{ROLE}:",  # not handed down, as the install script has it
        f"acl:1:/vms/990004:{USER},{TOKEN}:PVEVMUser:",
        f"acl:1:/vms/990004:@{USER}:{ROLE}:",
        f"acl:1:/vms:{USER},{TOKEN}:{ROLE}:",
        f"acl:1:/vms/9900040:{USER},{TOKEN}:{ROLE}:",
    ],
)
def test_what_is_nearly_an_entry_is_none(server: Server, tree: Tree, line: str) -> None:
    tree.users(line, without=f"1:/vms/990004:{USER},{TOKEN}:{ROLE}")
    assert server.code(REGRANT) == "ok"
    assert tree.calls == [call(990004)]
    assert line in users(tree)


def test_a_second_role_at_the_same_path_changes_nothing(server: Server, tree: Tree) -> None:
    """pve-facts E2: several roles at one path add."""
    tree.users(f"acl:1:/vms/990004:{USER},{TOKEN}:PVEVMUser:")
    assert (server.code(REGRANT), tree.calls) == ("ok", [])


@pytest.mark.parametrize(
    "states",
    [
        {"ActiveState": "activating", "SubState": "start"},
        {"ActiveState": "inactive", "SubState": "dead"},
        {"ActiveState": "deactivating", "SubState": "stop"},  # of the guests, by hand: the host stays up
        {"SystemState": "starting"},
        {"SystemState": "degraded"},
    ],
)
def test_neither_a_boot_nor_a_hold_stands_in_the_way(server: Server, tree: Tree, states: dict[str, str]) -> None:
    tree.users(without="/vms/990003:")
    tree.put("etc/guestward/hold")
    tree.systemd(**states)
    assert (server.code(REGRANT), tree.calls) == ("ok", [call(990003)])


# --- grantees ---


def test_a_token_of_a_restore_tester_and_its_user_are_granted_with_ours(server: Server, tree: Tree) -> None:
    grantees(tree, f"{TESTER}!t1")
    tree.users(f"user:{TESTER}:1:0::::::", f"token:{TESTER}!t1:0:1::", without="/vms/990003:")
    answer = server.ask(REGRANT)
    assert answer["code"] == "ok"
    lists = f"--users {TESTER}", f"--tokens {TESTER}!t1"
    assert tree.calls == [
        call(vmid, *lists) if vmid != 990003 else call(vmid, f"--users {USER},{TESTER}", f"--tokens {TOKEN},{TESTER}!t1")
        for vmid in range(990000, 990010)
    ]
    assert server.code(REGRANT) == "ok"
    assert len(tree.calls) == 10


def test_a_plain_user_is_granted_alone(server: Server, tree: Tree) -> None:
    grantees(tree, TESTER)
    tree.users(f"user:{TESTER}:1:0::::::", f"token:{TESTER}!t1:0:1::")
    assert server.code(REGRANT) == "ok"
    assert tree.calls == [call(vmid, f"--users {TESTER}") for vmid in range(990000, 990010)]


def test_root_needs_no_entry_and_its_token_does(server: Server, tree: Tree) -> None:
    """PVE never writes an entry of root@pam (write_user_config): it would be missing for ever."""
    grantees(tree, "root@pam!t1", "root@pam")
    tree.users("token:root@pam!t1:0:1::")
    assert server.code(REGRANT) == "ok"
    assert tree.calls == [call(vmid, "--tokens root@pam!t1") for vmid in range(990000, 990010)]


def test_a_grantee_named_twice_is_written_once(server: Server, tree: Tree) -> None:
    grantees(tree, f"{TESTER}!t1", TESTER, TOKEN, f"{TESTER}!t1")
    entries = [f"acl:1:/vms/{vmid}:{TESTER}:{ROLE}:" for vmid in range(990001, 990010)]
    tokens = [f"acl:1:/vms/{vmid}:{TESTER}!t1:{ROLE}:" for vmid in range(990001, 990010)]
    tree.users(f"user:{TESTER}:1:0::::::", f"token:{TESTER}!t1:0:1::", *entries, *tokens)
    assert server.code(REGRANT) == "ok"
    assert tree.calls == [call(990000, f"--users {TESTER}", f"--tokens {TESTER}!t1")]


@pytest.mark.parametrize("known", ["", f"user:{TESTER}:1:0::::::", f"token:{TESTER}!t1:0:1::"])
def test_a_grantee_that_does_not_exist_is_named_and_ours_are_put_back(server: Server, tree: Tree, known: str) -> None:
    grantees(tree, f"{TESTER}!t1")
    tree.users(known, without="/vms/990003:")
    answer = server.ask(REGRANT)
    assert (answer["code"], tree.calls) == ("incomplete", [call(990003)])
    put_back = f"GuestwardScratch put back for {BOTH} at /vms/990003"
    assert answer["message"] == f"PVE does not know {TESTER}!t1 of [scratch] grantees; {put_back}"
    assert server.code(REGRANT) == "incomplete"


def test_another_grantee_is_served_all_the_same(server: Server, tree: Tree) -> None:
    grantees(tree, "gone@pve!t1", TESTER)
    tree.users(f"user:{TESTER}:1:0::::::")
    assert server.code(REGRANT) == "incomplete"
    assert tree.calls == [call(vmid, f"--users {TESTER}") for vmid in range(990000, 990010)]


# --- NoAccess ---


def test_no_access_of_ours_is_reported_and_neither_removed_nor_written_over(server: Server, tree: Tree) -> None:
    tree.users(f"acl:1:/vms/990002:{TOKEN}:NoAccess:", f"acl:0:/vms/990005:{USER}:NoAccess:", without=f"/vms/990005:{USER},{TOKEN}")
    answer = server.ask(REGRANT)
    assert answer["code"] == "failed"
    assert answer["message"] == (
        f"NoAccess bars {TOKEN} at /vms/990002, {USER} at /vms/990005; `pveum acl delete` removes it; "
        f"GuestwardScratch put back for {TOKEN} at /vms/990005"
    )
    assert tree.calls == [call(990005, f"--tokens {TOKEN}")]
    assert users(tree).count("NoAccess") == 2


def test_no_access_of_a_grantee_is_no_failure_of_ours(server: Server, tree: Tree) -> None:
    grantees(tree, TESTER)
    entries = [f"acl:1:/vms/{vmid}:{TESTER}:{ROLE}:" for vmid in range(990000, 990010)]
    tree.users(f"user:{TESTER}:1:0::::::", *entries, f"acl:1:/vms/990000:{TESTER}:NoAccess:")
    answer = server.ask(REGRANT)
    assert (answer["code"], tree.calls) == ("incomplete", [])
    assert answer["message"] == f"NoAccess bars {TESTER} at /vms/990000; `pveum acl delete` removes it"


def test_no_access_elsewhere_is_none_of_our_business(server: Server, tree: Tree) -> None:
    """A deeper entry replaces what comes from above (pve-facts E2)."""
    tree.users(f"acl:1:/vms:{USER},{TOKEN}:NoAccess:", f"acl:1:/vms/990000:{TESTER},@group:NoAccess:")
    assert (server.code(REGRANT), tree.calls) == ("ok", [])


# --- what it refuses ---

Change = Callable[[Tree], object]
REFUSALS: dict[str, tuple[Change, str, str]] = {
    "no quorum": (lambda t: (t.root / f"etc/pve/nodes/{NODE}").chmod(0o555), "no_quorum", "no quorum"),
    "pmxcfs is not mounted": (lambda t: (t.root / "etc/pve/local").unlink(), "no_pmxcfs", "not mounted"),
    "the host stops": (lambda t: t.systemd(SystemState="stopping"), "stopping", "systemd is stopping the host"),
    "systemctl fails": (lambda t: t.before("systemctl", "say 'Failed to connect to bus' 1"), "unreadable", "Failed to connect to bus"),
    "no role": (lambda t: t.users(without=f"role:{ROLE}:"), "not_installed", f"no role {ROLE}: `host-install.sh repair`"),
    "no token": (lambda t: t.users(without=f"token:{TOKEN}:"), "not_installed", f"no token {TOKEN}: `host-install.sh repair`"),
    "no user": (
        lambda t: t.users(without=f"user:{USER}:"),
        "not_installed",
        f"no user {USER} and no token {TOKEN}: `host-install.sh repair`",
    ),
    "no users at all": (lambda t: t.put("etc/pve/user.cfg"), "not_installed", f"no role {ROLE} and no user"),
    "no file of users": (lambda t: (t.root / "etc/pve/user.cfg").unlink(), "unreadable", "/etc/pve/user.cfg: No such file"),
    "garbage": (lambda t: t.put("etc/pve/user.cfg", b"\x00\xffgarbage\n"), "unreadable", "/etc/pve/user.cfg: line 1 is of unknown form"),
    "a file that was cut off": (lambda t: t.put("etc/pve/user.cfg", users(t)[:-3]), "unreadable", "is of unknown form"),
    "more users than there can be": (lambda t: t.put("etc/pve/user.cfg", "#" * (3 << 20)), "unreadable", "larger than it can be"),
    "no token in the configuration": (lambda t: t.put("etc/guestward/guestward.toml", "[pve]\n"), "config", "[pve] token_id is missing"),
    "a bad grantee": (lambda t: grantees(t, "a b@pve"), "config", "scratch.grantees must be a list"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_and_nothing_was_run(server: Server, tree: Tree, name: str) -> None:
    tree.users(without="/vms/990003:")
    change, code, words = REFUSALS[name]
    change(tree)
    file = tree.root / "etc/pve/user.cfg"
    before = file.read_bytes() if file.exists() else b""
    answer = server.ask(REGRANT)
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o755)
    assert answer["code"] == code, answer
    assert words in answer["message"]
    assert tree.calls == []
    assert before == (file.read_bytes() if file.exists() else b"")


def test_without_quorum_nothing_else_is_looked_at(server: Server, tree: Tree) -> None:
    tree.put("etc/pve/user.cfg", "garbage\n")
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o555)
    assert server.code(REGRANT) == "no_quorum"
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o755)
    assert (tree.calls, tree.looks) == ([], 0)


def test_the_file_of_users_is_never_quoted(server: Server, tree: Tree) -> None:
    """Old ones hold second factors (`keys` of a user)."""
    tree.users(f"user:{TESTER}:1:0::::::oath-secret")
    assert server.code(REGRANT) == "unreadable"
    assert "oath-secret" not in server.log.read_text()


# --- only what is seen afterwards counts ---

MISSING = f"GuestwardScratch is missing for {BOTH} at /vms/990003; pveum"
AFTERWARDS = {
    "pveum says yes and does nothing": ("exit 0", "failed", f"{MISSING} ended with 0: no output"),
    "the cluster's lock": (
        "echo \"trying to acquire cfs lock 'file-user_cfg' ...\"; say \"cfs-lock 'file-user_cfg' error: got lock request timeout\" 13",
        "failed",
        f"{MISSING} ended with 13: cfs-lock 'file-user_cfg' error: got lock request timeout",
    ),
    "pmxcfs is down": ("say 'Unable to load access control list: Connection refused' 111", "failed", "ended with 111: Unable to load"),
    "it cannot be run": (None, "failed", "pveum: No such file or directory"),
    "it dies": ("kill -9 $$", "failed", "ended with -9"),
    "somebody else was first": (
        f'echo "acl:1:/vms/990003:{USER},{TOKEN}:{ROLE}:" >>$root/etc/pve/user.cfg; exit 255',
        "ok",
        f"put back for {BOTH} at /vms/990003",
    ),
    "half of it": (
        f'echo "acl:1:/vms/990003:{USER}:{ROLE}:" >>$root/etc/pve/user.cfg; exit 0',
        "failed",
        f"is missing for {TOKEN} at /vms/990003; GuestwardScratch put back for {USER} at /vms/990003; pveum ended with 0",
    ),
    "it is not handed down": (f'echo "acl:0:/vms/990003:{USER},{TOKEN}:{ROLE}:" >>$root/etc/pve/user.cfg; exit 0', "failed", MISSING),
    "the role goes": ("sed -i '/^role:/d' $root/etc/pve/user.cfg", "failed", "ended with 255: ACL update failed: role"),
    "the token goes": ("sed -i '/^token:/d' $root/etc/pve/user.cfg", "failed", "is missing for"),
    "nobody can read it": ("echo garbage >>$root/etc/pve/user.cfg", "unknown", "line 19 is of unknown form"),
    "pmxcfs ends": ("rm $root/etc/pve/user.cfg; exit 0", "unknown", "what came of it cannot be read: /etc/pve/user.cfg: No such file"),
    "it warns": ("echo \"user config - ignore invalid acl role 'x'\" >&2", "ok", "put back"),
}


@pytest.mark.parametrize("name", AFTERWARDS)
def test_only_what_is_seen_afterwards_counts(server: Server, tree: Tree, name: str) -> None:
    shell, code, words = AFTERWARDS[name]
    tree.users(without="/vms/990003:")
    if shell is None:
        (tree.root / "bin/pveum").unlink()
    else:
        tree.before("pveum", shell)
    answer = server.ask(REGRANT)
    assert answer["code"] == code, answer
    assert words in answer["message"]


def test_one_that_fails_does_not_keep_the_others_away(server: Server, tree: Tree) -> None:
    tree.users(without="/vms/")
    tree.before("pveum", "if [ \"$3\" = /vms/990004 ]; then say 'got timeout' 255; fi")
    answer = server.ask(REGRANT)
    assert (answer["code"], len(tree.calls)) == ("failed", 10)
    assert answer["message"].startswith(f"GuestwardScratch is missing for {BOTH} at /vms/990004; GuestwardScratch put back for {BOTH} at ")
    assert answer["message"].endswith("at /vms/990000 to /vms/990003, /vms/990005 to /vms/990009; pveum ended with 255: got timeout")


def test_when_quorum_is_lost_no_more_is_tried(server: Server, tree: Tree) -> None:
    tree.users(without="/vms/")
    tree.after("pveum", "chmod a-w $conf")
    answer = server.ask(REGRANT)
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o755)
    assert (answer["code"], tree.calls) == ("failed", [call(990000)])
    assert f"is missing for {BOTH} at /vms/990001 to /vms/990009" in answer["message"]
    assert "the cluster has no quorum" in answer["message"]


def test_a_pveum_that_hangs_is_killed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "_ONE", 0.2)
    tree.users(without="/vms/990003:")
    tree.before("pveum", "sleep 300")
    programs = Programs(str(tree.root / "bin"))
    answer = grants.regrant(Desk(Host(str(tree.root), programs), programs, Scope(token_id=TOKEN)), Request(Verb.REGRANT))
    assert answer.code is HelperCode.TIMEOUT
    assert answer.message == f"{MISSING} did not end in time and was killed"


def test_when_the_time_is_up_no_more_is_tried(server: Server, tree: Tree) -> None:
    server.arguments += ["--regrant", "0.5"]
    tree.users(without="/vms/")
    tree.before("pveum", "sleep 300")
    answer = server.ask(REGRANT)
    assert (answer["code"], len(tree.calls) <= 1) == ("timeout", True)
    assert answer["message"].startswith(f"GuestwardScratch is missing for {BOTH} at /vms/990000 to /vms/990009; ")
    assert answer["message"].endswith("; the time is up")


def test_without_any_time_nothing_is_tried(server: Server, tree: Tree) -> None:
    server.arguments += ["--regrant", "0"]
    tree.users(without="/vms/990003:")
    answer = server.ask(REGRANT)
    assert (answer["code"], tree.calls) == ("timeout", [])
    assert answer["message"] == f"GuestwardScratch is missing for {BOTH} at /vms/990003; the time is up"


def test_the_answer_is_bounded_however_long_the_band_is(server: Server, tree: Tree) -> None:
    server.arguments += ["--regrant", "0"]
    granted = [f"acl:1:/vms/{vmid}:{USER},{TOKEN}:{ROLE}:" for vmid in range(1000, 1100, 2)]
    tree.users(*granted)
    tree.put("etc/guestward/guestward.toml", f'[pve]\ntoken_id = "{TOKEN}"\n[scratch]\nfirst = 1000\nlast = 1099\n')
    answer = server.ask(REGRANT)
    assert (answer["code"], len(answer["message"]) <= 600) == ("timeout", True)


@dataclass
class Hung:
    """A pveum that hangs in the kernel."""

    ran: list[str] = field(default_factory=list)

    def run(self, name: str, *arguments: str, limit: float, grace: float = 0.0) -> Ended:
        self.ran.append(arguments[2])
        return Ended(None, "", reaped=False)


def test_one_that_cannot_be_killed_may_still_act_and_is_the_last(tree: Tree) -> None:
    tree.users(without="/vms/")
    hung, real = Hung(), Programs(str(tree.root / "bin"))
    desk = Desk(Host(str(tree.root), real), hung, Scope(token_id=TOKEN))  # type: ignore[arg-type]
    answer = grants.regrant(desk, Request(Verb.REGRANT))
    assert (answer.code, hung.ran) == (HelperCode.UNKNOWN, ["/vms/990000"])
    assert answer.message.endswith("pveum hangs in the kernel and cannot be killed; it may still act")
