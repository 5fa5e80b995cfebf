"""Five witnesses of a backup: any yes is yes; without a yes any that cannot be read is "cannot tell" (I4)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from guestward.model.observation import FlockHolder
from guestward.model.reading import Unreadable
from guestward.model.task import Ok
from guestward.policy.backups import backup_of
from tests.unit.build import QUIET, golden, task, upid

MINE = upid("vzdump", "101", pid=500)
SEVERAL = upid("vzdump", "", pid=500)
OTHER = upid("vzdump", "102", pid=600)
SILENT = Unreadable("permission denied")

# witness -> (what says yes, what says no)
WITNESSES: dict[str, tuple[Any, Any]] = {
    "lock": ("backup", None),
    "tasks": ((task("vzdump", "101"),), ()),
    "flock": (FlockHolder(777), None),
    "live_upid": (MINE, None),
    "archives": (frozenset({101}), frozenset()),
}


def ask(**seen: Any) -> bool | None:
    known = {name: no for name, (_, no) in WITNESSES.items()} | seen
    lock, tasks = known.pop("lock"), known.pop("tasks")
    verdict = backup_of(101, lock, tasks, replace(QUIET, **known))
    assert verdict.evidence
    return verdict.running


def test_no_witness_says_anything() -> None:
    assert ask() is False


@pytest.mark.parametrize("name", WITNESSES)
def test_one_yes_is_enough(name: str) -> None:
    assert ask(**{name: WITNESSES[name][0]}) is True


@pytest.mark.parametrize("name", [name for name in WITNESSES if name != "lock"])
def test_one_that_cannot_be_read_makes_it_unknown(name: str) -> None:
    assert ask(**{name: SILENT}) is None


@pytest.mark.parametrize("states", list(product(("yes", "no", "unreadable"), repeat=4)), ids="-".join)
@pytest.mark.parametrize("lock", ["backup", None])
def test_any_yes_is_yes_and_else_any_silence_is_unknown(states: tuple[str, ...], lock: str | None) -> None:
    names = [name for name in WITNESSES if name != "lock"]
    seen = {n: {"yes": WITNESSES[n][0], "no": WITNESSES[n][1], "unreadable": SILENT}[s] for n, s in zip(names, states, strict=True)}
    right = True if lock or "yes" in states else None if "unreadable" in states else False
    assert ask(lock=lock, **seen) is right


def test_a_task_without_a_vmid_is_about_every_guest() -> None:
    """C03: a job of several guests, of a pool or of all has an empty id."""
    assert ask(tasks=(task("vzdump"),)) is True


def test_a_task_for_one_other_guest_is_not_about_this_one() -> None:
    assert ask(tasks=(task("vzdump", "102"), task("vzdump", "1010"))) is False


def test_a_task_that_ended_is_no_backup() -> None:
    assert ask(tasks=(task("vzdump", "101", said=Ok()),)) is False


def test_a_task_of_another_type_is_no_backup() -> None:
    assert ask(tasks=(task("vzrestore", "101"),)) is False


def test_another_lock_is_no_backup() -> None:
    assert ask(lock="migrate") is False


@pytest.mark.parametrize(
    ("seen", "running", "why"),
    [
        ({"tasks": (task("vzdump", "102", pid=600),)}, False, "its holder is a job for one other guest"),
        ({"live_upid": OTHER}, False, "its holder is known by vzdump.pid to be a job for one other guest"),
        ({"live_upid": replace(SEVERAL, pid=600)}, True, "its holder is a job of several guests"),
        ({"tasks": (task("vzdump", "101", pid=600),)}, True, "its holder is a job for this guest"),
        ({"tasks": (task("vzdump", "102", pid=601),)}, True, "no task of its holder is known"),
        ({"tasks": SILENT}, True, "no task of its holder is known, since none can be read"),
        ({}, True, "nobody knows its holder"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_held_flock_speaks_for_every_guest_but_where_its_holder_is_known_to_save_another(
    seen: dict[str, Any], running: bool, why: str
) -> None:
    assert ask(flock=FlockHolder(600), **seen) is running, why


def test_a_holder_whom_the_kernel_does_not_name_is_a_backup() -> None:
    assert ask(flock=FlockHolder(0), tasks=(task("vzdump", "102", pid=600),)) is True


def test_a_job_that_waits_behind_another_guests_job_is_a_backup() -> None:
    """timelines 7: its task is running from the start, long before its guests are locked."""
    assert ask(flock=FlockHolder(600), tasks=(task("vzdump", "102", pid=600), task("vzdump", "101", pid=601))) is True


def test_a_live_worker_for_one_other_guest_is_no_backup() -> None:
    assert ask(live_upid=OTHER) is False


def test_a_live_worker_of_a_job_of_several_is_a_backup() -> None:
    assert ask(live_upid=SEVERAL) is True


def test_an_archive_process_of_another_guest_is_no_backup() -> None:
    assert ask(archives=frozenset({102})) is False


def test_every_witness_that_said_yes_is_named() -> None:
    verdict = backup_of(101, "backup", (task("vzdump", "101", pid=500),), replace(QUIET, flock=FlockHolder(500), live_upid=MINE))
    assert all(word in verdict.evidence for word in ("lock", "vzdump by root@pam", "vzdump.lock", "vzdump.pid"))


def test_every_witness_that_was_silent_is_named_with_its_reason() -> None:
    verdict = backup_of(101, None, SILENT, replace(QUIET, flock=SILENT, live_upid=SILENT, archives=SILENT))
    assert verdict.evidence.count("permission denied") == 4


def test_what_the_witnesses_say_is_what_a_person_can_read() -> None:
    """The words of `guestward explain` and of the field `evidence`."""
    several, mine = (task("vzdump", "", "alice@pve", pid=500),), (task("vzdump", "101", pid=500),)
    silent = replace(QUIET, flock=SILENT, live_upid=SILENT, archives=SILENT)
    busy = replace(QUIET, flock=FlockHolder(500), archives=frozenset({101}))
    verdicts = {
        "nobody": backup_of(101, None, (), QUIET),
        "all silent": backup_of(101, None, SILENT, silent),
        "a job for this guest": backup_of(101, "backup", mine, replace(busy, live_upid=MINE)),
        "a job of several": backup_of(101, None, several, replace(busy, live_upid=SEVERAL)),
        "a holder of whom no task is known": backup_of(101, None, (), replace(QUIET, flock=FlockHolder(777))),
    }
    golden("words_of_backups.txt", "".join(f"{name}: {said.evidence}\n" for name, said in verdicts.items()))
