"""The host gate: whether the host is in a state in which guests may be acted on at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from guestward.model.decision import Closure, Gate, GateReason
from guestward.model.memory import Hold
from guestward.model.observation import HostState, Resources, UnitState
from guestward.model.reading import Reading, Unreadable
from guestward.model.rules import BOOT_GRACE
from guestward.model.task import Task

BULK_TASKS = frozenset({"startall", "stopall", "suspendall", "migrateall"})


def gate(
    host: HostState,
    tasks: Reading[tuple[Task, ...]],
    resources: Reading[Resources],
    at: float,
    node_hold: tuple[Hold, float] | None,
    mass_stop_until: float | None,
) -> Gate:
    """Judge the host. node_hold: the operator's hold on the node with the seconds that it still lasts. at: seconds since host boot."""
    closures: list[Closure] = []
    warnings: list[str] = []
    closures += _phase(host, at, warnings)
    closures += _bulk(tasks)
    closures += _quorum(host.quorate)
    closures += _holds(host.hold_file, node_hold, at)
    closures += _maintenance(host.maintenance, resources)
    goes_down = any(closure.reason is GateReason.STOPPING for closure in closures)  # then all guests stop, and that is no news
    if mass_stop_until is not None and at < mass_stop_until and not goes_down:
        closures.append(Closure(GateReason.MASS_STOP, "several guests were stopped by others at once", mass_stop_until))
    return Gate(tuple(closures), tuple(warnings))


def _phase(host: HostState, at: float, warnings: list[str]) -> Iterator[Closure]:
    """Boot and stop. `startall` waits for quorum without end, so `activating` may last; nothing is started while it does (C15, C16)."""
    if isinstance(host.system, Unreadable):
        yield Closure(GateReason.UNKNOWN, f"whether the host is stopping cannot be read: {host.system.reason}")
    elif host.system == "stopping":
        yield Closure(GateReason.STOPPING, "systemd is stopping the host")
    if isinstance(host.pve_guests, Unreadable):
        yield Closure(GateReason.UNKNOWN, f"the state of pve-guests.service cannot be read: {host.pve_guests.reason}")
    else:
        yield from _boot(host.pve_guests, at, warnings)


def _boot(unit: UnitState, at: float, warnings: list[str]) -> Iterator[Closure]:
    if unit.active == "active":
        return
    if unit.active == "failed":
        warnings.append("pve-guests.service failed: PVE may not have started all guests at boot")
    elif unit.active == "deactivating":
        yield Closure(GateReason.STOPPING, "pve-guests.service is stopping the guests")
    elif unit.load in ("not-found", "masked") or unit.file in ("disabled", "masked", "masked-runtime"):
        state = unit.load if unit.load != "loaded" else unit.file
        if at < BOOT_GRACE:
            yield Closure(GateReason.BOOTING, f"pve-guests.service is {state}; waiting until 15 min after boot", BOOT_GRACE)
        else:
            warnings.append(f"pve-guests.service is {state}: PVE itself starts no guest at boot")
    else:
        yield Closure(GateReason.BOOTING, f"pve-guests.service is {unit.active}: PVE has not finished starting guests")
        if unit.active == "inactive" and at >= BOOT_GRACE:
            warnings.append("pve-guests.service has not begun 15 min after boot: PVE starts no guest, and neither does guestward")


def _bulk(tasks: Reading[tuple[Task, ...]]) -> Iterator[Closure]:
    if isinstance(tasks, Unreadable):
        return  # the guard backup_unknown keeps every guest down then
    for task in tasks:
        if task.running and is_bulk(task.upid.type):
            yield Closure(GateReason.BULK_TASK, f"{task.upid.type} by {task.upid.user} is running")


def is_bulk(task_type: str) -> bool:
    """Whether a task acts on many guests of the node at once (pve-facts D3, H)."""
    return task_type in BULK_TASKS or task_type.startswith("bulk")


def _quorum(quorate: Reading[bool]) -> Iterator[Closure]:
    if isinstance(quorate, Unreadable):
        yield Closure(GateReason.UNKNOWN, f"quorum cannot be read: {quorate.reason}")
    elif not quorate:
        yield Closure(GateReason.NO_QUORUM, "the cluster has no quorum: /etc/pve is read-only and PVE refuses every start")


def _holds(hold_file: Reading[bool], node_hold: tuple[Hold, float] | None, at: float) -> Iterator[Closure]:
    if isinstance(hold_file, Unreadable):
        yield Closure(GateReason.UNKNOWN, f"the hold file cannot be looked for: {hold_file.reason}")
    elif hold_file:
        yield Closure(GateReason.HOLD, "the file /etc/guestward/hold is there")
    if node_hold is not None:
        hold, remaining = node_hold
        yield Closure(GateReason.HOLD, f"held by {hold.by}: {hold.reason or 'no reason given'}", at + remaining)


def _maintenance(file: Reading[bool], resources: Reading[Resources]) -> Iterator[Closure]:
    """Two witnesses, either may say yes. Where neither can be read the guard `ha` keeps every guest down."""
    listed = not isinstance(resources, Unreadable) and resources.maintenance
    if listed or (not isinstance(file, Unreadable) and file):
        yield Closure(GateReason.MAINTENANCE, "the node is in maintenance mode")


def reasons(closures: Iterable[Closure]) -> tuple[GateReason, ...]:
    """The reasons without repetition, in the order of their definition."""
    found = {closure.reason for closure in closures}
    return tuple(reason for reason in GateReason if reason in found)
