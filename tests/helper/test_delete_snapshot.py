"""`delete-snapshot`: containers only, the exact name, never by force, and never with vzdump's flock held."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helper.server import Server
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
    "the storage fails and PVE leaves its lock": (
        LEAVES + "echo 'zfs destroy ...'; say 'zfs error: cannot destroy snapshot: dataset is busy' 255",
        "failed",
        "still there; now it has the lock snapshot-delete and cannot start; PVE's program ended with 255: zfs error: cannot destroy "
        "snapshot: dataset is busy",
    ),
    "replication": (
        "say 'Failed to obtain guest migration lock - replication running?' 255",
        "failed",
        "ended with 255: Failed to obtain guest migration lock - replication running?",
    ),
    "PVE says yes and does nothing": ("exit 0", "failed", "is still there; PVE's program ended with 0: no output"),
    "somebody else deleted it": ("sed -i '/^.vzdump/,$d' @CT@", "ok", "ended with 255: snapshot 'vzdump' does not exist"),
    "a lock comes meanwhile": ("sed -i '1ilock: backup' @CT@", "failed", "ended with 255: CT is locked (backup)"),
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
    tree.before("pct", "touch $root/begun; while [ ! -e $root/go ]; do sleep 0.01; done")
    call = server.call()
    call.send(delete())
    until((tree.root / "begun").exists)
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


def test_the_lock_that_a_killed_deletion_leaves_is_told(server: Server, tree: Tree) -> None:
    server.arguments += ["--longest", "0.2"]
    tree.before("pct", LEAVES + "exec sleep 300")
    answer = server.ask(delete())
    assert answer["code"] == "timeout"
    assert "now it has the lock snapshot-delete" in answer["message"]
    assert os.path.exists(tree.config("lxc"))
