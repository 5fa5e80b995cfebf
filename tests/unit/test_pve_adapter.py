"""The API client against a raw TLS server: what it makes of every answer, fault and certificate, and what it lets out."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from guestward.adapters import pve as adapter
from guestward.adapters.pve import ProxmoxPve
from guestward.adapters.secret import SecretError, SecretFile
from guestward.config import PveSection
from guestward.model.guest import GuestId, GuestKind, ListedGuest, LiveStatus
from guestward.model.observation import Member, StorageState
from guestward.model.task import Error, Ok, Running, Task, Unknown, Upid
from guestward.ports import PveAnswerLost, PveError, PveRefused, PveUnreachable
from tests.unit._tlsserver import NAMES, Ca, Leaf, Peer, TlsServer, answer

TOKEN = "guestward@pve!agent"
SECRET = "5ec2e700-1111-4222-8333-abcdefabcdef"
OTHER = "07e20000-1111-4222-8333-abcdefabcdef"
CT, VM = GuestId(GuestKind.LXC, 101), GuestId(GuestKind.QEMU, 200)
UPID = "UPID:pve1:00000222:000503DF:6B0DFD01:vzstart:101:guestward@pve!agent:"
RECORDED = Path(__file__).parent / "recorded"
LOGGERS = ("", "proxmoxer", "proxmoxer.core", "proxmoxer.backends.https", "requests", "urllib3")


class SteppedClock:
    """Real time, so that sockets and deadlines agree, and jumps on demand."""

    def __init__(self) -> None:
        self.ahead = 1000.0

    def boottime(self) -> float:
        return time.monotonic() + self.ahead

    def wall(self) -> float:
        return 0.0

    def boot_id(self) -> str:
        return "boot"

    def pause(self, seconds: float) -> None:
        raise AssertionError("a client does not wait")


class Rig:
    """A server, and clients of it that are closed before it."""

    def __init__(self, ca: Ca, server: TlsServer) -> None:
        self.ca, self.server, self.clock = ca, server, SteppedClock()
        self.secret, self.reads, self.calls = SECRET, 0, 0
        self.clients: list[ProxmoxPve] = []

    def read_secret(self) -> str:
        self.reads += 1
        return self.secret

    def client(self, **settings: Any) -> ProxmoxPve:
        trust = {} if settings.pop("bare", False) else {"ca_file": self.ca.file}
        section = PveSection(**{"port": self.server.port, "token_id": TOKEN, "timeout": 5.0, **trust, **settings})
        self.clients.append(ProxmoxPve(section, "pve1", self.read_secret, self.clock, self.called))
        return self.clients[-1]

    def called(self) -> None:
        self.calls += 1

    def within(self, seconds: float = 5.0) -> float:
        return self.clock.boottime() + seconds

    @property
    def seen(self) -> list[str]:
        return [f"{request.method} {request.target.removeprefix('/api2/json')}" for request in self.server.requests]


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Ca:
    return Ca(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def leaf(ca: Ca) -> Leaf:
    return ca.leaf()


@pytest.fixture
def rig(ca: Ca, leaf: Leaf, caplog: pytest.LogCaptureFixture) -> Iterator[Rig]:
    for name in LOGGERS:
        caplog.set_level(logging.DEBUG, logger=name)
    server = TlsServer(leaf)
    rig = Rig(ca, server)
    yield rig
    for client in rig.clients:
        assert SECRET not in repr(client) + repr(vars(client).get("_api"))
        client.close()
    server.close()
    assert SECRET not in caplog.text


def failure(kind: type[PveError], call: Callable[[], object], *words: str) -> PveError:
    """The error that a call ends in: of exactly this kind, one bounded line, with these words and without the secret."""
    with pytest.raises(PveError) as caught:
        call()
    error = caught.value
    assert isinstance(error, kind), repr(error)
    shown = str(error) + repr(error) + "".join(traceback.format_exception(error))
    assert SECRET not in shown and OTHER not in shown
    assert str(error).isprintable() and 0 < len(str(error)) < 700
    for word in words:
        assert word in str(error), str(error)
    return error


def recorded(name: str) -> bytes:
    value = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    return answer(status=value["status"], raw=value["body"].encode())


def get(rig: Rig, client: ProxmoxPve, seconds: float = 5.0) -> Callable[[], object]:
    return lambda: client.guests(GuestKind.LXC, deadline=rig.within(seconds))


def post(rig: Rig, client: ProxmoxPve, seconds: float = 5.0) -> Callable[[], object]:
    return lambda: client.start(CT, deadline=rig.within(seconds))


def untouched(server: TlsServer) -> bool:
    """Whether nothing of a request, and so no Authorization header, ever arrived. Ends the server, so that its threads have counted."""
    server.close()
    return server.requests == [] and server.bytes_seen == b""


# --- what a real PVE 9.1.3 answers


def test_recorded_lists(rig: Rig) -> None:
    rig.server.actions = [recorded("lxc-list"), recorded("qemu-list")]
    client = rig.client()
    assert set(client.guests(GuestKind.LXC, deadline=rig.within())) == {CT, GuestId(GuestKind.LXC, 990000)}
    assert client.guests(GuestKind.QEMU, deadline=rig.within()) == {VM: ListedGuest(VM, "vm200", running=False)}
    assert rig.seen == ["GET /nodes/pve1/lxc", "GET /nodes/pve1/qemu"]
    assert rig.server.requests[0].headers["authorization"] == f"PVEAPIToken={TOKEN}={SECRET}"
    assert rig.calls == 2 and rig.server.connections == 1


def test_recorded_pool(rig: Rig) -> None:
    rig.server.actions = [recorded("pool-members")]
    members = rig.client().members("guestward", deadline=rig.within())
    assert members == (Member(CT, "pve1", "guestward", "stopped", "ct101"), Member(VM, "pve1", "guestward", "stopped", "vm200"))
    assert rig.seen == ["GET /pools?poolid=guestward"]


def test_backups_alone_are_asked_for_by_their_type(rig: Rig) -> None:
    rig.server.actions = [recorded("tasks-past")]
    assert rig.client().past_backups(deadline=rig.within())[2].status == Error("VM is locked (backup)")
    assert rig.seen == ["GET /nodes/pve1/tasks?source=archive&typefilter=vzdump&limit=500"]


def test_nested_pool_is_one_parameter(rig: Rig) -> None:
    rig.server.actions = [answer([{"poolid": "a/b", "members": []}])]
    assert rig.client().members("a/b", deadline=rig.within()) == ()
    assert rig.seen == ["GET /pools?poolid=a%2Fb"]


def test_recorded_tasks(rig: Rig) -> None:
    rig.server.actions = [recorded("tasks-active"), recorded("tasks-past")]
    client = rig.client()
    (backup,) = client.active_tasks(deadline=rig.within())
    assert backup.running and backup.upid.type == "vzdump" and backup.upid.covers(101)
    past = client.past_tasks(deadline=rig.within())
    assert past[0] == Task(past[0].upid, Ok(), 1796078874) and past[2].status == Error("VM is locked (backup)")
    assert rig.seen == [
        "GET /nodes/pve1/tasks?source=active&limit=1000",
        "GET /nodes/pve1/tasks?source=archive&limit=500",
    ]


def test_recorded_privileges(rig: Rig) -> None:
    rig.server.actions = [recorded("permissions")]
    held = rig.client().privileges(deadline=rig.within())
    assert held["/pool/guestward"]["VM.Audit"] is True and held["/vms/101"]["VM.Audit"] is False
    assert "/vms/102" not in held


def test_recorded_resources(rig: Rig) -> None:
    rig.server.actions = [recorded("resources"), recorded("resources-root")]
    client = rig.client()
    seen = client.resources(deadline=rig.within())
    assert seen.listed == {CT, VM, GuestId(GuestKind.LXC, 990000)} and not seen.ha and not seen.maintenance
    assert seen.storages == {"local": StorageState.AVAILABLE}
    assert set(client.resources(deadline=rig.within()).storages) == {"local", "btr"}


def test_recorded_config(rig: Rig) -> None:
    rig.server.actions = [recorded("lxc-config")]
    config = rig.client().config(GuestId(GuestKind.LXC, 990004), deadline=rig.within())
    assert not config.onboot and config.storages == {"btr"} and config.identity == "root=btr:990004/vm-990004-disk-1.raw"


def test_recorded_status(rig: Rig) -> None:
    rig.server.actions = [recorded("lxc-running"), recorded("qemu-running"), recorded("lxc-locked")]
    client = rig.client()
    assert client.live(CT, deadline=rig.within()) == LiveStatus(running=True, pid=560)
    assert client.live(VM, deadline=rig.within()) == LiveStatus(running=True, pid=600, qmpstatus="running")
    assert client.live(CT, deadline=rig.within()) == LiveStatus(running=False, lock="backup")


def test_recorded_start_and_task(rig: Rig) -> None:
    rig.server.actions = [recorded("start"), recorded("task-running"), recorded("task-ok"), recorded("task-unknown")]
    client = rig.client()
    upid = client.start(CT, deadline=rig.within())
    assert upid.text == UPID
    assert client.task(upid, deadline=rig.within()) == Running()
    assert client.task(upid, deadline=rig.within()) == Ok()
    assert client.task(upid, deadline=rig.within()) == Unknown("rotated away or unknown")
    assert rig.seen[:2] == ["POST /nodes/pve1/lxc/101/status/start", f"GET /nodes/pve1/tasks/{UPID}/status"]
    assert rig.server.requests[0].body == b"" and rig.server.requests[0].headers["content-length"] == "0"


def test_recorded_refusals(rig: Rig) -> None:
    client = rig.client()
    rig.server.actions = [recorded("start-running"), recorded("start-forbidden"), recorded("node-unknown")]
    assert failure(PveRefused, post(rig, client), "500 CT 101 already running").status == 500
    assert failure(PveRefused, post(rig, client), "403 Permission check failed (/vms/102, VM.PowerMgmt)").status == 403
    failure(PveRefused, get(rig, client), "[pve] node is wrong")


@pytest.mark.parametrize("name", ["token-unknown", "secret-wrong", "token-expired"])
def test_recorded_logins(rig: Rig, name: str) -> None:
    rig.server.actions = [recorded(name)]
    said = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))["status"]
    assert failure(PveRefused, get(rig, rig.client()), said).status == 401


def test_a_upid_stays_one_part_of_the_path(rig: Rig) -> None:
    rig.server.actions = [answer({"status": "running"})]
    odd = Upid.parse("UPID:pve1:00000222:000503DF:6B0DFD01:vzstart:101:a?b#c%2Fd@pve:")
    rig.client().task(odd, deadline=rig.within())
    assert rig.seen == ["GET /nodes/pve1/tasks/UPID:pve1:00000222:000503DF:6B0DFD01:vzstart:101:a%3Fb%23c%252Fd@pve:/status"]


# --- what an answer means


@pytest.mark.parametrize("status", ["400 Parameter verification failed.", "403 x", "404 x", "500 x", "501 x", "599 x", "502 x", "595 x"])
@pytest.mark.parametrize("ask", [get, post])
def test_refused_or_lost(rig: Rig, status: str, ask: Any) -> None:
    rig.server.actions = [answer(None, status)]
    kind = PveAnswerLost if status[:3] in ("599", "502", "595") else PveRefused
    assert failure(kind, ask(rig, rig.client()), status).status == int(status[:3])
    assert len(rig.seen) == 1


def test_pve_says_more_in_the_body_than_in_the_reason(rig: Rig) -> None:
    body = {"data": None, "message": "first line\nsecond line\n", "errors": {"vmid": "is\todd", "x": 1}}
    rig.server.actions = [answer(status="400 first line", raw=json.dumps(body).encode()), answer(None, "500 " + "x" * 2000)]
    client = rig.client()
    failure(PveRefused, get(rig, client), "GET /nodes/pve1/lxc: 400 first line second line vmid: is odd; x: 1")
    failure(PveRefused, get(rig, client), "x...")


def test_reason_in_utf8_and_an_echoed_secret(rig: Rig) -> None:
    rig.server.actions = [answer(raw=b"", status="500 kein Plätzchen for " + SECRET).replace("ä".encode("latin-1"), "ä".encode())]
    failure(PveRefused, get(rig, rig.client()), "kein Plätzchen for [secret]")


@pytest.mark.parametrize("status", ["595 Connection refused", "596 Broken pipe"])
def test_pveproxy_without_pvedaemon(rig: Rig, status: str) -> None:
    rig.server.actions = [answer(raw=b"", status=status)]
    failure(PveAnswerLost, get(rig, rig.client()), "pvedaemon")


HTML = b"<html><body>Sign in</body></html>"
NO_ANSWERS: dict[str, bytes] = {
    "html": answer(raw=HTML),
    "empty": answer(raw=b""),
    "null": answer(raw=b"null"),
    "data null": answer(None),
    "no data": answer(raw=b'{"foo": 1}'),
    "a list": answer(raw=b"[]"),
    "text": answer(raw=b'"data"'),
    "a number": answer(raw=b"12"),
    "data is a number": answer(12),
    "cut json": answer(raw=b'{"data": [{"vmid"'),
    "not utf-8": answer(raw=b'{"data": "\xff\xfe"}'),
    "deep": answer(raw=b'{"data":' + b"[" * 100_000),
    "digits": answer(raw=b'{"data":' + b"1" * 5000 + b"}"),
    "204": answer(raw=b"", status="204 No Content"),
    "201": answer([], status="201 Created"),
    "302": answer(raw=b"", status="302 Found", Location="https://localhost/login"),
    "304": answer(raw=b"", status="304 Not Modified"),
    "101": answer(raw=b"", status="101 Switching Protocols"),
    "500 html": answer(raw=HTML, status="500 Oops"),
    "500 null": answer(raw=b"null", status="500 Oops"),
    "500 deep": answer(raw=b"[" * 100_000, status="500 Oops"),
    "700": answer([], status="700 What"),
    "garbage": b"\x00\x01\x02 nonsense\r\n\r\n",
    "no status": b"HTTP/1.1 abc\r\n\r\n",
    "long line": b"HTTP/1.1 200 " + b"x" * 70_000 + b"\r\n\r\n",
    "gzip": answer(raw=b"\x1f\x8b\x08\x00", Content_Encoding="gzip"),
}


@pytest.mark.parametrize("ask", [get, post])
@pytest.mark.parametrize("name", NO_ANSWERS)
def test_an_answer_that_is_not_pves(rig: Rig, name: str, ask: Any) -> None:
    rig.server.actions = [NO_ANSWERS[name]]
    failure(PveAnswerLost, ask(rig, rig.client()), "/nodes/pve1/lxc")
    assert len(rig.seen) == 1, "nothing is followed or repeated"


def test_no_data_with_an_error_is_still_a_refusal(rig: Rig) -> None:
    rig.server.actions = [answer(raw=b"{}", status="500 without data"), answer(raw=HTML, status="404 Not Found")]
    client = rig.client()
    failure(PveRefused, get(rig, client), "500 without data")
    failure(PveRefused, get(rig, client), "404 Not Found")


def close_after(data: bytes) -> Callable[[Peer], None]:
    return lambda peer: peer.send(data)


@pytest.mark.parametrize("ask", [get, post])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (answer(UPID)[:-5], "broke off 5 bytes before"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n{", "no whole answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n", "broke off 50 bytes before"),
        (b"HTTP/1.1 200 OK\r\n\r\n{", "not PVE's JSON"),
    ],
)
def test_truncated(rig: Rig, ask: Any, data: bytes, words: str) -> None:
    rig.server.actions = [close_after(data)]
    failure(PveAnswerLost, ask(rig, rig.client()), words)
    assert len(rig.seen) == 1, "an answer had begun"


def test_reset_within_the_body(rig: Rig) -> None:
    def action(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n")
        peer.reset()

    rig.server.actions = [action]
    failure(PveAnswerLost, get(rig, rig.client()))
    assert len(rig.seen) <= 2


def test_huge_is_not_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    client = rig.client()
    rig.server.actions = [close_after(b"HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n{")]
    failure(PveAnswerLost, get(rig, client), "larger than 32768 KiB")
    monkeypatch.setattr(adapter, "MAX_BODY", 4096)
    rig.server.actions = [close_after(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 5000)]
    failure(PveAnswerLost, get(rig, client), "larger than 4 KiB")


# --- time


def test_hang(rig: Rig) -> None:
    rig.server.actions = [Peer.hang]
    client, begin = rig.client(), time.monotonic()
    for ask in (get, post):
        failure(PveAnswerLost, ask(rig, client, 0.15), "did not answer in time")
    failure(PveAnswerLost, get(rig, rig.client(timeout=0.15)), "did not answer in time")
    assert time.monotonic() - begin < 1.5
    assert len(rig.seen) == 3, "a call that timed out is not repeated"


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{"])
def test_drip(rig: Rig, data: bytes) -> None:
    rig.server.actions = [lambda peer: peer.drip(data)]
    begin = time.monotonic()
    failure(PveAnswerLost, get(rig, rig.client(), 0.4), "did not answer in time")
    assert time.monotonic() - begin < 1.5


def test_hang_in_the_handshake(rig: Rig, leaf: Leaf) -> None:
    mute = TlsServer(leaf, early=lambda _: mute.over.wait(30) and None)
    try:
        failure(PveUnreachable, post(rig, rig.client(port=mute.port), 0.15), "did not take the connection in time")
    finally:
        mute.close()


def test_deadline_passed(rig: Rig) -> None:
    client = rig.client()
    failure(PveUnreachable, post(rig, client, 0.0), "no time left")
    assert rig.server.accepted == 0
    get(rig, client)()
    failure(PveUnreachable, get(rig, client, -1.0), "no time left")
    assert len(rig.seen) == 1, "not sent over the connection that was kept either"


def test_time_ends_between_handshake_and_request(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    client = rig.client()
    opened = adapter.Trust.open

    def slow(self: Any, connect: Any) -> Any:
        tls = opened(self, connect)
        rig.clock.ahead += 10
        return tls

    monkeypatch.setattr(adapter.Trust, "open", slow)
    failure(PveUnreachable, post(rig, client), "no time left")
    client.close()
    assert untouched(rig.server)


def test_connecting_has_a_limit_of_its_own_and_the_deadline(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def silent(_address: object, timeout: float) -> None:
        limits.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    failure(PveUnreachable, post(rig, rig.client(timeout=35.0), 30.0), "did not take the connection in time")
    failure(PveUnreachable, post(rig, rig.client(timeout=35.0), 2.0), "did not take the connection in time")
    assert limits[0] == 5.0 and 1.0 < limits[1] <= 2.0


# --- connections


def test_without_tls_there_is_no_connection() -> None:
    with pytest.raises(http.client.NotConnected):
        adapter._Connection("localhost").request("GET", "/")


def test_reset_of_a_post_is_never_repeated(rig: Rig) -> None:
    rig.server.actions = [Peer.reset]
    failure(PveAnswerLost, post(rig, rig.client()), "closed the connection before it had answered")
    assert rig.seen == ["POST /nodes/pve1/lxc/101/status/start"]


def test_eof_after_a_post(rig: Rig) -> None:
    rig.server.actions = [close_after(b"")]
    failure(PveAnswerLost, post(rig, rig.client()))
    assert len(rig.seen) == 1


def test_reset_before_a_post_was_read(rig: Rig) -> None:
    rig.server.greet = Peer.reset
    failure(PveAnswerLost, post(rig, rig.client()))
    assert rig.server.connections == 1 and rig.seen == []


@pytest.mark.parametrize("fault", [Peer.reset, close_after(b"")])
def test_a_get_is_asked_once_more(rig: Rig, fault: Any) -> None:
    rig.server.actions = [fault, recorded("lxc-list")]
    assert len(rig.client().guests(GuestKind.LXC, deadline=rig.within())) == 2
    assert [request.connection for request in rig.server.requests] == [1, 2]
    assert rig.calls == 1


def test_a_get_is_not_asked_a_third_time(rig: Rig) -> None:
    rig.server.actions = [Peer.reset]
    failure(PveAnswerLost, get(rig, rig.client()))
    assert len(rig.seen) == 2


@pytest.mark.parametrize(("ask", "tries"), [(get, 2), (post, 1)])
def test_closed_in_the_handshake(rig: Rig, leaf: Leaf, ask: Any, tries: int) -> None:
    curt = TlsServer(leaf, early=lambda _: None)
    try:
        failure(PveUnreachable, ask(rig, rig.client(port=curt.port)), "ALLOW_FROM")
        assert curt.accepted == tries
    finally:
        curt.close()


def test_one_connection_is_kept_for_get_and_none_for_post(rig: Rig) -> None:
    client = rig.client()
    rig.server.actions = [answer([]), answer([]), answer(UPID), answer([]), answer(None, "500 x"), answer([])]
    for ask in (get, get, post, get):
        ask(rig, client)()
    assert [request.connection for request in rig.server.requests] == [1, 1, 2, 2]
    failure(PveRefused, get(rig, client))
    get(rig, client)()
    assert rig.server.requests[-1].connection == 3, "after an error pveproxy closes"
    rig.clock.ahead += 4.5
    get(rig, client)()
    assert rig.server.requests[-1].connection == 4, "pveproxy closes an idle connection after 5 s"
    client.close()
    get(rig, client)()
    assert rig.server.requests[-1].connection == 5


def test_a_connection_that_was_closed_meanwhile(rig: Rig) -> None:
    client = rig.client()
    rig.server.actions = [close_after(answer([])), answer([])]
    get(rig, client)()
    assert get(rig, client)() == {}
    assert len(rig.seen) == 2


def test_connection_close_is_obeyed(rig: Rig) -> None:
    client = rig.client()
    rig.server.actions = [answer([], Connection="close")]
    get(rig, client)()
    get(rig, client)()
    assert rig.server.connections == 2


@pytest.mark.parametrize("ask", [get, post])
def test_connection_refused(rig: Rig, ask: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    failure(PveUnreachable, ask(rig, rig.client(port=port)), f"127.0.0.1:{port} refuses connections")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "two words", "→", "x" * 80, "https://pve1:8006", "pve..1", ".", "fe80::1%nope"])
def test_hosts_without_an_address(rig: Rig, host: str) -> None:
    failure(PveUnreachable, post(rig, rig.client(host=host)), host)


def test_the_second_address_is_tried(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, rig.server.port)) for ip in ("127.0.0.9", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **k: found if host == "localhost" else real(host, *a, **k))
    assert get(rig, rig.client(host="localhost"))() == {}
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [])
    failure(PveUnreachable, get(rig, rig.client(host="localhost")), "no address")


def test_ipv6(rig: Rig, leaf: Leaf) -> None:
    try:
        server = TlsServer(leaf, "::1")
    except OSError:
        pytest.skip("no IPv6 on this machine")
    try:
        client = rig.client(host="::1", port=server.port)
        assert get(rig, client)() == {}
        client.close()
    finally:
        server.close()


def test_a_network_that_fails_within_a_call(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(113, "No route to host")

    monkeypatch.setattr(adapter._Connection, "getresponse", fail)
    failure(PveAnswerLost, post(rig, rig.client()), "No route to host")


# --- trust


def test_only_the_right_ca(rig: Rig, tmp_path: Path) -> None:
    other = Ca(tmp_path, name="another CA")
    failure(PveUnreachable, post(rig, rig.client(ca_file=other.file)), "not signed by the CA in", str(other.file))
    assert untouched(rig.server) and rig.server.refused == 2, "the file was read again once"


def test_a_ca_of_the_same_name(rig: Rig, tmp_path: Path) -> None:
    failure(PveUnreachable, get(rig, rig.client(ca_file=Ca(tmp_path).file)), "not signed by the CA in")
    assert untouched(rig.server)


@pytest.mark.parametrize(
    ("days", "names", "words"),
    [
        ((-9, -1), NAMES, ("has expired", "updatecerts", "1970-01-01 00:00 UTC")),
        ((1, 9), NAMES, ("not yet valid", "check the host's clock", "1970-01-01")),
        ((-1, 9), ["pve1.example.org"], ("does not bear the name 127.0.0.1", "server_name")),
        ((-1, 9), ["10.0.0.1"], ("does not bear the name 127.0.0.1",)),
    ],
)
def test_what_is_wrong_with_a_certificate(rig: Rig, days: tuple[float, float], names: list[str], words: tuple[str, ...]) -> None:
    rig.server.serve(rig.ca.leaf(names, days))
    failure(PveUnreachable, get(rig, rig.client()), *words)
    assert untouched(rig.server)


def test_a_certificate_for_something_else(rig: Rig) -> None:
    rig.server.serve(rig.ca.leaf(purpose=ExtendedKeyUsageOID.CLIENT_AUTH))
    failure(PveUnreachable, get(rig, rig.client()), "is not trusted", "purpose")
    assert untouched(rig.server)


def test_server_name_beside_a_ca_file(rig: Rig) -> None:
    rig.server.serve(rig.ca.leaf(["pve1.example.org"]))
    client = rig.client(server_name="pve1.example.org")
    assert get(rig, client)() == {}
    assert rig.server.sni == ["pve1.example.org"]
    assert rig.server.requests[0].headers["host"] == f"pve1.example.org:{rig.server.port}"
    failure(PveUnreachable, get(rig, rig.client(server_name="pve2.example.org")), "does not bear the name pve2.example.org")
    assert len(rig.seen) == 1


def test_a_server_name_that_is_none(rig: Rig) -> None:
    failure(PveUnreachable, get(rig, rig.client(server_name="pve1..example")), "correct [pve] host or server_name")
    assert untouched(rig.server)


def test_system_cas(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rig.server.serve(rig.ca.leaf(["pve1.example.org"]))
    monkeypatch.setenv("SSL_CERT_FILE", str(rig.ca.file))
    assert get(rig, rig.client(bare=True, server_name="pve1.example.org"))() == {}
    failure(PveUnreachable, get(rig, rig.client(bare=True)), "does not bear the name 127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(Ca(tmp_path, name="another CA").file))
    stranger = rig.client(bare=True, server_name="pve1.example.org")
    failure(PveUnreachable, get(rig, stranger), "not signed by a CA that this system trusts", "ca_file")
    assert len(rig.seen) == 1


def test_pinned_fingerprint(rig: Rig, leaf: Leaf) -> None:
    rig.server.serve(rig.ca.leaf(["elsewhere"], (-9, -1)))
    failure(PveUnreachable, post(rig, rig.client(bare=True, fingerprint=leaf.fingerprint)), "expected " + leaf.fingerprint, "seen")
    assert untouched(rig.server) and rig.server.connections == 1, "the handshake succeeded, yet nothing was sent"


def test_pinned_fingerprint_and_nothing_else(rig: Rig) -> None:
    expired = rig.ca.leaf(["elsewhere"], (-9, -1))
    rig.server.serve(expired)
    assert get(rig, rig.client(bare=True, fingerprint=expired.fingerprint))() == {}


def test_ca_replaced_on_disk(rig: Rig, tmp_path: Path) -> None:
    file, new = tmp_path / "pve-root-ca.pem", Ca(tmp_path, name="new CA")
    file.write_bytes(rig.ca.pem)
    client = rig.client(ca_file=file)
    get(rig, client)()
    client.close()
    rig.server.serve(new.leaf())
    rig.server.actions = [answer(UPID)]
    failure(PveUnreachable, post(rig, client), "not signed by the CA")
    file.write_bytes(new.pem)
    assert str(client.start(CT, deadline=rig.within())) == UPID
    assert rig.seen == ["GET /nodes/pve1/lxc", "POST /nodes/pve1/lxc/101/status/start"]


def test_ca_file_that_goes_is_not_needed_until_trust_fails(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "pve-root-ca.pem"
    file.write_bytes(rig.ca.pem)
    client = rig.client(ca_file=file)
    get(rig, client)()
    file.unlink()  # pmxcfs is down
    client.close()
    assert get(rig, client)() == {}
    client.close()
    rig.server.serve(Ca(tmp_path).leaf())
    failure(PveUnreachable, get(rig, client), str(file), "No such file")


def test_ca_file_without_a_ca(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    failure(PveUnreachable, get(rig, rig.client(ca_file=file)), str(file), "No such file")
    failure(PveUnreachable, get(rig, rig.client(ca_file=tmp_path)), "ca_file")
    file.write_text("nonsense")
    failure(PveUnreachable, get(rig, rig.client(ca_file=file)), str(file), "holds no certificate")
    assert untouched(rig.server)


def test_ca_without_key_usage(rig: Rig, tmp_path: Path) -> None:
    old = Ca(tmp_path, key_usage=False)
    rig.server.serve(old.leaf())
    assert get(rig, rig.client(ca_file=old.file))() == {}


def test_no_tls_there(rig: Rig, leaf: Leaf) -> None:
    plain = TlsServer(leaf, early=lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    try:
        failure(PveUnreachable, get(rig, rig.client(port=plain.port)), "the TLS handshake failed", "pveproxy")
    finally:
        plain.close()


def test_environment_has_no_say(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = Ca(tmp_path, name="another CA").file
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(other))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    assert get(rig, rig.client())() == {}
    assert rig.server.requests[0].headers["authorization"].endswith(SECRET)
    failure(PveUnreachable, get(rig, rig.client(ca_file=other)))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(rig.ca.file))
    failure(PveUnreachable, get(rig, rig.client(ca_file=other)))
    assert len(rig.seen) == 1


def test_a_redirect_takes_the_token_nowhere(rig: Rig, leaf: Leaf) -> None:
    elsewhere = TlsServer(leaf)
    rig.server.actions = [answer(raw=b"", status="302 Found", Location=f"https://127.0.0.1:{elsewhere.port}/")]
    try:
        failure(PveAnswerLost, get(rig, rig.client()), "302")
        assert elsewhere.accepted == 0
    finally:
        elsewhere.close()


def test_cookies_are_not_kept(rig: Rig) -> None:
    rig.server.actions = [answer([], Set_Cookie="PVEAuthCookie=evil; Path=/")]
    client = rig.client()
    get(rig, client)()
    get(rig, client)()
    assert "cookie" not in rig.server.requests[1].headers


# --- the secret and failed logins


def test_nothing_happens_before_the_first_call(rig: Rig) -> None:
    rig.client(ca_file=Path("/nonexistent"), host="no-such-host.invalid")
    assert rig.reads == 0 and rig.server.accepted == 0


def test_failed_logins_become_few(rig: Rig) -> None:
    client = rig.client()
    rig.server.actions = [answer(raw=b"", status="401 invalid token value!")]
    for ask in (get, post, get):
        failure(PveRefused, ask(rig, client), "401 invalid token value!")
    for _ in range(5):
        error = failure(PveRefused, get(rig, client), "401 invalid token value!", "not asked again", "fail2ban")
        assert error.status == 401
    assert len(rig.seen) == 3
    rig.clock.ahead += 301
    failure(PveRefused, get(rig, client))
    failure(PveRefused, get(rig, client), "not asked again")
    assert len(rig.seen) == 4
    rig.clock.ahead += 301
    rig.server.actions = [answer([])]
    get(rig, client)()
    get(rig, client)()
    assert len(rig.seen) == 6


def test_success_and_403_end_the_count(rig: Rig) -> None:
    client, bad = rig.client(), answer(raw=b"", status="401 x")
    for good in (answer([]), answer(None, "403 Permission check failed")):
        rig.server.actions = [bad, bad, good, bad, bad, good]
        for _ in range(6):
            with_error = None
            try:
                get(rig, client)()
            except PveRefused as error:
                with_error = error
            assert with_error is None or "not asked" not in str(with_error)
    assert len(rig.seen) == 12


@pytest.mark.parametrize(("ask", "good"), [(get, answer([])), (post, answer(UPID))])
def test_a_changed_secret_is_used_at_once(rig: Rig, ask: Any, good: bytes) -> None:
    client, bad = rig.client(), answer(raw=b"", status="401 invalid token value!")
    rig.server.actions = [answer([]), bad, good]
    get(rig, client)()
    rig.secret = OTHER
    ask(rig, client)()
    assert [request.headers["authorization"].rpartition("=")[2] for request in rig.server.requests] == [SECRET, SECRET, OTHER]
    assert len({request.method for request in rig.server.requests[1:]}) == 1


def test_a_changed_secret_that_is_wrong_too(rig: Rig) -> None:
    client = rig.client()
    rig.server.actions = [answer([]), answer(raw=b"", status="401 invalid token value!")]
    get(rig, client)()
    rig.secret = OTHER
    failure(PveRefused, get(rig, client))
    assert len(rig.seen) == 3, "asked once with each secret"


def test_a_changed_secret_ends_the_silence(rig: Rig) -> None:
    client = rig.client()
    rig.server.actions = [answer(raw=b"", status="401 x")]
    for _ in range(4):
        failure(PveRefused, get(rig, client))
    rig.server.actions, rig.secret = [answer([])], OTHER
    assert get(rig, client)() == {}


def test_a_secret_that_cannot_be_read(rig: Rig) -> None:
    def unreadable() -> str:
        raise SecretError("token file /x cannot be read: Permission denied; let the agent's user read it")

    client = rig.client()
    client._read_secret = unreadable
    failure(PveUnreachable, get(rig, client), "token file /x")
    client._read_secret = rig.read_secret
    rig.server.actions = [answer([]), answer(raw=b"", status="401 x")]
    get(rig, client)()
    client._read_secret = unreadable
    failure(PveRefused, get(rig, client), "401 x", "token file /x")


@pytest.mark.parametrize("secret", ["", "two words", SECRET + "\r\nX: y", SECRET + "\n", "ключ"])
def test_a_secret_that_cannot_be_sent(rig: Rig, secret: str) -> None:
    rig.secret = secret
    failure(PveUnreachable, get(rig, rig.client()), "secret")
    assert rig.server.accepted == 0


def test_a_user_with_letters_of_his_own(rig: Rig) -> None:
    get(rig, rig.client(token_id="jürgenś@pve!agent"))()
    sent = rig.server.requests[0].headers["authorization"].encode("latin-1").decode()
    assert sent == f"PVEAPIToken=jürgenś@pve!agent={SECRET}"


def test_a_page_that_echoes_the_secret(rig: Rig) -> None:
    rig.server.actions = [answer(raw=SECRET.encode() + b" is not JSON")]
    failure(PveAnswerLost, get(rig, rig.client()), "[secret] is not")


# --- shapes


def ct(**values: Any) -> dict[str, Any]:
    return {"vmid": 101, "status": "stopped", **values}


@pytest.mark.parametrize(
    ("row", "guest"),
    [
        (ct(), ListedGuest(CT, "", running=False)),
        (ct(vmid="101", template="", lock="", name=None, pid=0), ListedGuest(CT, "", running=False)),
        (ct(vmid=101.0, template=1, lock="backup", name="a"), ListedGuest(CT, "a", running=False, lock="backup", template=True)),
        (ct(template="1", uptime="12", pid="7", status="running"), ListedGuest(CT, "", True, 7, template=True)),
        (ct(template=True, name=12), ListedGuest(CT, "12", running=False, template=True)),
        (ct(template="off", name="a\nb\ud800c" + "x" * 500), ListedGuest(CT, "a b c" + "x" * 192 + "...", running=False)),
        (ct(unheard={"of": []}, type="lxc"), ListedGuest(CT, "", running=False)),
    ],
)
def test_rows_of_a_list(rig: Rig, row: dict[str, Any], guest: ListedGuest) -> None:
    rig.server.actions = [answer([row])]
    found = rig.client().guests(GuestKind.LXC, deadline=rig.within())
    assert {id: replace(seen, up_since=None) for id, seen in found.items()} == {CT: guest}
    assert round(found[CT].uptime(rig.clock.boottime())) == int(row.get("uptime", 0))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["errors"], "an object"),
        ([None], "an object"),
        ([{"status": "stopped"}], "`vmid`"),
        ([{"vmid": 101}], "`status`"),
        ([ct(vmid=None)], "`vmid`"),
        ([ct(vmid=99)], "a VMID"),
        ([ct(vmid=1_000_000_000)], "a VMID"),
        ([ct(vmid=101.5)], "a whole number"),
        ([ct(vmid=True)], "a whole number"),
        ([ct(vmid="0x65")], "a whole number"),
        ([ct(vmid=[101])], "list"),
        ([ct(vmid=1e400)], "a whole number"),
        ([ct(status="unknown")], "`status`"),
        ([ct(status=["running"])], "`status`"),
        ([ct(status={})], "`status`"),
        ([ct(template=2)], "a yes or no"),
        ([ct(template="maybe")], "a yes or no"),
        ([ct(template=[1])], "a yes or no"),
        ([ct(lock=True)], "`lock`"),
        ([ct(name={"a": 1})], "`name`"),
        ([ct(), ct(vmid="101")], "listed twice"),
    ],
)
def test_rows_that_cannot_be_believed(rig: Rig, rows: list[Any], words: str) -> None:
    rig.server.actions = [answer(rows)]
    failure(PveAnswerLost, get(rig, rig.client()), "GET /nodes/pve1/lxc", words)


def test_pool_members(rig: Rig) -> None:
    storage = {"type": "storage", "storage": "local", "id": "storage/pve1/local"}
    far = {"type": "qemu", "vmid": "200", "node": "pve2", "status": "io-error"}
    rig.server.actions = [answer([{"poolid": "p", "members": [storage, far, {"type": "lxc", "vmid": 101, "node": "pve1"}]}])]
    assert rig.client().members("p", deadline=rig.within()) == (
        Member(VM, "pve2", "p", "io-error"),
        Member(CT, "pve1", "p", "unknown"),
    )


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ([], "Pool.Audit"),
        ([{"poolid": "other", "members": []}], "not shown"),
        ([{"poolid": "p"}], "`members`"),
        ([{"members": []}], "`poolid`"),
        ([{"poolid": "p", "members": {}}], "a list"),
        ([{"poolid": "p", "members": [{"vmid": 101}]}], "`type`"),
        ([{"poolid": "p", "members": [{"type": "lxc", "vmid": 101}]}], "`node`"),
        ([{"poolid": "p", "members": [{"type": kind, "vmid": 101, "node": "a"} for kind in ("lxc", "qemu")]}], "listed twice"),
    ],
)
def test_pools_that_cannot_be_believed(rig: Rig, pools: list[Any], words: str) -> None:
    rig.server.actions = [answer(pools)]
    client = rig.client()
    failure(PveAnswerLost, lambda: client.members("p", deadline=rig.within()), "GET /pools", words)


def test_task_rows(rig: Rig) -> None:
    rows: list[dict[str, Any]] = [
        {"upid": UPID},
        {"upid": UPID, "status": "RUNNING", "endtime": ""},
        {"upid": UPID, "endtime": "1796078849", "status": "OK"},
        {"upid": UPID, "endtime": 1796078849, "status": "unexpected status"},
        {"upid": UPID, "endtime": 1796078849},
    ]
    rig.server.actions = [answer(rows)]
    tasks = rig.client().active_tasks(deadline=rig.within())
    assert [task.running for task in tasks] == [True, True, False, False, False]
    assert tasks[2] == Task(Upid.parse(UPID), Ok(), 1796078849)
    assert isinstance(tasks[3].status, Unknown) and isinstance(tasks[4].status, Unknown)


@pytest.mark.parametrize("row", [{}, {"upid": "UPID:x"}, {"upid": 7}, {"upid": UPID, "status": {}}, {"upid": UPID, "endtime": "soon"}, 1])
def test_a_task_that_cannot_be_read_spoils_the_list(rig: Rig, row: Any) -> None:
    rig.server.actions = [answer([{"upid": UPID}, row])]
    client = rig.client()
    failure(PveAnswerLost, lambda: client.active_tasks(deadline=rig.within()), "/nodes/pve1/tasks")


def test_a_full_page_hides_more(rig: Rig) -> None:
    rig.server.actions = [answer([{"upid": UPID, "status": "OK", "endtime": 1}] * 1000)]
    client = rig.client()
    failure(PveAnswerLost, lambda: client.active_tasks(deadline=rig.within()), "full page")
    assert len(client.past_tasks(deadline=rig.within())) == 1000


@pytest.mark.parametrize("data", [[], {"/vms/101": []}, {"/vms/101": None}, {"/vms/101": {"VM.Audit": None}}, {"/": {"VM.Audit": "x"}}])
def test_privileges_that_cannot_be_believed(rig: Rig, data: Any) -> None:
    rig.server.actions = [answer(data)]
    client = rig.client()
    failure(PveAnswerLost, lambda: client.privileges(deadline=rig.within()), "GET /access/permissions")


def test_privileges(rig: Rig) -> None:
    rig.server.actions = [answer({"/": {}, "/vms/1": {"a": 1, "b": "0", "c": True}})]
    assert rig.client().privileges(deadline=rig.within()) == {"/": {}, "/vms/1": {"a": True, "b": False, "c": True}}


def guest_row(kind: str, vmid: int, node: str = "pve1", **more: Any) -> dict[str, Any]:
    return {"type": kind, "vmid": vmid, "id": f"{kind}/{vmid}", "node": node, **more}


def storage_row(name: str, node: str = "pve1", **more: Any) -> dict[str, Any]:
    return {"type": "storage", "storage": name, "node": node, **more}


def test_resources(rig: Rig) -> None:
    rows = [
        guest_row("lxc", 101, hastate=None),
        guest_row("qemu", 200, hastate="started"),
        guest_row("qemu", 201),
        guest_row("qemu", 300, "pve2"),
        {"type": "node", "node": "pve1", "hastate": "online"},
        {"type": "node", "node": "pve2", "hastate": "maintenance"},
        storage_row("a", status="available"),
        storage_row("b", status="unknown"),
        storage_row("c"),
        storage_row("d", "pve2", status="available"),
        {"type": "sdn"},
        {"type": "pool", "pool": "x"},
    ]
    rig.server.actions = [answer(rows), answer([{"type": "node", "node": "pve1", "hastate": "maintenance"}, *rows[7:10]])]
    client = rig.client()
    seen = client.resources(deadline=rig.within())
    assert seen.listed == {CT, VM, GuestId(GuestKind.QEMU, 201)}
    assert seen.ha == {CT: None, VM: "started"} and not seen.maintenance
    assert seen.storages == {"a": StorageState.AVAILABLE, "b": StorageState.OFFLINE, "c": StorageState.OFFLINE}
    seen = client.resources(deadline=rig.within())
    assert seen.maintenance and seen.storages == {"b": StorageState.UNKNOWN, "c": StorageState.UNKNOWN}


@pytest.mark.parametrize(
    "row",
    [{}, {"type": "lxc", "vmid": 101}, {"type": "lxc", "node": "pve1"}, {"type": "node"}, storage_row(""), guest_row("qemu", 101)],
)
def test_resources_that_cannot_be_believed(rig: Rig, row: Any) -> None:
    rig.server.actions = [answer([guest_row("lxc", 101), row])]
    client = rig.client()
    if row == storage_row(""):
        assert client.resources(deadline=rig.within()).storages == {"": StorageState.UNKNOWN}
        return
    failure(PveAnswerLost, lambda: client.resources(deadline=rig.within()), "GET /cluster/resources")


def test_config_values_become_text(rig: Rig) -> None:
    values = {"digest": "d", "onboot": True, "template": 0, "startup": "order=3", "lock": "", "cpulimit": 0.5, "parent": None}
    values |= {"lxc": [["lxc.a", "b"]], "description": "\ud800\n<b>", "rootfs": "btr:101/x.raw"}
    rig.server.actions = [answer(values), answer({**values, "onboot": "yes"}), answer({**values, "onboot": 1})]
    client = rig.client()
    first, second, third = (client.config(CT, deadline=rig.within()) for _ in range(3))
    assert first.onboot and second.onboot and third.onboot and first.startup.order == 3 and first.lock is None
    assert first == third != second


@pytest.mark.parametrize("data", [[], {}, {"onboot": 1}])
def test_config_that_is_none(rig: Rig, data: Any) -> None:
    rig.server.actions = [answer(data)]
    client = rig.client()
    failure(PveAnswerLost, lambda: client.config(CT, deadline=rig.within()), "GET /nodes/pve1/lxc/101/config")


def test_live_status(rig: Rig) -> None:
    row = {"status": "running", "pid": "12", "uptime": "3", "qmpstatus": "paused", "lock": "", "ha": {"managed": "1", "state": None}}
    rig.server.actions = [answer(row)]
    assert rig.client().live(VM, deadline=rig.within()) == LiveStatus(True, 12, 3, None, "paused", ha_managed=True)


@pytest.mark.parametrize("row", [{}, {"status": "running"}, {"status": "running", "ha": {}}, {"status": "x", "ha": {"managed": 0}}, []])
def test_live_status_that_cannot_be_believed(rig: Rig, row: Any) -> None:
    rig.server.actions = [answer(row)]
    client = rig.client()
    failure(PveAnswerLost, lambda: client.live(CT, deadline=rig.within()), "status/current")


def test_task_status(rig: Rig) -> None:
    upid, client = Upid.parse(UPID), rig.client()
    rig.server.actions = [
        answer({"status": "stopped"}),
        answer({"status": "stopped", "exitstatus": 123}),
        answer({"status": "stopped", "exitstatus": "CT is locked (backup)"}),
        answer(None, "500 unable to parse worker upid"),
        answer({"exitstatus": "OK"}),
        answer(None, "403 Permission check failed (/nodes/pve1, Sys.Audit)"),
        answer(None, "400 Parameter verification failed."),
    ]
    said = [client.task(upid, deadline=rig.within()) for _ in range(4)]
    assert [type(status) for status in said] == [Unknown, Unknown, Error, Unknown]
    failure(PveAnswerLost, lambda: client.task(upid, deadline=rig.within()), "`status`")
    failure(PveRefused, lambda: client.task(upid, deadline=rig.within()), "Sys.Audit")
    failure(PveRefused, lambda: client.task(upid, deadline=rig.within()), "400")


def log_of(rig: Rig, *answers: bytes) -> Callable[[], tuple[str, ...]]:
    rig.server.actions = list(answers)
    client = rig.client()
    return lambda: client.task_log(Upid.parse(UPID), deadline=rig.within())


def test_task_log(rig: Rig) -> None:
    """In the order of the numbers, whatever that of the rows; a line keeps its blanks, and loses what no screen shows."""
    rows = [{"n": 2, "t": "  b  c"}, {"n": "1", "t": "INFO: a"}, {"n": 3, "t": ""}, {"n": 4.0, "t": 17}, {"n": 5, "t": "x\x1b[0m\ty"}]
    log = log_of(rig, answer(rows), answer([{"n": 1, "t": "no content"}]), answer([{"n": 1, "t": "TASK OK"}]))
    assert log() == ("INFO: a", "  b  c", "", "17", "x [0m y")
    assert log() == ()
    assert log() == ("TASK OK",)
    assert rig.seen == [f"GET /nodes/pve1/tasks/{UPID}/log?limit=20000"] * 3


def test_a_long_line_of_a_log_is_cut(rig: Rig) -> None:
    (line,) = log_of(rig, answer([{"n": 1, "t": "tar: " + "x" * 100_000}]))()
    assert len(line) == 500 and line.startswith("tar: x")


def test_a_full_page_of_a_log_hides_more(rig: Rig) -> None:
    rows = [{"n": n, "t": "x"} for n in range(1, 20_001)]
    log = log_of(rig, answer(rows), answer(rows[:-1]))
    failure(PveAnswerLost, log, "full page", f"{UPID}/log")
    assert len(log()) == 19_999


@pytest.mark.parametrize("why", ["No such file or directory", "Permission denied"])
def test_a_log_that_is_gone(rig: Rig, why: str) -> None:
    failure(PveAnswerLost, log_of(rig, answer([{"n": 1, "t": f"unable to open file - {why}"}])), "the log is gone", why)


def test_words_of_a_gone_log_in_one_that_is_there(rig: Rig) -> None:
    rows = [{"n": 1, "t": "unable to open file - x"}, {"n": 2, "t": "no content"}]
    assert log_of(rig, answer(rows))() == ("unable to open file - x", "no content")


@pytest.mark.parametrize(
    "data",
    [
        *([], {}, None, "TASK OK", [1], [{}], [{"n": 1}], [{"t": "x"}], [{"n": 1, "t": None}], [{"n": 1, "t": True}]),
        *([{"n": 1, "t": ["x"]}], [{"n": "x", "t": "x"}], [{"n": True, "t": "x"}], [{"n": 0, "t": "x"}], [{"n": 2, "t": "x"}]),
        [{"n": 1, "t": "x"}, {"n": 1, "t": "y"}],
        [{"n": 1, "t": "x"}, {"n": 3, "t": "y"}],
    ],
)
def test_a_log_that_cannot_be_believed(rig: Rig, data: Any) -> None:
    failure(PveAnswerLost, log_of(rig, answer(data)), "GET /nodes/pve1/tasks/UPID:")


def test_a_log_that_may_not_be_read(rig: Rig) -> None:
    said = ("403 Permission check failed (/nodes/pve1, Sys.Audit)", "400 Parameter verification failed.")
    log = log_of(rig, *(answer(None, status) for status in said))
    assert failure(PveRefused, log, "Sys.Audit").status == 403
    assert failure(PveRefused, log, "400").status == 400


@pytest.mark.parametrize("data", ["OK", "UPID:x", 1, {"upid": UPID}, "UPID:" + "x" * 5000])
def test_a_start_without_a_task(rig: Rig, data: Any) -> None:
    rig.server.actions = [answer(data)]
    failure(PveAnswerLost, post(rig, rig.client()), "POST /nodes/pve1/lxc/101/status/start", "task")


# --- the token file


def file_with(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "token-file"
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("content", [SECRET, SECRET + "\n", f"  {SECRET}\r\n", f"{TOKEN}={SECRET}\n"])
def test_secret_file(tmp_path: Path, content: str) -> None:
    assert SecretFile(file_with(tmp_path, content.encode()), TOKEN).read() == SECRET


def test_where_the_secret_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "creds").mkdir()
    fallback, credential, configured = (tmp_path / name for name in ("fallback", "creds/token", "configured"))
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path / "creds")}
    found = SecretFile(None, TOKEN, environ, fallback)
    fallback.write_text("from-fallback")
    assert found.read() == "from-fallback" and SecretFile(None, TOKEN, {}, fallback).read() == "from-fallback"
    credential.write_text("from-credential")
    assert found.read() == "from-credential" and found.path == credential
    credential.write_text("renewed")
    assert found.read() == "renewed"
    with pytest.raises(SecretError, match="configured does not exist"):
        SecretFile(configured, TOKEN, environ, fallback).read()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (f"{SECRET}\n{SECRET}".encode(), "more than one line"),
        (f"{SECRET} # mine".encode(), "blanks"),
        (SECRET.encode() + b"\xff", "blanks"),
        (SECRET.encode() + b"\x00", "blanks"),
        (f"other@pve!agent={SECRET}".encode(), "is for token other@pve!agent, but .* is guestward@pve!agent"),
        (f"bob@corp.org@oidc!t1={SECRET}".encode(), "is for token bob@corp.org@oidc!t1, but"),
        (f"{TOKEN}=".encode(), "blanks"),
        (SECRET.encode() * 200, "longer than"),
    ],
)
def test_secret_file_that_holds_none(tmp_path: Path, content: bytes, words: str) -> None:
    file = file_with(tmp_path, content)
    with pytest.raises(SecretError, match=words) as caught:
        SecretFile(file, TOKEN).read()
    assert str(file) in str(caught.value) and SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(SecretFile(file, TOKEN))


def test_secret_file_that_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SecretError, match="not a regular file"):
        SecretFile(tmp_path).read()

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(SecretError, match="cannot be read: Permission denied"):
        SecretFile(file_with_os(tmp_path)).read()


def file_with_os(tmp_path: Path) -> Path:
    file = tmp_path / "denied"
    file.touch()
    return file
