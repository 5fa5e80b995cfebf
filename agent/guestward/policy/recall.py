"""How the memory of one guest changes with what is seen: before the decision (`recall`) and by it (`settle`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from guestward.model.decision import Decision, Guard, Outcome
from guestward.model.events import Event, EventKind, Level, Notice
from guestward.model.guest import GuestConfig, GuestId, ListedGuest, same_guest
from guestward.model.memory import GuestMemory
from guestward.model.observation import Observation, StorageState
from guestward.model.reading import Unreadable
from guestward.model.rules import Rules
from guestward.policy.causes import describe
from guestward.policy.guards import BEFORE_WITNESSES, OUT_OF_SCOPE, STARTABLE, offline_storages

SILENT_STATES = frozenset({"stopped", "unknown"})
WORKING_STATES = frozenset({"", "running"}) | SILENT_STATES
CLOCK_SLACK = 2.0
BIRTH_LOCKS = frozenset({"create", "import", "clone"})


@dataclass(frozen=True, slots=True)
class Recalled:
    """A guest's memory and what there is to tell about how it came to be."""

    memory: GuestMemory
    notices: tuple[Notice, ...] = ()


def first_seen(guest: GuestId, *, watched: bool) -> GuestMemory:
    """A guest that nothing is remembered of. watched: whether this boot was watched before, so that it appeared under our eyes."""
    return GuestMemory(guest, new=watched)


def after_boot(memory: GuestMemory) -> GuestMemory:
    """The host booted: PVE has started what it should, and every history is forgotten."""
    return GuestMemory(memory.id, name=memory.name, owned=memory.owned, identity=memory.identity, ran=memory.ran, away=memory.away)


def recall(memory: GuestMemory, seen: ListedGuest, obs: Observation, rules: Rules, looked_at: float | None) -> Recalled:
    """Bring the memory of a listed guest up to what is seen of it now. looked_at: when the last look began, in seconds since host boot."""
    if _as_before(memory, seen, obs):
        return Recalled(memory)
    notices: list[Notice] = []
    joins = seen.id in obs.members and not memory.owned
    memory = replace(memory, name=seen.name, owned=seen.id in obs.members, away=False)
    if joins:
        memory = replace(memory, down_since=None)  # for how long it was down before it was ours is nobody's business
    memory = _born(memory, seen)
    config = obs.configs.get(seen.id)
    if isinstance(config, GuestConfig):
        memory = _compare(memory, config, notices)
    memory = _runs(memory, seen, obs, rules, notices) if seen.running else _stopped(memory, obs, looked_at)
    return Recalled(_works(memory, seen, obs, notices), tuple(notices))


def _as_before(memory: GuestMemory, seen: ListedGuest, obs: Observation) -> bool:
    """Whether a guest runs on as it did, with nothing to forget: on a large node that is nearly all of them, at every look."""
    quiet = memory.running and memory.ran and not (memory.new or memory.away or memory.attempts or memory.suspect or memory.not_working)
    same = memory.name == seen.name and memory.owned == (seen.id in obs.members)
    steady = memory.stable_since is not None and obs.at - seen.uptime(obs.at) - memory.stable_since < CLOCK_SLACK
    return (
        quiet
        and same
        and steady
        and seen.running
        and seen.pid is not None
        and seen.lock is None
        and seen.id not in obs.configs
        and not _troubled_state(seen, obs)
    )


def _born(memory: GuestMemory, seen: ListedGuest) -> GuestMemory:
    """A guest under a lock of creation is another guest than the one that had its VMID before (pve-facts B1, F1)."""
    known_as_new = memory.new and not memory.identity
    if seen.lock in BIRTH_LOCKS and not seen.running and not known_as_new:
        return GuestMemory(memory.id, name=seen.name, owned=memory.owned, new=True)
    return memory


def _compare(memory: GuestMemory, config: GuestConfig, notices: list[Notice]) -> GuestMemory:
    if memory.identity and not same_guest(memory.id.kind, memory.identity, config.identity):
        notices.append(_notice(Event.GUEST_FORGOTTEN, memory, "another guest has this VMID now", reason="identity changed"))
        fresh = GuestMemory(memory.id, name=memory.name, owned=memory.owned, new=True)
        return replace(fresh, identity=config.identity, fingerprint=config.fingerprint, onboot=config.onboot)
    changed, known = memory.fingerprint not in ("", config.fingerprint), memory.identity != ""
    if memory.in_flight is not None:
        return replace(memory, identity=config.identity)
    memory = replace(memory, identity=config.identity, fingerprint=config.fingerprint, onboot=config.onboot)
    # What was changed while it ran came before the stop, and lifts nothing.
    return replace(rearm(memory, "its configuration changed", notices), released=memory.released or known) if changed else memory


def rearm(memory: GuestMemory, reason: str, notices: list[Notice]) -> GuestMemory:
    """Forget the attempts; told only when there was something to forget."""
    if memory.attempts or memory.given_up:
        notices.append(_notice(Event.REARMED, memory, f"has all its attempts again: {reason}", reason=reason))
    keep = (replace(memory.in_flight, number=1),) if memory.in_flight is not None else ()
    announced = tuple(guard for guard in memory.announced if guard not in (Guard.BACKOFF, Guard.EXHAUSTED))
    return replace(memory, attempts=keep, given_up=False, announced=announced)


def rearmed_by_operator(memory: GuestMemory) -> Recalled:
    """`guestward rearm`: besides attempts, a new guest counts as known, and the stop that holds a guest holds it no longer; a later one
    does.
    """
    notices: list[Notice] = []
    stopped = memory.owned and not memory.running  # of a guest that is not ours nobody notes how it was stopped
    renewed = replace(rearm(memory, "by an operator", notices), new=False, released=stopped, blocked_storages=frozenset())
    if not notices:
        notices.append(_notice(Event.REARMED, memory, "has all its attempts: by an operator", reason="by an operator"))
    return Recalled(renewed, tuple(notices))


def storages_back(memory: GuestMemory, obs: Observation) -> Recalled:
    """A storage that kept it down is seen back: that, and not time, makes new attempts worth while (C17)."""
    if not memory.blocked_storages or isinstance(obs.resources, Unreadable):
        return Recalled(memory)
    states = obs.resources.storages
    back = sorted(name for name in memory.blocked_storages if states.get(name) is StorageState.AVAILABLE)
    if not back:
        return Recalled(memory)
    notices: list[Notice] = []
    left = memory.blocked_storages - set(back)
    if memory.attempts:
        memory = rearm(memory, f"storage {', '.join(back)} is back", notices)
    return Recalled(replace(memory, blocked_storages=left), tuple(notices))


def reborn(memory: GuestMemory) -> Recalled:
    """The task history tells that another guest was made under this VMID since the last look at the old one."""
    notice = _notice(Event.GUEST_FORGOTTEN, memory, "another guest was made under this VMID", reason="made anew")
    fresh = GuestMemory(memory.id, name=memory.name, owned=memory.owned, new=True, down_since=memory.down_since)
    fresh = replace(fresh, identity=memory.identity, fingerprint=memory.fingerprint, onboot=memory.onboot, stamp=memory.stamp)
    return Recalled(fresh, (notice,) if memory.owned else ())


def _runs(memory: GuestMemory, seen: ListedGuest, obs: Observation, rules: Rules, notices: list[Notice]) -> GuestMemory:
    """Running ends an episode. The history goes only after it ran stably: a guest that lives 30 s has not recovered (C07)."""
    if seen.pid is None:
        return replace(memory, stable_since=None)  # a start that fails, or a stop that ends, shows `running` for a moment (timelines 5a)
    if memory.in_flight is not None:
        return replace(memory, running=True)  # the attempt itself will say when and how it ended
    if memory.down_since is not None and memory.announced:
        down_s = round(obs.at - memory.down_since)
        notices.append(
            _notice(
                Event.GUEST_UP, memory, f"runs again; not started by us, or not known to be; first seen down {down_s} s ago", down_s=down_s
            )
        )
    steady = seen.lock is None and not memory.not_working and not _troubled_state(seen, obs)
    since = max(memory.stable_since or obs.at, obs.at - seen.uptime(obs.at)) if steady else None
    # The write of a memory that does not change is spared: `since` moves only when the guest was restarted between two looks.
    since = (
        memory.stable_since
        if since is not None and memory.stable_since is not None and since - memory.stable_since < CLOCK_SLACK
        else since
    )
    memory = replace(came_up(memory), stable_since=since)
    stable = since is not None and obs.at - since >= rules.stable and seen.uptime(obs.at) >= rules.stable
    return replace(memory, attempts=(), given_up=False) if stable and memory.attempts else memory


def came_up(memory: GuestMemory) -> GuestMemory:
    """It was seen running: the episode is over, with all that was known, doubted or lifted in it. Attempts stay until it ran stably."""
    return replace(
        memory,
        running=True,
        identity="",
        ran=True,
        new=False,
        down_since=None,
        startable_since=None,
        announced=(),
        cause=None,
        cause_read=False,
        ran_until=None,
        doubt_since=None,
        stamp="",
        released=False,
        blocked_storages=frozenset(),
        backup_since=None,
        backup_warned=False,
    )


def _stopped(memory: GuestMemory, obs: Observation, looked_at: float | None) -> GuestMemory:
    """The first look at a guest that went down begins an episode. Who it is, is asked anew when it ran and when its file changed."""
    if memory.running or memory.down_since is None:
        ran_until = looked_at if memory.running else None
        down_since = memory.down_since if memory.down_since is not None else obs.at
        doubt = memory.doubt_since if memory.doubt_since is not None else ran_until
        memory = replace(memory, down_since=down_since, cause_read=False, ran_until=ran_until, doubt_since=doubt)
    memory = compare_stamp(memory, obs, looked_at)
    return replace(memory, running=False, stable_since=None, suspect="", not_working="")


def compare_stamp(memory: GuestMemory, obs: Observation, looked_at: float | None) -> GuestMemory:
    """A configuration file that has changed, or that cannot be looked at, may be another guest's by now."""
    names = obs.host.names
    stamp = memory.stamp if isinstance(names, Unreadable) else names.here.get(memory.id, "")
    if isinstance(names, Unreadable) or memory.stamp not in ("", stamp):
        doubt = memory.doubt_since if memory.doubt_since is not None else looked_at
        return replace(memory, cause_read=False, doubt_since=doubt, stamp=stamp)
    return memory if stamp == memory.stamp else replace(memory, stamp=stamp)


def not_working_state(seen: ListedGuest, obs: Observation) -> str | None:
    """Why a running guest does no work, "" when it works: the QMP state that pvestatd publishes, or a frozen cgroup (pve-facts K).

    None where nobody can say: under a lock or a task such a state may be a step of somebody's work, as a backup of a stopped VM runs it in
    `prelaunch`; and what pvestatd calls stopped, or does not know, has changed while we looked.
    """
    busy = not isinstance(obs.tasks, Unreadable) and any(t.running and t.upid.covers(seen.id.vmid) for t in obs.tasks)
    if not seen.running:
        return ""
    state, member = _troubled_state(seen, obs), obs.members.get(seen.id)
    silent = not state and member is not None and member.state in SILENT_STATES
    return None if seen.lock is not None or busy or silent else state


def _troubled_state(seen: ListedGuest, obs: Observation) -> str:
    """The same, whoever is at work on it."""
    if not isinstance(obs.frozen, Unreadable) and seen.id.vmid in obs.frozen:
        return "frozen"
    member = obs.members.get(seen.id)
    return member.state if member is not None and member.state not in WORKING_STATES else ""


def _works(memory: GuestMemory, seen: ListedGuest, obs: Observation, notices: list[Notice]) -> GuestMemory:
    """Told when seen at two looks: pvestatd's word may be 10 s old."""
    if not memory.owned or not seen.running:
        return memory
    state = not_working_state(seen, obs)
    if state is None:
        return replace(memory, suspect="")  # what was told has not ended as long as that is not seen
    if state and state == memory.suspect and state != memory.not_working:
        notices.append(
            _notice(Event.NOT_WORKING, memory, f"runs but does not work: {state}; it is left as it is, look at it in PVE", state=state)
        )
        return replace(memory, not_working=state)
    if not state and memory.not_working:
        notices.append(_notice(Event.WORKING_AGAIN, memory, f"works again, was {memory.not_working}", state=memory.not_working))
        return replace(memory, suspect="", not_working="")
    return replace(memory, suspect=state)


def settle(memory: GuestMemory, decision: Decision, obs: Observation, rules: Rules, *, ran_before: bool) -> Recalled:
    """Remember what was decided, and say what is new about it. ran_before: the guest was running at the look before."""
    if decision.guard is Guard.RUNNING or decision.guard in OUT_OF_SCOPE or memory.in_flight is not None:
        return Recalled(memory)  # of an attempt under way its own events tell
    notices = list(_tell(memory, decision, ran_before))
    if decision.guard in STARTABLE:
        memory = replace(memory, startable_since=memory.startable_since if memory.startable_since is not None else obs.at)
    else:
        memory = replace(memory, startable_since=None)
    if notices:
        memory = replace(memory, announced=(*memory.announced, decision.guard))
    memory = _offline(memory, decision, obs)
    memory = _waits_for_backup(memory, decision, obs, rules, notices)
    if decision.guard is Guard.EXHAUSTED and not memory.given_up:
        notices.append(_given_up(memory, decision))
        memory = replace(memory, given_up=True)
    return Recalled(memory, tuple(notices))


def _tell(memory: GuestMemory, decision: Decision, ran_before: bool) -> Iterator[Notice]:
    """`guest_down` opens an episode, `guest_waiting` names each further guard once. A guest that is down on purpose is no episode, but
    that one has become deliberate is said.
    """
    if decision.guard in memory.announced or decision.guard is Guard.START:
        return
    if memory.onboot is False and not (decision.guard is Guard.ONBOOT_OFF and (ran_before or memory.announced)):
        return
    kind = Event.GUEST_WAITING if memory.announced else Event.GUEST_DOWN
    cause = describe(memory.cause) if memory.cause_read else "the task history could not be read"
    what = "stays down" if memory.announced else "is down"
    yield _notice(kind, memory, f"{what}: {decision.guard} ({decision.evidence})", decision.guard, evidence=decision.evidence, cause=cause)


def _offline(memory: GuestMemory, decision: Decision, obs: Observation) -> GuestMemory:
    if decision.guard is not Guard.STORAGE_OFFLINE:
        return memory
    offline = offline_storages(obs.configs.get(decision.id), obs.resources)
    return replace(memory, blocked_storages=memory.blocked_storages | offline)


def _waits_for_backup(memory: GuestMemory, decision: Decision, obs: Observation, rules: Rules, notices: list[Notice]) -> GuestMemory:
    seen = obs.guests[decision.id]
    waits = decision.guard in (Guard.BACKUP, Guard.BACKUP_UNKNOWN) or (decision.guard is Guard.LOCKED and seen.lock == "backup")
    if not waits or memory.onboot is False:
        return replace(memory, backup_since=None)
    since = memory.backup_since if memory.backup_since is not None else obs.at
    memory, waited = replace(memory, backup_since=since), obs.at - since
    if waited >= rules.backup_wait_warn and not memory.backup_warned:
        text = f"has been down for {waited / 3600:.1f} h and waits for a backup, or for the lock of one: {decision.evidence}"
        notices.append(_notice(Event.BACKUP_WAIT_LONG, memory, text, decision.guard, evidence=decision.evidence, waited_s=round(waited)))
        return replace(memory, backup_warned=True)
    return memory


def lasting(before: GuestMemory | None, memory: GuestMemory, decision: Decision, obs: Observation) -> bool:
    """Whether the next look leaves the memory as it is and decides the same, with nothing to tell, as long as it sees the same.

    before: the memory with which this look began. Nothing in it may hang on the time, nor on what the task history or a storage will
    say; that there is no hold on the guest is for the caller to know.
    """
    seen = obs.guests[memory.id]
    if before != memory:
        return False
    if seen.running:
        return _as_before(memory, seen, obs)
    counts = bool(memory.attempts) or memory.startable_since is not None
    asks = bool(memory.blocked_storages) or (memory.owned and not memory.cause_read)
    return decision.guard in BEFORE_WITNESSES and not counts and not asks


def _given_up(memory: GuestMemory, decision: Decision) -> Notice:
    last, made = memory.attempts[-1], len(memory.attempts)
    reason = "it starts, but does not stay up" if last.outcome is Outcome.STARTED else last.reason
    text = f"given up after {made} attempts and stays down: {reason}. Mend the cause, then: guestward rearm {memory.id.vmid}"
    return _notice(Event.GIVEN_UP, memory, text, decision.guard, level=Level.ERROR, attempts=made, reason=reason)


def _notice(event: EventKind, memory: GuestMemory, message: str, guard: str = "", level: Level | None = None, **fields: object) -> Notice:
    return Notice(event, memory.id, memory.name, guard, message, tuple(fields.items()), level)
