"""How often a guest is started, how long the agent waits in between, and that each start and each end of trying is told, once."""

from __future__ import annotations

from dataclasses import dataclass

from guestward.sim.log import Effect, Logged
from guestward.sim.monitors.base import Watch
from guestward.sim.monitors.past import Past, Sent

EPS = 0.01


class AttemptsBounded(Watch):
    """I5: the bound."""

    invariant = "I5"
    rule = "no more starts than `attempts` without a reason for new ones, over restarts of the agent too"

    def effect(self, effect: Effect) -> None:
        """Judge a start."""
        if effect.verb != "start" or effect.vmid is None:
            return
        sent = self.past.memory(effect.vmid).sent[-1]
        most = self.past.rules.attempts
        if sent.number > most:
            self.broken(f"start {sent.number} of {sent.id} at {effect.t:.1f} s; at most {most}, and nothing happened that allows new ones")


class BackedOff(Watch):
    """I5, I16: the gaps."""

    invariant = "I5"
    rule = "after the end of each start the agent waits its back-off, counted by the boot clock"

    def effect(self, effect: Effect) -> None:
        """Judge a start by the end of the one before."""
        if effect.verb != "start" or effect.vmid is None:
            return
        sent = self.past.memory(effect.vmid).sent
        if len(sent) < 2 or sent[-1].number == 1:
            return
        before, now = sent[-2], sent[-1]
        rules = self.past.rules
        wait = min(rules.backoff_after(n) for n in range(before.number, rules.attempts + 1)) if before.number <= rules.attempts else 0.0
        ended = before.at if before.gone else before.ended
        if ended is not None and now.at - ended < wait - EPS:
            self.broken(
                f"start {now.number} of {now.id} at {effect.t:.1f} s, {now.at - ended:.1f} s after the end of start {before.number}; "
                f"the back-off is {wait:g} s"
            )


class NotSentTwice(Watch):
    """I11."""

    invariant = "I11"
    rule = "while the outcome of a start is open, none is sent to the same guest"

    def effect(self, effect: Effect) -> None:
        """Judge a start by the one before."""
        if effect.verb != "start" or effect.vmid is None:
            return
        sent = self.past.memory(effect.vmid).sent
        before = sent[-2] if len(sent) > 1 else None
        if before is not None and not before.gone and before.ended is None:
            left = before.deadline(self.past.rules.start_timeout) - sent[-1].at
            self.broken(
                f"start of {before.id} at {effect.t:.1f} s while the outcome of the one at {before.t:.1f} s is open for {left:.0f} s more"
            )


@dataclass(slots=True)
class Tried:
    """What was told of one guest. starts: attempts since the last reason for new ones that the agent surely knows."""

    starts: int = 0
    given_up: bool = False
    life: int = 0


class GivenUpOnce(Watch):
    """I5: the one ERROR."""

    invariant = "I5"
    rule = "that all attempts are used up is told exactly once, and only when they are"

    def __init__(self, past: Past) -> None:
        """Nothing was told yet."""
        super().__init__(past)
        self.told: dict[int, Tried] = {}

    def effect(self, effect: Effect) -> None:
        """A first start begins a new episode, even if the agent is killed before it could tell of it."""
        if effect.verb == "start" and effect.vmid in self.told and self.past.memory(effect.vmid).sent[-1].number == 1:
            self.told[effect.vmid].given_up = False

    def event(self, logged: Logged) -> None:
        """Count attempts, and judge `given_up`."""
        if logged.guest is None or logged.event not in ("start_attempt", "given_up", "rearmed", "guest_forgotten"):
            return
        vmid = logged.guest.vmid
        tried = self.told.setdefault(vmid, Tried())
        if logged.event == "start_attempt":
            tried.starts += 1
            if logged.fields.get("attempt") == 1:
                tried.given_up = False
        elif logged.event in ("rearmed", "guest_forgotten"):
            self.told[vmid] = Tried(life=self.past.life)
        else:
            self._given_up(tried, logged)

    def _given_up(self, tried: Tried, logged: Logged) -> None:
        past, id = self.past, logged.guest
        assert id is not None  # noqa: S101 - asked by the caller
        if tried.given_up and not (tried.life != past.life and (past.cut or past.lost_state > 0)):
            self.broken(f"{id} was given up again at {logged.t:.1f} s, and nothing happened since that allows new attempts")
        sent = past.memory(id.vmid).sent
        made = logged.fields.get("attempts")
        if not isinstance(made, int) or made < past.rules.attempts:
            self.broken(f"{id} was given up at {logged.t:.1f} s after {made} attempts; it has {past.rules.attempts}")
        if len(sent) > made:
            return self._mark(tried)
        facts = past.snap.guests.get(id.vmid)
        if facts is not None and facts.seen and past.memory(id.vmid).changed < logged.t:
            self.broken(f"{id} was given up at {logged.t:.1f} s although it runs")
        return self._mark(tried)

    def _mark(self, tried: Tried) -> None:
        tried.given_up, tried.life = True, self.past.life


class ResultsTold(Watch):
    """Each start is followed by its two events."""

    invariant = "CLAIMS"
    rule = "each start is followed by one start_attempt and by exactly one start_result, while agent and host live"

    def event(self, logged: Logged) -> None:
        """Match the events with the starts."""
        if logged.guest is None or logged.event not in ("start_attempt", "start_result"):
            return
        of = self.past.memory(logged.guest.vmid)
        open_one = next((sent for sent in reversed(of.sent) if not sent.outcome), None)
        if logged.event == "start_attempt" and open_one is not None and not open_one.attempt_told:
            open_one.attempt_told = True
        elif logged.event == "start_result" and open_one is not None:
            open_one.outcome = str(logged.fields.get("outcome"))

    def looked(self, job: str) -> None:
        """What should have been told by now."""
        for vmid in self.past.started:
            for sent in self.past.of[vmid].sent[-3:]:
                self._judge(sent, job)

    def _judge(self, sent: Sent, job: str) -> None:
        past = self.past
        if sent.outcome or sent.gone:
            return
        if not sent.attempt_told and sent.life == past.life:
            self.broken(f"the start of {sent.id} at {sent.t:.1f} s was not told")
        if past.world.now - past.alive_since < 60.0:
            return
        longest = past.rules.start_timeout + 2 * past.sim.config.watchdog.interval + 120.0
        known = (sent.life == past.life or sent.task is not None) and past.lost_state <= sent.t
        if past.world.now - sent.t > longest and known and job == "sweep":
            self.broken(f"how the start of {sent.id} at {sent.t:.1f} s ended was never told")


ALL: tuple[type[Watch], ...] = (NotSentTwice, AttemptsBounded, BackedOff, ResultsTold, GivenUpOnce)
