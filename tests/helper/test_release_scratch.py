"""`release-scratch`: what it clears, everything that it refuses, and every race in between."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from guestward.helper import facts
from guestward.model.guest import GuestId, GuestKind
from tests.helper.server import Server
from tests.helper.test_unlock import HOLDER
from tests.helper.tree import CONFIG, LXC, NODE, VM, Tree, release, upid

CT_FLOCK = "run/lock/lxc/pve-config-990001.lock"
VM_FLOCK = "run/lock/qemu-server/lock-990001.conf"


def conf(tree: Tree, kind: str = "lxc") -> Path:
    return tree.root / f"etc/pve/nodes/{NODE}" / ("lxc" if kind == "lxc" else "qemu-server") / "990001.conf"


@pytest.fixture(autouse=True)
def leftover(tree: Tree) -> None:
    """timelines 8: a restore that was killed leaves the lock as the only line."""
    tree.lxc(990001, "lock: create\n")


# --- what it does ---


@pytest.mark.parametrize("lock", ["create", "destroyed"])
def test_the_only_line_of_a_container_goes(server: Server, tree: Tree, lock: str) -> None:
    tree.lxc(990001, f"lock: {lock}\n")
    assert server.ask(release()) == {"ok": True, "code": "ok", "message": f"lxc/990001: lock {lock} cleared"}
    assert tree.calls == ["pct unlock 990001"]
    assert conf(tree).read_text() == ""


@pytest.mark.parametrize("lock", ["create", "destroyed"])
def test_a_vm_is_released_by_compare_and_set(server: Server, tree: Tree, lock: str) -> None:
    conf(tree).unlink()
    file = tree.vm(990001, VM.replace("backup", lock))
    assert server.ask(release())["message"] == f"qemu/990001: lock {lock} cleared"
    assert [call.partition(" --digest")[0] for call in tree.calls] == [
        "pvesh set /nodes/localhost/qemu/990001/config --delete lock --skiplock 1"
    ]
    assert file.read_text() == VM.replace("lock: backup\n", "")


def test_a_vm_whose_changes_wait_is_released_without_applying_them(server: Server, tree: Tree) -> None:
    conf(tree).unlink()
    tree.vm(990001, "lock: create\n\n[PENDING]\nmemory: 128\n")
    assert server.ask(release())["ok"]
    assert (tree.calls, "[PENDING]" in conf(tree, "qemu").read_text()) == (["qm unlock 990001"], True)


def test_a_restore_over_a_guest_that_was_there(server: Server, tree: Tree) -> None:
    tree.lxc(990001, LXC.replace("backup", "create"))
    assert server.code(release()) == "ok"
    assert conf(tree).read_text() == LXC.replace("lock: backup\n", "")


@pytest.mark.parametrize("vmid", [990000, 990009])
def test_both_ends_of_the_band_are_in_it(server: Server, tree: Tree, vmid: int) -> None:
    tree.lxc(vmid, "lock: create\n")
    assert server.code(release(vmid)) == "ok"


def test_the_configuration_says_where_the_band_is(server: Server, tree: Tree) -> None:
    tree.put("etc/guestward/guestward.toml", "[scratch]\nfirst = 101\nlast = 101\n")
    assert server.code(release()) == "not_scratch"
    tree.lxc(101, "lock: create\n")
    assert server.code(release(101)) == "ok"


def test_where_locks_are_only_reported_the_band_is_released_all_the_same(server: Server, tree: Tree) -> None:
    tree.put("etc/guestward/guestward.toml", CONFIG + '[locks]\nrecover = "report"\n')
    assert server.code(release()) == "ok"


def test_what_is_no_work_on_this_guest_is_in_nobodys_way(server: Server, tree: Tree) -> None:
    tree.put("run/vzdump.pid", upid(4711, "vzdump", "101"))
    tree.process(4711, "perl")  # a backup of another guest
    tree.put(
        "var/log/pve/tasks/active",
        f"{upid(4712, 'vzrestore', '990001')} 0\n"  # its worker is dead
        f"{upid(4711, 'vzrestore', '990001', start=6)} 0\n"  # its number was given anew
        f"{upid(4711, 'vzrestore', '990001')} 1 6B0E04D4 unexpected status\n"
        f"{upid(4711, 'vzclone', '101')} 1 6B0E04D4 OK\n"
        f"{upid(4711, 'vzrestore', '990002')} 0\n"
        f"{upid(4711, 'qmclone', '101')} 0\n",  # its target has the lock `clone`
    )
    for file in (CT_FLOCK, VM_FLOCK):
        tree.put(file)
    assert server.code(release()) == "ok"


# --- what it refuses ---

Change = Callable[[Tree], object]


def _task(type_: str, id_: str = "990001") -> Change:
    return lambda t: (t.put("var/log/pve/tasks/active", f"{upid(4711, type_, id_)} 0\n"), t.process(4711, "perl"))


def _locked(lock: str) -> Change:
    return lambda t: t.lxc(990001, f"lock: {lock}\n")


def _stub(text: str) -> Change:
    return lambda t: (conf(t).unlink(), t.vm(990001, text))


REFUSALS: dict[str, tuple[Change, str]] = {
    "systemd stops the host": (lambda t: t.systemd(SystemState="stopping"), "stopping"),
    "pve-guests stops": (lambda t: t.systemd(ActiveState="deactivating", SubState="stop"), "stopping"),
    "pve-guests starts": (lambda t: t.systemd(ActiveState="activating", SubState="start"), "booting"),
    "systemctl fails": (lambda t: t.before("systemctl", "say 'Failed to connect to bus' 1"), "unreadable"),
    "no quorum": (lambda t: (t.root / f"etc/pve/nodes/{NODE}").chmod(0o555), "no_quorum"),
    "pmxcfs is not mounted": (lambda t: (t.root / "etc/pve/local").unlink(), "no_pmxcfs"),
    "the node is held": (lambda t: t.put("etc/guestward/hold"), "held"),
    "nobody": (lambda t: conf(t).unlink(), "no_guest"),
    "a guest of another node": (
        lambda t: (conf(t).unlink(), t.put("etc/pve/nodes/pve2/lxc/990001.conf", "lock: create\n")),
        "no_guest",
    ),
    "one of each kind": (lambda t: t.vm(990001, "lock: create\n"), "wrong_kind"),
    "a folder": (lambda t: (conf(t).unlink(), conf(t).mkdir()), "unreadable"),
    "two locks": (lambda t: t.lxc(990001, "lock: create\nlock: create\n"), "unreadable"),
    "a template": (lambda t: t.lxc(990001, "lock: create\ntemplate: 1\n"), "template"),
    "a template of a VM": (_stub("lock: destroyed\ntemplate: 1\n"), "template"),
    "no lock": (lambda t: t.lxc(990001, "arch: amd64\n"), "not_locked"),
    "an empty file": (lambda t: t.lxc(990001, ""), "not_locked"),
    "a stub of a VM": (_stub("scsi0: local:990001/x.raw,size=1G\n"), "not_locked"),
    "a lock in a snapshot only": (lambda t: t.lxc(990001, "arch: amd64\n\n[x1]\nlock: create\n"), "not_locked"),
    **{
        f"the lock {lock}": (_locked(lock), "lock_kind")
        for lock in ("backup", "clone", "disk", "migrate", "mounted", "rollback", "snapshot", "snapshot-delete", "Create", "creates")
    },
    "a VM that is being cloned": (_stub("# qmclone temporary file\nlock: clone\n"), "lock_kind"),
    "an import": (_stub("lock: import\n"), "lock_kind"),
    **{
        f"a running {type_}": (_task(type_), "task_running")
        for type_ in ("vzrestore", "qmrestore", "vzcreate", "vzdestroy", "qmdestroy", "vzmtunnel", "qmtunnel", "vzstart", "vzdump")
    },
    "a clone of another container": (_task("vzclone", "101"), "task_running"),
    "a list of tasks of unknown form": (lambda t: t.put("var/log/pve/tasks/active", "garbage\n"), "unreadable"),
    "hidden processes": (
        lambda t: (_task("vzrestore")(t), (t.root / "proc/4711/stat").unlink(), (t.root / "proc/self").symlink_to("4711")),
        "unreadable",
    ),
    "a flock that is a link": (
        lambda t: (t.put(CT_FLOCK).unlink(), (t.root / CT_FLOCK).symlink_to(t.put("x"))),
        "unreadable",
    ),
    "a flock that is a FIFO": (lambda t: (t.put(CT_FLOCK).unlink(), os.mkfifo(t.root / CT_FLOCK)), "unreadable"),
    "the configuration is rotten": (lambda t: t.put("etc/guestward/guestward.toml", "[scope"), "config"),
    "it is excluded": (lambda t: t.put("etc/guestward/guestward.toml", CONFIG.replace("109", "109, 990001")), "excluded"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_and_nothing_was_run(server: Server, tree: Tree, name: str) -> None:
    change, code = REFUSALS[name]
    change(tree)
    before = {file: file.read_bytes() for file in (tree.root / "etc/pve").rglob("*.conf") if file.is_file()}
    answer = server.ask(release())
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o755)
    assert answer["code"] == code, answer
    assert len(answer["message"]) > 15
    assert tree.calls == []
    assert all(file.read_bytes() == content for file, content in before.items())


@pytest.mark.parametrize("vmid", [100, 101, 200, 989999, 990010, 999_999_999])
def test_outside_of_the_band_it_is_refused_before_anything_is_looked_at(server: Server, tree: Tree, vmid: int) -> None:
    tree.lxc(vmid, "lock: create\n")
    answer = server.ask(release(vmid))
    assert (answer["code"], answer["message"]) == ("not_scratch", f"{vmid} is not in the scratch band 990000-990009")
    assert (tree.calls, tree.looks) == ([], 0)


@pytest.mark.parametrize(("kind", "file"), [("lxc", CT_FLOCK), ("qemu", VM_FLOCK)])
def test_a_restore_that_works_under_the_flock_of_the_configuration(server: Server, tree: Tree, kind: str, file: str) -> None:
    if kind == "qemu":
        _stub("lock: create\n")(tree)
    tree.real_proc()
    argv = [sys.executable, "-ISc", HOLDER, str(tree.put(file))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        answer = server.ask(release())
        assert (answer["code"], tree.calls) == ("busy", [])
        assert f"the flock on /{file} is held by process {other.pid}: PVE is at work on the guest" in answer["message"]
        other.communicate("")
    assert server.code(release()) == "ok"


def test_a_shared_flock_counts_too(server: Server, tree: Tree) -> None:
    _stub("lock: create\n")(tree)
    shared = HOLDER.replace("LOCK_EX", "LOCK_SH")
    with subprocess.Popen(
        [sys.executable, "-ISc", shared, str(tree.put(VM_FLOCK))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert server.code(release()) == "busy"
        other.communicate("")


def test_the_flock_is_not_made_and_not_kept(server: Server, tree: Tree) -> None:
    assert server.code(release()) == "ok"
    assert not (tree.root / CT_FLOCK).exists()


def test_the_files_of_the_flocks_are_pves_own() -> None:
    """LXC/Config.pm and QemuConfig.pm:config_file_lock; /var/lock is /run/lock."""
    found = {id.kind: facts._CONFIG_FLOCK[id.kind].format(id.vmid) for id in (GuestId(kind, 990001) for kind in GuestKind)}
    assert found == {GuestKind.LXC: CT_FLOCK, GuestKind.QEMU: VM_FLOCK}


# --- races ---

CHANGES = {  # at the second look
    "the lock becomes destroyed": ("sed -i 's/create/destroyed/' $conf/lxc/990001.conf", "lock_changed"),
    "the lock becomes migrate": ("sed -i 's/create/migrate/' $conf/lxc/990001.conf", "lock_kind"),
    "the lock is cleared": ("drop_lock $conf/lxc/990001.conf", "not_locked"),
    "the restore goes on": ("echo 'arch: amd64' >>$conf/lxc/990001.conf", "lock_changed"),
    "it becomes a template": ("echo 'template: 1' >>$conf/lxc/990001.conf", "template"),
    "the guest vanishes": ("rm $conf/lxc/990001.conf", "no_guest"),
    "the guest changes kind": ("mv $conf/lxc/990001.conf $conf/qemu-server/990001.conf", "lock_changed"),
    "a VM appears beside it": ("cp $conf/lxc/990001.conf $conf/qemu-server/990001.conf", "wrong_kind"),
    "a new restore begins": (f"echo '{upid(4711, 'vzrestore', '990001')} 0' >$root/var/log/pve/tasks/active", "task_running"),
    "a clone begins": (f"echo '{upid(4711, 'vzclone', '101')} 0' >$root/var/log/pve/tasks/active", "task_running"),
    "the host begins to stop": ("sed -i 's/=running/=stopping/' $root/systemctl", "stopping"),
    "quorum is lost": ("chmod a-w $conf", "no_quorum"),
    "pmxcfs ends": ("rm $root/etc/pve/local", "no_pmxcfs"),
    "somebody holds the node": ("touch $root/etc/guestward/hold", "held"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_while_it_looks_is_refused(server: Server, tree: Tree, name: str) -> None:
    shell, code = CHANGES[name]
    tree.process(4711, "perl")
    tree.before("systemctl", f"if second_look; then {shell}; fi")
    answer = server.ask(release())
    (tree.root / f"etc/pve/nodes/{NODE}").chmod(0o755)
    assert answer["code"] == code, answer
    assert tree.calls == []


def test_a_vm_that_changes_right_before_the_call_keeps_its_lock(server: Server, tree: Tree) -> None:
    _stub("lock: create\n")(tree)
    tree.before("pvesh", "echo 'memory: 64' >>$conf/qemu-server/990001.conf")
    answer = server.ask(release())
    assert answer["code"] == "failed"
    assert answer["message"].startswith("qemu/990001: the lock create is still there; PVE's program ended with 255: checksum mismatch")
    assert conf(tree, "qemu").read_text() == "lock: create\nmemory: 64\n"


FILE = f"$root/etc/pve/nodes/{NODE}/lxc/990001.conf"
AFTERWARDS = {
    "PVE says yes and does nothing": ("exit 0", "failed", "the lock create is still there; PVE's program ended with 0: no output"),
    "a restore has the flock": (
        "echo 'trying to acquire lock...'; say \"can't lock file '/run/lock/lxc/pve-config-990001.lock' - got timeout\" 255",
        "failed",
        "still there; PVE's program ended with 255: can't lock file '/run/lock/lxc/pve-config-990001.lock' - got timeout",
    ),
    "no quorum": ("say 'Permission denied' 2", "failed", "ended with 2: Permission denied"),
    "pmxcfs is down": ("say 'ipcc_send_rec[1] failed: Connection refused' 111", "failed", "ended with 111"),
    "another lock comes": (f"echo 'lock: backup' >{FILE}; exit 0", "failed", "now it has the lock backup"),
    "the guest vanishes": (f"rm {FILE}", "failed", "the guest is gone"),
    "it changes kind": (f"mv {FILE} $conf/qemu-server/990001.conf", "failed", "the guest is gone"),
    "nobody can read it": (f"rm {FILE}; mkdir {FILE}; exit 0", "unknown", "cannot be read"),
    "pmxcfs ends": ("rm $root/etc/pve/local; exit 0", "unknown", "cannot be read"),
    "somebody else was first": (f"drop_lock {FILE}", "ok", "ended with 255: no lock found trying to remove any lock"),
    "it cannot be run": (None, "failed", "pct: No such file or directory"),
    "it dies": ("kill -9 $$", "failed", "ended with -9"),
}


@pytest.mark.parametrize("name", AFTERWARDS)
def test_only_what_is_seen_afterwards_counts(server: Server, tree: Tree, name: str) -> None:
    shell, code, words = AFTERWARDS[name]
    if shell is None:
        (tree.root / "bin/pct").unlink()
    else:
        tree.before("pct", shell)
    answer = server.ask(release())
    assert answer["code"] == code, answer
    assert words in answer["message"]


def test_a_program_that_hangs_is_killed(server: Server, tree: Tree) -> None:
    server.arguments += ["--hold", "0.3"]
    tree.before("pct", "sleep 300")
    answer = server.ask(release())
    assert answer["code"] == "timeout"
    assert answer["message"] == "lxc/990001: the lock create is still there; PVE's program did not end in time and was killed"


def test_a_program_that_hangs_after_its_work_has_done_it(server: Server, tree: Tree) -> None:
    server.arguments += ["--hold", "1"]
    tree.after("pct", "sleep 300")
    answer = server.ask(release())
    assert (answer["code"], conf(tree).read_text()) == ("ok", "")
    assert "killed" in answer["message"]
