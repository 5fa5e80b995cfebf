"""That the agent lives, looks, and says what it can see: heartbeat, sweeps, grants, silence, secrets."""

from __future__ import annotations

import math
from collections.abc import Iterator

from guestward.sim.log import Logged
from guestward.sim.monitors import truth
from guestward.sim.monitors.base import Watch
from guestward.sim.monitors.heard import CANARY
from guestward.sim.monitors.past import Asked, Facts, Past, Snap

NAMES = ("names", "quorum", "pve-guests", "system", "hold_file", "maintenance", "frozen")
ALWAYS = ("privileges", "list", "members", "active")
NEEDED = frozenset({*ALWAYS, "config", "archive"})
OWNERSHIP = ("VM.Audit", "VM.PowerMgmt", "Pool.Audit")
SECRETS = (CANARY, "Authorization", "PVEAPIToken=")


def counts(past: Past) -> bool | None:
    """Whether the sweep that ends now saw all that it had to see: yes, no, or not to be told from outside."""
    job, length, verdict = past.counted
    if job is not past.job or length != len(past.job):
        verdict = _counts(past)
        past.counted = (past.job, len(past.job), verdict)
    return verdict


def _counts(past: Past) -> bool | None:
    finals: dict[tuple[str, int], bool] = {}
    node, lost = past.snap.node, frozenset[tuple[str, str]]()
    for asked in _of_the_sweep(past):
        if asked.kind in NEEDED:
            finals[(asked.kind, asked.vmid)] = asked.answered
            lost = asked.lost if asked.kind == "privileges" else lost
        elif asked.kind == "host":
            node = asked.snap.node
    if not all(finals.values()) or not all((kind, 0) in finals for kind in ALWAYS):
        return False
    if not node.pmxcfs or node.local_name not in ("", past.world.node) or any(grant[0] != "/storage" for grant in lost):
        return False
    if node.unreadable and any(name in node.unreadable for name in NAMES):
        return False
    doubtful = (
        node.hidden
        or _band_unread(past)
        or past.concealed()
        or _moved(past)
        or past.world.now - past.again_failed < 2 * past.sim.config.watchdog.interval + 10
    )
    return None if doubtful else True


def _of_the_sweep(past: Past) -> Iterator[Asked]:
    """What the watchdog has asked in this job; lock recovery and scratch teardown ask for themselves."""
    witnessed = False
    for asked in past.job:
        if asked.kind == "live" or (asked.kind == "archive" and asked.vmid in past.band):
            return  # what comes then is the look before a start, or a teardown's
        if (asked.kind == "archive" and witnessed) or (asked.kind == "config" and asked.vmid in past.band):
            continue  # the sweep reads the history before it looks for backups
        witnessed = witnessed or asked.kind == "backups"
        yield asked


def _band_unread(past: Past) -> bool:
    """Whether a configuration could not be read of which it is not known who asked for it."""
    return any(asked.kind == "config" and asked.vmid in past.band and not asked.answered for asked in past.job)


def _moved(past: Past) -> bool:
    """Whether the world changed while the agent looked."""
    return bool(past.job) and past.job[0].version != past.world.version


class HeartbeatCounts(Watch):
    """I6."""

    invariant = "I6"
    rule = "a heartbeat comes at each `heartbeat_every`th sweep that saw everything, and never at another; its numbers are true"
    judges = frozenset({"heartbeat"})

    def __init__(self, past: Past) -> None:
        """least, most: how many sweeps have counted since the host booted; they differ where it cannot be told from outside."""
        super().__init__(past)
        self.least, self.most = 0, 0
        self.boot, self.life, self.lost = past.world.boot, past.life, past.lost_state
        self.beat, self.cuts = False, past.all_cuts

    def _catch_up(self) -> None:
        past = self.past
        if past.world.boot != self.boot:
            self.boot, self.least, self.most = past.world.boot, 0, 0
        if past.lost_state != self.lost:
            self.lost = past.lost_state
            self.least, self.most = 0, (self.most if past.life == self.life else 0)
        self.life = past.life
        self.most += past.all_cuts - self.cuts  # a sweep that counted, and after which the agent was killed before its job was over
        self.cuts = past.all_cuts

    def event(self, logged: Logged) -> None:
        """Judge a heartbeat."""
        if logged.event != "heartbeat":
            return
        self._catch_up()
        self.beat = True
        every, number = self.past.sim.config.watchdog.heartbeat_every, logged.fields.get("sweeps_since_boot")
        if counts(self.past) is False:
            self.broken(f"a heartbeat at {logged.t:.1f} s although the sweep did not see everything")
        if not isinstance(number, int) or number % every:
            self.broken(f"a heartbeat at {logged.t:.1f} s at sweep {number}, which is no {every}th")
        if not self.least + 1 <= number <= self.most + 1:
            span = str(self.least + 1) if self.least == self.most else f"{self.least + 1} to {self.most + 1}"
            self.broken(f"the heartbeat at {logged.t:.1f} s says {number} sweeps; they are {span}")
        self.least = self.most = number - 1
        self._numbers(logged)

    def _numbers(self, logged: Logged) -> None:
        snaps = [asked.snap for asked in self.past.job if asked.kind in ("list", "members")]
        mine = [[f for f in snap.guests.values() if f.owned and not f.band and not f.template] for snap in snaps]
        totals, stopped = [len(of) for of in mine], [sum(1 for f in of if not f.shown) for of in mine]
        for name, known in (("guests_evaluated", totals), ("currently_stopped", stopped)):
            said = logged.fields.get(name)
            if not isinstance(said, int) or not min(known) <= said <= max(known):
                self.broken(f"the heartbeat at {logged.t:.1f} s says {name} {said}; it is {known[-1]}")
        if len({id(snap.guests) for snap in snaps}) == 1:
            self._left_down(logged, [f for f in mine[-1] if not f.shown])

    def _left_down(self, logged: Logged, down: list[Facts]) -> None:
        said = logged.fields.get("left_down")
        ids = sorted(str(entry["id"]) for entry in said) if isinstance(said, list) else []
        known = sorted(str(f.id) for f in down)
        if ids != known:
            self.broken(
                f"the heartbeat at {logged.t:.1f} s names {', '.join(ids) or 'nobody'} as stopped; it is {', '.join(known) or 'nobody'}"
            )

    def looked(self, job: str) -> None:
        """Count a sweep; a heartbeat that was due must have come."""
        if job != "sweep":
            return
        self._catch_up()
        counted, beat = counts(self.past), self.beat
        self.beat = False
        due = self.least == self.most and (self.least + 1) % self.past.sim.config.watchdog.heartbeat_every == 0
        if counted and due and not beat:
            self.broken(f"no heartbeat at the {self.least + 1}th sweep that saw everything, at {self.past.world.now:.1f} s")
        self.least += counted is True
        self.most += counted is not False
        if beat and counted is None:
            self.least = self.most


WATCHDOGS = ("/pool/", "/nodes/", "/storage")  # paths of the grants that the watchdog lives on; those of the band go and come back


class GrantsTold(Watch):
    """I13."""

    invariant = "I13"
    rule = "a needed grant that is lost is told as lost within two looks that could see it, and as restored; each once"
    judges = frozenset({"grant_lost", "grant_restored"})

    def __init__(self, past: Past) -> None:
        """told: what this life of the agent said is lost. unsaid: grant -> sweeps that saw what was not said yet."""
        super().__init__(past)
        self.told: set[tuple[str, str]] = set()
        self.unsaid: dict[tuple[str, str], int] = {}
        self.life = past.life

    def event(self, logged: Logged) -> None:
        """Keep what is told, and judge it."""
        if logged.event not in ("grant_lost", "grant_restored") or not str(logged.fields.get("path")).startswith(WATCHDOGS):
            return
        self._catch_up()
        grant = (str(logged.fields.get("path")), str(logged.fields.get("privilege")))
        words = f"{grant[1]} on {grant[0]}"
        lost = logged.event == "grant_lost"
        if lost == (grant in self.told):
            self.broken(
                f"{logged.event} of {words} at {logged.t:.1f} s, and that was told before" if lost else f"{words} was never told as lost"
            )
        changed = _moved(self.past)
        if lost != (grant in self.past.lost()) and not changed:
            self.broken(f"{logged.event} of {words} at {logged.t:.1f} s, which the token has {'' if lost else 'not '}got")
        (self.told.add if lost else self.told.discard)(grant)
        self.unsaid.pop(grant, None)

    def _catch_up(self) -> None:
        if self.past.life != self.life:
            self.life, self.told, self.unsaid = self.past.life, set(), {}

    def looked(self, job: str) -> None:
        """What a sweep saw must be told."""
        if job != "sweep":
            return
        past = self.past
        lost = past.lost()
        if not lost and not self.told and not self.unsaid:
            return
        self._catch_up()
        if not self._could_tell():
            return
        for grant in (lost ^ self.told) | self.unsaid.keys():
            if (grant in lost) == (grant in self.told):
                self.unsaid.pop(grant, None)
                continue
            self.unsaid[grant] = self.unsaid.get(grant, 0) + 1
            if self.unsaid[grant] >= 2:
                how = "lost" if grant in lost else "restored"
                self.broken(f"{grant[1]} on {grant[0]} is {how}, two sweeps up to {past.world.now:.1f} s saw it, and it was not told")

    def _could_tell(self) -> bool:
        """Whether the look got so far: without ownership it ends at the privileges, otherwise it needs the lists."""
        past = self.past
        if not past.asked_ok("privileges") or _moved(past):
            return False
        if any(grant[1] in OWNERSHIP for grant in past.lost()):
            return True
        return counts(past) is not None and past.asked_ok("list") and past.asked_ok("members")


class SweepsCome(Watch):
    """I15, and I16 by its subclass."""

    invariant = "I15"
    rule = "every sweep comes: between two there are never more than two intervals and what the API took"
    over_jumps = False

    def __init__(self, past: Past) -> None:
        """last: virtual second of the end of the last sweep. offset: wall clock less boot clock then."""
        super().__init__(past)
        self.last, self.offset, self.life, self.boot = past.world.now, math.nan, past.life, past.world.boot
        interval = past.sim.config.watchdog.interval
        self.longest = 2 * interval + max(10.0, 0.9 * interval) + 45.0 * past.rules.parallel

    def looked(self, job: str) -> None:
        """Judge the gap, at the end of each job."""
        world = self.past.world
        if world.now - self.last > self.longest:
            self._judge()
        if job == "sweep":
            self.last, self.life, self.boot, self.offset = world.now, self.past.life, world.boot, world.wall_offset - world.boot_offset

    def end(self) -> None:
        """The last gap."""
        self._judge()

    def _judge(self) -> None:
        """A gap in which the agent or the host began anew counts from then, and nothing is known of the clock before."""
        past, world = self.past, self.past.world
        if past.sim.watch is None:
            return
        anew = past.life != self.life or world.boot != self.boot
        began = max(self.last, past.alive_since)
        jumped = not anew and abs(world.wall_offset - world.boot_offset - self.offset) > 1
        if world.now - began > self.longest and jumped == self.over_jumps:
            self.broken(f"no sweep between {began:.1f} s and {world.now:.1f} s; there must be one every {self.longest:.0f} s at the latest")


class ClockJumpsMoveNothing(SweepsCome):
    """I16."""

    invariant = "I16"
    rule = "a wall clock that is set moves no sweep"
    over_jumps = True


class NoSecrets(Watch):
    """I17."""

    invariant = "I17"
    rule = "no secret is in any record"

    def event(self, logged: Logged) -> None:
        """Look through all of it."""
        text = f"{logged.message} {dict(logged.fields)!r} {logged.name}"
        for secret in SECRETS:
            if secret in text:
                self.broken(f"{logged.event} at {logged.t:.1f} s holds {'the secret of the token' if secret == CANARY else secret!r}")


class NeverSilent(Watch):
    """I18."""

    invariant = "I18"
    rule = "while the agent lives there is a heartbeat, or it was said that not all is examined and not that this is over"

    def __init__(self, past: Past) -> None:
        """last: virtual second of the last such word. standing: somebody was told that not all is examined."""
        super().__init__(past)
        self.last, self.standing, self.life = past.world.now, False, past.life

    def event(self, logged: Logged) -> None:
        """Keep what counts as a word."""
        if logged.event in ("heartbeat", "daemon_started"):
            self.last, self.standing = logged.t, False
        elif logged.event in ("sweep_aborted", "sweep_incomplete"):
            self.last, self.standing = logged.t, True
        elif logged.event == "sweep_resumed":
            self.last, self.standing = logged.t, bool(logged.fields.get("reason"))

    def looked(self, job: str) -> None:
        """Judge the silence."""
        past = self.past
        if self.standing or job != "sweep":
            return
        watchdog = past.sim.config.watchdog
        longest = (watchdog.heartbeat_every + 2) * watchdog.interval + 60.0
        began = max(self.last, past.alive_since)
        if past.world.now - began > longest + self._api_took():
            self.broken(f"not a word between {began:.1f} s and {past.world.now:.1f} s on whether the guests are examined")

    def _api_took(self) -> float:
        return 2 * self.past.sim.config.watchdog.interval if self.past.trouble else 0.0


class GateTold(Watch):
    """The gate is told on its edges."""

    invariant = "CLAIMS"
    rule = "that the host gate closes or opens is told, once, and by the next sweep"

    def __init__(self, past: Past) -> None:
        """Nothing was told yet."""
        super().__init__(past)
        self.closed, self.life = False, past.life
        self.missed = 0
        self.open_at: Snap | None = None  # what is open stays so as long as nothing changes: only an end is a matter of time

    def event(self, logged: Logged) -> None:
        """Keep what is told."""
        if self.past.life != self.life:
            self.life, self.closed = self.past.life, False
        if logged.event == "host_gate_closed":
            self.closed = True
        elif logged.event == "host_gate_opened":
            if not self.closed:
                self.broken(f"host_gate_opened at {logged.t:.1f} s, and nobody was told that it was closed")
            self.closed = False

    def looked(self, job: str) -> None:
        """A gate that was closed all through two sweeps is told."""
        past = self.past
        if job != "sweep":
            return
        if past.life != self.life:
            self.life, self.closed = past.life, False
        if self.closed or not past.job or not all(past.asked_ok(kind) for kind in ALWAYS):
            self.missed = 0
            return
        if past.snap is self.open_at:
            return
        snap: Snap = past.job[0].snap
        self.open_at = None if truth.gate(past, past.snap) else past.snap
        shut = truth.gate(past, snap) and truth.gate(past, past.snap)
        self.missed = self.missed + 1 if shut else 0
        if self.missed >= 2 and not past.lost():
            self.broken(
                f"{'; '.join(truth.gate(past, past.snap).values())} for two sweeps up to {past.world.now:.1f} s, and it was not told"
            )


ALL: tuple[type[Watch], ...] = (HeartbeatCounts, GrantsTold, SweepsCome, ClockJumpsMoveNothing, NoSecrets, NeverSilent, GateTold)
