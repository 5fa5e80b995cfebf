"""`unlock`: what it clears, everything that it refuses, and every race in between."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helper.server import Server
from tests.helper.tree import LXC, NODE, UPTIME, VM, VM_UNLOCK, Tree, unlock, upid

TAR = ["tar", "cpf", "-", "--directory=/var/lib/vz/dump/vzdump-lxc-101-2026_11_30-23_19_13.tmp", "./"]


def until(true: Callable[[], bool], limit: float = 10) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.005)


# --- what it does ---


def test_a_stale_backup_lock_of_a_container_is_cleared(server: Server, tree: Tree) -> None:
    assert server.ask(unlock()) == {"ok": True, "code": "ok", "message": "lxc/101: lock backup cleared"}
    assert tree.calls == ["pct unlock 101"]
    assert tree.config("lxc").read_text() == LXC.replace("lock: backup\n", "")


@pytest.mark.parametrize(("lock", "state"), [("snapshot", "prepare"), ("snapshot-delete", "delete")])
def test_a_lock_of_vzdumps_own_snapshot_is_cleared(server: Server, tree: Tree, lock: str, state: str) -> None:
    tree.snapshot(lock, state)
    assert server.ask(unlock(expect=lock)) == {"ok": True, "code": "ok", "message": f"lxc/101: lock {lock} cleared"}
    assert tree.calls == ["pct unlock 101"]
    assert "[vzdump]" in tree.config("lxc").read_text()


def test_another_snapshot_that_is_worked_on_says_nothing_of_a_backups_lock(server: Server, tree: Tree) -> None:
    _other_snapshot(tree, "backup", "delete")
    assert server.code(unlock()) == "ok"


def test_a_stale_lock_of_a_vm_is_cleared_by_compare_and_set(server: Server, tree: Tree) -> None:
    digest = tree.digest()
    assert server.ask(VM_UNLOCK) == {"ok": True, "code": "ok", "message": "qemu/200: lock backup cleared"}
    assert tree.calls == [f"pvesh set /nodes/localhost/qemu/200/config --delete lock --skiplock 1 --digest {digest}"]
    assert tree.config("qemu").read_text() == VM.replace("lock: backup\n", "")


@pytest.mark.parametrize("section", ["[PENDING]\nmemory: 128\n", "[special:cloudinit]\nciuser: root\n", "[pending]\n\n"])
def test_a_vm_whose_changes_wait_is_unlocked_without_applying_them(server: Server, tree: Tree, section: str) -> None:
    tree.vm(200, VM.replace("[vzdump]", f"{section}\n[vzdump]"))
    assert server.ask(VM_UNLOCK)["ok"]
    assert tree.calls == ["qm unlock 200"]
    assert section.strip() in tree.config("qemu").read_text()


def test_fleecing_images_are_no_change_that_waits(server: Server, tree: Tree) -> None:
    tree.vm(200, VM.replace("[vzdump]", "[special:fleecing]\nfleecing-images: local:1\n\n[vzdump]"))
    assert server.ask(VM_UNLOCK)["ok"]
    assert tree.calls[0].startswith("pvesh set")


def test_a_guest_in_the_second_pool_is_ours_too(server: Server, tree: Tree) -> None:
    tree.lxc(103, LXC)
    assert server.code(unlock(103)) == "ok"


@pytest.mark.parametrize(
    "states",
    [
        {"ActiveState": "failed", "SubState": "failed"},
        {"ActiveState": "inactive", "SubState": "dead", "UnitFileState": "disabled"},
        {"ActiveState": "inactive", "SubState": "dead", "UnitFileState": "masked"},
        {"ActiveState": "inactive", "SubState": "dead", "UnitFileState": "", "LoadState": "not-found"},
        {"SystemState": "degraded"},
    ],
)
def test_boot_is_over(server: Server, tree: Tree, states: dict[str, str]) -> None:
    tree.systemd(**states)
    assert server.code(unlock()) == "ok"


def test_what_is_no_backup_of_this_guest_is_in_nobodys_way(server: Server, tree: Tree) -> None:
    tree.put("run/vzdump.pid", upid(4711, "vzdump", "101", start=6))  # its number was given anew
    tree.process(4711, "/usr/sbin/sshd")
    tree.process(4712, f"task {upid(4712, 'vzdump', '102')}")
    tree.process(4713, f"task {upid(4713, 'qmstart', '101')}   ")
    tree.process(4714, "vim", "/usr/bin/vzdump")
    tree.process(4715, *(part.replace("-101-", "-102-") for part in TAR))
    tree.process(4716, *TAR, namespaces="4716\t12")  # a container claims it
    tree.process(4717)
    (tree.root / "proc/4718").mkdir()  # it has ended meanwhile
    tree.put(
        "var/log/pve/tasks/active",
        f"{upid(9, 'vzdump', '101')} 0\n{upid(4711, 'vzstart', '101')} 1 6B0E04D4 OK\n{upid(4711, 'qmstart', '102')} 0\n",
    )
    assert server.code(unlock()) == "ok"


def test_a_worker_of_another_guest_in_the_pid_file(server: Server, tree: Tree) -> None:
    tree.put("run/vzdump.pid", upid(4711, "vzdump", "102"))
    tree.process(4711, "x")
    assert server.code(unlock()) == "ok"


def test_the_lock_file_is_made_as_vzdump_makes_it(server: Server, tree: Tree) -> None:
    assert server.code(unlock()) == "ok"
    status = (tree.root / "run/vzdump.lock").stat()
    assert (status.st_mode & 0o777, status.st_size, status.st_uid) == (0o644, 0, os.geteuid())


# --- what it refuses ---

Change = Callable[[Tree], object]


def _no_quorum(tree: Tree) -> None:
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o555)


def _link(tree: Tree, target: str | None) -> None:
    (tree.root / "etc/pve/local").unlink()
    if target is not None:
        (tree.root / "etc/pve/local").symlink_to(target)


def _lives(tree: Tree, id_: str, type_: str = "vzdump") -> None:
    tree.put("run/vzdump.pid", upid(4711, type_, id_))
    tree.process(4711, "perl")


def _task(tree: Tree, type_: str) -> None:
    tree.put("var/log/pve/tasks/active", f"{upid(4711, type_, '101')} 0\n")
    tree.process(4711, "perl")


def _hidden(tree: Tree) -> None:
    (tree.root / "proc/self").symlink_to("4711")


def _other_snapshot(tree: Tree, lock: str, state: str) -> None:
    file = tree.snapshot(lock, state)
    file.write_text(file.read_text() + f"\n[mine]\nsnaptime: 1\nsnapstate: {state}\n")


BAND = unlock(990001)
REFUSALS: dict[str, tuple[Change, bytes, str]] = {
    "systemd stops the host": (lambda t: t.systemd(SystemState="stopping"), unlock(), "stopping"),
    "pve-guests stops": (lambda t: t.systemd(ActiveState="deactivating", SubState="stop"), unlock(), "stopping"),
    "pve-guests starts": (lambda t: t.systemd(ActiveState="activating", SubState="start"), unlock(), "booting"),
    "pve-guests was not begun": (lambda t: t.systemd(ActiveState="inactive", SubState="dead"), unlock(), "booting"),
    "pve-guests is active and runs": (lambda t: t.systemd(SubState="running"), unlock(), "booting"),
    "disabled, 14 min after boot": (
        lambda t: (t.systemd(ActiveState="inactive", SubState="dead", UnitFileState="disabled"), t.put("proc/uptime", "899.99 1\n")),
        unlock(),
        "booting",
    ),
    "disabled, and nobody knows since when": (
        lambda t: (t.systemd(ActiveState="inactive", SubState="dead", UnitFileState="disabled"), t.put("proc/uptime", "x")),
        unlock(),
        "unreadable",
    ),
    "systemctl fails": (lambda t: t.before("systemctl", "say 'Failed to connect to bus' 1"), unlock(), "unreadable"),
    "systemctl says nothing": (lambda t: t.put("systemctl", "SystemState=running\n"), unlock(), "unreadable"),
    "systemctl is not there": (lambda t: (t.root / "bin/systemctl").unlink(), unlock(), "unreadable"),
    "pmxcfs is down": (lambda t: _link(t, None), unlock(), "no_pmxcfs"),
    "a link to elsewhere": (lambda t: _link(t, "../guestward"), unlock(), "no_pmxcfs"),
    "a link to above": (lambda t: _link(t, "nodes/.."), unlock(), "no_pmxcfs"),
    "a node that is not there": (lambda t: _link(t, "nodes/pve9"), unlock(), "unreadable"),
    "no quorum": (_no_quorum, unlock(), "no_quorum"),
    "in the band": (lambda t: t.lxc(990001, LXC), BAND, "scratch_band"),
    "excluded": (lambda t: t.lxc(109, LXC), unlock(109), "excluded"),
    "in another pool": (lambda t: t.lxc(104, LXC), unlock(104), "not_owned"),
    "in no pool": (lambda t: t.lxc(105, LXC), unlock(105), "not_owned"),
    "no users": (lambda t: (t.root / "etc/pve/user.cfg").unlink(), unlock(), "unreadable"),
    "destroyed": (lambda t: t.config("lxc").unlink(), unlock(), "no_guest"),
    "on another node": (lambda t: t.config("lxc").rename(t.put("etc/pve/nodes/pve2/lxc/101.conf")), unlock(), "no_guest"),
    "of the other kind": (lambda t: t.config("lxc").rename(t.root / f"etc/pve/nodes/{NODE}/qemu-server/101.conf"), unlock(), "wrong_kind"),
    "a VM asked for as a container": (lambda t: None, unlock(200), "wrong_kind"),
    "a configuration with two locks": (lambda t: t.lxc(101, LXC + "lock: migrate\n"), unlock(), "unreadable"),
    "a section of unknown form": (lambda t: t.lxc(101, LXC + "\n[vzdump\n"), unlock(), "unreadable"),
    "a configuration that is a folder": (lambda t: (t.config("lxc").unlink(), t.config("lxc").mkdir()), unlock(), "unreadable"),
    "the worker of the pid file": (lambda t: _lives(t, "101"), unlock(), "backup_running"),
    "a job of several guests in the pid file": (lambda t: _lives(t, ""), unlock(), "backup_running"),
    "garbage in the pid file": (lambda t: t.put("run/vzdump.pid", "4711"), unlock(), "unreadable"),
    "a worker that waits": (lambda t: t.process(4711, f"task {upid(4711, 'vzdump', '101')}"), unlock(), "backup_running"),
    "a worker of several": (lambda t: t.process(4711, f"task {upid(4711, 'vzdump', '')}    "), unlock(), "backup_running"),
    "a title that was cut": (lambda t: t.process(4711, f"task {upid(4711, 'vzdump', '102')}"[:-12]), unlock(), "backup_running"),
    "a title that was cut short": (lambda t: t.process(4711, "task UPID:pve1:00001267:00000005:6B0"), unlock(), "backup_running"),
    "vzdump itself": (lambda t: t.process(4711, "/usr/bin/perl", "-T", "/usr/bin/vzdump", "102"), unlock(), "backup_running"),
    "an archive process": (lambda t: t.process(4711, *TAR), unlock(), "backup_running"),
    "an archive process that ends": (lambda t: (t.process(4711, *TAR), (t.root / "proc/4711/status").unlink()), unlock(), "backup_running"),
    "a status of unknown form": (lambda t: (_lives(t, "101"), t.put("proc/4711/stat", "garbage")), unlock(), "unreadable"),
    "no list of processes": (lambda t: shutil.rmtree(t.root / "proc"), unlock(), "unreadable"),
    "more users than there can be": (lambda t: t.put("etc/pve/user.cfg", "#" * (3 << 20)), unlock(), "unreadable"),
    "hidden processes": (_hidden, unlock(), "unreadable"),
    "another lock": (lambda t: t.lxc(101, LXC.replace("backup", "migrate")), unlock(), "lock_changed"),
    "a lock that is gone": (lambda t: t.lxc(101, LXC.replace("lock: backup\n", "")), unlock(), "lock_changed"),
    "a lock in a snapshot only": (lambda t: t.lxc(101, "memory: 64\n\n[x1]\nlock: backup\n"), unlock(), "lock_changed"),
    "a lock in the description": (lambda t: t.lxc(101, "#lock: backup\ndescription: lock: backup\n"), unlock(), "lock_changed"),
    "a user's snapshot": (lambda t: t.snapshot("snapshot", "prepare", name="mine"), unlock(expect="snapshot"), "lock_kind"),
    "a snapshot in the other state": (lambda t: t.snapshot("snapshot", "delete"), unlock(expect="snapshot"), "lock_kind"),
    "a snapshot in no state": (lambda t: t.snapshot("snapshot-delete"), unlock(expect="snapshot-delete"), "lock_kind"),
    "the other snapshot is worked on, too": (lambda t: _other_snapshot(t, "snapshot", "prepare"), unlock(expect="snapshot"), "lock_kind"),
    "and of the other's deletion": (
        lambda t: _other_snapshot(t, "snapshot-delete", "delete"),
        unlock(expect="snapshot-delete"),
        "lock_kind",
    ),
    "the node is held": (lambda t: t.put("etc/guestward/hold"), unlock(), "held"),
    "the node is held by a dangling link": (lambda t: (t.root / "etc/guestward/hold").symlink_to("nowhere"), unlock(), "held"),
    "the node is held by a folder": (lambda t: (t.root / "etc/guestward/hold").mkdir(), VM_UNLOCK, "held"),
    "a snapshot's lock of a VM": (lambda t: None, unlock(200, "qemu", "snapshot"), "lock_kind"),
    "a task of this guest": (lambda t: _task(t, "vzmigrate"), unlock(), "task_running"),
    "a list of tasks of unknown form": (lambda t: t.put("var/log/pve/tasks/active", "garbage\n"), unlock(), "unreadable"),
    "a list of tasks without UPIDs": (lambda t: t.put("var/log/pve/tasks/active", "garbage 0\n"), unlock(), "unreadable"),
    "a lock file that is a link": (lambda t: (t.root / "run/vzdump.lock").symlink_to(t.put("x")), unlock(), "unreadable"),
    "a lock file that is a FIFO": (lambda t: os.mkfifo(t.root / "run/vzdump.lock"), unlock(), "unreadable"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_and_nothing_was_run(server: Server, tree: Tree, name: str) -> None:
    change, request, code = REFUSALS[name]
    change(tree)
    before = {file: file.read_bytes() for file in (tree.root / "etc/pve").rglob("*.conf") if file.is_file()}
    answer = server.ask(request)
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o755)
    assert answer["code"] == code, answer
    assert len(answer["message"]) > 15
    assert tree.calls == []
    assert all(file.read_bytes() == content for file, content in before.items())


def test_the_lock_file_of_somebody_else_is_refused(server: Server, tree: Tree) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a file of somebody else")
    os.chown(tree.put("run/vzdump.lock"), 65534, 65534)
    assert server.code(unlock()) == "unreadable"


def test_a_real_worker_is_seen_in_the_kernels_own_list(server: Server, tree: Tree) -> None:
    tree.real_proc()
    title = f"task {upid(1, 'vzdump', '101')}"
    with subprocess.Popen([title], executable="/bin/cat", stdin=subprocess.PIPE) as worker:
        until(lambda: Path(f"/proc/{worker.pid}/cmdline").read_text().startswith("task UPID"))
        answer = server.ask(unlock())
    assert answer["code"] == "backup_running"
    assert f"process {worker.pid}, task UPID:pve1:" in answer["message"]
    assert server.code(unlock()) == "ok"


# --- races ---

CHANGES = {  # at the second look at the host, with the flock held: too late for a decision that was made before
    "the lock becomes migrate": ("sed -i 's/^lock: backup/lock: migrate/' @CT@", "lock_changed"),
    "the lock becomes snapshot": ("sed -i 's/^lock: backup/lock: snapshot/' @CT@", "lock_changed"),
    "the lock is cleared": ("drop_lock @CT@", "lock_changed"),
    "the guest vanishes": ("rm @CT@", "no_guest"),
    "the guest changes kind": ("mv @CT@ $conf/qemu-server/101.conf", "wrong_kind"),
    "the host begins to stop": ("sed -i 's/=running/=stopping/' $root/systemctl", "stopping"),
    "quorum is lost": ("chmod a-w $conf", "no_quorum"),
    "pmxcfs ends": ("rm $root/etc/pve/local", "no_pmxcfs"),
    "somebody holds the node": ("touch $root/etc/guestward/hold", "held"),
    "a migration begins": (f"echo '{upid(4711, 'vzmigrate', '101')} 0' >$root/var/log/pve/tasks/active", "task_running"),
    "the checks take too long": ("sleep 0.6", "too_slow"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_while_it_looks_is_refused(server: Server, tree: Tree, name: str) -> None:
    shell, code = CHANGES[name]
    tree.process(4711, "perl")
    tree.before("systemctl", f"if second_look; then {shell}; fi")
    server.arguments += ["--hold", "1"] if code == "too_slow" else []
    answer = server.ask(unlock())
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o755)
    assert answer["code"] == code, answer
    assert tree.calls == []


def test_a_vm_that_changes_right_before_the_call_keeps_its_new_lock(server: Server, tree: Tree) -> None:
    tree.before("pvesh", "sed -i 's/^lock: backup/lock: migrate/' @VM@")
    answer = server.ask(VM_UNLOCK)
    assert answer["code"] == "failed"
    assert "now it has the lock migrate" in answer["message"]
    assert "checksum mismatch" in answer["message"]
    assert tree.lock("qemu") == "migrate"


def test_a_vm_whose_memory_changes_right_before_the_call(server: Server, tree: Tree) -> None:
    tree.before("pvesh", "sed -i 's/^memory: 64/memory: 65/' @VM@")
    answer = server.ask(VM_UNLOCK)
    assert answer["code"] == "failed"
    assert answer["message"].startswith("qemu/200: the lock backup is still there; PVE's program ended with 255: checksum mismatch")


AFTERWARDS = {
    "PVE says yes and does nothing": ("exit 0", "failed", "the lock backup is still there; PVE's program ended with 0: no output"),
    "no quorum": (
        "say \"unable to open file '/etc/pve/nodes/pve1/lxc/101.conf.tmp.1267' - Permission denied\" 2",
        "failed",
        "ended with 2: unable to open file '/etc/pve/nodes/pve1/lxc/101.conf.tmp.1267' - Permission denied",
    ),
    "the flock of the configuration": (
        "echo 'trying to acquire lock...'; say \"can't lock file '/run/lock/lxc/pve-config-101.lock' - got timeout\" 255",
        "failed",
        "ended with 255: can't lock file '/run/lock/lxc/pve-config-101.lock' - got timeout",
    ),
    "pmxcfs is down": (
        'for n in 1 2 3; do echo "ipcc_send_rec[$n] failed: Connection refused"; done >&2; exit 111',
        "failed",
        "ended with 111",
    ),
    "another lock comes": ("drop_lock @CT@; sed -i '1ilock: snapshot' @CT@; exit 0", "failed", "now it has the lock snapshot"),
    "the guest vanishes": ("rm @CT@", "failed", "the guest is gone"),
    "it changes kind": ("mv @CT@ $conf/qemu-server/101.conf", "failed", "the guest is gone"),
    "nobody can read it": ("rm @CT@; mkdir @CT@; exit 0", "unknown", "cannot be read"),
    "pmxcfs ends": ("rm $root/etc/pve/local; exit 0", "unknown", "cannot be read"),
    "somebody else was first": ("drop_lock @CT@", "ok", "ended with 255: no lock found trying to remove any lock"),
    "it cannot be run": (None, "failed", "pct: No such file or directory"),
    "it writes without end": ("head -c 1000000 /dev/zero | tr '\\0' x; echo; say 'the end' 255", "failed", "ended with 255: the end"),
    "it dies": ("kill -9 $$", "failed", "ended with -9"),
}


@pytest.mark.parametrize("name", AFTERWARDS)
def test_only_what_is_seen_afterwards_counts(server: Server, tree: Tree, name: str) -> None:
    shell, code, words = AFTERWARDS[name]
    if shell is None:
        (tree.root / "bin/pct").unlink()
    else:
        tree.before("pct", shell)
    answer = server.ask(unlock())
    assert answer["code"] == code, answer
    assert words in answer["message"]


def test_a_program_that_hangs_is_killed_with_all_that_it_started_and_the_flock_is_free(server: Server, tree: Tree) -> None:
    server.arguments += ["--hold", "0.6"]
    tree.before("pct", "setsid sleep 300 & echo $! >$root/pids; echo $$ >>$root/pids; wait")
    answer = server.ask_again(unlock())
    assert answer["code"] == "timeout"
    assert answer["message"] == "lxc/101: the lock backup is still there; PVE's program did not end in time and was killed"
    pids = [int(pid) for pid in (tree.root / "pids").read_text().split()]
    until(lambda: not any(_alive(pid) for pid in pids))
    _take(tree)


def test_a_program_that_hangs_after_its_work_has_done_it(server: Server, tree: Tree) -> None:
    server.arguments += ["--hold", "0.6"]
    tree.after("pct", "sleep 300")
    answer = server.ask_again(unlock())
    assert (answer["code"], tree.lock()) == ("ok", None)
    assert "killed" in answer["message"]


def test_a_call_that_was_cut_off_between_its_two_writes_is_told(server: Server, tree: Tree) -> None:
    server.arguments += ["--hold", "0.6"]
    tree.before("pvesh", "sed -i 's/^\\[vzdump\\]/[PENDING]\\ndelete: lock\\n\\n[vzdump]/' @VM@; sleep 300")
    answer = server.ask_again(VM_UNLOCK)
    assert answer["code"] == "timeout"
    assert "a pending change `delete: lock` was left, `qm set 200 --revert lock`" in answer["message"]
    tree.before("pvesh", "exit 1")
    assert server.ask_again(VM_UNLOCK)["code"] == "ok"
    assert tree.calls[-1] == "qm unlock 200"


def test_a_daemon_that_pct_leaves_behind_holds_no_flock(server: Server, tree: Tree) -> None:
    tree.before("pct", "setsid sleep 300 & echo $! >$root/pids")
    assert server.code(unlock()) == "ok"
    _take(tree)
    os.kill(int((tree.root / "pids").read_text()), signal.SIGKILL)


def test_the_programs_get_a_clean_environment_and_no_input(server: Server, tree: Tree) -> None:
    tree.before("pct", "/usr/bin/env -0 | tr '\\0' '\\n' >$root/environment; cat >$root/input; pwd >$root/folder")
    assert server.code(unlock()) == "ok"
    found = dict(line.split("=", 1) for line in (tree.root / "environment").read_text().splitlines())
    assert {key: value for key, value in found.items() if key not in ("PWD", "OLDPWD", "_", "SHLVL")} == {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C",
        "HOME": "/root",
    }
    assert ((tree.root / "input").read_text(), (tree.root / "folder").read_text()) == ("", "/\n")


# --- the flock ---

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _take(tree: Tree) -> None:
    with (tree.root / "run/vzdump.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(tree: Tree) -> subprocess.Popen[str]:
    argv = [sys.executable, "-ISc", HOLDER, str(tree.root / "run/vzdump.lock")]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_flock_that_somebody_holds_is_not_waited_for(server: Server, tree: Tree) -> None:
    tree.real_proc()
    with _holder(tree) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        began = time.monotonic()
        answer = server.ask(unlock())
        assert time.monotonic() - began < 8
        assert (answer["code"], tree.calls) == ("busy", [])
        assert f"held by process {other.pid}" in answer["message"]
        other.communicate("")
    assert server.code(unlock()) == "ok"


def test_while_the_helper_holds_it_others_have_it_within_their_10_seconds(server: Server, tree: Tree) -> None:
    server.arguments += ["--hold", "1.5"]
    tree.before("pct", "touch $root/begun; sleep 300")
    call = server.call()
    call.send(unlock())
    until((tree.root / "begun").exists)
    with pytest.raises(BlockingIOError):
        _take(tree)
    began = time.monotonic()
    with _holder(tree) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert time.monotonic() - began < 10
        other.communicate("")
    assert call.answer()["code"] == "timeout"


def test_of_two_at_once_one_is_busy(server: Server, tree: Tree) -> None:
    tree.before("pct", "touch $root/begun; while [ ! -e $root/go ]; do sleep 0.01; done")
    first = server.call()
    first.send(unlock())
    until((tree.root / "begun").exists)
    assert server.code(unlock()) == "busy"
    assert server.code(VM_UNLOCK) == "busy"
    tree.put("go")
    assert first.answer()["code"] == "ok"
    assert tree.calls == ["pct unlock 101"]


def test_a_caller_that_goes_away_changes_nothing(server: Server, tree: Tree) -> None:
    tree.before("pct", "touch $root/begun; while [ ! -e $root/go ]; do sleep 0.01; done")
    call = server.call()
    call.send(unlock())
    until((tree.root / "begun").exists)
    call.client.close()
    tree.put("go")
    until(lambda: any(record["event"] == "helper_undelivered" for record in server.records()))
    assert (server.records()[-1]["code"], server.records()[-1]["event"], tree.lock()) == ("ok", "helper_undelivered", None)


def test_uptime_is_read_only_where_it_matters(tree: Tree, server: Server) -> None:
    assert UPTIME
    tree.put("proc/uptime", "garbage")
    assert server.code(unlock()) == "ok"
