"""Where the simulated host is simpler than PVE: docs/simulated-host.md lists exactly that, and each of it is so."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from guestward.model.guest import GuestId, GuestKind
from guestward.model.observation import Resources, StorageState
from guestward.model.task import Ok
from guestward.sim import verbs
from guestward.sim.doors import SimPve
from guestward.sim.world import World
from tests.contract import test_backup_logs, test_calls
from tests.contract.recordings import TOKEN, Recorded, replayed
from tests.contract.timelines import Play, load

PAGE = Path(__file__).parents[2] / "docs" / "simulated-host.md"
CT = GuestId(GuestKind.LXC, 101)


def host() -> World:
    world = World(token_id=TOKEN)
    world.install(("guestward",), range(990000, 990010))
    return world


def shown(world: World) -> str:
    return SimPve(world).members("guestward", deadline=1e9)[0].state


def coarse_by_default() -> bool:
    """What 1a records of a start and a stop is not to be seen."""
    play = Play(next(timeline for timeline in load() if timeline.id == "1a"))
    play.world.fine_grained = False
    seen = play.run()
    states = {state for view in ("current-101", "active") for _, state in seen[view]}
    return not states & {"running no pid", "vzstart:101", "vzstop:101"}


def ha_starts_nothing() -> bool:
    world = host()
    world.add(101, running=False, ha=("stopped",))
    upid = SimPve(world).start(CT, deadline=1e9)
    world.advance(600.0)
    assert upid.type == "hastart" and SimPve(world).task(upid, deadline=1e9) == Ok()
    return not world.guests[101].running


def ha_stops_at_once() -> bool:
    world = host()
    world.add(101, ha=("started",))
    world.stop(101, "name@pve")
    assert [(task.upid.type, task.upid.user) for task in world.archive] == [("vzstop", "root@pam"), ("hastop", "name@pve")]
    return not world.guests[101].running


def startall_workers() -> bool:
    world = World(version="9.2")
    for vmid in (101, 102, 103, 104):
        world.add(vmid, running=False)
    world.phases.enter("booting")
    world.phases.enter("up")
    world.advance(60.0)
    first, *rest = (world.guests[vmid].since for vmid in (101, 102, 103, 104))
    return rest == [first, first, first + 1.0]


def others_need_no_quorum() -> bool:
    world = host()
    world.add(101, running=False)
    world.quorate = False
    world.start(101)
    return world.guests[101].running


def no_suspend_mode() -> bool:
    with pytest.raises(verbs.VerbError):
        verbs.parse("backup begin suspend 101")
    return True


def interrupted_job_ends() -> bool:
    """The recorded message is not the one after which the job itself ends; the one that waits is sent no signal (PVE/VZDump.pm)."""
    world = host()
    for vmid in (101, 102):
        world.add(vmid)
    world.backup_begin(101, 102)
    world.backup_begin(102)
    world.advance(5.0)
    job, _ = world.jobs
    world.phases.enter("stopping")
    log = job.task.lines()
    assert "ERROR: Backup of VM 101 failed - command 'tar' failed: interrupted by signal" in log
    return not world.jobs and not any("VM 102" in line for line in log)


def vm_in_a_backup_powers_off() -> bool:
    world = host()
    world.add(200, "qemu")
    world.backup_begin(200)
    world.die(200)
    return world.guests[200].qmp == "shutdown"


def logs_of_backups_alone() -> bool:
    world = host()
    world.add(101)
    world.start(101)
    world.stop(101)
    return all(not task.log for task in world.archive)


def migration_at_once() -> bool:
    world = host()
    world.add(101)
    world.migrate(101, "pve2")
    return world.guests[101].node == "pve2" and world.guests[101].lock is None and not world.tasks


def pvestatd_never_hangs() -> bool:
    world = host()
    world.add(101)
    world.storage("local", False)
    world.die(101)
    world.advance(10.0)
    return shown(world) == "stopped"


def restart_ends_all_tasks() -> bool:
    """Recorded is that tasks of the API end; this one is a shell's."""
    world = host()
    task = world.task("startall")
    world.restart_pvedaemon()
    return task.said == "unexpected status"


def all_storages_offline() -> bool:
    """Where no storage of a node is told as available the client blames pvestatd and says that it does not know."""
    row = {"type": "storage", "storage": "local", "node": "pve1", "status": "unknown", "id": "storage/pve1/local"}
    recorded = Recorded("", "", "GET /cluster/resources", "200 OK", json.dumps({"data": [row]}))
    world = host()
    world.storage("local", False)
    with replayed(recorded) as (client, _):
        of_pve: Resources = client.resources(deadline=1e9)
    of_sim = SimPve(world).resources(deadline=1e9)
    assert of_pve.storages == {"local": StorageState.UNKNOWN}
    return of_sim.storages == {"local": StorageState.OFFLINE}


# Those that no recording shows; each says whether it still is so.
PROVEN: dict[str, Callable[[], bool]] = {
    "coarse-by-default": coarse_by_default,
    "ha-starts-nothing": ha_starts_nothing,
    "ha-stops-at-once": ha_stops_at_once,
    "startall-workers": startall_workers,
    "vm-in-a-backup-powers-off": vm_in_a_backup_powers_off,
    "others-need-no-quorum": others_need_no_quorum,
    "no-suspend-mode": no_suspend_mode,
    "interrupted-job-ends": interrupted_job_ends,
    "logs-of-backups-alone": logs_of_backups_alone,
    "migration-at-once": migration_at_once,
    "pvestatd-never-hangs": pvestatd_never_hangs,
    "restart-ends-all-tasks": restart_ends_all_tasks,
    "all-storages-offline": all_storages_offline,
}


@pytest.mark.parametrize("id", PROVEN)
def test_it_is_so(id: str) -> None:
    assert PROVEN[id]()


def test_the_page_lists_exactly_these() -> None:
    listed = Counter(re.findall(r"^- `([a-z0-9-]+)`: ", PAGE.read_text("utf-8"), re.MULTILINE))
    assert max(listed.values()) == 1
    marked = {id for timeline in load() for id in timeline.simplified()} | set(test_calls.SIMPLIFIED.values())
    marked |= test_backup_logs.SIMPLIFIED.keys()
    assert set(listed) == marked | PROVEN.keys()
