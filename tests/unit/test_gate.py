"""The host gate: whether anything may be started on this host now (DESIGN.md, Power watchdog 0)."""

from __future__ import annotations

from typing import Any

import pytest

from guestward.model.decision import Closure, Gate, GateReason
from guestward.model.memory import Hold
from guestward.model.observation import UnitState
from guestward.model.reading import Unreadable
from guestward.model.task import Ok
from guestward.policy.gate import gate, is_bulk, reasons
from tests.unit.build import AT, golden, hold, host, resources, task

SILENT = Unreadable("permission denied")


def judge(
    *, at: float = AT, tasks: Any = (), seen: Any = None, held: tuple[Hold, float] | None = None, until: Any = None, **of: Any
) -> Gate:
    return gate(host(**of), tasks, resources() if seen is None else seen, at, held, until)


def shut(found: Gate) -> tuple[str, ...]:
    assert all(closure.evidence for closure in found.closures)
    return tuple(str(reason) for reason in reasons(found.closures))


def unit(active: str, *, load: str = "loaded", sub: str = "", file: str = "enabled") -> UnitState:
    return UnitState(load, active, sub, file)


def test_a_host_that_is_up_is_open_without_a_word() -> None:
    assert judge() == Gate()


@pytest.mark.parametrize(
    ("state", "closed"),
    [
        (unit("active", sub="exited"), ()),
        (unit("activating", sub="start"), ("booting",)),
        (unit("activating", sub="start-pre"), ("booting",)),
        (unit("inactive", sub="dead"), ("booting",)),
        (unit("deactivating", sub="stop"), ("stopping",)),
        (unit("failed", sub="failed"), ()),
        (SILENT, ("unknown",)),
    ],
    ids=str,
)
def test_boot_lasts_until_pve_guests_is_active(state: Any, closed: tuple[str, ...]) -> None:
    """C15: a start-up delay or a wait for quorum shows as nothing but `activating`; it may last for hours (C16)."""
    for at in (10.0, AT):
        assert shut(judge(at=at, pve_guests=state)) == closed


def test_a_failed_pve_guests_ends_the_boot_with_a_warning() -> None:
    assert [("pve-guests" in warning) for warning in judge(pve_guests=unit("failed")).warnings] == [True]


@pytest.mark.parametrize(
    "state",
    [
        unit("inactive", file="disabled"),
        unit("inactive", file="masked"),
        unit("inactive", file="masked-runtime"),
        unit("inactive", load="masked", file="masked"),
        unit("inactive", load="masked", file=""),
        unit("inactive", load="not-found", file=""),
    ],
    ids=str,
)
def test_without_pve_guests_boot_is_over_after_15_min_with_a_warning(state: UnitState) -> None:
    waiting, over = judge(at=899.9, pve_guests=state), judge(at=900, pve_guests=state)
    assert (shut(waiting), waiting.closures[0].until, waiting.warnings) == (("booting",), 900, ())
    assert (shut(over), len(over.warnings)) == ((), 1)


@pytest.mark.parametrize(("state", "at", "warned"), [("inactive", 899.9, 0), ("inactive", 900, 1), ("activating", 900, 0)])
def test_a_pve_guests_that_has_not_begun_15_min_after_boot_is_worth_a_warning(state: str, at: float, warned: int) -> None:
    """Nothing will begin it any more; one that is at work may take its time."""
    found = judge(at=at, pve_guests=unit(state))
    assert (shut(found), len(found.warnings)) == (("booting",), warned)


@pytest.mark.parametrize(
    ("system", "closed"),
    [
        ("running", ()),
        ("degraded", ()),
        ("starting", ()),
        ("maintenance", ()),
        ("stopping", ("stopping",)),
        (SILENT, ("unknown",)),
    ],
    ids=str,
)
def test_a_host_that_is_stopping_is_closed(system: Any, closed: tuple[str, ...]) -> None:
    """C14."""
    assert shut(judge(system=system)) == closed


@pytest.mark.parametrize(
    "kind", ["startall", "stopall", "suspendall", "migrateall", "bulk-start", "bulk-shutdown", "bulk-suspend", "bulk-migrate"]
)
def test_a_task_on_many_guests_closes_while_it_runs(kind: str) -> None:
    """C14, and PVE 9.1's bulk actions."""
    assert is_bulk(kind)
    found = judge(tasks=(task(kind, user="root@pam"),))
    assert (shut(found), kind in found.evidence, "root@pam" in found.evidence) == (("bulk_task",), True, True)
    assert judge(tasks=(task(kind, said=Ok()),)).open


@pytest.mark.parametrize("kind", ["vzdump", "vzstart", "aptupdate", "qmstart", "startallx"])
def test_other_tasks_do_not_close(kind: str) -> None:
    assert judge(tasks=(task(kind, "101"),)).open


def test_a_task_list_that_cannot_be_read_leaves_each_guest_to_its_backup_guard() -> None:
    assert judge(tasks=SILENT).open


def test_without_quorum_it_is_closed() -> None:
    """C16."""
    assert shut(judge(quorate=False)) == ("no_quorum",)
    assert shut(judge(quorate=SILENT)) == ("unknown",)


def test_the_hold_file_closes() -> None:
    """C31: a fail-over or UPS script can touch it."""
    assert shut(judge(hold_file=True)) == ("hold",)
    assert shut(judge(hold_file=SILENT)) == ("unknown",)


@pytest.mark.parametrize(("reason", "said"), [("disk swap", "disk swap"), ("", "no reason given")])
def test_an_operators_hold_closes_until_its_end(reason: str, said: str) -> None:
    found = judge(held=(hold(reason=reason), 60.0))
    assert (shut(found), found.closures[0].until) == (("hold",), AT + 60)
    assert said in found.evidence
    assert "alice" in found.evidence


def test_either_witness_of_maintenance_closes() -> None:
    assert shut(judge(maintenance=True)) == ("maintenance",)
    assert shut(judge(seen=resources(maintenance=True))) == ("maintenance",)
    assert shut(judge(maintenance=SILENT, seen=resources(maintenance=True))) == ("maintenance",)
    assert judge(maintenance=SILENT, seen=SILENT).open


def test_a_mass_stop_closes_until_its_end() -> None:
    found = judge(until=AT + 1)
    assert (shut(found), found.closures[0].until) == (("mass_stop",), AT + 1)
    assert judge(until=AT).open


def test_that_the_guests_of_a_host_that_goes_down_stop_is_no_news() -> None:
    """Where the shutdown is called off it is a mass stop like any other."""
    assert shut(judge(system="stopping", until=AT + 1)) == ("stopping",)
    assert shut(judge(pve_guests=unit("deactivating"), until=AT + 1)) == ("stopping",)


def test_all_reasons_are_told_each_once_in_the_order_of_their_definition() -> None:
    found = judge(
        tasks=(task("startall"), task("bulk-start")),
        held=(hold(), 60.0),
        until=AT + 1,
        pve_guests=unit("activating"),
        quorate=False,
        hold_file=True,
        maintenance=True,
    )
    assert shut(found) == ("booting", "bulk_task", "no_quorum", "hold", "maintenance", "mass_stop")
    assert reasons((Closure(GateReason.UNKNOWN, "x"), Closure(GateReason.UNKNOWN, "y"))) == (GateReason.UNKNOWN,)


WORDS: dict[str, dict[str, Any]] = {
    "system unreadable": {"system": SILENT},
    "system stopping": {"system": "stopping"},
    "pve-guests unreadable": {"pve_guests": SILENT},
    "pve-guests failed": {"pve_guests": unit("failed")},
    "pve-guests stopping": {"pve_guests": unit("deactivating")},
    "pve-guests starting": {"pve_guests": unit("activating")},
    "pve-guests not begun": {"pve_guests": unit("inactive")},
    "pve-guests disabled": {"pve_guests": unit("inactive", file="disabled")},
    "pve-guests disabled, early": {"pve_guests": unit("inactive", file="disabled"), "at": 60.0},
    "pve-guests masked": {"pve_guests": unit("inactive", load="masked", file="")},
    "pve-guests missing, early": {"pve_guests": unit("inactive", load="not-found", file=""), "at": 60.0},
    "task on many guests": {"tasks": (task("stopall", user="alice@pve"),)},
    "quorum unreadable": {"quorate": SILENT},
    "no quorum": {"quorate": False},
    "hold file unreadable": {"hold_file": SILENT},
    "hold file": {"hold_file": True},
    "held": {"held": (hold(), 60.0)},
    "held without a reason": {"held": (hold(reason=""), 60.0)},
    "maintenance": {"maintenance": True},
    "mass stop": {"until": AT + 1},
}


def test_what_the_gate_says_is_what_a_person_can_read() -> None:
    """The words of `guestward explain`, of the field `evidence` and of `host_warning`."""
    lines = []
    for name, seen in WORDS.items():
        found = judge(**seen)
        lines += [f"{name}: {found.evidence or 'open'}", *(f"{name}: warning: {warning}" for warning in found.warnings)]
    golden("words_of_gate.txt", "\n".join(lines) + "\n")
