"""The metrics: what Prometheus sees, and that serving it can hurt nobody."""

from __future__ import annotations

import gc
import os
import re
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from guestward import __version__
from guestward.adapters import metrics as metrics_module
from guestward.adapters.metrics import METRICS, PREFIX, SWEEP_RESULTS, Metrics, MetricsServer
from guestward.model.decision import Closure, Decision, Gate, GateReason, Guard, Outcome
from guestward.model.events import Event, EventKind, Level
from guestward.model.guest import GuestId, GuestKind
from guestward.model.locks import LockDecision, LockVerdict
from guestward.model.memory import Hold
from guestward.model.scratch import ScratchDecision, ScratchVerdict
from guestward.policy import rights
from guestward.ports import Board, GuestLabel, Row
from tests.unit.build import simulation

GOLDEN = Path(__file__).parent / "golden" / "metrics.txt"


class StoppedClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def boottime(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def boot_id(self) -> str:
        return "boot"

    def pause(self, seconds: float) -> None:
        self.now += seconds


class Ears:
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.changed = threading.Condition()

    def emit(
        self, event: EventKind, level: Level | None = None, *, message: str, guest: GuestLabel | None = None, **fields: object
    ) -> None:
        assert set(fields) <= set(event.fields)
        with self.changed:
            self.heard.append((event.name, message))
            self.changed.notify_all()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.heard]


def row(vmid: int, guard: Guard, *, kind: GuestKind = GuestKind.LXC, running: bool = False, owned: bool = True, **more: Any) -> Row:
    decision = Decision(GuestId(kind, vmid), f"guest-{vmid}", guard, "", ())
    return Row(
        decision,
        running,
        owned,
        attempts=more.get("attempts", 0),
        down_since=None,
        given_up=more.get("given_up", False),
        not_working=more.get("not_working", ""),
        lock=more.get("lock"),
    )


ROWS = (
    row(101, Guard.RUNNING, running=True),
    row(102, Guard.EXHAUSTED, given_up=True, attempts=3),
    row(103, Guard.RUNNING, kind=GuestKind.QEMU, running=True, not_working="io-error"),
    row(104, Guard.LOCKED, lock='back"up\n\ud800'),
    row(105, Guard.TEMPLATE, kind=GuestKind.QEMU),
    row(106, Guard.NOT_OWNED, owned=False, lock="backup"),
    row(107, Guard.HELD),
)
BOARD = Board(
    node="pve1",
    boot_id="boot",
    at=1.0,
    wall=2.0,
    seen_at=1.0,
    seen_wall=2.0,
    sweeps=10,
    gate=Gate((Closure(GateReason.MASS_STOP, "3 guests"), Closure(GateReason.BOOTING, "x"))),
    rows=ROWS,
    last_complete_wall=1_700_000_000.5,
    required=("VM.Audit on /pool/guestward", "Sys.Audit on /nodes/pve1"),
    lost=("Sys.Audit on /nodes/pve1", "VM.PowerMgmt on /pool/guestward"),
    scratch=(ScratchDecision(GuestId(GuestKind.LXC, 990003), "x", ScratchVerdict.UNPROVEN, ""),),
)


def hold(vmid: int | None) -> Hold:
    return Hold(vmid, "r", "root", 1.0, "boot", 1.0, 1.0)


def result(vmid: int, outcome: object, down: object = None) -> tuple[EventKind, Level, dict[str, object], GuestLabel]:
    label = GuestLabel(GuestId(GuestKind.LXC, vmid), "x", Guard.START)
    return Event.START_RESULT, Level.INFO, {"outcome": outcome, "down_s": down}, label


def full() -> Metrics:
    metrics = Metrics()
    metrics.show(BOARD, [hold(101), hold(999)])
    metrics.hear(*result(102, Outcome.FAILED))
    metrics.hear(*result(102, "failed"))
    metrics.hear(*result(101, Outcome.STARTED, 95.0))
    metrics.hear(*result(101, Outcome.STARTED, 45))
    metrics.swept("complete", 0.2)
    metrics.swept("complete", 0.3)
    metrics.swept("aborted", 70.0)
    return metrics


def text_of(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def samples(metrics: Metrics) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text_of(metrics)):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name.removeprefix(PREFIX)}{{{labels}}}"] = sample.value
    return found


# What is said


def test_golden() -> None:
    """After a wanted change: GUESTWARD_GOLDEN=write pytest tests/unit/test_metrics.py."""
    text = text_of(full()).replace(f'"{__version__}"', '"VERSION"')
    if os.environ.get("GUESTWARD_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_every_metric_is_in_the_table_and_the_other_way_round() -> None:
    families = {family.name: family for family in full().collect()}
    assert len(families) == len(METRICS)
    for kind in METRICS:
        family = families[PREFIX + kind.name.removesuffix("_total")]
        assert re.fullmatch(r"[a-z_]+", kind.name)
        assert kind.help.endswith(".")
        assert (family.type, family.documentation) == (kind.type, kind.help)
        assert kind.name.endswith("_total") == (kind.type == "counter")
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(kind.labels)


def test_before_the_first_look() -> None:
    found = samples(Metrics())
    assert {name: found[f"sweeps_total{{result={name}}}"] for name in SWEEP_RESULTS} == dict.fromkeys(SWEEP_RESULTS, 0.0)
    assert found[f"build_info{{version={__version__}}}"] == 1
    assert not [name for name in found if name.startswith(("guest_", "last_", "host_", "hold_", "permission_"))]


def test_no_complete_sweep_yet() -> None:
    metrics = Metrics()
    metrics.show(replace(BOARD, last_complete_wall=None))
    assert "last_complete_sweep_timestamp_seconds{}" not in samples(metrics)


def test_guests_that_are_gone_disappear() -> None:
    metrics = full()
    metrics.show(replace(BOARD, rows=ROWS[:1]))
    assert [name for name in samples(metrics) if "id=lxc/102" in name] == []
    assert samples(metrics)["start_attempts_total{id=lxc/101,outcome=started}"] == 2
    metrics.show(replace(BOARD, rows=(), scratch=()))
    assert [name for name in samples(metrics) if "id=" in name] == ["hold_active{id=node}"]


def test_locks_and_what_is_thought_of_them() -> None:
    stale = LockDecision(GuestId(GuestKind.LXC, 104), "shop", "backup", LockVerdict.STALE, "", (), since=30.0)
    left = LockDecision(GuestId(GuestKind.LXC, 101), "web", "", LockVerdict.UNCONFIRMED, "", (), since=40.0)
    board = replace(BOARD, at=100.0, seen_at=100.0, rows=(ROWS[0], row(104, Guard.LOCKED, lock="backup")), locks=(stale, left))

    def of_locks(board: Board) -> dict[str, float]:
        metrics.show(board)
        return {name: value for name, value in samples(metrics).items() if name.startswith(("guest_locked", "guest_lock_"))}

    metrics = Metrics()
    seen = {
        "guest_locked{id=lxc/104,kind=backup}": 1.0,
        "guest_locked_seconds{id=lxc/104,kind=backup}": 70.0,
        "guest_lock_verdict{id=lxc/104,verdict=stale}": 1.0,
        "guest_lock_verdict{id=lxc/101,verdict=unconfirmed}": 1.0,
    }
    assert of_locks(board) == seen
    assert of_locks(replace(board, at=1000.0, aborted="no answer")) == seen, "no lock grows older by not being seen"
    assert of_locks(replace(board, seen_at=None))["guest_locked_seconds{id=lxc/104,kind=backup}"] == 70.0
    assert of_locks(replace(board, rows=ROWS[:1], locks=())) == {}, "what was cleared takes its series with it"


def scratch(vmid: int, verdict: ScratchVerdict, kind: GuestKind = GuestKind.LXC) -> ScratchDecision:
    return ScratchDecision(GuestId(kind, vmid), "x", verdict, "")


def of_scratch(board: Board) -> dict[str, float]:
    metrics = Metrics()
    metrics.show(board)
    return {name: value for name, value in samples(metrics).items() if name.startswith("scratch_")}


def test_scratch_guests() -> None:
    found = (scratch(990003, ScratchVerdict.LEFTOVER), scratch(990004, ScratchVerdict.CLAIMED, GuestKind.QEMU))
    seen = {
        "scratch_verdict{id=lxc/990003,verdict=leftover}": 1.0,
        "scratch_verdict{id=qemu/990004,verdict=claimed}": 1.0,
        "scratch_leftovers{}": 1.0,
    }
    assert of_scratch(replace(BOARD, scratch=found)) == seen
    assert of_scratch(replace(BOARD, scratch=found, aborted="no answer")) == seen, "the last look goes on"
    assert of_scratch(replace(BOARD, scratch=())) == {"scratch_leftovers{}": 0.0}, "what is gone takes its series with it"


def test_nobody_knows_of_leftovers_before_the_first_look() -> None:
    assert of_scratch(replace(BOARD, seen_at=None, seen_wall=None, rows=(), scratch=(), aborted="no answer")) == {}


@pytest.mark.parametrize("verdict", ScratchVerdict)
def test_what_counts_as_left_over(verdict: ScratchVerdict) -> None:
    """All but what somebody works with: what stays for ever, too, takes up a VMID of the band until a person comes."""
    used = verdict in (ScratchVerdict.TASK, ScratchVerdict.CLAIMED, ScratchVerdict.HELD, ScratchVerdict.YOUNG)
    assert of_scratch(replace(BOARD, scratch=(scratch(990003, verdict),)))["scratch_leftovers{}"] == (not used)


def test_every_grant_of_the_band_is_shown() -> None:
    of_band = rights.of_band(990000, 990009)
    lost = ("VM.Allocate on /vms/990003", "VM.Audit on /vms/990003")
    metrics = Metrics()
    metrics.show(replace(BOARD, required=tuple(map(str, of_band)), lost=lost))
    found = {name: value for name, value in samples(metrics).items() if name.startswith("permission_ok")}
    assert found == {
        f"permission_ok{{path=/vms/{vmid},privilege={privilege}}}": not (vmid == 990003 and privilege in ("VM.Allocate", "VM.Audit"))
        for vmid in range(990000, 990010)
        for privilege in rights.SCRATCH
    }
    metrics.show(replace(BOARD, required=tuple(map(str, of_band)), lost=()))
    assert samples(metrics)["permission_ok{path=/vms/990003,privilege=VM.Allocate}"] == 1


def test_the_agent_shows_what_became_of_the_band() -> None:
    """By the real agent, in virtual time: a leftover, and what is seen of it and its grants before and after."""
    sim = simulation()
    sim.world.add(990003, pool=None, running=False, tags="guestward-scratch")
    sim.run(1)
    first = sim.store.board
    assert first is not None and of_scratch(first)["scratch_leftovers{}"] == 1
    sim.run(400)
    last = sim.store.board
    assert last is not None and 990003 not in sim.world.guests
    assert of_scratch(last) == {"scratch_leftovers{}": 0.0}
    assert {f"{privilege} on /vms/990003" for privilege in rights.SCRATCH} <= set(last.required) - set(last.lost)


def test_counters_begin_at_zero_when_a_guest_is_seen_down() -> None:
    metrics = Metrics()
    metrics.show(replace(BOARD, rows=(row(101, Guard.RUNNING, running=True), row(102, Guard.UNCONFIRMED))))
    assert {name for name in samples(metrics) if name.startswith("start_attempts")} == {
        f"start_attempts_total{{id=lxc/102,outcome={outcome}}}" for outcome in Outcome
    }


def test_results_are_counted_before_the_board_shows_the_guest() -> None:
    metrics = Metrics()
    metrics.hear(*result(101, Outcome.UNKNOWN))
    assert samples(metrics)["start_attempts_total{id=lxc/101,outcome=unknown}"] == 1


@pytest.mark.parametrize("down", [None, "x", -1, float("nan")])
def test_a_recovery_without_a_time_is_no_recovery(down: object) -> None:
    metrics = Metrics()
    metrics.hear(*result(101, Outcome.STARTED, down))
    metrics.hear(*result(101, Outcome.FAILED, 50.0))
    metrics.hear(Event.GUEST_UP, Level.INFO, {"down_s": 5, "outcome": "started"}, result(101, "")[3])
    metrics.hear(Event.START_RESULT, Level.INFO, {"down_s": 5, "outcome": "started"}, None)
    assert samples(metrics)["recovery_seconds_count{}"] == 0


def test_holds() -> None:
    def active(board: Board, *holds: Hold) -> dict[str, float]:
        metrics = Metrics()
        metrics.show(board, holds)
        return {name: value for name, value in samples(metrics).items() if name.startswith("hold_active")}

    quiet = replace(BOARD, gate=Gate(), rows=ROWS[:2])
    assert active(quiet) == {"hold_active{id=node}": 0}
    assert active(quiet, hold(None), hold(101)) == {"hold_active{id=node}": 1, "hold_active{id=lxc/101}": 1}
    by_file = replace(quiet, gate=Gate((Closure(GateReason.HOLD, "the file"),)))
    assert active(by_file) == {"hold_active{id=node}": 1}
    assert active(replace(quiet, rows=ROWS)) == {"hold_active{id=node}": 0, "hold_active{id=lxc/107}": 1}


def test_1000_guests_are_served_in_time() -> None:
    metrics = Metrics()
    metrics.show(replace(BOARD, rows=tuple(row(1000 + n, Guard.BACKOFF) for n in range(1000))))
    assert text_of(metrics).count("\n") > 8000


# Serving


class Served:
    """A server on a free port."""

    def __init__(self, listen: str = "127.0.0.1:0") -> None:
        self.metrics = full()
        self.ears = Ears()
        self.clock = StoppedClock()
        self.server = MetricsServer(listen, self.metrics.expose, self.ears, self.clock)

    def start(self) -> Served:
        self.server.start()
        return self

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, str]:
        assert self.server.address is not None
        connection = HTTPConnection(*self.server.address, timeout=5)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer, answer.read().decode()
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        assert self.server.address is not None
        return socket.create_connection(self.server.address, timeout=5)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(metrics_module, "LOOK_S", 0.02)
    made = Served().start()
    yield made
    made.server.stop()


def test_metrics_are_served(served: Served) -> None:
    answer, text = served.ask("/metrics?x=1")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert text == text_of(served.metrics)
    assert answer.headers["Server"] == f"guestward/{__version__}"
    answer, text = served.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/", 200, "the metrics are at /metrics"),
        ("GET", "/favicon.ico", 404, "There is nothing here; the metrics are at /metrics"),
        ("GET", "/metrics/", 404, "There is nothing here"),
        ("POST", "/metrics", 405, "only GET and HEAD"),
        ("OPTIONS", "/metrics", 405, "only GET and HEAD"),
        ("HEAD", "/metrics", 200, ""),
        ("HEAD", "/x", 404, ""),
    ],
)
def test_other_requests(method: str, path: str, status: int, words: str, served: Served) -> None:
    answer, text = served.ask(path, method)
    assert answer.status == status
    assert words in text if words else text == ""
    assert int(answer.headers["Content-Length"]) > 10
    assert answer.headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize(
    "request_", [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"x" * 70_000 + b" HTTP/1.0\r\n\r\n", b"\r\n", b""]
)
def test_nonsense(request_: bytes, served: Served) -> None:
    with served.connect() as client:
        client.sendall(request_)
        client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while client.recv(65536):
                pass
    assert served.ask("/metrics")[0].status == 200
    assert served.ears.heard == []


def test_a_client_that_goes_away(served: Served) -> None:
    with served.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert served.ask("/metrics")[0].status == 200


def test_ipv6() -> None:
    made = Served("[::1]:0").start()
    if made.ears.heard:
        pytest.skip("no IPv6 here")
    assert made.server.address is not None
    assert made.server.address[0] == "::1"
    assert made.ask("/metrics")[0].status == 200
    made.server.stop()


def test_stop_frees_the_port(served: Served) -> None:
    where = served.server.address
    assert where is not None
    served.server.stop()
    served.server.stop()
    assert served.server.address is None
    served.clock.pause(100)
    served.server.tick()
    assert served.server.address is None
    with socket.create_server(where):
        pass
    assert served.ears.heard == []


def taken_port() -> socket.socket:
    """A listening socket on a port below those that the kernel gives to clients: nobody else takes it when it is free again."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    raise AssertionError("no port is free")


def test_a_taken_port() -> None:
    with taken_port() as other:
        made = Served(f"127.0.0.1:{other.getsockname()[1]}").start()
        for _ in range(5):
            made.clock.pause(31)
            made.server.tick()
        assert made.server.address is None
        assert made.ears.names == ["metrics_failed"]
        assert "Address already in use; guests are guarded as before; tried again every 30 s" in made.ears.heard[0][1]
    made.clock.pause(29)
    made.server.tick()
    assert made.server.address is None
    for _ in range(200):  # on a busy machine the serving thread needs a moment
        made.clock.pause(31)
        made.server.tick()
        if "metrics_restored" in made.ears.names:
            break
        assert made.server._thread is not None
        made.server._thread.join(0.05)
    assert made.ears.names == ["metrics_failed", "metrics_restored"]
    assert made.ask("/metrics")[0].status == 200
    made.server.tick()
    made.server.stop()


@pytest.mark.parametrize("listen", ["192.0.2.7:0", "[2001:db8::7]:0", "no-such-host.invalid:0"])
def test_an_address_that_is_not_there(listen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def no_dns(host: str, *args: Any, **kwargs: Any) -> Any:
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", no_dns)
    made = Served(listen).start()
    made.server.tick()
    assert made.ears.names == ["metrics_failed"]
    made.server.stop()


def test_a_name_that_takes_long_delays_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = threading.Event()
    real = socket.getaddrinfo

    def slow(*args: Any, **kwargs: Any) -> Any:
        resolved.wait(10)
        return real("127.0.0.1", 0)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(metrics_module, "START_WAIT_S", 0.02)
    made = Served("slow.example:0").start()
    assert made.server.address is None
    made.clock.pause(100)
    made.server.tick()  # one look-up at a time
    assert threading.active_count() < 20
    resolved.set()
    thread = made.server._thread
    assert thread is not None
    made.server.stop()
    thread.join(5)
    assert not thread.is_alive()
    assert made.ears.heard == []


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made = Served()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    made.start()
    assert made.ears.names == ["metrics_failed"]
    monkeypatch.undo()
    made.clock.pause(31)
    made.server.tick()
    assert made.ears.names == ["metrics_failed", "metrics_restored"]
    assert made.ask("/")[0].status == 200
    made.server.stop()


def test_a_defect_in_the_server_is_told_and_it_comes_back(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = served.server._thread
    assert thread is not None
    monkeypatch.setattr(metrics_module._Server, "end_old", lambda _: 1 / 0)
    served.ask("/")
    thread.join(5)
    assert served.ears.names == ["metrics_failed"]
    monkeypatch.undo()
    served.clock.pause(31)
    served.server.tick()
    assert served.ask("/metrics")[0].status == 200
    assert served.ears.names == ["metrics_failed", "metrics_restored"]


def test_a_defect_in_a_scrape_is_told_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.metrics, "_families", lambda: 1 / 0)
    for _ in range(3):
        answer, text = served.ask("/metrics")
        assert (answer.status, "see the log" in text) == (500, True)
    assert served.ears.names == ["internal_error"]
    monkeypatch.undo()
    assert served.ask("/metrics")[0].status == 200


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll with the server's own answers as the pulse: no sleeping."""
    pause = threading.Event()
    for _ in range(500):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("did not come")


def test_few_connections_and_not_for_long(served: Served) -> None:
    idle = [served.connect() for _ in range(metrics_module.MAX_CONNECTIONS)]
    server = served.server._server
    assert server is not None
    wait_until(lambda: len(server._connections) == metrics_module.MAX_CONNECTIONS)
    with served.connect() as one_more:
        assert one_more.recv(1000).startswith(b"HTTP/1.0 503 ")
    idle[0].sendall(b"GET /metr")  # slowly, a byte now and then
    served.clock.pause(metrics_module.CONNECTION_S + 1)
    for client in idle:
        with suppress(ConnectionError):
            assert client.recv(10) == b""
        client.close()
    wait_until(lambda: not server._connections)
    assert served.ask("/metrics")[0].status == 200
    assert served.ears.heard == []


def test_no_file_descriptors_left(served: Served) -> None:
    client = served.connect()
    server = served.server._server
    assert server is not None
    wait_until(lambda: len(server._connections) == 1)
    client.close()
    wait_until(lambda: not server._connections)
    client = socket.socket()
    gc.collect()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    holes = [os.dup(0) for _ in range(used)]
    lowest = max(holes) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limit[1]))
    try:
        assert served.server.address is not None
        client.connect(served.server.address)
        server._stopping.wait(0.05)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for descriptor in holes:
            os.close(descriptor)
    client.close()
    assert served.ask("/metrics")[0].status == 200
    assert served.ears.heard == []


def test_other_errors_of_accept(served: Served) -> None:
    server = served.server._server
    assert server is not None
    with pytest.raises(BlockingIOError):
        server.get_request()


def test_stopped_at_the_same_moment(served: Served) -> None:
    server = served.server._server
    assert server is not None
    served.server.stop()
    server.stop()  # its sockets are closed: no matter
    server._connections[socket.socket()] = 0.0
    server.end_old()
    for request in server._connections:
        request.close()


def test_what_is_exposed_is_made_anew_after_each_feed_and_only_then() -> None:
    """A scrape of a thousand guests costs 20 ms to write; it is written once for each look, and never served older than the last feed."""
    metrics = Metrics()
    first = metrics.expose("")[1]
    assert metrics.expose("")[1] is first
    metrics.swept("complete", 0.1)
    assert b'guestward_sweeps_total{result="complete"} 1.0' in metrics.expose("")[1]
    assert metrics.expose("application/openmetrics-text")[0] != metrics.expose("")[0]


@pytest.mark.parametrize(
    "accept", ["text/plain;version=x", "application/openmetrics-text;version=x", "application/openmetrics-text;version=1.0.0a"]
)
def test_an_accept_header_that_makes_no_sense_gets_the_plain_text(accept: str) -> None:
    assert b"guestward_build_info" in Metrics().expose(accept)[1]
