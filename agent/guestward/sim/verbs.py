"""What a time line may do to the simulated host: one function a verb, in one table that parses, documents and lists them.

A verb is added with one function under `@verb`: it takes its words one by one and returns what is to be done to the simulation. Whatever is
wrong with the words is said with the verb's usage; words that nobody took are refused.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from guestward.config import LONGEST, duration
from guestward.model.guest import GuestKind
from guestward.model.helper import TRIED, HelperCode
from guestward.model.task import bounded
from guestward.sim.acl import NO_ACCESS
from guestward.sim.api import METHODS
from guestward.sim.guest import HA_STATES, LATER, LOCKS, SNAPSHOT_NAME, SNAPSHOT_STATES, STORAGE_NAME, traits
from guestward.sim.log import EFFECTS
from guestward.sim.vzdump import CLEANUP
from guestward.sim.wording import guess, quoted

if TYPE_CHECKING:
    from guestward.sim.run import Simulation

Act = Callable[["Simulation"], object]

# All privileges of PVE 8 and 9 (`/access/roles`, Administrator).
PRIVILEGES = (
    *("Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit", "Group.Allocate"),
    *("Mapping.Audit", "Mapping.Modify", "Mapping.Use", "Permissions.Modify", "Pool.Allocate", "Pool.Audit"),
    *("Realm.Allocate", "Realm.AllocateUser", "SDN.Allocate", "SDN.Audit", "SDN.Use", "Sys.AccessNetwork", "Sys.Audit"),
    *("Sys.Console", "Sys.Incoming", "Sys.Modify", "Sys.PowerMgmt", "Sys.Syslog", "User.Modify", "VM.Allocate", "VM.Audit"),
    *("VM.Backup", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Cloudinit", "VM.Config.Disk", "VM.Config.HWType"),
    *("VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.Console", "VM.GuestAgent.Audit", "VM.GuestAgent.FileRead"),
    *("VM.GuestAgent.FileSystemMgmt", "VM.GuestAgent.FileWrite", "VM.GuestAgent.Unrestricted", "VM.Migrate", "VM.Monitor"),
    *("VM.PowerMgmt", "VM.Replicate", "VM.Snapshot", "VM.Snapshot.Rollback"),
)
# Auth/Plugin.pm, AccessControl.pm; PVE wants 2 characters of a token's name, too, and here a short one is good enough.
_USER = re.compile(r"[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+(![A-Za-z][A-Za-z0-9.\-_]*)?")
LONGEST_USER = 100  # bytes: with a node of 63 and a type of 40 a UPID has fewer than the 256 that are read
_LATEST = 2.0**32 - 2 * LONGEST  # of the wall clock: a UPID has 8 hexadecimal digits for it
_LONGEST_UP = 15 * LONGEST  # since host boot: and 9 for its hundredths of a second
_API = re.compile(r"/api2/json(?=/|$)")  # how PVE's own pages name a route; the rest is what a route is here
_NAME = "[A-Za-z0-9._-]+"
_PATH = re.compile(  # AccessControl.pm:check_path
    rf"/|/(access|sdn|mapping)(/{_NAME})*|/(nodes|storage)(/{_NAME})?|/pool(/{_NAME}){{0,3}}|/vms(/[1-9][0-9]{{2,8}})?"
)
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")  # of a task: a part of its UPID
_TYPE_IS = "TYPE of a task, as in vzdump (40 characters at most)"
_BARE_WORD = re.compile(r"[^\s\"'\[\]{}#=]+(=[^\s\"'\[\]{}#=]+)*")


class VerbError(ValueError):
    """A line of `do` that is no verb, or a verb with the wrong words. The message is for people, and one line."""


@dataclass(frozen=True, slots=True)
class Deed:
    """One verb with its words, checked.

    text: as it was written. names: VMIDs of guests that the time line must know. needs: those of them that must be there when it happens.
    makes: VMIDs of guests that are there after it. routes, storages: those of which it is told that they fail. sets: attributes
    that a guest is given.
    """

    text: str
    act: Act
    names: tuple[int, ...] = ()
    needs: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    routes: tuple[str, ...] = ()
    storages: tuple[str, ...] = ()
    sets: Mapping[str, object] = field(default_factory=dict)

    def run(self, sim: Simulation) -> None:
        """Let it happen now. Raises VerbError where it cannot."""
        self.act(sim)


@dataclass(slots=True)
class Words:
    """The words after a verb, taken from the front one by one. Each method raises VerbError for what does not fit."""

    left: list[str]
    names: list[int] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)
    makes: list[int] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)
    storages: list[str] = field(default_factory=list)
    sets: dict[str, object] = field(default_factory=dict)

    def word(self, what: str, pattern: re.Pattern[str] | None = None) -> str:
        """The next word, whatever it is, as long as it is of the pattern. what: its name in the usage."""
        if not self.left:
            raise VerbError(f"{what} is missing")
        if pattern is not None and pattern.fullmatch(self.left[0]) is None:
            raise VerbError(f"{quoted(self.left[0])} is not {what}")
        return self.left.pop(0)

    def choice(self, what: str, known: Collection[str], *, listed: bool = False) -> str:
        """The next word, which must be one of those. listed: the usage does not say which there are."""
        which = f"; there are {', '.join(known)}" if listed else ""
        if not self.left:
            raise VerbError(f"{what} is missing{which}")
        found = self.word(what)
        if found not in known:
            raise VerbError(f"{quoted(found)} is no {what}{guess(found, known) or which}")
        return found

    def maybe(self, *known: str) -> str | None:
        """The next word if it is one of those; else it stays."""
        return self.left.pop(0) if self.left and self.left[0] in known else None

    def flag(self, word: str) -> bool:
        """Whether that word is among those that are left; it is taken."""
        if word not in self.left:
            return False
        self.left.remove(word)
        return True

    def by(self, default: str = "root@pam") -> str:
        """`by USER` if it is among the words that are left: who does it, a user or a token."""
        if "by" not in self.left:
            return default
        at = self.left.index("by")
        option = Words(self.left[at + 1 :])
        user = option.word("USER, as in root@pam or name@pve!token (a realm has 2 characters or more)", _USER)
        if len(user.encode()) > LONGEST_USER:
            raise VerbError(f"{quoted(user)} is longer than {LONGEST_USER} characters")
        self.left[at:] = option.left
        return user

    def vmid(self) -> int:
        """Any VMID."""
        found = self.word("VMID")
        if re.fullmatch(r"[1-9][0-9]{2,8}", found) is None:
            raise VerbError(f"{quoted(found)} is not a VMID (100 to 999999999)")
        return int(found)

    def guest(self, *, gone: bool = False) -> int:
        """The VMID of a guest of the time line. gone: it may have been destroyed by then."""
        found = self.vmid()
        self.names.append(found)
        self.needs += [] if gone else [found]
        return found

    def maybe_guest(self, *, gone: bool = False) -> int | None:
        """The same, if the next word is a number."""
        return self.guest(gone=gone) if self.left and self.left[0][:1].isdecimal() else None

    def new_guest(self) -> int:
        """The VMID of a guest that is there from now on."""
        found = self.vmid()
        self.makes.append(found)
        return found

    def seconds(self, *, least: float = 0.0) -> float:
        """A duration."""
        text = self.word("DURATION")
        try:
            found = duration(text)
        except ValueError as error:
            raise VerbError(f"{quoted(text)}: {error}") from None
        if not least <= found <= LONGEST:
            raise VerbError(f"{quoted(text)}: must be from {least:g}s to 366d")
        return found

    def route(self, *, needed: bool = True) -> str:
        """A path prefix, optionally after a method, as one word in quotes or as two. "" where none is needed and none is there."""
        if not needed and (not self.left or self.left[0] == "once"):
            return ""
        text = self.word("ROUTE")
        text = f"{text} {self.word('the path of ROUTE')}" if text in METHODS else text
        if re.fullmatch(rf"(({'|'.join(METHODS)}) )?/\S*", text) is None:
            raise VerbError(f"{quoted(text)} is no ROUTE: a path like /nodes/pve1/lxc, optionally after {', '.join(METHODS)}")
        method, space, path = text.rpartition(" ")
        path = _API.sub("", path) or "/"
        if path.startswith("/api2"):
            raise VerbError(f"{quoted(text)} is no ROUTE: what follows /api2/json is one, like /nodes/pve1/lxc")
        self.routes.append(path)
        return f"{method}{space}{path}"


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb. name: its first word or two. usage: the words after that. raw: the last word is all the rest, with its quotes."""

    name: str
    usage: str
    meaning: str
    parse: Callable[[Words], Act]
    raw: bool = False

    @property
    def form(self) -> str:
        """Name and usage."""
        return f"{self.name} {self.usage}".rstrip()


VERBS: dict[str, Verb] = {}


def verb(name: str, usage: str, meaning: str, *, raw: bool = False) -> Callable[[Callable[[Words], Act]], Callable[[Words], Act]]:
    """Put a function into the table as the verb of that name; usage and meaning are shown to people."""

    def register(parse: Callable[[Words], Act]) -> Callable[[Words], Act]:
        VERBS[name] = Verb(name, usage, meaning, parse, raw)
        return parse

    return register


def parse(text: str) -> Deed:
    """Read one line of `do`. Raises VerbError with a plain reason."""
    found, words = _find(text)
    try:
        act = found.parse(words)
        if words.left:
            raise VerbError(f"{quoted(words.left[0])} is too much")
    except VerbError as error:
        raise VerbError(f"{error}; usage: {found.form}") from None
    guests = (tuple(words.names), tuple(words.needs), tuple(words.makes))
    return Deed(text, act, *guests, tuple(words.routes), tuple(words.storages), words.sets)


def _find(text: str) -> tuple[Verb, Words]:
    first = text.split(None, 1)[0] if text.strip() else ""
    if first in VERBS and VERBS[first].raw:
        return VERBS[first], Words(text.split(None, 2)[1:])
    try:
        words = shlex.split(text)
    except ValueError:
        raise VerbError("a quote is not closed") from None
    if not words:
        raise VerbError("a verb is missing")
    for length in (2, 1):
        found = VERBS.get(" ".join(words[:length]))
        if found is not None:
            return found, Words(words[length:])
    family = [name.split()[1] for name in VERBS if name.startswith(f"{words[0]} ")]
    if family:
        raise VerbError(f"after {words[0]} comes one of {', '.join(family)}{guess(words[1], family) if len(words) > 1 else ''}")
    raise VerbError(f"there is no verb {bounded(words[0], 40)}{guess(words[0], {name.split()[0] for name in VERBS})}")


# ---------------------------------------------------------------------------------------------------- guests


@verb("die", "VMID", "The guest ends by itself; no task tells.")
def _die(words: Words) -> Act:
    guest = words.guest()
    return lambda sim: sim.world.die(guest)


@verb("stop", "VMID [by USER]", "Somebody (root@pam) stops it through PVE: a task.")
def _stop(words: Words) -> Act:
    guest, by = words.guest(), words.by()
    return lambda sim: sim.world.stop(guest, by)


@verb("start", "VMID [by USER]", "Somebody (root@pam) starts it through PVE: a task.")
def _start(words: Words) -> Act:
    guest, by = words.guest(), words.by()
    return lambda sim: sim.world.start(guest, by)


@verb("reboot", "VMID inside|api", "It reboots: from inside, without a task, or through PVE with one. Under a lock it does not come back.")
def _reboot(words: Words) -> Act:
    guest, how = words.guest(), words.choice("way to reboot", ("inside", "api"))
    return lambda sim: sim.world.reboot(guest, how)


@verb("create", "VMID lxc|qemu", "A new guest: a new identity, stopped, `onboot` off, in no pool.")
def _create(words: Words) -> Act:
    guest, kind = words.new_guest(), words.choice("kind of guest", [kind.value for kind in GuestKind])
    return lambda sim: sim.world.create(guest, kind)


@verb("destroy", "VMID", "The guest is destroyed, and with it go its place in the pool and every grant on `/vms/VMID`.")
def _destroy(words: Words) -> Act:
    guest = words.guest(gone=True)
    return lambda sim: sim.world.destroy(guest)


@verb("migrate", "VMID away|here", "It moves to another node of the cluster, or to ours, as it is.")
def _migrate(words: Words) -> Act:
    guest, here = words.guest(), words.choice("direction", ("away", "here")) == "here"
    return lambda sim: sim.world.migrate(guest, sim.world.node if here else _other_node(sim.world.node))


def _other_node(node: str) -> str:
    return "pve2" if node != "pve2" else "pve1"


@verb(
    "restore",
    "VMID [by TOKEN] [killed]",
    "Somebody (root@pam) restores a backup as this guest, over the one that is there. `killed`: the restore died, and left the lock "
    "`create`, no pool and a dead task.",
)
def _restore(words: Words) -> Act:
    guest, by, killed = words.new_guest(), words.by(), words.flag("killed")
    return lambda sim: sim.world.restore(guest, by, killed=killed)


@verb("lock", "VMID KIND", f"The configuration is locked. PVE's kinds are {', '.join(LOCKS)}; any other word is a kind nobody knows.")
def _lock(words: Words) -> Act:
    guest, kind = words.guest(), words.word("KIND of lock", re.compile(r"[a-z][a-z-]*"))
    if kind not in LOCKS and guess(kind, LOCKS):
        raise VerbError(f"{quoted(kind)} is no KIND of lock{guess(kind, LOCKS)}")
    return lambda sim: sim.world.lock(guest, kind)


@verb("unlock", "VMID", "Whatever lock there is goes.")
def _unlock(words: Words) -> Act:
    guest = words.guest()
    return lambda sim: sim.world.unlock(guest)


@verb(
    "set",
    "VMID KEY=VALUE",
    "Any key of `[[guest]]` changes, or `state` (`paused`, `io-error`, `prelaunch`, `frozen` ..., or `running` again), or `replication`. "
    'VALUE is TOML, as in `onboot=false` or `storage=["nas", "local"]`; a single word needs no quotes.',
    raw=True,
)
def _set(words: Words) -> Act:
    guest, pair = words.guest(), words.word("KEY=VALUE")
    whole = pair[:1] in ('"', "'")
    key, is_pair, text = (part.strip() for part in (_unquoted(pair) if whole else pair).partition("="))
    if key in ("vmid", "kind"):
        raise VerbError(f"a guest's {key} cannot be changed")
    if key not in LATER:
        raise VerbError(f"there is no guest key {quoted(key)}{guess(key, LATER)}")
    if not is_pair or not text:
        raise VerbError("VALUE is missing")
    value = _value(text, quoted_whole=whole)
    try:
        words.sets.update(traits(key, value, later=True))
    except ValueError as error:
        raise VerbError(f"{key}: {error}") from None
    return lambda sim: sim.world.set(guest, key, value)


def _unquoted(text: str) -> str:
    """A whole that is in quotes, as a shell would have it: `'onboot="yes"'`."""
    try:
        found = shlex.split(text)
    except ValueError:
        raise VerbError("a quote is not closed") from None
    if len(found) != 1:
        raise VerbError(f"{quoted(text)} is not one KEY=VALUE")
    return found[0]


def _value(text: str, *, quoted_whole: bool) -> object:
    """A TOML value; one word of a shell line is text, and so is whatever stood in quotes together with its key."""
    try:
        found = tomllib.loads(f"x = {text}")
    except (ValueError, RecursionError):
        word = text if quoted_whole or _BARE_WORD.fullmatch(text) is not None else _shell_word(text)
        if word is None:
            raise VerbError(f"{quoted(text)} is no TOML value, and no single word") from None
        return word
    if found.keys() != {"x"}:
        raise VerbError("VALUE must be one value, on one line")
    return found["x"]


def _shell_word(text: str) -> str | None:
    """One word with quotes inside, as in `a" "b`; None for anything else, and for a list or table that is not closed."""
    try:
        found = shlex.split(text) if text[0] not in "[{" and {*text} & {'"', "'"} else []
    except ValueError:
        return None
    return found[0] if len(found) == 1 else None


@verb("ha", "VMID STATE|off", "HA manages it, in that state (`started`, `stopped`, `ignored`, `null` ...), or no longer.")
def _ha(words: Words) -> Act:
    guest, state = words.guest(), words.word("STATE", re.compile(r"[a-z_]+"))
    if state not in HA_STATES and guess(state, HA_STATES):
        raise VerbError(f"{quoted(state)} is no STATE of HA{guess(state, HA_STATES)}")
    return lambda sim: sim.world.ha(guest, None if state == "off" else state)


@verb("snapshot", "VMID NAME [prepare|delete|rollback|gone]", "It has that snapshot: whole, or in that state of being made; or no longer.")
def _snapshot(words: Words) -> Act:
    guest, name = words.guest(), words.word("NAME", SNAPSHOT_NAME)
    state = words.maybe(*SNAPSHOT_STATES, "gone") or ""
    return lambda sim: sim.world.snapshot(guest, name, None if state == "gone" else state)


# ---------------------------------------------------------------------------------------------------- tasks and backups


@verb(
    "task begin",
    "TYPE [VMID]",
    "A task of root@pam begins (`startall`, `vzdump`, `qmigrate` ...): a row in PVE's task list, and nothing else.",
)
def _task_begin(words: Words) -> Act:
    type, id = words.word(_TYPE_IS, _TYPE), _maybe_id(words)
    return lambda sim: sim.world.task(type, id)


@verb("task end", "TYPE [VMID] [STATUS]", 'The oldest running task of that type, and VMID, ends; "OK" if no STATUS is given.')
def _task_end(words: Words) -> Act:
    type, id = words.word(_TYPE_IS, _TYPE), _maybe_id(words)
    said = words.word("STATUS") if words.left else "OK"
    if not said or not said.isprintable():
        raise VerbError("STATUS must be printable text, and not empty")
    return lambda sim: sim.world.task_end(type, id, said)


def _maybe_id(words: Words) -> str:
    return str(words.vmid()) if words.left and words.left[0][:1].isdecimal() else ""


@verb("backup begin", "stop|snapshot VMID...", "vzdump begins to save these guests in that mode, one after the other.")
def _backup_begin(words: Words) -> Act:
    mode, vmids = words.choice("mode", ("stop", "snapshot")), [words.guest()]
    while words.left:
        vmids.append(words.guest())
    if len(set(vmids)) != len(vmids):
        raise VerbError("a VMID stands there twice")
    return lambda sim: sim.world.backup_begin(*vmids, mode=mode)


@verb("backup end", "[VMID]", "The archive of this guest is written; without VMID that of the oldest job, for all its guests.")
def _backup_end(words: Words) -> Act:
    guest = words.maybe_guest(gone=True)
    return lambda sim: sim.world.backup_end(guest)


@verb(
    "backup kill",
    "[archive DURATION] [VMID]",
    "kill -9 of the worker: its task ends in `unexpected status`, the flock is free, the pid file stale; lock and snapshot stay. "
    "`archive`: the archive process lives on for so long.",
)
def _backup_kill(words: Words) -> Act:
    archive_for = words.seconds() if words.maybe("archive") else 0.0
    guest = words.maybe_guest(gone=True)
    return lambda sim: sim.world.backup_kill(guest, archive_for)


# ---------------------------------------------------------------------------------------------------- rights, PVE and the host


@verb(
    "grant",
    "PRIV PATH [user|token] [nopropagate]",
    "The privilege is granted on the path, to the agent's user and token or to one of them. `NoAccess`, a role of PVE, stands there for a "
    "privilege too: it takes all others away, so that `grant NoAccess /vms/102` hides that guest although its pool names it.",
)
def _grant(words: Words) -> Act:
    privilege, path, who, propagate = _entry(words)
    return lambda sim: sim.world.acl.grant(privilege, path, who, propagate=propagate)


@verb("revoke", "PRIV PATH [user|token] [nopropagate]", "It is taken away there, whether it propagated or not.")
def _revoke(words: Words) -> Act:
    privilege, path, who, _ = _entry(words)
    return lambda sim: sim.world.acl.revoke(privilege, path, who)


def _entry(words: Words) -> tuple[str, str, str, bool]:
    privilege = words.choice("privilege of PVE", (*PRIVILEGES, NO_ACCESS))
    path = words.word("PATH of PVE's access control, as in /pool/guestward or /vms/101", _PATH)
    propagate = not words.flag("nopropagate")
    return privilege, path, words.maybe("user", "token") or "both", propagate


@verb(
    "fail next",
    'VERB "TEXT"',
    f"The agent's next request of that kind fails with that text. VERB is one of {', '.join(EFFECTS)}; `{CLEANUP}` is vzdump's own: "
    "the next delete of its snapshot fails, and leaves the lock `snapshot-delete`.",
)
def _fail_next(words: Words) -> Act:
    effect, text = words.choice("VERB", (*EFFECTS, CLEANUP), listed=True), words.word("TEXT")
    if not text or not text.isprintable():
        raise VerbError("TEXT must be printable, and not empty")
    return lambda sim: sim.world.fail_next(effect, text)


@verb("api down", "", "Nothing listens on PVE's port.")
def _api_down(_: Words) -> Act:
    return lambda sim: sim.world.api.down()


@verb("api up", "", "Everything works again, and all other `api` verbs are over.")
def _api_up(_: Words) -> Act:
    return lambda sim: sim.world.api.up()


@verb(
    "api slow",
    "DURATION [ROUTE]",
    "Each answer takes so long. ROUTE is a path prefix, with or without `/api2/json`, optionally after a method: `GET /nodes/pve1/lxc`.",
)
def _api_slow(words: Words) -> Act:
    seconds, route = words.seconds(), words.route(needed=False)
    return lambda sim: sim.world.api.slow(seconds, route)


@verb("api hang", "[ROUTE]", "Requests are taken and never answered; they have no effect.")
def _api_hang(words: Words) -> Act:
    route = words.route(needed=False)
    return lambda sim: sim.world.api.hang(route)


@verb("api fault", "ROUTE STATUS [once]", "Answered with that HTTP status (400 to 599), without effect.")
def _api_fault(words: Words) -> Act:
    route, status, once = words.route(), words.word("STATUS (400 to 599)", re.compile(r"[45][0-9]{2}")), words.flag("once")
    return lambda sim: sim.world.api.fault(route, int(status), once=once)


@verb("api answer", "ROUTE null|html|empty [once]", "Carried out, and answered with status 200 and something that is not PVE's.")
def _api_answer(words: Words) -> Act:
    route, body, once = words.route(), words.choice("answer", ("null", "html", "empty")), words.flag("once")
    return lambda sim: sim.world.api.answer(route, body, once=once)


REFUSALS = tuple(code.value for code in HelperCode if code not in (HelperCode.OK, *TRIED))


@verb("helper down", "", "The root helper cannot be reached.")
def _helper_down(_: Words) -> Act:
    return lambda sim: sim.world.helper.down()


@verb("helper up", "", "The root helper works again, and at once.")
def _helper_up(_: Words) -> Act:
    return lambda sim: sim.world.helper.up()


@verb("helper slow", "DURATION", "The root helper takes so long.")
def _helper_slow(words: Words) -> Act:
    seconds = words.seconds()
    return lambda sim: sim.world.helper.slow(seconds)


@verb("helper refuse", "CODE", "The root helper refuses everything, with that code, until `helper up`.")
def _helper_refuse(words: Words) -> Act:
    code = words.choice("code of a refusal", REFUSALS, listed=True)
    return lambda sim: sim.world.helper.refuse(HelperCode(code))


@verb("helper lie", "", "The root helper says that it is done and does nothing, until `helper up`.")
def _helper_lie(_: Words) -> Act:
    return lambda sim: sim.world.helper.lie()


@verb("helper hang", "", "The root helper takes requests and never answers.")
def _helper_hang(_: Words) -> Act:
    return lambda sim: sim.world.helper.hang()


@verb(
    "host",
    "booting|up|stopping|reboot",
    "`booting`: the host went down hard and boots; all guests are down, and PVE has started none yet. `up`: boot is over; after `booting` "
    "PVE starts the guests with `onboot` first. `stopping`: systemd stops the host. `reboot`: all guests are shut down, and it boots.",
)
def _host(words: Words) -> Act:
    phase = words.choice("phase of a host", ("booting", "up", "stopping", "reboot"))
    return lambda sim: sim.host(phase)


@verb("quorum", "lost|back", "The cluster has no quorum, or has it again.")
def _quorum(words: Words) -> Act:
    quorate = words.choice("state of quorum", ("lost", "back")) == "back"
    return lambda sim: setattr(sim.world, "quorate", quorate)


@verb("maintenance", "on|off", "The node is in maintenance (`ha-manager crm-command node-maintenance`), or no longer.")
def _maintenance(words: Words) -> Act:
    on = words.choice("state of maintenance", ("on", "off")) == "on"
    return lambda sim: setattr(sim.world, "maintenance", on)


@verb("storage", "NAME offline|online", "The storage cannot be reached, or can be again.")
def _storage(words: Words) -> Act:
    name = words.word("NAME", STORAGE_NAME)
    online = words.choice("state of a storage", ("offline", "online")) == "online"
    words.storages.append(name)
    return lambda sim: sim.world.storage(name, online=online)


@verb("clock wall", "+DURATION|-DURATION", "The wall clock is set forwards or back, as in `clock wall +3h`. Boot time goes on as ever.")
def _clock_wall(words: Words) -> Act:
    text = words.word("+DURATION or -DURATION, as in +3h or -10m", re.compile(r"[+-][0-9].*"))
    delta = Words([text[1:]]).seconds() * (-1 if text[0] == "-" else 1)

    def act(sim: Simulation) -> None:
        if not 0 <= sim.world.wall + delta <= _LATEST:
            raise VerbError("PVE's clock goes from 1970 to 2104")
        sim.world.clock_wall(delta)

    return act


@verb("clock suspend", "DURATION", "The host sleeps for so long: boot time and wall clock go on, nothing runs.")
def _clock_suspend(words: Words) -> Act:
    seconds = words.seconds()

    def act(sim: Simulation) -> None:
        if sim.world.wall + seconds > _LATEST or sim.world.boottime + seconds > _LONGEST_UP:
            raise VerbError("no host sleeps for so many years")
        sim.world.suspend(seconds)

    return act


# ---------------------------------------------------------------------------------------------------- the agent and its operator


@verb(
    "agent",
    "kill|restart|lose-state",
    "`kill`: the agent is gone without a word until `restart`. `restart`: it is stopped, if it lives, and starts at once. `lose-state`: it "
    "is gone until `restart`, and all that it remembered is gone for ever.",
)
def _agent(words: Words) -> Act:
    what = words.choice("thing to do to the agent", ("kill", "restart", "lose-state"))
    if what == "kill":
        return lambda sim: sim.kill()
    return (lambda sim: sim.restart()) if what == "restart" else (lambda sim: sim.lose_state())


@verb("hold", "[VMID] [for DURATION]", "`guestward hold`: nothing is started for so long (2h): one guest, or without VMID the whole node.")
def _hold(words: Words) -> Act:
    guest = words.maybe_guest()
    seconds = words.seconds(least=1.0) if words.maybe("for") else 7200.0
    return lambda sim: sim.hold(guest, seconds)


@verb(
    "claim",
    "VMID [for DURATION]",
    "`guestward scratch claim`: a VMID of the band is in use for so long (2h), and what is made there is ours.",
)
def _claim(words: Words) -> Act:
    guest = words.vmid()
    seconds = words.seconds(least=1.0) if words.maybe("for") else 7200.0
    return lambda sim: sim.claim(guest, seconds)


@verb("release", "[VMID]", "`guestward release`: the hold ends.")
def _release(words: Words) -> Act:
    guest = words.maybe_guest(gone=True)
    return lambda sim: sim.release(guest)


@verb("rearm", "VMID", "`guestward rearm`: the guest has all its start attempts again.")
def _rearm(words: Words) -> Act:
    guest = words.guest()
    return lambda sim: sim.rearm(guest)
