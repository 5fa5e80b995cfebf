"""The invariant monitors: each holds for what comes close, and each breaks, by its name, when the agent is made to do wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from guestward.duties import power, starts, telling
from guestward.duties.grants import Grants
from guestward.duties.power import PowerWatch
from guestward.duties.scratch import Teardown
from guestward.duties.starts import Starter
from guestward.duties.telling import Teller
from guestward.model.decision import Guard, Outcome
from guestward.model.events import Event, Level, all_events
from guestward.model.guest import GuestId, GuestKind
from guestward.model.helper import HelperCode, Request, Verb
from guestward.policy import attempts, gate, guards, locks, recall, turns
from guestward.ports import GuestLabel, PveError
from guestward.sim.doors import Fault
from guestward.sim.hostphase import BOOTING
from guestward.sim.monitors import CLASSES, claims
from guestward.sim.monitors.heard import CANARY
from guestward.sim.run import Simulation
from guestward.sim.world import BOOTED, EPOCH, World
from tests.unit.build import CT, down, every, simulation

pytestmark = pytest.mark.breaks_a_monitor  # `breaks` and `holds` say which

NO = (False, "")
Doctor = Callable[[pytest.MonkeyPatch], None]


def blind(*names: Guard) -> Doctor:
    """An agent without these guards."""

    def doctor(patch: pytest.MonkeyPatch) -> None:
        for name in names:
            patch.setitem(guards._QUESTIONS, name, lambda case: NO)

    return doctor


def breaks(sim: Simulation, until: float, invariant: str, *words: str) -> None:
    """The run ends with that invariant, and the message has these words."""
    sim.run(until)
    sim.finish()
    assert sim.violation is not None, "nothing broke"
    assert sim.violation.invariant == invariant, sim.violation
    assert sim.stream[-1] is sim.violation
    assert all(word in sim.violation.message for word in words), sim.violation.message


def holds(sim: Simulation, until: float) -> Simulation:
    sim.run(until)
    sim.finish()
    assert sim.violation is None, sim.violation
    return sim


def told(sim: Simulation, event: Any, level: Level | None = None, guard: str = "", **fields: Any) -> None:
    """The agent says something, whatever it knows."""
    label = GuestLabel(CT, "guest101", guard) if event.guest else None
    sim.journal.emit(event, level, message="x", guest=label, **fields)


def says(event: Any, level: Level | None = None, guard: str = "", **fields: Any) -> Simulation:
    """A guest runs; at 130 s, with a sweep, the agent says something that is not so."""
    sim = simulation()
    sim.world.add(101)
    sim.run(100)
    look = PowerWatch.sweep

    def sweep(self: PowerWatch) -> Any:
        report = look(self)
        told(sim, event, level, guard, **fields)
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PowerWatch, "sweep", sweep)
        sim.run(130)
    return sim


# ---------------------------------------------------------------------------------------------------- starts that must not be


def off(sim: Simulation) -> None:
    down(sim, 101, onboot="0")


def locked(sim: Simulation) -> None:
    down(sim, 101, lock="migrate")


def foreign(sim: Simulation) -> None:
    down(sim, 101, pool="other")
    sim.world.acl.grant("VM.Audit", "/vms/101")
    sim.world.acl.grant("VM.PowerMgmt", "/vms/101")


def backed_up(sim: Simulation) -> None:
    down(sim, 101)
    sim.world.at(35, lambda: sim.world.task("vzdump", "101"))


def archived(sim: Simulation) -> None:
    down(sim, 101)
    sim.world.at(35, lambda: (sim.world.vzdump.archives.add(101), sim.world.touch()))


def unprovable(sim: Simulation) -> None:
    down(sim, 101)
    sim.world.at(35, lambda: sim.world.unreadable.update(flock="denied"))


def without_audit(sim: Simulation) -> None:
    down(sim, 101)
    sim.world.at(70, lambda: sim.world.acl.revoke("Sys.Audit", "/nodes/pve1"))


def at_work(sim: Simulation) -> None:
    down(sim, 101)
    sim.world.at(35, lambda: sim.world.task("vzmigrate", "101"))


def held(sim: Simulation) -> None:
    down(sim, 101)
    sim.hold(101)


def of_ha(sim: Simulation) -> None:
    down(sim, 101, ha=("started",))


def offline(sim: Simulation) -> None:
    down(sim, 101)
    sim.world.at(35, lambda: sim.world.storage("local", online=False))


def scratch(sim: Simulation) -> None:
    sim.world.add(990001, running=False, pool="guestward")


def template(sim: Simulation) -> None:
    sim.world.add(101, running=False, template=True)


def new(sim: Simulation) -> None:
    sim.world.add(102)

    def create() -> None:
        guest = sim.world.create(101)
        guest.onboot, guest.pool = True, "guestward"

    sim.world.at(35, create)


def no_quorum(sim: Simulation) -> None:
    down(sim, 101)
    sim.world.at(35, lambda: setattr(sim.world, "quorate", False))


def stopall(sim: Simulation) -> None:
    down(sim, 101)
    sim.world.at(35, lambda: sim.world.task("stopall"))


def node_held(sim: Simulation) -> None:
    down(sim, 101)
    sim.hold()


def mass_stop(sim: Simulation) -> None:
    for vmid in (101, 102, 103):
        sim.world.add(vmid)
        sim.world.at(30, partial(sim.world.stop, vmid))


MUST_NOT = [
    ("I1", off, blind(Guard.ONBOOT_OFF)),
    ("I1", scratch, blind(Guard.SCRATCH_BAND)),
    ("I1", template, blind(Guard.TEMPLATE)),
    ("I3", locked, blind(Guard.LOCKED)),
    ("I4", backed_up, blind(Guard.BACKUP)),
    ("I4", archived, blind(Guard.BACKUP)),
    ("I4", unprovable, blind(Guard.BACKUP_UNKNOWN)),
    ("I4", without_audit, blind(Guard.BACKUP_UNKNOWN)),
    ("TASK", at_work, blind(Guard.TASK)),
    ("HELD", held, blind(Guard.HELD)),
    ("HA", of_ha, blind(Guard.HA)),
    ("STORAGE", offline, blind(Guard.STORAGE_OFFLINE)),
    ("NEW", new, blind(Guard.NEW_HERE)),
    ("GATE", no_quorum, blind(Guard.HOST_GATE)),
    ("GATE", stopall, blind(Guard.HOST_GATE)),
    ("GATE", node_held, blind(Guard.HOST_GATE)),
    ("GATE", mass_stop, blind(Guard.HOST_GATE)),
    ("CONFIRM", partial(down, vmid=101), blind(Guard.UNCONFIRMED)),
]


def _name(value: object) -> str:
    return getattr(value, "__name__", str(value) if isinstance(value, str) else "")


@pytest.mark.parametrize(("invariant", "scene", "doctor"), MUST_NOT, ids=_name)
def test_without_its_guard_a_start_breaks_the_invariant_and_with_it_nothing_breaks(
    invariant: str, scene: Callable[[Simulation], None], doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = simulation()
    scene(sim)
    holds(sim, 900)
    with monkeypatch.context() as patch:
        doctor(patch)
        patch.setattr(claims, "guard_holds", lambda *of: True)  # which would break first, by what the agent says
        sim = simulation()
        scene(sim)
        breaks(sim, 900, invariant, "990001" if scene is scratch else "10")


def test_i1_a_guest_of_another_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation()
    foreign(sim)
    holds(sim, 600)
    sim = simulation()
    foreign(sim)
    sim.run(95)
    ask(sim, "live", "config")
    breaks_now(sim, "I1", "101")


def ask(sim: Simulation, *kinds: str) -> None:
    """The agent asks these things of 101."""
    assert sim.watch is not None
    env, deadline = sim.watch.env, sim.world.boottime + 10
    questions: dict[str, Callable[[], object]] = {
        "live": lambda: env.pve.live(CT, deadline=deadline),
        "config": lambda: env.pve.config(CT, deadline=deadline),
        "active": lambda: env.pve.active_tasks(deadline=deadline),
        "backups": env.host.backups,
        "members": lambda: env.pve.members("guestward", deadline=deadline),
    }
    for kind in kinds:
        questions[kind]()


def breaks_now(sim: Simulation, invariant: str, *words: str) -> None:
    """A start of 101 sent at this very moment."""

    def start() -> None:
        assert sim.watch is not None
        sim.watch.env.pve.start(CT, deadline=sim.world.boottime + 10)

    sim.world.at(sim.world.now, start)
    breaks(sim, sim.world.now + 1, invariant, *words)


def test_i2_a_start_of_a_guest_that_runs() -> None:
    sim = simulation()
    sim.world.add(101, "lxc")
    sim.run(95)
    ask(sim, "live", "config", "active", "backups")
    breaks_now(sim, "I2", "101", "it runs")


@pytest.mark.parametrize("asked", [("config", "active", "backups"), ("live", "active", "backups")], ids=str)
def test_i12_a_start_without_a_look_right_before_it(asked: tuple[str, ...]) -> None:
    sim = simulation()
    sim.world.add(101, running=False)
    sim.run(10)
    sim.world.acl.changed()
    ask(sim, *asked)
    breaks_now(sim, "I12", "101", "without a read of its")


def test_i4_a_start_without_asking_the_witnesses() -> None:
    sim = simulation()
    sim.world.add(101, running=False)
    sim.run(10)
    ask(sim, "live", "config", "active")
    breaks_now(sim, "I4", "101", "did not answer")


@pytest.mark.parametrize(
    "change",
    [
        lambda sim: setattr(sim.world.guests[101], "lock", "backup"),
        lambda sim: setattr(sim.world.guests[101], "onboot", False),
        lambda sim: setattr(sim.world, "quorate", False),
        lambda sim: sim.world.task("vzdump", "101"),
        lambda sim: sim.world.power_on(101),
        lambda sim: sim.hold(101),
    ],
)
def test_what_comes_after_the_last_look_is_no_fault(change: Callable[[Simulation], object]) -> None:
    sim = simulation()
    down(sim, 101)
    sim.pve.before["POST /nodes/pve1/lxc/101/status/start"] = lambda: change(sim)
    holds(sim, 300)


def test_operator_stop_hold_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> Simulation:
        sim = simulation(operator_stop="hold")
        sim.world.add(101)
        sim.world.at(30, lambda: sim.world.stop(101, by="alice@pve"))
        return sim

    holds(stopped(), 600)
    blind(Guard.HELD)(monkeypatch)
    breaks(stopped(), 600, "HELD", "101", "alice@pve")


def test_a_mass_stop_that_was_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power.causes, "mass_stop", lambda *of: False)
    sim = simulation()
    mass_stop(sim)
    breaks(sim, 900, "GATE", "before the pause")


# ---------------------------------------------------------------------------------------------------- order


def two(sim: Simulation) -> None:
    down(sim, 101, startup="order=1,up=60", start_takes=20.0)
    down(sim, 102, startup="order=2")


def test_order_and_its_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation()
    two(sim)
    holds(sim, 600)
    monkeypatch.setattr(starts, "whose_turn", lambda due, under_way, parallel: turns.in_order(due))
    sim = simulation()
    two(sim)
    breaks(sim, 600, "ORDER", "lxc/102", "lxc/101")


def test_a_delay_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Starter.ended

    def forgets(self: Starter, *of: Any) -> None:
        ended(self, *of)
        self.next_turn_at = 0.0

    monkeypatch.setattr(Starter, "ended", forgets)
    sim = simulation()
    two(sim)
    breaks(sim, 600, "ORDER", "start of 102", "up=60")


def test_no_more_than_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    def three() -> Simulation:
        sim = simulation(parallel=2)
        for vmid in (101, 102, 103):
            down(sim, vmid, start_takes=30.0)
        return sim

    holds(three(), 600)
    monkeypatch.setattr(starts, "whose_turn", lambda due, under_way, parallel: turns.in_order(due))
    breaks(three(), 600, "ORDER", "at most 2")


# ---------------------------------------------------------------------------------------------------- attempts


def failing(**watchdog: Any) -> Simulation:
    sim = simulation(**watchdog)
    down(sim, 101, start=("fail: x",))
    return sim


def test_i5_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    holds(failing(), 7200)
    blind(Guard.EXHAUSTED)(monkeypatch)
    breaks(failing(), 7200, "I5", "lxc/101", "start 4")


def test_i5_the_bound_outlives_the_agent() -> None:
    sim = failing()
    sim.run(900)
    sim.kill()
    sim.store.guest_memories[CT] = replace(sim.store.guest_memories[CT], attempts=(), given_up=False)
    sim.start()
    breaks(sim, 3000, "I5", "lxc/101", "start 4")


@pytest.mark.parametrize("again", ["rearm", "configuration", "boot", "stable", "identity"])
def test_i5_there_are_reasons_for_new_attempts(again: str) -> None:
    sim = failing()
    sim.run(900)
    world = sim.world
    if again == "rearm":
        sim.rearm(101)
    elif again == "configuration":
        world.guests[101].note = "changed"
    elif again == "boot":
        sim.host("booting")
        sim.run(1000)
        sim.host("up")
        sim.run(1010)
        world.die(101)
    elif again == "stable":
        world.power_on(101)
        sim.run(2400)
        world.die(101)
    else:
        world.guests[101].identity = "another"
        sim.run(1000)
        sim.rearm(101)
    holds(sim, 6000)
    assert len(sim.starts()) == 6


def test_i5_the_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    holds(failing(), 1200)
    blind(Guard.BACKOFF)(monkeypatch)
    breaks(failing(), 1200, "I5", "lxc/101", "back-off is 60 s")


def test_i16_a_wall_clock_that_is_set_shortens_no_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = failing()
    sim.world.at(95, lambda: sim.world.clock_wall(3600))
    holds(sim, 1200)
    asked = guards._QUESTIONS[Guard.BACKOFF]
    by_wall = lambda case: asked(replace(case, obs=replace(case.obs, at=case.obs.wall - EPOCH + BOOTED)))  # noqa: E731
    monkeypatch.setitem(guards._QUESTIONS, Guard.BACKOFF, by_wall)
    sim = failing()
    sim.world.at(95, lambda: sim.world.clock_wall(3600))
    breaks(sim, 1200, "I5", "lxc/101")


def test_i5_given_up_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = recall.settle

    def again(*of: Any, **how: Any) -> Any:
        found = settle(*of, **how)
        return replace(found, memory=replace(found.memory, given_up=False))

    monkeypatch.setattr(recall, "settle", again)
    breaks(failing(), 3600, "I5", "lxc/101", "given up again")


def test_i5_given_up_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(guards._QUESTIONS, Guard.EXHAUSTED, lambda case: (len(case.memory.attempts) >= 2, ""))
    breaks(failing(), 3600, "I5", "lxc/101", "after 2 attempts")


def test_i11_a_second_request_while_the_first_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> Simulation:
        sim = simulation(start_timeout="10m")
        down(sim, 101, start=("lost before", "ok"))
        return sim

    holds(lost(), 1500)
    send = Starter._send

    def twice(self: Starter, memory: Any) -> None:
        send(self, memory)
        self.state.env.pve.live(memory.id, deadline=1e9)
        self.state.env.pve.config(memory.id, deadline=1e9)
        self.state.env.pve.active_tasks(deadline=1e9)
        self.state.env.host.backups()
        send(self, memory)

    monkeypatch.setattr(Starter, "_send", twice)
    breaks(lost(), 300, "I11", "lxc/101")


# ---------------------------------------------------------------------------------------------------- outcomes


@pytest.mark.parametrize("script", ["ok", "hang", "lost before", "lost after", "warnings: 2", "fail: x", "ok: stays stopped", "flap 5"])
def test_every_outcome_is_told_as_it_was(script: str) -> None:
    sim = simulation()
    down(sim, 101, start=(script,), start_takes=20.0)
    holds(sim, 1800)


def always(outcome: Outcome) -> Doctor:
    def doctor(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(attempts, "follow", lambda attempt, at, said, live: attempts.end(attempt, at, outcome, "x"))

    return doctor


@pytest.mark.parametrize(
    ("script", "outcome", "invariant"),
    [
        ("hang", Outcome.STARTED, "I12"),
        ("hang", Outcome.FAILED, "I9"),
        ("lost before", Outcome.FAILED, "I9"),
        ("ok", Outcome.UNKNOWN, "I9"),
        ("fail: x", Outcome.UNKNOWN, "I9"),
        ("fail: x", Outcome.UNCHANGED, "I9"),
        ("fail: x", Outcome.HANDED_TO_HA, "I9"),
        ("fail: x", Outcome.STARTED, "I12"),
    ],
)
def test_i9_i12_an_outcome_that_was_not(script: str, outcome: Outcome, invariant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    always(outcome)(monkeypatch)
    sim = simulation()
    down(sim, 101, start=(script,))
    breaks(sim, 600, invariant, "lxc/101")


def test_i9_a_task_that_was_cut_off_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut() -> Simulation:
        sim = simulation()
        down(sim, 101, start=("hang", "ok"))
        sim.world.at(95, lambda: sim.world.task_end("vzstart", "101", said="unexpected status"))
        return sim

    holds(cut(), 600)
    monkeypatch.setattr(attempts, "_not_there", lambda attempt, at: attempts.end(attempt, at, Outcome.FAILED, "cut off"))
    breaks(cut(), 600, "I9", "lxc/101", "unexpected status")


def test_i10_what_comes_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow() -> Simulation:
        sim = simulation(start_timeout="30s")
        down(sim, 101, start_takes=60.0)
        return sim

    holds(slow(), 600)
    step = Starter.step

    def patient(self: Starter, memory: Any) -> None:
        attempt = replace(memory.attempts[-1], deadline=memory.attempts[-1].deadline + 1000)
        step(self, replace(memory, attempts=(*memory.attempts[:-1], attempt)))

    monkeypatch.setattr(Starter, "step", patient)
    breaks(slow(), 600, "I10", "lxc/101", "after its deadline")


def test_each_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Starter, "_tell_attempt", lambda *of: None)
    sim = simulation()
    down(sim, 101)
    breaks(sim, 300, "CLAIMS", "lxc/101", "was not told")


def test_each_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Starter.ended

    class Mute:
        def emit(self, *of: Any, **how: Any) -> None:
            return

    def muted(self: Starter, memory: Any, attempt: Any) -> None:
        journal, self.state.env.journal = self.state.env.journal, Mute()
        ended(self, memory, attempt)
        self.state.env.journal = journal

    monkeypatch.setattr(Starter, "ended", muted)
    sim = simulation()
    down(sim, 101)
    breaks(sim, 1200, "CLAIMS", "lxc/101", "never told")


# ---------------------------------------------------------------------------------------------------- telling


def test_i6_an_aborted_sweep_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def troubled() -> Simulation:
        sim = simulation(heartbeat_every=3)
        sim.world.add(101)
        every(sim, 120, lambda: sim.world.api.fault("/nodes/pve1/lxc", 500), until=1200, start=50)
        every(sim, 120, sim.world.api.up, until=1200, start=110)
        return sim

    holds(troubled(), 1300)
    abort = PowerWatch._abort

    def counts(self: PowerWatch, seen: Any, *, counted: bool) -> Any:
        found = abort(self, seen, counted=counted)
        self.state.node = replace(self.state.node, sweeps=self.state.node.sweeps + 1)
        return found

    monkeypatch.setattr(PowerWatch, "_abort", counts)
    breaks(troubled(), 1300, "I6")


@pytest.mark.parametrize("field", ["guests_evaluated", "currently_stopped", "sweeps_since_boot", "left_down"])
def test_i6_numbers_that_are_not_so(field: str) -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.add(102, running=False, onboot=False)
    emit = sim.journal.emit

    def lies(event: Any, level: Any = None, *, message: str, guest: Any = None, **fields: Any) -> None:
        if field in fields:
            fields[field] = [] if field == "left_down" else fields[field] + (10 if field == "sweeps_since_boot" else 1)
        emit(event, level, message=message, guest=guest, **fields)

    holds(sim, 500)
    assert sim.watch is not None
    sim.watch.env.journal = type("Liar", (), {"emit": staticmethod(lies)})()
    breaks(sim, 700, "I6")


def test_i6_no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PowerWatch, "_heartbeat", lambda self: None)
    sim = simulation()
    breaks(sim, 700, "I6", "no heartbeat")


def test_i13_a_grant_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def revoked() -> Simulation:
        sim = simulation()
        sim.world.add(101)
        sim.world.at(130, lambda: sim.world.acl.revoke("Datastore.Audit", "/storage"))
        sim.world.at(400, lambda: sim.world.acl.grant("Datastore.Audit", "/storage"))
        return sim

    holds(revoked(), 900)
    monkeypatch.setattr(Teller, "grants", lambda self, lost: None)
    breaks(revoked(), 900, "I13", "Datastore.Audit on /storage", "lost")


def test_i13_a_grant_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    grants = Teller.grants

    def forgetful(self: Teller, lost: Any) -> None:
        grants(self, lost)
        self.lost = frozenset()

    monkeypatch.setattr(Teller, "grants", forgetful)
    sim = simulation()
    sim.world.at(130, lambda: sim.world.acl.revoke("Datastore.Audit", "/storage"))
    breaks(sim, 900, "I13", "told before")


def test_i14_a_dead_agent_does_nothing() -> None:
    sim = simulation()
    sim.world.add(101, running=False)
    sim.run(10)
    sim.kill()
    sim.world.at(20, lambda: sim.world.effect("api", "start", 101, "ok"))
    breaks(sim, 30, "I14", "101")


@pytest.mark.parametrize("verb", ["stop", "destroy", "reset", "shutdown", "release-scratch"])
def test_i8_nothing_is_stopped_or_destroyed_outside_the_band(verb: str) -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(20, lambda: sim.world.effect("api", verb, 101, "ok"))
    breaks(sim, 30, "I8", "101", verb)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that tears nothing down and has no grants put back of its own accord."""
    monkeypatch.setattr(Teardown, "look", lambda self: None)
    monkeypatch.setattr(Grants, "look", lambda self: None)


def leftover(min_age: str = "0s", **traits: Any) -> Simulation:
    sim = Simulation(settings={"scratch": {"origins": ["restic@pve!restore"], "min_age": min_age}})
    sim.world.add(990003, running=False, pool=None, **traits)
    sim.run(10)
    return sim


def destroys(sim: Simulation) -> None:
    sim.world.at(70, lambda: sim.world.effect("api", "destroy", 990003, "ok"))


TAGGED = "a;guestward-scratch"


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("why", ["tag", "origin", "claim"])
def test_i8_a_proven_leftover_may_go(why: str) -> None:
    sim = leftover(tags=TAGGED if why == "tag" else "")
    if why == "origin":
        sim.world.restore(990003, by="restic@pve!restore")
    elif why == "claim":
        sim.claim(990003, 30)
        sim.world.restore(990003, by="alice@pve")
    destroys(sim)
    holds(sim, 80)


def _claimed(sim: Simulation) -> None:
    sim.claim(990003)


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize(
    ("traits", "do", "invariant", "word"),
    [
        ({}, None, "I8", "nothing proves"),
        ({"protection": True}, None, "I8", "protected"),
        ({"ha": ("started",)}, None, "I8", "HA"),
        ({"template": True}, None, "I8", "template"),
        ({}, lambda sim: sim.world.migrate(990003, "pve2") or sim.world.migrate(990003, "pve1"), "I8", "nothing proves"),
        ({}, lambda sim: sim.world.task("vzsnapshot", "990003"), "I8", "vzsnapshot by root@pam runs"),
        ({"min_age": "1h"}, lambda sim: sim.world.restore(990003, by="restic@pve!restore"), "I8", "a moment ago"),
        ({}, _claimed, "I8", "claimed or held"),
        ({}, lambda sim: sim.hold(990003), "I8", "claimed or held"),
        ({}, lambda sim: sim.hold(), "GATE", "the node is held"),
        ({}, lambda sim: setattr(sim.world, "quorate", False), "GATE", "no quorum"),
    ],
)
def test_i8_what_is_not_proven_or_protected_or_in_use_stays(
    traits: dict[str, Any], do: Callable[[Simulation], object] | None, invariant: str, word: str
) -> None:
    sim = leftover(**traits, tags="" if word == "nothing proves" else TAGGED)
    if do is not None:
        do(sim)
    destroys(sim)
    breaks(sim, 80, invariant, "990003", word)


@pytest.mark.usefixtures("by_hand")
def test_i13_a_grant_of_the_band_that_nobody_puts_back() -> None:
    sim = simulation()
    sim.world.at(130, lambda: sim.world.acl.revoke("VM.Allocate", "/vms/990004", "user"))
    breaks(sim, 600, "I13", "/vms/990004")


SAID = {
    "not ours": ("scratch_found", {"verdict": "leftover", "evidence": ""}, "nothing proves"),
    "not so": ("scratch_refused", {"verdict": "protected", "evidence": ""}, "protected"),
    "not asked": ("scratch_destroyed", {"outcome": "gone", "reason": "", "evidence": ""}, "nobody has asked"),
    "no such volume": ("scratch_leftover", {"volumes": ["local:1/vm-1-disk-0.raw"], "reason": ""}, "nobody has asked"),
    "not stranded": ("scratch_stranded", {"path": "/vms/990003", "privilege": "", "reason": ""}, "has all its grants"),
    "no such step": ("scratch_step_failed", {"step": "destroy", "reason": "", "attempt": 1, "of": 3}, "nobody has asked"),
}


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("what", SAID)
def test_what_is_said_of_the_band_is_so(what: str) -> None:
    event, fields, words = SAID[what]
    sim = leftover()
    kind = next(kind for kind in all_events() if kind.name == event)
    label = GuestLabel(GuestId(GuestKind.LXC, 990003), "guest990003", "scratch_band")
    sim.world.at(70, lambda: sim.journal.emit(kind, message="", guest=label, **fields))
    breaks(sim, 80, "CLAIMS", "990003", words)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that clears no lock of its own accord."""
    monkeypatch.setattr(locks, "due", lambda *of: None)


def stale(lock: str = "backup", kind: str = "lxc", until: float = 70, **settings: Any) -> Simulation:
    """A vzdump died at 20 s, and the agent sees its lock for the first time at 60 s."""
    sim = Simulation(World(), settings)
    sim.world.add(101, kind)
    sim.world.at(10, lambda: sim.world.backup_begin(101))
    sim.world.at(20, sim.world.backup_kill)
    if lock != "backup":
        sim.world.at(21, lambda: setattr(sim.world.guests[101], "lock", lock))
    sim.run(until)
    return sim


def asks(sim: Simulation, verb: str, vmid: int = 101) -> None:
    """The agent asks the helper for a step."""
    assert sim.watch is not None
    guest = sim.world.guests[vmid]
    request = Request(Verb.UNLOCK, guest.id.kind, vmid, guest.lock or "backup") if verb == "unlock" else Request(Verb(verb), vmid=vmid)
    sim.watch.env.helper.ask(request)


@pytest.mark.usefixtures("idle")
def test_i7_a_stale_lock_goes_in_order() -> None:
    sim = stale()
    sim.world.at(130, lambda: (asks(sim, "unlock"), asks(sim, "delete-snapshot")))
    sim.world.at(140, lambda: sim.world.die(101))
    holds(sim, 400)
    assert len(sim.starts()) == 1


@pytest.mark.usefixtures("idle")
def test_i7_a_start_before_the_snapshot_is_gone() -> None:
    sim = stale()
    sim.world.at(130, lambda: asks(sim, "unlock"))
    sim.world.at(131, lambda: sim.world.die(101))
    breaks(sim, 400, "I7", "101", "before its snapshot")


def _hold_file(sim: Simulation) -> None:
    sim.world.hold_file = True
    sim.world.touch()


def _by_hand(sim: Simulation) -> None:
    sim.world.unlock(101)
    sim.world.lock(101, "backup")


def _to(pool: str) -> Callable[[Simulation], object]:
    return lambda sim: setattr(sim.world.guests[101], "pool", pool)


# What is wrong from before the agent's last look on, the invariant that a request then breaks, and words of the message.
NOT_TO_BE_ASKED: dict[str, tuple[Callable[[Simulation], object], str, str]] = {
    "its owner lives": (lambda sim: sim.world.task("vzdump", "101"), "I7", "vzdump by root@pam runs"),
    "a task of it runs": (lambda sim: sim.world.task("vzmigrate", "101"), "I7", "vzmigrate by root@pam runs"),
    "an archive process lives": (lambda sim: (sim.world.vzdump.archives.add(101), sim.world.touch()), "I7", "archive process"),
    "a lock set by hand": (_by_hand, "I7", "somebody else"),
    "another kind": (lambda sim: sim.world.lock(101, "migrate"), "I7", "`migrate`"),
    "no trace": (lambda sim: (sim.world.archive.clear(), sim.world.touch("tasks")), "I7", "no vzdump of it"),
    "no lock": (lambda sim: sim.world.unlock(101), "I7", "`None`"),
    "another's pool": (_to("other"), "I7", "none of the pools"),
    "another node": (lambda sim: sim.world.migrate(101, "pve2"), "I7", "on another node"),
    "held": (lambda sim: sim.hold(101), "HELD", "it is held"),
    "a held node": (lambda sim: sim.hold(), "HELD", "the node is held"),
    "the hold file": (_hold_file, "GATE", "hold file"),
    "no quorum": (lambda sim: setattr(sim.world, "quorate", False), "GATE", "no quorum"),
    "the host stops": (lambda sim: setattr(sim.world, "system", "stopping"), "GATE", "stopping"),
    "the host boots": (lambda sim: setattr(sim.world, "pve_guests", BOOTING), "GATE", "pve-guests is"),
    "maintenance": (lambda sim: setattr(sim.world, "maintenance", True), "GATE", "maintenance"),
    "a bulk task": (lambda sim: sim.world.task("migrateall"), "GATE", "migrateall"),
}


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("refuses", [False, True], ids=["", "and the helper refuses"])
@pytest.mark.parametrize("why", NOT_TO_BE_ASKED)
def test_a_lock_that_must_not_be_touched_is_not_asked_for(why: str, refuses: bool) -> None:
    do, invariant, words = NOT_TO_BE_ASKED[why]
    sim = stale()
    if refuses:
        sim.world.helper.refuse(HelperCode.BUSY)
    sim.world.at(130, lambda: do(sim))
    sim.world.at(190, lambda: asks(sim, "unlock"))
    breaks(sim, 200, invariant, "unlock of 101", words)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("why", [why for why in NOT_TO_BE_ASKED if why not in ("no lock", "another kind", "no trace")])
def test_what_comes_in_the_very_instant_of_a_request_is_no_fault(why: str) -> None:
    do = NOT_TO_BE_ASKED[why][0]
    sim = stale()
    sim.world.at(190, lambda: (ask(sim, "live"), do(sim), asks(sim, "unlock")))
    holds(sim, 200)


@pytest.mark.usefixtures("idle")
def test_i7_nothing_is_asked_where_it_is_only_to_be_reported() -> None:
    sim = stale(locks={"recover": "report"})
    sim.world.at(190, lambda: asks(sim, "unlock"))
    breaks(sim, 200, "I7", "unlock of 101", "recover is `report`")


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(("vmid", "words"), [(101, "excluded"), (990003, "in the scratch band")])
def test_i7_whose_lock_is_never_asked_for(vmid: int, words: str) -> None:
    sim = Simulation(World(), {"scope": {"exclude": [101]}})
    sim.world.add(vmid, lock="backup")
    sim.run(130)
    sim.world.at(130, lambda: asks(sim, "unlock", vmid))
    breaks(sim, 140, "I7", f"unlock of {vmid}", words)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("at", "words"), [(50, "no look before"), (61, "1.0 s after the first look"), (118, "58.0 s after the first look")]
)
def test_i7_two_looks_before_an_unlock(at: float, words: str) -> None:
    sim = stale(until=30)
    sim.world.at(at, lambda: asks(sim, "unlock"))
    breaks(sim, 130, "I7", "unlock of 101", words)


def test_i7_a_look_at_which_the_agent_was_killed_does_not_undo_the_one_before() -> None:
    sim = stale(kind="qemu", until=115)
    sim.pve.before["GET /nodes/pve1/qemu"] = sim.kill
    sim.world.at(125, sim.start)
    holds(sim, 126)
    assert [entry.t for entry in sim.stream if getattr(entry, "verb", "") == "unlock"] == [125]


@pytest.mark.usefixtures("idle")
def test_i7_two_looks_before_a_delete_but_none_after_an_unlock() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.world.at(55, lambda: sim.world.snapshot(101, "vzdump"))
    sim.run(60)
    sim.world.at(70, lambda: asks(sim, "delete-snapshot"))
    breaks(sim, 80, "I7", "delete-snapshot of 101", "10.0 s after the first look")


@pytest.mark.usefixtures("idle")
def test_i7_a_vms_snapshot_is_its_owners() -> None:
    sim = stale(kind="qemu")
    sim.world.snapshot(101, "vzdump")
    sim.world.at(130, lambda: sim.world.unlock(101))
    sim.world.at(190, lambda: asks(sim, "delete-snapshot"))
    breaks(sim, 400, "I7", "101", "VM")


@pytest.mark.usefixtures("idle")
def test_i7_no_delete_under_a_lock() -> None:
    sim = stale()
    sim.world.at(130, lambda: (ask(sim, "live"), asks(sim, "delete-snapshot")))
    breaks(sim, 140, "I7", "delete-snapshot of 101", "its lock is `backup`")


def failing_helper(verb: str) -> Simulation:
    sim = stale(until=0, watchdog={"interval": "20s"}, locks={"confirm": "10s"})
    for _ in range(20):
        sim.world.fail_next(verb, "x")
    return sim


@pytest.mark.parametrize(("verb", "waits"), [("unlock", "UNLOCK_WAITS"), ("delete-snapshot", "DELETE_WAITS")])
def test_i7_a_step_is_tried_so_often_and_no_more(verb: str, waits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holds(failing_helper(verb), 2 * 86400)
    due = locks.due
    monkeypatch.setattr(locks, "due", lambda memory, *of: due(replace(memory, unlocks=0, deletes=0), *of))
    breaks(failing_helper(verb), 2 * 86400, "I7", f"{verb} of 101", f"at most {6 if verb == 'unlock' else 3}")
    monkeypatch.undo()
    monkeypatch.setattr(locks, waits, (0.0,))
    breaks(failing_helper(verb), 86400, "I7", f"{verb} of 101", f"at least {60 if verb == 'unlock' else 3600} s lie between two")


def test_i7_a_refused_step_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Simulation:
        sim = failing_helper("unlock")
        sim.world.helper.refuse(HelperCode.BUSY)
        return sim

    holds(refused(), 86400)
    monkeypatch.setattr(locks, "REFUSAL_WAIT", 0.0)
    breaks(refused(), 86400, "I7", "unlock of 101", "at least 60 s")
    monkeypatch.undo()
    monkeypatch.setattr(locks, "LONGEST_REFUSAL_WAIT", 60.0)
    breaks(refused(), 86400, "I7", "unlock of 101", "at least 120 s")


def test_i7_a_bound_outlives_the_agent() -> None:
    sim = failing_helper("unlock")
    sim.run(86400)
    sim.kill()
    memory = sim.store.node_memory
    sim.store.node_memory = replace(memory, locks=tuple(replace(lock, unlocks=0, next_at=0.0) for lock in memory.locks))
    sim.start()
    breaks(sim, 90000, "I7", "unlock of 101", "at most 6")


@pytest.mark.parametrize("again", ["rearm", "another lock"])
def test_i7_there_are_reasons_for_new_tries(again: str) -> None:
    sim = failing_helper("unlock")
    sim.run(86400)
    if again == "rearm":
        sim.rearm(101)
    else:
        sim.world.unlock(101)
        sim.run(86500)
        sim.world.backup_begin(101)
        sim.world.later(10, sim.world.backup_kill)
    holds(sim, 90000)
    assert len([effect for effect in sim.world.effects if effect.verb == "unlock"]) > 6


@pytest.mark.parametrize("left", ["lock", "snapshot"])
def test_a_lock_that_nobody_clears(left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def scene(**settings: Any) -> Simulation:
        sim = stale(until=30, **settings)
        if left == "snapshot":
            sim.world.unlock(101)
        return sim

    sim = holds(scene(), 900)
    assert sim.world.guests[101].lock is None
    assert not sim.world.guests[101].snapshots
    monkeypatch.setattr(locks, "due", lambda *of: None)
    breaks(scene(), 900, "LIVENESS", "lxc/101", "still there")
    holds(scene(locks={"recover": "report"}), 900)
    sim = scene()
    sim.hold(101)
    holds(sim, 900)


@pytest.mark.parametrize("waits", [True, False])
def test_a_vms_snapshot_excuses_nobody_from_its_start(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a container's snapshot of that name is vzdump's."""
    if waits:
        monkeypatch.setattr(Starter, "begin_turns", lambda self: None)
    sim = simulation()
    sim.world.add(101, "qemu", snapshots={"vzdump": ""})
    sim.world.at(30, lambda: sim.world.die(101))
    if waits:
        breaks(sim, 300, "LIVENESS", "qemu/101", "should run")
    else:
        holds(sim, 300)


def test_i3_no_unlock_through_the_api() -> None:
    sim = stale()
    sim.world.at(80, lambda: sim.world.effect("api", "unlock", 101, "refused"))
    breaks(sim, 400, "I3", "101")


def test_i15_a_sweep_that_does_not_come() -> None:
    sim = simulation()
    sim.world.at(100, lambda: sim.due.update(sweep=sim.world.boottime + 900))
    breaks(sim, 1200, "I15", "no sweep between")


def test_i15_a_host_that_sleeps_misses_none() -> None:
    sim = simulation()
    sim.world.at(100, lambda: sim.world.suspend(7200))
    holds(sim, 600)


def test_i16_a_sweep_that_the_wall_clock_moved() -> None:
    sim = simulation()
    sim.world.at(100, lambda: sim.world.clock_wall(-3600))
    holds(sim, 600)
    sim = simulation()
    sim.world.at(100, lambda: (sim.world.clock_wall(-900), sim.due.update(sweep=sim.world.boottime + 900)))
    breaks(sim, 1200, "I16", "no sweep between")


@pytest.mark.parametrize("text", [CANARY, "Authorization: x"])
def test_i17_no_secret_in_a_record(text: str) -> None:
    sim = simulation()
    sim.run(10)
    sim.world.at(20, lambda: sim.journal.emit(Event.LIBRARY, message=f"oops {text}", where="x", reason="x"))
    breaks(sim, 30, "I17", "library")


def test_i17_doors_in_a_record_hold_the_secret() -> None:
    sim = simulation()
    sim.run(10)
    assert sim.watch is not None
    env = sim.watch.env
    sim.world.at(20, lambda: sim.journal.emit(Event.LIBRARY, message="x", where="x", reason=repr(env.pve)))
    breaks(sim, 30, "I17", "the secret of the token")


def test_i18_a_trouble_that_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def down_for_hours() -> Simulation:
        sim = simulation()
        sim.world.add(101)
        sim.world.at(30, sim.world.api.down)
        return sim

    holds(down_for_hours(), 7200)
    monkeypatch.setattr(telling.Teller, "aborted", lambda *of: None)
    breaks(down_for_hours(), 7200, "I18", "not a word")


# ---------------------------------------------------------------------------------------------------- claims


CLAIMS: list[tuple[Any, dict[str, Any]]] = [
    (Event.GUEST_DOWN, {"evidence": "", "cause": "", "guard": "locked"}),
    (Event.GUEST_WAITING, {"evidence": "", "cause": "", "guard": "held"}),
    (Event.GUEST_UP, {"down_s": 30}),
    (Event.GUEST_FORGOTTEN, {"reason": "it left the pool"}),
    (Event.GUEST_FORGOTTEN, {"reason": "it was destroyed"}),
    (Event.GUEST_FORGOTTEN, {"reason": "it moved to node pve2"}),
    (Event.GUEST_FORGOTTEN, {"reason": "made anew"}),
    (Event.START_ATTEMPT, {"attempt": 1, "of": 3, "cause": "", "upid": ""}),
    (Event.REARMED, {"reason": "by an operator"}),
    (Event.REARMED, {"reason": "its configuration changed"}),
    (Event.REARMED, {"reason": "storage local is back"}),
    (Event.NOT_WORKING, {"state": "paused"}),
    (Event.BACKUP_WAIT_LONG, {"evidence": "", "waited_s": 11000}),
    (Event.HOST_GATE_CLOSED, {"reasons": ["booting"], "evidence": ""}),
    (Event.HOST_GATE_CLOSED, {"reasons": ["mass_stop"], "evidence": "", "level": Level.WARN}),
    (Event.HOST_GATE_OPENED, {"closed_s": 3}),
    (Event.HOST_WARNING, {"reason": "x"}),
    (Event.HELD, {"scope": "101", "by": "root", "for_s": 10, "reason": ""}),
    (Event.SWEEP_ABORTED, {"reason": "x", "aborted_in_a_row": 1, "aborted_for_s": 0}),
    (Event.SWEEP_INCOMPLETE, {"reason": "x", "incomplete_for_s": 0}),
    (Event.INTERNAL_ERROR, {"where": "x", "reason": "y"}),
    (Event.LOCK_STALE, {"lock": "backup", "evidence": ""}),
    (Event.LOCK_STALE, {"lock": "vzdump", "evidence": ""}),
    (Event.UNLOCKED, {"lock": "backup", "reason": ""}),
    (Event.SNAPSHOT_DELETED, {"reason": ""}),
    (Event.LOCK_STEP_FAILED, {"step": "unlock", "reason": "", "attempt": 1, "of": 6}),
    (Event.LOCK_STEP_REFUSED, {"step": "unlock", "code": "busy", "reason": ""}),
    (Event.LOCK_OLD, {"lock": "backup", "age_s": 90000, "evidence": ""}),
    (Event.HELPER_FAILED, {"reason": ""}),
    (Event.HELPER_RESTORED, {}),
]
# Events that no monitor holds against the world, and why.
UNJUDGED = {
    "daemon_stopping": "the simulation says it, not the agent",
    **dict.fromkeys(("config_rejected", "config_reloaded"), "the daemon's: a simulation reads its configuration once"),
    **dict.fromkeys(("store_failed", "store_restored", "metrics_failed", "metrics_restored"), "the daemon's: these doors never fail here"),
    **dict.fromkeys(("library", "already_running"), "the daemon's: what it stands on is not simulated"),
}


def test_every_event_is_judged_or_not_on_purpose() -> None:
    judged = {name for kind in CLASSES for name in kind.judges}
    assert judged.isdisjoint(UNJUDGED)
    assert judged | UNJUDGED.keys() == {kind.name for kind in all_events()}


@pytest.mark.parametrize(
    ("event", "fields", "words"),
    [
        (Event.UNLOCKED, {"lock": "backup", "reason": ""}, "told before"),
        (Event.SNAPSHOT_DELETED, {"reason": ""}, "told before"),
        (Event.LOCK_STEP_FAILED, {"step": "unlock", "reason": "", "attempt": 1, "of": 6}, "is gone"),
        (Event.LOCK_STEP_FAILED, {"step": "unlock", "reason": "", "attempt": 2, "of": 6}, "1 were made"),
        (Event.LOCK_STEP_REFUSED, {"step": "unlock", "code": "busy", "reason": ""}, "the helper said ok"),
    ],
)
def test_a_word_of_a_step_that_was_not_so(event: Any, fields: dict[str, Any], words: str) -> None:
    sim = stale()
    holds(sim, 300)
    sim.world.at(310, lambda: told(sim, event, **fields))
    breaks(sim, 320, "CLAIMS", "lxc/101", words)


def test_a_helper_that_fails_is_told_on_its_edges() -> None:
    def out_of_reach() -> Simulation:
        sim = stale()
        sim.world.helper.down()
        return holds(sim, 300)

    sim = out_of_reach()
    sim.world.at(310, lambda: told(sim, Event.HELPER_FAILED, reason=""))
    breaks(sim, 320, "CLAIMS", "told before")
    sim = out_of_reach()
    sim.world.at(310, lambda: told(sim, Event.HELPER_RESTORED))
    breaks(sim, 320, "CLAIMS", "fails")


def liar(sim: Simulation, **lies: Any) -> Simulation:
    """From now on the agent says these things wherever an event has such a field."""
    emit = sim.journal.emit

    def lie(event: Any, level: Any = None, *, message: str, guest: Any = None, **fields: Any) -> None:
        emit(event, level, message=message, guest=guest, **fields | {name: lies[name] for name in lies.keys() & fields.keys()})

    assert sim.watch is not None
    sim.watch.env.journal = type("Liar", (), {"emit": staticmethod(lie)})()
    return sim


@pytest.mark.parametrize("cause", ["", "somebody did it", "no stop task found", "the task history could not be read"])
def test_who_stopped_it_is_told_where_it_is_known(cause: str) -> None:
    sim = liar(simulation(), cause=cause)
    sim.world.add(101)
    sim.world.at(200, lambda: sim.world.stop(101, by="alice@pve"))
    breaks(sim, 500, "CLAIMS", "lxc/101", "alice@pve")


@pytest.mark.parametrize("event", ["start_result", "guest_up"])
def test_how_long_it_was_down_is_told(event: str) -> None:
    sim = liar(simulation(), down_s=0)
    sim.world.add(101)
    sim.world.at(30, lambda: sim.world.die(101))
    if event == "guest_up":
        sim.world.at(85, lambda: sim.world.start(101))
    breaks(sim, 300, "CLAIMS" if event == "guest_up" else "I9", "lxc/101", "down for 0 s")


def relabelled(monkeypatch: pytest.MonkeyPatch, said: Guard, instead: Guard) -> None:
    """The agent decides as it does, and calls it something else."""
    decide = guards.decide

    def calls(case: Any) -> Any:
        decision = decide(case)
        return replace(decision, guard=instead) if decision.guard is said else decision

    monkeypatch.setattr(power, "decide", calls)


@pytest.mark.parametrize(
    ("scene", "said", "instead"),
    [
        (new, Guard.NEW_HERE, Guard.UNCONFIRMED),
        (held, Guard.HELD, Guard.UNCONFIRMED),
        (locked, Guard.LOCKED, Guard.UNCONFIRMED),
        (of_ha, Guard.HA, Guard.BACKOFF),
        (partial(down, vmid=101), Guard.UNCONFIRMED, Guard.BACKOFF),
        (partial(down, vmid=101, start=("fail: x",)), Guard.BACKOFF, Guard.EXHAUSTED),
        (locked, Guard.LOCKED, Guard.BACKOFF),
        (held, Guard.HELD, Guard.START),
    ],
)
def test_a_guard_that_is_called_something_else(
    scene: Callable[[Simulation], None], said: Guard, instead: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    relabelled(monkeypatch, said, instead)
    sim = simulation()
    scene(sim)
    sim.run(1500)
    assert sim.violation is not None, "nothing broke"
    assert sim.violation.invariant in ("CLAIMS", "LIVENESS", "I5", "HELD"), sim.violation
    assert "101" in sim.violation.message


@pytest.mark.parametrize(("event", "fields"), CLAIMS, ids=lambda value: value.name if hasattr(value, "name") else "")
def test_a_claim_that_is_not_so(event: Any, fields: dict[str, Any]) -> None:
    sim = says(event, **fields)
    assert sim.violation is not None, "nothing broke"
    assert sim.violation.invariant == "CLAIMS", sim.violation
    if event.guest:
        assert "lxc/101" in sim.violation.message


@pytest.mark.parametrize(("event", "invariant"), [(Event.GRANT_LOST, "I13"), (Event.GRANT_RESTORED, "I13")])
def test_a_grant_that_is_not_lost(event: Any, invariant: str) -> None:
    sim = says(event, path="/storage", privilege="Datastore.Audit")
    assert sim.violation is not None
    assert sim.violation.invariant == invariant


def test_given_up_is_not_told_of_nobody() -> None:
    sim = says(Event.GIVEN_UP, attempts=1, reason="x")
    assert sim.violation is not None
    assert (sim.violation.invariant, "lxc/101" in sim.violation.message) in (("I5", True), ("CLAIMS", True))


def test_a_result_of_no_start() -> None:
    sim = says(Event.START_RESULT, outcome="started", attempt=1, reason="", upid="", down_s=1)
    assert sim.violation is not None
    assert (sim.violation.invariant, "lxc/101" in sim.violation.message) == ("I9", True)


def test_works_again_is_told_of_a_guest_that_works() -> None:
    def paused() -> Simulation:
        sim = simulation()
        sim.world.add(101, "qemu")
        sim.world.at(30, lambda: setattr(sim.world.guests[101], "qmp", "paused"))
        return sim

    sim = paused()
    sim.world.at(400, lambda: setattr(sim.world.guests[101], "qmp", "running"))
    holds(sim, 600)
    assert len(sim.events("working_again")) == 1
    sim = paused()
    sim.world.at(400, lambda: told_of(sim, "qemu"))
    breaks(sim, 600, "CLAIMS", "qemu/101", "paused")


def told_of(sim: Simulation, kind: str) -> None:
    id = sim.world.guests[101].id
    sim.journal.emit(Event.WORKING_AGAIN, message="x", guest=GuestLabel(id, "guest101", ""), state="paused")


def test_who_stopped_it_is_told_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> Simulation:
        sim = simulation()
        sim.world.add(101)
        sim.world.at(30, lambda: sim.world.stop(101, by="alice@pve"))
        return sim

    holds(stopped(), 300)
    monkeypatch.setattr(power.causes, "stop_cause", lambda *of: None)
    breaks(stopped(), 300, "CLAIMS", "lxc/101", "alice@pve")


def test_a_name_that_it_never_had() -> None:
    sim = simulation()
    sim.world.add(101)
    sim.run(10)
    sim.world.at(20, lambda: sim.journal.emit(Event.GUEST_UP, message="x", guest=GuestLabel(CT, "other", ""), down_s=0))
    breaks(sim, 30, "CLAIMS", "lxc/101", "other")


def test_a_gate_that_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Teller, "gate", lambda *of, **named: None)
    sim = simulation()
    down(sim, 101)
    sim.world.at(20, lambda: setattr(sim.world, "quorate", False))
    breaks(sim, 600, "CLAIMS", "quorum", "not told")


# ---------------------------------------------------------------------------------------------------- liveness


def test_a_guest_that_nobody_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Starter, "begin_turns", lambda self: None)
    sim = simulation()
    down(sim, 101)
    breaks(sim, 300, "LIVENESS", "lxc/101", "its guard is start")


@pytest.mark.parametrize("guard", [Guard.LOCKED, Guard.TASK, Guard.BACKUP, Guard.ONBOOT_OFF, Guard.STORAGE_OFFLINE, Guard.HELD])
def test_a_guard_that_sees_what_is_not_there(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(guards._QUESTIONS, guard, lambda case: (True, "it only seems so"))
    sim = simulation()
    sim.world.add(101, running=False)
    sim.run(5)
    if sim.violation is None:
        sim.run(500)
    assert sim.violation is not None
    assert sim.violation.invariant in ("LIVENESS", "CLAIMS"), sim.violation
    assert "lxc/101" in sim.violation.message


def test_a_gate_that_stays_closed_for_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "gate", lambda *of: gate.Gate((gate.Closure(gate.GateReason.NO_QUORUM, "x"),)))
    sim = simulation()
    down(sim, 101)
    breaks(sim, 500, "CLAIMS", "no_quorum")


def test_a_guest_shown_as_running_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(guards._QUESTIONS, Guard.RUNNING, lambda case: (True, "it only seems so"))
    sim = simulation()
    sim.world.add(101, onboot=False)
    sim.world.at(30, lambda: sim.world.die(101))
    sim.run(500)
    assert sim.violation is not None
    assert "lxc/101" in sim.violation.message or "currently_stopped" in sim.violation.message


@pytest.mark.parametrize(
    "scene", [locked, backed_up, unprovable, at_work, held, of_ha, offline, new, no_quorum, stopall, node_held, mass_stop, off]
)
def test_what_stands_in_the_way_is_no_reason_to_complain(scene: Callable[[Simulation], None]) -> None:
    sim = simulation()
    scene(sim)
    holds(sim, 3600)
    assert sim.starts() == [] or scene is mass_stop


def test_many_that_wait_for_their_turn() -> None:
    sim = simulation(parallel=1)
    for vmid in range(101, 109):
        down(sim, vmid, start_takes=50.0, startup=f"order={vmid % 3},up=20")
    holds(sim, 1200)
    assert len(sim.starts()) == 8


def test_a_troubled_api_excuses() -> None:
    sim = simulation()
    down(sim, 101)
    sim.pve.faults["GET /nodes/pve1/lxc/101/status/current"] = Fault(lambda: PveError("500 oops", 500))
    holds(sim, 3600)


def test_an_unmonitored_simulation_has_none() -> None:
    sim = Simulation(monitored=False)
    assert (sim.monitors, sim.past) == ((), None)


def test_an_ear_changes_no_answer() -> None:
    """The doors with an ear in them answer as those behind them."""
    sim = simulation()
    sim.world.add(101)
    assert sim.watch is not None
    env = sim.watch.env
    assert (env.pve.node, env.pve.token_id) == (sim.pve.node, sim.pve.token_id)
    assert CT in env.pve.guests(CT.kind, deadline=sim.world.boottime + 10)
