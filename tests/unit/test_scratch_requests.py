"""The two lists between a thought and a destroyed guest: `ScratchBand.claim`, and the requests that the API client lets out (C53)."""

from __future__ import annotations

import copy
import enum
import pickle
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from guestward.adapters import pve as adapter
from guestward.adapters.pve import NO_BAND, ProxmoxPve, may_send
from guestward.config import PveSection
from guestward.model.guest import GuestId, GuestKind
from guestward.model.scratch import NotScratchError, ScratchBand, ScratchId
from guestward.model.task import Error, Ok, Task, Upid, Warnings
from guestward.ports import PveAnswerLost, PveRefused, PveUnreachable
from tests.unit._tlsserver import Peer, answer
from tests.unit.test_pve_adapter import SECRET, TOKEN, Rig, ca, close_after, failure, leaf, rig, untouched  # noqa: F401 - fixtures among them

# ruff: noqa: F811 - pytest's way of asking for a fixture

BAND = ScratchBand(990000, 990009)
LXC, QEMU = GuestKind
SCRATCH = BAND.claim(990003)
DESTROY = "UPID:pve1:000001A6:000500B6:6B0DFCF8:vzdestroy:990003:guestward@pve!agent:"
NODE = "/api2/json/nodes/pve1"


def _plain(value: object) -> str:
    """A name without addresses: those differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


class Late(enum.IntEnum):
    """A number that is more than a number."""

    FIRST = 990000


class Odd(int):
    """The same."""


# Whatever somebody may take for a VMID of the band (C53).
NO_IDS: tuple[Any, ...] = (
    *("990003", "990000/../9201", "0990000", "990000%2f..", "９９００００", " 990000", "990000\n", "+990000", "9_90000", b"990000", ""),
    *(990000.0, 990000.5, 990003j, True, False, None, float("nan"), float("inf"), -990003, 0, 99, 100, 9201, 989999, 990010, 10**30),
    *(Late.FIRST, Odd(990003), (990003,), [990003], {990003}, GuestId(LXC, 990003), SCRATCH, BAND, object()),
)


@pytest.mark.parametrize("vmid", NO_IDS, ids=_plain)
def test_nothing_but_a_number_of_the_band_is_claimed(vmid: Any) -> None:
    with pytest.raises(NotScratchError):
        BAND.claim(vmid)
    assert vmid not in BAND


@pytest.mark.parametrize("vmid", range(990000, 990010))
def test_every_number_of_the_band_is_claimed(vmid: int) -> None:
    claimed = BAND.claim(vmid)
    assert (type(claimed), claimed.vmid, str(claimed)) == (ScratchId, vmid, str(vmid))
    assert vmid in BAND


def test_all_numbers_of_the_band() -> None:
    assert list(BAND) == list(range(990000, 990010))
    assert list(NO_BAND) == []


_ANYTHING = st.one_of(
    *(st.integers(), st.floats(), st.text(), st.binary(), st.booleans(), st.none(), st.complex_numbers(), st.sampled_from(NO_IDS)),
    *(st.integers(989_990, 990_020), st.integers(989_990, 990_020).map(str), st.integers(989_990, 990_020).map(float)),
    *(st.integers(989_990, 990_020).map(Odd), st.decimals(), st.fractions(), st.tuples(st.integers(990_000, 990_009))),
)


@given(_ANYTHING, st.integers(100, 999_999_999), st.integers(0, 99))
def test_claim_against_anything(vmid: object, first: int, more: int) -> None:
    for band in (BAND, ScratchBand(first, first + more)):
        may = type(vmid) is int and band.first <= vmid <= band.last
        try:
            claimed = band.claim(vmid)
        except NotScratchError as refused:
            assert not may and str(refused)
        else:
            assert may and claimed.vmid == vmid
        assert (vmid in band) is may


@pytest.mark.parametrize("made_by", [None, object(), "", True, ScratchBand, BAND, ScratchId])
def test_nobody_else_makes_a_scratch_id(made_by: object) -> None:
    with pytest.raises(TypeError, match="only ScratchBand"):
        ScratchId(990003, made_by)
    with pytest.raises(TypeError):
        ScratchId(990003)  # type: ignore[call-arg]


def test_a_scratch_id_is_what_it_was_made() -> None:
    for change in (
        lambda: setattr(SCRATCH, "vmid", 9201),
        lambda: setattr(SCRATCH, "_vmid", 9201),
        lambda: delattr(SCRATCH, "_vmid"),
        lambda: setattr(SCRATCH, "other", 9201),
    ):
        with pytest.raises(AttributeError):
            change()
    assert SCRATCH.vmid == 990003


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda f: f.__name__)
def test_a_scratch_id_is_not_copied_out_of_anything(again: Callable[[object], object]) -> None:
    with pytest.raises(TypeError):
        again(SCRATCH)


def test_a_band_cannot_be_widened() -> None:
    with pytest.raises(AttributeError):
        BAND.last = 999_999_999  # type: ignore[misc]


# --- what goes out: the list by itself


def sendable(method: str, path: str, body: object = None, band: ScratchBand = BAND) -> bool:
    return may_send(method, path, band, node="pve1", body=body)


SENT = (
    *(("GET", path) for path in ("/api2/json/nodes/pve1/lxc", "/api2/json/nodes/pve1/lxc/9201/config", "/api2/json/pools?poolid=a%2Fb")),
    *(("POST", f"{NODE}/{kind}/{vmid}/status/start") for kind in GuestKind for vmid in (100, 9201, 990003, 990010, 999999999)),
    *(("POST", f"{NODE}/{kind}/{vmid}/status/stop") for kind in GuestKind for vmid in BAND),
    *(("DELETE", f"{NODE}/{kind}/{vmid}?purge=1") for kind in GuestKind for vmid in BAND),
)


@pytest.mark.parametrize(("method", "path"), SENT)
def test_sent(method: str, path: str) -> None:
    assert sendable(method, path)
    assert sendable(method, path, b"") and sendable(method, path, "")


OUTSIDE = ("9201", "989999", "990010")
NO_NUMBERS = (
    *(
        "0990000",
        "00990003",
        "990000.0",
        "True",
        "9.9e5",
        "９９００００",
        "990000%2f..",
        "%39%39%30%30%30%30",
        "990000/../9201",
        "-990003",
        "+990003",
    ),
    *("990000/%2e%2e/9201", "990003 ", "990003;9201", "990003,9201", "990003\n", "", "99", "*", "9900030000", "0x F1B30", "990_003"),
)
ONE = f"{NODE}/lxc/990003"
DELETE_TAILS = (
    *(
        "",
        "?",
        "?purge=0",
        "?purge=1&",
        "?purge=1&force=1",
        "?force=1&purge=1",
        "?purge=1&destroy-unreferenced-disks=1",
        "?PURGE=1",
        "?purge=1#x",
    ),
    *(
        "?destroy-unreferenced-disks=1",
        "#?purge=1",
        "?purge=1 ",
        "/?purge=1",
        "/snapshot/vzdump?purge=1",
        ";?purge=1",
        "?purge%3d1",
        "?purge=1%00",
    ),
    *(
        "?purge=01",
        "?purge=1\n",
        "/status/stop?purge=1",
        "/status/start",
        "/config?purge=1",
        "?purge=1?purge=1",
        "?purge=1&purge=1",
        "?purge=",
    ),
)
STATUS_TAILS = (
    *(
        "stop?skiplock=1",
        "stop?overrule-shutdown=1",
        "stop/",
        "/stop",
        "stop#",
        "Stop",
        "stop%00",
        "stop ",
        "stop\n",
        "start?skiplock=1",
        "start/",
    ),
    *("START", "startx", "shutdown", "reboot", "reset", "suspend", "resume", "current", "", "stop/start"),
)
ACTIONS = (
    *(
        "resize",
        "rollback",
        "clone",
        "migrate",
        "snapshot",
        "template",
        "config",
        "move_volume",
        "termproxy",
        "unlink",
        "agent/exec",
        "firewall",
    ),
    *("snapshot/vzdump/rollback", "status", "vncproxy", "monitor", "sendkey", "pending"),
)
OTHER_METHODS = (
    *("PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "delete", "Delete", "post", "get", "DELETE ", "", "None", "GET\r\nX", "MOVE"),
)
OTHER_PATHS = (
    *("/api2/json//nodes/pve1/lxc/990003", "//api2/json/nodes/pve1/lxc/990003", "/api2/json/nodes//lxc/990003", "/lxc/990003", "*", ""),
    *("/api2/extjs/nodes/pve1/lxc/990003", "/API2/JSON/nodes/pve1/lxc/990003", "/api2/json/nodes/pve1/LXC/990003"),
    *("/api2/json/nodes/pve1/openvz/990003", "/api2/json/nodes/pve2/lxc/990003", "/api2/json/nodes/PVE1/lxc/990003"),
    *("/api2/json/nodes/pve1/../pve1/lxc/990003", "/api2/json/nodes/./lxc/990003", "/x/api2/json/nodes/pve1/lxc/990003"),
    *("https://pve1:8006/api2/json/nodes/pve1/lxc/990003", "/api2/json/pools/guestward", "/api2/json/access/acl", "/api2/json/nodes/pve1"),
    *("/api2/json/nodes/pve1/storage/local/content/local:990003/vm-990003-disk-0.raw", "/api2/json/access/users/root@pam"),
    *(f"/api2/json/nodes/pve1/tasks/{DESTROY}", "/api2/json/cluster/ha/resources/ct:990003", "/api2/json/nodes/pve1\n/lxc/990003"),
)
NOT_SENT = (
    *(("DELETE", f"{NODE}/lxc/{vmid}?purge=1") for vmid in OUTSIDE + NO_NUMBERS),
    *(("POST", f"{NODE}/lxc/{vmid}/status/stop") for vmid in OUTSIDE + NO_NUMBERS),
    *(("POST", f"{NODE}/lxc/{vmid}/status/start") for vmid in NO_NUMBERS),
    *(("DELETE", ONE + tail) for tail in DELETE_TAILS),
    *(("POST", f"{ONE}/status/{tail}") for tail in STATUS_TAILS),
    *((method, f"{ONE}/{action}") for method in ("POST", "PUT", "DELETE") for action in ACTIONS),
    *((method, ONE + tail) for method in OTHER_METHODS for tail in ("?purge=1", "/status/stop", "/status/start")),
    *((method, path + tail) for method in ("DELETE", "POST") for path in OTHER_PATHS for tail in ("", "?purge=1", "/status/stop")),
)


@pytest.mark.parametrize(("method", "path"), dict.fromkeys(NOT_SENT))
def test_not_sent(method: str, path: str) -> None:
    assert not sendable(method, path)


@pytest.mark.parametrize("body", [b"x", "force=1", b"{}", {"purge": 1}, [b""], iter((b"skiplock=1",)), 1])
@pytest.mark.parametrize(("method", "path"), [row for row in SENT if row[0] != "GET"][::7])
def test_no_change_has_a_body(method: str, path: str, body: object) -> None:
    assert not sendable(method, path, body)


def test_without_a_band_nothing_is_stopped_or_destroyed() -> None:
    for method, path in SENT:
        assert sendable(method, path, band=NO_BAND) is (method == "GET" or path.endswith("/status/start"))


@dataclass(frozen=True)
class _Request:
    """A request as the list is meant to read it; nothing here is shared with the list."""

    method: str
    path: str

    @property
    def is_one_of_ours(self) -> bool:
        if self.method == "GET":
            return True
        head, tail = self.path[: len(NODE)], self.path[len(NODE) :].split("/")
        if head != NODE or len(tail) < 3 or tail[0] != "" or tail[1] not in ("lxc", "qemu"):
            return False
        if self.method == "POST" and len(tail) == 5 and tail[3] == "status":
            return (tail[2] in _INSIDE and tail[4] == "stop") or (_is_vmid(tail[2]) and tail[4] == "start")
        return self.method == "DELETE" and len(tail) == 3 and tail[2] in {f"{vmid}?purge=1" for vmid in BAND}


_INSIDE = {str(vmid) for vmid in BAND}


def _is_vmid(text: str) -> bool:
    return 3 <= len(text) <= 9 and all(c in "0123456789" for c in text) and text[0] != "0"


_METHODS = st.sampled_from(["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "delete", "post", "Post", "POST ", ""])
_IDS = st.one_of(
    st.integers(989_995, 990_015).map(str),
    st.integers(0, 10**10).map(str),
    st.sampled_from(sorted({str(vmid) for vmid in NO_IDS})),
    st.text(string.digits + "０１２３४९%2fe+-_. /", max_size=9),
)
_PIECES = st.one_of(
    st.sampled_from(
        ["lxc", "qemu", "status", "stop", "start", "pve1", "pve2", "nodes", "", ".", "..", "%2e%2e", "config", "resize", "rollback"]
    ),
    _IDS,
    st.text(max_size=6),
)
_TAILS = st.one_of(
    st.sampled_from(
        ["?purge=1", "", "?purge=1&force=1", "?force=1", "?purge=1#", "/", "//", "?destroy-unreferenced-disks=1&purge=1", "?skiplock=1"]
    ),
    st.text("?&=#/ %1purge", max_size=8),
)
_PATHS = st.one_of(
    st.builds(lambda kind, vmid, tail: f"{NODE}/{kind}/{vmid}{tail}", st.sampled_from(["lxc", "qemu", "LXC", ""]), _IDS, _TAILS),
    st.builds(
        lambda kind, vmid, what, tail: f"{NODE}/{kind}/{vmid}/status/{what}{tail}",
        *(st.sampled_from(["lxc", "qemu"]), _IDS, st.sampled_from(["stop", "start", "reset", "Stop", ""]), _TAILS),
    ),
    st.builds(lambda pieces, tail: NODE + "/" + "/".join(pieces) + tail, st.lists(_PIECES, max_size=6), _TAILS),
    st.builds(lambda pieces: "/" + "/".join(pieces), st.lists(_PIECES, max_size=8)),
    st.text(max_size=60),
)


@settings(max_examples=600)
@given(_METHODS, _PATHS)
def test_the_list_against_anything(method: str, path: str) -> None:
    assert sendable(method, path) is _Request(method, path).is_one_of_ours


# --- what goes out: the client


def client_of(rig: Rig, band: ScratchBand = BAND) -> ProxmoxPve:
    section = PveSection(port=rig.server.port, token_id=TOKEN, timeout=5.0, ca_file=rig.ca.file)
    rig.clients.append(ProxmoxPve(section, "pve1", rig.read_secret, rig.clock, rig.called, band))
    return rig.clients[-1]


def destroy(rig: Rig, client: ProxmoxPve, scratch: ScratchId = SCRATCH, kind: GuestKind = LXC) -> Callable[[], Upid]:
    return lambda: client.destroy_scratch(kind, scratch, deadline=rig.within())


def stop(rig: Rig, client: ProxmoxPve, scratch: ScratchId = SCRATCH, kind: GuestKind = LXC) -> Callable[[], Upid]:
    return lambda: client.stop_scratch(kind, scratch, deadline=rig.within())


def volumes(rig: Rig, client: ProxmoxPve, storage: str = "local") -> Callable[[], tuple[str, ...]]:
    return lambda: client.volumes(storage, SCRATCH, deadline=rig.within())


def storages(rig: Rig, client: ProxmoxPve) -> Callable[[], object]:
    return lambda: client.volume_storages(deadline=rig.within())


def history(rig: Rig, client: ProxmoxPve) -> Callable[[], tuple[Task, ...]]:
    return lambda: client.past_tasks_of(990003, deadline=rig.within())


@pytest.mark.parametrize("kind", GuestKind)
def test_destroy_as_it_goes_over_the_wire(rig: Rig, kind: GuestKind) -> None:
    rig.server.actions = [answer(DESTROY)]
    upid = destroy(rig, client_of(rig), kind=kind)()
    assert (upid.text, upid.type, upid.id) == (DESTROY, "vzdestroy", "990003")
    (request,) = rig.server.requests
    assert (request.method, request.target) == ("DELETE", f"/api2/json/nodes/pve1/{kind}/990003?purge=1")
    assert request.body == b"" and request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
    assert request.headers["authorization"] == f"PVEAPIToken={TOKEN}={SECRET}"


@pytest.mark.parametrize("kind", GuestKind)
def test_stop_as_it_goes_over_the_wire(rig: Rig, kind: GuestKind) -> None:
    rig.server.actions = [answer(DESTROY.replace("vzdestroy", "vzstop"))]
    assert stop(rig, client_of(rig), kind=kind)().type == "vzstop"
    (request,) = rig.server.requests
    assert (request.method, request.target) == ("POST", f"/api2/json/nodes/pve1/{kind}/990003/status/stop")
    assert request.body == b"" and request.headers["content-length"] == "0"


@pytest.mark.parametrize("ask", [destroy, stop])
@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("403 Permission check failed (/vms/990003, VM.Allocate)", "403 Permission check failed (/vms/990003, VM.Allocate)"),
        ("500 unable to destroy CT 990003 - container is running", "container is running"),
        ("500 CT is locked (create)", "CT is locked (create)"),
        ("500 can't remove CT 990003 - protection mode enabled", "protection mode enabled"),
        ("500 CT 990003 not running", "CT 990003 not running"),
        ("500 Configuration file 'nodes/pve1/lxc/990003.conf' does not exist", "does not exist"),
        ("500 cluster not ready - no quorum?", "no quorum"),
        ("400 Parameter verification failed.", "400 Parameter verification failed."),
        ("501 Method 'DELETE' not implemented", "501"),
    ],
)
def test_refused(rig: Rig, ask: Any, status: str, words: str) -> None:
    rig.server.actions = [answer(None, status)]
    refused = failure(PveRefused, ask(rig, client_of(rig)), words, "/nodes/pve1/lxc/990003")
    assert refused.status == int(status[:3])
    assert len(rig.seen) == 1, "asked once"


LOST: dict[str, bytes | Callable[[Peer], None]] = {
    "reset": Peer.reset,
    "closed": close_after(b""),
    "cut": close_after(answer(DESTROY)[:-5]),
    "595": answer(raw=b"", status="595 Connection refused"),
    "596": answer(raw=b"", status="596 Broken pipe"),
    "599": answer(raw=b"", status="599 Too many redirections"),
    "502": answer(raw=b"<html>", status="502 Bad Gateway"),
    "html": answer(raw=b"<html>"),
    "302": answer(raw=b"", status="302 Found", Location="https://localhost/api2/json/nodes/pve1/lxc/9201?purge=1"),
    "307": answer(raw=b"", status="307 Temporary Redirect", Location="/api2/json/nodes/pve1/lxc/9201?purge=1"),
    "no task": answer(None),
    "a number": answer(12),
    "text": answer("done"),
    "half a task": answer(DESTROY[:-20]),
}


@pytest.mark.parametrize("ask", [destroy, stop])
@pytest.mark.parametrize("name", LOST)
def test_an_answer_that_is_lost_is_never_asked_for_again(rig: Rig, name: str, ask: Any) -> None:
    rig.server.actions = [LOST[name]]
    failure(PveAnswerLost, ask(rig, client_of(rig)), "/nodes/pve1/lxc/990003")
    assert len(rig.seen) == 1, "whether it was carried out is seen later, and nothing is followed"


def test_no_time_left_and_nothing_sent(rig: Rig) -> None:
    client = client_of(rig)
    for send in (client.destroy_scratch, client.stop_scratch):
        with pytest.raises(PveUnreachable, match="no time left"):
            send(LXC, SCRATCH, deadline=rig.within(0.0))
    assert untouched(rig.server)


@pytest.mark.parametrize("ask", [destroy, stop])
@pytest.mark.parametrize("band", [NO_BAND, ScratchBand(990004, 990009), ScratchBand(100, 101)], ids=str)
def test_an_id_of_another_band_gets_nowhere(rig: Rig, ask: Any, band: ScratchBand) -> None:
    """It is a ScratchId, of a band that is not this client's: the second list does not ask where it comes from."""
    failure(PveUnreachable, ask(rig, client_of(rig, band)), "/nodes/pve1/lxc/990003", "not sent", "may not send such a request")
    assert untouched(rig.server) and rig.server.accepted == 0


def _sneaky(vmid: object) -> Any:
    return type("Sneaky", (), {"vmid": vmid, "__str__": lambda self: str(self.vmid)})()


@pytest.mark.parametrize("vmid", [vmid for vmid in NO_IDS if str(vmid) not in _INSIDE], ids=_plain)
def test_something_that_only_looks_like_an_id_gets_nowhere(rig: Rig, vmid: object) -> None:
    """As it would be without types: a path of anything, quoted or not, is refused before a connection is opened."""
    client = client_of(rig)
    for send in (client.destroy_scratch, client.stop_scratch):
        with pytest.raises((PveUnreachable, AttributeError, TypeError)) as caught:
            send(LXC, _sneaky(vmid), deadline=rig.within())
        assert not isinstance(caught.value, PveUnreachable) or "not sent" in str(caught.value)
    assert untouched(rig.server) and rig.server.accepted == 0


WRONG_CALLS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "a guest outside": ("DELETE", ("nodes", "pve1", "lxc", "9201"), {"purge": 1}),
    "one past the end": ("DELETE", ("nodes", "pve1", "lxc", "990010"), {"purge": 1}),
    "one before the begin": ("POST", ("nodes", "pve1", "qemu", "989999", "status", "stop"), {}),
    "without purge": ("DELETE", ("nodes", "pve1", "lxc", "990003"), {}),
    "no purge": ("DELETE", ("nodes", "pve1", "lxc", "990003"), {"purge": 0}),
    "and its disks": ("DELETE", ("nodes", "pve1", "lxc", "990003"), {"purge": 1, "destroy-unreferenced-disks": 1}),
    "by force": ("DELETE", ("nodes", "pve1", "lxc", "990003"), {"force": 1, "purge": 1}),
    "over a lock": ("POST", ("nodes", "pve1", "lxc", "990003", "status", "stop"), {"skiplock": 1}),
    "a start over a lock": ("POST", ("nodes", "pve1", "lxc", "101", "status", "start"), {"skiplock": 1}),
    "shutdown": ("POST", ("nodes", "pve1", "lxc", "990003", "status", "shutdown"), {}),
    "rollback": ("POST", ("nodes", "pve1", "lxc", "990003", "snapshot", "a", "rollback"), {}),
    "the snapshot alone": ("DELETE", ("nodes", "pve1", "lxc", "990003", "snapshot", "a"), {"purge": 1}),
    "a volume": ("DELETE", ("nodes", "pve1", "storage", "local", "content", "local:990003/vm-990003-disk-0.raw"), {}),
    "a task": ("DELETE", ("nodes", "pve1", "tasks", DESTROY), {}),
    "another node": ("DELETE", ("nodes", "pve2", "lxc", "990003"), {"purge": 1}),
    "up and down again": ("DELETE", ("nodes", "pve1", "lxc", "990003", "..", "9201"), {"purge": 1}),
    "in one part": ("DELETE", ("nodes", "pve1", "lxc", "990000/../9201"), {"purge": 1}),
    "quoted twice": ("DELETE", ("nodes", "pve1", "lxc", "990000%2f..%2f9201"), {"purge": 1}),
    "full width": ("DELETE", ("nodes", "pve1", "lxc", "９９００００"), {"purge": 1}),
    "a zero before": ("DELETE", ("nodes", "pve1", "lxc", "0990000"), {"purge": 1}),
    "a float": ("DELETE", ("nodes", "pve1", "lxc", str(990000.0)), {"purge": 1}),
    "a fragment": ("DELETE", ("nodes", "pve1", "lxc", "990003#"), {"purge": 1}),
    "a question": ("DELETE", ("nodes", "pve1", "lxc", "990003?x=1"), {"purge": 1}),
    "upper case": ("DELETE", ("nodes", "pve1", "LXC", "990003"), {"purge": 1}),
    "the grants": ("POST", ("access", "acl"), {"path": "/vms/990003"}),
    "nothing": ("DELETE", (), {}),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_refused_request_never_reaches_the_server(rig: Rig, name: str) -> None:
    """From below everything that builds paths, past all types: nothing arrives, and the caller learns that nothing was done."""
    method, path, params = WRONG_CALLS[name]
    failure(PveUnreachable, lambda: client_of(rig)._sent(method, rig.within(), path, params), method, "not sent, since the agent may not")
    assert untouched(rig.server)
    assert rig.server.accepted == 0, "not even a connection was opened"


@pytest.mark.parametrize("method", ["PUT", "PATCH", "HEAD", "OPTIONS", "DELETE", "POST", "CONNECT", "delete"])
@pytest.mark.parametrize("tail", ["", "/config", "/status/stop", "?purge=1"])
def test_neither_do_other_verbs_of_the_session(rig: Rig, method: str, tail: str) -> None:
    """proxmoxer's own session, from which everything goes through the same transport, with whatever requests makes of a URL."""
    client = client_of(rig)
    client._secret = SECRET
    client._api, client._transport = client._new_api()
    client._transport.until(rig.within())
    session: requests.Session = client._api._store["session"]
    with pytest.raises(PveUnreachable, match="not sent"):
        session.request(method, f"https://localhost:{rig.server.port}/api2/json/nodes/pve1/lxc/9201{tail}")
    assert untouched(rig.server)
    with pytest.raises(requests.exceptions.InvalidSchema):
        session.request(method, f"http://localhost:{rig.server.port}/api2/json/nodes/pve1/lxc/990003?purge=1")


_URLS = st.one_of(
    _PATHS,
    st.builds(lambda path: "/../" + path, _PATHS),
    st.sampled_from(
        [
            *(f"{NODE}/lxc/990003/../9201?purge=1", f"{NODE}/lxc/990003/%2e%2e/9201?purge=1", f"{NODE}/lxc/9201#/990003?purge=1"),
            *(f"{NODE}/lxc/990003%3Fpurge=1", f"{NODE}/lxc/%39%39%30%30%30%33?purge=1", f"{NODE}/lxc/9201?purge=1#?purge=1"),
        ]
    ),
)


@settings(max_examples=300)
@given(method=_METHODS.filter(lambda method: method != "GET"), url=_URLS)
def test_whatever_requests_makes_of_a_url_is_what_is_judged_and_sent(method: str, url: str) -> None:
    """Only the socket is not there: what would be written to it is one of ours, or nothing is."""
    written: list[tuple[str, str, object]] = []

    class Noted(adapter._Transport):
        def _once(self, request: requests.PreparedRequest, *, reuse: bool) -> adapter._Answer:
            written.append((str(request.method), request.path_url, request.body))
            return adapter._Answer(200, "OK", b'{"data": null}')

    session = requests.Session()
    session.adapters.clear()
    session.mount("https://", Noted(PveSection(token_id=TOKEN), None, SECRET, BAND, "pve1"))  # type: ignore[arg-type]
    try:
        session.request(method, f"https://localhost:8006{url}")
    except (PveUnreachable, requests.RequestException, ValueError):
        assert written == []
    for sent, path, body in written:
        assert _Request(sent, path).is_one_of_ours and not body, (sent, path)


# --- what is read


def volume(volid: str, content: str = "images", vmid: object = 990003, **more: Any) -> dict[str, Any]:
    return {"volid": volid, "content": content, "vmid": vmid, "format": "raw", "size": 1, "ctime": 1796078599, **more}


def test_volumes_of_one_vmid(rig: Rig) -> None:
    rows = [
        volume("local:990003/vm-990003-disk-0.raw"),
        volume("local:990003/vm-990003-disk-1.subvol", "rootdir", "990003"),
        volume("local:backup/vzdump-lxc-990003-2026_11_30-22_48_03.tar", "backup"),
        volume("local:vztmpl/debian.tar.zst", "vztmpl", None),
        volume("local:iso/debian.iso", "iso", None),
    ]
    rig.server.actions = [answer(rows), answer([])]
    client = client_of(rig)
    assert volumes(rig, client)() == ("local:990003/vm-990003-disk-0.raw", "local:990003/vm-990003-disk-1.subvol")
    assert volumes(rig, client, "nas 1/x")() == ()
    assert rig.seen == ["GET /nodes/pve1/storage/local/content?vmid=990003", "GET /nodes/pve1/storage/nas%201%2Fx/content?vmid=990003"]


def test_a_storage_that_knows_no_filter_makes_nobody_elses_volume_ours(rig: Rig) -> None:
    """The filter is the plugin's, and not every one has it: the command that frees a volume must never name that of another guest."""
    rig.server.actions = [answer([volume("san:vm-9201-disk-0", vmid=9201), volume("san:lun0", vmid=0), volume("san:vm-990003-disk-0")])]
    assert volumes(rig, client_of(rig), "san")() == ("san:vm-990003-disk-0",)


@pytest.mark.parametrize(
    "row",
    [
        *(volume("local:x", vmid=None), volume("local:x", vmid="all"), volume("local:x", vmid=True), volume("local:x", vmid=[990003])),
        *(
            volume("local:x", "") | {"content": None},
            volume("", "images") | {"volid": None},
            {"volid": "local:x", "vmid": 990003},
            "x",
            None,
        ),
        volume("local:" + "x" * 300),
    ],
    ids=_plain,
)
def test_a_volume_that_cannot_be_read_spoils_the_answer(rig: Rig, row: Any) -> None:
    """It could be what is left: `gone` must not be said."""
    rig.server.actions = [answer([volume("local:990003/vm-990003-disk-0.raw"), row])]
    failure(PveAnswerLost, volumes(rig, client_of(rig)), "/storage/local/content")


def test_storages_that_may_hold_volumes(rig: Rig) -> None:
    rows = [
        {"storage": "local", "content": "snippets,rootdir,backup,images,iso", "active": 1, "enabled": 1, "type": "dir"},
        {"storage": "zfs", "content": "rootdir", "active": "1"},
        {"storage": "nas", "content": "images", "active": 0},
        {"storage": "lvm", "content": "images"},
        {"storage": "pbs", "content": "backup", "active": 1},
        {"storage": "isos", "content": "iso,vztmpl", "active": 1},
        {"storage": "near", "content": "imagesx", "active": 1},
        {"storage": "none", "content": "none", "active": 1},
    ]
    rig.server.actions = [answer(rows)]
    assert storages(rig, client_of(rig))() == {"local": True, "zfs": True, "nas": False, "lvm": False}
    assert rig.seen == ["GET /nodes/pve1/storage?enabled=1"]


@pytest.mark.parametrize(
    "row", [{}, {"storage": "local"}, {"content": "images", "active": 1}, {"storage": "local", "content": "images", "active": "?"}, 1]
)
def test_storages_that_cannot_be_believed(rig: Rig, row: Any) -> None:
    rig.server.actions = [answer([row])]
    failure(PveAnswerLost, storages(rig, client_of(rig)), "GET /nodes/pve1/storage")


def task_row(
    kind: str, status: str | None = "OK", *, user: str = "restic@pve!restore", vmid: str = "990003", **more: Any
) -> dict[str, Any]:
    upid = f"UPID:pve1:000001A6:000500B6:6B0DFCF8:{kind}:{vmid}:{user}:"
    return {"upid": upid, "status": status, "endtime": 1796078874, **more}


def test_past_tasks_of_one_vmid(rig: Rig) -> None:
    rig.server.actions = [
        answer([task_row("vzdestroy", "WARNINGS: 2"), task_row("vzrestore", "unable to restore CT 990003 - x"), task_row("vzcreate")])
    ]
    found = history(rig, client_of(rig))()
    assert [(task.upid.type, task.upid.user, task.status) for task in found] == [
        ("vzdestroy", "restic@pve!restore", Warnings(2)),
        ("vzrestore", "restic@pve!restore", Error("unable to restore CT 990003 - x")),
        ("vzcreate", "restic@pve!restore", Ok()),
    ]
    assert {task.endtime for task in found} == {1796078874}
    assert rig.seen == ["GET /nodes/pve1/tasks?source=archive&vmid=990003&limit=500"]


@pytest.mark.parametrize(
    "row", [task_row("vzrestore", upid="UPID:pve1:x"), {"status": "OK"}, 1, None, task_row("vzrestore", endtime="soon")]
)
def test_a_task_that_cannot_be_read_spoils_the_record(rig: Rig, row: Any) -> None:
    """It could be the one that somebody else made the guest with."""
    rig.server.actions = [answer([task_row("vzrestore"), row])]
    failure(PveAnswerLost, history(rig, client_of(rig)), "GET /nodes/pve1/tasks")


@pytest.mark.parametrize("vmid", ["101", "9900030", "990004", ""])
def test_a_task_of_another_vmid_spoils_the_record(rig: Rig, vmid: str) -> None:
    """A proof of origin rests on it, so a filter that was not obeyed is no answer."""
    rig.server.actions = [answer([task_row("vzrestore", vmid=vmid)])]
    failure(PveAnswerLost, history(rig, client_of(rig)), "GET /nodes/pve1/tasks", "990003")


@pytest.mark.parametrize("ask", [volumes, storages, history])
def test_reads_of_the_band_end_as_all_reads_do(rig: Rig, ask: Any) -> None:
    client = client_of(rig)
    refusals = ("403 Permission check failed (/storage/local, Datastore.Audit)", "500 storage 'local' is not online")
    rig.server.actions = [
        *(answer(None, status) for status in refusals),
        answer(raw=b"", status="596 Broken pipe"),
        answer({}),
        close_after(b""),
    ]
    for status in refusals:
        assert failure(PveRefused, ask(rig, client), status[4:]).status == int(status[:3])
    failure(PveAnswerLost, ask(rig, client), "596")
    failure(PveAnswerLost, ask(rig, client), "a list")
    failure(PveAnswerLost, ask(rig, client), "closed the connection")
    assert len(rig.seen) == 6, "a read is asked once more when the connection broke off"
