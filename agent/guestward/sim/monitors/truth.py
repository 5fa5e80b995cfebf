"""What would rightly keep a guest down, asked of the world and not of the agent's policy."""

from __future__ import annotations

from collections.abc import Iterator

from guestward.model.guest import GuestId
from guestward.model.helper import STATE_OF_LOCK
from guestward.model.memory import Hold
from guestward.model.task import Error, Upid, exit_status
from guestward.sim.helper import OUR_DELETE
from guestward.sim.monitors.past import STOPS, Facts, Past, Snap, Stop
from guestward.sim.vzdump import VZDUMP

BULK = ("startall", "stopall", "suspendall", "migrateall")
GRACE = 900.0  # after a boot without pve-guests
MASS_WINDOW, MASS_PAUSE = 60.0, 900.0
CLOCK_SLACK = 60.0


def gate(past: Past, snap: Snap) -> dict[str, str]:
    """Why nothing may be started on this host: reason -> evidence. A mass stop is judged by `mass_stop`."""
    node = snap.node
    found = dict(_boot(past, snap))
    bulk = next((upid for upid in snap.tasks if upid.type in BULK or upid.type.startswith("bulk")), None)
    if bulk is not None:
        found["bulk_task"] = f"{bulk.type} by {bulk.user} runs"
    if not node.quorate:
        found["no_quorum"] = "there is no quorum"
    if node.hold_file:
        found["hold"] = "the hold file is there"
    elif any(hold.vmid is None and lasts(past, hold) for hold in node.holds):
        found["hold"] = "the node is held"
    if node.maintenance:
        found["maintenance"] = "the node is in maintenance"
    unknown = [name for name in ("quorum", "pve-guests", "system", "hold_file") if name in node.unreadable]
    if unknown or node.holds_lost:
        found["unknown"] = f"cannot be read: {', '.join(unknown) or 'holds'}"
    return found


def _boot(past: Past, snap: Snap) -> Iterator[tuple[str, str]]:
    """`pve-guests` active or failed is over; disabled or masked is over 15 min after boot (DESIGN.md, Host gate)."""
    unit, system = snap.node.unit, snap.node.system
    if system == "stopping" or unit.active == "deactivating":
        yield "stopping", "the host is stopping"
    elif unit.active not in ("active", "failed"):
        off = unit.load in ("not-found", "masked") or unit.file in ("disabled", "masked", "masked-runtime")
        if not off or past.world.boottime < GRACE:
            yield "booting", f"pve-guests is {unit.active}"


def not_ours(facts: Facts | None) -> str:
    """Why a guest is none that the agent may touch; "" when it is. Whether its VMID is in the band is asked elsewhere."""
    if facts is None:
        return "there is no such guest"
    if not facts.here:
        return "it is on another node"
    return "" if facts.owned else "it is in none of the pools, or excluded"


def lasts(past: Past, hold: Hold) -> bool:
    """Whether a hold is in force: by boot time in the boot of its writing, later by a wall clock that is not behind its writing."""
    world = past.world
    if hold.boot_id == f"boot-{world.boot}":
        return world.boottime < hold.boottime + hold.duration
    return world.wall < hold.wall or world.wall < hold.wall + hold.duration


def held(past: Past, snap: Snap, vmid: int) -> bool:
    """Whether an operator holds that guest."""
    return any(hold.vmid == vmid and lasts(past, hold) for hold in snap.node.holds)


def vzdump_on(snap: Snap, vmid: int) -> Upid | None:
    """A running vzdump task that is, or may be, about that guest: an empty id is a job of several (pve-facts C1)."""
    return next((upid for upid in snap.tasks if upid.type == "vzdump" and upid.covers(vmid)), None)


def backup(snap: Snap, facts: Facts) -> str:
    """Who is saving that guest; "" when nobody is."""
    upid = vzdump_on(snap, facts.id.vmid)
    if upid is not None:
        return f"vzdump of {upid.user} runs, for {upid.id or 'several guests'}"
    if facts.id.vmid in snap.node.archives:
        return "an archive process of it lives"
    return "its lock is `backup`" if facts.lock == "backup" else ""


def unprovable(past: Past, snap: Snap) -> str:
    """Which witness of a backup is silent; "" when all speak."""
    blind = [name for name in ("flock", "pidfile", "archives") if name in snap.node.unreadable]
    if blind:
        return f"{', '.join(blind)} cannot be read"
    node = f"/nodes/{past.world.node}"
    return f"Sys.Audit on {node} is missing" if (node, "Sys.Audit") in past.lost() else ""


def tasks_unseen(past: Past) -> bool:
    """Whether this look could not see which tasks run."""
    return not past.asked_ok("active") or (f"/nodes/{past.world.node}", "Sys.Audit") in past.lost()


def task_on(snap: Snap, id: GuestId) -> Upid | None:
    """A running task of that guest other than its backup."""
    return next((upid for upid in snap.tasks if upid.id == str(id.vmid) and upid.type != "vzdump"), None)


def offline(snap: Snap, facts: Facts) -> frozenset[str]:
    """Storages that it needs and that are offline."""
    return facts.storages & snap.offline


def of_this_clock(past: Past, stop: Stop) -> bool:
    """Whether the wall clock at that stop was one that a look of the agent knows: only then PVE's history tells of which boot it is."""
    now = past.world.wall - past.world.boottime
    return any(abs(stop.offset - known) <= CLOCK_SLACK for known in (now, *past.offsets))


def stopped_on_purpose(past: Past, vmid: int) -> Stop | None:
    """The stop through PVE, by somebody else, that surely is why it is down.

    The history is read once, after the first look that shows it down: one that came up and was stopped between two looks is not known.
    """
    of = past.memory(vmid)
    stop, since = of.stop, of.seen_down
    if stop is None or not stop.done or not of_this_clock(past, stop):
        return None
    return stop if since is None or since >= stop.at else None


def may_be_stopped_on_purpose(past: Past, vmid: int) -> bool:
    """Whether PVE's history has any stop of it that the agent may take for the reason."""
    known = (*past.world.tasks, *past.world.archive)
    return any(t.upid.id == str(vmid) and t.upid.type in STOPS and not isinstance(exit_status(t.said or ""), Error) for t in known)


def mass_stop(past: Past, snap: Snap, least: int) -> list[int]:
    """Guests that are down now because others stopped them within 60 s, if there are that many; else nobody."""
    stops = sorted(
        (stop.at, vmid) for vmid, facts in snap.guests.items() if facts.owned and not facts.shown and (stop := _sure(past, vmid))
    )
    for first in range(len(stops) - least + 1):
        group = stops[first : first + least]
        if group[-1][0] - group[0][0] <= MASS_WINDOW:
            return [vmid for _, vmid in group]
    return []


def _sure(past: Past, vmid: int) -> Stop | None:
    stop = stopped_on_purpose(past, vmid)
    return stop if stop is not None and past.world.boottime - stop.at <= MASS_PAUSE else None


def may_be_mass_stop(past: Past, least: int, within: float) -> bool:
    """Whether so many stops by others stand together in PVE's history that the agent may take them for one."""
    world = past.world
    known = [t.upid for t in (*world.archive, *world.tasks) if t.upid.type in STOPS and t.upid.user != world.token_id]
    times = sorted(upid.started_boottime for upid in known if 0 <= world.boottime - upid.started_boottime <= within)
    return any(times[i + least - 1] - times[i] <= MASS_WINDOW for i in range(len(times) - least + 1))


def left_over(facts: Facts) -> bool:
    """Whether its lock is one that a vzdump leaves behind when it dies; without a lock, whether it has the snapshot of one."""
    if facts.lock is None:
        return facts.dangling is not None
    return facts.lock == "backup" or (facts.dangling is not None and facts.dangling == STATE_OF_LOCK.get(facts.lock))


def at_work_on(snap: Snap, facts: Facts) -> str:
    """Who is at work on a guest, so that its lock, or its snapshot, may be his; "" when nobody is."""
    upid = vzdump_on(snap, facts.id.vmid) or task_on(snap, facts.id)
    if upid is not None:
        return f"{upid.type} by {upid.user} runs"
    return "an archive process of it lives" if facts.id.vmid in snap.node.archives else ""


def proven(facts: Facts) -> bool:
    """Whether vzdump, or our own delete, set its lock; nobody else makes a container's snapshot of that name."""
    return facts.locker in (VZDUMP, OUR_DELETE) if facts.lock is not None else facts.dangling is not None
