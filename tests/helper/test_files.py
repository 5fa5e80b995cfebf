"""The pure readers of PVE's files and of command lines."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestward.model.archives import VzdumpJob, vzdump_job
from guestward.model.guest import GuestKind
from guestward.model.pvefiles import GuestFile, pool_of, unended_tasks
from guestward.model.task import Upid
from guestward.model.usercfg import TOKEN_ID, USER_ID, UserCfg, subjects
from tests.helper.tree import LXC, USERS, VM, upid


def lxc(text: str | bytes) -> GuestFile:
    return GuestFile.parse(GuestKind.LXC, text.encode() if isinstance(text, str) else text)


def vm(text: str) -> GuestFile:
    return GuestFile.parse(GuestKind.QEMU, text.encode())


def test_a_container() -> None:
    file = lxc(
        LXC + "parent: vzdump\n\n[pve:pending]\nmemory: 128\ndelete: swap\n\n[vzdump]\nsnapstate: prepare\nlock: x\n\n[b-1_]\nmemory: 1\n"
    )
    assert file.lock == "backup"
    assert file.pending == {"memory": "128", "delete": "swap"}
    assert file.snapshots == {"vzdump": {"snapstate": "prepare", "lock": "x"}, "b-1_": {"memory": "1"}}
    assert not file.waits_to_drop_lock


def test_a_vm() -> None:
    file = vm(VM + "\n[PENDING]\ndelete: !scsi1,lock\n\n[special:cloudinit]\nadded: x\n\n[special:fleecing]\n")
    assert (file.lock, set(file.snapshots), file.special) == ("backup", {"vzdump"}, {"cloudinit", "fleecing"})
    assert file.waits_to_drop_lock


def test_the_digest_is_the_sha1_of_the_files_bytes() -> None:
    for data in (b"", b"lock: backup\n", b"#\xff\xfe\n", "#\u00e9".encode()):
        assert lxc(data).digest == hashlib.sha1(data).hexdigest()


@pytest.mark.parametrize(
    ("text", "lock"),
    [
        ("", None),
        ("lock: backup", "backup"),
        ("lock:backup  \r\n", "backup"),
        ("lock: snapshot-delete\n", "snapshot-delete"),
        (" lock: backup\n", None),
        ("lock:\n", None),
        ("lock : backup\n", None),
        ("Lock: backup\n", None),
        ("#lock: backup\n", None),
        ("\n\n[vzdump]\nlock: backup\n", None),
        ("[pve:pending]\nlock: backup\n", None),
        ("clock: backup\n", None),
    ],
)
def test_the_lock_is_the_main_sections(text: str, lock: str | None) -> None:
    assert lxc(text).lock == lock


@pytest.mark.parametrize(
    "text",
    [
        "[vzdump]\n[vzdump]\n",
        "lock: a\nlock: b\n",
        "[a b]\n",
        "[]\n",
        "[special:cloudinit]\n",
        "[vzdump\n",
        "[PENDING]\n[vzdump]\nsnapstate: delete\nsnapstate: delete\n",
    ],
)
def test_what_can_be_read_in_two_ways_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"twice|unknown form"):
        lxc(text)


def test_what_is_pending_for_a_vm_is_a_snapshots_name_for_a_container() -> None:
    assert (lxc("[PENDING]\n").pending, set(lxc("[PENDING]\n").snapshots)) == (None, {"PENDING"})
    assert vm("[pending]\n").pending == {}
    with pytest.raises(ValueError, match="unknown form"):
        vm("[pve:pending]\n")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("", False),
        ("template: 1\n", True),
        ("template: Yes\n", True),
        ("template: 0\n", False),
        ("template: OFF\n", False),
        ("template: x\n", True),
        ("#template: 1\nlock: create\n", False),
        ("lock: create\n\n[x1]\ntemplate: 1\n", False),
        ("[pve:pending]\ntemplate: 1\n", False),
    ],
)
def test_a_template_is_what_the_main_section_says(text: str, is_one: bool) -> None:
    assert lxc(text).template is is_one


def test_a_lock_as_the_only_line() -> None:
    """timelines 8: what a restore that was killed leaves of a container."""
    for file in (lxc("lock: create\n"), vm("lock: destroyed\n")):
        assert (file.lock in ("create", "destroyed"), file.snapshots, file.pending, file.template) == (True, {}, None, False)
    assert (lxc("").lock, vm("\n").lock) == (None, None)


@given(st.binary(max_size=300), st.sampled_from(GuestKind))
def test_any_bytes_are_read_or_refused(data: bytes, kind: GuestKind) -> None:
    try:
        assert GuestFile.parse(kind, data).digest
    except ValueError as error:
        assert len(str(error)) < 200


@pytest.mark.parametrize(
    ("vmid", "pool"),
    [(101, "guestward"), (103, "more"), (104, "other"), (105, None), (10, None), (1, None), (9000, None), (200, "guestward")],
)
def test_the_pool_of_a_guest_and_the_first_line_wins(vmid: int, pool: str | None) -> None:
    assert pool_of(USERS, vmid) == pool


def test_pools_of_many_forms() -> None:
    assert pool_of("pool:a/b:c%3A 101:102; 103 ,104\n", 103) == "a/b"
    assert pool_of("pool:a/b:c%3A 101:102; 103 ,104\n", 101) is None
    assert pool_of("  pool : a : : 101 : s :\n", 101) == "a"
    assert pool_of("pool:a:101\nuser:101:x:101\n#pool:b::101:\nacl:1:/pool/a:101:101:\n", 101) is None


def test_tasks_that_have_not_ended() -> None:
    running, ended = upid(1, "vzdump", "110"), upid(2, "vzstart", "101")
    text = f"{running} 0\n{ended} 1 6B0E04D4 OK\n{ended} 1 6B0E04D4\n{ended} 0 6B0E04D4 CT is locked (backup)\n{running} 1\n\n"
    assert unended_tasks(text) == (Upid.parse(running), Upid.parse(running))
    assert unended_tasks("") == ()


@pytest.mark.parametrize("line", ["garbage", f"{upid(1, 'a', '1')}", f"{upid(1, 'a', '1')} 2", "garbage 0", f"{upid(1, 'a', '1')} 0 xyz"])
def test_a_list_of_tasks_of_unknown_form(line: str) -> None:
    with pytest.raises(ValueError, match=r"form"):
        unended_tasks(f"{line}\n")


JOB = upid(0x3A7D, "vzdump", "110")


@pytest.mark.parametrize(
    ("argv", "job"),
    [
        ([f"task {JOB}"], VzdumpJob(110)),
        ([f"task {JOB}        "], VzdumpJob(110)),
        ([f"task {upid(1, 'vzdump', '')}"], VzdumpJob(None)),
        ([f"task {upid(1, 'vzdump', 'all')}"], VzdumpJob(None)),
        ([f"task {JOB}"[:-1]], VzdumpJob(None)),
        ([f"task {JOB}"[:-12]], VzdumpJob(None)),
        ([f"task {JOB}"[:30]], VzdumpJob(None)),
        (["task UPID:"], VzdumpJob(None)),
        ([f"task {upid(1, 'qmstart', '110')}"], None),
        ([f"task {upid(1, 'qmstart', '110')}"[:-3]], None),
        (["/usr/bin/perl", "-T", "/usr/bin/vzdump", "101"], VzdumpJob(None)),
        (["perl", "/usr/bin/vzdump", "--all", "1"], VzdumpJob(None)),
        (["/usr/bin/vzdump", "101"], VzdumpJob(None)),
        (["/usr/bin/perl", "-T", "/usr/bin/pvedaemon", "start"], None),
        (["/usr/bin/perl", "-e", "x", "/usr/bin/vzdump"], None),
        (["perl"], None),
        (["pvedaemon worker   "], None),
        (["bash", "-c", "vzdump 101"], None),
        (["less", "/usr/bin/vzdump"], None),
        ([""], None),
        ([], None),
    ],
)
def test_a_command_line_that_is_a_vzdump(argv: list[str], job: VzdumpJob | None) -> None:
    assert vzdump_job(argv) == job


def test_a_job_of_an_unknown_set_covers_everybody() -> None:
    assert (VzdumpJob(None).covers(101), VzdumpJob(101).covers(101), VzdumpJob(102).covers(101)) == (True, True, False)


# --- users, tokens, roles and entries ---

RECORDED = """\
user:guestward@nope:1:0::::::
user:guestward@pve:1:0::::x::
token:guestward@pve!agent:0:1:y:
user:root@pam:1:0::::::
token:root@pam!oracle:0:0::


pool:guestward:guests:101,102,103,987654::

role:GuestwardNode:Sys.Audit:
role:GuestwardPool:VM.Audit,VM.Backup,VM.PowerMgmt,VM.Snapshot:
role:GuestwardScratch:VM.Allocate,VM.Audit,VM.PowerMgmt:

acl:1:/nodes/nonode:guestward@pve:GuestwardNode:
acl:1:/pool/guestward:guestward@pve,guestward@pve!agent:GuestwardPool:
acl:0:/vms/990000:guestward@pve,guestward@pve!agent:GuestwardScratch:
acl:1:/vms/990001:guestward@pve,guestward@pve!agent:GuestwardScratch:
acl:1:/vms/990002:guestward@pve:GuestwardScratch:
"""  # recorded/cli.md, pveum acl
US, OURS, SCRATCH = "guestward@pve", "guestward@pve!agent", "GuestwardScratch"


def holds(text: str, path: str = "/vms/990001") -> tuple[bool, bool]:
    """Whether our user and our token have the scratch role there."""
    found = UserCfg.parse(text)
    return found.holds(path, US, SCRATCH), found.holds(path, OURS, SCRATCH)


def test_a_recorded_user_cfg() -> None:
    found = UserCfg.parse(RECORDED)
    assert found.users == {"guestward@nope", "guestward@pve", "root@pam"}
    assert found.tokens == {"guestward@pve!agent", "root@pam!oracle"}
    assert found.roles == {"GuestwardNode", "GuestwardPool", "GuestwardScratch"}
    assert found.entries["/vms/990000", OURS] == {SCRATCH: False}
    assert [holds(RECORDED, f"/vms/99000{n}") for n in range(4)] == [(False, False), (True, True), (True, False), (False, False)]
    assert holds(RECORDED, "/vms") == holds(RECORDED, "/vms/99000") == (False, False)


@pytest.mark.parametrize(
    ("old", "new", "right"),
    [
        ("role:GuestwardScratch:", "role:Other:", (False, False)),  # it dangles (pve-facts E4)
        ("token:guestward@pve!agent", "token:guestward@pve!other", (True, False)),
        ("user:guestward@pve:", "user:other@pve:", (False, False)),
        ("/vms/990002:guestward@pve:", f"/vms/990001:{US}:NoAccess:\nacl:1:/vms/3:x@pve:", (False, True)),
        ("/vms/990002:guestward@pve:", f"/vms/990001:{US}:PVEVMUser:\nacl:1:/vms/3:x@pve:", (True, True)),
        ("acl:1:/vms/990001:", "acl:0:/vms/990001:", (False, False)),
        ("acl:1:/vms/990002:guestward@pve:", f"acl:0:/vms/990001:{US}:", (False, True)),  # the later line counts, as in PVE
        (f"{US},{OURS}:GuestwardScratch", f"@group;{US} {OURS}:Other,GuestwardScratch", (True, True)),
        ("acl:1:/vms/990001:guestward@pve,", "acl:1:/vms/990001:@guestward@pve,", (False, True)),
    ],
)
def test_an_entry_counts_as_in_pve(old: str, new: str, right: tuple[bool, bool]) -> None:
    assert old in RECORDED
    assert holds(RECORDED.replace(old, new)) == right


def test_no_access_is_seen_beside_a_role_and_alone() -> None:
    found = UserCfg.parse(f"{RECORDED}acl:0:/vms/990001:{OURS}:NoAccess:\nacl:1:/vms:{US}:NoAccess:\n")
    assert [found.is_barred("/vms/990001", who) for who in (US, OURS)] == [False, True]


def test_root_is_there_even_where_its_line_is_not() -> None:
    found = UserCfg.parse("token:root@pam!aa:0:1::\ntoken:gone@pve!aa:0:1::\n")
    assert [found.knows(who) for who in ("root@pam", "root@pam!aa", "root@pam!bb", "gone@pve", "gone@pve!aa")] == [True, True, *[False] * 3]


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "#user:a@pve:1:0::::::",
        "user:a@pve:1:0",
        "user:a@pve:yes:0::::::",
        "user:a@pve:1:soon::::::",
        "user::1:0::::::",
        "token:a@pve!b:0::",
        "token:a@pve!b:x:1::",
        "role:Some",
        "role::VM.Audit:",
        "acl:2:/vms:a@pve:Role:",
        "acl:1:vms:a@pve:Role:",
        "acl:1:/vms::Role:",
        "acl:1:/vms:a@pve::",
        "acl:1:/vms:a@pve:Role",  # cut off
        "acl:1:/vms:a@pve",
        "realm:pam:",
    ],
)
def test_a_line_of_unknown_form_is_not_read_and_not_quoted(line: str) -> None:
    with pytest.raises(ValueError, match=r"^line 19 is of unknown form$"):
        UserCfg.parse(f"{RECORDED}{line}\n")


IDS = st.sampled_from(["a@pve", "guestward@pve", "b.c@d.e@ldap", "guestward@pve!agent", "a@pve!t-1", "@group"])
ENTRIES = st.dictionaries(
    st.tuples(st.sampled_from(["/", "/vms", "/vms/990001", "/pool/a/b"]), IDS),
    st.dictionaries(st.sampled_from(["GuestwardScratch", "NoAccess", "PVEAdmin"]), st.booleans(), min_size=1),
)


@given(ENTRIES)
def test_what_pve_writes_is_read_as_it_was_meant(entries: dict[tuple[str, str], dict[str, bool]]) -> None:
    """As write_user_config does: roles of one flag together, and whoever has the same ones."""
    lines: dict[tuple[bool, str, str], list[str]] = {}
    for (path, who), roles in entries.items():
        for flag in (False, True):
            if names := ",".join(sorted(role for role, propagates in roles.items() if propagates is flag)):
                lines.setdefault((flag, path, names), []).append(who)
    text = "".join(f"acl:{flag:d}:{path}:{','.join(sorted(whos))}:{names}:\n" for (flag, path, names), whos in lines.items())
    assert UserCfg.parse(text).entries == entries


PARTS = st.sampled_from(["user", "token", "role", "acl", "pool", "0", "1", "", "/vms/990001", US, OURS, f"{US},{OURS}", SCRATCH, "x", " "])
MUTATED = st.lists(PARTS, max_size=8).map(":".join)


@given(st.lists(MUTATED | st.text(max_size=40), max_size=6).map("\n".join))
def test_any_text_is_users_or_a_value_error_that_does_not_quote_it(text: str) -> None:
    try:
        found = UserCfg.parse(text)
    except ValueError as error:
        assert re.fullmatch(r"line \d+ is of unknown form", str(error))
        return
    if found.holds("/vms/990001", OURS, SCRATCH):
        assert any(line.strip().startswith("acl") and OURS in line and SCRATCH in line for line in text.split("\n"))


@pytest.mark.parametrize(
    ("id", "right"),
    [("a@pve!bb", ("a@pve", "a@pve!bb")), ("a@pve", ("a@pve",)), ("root@pam!bb", ("root@pam!bb",)), ("root@pam", ())],
)
def test_whose_entries_a_token_needs(id: str, right: tuple[str, ...]) -> None:
    assert subjects(id) == right


def test_ids_are_single_words_in_pves_lists() -> None:
    good = ["a@pve", "a.b@c.d@ldap", "o'brien@ad"]
    assert all(re.fullmatch(USER_ID, id) and re.fullmatch(TOKEN_ID, f"{id}!t1") for id in good)
    bad = ["a", "@pve", "@a@pve", "-a@pve", "a b@pve", "a,b@pve", "a;b@pve", "a:b@pve", "a/b@pve", "a!b@pve", "a\0@pve", "a@p", "a@pve\n"]
    assert not any(re.fullmatch(USER_ID, id) for id in bad)
