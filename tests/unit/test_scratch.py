"""The scratch band: what a ScratchId can be made of, and which guests of the band are leftovers (I8)."""

from __future__ import annotations

import copy
import pickle
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from guestward.model.decision import Closure, Gate, GateReason
from guestward.model.guest import GuestConfig, GuestId, GuestKind
from guestward.model.observation import LostGrant, Resources
from guestward.model.reading import Unreadable
from guestward.model.scratch import (
    REFUSALS,
    SCRATCH_MEANING,
    Claimed,
    NotScratchError,
    ScratchBand,
    ScratchDecision,
    ScratchId,
    ScratchMemory,
    ScratchStep,
    ScratchVerdict,
)
from guestward.model.task import Error, Ok, Running, Task, TaskStatus, Unknown, Warnings
from guestward.policy import scratch
from guestward.policy.scratch import ScratchCase, judge, origin, unused_for
from tests.unit.build import AT, SCRATCH, TOKEN, WALL, config, hold, listed, resources, rules, task

TESTER = "tester@pve!restore"
STRANGER = "alice@pve"
MIN_AGE = 7200.0
OLD = 36_000.0
KILLED = Unknown("unexpected status")
FAILED = Error("unable to restore CT 990000 - no space left on device")
SHUT = Gate((Closure(GateReason.BOOTING, "pve-guests.service is activating"), Closure(GateReason.NO_QUORUM, "read-only")))
GONE = Unreadable("gone")
RULES = replace(rules(), scratch_origins=frozenset({TESTER}))
TAG = frozenset({"guestward-scratch"})
VM_SCRATCH = GuestId(GuestKind.QEMU, 990000)
OF_CONFIG = ("template", "base", "protection", "lock", "tags")
OF_MEMORY = ("failures", "next_at", "claimed")


def _plain(value: object) -> str:
    """A name without addresses: those differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def past(kind: str = "vzrestore", user: str = TESTER, age: float = OLD, *, said: TaskStatus | None = None, **of: Any) -> Task:
    """An ended task on the guest that began so many seconds ago and took ten."""
    return task(kind, "990000", user, **({"said": Ok() if said is None else said, "at": AT - age, "took": 10} | of))


def case(*tasks: Task, by: str = TESTER, age: float = OLD, **parts: Any) -> ScratchCase:
    """A container that the restore tester restored ten hours ago, and nobody touched since; every test changes only what it is about."""
    seen = {name: parts.pop(name) for name in OF_CONFIG if name in parts}
    known = {name: parts.pop(name) for name in OF_MEMORY if name in parts}
    plain = ScratchCase(
        SCRATCH,
        ScratchMemory(990000, SCRATCH, "guest990000", **known),
        RULES,
        Gate(),
        TOKEN,
        AT,
        WALL,
        listed(SCRATCH),
        config(**seen),
        active=(),
        past=tasks or (past(user=by, age=age),),
        resources=resources(SCRATCH),
        written=WALL - OLD + 5,
    )
    return replace(plain, **parts)


def made(*tasks: Task, written: float | None = OLD, **parts: Any) -> str:
    """What proves the guest to be ours, after these tasks, newest first. written: how long ago its file was."""
    return origin(case(*tasks, written=None if written is None else WALL - written, **parts))


def verdict(*tasks: Task, **parts: Any) -> ScratchVerdict:
    return judge(case(*tasks, **parts)).verdict


# ---------------------------------------------------------------------------------------------------- the only id that can be destroyed


BAND = ScratchBand(990000, 990009)


class Number(int):
    pass


class Enumerated(IntEnum):
    INSIDE = 990000


class Index:
    """As numpy's integers are: a number wherever Python asks for an index, and equal to it."""

    def __index__(self) -> int:
        return 990000

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        return other == 990000

    def __hash__(self) -> int:
        return 990000

    def __ge__(self, other: object) -> bool:
        return True

    __le__ = __ge__

    def __repr__(self) -> str:
        raise AssertionError("nobody asks what it says of itself")


def claimed(band: ScratchBand, value: object) -> int | None:
    """The VMID of the id that is made of it; None when none is."""
    try:
        made = band.claim(value)
    except NotScratchError as error:
        assert len(str(error)) < 120
        return None
    assert type(made) is ScratchId
    return made.vmid


def near(*numbers: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(), *(st.integers(number - 2, number + 2) for number in numbers))


@given(first=near(990000), length=st.integers(-2, 100), value=near(990000, 990009, 100))
def test_an_exact_number_inside_the_band_gives_its_id_and_every_other_number_none(first: int, length: int, value: int) -> None:
    band = ScratchBand(first, first + length)
    inside = first <= value <= first + length
    assert claimed(band, value) == (value if inside else None)
    assert (value in band) is inside
    assert (Number(value) in band, claimed(band, Number(value))) == (False, None)


NUMBERS = st.integers(990000, 990009)
OTHERS = st.one_of(
    NUMBERS.map(float),
    NUMBERS.map(complex),
    NUMBERS.map(str),
    NUMBERS.map(Number),
    NUMBERS.map(lambda n: (n,)),
    NUMBERS.map(lambda n: f"{n:07d}"),
    NUMBERS.map(lambda n: str(n).translate({ord("0") + d: 0xFF10 + d for d in range(10)})),
    NUMBERS.map(lambda n: str(n).encode()),
    st.booleans(),
    st.none(),
    st.floats(),
    st.text(),
    st.binary(),
    st.decimals(),
    st.fractions(),
)


@given(OTHERS)
def test_whatever_is_no_exact_number_gives_none(value: object) -> None:
    """C53."""
    assert claimed(ScratchBand(990000, 990009), value) is None
    assert claimed(ScratchBand(-(10**9), 10**9), value) is None
    assert value not in ScratchBand(-(10**9), 10**9)


@pytest.mark.parametrize(
    "value",
    [
        "990000/../9201",
        "0990000",
        "990000%2f..",
        "９９００００",
        "990000\n",
        990000.0,
        True,
        False,
        None,
        Enumerated.INSIDE,
        Index(),
        int,
        BAND,
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_pass_for_a_number_elsewhere(value: object) -> None:
    """C53."""
    for band in (BAND, ScratchBand(0, 10**9)):
        with pytest.raises(NotScratchError, match=f"^a {type(value).__name__} is no VMID from {band.first} to {band.last}$"):
            band.claim(value)
        assert value not in band


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (989999, "989999"),
        (990010, "990010"),
        (-990000, "-990000"),
        (0, "0"),
        (2**63 - 1, str(2**63 - 1)),
        (2**63, "a number that long"),
        (10**5000, "a number that long"),
        (-(10**5000), "a number that long"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_a_number_outside_is_refused_in_few_words(value: int, what: str) -> None:
    """Python itself refuses to write a number of more than 4300 digits."""
    with pytest.raises(NotScratchError, match=f"^{what} is no VMID from 990000 to 990009$"):
        BAND.claim(value)
    assert value not in BAND


def test_the_band_has_both_its_ends() -> None:
    assert list(BAND) == list(range(990000, 990010))
    assert [BAND.claim(vmid).vmid for vmid in BAND] == list(BAND)
    assert all(vmid in BAND for vmid in BAND)
    assert list(ScratchBand(0, -1)) == []


def test_an_id_is_written_as_pve_does_it() -> None:
    made = BAND.claim(990003)
    assert (made.vmid, str(made)) == (990003, "990003")


@pytest.mark.parametrize("made_by", [None, object(), True, "claim", ScratchBand.claim, BAND.claim(990000)], ids=_plain)
def test_nobody_else_makes_an_id(made_by: object) -> None:
    with pytest.raises(TypeError, match=r"^only ScratchBand\.claim makes a ScratchId$"):
        ScratchId(101, made_by)


def test_an_id_cannot_be_made_of_nothing() -> None:
    with pytest.raises(TypeError):
        ScratchId()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        _ = ScratchId.__new__(ScratchId).vmid


@pytest.mark.parametrize("do", [copy.copy, copy.deepcopy, pickle.dumps, *(lambda id, p=p: pickle.dumps(id, p) for p in range(6))])
def test_an_id_is_neither_copied_nor_pickled(do: Callable[[ScratchId], object]) -> None:
    """What can be pickled can be made of bytes, with any number in it."""
    with pytest.raises(TypeError, match=r"^a ScratchId is neither copied nor pickled$"):
        do(BAND.claim(990000))


def test_an_id_has_no_other_number() -> None:
    made: Any = BAND.claim(990000)
    with pytest.raises(AttributeError):
        made.vmid = 101
    with pytest.raises(AttributeError):
        made.other = 101
    with pytest.raises(TypeError):
        replace(made, vmid=101)
    assert made.vmid == 990000


# ---------------------------------------------------------------------------------------------------- the order of the questions


SPOILT: dict[ScratchVerdict, tuple[dict[str, Any], str, str, float | None]] = {
    ScratchVerdict.STRANDED: (
        {"lost": (LostGrant("/vms/990000", "VM.Audit"), LostGrant("/vms/990000", "VM.Allocate"))},
        "the token, or its user, lacks VM.Audit, VM.Allocate on /vms/990000",
        "",
        None,
    ),
    ScratchVerdict.UNKNOWN: ({"listed": None}, "the list of guests: it is not in there", "", None),
    ScratchVerdict.TEMPLATE: ({"template": True}, "it is a template", "", None),
    ScratchVerdict.PROTECTED: ({"protection": True}, "`protection` is set", "", None),
    ScratchVerdict.HA: ({"resources": resources(SCRATCH, ha={SCRATCH: "started"})}, "hastate started", "", None),
    ScratchVerdict.LOCKED: ({"lock": "backup"}, "lock backup", "", None),
    ScratchVerdict.TASK: ({"active": (task("vzstart", "990000", "bob@pam"),)}, "vzstart by bob@pam is running", "", None),
    ScratchVerdict.CLAIMED: ({"hold": hold(990000, claim=True)}, "claimed by alice: disk swap", "", None),
    ScratchVerdict.HELD: ({"hold": hold(990000)}, "held by alice: disk swap", "", None),
    ScratchVerdict.HOST_GATE: ({"gate": SHUT}, "pve-guests.service is activating; read-only", "", None),
    ScratchVerdict.UNPROVEN: (
        {"by": STRANGER},
        "no tag, no claim, and PVE's record names no restore by one of [scratch] origins",
        "",
        None,
    ),
    ScratchVerdict.YOUNG: (
        {"age": 110.0},
        "vzrestore by tester@pve!restore; unused for 100 s, 7200 s are asked for",
        "vzrestore by tester@pve!restore",
        AT + 7100,
    ),
    ScratchVerdict.GIVEN_UP: (
        {"failures": 3},
        "vzrestore by tester@pve!restore; tearing it down has failed 3 times",
        "vzrestore by tester@pve!restore",
        None,
    ),
    ScratchVerdict.WAITING: (
        {"next_at": AT + 60},
        "vzrestore by tester@pve!restore; tearing it down has failed, it is tried again in 60 s",
        "vzrestore by tester@pve!restore",
        AT + 60,
    ),
    ScratchVerdict.LEFTOVER: (
        {},
        "vzrestore by tester@pve!restore; unused for 35990 s",
        "vzrestore by tester@pve!restore",
        None,
    ),
}
ORDER = tuple(SPOILT)


def spoilt(*which: ScratchVerdict) -> ScratchCase:
    return case(**{name: value for one in which for name, value in SPOILT[one][0].items()})


def test_all_verdicts_are_here_in_the_order_in_which_they_are_declared() -> None:
    assert tuple(ScratchVerdict) == ORDER
    assert tuple(SCRATCH_MEANING) == ORDER
    assert all(SCRATCH_MEANING.values())
    assert {verdict for verdict in ORDER if verdict in ("template", "protected", "ha", "locked", "unproven")} == REFUSALS


@pytest.mark.parametrize("one", ORDER)
def test_each_verdict_with_its_evidence_its_proof_and_when_it_may_change(one: ScratchVerdict) -> None:
    _, evidence, proof, next_at = SPOILT[one]
    name = "" if one is ScratchVerdict.UNKNOWN else "guest990000"
    assert judge(spoilt(one)) == ScratchDecision(SCRATCH, name, one, evidence, proof, next_at)


@pytest.mark.parametrize("one", ORDER)
def test_the_first_that_applies_decides(one: ScratchVerdict) -> None:
    rest = [other for other in ORDER[ORDER.index(one) :] if other is not ScratchVerdict.HELD or one is ScratchVerdict.HELD]
    decision = judge(spoilt(*rest))
    assert decision.verdict is one
    if one is not ScratchVerdict.UNKNOWN:
        assert decision.evidence.startswith(SPOILT[one][1].partition(" has failed, ")[0].partition("; ")[0])


@pytest.mark.parametrize("one", ORDER[:-1])
def test_a_guest_with_the_tag_is_left_alone_for_the_same_reasons_but_that_of_proof(one: ScratchVerdict) -> None:
    expected = ScratchVerdict.LEFTOVER if one is ScratchVerdict.UNPROVEN else one
    assert judge(replace(spoilt(one), config=replace(config(**tagged(one)), tags=TAG))).verdict is expected


def tagged(one: ScratchVerdict) -> dict[str, Any]:
    return {name: value for name, value in SPOILT[one][0].items() if name in OF_CONFIG}


# ---------------------------------------------------------------------------------------------------- what cannot be known


def test_whatever_cannot_be_read_is_named_with_its_reason() -> None:
    decision = judge(
        case(config=GONE, active=Unreadable("no answer"), past=Unreadable("timeout"), resources=Unreadable("500"), listed=None)
    )
    assert decision.verdict is ScratchVerdict.UNKNOWN
    assert decision.evidence == (
        "configuration: gone; active tasks: no answer; past tasks: timeout; HA: 500; the list of guests: it is not in there"
    )
    assert decision.name == ""


@pytest.mark.parametrize(
    ("what", "words"), [("config", "configuration"), ("active", "active tasks"), ("past", "past tasks"), ("resources", "HA")]
)
def test_one_reading_less_is_enough(what: str, words: str) -> None:
    parts: dict[str, Any] = {what: GONE}
    decision = judge(case(**parts))
    assert (decision.verdict, decision.evidence, decision.name) == (ScratchVerdict.UNKNOWN, f"{words}: gone", "guest990000")


def test_a_lost_grant_is_told_and_not_what_could_not_be_read_without_it() -> None:
    """C45, C83."""
    decision = judge(case(lost=(LostGrant("/vms/990000", "VM.Allocate"),), config=GONE, past=GONE, resources=GONE, listed=None))
    assert (decision.verdict, decision.evidence) == (
        ScratchVerdict.STRANDED,
        "the token, or its user, lacks VM.Allocate on /vms/990000",
    )


# ---------------------------------------------------------------------------------------------------- never


def test_a_template_and_the_base_of_linked_clones() -> None:
    """C47."""
    assert verdict(listed=listed(SCRATCH, template=True)) is ScratchVerdict.TEMPLATE
    assert judge(case(base=True)).evidence == "it has a base volume"
    assert verdict(base=True) is ScratchVerdict.TEMPLATE
    assert judge(case(base=True, template=True)).evidence == "it is a template"


@pytest.mark.parametrize("state", ["started", "stopped", "disabled", "error", None])
def test_whatever_ha_manages_stays(state: str | None) -> None:
    decision = judge(case(resources=resources(SCRATCH, ha={SCRATCH: state})))
    assert (decision.verdict, decision.evidence) == (ScratchVerdict.HA, f"hastate {state}")


def test_ha_that_ignores_it_is_none_and_a_guest_that_it_does_not_show_is_not_known_to_be_without() -> None:
    assert verdict(resources=resources(SCRATCH, ha={SCRATCH: "ignored"})) is ScratchVerdict.LEFTOVER
    assert verdict(resources=resources(SCRATCH, ha={VM_SCRATCH: "started"})) is ScratchVerdict.LEFTOVER
    decision = judge(case(resources=resources(VM_SCRATCH)))
    assert (decision.verdict, decision.evidence) == (ScratchVerdict.HA, "HA's state of it is not shown")


@pytest.mark.parametrize("lock", ["backup", "clone", "disk", "fstrim", "migrate", "mounted", "rollback", "snapshot", "suspended", "import"])
def test_a_lock_that_no_dead_restore_leaves(lock: str) -> None:
    decision = judge(case(lock=lock))
    assert (decision.verdict, decision.evidence) == (ScratchVerdict.LOCKED, f"lock {lock}")


@pytest.mark.parametrize("lock", [None, "create", "destroyed"])
def test_a_lock_that_a_dead_restore_or_destroy_leaves_is_no_obstacle(lock: str | None) -> None:
    """C48."""
    assert verdict(lock=lock) is ScratchVerdict.LEFTOVER
    assert verdict(lock=lock, by=STRANGER) is ScratchVerdict.UNPROVEN
    assert verdict(lock=lock, active=(task("vzrestore", "990000", TESTER),)) is ScratchVerdict.TASK


def test_a_running_leftover_is_one_too() -> None:
    """C50."""
    assert verdict(listed=listed(SCRATCH, running=True)) is ScratchVerdict.LEFTOVER


# ---------------------------------------------------------------------------------------------------- not now


@pytest.mark.parametrize("kind", ["vzrestore", "vzdump", "vzdestroy", "vzstart", "aptupdate"])
def test_any_task_that_runs_on_it_is_waited_for(kind: str) -> None:
    decision = judge(case(active=(task(kind, "990000", "bob@pam"),)))
    assert (decision.verdict, decision.evidence) == (ScratchVerdict.TASK, f"{kind} by bob@pam is running")


def test_a_backup_of_several_guests_may_be_of_it() -> None:
    assert verdict(active=(task("vzdump", ""),)) is ScratchVerdict.TASK


@pytest.mark.parametrize(
    "other",
    [
        task("vzdump", "990001"),
        task("vzdump", "", said=Ok()),
        task("vzstart", "990000", said=Ok()),
        task("vzstart", "99000"),
        task("startall", ""),
        task("vzclone", "101"),
    ],
    ids=str,
)
def test_other_tasks_are_not(other: Task) -> None:
    assert verdict(active=(other,)) is ScratchVerdict.LEFTOVER
    assert judge(case(active=(other, task("vzstop", "990000", "eve@pam")))).evidence == "vzstop by eve@pam is running"


def test_a_clone_names_the_guest_that_it_is_taken_from_and_its_new_container_has_the_lock_create() -> None:
    """It has the tags of the other one, too."""
    clone = task("vzclone", "101", "bob@pam")
    decision = judge(case(active=(clone,), lock="create", tags=TAG))
    assert (decision.verdict, decision.evidence) == (ScratchVerdict.TASK, "vzclone by bob@pam is running")
    assert verdict(active=(replace(clone, status=Ok()),), lock="create", tags=TAG) is ScratchVerdict.LEFTOVER
    assert verdict(active=(task("vzmigrate", "101"),), lock="create") is ScratchVerdict.LEFTOVER


def test_a_claim_and_a_hold_are_told_apart() -> None:
    assert verdict(hold=hold(990000, claim=True)) is ScratchVerdict.CLAIMED
    assert verdict(hold=hold(990000, claim=False)) is ScratchVerdict.HELD


# ---------------------------------------------------------------------------------------------------- whose it is


@pytest.mark.parametrize("kind", ["vzrestore", "vzcreate", "qmrestore", "qmcreate"])
def test_a_restore_or_create_by_an_origin_is_proof(kind: str) -> None:
    assert made(past(kind)) == f"{kind} by {TESTER}"


@pytest.mark.parametrize("user", [STRANGER, "root@pam", "tester@pve", "tester@pve!restore2", "TESTER@pve!restore"])
def test_by_nobody_else(user: str) -> None:
    """C47: the token must be the very one."""
    assert made(past(user=user)) == ""
    assert judge(case(by=user)).verdict is ScratchVerdict.UNPROVEN


def test_without_origins_only_the_tag_and_claims_prove_anything() -> None:
    nobody = replace(RULES, scratch_origins=frozenset())
    assert made(rules=nobody) == ""
    assert made(rules=nobody, tags=TAG) == "tag guestward-scratch"


def test_the_tag_is_proof_whatever_the_record_says() -> None:
    for tasks in ((past(user=STRANGER),), (past("vzmigrate", STRANGER),)):
        assert made(*tasks, tags=TAG | {"web"}) == "tag guestward-scratch"
    assert origin(case(past=(), tags=TAG)) == "tag guestward-scratch"
    assert judge(case(by=STRANGER, tags=TAG)).proof == "tag guestward-scratch"


def test_only_the_tag_that_is_configured() -> None:
    other = replace(RULES, scratch_tag="disposable")
    assert made(past(user=STRANGER), rules=other, tags=TAG) == ""
    assert made(past(user=STRANGER), rules=other, tags=frozenset({"disposable"})) == "tag disposable"
    assert made(past(user=STRANGER), tags=frozenset({"guestward", "scratch", "guestward-scratch2"})) == ""


@pytest.mark.parametrize("said", [Ok(), Warnings(2), KILLED], ids=str)
@pytest.mark.parametrize("kind", ["vzrestore", "qmcreate"])
def test_the_newest_create_or_restore_decides(kind: str, said: TaskStatus) -> None:
    ours, theirs = past(kind, age=900, said=said), past(kind, STRANGER, age=900, said=said)
    assert made(ours, past(user=STRANGER), written=950) == f"{kind} by {TESTER}"
    assert made(theirs, past(), written=950) == ""


@pytest.mark.parametrize("user", [STRANGER, TESTER])
@pytest.mark.parametrize("said", [Ok(), FAILED, KILLED], ids=str)
@pytest.mark.parametrize("kind", ["vzclone", "qmclone", "vzmigrate", "qmigrate", "qmmigrate"])
def test_a_clone_or_migration_after_it_leaves_open_whose_it_is(kind: str, said: TaskStatus, user: str) -> None:
    assert made(past(kind, user, age=900, said=said), past()) == ""


@pytest.mark.parametrize("kind", ["vzstart", "vzstop", "vzdump", "vzsnapshot", "vzconfig", "vncproxy", "qmtemplate"])
def test_other_tasks_after_it_change_nothing(kind: str) -> None:
    assert made(past(kind, STRANGER, age=900), past()) == f"vzrestore by {TESTER}"


def test_what_was_there_before_the_newest_restore_does_not_matter() -> None:
    for kind in ("vzclone", "vzmigrate", "vzdestroy", "vzcreate"):
        assert made(past(), past(kind, STRANGER, age=90_000)) == f"vzrestore by {TESTER}"


@pytest.mark.parametrize("said", [Ok(), Warnings(1), KILLED], ids=str)
@pytest.mark.parametrize("kind", ["vzdestroy", "qmdestroy"])
def test_what_is_there_after_a_destroy_came_in_a_way_that_nobody_knows(kind: str, said: TaskStatus) -> None:
    """A clone's task is under the VMID that it was taken from."""
    assert made(past(kind, age=900, said=said), past()) == ""
    assert made(past(kind, age=900, said=said), past(), lock="create") == ""


def test_a_destroy_that_failed_destroyed_nothing() -> None:
    assert made(past("vzdestroy", STRANGER, age=900, said=FAILED), past()) == f"vzrestore by {TESTER}"
    assert made(past("vzdestroy", TESTER, age=900, said=FAILED), past(user=STRANGER)) == ""


@pytest.mark.parametrize("kind", ["vzdestroy", "qmdestroy"])
def test_what_a_destroy_that_was_killed_left_is_of_the_guest_that_it_was(kind: str) -> None:
    """C48: the tag is gone with the configuration then, and only the lock `destroyed` is in it."""
    killed = past(kind, age=900, said=KILLED)
    assert made(killed, past(), lock="destroyed", written=890) == f"vzrestore by {TESTER}"
    assert made(killed, past(user=STRANGER), lock="destroyed", written=890) == ""
    assert made(past(kind, age=900), past(), lock="destroyed") == ""
    assert verdict(replace(killed, upid=past(kind).upid), past(), lock="destroyed") is ScratchVerdict.YOUNG


def test_a_record_that_does_not_go_back_to_its_making_proves_nothing() -> None:
    assert made(past("vzstart", TESTER), past("vzdump", TESTER)) == ""
    assert origin(case(past=())) == ""


# ---------------------------------------------------------------------------------------------------- restores that failed


BEGAN, ENDED = 900.0, 890.0  # seconds ago


def fails(user: str = TESTER, age: float = BEGAN, kind: str = "qmrestore", **of: Any) -> Task:
    return past(kind, user, age, said=FAILED, **of)


@pytest.mark.parametrize("kind", ["vzcreate", "vzrestore", "qmcreate", "qmrestore"])
@pytest.mark.parametrize("written", [BEGAN + 1, BEGAN, ENDED, ENDED - 60])
def test_a_restore_that_failed_and_wrote_the_file_last_left_a_guest_of_its_own(kind: str, written: float) -> None:
    """pve-facts F2: of a VM that cannot be restored the configuration stays."""
    assert made(fails(kind=kind), written=written) == f"{kind} by {TESTER}"
    assert made(fails(STRANGER, kind=kind), written=written) == ""


@pytest.mark.parametrize("written", [BEGAN + 1.5, OLD])
def test_a_restore_that_failed_and_left_the_file_alone_changed_nothing(written: float) -> None:
    assert made(fails(), written=written) == ""
    assert made(fails(), past(user=STRANGER), written=written) == ""
    assert made(fails(STRANGER), past(), written=written) == f"vzrestore by {TESTER}"
    assert made(fails(STRANGER), past("vzmigrate"), past(), written=written) == ""


@pytest.mark.parametrize("written", [ENDED - 60.5, 10.0, -10.0, None])
@pytest.mark.parametrize("user", [STRANGER, TESTER])
def test_after_a_restore_that_failed_another_write_or_none_that_is_known_leaves_open_whose_it_is(user: str, written: float | None) -> None:
    """A restore with `force` may have half overwritten what was there, and a clone may have come in its place."""
    assert made(fails(user), past(), written=written) == ""
    assert made(fails(user), written=written) == ""


def test_a_restore_over_a_guest_that_failed_may_have_left_that_guest() -> None:
    """`force` locks the guest that is there before anything else, which writes its file, and when the archive cannot be read leaves it."""
    assert made(fails(), past(user=STRANGER), written=ENDED) == ""
    assert made(fails(), fails(STRANGER, OLD), written=ENDED) == ""
    assert made(fails(STRANGER), past(), written=ENDED) == ""
    assert made(fails(), past("vzmigrate"), written=ENDED) == ""
    assert made(fails(), past("vzstart", STRANGER, 2000), past(user=STRANGER), written=ENDED) == ""


def test_of_several_that_may_have_made_it_all_must_be_ours() -> None:
    assert made(fails(), past(), written=ENDED) == f"qmrestore by {TESTER}"
    assert made(fails(), fails(age=2000), past(), written=ENDED) == f"qmrestore by {TESTER}"
    assert made(fails(), fails(age=2000), past(user=STRANGER), written=ENDED) == ""


@pytest.mark.parametrize("kind", ["vzdestroy", "qmdestroy"])
def test_where_the_guest_before_was_destroyed_the_one_that_failed_made_it(kind: str) -> None:
    assert made(fails(), past(kind, age=1000), past(user=STRANGER), written=ENDED) == f"qmrestore by {TESTER}"
    assert made(fails(), past(kind, age=1000, said=FAILED), past(user=STRANGER), written=ENDED) == ""


def test_a_task_without_an_end_is_not_known_to_have_written_the_file() -> None:
    assert made(replace(fails(), endtime=None), written=ENDED) == ""


@pytest.mark.parametrize("written", [None, 10.0, BEGAN, OLD])
def test_a_restore_that_was_killed_left_its_guest_whoever_wrote_the_file_last(written: float | None) -> None:
    """C48."""
    killed = past(age=BEGAN, said=KILLED)
    assert made(killed, written=written) == f"vzrestore by {TESTER}"
    assert made(killed, lock="create", written=written) == f"vzrestore by {TESTER}"
    assert made(past(user=STRANGER, age=BEGAN, said=KILLED), past(), written=written) == ""


# ---------------------------------------------------------------------------------------------------- claims


def claim(since: float, until: float) -> Claimed:
    """since, until: seconds ago."""
    return Claimed("mallory", WALL - since, WALL - until)


@pytest.mark.parametrize(
    ("since", "until"),
    [(40_000, 30_000), (OLD, OLD), (OLD, 1), (OLD, -100), (OLD - 0.9, 1)],
    ids=["within", "as it ended", "as it began", "in one that lasts", "in the second in which it began"],
)
def test_a_claim_proves_whose_it_is_when_it_was_made_meanwhile(since: float, until: float) -> None:
    found = judge(case(by=STRANGER, claimed=claim(since, until)))
    assert (found.verdict, found.proof) == (ScratchVerdict.LEFTOVER, "claimed by mallory")
    assert found.evidence == "claimed by mallory; unused for 35990 s"


def test_a_guest_that_was_made_before_or_after_the_claim_is_not_of_it() -> None:
    assert verdict(by=STRANGER, claimed=claim(50_000, OLD + 1)) is ScratchVerdict.UNPROVEN
    assert verdict(by=STRANGER, claimed=claim(OLD - 1, -1000)) is ScratchVerdict.UNPROVEN


def test_a_claim_is_of_one_that_the_record_shows_to_have_been_made() -> None:
    lasts = claim(40_000, -40_000)
    assert made(past("vzstart", STRANGER), claimed=lasts) == ""
    assert made(past("vzmigrate", STRANGER, 900), past(), claimed=lasts) == ""
    assert made(past("vzdestroy", STRANGER, 900), past(), claimed=lasts) == ""
    assert origin(case(past=(), claimed=lasts)) == ""


def test_all_that_may_have_made_it_must_have_begun_before_the_claim_ended() -> None:
    theirs = past(user=STRANGER)
    assert made(fails(STRANGER), theirs, written=ENDED, claimed=claim(40_000, BEGAN)) == "claimed by mallory"
    assert made(fails(STRANGER), theirs, written=ENDED, claimed=claim(40_000, BEGAN + 1)) == ""


def test_the_tag_and_the_record_are_told_before_a_claim() -> None:
    assert made(tags=TAG, claimed=claim(40_000, 0)) == "tag guestward-scratch"
    assert made(claimed=claim(40_000, 0)) == f"vzrestore by {TESTER}"


# ---------------------------------------------------------------------------------------------------- how long nobody used it


def unused(*tasks: Task, **parts: Any) -> float:
    return unused_for(case(*tasks, **parts))


@pytest.mark.parametrize(("age", "expected"), [(7209.0, ScratchVerdict.YOUNG), (7210.0, ScratchVerdict.LEFTOVER)])
def test_min_age_is_from_the_end_of_the_last_task(age: float, expected: ScratchVerdict) -> None:
    assert verdict(age=age) is expected
    assert unused(age=age) == age - 10


def test_any_task_on_it_counts_whoever_it_was_and_whether_it_went_well() -> None:
    for kind, said in (("vzstart", Ok()), ("vzdump", FAILED), ("vncproxy", KILLED)):
        assert unused(past(kind, STRANGER, 100, said=said), past()) == 90
    assert unused(past(), past("vzstart", STRANGER, 100)) == 90


def test_it_is_told_when_it_will_be_old_enough() -> None:
    decision = judge(case(past("vzstop", STRANGER, 3610), past()))
    assert (decision.verdict, decision.next_at, decision.proof) == (ScratchVerdict.YOUNG, AT + 3600, f"vzrestore by {TESTER}")
    assert decision.evidence == f"vzrestore by {TESTER}; unused for 3600 s, 7200 s are asked for"


def test_min_age_is_the_configured_one() -> None:
    assert verdict(age=310, rules=replace(RULES, scratch_min_age=300.0)) is ScratchVerdict.LEFTOVER
    assert verdict(age=309, rules=replace(RULES, scratch_min_age=300.0)) is ScratchVerdict.YOUNG


@pytest.mark.parametrize("step", [3 * 3600, -3 * 3600, 3 * 86400, -3 * 86400])
def test_a_clock_that_was_set_since_makes_nothing_older(step: float) -> None:
    """C77, I16."""
    assert unused(age=310, wall=WALL + step) <= 300
    assert verdict(age=310, wall=WALL + step) is ScratchVerdict.YOUNG


@pytest.mark.parametrize("step", [3 * 86400, -3 * 3600, -3 * 86400])
def test_a_clock_that_was_set_since_by_more_than_its_age_makes_nothing_younger(step: float) -> None:
    assert unused(age=7210, wall=WALL + step) == 7200


def test_a_clock_that_was_set_back_by_less_makes_it_seem_younger_for_a_while() -> None:
    """By the clock of now its last task has ended later than by that of its begin; the later end counts."""
    assert unused(age=7210, wall=WALL - 3600) == 3600


@pytest.mark.parametrize("step", [1800, 3600, 10_000, 3 * 86400, -1800, -3600, -5000, -3 * 86400])
def test_a_clock_that_was_set_during_the_task_makes_nothing_older(step: float) -> None:
    """It began 5000 s ago and ended 100 s ago; PVE notes both by the wall clock of that moment."""
    before = WALL - step
    set_meanwhile = past(age=5000, wall=int(before) - 5000, took=4900 + step)
    assert unused(set_meanwhile) <= 100
    assert verdict(set_meanwhile) is ScratchVerdict.YOUNG


@pytest.mark.parametrize("step", [-5000, -3 * 86400, 3 * 86400])
def test_an_end_that_cannot_be_by_the_clock_before_is_taken_by_that_of_now(step: float) -> None:
    assert unused(past(age=5000, wall=int(WALL) - int(step) - 5000, took=4900 + step)) == 100


def test_an_end_that_can_be_by_no_clock_was_just_now() -> None:
    """Set back during the task, and again since."""
    assert unused(past(age=5000, wall=int(WALL) + 90_000, took=-10_000), wall=WALL) == 0


@pytest.mark.parametrize(
    ("late", "age"), [(0.0, 100.0), (1.0, 99.0), (100.0, 0.0), (100.5, 4990.0)], ids=["exact", "a second less", "now", "in the future"]
)
def test_of_two_ends_that_can_be_the_later_one_counts(late: float, age: float) -> None:
    """By the clock of its begin it lasted ten seconds; by the clock of now it ended a hundred seconds ago, less what is said here."""
    assert unused(past(age=5000, wall=int(WALL) - 110, took=10), wall=WALL - late) == age


@pytest.mark.parametrize(("early", "age"), [(0.0, 5000.0), (1.0, 5001.0), (1.5, 0.0)])
def test_an_end_may_be_a_second_before_the_begin_for_pve_notes_whole_seconds(early: float, age: float) -> None:
    """By the clock of its begin it ended in the future, so only that of now is left."""
    began = past(age=5000, wall=int(WALL) - 50_000, took=45_000)
    assert unused(began, wall=WALL + early) == age


def test_a_task_of_an_earlier_boot_is_as_old_as_this_boot() -> None:
    assert unused(past(age=-50_000, wall=int(WALL) - 200_000)) == AT
    before = past(age=-50_000, wall=int(WALL) - 7100)
    assert verdict(before, at=7199.0) is ScratchVerdict.YOUNG
    assert verdict(before, at=7200.0) is ScratchVerdict.LEFTOVER
    assert judge(case(before, at=7000.0)).next_at == 7200.0


def test_a_task_of_an_earlier_boot_that_looks_like_one_of_this_is_no_older_than_that() -> None:
    assert unused(past(age=9000, wall=int(WALL) - 300_000)) == 8990


@pytest.mark.parametrize(("age", "expected"), [(-0.5, 0.0), (-60.0, 0.0), (-60.5, AT)])
def test_a_task_that_began_while_all_this_was_read_is_of_this_boot(age: float, expected: float) -> None:
    assert unused(past("vzstart", STRANGER, age), past()) == min(expected, OLD - 10)


def test_a_task_that_ended_while_all_this_was_read_ended_just_now() -> None:
    assert unused(past("vzstart", STRANGER, 5), past()) == 0


def test_a_task_without_an_end_may_have_ended_just_now_unless_it_is_of_an_earlier_boot() -> None:
    assert unused(replace(past(), endtime=None)) == 0
    assert judge(case(replace(past(), endtime=None))).next_at == AT + MIN_AGE
    assert unused(replace(past(age=-50_000), endtime=None)) == AT


@pytest.mark.parametrize(
    ("written", "expected"),
    [(WALL - 7200, 7200.0), (WALL - 100, 100.0), (WALL - 10 * AT, AT), (WALL + 3600, 0.0), (None, 0.0)],
    ids=["by its file", "young", "of an earlier boot", "in the future", "not known"],
)
def test_without_any_task_its_file_tells_and_the_boot(written: float | None, expected: float) -> None:
    assert unused_for(case(past=(), written=written)) == expected
    decision = judge(case(past=(), written=written, tags=TAG))
    if expected < MIN_AGE:
        assert (decision.verdict, decision.next_at) == (ScratchVerdict.YOUNG, AT + MIN_AGE - expected)
        assert decision.evidence == f"tag guestward-scratch; unused for {expected:.0f} s, 7200 s are asked for"
    else:
        assert decision.evidence == f"tag guestward-scratch; unused for {expected:.0f} s"


def test_a_clone_with_the_tag_is_as_old_as_its_file_and_not_as_the_guest_that_was_destroyed_before_it() -> None:
    before = (past("vzdestroy", age=30_000), past())
    assert unused(*before, tags=TAG, written=WALL - 60) == 60
    assert verdict(*before, tags=TAG, written=WALL - 60) is ScratchVerdict.YOUNG
    assert verdict(*before, tags=TAG, written=None) is ScratchVerdict.YOUNG
    assert verdict(*before, tags=TAG, written=WALL - 7200) is ScratchVerdict.LEFTOVER
    assert unused(past("vzstop", age=110), *before, tags=TAG, written=WALL - 7200) == 100


def test_the_file_of_one_whose_making_is_recorded_says_nothing_of_its_use() -> None:
    assert unused(written=WALL - 60) == 35_990
    assert unused(written=None) == 35_990


def test_what_we_do_to_it_ourselves_is_no_use_of_it() -> None:
    ours = past("vzstop", user=TOKEN, age=10)
    assert unused(ours, past()) == unused(past()) == 35_990
    assert unused(past("vzstop", age=10), past()) == 0
    assert unused(ours, tags=TAG, written=WALL - 7200) == 7200
    assert unused(past("vzcreate", user=TOKEN, age=10), tags=TAG) == 0


# ---------------------------------------------------------------------------------------------------- failures


def test_a_failed_teardown_is_tried_again_after_a_quarter_of_an_hour_then_after_an_hour_and_then_given_up() -> None:
    first = scratch.failed(ScratchMemory(990000, SCRATCH, "web", "7", step=ScratchStep.STOP), AT)
    assert first == ScratchMemory(990000, SCRATCH, "web", "7", failures=1, next_at=AT + 900, step=ScratchStep.STOP)
    second = scratch.failed(first, AT + 1000)
    assert second == replace(first, failures=2, next_at=AT + 4600)
    third = scratch.failed(second, AT + 5000)
    assert third == replace(first, failures=3, next_at=AT + 8600)
    for memory, at, expected in (
        (first, AT + 899, ScratchVerdict.WAITING),
        (first, AT + 900, ScratchVerdict.LEFTOVER),
        (second, AT + 4599, ScratchVerdict.WAITING),
        (second, AT + 4600, ScratchVerdict.LEFTOVER),
        (third, AT + 5000, ScratchVerdict.GIVEN_UP),
        (third, AT + 90_000, ScratchVerdict.GIVEN_UP),
    ):
        assert judge(case(memory=memory, at=at)).verdict is expected


def test_more_failures_than_are_allowed_are_no_fewer() -> None:
    assert verdict(failures=4) is ScratchVerdict.GIVEN_UP
    assert verdict(failures=2) is ScratchVerdict.LEFTOVER


# ---------------------------------------------------------------------------------------------------- whatever happens


@dataclass(frozen=True)
class Story:
    """A case, and what really happened. touched: by the boot clock, when the last task on it ended; written: when its file was written."""

    case: ScratchCase
    touched: float | None
    written: float | None


BIRTHS = ("vzrestore", "vzcreate", "qmrestore", "qmcreate")
KINDS = (*BIRTHS, *BIRTHS, "vzdestroy", "qmdestroy", "vzclone", "qmclone", "vzmigrate", "qmigrate", "vzstart", "vzdump")
ENDS: tuple[TaskStatus, ...] = (Ok(), Ok(), Ok(), Warnings(1), FAILED, KILLED)
UPTIMES = (100.0, 7190.0, 7250.0, 30_000.0, 50_000.0, 150_000.0)
STEPS = (0, 0, 0, 100, 5000, 20_000, -100, -5000, -20_000)
AGES = (-20, 0, 300, 5000, 7190, 7215, 9000, 13_000, 20_000, 30_000, 60_000, 140_000)
LASTED = (0, 0.5, 10, 10, 30, 2000, 6000, 15_000)
FACTS: tuple[dict[str, Any], ...] = (
    *({"active": (one,)} for one in (task("vzstart", "990000"), task("vzdump"), task("vzdump", "101"), task("vzclone", "101"))),
    *({"active": (one,)} for one in (task("vzstart", "990001"), task("vzstop", "990000", said=Ok()))),
    *({"listed": one} for one in (listed(SCRATCH, template=True), listed(SCRATCH, running=True), None)),
    *({name: GONE} for name in ("config", "active", "past", "resources")),
    *({"resources": resources(SCRATCH, ha={SCRATCH: state})} for state in ("started", "ignored", None)),
    *({"hold": hold(990000, claim=claim)} for claim in (False, True)),
    *({"lock": lock} for lock in ("create", "create", "destroyed", "destroyed", "backup", "clone")),
    *({name: True} for name in ("template", "base", "protection")),
    *({"failures": failures} for failures in (1, 2, 3, 4)),
    *({"next_at": moment} for moment in (AT - 1, 1e6, 2e6, 3e6, 4e6, 5e6, 6e6)),
    {"resources": resources(VM_SCRATCH)},
    {"lost": (LostGrant("/vms/990000", "VM.Audit"),)},
    {"gate": SHUT},
)
BESIDES: tuple[tuple[dict[str, Any], ...], ...] = (*(() for _ in FACTS), *((one,) for one in FACTS), *zip(FACTS, FACTS[7:], strict=False))
"""What may be so besides: nothing as often as one of these, or two."""


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Tasks on the guest, of this boot and the one before; somebody may have set the clock, once."""
    at = draw(st.sampled_from(UPTIMES))
    by, when = draw(st.sampled_from(STEPS)), at * draw(st.floats(0, 1))
    last_boot = draw(st.sampled_from((5000, 40_000, 400_000)))

    def wall(moment: float) -> float:
        return WALL - AT + moment + (by if moment >= when else 0)

    def past_task() -> tuple[float, Task]:
        began = at - draw(st.sampled_from(AGES)) + draw(st.floats(-20, 20))
        ended = began + draw(st.sampled_from(LASTED))
        ended = min(ended, at + 50) if began >= 0 else min(ended, 0.0)
        born = began if began >= 0 else max(0.0, last_boot + began)
        user, said = draw(st.sampled_from((TESTER, TESTER, TESTER, STRANGER))), draw(st.sampled_from(ENDS))
        found = task(draw(st.sampled_from(KINDS)), "990000", user, said=said, at=born, wall=wall(began))
        return ended, replace(found, endtime=draw(st.sampled_from((int(wall(ended)),) * 9 + (None,))))

    tasks = sorted((past_task() for _ in range(draw(st.integers(0, 3)))), key=lambda one: one[0], reverse=True)
    moments = [moment for ended, _ in tasks for moment in (ended, ended - 5, ended + 30)]
    written = draw(st.sampled_from((None, at - 60.0, at - 10_000, at - 100_000, *moments, *moments)))
    besides: dict[str, Any] = {}
    for facts in draw(st.sampled_from(BESIDES)):
        besides |= facts
    if draw(st.booleans()):
        ago = draw(st.integers(0, 200_000))
        besides["claimed"] = Claimed("mallory", wall(at - ago - draw(st.sampled_from((60, 7200, 500_000)))), wall(at - ago))
    tags = draw(st.sampled_from((frozenset(), frozenset({"web"}), TAG)))
    known = {"written": None if written is None else wall(written), "at": at, "wall": wall(at)}
    record = {"past": tuple(found for _, found in tasks)}
    facts_of_it = case(**({"tags": tags} | known | record | besides))
    clock_was_kept = by == 0 or (written is not None and written >= when)
    return Story(facts_of_it, max((ended for ended, _ in tasks), default=None), written if clock_was_kept else None)


def may_be_destroyed(story: Story) -> bool:
    """DESIGN.md, Scratch teardown and grants, sentence by sentence."""
    facts = story.case
    if any(isinstance(found, Unreadable) for found in (facts.config, facts.active, facts.past, facts.resources)):
        return False
    assert isinstance(facts.config, GuestConfig)
    assert isinstance(facts.active, tuple)
    assert isinstance(facts.resources, Resources)
    if facts.listed is None or facts.lost or facts.hold is not None or not facts.gate.open:
        return False
    if facts.listed.template or facts.config.template or facts.config.base or facts.config.protection:
        return False
    if SCRATCH not in facts.resources.listed or facts.resources.ha.get(SCRATCH, "ignored") != "ignored":
        return False
    if facts.config.lock not in (None, "create", "destroyed"):
        return False
    on_it = [one for one in facts.active if isinstance(one.status, Running)]
    if any(one.upid.id == "990000" or (one.upid.type, one.upid.id) == ("vzdump", "") for one in on_it):
        return False
    if facts.config.lock and any(one.upid.type == "vzclone" for one in on_it):
        return False
    if facts.memory.failures >= 3 or facts.memory.next_at > facts.at:
        return False
    return is_old(story) and ("guestward-scratch" in facts.config.tags or is_ours(facts))


def is_ours(facts: ScratchCase) -> bool:
    """The newest create or restore came from an origin, or during a claim, and nothing came after that makes it another's."""
    assert isinstance(facts.past, tuple)
    assert isinstance(facts.config, GuestConfig)
    births = [n for n, one in enumerate(facts.past) if one.upid.type in BIRTHS and not left_the_file_alone(one, facts.written)]
    if not births:
        return False
    newest = facts.past[births[0]]
    for one in facts.past[: births[0]]:
        if one.upid.type in ("vzclone", "qmclone", "vzmigrate", "qmigrate"):
            return False
        if one.upid.type in ("vzdestroy", "qmdestroy") and isinstance(one.status, (Ok, Warnings)):
            return False
        if one.upid.type in ("vzdestroy", "qmdestroy") and one.status is KILLED and facts.config.lock != "destroyed":
            return False
    claim = facts.memory.claimed
    return newest.upid.user == TESTER or (claim is not None and claim.since - 1 < newest.upid.starttime <= claim.until)


def left_the_file_alone(one: Task, written: float | None) -> bool:
    return one.status is FAILED and written is not None and written < one.upid.starttime - 1


def is_old(story: Story) -> bool:
    """By what really happened; a second and a half for PVE's whole ones."""
    at, touched, written = story.case.at, story.touched, story.written
    if touched is not None:
        return at - touched >= MIN_AGE - 1.5
    return at >= MIN_AGE and (written is None or at - written >= MIN_AGE - 1.5)


@settings(max_examples=500, deadline=None)
@given(stories())
def test_whatever_happened_nothing_is_a_leftover_that_the_design_does_not_let_go(story: Story) -> None:
    decision = judge(story.case)
    if decision.verdict is ScratchVerdict.LEFTOVER:
        assert may_be_destroyed(story)
        assert decision.proof
    assert decision.evidence
    assert decision.next_at is None or decision.next_at > story.case.at


def test_those_stories_end_in_many_ways_and_often_in_a_teardown() -> None:
    """So that what the stories show means something; each verdict by itself has its tests above."""
    seen: Counter[ScratchVerdict] = Counter()

    @settings(max_examples=600, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(stories())
    def note(story: Story) -> None:
        seen[judge(story.case).verdict] += 1

    note()
    assert len(seen) >= len(ScratchVerdict) - 4
    assert seen[ScratchVerdict.LEFTOVER] > 8
