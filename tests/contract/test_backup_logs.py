"""The logs that vzdump wrote in the recorded time lines, line by line, against those that the simulated host writes when it plays them.

One file each: `6d.3.log` is of the third vzdump of time line 6d. Left out are 3a, in which a hook script writes, the third of 7, for
guests that its time line does not have, and 8.4's 3b and 5b, which are not played.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from guestward.ports import PveAnswerLost, PveRefused
from guestward.sim.doors import SimPve
from guestward.sim.run import Simulation
from guestward.sim.tasks import KEPT, SimTask
from guestward.sim.world import World
from tests.contract.recordings import FOLDER, TOKEN
from tests.contract.steps import do, unwatched
from tests.contract.timelines import EVER, Play, load

TIMELINES = {timeline.id: timeline for timeline in load()}
RECORDED = {file.stem: file.read_text("utf-8").splitlines() for file in sorted((FOLDER / "logs").glob("*.log"))}
LEFT_OUT = re.compile(
    r"INFO: (bandwidth limit: \d+ KiB/s|ionice priority: \d|including mount point \S+ \('.*'\) in backup"
    r"|Total bytes written: .*|archive file size: .*)"
)
JOB = "INFO: starting new backup job: "

Lines = list[str]


def without_left_out(lines: Lines) -> Lines:
    return [line for line in lines if LEFT_OUT.fullmatch(line) is None]


def short_commands(lines: Lines) -> Lines:
    return [re.sub(r"command 'set -o pipefail .*' failed: ", "command 'tar' failed: ", line) for line in lines]


def options_in_order(lines: Lines) -> Lines:
    return [" --".join([(parts := line.split(" --"))[0], *sorted(parts[1:])]) if line.startswith(JOB) else line for line in lines]


# What the simulated host leaves out or says in fewer words, by the id of docs/simulated-host.md.
SIMPLIFIED: dict[str, Callable[[Lines], Lines]] = {
    "backup-log-lines": without_left_out,
    "backup-log-command": short_commands,
    "backup-log-job": options_in_order,
}


def plain(lines: Lines) -> Lines:
    """Without moments, durations and names of guests."""
    text = "\n".join(lines)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\d{4}_\d\d_\d\d-\d\d_\d\d_\d\d|\(\d\d:\d\d:\d\d\)|\d+ seconds", "*", text)
    return re.sub(r"(CT|VM) Name: .*", r"\1 Name: *", text).split("\n")


@cache
def played(id: str) -> list[tuple[str, ...]]:
    play = Play(TIMELINES[id])
    play.run()
    world = play.world
    tasks = sorted((*world.tasks, *world.archive), key=lambda task: task.upid.pid)
    return [task.lines() for task in tasks if task.upid.type == "vzdump" and task.log]


def simulated(name: str) -> Lines:
    id, _, number = name.rpartition(".")
    return list(played(id)[int(number) - 1])


def compared(name: str, without: str = "") -> tuple[Lines, Lines]:
    lines = RECORDED[name]
    for id, simpler in SIMPLIFIED.items():
        lines = simpler(lines) if id != without else lines
    return plain(lines), plain(simulated(name))


@pytest.mark.parametrize("name", RECORDED)
def test_log(name: str) -> None:
    recorded, written = compared(name)
    assert written == recorded


@pytest.mark.parametrize("id", SIMPLIFIED)
def test_every_simplification_is_one(id: str) -> None:
    assert any(recorded != written for recorded, written in (compared(name, without=id) for name in RECORDED))


TOOK = re.compile(r"INFO: Finished Backup of VM \d+ \(00:00:(\d\d)\)|INFO: guest is online again after (\d+) seconds")


def seconds(lines: Lines) -> list[int]:
    return [int(found[1] or found[2]) for line in lines if (found := TOOK.fullmatch(line))]


def test_durations_are_about_the_recorded_ones() -> None:
    for name, lines in RECORDED.items():
        assert seconds(simulated(name)) == pytest.approx(seconds(lines), abs=2), name


# ---------------------------------------------------------------------------------------------------- what no recording shows


def host(*vmids: int, kind: str = "lxc", **values: object) -> Simulation:
    world = World(token_id=TOKEN)
    world.install(("guestward",), ())
    for vmid in vmids or (101,):
        world.add(vmid, kind, name=f"g{vmid}", **values)
    return unwatched(world)


def log(sim: Simulation, number: int = 0) -> Lines:
    """Of the vzdump that began so many before the last one; without the lines that only tell times."""
    tasks: list[SimTask] = sorted((*sim.world.tasks, *sim.world.archive), key=lambda task: -task.upid.pid)
    lines = [task for task in tasks if task.upid.type == "vzdump"][number].lines()
    return [line for line in plain(list(lines)) if not re.match("INFO: (Backup started|Backup finished|Failed) at ", line)]


JOB_101 = "INFO: starting new backup job: vzdump 101 --mode snapshot --node pve1 --storage local"
SNAPSHOT = [
    *("INFO: Starting Backup of VM 101 (lxc)", "INFO: status = running", "INFO: CT Name: *", "INFO: backup mode: snapshot"),
    *("INFO: create storage snapshot 'vzdump'", "INFO: creating vzdump archive '/var/lib/vz/dump/vzdump-lxc-101-*.tar'"),
]
CLEANS, FINISHED = "INFO: cleanup temporary 'vzdump' snapshot", "INFO: Finished Backup of VM 101 *"
WELL = ["INFO: Backup job finished successfully", "TASK OK"]
BADLY = ["INFO: Backup job finished with errors", "TASK ERROR: job errors"]


def test_a_clean_up_that_fails() -> None:
    """It leaves what a delete has while it is at work, and the job ends well all the same (pve-container VZDump/LXC.pm:cleanup)."""
    sim = host()
    do(sim, 'fail next backup-cleanup "dataset is busy"', "backup begin snapshot 101", 5.0, "backup end 101", 5.0)
    guest = sim.world.guests[101]
    assert (guest.lock, guest.locker, guest.snapshots) == ("snapshot-delete", "vzdump", {"vzdump": "delete"})
    assert log(sim) == [
        *(JOB_101, *SNAPSHOT, CLEANS),
        *("snapshot 'vzdump' was not (fully) removed - dataset is busy", FINISHED, *WELL),
    ]
    do(sim, "unlock 101", "backup begin snapshot 101", 5.0, "backup end 101", 5.0)
    assert guest.lock is None and guest.snapshots == {} and log(sim)[4] == "INFO: found old vzdump snapshot (force removal)"


def test_a_clean_up_that_fails_when_the_host_goes_down() -> None:
    sim = host()
    do(sim, 'fail next backup-cleanup "dataset is busy"', "backup begin snapshot 101", 5.0, "host stopping", 5.0)
    guest = sim.world.guests[101]
    assert (guest.lock, guest.locker, guest.snapshots) == ("snapshot-delete", "vzdump", {"vzdump": "delete"})
    failed = "ERROR: Backup of VM 101 failed - command 'tar' failed: interrupted by signal"
    assert log(sim)[-5:] == [CLEANS, "snapshot 'vzdump' was not (fully) removed - dataset is busy", failed, *BADLY]


@pytest.mark.parametrize(
    ("meanwhile", "said"),
    [
        ("lock 101 migrate", [CLEANS, "snapshot 'vzdump' was not (fully) removed - CT is locked (migrate)"]),
        ("destroy 101", ["Configuration file 'nodes/pve1/lxc/101.conf' does not exist"]),
        ("migrate 101 away", ["Configuration file 'nodes/pve1/lxc/101.conf' does not exist"]),
    ],
)
def test_a_clean_up_that_somebody_is_in_the_way_of(meanwhile: str, said: Lines) -> None:
    sim = host()
    guest = sim.world.guests[101]
    do(sim, "backup begin snapshot 101", 5.0, "backup end 101", 0.05, meanwhile, 5.0)
    assert log(sim)[1 + len(SNAPSHOT) :] == [*said, FINISHED, *WELL] and guest.snapshots == {"vzdump": ""}


@pytest.mark.parametrize("free_after", [60.0, None])
def test_a_clean_up_that_waits_for_replication(free_after: float | None) -> None:
    """For 600 s; then the snapshot stays, and nothing is locked."""
    sim = host()
    do(sim, "set 101 replication=true", "backup begin snapshot 101", 5.0, "backup end 101", free_after or 0.0)
    do(sim, *(["set 101 replication=false"] if free_after else []), 700.0)
    guest, waits = sim.world.guests[101], "INFO: waiting for active replication or other operation.."
    gave_up = "snapshot 'vzdump' was not (fully) removed - can't lock file '/var/lock/pve-manager/pve-migrate-101' - got timeout"
    assert guest.lock is None and guest.snapshots == ({} if free_after else {"vzdump": ""})
    assert log(sim)[-5:] == [waits, CLEANS if free_after else gave_up, FINISHED, *WELL]


def test_guests_that_cannot_be_saved() -> None:
    sim = host(101, 102, 103)
    do(sim, "lock 101 backup", "migrate 103 away", "destroy 102")
    sim.world.backup_begin(101, 102, 103)
    do(sim, 5.0)
    assert log(sim) == [
        "INFO: starting new backup job: vzdump 101 102 103 --mode snapshot --node pve1 --storage local",
        *("INFO: Starting Backup of VM 101 (lxc)", "INFO: status = running", "ERROR: Backup of VM 101 failed - CT is locked (backup)"),
        "ERROR: Backup of VM 102 failed - unable to find VM '102'",
        *("INFO: Starting Backup of VM 103 (lxc)", "INFO: status = running"),
        "ERROR: Backup of VM 103 failed - Configuration file 'nodes/pve1/lxc/103.conf' does not exist",
        *BADLY,
    ]


def test_a_vm_that_is_locked() -> None:
    sim = host(101, kind="qemu")
    do(sim, "lock 101 snapshot", "backup begin snapshot 101", 5.0)
    assert "ERROR: Backup of VM 101 failed - VM is locked (snapshot)" in log(sim)


def test_a_vm_in_stop_mode() -> None:
    sim = host(101, kind="qemu")
    do(sim, "backup begin stop 101", 20.0, "backup end 101", 5.0)
    assert log(sim)[1:-2] == [
        *("INFO: Starting Backup of VM 101 (qemu)", "INFO: status = running", "INFO: backup mode: stop", "INFO: VM Name: *"),
        *("INFO: stopping virtual guest", "INFO: creating vzdump archive '/var/lib/vz/dump/vzdump-qemu-101-*.vma'"),
        *("INFO: starting kvm to execute backup task", "INFO: guest is online again after *", FINISHED),
    ]


def test_a_vm_that_does_not_run() -> None:
    sim = host(101, kind="qemu", running=False)
    do(sim, "backup begin snapshot 101", 20.0, "backup end 101", 5.0)
    assert log(sim)[1:-2] == [
        *("INFO: Starting Backup of VM 101 (qemu)", "INFO: status = stopped", "INFO: backup mode: stop", "INFO: VM Name: *"),
        "INFO: creating vzdump archive '/var/lib/vz/dump/vzdump-qemu-101-*.vma'",
        *("INFO: starting kvm to execute backup task", "INFO: stopping kvm after backup task", FINISHED),
    ]


@pytest.mark.parametrize(
    ("kind", "said", "why"),
    [
        ("lxc", "job errors", "command 'tar' failed: exit code 2"),
        ("qemu", "job errors", "job failed with err -5 - Input/output error"),
        ("qemu", "no space left", "no space left"),
    ],
)
def test_a_backup_that_fails(kind: str, said: str, why: str) -> None:
    sim = host(101, kind=kind)
    do(sim, "backup begin snapshot 101", 5.0)
    sim.world.backup_end(101, said)
    do(sim, 5.0)
    assert log(sim)[-3:] == [f"ERROR: Backup of VM 101 failed - {why}", BADLY[0], f"TASK ERROR: {said}"]


def test_a_backup_with_warnings() -> None:
    sim = host(101)
    do(sim, "backup begin snapshot 101", 5.0)
    sim.world.backup_end(101, "WARNINGS: 2")
    do(sim, 5.0)
    assert log(sim)[-3:] == [FINISHED, WELL[0], "TASK WARNINGS: 2"]


def test_only_a_job_with_the_flock_comes_to_a_guest() -> None:
    sim = host(101, 102)
    do(sim, "backup begin snapshot 101", "backup begin stop 102", 60.0)
    assert log(sim) == ["INFO: trying to get global lock - waiting..."]
    do(sim, "backup kill 102")
    assert log(sim) == ["INFO: trying to get global lock - waiting..."]
    assert log(sim, 1) == [JOB_101, *SNAPSHOT]
    do(sim, "backup begin stop 102", 1.0, "host stopping", 5.0)
    assert log(sim)[1:] == ["ERROR: can't acquire lock '/var/run/vzdump.lock' - interrupted by signal"]
    # A worker that does not get the flock ends without a last line (PVE/API2/VZDump.pm).
    assert next(task.said for task in sim.world.archive if task.upid.type == "vzdump") == "unexpected status"


def test_a_job_goes_on_after_an_interrupted_archive_of_a_container() -> None:
    """But not after a VM's, whose signal nothing wraps (PVE/VZDump.pm:exec_backup_task)."""
    sim = host(101)
    sim.world.add(102, "qemu")
    sim.world.add(103)
    sim.world.backup_begin(101, 102, 103)
    do(sim, 5.0)
    sim.world.vzdump.abort()
    do(sim, 5.0)
    guests = sim.world.guests
    assert [guests[vmid].lock for vmid in (101, 102, 103)] == [None, "backup", None]
    sim.world.vzdump.abort()
    do(sim, 5.0)
    assert [line for line in log(sim) if "ERROR" in line] == [
        "ERROR: Backup of VM 101 failed - command 'tar' failed: interrupted by signal",
        "ERROR: Backup of VM 102 failed - interrupted by signal",
        "ERROR: Backup job failed - interrupted by signal",
        "TASK ERROR: interrupted by signal",
    ]
    assert not any(guest.lock for guest in guests.values()) and sim.world.vzdump.stale is not None


def test_stop_mode_is_refused_to_a_guest_that_ha_keeps_up() -> None:
    """Before it looks at it (pve-facts C2)."""
    sim = host(101, 102)
    do(sim, "ha 101 null", "ha 102 stopped")
    sim.world.backup_begin(101, 102, mode="stop")
    do(sim, 5.0)
    assert sim.world.guests[101].running and not sim.world.guests[102].running
    assert log(sim)[1:3] == [
        "ERROR: Backup of VM 101 failed - Cannot execute a backup with stop mode on a HA managed and enabled Service. "
        "Use snapshot mode or disable the Service.",
        "INFO: Starting Backup of VM 102 (lxc)",
    ]
    do(sim, "backup end", 5.0, "backup begin snapshot 101", 5.0)
    assert sim.world.guests[101].lock == "backup"


def test_a_vm_that_was_resumed_while_it_was_saved() -> None:
    sim = host(101, kind="qemu", running=False)
    do(sim, "backup begin snapshot 101", 5.0, "start 101", 5.0, "backup end 101", 5.0)
    assert log(sim)[-4:-2] == ["INFO: kvm status changed after backup ('running') - keep VM running", FINISHED]
    assert sim.world.guests[101].running


@pytest.mark.parametrize(
    ("after", "last"),
    [
        (0.05, "INFO: create storage snapshot 'vzdump'"),
        (5.0, "INFO: creating vzdump archive '/var/lib/vz/dump/vzdump-lxc-101-*.tar'"),
    ],
)
def test_a_killed_worker_writes_no_more(after: float, last: str) -> None:
    sim = host()
    do(sim, "backup begin snapshot 101", after, "backup kill 101", 60.0)
    assert log(sim)[-1] == last


@pytest.mark.parametrize(("unlocked", "line"), [(True, "no lock found trying to remove 'backup' lock"), (False, CLEANS)])
def test_a_lock_that_somebody_took_away(unlocked: bool, line: str) -> None:
    sim = host()
    do(sim, "backup begin snapshot 101", 5.0, *(["unlock 101"] if unlocked else []), "backup end 101", 5.0)
    assert log(sim)[len(SNAPSHOT) + 1] == line


# ---------------------------------------------------------------------------------------------------- the door


def test_the_log_of_a_task_that_runs_and_of_one_that_was_rotated_away() -> None:
    sim = host()
    pve, world = SimPve(sim.world), sim.world
    do(sim, "backup begin snapshot 101")
    upid = world.tasks[0].upid
    assert pve.task_log(upid, deadline=EVER) == world.tasks[0].lines() and pve.task_log(upid, deadline=EVER)[0] == JOB_101
    do(sim, "backup kill 101")
    for _ in range(KEPT):
        world.task("vzstart", "101", said="OK")
    with pytest.raises(PveAnswerLost, match="the log is gone: unable to open file - "):
        pve.task_log(upid, deadline=EVER)
    world.acl.revoke("Sys.Audit", "/nodes/pve1")
    with pytest.raises(PveRefused, match=r"/nodes/pve1, Sys\.Audit"):
        pve.task_log(upid, deadline=EVER)


def test_the_door_fails_as_the_others_do() -> None:
    sim = host()
    task = sim.world.task("vzdump", "101", TOKEN, said="unexpected status")
    pve = SimPve(sim.world)
    assert pve.task_log(task.upid, deadline=EVER) == ()
    do(sim, "api answer /nodes/pve1/tasks html once")
    with pytest.raises(PveAnswerLost):
        pve.task_log(task.upid, deadline=EVER)
    assert pve.calls[-1].route == f"GET /nodes/pve1/tasks/{task.upid}/log"
