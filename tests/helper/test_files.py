"""The pure readers of PVE's files and of command lines."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestward.model.archives import VzdumpJob, vzdump_job
from guestward.model.guest import GuestKind
from guestward.model.pvefiles import GuestFile, pool_of, unended_tasks
from guestward.model.task import Upid
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
