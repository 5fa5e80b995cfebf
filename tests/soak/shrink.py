"""Makes a failing scenario small: as long as it fails in the same way, whatever can go goes (delta debugging)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from guestward.config import ConfigError, duration
from guestward.sim.verbs import VerbError
from tests.soak.plan import DAY, HOUR, MINUTE, deed, seconds
from tests.soak.runner import Failure, run
from tests.soak.toml_text import Data

T = TypeVar("T")
WINDOWS = (10 * MINUTE, HOUR, 4 * HOUR, 12 * HOUR, DAY, 3 * DAY)
GAPS = (2 * MINUTE, 10 * MINUTE, 40 * MINUTE, 3 * HOUR)
ROUND_TO = (60.0, 10.0, 5.0, 1.0)


def shrink(data: Data, failure: Failure, budget: float = 60.0, say: Callable[[str], None] = lambda text: None) -> tuple[Data, Failure]:
    """The smallest scenario found in so many seconds of CPU that fails with the same kind of failure, and how it fails."""
    shrinker = Shrinker(data, failure, time.process_time() + budget, say)
    shrinker.everything()
    return shrinker.best, shrinker.failure


class Shrinker:
    """Holds the smallest scenario so far. Every pass proposes smaller ones."""

    def __init__(self, data: Data, failure: Failure, deadline: float, say: Callable[[str], None]) -> None:
        """deadline: of time.process_time; once it has passed no proposal is accepted any more."""
        self.best, self.failure, self.deadline, self.say = data, failure, deadline, say
        self.tried = 0

    def everything(self) -> None:
        """All passes, the ones that make a run short first, until none finds anything."""
        self.cut()
        self.windows()
        self.gaps()
        self.named()
        self.windows()
        size = None
        while size != self.size() and not self.over:
            size = self.size()
            self.families()
            self.entries("at")
            self.entries("after")
            self.guests()
            self.settings()
            self.traits()
            self.words()
            self.gaps()
            self.times()
            self.cut()

    # ------------------------------------------------------------------------------------------------ proposals

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.process_time() >= self.deadline

    def size(self) -> int:
        """How much text there is."""
        return len(repr(self.best))

    def accepts(self, candidate: Data) -> bool:
        """Whether it fails in the same way; then it is the best one so far."""
        if self.over or candidate == self.best:
            return False
        self.tried += 1
        try:
            found = run(candidate).failure
        except (VerbError, ConfigError):
            return False
        if found is None or found.kind != self.failure.kind:
            return False
        self.best, self.failure = candidate, found
        counts = ", ".join(f"{len(candidate[name])} {name}" for name in ("guest", "at", "after"))
        self.say(f"  shrinking: {counts}, until {candidate['until']} ({self.tried} runs)")
        return True

    def change(self, **parts: Any) -> bool:
        """Propose the best one with other parts."""
        return self.accepts({**self.best, **parts})

    def first(self, candidates: Iterable[Data]) -> bool:
        """The first of them that is accepted."""
        return any(self.accepts(candidate) for candidate in candidates)

    # ------------------------------------------------------------------------------------------------ passes

    @property
    def interval(self) -> float:
        """Seconds between two sweeps: time is taken away in whole sweeps, so that what happens close to one stays there."""
        return duration(self.best["config"].get("watchdog", {}).get("interval", "60s"))

    def cut(self) -> None:
        """Nothing after the failure matters, if it came before the end."""
        until = seconds(self.failure.t + 0.1)
        if duration(until) < duration(self.best["until"]):
            kept = [entry for entry in self.best["at"] if duration(entry["t"]) <= duration(until)]
            self.change(until=until, at=kept)

    def named(self) -> None:
        """Only the guests that the failure is about."""
        known = {guest["vmid"] for guest in self.best["guest"]}
        about = {int(number) for number in re.findall(r"\d+", self.failure.message)} & known
        self.accepts(self._only(about))

    def families(self) -> None:
        """Without all that one verb does."""
        for verb in sorted({_family(entry["do"]) for entry in self.best["at"]}):
            self.change(at=[entry for entry in self.best["at"] if _family(entry["do"]) != verb])
        for verb in sorted({_family(entry["do"]) for entry in self.best["after"]}):
            self.change(after=[entry for entry in self.best["after"] if _family(entry["do"]) != verb])

    def windows(self) -> None:
        """Only what happened shortly before it."""
        end = duration(self.best["until"])
        self.first(self._from((end - window) // self.interval * self.interval) for window in WINDOWS if window < end)

    def _from(self, start: float) -> Data:
        kept = [{**entry, "t": seconds(duration(entry["t"]) - start)} for entry in self.best["at"] if duration(entry["t"]) >= start]
        return {**self.best, "at": kept, "until": seconds(duration(self.best["until"]) - start)}

    def gaps(self) -> None:
        """The quiet times between entries become short."""
        self.first(self._compressed(longest) for longest in GAPS)
        for number in range(len(self.best["at"]) + 1 if len(self.best["at"]) <= 40 else 0):
            self.first(self._compressed(longest, only=number) for longest in GAPS[:2])

    def _compressed(self, longest: float, only: int | None = None) -> Data:
        moments = [duration(entry["t"]) for entry in self.best["at"]] + [duration(self.best["until"])]
        less, before, moved = 0.0, 0.0, []
        for number, moment in enumerate(moments):
            if moment - before > longest and only in (None, number):
                less += (moment - before - longest) // self.interval * self.interval
            moved.append(moment - less)
            before = moment
        kept = [{**entry, "t": seconds(t)} for entry, t in zip(self.best["at"], moved, strict=False)]
        return {**self.best, "at": kept, "until": seconds(moved[-1])}

    def entries(self, name: str) -> None:
        """As few entries of that list as possible."""
        minimize(self.best[name], lambda kept: self.change(**{name: kept}))

    def guests(self) -> None:
        """As few guests as possible; what is done to one goes with it."""
        minimize(self.best["guest"], lambda kept: self.accepts(self._only({guest["vmid"] for guest in kept})))

    def _only(self, kept: set[int]) -> Data:
        gone = {guest["vmid"] for guest in self.best["guest"]} - kept
        found = {**self.best, "guest": [guest for guest in self.best["guest"] if guest["vmid"] in kept]}
        found["at"] = list(_without(self.best["at"], gone))
        found["after"] = [entry for entry in _without(self.best["after"], gone) if int(entry["effect"].split()[1]) not in gone]
        return found

    def settings(self) -> None:
        """Configuration and host as they are by default, as far as that does not matter."""
        self.change(host={})
        if self.best["config"] and self.change(config={}):
            return
        for section in list(self.best["config"]):
            for key in list(self.best["config"][section]):
                rest = {name: value for name, value in self.best["config"][section].items() if name != key}
                self.change(config={**self.best["config"], section: rest})

    def traits(self) -> None:
        """Plain guests, with the least of a script."""
        for number in range(len(self.best["guest"])):
            for key in [key for key in self.best["guest"][number] if key != "vmid"]:
                guest = self.best["guest"][number]
                self.first(self._with("guest", number, smaller) for smaller in _plainer(guest, key))

    def _with(self, name: str, number: int, entry: Data) -> Data:
        entries = self.best[name]
        return {**self.best, name: [*entries[:number], entry, *entries[number + 1 :]]}

    def words(self) -> None:
        """What is done, in fewer words."""
        for name in ("at", "after"):
            for number in range(len(self.best[name])):
                entry = self.best[name][number]
                self.first(self._with(name, number, {**entry, "do": text}) for text in _shorter(entry["do"]))

    def times(self) -> None:
        """Round times: of everything, then of each."""
        entries = self.best["at"]
        for step in ROUND_TO:
            self.change(at=[_rounded(entry, step) for entry in entries])
        for number in range(len(self.best["at"]) if len(self.best["at"]) <= 20 else 0):
            self.first(self._with("at", number, _rounded(self.best["at"][number], step)) for step in ROUND_TO)
        end = duration(self.best["until"])
        self.change(until=seconds(-(-end // 60) * 60))


def minimize(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """ddmin: a part of the items without any chunk that could be left out, as long as it fails without it."""
    kept, chunks = list(items), 2
    if kept and fails([]):
        return []
    while len(kept) >= 2:
        size = -(-len(kept) // chunks)
        smaller = next((rest for rest in _complements(kept, size) if fails(rest)), None)
        if smaller is not None:
            kept, chunks = smaller, max(2, chunks - 1)
        elif size == 1:
            break
        else:
            chunks = min(len(kept), 2 * chunks)
    return kept


def _complements(items: list[T], size: int) -> Iterator[list[T]]:
    """The last entries are the likeliest to matter, so the first ones are left out first."""
    return (items[:start] + items[start + size :] for start in range(0, len(items), size))


def _family(do: str) -> str:
    """The verb, with the key that `set` sets."""
    words = do.split()
    if words[0] == "set":
        return f"set {words[2].partition('=')[0]}"
    return words[0] if len(words) < 2 or words[1].isdecimal() else " ".join(words[:2])


def _without(entries: Iterable[Data], gone: set[int]) -> Iterator[Data]:
    for entry in entries:
        words = entry["do"].split()
        if entry["do"].startswith("backup begin "):
            words = [word for word in words if not word.isdecimal() or int(word) not in gone]
        text = " ".join(words) if words != entry["do"].split() else entry["do"]
        if text not in ("backup begin stop", "backup begin snapshot") and not {*deed(text).names, *deed(text).makes} & gone:
            yield {**entry, "do": text}


def _plainer(guest: Data, key: str) -> Iterator[Data]:
    yield {name: value for name, value in guest.items() if name != key}
    if key == "start" and len(guest[key]) > 1:
        yield from ({**guest, key: [script]} for script in guest[key])
        yield {**guest, key: guest[key][:-1]}


def _shorter(do: str) -> Iterator[str]:
    words = do.split()
    if "by" in words:
        at = words.index("by")
        yield " ".join(words[:at] + words[at + 2 :])
    if do.startswith("backup begin ") and len(words) > 4:
        yield from (" ".join([*words[:3], word]) for word in words[3:])


def _rounded(entry: Data, step: float) -> Data:
    return {**entry, "t": seconds(round(duration(entry["t"]) / step) * step)}
