"""`delete-snapshot`: containers only, the exact name, never by force, and never with vzdump's flock held."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from guestward.helper.child import Ended, Programs
from guestward.helper.facts import Host
from guestward.helper.trust import Scope
from guestward.helper.verbs import Desk, _deleted
from guestward.model.guest import GuestId, GuestKind
from guestward.model.helper import HelperCode
from tests.helper.server import Call, Server
from tests.helper.test_unlock import TAR, until
from tests.helper.tree import LXC, NODE, Tree, delete, upid


@pytest.fixture(autouse=True)
def dangling(tree: Tree) -> None:
    tree.snapshot()


def test_a_dangling_snapshot_is_deleted_without_force(server: Server, tree: Tree) -> None:
    assert server.ask(delete()) == {"ok": True, "code": "ok", "message": "lxc/101: snapshot vzdump deleted"}
    assert tree.calls == ["pct delsnapshot 101 vzdump"]
    assert tree.config("lxc").read_text().strip() == LXC.replace("lock: backup\n", "").strip()


def test_the_snapshots_of_others_stay(server: Server, tree: Tree) -> None:
    file = tree.snapshot(state="delete")
    file.write_text(file.read_text() + "\n[vzdump2]\nsnaptime: 1\n\n[before]\nsnaptime: 1\n")
    assert server.code(delete()) == "ok"
    assert "[vzdump2]" in file.read_text()
    assert "[before]" in file.read_text()


_taken: list[int] = []


def _take(file: Path) -> None:
    _taken.append(os.open(file, os.O_RDONLY))
    fcntl.flock(_taken[-1], fcntl.LOCK_EX)


HALTS = "touch $root/begun; while [ ! -e $root/go ]; do sleep 0.01; done"


def _halted(server: Server, tree: Tree) -> Call:
    """A deletion at the point where its `pct` halts, till the file `go` is there."""
    call = server.call()
    call.send(delete())
    until((tree.root / "begun").exists)
    return call


def _replicates(tree: Tree) -> None:
    _take(tree.put("run/lock/pve-manager/pve-migrate-101"))


def _task(tree: Tree, type_: str) -> None:
    tree.put("var/log/pve/tasks/active", f"{upid(4711, type_, '101')} 0\n")
    tree.process(4711, "perl")


def _backup_of_another(tree: Tree) -> None:
    tree.put("run/vzdump.pid", upid(4711, "vzdump", "102"))
    tree.process(4711, "perl")


def _busy(tree: Tree) -> None:
    _take(tree.put("run/vzdump.lock"))


REFUSALS: dict[str, tuple[Callable[[Tree], object], int, str]] = {
    "boot": (lambda t: t.systemd(ActiveState="activating", SubState="start"), 101, "booting"),
    "stopping": (lambda t: t.systemd(SystemState="stopping"), 101, "stopping"),
    "no quorum": (lambda t: (t.root / f"etc/pve/nodes/{NODE}").chmod(0o555), 101, "no_quorum"),
    "in the band": (lambda t: t.snapshot(vmid=990001), 990001, "scratch_band"),
    "excluded": (lambda t: t.snapshot(vmid=109), 109, "excluded"),
    "in no pool": (lambda t: t.snapshot(vmid=105), 105, "not_owned"),
    "a VM's snapshot is its owner's": (lambda t: None, 200, "wrong_kind"),
    "no guest": (lambda t: t.config("lxc").unlink(), 101, "no_guest"),
    "locked": (lambda t: t.snapshot("backup"), 101, "locked"),
    "locked by a deletion": (lambda t: t.snapshot("snapshot-delete", "delete"), 101, "locked"),
    "no snapshot": (lambda t: t.lxc(101, "memory: 64\n"), 101, "no_snapshot"),
    "a near miss": (lambda t: t.snapshot(name="vzdump-2024"), 101, "no_snapshot"),
    "capital letters": (lambda t: t.snapshot(name="VZDUMP"), 101, "no_snapshot"),
    "busy": (_busy, 101, "busy"),
    "a vzdump that waits for replication": (
        lambda t: t.process(4711, f"task {upid(4711, 'vzdump', '101')}"),
        101,
        "backup_running",
    ),
    "any vzdump": (lambda t: t.process(4711, f"task {upid(4711, 'vzdump', '102')}"), 101, "backup_running"),
    "any vzdump in the pid file": (_backup_of_another, 101, "backup_running"),
    "an archive process": (lambda t: t.process(4711, *TAR), 101, "backup_running"),
    "a task": (lambda t: _task(t, "vzstart"), 101, "task_running"),
    "a replication": (_replicates, 101, "task_running"),
    "the node is held": (lambda t: t.put("etc/guestward/hold"), 101, "held"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_and_nothing_was_run(server: Server, tree: Tree, name: str) -> None:
    change, vmid, code = REFUSALS[name]
    change(tree)
    answer = server.ask(delete(vmid))
    while _taken:
        os.close(_taken.pop())
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o755)
    assert answer["code"] == code, answer
    assert tree.calls == []


CHANGES = {
    "the snapshot changes": ("sed -i 's/^snaptime: .*/snaptime: 1/' @CT@", "snapshot_changed"),
    "its deletion begins": ("echo 'snapstate: delete' >>@CT@", "snapshot_changed"),
    "a lock comes": ("sed -i '1ilock: backup' @CT@", "locked"),
    "it is gone": ("sed -i '/^.vzdump/,$d' @CT@", "no_snapshot"),
    "the guest is gone": ("rm @CT@", "no_guest"),
    "the host begins to stop": ("sed -i 's/=running/=stopping/' $root/systemctl", "stopping"),
    "quorum is lost": ("chmod a-w $conf", "no_quorum"),
    "somebody holds the node": ("touch $root/etc/guestward/hold", "held"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_while_it_looks_is_refused(server: Server, tree: Tree, name: str) -> None:
    shell, code = CHANGES[name]
    tree.before("systemctl", f"if second_look; then {shell}; fi")
    answer = server.ask(delete())
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o755)
    assert answer["code"] == code, answer
    assert tree.calls == []


LEAVES = "sed -i '1ilock: snapshot-delete' @CT@; echo 'snapstate: delete' >>@CT@; "
AFTERWARDS = {
    "replication": (
        "say 'Failed to obtain guest migration lock - replication running?' 255",
        "failed",
        "ended with 255: Failed to obtain guest migration lock - replication running?",
    ),
    "PVE says yes and does nothing": ("exit 0", "failed", "is still there; PVE's program ended with 0: no output"),
    "somebody else deleted it": ("sed -i '/^.vzdump/,$d' @CT@", "ok", "ended with 255: snapshot 'vzdump' does not exist"),
    "a lock comes meanwhile": (
        "sed -i '1ilock: backup' @CT@",
        "failed",
        "still there; the lock backup is there now, and keeps the guest down; PVE's program ended with 255: CT is locked (backup)",
    ),
    "the guest is gone": ("rm @CT@", "failed", "the guest is gone"),
    "it cannot be read": ("rm @CT@; mkdir @CT@; exit 0", "unknown", "cannot be read"),
}


@pytest.mark.parametrize("name", AFTERWARDS)
def test_only_what_is_seen_afterwards_counts(server: Server, tree: Tree, name: str) -> None:
    shell, code, words = AFTERWARDS[name]
    tree.before("pct", shell)
    answer = server.ask(delete())
    assert answer["code"] == code, answer
    assert words in answer["message"]


def test_no_flock_is_held_while_the_snapshot_is_deleted(server: Server, tree: Tree) -> None:
    tree.before("pct", HALTS)
    call = _halted(server, tree)
    for file in ("run/vzdump.lock", "run/lock/pve-manager/pve-migrate-101"):
        with tree.put(file).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    tree.put("go")
    assert call.answer()["code"] == "ok"


def test_pves_worker_gets_its_time_to_end_in_order(server: Server, tree: Tree) -> None:
    """As `pct`: the work is in a session of its own, and the program hands a SIGTERM on to it."""
    server.arguments += ["--longest", "1"]
    worker = "trap 'echo ended >$root/worker; exit 1' TERM; echo $$ >$root/pids; while :; do sleep 0.02; done"
    tree.put("worker.sh", worker.replace("$root", str(tree.root)))
    tree.before("pct", "setsid sh $root/worker.sh & w=$!; trap 'kill $w; wait $w; exit 255' TERM; wait")
    answer = server.ask(delete())
    assert answer["code"] == "timeout"
    assert answer["message"] == "lxc/101: the snapshot vzdump is still there; PVE's program did not end in time and was killed"
    assert (tree.root / "worker").read_text() == "ended\n"
    assert not Path(f"/proc/{int((tree.root / 'pids').read_text())}").exists()


# --- the lock that a failed deletion leaves ---

STILL = "lxc/101: the snapshot vzdump is still there"
CLEARED = f"{STILL}; its lock snapshot-delete was cleared, so that the guest can start"
STAYS = f"{STILL}; the lock snapshot-delete is there now, and keeps the guest down"
BUSY = "; PVE's program ended with 255: zfs error: cannot destroy snapshot: dataset is busy"
FAILS = LEAVES + "echo 'zfs destroy ...'; say 'zfs error: cannot destroy snapshot: dataset is busy' 255"
DELETION, UNLOCK = "pct delsnapshot 101 vzdump", "pct unlock 101"


def test_the_lock_of_a_deletion_that_failed_is_cleared_in_the_same_request(server: Server, tree: Tree) -> None:
    tree.during(deletion=FAILS)
    assert server.ask(delete()) == {"ok": False, "code": "failed", "message": CLEARED + BUSY}
    assert (tree.calls, tree.lock()) == ([DELETION, UNLOCK], None)
    assert "[vzdump]" in tree.config("lxc").read_text()
    assert "snapstate: delete" in tree.config("lxc").read_text()
    tree.before("pct", "")
    assert server.code(delete()) == "ok"  # later, when it is busy no more


def test_a_second_deletion_that_fails_too(server: Server, tree: Tree) -> None:
    """The section is in the state `delete` all the time; the lock is what comes and goes."""
    tree.snapshot(state="delete")
    tree.during(deletion="sed -i '1ilock: snapshot-delete' @CT@; say 'zfs error: cannot destroy snapshot: dataset is busy' 255")
    assert server.ask(delete())["message"] == CLEARED + BUSY
    assert tree.lock() is None


def test_the_lock_of_a_deletion_that_was_killed_is_cleared(server: Server, tree: Tree) -> None:
    server.arguments += ["--longest", "0.2"]
    tree.during(deletion=LEAVES + "exec sleep 300")
    answer = server.ask(delete())
    assert (answer["code"], tree.lock(), tree.calls) == ("timeout", None, [DELETION, UNLOCK])
    assert answer["message"] == f"{CLEARED}; PVE's program did not end in time and was killed"


def test_a_backup_of_another_guest_does_not_keep_our_lock_there(server: Server, tree: Tree) -> None:
    """It has begun since, holds vzdump's flock for hours, and no backup can set a lock over ours."""
    tree.during(deletion=f"{HALTS}; {FAILS}")
    call = _halted(server, tree)
    _busy(tree)
    _backup_of_another(tree)
    tree.put("var/log/pve/tasks/active", f"{upid(4711, 'vzdump', '102')} 0\n{upid(4711, 'vzdump', '')} 0\n")
    tree.put("go")
    answer = call.answer()
    os.close(_taken.pop())
    assert (answer["code"], answer["message"], tree.lock()) == ("failed", CLEARED + BUSY, None)


TASK = upid(4711, "vzdelsnapshot", "101")
NOT_OURS = {
    "our own worker hangs in the kernel": (
        f"echo '{TASK} 0' >$root/var/log/pve/tasks/active; {FAILS}",
        f": a task of this guest is running: {TASK}{BUSY}",
    ),
    "nobody knows which tasks run": (f"echo garbage >$root/var/log/pve/tasks/active; {FAILS}", ": /var/log/pve/tasks/active: a line of"),
    "another snapshot is deleted, too": (
        LEAVES + "printf '\\n[mine]\\nsnapstate: delete\\n' >>@CT@; say 'no' 255",
        ": the lock snapshot-delete may be that of another snapshot: mine (delete); PVE's program ended with 255: no",
    ),
    "another snapshot is made": (
        LEAVES + "printf '\\n[mine]\\nsnapstate: prepare\\n' >>@CT@; say 'no' 255",
        ": the lock snapshot-delete may be that of another snapshot: mine (prepare); PVE's program ended with 255: no",
    ),
    "another snapshot is deleted, and not ours": (
        "sed -i '1ilock: snapshot-delete' @CT@; printf '\\n[mine]\\nsnapstate: delete\\n' >>@CT@; say 'no' 255",
        ": the lock snapshot-delete is not vzdump's: its snapshot vzdump is in no such state",
    ),
    "a deletion that was cut off before it began": (
        "sed -i '1ilock: snapshot-delete' @CT@; exit 255",
        ": the lock snapshot-delete is not vzdump's: its snapshot vzdump is in no such state; PVE's program ended with 255: no output",
    ),
    "an operator's deletion was first, and failed": (
        LEAVES + "say 'CT is locked (snapshot-delete)' 255",
        ": somebody else set it first; PVE's program ended with 255: CT is locked (snapshot-delete)",
    ),
    "an operator's deletion took too long": (
        LEAVES + "say 'Failed to obtain guest migration lock - replication running?' 255",
        ": somebody else set it first; PVE's program ended with 255: Failed to obtain guest migration lock - replication running?",
    ),
}


@pytest.mark.parametrize("name", NOT_OURS)
def test_a_lock_that_may_be_somebody_elses_stays_and_is_told(server: Server, tree: Tree, name: str) -> None:
    shell, words = NOT_OURS[name]
    tree.process(4711, "perl")
    tree.during(deletion=shell)
    answer = server.ask(delete())
    assert answer["code"] == "failed"
    assert answer["message"].startswith(STAYS + words), answer
    assert (tree.calls, tree.lock()) == ([DELETION], "snapshot-delete")


def test_who_deletes_the_snapshot_now_holds_the_migration_flock(server: Server, tree: Tree) -> None:
    """As a vzdump for several guests does, whose task names none of them."""
    tree.during(deletion=f"{HALTS}; {FAILS}")
    call = _halted(server, tree)
    _replicates(tree)
    tree.put("go")
    answer = call.answer()
    os.close(_taken.pop())
    assert answer["message"] == f"{STAYS}: a replication or migration of this guest is running{BUSY}"
    assert (tree.calls, tree.lock()) == ([DELETION], "snapshot-delete")


UNLOCKS = {
    "quorum is lost": (
        "say \"unable to open file '/etc/pve/nodes/pve1/lxc/101.conf.tmp.1267' - Permission denied\" 2",
        "failed",
        f"{STAYS}; `pct unlock` ended with 2: unable to open file '/etc/pve/nodes/pve1/lxc/101.conf.tmp.1267' - Permission denied{BUSY}",
    ),
    "it says yes and does nothing": ("exit 0", "failed", f"{STAYS}; `pct unlock` ended with 0: no output{BUSY}"),
    "it hangs": ("exec sleep 300", "failed", f"{STAYS}; `pct unlock` did not end in time and was killed{BUSY}"),
    "it hangs after its work": ("drop_lock @CT@; exec sleep 300", "failed", CLEARED + BUSY),
    "an operator unlocks it first": ("drop_lock @CT@", "failed", CLEARED + BUSY),
    "an operator unlocks and deletes first": (
        "drop_lock @CT@; sed -i '/^.vzdump/,$d' @CT@",
        "ok",
        "lxc/101: snapshot vzdump deleted; its lock",
    ),
    "an operator unlocks, and a backup begins": (
        "sed -i 's/^lock: .*/lock: backup/' @CT@; exit 0",
        "failed",
        f"{STILL}; the lock backup is there now, and keeps the guest down; `pct unlock` ended with 0: no output{BUSY}",
    ),
    "the guest vanishes": ("rm @CT@", "failed", "the guest is gone: lxc/101: no such configuration on this node"),
    "pmxcfs ends": ("rm $root/etc/pve/local; exit 0", "unknown", "what came of it cannot be read: /etc/pve is not mounted"),
}


@pytest.mark.parametrize("name", UNLOCKS)
def test_only_what_is_seen_after_the_unlock_counts(server: Server, tree: Tree, name: str) -> None:
    shell, code, words = UNLOCKS[name]
    server.arguments += ["--hold", "0.3"] if "hangs" in name else []
    tree.during(deletion=FAILS, unlock=shell)
    answer = server.ask(delete())
    assert (answer["code"], answer["message"][: len(words)]) == (code, words)
    assert tree.calls == [DELETION, UNLOCK]


BETWEEN = {  # after the look at the lock, before the one right before the unlock
    "an operator's deletion begins": (
        "snaptime: 1796081478",
        "snaptime: 1",
        HelperCode.FAILED,
        f"{STAYS}: the configuration changed a moment",
    ),
    "an operator unlocks it": ("lock: snapshot-delete\n", "", HelperCode.FAILED, f"{STILL}; PVE's program ended with 255: no"),
    "another lock comes": ("lock: snapshot-delete", "lock: backup", HelperCode.FAILED, f"{STILL}; the lock backup is there now, and keeps"),
    "the guest vanishes": (None, "", HelperCode.FAILED, "the guest is gone: lxc/101: no such configuration on this node"),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_a_change_right_before_the_unlock(tree: Tree, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    old, new, code, words = BETWEEN[name]
    file = tree.snapshot("snapshot-delete", "delete")

    def change(host: Host, vmid: int) -> None:
        if old is None:
            file.unlink()
        else:
            file.write_text(file.read_text().replace(old, new, 1))

    monkeypatch.setattr(Host, "check_no_replication", change)
    programs = Programs(str(tree.root / "bin"))
    answer = _deleted(Desk(Host(str(tree.root), programs), programs, Scope()), GuestId(GuestKind.LXC, 101), Ended(255, "no\n"))
    assert (answer.code, answer.message[: len(words)]) == (code, words)
    assert tree.calls == []
