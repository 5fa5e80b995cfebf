"""What is remembered of a guest: history, stability, who is new, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestward.model.decision import Decision, Guard, Outcome
from guestward.model.events import Level, Notice
from guestward.model.guest import GuestConfig, GuestId, GuestKind, ListedGuest
from guestward.model.memory import Attempt, GuestMemory
from guestward.model.observation import Member, NodeNames, Observation, StorageState
from guestward.model.reading import Unreadable
from guestward.model.task import Ok, Task
from guestward.policy.guards import OUT_OF_SCOPE, decide
from guestward.policy.recall import (
    Recalled,
    after_boot,
    came_up,
    first_seen,
    lasting,
    not_working_state,
    rearmed_by_operator,
    reborn,
    recall,
    settle,
    storages_back,
)
from tests.unit.build import (
    AT,
    CT,
    SCRATCH,
    VM,
    attempt,
    case,
    cause,
    config,
    golden,
    host,
    listed,
    member,
    memory,
    observation,
    resources,
    rules,
    task,
)

TRIED = (attempt(1), attempt(2))
RULES = rules()


def see(known: GuestMemory, guest: ListedGuest | None = None, *, looked_at: float | None = AT - 60, **seen: Any) -> Recalled:
    guest = listed(known.id) if guest is None else guest
    return recall(known, guest, observation(guest, **seen), RULES, looked_at)


def runs(known: GuestMemory, *, at: float = AT, uptime: int = 3600, **seen: Any) -> GuestMemory:
    return see(known, listed(known.id, running=True, up_since=at - uptime, **seen), at=at).memory


def events(recalled: Recalled) -> list[str]:
    return [notice.event.name for notice in recalled.notices]


def fields(notice: Notice) -> dict[str, object]:
    return dict(notice.fields)


class TestHistory:
    """Attempts are forgotten when the guest ran stably, at a host boot, by `rearm`, by a change of configuration, or of its storage."""

    @pytest.mark.parametrize(
        ("uptime", "watched_for", "kept"),
        [(599, 700, True), (599, 600, True), (600, 599, True), (600, 600, False), (86400, 599, True), (86400, 600, False)],
    )
    def test_running_for_ten_minutes_under_our_eyes(self, uptime: int, watched_for: float, kept: bool) -> None:
        """A long uptime alone is no proof, since a flap may lie between two looks; nor is a long watch of a short uptime."""
        known = memory(attempts=TRIED, given_up=True, running=True, stable_since=AT - watched_for)
        found = runs(known, uptime=uptime)
        assert (found.attempts, found.given_up) == ((TRIED, True) if kept else ((), False))

    def test_a_short_life_is_no_recovery(self) -> None:
        """C07."""
        found = runs(memory(attempts=TRIED), uptime=30)
        assert found.attempts == TRIED
        assert see(found).memory.attempts == TRIED

    def test_a_restart_between_two_looks_begins_the_ten_minutes_anew(self) -> None:
        known = memory(attempts=TRIED, running=True, stable_since=AT - 599)
        again = runs(known, uptime=10)
        assert again.stable_since == AT - 10
        assert runs(again, at=AT + 589, uptime=599).attempts == TRIED
        assert runs(again, at=AT + 590, uptime=600).attempts == ()

    def test_uptimes_that_are_whole_seconds_do_not_move_the_ten_minutes(self) -> None:
        """Up to 2 s between two looks are no restart, and 2 s are one; with attempts to forget or without."""
        for tried in ((), TRIED):
            known = memory(running=True, down_since=None, attempts=tried, stable_since=AT - 100)
            assert runs(known, uptime=99).stable_since == AT - 100
            assert runs(known, uptime=98).stable_since == AT - 98

    @pytest.mark.parametrize("unsteady", [{"lock": "backup"}, {"pid": None}], ids=["locked", "without a pid"])
    def test_locked_or_without_a_process_is_not_stable(self, unsteady: dict[str, Any]) -> None:
        known = memory(attempts=TRIED, running=True, stable_since=AT - 6000)
        found = runs(known, **unsteady)
        assert (found.attempts, found.stable_since) == (TRIED, None)

    def test_a_guest_that_does_not_work_is_not_stable(self) -> None:
        known = memory(VM, attempts=TRIED, running=True, stable_since=AT - 6000, not_working="io-error", suspect="io-error")
        guest = listed(VM, running=True)
        assert see(known, guest, members={VM: member(VM, "io-error")}).memory.attempts == TRIED

    def test_an_attempt_under_way_is_not_forgotten(self) -> None:
        flight = (*TRIED, Attempt(3, AT - 5, AT + 115))
        assert runs(memory(attempts=flight, stable_since=AT - 6000)).attempts == flight

    def test_a_host_boot_forgets_all_but_who_it_is(self) -> None:
        known = memory(attempts=TRIED, given_up=True, new=True, cause=cause(), announced=(Guard.EXHAUSTED,), stable_since=5.0, away=True)
        found = after_boot(known)
        assert found == GuestMemory(CT, name="guest101", owned=True, identity="identity", ran=True, away=True)

    def test_a_change_of_configuration_rearms_and_says_so(self) -> None:
        known = memory(attempts=TRIED, given_up=True, cause=cause(), announced=(Guard.UNCONFIRMED, Guard.BACKOFF, Guard.EXHAUSTED))
        found = see(known, configs={CT: config(fingerprint="other")})
        assert (found.memory.attempts, found.memory.given_up, found.memory.released) == ((), False, True)
        assert found.memory.announced == (Guard.UNCONFIRMED,)
        assert (found.memory.fingerprint, events(found)) == ("other", ["rearmed"])

    @pytest.mark.parametrize("released", [False, True])
    def test_a_change_from_when_it_ran_lifts_no_stop(self, released: bool) -> None:
        """It came before the stop. That it ran is known by its identity, which is settled anew each time."""
        found = see(memory(identity="", released=released), configs={CT: config(fingerprint="other")})
        assert (found.memory.fingerprint, found.memory.released) == ("other", released)

    def test_a_change_without_a_history_is_not_worth_a_word(self) -> None:
        found = see(memory(), configs={CT: config(fingerprint="other")})
        assert (found.memory.fingerprint, events(found)) == ("other", [])

    def test_a_change_during_an_attempt_is_seen_after_it(self) -> None:
        flight = (*TRIED, Attempt(3, AT - 5, AT + 115))
        found = see(memory(attempts=flight, identity=""), configs={CT: config(fingerprint="other")})
        assert (found.memory.attempts, found.memory.identity, events(found)) == (flight, "identity", [])
        ended = replace(found.memory, attempts=(*TRIED, attempt(3)))
        assert events(see(ended, configs={CT: config(fingerprint="other")})) == ["rearmed"]

    def test_a_configuration_that_is_read_for_the_first_time_is_no_change(self) -> None:
        found = see(memory(attempts=TRIED, fingerprint="", onboot=None))
        assert (found.memory.attempts, found.memory.released, events(found)) == (TRIED, False, [])
        assert (found.memory.fingerprint, found.memory.onboot) == ("fingerprint", True)

    def test_onboot_is_the_one_that_was_read_last(self) -> None:
        assert see(memory(onboot=True), configs={CT: config(onboot=False)}).memory.onboot is False

    def test_the_same_configuration_changes_nothing(self) -> None:
        found = see(memory(attempts=TRIED))
        assert (found.memory.attempts, events(found)) == (TRIED, [])

    def test_a_configuration_that_could_not_be_read_changes_nothing(self) -> None:
        found = see(memory(attempts=TRIED), configs={CT: Unreadable("timeout")})
        assert (found.memory.attempts, found.memory.identity, events(found)) == (TRIED, "identity", [])

    def test_rearm_gives_all_attempts_and_says_so_even_if_there_was_nothing_to_forget(self) -> None:
        known = memory(attempts=TRIED, given_up=True, new=True, cause=cause(), blocked_storages=frozenset({"nas"}))
        found = rearmed_by_operator(known)
        assert (found.memory.attempts, found.memory.given_up, found.memory.new, found.memory.released) == ((), False, False, True)
        assert found.memory.blocked_storages == frozenset()
        assert (events(found), found.notices[0].guard) == (["rearmed"], "")
        assert events(rearmed_by_operator(memory())) == ["rearmed"]

    @pytest.mark.parametrize(("owned", "running", "released"), [(True, False, True), (True, True, False), (False, False, False)])
    def test_rearm_lifts_the_stop_that_holds_it_and_none_to_come(self, owned: bool, running: bool, released: bool) -> None:
        assert rearmed_by_operator(memory(owned=owned, running=running)).memory.released is released

    def test_rearm_during_an_attempt_makes_it_the_first(self) -> None:
        found = rearmed_by_operator(memory(attempts=(*TRIED, Attempt(3, AT - 5, AT + 115)))).memory
        assert [a.number for a in found.attempts] == [1]
        assert found.in_flight is not None


class TestStorageBack:
    """C17: what rearms is that the storage is seen back, and not time."""

    blocked = memory(attempts=TRIED, given_up=True, blocked_storages=frozenset({"nas"}))

    def back(self, known: GuestMemory, state: StorageState | None) -> Recalled:
        states = {} if state is None else {"nas": state}
        return storages_back(known, observation(resources=resources(storages=states)))

    def test_seen_back(self) -> None:
        found = self.back(self.blocked, StorageState.AVAILABLE)
        assert (found.memory.attempts, found.memory.blocked_storages, events(found)) == ((), frozenset(), ["rearmed"])

    @pytest.mark.parametrize("state", [StorageState.OFFLINE, StorageState.UNKNOWN, None])
    def test_not_seen_back(self, state: StorageState | None) -> None:
        assert self.back(self.blocked, state) == Recalled(self.blocked)

    def test_not_read(self) -> None:
        assert storages_back(self.blocked, observation(resources=Unreadable("timeout"))) == Recalled(self.blocked)

    def test_none_was_missing(self) -> None:
        known = memory(attempts=TRIED)
        assert self.back(known, StorageState.AVAILABLE) == Recalled(known)

    def test_one_of_two_is_back_and_no_attempt_was_made(self) -> None:
        known = memory(blocked_storages=frozenset({"nas", "san"}))
        found = self.back(known, StorageState.AVAILABLE)
        assert (found.memory.blocked_storages, events(found)) == (frozenset({"san"}), [])

    def test_which_storage_keeps_it_down_is_remembered(self) -> None:
        obs = observation(
            configs={CT: config(storages=frozenset({"nas", "local"}))},
            resources=resources(storages={"nas": StorageState.OFFLINE, "local": StorageState.AVAILABLE}),
        )
        found = settle(memory(), decide(case(obs=obs)), obs, RULES, ran_before=False)
        assert found.memory.blocked_storages == {"nas"}
        first = memory(startable_since=None)
        found = settle(first, decide(case(obs=obs, memory=first)), obs, RULES, ran_before=False)
        assert found.memory.blocked_storages == set(), "the second look is what it waits for"


class TestNewHere:
    """`new_here`: appeared on this node while we watched, and has not run here."""

    def test_the_first_sweep_finds_none_and_a_later_one_does(self) -> None:
        assert not first_seen(CT, watched=False).new
        assert first_seen(CT, watched=True).new

    def test_it_ends_when_it_runs(self) -> None:
        known = first_seen(CT, watched=True)
        assert see(known).memory.new
        assert runs(known, pid=None).new
        found = runs(known)
        assert (found.new, found.ran) == (False, True)
        assert not see(found).memory.new

    def test_it_ends_at_a_host_boot_and_by_rearm(self) -> None:
        known = first_seen(CT, watched=True)
        assert not after_boot(known).new
        assert not rearmed_by_operator(known).memory.new

    def test_another_guest_with_the_vmid_is_new_and_its_predecessors_history_is_not_its_own(self) -> None:
        known = memory(attempts=TRIED, given_up=True)
        found = see(known, configs={CT: config(identity="other", fingerprint="f2")})
        assert (found.memory.new, found.memory.attempts, found.memory.ran, found.memory.identity) == (True, (), False, "other")
        assert (found.memory.id, found.memory.name, found.memory.owned) == (CT, "guest101", True)
        assert (found.memory.fingerprint, found.memory.onboot) == ("f2", True)
        assert events(found) == ["guest_forgotten"]

    @pytest.mark.parametrize(("id", "same"), [(CT, True), (VM, False)], ids=["a container", "a VM"])
    def test_one_mark_in_common_is_enough_for_a_container_and_not_for_a_vm(self, id: GuestId, same: bool) -> None:
        found = see(memory(id, identity="a b"), configs={id: config(identity="b c")})
        assert (found.memory.new, events(found)) == (not same, [] if same else ["guest_forgotten"])

    def test_a_guest_whose_identity_is_learned_for_the_first_time_is_not_new(self) -> None:
        found = see(memory(identity="", fingerprint=""))
        assert (found.memory.new, found.memory.identity, events(found)) == (False, "identity", [])

    @pytest.mark.parametrize("lock", ["create", "import", "clone"])
    def test_a_guest_that_is_being_created_is_another_than_had_its_vmid_before(self, lock: str) -> None:
        """A container's restore keeps volume names and MACs, so the lock is what tells."""
        found = see(memory(attempts=TRIED, name="old"), listed(lock=lock)).memory
        assert (found.new, found.attempts, found.ran, found.identity) == (True, (), False, "")
        assert (found.id, found.name, found.owned) == (CT, "guest101", True)

    @pytest.mark.parametrize("known", [{"identity": ""}, {"new": True}], ids=["one that ran until now", "a new one that was read"])
    def test_a_guest_that_is_being_created_in_the_place_of_another_inherits_nothing(self, known: dict[str, Any]) -> None:
        found = see(memory(attempts=TRIED, **known), listed(lock="create")).memory
        assert (found.new, found.attempts, found.identity) == (True, (), "")

    def test_a_guest_that_is_being_created_keeps_what_is_known_of_its_creation(self) -> None:
        known = memory(new=True, identity="", ran=False, down_since=AT - 600)
        assert see(known, listed(lock="create")).memory.down_since == AT - 600

    @pytest.mark.parametrize("lock", ["backup", "migrate", "snapshot", "rollback", "disk"])
    def test_other_locks_make_no_new_guest(self, lock: str) -> None:
        found = see(memory(attempts=TRIED), listed(lock=lock)).memory
        assert (found.new, found.attempts) == (False, TRIED)

    def test_a_running_guest_under_such_a_lock_is_itself(self) -> None:
        found = runs(memory(attempts=TRIED), lock="clone")
        assert (found.new, found.attempts) == (False, TRIED)

    @pytest.mark.parametrize(
        ("kind", "before", "after"),
        [
            (
                GuestKind.LXC,
                {"rootfs": "local:vm-101-disk-0", "net0": "hwaddr=BC:24:11:00:00:01"},
                {"rootfs": "local:vm-101-disk-0", "net0": "hwaddr=BC:24:11:00:00:01", "net1": "hwaddr=BC:24:11:00:00:07"},
            ),
            (
                GuestKind.QEMU,
                {"smbios1": "uuid=7f0c1a52", "vmgenid": "a", "meta": "ctime=1"},
                {"smbios1": "uuid=7f0c1a52", "vmgenid": "b", "meta": "ctime=1"},
            ),
        ],
        ids=["a container got a second card", "a VM was rolled back and started again between two looks"],
    )
    def test_a_guest_that_ran_until_now_is_not_new_because_its_configuration_was_changed_while_it_ran(
        self, kind: GuestKind, before: dict[str, str], after: dict[str, str]
    ) -> None:
        """`new_here` ends when it runs, so who it is is settled anew each time that it ran; whether it was made anew meanwhile
        the task history tells (see `reborn`). Between two looks at which it is stopped another identity is another guest.
        """
        old, new = GuestConfig.from_api(kind, before), GuestConfig.from_api(kind, after)
        id = CT if kind is GuestKind.LXC else VM
        known = memory(id, identity=old.identity, fingerprint=old.fingerprint, running=True, down_since=None)
        known = see(known, listed(id, running=True)).memory
        known = see(known, configs={id: new}).memory
        assert not known.new
        other = replace(new, identity="root=elsewhere:vm-101-disk-0")
        assert see(known, configs={id: other}).memory.new

    def test_a_guest_made_anew_since_it_ran_is_new(self) -> None:
        """A container that was restored in place looks the same in every respect; it is told once, and its history is another's."""
        known = memory(attempts=TRIED, given_up=True, onboot=True, stamp="1", cause=cause(), announced=(Guard.TASK,))
        found = reborn(known)
        assert found.memory == GuestMemory(
            CT,
            name="guest101",
            owned=True,
            identity="identity",
            fingerprint="fingerprint",
            onboot=True,
            new=True,
            down_since=AT - 60,
            stamp="1",
        )
        assert events(found) == ["guest_forgotten"]
        assert reborn(memory(owned=False)).notices == ()


class TestEpisode:
    """`guest_down` opens an episode, `guest_waiting` names each further guard once, `guest_up` ends it."""

    def told(self, known: GuestMemory, guard: Guard, *, ran_before: bool = True) -> Recalled:
        decision = Decision(CT, "guest101", guard, "evidence", ())
        return settle(known, decision, observation(), RULES, ran_before=ran_before)

    def test_each_guard_is_told_once(self) -> None:
        known, lines = memory(announced=()), []
        for guard in (Guard.TASK, Guard.TASK, Guard.BACKUP, Guard.UNCONFIRMED, Guard.TASK, Guard.BACKUP, Guard.START):
            found = self.told(known, guard)
            known = found.memory
            lines += [(notice.event.name, notice.guard) for notice in found.notices]
        assert lines == [("guest_down", "task"), ("guest_waiting", "backup"), ("guest_waiting", "unconfirmed")]

    def test_only_what_was_told_counts_as_told(self) -> None:
        """However long it is down: a guard once, and nothing of a guest of which nothing is said."""
        known = self.told(self.told(memory(), Guard.TASK).memory, Guard.TASK).memory
        assert known.announced == (Guard.TASK,)
        assert self.told(known, Guard.START).memory.announced == (Guard.TASK,)
        assert self.told(memory(onboot=False), Guard.ONBOOT_OFF, ran_before=False).memory.announced == ()

    def test_a_guest_that_was_switched_off_is_told_once_and_one_that_is_off_never(self) -> None:
        assert events(self.told(memory(), Guard.ONBOOT_OFF)) == ["guest_down"]
        assert events(self.told(memory(onboot=False), Guard.ONBOOT_OFF)) == ["guest_down"]
        assert events(self.told(memory(onboot=False), Guard.ONBOOT_OFF, ran_before=False)) == []
        assert events(self.told(memory(onboot=False), Guard.UNREADABLE)) == []

    def test_of_an_attempt_under_way_its_own_events_tell(self) -> None:
        known = memory(attempts=(Attempt(1, AT - 5, AT + 115),))
        assert self.told(known, Guard.TASK) == Recalled(known)

    @pytest.mark.parametrize("guard", [Guard.NOT_OWNED, Guard.SCRATCH_BAND, Guard.TEMPLATE, Guard.RUNNING])
    def test_guests_out_of_scope_and_running_ones_are_no_episode(self, guard: Guard) -> None:
        known = memory(startable_since=None)
        assert self.told(known, guard) == Recalled(known)

    def test_the_line_says_who_stopped_it_or_that_nobody_knows(self) -> None:
        """C09, C110."""
        for known, words in (
            (memory(cause=cause(user="alice@pve")), "alice@pve"),
            (memory(cause=None), "no stop task"),
            (memory(cause_read=False), "could not be read"),
        ):
            assert words in str(fields(self.told(known, Guard.UNCONFIRMED).notices[0])["cause"])

    def test_a_look_in_which_something_stands_in_the_way_is_none_at_a_startable_guest(self) -> None:
        assert self.told(memory(), Guard.BACKUP).memory.startable_since is None
        assert self.told(memory(startable_since=None), Guard.UNCONFIRMED).memory.startable_since == AT
        assert self.told(memory(startable_since=AT - 9), Guard.BACKOFF).memory.startable_since == AT - 9

    @pytest.mark.parametrize("guard", [guard for guard in Guard if guard not in (Guard.RUNNING, *OUT_OF_SCOPE)])
    def test_only_guards_that_would_let_it_start_one_day_by_themselves_keep_the_first_look(self, guard: Guard) -> None:
        """A guest that waits for a storage or for its next attempt, or has none left, need not be seen twice once more."""
        startable = {Guard.UNCONFIRMED, Guard.STORAGE_OFFLINE, Guard.BACKOFF, Guard.EXHAUSTED, Guard.START}
        known = memory(startable_since=AT - 9, attempts=TRIED)
        assert self.told(known, guard).memory.startable_since == (AT - 9 if guard in startable else None)

    def test_it_ends_when_it_runs_again(self) -> None:
        known = memory(announced=(Guard.UNCONFIRMED,), down_since=AT - 75, cause=cause())
        found = see(known, listed(running=True))
        assert (events(found), fields(found.notices[0])) == (["guest_up"], {"down_s": 75})
        assert (found.memory.announced, found.memory.down_since, found.memory.cause_read) == ((), None, False)

    def test_with_it_ends_all_that_was_known_doubted_or_lifted_in_it(self) -> None:
        """The attempts stay until it ran stably, and what was read of its configuration stays known."""
        known = memory(
            attempts=TRIED,
            given_up=True,
            onboot=True,
            new=True,
            announced=(Guard.TASK,),
            cause=cause(),
            ran_until=AT - 70,
            doubt_since=AT - 70,
            stamp="1",
            released=True,
            blocked_storages=frozenset({"nas"}),
            backup_since=AT - 50,
            backup_warned=True,
        )
        assert came_up(known) == GuestMemory(
            CT,
            name="guest101",
            owned=True,
            fingerprint="fingerprint",
            onboot=True,
            ran=True,
            running=True,
            attempts=TRIED,
            given_up=True,
        )

    def test_a_stop_of_which_nothing_was_told_ends_without_a_word(self) -> None:
        assert events(see(memory(announced=()), listed(running=True))) == []

    def test_our_own_start_tells_its_own_end(self) -> None:
        known = memory(announced=(Guard.UNCONFIRMED,), attempts=(Attempt(1, AT - 2, AT + 118),))
        found = see(known, listed(running=True))
        assert (events(found), found.memory.running, found.memory.down_since) == ([], True, AT - 60)

    def test_a_start_that_was_seen_running_and_went_down_again_is_the_same_time_down(self) -> None:
        """Who it is, is asked anew all the same: it ran, for a moment, under nobody's eyes."""
        found = see(memory(running=True, down_since=AT - 500, doubt_since=AT - 400, cause_read=True)).memory
        assert (found.running, found.down_since, found.cause_read) == (False, AT - 500, False)
        assert (found.ran_until, found.doubt_since) == (AT - 60, AT - 400)

    def test_the_first_look_at_a_stopped_guest_begins_its_time_down(self) -> None:
        found = see(memory(down_since=None, running=True)).memory
        assert (found.running, found.down_since) == (False, AT)
        assert see(memory(down_since=AT - 500)).memory.down_since == AT - 500
        assert see(first_seen(CT, watched=False)).memory.down_since == AT

    def test_a_stopped_guest_is_not_stable(self) -> None:
        assert see(memory(running=True, down_since=None, stable_since=AT - 6000)).memory.stable_since is None

    def test_a_line_says_who_and_what_was_seen(self) -> None:
        notice = self.told(memory(), Guard.TASK).notices[0]
        assert (notice.id, notice.name, notice.guard, fields(notice)["evidence"]) == (CT, "guest101", "task", "evidence")

    def test_a_guest_under_a_lock_of_creation_is_told_once(self) -> None:
        """C100: a restore into the pool takes an hour, and is not news every minute."""
        known, lines = memory(identity="", ran=False, new=True), 0
        for minute in range(5):
            obs = observation(listed(lock="create"), at=AT + 60 * minute)
            seen = recall(known, obs.guests[CT], obs, RULES, None)
            found = settle(seen.memory, decide(case(obs=obs, memory=seen.memory)), obs, RULES, ran_before=False)
            known, lines = found.memory, lines + len(seen.notices) + len(found.notices)
        assert lines == 1


class TestGivenUp:
    """Exactly one ERROR, with the last reason (C18)."""

    def exhausted(self, known: GuestMemory) -> Recalled:
        return settle(known, decide(case(memory=known)), observation(), RULES, ran_before=False)

    def test_once(self) -> None:
        known = memory(attempts=(*TRIED, attempt(3, reason="Cannot allocate memory")), announced=(Guard.UNCONFIRMED,))
        found = self.exhausted(known)
        last = found.notices[-1]
        assert (events(found), last.level, last.guard) == (["guest_waiting", "given_up"], Level.ERROR, "exhausted")
        assert fields(last) == {"attempts": 3, "reason": "Cannot allocate memory"}
        assert found.memory.given_up
        assert events(self.exhausted(found.memory)) == []


class TestBackupWait:
    """Waiting longer than 3 h for a backup is one WARN."""

    def wait(self, known: GuestMemory, at: float, guest: ListedGuest | None = None, guard: Guard = Guard.BACKUP) -> Recalled:
        obs = observation(guest, at=at)
        return settle(known, Decision(CT, "guest101", guard, "vzdump", ()), obs, RULES, ran_before=False)

    @pytest.mark.parametrize(("guard", "lock"), [(Guard.BACKUP, None), (Guard.BACKUP_UNKNOWN, None), (Guard.LOCKED, "backup")], ids=str)
    def test_once_after_3_h(self, guard: Guard, lock: str | None) -> None:
        known, warned = memory(announced=tuple(Guard)), []
        for hours in (0, 1, 2.99, 3, 3.1, 9):
            found = self.wait(known, AT + hours * 3600, listed(lock=lock), guard)
            known = found.memory
            warned += [(hours, notice) for notice in found.notices if notice.event.name == "backup_wait_long"]
        assert [hours for hours, _ in warned] == [3]
        assert (warned[0][1].guard, fields(warned[0][1])) == (guard, {"evidence": "vzdump", "waited_s": 10_800})
        assert (known.backup_since, known.backup_warned) == (AT, True)

    @pytest.mark.parametrize(("onboot", "waits"), [(True, True), (None, True), (False, False)])
    def test_a_guest_that_is_to_be_down_waits_for_nothing(self, onboot: bool | None, waits: bool) -> None:
        found = self.wait(memory(announced=tuple(Guard), onboot=onboot, backup_since=AT - 5), AT).memory
        assert found.backup_since == (AT - 5 if waits else None)

    def test_a_wait_that_ended_begins_anew(self) -> None:
        known = self.wait(memory(announced=tuple(Guard)), AT).memory
        known = self.wait(known, AT + 7200, guard=Guard.UNCONFIRMED).memory
        assert known.backup_since is None
        assert self.wait(known, AT + 3 * 3600).notices == ()

    def test_another_lock_is_no_wait_for_a_backup(self) -> None:
        found = self.wait(memory(announced=tuple(Guard), backup_since=AT - 90_000), AT, listed(lock="migrate"), Guard.LOCKED)
        assert (found.notices, found.memory.backup_since) == ((), None)

    def test_a_lock_of_a_backup_that_is_not_what_decides_is_no_wait_for_it(self) -> None:
        found = self.wait(memory(announced=tuple(Guard), backup_since=AT - 90_000), AT, listed(lock="backup"), Guard.HELD)
        assert (found.notices, found.memory.backup_since) == ((), None)


class TestNotWorking:
    """A guest that runs but does not work: one WARN when seen twice, never touched (C21)."""

    def look(self, known: GuestMemory, state: str, **seen: Any) -> Recalled:
        members = {known.id: member(known.id, state)} if state != "none" else {}
        return see(known, listed(known.id, running=True, **seen.pop("guest", {})), members=members, **seen)

    @pytest.mark.parametrize("state", ["paused", "io-error", "internal-error", "prelaunch", "guest-panicked", "shutdown"])
    def test_told_once_when_seen_twice_and_once_when_it_is_over(self, state: str) -> None:
        known, lines = memory(VM, running=True, down_since=None, stable_since=AT - 6000), []
        for now in (state, state, state, "running", "running"):
            found = self.look(known, now)
            known, lines = found.memory, [*lines, events(found)]
            if events(found) == ["not_working"]:
                assert (known.not_working, known.stable_since) == (state, None)
        assert lines == [[], ["not_working"], [], ["working_again"], []]
        assert (known.suspect, known.not_working) == ("", "")

    def test_one_that_works_again_must_fail_at_two_looks_to_be_told_again(self) -> None:
        found = self.look(memory(VM, running=True, suspect="paused", not_working="paused"), "running").memory
        assert (found.suspect, found.not_working) == ("", "")
        assert events(self.look(found, "paused")) == []

    def test_another_state_in_between_is_not_twice(self) -> None:
        """pvestatd's word may be 10 s old."""
        known = memory(VM, running=True, down_since=None)
        for now in ("prelaunch", "running", "prelaunch", "paused"):
            found = self.look(known, now)
            known = found.memory
            assert found.notices == ()

    @pytest.mark.parametrize(("state", "ended"), [("running", True), ("", True), ("unknown", False), ("stopped", False)])
    def test_it_works_again_only_when_that_is_seen(self, state: str, ended: bool) -> None:
        """What pvestatd calls stopped was stopped while we looked, and nobody knows that it worked."""
        found = self.look(memory(VM, suspect="paused", not_working="paused", running=True), state)
        assert events(found) == ["working_again"] * ended
        assert (found.memory.suspect, found.memory.not_working) == ("", "" if ended else "paused")

    @pytest.mark.parametrize("state", ["running", "", "unknown", "stopped"])
    def test_no_finding(self, state: str) -> None:
        assert self.look(memory(VM, suspect=state, running=True), state).memory.suspect == ""
        guest = listed(VM, running=True)
        assert not_working_state(guest, observation(guest, members={})) == ""
        assert not_working_state(listed(VM), observation(members={VM: member(VM, "paused")})) == "", "it is stopped by now"

    @pytest.mark.parametrize(
        "busy", [{"guest": {"lock": "backup"}}, {"tasks": (task("qmstart", "201"),)}, {"tasks": (task("vzdump"),)}], ids=str
    )
    def test_a_step_of_somebodys_work_is_no_finding(self, busy: dict[str, Any]) -> None:
        """A backup of a stopped VM runs it in `prelaunch` (pve-facts C4)."""
        found = self.look(memory(VM, suspect="prelaunch", running=True), "prelaunch", **busy)
        assert (found.notices, found.memory.suspect) == ((), "")

    @pytest.mark.parametrize("busy", [{"guest": {"lock": "backup"}}, {"tasks": (task("vzdump"),)}])
    def test_what_was_told_has_not_ended_while_somebody_is_at_work_on_it(self, busy: dict[str, Any]) -> None:
        found = self.look(memory(VM, not_working="prelaunch", running=True), "prelaunch", **busy)
        assert (found.notices, found.memory.not_working) == ((), "prelaunch")

    @pytest.mark.parametrize("other", [task("vzdump", said=Ok()), task("qmstart", "202")], ids=["ended", "another guest's"])
    def test_only_a_task_that_runs_and_may_be_about_it_is_somebodys_work(self, other: Task) -> None:
        found = self.look(memory(VM, suspect="prelaunch", running=True), "prelaunch", tasks=(other,))
        assert events(found) == ["not_working"]

    def test_a_frozen_container_is_one(self) -> None:
        guest = listed(running=True)
        assert not_working_state(guest, observation(guest, frozen=frozenset({101}))) == "frozen"
        assert not_working_state(guest, observation(guest, frozen=frozenset({102}))) == ""
        assert not_working_state(guest, observation(guest, frozen=Unreadable("no cgroup"))) == ""

    def test_where_tasks_cannot_be_read_it_is_judged_all_the_same(self) -> None:
        guest = listed(VM, running=True)
        found = not_working_state(guest, observation(guest, tasks=Unreadable("x"), members={VM: member(VM, "paused")}))
        assert found == "paused"

    def test_a_guest_that_is_not_ours_is_none_of_our_business(self) -> None:
        guest = listed(SCRATCH, running=True)
        obs = observation(guest, members={}, frozen=frozenset({SCRATCH.vmid}))
        assert recall(memory(SCRATCH, suspect="frozen"), guest, obs, RULES, None).notices == ()

    def test_what_is_seen_of_a_stopped_guest_is_forgotten(self) -> None:
        found = see(memory(VM, suspect="paused", not_working="paused"), listed(VM)).memory
        assert (found.suspect, found.not_working) == ("", "")


@given(
    running=st.booleans(),
    pid=st.sampled_from([None, 4711]),
    uptime=st.integers(0, 2000),
    lock=st.sampled_from([None, "backup", "create"]),
    state=st.sampled_from(["running", "paused"]),
    owned=st.booleans(),
    known=st.fixed_dictionaries(
        {},
        optional={
            "running": st.just(True),
            "down_since": st.none(),
            "ran": st.booleans(),
            "new": st.booleans(),
            "away": st.booleans(),
            "owned": st.booleans(),
            "name": st.sampled_from(["guest201", "old"]),
            "attempts": st.just(TRIED),
            "suspect": st.just("paused"),
            "stable_since": st.sampled_from([None, AT - 1000, AT - 1]),
            "announced": st.just((Guard.TASK,)),
        },
    ),
)
def test_the_short_way_for_guests_that_run_on_as_they_did_leads_to_the_same(
    running: bool, pid: int | None, uptime: int, lock: str | None, state: str, owned: bool, known: dict[str, Any]
) -> None:
    """Nothing that the long way would see may be missed by the short one."""
    known = ({"running": True, "down_since": None, "startable_since": None} if running else {}) | known
    if known.get("running"):
        known |= {"down_since": None, "startable_since": None, "announced": (), "cause_read": False}
    guest = listed(VM, running=running, lock=lock, **({"pid": pid, "up_since": AT - uptime} if running else {}))
    obs = observation(guest, members={VM: member(VM, state)} if owned else {})
    with pytest.MonkeyPatch.context() as patch:
        short = recall(memory(VM, **known), guest, obs, RULES, None)
        patch.setattr("guestward.policy.recall._as_before", lambda *_: False)
        assert recall(memory(VM, **known), guest, obs, RULES, None) == short


QUIET = memory(VM, running=True, down_since=None, startable_since=None, cause_read=False, identity="", stable_since=AT - 1000)


def test_of_a_guest_that_runs_on_as_it_did_nothing_is_made_anew() -> None:
    """On a large node that is nearly all of them, at every look."""
    found = see(QUIET, listed(VM, running=True, up_since=AT - 1000.9))
    assert found.memory is QUIET
    assert found.notices == ()


@pytest.mark.parametrize(
    ("known", "seen", "right"),
    [
        ({"new": True}, {}, {"new": False}),
        ({"away": True}, {}, {"away": False}),
        ({"attempts": TRIED}, {}, {"attempts": ()}),
        ({"suspect": "paused"}, {}, {"suspect": ""}),
        ({"not_working": "paused"}, {}, {"not_working": ""}),
        ({"ran": False}, {}, {"ran": True}),
        ({"running": False}, {}, {"running": True}),
        ({"name": "old"}, {}, {"name": "guest201"}),
        ({"owned": False}, {}, {"owned": True}),
        ({"stable_since": None}, {}, {"stable_since": AT}),
        ({}, {"up_since": AT - 998}, {"stable_since": AT - 998}),
        ({}, {"lock": "backup"}, {"stable_since": None}),
        ({}, {"pid": None}, {"stable_since": None}),
        ({}, {"state": "paused"}, {"suspect": "paused"}),
    ],
    ids=str,
)
def test_whatever_is_not_as_it_was_is_looked_at(known: dict[str, Any], seen: dict[str, Any], right: dict[str, Any]) -> None:
    members = {VM: member(VM, seen.get("state", "running"))}
    guest = listed(VM, running=True, **{name: value for name, value in seen.items() if name != "state"})
    found = see(replace(QUIET, **known), guest, members=members).memory
    assert {name: getattr(found, name) for name in right} == right


def test_of_a_running_guest_whose_configuration_was_read_it_is_remembered() -> None:
    found = see(QUIET, listed(VM, running=True), configs={VM: config(onboot=False)}).memory
    assert found.onboot is False


def test_a_guest_that_came_back_is_no_longer_away_and_belongs_to_whom_the_pool_says() -> None:
    obs: Observation = observation(members={})
    found = recall(memory(away=True), obs.guests[CT], obs, RULES, None).memory
    assert (found.away, found.owned) == (False, False)
    assert see(memory(owned=False)).memory.owned


@pytest.mark.parametrize(("owned", "since"), [(True, AT - 3600), (False, AT)])
def test_how_long_it_was_down_before_it_was_ours_does_not_count(owned: bool, since: float) -> None:
    assert see(memory(owned=owned, down_since=AT - 3600, stamp="stamp")).memory.down_since == since


def test_the_name_is_the_one_that_the_list_has_now() -> None:
    assert see(memory(name="old")).memory.name == "guest101"


def test_a_member_on_another_node_is_not_what_runs_here() -> None:
    """The state of a namesake elsewhere says nothing of this guest."""
    guest = listed(VM, running=True)
    assert not_working_state(guest, observation(guest, members={CT: Member(CT, "pve2", "guestward", "paused")})) == ""


def test_the_outcome_of_an_attempt_is_the_guests_until_it_ran_stably() -> None:
    known = memory(attempts=(attempt(1, outcome=Outcome.STARTED),))
    assert see(known).memory.attempts == known.attempts


class TestDoubt:
    """When it has to be asked anew who a guest is."""

    def names(self, stamp: str) -> dict[str, Any]:
        return {"host": host(names=NodeNames({CT: stamp}, {}))}

    def test_one_that_ran_at_the_last_look_may_have_been_made_anew_since(self) -> None:
        found = see(memory(running=True, down_since=None), **self.names("1")).memory
        assert (found.cause_read, found.ran_until, found.doubt_since, found.stamp) == (False, AT - 60, AT - 60, "1")

    def test_one_that_is_found_down_is_who_it_is(self) -> None:
        found = see(memory(down_since=None, cause_read=False)).memory
        assert (found.cause_read, found.doubt_since) == (False, None)

    def test_a_file_that_changes_while_it_is_down_renews_the_doubt_and_the_oldest_counts(self) -> None:
        known = see(memory(stamp="1"), **self.names("1")).memory
        assert known.cause_read
        found = see(known, **self.names("2")).memory
        assert (found.cause_read, found.doubt_since, found.stamp) == (False, AT - 60, "2")
        later = see(found, looked_at=AT - 1, **self.names("3")).memory
        assert later.doubt_since == AT - 60

    def test_a_file_that_is_seen_for_the_first_time_is_no_change(self) -> None:
        found = see(memory(stamp=""), **self.names("1")).memory
        assert (found.cause_read, found.doubt_since, found.stamp) == (True, None, "1")

    def test_a_file_that_is_gone_is_a_change_and_has_no_stamp(self) -> None:
        gone = {"host": host(names=NodeNames({}, {}))}
        found = see(memory(stamp="1"), **gone).memory
        assert (found.cause_read, found.doubt_since, found.stamp) == (False, AT - 60, "")
        assert see(memory(stamp=""), **gone).memory.stamp == ""

    def test_names_that_cannot_be_read_renew_the_doubt_at_every_look(self) -> None:
        found = see(memory(stamp="1"), host=host(names=Unreadable("no"))).memory
        assert (found.cause_read, found.doubt_since, found.stamp) == (False, AT - 60, "1")


def test_what_is_told_of_a_guest_is_what_a_person_can_read() -> None:
    """Event, level, guard, message and fields of every line that a look or a decision can make of a guest."""
    blocked = memory(attempts=TRIED, blocked_storages=frozenset({"nas", "san"}))
    back = resources(storages={"nas": StorageState.AVAILABLE, "san": StorageState.AVAILABLE})
    broken = listed(VM, running=True)
    sick = {VM: member(VM, "io-error")}
    failed = tuple(attempt(n) for n in range(1, 4))
    short = tuple(attempt(n, outcome=Outcome.STARTED) for n in range(1, 4))
    told = memory(announced=(Guard.TASK,))

    def decided(known: GuestMemory, guard: Guard, at: float = AT) -> Recalled:
        return settle(known, Decision(CT, "guest101", guard, "what was seen", ()), observation(at=at), RULES, ran_before=True)

    lines = {
        "goes down": decided(memory(cause=cause(user="alice@pve")), Guard.TASK),
        "goes down, history unread": decided(memory(cause_read=False), Guard.UNCONFIRMED),
        "waits": decided(told, Guard.BACKUP),
        "waits long": decided(memory(announced=(Guard.BACKUP,), backup_since=AT), Guard.BACKUP, AT + 30 * 86_400),
        "given up": decided(replace(told, attempts=failed), Guard.EXHAUSTED),
        "given up, did not stay up": decided(replace(told, attempts=short), Guard.EXHAUSTED),
        "runs again": see(told, listed(running=True)),
        "does not work": see(memory(VM, running=True, suspect="io-error"), broken, members=sick),
        "works again": see(memory(VM, running=True, not_working="io-error"), broken),
        "another guest": see(memory(), configs={CT: config(identity="other")}),
        "made anew": reborn(memory()),
        "configuration changed": see(memory(attempts=TRIED), configs={CT: config(fingerprint="other")}),
        "storages back": storages_back(blocked, observation(resources=back)),
        "rearmed": rearmed_by_operator(memory(attempts=TRIED)),
        "rearmed, had all": rearmed_by_operator(memory()),
    }
    text = ""
    for name, found in lines.items():
        text += f"{name}:\n"
        for told_of in found.notices:
            level = told_of.level or told_of.event.levels[0]
            text += f"  {told_of.event.name} {level} {told_of.id} {told_of.name} [{told_of.guard}] {told_of.message}\n"
            text += "".join(f"    {field} = {value}\n" for field, value in told_of.fields)
    golden("words_of_recall.txt", text)


@pytest.mark.parametrize(
    ("known", "running", "guard", "lasts"),
    [
        ({}, False, Guard.ONBOOT_OFF, True),
        ({}, False, Guard.BACKUP, False),
        ({"attempts": (attempt(),)}, False, Guard.ONBOOT_OFF, False),
        ({"startable_since": AT}, False, Guard.ONBOOT_OFF, False),
        ({"blocked_storages": frozenset({"nas"})}, False, Guard.ONBOOT_OFF, False),
        ({"cause_read": False}, False, Guard.ONBOOT_OFF, False),
        ({"cause_read": False, "owned": False}, False, Guard.ONBOOT_OFF, True),
        ({"running": True, "stable_since": AT - 3600}, True, Guard.RUNNING, True),
        ({"running": True, "stable_since": None}, True, Guard.RUNNING, False),
    ],
)
def test_what_lasts(known: dict[str, Any], running: bool, guard: Guard, lasts: bool) -> None:
    guest = listed(running=running)
    kept = memory(**{"startable_since": None} | known)
    decision = Decision(guest.id, guest.name, guard, "", ())
    members = {} if known.get("owned") is False else {guest.id: member(guest.id)}
    obs = observation(guest, members=members)
    assert lasting(kept, kept, decision, obs) is lasts
    assert not lasting(replace(kept, name="old"), kept, decision, obs)
    assert not lasting(None, kept, decision, obs)
