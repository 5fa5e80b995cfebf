"""`guestward demo` shows what it promises, says so when it does not, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from guestward.demo import play

DEMO = (sys.executable, "-m", "guestward", "demo")
QUICK = "import sys; from guestward.demo.play import Pace, play; sys.exit(play('json', Pace(1, 0.3, (0.3, 0.3, 0.3), 1, 1)))"

# Of the text form, in this order.
PROMISED = (
    r"Proxmox VE \(PVE\) runs containers",
    r"lxc/101 +web +container +yes",
    r"every 2 s, on a real host every 60 s",
    r"host +PVE begins to back up web",
    r"host +web reboots itself from inside",
    r"agent +guest_down +web +lxc/101 is down: locked",
    r"host +The backup ends: OK",
    r"agent +guest_waiting +web +lxc/101 stays down: unconfirmed",
    r"agent +start_attempt +web +lxc/101 start 1 of 3: sent",
    r"agent +start_result +web +lxc/101 start 1: started",
    r"host +web is running",
    r"host +The host runs out of memory",
    r"agent +guest_down +shop +lxc/105 is down: locked",
    r"host +The tar ends",
    r"agent +lock_stale +shop +WARN lxc/105 has a lock `backup` that nobody owns",
    r"agent +unlocked +shop +lxc/105 is unlocked",
    r"agent +snapshot_deleted +shop +lxc/105 has no snapshot",
    r"agent +start_result +shop +lxc/105 start 1: started",
    r"host +shop is running, with pid \d+; lock: none; snapshots: none",
    r"host +restic@pve!restore restores a backup as 990000",
    r"agent +scratch_found +CT990000 +lxc/990000 is a scratch guest of ours: vzrestore by",
    r"host +The root helper, asked by the agent, looks for itself",
    r"host +PVE destroys lxc/990000",
    r"agent +grant_restored +the token has all its grants on /vms/990000 again",
    r"agent +scratch_leftover +CT990000 +ERROR lxc/990000 is destroyed, but volumes",
    r"host +Somebody reads that ERROR and does what it says: pvesm free",
    r"host +restic@pve!restore has its grant again",
    r"agent +scratch_found +ct990000",
    r"host +PVE stops lxc/990000",
    r"agent +grant_restored",
    r"agent +scratch_destroyed +ct990000 +lxc/990000 is destroyed and nothing is left of it",
    r"host +root@pam stops lab",
    r"agent +guest_down +lab +lxc/102 is down: onboot_off",
    r"host +The process of db dies",
    r"agent +start_attempt +db +qemu/103 start 1 of 3: sent",
    r"agent +start_result +db +WARN qemu/103 start 1: failed",
    r"agent +start_attempt +db +qemu/103 start 3 of 3: sent",
    r"agent +given_up +db +ERROR qemu/103",
    r"agent +daemon_stopping",
    r"ok   web runs again, by exactly one start",
    r"ok   shop was unlocked once",
    r"ok   what the restore tests left was torn down twice over",
    r"web +It was down for \d+\.\d s",
    r"shop +It was down for \d+\.\d s",
    r"scratch +The dead restore's guest was destroyed after \d+\.\d s",
    r"`guestward locks` said",
    r"lxc/105 +shop +backup +\d+ s +a backup +owned",
    r"`guestward scratch list` said",
    r"lxc/990000 +CT990000 +\w+ .*vzrestore by restic@pve!restore",
    r"`guestward status` said",
    r"lxc/102 +lab +stopped +onboot_off",
    r"`guestward explain 103`",
    r"exhausted +DECIDES",
    r"http://127\.0\.0\.1:\d+/metrics said",
    r'guestward_start_attempts_total\{id="qemu/103",outcome="failed"\} 3\.0',
    r"guestward_scratch_leftovers 0\.0",
    r"docs/events\.md",
    r"guestward check",
)


class Demo:
    """A demo in a process of its own, with a mark in its environment that its children inherit."""

    def __init__(self, folder: Path, *command: str, stdout: int = subprocess.PIPE, **environ: str) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        env |= {"GUESTWARD_DEMO_MARK": self.mark, "TMPDIR": str(folder), **environ}
        self.process = subprocess.Popen(command or DEMO, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env)
        self.out, self.err, self.took, self.secret = "", "", 0.0, ""

    def finish(self) -> Demo:
        begun = time.monotonic()
        self.secret = self.token()
        self.out, self.err = self.process.communicate(timeout=120)
        self.took = time.monotonic() - begun
        return self

    def token(self) -> str:
        """The secret that the agent uses, read while it is there."""

        def read() -> str:
            files = list(self.folder.glob("guestward-demo-*/host/etc/guestward/token"))
            return files[0].read_text().strip() if files else ""

        return str(wait_for(read))

    def processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if self.mark.encode() in entry.read_bytes():
                    found.append(int(entry.parent.name))
        return found

    def agent(self) -> int:
        """The process id of its agent."""

        def look() -> int:
            for pid in self.processes():
                with suppress(OSError):
                    if b"\0run\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return pid
            return 0

        return int(wait_for(look))

    def assert_nothing_left(self) -> None:
        assert self.processes() == []
        assert list(self.folder.iterdir()) == []


def wait_for(look: Callable[[], Any], timeout: float = 20) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)
    return found


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Demo]]:
    demos: list[Demo] = []
    folder = tmp_path_factory.mktemp("demo")  # its path is short: there will be a socket

    def begin(*command: str, **options: Any) -> Demo:
        demos.append(Demo(folder, *command, **options))
        return demos[-1]

    yield begin
    for demo in demos:
        with demo.process as process:  # closes its pipes
            process.terminate()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Demo, Demo]:
    """The demo as everybody sees it and a quicker one in JSON, both at once."""
    text = Demo(tmp_path_factory.mktemp("text"))
    quick = Demo(tmp_path_factory.mktemp("json"), sys.executable, "-c", QUICK)
    quick.finish()
    return text.finish(), quick


class TestPlayed:
    def test_succeeds_in_time_and_says_nothing_on_stderr(self, played: tuple[Demo, Demo]) -> None:
        for demo in played:
            assert (demo.process.returncode, demo.err) == (0, ""), demo.out
            assert demo.took < 120

    def test_shows_what_it_promises_in_order(self, played: tuple[Demo, Demo]) -> None:
        at, text = 0, played[0].out
        for pattern in PROMISED:
            found = re.compile(pattern).search(text, at)
            assert found, f"{pattern!r} is not in what follows {text[max(0, at - 200) : at]!r}"
            at = found.end()
        assert "NOT" not in text

    def test_is_never_silent_for_long_and_time_goes_forward(self, played: tuple[Demo, Demo]) -> None:
        times = [float(t) for t in re.findall(r"^ *(\d+\.\d)  (?:host|agent|\.\.\.) ", played[0].out, re.MULTILINE)]
        assert len(times) > 30
        assert all(0 <= later - before < 8.5 for before, later in itertools.pairwise(times)), times

    def test_fits_a_terminal_and_is_plain_text(self, played: tuple[Demo, Demo]) -> None:
        assert "\033" not in played[0].out
        assert max(len(line) for line in played[0].out.splitlines()) <= 100

    def test_no_secret_is_printed(self, played: tuple[Demo, Demo]) -> None:
        for demo in played:
            assert len(demo.secret) == 32
            assert demo.secret not in demo.out + demo.err

    def test_leaves_nothing_behind(self, played: tuple[Demo, Demo]) -> None:
        for demo in played:
            demo.assert_nothing_left()

    def test_json_is_one_object_a_line(self, played: tuple[Demo, Demo]) -> None:
        *lines, last = [json.loads(line) for line in played[1].out.splitlines()]
        for line in lines:
            assert set(line) == {"t", "who", "event", "level", "guest", "text", "record"}
            assert line["who"] in ("host", "agent", "demo")
            assert isinstance(line["t"], float)
            assert (line["record"] is not None) == (line["who"] == "agent")
        agent = [line for line in lines if line["who"] == "agent"]
        assert all((line["event"], line["text"]) == (line["record"]["event"], line["record"]["message"]) for line in agent)
        assert [line["event"] for line in agent if line["level"] == "error"] == ["scratch_leftover", "given_up"]
        assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)
        assert (last["schema"], last["node"]) == (1, "pve1")

    def test_json_ends_with_what_was_measured(self, played: tuple[Demo, Demo]) -> None:
        *lines, last = [json.loads(line) for line in played[1].out.splitlines()]
        data = last["data"]
        at = {line["event"]: line["t"] for line in lines if line["who"] == "host"}
        web = data["measured"]["web"]
        assert data["ok"] and not data["not_as_promised"]
        assert web["starts"] == 1
        assert web["down_s"] == pytest.approx(at["web_up"] - at["web_down"], abs=0.01)
        assert web["backup_s"] == pytest.approx(at["backup_ends"] - at["web_down"], abs=0.01)
        assert data["measured"]["shop"]["starts"] == 1
        assert data["measured"]["shop"]["down_s"] == pytest.approx(at["shop_up"] - at["shop_down"], abs=0.01)
        assert data["measured"]["db"]["starts"] == 3
        scratch = data["measured"]["scratch"]
        assert scratch["destroys"] == 2 and 0 < scratch["cleared_after_s"] < scratch["destroyed_after_s"]
        assert scratch["destroyed_after_s"] == pytest.approx(at["destroyed"] - at["restore_dies"], abs=0.01)
        assert len(data["metrics"]) == 9


class TestEnded:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_by_a_signal(self, start: Callable[..., Demo], number: signal.Signals) -> None:
        demo = start()
        assert demo.process.stdout is not None
        for line in demo.process.stdout:
            if "reboots itself from inside" in line:
                break
        demo.process.send_signal(number)
        demo.process.send_signal(number)  # impatience breaks nothing
        rest = demo.process.communicate(timeout=20)[0]
        assert demo.process.returncode == 128 + number
        assert f"ended by {number.name}; nothing is left running" in rest
        demo.assert_nothing_left()

    def test_by_a_reader_that_goes_away(self, start: Callable[..., Demo]) -> None:
        demo = start()
        assert demo.process.stdout is not None
        demo.process.stdout.readline()
        demo.process.stdout.close()
        assert demo.process.wait(30) == 1
        assert demo.process.stderr is not None and demo.process.stderr.read() == ""
        demo.assert_nothing_left()

    def test_by_the_death_of_the_agent(self, start: Callable[..., Demo]) -> None:
        demo = start()
        os.kill(demo.agent(), signal.SIGKILL)
        out = demo.process.communicate(timeout=30)[0]
        assert demo.process.returncode == 1
        assert "NOT as promised: the agent ended by itself" in out
        demo.assert_nothing_left()


@pytest.mark.parametrize("no_color", [False, True])
def test_colour_is_for_terminals_that_want_it(start: Callable[..., Demo], no_color: bool) -> None:
    ours, theirs = pty.openpty()
    demo = start(stdout=theirs, **({"NO_COLOR": "1"} if no_color else {}))
    os.close(theirs)
    seen = b""
    while b"The first sweep" not in seen:
        seen += os.read(ours, 4096)
    demo.process.terminate()
    with suppress(OSError):  # EIO: the other side is closed
        while os.read(ours, 4096):
            pass
    os.close(ours)
    assert demo.process.wait(20) == 143
    assert (b"\033[36m" in seen) != no_color


@pytest.mark.parametrize("output", ["table", "json"])
def test_without_fakepve_it_says_what_to_install(output: str) -> None:
    code = f"import sys; sys.modules['fakepve'] = None; from guestward.cli import main; sys.exit(main(['demo', '--output', '{output}']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    if output == "json":
        error = json.loads(done.stdout)["error"]
        assert error["code"] == "demo" and "pip install 'guestward[demo]'" in error["hint"]
    else:
        assert done.stdout == ""
        assert done.stderr.splitlines() == [
            "guestward: the demo needs the Python package fakepve, and fakepve is not installed",
            "  what to do: pip install 'guestward[demo]', or `make demo` in a checkout",
        ]


WEB, SHOP, LAB, DB, MAIL = (cast.vmid for cast in play.CAST)
SLOT = play.SLOT.vmid
GOOD = play.Evidence(
    records=[
        (21.0, {"event": "start_attempt", "vmid": WEB}),
        (23.0, {"event": "start_result", "vmid": WEB}),
        (27.0, {"event": "lock_stale", "vmid": SHOP, "level": "warn"}),
        (28.0, {"event": "unlocked", "vmid": SHOP}),
        (29.0, {"event": "snapshot_deleted", "vmid": SHOP}),
        (31.0, {"event": "scratch_leftover", "vmid": SLOT, "level": "error", "volumes": ["disk-0"]}),
        (35.0, {"event": "scratch_destroyed", "vmid": SLOT}),
        *((36.0 + n, {"event": "start_attempt", "vmid": DB}) for n in range(3)),
        *((36.5 + n, {"event": "start_result", "vmid": DB, "level": "warn"}) for n in range(3)),
        (40.0, {"event": "given_up", "vmid": DB, "level": "error"}),
    ],
    moments={
        **{"web_down": 5, "backup_ends": 20, "web_up": 23, "shop_down": 24, "archive_ends": 26, "shop_up": 30},
        **{"restore_dies": 26, "lock_cleared": 29, "destroyed": 30, "tester_dies": 32},
        **{"lab_down": 35, "db_down": 35, "agent_asked_to_end": 50},
    },
    effects=[("start", WEB), ("start", SHOP), *((verb, SLOT) for verb in play.TORN_DOWN), *[("start", DB)] * 3],
    programs=[*play.CLEARED, f"pct unlock {SLOT}", *[f"pveum acl modify /vms/{SLOT} --users u --tokens t"] * 2],
    running=frozenset({WEB, SHOP, MAIL}),
    sweeps={"complete": 20, "incomplete": 0, "aborted": 0},
    requests=100,
    exit_code=0,
    left=("disk-0",),
    rest=(),
    granted=True,
)


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({}, ""),
        ({"effects": [*GOOD.effects, ("start", WEB)]}, "web runs again, by exactly one start"),
        ({"running": GOOD.running - {WEB}}, "web runs again"),
        ({"running": GOOD.running - {SHOP}}, "shop runs again"),
        ({"effects": [*GOOD.effects, ("start", SHOP)]}, "shop runs again, by exactly one start"),
        ({"programs": [*GOOD.programs, "pct unlock 104"]}, "shop was unlocked once"),
        ({"moments": {**GOOD.moments, "archive_ends": 28.5}}, "shop was not touched before"),
        ({"moments": {**GOOD.moments, "backup_ends": 22}}, "web was not touched before its backup had ended"),
        ({"effects": [*GOOD.effects, ("start", LAB)]}, "lab stays down"),
        ({"effects": [*GOOD.effects, ("start", DB)]}, "db was started exactly three times"),
        ({"effects": GOOD.effects[:-1]}, "db was started exactly three times"),
        ({"records": [*GOOD.records, (41.0, {"event": "store_failed", "level": "error"})]}, "a person was called twice"),
        ({"records": [*GOOD.records, GOOD.records[-1]]}, "a person was called twice"),
        ({"effects": [*GOOD.effects, ("destroy", SLOT)]}, "what the restore tests left was torn down"),
        ({"effects": [*GOOD.effects, ("stop", 700)]}, "what the restore tests left was torn down"),
        ({"programs": GOOD.programs[:-1]}, "the grants that PVE deleted"),
        ({"granted": False}, "the grants that PVE deleted"),
        ({"left": ()}, "the volume that was left was named"),
        ({"rest": ("disk-0",)}, "the volume that was left was named"),
        ({"effects": [*GOOD.effects, ("shutdown", MAIL)]}, "mail ran all the time"),
        ({"exit_code": -9}, "the agent ended in good order"),
    ],
)
def test_a_promise_that_is_broken_is_told_and_fails(capsys: pytest.CaptureFixture[str], changed: dict[str, Any], broken: str) -> None:
    seen = dataclasses.replace(GOOD, **changed)
    code = play.say_outcome(play.TextPrinter(), seen, play.Views("", "", "", "", []), 1)
    out = capsys.readouterr().out
    assert code == (1 if broken else 0)
    assert out.count("  NOT  ") == (1 if broken else 0)
    assert f"NOT as promised: {broken}" in out if broken else "NOT" not in out
