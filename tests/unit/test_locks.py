"""The policy of locks: what proves that nobody owns one, in which order it is asked, and what is remembered of each (I7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guestward.model.decision import Closure, Gate, GateReason
from guestward.model.events import Event
from guestward.model.guest import GuestId, GuestKind
from guestward.model.helper import TRIED, Answer, HelperCode
from guestward.model.locks import VERDICT_MEANING, LockDecision, LockMemory, LockStep, LockVerdict
from guestward.model.observation import FlockHolder
from guestward.model.reading import Unreadable
from guestward.model.rules import Rules
from guestward.model.task import Error, Ok, Running, Task, TaskStatus, Unknown, Upid, Warnings
from guestward.policy import locks
from guestward.policy.locks import LockCase, judge
from tests.unit.build import AT, CT, QUIET, VM, WALL, golden, hold, listed, observation, rules, task

CONFIRM = 60.0
SHUT = Gate((Closure(GateReason.BOOTING, "pve-guests.service is activating"),))
GONE = Unreadable("gone")
OFFSET = WALL - AT
KILLED = Unknown("unexpected status")
BEGAN = AT - 600.0  # the vzdump that the lock is of
SEEN, FREE = AT - 540.0, AT - 600.0  # first seen with the lock, last seen without it
EDGE = 2.0


def lock(kind: str = "backup", id: GuestId = CT, **known: Any) -> LockMemory:
    """A lock that came between two looks, while a vzdump was at work that was killed, and that nobody has owned for two minutes."""
    plain = LockMemory(id, f"guest{id.vmid}", kind, since=SEEN, free_at=FREE, stamp="1", clear_since=AT - 120)
    return replace(plain, **known)


def dead(id: str = "101", *, said: TaskStatus = KILLED, at: float = BEGAN, took: float = 300, **of: Any) -> Task:
    return task("vzdump", id, said=said, at=at, took=took, **of)


def case(memory: LockMemory | None = None, **parts: Any) -> LockCase:
    """Everything is as recovery needs it; every test changes only what it is about."""
    memory = lock() if memory is None else memory
    seen = {name: parts.pop(name) for name in ("tasks", "backups", "at") if name in parts}
    obs = observation(listed(memory.id, lock=memory.kind or None), **seen)
    snapshots = {"snapshot": {"vzdump": "prepare"}, "snapshot-delete": {"vzdump": "delete"}, "": {"vzdump": ""}}.get(memory.kind, {})
    plain = LockCase(obs, memory, Gate(), CONFIRM, snapshots, (dead(str(memory.id.vmid)),), written=written(memory.id), offsets=(OFFSET,))
    asked = replace(plain, **parts)
    logs = {upid: log(memory.id.vmid) for upid in locks.suspects(asked)}
    return replace(asked, logs=parts.get("logs", logs))


def log(vmid: int = 101, *rest: str, name: str = "CT Name: web", kind: str = "lxc") -> tuple[str, ...]:
    """What a vzdump has said when it has locked that guest; and the rest."""
    begun = (f"INFO: Starting Backup of VM {vmid} ({kind})", "INFO: Backup started at 2026-12-01 02:00:03", "INFO: status = running")
    return ("INFO: starting new backup job: vzdump", *begun, f"INFO: {name}", "INFO: backup mode: snapshot", *rest)


FINISHED = "INFO: Finished Backup of VM 101 (00:00:27)"
FAILED = "ERROR: Backup of VM 101 failed - command 'tar' failed: interrupted by signal"
NOT_REMOVED = "snapshot 'vzdump' was not (fully) removed - dataset is busy"


def written(id: GuestId = CT, at: float = BEGAN + 100) -> dict[GuestId, float]:
    """When its file was last written; at: seconds since host boot."""
    return {id: OFFSET + at}


def verdict(memory: LockMemory | None = None, **parts: Any) -> LockVerdict:
    return judge(case(memory, **parts)).verdict


def traced(memory: LockMemory | None = None, **parts: Any) -> bool | None:
    """What the question for the trace is answered with."""
    return judge(case(memory, **parts)).checks[5].ok


# ---------------------------------------------------------------------------------------------------- the order of the questions


SPOILT: tuple[tuple[LockVerdict, str, dict[str, Any]], ...] = (
    (LockVerdict.NOBODYS_BUSINESS, "kind", {"kind": "migrate"}),
    (LockVerdict.HOST_GATE, "host", {"gate": SHUT}),
    (LockVerdict.HELD, "hold", {"hold": (hold(101), 60.0)}),
    (LockVerdict.OWNED, "no backup at work", {"backups": replace(QUIET, archives=frozenset({101}))}),
    (LockVerdict.OWNED, "no task", {"tasks": (task("vzsnapshot", "101"),)}),
    (LockVerdict.NO_TRACE, "trace", {"history": ()}),
    (LockVerdict.UNCONFIRMED, "seen twice", {"clear_since": None}),
)


def spoilt(*which: dict[str, Any]) -> LockCase:
    parts: dict[str, Any] = {name: value for one in which for name, value in one.items()}
    return case(lock(**{name: parts.pop(name) for name in ("kind", "clear_since") if name in parts}), **parts)


def test_a_lock_is_stale_when_every_answer_is_yes() -> None:
    decision = judge(case())
    assert decision.verdict is LockVerdict.STALE
    assert [(check.name, check.ok) for check in decision.checks] == [(name, True) for _, name, _ in SPOILT]
    assert (decision.id, decision.name, decision.kind, decision.since) == (CT, "guest101", "backup", SEEN)
    assert decision.evidence == "nobody has owned it for 120 s of 60 s"


@pytest.mark.parametrize("at", range(len(SPOILT)), ids=[name for _, name, _ in SPOILT])
def test_the_first_answer_that_is_not_yes_decides_and_nothing_is_asked_after_it(at: int) -> None:
    decision = judge(spoilt(*(parts for *_, parts in reversed(SPOILT[at:]))))
    assert decision.verdict is SPOILT[at][0]
    assert [check.name for check in decision.checks] == [name for _, name, _ in SPOILT[: at + 1]]
    assert [check.ok for check in decision.checks] == [True] * at + [False]
    assert decision.evidence == decision.checks[-1].evidence


@pytest.mark.parametrize("at", range(len(SPOILT)), ids=[name for _, name, _ in SPOILT])
def test_each_answer_alone_is_enough_against_it(at: int) -> None:
    assert judge(spoilt(SPOILT[at][2])).verdict is SPOILT[at][0]


def test_every_verdict_has_a_meaning() -> None:
    assert set(VERDICT_MEANING) == set(LockVerdict)


# ---------------------------------------------------------------------------------------------------- which locks


KINDS = ("migrate", "clone", "create", "rollback", "disk", "suspended", "suspending", "mounted", "fstrim", "destroyed", "something")


@pytest.mark.parametrize("id", [CT, VM])
@pytest.mark.parametrize("kind", KINDS)
def test_any_other_lock_is_nobodys_business_at_any_age(kind: str, id: GuestId) -> None:
    decision = judge(case(lock(kind, id, since=-1e7, clear_since=-1e7)))
    assert decision.verdict is LockVerdict.NOBODYS_BUSINESS
    assert decision.evidence == f"lock `{kind}`: clearing it could do harm, and is nobody's business here"


@pytest.mark.parametrize("kind", ["", "snapshot", "snapshot-delete"])
def test_a_vms_snapshot_and_its_locks_are_its_owners(kind: str) -> None:
    assert verdict(lock(kind, VM), snapshots={"vzdump": "delete"}) is LockVerdict.NOBODYS_BUSINESS
    assert not locks.needs_snapshots(lock(kind, VM))


@pytest.mark.parametrize(
    ("kind", "state", "stale"),
    [
        ("snapshot", "prepare", True),
        ("snapshot", "delete", False),
        ("snapshot", "", False),
        ("snapshot", None, False),
        ("snapshot-delete", "delete", True),
        ("snapshot-delete", "prepare", False),
        ("snapshot-delete", "", False),
        ("snapshot-delete", None, False),
        ("", "", True),
        ("", "prepare", True),
        ("", "delete", True),
        ("", None, False),
    ],
)
def test_a_lock_of_a_snapshot_is_vzdumps_with_the_section_in_that_state_only(kind: str, state: str | None, stale: bool) -> None:
    snapshots = {"vzdump-2024": state or "", "VZDUMP": state or ""} | ({} if state is None else {"vzdump": state})
    assert verdict(lock(kind), snapshots=snapshots) is (LockVerdict.STALE if stale else LockVerdict.NOBODYS_BUSINESS)
    assert locks.needs_snapshots(lock(kind))


def test_a_backup_lock_needs_no_snapshots() -> None:
    assert verdict(snapshots=GONE) is LockVerdict.STALE
    assert not locks.needs_snapshots(lock())


@pytest.mark.parametrize("kind", ["", "snapshot", "snapshot-delete"])
def test_snapshots_that_cannot_be_read_leave_it_unknown(kind: str) -> None:
    decision = judge(case(lock(kind), snapshots=Unreadable("500 oops")))
    assert decision.verdict is LockVerdict.UNKNOWN
    assert "500 oops" in decision.evidence
    assert not locks.asks_history(decision)


# ---------------------------------------------------------------------------------------------------- who is at work


def held_by(pid: int) -> Any:
    return replace(QUIET, flock=FlockHolder(pid))


OTHER, OURS, MANY = (task("vzdump", id, pid=77) for id in ("102", "101", ""))
AT_WORK: dict[str, dict[str, Any]] = {
    "a vzdump of it": {"tasks": (OURS,)},
    "a vzdump of several": {"tasks": (MANY,)},
    "a worker in the pid file": {"backups": replace(QUIET, live_upid=OURS.upid)},
    "the flock, held by nobody knows whom": {"backups": held_by(77)},
    "the flock, held for it": {"backups": held_by(77), "tasks": (OURS,)},
    "the flock, held for another guest": {"backups": held_by(77), "tasks": (OTHER,)},
    "an archive process": {"backups": replace(QUIET, archives=frozenset({101}))},
    "another task": {"tasks": (task("vzmigrate", "101"),)},
}


@pytest.mark.parametrize("name", AT_WORK)
def test_any_witness_that_says_yes_makes_it_owned(name: str) -> None:
    assert verdict(**AT_WORK[name]) is LockVerdict.OWNED


def test_the_flock_of_another_guests_backup_is_waited_for_in_words() -> None:
    evidence = judge(case(**AT_WORK["the flock, held for another guest"])).evidence
    assert evidence == "/var/run/vzdump.lock is held by pid 77, for another guest; waited for"


@pytest.mark.parametrize("what", ["flock", "live_upid", "archives"])
def test_any_witness_that_is_silent_makes_it_unknown(what: str) -> None:
    decision = judge(case(backups=replace(QUIET, **{what: GONE})))
    assert (decision.verdict, decision.checks[-1].name) == (LockVerdict.UNKNOWN, "no backup at work")
    assert "gone" in decision.evidence and not locks.asks_history(decision)


def test_a_task_list_that_cannot_be_read_makes_it_unknown() -> None:
    decision = judge(case(tasks=GONE))
    assert (decision.verdict, decision.evidence) == (LockVerdict.UNKNOWN, "task list: gone")
    assert locks._no_task(case(tasks=GONE)) == locks.LockCheck("no task", None, "gone")


def test_a_yes_counts_beside_a_silence() -> None:
    assert verdict(tasks=GONE, backups=held_by(77)) is LockVerdict.OWNED


def test_tasks_that_have_ended_or_are_of_another_guest_own_nothing() -> None:
    others = (task("vzmigrate", "102"), task("vzstart", "1010"), dead(), OTHER, task("vzstart", "101", said=Ok()), task("startall"))
    assert verdict(tasks=others) is LockVerdict.STALE


def test_the_task_that_owns_it_is_named() -> None:
    assert judge(case(tasks=(task("vzmigrate", "101", "eve@pve"),))).evidence == "vzmigrate by eve@pve is running"


# ---------------------------------------------------------------------------------------------------- the trace


DIED = "a vzdump by root@pam for {} died when the lock was there: {}"


@pytest.mark.parametrize(("id", "said"), [("101", KILLED), ("101", Error("received interrupt")), ("", KILLED), ("", Error("x"))])
def test_a_vzdump_that_died_at_the_guest_is_a_trace(id: str, said: TaskStatus) -> None:
    decision = judge(case(history=(dead(id, said=said),)))
    assert decision.verdict is LockVerdict.STALE
    detail = said.detail if isinstance(said, (Error, Unknown)) else ""
    assert decision.checks[5].evidence == DIED.format(id or "several guests", detail)


def told(*lines: str, id: str = "101", said: TaskStatus = KILLED, memory: LockMemory | None = None) -> bool | None:
    """What is thought of a lock by the log of the only vzdump that can have left it."""
    task = dead(id, said=said)
    return traced(memory, history=(task,), logs={task.upid: lines})


STATUS_ALONE = log()[:4]
REFUSED = (*STATUS_ALONE, "trying to acquire lock...", "ERROR: Backup of VM 101 failed - CT is locked (backup)", "INFO: Failed at 02:00:05")


@pytest.mark.parametrize("said", [KILLED, Error("job errors")])
@pytest.mark.parametrize("lines", [(), STATUS_ALONE, (*STATUS_ALONE, "trying to acquire lock..."), REFUSED, log(102), log(101, FINISHED)])
def test_one_that_did_not_get_to_its_lock_or_had_gone_on_left_none(lines: tuple[str, ...], said: TaskStatus) -> None:
    assert told(*lines, said=said) is False
    assert told(*lines, said=said, id="") is False


def test_the_last_time_at_the_guest_counts_and_nothing_that_is_said_of_others() -> None:
    assert told(*log(101, FINISHED), *log(102)[1:], id="") is False
    assert told(*log(102, FINISHED.replace("101", "102")), *log(101)[1:], id="") is True
    assert told(*log(101, FINISHED), *log()[1:], id="") is True
    assert told(*log(102), FAILED, *STATUS_ALONE, id="") is False


@pytest.mark.parametrize("name", ["CT Name: web", "VM Name: web", "backup mode: stop"])
def test_the_name_or_the_mode_comes_from_a_guest_that_is_locked(name: str) -> None:
    assert told(*STATUS_ALONE, f"INFO: {name}") is True


def test_one_that_failed_and_could_not_clean_up_was_for_this_guest_alone() -> None:
    """A job of several goes on after a guest that failed, and what locks that guest then is not known."""
    task = dead(said=Error("job errors"))
    decision = judge(case(history=(task,), logs={task.upid: log(101, FAILED)}))
    assert decision.checks[5].evidence == "a vzdump by root@pam for 101 failed when the lock was there: job errors"
    assert told(*log(101, FAILED), said=KILLED) is False
    assert told(*log(101, FAILED), said=Error("job errors"), id="") is False


@pytest.mark.parametrize("said", [Ok(), Warnings(1), Error("job errors"), KILLED])
@pytest.mark.parametrize("id", ["101", ""])
def test_a_snapshot_that_vzdump_could_not_delete_keeps_its_lock_however_vzdump_ended(said: TaskStatus, id: str) -> None:
    """VZDump/LXC.pm:cleanup only warns, and the task ends with OK."""
    memory = lock("snapshot-delete")
    for end in (FINISHED, FAILED):
        assert told(*log(101, NOT_REMOVED, end), said=said, id=id, memory=memory) is True
    assert told(*log(101, FINISHED, NOT_REMOVED), said=said, id=id, memory=memory) is False
    assert told(*log(101, FINISHED), said=said, id=id, memory=memory) is False
    assert told(*log(101, NOT_REMOVED, FINISHED), said=said, id=id) is False
    assert told(*log(101, NOT_REMOVED, FINISHED), *log(102)[1:], said=said, id=id, memory=memory) is True
    task = dead(id, said=said)
    decision = judge(case(memory, history=(task,), logs={task.upid: log(101, NOT_REMOVED, FINISHED)}))
    assert decision.checks[5].evidence == f"a vzdump by root@pam for {id or 'several guests'} could not delete its snapshot"


def test_a_log_that_cannot_be_read_leaves_it_unknown_and_is_asked_for() -> None:
    one = dead()
    decision = judge(case(history=(one,), logs={one.upid: GONE}))
    assert (decision.verdict, decision.checks[-1].name) == (LockVerdict.UNKNOWN, "trace")
    assert decision.evidence == "the log of a vzdump by root@pam that may have left it: gone"
    assert locks.asks_history(decision)
    assert judge(case(logs={})).evidence == "the log of a vzdump by root@pam that may have left it: not read"


def test_only_the_logs_of_those_that_can_have_left_it_are_asked_for() -> None:
    one = dead()
    assert locks.suspects(case(history=(dead("102"), dead(took=90), one))) == (one.upid,)
    assert locks.suspects(case(history=GONE)) == ()
    assert locks.suspects(case(written={})) == ()


def page(oldest: float, length: int = 500) -> tuple[Task, ...]:
    return tuple(dead("102", at=max(oldest, AT - 10.0 * n)) for n in range(length))


@pytest.mark.parametrize(("length", "oldest", "known"), [(500, 101, False), (499, 101, True), (500, 100, True), (501, 101, False)])
def test_a_lock_older_than_all_that_the_history_shows_is_not_known(length: int, oldest: float, known: bool) -> None:
    decision = judge(case(history=page(BEGAN + oldest, length)))
    assert (decision.verdict is LockVerdict.NO_TRACE) is known
    if not known:
        assert (decision.verdict, decision.checks[-1].name) == (LockVerdict.UNKNOWN, "trace")
        assert decision.evidence == f"the lock is older than the {length} newest backups, and more are not shown"


NO_TRACE: dict[str, Task] = {
    "ended well": dead(said=Ok()),
    "ended with warnings": dead(said=Warnings(1)),
    "runs": dead(said=Running()),
    "ended before the file was written": dead(took=90),
    "began after the file was written": dead(at=BEGAN + 110),
    "its end is not known": replace(dead(), endtime=None),
    "another guest": dead("102"),
    "another task": task("vzrestore", "101", said=KILLED, at=BEGAN, took=300),
    "an earlier boot": dead(wall=WALL - 86400.0),
    "the future of another boot": replace(dead(at=AT + 2), endtime=int(WALL + 600)),
}


@pytest.mark.parametrize("name", NO_TRACE)
def test_nothing_else_is_a_trace(name: str) -> None:
    decision = judge(case(history=(NO_TRACE[name],)))
    assert decision.verdict is LockVerdict.NO_TRACE
    assert decision.evidence == "no vzdump that died was at this guest when the lock came"


def test_one_trace_among_many_tasks_is_enough() -> None:
    assert traced(history=(*NO_TRACE.values(), dead()))


def test_a_history_that_cannot_be_read_is_unknown_and_the_only_thing_to_ask_for() -> None:
    decision = judge(case(history=GONE))
    assert (decision.verdict, decision.evidence) == (LockVerdict.UNKNOWN, "task history: gone")
    assert locks.asks_history(decision)
    assert not locks.asks_history(judge(case(history=())))
    assert not locks.asks_history(judge(case(lock("migrate"), history=GONE)))


def test_what_was_never_read_says_so() -> None:
    plain = LockCase(observation(listed(lock="backup")), lock(), Gate(), CONFIRM)
    assert judge(plain).evidence == "task history: not read"
    assert judge(replace(plain, history=())).evidence == "when its configuration was last written cannot be read"
    assert judge(replace(plain, memory=lock(""))).evidence == "its snapshots cannot be read: not read"
    assert plain.id == CT


@pytest.mark.parametrize(
    ("began", "took", "is_one"),
    [
        (SEEN + EDGE, 10, True),
        (SEEN + EDGE + 0.5, 10, False),
        (FREE - 100, 98, True),
        (FREE - 100, 97, False),
        (FREE + 10, 20, True),
    ],
)
def test_where_we_watched_the_lock_came_between_two_looks_and_in_the_vzdump(began: float, took: float, is_one: bool) -> None:
    """With a slack of 2 s: PVE's times are whole seconds."""
    assert traced(history=(dead(at=began, took=took),), written=written(at=began + took / 2)) is is_one


def test_where_we_watched_the_boot_clock_decides_whatever_the_wall_clock_was_set_to() -> None:
    """I16: set by three hours while the vzdump ran, and again after it; both values are known."""
    moved = dead(wall=BEGAN + OFFSET - 10800)
    then = written(at=BEGAN + 100 - 10800)
    assert traced(history=(moved,), offsets=(OFFSET, OFFSET - 10800), written=then) is True
    assert traced(history=(moved,), written=then) is False


def test_a_vzdump_of_an_earlier_boot_is_no_trace_at_the_same_uptime() -> None:
    """Nightly at the same hour, on a host that boots every week."""
    before = dead(wall=WALL - 7 * 86400.0)
    assert traced(history=(before,), written={CT: before.upid.starttime + 100.0}) is False


UNSEEN = {"free_at": None, "since": AT - 120}


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize(
    ("at", "is_one"),
    [
        (BEGAN - EDGE, True),
        (BEGAN - EDGE - 0.5, False),
        (BEGAN, True),
        (BEGAN + 300 + EDGE, True),
        (BEGAN + 300 + EDGE + 0.5, False),
    ],
)
def test_the_file_was_written_in_the_vzdump(at: float, is_one: bool, watched: bool) -> None:
    """A lock is a line in it, and while there is one, PVE writes it for nobody else."""
    assert traced(lock() if watched else lock(**UNSEEN), written=written(at=at)) is is_one


@pytest.mark.parametrize("memory", [lock(), lock(**UNSEEN)], ids=["watched", "not watched"])
def test_a_file_whose_time_cannot_be_read_leaves_it_unknown(memory: LockMemory) -> None:
    decision = judge(case(memory, written=written(VM)))
    assert (decision.verdict, decision.evidence) == (LockVerdict.UNKNOWN, "when its configuration was last written cannot be read")
    assert decision.checks[-1].name == "trace"


def test_where_nobody_watched_a_vzdump_of_an_earlier_boot_may_have_left_it() -> None:
    """Locks of snapshots outlive a boot of the host, and so do PVE's history and the file's time."""
    old, snapshots = dead(at=50_000.0, wall=WALL - 86400.0), {"vzdump": "delete"}
    then = {CT: WALL - 86400.0 + 100}
    assert traced(lock("snapshot-delete", **UNSEEN), history=(old,), written=then, snapshots=snapshots, offsets=()) is True


def test_a_lock_that_was_there_before_the_vzdump_is_not_its() -> None:
    """A backup of a guest that somebody had locked by hand fails because of that lock, and is no trace of it."""
    failed = dead(said=Error("job errors"), at=SEEN + 1000, took=200)
    assert traced(history=(failed,), at=AT + 2000) is False
    assert traced(history=(failed,), at=AT + 2000, written=written(at=SEEN + 1100)) is False
    assert traced(lock(**UNSEEN), history=(failed,), at=AT + 2000) is False


def test_what_our_own_delete_left_and_a_snapshot_alone_need_no_trace() -> None:
    ours = judge(case(lock("snapshot-delete", ours=True), history=GONE))
    assert (ours.verdict, ours.checks[5].evidence) == (LockVerdict.STALE, "left by our own delete of the snapshot")
    alone = judge(case(lock(""), history=GONE))
    assert (alone.verdict, alone.checks[5].evidence) == (LockVerdict.STALE, "only vzdump makes a snapshot called `vzdump`")


# ---------------------------------------------------------------------------------------------------- twice


@pytest.mark.parametrize(
    ("clear_since", "stale"), [(None, False), (AT, False), (AT - 58.9, False), (AT - 59.0, True), (AT - 60.0, True), (AT - 1e6, True)]
)
def test_nobody_owns_it_for_long_enough_with_a_second_of_slack(clear_since: float | None, stale: bool) -> None:
    decision = judge(case(lock(clear_since=clear_since)))
    assert decision.verdict is (LockVerdict.STALE if stale else LockVerdict.UNCONFIRMED)
    seen = 0 if clear_since is None else AT - clear_since
    assert decision.evidence == f"nobody has owned it for {seen:.0f} s of 60 s"


# ---------------------------------------------------------------------------------------------------- settling


RULES = rules()
REPORT = replace(RULES, lock_recovery=False)


def settle(memory: LockMemory, at: float = AT, by: Rules = RULES, **parts: Any) -> locks.Settled:
    return locks.settle(memory, judge(case(memory, **parts)), at, by)


def test_a_first_look_that_finds_nobody_is_remembered_and_says_when_the_second_is_due() -> None:
    settled = settle(lock(clear_since=None))
    assert (settled.memory.clear_since, settled.decision.next_at, settled.notices) == (AT, AT + 60, ())
    again = settle(lock(clear_since=AT - 30))
    assert (again.memory.clear_since, again.decision.next_at) == (AT - 30, AT + 30)
    assert settle(lock()).memory.clear_since == AT - 120
    assert settle(lock()).decision.next_at is None


@pytest.mark.parametrize("at", range(6), ids=[name for _, name, _ in SPOILT[:6]])
def test_a_look_that_finds_anything_else_begins_the_proof_anew(at: int) -> None:
    found = spoilt(SPOILT[at][2])
    assert locks.settle(found.memory, judge(found), AT, RULES).memory.clear_since is None


def test_that_a_lock_is_stale_is_told_once() -> None:
    settled = settle(lock())
    (told,) = settled.notices
    proof = "; ".join(check.evidence for check in settled.decision.checks if check.name in ("no backup at work", "trace"))
    assert (told.event, told.id, told.name, told.guard) == (Event.LOCK_STALE, CT, "guest101", "locked")
    assert dict(told.fields) == {"lock": "backup", "evidence": proof}
    assert told.message == f"has a lock `backup` that nobody owns: {proof}; it is unlocked now"
    assert settled.memory.told and settle(settled.memory).notices == ()


def test_a_snapshot_alone_is_told_with_its_name_and_without_a_guard() -> None:
    settled = settle(lock(""))
    (told,) = settled.notices
    assert (told.guard, dict(told.fields)["lock"]) == ("", "vzdump")
    assert told.message.startswith("has a snapshot `vzdump` that nobody owns: ")
    assert settled.memory.told
    assert settle(lock("", deletes=1)).notices == ()
    assert settle(lock(deletes=1)).notices != ()


@pytest.mark.parametrize(("since", "told"), [(AT - 86399, False), (AT - 86400, True), (AT - 90000, True)])
def test_an_old_lock_of_any_kind_is_told_once(since: float, told: bool) -> None:
    settled = settle(lock("migrate", since=since))
    assert settled.memory.warned is told and [n.event for n in settled.notices] == [Event.LOCK_OLD] * told
    for one in settled.notices:
        evidence = settled.decision.evidence
        assert dict(one.fields) == {"lock": "migrate", "age_s": AT - since, "evidence": evidence}
        assert one.message == f"has been locked (migrate) for {(AT - since) / 3600:.0f} h: nobodys_business ({evidence})"
        assert settle(settled.memory).notices == ()


@pytest.mark.parametrize(
    ("free_at", "wrote", "since"), [(None, AT - 90000, AT - 90000), (None, AT, AT - 120), (FREE, AT - 90000, AT - 120)]
)
def test_a_lock_that_nobody_saw_come_is_at_least_as_old_as_its_file(free_at: float | None, wrote: float, since: float) -> None:
    memory = lock("migrate", since=AT - 120, free_at=free_at)
    assert judge(case(memory, written=written(at=wrote))).since == since
    assert judge(case(memory, written={})).since == AT - 120
    assert settle(memory, written=written(at=wrote)).memory.warned is (since == AT - 90000)


def test_the_age_of_an_old_lock_in_words() -> None:
    (told,) = settle(lock("migrate", since=AT - 100 * 86400)).notices
    assert told.message.startswith("has been locked (migrate) for 2400 h: ")


def test_a_snapshot_alone_is_no_old_lock() -> None:
    assert not settle(lock("", since=-1e7, told=True)).notices
    assert settle(lock("migrate", since=AT - 100), by=replace(RULES, lock_warn_after=100.0)).notices


FORCE = "; or, where the storage has no such snapshot: pct delsnapshot 101 vzdump --force"
STEPS: dict[str, tuple[LockMemory, Rules, dict[str, Any], str]] = {
    "unlock": (lock(), RULES, {}, "it is unlocked now"),
    "delete": (lock(""), RULES, {}, "the snapshot `vzdump` is deleted now"),
    "unlock later": (lock(next_at=AT + 30), RULES, {}, "it is unlocked in 30 s"),
    "delete later": (lock("", delete_at=AT + 3000), RULES, {}, "the snapshot `vzdump` is deleted in 3000 s"),
    "a delete that waits makes no unlock wait": (lock(delete_at=AT + 3000), RULES, {}, "it is unlocked now"),
    "an unlock that waits makes no delete wait": (lock("", next_at=AT + 30), RULES, {}, "the snapshot `vzdump` is deleted now"),
    "at that very moment": (lock(next_at=AT), RULES, {}, "it is unlocked now"),
    "unlocks used up": (lock(unlocks=6), RULES, {}, "given up after 6 attempts; mend the cause, then: guestward rearm 101"),
    "deletes used up": (lock("", deletes=3), RULES, {}, "given up after 3 attempts; mend the cause, then: guestward rearm 101" + FORCE),
    "one unlock left": (lock(unlocks=5), RULES, {}, "it is unlocked now"),
    "one delete left": (lock("", deletes=2), RULES, {}, "the snapshot `vzdump` is deleted now"),
    "deletes used up, locked": (lock(deletes=3), RULES, {}, "it is unlocked now"),
    "unlocks used up, not locked": (lock("", unlocks=6), RULES, {}, "the snapshot `vzdump` is deleted now"),
    "report": (lock(), REPORT, {}, "nothing is done, since `[locks] recover` is `report`; with `prove` it is unlocked"),
    "report once": (
        lock(clear_since=None),
        REPORT,
        {},
        "if nobody owns it at the next look either, it is unlocked, were `[locks] recover` not `report`",
    ),
    "unconfirmed": (lock(clear_since=None), RULES, {}, "if nobody owns it at the next look either, it is unlocked"),
    "unconfirmed snapshot": (
        lock("", clear_since=None),
        RULES,
        {},
        "if nobody owns it at the next look either, the snapshot `vzdump` is deleted",
    ),
    "no trace": (lock(), RULES, {"history": ()}, ""),
    "owned": (lock(), RULES, {"tasks": (OURS,)}, ""),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_is_done_next_is_what_is_told(name: str) -> None:
    memory, by, parts, words = STEPS[name]
    settled = settle(memory, by=by, **parts)
    assert settled.decision.next_step == words
    step = {"it is unlocked now": LockStep.UNLOCK, "the snapshot `vzdump` is deleted now": LockStep.DELETE_SNAPSHOT}.get(words)
    assert locks.due(settled.memory, settled.decision, AT, by) is step


def test_unlocks_and_deletes_are_counted_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "UNLOCKS", 2)
    monkeypatch.setattr(locks, "DELETES", 5)
    for memory, most in ((lock(unlocks=2), 2), (lock("", deletes=5), 5)):
        assert settle(memory).decision.next_step.startswith(f"given up after {most} attempts")
    for memory in (lock(unlocks=1), lock("", deletes=4)):
        assert settle(memory).decision.next_step.endswith(" now")


def test_while_the_helper_is_at_it_nothing_more_is_asked() -> None:
    for memory in (lock(asked=True), lock("", asked=True)):
        assert locks.due(memory, judge(case(memory)), AT, RULES) is None


# ---------------------------------------------------------------------------------------------------- after a step


def test_a_step_is_written_down_before_it_is_asked_for() -> None:
    asked = locks.asking(lock(), LockStep.UNLOCK)
    assert asked == lock(step=LockStep.UNLOCK, asked=True)
    assert locks.looked_at_anew(asked) == lock(clear_since=None)


def test_a_failed_unlock_waits_1_min_first_6_h_in_the_end_and_needs_fresh_evidence() -> None:
    memory = lock(delete_at=5.0)
    for made, wait in enumerate((60, 120, 600, 3600, 21600, 21600), start=1):
        memory = locks.failed(locks.asking(memory, LockStep.UNLOCK), AT)
        assert memory == lock(unlocks=made, next_at=AT + wait, delete_at=5.0, clear_since=None)


def test_a_failed_delete_waits_1_then_6_h_and_needs_fresh_evidence() -> None:
    memory = lock("", next_at=5.0)
    for made, wait in ((1, 3600), (2, 21600), (3, 21600)):
        memory = locks.failed(locks.asking(memory, LockStep.DELETE_SNAPSHOT), AT)
        assert memory == lock("", deletes=made, delete_at=AT + wait, next_at=5.0, clear_since=None)


def test_after_an_unlock_only_the_snapshot_and_its_failed_deletes_are_remembered() -> None:
    before = lock("snapshot-delete", step=LockStep.UNLOCK, asked=True, unlocks=2, next_at=AT + 1, deletes=1, delete_at=AT + 9, ours=True)
    assert locks.unlocked(before) == lock("", clear_since=None, deletes=1, delete_at=AT + 9)


def test_what_our_delete_left_is_a_lock_since_now() -> None:
    left_one = locks.left_by_our_delete(lock("", deletes=1, delete_at=AT + 3600), AT)
    assert left_one == lock("snapshot-delete", since=AT, free_at=AT, deletes=1, delete_at=AT + 3600, ours=True)
    assert locks.not_before(left_one) == 0.0


@pytest.mark.parametrize(
    ("known", "verdict", "by", "waits"),
    [
        ({"asked": True}, None, REPORT, True),
        ({"follows": True}, LockVerdict.UNCONFIRMED, RULES, True),
        ({"follows": True}, LockVerdict.STALE, RULES, True),
        ({"follows": True}, LockVerdict.STALE, REPORT, False),
        ({"follows": True}, LockVerdict.OWNED, RULES, False),
        ({"follows": True}, None, RULES, False),
        ({}, LockVerdict.STALE, RULES, False),
    ],
)
def test_the_start_waits_for_the_snapshot_only_while_that_goes_soon(
    known: dict[str, Any], verdict: LockVerdict | None, by: Rules, waits: bool
) -> None:
    memory = lock("", **known)
    decision = None if verdict is None else replace(judge(case(memory)), verdict=verdict)
    assert locks.recovering(memory, decision, by) is waits


def test_a_snapshot_that_could_not_be_deleted_keeps_no_start_waiting() -> None:
    follows = lock("", follows=True)
    asked = locks.asking(follows, LockStep.DELETE_SNAPSHOT)
    assert asked.follows
    assert not locks.failed(asked, AT).follows
    assert not locks.refused(asked, PASSES, AT)[0].follows
    assert not locks.put_off(asked, AT).follows


def test_rearmed_has_all_attempts_again_at_once() -> None:
    assert locks.rearmed(lock(unlocks=3, deletes=3, next_at=AT + 60, delete_at=AT + 3600)) == lock()


def test_a_step_that_could_not_be_asked_for_is_put_off_and_no_failure() -> None:
    assert locks.put_off(locks.asking(lock(delete_at=1.0), LockStep.UNLOCK), AT + 60) == lock(
        clear_since=None, next_at=AT + 60, delete_at=1.0
    )
    assert locks.put_off(lock("", next_at=1.0), AT + 60) == lock("", clear_since=None, delete_at=AT + 60, next_at=1.0)


PASSES, STAYS = Answer(HelperCode.BUSY, "lxc/101: a backup is at work"), Answer(HelperCode.SCRATCH_BAND, "lxc/101 is in the scratch band")


def test_a_refusal_uses_up_no_attempt_and_the_next_one_waits_longer_and_longer() -> None:
    memory = lock(unlocks=1, delete_at=5.0)
    for count, wait in enumerate((60, 120, 240, 480, 960, 1920, 3600, 3600), start=1):
        memory, _ = locks.refused(locks.asking(memory, LockStep.UNLOCK), PASSES, AT)
        assert memory.refusal == "busy: a backup is at work"
        plain = lock(unlocks=1, delete_at=5.0, clear_since=None, next_at=AT + wait, refusals=count)
        assert replace(memory, refusal="", refused_told=None) == plain
    assert locks.refused(replace(memory, refusals=10_000), PASSES, AT)[0].next_at == AT + 3600


def test_the_wait_after_a_refused_delete_makes_no_unlock_wait() -> None:
    memory, _ = locks.refused(locks.asking(lock("", next_at=5.0), LockStep.DELETE_SNAPSHOT), PASSES, AT)
    assert (memory.delete_at, memory.next_at) == (AT + 60, 5.0)


@pytest.mark.parametrize(("answer", "told_at", "often"), [(PASSES, 3, " 3 times in a row"), (STAYS, 1, "")])
def test_a_refusal_is_told_once_at_once_where_it_does_not_pass_by_itself(answer: Answer, told_at: int, often: str) -> None:
    memory, told = lock(), {}
    for count in range(1, 7):
        memory, told[count] = locks.refused(locks.asking(memory, LockStep.UNLOCK), answer, AT)
    assert [count for count, notices in told.items() if notices] == [told_at]
    (one,) = told[told_at]
    said = f"{answer.code}: {answer.message.removeprefix('lxc/101: ')}"
    words = f"unlock refused by the root helper{often}, nothing was changed, asked again with longer and longer waits: {said}"
    assert (one.event, one.id, one.message) == (Event.LOCK_STEP_REFUSED, CT, words)
    assert dict(one.fields) == {"step": "unlock", "code": str(answer.code), "reason": answer.message}


@pytest.mark.parametrize(("often", "words"), [(1, "helper, nothing"), (2, "helper 2 times in a row, nothing")])
def test_a_refusal_that_was_repeated_says_how_often(often: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "OFTEN", often)
    _, (told,) = locks.refused(lock(step=LockStep.UNLOCK, asked=True, refusals=often - 1), PASSES, AT)
    assert words in told.message


def test_what_the_helper_said_last_stands_in_the_proof() -> None:
    memory, _ = locks.refused(locks.asking(lock(), LockStep.UNLOCK), PASSES, AT - 100)
    said = "(the root helper refused that: busy: a backup is at work)"
    assert settle(replace(memory, clear_since=AT - 100)).decision.next_step == f"it is unlocked now {said}"
    later = settle(replace(memory, clear_since=AT - 100, next_at=AT + 20)).decision.next_step
    assert later == f"it is unlocked in 20 s {said}"


def test_refusals_begin_anew_after_anything_else() -> None:
    known = lock(refusals=5, refusal="busy", refused_told=HelperCode.BUSY)
    asked = locks.asking(known, LockStep.UNLOCK)
    for after in (locks.failed(asked, AT), locks.unlocked(asked), locks.rearmed(known), seen(known, "snapshot", "2")):
        assert (after.refusals, after.refusal, after.refused_told) == (0, "", None)
    assert (seen(known, "backup", "2").refusals, seen(known, "backup", "2").refused_told) == (5, HelperCode.BUSY)


def refusals(*answers: Answer) -> list[int]:
    """Which of them are told, by number."""
    memory, told = lock(), []
    for number, answer in enumerate(answers, start=1):
        memory, notices = locks.refused(locks.asking(memory, LockStep.UNLOCK), answer, AT)
        told += [number] * len(notices)
    return told


def test_what_only_a_person_changes_is_told_once_whatever_was_refused_before() -> None:
    other = Answer(HelperCode.CONFIG, "the configuration is not root's alone")
    assert refusals(STAYS, STAYS) == [1]
    assert refusals(PASSES, STAYS, STAYS, STAYS) == [2]
    assert refusals(PASSES, PASSES, PASSES, STAYS, PASSES) == [3, 4]
    assert refusals(STAYS, other, other) == [1, 2]
    assert refusals(PASSES, PASSES, PASSES, PASSES, Answer(HelperCode.BOOTING, "booting")) == [3]


@pytest.mark.parametrize(("step", "ours"), [(LockStep.UNLOCK, True), (LockStep.DELETE_SNAPSHOT, False)])
def test_a_lock_that_came_while_a_delete_was_refused_is_not_of_our_delete(step: LockStep, ours: bool) -> None:
    """An operator's own deletion was faster."""
    refused, _ = locks.refused(locks.asking(lock("snapshot-delete", ours=True), step), PASSES, AT)
    assert refused.ours is ours


def test_every_refusal_passes_by_itself_or_is_a_persons_to_mend() -> None:
    stays = {HelperCode.BAD_REQUEST, HelperCode.FORBIDDEN, HelperCode.CONFIG, HelperCode.UNREADABLE, HelperCode.SCRATCH_BAND}
    stays |= {HelperCode.EXCLUDED, HelperCode.NOT_OWNED, HelperCode.LOCK_KIND, HelperCode.REPORT_ONLY}
    of_the_band = {HelperCode.NOT_INSTALLED, HelperCode.NOT_SCRATCH, HelperCode.TEMPLATE, HelperCode.NOT_LOCKED}  # never of a guarded guest
    assert set(HelperCode) == locks.PASSING | stays | TRIED | of_the_band | {HelperCode.OK}
    assert not locks.PASSING & (stays | TRIED | of_the_band)


def test_over_a_boot_only_what_our_own_delete_leaves_and_who_was_warned_is_known_on() -> None:
    """A lock of snapshots outlives it (pve-facts B4), and that delete is no vzdump that could be its trace."""
    ours, deleting = lock("snapshot-delete", ours=True, unlocks=2), lock("", VM, step=LockStep.DELETE_SNAPSHOT, asked=True, told=True)
    old = lock("migrate", GuestId(GuestKind.LXC, 105), warned=True, unlocks=2)
    others = [lock(id=GuestId(GuestKind.LXC, 110 + number)) for number in range(3)]
    others = [others[0], replace(others[1], step=LockStep.DELETE_SNAPSHOT), replace(others[2], step=LockStep.UNLOCK, asked=True)]
    assert locks.after_boot((*others, ours, deleting, old)) == (
        LockMemory(CT, "guest101", "snapshot-delete", ours=True),
        LockMemory(VM, "guest201", "", ours=True),
        LockMemory(old.id, "guest105", "migrate", warned=True),
    )
    after = locks.after_boot((replace(deleting, id=CT),))[0]
    assert seen(after, "snapshot-delete", "2", None).ours
    assert not seen(after, None).ours


# ---------------------------------------------------------------------------------------------------- seeing


def seen(known: LockMemory | None, kind: str | None, stamp: str = "1", free_at: float | None = AT - 60, **parts: Any) -> LockMemory:
    return locks.seen_now(known, listed(lock=kind), stamp, observation(listed(lock=kind), **parts), free_at)


@pytest.mark.parametrize("free_at", [None, AT - 60])
def test_a_lock_that_is_new(free_at: float | None) -> None:
    assert seen(None, "backup", free_at=free_at) == LockMemory(CT, "guest101", "backup", since=AT, free_at=free_at, stamp="1")
    assert seen(None, None, free_at=free_at) == LockMemory(CT, "guest101", "", since=AT, free_at=free_at, stamp="1")


def test_a_lock_that_is_still_there_stays_what_it_is() -> None:
    known = lock(told=True, warned=True, unlocks=2, next_at=5.0, deletes=1, refusals=2, refusal="busy")
    assert seen(known, "backup") == known


@pytest.mark.parametrize(("kind", "stamp"), [("backup", "2"), ("snapshot", "1"), ("migrate", "2"), (None, "2")])
def test_another_kind_or_a_file_that_was_written_is_another_lock(kind: str | None, stamp: str) -> None:
    known = lock(told=True, warned=True, deletes=1, delete_at=7.0)
    fresh = LockMemory(CT, "guest101", kind or "", since=AT, free_at=AT - 60, stamp=stamp, deletes=1, delete_at=7.0)
    assert seen(known, kind, stamp) == replace(fresh, warned=kind == "backup")


def test_another_kind_has_all_its_unlocks_and_a_written_file_alone_gives_none() -> None:
    """A failed unlock may write the file, too."""
    known = lock(unlocks=3, next_at=AT + 60)
    assert (seen(known, "snapshot").unlocks, seen(known, "snapshot").next_at) == (0, 0.0)
    assert (seen(known, "backup", "2").unlocks, seen(known, "backup", "2").next_at) == (3, AT + 60)


@pytest.mark.parametrize(
    ("known", "kind", "anew"),
    [
        (lock("", deletes=3, delete_at=AT + 3600), "backup", True),
        (lock("snapshot-delete", deletes=3, delete_at=AT + 3600), "backup", True),
        (lock(deletes=3, delete_at=AT + 3600), "backup", False),
        (lock(deletes=3, delete_at=AT + 3600), None, False),
        (lock("", deletes=3, delete_at=AT + 3600), "snapshot-delete", False),
        (lock("", deletes=3, delete_at=AT + 3600), "migrate", False),
    ],
)
def test_the_next_backup_gives_all_deletes_again(known: LockMemory, kind: str | None, anew: bool) -> None:
    """A snapshot that it leaves is another one: it has deleted the old one first, or it was refused for it."""
    found = seen(known, kind, "2")
    assert (found.deletes, found.delete_at) == ((0, 0.0) if anew else (3, AT + 3600))


@pytest.mark.parametrize(
    ("known", "kind", "ours"),
    [
        (lock("", step=LockStep.DELETE_SNAPSHOT, asked=True), "snapshot-delete", True),
        (lock("", step=LockStep.DELETE_SNAPSHOT), "snapshot-delete", False),
        (lock("", step=LockStep.DELETE_SNAPSHOT, asked=True), "migrate", False),
        (lock("", step=LockStep.UNLOCK, asked=True), "snapshot-delete", False),
        (lock("snapshot-delete", ours=True), "snapshot-delete", True),
        (lock("snapshot-delete", ours=True), "backup", False),
        (lock("snapshot-delete"), "snapshot-delete", False),
        (lock("", ours=True, stamp="2"), None, False),
    ],
)
def test_whose_a_lock_is_that_comes_while_we_delete(known: LockMemory, kind: str, ours: bool) -> None:
    assert seen(known, kind, "2").ours is ours


def test_a_lock_that_went_as_we_asked_stays_in_memory_until_that_is_told() -> None:
    known = lock(step=LockStep.UNLOCK, asked=True)
    assert seen(known, None, "2") is known
    assert seen(lock(step=LockStep.UNLOCK), None, "2").kind == ""
    assert seen(lock("", step=LockStep.DELETE_SNAPSHOT, asked=True), None, "2").stamp == "2"


def test_a_guest_that_was_renamed_keeps_its_lock() -> None:
    guest = replace(listed(lock="backup"), name="web")
    assert locks.seen_now(lock(), guest, "1", observation(guest), None) == lock(name="web")


def test_words() -> None:
    assert (locks.in_words(lock()), locks.in_words(lock(""))) == ("lock `backup`", "snapshot `vzdump`")


def test_the_evidence_reads_well() -> None:
    steps = {name: settle(memory, by=by, **parts).decision for name, (memory, by, parts, _) in STEPS.items()}
    proven = {"proven": lock(), "proven as ours": lock("snapshot-delete", ours=True), "proven of a snapshot": lock("")}
    decisions: dict[str, LockDecision] = {name: judge(case(memory)) for name, memory in proven.items()}
    decisions |= {f"{name}, spoilt": judge(spoilt(parts)) for _, name, parts in SPOILT}
    decisions |= {name: judge(case(**parts)) for name, parts in AT_WORK.items()}
    decisions |= {name: judge(case(lock(kind), snapshots=of)) for name, kind, of in SNAPSHOTS}
    lines = [f"{name}: {d.verdict}; {d.next_step or 'nothing'}\n" for name, d in steps.items()]
    for name, d in decisions.items():
        checks = (f"  {check.name}: {ANSWERS[check.ok]}: {check.evidence}\n" for check in d.checks)
        lines += [f"{name}: {d.verdict}\n", *checks]
    golden("words_of_locks.txt", "".join(lines))


ANSWERS = {True: "yes", False: "no", None: "unknown"}
SNAPSHOTS: tuple[tuple[str, str, Any], ...] = (
    ("snapshot lock without a snapshot", "snapshot", {}),
    ("snapshot lock and a whole snapshot", "snapshot", {"vzdump": ""}),
    ("snapshot-delete lock and one being made", "snapshot-delete", {"vzdump": "prepare"}),
    ("snapshot-delete lock, unreadable", "snapshot-delete", GONE),
    ("no lock and no snapshot", "", {}),
    ("no lock, unreadable", "", GONE),
)


# ---------------------------------------------------------------------------------------------------- any combination


TASKS = st.lists(
    st.builds(task, st.sampled_from(["vzdump", "vzmigrate"]), st.sampled_from(["101", "102", ""]), pid=st.just(77)), max_size=2
)
ENDED = st.builds(
    dead, st.sampled_from(["101", "102", ""]), said=st.sampled_from([KILLED, Error("x"), Ok()]), at=st.sampled_from([BEGAN, AT - 5000, AT])
)
WITNESSES = st.builds(
    lambda flock, live, archives: replace(QUIET, flock=flock, live_upid=live, archives=archives),
    st.sampled_from([None, None, None, GONE, FlockHolder(77)]),
    st.sampled_from([None, None, None, GONE, OURS.upid, OTHER.upid]),
    st.sampled_from([frozenset(), frozenset(), GONE, frozenset({101}), frozenset({102})]),
)
MEMORIES = st.builds(
    lock,
    st.sampled_from(["backup", "backup", "snapshot", "snapshot-delete", "", "migrate"]),
    st.sampled_from([CT, GuestId(GuestKind.QEMU, 101)]),
    free_at=st.sampled_from([None, FREE]),
    clear_since=st.sampled_from([None, AT, AT - 59.5, AT - 600]),
    ours=st.booleans(),
)


@settings(max_examples=400, deadline=None)
@given(
    memory=MEMORIES,
    tasks=st.one_of(st.just([]), st.just([]), TASKS, st.just(GONE)),
    backups=WITNESSES,
    history=st.one_of(st.lists(ENDED, max_size=3).map(tuple), st.just(GONE)),
    snapshots=st.sampled_from([GONE, {}, {"vzdump": ""}, {"vzdump": "prepare"}, {"vzdump": "delete"}]),
    gate=st.sampled_from([Gate(), Gate(), SHUT]),
    held=st.sampled_from([None, None, (hold(101), 60.0)]),
    when=st.sampled_from([{}, written(), written(at=AT - 9000), written() | written(VM), written(VM)]),
)
def test_stale_means_that_everything_is_proven(
    memory: LockMemory, tasks: Any, backups: Any, history: Any, snapshots: Any, gate: Gate, held: Any, when: dict[GuestId, float]
) -> None:
    """I7, said anew: whatever is seen and remembered."""
    tasks = tasks if isinstance(tasks, Unreadable) else tuple(tasks)
    parts = {"history": history, "snapshots": snapshots, "gate": gate, "hold": held, "written": when}
    decision = judge(case(memory, tasks=tasks, backups=backups, **parts))
    if decision.verdict is not LockVerdict.STALE:
        return
    assert gate.open and held is None
    assert memory.clear_since is not None and AT - memory.clear_since >= CONFIRM - 1
    assert not isinstance(tasks, Unreadable)
    assert not any(t.running and t.upid.id == "101" for t in tasks) and not any(
        t.running and t.upid.covers(101) and t.upid.type == "vzdump" for t in tasks
    )
    assert backups.flock is None
    assert backups.live_upid is None or (isinstance(backups.live_upid, Upid) and not backups.live_upid.covers(101))
    assert isinstance(backups.archives, frozenset) and 101 not in backups.archives
    if memory.kind != "backup":
        assert memory.id.kind is GuestKind.LXC and isinstance(snapshots, dict)
        wanted = {"snapshot": ("prepare",), "snapshot-delete": ("delete",), "": ("", "prepare", "delete")}[memory.kind]
        assert snapshots.get("vzdump") in wanted
    if memory.kind and not memory.ours:
        assert not isinstance(history, Unreadable)
        died = [t for t in history if t.upid.covers(101) and not isinstance(t.status, Ok)]
        assert any(
            within(t, when[memory.id]) and (t.upid.id or not any(within(t, when[id]) for id in when if id != memory.id)) for t in died
        )


def within(ended: Task, at: float) -> bool:
    assert ended.endtime is not None
    return ended.upid.starttime - 2 <= at <= ended.endtime + 2
