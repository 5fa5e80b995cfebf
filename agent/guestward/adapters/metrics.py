"""Metrics for Prometheus: served from the last board and from events heard, with no call to PVE.

Everything is kept in plain numbers and turned into Prometheus' families at a scrape, so a guest that is gone takes its series with it
and all versions of prometheus_client from 0.16 on print the same.
"""

from __future__ import annotations

import errno
import selectors
import socket
import socketserver
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from guestward import __version__
from guestward.model.decision import GateReason, Guard, Outcome
from guestward.model.events import Event, EventKind, Level
from guestward.model.memory import Hold
from guestward.model.scratch import IN_USE
from guestward.model.task import bounded
from guestward.ports import Board, Clock, GuestLabel, Journal, Row

PREFIX = "guestward_"
NODE = "node"
SWEEP_RESULTS = ("complete", "incomplete", "aborted")
SWEEP_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
RECOVERY_BUCKETS = (30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
RETRY_S = 30.0
START_WAIT_S = 1.0
LOOK_S = 1.0
REQUEST_S = 5.0
CONNECTION_S = 15.0
MAX_CONNECTIONS = 8
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class MetricKind:
    """One metric. name: without the prefix."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


METRICS: tuple[MetricKind, ...] = (
    MetricKind("build_info", "gauge", ("version",), "1; the label says which version runs."),
    MetricKind(
        "sweeps_total",
        "counter",
        ("result",),
        "Sweeps by result: complete, incomplete (something could not be read, and what depends on it was left undone), "
        "aborted (nothing was examined).",
    ),
    MetricKind(
        "last_complete_sweep_timestamp_seconds",
        "gauge",
        (),
        "Wall clock time of the last complete sweep; absent before the first. An old value means that guests are not guarded.",
    ),
    MetricKind(
        "sweep_duration_seconds",
        "histogram",
        (),
        "How long sweeps take, whatever their result. A histogram, so that no scrape misses a slow one.",
    ),
    MetricKind(
        "guest_guard",
        "gauge",
        ("id", "guard"),
        "1 for the guard that decides on the guest now; every guest on the board has one, guarded or not.",
    ),
    MetricKind(
        "guest_up", "gauge", ("id",), "Whether the guest runs. Here as below only guests that are guarded: owned, and no templates."
    ),
    MetricKind(
        "start_attempts_total",
        "counter",
        ("id", "outcome"),
        "Attempts to start the guest, by outcome. All outcomes are there from when the guest is first seen down.",
    ),
    MetricKind(
        "guest_given_up", "gauge", ("id",), "1 when all attempts failed and the guest is left down until something changes or `rearm`."
    ),
    MetricKind("guest_locked", "gauge", ("id", "kind"), "1 while the guest has a configuration lock of this kind; else absent."),
    MetricKind(
        "guest_locked_seconds",
        "gauge",
        ("id", "kind"),
        "For how long that lock was seen, up to the last look that saw the guests; it may be older.",
    ),
    MetricKind(
        "guest_lock_verdict",
        "gauge",
        ("id", "verdict"),
        "1 for what lock recovery thinks of the guest's lock, or of the snapshot that vzdump left it (see `guestward locks`); else absent.",
    ),
    MetricKind(
        "scratch_verdict",
        "gauge",
        ("id", "verdict"),
        "1 for what is thought of a guest in the scratch band (see `guestward scratch list`); else absent.",
    ),
    MetricKind(
        "scratch_leftovers",
        "gauge",
        (),
        "Guests in the scratch band that are not known to be in use, whether they will be torn down or a person has to look at them.",
    ),
    MetricKind(
        "guest_not_working", "gauge", ("id", "state"), "1 while the guest runs but does not work (paused, io-error ...); else absent."
    ),
    MetricKind("recovery_seconds", "histogram", (), "From seen stopped to verified running, for guests that Guestward started."),
    MetricKind("hold_active", "gauge", ("id",), 'Whether a hold is in force. id="node" is always there; a guest only while it is held.'),
    MetricKind("host_gate", "gauge", ("reason",), "1 for each reason for which nothing is started now; all reasons are always there."),
    MetricKind("permission_ok", "gauge", ("path", "privilege"), "Whether the API token has a privilege that it needs."),
)
_HELP = {kind.name: kind.help for kind in METRICS}


class _Histogram:
    """Counts of observations in buckets."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str) -> Metric:
        buckets, total = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(PREFIX + name, _HELP[name], buckets=buckets, sum_value=self._sum)


Expose = Callable[[str], tuple[str, bytes]]


class Metrics:
    """What Prometheus is told. Fed by the daemon (`show`, `swept`) and by the journal (`hear`); read by scrapes in other threads."""

    def __init__(self) -> None:
        """Make the registry; it has this collector and nothing else."""
        self._lock = threading.Lock()
        self._board: Board | None = None
        self._held: frozenset[str] = frozenset()
        self._sweeps = dict.fromkeys(SWEEP_RESULTS, 0)
        self._durations = _Histogram(SWEEP_BUCKETS)
        self._recoveries = _Histogram(RECOVERY_BUCKETS)
        self._attempts: dict[tuple[str, str], int] = {}
        self._exposed: dict[str, bytes] = {}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    # Feeding

    def show(self, board: Board, holds: Iterable[Hold] = ()) -> None:
        """Serve this board from now on. holds: those in force."""
        here = {str(row.decision.id) for row in board.rows}
        with self._lock:
            self._exposed = {}
            self._board = board
            self._held = frozenset(_held(board, holds))
            self._attempts = {key: count for key, count in self._attempts.items() if key[0] in here}
            for row in board.rows:
                if _guarded(row) and not row.running:
                    for outcome in Outcome:
                        self._attempts.setdefault((str(row.decision.id), outcome.value), 0)

    def swept(self, result: str, seconds: float) -> None:
        """Count one sweep. result: one of SWEEP_RESULTS."""
        with self._lock:
            self._exposed = {}
            self._sweeps[result] = self._sweeps.get(result, 0) + 1
            self._durations.observe(seconds)

    def hear(self, event: EventKind, level: Level, fields: Mapping[str, object], guest: GuestLabel | None) -> None:
        """A listener for the journal: counts the results of starts."""
        if event is not Event.START_RESULT or guest is None:
            return
        outcome, down = str(fields.get("outcome")), fields.get("down_s")
        with self._lock:
            self._exposed = {}
            key = (str(guest.id), outcome)
            self._attempts[key] = self._attempts.get(key, 0) + 1
            if outcome == Outcome.STARTED and isinstance(down, (int, float)) and down >= 0:
                self._recoveries.observe(float(down))

    # Being read

    def expose(self, accept: str) -> tuple[str, bytes]:
        """Content type and text for a scrape with this Accept header. Made once for each thing that was fed, however often it is asked."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version in it that is no number
            encode, content_type = choose_encoder("")
        made = self._exposed  # feeding puts a new one in its place, so that nothing older than the feed can be found there
        if content_type not in made:
            made[content_type] = encode(self.registry)
        return content_type, made[content_type]

    def collect(self) -> Iterable[Metric]:
        """All families in the order of METRICS. Called by prometheus_client."""
        with self._lock:
            made = {name: family for name, family in self._families()}
        return [made[kind.name] for kind in METRICS if kind.name in made]

    def _families(self) -> Iterator[tuple[str, Metric]]:
        yield _gauge("build_info", ("version",), [((__version__,), 1)])
        yield _counter("sweeps_total", ("result",), [((result,), count) for result, count in self._sweeps.items()])
        yield "sweep_duration_seconds", self._durations.family("sweep_duration_seconds")
        yield "recovery_seconds", self._recoveries.family("recovery_seconds")
        yield _counter("start_attempts_total", ("id", "outcome"), sorted(self._attempts.items()))
        if self._board is not None:
            yield from _of_board(self._board, self._held)


def _of_board(board: Board, held: frozenset[str]) -> Iterator[tuple[str, Metric]]:
    owned = [row for row in board.rows if _guarded(row)]
    if board.last_complete_wall is not None:
        yield _gauge("last_complete_sweep_timestamp_seconds", (), [((), board.last_complete_wall)])
    yield _gauge("guest_guard", ("id", "guard"), [((_id(row), row.decision.guard.value), 1) for row in board.rows])
    yield _gauge("guest_up", ("id",), [((_id(row),), row.running) for row in owned])
    yield _gauge("guest_given_up", ("id",), [((_id(row),), row.given_up) for row in owned])
    yield _gauge("guest_locked", ("id", "kind"), [((_id(row), row.lock), 1) for row in owned if row.lock])
    seen_at = board.at if board.seen_at is None else board.seen_at  # a look that saw nothing has not seen a lock for longer
    ages = [((str(lock.id), lock.kind), max(0.0, seen_at - lock.since)) for lock in board.locks if lock.kind]
    yield _gauge("guest_locked_seconds", ("id", "kind"), ages)
    yield _gauge("guest_lock_verdict", ("id", "verdict"), [((str(lock.id), lock.verdict.value), 1) for lock in board.locks])
    yield _gauge("guest_not_working", ("id", "state"), [((_id(row), row.not_working), 1) for row in owned if row.not_working])
    yield _gauge("hold_active", ("id",), [((NODE,), NODE in held), *(((name,), 1) for name in sorted(held - {NODE}))])
    closed = {closure.reason for closure in board.gate.closures}
    yield _gauge("host_gate", ("reason",), [((reason.value,), reason in closed) for reason in GateReason])
    yield _gauge("scratch_verdict", ("id", "verdict"), [((str(found.id), found.verdict.value), 1) for found in board.scratch])
    if board.seen_at is not None:  # before the first look nobody knows that there are none
        yield _gauge("scratch_leftovers", (), [((), sum(found.verdict not in IN_USE for found in board.scratch))])
    yield _gauge("permission_ok", ("path", "privilege"), _permissions(board))


def _permissions(board: Board) -> list[tuple[tuple[str, str], bool]]:
    """The board has them as `PRIVILEGE on PATH`."""
    lost = set(board.lost)
    found = []
    for text in dict.fromkeys((*board.required, *board.lost)):
        privilege, _, path = text.partition(" on ")
        found.append(((path, privilege), text not in lost))
    return found


def _held(board: Board, holds: Iterable[Hold]) -> Iterator[str]:
    ids = {row.decision.id.vmid: _id(row) for row in board.rows}
    if any(closure.reason is GateReason.HOLD for closure in board.gate.closures):
        yield NODE
    yield from (_id(row) for row in board.rows if row.decision.guard is Guard.HELD)
    for hold in holds:
        if hold.vmid is None:
            yield NODE
        elif hold.vmid in ids:
            yield ids[hold.vmid]


def _guarded(row: Row) -> bool:
    """Owned guests that could run: what is said of others would only raise false alarms."""
    return row.owned and row.decision.guard is not Guard.TEMPLATE


def _id(row: Row) -> str:
    return str(row.decision.id)


_Samples = Iterable[tuple[tuple[str | None, ...], float]]


def _gauge(name: str, labels: tuple[str, ...], samples: _Samples) -> tuple[str, Metric]:
    return name, _filled(GaugeMetricFamily(PREFIX + name, _HELP[name], labels=labels), samples)


def _counter(name: str, labels: tuple[str, ...], samples: _Samples) -> tuple[str, Metric]:
    return name, _filled(CounterMetricFamily(PREFIX + name.removesuffix("_total"), _HELP[name], labels=labels), samples)


def _filled(family: Any, samples: _Samples) -> Metric:
    for values, value in samples:
        family.add_metric([bounded(text, 200) for text in values], float(value))
    return family  # type: ignore[no-any-return]


class MetricsServer:
    """Serves `/metrics`. Whatever fails is told once and tried again; the daemon calls `tick` now and then."""

    def __init__(self, listen: str, expose: Expose, journal: Journal, clock: Clock) -> None:
        """listen: `ADDRESS:PORT`, an IPv6 address in brackets. Nothing is opened before `start`."""
        host, _, port = listen.rpartition(":")
        self._listen = listen
        self._where = (host.strip("[]"), int(port))
        self._expose, self._journal, self._clock = expose, journal, clock
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._told = False
        self._told_defect = False
        self._next_try = 0.0

    @property
    def address(self) -> tuple[str, int] | None:
        """Address and port that are served, or None."""
        server = self._server
        return (str(server.server_address[0]), int(server.server_address[1])) if server is not None else None

    def start(self) -> None:
        """Begin to serve. Waits a second at most: a name that cannot be resolved now goes on being looked up in the background."""
        self._wanted = True
        self._next_try = self._clock.boottime() + RETRY_S
        settled = threading.Event()
        thread = threading.Thread(target=self._run, args=(settled,), name="metrics", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread to be had
            self._fail(str(error))
            return
        self._thread = thread
        settled.wait(START_WAIT_S)

    def tick(self) -> None:
        """Try again when it is time. Never raises."""
        running = self._thread is not None and self._thread.is_alive()
        if self._wanted and not running and self._clock.boottime() >= self._next_try:
            self.start()

    def stop(self) -> None:
        """Free the port."""
        self._wanted = False
        server, thread = self._server, self._thread
        if server is not None:
            server.stop()
        if thread is not None:
            thread.join(2.0)

    def _run(self, settled: threading.Event) -> None:
        try:
            with _bound(self._where, self._expose, self._clock, self._tell_defect) as server:
                self._server = server
                self._tell_restored()
                settled.set()
                if self._wanted:  # or `stop` came while the name was looked up
                    server.serve()
        except OSError as error:
            self._fail(error.strerror or str(error))
        except Exception as error:  # noqa: BLE001 - metrics never end the daemon
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._server = None
            settled.set()

    def _fail(self, reason: str) -> None:
        if not self._told:
            self._told = True
            reason = bounded(reason)
            self._journal.emit(
                Event.METRICS_FAILED,
                message=f"metrics cannot be served on {self._listen}: {reason}; guests are guarded as before; tried again every "
                f"{RETRY_S:.0f} s; see who has the port (`ss -ltnp`) or change [metrics] listen",
                listen=self._listen,
                reason=reason,
            )

    def _tell_restored(self) -> None:
        if self._told:
            self._told = False
            self._journal.emit(Event.METRICS_RESTORED, message=f"metrics are served on {self._listen}", listen=self._listen)

    def _tell_defect(self, error: Exception) -> None:
        if not self._told_defect:
            self._told_defect = True
            reason = bounded(f"{type(error).__name__}: {error}")
            self._journal.emit(Event.INTERNAL_ERROR, message=f"a scrape failed; told once: {reason}", where="metrics", reason=reason)


def _bound(where: tuple[str, int], expose: Expose, clock: Clock, tell: Callable[[Exception], None]) -> _Server:
    family, _, _, _, address = socket.getaddrinfo(*where, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return _Server(family, (str(address[0]), int(address[1])), expose, clock, tell)


class _Server(ThreadingHTTPServer):
    """A few connections at a time, each for a short time."""

    daemon_threads = True
    allow_reuse_address = True
    timeout = 0

    def __init__(
        self,
        family: int,
        address: tuple[str, int],
        expose: Expose,
        clock: Clock,
        tell: Callable[[Exception], None],
    ) -> None:
        self.address_family = socket.AddressFamily(family)
        self.expose, self.tell = expose, tell
        self._clock = clock
        self._connections: dict[socket.socket, float] = {}
        self._guard = threading.Lock()
        self._stopping = threading.Event()
        self._wake, self._waker = socket.socketpair()
        super().__init__(address, _Handler)  # closes itself when it fails
        self.socket.setblocking(False)

    def server_bind(self) -> None:
        """As TCPServer does; HTTPServer would look up our name in the DNS."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def server_close(self) -> None:
        super().server_close()
        self._wake.close()
        self._waker.close()

    def serve(self) -> None:
        """Until `stop`. Sleeps while nobody is connected."""
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while not self._stopping.is_set():
                selector.select(LOOK_S if self._connections else None)
                self.handle_request()
                self.end_old()

    def stop(self) -> None:
        self._stopping.set()
        with suppress(OSError):
            self._waker.send(b"x")

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_ROOM:  # it stays readable: do not turn round and round
                self._stopping.wait(0.5)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            full = len(self._connections) >= MAX_CONNECTIONS
            if not full:
                self._connections[request] = self._clock.boottime()
        if full:
            request.setblocking(False)
            with suppress(OSError):
                request.send(b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain\r\n\r\ntoo many connections\n")
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def end_old(self) -> None:
        """End the connections of those who ask or read too slowly."""
        limit = self._clock.boottime() - CONNECTION_S
        with self._guard:
            old = [request for request, since in self._connections.items() if since <= limit]
        for request in old:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's business."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server: _Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/":
            self._plain(HTTPStatus.OK, "Guestward: the metrics are at /metrics")
        else:
            self._plain(HTTPStatus.NOT_FOUND, "There is nothing here; the metrics are at /metrics")

    do_HEAD = do_GET

    def _metrics(self) -> None:
        try:
            content_type, body = self.server.expose(self.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001 - a defect is told, and the server lives on
            self.server.tell(error)
            self._plain(HTTPStatus.INTERNAL_SERVER_ERROR, "The metrics could not be put together; see the log")
            return
        self._answer(HTTPStatus.OK, content_type, body)

    def _plain(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Plain text instead of a page. A method that is not GET or HEAD ends here too."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self.close_connection = True
        self._plain(status, f"{status.phrase}; only GET and HEAD of /metrics are served")

    def version_string(self) -> str:
        """Without the version of Python."""
        return f"guestward/{__version__}"

    def log_message(self, *_: Any) -> None:
        """Scrapes are not logged."""
