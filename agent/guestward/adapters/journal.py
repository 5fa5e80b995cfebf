"""Events as JSON, one object a line, on a stream that may be slow, full or gone.

`emit` encodes the line and puts it in a bounded queue; a thread of its own writes it. So nothing that happens to the reader can stop or
delay a sweep. Lines that did not get through are counted, and the next one that does says how many (`lost_lines`).
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import re
import select
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from itertools import islice
from typing import Any, TextIO

from guestward.model.events import Event, EventKind, Level, all_events
from guestward.model.task import bounded
from guestward.ports import Clock, GuestLabel

try:
    from pythonjsonlogger.json import JsonFormatter
except ImportError:  # 2.x, as in Debian 12
    from pythonjsonlogger.jsonlogger import JsonFormatter  # type: ignore[attr-defined]

Listener = Callable[[EventKind, Level, Mapping[str, object], GuestLabel | None], None]

MAX_LINE = 32_768  # journald cuts lines at 48 KiB
MAX_QUEUED_LINES = 2_000
MAX_QUEUED_BYTES = 1_048_576
LIBRARY_LINES = 10
LIBRARY_WINDOW_S = 600.0
_REDACTED = "[redacted]"
_PRIORITY = {Level.INFO: "<6>", Level.WARN: "<4>", Level.ERROR: "<3>"}
_ORDER = {"debug": 0, "info": 0, "warn": 1, "error": 2}
_LEVEL_OF_LOGGING = ((logging.ERROR, Level.ERROR), (logging.WARNING, Level.WARN))
# How much is kept of each text and of how many values, from generous to what fits in a line for certain.
_LIMITS = ((1_000, 2_000), (200, 300), (60, 40))
_LIBRARY = next((kind for kind in all_events() if kind.name == "library"), Event.INTERNAL_ERROR)


class Redactor:
    """Takes secrets out of text: those that it was told, and whatever looks like PVE's credentials."""

    _FORMS = (
        (re.compile(r"(?i)(authorization\W{0,8}?[:=]\s*)[^\r\n]+"), rf"\1{_REDACTED}"),
        (re.compile(r"(![A-Za-z][\w.-]*[=:])[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"), rf"\1{_REDACTED}"),
        (
            re.compile(r"(?i)((?:PVEAPIToken|PVEAuthCookie|CSRFPreventionToken|password|secret)[\"']?\s*[=:]\s*b?[\"']?)[^\s\"',;)}]+"),
            rf"\1{_REDACTED}",
        ),
    )
    _KEYS = re.compile(r"(?i)(authorization|password|secret|cookie|csrfpreventiontoken)")

    def __init__(self) -> None:
        """Know no secret yet."""
        self._secrets: tuple[str, ...] = ()

    def protect(self, secret: str) -> None:
        """Never let this text through. Told twice or empty: nothing changes."""
        if secret and secret not in self._secrets:
            self._secrets = tuple(sorted((*self._secrets, secret), key=len, reverse=True))

    @property
    def longest(self) -> int:
        """Length of the longest secret."""
        return len(self._secrets[0]) if self._secrets else 0

    def text(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, _REDACTED)
        for form, replacement in self._FORMS:
            text = form.sub(replacement, text)
        return text

    def is_secret_key(self, key: str) -> bool:
        """Whether what stands under this key is a secret by its name."""
        return self._KEYS.search(key) is not None


class _Plain:
    """Turns any value into plain JSON values of bounded size. One use a line; never raises."""

    DEPTH = 6
    PRECUT = 20_000

    def __init__(self, redactor: Redactor, text_limit: int, values: int) -> None:
        self._redactor = redactor
        self._limit = text_limit
        self._left = values

    def text(self, text: str) -> str:
        """Redacted before it is cut: half a secret is one too."""
        if len(text) > self.PRECUT:
            text = text[: self.PRECUT]
            text = self._redactor.text(text)[: -max(self._redactor.longest, 1)]
        else:
            text = self._redactor.text(text)
        if len(text) > self._limit:
            text = text[: self._limit - 3] + "..."
        return re.sub("[\ud800-\udfff]", "\ufffd", text)

    def value(self, value: object, depth: int = 0) -> object:
        try:
            return self._value(value, depth)
        except Exception:  # noqa: BLE001 - a value whose own methods fail
            return f"<unprintable {type(value).__name__[:60]}>"

    def _value(self, value: object, depth: int) -> object:
        self._left -= 1
        value = value.value if isinstance(value, Enum) else value
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._sequence(value, depth)
        if value is None or isinstance(value, (bool, int, float)):
            return _number(value)
        return self.text(_shown(value))

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> object:
        found: dict[str, object] = {}
        if depth >= self.DEPTH:
            return "..."
        for number, (key, item) in enumerate(value.items()):
            if self._left <= 0:
                found["..."] = f"{len(value) - number} more"
                break
            name = str(self.value(key if isinstance(key, (str, bytes)) else bounded(key, 60)))
            found[name[:100]] = _REDACTED if self._redactor.is_secret_key(name) else self.value(item, depth + 1)
        return found

    def _sequence(self, value: Collection[Any], depth: int) -> object:
        if depth >= self.DEPTH:
            return "..."
        found: list[object] = []
        for number, item in enumerate(islice(value, max(self._left, 0) + 1)):
            if self._left <= 0:
                found.append(f"... and {len(value) - number} more")
                break
            found.append(self.value(item, depth + 1))
        return found


def _number(value: float | None) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else f"a number of {value.bit_length()} bits"
    return float(value) if math.isfinite(value) else repr(float(value))


def _shown(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value[: _Plain.PRECUT + 1]).decode("utf-8", "backslashreplace")
    return f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else str(value)


class JsonJournal:
    """`ports.Journal` as JSON lines.

    level: the least level that is written ("debug" is as "info": events have no lower one); listeners hear all.
    strict: an event that is not as `model/events.py` declares it raises ValueError. For tests.
    """

    def __init__(
        self,
        stream: TextIO,
        level: str,
        clock: Clock,
        under_systemd: bool,
        listeners: Iterable[Listener] = (),
        *,
        strict: bool = False,
    ) -> None:
        """Nothing is written and no thread started before the first event."""
        self._least = _ORDER[level]
        self._clock = clock
        self._prefixed = under_systemd
        self._listeners = list(listeners)
        self._strict = strict
        self._redactor = Redactor()
        self._formatter = JsonFormatter(
            "%(ts)s %(level)s %(event)s %(message)s", json_ensure_ascii=True, reserved_attrs=list(vars(logging.makeLogRecord({})))
        )
        self._writer = _Writer(stream)
        self._deaf: set[int] = set()
        self._local = threading.local()
        self._libraries: _LibraryHandler | None = None
        atexit.register(self._writer.close)

    def emit(
        self, event: EventKind, level: Level | None = None, *, message: str, guest: GuestLabel | None = None, **fields: object
    ) -> None:
        """Log one event. Never raises (but see strict) and never waits for the reader."""
        level = level if isinstance(level, Level) else event.levels[0]
        if self._strict:
            _check(event, level, guest, fields)
        try:
            if _ORDER[level] >= self._least:
                self._writer.put(self._line(event, level, message, guest, fields))
        except Exception:  # noqa: BLE001 - a defect here must not stop a sweep
            self._writer.count_lost()
        self._tell_listeners(event, level, fields, guest)

    def listen(self, listener: Listener) -> None:
        """Let one more listener hear all events from now on."""
        self._listeners.append(listener)

    def protect(self, secret: str) -> None:
        """Never write this text."""
        self._redactor.protect(secret)

    def capture_libraries(self) -> None:
        """Take over the standard library's logging: what libraries say at WARNING or above becomes an event, all else is silent."""
        if self._libraries is None:
            self._libraries = _LibraryHandler(self, self._clock)
            self._libraries.install()

    def flush(self, timeout: float = 1.0) -> bool:
        """Wait until all lines are written, and say whether they are."""
        return self._writer.flush(timeout)

    def close(self, timeout: float = 1.0) -> None:
        """Write what can be written in this time. Events after it are still taken."""
        if self._libraries is not None:
            self._libraries.uninstall()
            self._libraries = None
        self._writer.close(timeout)
        atexit.unregister(self._writer.close)

    # A line

    def _line(self, event: EventKind, level: Level, message: str, guest: GuestLabel | None, fields: Mapping[str, object]) -> str:
        for text_limit, values in _LIMITS:
            line = self._encoded(self._record(_Plain(self._redactor, text_limit, values), event, level, message, guest, fields))
            if len(line) <= MAX_LINE:
                break
        else:
            line = self._encoded({"ts": self._now(), "level": level.value, "event": event.name, "message": "too large to be written"})
        return (_PRIORITY[level] if self._prefixed else "") + line

    def _record(
        self, plain: _Plain, event: EventKind, level: Level, message: str, guest: GuestLabel | None, fields: Mapping[str, object]
    ) -> dict[str, object]:
        record: dict[str, object] = {"ts": self._now(), "level": level.value, "event": event.name, "message": str(plain.value(message))}
        if guest is not None:
            record |= {
                "vmid": guest.id.vmid,
                "kind": guest.id.kind.value,
                "name": plain.value(guest.name),
                "guard": plain.value(guest.guard),
            }
        known = {name: fields[name] for name in event.fields if name in fields and name not in record}
        extra = {name: value for name, value in fields.items() if name not in known}
        record |= {name: plain.value(value) for name, value in known.items()}
        if extra:
            record["extra"] = plain.value(extra)
        return record

    def _encoded(self, record: dict[str, object]) -> str:
        try:
            return str(self._formatter.format(logging.makeLogRecord({"msg": record})))
        except Exception:  # noqa: BLE001 - whatever the library's version does, the line is written
            return json.dumps(record)

    def _now(self) -> str:
        try:
            moment = datetime.fromtimestamp(self._clock.wall(), UTC)
        except (OverflowError, ValueError, OSError):
            moment = datetime.fromtimestamp(0, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    # Listeners

    def _tell_listeners(self, event: EventKind, level: Level, fields: Mapping[str, object], guest: GuestLabel | None) -> None:
        if getattr(self._local, "telling", False):  # a listener that logs must not hear itself
            return
        self._local.telling = True
        try:
            for listener in self._listeners:
                try:
                    listener(event, level, fields, guest)
                except Exception as error:  # noqa: BLE001 - listeners are not trusted with the sweep
                    self._tell_deaf(listener, error)
        finally:
            self._local.telling = False

    def _tell_deaf(self, listener: Listener, error: Exception) -> None:
        if id(listener) not in self._deaf:
            self._deaf.add(id(listener))
            name = getattr(listener, "__qualname__", type(listener).__name__)
            reason = f"{type(error).__name__}: {_Plain(self._redactor, 200, 10).value(error)}"
            self.emit(Event.INTERNAL_ERROR, message=f"a listener of the log failed; told once: {name}: {reason}", where=name, reason=reason)


def under_systemd(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether this stream goes to journald: systemd says so in JOURNAL_STREAM as `device:inode` (systemd.exec(5))."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _check(event: EventKind, level: Level, guest: GuestLabel | None, fields: Mapping[str, object]) -> None:
    if level not in event.levels:
        raise ValueError(f"{event.name} has no level {level}")
    if event.guest != (guest is not None):
        raise ValueError(f"{event.name} {'needs' if event.guest else 'has no'} guest")
    if unknown := sorted(set(fields) - set(event.fields)):
        raise ValueError(f"{event.name} declares no {', '.join(unknown)}")


class _Writer:
    """A bounded queue and the thread that empties it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._condition = threading.Condition()
        self._queue: deque[str] = deque()
        self._bytes = 0
        self._lost = 0
        self._writing = False
        self._closing = False
        self._torn = False
        self._thread: threading.Thread | None = None

    def put(self, line: str) -> None:
        """Take a line; when the queue is full it is lost and counted."""
        with self._condition:
            if len(self._queue) >= MAX_QUEUED_LINES or self._bytes + len(line) > MAX_QUEUED_BYTES:
                self._lost += 1
                return
            self._queue.append(line)
            self._bytes += len(line)
            self._closing = False
            if self._thread is None or not self._thread.is_alive():  # the first line, or the first after a fork or close
                self._start()
            self._condition.notify_all()

    def count_lost(self) -> None:
        with self._condition:
            self._lost += 1

    def flush(self, timeout: float) -> bool:
        with self._condition:
            return self._condition.wait_for(lambda: not self._queue and not self._writing, timeout)

    def close(self, timeout: float = 1.0) -> None:
        self.flush(timeout)
        with self._condition:
            self._closing = True
            thread = self._thread
            self._condition.notify_all()
        if thread is not None:
            thread.join(min(timeout, 0.2))

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="journal", daemon=True)
        with suppress(RuntimeError):  # no thread to be had: the line waits in the queue for the next one
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while True:
            with self._condition:
                self._writing = False
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                line = self._queue.popleft()
                self._bytes -= len(line)
                self._writing = True
                lost, self._lost = self._lost, 0
            if not self._written(line, lost):
                with self._condition:
                    self._lost += lost + 1

    def _written(self, line: str, lost: int) -> bool:
        if lost:
            line = f'{line[:-1]}, "lost_lines": {lost}}}'
        try:
            self._write(f"\n{line}\n" if self._torn else f"{line}\n")
        except (OSError, ValueError):  # EPIPE, EIO, a closed file
            return False
        return True

    def _write(self, text: str) -> None:
        try:
            descriptor = self._stream.fileno()
        except (OSError, AttributeError):  # not a real file
            self._stream.write(text)
            self._stream.flush()
            return
        data = memoryview(text.encode("ascii"))
        while data:
            try:
                done = os.write(descriptor, data)
            except BlockingIOError:
                self._await_reader(descriptor)
                continue
            data = data[done:]
            self._torn = bool(data)

    def _await_reader(self, descriptor: int) -> None:
        if self._closing:
            raise BrokenPipeError
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        poll.poll(200)


class _LibraryHandler(logging.Handler):
    """What libraries log, as events: a few lines in ten minutes, the others counted."""

    def __init__(self, journal: JsonJournal, clock: Clock) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal
        self._clock = clock
        self._window = -LIBRARY_WINDOW_S
        self._said = 0
        self._unsaid = 0
        self._before: tuple[list[logging.Handler], int] = ([], logging.WARNING)

    def install(self) -> None:
        """Be the only handler of the root logger."""
        root = logging.getLogger()
        self._before = (root.handlers[:], root.level)
        root.handlers[:] = [self]
        root.setLevel(logging.WARNING)
        logging.captureWarnings(True)

    def uninstall(self) -> None:
        """Put back what was there."""
        root = logging.getLogger()
        root.handlers[:], level = self._before
        root.setLevel(level)
        logging.captureWarnings(False)

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises; a log call inside of a log call is dropped with the others that are too many."""
        try:
            if self._may_speak():
                self._tell(record)
        except Exception:  # noqa: BLE001 - %-arguments that do not fit, objects that cannot be shown
            self._say(Level.WARN, f"{record.name}: a message that cannot be shown", record.name, "cannot be shown")

    def _may_speak(self) -> bool:
        now = self._clock.boottime()
        if now - self._window >= LIBRARY_WINDOW_S:
            self._window, self._said = now, 0
        self._said += 1
        if self._said > LIBRARY_LINES:
            self._unsaid += 1
            return False
        return True

    def _tell(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({_at(record.exc_info[1])})"
        reason = " ".join(text.split())
        unsaid, self._unsaid = self._unsaid, 0
        more = f"({unsaid} more were not written) " if unsaid else ""
        level = next((ours for theirs, ours in _LEVEL_OF_LOGGING if record.levelno >= theirs), Level.WARN)
        self._say(level, f"{record.name}: {more}{reason}", record.name, reason)

    def _say(self, level: Level, message: str, where: str, reason: str) -> None:
        self._journal.emit(_LIBRARY, level if level in _LIBRARY.levels else None, message=message, where=where, reason=reason)


def _at(error: BaseException) -> str:
    """The exception and where it came from, in one line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}: {error}{place}"
