"""The claims of the events about locks and the helper, against the world."""

from __future__ import annotations

from guestward.model.helper import SNAPSHOT
from guestward.sim.log import Logged
from guestward.sim.monitors import truth
from guestward.sim.monitors.base import Watch
from guestward.sim.monitors.claims import EventClaims
from guestward.sim.monitors.past import Facts, Past, Snap
from guestward.sim.monitors.requests import Request

MOST_STEPS = {"unlock": 6, "delete-snapshot": 3}


class LockEventsTrue(EventClaims):
    """Locks, snapshots of vzdump, and the helper."""

    def __init__(self, past: Past) -> None:
        """helper_told: the life of the agent in which it was told that the helper cannot be asked; 0: it was not."""
        super().__init__(past)
        self.helper_told = 0

    def _pairs(self, logged: Logged) -> list[tuple[Snap, Facts]]:
        """The guest at each question of this job."""
        vmid = logged.about.vmid
        return [(snap, facts) for snap in self.past.snaps if (facts := snap.guests.get(vmid)) is not None]

    def lock_stale(self, logged: Logged) -> None:
        """lock_stale: the lock, or the snapshot, is there, vzdump or we left it, and nobody owns it."""
        what = logged.fields.get("lock")
        known = [(snap, facts) for snap, facts in self._pairs(logged) if what in (facts.lock, *_dangling(facts))]
        if not known:
            self.never(logged, f"it says `{what}`, and that is not there")
        owners = [truth.at_work_on(snap, facts) for snap, facts in known]
        if all(owners):
            self.never(logged, f"`{what}` has an owner: {owners[-1]}")
        if not any(truth.left_over(facts) and truth.proven(facts) for _, facts in known):
            self.never(logged, f"`{what}` is not what a vzdump left")

    def _asked_for(self, logged: Logged, verb: str) -> Request | None:
        """The request that an event is about; None where the agent may have been killed when it had written it down and not sent it."""
        request = self.past.requests.last(logged.about.vmid, verb)
        if request is None and not self.past.cut:
            self.never(logged, f"nobody has asked for {verb}")
        return request

    def _tell_once(self, logged: Logged, request: Request) -> None:
        """An agent that is killed after it told, and before it wrote that down, tells it once more."""
        if request.told == self.past.life or (request.told and not self.past.cut):
            self.never(logged, f"that was told before, of the request at {request.t:.1f} s")
        request.told = self.past.life

    def unlocked(self, logged: Logged) -> None:
        """Unlocked: the lock was there when that was asked for, and is gone."""
        request, lock = self._asked_for(logged, "unlock"), logged.fields.get("lock")
        known = self._pairs(logged)
        if known and all(facts.lock == lock for _, facts in known):
            self.never(logged, f"its lock `{lock}` is still there")
        if request is None:
            return
        was = request.before.guests.get(request.vmid)
        if was is not None and was.lock != lock and self.past.memory(request.vmid).lock_at < request.t:
            self.never(logged, f"it says `{lock}`; the lock was `{was.lock}`")
        self._tell_once(logged, request)

    def snapshot_deleted(self, logged: Logged) -> None:
        """snapshot_deleted: that was asked for, and it is gone."""
        request, known = self._asked_for(logged, "delete-snapshot"), self._pairs(logged)
        if known and all(facts.dangling is not None for _, facts in known):
            self.never(logged, "it is still there")
        if request is not None:
            self._tell_once(logged, request)

    def step_failed(self, logged: Logged) -> None:
        """lock_step_failed: it was tried, so often, and was not seen to be done."""
        verb, past = str(logged.fields.get("step")), self.past
        if verb not in MOST_STEPS:
            self.never(logged, f"there is no step {verb!r}")
        request = self._asked_for(logged, verb)
        if request is not None and request.refused and not past.cut:
            self.never(logged, "the helper refused it, and nothing was tried")
        number, most, vmid = logged.fields.get("attempt"), logged.fields.get("of"), logged.about.vmid
        made = sum(1 for one in past.requests.of.get(vmid, ()) if one.verb == verb and not one.refused) + past.all_cuts
        if most != MOST_STEPS[verb] or not isinstance(number, int) or not 1 <= number <= min(most, made):
            self.never(logged, f"it is told as attempt {number} of {most}; {made} were made")
        known = [facts.lock if verb == "unlock" else facts.dangling for _, facts in self._pairs(logged)]
        unread = any(asked.failed for asked in past.job if asked.vmid == vmid)
        if known and all(left is None for left in known) and not unread:
            self.never(logged, f"what {verb} was to clear is gone")

    def step_refused(self, logged: Logged) -> None:
        """lock_step_refused: the helper said so."""
        verb, code = str(logged.fields.get("step")), logged.fields.get("code")
        request = self._asked_for(logged, verb)
        answer = request.answer if request is not None else None
        if request is None or answer is None or answer.code != code or not request.refused:
            self.never(logged, f"it says {code}; the helper said {answer.code if answer is not None else 'nothing'}")

    def lock_old(self, logged: Logged) -> None:
        """lock_old: that lock is there, and is so old at least, by the boot clock or by the file's last write."""
        lock, said = logged.fields.get("lock"), logged.fields.get("age_s")
        if not any(facts.lock == lock for _, facts in self._pairs(logged)):
            self.never(logged, f"it says `{lock}`, and that is not there")
        guest, world = self.past.world.guests.get(logged.about.vmid), self.past.world
        age = max(world.now - self.past.memory(logged.about.vmid).lock_at, world.wall - guest.written if guest is not None else 0.0)
        least = self.past.rules.lock_warn_after
        if not isinstance(said, int) or said > age + self._slept + 2 or said < least - 1:
            self.never(logged, f"it says that it is {said} s old; it is {age:.0f} s, and {least:g} s are old")

    @property
    def _slept(self) -> float:
        """How far the boot clock has gone while virtual time stood still, at most: a host that sleeps ages its locks."""
        return max(0.0, self.past.world.boot_offset - self.past.boot_offset)

    def helper_failed(self, logged: Logged) -> None:
        """helper_failed: it could not be asked just now, and that was not told before."""
        if self.past.requests.reachable:
            self.broken(f"helper_failed at {logged.t:.1f} s, and the helper could be asked")
        if self.helper_told == self.past.life:
            self.broken(f"helper_failed at {logged.t:.1f} s, and that was told before")
        self.helper_told = self.past.life

    def helper_restored(self, logged: Logged) -> None:
        """helper_restored: it could be asked, and nobody knew yet."""
        if not self.past.requests.reachable:
            self.broken(f"helper_restored at {logged.t:.1f} s, and it fails")
        if self.helper_told != self.past.life:
            self.broken(f"helper_restored at {logged.t:.1f} s, and that it fails was not told")
        self.helper_told = 0


def _dangling(facts: Facts) -> tuple[str, ...]:
    """What `lock` calls the snapshot that is left where there is no lock."""
    return (SNAPSHOT,) if facts.lock is None and facts.dangling is not None else ()


LockEventsTrue.checks = {
    "lock_stale": LockEventsTrue.lock_stale,
    "unlocked": LockEventsTrue.unlocked,
    "snapshot_deleted": LockEventsTrue.snapshot_deleted,
    "lock_step_failed": LockEventsTrue.step_failed,
    "lock_step_refused": LockEventsTrue.step_refused,
    "lock_old": LockEventsTrue.lock_old,
    "helper_failed": LockEventsTrue.helper_failed,
    "helper_restored": LockEventsTrue.helper_restored,
}
LockEventsTrue.judges = frozenset(LockEventsTrue.checks)

ALL: tuple[type[Watch], ...] = (LockEventsTrue,)
