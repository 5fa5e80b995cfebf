"""`guestward demo`: the real agent process, watching a stand-in PVE host on loopback, as a time line with numbers measured in this run.

The world is moved only when the agent has said, or has demonstrably seen, what went before; nothing here relies on the length of a sleep.
Every wait has a limit, and a limit that passes is told and fails the demo.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from guestward.cli.caller import become_service_user
from guestward.cli.output import FAILED, OK, CommandError
from guestward.config import LocksSection, ScratchSection, WatchdogSection
from guestward.policy import rights

if TYPE_CHECKING:
    from guestward.demo.pvehost import PveHost

Record = dict[str, Any]  # one line of the agent's log
Inbox = queue.SimpleQueue[Record | int | None]  # the agent's records, signals to this process, None when the agent has ended

LIMIT = 30.0  # for whatever the agent should do at its next sweep or two
SILENCE = 6.0  # after so long without a line it is said what is waited for
POLL = 0.2
COLOURS = {"host": "36", "demo": "2", "warn": "33", "error": "31;1", "chapter": "1"}
LONGEST_FOLDER = 50  # bytes; a socket's address has 107, and some are for `/guestward-demo-xxxxxxxx/host/run/guestward/helper.sock`
PATIENCE = 8.0  # for an agent that was asked to end
REAL, REAL_LOCKS, REAL_SCRATCH = WatchdogSection(), LocksSection(), ScratchSection()
INCIDENT_S = 587  # the outage that was measured in the real incident
BOUND_S = 95  # guest stopped -> start sent, at real intervals, when nothing stands in the way
NO_SPACE = "no space left on device"
OF_SYSTEMD = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY")
NEXT = """\
Where to look next
  README.md         sections Install, Use, Locks, Watch, What it does not do
  docs/events.md    every event that the agent logs, and every guard
  docs/metrics.md   every metric, and the alerts to have
  guestward check   on a PVE host: reads everything that the agent will read, and says what is wrong"""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the agent's intervals are here, in seconds."""

    interval: float = 2
    confirm: float = 1
    backoff: tuple[float, float, float] = (1, 2, 4)
    lock_confirm: float = 2
    min_age: float = 3
    band_interval: float = 1


@dataclass(frozen=True, slots=True)
class Cast:
    """One guest and its part. start: what becomes of attempts to start it."""

    vmid: int
    name: str
    kind: str
    onboot: bool
    part: str
    start: str = "ok"

    @property
    def id(self) -> str:
        """As logs and metrics name it."""
        return f"{self.kind}/{self.vmid}"


WEB = Cast(101, "web", "lxc", True, "reboots itself in the middle of its backup")
SHOP = Cast(105, "shop", "lxc", True, "is left locked by a backup that dies")
LAB = Cast(102, "lab", "lxc", False, "is shut down on purpose by its owner")
DB = Cast(103, "db", "qemu", True, "dies of a full disk and cannot start again", f"fail: {NO_SPACE}")
MAIL = Cast(104, "mail", "lxc", True, "nothing; it just runs")
CAST = (WEB, SHOP, LAB, DB, MAIL)
CLEARED = [f"pct unlock {SHOP.vmid}", f"pct delsnapshot {SHOP.vmid} vzdump"]
TESTER = "restic@pve!restore"
SLOT = Cast(REAL_SCRATCH.first, f"ct{REAL_SCRATCH.first}", "lxc", False, "is restored by a test that dies, twice")
SLOT_PATH = f"/vms/{SLOT.vmid}"
TORN_DOWN = ["destroy", "stop", "destroy"]


class NotSeenError(Exception):
    """Something that the demo promises did not happen."""


class EndedError(Exception):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        """number: the signal's."""
        super().__init__(signal.Signals(number).name)
        self.number = number


# ------------------------------------------------------------------ what is printed


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the time line. who: `host`, `agent` or `demo`; event: a word for programs; record: the agent's own log line."""

    t: float
    who: str
    event: str
    text: str
    level: str = "info"
    guest: str = ""
    record: Record | None = None


class TextPrinter:
    """For people: aligned, wrapped to the terminal, with colour where there is one."""

    def __init__(self) -> None:
        """Look at the terminal."""
        self._width = min(110, max(80, shutil.get_terminal_size((100, 24)).columns)) - 1
        self._coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def line(self, line: Line) -> None:
        """Print one line of the time line, with its second parts below its text."""
        if line.event == "chapter":
            print("\n" + self._coloured_as("chapter", line.text), flush=True)
            return
        who = "..." if line.who == "demo" else line.who
        head = f"{line.t:5.1f}  {who:<5}  " + (f"{line.event:<17} {line.guest:<8} " if line.who == "agent" else "")
        text = (line.level.upper() + " " if line.level != "info" else "") + line.text
        body = textwrap.fill(text, self._width, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False, max_lines=6)
        print(self._coloured_as(line.level if line.level != "info" else line.who, body), flush=True)

    def prose(self, text: str) -> None:
        """Print paragraphs and tables, wrapped."""
        for line in text.splitlines():
            # What is too long continues below its last column.
            front, gap, last = line.rpartition("  ")
            front += gap
            print(textwrap.fill(last, self._width, initial_indent=front, subsequent_indent=" " * len(front), break_on_hyphens=False))
        sys.stdout.flush()

    def summary(self, _data: Record, text: str) -> None:
        """The last word."""
        self.prose(text)

    def _coloured_as(self, what: str, text: str) -> str:
        colour = COLOURS.get(what) if self._coloured else None
        return f"\033[{colour}m{text}\033[0m" if colour else text


class JsonPrinter:
    """For programs: one object a line, the summary last."""

    def line(self, line: Line) -> None:
        """Print one line of the time line."""
        found = {"t": round(line.t, 3), "who": line.who, "event": line.event, "level": line.level, "guest": line.guest or None}
        print(json.dumps({**found, "text": line.text, "record": line.record}), flush=True)

    def prose(self, text: str) -> None:
        """Programs need no explanations."""

    def summary(self, data: Record, _text: str) -> None:
        """The last object has the form that every command's answer has."""
        print(json.dumps({"schema": 1, "node": "pve1", "at": time.time(), "data": data}), flush=True)


Printer = TextPrinter | JsonPrinter


# ------------------------------------------------------------------ the agent


@dataclass(slots=True)
class Agent:
    """The real agent in a process of its own; what it logs goes to the inbox."""

    config: Path
    metrics_port: int
    inbox: Inbox
    _process: subprocess.Popen[str] = field(init=False)
    _reader: threading.Thread = field(init=False)

    def __enter__(self) -> Agent:
        """Start it. In a session of its own: Ctrl-C is for the demo, which ends the agent in good order."""
        environ = {name: value for name, value in os.environ.items() if name not in OF_SYSTEMD}
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "guestward", "run", "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environ,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name="agent's log", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it, by force if it does not go."""
        self.ask_to_end()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    @property
    def _errors(self) -> Path:
        return self.config.with_name("agent.stderr")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.inbox.put(_record(line))
        self.inbox.put(None)

    def ask_to_end(self) -> None:
        """SIGTERM, as systemd does it."""
        self._process.terminate()

    def exit_code(self) -> int:
        """Of an agent that has closed its log."""
        return self._process.wait(PATIENCE)

    def complaint(self) -> str:
        """The last thing that it wrote to stderr."""
        return (self._errors.read_text().strip().splitlines() or ["nothing on stderr"])[-1]

    def ask(self, *words: str) -> str:
        """The output of a `guestward` command that reads this agent's state."""
        command = [sys.executable, "-m", "guestward", *words, "--config", str(self.config)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        except subprocess.TimeoutExpired:
            raise NotSeenError(f"`guestward {' '.join(words)}` did not end within {LIMIT:g} s") from None
        if done.returncode != OK:
            raise NotSeenError(f"`guestward {' '.join(words)}` ended with exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout.rstrip()

    def metrics(self) -> list[str]:
        """The lines of a scrape; none while the agent does not serve them."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=5)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode().splitlines()
        except OSError:
            return []
        finally:
            connection.close()

    def sweeps(self, result: str = "complete") -> int:
        """How many sweeps ended so."""
        head = f'guestward_sweeps_total{{result="{result}"}} '
        return next((int(float(line.removeprefix(head))) for line in self.metrics() if line.startswith(head)), 0)


def _record(line: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    return record if isinstance(record, dict) else {"event": "no_json", "level": "error", "message": line.strip()}


# ------------------------------------------------------------------ the stage


@dataclass(slots=True)
class Stage:
    """The host, the agent, and what has been seen of both.

    moments: when the world did what, in seconds since the start. locks, scratch: what `guestward locks` and `guestward scratch list` said
    in the middle of incidents 2 and 3. left: volumes that were there after the first teardown.
    """

    host: PveHost
    agent: Agent
    inbox: Inbox
    printer: Printer
    pace: Pace
    begun: float
    records: list[tuple[float, Record]] = field(default_factory=list)
    moments: dict[str, float] = field(default_factory=dict)
    locks: str = ""
    scratch: str = ""
    left: tuple[str, ...] = ()
    _said_at: float = 0.0
    _ending: bool = False
    _ended: bool = False

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.begun

    def world(self, event: str, text: str) -> None:
        """Tell what has happened on the host."""
        self.moments[event] = self.now()
        self._tell(Line(self.moments[event], "host", event, text))

    def note(self, text: str, event: str = "note") -> None:
        """Tell what the demo itself has to say."""
        self._tell(Line(self.now(), "demo", event, text))

    def event(self, what: str, event: str, limit: float = LIMIT, **fields: object) -> None:
        """Wait until the agent has logged this event with these fields. what: the same for people."""
        wanted = {"event": event, **fields}
        self.wait(what, lambda: any(wanted.items() <= record.items() for _, record in self.records), limit)

    def sweeps(self, count: int, why: str) -> None:
        """Wait until the agent has made so many more complete sweeps, by its own count; one that is under way is one of them."""
        goal = self.agent.sweeps() + count
        self.wait(why, lambda: self.agent.sweeps() >= goal, LIMIT + count * self.pace.interval)

    def wait(self, what: str, done: Callable[[], bool], limit: float) -> None:
        """Show what the agent logs until this is so. Raises NotSeenError when the limit passes."""
        ends = self.now() + limit
        while not done():
            if self.now() > ends:
                raise NotSeenError(f"within {limit:g} s there was no sign of this: {what}")
            if self.now() - self._said_at > SILENCE:
                self.note(f"still waiting for: {what}")
            self._take()

    def end_agent(self) -> int:
        """Ask the agent to end, show its last lines, and return its exit code."""
        self._ending = True
        self.world("agent_asked_to_end", "The agent is asked to end (SIGTERM), as systemd does it.")
        self.agent.ask_to_end()
        self.wait("the end of the agent", lambda: self._ended, PATIENCE)
        return self.agent.exit_code()

    def _take(self) -> None:
        try:
            item = self.inbox.get(timeout=POLL)
        except queue.Empty:
            return
        if isinstance(item, int):
            raise EndedError(item)
        if item is None and not self._ending:
            raise NotSeenError(f"the agent ended by itself: {self.agent.complaint()}")
        if item is None:
            self._ended = True
        else:
            self._hear(item)

    def _hear(self, record: Record) -> None:
        at = self.now()
        self.records.append((at, record))
        level, name = str(record.get("level", "info")), str(record.get("name", ""))
        self._tell(Line(at, "agent", str(record.get("event")), str(record.get("message", "")), level, name, record))

    def _tell(self, line: Line) -> None:
        self._said_at = line.t
        self.printer.line(line)


# ------------------------------------------------------------------ what is played


def _opening(stage: Stage) -> None:
    stage.note("The agent begins", "chapter")
    stage.world("host_up", f"pve1 is up. Its API at {stage.host.url} answers as a PVE 9.1 host does; {len(CAST)} guests run.")
    stage.event("the agent's first line", "daemon_started")
    stage.wait("the first sweep", lambda: stage.agent.sweeps() > 0, LIMIT)
    stage.note("The first sweep is done: everything runs, so there is nothing to log.")


def _backup_incident(stage: Stage) -> None:
    """As recorded on a real node (recorded/timelines.md, 5a)."""
    host = stage.host
    stage.note(f"1. {WEB.name} reboots in the middle of its backup (the real one stayed down for {INCIDENT_S} s)", "chapter")
    host.backup_begin(WEB.vmid, "snapshot")
    stage.world("backup_begins", "PVE begins to back up web (vzdump, mode snapshot). web keeps running, under the lock `backup`.")
    stage.sweeps(1, "a sweep in which web runs and is backed up")
    host.reboot(WEB.vmid, "inside")
    stage.world("web_down", "web reboots itself from inside. It goes down; coming up again is refused: CT is locked (backup).")
    stage.event("the agent to see that web is down", "guest_down", vmid=WEB.vmid, guard="locked")
    stage.note("The backup goes on for some more sweeps. The agent waits; a reason is logged once, not with every sweep.")
    stage.sweeps(3, "sweeps in which the agent leaves web to its backup")
    host.backup_end(WEB.vmid)
    stage.world("backup_ends", "The backup ends: OK. The lock is gone, web is stopped, and nothing in PVE would ever start it again.")
    stage.event("the agent to see that the backup is over", "guest_waiting", vmid=WEB.vmid, guard="unconfirmed")
    stage.event("the second look and the start of web", "start_attempt", vmid=WEB.vmid, attempt=1)
    stage.note("PVE said that it will start web. The agent believes it when it has seen web run, in two reads a second apart.")
    stage.event("the agent to see web run", "start_result", vmid=WEB.vmid, outcome="started")
    state = host.guest(WEB.vmid)
    stage.world("web_up", f"web is {state['status']}, with pid {state['pid']}.")


def _dead_backup(stage: Stage) -> None:
    """As recorded on a real node (recorded/timelines.md, 6c)."""
    host = stage.host
    stage.note(f"2. The backup of {SHOP.name} dies, and leaves {SHOP.name} locked", "chapter")
    host.backup_begin(SHOP.vmid, "snapshot")
    stage.world("shop_backup_begins", "PVE begins to back up shop. For that it locks shop (`backup`) and makes a snapshot, `vzdump`.")
    stage.sweeps(1, "a sweep in which shop runs and is backed up")
    host.backup_kill(archive_seconds=3600)
    host.die(SHOP.vmid)
    stage.world(
        "shop_down",
        "The host runs out of memory: shop and the vzdump that saves it are killed. Lock and snapshot stay, and PVE refuses to start shop.",
    )
    stage.event("the agent to see that shop is down", "guest_down", vmid=SHOP.vmid, guard="locked")
    stage.note("A tar of the dead vzdump still reads shop's files. As long as anything of a backup lives, the agent touches nothing.")
    stage.sweeps(1, "a sweep in which the agent leaves shop to that tar")
    stage.locks = stage.agent.ask("locks")
    host.archives_end()
    stage.world("archive_ends", "The tar ends. Now nobody owns the lock, and nothing in PVE would clear it before the host boots.")
    stage.event("the proof that the lock is nobody's, on two looks", "lock_stale", vmid=SHOP.vmid)
    stage.note("No API token can clear a lock. The agent asks its root helper, which looks at everything again before it does.")
    stage.event("shop to be unlocked", "unlocked", vmid=SHOP.vmid)
    stage.event("the snapshot to be deleted", "snapshot_deleted", vmid=SHOP.vmid)
    stage.event("the agent to see shop run", "start_result", vmid=SHOP.vmid, outcome="started")
    state = host.guest(SHOP.vmid)
    lock, snapshots = state["lock"] or "none", ", ".join(state["snapshots"]) or "none"
    stage.world("shop_up", f"shop is {state['status']}, with pid {state['pid']}; lock: {lock}; snapshots: {snapshots}.")


def _dead_restore(stage: Stage) -> None:
    """As recorded on a real node (recorded/timelines.md, 8n)."""
    host, vmid = stage.host, SLOT.vmid
    stage.note("3. A restore test dies, and leaves a guest that nobody can destroy; then the next one dies", "chapter")
    host.create(vmid, by=TESTER, how="restore", killed=True)
    stage.world(
        "restore_dies",
        f"{TESTER} restores a backup as {vmid}, to see whether it can be. The restore is killed. What stays is a guest with nothing but a "
        f"lock (`create`), and PVE refuses to destroy it.",
    )
    stage.event("the agent to find what was left", "scratch_found", vmid=vmid)
    stage.scratch = stage.agent.ask("scratch", "list")
    wait, real = _span(stage.pace.min_age), _span(REAL_SCRATCH.min_age)
    stage.note(f"PVE's record proves whose it is. Somebody may still look at it, so it stays for {wait} (on a real host {real}).")
    stage.wait("the lock to be cleared", lambda: f"pct unlock {vmid}" in host.programs_run(), LIMIT)
    stage.world("lock_cleared", f"The root helper, asked by the agent, looks for itself and clears the lock: pct unlock {vmid}")
    stage.wait("the guest to be destroyed", lambda: ("destroy", vmid) in host.effects(), LIMIT)
    stage.world(
        "destroyed",
        f"PVE destroys {SLOT.id} for the agent, and with it every grant on {SLOT_PATH}, the tester's too. Without them a slot works once, "
        f"and nobody is shown what is left of its guest.",
    )
    stage.event("the grants to be back", "grant_restored", path=SLOT_PATH)
    stage.event("a look at the storages", "scratch_leftover", vmid=vmid)
    stage.left = tuple(host.volumes(vmid))
    stage.note("No configuration named that volume, so PVE did not free it. The agent never does: another cluster may share the storage.")
    for volume in stage.left:
        host.free(volume)
    stage.world("freed", f"Somebody reads that ERROR and does what it says: {'; '.join(f'pvesm free {volume}' for volume in stage.left)}")
    _dead_tester(stage)


def _dead_tester(stage: Stage) -> None:
    """The second time, in the same slot: no lock, but it runs."""
    host, vmid = stage.host, SLOT.vmid
    if "VM.Allocate" not in host.held(TESTER, SLOT_PATH):
        raise NotSeenError(f"{TESTER} may restore into {vmid} again")
    host.create(vmid, by=TESTER, how="restore")
    host.start(vmid, by=TESTER)
    stage.world("tester_dies", f"{TESTER} has its grant again and uses the slot again. The guest runs, and then the test itself dies.")
    stage.event("the agent to find the guest", "scratch_found", vmid=vmid, name=SLOT.name)
    stage.wait("the guest to be stopped", lambda: ("stop", vmid) in host.effects(), LIMIT)
    stage.world("stopped_again", f"PVE stops {SLOT.id} for the agent.")
    stage.event("the guest to be gone", "scratch_destroyed", vmid=vmid, outcome="gone")
    stage.note("That was said with the grant back and after a look at every storage; without, it would have been: unknown.")


def _left_alone(stage: Stage) -> None:
    stage.note("4. lab is shut down on purpose, and must be left alone", "chapter")
    stage.host.stop(LAB.vmid, by="root@pam")
    stage.world("lab_down", "root@pam stops lab. It has no onboot, PVE's mark of a guest that should run: somebody wants it down.")
    stage.event("the agent to see that lab is down", "guest_down", vmid=LAB.vmid, guard="onboot_off")
    stage.note("That is all there will be about lab. Until the end it is checked that nothing is done to it.")


def _given_up(stage: Stage) -> None:
    stage.note("5. db cannot start: three attempts, then a call for a person", "chapter")
    stage.host.die(DB.vmid)
    stage.world("db_down", f"The process of db dies: its disk is full. Every start will fail ({NO_SPACE}).")
    for number, (here, real) in enumerate(zip(stage.pace.backoff, REAL.backoff, strict=True), start=1):
        what, limit = f"attempt {number} to start db, and its end", LIMIT + sum(stage.pace.backoff)
        stage.event(what, "start_result", limit, vmid=DB.vmid, attempt=number, outcome="failed")
        then = "The next attempt comes" if number < REAL.attempts else "db is given up"
        stage.note(f"{then} with the first sweep after {_span(here)} (on a real host {_span(real)}).")
    stage.event("the agent to give db up", "given_up", LIMIT + stage.pace.backoff[-1], vmid=DB.vmid)
    stage.note("Some more sweeps, in which there must be no fourth attempt and no second ERROR.")
    stage.sweeps(2, "sweeps in which db is left as it is")


def _span(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:g} min" if seconds < 7200 else f"{seconds / 3600:g} h"


# ------------------------------------------------------------------ what came of it


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the verdict rests on, as the host itself counted it.

    effects: what reached it through the API; programs: what the root helper ran there; running: VMIDs. left: volumes after the first
    teardown; rest: those at the end. granted: whether agent and restore tester have all their grants in the slot at the end.
    """

    records: list[tuple[float, Record]]
    moments: dict[str, float]
    effects: list[tuple[str, int]]
    programs: list[str]
    running: frozenset[int]
    sweeps: dict[str, int]
    requests: int
    exit_code: int
    left: tuple[str, ...]
    rest: tuple[str, ...]
    granted: bool

    def times(self, event: str, cast: Cast) -> list[float]:
        """When the agent logged this event of this guest."""
        return [at for at, record in self.records if record.get("event") == event and record.get("vmid") == cast.vmid]

    def done_to(self, cast: Cast) -> list[str]:
        """What the agent did to this guest."""
        return [verb for verb, vmid in self.effects if vmid == cast.vmid]

    def helped(self, cast: Cast) -> list[str]:
        """What the root helper ran for this guest, without the rest of the command lines."""
        words = [program.split() for program in self.programs]
        return [" ".join(found[:2]) for found in words if str(cast.vmid) in found or f"/vms/{cast.vmid}" in found]

    def named(self) -> list[object]:
        """The volumes that were told with an ERROR."""
        return [volume for _, record in self.records if record.get("event") == "scratch_leftover" for volume in record["volumes"]]

    def errors(self) -> list[tuple[object, object]]:
        """Event and guest of every ERROR."""
        return [(record.get("event"), record.get("vmid")) for _, record in self.records if record.get("level") == "error"]


def promises(seen: Evidence) -> list[tuple[str, bool]]:
    """What the demo promises, and whether it happened."""
    sent = seen.times("start_attempt", WEB)
    cleared = seen.times("unlocked", SHOP)
    return [
        ("web runs again, by exactly one start of the agent", WEB.vmid in seen.running and seen.done_to(WEB) == ["start"]),
        ("web was not touched before its backup had ended", bool(sent) and sent[0] > seen.moments["backup_ends"]),
        ("shop runs again, by exactly one start of the agent", SHOP.vmid in seen.running and seen.done_to(SHOP) == ["start"]),
        (
            "shop was unlocked once and its snapshot deleted once, and no other lock was touched but that of the dead restore",
            [program for program in seen.programs if str(SLOT.vmid) not in program] == CLEARED,
        ),
        (
            "shop was not touched before the last process of its backup had ended",
            bool(cleared) and cleared[0] > seen.moments["archive_ends"],
        ),
        (
            "what the restore tests left was torn down twice over, and nothing else was destroyed or stopped",
            [(verb, vmid) for verb, vmid in seen.effects if verb in TORN_DOWN] == [(verb, SLOT.vmid) for verb in TORN_DOWN],
        ),
        (
            "the grants that PVE deleted with it were put back both times, for the agent and for the restore tester",
            seen.helped(SLOT) == ["pct unlock", "pveum acl", "pveum acl"] and seen.granted,
        ),
        (
            "the volume that was left was named and not freed; what was called gone was gone",
            bool(seen.left) and seen.named() == list(seen.left) and not seen.rest and len(seen.times("scratch_destroyed", SLOT)) == 1,
        ),
        ("lab stays down as its owner left it; nothing was done to it", LAB.vmid not in seen.running and not seen.done_to(LAB)),
        ("db was started exactly three times, and then no more", seen.done_to(DB) == ["start"] * 3 and DB.vmid not in seen.running),
        (
            "a person was called twice, each time by one ERROR: for the volume that was left, and for db",
            seen.errors() == [("scratch_leftover", SLOT.vmid), ("given_up", DB.vmid)],
        ),
        ("mail ran all the time; nothing was done to it", MAIL.vmid in seen.running and not seen.done_to(MAIL)),
        ("the agent ended in good order when it was asked to", seen.exit_code == OK),
    ]


def numbers(seen: Evidence) -> Record:
    """What was measured in this run; spans in seconds."""
    at = seen.moments
    tried, failed = seen.times("start_attempt", DB), seen.times("start_result", DB)
    web = {
        "down_s": round(at["web_up"] - at["web_down"], 3),
        "backup_s": round(at["backup_ends"] - at["web_down"], 3),
        "sent_after_s": round(seen.times("start_attempt", WEB)[0] - at["backup_ends"], 3),
        "starts": len(seen.done_to(WEB)),
    }
    proven, tidy = seen.times("lock_stale", SHOP)[0], seen.times("snapshot_deleted", SHOP)[0]
    shop = {
        "down_s": round(at["shop_up"] - at["shop_down"], 3),
        "backup_s": round(at["archive_ends"] - at["shop_down"], 3),
        "proven_after_s": round(proven - at["archive_ends"], 3),
        "cleared_after_s": round(tidy - proven, 3),
        "starts": len(seen.done_to(SHOP)),
    }
    gone = seen.times("scratch_destroyed", SLOT)[0]
    scratch = {
        "cleared_after_s": round(at["lock_cleared"] - at["restore_dies"], 3),
        "destroyed_after_s": round(at["destroyed"] - at["restore_dies"], 3),
        "looked_after_s": round(seen.times("scratch_leftover", SLOT)[0] - at["destroyed"], 3),
        "again_after_s": round(gone - at["tester_dies"], 3),
        "destroys": seen.done_to(SLOT).count("destroy"),
    }
    db = {
        "starts": len(seen.done_to(DB)),
        "waits_s": [round(later - before, 3) for later, before in zip(tried[1:], failed, strict=False)],
        "given_up_after_s": round(seen.times("given_up", DB)[0] - at["db_down"], 3),
    }
    lab = {"watched_s": round(at["agent_asked_to_end"] - at["lab_down"], 3), "starts": len(seen.done_to(LAB))}
    agent = {
        "sweeps": seen.sweeps,
        "requests": seen.requests,
        "changes": len(seen.effects),
        "by_helper": len(seen.programs),
        "log_lines": len(seen.records),
    }
    mail = {"starts": len(seen.done_to(MAIL))}
    return {"web": web, "shop": shop, "scratch": scratch, "lab": lab, "db": db, "mail": mail, "agent": agent}


def in_words(found: Record) -> str:
    """The numbers for people."""
    web, shop, scratch, lab, db, agent = (found[name] for name in ("web", "shop", "scratch", "lab", "db", "agent"))
    waits = " and ".join(f"{wait:.1f} s" for wait in db["waits_s"])
    done, seen = agent["changes"], agent["sweeps"]
    facts = (
        f"  web      It was down for {web['down_s']:.1f} s.",
        f"For {web['backup_s']:.1f} s of that its backup ran, and nobody can start it then.",
        f"The agent sent its start {web['sent_after_s']:.1f} s after the backup; at real intervals that takes up to {BOUND_S} s.",
        f"In the real incident, without an agent, it was {INCIDENT_S} s until a person started it.\n",
        f" shop     It was down for {shop['down_s']:.1f} s. For {shop['backup_s']:.1f} s of that something of its backup lived.",
        f"{shop['proven_after_s']:.1f} s later its lock was proven to be nobody's (at real intervals one to two minutes);",
        f"{shop['cleared_after_s']:.1f} s after that lock and snapshot were gone. Without an agent it waits for a person.\n",
        f" scratch  The dead restore's guest was destroyed after {scratch['destroyed_after_s']:.1f} s (at real intervals two hours);",
        f"{scratch['looked_after_s']:.1f} s later the grants were back and what was left was named.",
        f"The second time all of it took {scratch['again_after_s']:.1f} s.",
        "Without an agent a slot works once, and is lost where a restore dies.\n",
        f" lab      It stayed down until the end, for {lab['watched_s']:.1f} s; starts by the agent: {lab['starts']}.\n",
        f" db       Attempts: {db['starts']}, with {waits} between them; given up {db['given_up_after_s']:.1f} s after it died.",
        f"It stays down until something changes, or until a person has mended it and says `guestward rearm {DB.vmid}`.\n",
        f" agent    Sweeps: {sum(seen.values())}, of which {seen['complete']} saw everything.",
        f"Requests to PVE: {agent['requests']}, of which {done} changed something; changes by the root helper: {agent['by_helper']}.",
        f"Lines logged: {agent['log_lines']}.",
    )
    return " ".join(facts)


@dataclass(frozen=True, slots=True)
class Views:
    """What an operator would have looked at, taken while the agent ran."""

    status: str
    explain: str
    locks: str
    scratch: str
    metrics: list[str]


def _views(stage: Stage) -> Views:
    wanted = (
        f'guestward_guest_up{{id="{WEB.id}"',
        f'guestward_guest_up{{id="{LAB.id}"',
        f'guestward_guest_up{{id="{DB.id}"',
        f'guestward_start_attempts_total{{id="{WEB.id}",outcome="started"',
        f'guestward_guest_up{{id="{SHOP.id}"',
        f'guestward_start_attempts_total{{id="{DB.id}",outcome="failed"',
        f'guestward_guest_given_up{{id="{DB.id}"',
        "guestward_scratch_leftovers ",
        f'guestward_permission_ok{{path="{SLOT_PATH}",privilege="VM.Allocate"',
    )
    lines = [line for line in stage.agent.metrics() if line.startswith(wanted)]
    return Views(stage.agent.ask("status"), stage.agent.ask("explain", str(DB.vmid)), stage.locks, stage.scratch, lines)


# ------------------------------------------------------------------ the whole


def _scene(pace: Pace, port: int) -> str:
    rows = [("GUEST", "NAME", "IS A", "ONBOOT", "WHAT WILL HAPPEN TO IT HERE")]
    rows += [(c.id, c.name, "container" if c.kind == "lxc" else "VM", "yes" if c.onboot else "no", c.part) for c in CAST]
    guests = "\n".join(f"  {id:<9} {name:<5} {kind:<10} {onboot:<7} {part}" for id, name, kind, onboot, part in rows)
    waits = ", ".join(f"{wait:g}" for wait in pace.backoff)
    real = ", ".join(_span(wait) for wait in REAL.backoff)
    return f"""\
Guestward demo: the real agent watches a stand-in Proxmox VE host. Both are on this machine's loopback; nothing else is touched.

Proxmox VE (PVE) runs containers and virtual machines, its guests. This host is the node pve1; nobody sits in front of it. Its guests \
(onboot: PVE should start it at boot, so it is meant to run):

{guests}

Beside them there is a band of VMIDs for scratch guests, {REAL_SCRATCH.first} to {REAL_SCRATCH.last}. {TESTER} restores backups into it, \
to test them, and should destroy afterwards what it has made.

Shortened here: the agent looks at all guests (a sweep) every {pace.interval:g} s, on a real host every {_span(REAL.interval)}; it looks \
twice before it starts a guest, {pace.confirm:g} s apart ({_span(REAL.confirm)}), and before it \
clears a lock, {pace.lock_confirm:g} s apart ({_span(REAL_LOCKS.confirm)}); it waits {waits} s after failed attempts ({real}); it looks \
at the band in every sweep (every {_span(REAL_SCRATCH.interval)}), and destroys nothing there that was in use in the last \
{pace.min_age:g} s ({_span(REAL_SCRATCH.min_age)}).
In the time line `host` is what happens in that world, and `agent` is the agent's own log: event, guest, message. Times are in seconds.
While this runs, its metrics are at http://127.0.0.1:{port}/metrics"""


def _config(host: PveHost, folder: Path, pace: Pace, port: int) -> Path:
    backoff = ", ".join(f'"{wait:g}s"' for wait in pace.backoff)
    state = folder / "state"
    state.mkdir()
    file = folder / "guestward.toml"
    file.write_text(f"""\
[pve]
port = {host.port}
node = "{host.node}"
token_id = "{host.token_id}"
token_file = "{host.token_file}"
ca_file = "{host.ca_file}"
[watchdog]
interval = "{pace.interval:g}s"
confirm = "{pace.confirm:g}s"
backoff = [{backoff}]
[locks]
confirm = "{pace.lock_confirm:g}s"
[scratch]
origins = ["{TESTER}"]
grantees = ["{TESTER}"]
min_age = "{pace.min_age:g}s"
interval = "{pace.band_interval:g}s"
[metrics]
listen = "127.0.0.1:{port}"
[state]
dir = "{state}"
[host]
root = "{host.root}"
""")
    return file


def _short_folder() -> str:
    """Where temporary files go, unless the path of the helper's socket were too long there."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= LONGEST_FOLDER else "/tmp"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stand_in() -> type[PveHost]:
    try:
        from guestward.demo.pvehost import PveHost  # noqa: PLC0415 - the only part that needs more than the agent does
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("fakepve", "aiohttp", "cryptography"):
            raise
        text = f"the demo needs the Python package fakepve, and {error.name} is not installed"
        raise CommandError("demo", text, "pip install 'guestward[demo]', or `make demo` in a checkout") from None
    return PveHost


@contextmanager
def _signals_to(inbox: Inbox) -> Iterator[None]:
    """Signals become messages, so that none can break into the clean-up; one that is ignored stays ignored."""
    wanted = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, _frame: inbox.put(number)) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _play_all(stage: Stage) -> tuple[Evidence, Views]:
    for act in (_opening, _backup_incident, _dead_backup, _dead_restore, _left_alone, _given_up):
        act(stage)
    views = _views(stage)
    sweeps = {result: stage.agent.sweeps(result) for result in ("complete", "incomplete", "aborted")}
    stage.note("The end", "chapter")
    code = stage.end_agent()
    host = stage.host
    running = frozenset(cast.vmid for cast in CAST if host.guest(cast.vmid)["status"] == "running")
    held = [host.held(who, SLOT_PATH) for who in (host.token_id, TESTER)]
    seen = Evidence(
        records=stage.records,
        moments=stage.moments,
        effects=host.effects(),
        programs=host.programs_run(),
        running=running,
        sweeps=sweeps,
        requests=len(host.requests_seen()),
        exit_code=code,
        left=stage.left,
        rest=tuple(host.volumes(SLOT.vmid)),
        granted=all(set(rights.SCRATCH) <= found for found in held),
    )
    return seen, views


def say_outcome(printer: Printer, seen: Evidence, views: Views, port: int) -> int:
    """Print promises, numbers and views, and return the exit code: 0 only if every promise was kept."""
    kept = promises(seen)
    found = numbers(seen)
    broken = [text for text, held in kept if not held]
    address = f"http://127.0.0.1:{port}/metrics"
    verdict = "\n".join(f"  {'ok ' if held else 'NOT'}  {text}" for text, held in kept)
    text = "\n\n".join(
        (
            f"\nWhat was promised, and whether it happened\n{verdict}",
            f"Measured in this run\n{in_words(found)}",
            f"`guestward locks` said, while the tar of the dead backup was at work\n{textwrap.indent(views.locks, '  ')}",
            f"`guestward scratch list` said, while somebody may have looked at the dead restore\n{textwrap.indent(views.scratch, '  ')}",
            f"`guestward status` said, before the agent ended\n{textwrap.indent(views.status, '  ')}",
            f"`guestward explain {DB.vmid}` (why is db down?) said\n{textwrap.indent(views.explain, '  ')}",
            f"{address} said, among others\n{textwrap.indent(chr(10).join(views.metrics), '  ')}",
            NEXT,
            *([f"NOT as promised: {'; '.join(broken)}"] if broken else []),
        )
    )
    data = {"ok": not broken, "promises": [{"text": text, "held": held} for text, held in kept], "not_as_promised": broken}
    printer.summary({**data, "measured": found, "metrics_address": address, "metrics": views.metrics}, text)
    return FAILED if broken else OK


def play(output: str, pace: Pace | None = None) -> int:
    """`guestward demo`. Returns 0 if all that it promises really happened, otherwise 1; 128 + N after signal N."""
    printer = JsonPrinter() if output == "json" else TextPrinter()
    pace, inbox, port = pace or Pace(), Inbox(), _free_port()
    try:
        with ExitStack() as stack:
            stack.enter_context(_signals_to(inbox))
            make_host = _stand_in()
            become_service_user()  # as the agent will: the folder must be one that it can read
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="guestward-demo-", dir=_short_folder())))
            host = stack.enter_context(make_host(folder / "host"))
            host.add_grantee(TESTER)
            for cast in CAST:
                host.add_guest(cast.vmid, cast.kind, name=cast.name, onboot=cast.onboot, start=[cast.start])
            printer.prose(_scene(pace, port))
            agent = stack.enter_context(Agent(_config(host, folder, pace, port), port, inbox))
            seen, views = _play_all(Stage(host, agent, inbox, printer, pace, time.monotonic()))
        return say_outcome(printer, seen, views, port)
    except NotSeenError as error:
        printer.summary({"ok": False, "not_as_promised": [str(error)]}, f"\nNOT as promised: {error}")
        return FAILED
    except EndedError as error:
        printer.summary({"ok": False, "ended_by": str(error)}, f"\nended by {error}; nothing is left running")
        return 128 + error.number
    except BrokenPipeError:  # nobody reads any more; what is still in the buffer must not be tried again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
