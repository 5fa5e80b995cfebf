"""The grants of the scratch band, kept for as long as the agent lives, and what the token may do that it should not (I13).

Whoever destroys a guest takes every grant on its path away (pve-facts E5), so that each VMID of the band would work once. No token can
put them back; the root helper does, for our token and for `[scratch] grantees`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from guestward.duties.state import WatchState
from guestward.model.events import Event
from guestward.model.helper import Answer, HelperCode, Request, Verb
from guestward.model.observation import LostGrant
from guestward.model.rules import Rules
from guestward.policy import rights
from guestward.ports import HelperCall, HelperLost, PveError

READ_BUDGET = 10.0
HELPER_AGAIN = 60.0  # seconds until a helper that cannot be asked is tried again
GRANTEES = "[scratch] grantees"  # in place of a path: what the others have cannot be seen with our token
CHECK_EVERY = 86400.0  # whether the grantees' are there is not to be seen with our token: the helper looks
WAITS = (300.0, 900.0, 3600.0)  # after each failure in a row; the last repeats


@dataclass(slots=True)
class Grants:
    """`look` comes after each look of the watchdog, `follow` about once a second while it is `busy`.

    judged, lost: what the token may do, and what it lacks of that. wanted: what the helper was asked for, at `asked_at`. next_at:
    before which it is not asked again. failures: in a row. told: paths whose loss was told; lacked: what was
    missing there. too_much: what was told of that. All times
    are seconds since host boot, and void in another boot.
    """

    state: WatchState
    call: HelperCall | None = None
    judged: tuple[rights.Privileges, Rules] | None = None
    lost: tuple[LostGrant, ...] = ()
    wanted: tuple[LostGrant, ...] = ()
    boot_id: str = ""
    asked_at: float | None = None
    next_at: float = 0.0
    failures: int = 0
    told: frozenset[str] = frozenset()
    lacked: dict[str, str] = field(default_factory=dict)
    too_much: dict[str, str] = field(default_factory=dict)
    ending: bool = False

    @property
    def busy(self) -> bool:
        """Whether the helper is at work."""
        return self.call is not None

    def look(self) -> None:
        """Compare what the token may do with what it should, and have put back what is missing in the band."""
        held = self.state.sight.privileges
        if held is None:
            return  # whether something is missing is not known, and the watchdog has said why
        self._new_boot()
        if (held, self.state.rules) != self.judged:
            self._tell_excess(held)
            self._judge(held)
        if not self.busy:
            self._settle(self.lost)

    def _new_boot(self) -> None:
        if self.boot_id != self.state.node.boot_id:
            self.boot_id, self.asked_at, self.next_at, self.failures, self.call = self.state.node.boot_id, None, 0.0, 0, None

    def _judge(self, held: rights.Privileges) -> None:
        self.judged, self.lost = (held, self.state.rules), self._missing(held)

    def _missing(self, held: rights.Privileges) -> tuple[LostGrant, ...]:
        rules = self.state.rules
        return rights.missing(rights.of_band(rules.scratch_first, rules.scratch_last), held)

    def _settle(self, lost: tuple[LostGrant, ...]) -> None:
        self._show(lost)
        self._tell_back(self.told - {GRANTEES, *(grant.path for grant in lost)})
        now = self.state.env.clock.boottime()
        due = self.asked_at is None or now - self.asked_at >= CHECK_EVERY or GRANTEES in self.told
        grantees = due and bool(self.state.env.config.scratch.grantees)
        if (lost or grantees) and now >= self.next_at and not self.ending and not self._not_now():
            self._ask(lost, now)

    def _not_now(self) -> bool:
        """Whether the host stops or has no quorum: the helper would refuse. Nothing else of the host gate is in the way (DESIGN.md, Host
        gate), which is not judged anew while looks are aborted.
        """
        host = self.state.env.host.host()
        return host.quorate is False or host.system == "stopping"

    def _ask(self, lost: tuple[LostGrant, ...], now: float) -> None:
        self.wanted, self.asked_at = lost, now
        self.call = self.state.ask_helper(Request(Verb.REGRANT))
        if self.call is None:
            self._failed(lost, "the root helper cannot be asked")
            self.failures, self.next_at = 1, now + HELPER_AGAIN  # nothing was tried: it is asked as soon as it can be

    def put_back(self) -> None:
        """Look now, whatever failed before: a guest of the band was destroyed, or PVE has refused something there."""
        env = self.state.env
        try:
            held = env.pve.privileges(deadline=env.clock.boottime() + READ_BUDGET)
        except PveError:
            return  # the next look of the watchdog reads them, and tells when it cannot
        self.next_at = 0.0
        if not self.busy:
            self._judge(held)
            self._settle(self.lost)

    def follow(self) -> None:
        """See whether the helper has answered, and then whether the grants are there."""
        if self.call is None:
            return
        try:
            answer = self.call.answer()
        except HelperLost as error:
            answer = Answer(HelperCode.UNKNOWN, str(error))
        if answer is not None:
            self.call = None
            self._answered(answer)

    def _answered(self, answer: Answer) -> None:
        """Only what is seen now counts."""
        env = self.state.env
        try:
            held = env.pve.privileges(deadline=env.clock.boottime() + READ_BUDGET)
        except PveError as error:
            self._failed(self.wanted, f"whether they are back cannot be read: {error}; {answer.message}")
            return
        self._judge(held)
        lost = self.lost
        self._show(lost)
        self._tell_back({grant.path for grant in self.wanted} - {grant.path for grant in lost})
        theirs = not answer.ok and bool(self.state.env.config.scratch.grantees)
        if theirs or not set(lost).isdisjoint(self.wanted):
            self._failed(lost, answer.message)
        else:
            self.failures = 0
            self._tell_back(self.told & {GRANTEES})
            self._settle(lost)  # what was lost after the helper had looked is no failure of its

    def _failed(self, lost: tuple[LostGrant, ...], reason: str) -> None:
        """Asked again later and later; told once for each path."""
        self.next_at = self.state.env.clock.boottime() + WAITS[min(self.failures, len(WAITS) - 1)]
        self.failures += 1
        for path, privilege in _by_path(grant for grant in lost if grant.path not in self.told):
            text = (
                f"the token has lost {privilege} on {path}, and it could not be put back: {reason}; a scratch guest with this VMID "
                f"cannot be torn down until it is; host-install.sh repair"
            )
            self.state.env.journal.emit(Event.GRANT_LOST, message=text, path=path, privilege=privilege)
        self.told |= {grant.path for grant in lost}
        if not lost and GRANTEES not in self.told:
            text = (
                f"the grants of {', '.join(self.state.env.config.scratch.grantees)} in the scratch band are not known to be there: {reason}"
            )
            self.state.env.journal.emit(Event.GRANT_LOST, message=text, path=GRANTEES, privilege=" ".join(rights.SCRATCH))
            self.told |= {GRANTEES}

    def _tell_back(self, paths: Iterable[str]) -> None:
        for path in sorted(paths):
            text = f"the token has all its grants on {path} again" if path != GRANTEES else "the grantees have all their grants again"
            privilege = self.lacked.pop(path, " ".join(rights.SCRATCH))
            self.state.env.journal.emit(Event.GRANT_RESTORED, message=text, path=path, privilege=privilege)
        self.told -= set(paths)

    def _show(self, lost: tuple[LostGrant, ...]) -> None:
        self.lacked.update(_by_path(lost))
        if lost != self.state.lost_in_band:
            self.state.lost_in_band = lost
            self.state.publish()

    def _tell_excess(self, held: rights.Privileges) -> None:
        """Once for each path, and again when it is more."""
        rules = self.state.rules
        found = dict(_by_path(rights.excess(held, range(rules.scratch_first, rules.scratch_last + 1))))
        for path, privilege in found.items():
            if self.too_much.get(path) != privilege:
                text = f"the token may do more than it needs: {privilege} on {path}; take it away: pveum acl list, pveum acl delete"
                self.state.env.journal.emit(Event.GRANT_EXCESS, message=text, path=path, privilege=privilege)
        self.too_much = found


def _by_path(grants: Iterable[LostGrant]) -> list[tuple[str, str]]:
    """Path and the names of its privileges, in order."""
    found: dict[str, list[str]] = {}
    for grant in grants:
        found.setdefault(grant.path, []).append(grant.privilege)
    return [(path, " ".join(names)) for path, names in found.items()]
