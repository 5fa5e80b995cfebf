"""The journal: one valid line an event, whatever is in it and whoever reads it."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections import UserDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guestward.adapters import journal as journal_module
from guestward.adapters.journal import JsonJournal, Redactor, under_systemd
from guestward.model.decision import Guard
from guestward.model.events import Event, EventKind, Level
from guestward.model.guest import GuestId, GuestKind
from guestward.ports import GuestLabel

SECRET = "0123abcd-89ab-4cde-8f01-23456789abcd"
GUEST = GuestLabel(GuestId(GuestKind.LXC, 9201), "web", Guard.BACKUP)


class StoppedClock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.123

    def boottime(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def boot_id(self) -> str:
        return "boot"

    def pause(self, seconds: float) -> None:
        self.now += seconds


class Sink:
    """A journal on text in memory."""

    def __init__(self, level: str = "info", systemd: bool = False, strict: bool = False) -> None:
        self.text = io.StringIO()
        self.clock = StoppedClock()
        self.journal = JsonJournal(self.text, level, self.clock, systemd, strict=strict)

    def lines(self) -> list[dict[str, Any]]:
        assert self.journal.flush(5)
        text = self.text.getvalue()
        assert text.isascii()
        return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.journal.close()


def test_a_line(sink: Sink) -> None:
    sink.journal.emit(Event.START_ATTEMPT, message="starting lxc/9201", guest=GUEST, attempt=1, of=3, cause="", upid=None)
    (line,) = sink.lines()
    assert list(line.items()) == [
        ("ts", "2023-11-14T22:13:20.123Z"),
        ("level", "info"),
        ("event", "start_attempt"),
        ("message", "starting lxc/9201"),
        ("vmid", 9201),
        ("kind", "lxc"),
        ("name", "web"),
        ("guard", "backup"),
        ("attempt", 1),
        ("of", 3),
        ("cause", ""),
        ("upid", None),
    ]


def test_levels_and_priorities() -> None:
    sink = Sink(level="warn", systemd=True)
    sink.journal.emit(Event.SWEEP_RESUMED, message="quiet")
    sink.journal.emit(Event.SWEEP_ABORTED, message="first")
    sink.journal.emit(Event.SWEEP_ABORTED, Level.ERROR, message="third")
    sink.journal.emit(Event.SWEEP_ABORTED, "nonsense", message="fourth")  # type: ignore[arg-type]
    sink.journal.close()
    assert [line[:3] for line in sink.text.getvalue().splitlines()] == ["<4>", "<3>", "<4>"]
    loud = Sink(level="debug", systemd=True)
    loud.journal.emit(Event.SWEEP_RESUMED, message="x")
    loud.journal.close()
    assert loud.text.getvalue().startswith('<6>{"ts": ')


def test_nothing_can_be_overwritten(sink: Sink) -> None:
    odd = {"ts": 0, "lost_lines": 9, "vmid": 1, "name": "x", "levelname": "CRITICAL", "exc_info": True, "msg": {}, "reason": "r"}
    sink.journal.emit(Event.STORE_FAILED, message="m", **odd)  # type: ignore[arg-type]
    kind = EventKind("spoof", (Level.WARN,), ("ts", "level", "event", "name", "vmid"), "")
    sink.journal.emit(kind, message="m", guest=GUEST, **{"ts": 0, "name": "x", "vmid": 1})
    first, second = sink.lines()
    assert first == {
        "ts": "2023-11-14T22:13:20.123Z",
        "level": "error",
        "event": "store_failed",
        "message": "m",
        "reason": "r",
        "extra": {key: value for key, value in odd.items() if key != "reason"},
    }
    assert (second["event"], second["level"], second["name"], second["vmid"]) == ("spoof", "warn", "web", 9201)
    assert second["extra"] == {"ts": 0, "name": "x", "vmid": 1}


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class HostileDict(UserDict[str, object]):
    def __len__(self) -> int:
        raise RuntimeError("no")

    items = __len__  # type: ignore[assignment]


CYCLE: dict[str, Any] = {"a": [1]}
CYCLE["self"] = CYCLE
CYCLE["list"] = [CYCLE]
DEEP: list[Any] = []
for _ in range(10_000):
    DEEP = [DEEP]

WEIRD: list[tuple[object, object]] = [
    (float("nan"), "nan"),
    (float("-inf"), "-inf"),
    (1.5, 1.5),
    (10**30, "a number of 100 bits"),
    (10**5000, "a number of 16610 bits"),
    (True, True),
    (None, None),
    (b"\xff\x00a", "\\xff\x00a"),
    ("\ud800x\udfff", "\ufffdx\ufffd"),
    ("a\nb\x00\x7f\u2028\x1b[31m", "a\nb\x00\x7f\u2028\x1b[31m"),
    ("x" * 10_000_000, "x" * 997 + "..."),
    (ValueError("q"), "ValueError: q"),
    (Hostile(), "<unprintable Hostile>"),
    (HostileDict(), "<unprintable HostileDict>"),
    (KeyError(Hostile()), "<unprintable KeyError>"),
    (Path("/a"), "/a"),
    (GuestId(GuestKind.QEMU, 101), "qemu/101"),
    (Guard.HELD, "held"),
    ((1, (2,)), [1, [2]]),
    ({("a", 1): 1, 2: 3, None: 4, b"k": 5}, {"('a', 1)": 1, "2": 3, "None": 4, "k": 5}),
    ({"k" * 500: 1}, {"k" * 100: 1}),
    (frozenset({3}), [3]),
    (CYCLE, None),
    (DEEP, [[[[[["..."]]]]]]),
    ({1: {2: {3: {4: {5: {6: {7: 8}}}}}}}, {"1": {"2": {"3": {"4": {"5": {"6": "..."}}}}}}),
    ([object] * 100_000, None),
    (["\U0001f600" * 1000] * 2000, None),
    ({str(n): "\U0001f600" * 1000 for n in range(2000)}, None),
    (memoryview(b"x"), None),
    (type, "<class 'type'>"),
]


@pytest.mark.parametrize(("value", "shown"), WEIRD, ids=range(len(WEIRD)))
def test_weird_values(value: object, shown: object, sink: Sink) -> None:
    sink.journal.emit(Event.GIVEN_UP, message="m", guest=GUEST, attempts=3, reason=value)
    sink.journal.emit(Event.GIVEN_UP, message=value, guest=GUEST, attempts=3, x=value)  # type: ignore[arg-type]
    first, second = sink.lines()
    assert (first["level"], first["event"], first["attempts"], second["level"]) == ("error", "given_up", 3, "error")
    assert isinstance(second["message"], str)
    if shown is not None or value is None:
        assert first["reason"] == shown
    assert max(map(len, sink.text.getvalue().splitlines())) <= journal_module.MAX_LINE


def test_long_lists_say_how_much_is_missing(sink: Sink) -> None:
    sink.journal.emit(Event.HEARTBEAT, message="m", left_down=["x"] * 3000, holds={str(n): n for n in range(5)})
    (line,) = sink.lines()
    assert line["left_down"][-1] == "... and 1002 more"
    assert line["holds"] == {"...": "5 more"}


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner) | st.tuples(inner),
    max_leaves=20,
)


@settings(max_examples=25, deadline=None)
@given(
    JSONISH,
    st.text(st.characters()),
    st.dictionaries(st.text().filter(lambda k: k not in ("level", "event", "message", "guest", "self")), JSONISH),
)
def test_any_value_makes_one_valid_line(value: object, text: str, more: dict[str, Any]) -> None:
    sink = Sink()
    label = GuestLabel(GUEST.id, text, text)
    sink.journal.emit(Event.START_RESULT, Level.WARN, message=text, guest=label, **{**more, "reason": value})
    (line,) = sink.lines()
    sink.journal.close()
    assert (line["level"], line["event"], line["vmid"], line["kind"]) == ("warn", "start_result", 9201, "lxc")
    assert line["ts"] == "2023-11-14T22:13:20.123Z"


def test_a_library_that_fails(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink.journal._formatter, "format", lambda record: 1 / 0)
    sink.journal.emit(Event.GIVEN_UP, message="m", guest=GUEST, reason="r")
    (line,) = sink.lines()
    assert (line["event"], line["reason"]) == ("given_up", "r")


def test_what_is_too_large_in_every_size(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_LINE", 130)
    sink.journal.emit(Event.GIVEN_UP, message="m" * 50, guest=GUEST, reason="r" * 60)
    (line,) = sink.lines()
    assert (line["event"], line["level"], line["message"]) == ("given_up", "error", "too large to be written")


def test_a_defect_of_its_own_loses_one_line(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink.journal, "_now", lambda: 1 / 0)
    sink.journal.emit(Event.GIVEN_UP, message="m", guest=GUEST)
    monkeypatch.undo()
    sink.journal.emit(Event.SWEEP_RESUMED, message="m")
    (line,) = sink.lines()
    assert line["lost_lines"] == 1


@pytest.mark.parametrize("wall", [float("nan"), 1e300, -1e300])
def test_a_clock_out_of_its_mind(wall: float, sink: Sink) -> None:
    sink.clock.now = wall
    sink.journal.emit(Event.SWEEP_RESUMED, message="m")
    assert sink.lines()[0]["ts"] == "1970-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("event", "level", "guest", "fields", "words"),
    [
        (Event.STORE_FAILED, None, None, {"file": 1}, "declares no file"),
        (Event.STORE_FAILED, Level.INFO, None, {}, "no level info"),
        (Event.STORE_FAILED, None, GUEST, {}, "has no guest"),
        (Event.GIVEN_UP, None, None, {}, "needs guest"),
    ],
)
def test_strict(event: EventKind, level: Level | None, guest: GuestLabel | None, fields: dict[str, Any], words: str) -> None:
    sink = Sink(strict=True)
    with pytest.raises(ValueError, match=words):
        sink.journal.emit(event, level, message="m", guest=guest, **fields)
    sink.journal.emit(Event.STORE_FAILED, message="m", reason="r")
    assert len(sink.lines()) == 1
    sink.journal.close()


# Secrets


LEAKS = [
    f"PVEAPIToken=guestward@pve!agent={SECRET}",
    f"Authorization: PVEAPIToken=guestward@pve!agent={SECRET}",
    f"{{'Authorization': 'PVEAPIToken=guestward@pve!agent={SECRET}', 'Accept': '*/*'}}",
    f"{{b'authorization': b'PVEAPIToken=guestward@pve!agent={SECRET}'}}",
    f"header Authorization=Bearer {SECRET} was refused",
    f"Cookie PVEAuthCookie=PVE:root@pam:{SECRET}; x",
    f"CSRFPreventionToken: {SECRET}",
    f"token guestward@pve!agent={SECRET} is no good",
    {"Authorization": SECRET, "Password": SECRET, "token_secret": SECRET},
    [{"headers": {"Authorization": ["x", SECRET]}}],
]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("leak", LEAKS, ids=range(len(LEAKS)))
def test_secrets_do_not_get_through(leak: Any, told: bool, sink: Sink) -> None:
    if told:
        sink.journal.protect(SECRET)
    sink.journal.emit(Event.INTERNAL_ERROR, message=leak, where=leak, reason=ValueError(leak), surprise=leak)
    sink.lines()
    assert SECRET not in sink.text.getvalue()
    assert "[redacted]" in sink.text.getvalue()
    if isinstance(leak, dict):
        assert sink.lines()[0]["extra"]["surprise"] == dict.fromkeys(leak, "[redacted]")


def test_a_known_secret_is_found_anywhere(sink: Sink) -> None:
    for secret in (SECRET, "", SECRET, "longer " + SECRET, 'with "quotes"\n'):
        sink.journal.protect(secret)
    name = GuestLabel(GUEST.id, f"a{SECRET}b", SECRET)
    sink.journal.emit(
        Event.GIVEN_UP, message=SECRET * 3, guest=name, reason=b"\xff" + SECRET.encode(), x={SECRET: [SECRET]}, y='with "quotes"\n'
    )
    for length in range(960, 1000):  # half a secret at the cut is one too
        sink.journal.emit(Event.GIVEN_UP, message="x" * length + SECRET, guest=GUEST)
    sink.journal.emit(Event.GIVEN_UP, message="Authorization: " + "x" * 19_960 + "\n" + SECRET + "y" * 100, guest=GUEST)
    sink.lines()
    assert SECRET[:9] not in sink.text.getvalue()
    assert "quotes" not in sink.text.getvalue()
    assert sink.lines()[0]["name"] == "a[redacted]b"


def test_the_redactor_leaves_the_rest_alone() -> None:
    redactor = Redactor()
    for text in ("UPID:pve1:0001:0002:00000003:vzstart:9201:root@pam!x:", "no authorization for that", "a=b", "token of root@pam!agent"):
        assert redactor.text(text) == text
    assert not redactor.is_secret_key("reason")
    assert redactor.longest == 0


# Listeners


def test_listeners_hear_what_is_not_written_too() -> None:
    heard: list[tuple[str, str, Mapping[str, object], GuestLabel | None]] = []
    text = io.StringIO()
    journal = JsonJournal(text, "error", StoppedClock(), False, [lambda e, v, f, g: heard.append((e.name, v, f, g))])
    journal.emit(Event.GUEST_UP, message="m", guest=GUEST, down_s=3)
    assert heard == [("guest_up", "info", {"down_s": 3}, GUEST)]
    journal.close()
    assert text.getvalue() == ""


def test_a_listener_that_fails_is_told_once(sink: Sink) -> None:
    heard = []

    def broken(*_: object) -> None:
        raise RuntimeError(f"PVEAPIToken={SECRET}")

    sink.journal.listen(broken)
    sink.journal.listen(lambda event, *_: heard.append(event.name))
    for _ in range(3):
        sink.journal.emit(Event.SWEEP_RESUMED, message="m")
    assert [line["event"] for line in sink.lines()] == ["sweep_resumed", "internal_error", "sweep_resumed", "sweep_resumed"]
    assert heard == ["sweep_resumed"] * 3
    assert SECRET not in sink.text.getvalue()
    assert "broken" in sink.lines()[1]["where"]


def test_a_listener_that_logs_does_not_hear_itself(sink: Sink) -> None:
    sink.journal.listen(lambda *_: sink.journal.emit(Event.STORE_RESTORED, message="from a listener"))
    sink.journal.emit(Event.SWEEP_RESUMED, message="m")
    assert [line["event"] for line in sink.lines()] == ["sweep_resumed", "store_restored"]


# Readers


class Pipe:
    def __init__(self, blocking: bool = True) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, blocking)
        self.stream: TextIO = os.fdopen(self.writer, "w")
        self.journal = JsonJournal(self.stream, "info", StoppedClock(), False)

    def read_lines(self) -> list[dict[str, Any]]:
        data = b""
        done = threading.Thread(target=self.journal.close, args=(5,))
        done.start()
        done.join()
        self.stream.close()
        while more := os.read(self.reader, 65536):
            data += more
        os.close(self.reader)
        return [json.loads(line) for line in data.decode().splitlines() if line]


@pytest.mark.parametrize("blocking", [True, False])
def test_a_reader_that_does_not_read(blocking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_QUEUED_LINES", 100)
    pipe = Pipe(blocking)
    for number in range(2000):
        pipe.journal.emit(Event.SWEEP_ABORTED, message="x" * 500, aborted_in_a_row=number)
    assert not pipe.journal.flush(0.05)
    data = b""

    def read() -> None:
        nonlocal data
        while more := os.read(pipe.reader, 65536):
            data += more

    reader = threading.Thread(target=read)
    reader.start()
    assert pipe.journal.flush(5)
    pipe.journal.emit(Event.SWEEP_RESUMED, message="back")
    pipe.journal.close(5)
    pipe.stream.close()
    reader.join()
    os.close(pipe.reader)
    lines = [json.loads(line) for line in data.decode().splitlines()]
    lost = sum(line.get("lost_lines", 0) for line in lines)
    assert len(lines) + lost == 2001
    assert lost > 1000
    assert lines[-1]["event"] == "sweep_resumed"


def test_lines_lost_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "MAX_QUEUED_BYTES", 10)
    pipe = Pipe()
    pipe.journal.emit(Event.SWEEP_RESUMED, message="m")
    monkeypatch.undo()
    pipe.journal.emit(Event.SWEEP_RESUMED, message="m")
    (line,) = pipe.read_lines()
    assert line["lost_lines"] == 1


def test_a_reader_that_went_away_and_another_that_came() -> None:
    pipe = Pipe()
    os.close(pipe.reader)
    for _ in range(3):
        pipe.journal.emit(Event.SWEEP_ABORTED, message="EPIPE")
    assert pipe.journal.flush(5)
    pipe.reader, writer = os.pipe()
    os.dup2(writer, pipe.writer)
    os.close(writer)
    pipe.journal.emit(Event.SWEEP_RESUMED, message="m")
    (line,) = pipe.read_lines()
    assert (line["event"], line["lost_lines"]) == ("sweep_resumed", 3)


def test_a_line_that_was_torn_does_not_spoil_the_next() -> None:
    pipe = Pipe(blocking=False)
    room = 65536 - 4096
    os.write(pipe.writer, b" " * room)
    pipe.journal.emit(Event.SWEEP_ABORTED, message="x" * 900, reason=["y" * 900] * 20)
    assert not pipe.journal.flush(0.1)  # the first part is in the pipe
    pipe.journal._writer._closing = True  # gives up on the rest
    assert pipe.journal.flush(5)
    assert len(os.read(pipe.reader, 65536)) > room
    pipe.journal.emit(Event.SWEEP_RESUMED, message="m")
    lines = pipe.read_lines()
    assert [(line["event"], line["lost_lines"]) for line in lines] == [("sweep_resumed", 1)]


def test_a_closed_stream(sink: Sink) -> None:
    stream = open(os.devnull, "w")  # noqa: SIM115
    journal = JsonJournal(stream, "info", StoppedClock(), False)
    stream.close()
    journal.emit(Event.SWEEP_RESUMED, message="m")
    assert journal.flush(5)
    journal.close()


def test_a_full_device() -> None:
    with open("/dev/full", "w", buffering=1) as stream:
        journal = JsonJournal(stream, "info", StoppedClock(), False)
        journal.emit(Event.SWEEP_RESUMED, message="m")
        assert journal.flush(5)
        assert journal._writer._lost == 1
        journal.close()


def test_closing_with_a_reader_that_does_not_read_is_brief() -> None:
    pipe = Pipe(blocking=False)
    for _ in range(500):
        pipe.journal.emit(Event.SWEEP_ABORTED, message="x" * 500)
    pipe.journal.close(0.05)
    thread = pipe.journal._writer._thread
    assert thread is not None
    thread.join(5)
    assert not thread.is_alive()
    pipe.stream.close()
    os.close(pipe.reader)


def test_after_close_it_still_writes(sink: Sink) -> None:
    sink.journal.close()
    sink.journal.emit(Event.SWEEP_RESUMED, message="m")
    assert len(sink.lines()) == 1


def test_no_thread_to_be_had(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sink.journal.emit(Event.SWEEP_ABORTED, message="m")
    sink.journal.close(0.01)
    monkeypatch.undo()
    sink.journal.emit(Event.SWEEP_RESUMED, message="m")
    assert [line["event"] for line in sink.lines()] == ["sweep_aborted", "sweep_resumed"]


def test_lines_are_written_at_exit() -> None:
    code = (
        "import sys\n"
        "from guestward.adapters.journal import JsonJournal\n"
        "from guestward.model.events import Event\n"
        "class Clock:\n    def wall(self): return 0.0\n"
        "journal = JsonJournal(sys.stdout, 'info', Clock(), False)\n"
        "for n in range(50): journal.emit(Event.SWEEP_RESUMED, message=str(n))\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONPATH": path}, timeout=20)
    assert [json.loads(line)["message"] for line in done.stdout.splitlines()] == [str(n) for n in range(50)]


def test_under_systemd(tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as stream:
        status = os.fstat(stream.fileno())
        assert under_systemd(stream, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        assert not under_systemd(stream, {"JOURNAL_STREAM": f"{status.st_dev}:1"})
        assert not under_systemd(stream, {})
    assert not under_systemd(stream, {})
    assert not under_systemd(io.StringIO(), {})


# Libraries


@contextmanager
def captured(sink: Sink) -> Iterator[Sink]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    sink.journal.capture_libraries()
    sink.journal.capture_libraries()
    try:
        yield sink
    finally:
        sink.journal.close()
    assert (root.handlers, root.level) == before


def test_libraries(sink: Sink) -> None:
    with captured(sink):
        sink.journal.protect(SECRET)
        logging.getLogger("urllib3.connectionpool").debug("header Authorization: %s", SECRET)
        logging.getLogger("apscheduler.scheduler").info("Added job")
        logging.getLogger("urllib3.connectionpool").warning("Retrying\n after %s", ConnectionError(f"PVEAPIToken={SECRET}"))
        try:
            raise ValueError("in a job")
        except ValueError:
            logging.getLogger("apscheduler.executors").exception("Job failed")
        logging.getLogger("x").critical("critical", exc_info=(None, None, None))
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        lines = sink.lines()
        assert SECRET not in sink.text.getvalue()
        assert [line["where"] for line in lines] == ["urllib3.connectionpool", "apscheduler.executors", "x", "py.warnings"]
        assert lines[0]["message"] == "urllib3.connectionpool: Retrying after PVEAPIToken=[redacted]"
        assert re.search(r"Job failed \(ValueError: in a job at .*test_journal.py:\d+\)", lines[1]["reason"])
        assert lines[1]["level"] == "error"
        assert {line["event"] for line in lines} == {journal_module._LIBRARY.name}


def test_libraries_that_cannot_be_shown(sink: Sink) -> None:
    with captured(sink):
        logging.getLogger("x").warning("%d", "no number")
        assert sink.lines()[0]["reason"] == "cannot be shown"
        logging.getLogger("x").error("no traceback", exc_info=(ValueError, ValueError("q"), None))
        assert sink.lines()[1]["reason"] == "no traceback (ValueError: q)"


def test_talkative_libraries(sink: Sink) -> None:
    with captured(sink):
        for _ in range(5000):
            logging.getLogger("x").warning("again")
        assert len(sink.lines()) == 10
        sink.clock.now += 600
        logging.getLogger("x").warning("later")
        assert sink.lines()[-1]["message"] == "x: (4990 more were not written) later"
