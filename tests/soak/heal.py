"""The end of all faults: whatever an episode may have left in force is ended; then nothing happens for as long as the bound.

What a dead vzdump left is not: recovery clears that, and one that dies at the very end shows whether it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.soak.episodes import PRIVILEGES
from tests.soak.plan import BAND, MINUTE, NODE, Plan, deed

Deeds = Sequence[tuple[float, str]]
LEFT = 0.6  # of the locks that recovery may be able to clear, and of the scenarios in which a vzdump dies at the very end
REARMED = 0.5  # of the guests; of the others liveness is demanded where nothing forbids a start for good


def ends(plan: Plan, deeds: Deeds) -> list[tuple[float, str]]:
    """What ends every fault of these deeds, from the end of the faults on, within ten minutes."""
    t, texts = plan.end, [do for _, do in deeds] + [reaction["do"] for reaction in plan.reactions]
    found = [(t, do) for do in _of_host(texts)]
    there = plan.known(deeds)
    found += [(t + 1.0, f"set {vmid} replication=false") for vmid in _named(texts, "replication=true") if vmid in there]
    jobs = sum(1 for do in texts if do.startswith("backup begin"))
    for number in range(min(jobs, 40)):
        found.append((t + 5.0 + 3.0 * number, "backup end"))
    t += 3 * MINUTE
    found += [(t, "backup kill") for _ in range(min(jobs, 3))]
    found += [(t + 1.0, do) for vmid in there for do in _of_guest(plan, vmid, texts)]
    found += [(t + 2.0, do) for do in _tasks(texts)]
    found += [(t + 3.0, "host up"), (t + 30.0, "agent restart")]
    return found + _last_backup(plan, there, t + MINUTE)


def _last_backup(plan: Plan, there: Sequence[int], t: float) -> list[tuple[float, str]]:
    """A vzdump dies with its guest, and nobody mends anything any more."""
    if not (recovers(plan) and there and plan.chance(LEFT)):
        return []
    guest, killed = plan.pick(there), t + plan.span(0.2, MINUTE)
    ends = plan.pick((f"die {guest}", f"reboot {guest} inside"))
    return [(t, f"backup begin {plan.pick(('stop', 'snapshot'))} {guest}"), (plan.pick((t + 0.1, killed)), ends), (killed, "backup kill")]


def recovers(plan: Plan) -> bool:
    """Whether the agent clears stale locks."""
    return plan.config.get("locks", {}).get("recover") != "report"


def rearms(plan: Plan, deeds: Deeds, t: float) -> list[tuple[float, str]]:
    """Some guests are re-armed, now that the agent has seen everything."""
    return [(t, f"rearm {vmid}") for vmid in plan.known(deeds) if plan.chance(REARMED)]


def _of_host(texts: Sequence[str]) -> Iterator[str]:
    yield from ("api up", "helper up", "quorum back", "maintenance off")
    yield from sorted({f"storage {do.split()[1]} online" for do in texts if do.startswith("storage ")})
    if any(do.startswith(("revoke ", "grant ")) for do in texts):
        yield from sorted({f"revoke {privilege} /" for privilege, _ in PRIVILEGES})
        for privilege, path in PRIVILEGES:
            yield f"grant {privilege} {path}{' nopropagate' if path == f'/nodes/{NODE}' else ''}"
    if any(do.startswith("hold") for do in texts):
        yield "release"


def _of_guest(plan: Plan, vmid: int, texts: Sequence[str]) -> Iterator[str]:
    """What ends that guest's own faults. It is not started, and it does not stop being what it became otherwise."""
    mine = [do for do in texts if vmid in (*deed(do).names, *deed(do).makes)]
    started_badly = any(guest["vmid"] == vmid and "start" in guest for guest in plan.guests) or any(" start=" in do for do in mine)
    if started_badly:
        yield f'set {vmid} start=["ok"]'
        for kind in ("vzstart", "qmstart"):
            yield from (f"task end {kind} {vmid}",) * 3
    if any(" start_takes=" in do for do in mine):
        yield f"set {vmid} start_takes=1s"
    if any(do.startswith("migrate ") for do in mine) and plan.chance(0.7):
        yield f"migrate {vmid} here"
    if any(do.startswith("hold ") for do in mine):
        yield f"release {vmid}"
    if any(do.startswith("ha ") for do in mine):
        yield f"ha {vmid} off"
    saved = any(do.startswith("backup begin ") for do in mine)
    if vmid not in BAND and not (saved and recovers(plan) and plan.chance(LEFT)):
        yield f"unlock {vmid}"


def _tasks(texts: Sequence[str]) -> Iterator[str]:
    for do in texts:
        if do.startswith("task begin "):
            yield f"task end {do.removeprefix('task begin ')}"


def _named(texts: Sequence[str], part: str) -> list[int]:
    return sorted({int(do.split()[1]) for do in texts if do.startswith("set ") and part in do})
