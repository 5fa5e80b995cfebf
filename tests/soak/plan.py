"""What a generated scenario is made in: its host, and a time line to which episodes add what they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, TypeVar

from guestward.sim import verbs
from tests.soak.toml_text import Data

T = TypeVar("T")

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
NODE = "pve1"
BAND = range(990000, 990010)
# What a kill, an operator or vzdump do in the very second of a sweep, just before or after it, or one confirming look later.
NEAR_A_SWEEP = (-1.0, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 29.9, 30.0, 30.1, 31.0)


def seconds(value: float) -> str:
    """A duration as the format has it, to a tenth of a second."""
    return f"{value:.1f}".removesuffix(".0") + "s"


deed = lru_cache(8192)(verbs.parse)  # the same few thousand texts are asked about again and again


@dataclass(slots=True)
class Plan:
    """A scenario in the making. end: the second at which the faults cease. fragile: VMIDs that may vanish at an unknown second."""

    rng: Random
    end: float
    config: dict[str, dict[str, Any]]
    guests: list[Data]
    host: Data = field(default_factory=dict)
    deeds: list[tuple[float, str]] = field(default_factory=list)
    reactions: list[Data] = field(default_factory=list)
    unused: list[int] = field(default_factory=lambda: list(range(300, 340)))
    fragile: set[int] = field(default_factory=set)
    storages: tuple[str, ...] = ("local", "nas", "ceph-vm", "usb1")
    failures: int = 0
    wall: float = 0.0

    @property
    def watchdog(self) -> dict[str, Any]:
        """The keys of `[config.watchdog]` that are set."""
        return self.config.get("watchdog", {})

    @property
    def vmids(self) -> list[int]:
        """The guests that are declared, without those that may vanish."""
        return [guest["vmid"] for guest in self.guests if guest["vmid"] not in self.fragile]

    # ------------------------------------------------------------------------------------------------ drawing

    def chance(self, of: float) -> bool:
        """Whether it happens, with that probability."""
        return self.rng.random() < of

    def pick(self, among: Sequence[T]) -> T:
        """Any one of them."""
        return self.rng.choice(among)

    def guest(self) -> int:
        """The VMID of any guest."""
        return self.pick(self.vmids)

    def some(self, most: int = 5) -> list[int]:
        """A few guests, each once."""
        return self.rng.sample(self.vmids, min(len(self.vmids), self.rng.randint(1, most)))

    def new_vmid(self) -> int:
        """A VMID that no guest has had yet, or one that somebody has had."""
        return self.unused.pop(0) if self.unused and self.chance(0.8) else self.guest()

    def moment(self) -> float:
        """When something happens: anywhere, close to a sweep, or close to something else."""
        kind, interval = self.rng.random(), self.interval
        found = self.rng.uniform(0, self.end)
        if kind < 0.3:
            found = self.rng.randrange(int(self.end / interval)) * interval + self.pick(NEAR_A_SWEEP)
        elif kind < 0.5 and self.deeds:
            found = self.pick(self.deeds)[0] + self.rng.choice((-1, 1)) * self.span(0.1, 600)
        return self.within(found)

    @property
    def interval(self) -> float:
        """Seconds between two sweeps."""
        return float(str(self.watchdog.get("interval", "60s")).removesuffix("s"))

    def span(self, low: float, high: float) -> float:
        """A length of time: short ones are as likely as long ones."""
        return round(float(low * (high / low) ** self.rng.random()), 1)

    def within(self, t: float) -> float:
        """A moment of the time in which faults happen."""
        return round(min(max(0.0, t), self.end), 1)

    # ------------------------------------------------------------------------------------------------ writing

    def at(self, t: float, do: str) -> None:
        """Let something happen then; what would be later than the end of all faults happens at that end."""
        self.deeds.append((self.within(t), do))

    def then(self, t: float, do: str, low: float = MINUTE, high: float = DAY) -> float:
        """Let something happen a while later. Returns when."""
        later = self.within(t + self.span(low, high))
        self.at(later, do)
        return later

    def after(self, vmid: int, do: str, delay: float = 0.0, act: str = "start") -> None:
        """A reaction to each act of that kind of the agent on that guest."""
        self.reactions.append({"effect": f"{act} {vmid}", "delay": seconds(delay), "do": do})

    def ordered(self) -> list[tuple[float, str]]:
        """The time line as it can happen: in the order of time, and without what is done to guests that are not there."""
        needed = {vmid for reaction in self.reactions for vmid in deed(reaction["do"]).needs}
        there = {guest["vmid"] for guest in self.guests}
        found = []
        for t, do in sorted(self.deeds, key=lambda timed: timed[0]):
            about = deed(do)
            destroyed = {int(do.split()[1])} if do.startswith("destroy ") else set()
            if destroyed & needed or not there - self.fragile >= set(about.needs) or not there >= set(about.names):
                continue
            there = (there | set(about.makes)) - destroyed
            found.append((t, do))
        return found

    def known(self, deeds: Iterable[tuple[float, str]]) -> list[int]:
        """The guests that are there after these deeds and will not vanish."""
        there = {guest["vmid"] for guest in self.guests}
        for _, do in deeds:
            there |= set(deed(do).makes)
            there -= {int(do.split()[1])} if do.startswith("destroy ") else set()
        return sorted(there - self.fragile)
