"""The guard table: each guard alone, and for each ordered pair that the first of two that apply wins (DESIGN.md, Decide)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import pytest

from guestward.model.decision import GUARD_MEANING, Closure, Gate, GateReason, Guard, Outcome
from guestward.model.guest import GuestConfig, GuestId
from guestward.model.memory import Attempt, Hold
from guestward.model.observation import Observation, StorageState
from guestward.model.reading import Unreadable
from guestward.model.task import Ok
from guestward.policy.guards import Case, decide, may_start, minutes, offline_storages
from tests.unit.build import (
    AT,
    CT,
    QUIET,
    SCRATCH,
    attempt,
    case,
    cause,
    config,
    golden,
    hold,
    host,
    listed,
    member,
    memory,
    observation,
    resources,
    rules,
    task,
    upid,
    verdict,
)

# DESIGN.md's order. `unreadable` ("a guest whose configuration could not be read is left alone") stands before the first guard that
# needs the configuration; `host_gate` after all that would tell more of this guest, before what counts as a look at a startable one.
ORDER = (
    "not_owned",
    "scratch_band",
    "template",
    "running",
    "unreadable",
    "onboot_off",
    "new_here",
    "held",
    "ha",
    "locked",
    "task",
    "backup",
    "backup_unknown",
    "host_gate",
    "unconfirmed",
    "storage_offline",
    "backoff",
    "exhausted",
    "start",
)


@dataclass
class Scene:
    """One guest with nothing in its way, to be spoilt by the guards' conditions."""

    id: GuestId = CT
    owned: bool = True
    listed: dict[str, Any] = field(default_factory=dict)
    running: bool = False
    config: GuestConfig | Unreadable = field(default_factory=config)
    tasks: list[Any] = field(default_factory=list)
    witnesses: dict[str, Any] = field(default_factory=dict)
    ha: dict[GuestId, str | None] = field(default_factory=dict)
    storages: dict[str, StorageState] = field(default_factory=lambda: {"local": StorageState.AVAILABLE})
    memory: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0
    ended_ago: float = 10_000.0
    gate: Gate = field(default_factory=Gate)
    hold: tuple[Hold, float] | None = None

    def case(self) -> Case:
        guest = listed(self.id, running=self.running, **self.listed)
        obs = Observation(
            at=AT,
            wall=0,
            node="pve1",
            token_id="t",
            host=host(),
            guests={self.id: guest},
            members={self.id: member(self.id)} if self.owned else {},
            tasks=tuple(self.tasks),
            configs={self.id: self.config},
            resources=resources(self.id, ha=self.ha, storages=self.storages),
            backups=replace(QUIET, **self.witnesses),
        )
        made = tuple(attempt(number, ended=AT - self.ended_ago) for number in range(1, self.attempts + 1))
        return Case(obs, guest, memory(self.id, attempts=made, **self.memory), rules(), self.gate, self.hold)

    def configure(self, **values: Any) -> None:
        assert isinstance(self.config, GuestConfig)
        self.config = replace(self.config, **values)


def _not_owned(scene: Scene) -> None:
    scene.owned = False


def _scratch_band(scene: Scene) -> None:
    scene.id = SCRATCH


def _template(scene: Scene) -> None:
    scene.listed["template"] = True


def _running(scene: Scene) -> None:
    scene.running = True


def _unreadable(scene: Scene) -> None:
    scene.config = Unreadable("configuration: timeout")


def _onboot_off(scene: Scene) -> None:
    scene.configure(onboot=False)


def _new_here(scene: Scene) -> None:
    scene.memory["new"] = True


def _held(scene: Scene) -> None:
    scene.hold = (hold(scene.id.vmid), 60.0)


def _ha(scene: Scene) -> None:
    scene.ha[scene.id] = "started"


def _locked(scene: Scene) -> None:
    scene.listed["lock"] = "migrate"


def _task(scene: Scene) -> None:
    scene.tasks.append(task("vzconfig", str(scene.id.vmid)))


def _backup(scene: Scene) -> None:
    scene.tasks.append(task("vzdump"))


def _backup_unknown(scene: Scene) -> None:
    scene.witnesses["flock"] = Unreadable("permission denied")


def _host_gate(scene: Scene) -> None:
    scene.gate = Gate((Closure(GateReason.NO_QUORUM, "no quorum"),))


def _unconfirmed(scene: Scene) -> None:
    scene.memory["startable_since"] = AT - 29.9


def _storage_offline(scene: Scene) -> None:
    scene.configure(storages=frozenset({"local", "nas"}))
    scene.storages["nas"] = StorageState.OFFLINE


def _backoff(scene: Scene) -> None:
    scene.attempts, scene.ended_ago = max(1, scene.attempts), 10.0


def _exhausted(scene: Scene) -> None:
    scene.attempts = 3


def _start(scene: Scene) -> None:
    """Nothing stands in the way: that is the untouched scene."""


SPOIL: dict[str, Callable[[Scene], None]] = {name: globals()[f"_{name}"] for name in ORDER}
ONE_OF_TWO = "the configuration was read or it was not, and only one that was read tells this"
IMPOSSIBLE = {
    ("unreadable", "onboot_off"): ONE_OF_TWO,
    ("unreadable", "storage_offline"): ONE_OF_TWO,
    ("backup", "backup_unknown"): "any yes is a yes; unknown is what remains without one",
}
IMPOSSIBLE |= {(name, "start"): "start is what is said when no guard applies" for name in ORDER[:-1]}
PAIRS = [pair for pair in combinations(ORDER, 2) if pair not in IMPOSSIBLE]


def test_the_guards_are_asked_in_the_order_of_the_design() -> None:
    assert tuple(Guard) == ORDER
    assert set(GUARD_MEANING) == set(Guard)


def test_every_ordered_pair_is_shown_or_is_impossible_for_a_reason() -> None:
    assert len(PAIRS) + len(IMPOSSIBLE) == len(ORDER) * (len(ORDER) - 1) // 2
    assert all(IMPOSSIBLE.values())


@pytest.mark.parametrize("name", ORDER)
def test_a_guard_alone_decides_and_says_what_it_saw(name: str) -> None:
    scene = Scene()
    SPOIL[name](scene)
    decision = decide(scene.case())
    assert decision.guard == name
    assert [v.guard for v in decision.verdicts if v.applies] == [name]
    assert decision.evidence == verdict(decision, name).evidence
    assert all(v.evidence for v in decision.verdicts)


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a}>{b}" for a, b in PAIRS])
def test_of_two_guards_that_apply_the_first_wins(first: str, second: str) -> None:
    scene = Scene()
    for name in (first, second):
        SPOIL[name](scene)
    decision = decide(scene.case())
    assert decision.guard == first
    if first == "running":  # nothing is asked of a running guest, so the second is shown to apply to the same guest stopped
        scene.running = False
        decision = decide(scene.case())
    assert verdict(decision, second).applies


def test_a_running_guest_is_asked_nothing_more() -> None:
    """I2: what is known of a running guest, or missing, can lead to nothing."""
    scene = Scene(running=True)
    assert [v.guard for v in decide(scene.case()).verdicts] == ["running"]


def test_an_excluded_guest_is_not_owned() -> None:
    decision = decide(case(rules=rules(exclude=[101])))
    assert (decision.guard, "excluded" in decision.evidence) == (Guard.NOT_OWNED, True)


@pytest.mark.parametrize(("vmid", "inside"), [(989999, False), (990000, True), (990005, True), (990009, True), (990010, False)])
def test_the_scratch_band_has_both_its_ends(vmid: int, inside: bool) -> None:
    decision = decide(Scene(id=GuestId(CT.kind, vmid)).case())
    assert decision.guard == ("scratch_band" if inside else "start")


def test_a_template_is_one_even_if_only_the_configuration_says_so() -> None:
    """C24: the list's flag may be missing."""
    assert decide(Scene(config=config(template=True)).case()).guard is Guard.TEMPLATE


def test_running_without_a_pid_is_not_stopped_either() -> None:
    """Recorded: a false `running` of 0.1 s, and `running` without a pid while a stop ends; neither may be started."""
    assert decide(Scene(running=True, listed={"pid": None, "up_since": AT}).case()).guard is Guard.RUNNING


@pytest.mark.parametrize(
    ("state", "guard"),
    [(None, "ha"), ("started", "ha"), ("stopped", "ha"), ("error", "ha"), ("", "ha"), ("ignored", "start")],
)
def test_any_hastate_but_ignored_is_ha(state: str | None, guard: str) -> None:
    """C12: a null state is a managed guest (pve-facts A1)."""
    decision = decide(Scene(ha={CT: state}).case())
    assert decision.guard == guard
    assert ("null" in decision.evidence) == (state is None)


@pytest.mark.parametrize(
    "seen", [Unreadable("timeout"), resources(SCRATCH)], ids=["resources unreadable", "resources do not list the guest"]
)
def test_a_guest_of_which_nobody_can_say_whether_it_is_in_ha_is_left_to_ha(seen: Any) -> None:
    assert decide(case(obs=observation(resources=seen))).guard is Guard.HA


def test_a_start_that_was_handed_to_ha_is_never_repeated() -> None:
    known = memory(attempts=(attempt(outcome=Outcome.HANDED_TO_HA),))
    decision = decide(case(memory=known))
    assert (decision.guard, "hastart" in decision.evidence) == (Guard.HA, True)


@pytest.mark.parametrize("lock", ["backup", "migrate", "suspended", "mounted", "frobnicate"])
def test_any_lock_in_list_or_configuration_is_a_lock(lock: str) -> None:
    """C22, C23, I3: a value that PVE does not have today is a lock like any other."""
    assert decide(Scene(listed={"lock": lock}).case()).guard is Guard.LOCKED
    assert decide(Scene(config=config(lock=lock)).case()).guard is Guard.LOCKED


def test_while_its_snapshot_is_being_deleted_it_is_left_to_lock_recovery() -> None:
    """Unlock, delete, start: each step is over before the next begins, and the helper needs a moment until PVE locks the guest."""
    decision = decide(case(recovering=True))
    assert decision.guard is Guard.LOCKED
    assert decision.evidence == "lock recovery is at work on it"
    locked = replace(Scene(listed={"lock": "snapshot-delete"}).case(), recovering=True)
    assert decide(locked).evidence == "lock snapshot-delete"
    assert decide(case(recovering=False)).guard is Guard.START


def test_our_own_start_under_way_is_a_task() -> None:
    own = Attempt(1, AT - 5, AT + 115)
    decision = decide(case(memory=memory(attempts=(own,))))
    assert (decision.guard, "own start" in decision.evidence) == (Guard.TASK, True)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (task("qmconfig", "1010"), "another guest's VMID that begins alike"),
        (task("aptupdate", ""), "a task of the node"),
        (task("vzstart", "102"), "another guest's task"),
        (task("vzconfig", "101", said=Ok()), "a task of this guest that has ended"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_tasks_of_others_and_those_that_ended_are_no_reason(other: Any, why: str) -> None:
    assert decide(case(obs=observation(tasks=(other,)))).guard is Guard.START, why


def test_an_unreadable_task_list_is_no_task_but_an_unknown_backup() -> None:
    """C02."""
    decision = decide(case(obs=observation(tasks=Unreadable("without Sys.Audit"))))
    assert (decision.guard, "Sys.Audit" in decision.evidence) == (Guard.BACKUP_UNKNOWN, True)
    assert "cannot tell" in verdict(decision, Guard.TASK).evidence


@pytest.mark.parametrize("state", [StorageState.UNKNOWN, StorageState.AVAILABLE, None])
def test_a_storage_that_is_not_known_to_be_offline_does_not_block(state: StorageState | None) -> None:
    states = {} if state is None else {"local": state}
    found = case(obs=observation(resources=resources(storages=states)))
    assert decide(found).guard is Guard.START
    assert offline_storages(found.config, found.obs.resources) == frozenset()


def test_an_offline_storage_that_the_guest_does_not_need_does_not_block() -> None:
    states = {"local": StorageState.AVAILABLE, "nas": StorageState.OFFLINE}
    assert decide(case(obs=observation(resources=resources(storages=states)))).guard is Guard.START


def test_no_storage_is_offline_where_nothing_could_be_read() -> None:
    assert offline_storages(config(), Unreadable("timeout")) == frozenset()


def test_the_second_look_decides_at_the_full_30_s() -> None:
    assert decide(case(memory=memory(startable_since=AT - 29.9))).guard is Guard.UNCONFIRMED
    assert decide(case(memory=memory(startable_since=AT - 30))).guard is Guard.START
    assert decide(case(memory=memory(startable_since=None))).guard is Guard.UNCONFIRMED


def test_while_the_task_history_is_not_read_no_look_decides() -> None:
    """Who stopped it, and whether it is another guest by now, must be known before it is started."""
    assert decide(case(memory=memory(cause_read=False, startable_since=AT - 3600))).guard is Guard.UNCONFIRMED


@pytest.mark.parametrize(("made", "wait"), [(1, 60), (2, 120), (3, 240)])
def test_each_attempt_is_followed_by_its_own_wait(made: int, wait: float) -> None:
    """1 min, 2 min, 4 min after the end of each, to the second."""
    for passed, guard in ((wait - 0.1, Guard.BACKOFF), (wait, Guard.EXHAUSTED if made == 3 else Guard.START)):
        known = memory(attempts=tuple(attempt(n, ended=AT - passed) for n in range(1, made + 1)))
        assert decide(case(memory=known)).guard is guard


def test_the_last_wait_repeats_for_more_attempts_than_waits() -> None:
    known = memory(attempts=tuple(attempt(n, ended=AT - 239) for n in range(1, 6)))
    assert decide(case(memory=known, rules=rules(attempts=9))).guard is Guard.BACKOFF


class TestOperatorStop:
    """`operator_stop = "hold"`: a stop through PVE holds a guest until it runs, is re-armed or its configuration changes."""

    holds = rules(operator_stop="hold")

    def guard(self, **known: Any) -> Guard:
        return decide(case(memory=memory(**known), rules=self.holds)).guard

    def test_a_stop_by_a_person_holds(self) -> None:
        assert self.guard(cause=cause("vzshutdown")) is Guard.HELD

    def test_one_that_was_released_holds_no_more(self) -> None:
        """By `guestward rearm`, or by a new configuration."""
        assert self.guard(cause=cause("vzshutdown"), released=True) is Guard.START

    def test_a_crash_does_not_hold(self) -> None:
        assert self.guard(cause=None) is Guard.START

    def test_the_shutdown_of_a_backup_does_not_hold(self) -> None:
        assert self.guard(cause=cause("qmshutdown", by_vzdump=True)) is Guard.START

    def test_a_reboot_does_not_hold(self) -> None:
        assert self.guard(cause=cause("vzreboot")) is Guard.START

    def test_a_history_that_could_not_be_read_holds(self) -> None:
        """Unknown is not no."""
        assert self.guard(cause_read=False) is Guard.HELD

    def test_by_default_onboot_decides(self) -> None:
        """C09: the mission is to start it; who stopped it is for the log."""
        assert decide(case(memory=memory(cause=cause()))).guard is Guard.START


class TestNextStep:
    """`next_at`: when the next step comes if nothing changes."""

    def test_of_a_hold_is_its_end(self) -> None:
        assert decide(case(hold=(hold(101), 90.0))).next_at == AT + 90

    def test_of_a_guest_that_would_stay_down_without_the_hold_is_nothing(self) -> None:
        assert decide(Scene(config=config(onboot=False), hold=(hold(101), 90.0)).case()).next_at is None

    def test_of_a_stop_that_holds_is_nothing(self) -> None:
        assert decide(case(memory=memory(cause=cause()), rules=rules(operator_stop="hold"))).next_at is None

    def test_of_a_gate_is_the_latest_known_end(self) -> None:
        closures = (Closure(GateReason.HOLD, "held", AT + 10), Closure(GateReason.MASS_STOP, "many", AT + 900))
        assert decide(case(gate=Gate(closures))).next_at == AT + 900

    def test_of_a_gate_without_a_known_end_is_nothing(self) -> None:
        closures = (Closure(GateReason.HOLD, "held", AT + 10), Closure(GateReason.NO_QUORUM, "no quorum"))
        assert decide(case(gate=Gate(closures))).next_at is None

    def test_of_a_guest_seen_stopped_once_is_the_second_look(self) -> None:
        assert decide(case(memory=memory(startable_since=AT - 10))).next_at == AT + 20
        assert decide(case(memory=memory(startable_since=None))).next_at == AT + 30

    @pytest.mark.parametrize(("seen_ago", "next_in"), [(29, 1), (30, None), (31, None)])
    def test_of_a_guest_whose_task_history_is_not_read_is_the_second_look_or_unknown(self, seen_ago: float, next_in: float | None) -> None:
        """What waits for the task history waits for the next sweep, not for a moment that is over."""
        known = memory(cause_read=False, startable_since=AT - seen_ago)
        assert decide(case(memory=known)).next_at == (None if next_in is None else AT + next_in)

    def test_of_a_wait_is_its_end(self) -> None:
        assert decide(case(memory=memory(attempts=(attempt(ended=AT - 10),)))).next_at == AT + 50

    def test_of_a_start_is_now_and_of_the_others_unknown(self) -> None:
        assert decide(case()).next_at == AT
        assert decide(Scene(listed={"lock": "backup"}).case()).next_at is None


def test_witnesses_are_asked_only_for_a_guest_that_might_be_started() -> None:
    """Six calls at most: HA, storages and backup witnesses cost one, and only a candidate needs them."""
    before = ("not_owned", "scratch_band", "template", "running", "unreadable", "onboot_off", "new_here", "held")
    for name in ORDER:
        scene = Scene()
        SPOIL[name](scene)
        assert may_start(scene.case()) == (name not in before), name


def test_a_decision_carries_the_guests_id_and_name() -> None:
    decision = decide(case())
    assert (decision.id, decision.name) == (CT, "guest101")


@pytest.mark.parametrize("seen", [{"lock": "backup"}, {}], ids=["a lock of the list", "a task of this guest alone"])
def test_a_backup_that_one_witness_knows_of_is_not_unknown_however_many_are_silent(seen: dict[str, Any]) -> None:
    tasks = () if seen else (task("vzdump", "101"),)
    decision = decide(case(obs=observation(listed(**seen), tasks=tasks, backups=replace(QUIET, flock=Unreadable("permission denied")))))
    assert verdict(decision, Guard.BACKUP).applies
    assert not verdict(decision, Guard.BACKUP_UNKNOWN).applies


def test_the_last_attempt_is_the_one_that_is_told() -> None:
    made = tuple(attempt(n, reason=f"reason {n}") for n in range(1, 4))
    assert "reason 3" in decide(case(memory=memory(attempts=made))).evidence


def test_a_backup_of_this_guest_alone_is_told_with_its_vmid() -> None:
    found = task("vzdump", "101", pid=upid("x").pid)
    decision = decide(case(obs=observation(tasks=(found,))))
    assert (decision.guard, "101" in decision.evidence) == (Guard.BACKUP, True)


WORDS: dict[str, tuple[Guard, Scene | Case]] = {
    "not owned, two pools": (Guard.NOT_OWNED, case(obs=observation(members={}), rules=rules(pools=["guestward", "web"]))),
    "not owned, excluded": (Guard.NOT_OWNED, case(rules=rules(exclude=[101]))),
    "scratch band": (Guard.SCRATCH_BAND, Scene(id=SCRATCH)),
    "template, says the list": (Guard.TEMPLATE, Scene(listed={"template": True})),
    "template, says the configuration": (Guard.TEMPLATE, Scene(config=config(template=True))),
    "running": (Guard.RUNNING, Scene(running=True)),
    "running, no process yet": (Guard.RUNNING, Scene(running=True, listed={"pid": None, "up_since": AT})),
    "configuration unreadable": (Guard.UNREADABLE, Scene(config=Unreadable("configuration: timeout"))),
    "configuration unreadable, onboot": (Guard.ONBOOT_OFF, Scene(config=Unreadable("configuration: timeout"))),
    "configuration not read": (Guard.UNREADABLE, case(obs=observation(configs={}))),
    "onboot off": (Guard.ONBOOT_OFF, Scene(config=config(onboot=False))),
    "new here": (Guard.NEW_HERE, Scene(memory={"new": True})),
    "held": (Guard.HELD, Scene(hold=(hold(101), 90.0))),
    "held without a reason": (Guard.HELD, Scene(hold=(hold(101, reason=""), 7140.0))),
    "a stop that holds": (Guard.HELD, case(memory=memory(cause=cause(user="alice@pve")), rules=rules(operator_stop="hold"))),
    "a stop that may hold": (Guard.HELD, case(memory=memory(cause_read=False), rules=rules(operator_stop="hold"))),
    "no stop that holds": (Guard.HELD, case(rules=rules(operator_stop="hold"))),
    "ha, started": (Guard.HA, Scene(ha={CT: "started"})),
    "ha, state null": (Guard.HA, Scene(ha={CT: None})),
    "ha, handed over": (Guard.HA, case(memory=memory(attempts=(attempt(outcome=Outcome.HANDED_TO_HA),)))),
    "ha, unreadable": (Guard.HA, case(obs=observation(resources=Unreadable("timeout")))),
    "ha, not listed": (Guard.HA, case(obs=observation(resources=resources(SCRATCH)))),
    "locked": (Guard.LOCKED, Scene(listed={"lock": "migrate"})),
    "a task runs": (Guard.TASK, Scene(tasks=[task("vzconfig", "101", "alice@pve")])),
    "our own start runs": (Guard.TASK, case(memory=memory(attempts=(Attempt(2, AT - 5, AT + 115),)))),
    "no task list": (Guard.TASK, case(obs=observation(tasks=Unreadable("without Sys.Audit")))),
    "backup": (Guard.BACKUP, Scene(tasks=[task("vzdump")])),
    "backup unknown": (Guard.BACKUP_UNKNOWN, Scene(witnesses={"flock": Unreadable("permission denied")})),
    "backup unknown, but one is known": (Guard.BACKUP_UNKNOWN, Scene(tasks=[task("vzdump")])),
    "host gate": (Guard.HOST_GATE, Scene(gate=Gate((Closure(GateReason.NO_QUORUM, "no quorum"),)))),
    "first look": (Guard.UNCONFIRMED, Scene(memory={"startable_since": None})),
    "second look too early": (Guard.UNCONFIRMED, Scene(memory={"startable_since": AT - 10})),
    "task history not read": (Guard.UNCONFIRMED, Scene(memory={"cause_read": False})),
    "storages offline": (
        Guard.STORAGE_OFFLINE,
        Scene(config=config(storages=frozenset({"nas", "san"})), storages={"nas": StorageState.OFFLINE, "san": StorageState.OFFLINE}),
    ),
    "back-off": (Guard.BACKOFF, Scene(attempts=1, ended_ago=10)),
    "exhausted, failed": (Guard.EXHAUSTED, Scene(attempts=3)),
    "exhausted, did not stay up": (
        Guard.EXHAUSTED,
        case(memory=memory(attempts=tuple(attempt(n, outcome=Outcome.STARTED) for n in range(1, 4)))),
    ),
    "the second attempt": (Guard.START, Scene(attempts=1)),
}


def test_what_the_guards_say_is_what_a_person_can_read() -> None:
    """The words of `guestward explain` and of the field `evidence`: of a guest with nothing in its way, then of each guard in its cases."""
    lines = [f"{said.guard}: {said.evidence}" for said in decide(case()).verdicts]
    for name, (guard, scene) in WORDS.items():
        found = scene.case() if isinstance(scene, Scene) else scene
        lines.append(f"{name}: {verdict(decide(found), guard).evidence}")
    golden("words_of_guards.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (40, "40 s"), (119, "119 s"), (119.4, "119 s"), (120, "2 min"), (7140, "119 min"), (7200, "120 min")],
)
def test_a_stretch_of_time_is_told_in_seconds_below_two_minutes(seconds: float, words: str) -> None:
    assert minutes(seconds) == words
