"""The agent: every duty in its turn, over one look at the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from guestward.duties.env import Env, Report
from guestward.duties.grants import Grants
from guestward.duties.locks import LockRecovery
from guestward.duties.power import PowerWatch
from guestward.duties.scratch import Teardown
from guestward.duties.state import WatchState
from guestward.policy.locks import recovering


@dataclass(slots=True)
class Agent:
    """All duties of one node. `sweep`, `confirm` and `follow` are called from one thread, never at once."""

    env: Env
    power: PowerWatch = field(init=False)
    locks: LockRecovery = field(init=False)
    grants: Grants = field(init=False)
    scratch: Teardown = field(init=False)

    def __post_init__(self) -> None:
        """Take up what the store remembers."""
        self.power = PowerWatch(self.env)
        self.locks = LockRecovery(self.power.state)
        self.grants = Grants(self.power.state)
        self.scratch = Teardown(self.power.state, self.grants)
        self._say_who_recovers()

    @property
    def state(self) -> WatchState:
        """What is known of the node between two looks."""
        return self.power.state

    def sweep(self) -> Report:
        """Look at everything, decide, tell, and begin what is due."""
        return self._with_others(self.power.sweep, self._look)

    def confirm(self) -> Report:
        """The second look at guests that were seen stopped for the first time. It is no sweep and counts as none."""
        return self._with_others(self.power.confirm, self._look)

    def follow(self) -> Report:
        """One step of everything that is under way."""
        return self._with_others(self.power.follow, self._follow)

    def end(self) -> None:
        """Begin nothing more; may be called from another thread."""
        self.power.end()
        self.locks.ending = self.grants.ending = self.scratch.ending = True

    def _look(self) -> None:
        self.locks.look()
        self.grants.look()
        self.scratch.look()

    def _follow(self) -> None:
        self.locks.follow()
        self.grants.follow()
        self.scratch.follow()

    def _with_others(self, watch: Callable[[], Report], others: Callable[[], None]) -> Report:
        report = watch()
        others()
        self._say_who_recovers()
        freed, self.locks.freed = self.locks.freed, False
        now = self.env.clock.boottime()
        again = now if freed else report.confirm_at  # whoever was unlocked is looked at now, not a minute later
        busy = report.busy or self.locks.busy or self.grants.busy or self.scratch.busy
        return replace(report, board=self.state.board, confirm_at=again, busy=busy)

    def _say_who_recovers(self) -> None:
        decisions = {decision.id: decision for decision in self.state.lock_decisions}
        memories = self.locks.memories.values()
        rules = self.state.rules
        self.state.recovers(memory.id for memory in memories if recovering(memory, decisions.get(memory.id), rules))
