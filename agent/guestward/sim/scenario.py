"""A scenario: a host and a time line in TOML (DESIGN.md, Scenarios), read, checked and made into a simulation.

Whatever is wrong with the file is told with its line, before anything runs.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from guestward.config import LARGEST, LONGEST, ConfigError, duration
from guestward.config import parse as parse_config
from guestward.model.guest import GuestKind
from guestward.sim import verbs
from guestward.sim.guest import LATER, TRAITS, traits
from guestward.sim.log import EFFECTS
from guestward.sim.run import Monitor, Simulation
from guestward.sim.toml_lines import Key, Lines, Where
from guestward.sim.verbs import Deed, VerbError
from guestward.sim.wording import guess, quoted
from guestward.sim.world import World

Note = tuple[Where, str]
PHASES = ("up", "booting", "stopping")
# What must stand at the top, and what to write there.
TOP: Mapping[str, str] = {
    "summary": 'one line for people, as in summary = "The NAS is away when the host boots"',
    "until": 'when it ends, as in until = "15m"',
}
# Sections of guestward.toml on which a simulation depends, with the keys that it honours; () is all of them.
HONOURED: Mapping[str, tuple[str, ...]] = {"pve": ("token_id", "timeout"), "scope": (), "watchdog": (), "locks": (), "scratch": ()}
# A guest of which nothing is said: PVE's own defaults, but that it runs.
UNSAID: Mapping[str, object] = {"onboot": False, "running": True, "pool": None}
_NODE = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")


class ScenarioError(Exception):
    """A scenario that is refused. file, line (0: the file as a whole) and reason are for people."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        """The text is `FILE:LINE: REASON`."""
        self.file, self.line, self.reason = file, line, reason
        super().__init__(f"{file}:{line}: {reason}" if line else f"{file}: {reason}")


@dataclass(frozen=True, slots=True)
class Host:
    """`[host]`: the node's name, the phase that it is in at first, quorum, its version of PVE, and whether the world is fine grained."""

    node: str = "pve1"
    phase: str = "up"
    quorate: bool = True
    version: str = "9.1"
    fine_grained: bool = False


@dataclass(frozen=True, slots=True)
class GuestEntry:
    """`[[guest]]`. values: attributes of `SimGuest`."""

    vmid: int
    kind: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TimedEntry:
    """`[[at]]`. t: virtual seconds. line: where its `do` stands."""

    t: float
    deed: Deed
    line: int


@dataclass(frozen=True, slots=True)
class ReactionEntry:
    """`[[after]]`. verb and vmid: of the agent's act. delay: in seconds. line: where its `do` stands."""

    verb: str
    vmid: int
    delay: float
    deed: Deed
    line: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole scenario. until: virtual seconds at which it ends. settings: section -> key -> value, as in guestward.toml.

    notes: what is probably not meant so, each with file and line.
    """

    file: str
    summary: str
    until: float
    host: Host = Host()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    guests: tuple[GuestEntry, ...] = ()
    deeds: tuple[TimedEntry, ...] = ()
    reactions: tuple[ReactionEntry, ...] = ()
    notes: tuple[str, ...] = ()

    def simulation(self, monitors: Sequence[Monitor] = ()) -> Simulation:
        """Agent and world at their first second, with all that is to happen to them. Its run may raise ScenarioError.

        monitors: besides the standard ones.
        """
        token_id = str(self.settings["pve"]["token_id"])
        world = World(node=self.host.node, token_id=token_id, version=self.host.version)
        world.quorate, world.fine_grained = self.host.quorate, self.host.fine_grained
        for guest in self.guests:
            world.add(guest.vmid, guest.kind, **guest.values)
        sim = Simulation(world, self.settings, phase=self.host.phase, monitors=monitors)
        for entry in self.deeds:
            world.at(entry.t, partial(self._do, sim, entry))
        for reaction in self.reactions:
            world.react(reaction.verb, reaction.vmid, reaction.delay, partial(self._do, sim, reaction))
        return sim

    def _do(self, sim: Simulation, entry: TimedEntry | ReactionEntry) -> None:
        gone = [vmid for vmid in entry.deed.needs if vmid not in sim.world.guests]
        if gone and gone[0] in sim.world.torn_down:
            return  # the agent has destroyed it, which a time line cannot know; there is nobody left to do it to
        if gone:
            reason = f"{quoted(entry.deed.text)}, {sim.world.now:g} s: there is no guest {gone[0]} any more"
            raise ScenarioError(self.file, entry.line, reason)
        try:
            entry.deed.run(sim)
        except VerbError as error:
            raise ScenarioError(self.file, entry.line, f"{quoted(entry.deed.text)}, {sim.world.now:g} s: {error}") from None


def load(path: Path | str) -> Scenario:
    """Read and check a scenario file. Raises ScenarioError."""
    text = _read(path)
    try:
        values = tomllib.loads(text)
        lines = Lines(text)
    except tomllib.TOMLDecodeError as error:
        reason, line = _syntax_error(str(error), text)
        raise ScenarioError(str(path), line, f"is not TOML: {reason}") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits; arrays in arrays in arrays
        raise ScenarioError(str(path), 0, f"is not TOML: {error}") from None
    return _Reader(str(path), lines).scenario(values)


def _read(path: Path | str) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            regular = stat.S_ISREG(os.fstat(opened.fileno()).st_mode)
            content = opened.read(LARGEST + 1) if regular else b""
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        raise ScenarioError(str(path), 0, f"cannot be read: {reason}") from None
    if not regular or len(content) > LARGEST:
        raise ScenarioError(str(path), 0, "is no regular file" if not regular else f"is larger than {LARGEST >> 10} KiB")
    try:
        return content.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ScenarioError(str(path), content.count(b"\n", 0, error.start) + 1, "is not UTF-8 text") from None


def _syntax_error(message: str, text: str) -> tuple[str, int]:
    """tomllib says `REASON (at line 3, column 5)` or `REASON (at end of document)`."""
    reason, _, place = message.rpartition(" (at ")
    match = re.match(r"line ([0-9]+)", place)
    line = int(match[1]) if match is not None else text.rstrip("\n").count("\n") + 1
    return (reason or message), line


class _Reader:
    """Checks what tomllib read, piece by piece. `where` is always the way to the piece, from the root."""

    def __init__(self, file: str, lines: Lines) -> None:
        self.file, self.lines = file, lines

    def scenario(self, values: Mapping[str, Any]) -> Scenario:
        self.keys((), values, (*TOP, "host", "config", "guest", "at", "after"))
        for key, what in TOP.items():
            if key not in values:
                self.fail((), f"{key} is missing; write at the top {what}")
        summary = self.text(("summary",), values["summary"])
        until = self.seconds(("until",), values["until"])
        host = self.host(values.get("host", {}))
        settings = self.settings(values.get("config", {}), host)
        guests = tuple(self.guests(values.get("guest", [])))
        deeds = tuple(self.deed_at(number, entry, until, values["until"]) for number, entry in self.tables("at", values.get("at", [])))
        reactions = tuple(self.reaction(number, entry) for number, entry in self.tables("after", values.get("after", [])))
        found = Scenario(self.file, summary, until, host, settings, guests, deeds, reactions)
        self.check_guests(found)
        return replace(found, notes=tuple(self.notes(found)))

    # Pieces of every kind

    def fail(self, where: Sequence[Key], reason: str) -> NoReturn:
        raise ScenarioError(self.file, self.lines.of(where), reason)

    def keys(self, where: Sequence[Key], table: object, known: Collection[str], *, required: Iterable[str] = ()) -> None:
        """A table with no other keys than those that are known."""
        name = ".".join(str(key) for key in where if isinstance(key, str))
        if not isinstance(table, dict):
            self.fail(where, f"{name} must be a table")
        for key in table:
            if key not in known:
                place = f" in {name}" if name else ""
                hint = f"; {key} stands at the top, before the first section" if key in TOP else guess(key, known)
                hint = f"; it is written as [config.{key}]" if not where and key in HONOURED else hint
                self.fail((*where, key), f"unknown key {quoted(key)}{place}{hint or '; known are ' + ', '.join(known)}")
        for key in required:
            if key not in table:
                self.fail(where, f"{name + ': ' if name else ''}{key} is missing")

    def tables(self, name: str, entries: object) -> Iterable[tuple[int, Any]]:
        if not isinstance(entries, list):
            self.fail((name,), f"{name} must be written as [[{name}]]")
        return enumerate(entries)

    def text(self, where: Sequence[Key], value: object) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            self.fail(where, f"{where[-1]}: must be text, in quotes, on one line, and not empty")
        return value

    def seconds(self, where: Sequence[Key], value: object) -> float:
        try:
            found = duration(value)
        except ValueError as error:
            self.fail(where, f"{where[-1]}: {error}")
        if found > LONGEST:
            self.fail(where, f"{where[-1]}: must be at most 366d")
        return found

    def vmid(self, where: Sequence[Key], value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 100 <= value <= 999_999_999:
            self.fail(where, "vmid: must be a whole number from 100 to 999999999")
        return value

    def one_of(self, where: Sequence[Key], value: object, known: Collection[str]) -> str:
        if not isinstance(value, str) or value not in known:
            self.fail(where, f"{where[-1]}: must be one of " + ", ".join(f'"{word}"' for word in known))
        return value

    def deed(self, where: Sequence[Key], value: object) -> Deed:
        text = self.text(where, value)
        try:
            return verbs.parse(text)
        except VerbError as error:
            self.fail(where, f"{quoted(text)}: {error}")

    # The sections

    def host(self, table: Any) -> Host:
        self.keys(("host",), table, ("node", "phase", "quorate", "version", "fine_grained"))
        node, version = table.get("node", "pve1"), table.get("version", "9.1")
        if not isinstance(node, str) or _NODE.fullmatch(node) is None:
            self.fail(("host", "node"), "node: must be a node name: letters, digits and -, 63 at most")
        if not isinstance(version, str) or re.fullmatch(r"[89]\.[0-9]{1,2}(\.[0-9]{1,2})?", version) is None:
            self.fail(("host", "version"), 'version: must be a version of PVE 8 or 9, as in "8.4" or "9.1.2"')
        phase = self.one_of(("host", "phase"), table.get("phase", "up"), PHASES)
        return Host(node, phase, self.flag(table, "quorate", True), version, self.flag(table, "fine_grained", False))

    def flag(self, table: Mapping[str, object], key: str, unsaid: bool) -> bool:
        value = table.get(key, unsaid)
        if not isinstance(value, bool):
            self.fail(("host", key), f"{key}: must be true or false")
        return value

    def settings(self, table: object, host: Host) -> dict[str, dict[str, Any]]:
        """[config.*], checked by the agent's own configuration; a token is preset."""
        if not isinstance(table, dict):
            self.fail(("config",), "config must be written as [config.SECTION]")
        values = {"pve": {}, **table}
        if isinstance(values["pve"], dict):
            values["pve"] = {"token_id": f"guestward-{host.node}@pve!agent", **values["pve"]}
        try:
            parse_config(values, Path(self.file))
        except ConfigError as error:
            place = [error.key] if error.key in values else error.key.split(".", 1)
            self.fail(("config", *place), f"config.{error.key}: {error.reason}")
        if len(str(values["pve"]["token_id"]).encode()) > verbs.LONGEST_USER:
            self.fail(("config", "pve", "token_id"), f"config.pve.token_id: is longer than {verbs.LONGEST_USER} characters")
        for section, keys in table.items():
            if section not in HONOURED:
                known = ", ".join(HONOURED)
                self.fail(("config", section), f"config.{section}: has no meaning in a simulation, which honours the sections {known}")
            for key in keys if HONOURED[section] else ():
                if key not in HONOURED[section]:
                    known = " and ".join(HONOURED[section])
                    reason = f"has no meaning in a simulation, which honours {known}; the node's name stands in [host]"
                    self.fail(("config", section, key), f"config.{section}.{key}: {reason}")
        return values

    def guests(self, entries: object) -> Iterable[GuestEntry]:
        lines: dict[int, int] = {}
        for number, entry in self.tables("guest", entries):
            where = ("guest", number)
            later = [key for key in LATER if key not in TRAITS]
            if isinstance(entry, dict):
                for key in entry.keys() & later:
                    self.fail((*where, key), f'{key} cannot be given here; let it come to pass: [[at]] t = "0s", do = "set VMID {key}=..."')
            self.keys(where, entry, ("vmid", "kind", *TRAITS), required=("vmid",))
            vmid = self.vmid((*where, "vmid"), entry["vmid"])
            if vmid in lines:
                self.fail((*where, "vmid"), f"there is a guest {vmid} already, on line {lines[vmid]}")
            lines[vmid] = self.lines.of((*where, "vmid"))
            kind = self.one_of((*where, "kind"), entry.get("kind", "lxc"), [kind.value for kind in GuestKind])
            values = dict(UNSAID)
            for key, value in entry.items():
                if key in TRAITS:
                    values |= self.trait((*where, key), key, value)
            yield GuestEntry(vmid, kind, values)

    def trait(self, where: Sequence[Key], key: str, value: object) -> dict[str, object]:
        try:
            return traits(key, value)
        except ValueError as error:
            self.fail(self.culprit(where, key, value), f"{key}: {error}")

    def culprit(self, where: Sequence[Key], key: str, value: object) -> Sequence[Key]:
        """The first element of a list that is not accepted by itself; else the whole."""
        for number, item in enumerate(value if isinstance(value, list) else []):
            try:
                traits(key, [item])
            except ValueError:
                return (*where, number)
        return where

    def deed_at(self, number: int, entry: Any, until: float, end: str) -> TimedEntry:
        where = ("at", number)
        self.keys(where, entry, ("t", "do"), required=("t", "do"))
        t = self.seconds((*where, "t"), entry["t"])
        if t > until:
            self.fail((*where, "t"), f"t: {entry['t']} is after the end of the run, which is until = {quoted(end)}")
        return TimedEntry(t, self.deed((*where, "do"), entry["do"]), self.lines.of((*where, "do")))

    def reaction(self, number: int, entry: Any) -> ReactionEntry:
        where = ("after", number)
        self.keys(where, entry, ("effect", "delay", "do"), required=("effect", "do"))
        verb, vmid = self.effect((*where, "effect"), entry["effect"])
        delay = self.seconds((*where, "delay"), entry.get("delay", "0s"))
        return ReactionEntry(verb, vmid, delay, self.deed((*where, "do"), entry["do"]), self.lines.of((*where, "do")))

    def effect(self, where: Sequence[Key], value: object) -> tuple[str, int]:
        words = self.text(where, value).split()
        if words[0] not in EFFECTS:
            self.fail(where, f"effect: the agent has no act {quoted(words[0])}{guess(words[0], EFFECTS)}; it has {', '.join(EFFECTS)}")
        if len(words) != 2 or re.fullmatch(r"[1-9][0-9]{2,8}", words[1]) is None:
            self.fail(where, 'effect: must be an act and a VMID, as in "start 101"')
        return words[0], int(words[1])

    # Everything together

    def check_guests(self, scenario: Scenario) -> None:
        """A guest that a verb names is declared, or comes to be earlier in the file or not later in time, or in a reaction."""
        declared = {guest.vmid for guest in scenario.guests}
        declared |= {vmid for reaction in scenario.reactions for vmid in reaction.deed.makes}
        made = [(vmid, number, entry.t) for number, entry in enumerate(scenario.deeds) for vmid in entry.deed.makes]
        for number, entry in enumerate(scenario.deeds):
            there = {vmid for vmid, earlier, t in made if earlier < number or t <= entry.t}
            self.check_names(("at", number, "do"), entry.deed, declared | there)
        ever = declared | {vmid for vmid, _, _ in made}
        for number, reaction in enumerate(scenario.reactions):
            self.check_names(("after", number, "do"), reaction.deed, ever)
            if reaction.verb != "regrant" and reaction.vmid not in ever:
                self.fail(("after", number, "effect"), f"effect: {_nobody(reaction.vmid, ever)}")

    def check_names(self, where: Sequence[Key], deed: Deed, there: Collection[int]) -> None:
        for vmid in deed.names:
            if vmid not in there:
                self.fail(where, f"{quoted(deed.text)}: {_nobody(vmid, there)}")

    # What can be meant so, but hardly is

    def notes(self, scenario: Scenario) -> Iterable[str]:
        """Guests that nobody guards, and trouble that nobody meets."""
        deeds = [(("at", number, "do"), entry.deed) for number, entry in enumerate(scenario.deeds)]
        deeds += [(("after", number, "do"), entry.deed) for number, entry in enumerate(scenario.reactions)]
        known = [guest.values for guest in scenario.guests] + [deed.sets for _, deed in deeds]
        notes = [*self.not_guarded(scenario, {values.get("pool") for values in known}), *self.not_met(scenario, deeds, known)]
        return (f"{self.file}:{self.lines.of(where)}: {text}" for where, text in notes)

    def not_guarded(self, scenario: Scenario, given: Collection[object]) -> Iterable[Note]:
        pools = parse_config(scenario.settings, Path(self.file)).scope.pools
        words = " or ".join(quoted(pool) for pool in pools)
        if scenario.guests and set(given) == {None}:
            yield ("guest", 0), f"no guest is guarded: none is in the pool {words}"
        for number, guest in enumerate(scenario.guests):
            if guest.values["pool"] not in (None, *pools):
                yield ("guest", number, "pool"), f"guest {guest.vmid} is not guarded: its pool is not {words}, as in [scope] pools"

    def not_met(self, scenario: Scenario, deeds: Iterable[tuple[Where, Deed]], known: Iterable[Mapping[str, object]]) -> Iterable[Note]:
        node = f"/nodes/{scenario.host.node}"
        asked = (*(f"{node}/{part}" for part in ("lxc", "qemu", "tasks")), "/pools", "/access/permissions", "/cluster/resources")
        storages = {"local"}
        for values in known:
            of = values.get("storages")
            storages |= of if isinstance(of, frozenset) else frozenset()
        for where, deed in deeds:
            if any(name not in storages for name in deed.storages):
                yield where, f"{quoted(deed.text)}: no guest is on that storage; they are on {', '.join(sorted(storages))}"
            if not all(any(one.startswith(route) or route.startswith(one) for one in asked) for route in deed.routes):
                yield where, f"{quoted(deed.text)}: the agent asks nothing there; it asks {', '.join(asked)}"


def _nobody(vmid: int, there: Collection[int]) -> str:
    known = ", ".join(str(known) for known in sorted(there)[:10]) + (" ..." if len(there) > 10 else "")
    return f"there is no guest {vmid}" + (f"; there are {known}" if there else "; no guest is declared")
