"""The client of the root helper against a real socket: whatever it answers, or does not, nobody waits for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from guestward.adapters.helper import SOCKET, SocketCall, SocketHelper
from guestward.model.guest import GuestKind
from guestward.model.helper import ANSWERED_WITHIN, MAX_ANSWER, Answer, HelperCode, Request, Verb
from guestward.ports import HelperError, HelperLost, HelperUnreachable

UNLOCK = Request(Verb.UNLOCK, GuestKind.LXC, 101, "backup")
DELETE = Request(Verb.DELETE_SNAPSHOT, vmid=101)
DONE = Answer(HelperCode.OK, "lxc/101: lock backup cleared")


@dataclass
class Clock:
    """Time passes when a test says so."""

    now: float = 1000.0

    def boottime(self) -> float:
        return self.now

    def wall(self) -> float:
        raise AssertionError("a deadline has nothing to do with the wall clock")

    def boot_id(self) -> str:
        raise AssertionError("nor with the boot")

    def pause(self, seconds: float) -> None:
        raise AssertionError("nobody waits")


@dataclass
class Helper:
    """The other end: takes one connection after the other, in the test's own thread."""

    root: Path
    backlog: int = 8
    clock: Clock = field(default_factory=Clock)
    listening: socket.socket = field(init=False)
    open: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True)
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(self.path))
        self.listening.listen(self.backlog)
        self.listening.settimeout(10)

    @property
    def path(self) -> Path:
        return self.root / SOCKET

    @property
    def client(self) -> SocketHelper:
        return SocketHelper(self.root, self.clock)

    def taken(self) -> socket.socket:
        """The connection of a request that was sent."""
        self.open.append(self.listening.accept()[0])
        return self.open[-1]

    def asked(self, request: Request = UNLOCK) -> tuple[SocketCall, socket.socket]:
        call = self.client.ask(request)
        self.open.append(call.connection)
        return call, self.taken()

    def close(self) -> None:
        for one in (self.listening, *self.open):
            one.close()


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: the address of such a socket has room for 107 bytes."""
    return tmp_path_factory.mktemp("h")


@pytest.fixture
def helper(folder: Path) -> Iterator[Helper]:
    made = Helper(folder)
    yield made
    made.close()


def closed(call: SocketCall) -> bool:
    return call.connection.fileno() == -1


def lost(call: SocketCall) -> str:
    with pytest.raises(HelperLost) as caught:
        call.answer()
    assert closed(call)
    return str(caught.value)


# --- what is asked ---


@pytest.mark.parametrize("request_", [UNLOCK, DELETE])
def test_a_request_is_one_line_and_is_out_before_anybody_takes_the_connection(helper: Helper, request_: Request) -> None:
    call, server = helper.asked(request_)
    assert server.recv(4096) == request_.encode()
    assert call.answer() is None
    server.sendall(DONE.encode())
    assert call.answer() == DONE and closed(call)


# --- what is answered ---


@pytest.mark.parametrize("code", HelperCode)
def test_every_answer_that_there_is(helper: Helper, code: HelperCode) -> None:
    call, server = helper.asked()
    server.sendall(Answer(code, "so it is").encode())
    assert call.answer() == Answer(code, "so it is") and closed(call)


def test_an_answer_in_pieces(helper: Helper) -> None:
    call, server = helper.asked()
    line = DONE.encode()
    for piece in (line[:1], line[1:20], line[20:-1]):
        server.sendall(piece)
        assert call.answer() is None
    server.sendall(line[-1:])
    assert call.answer() == DONE


def test_an_answer_and_the_end_at_once(helper: Helper) -> None:
    call, server = helper.asked()
    server.sendall(DONE.encode())
    server.close()
    assert call.answer() == DONE and closed(call)


def test_the_longest_answer_that_the_helper_gives_is_taken(helper: Helper) -> None:
    longest = Answer(HelperCode.FAILED, "\u00e9" * 5000)
    call, server = helper.asked()
    server.sendall(longest.encode())
    answer = call.answer()
    assert answer is not None and answer.code is HelperCode.FAILED


WRONG: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"OK\n", "its answer is none: not JSON"),
    "not UTF-8": (b"\xff\xfe\n", "its answer is none: not JSON"),
    "an empty line": (b"\n", "its answer is none: not JSON"),
    "a list": (b"[]\n", "its answer is none: not an answer"),
    "no message": (b'{"ok": true, "code": "ok"}\n', "its answer is none: not an answer"),
    "an unknown code": (b'{"ok": false, "code": "perhaps", "message": ""}\n', "its answer is none: code is none of"),
    "a contradiction": (b'{"ok": true, "code": "failed", "message": ""}\n', "its answer is none: `ok` and `code` contradict each other"),
    "two lines": (DONE.encode() * 2, "its answer is none: not JSON"),
    "nested too deeply": (b"[" * 4000 + b"\n", "its answer is none: not JSON"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_is_none_is_lost(helper: Helper, name: str) -> None:
    said, why = WRONG[name]
    call, server = helper.asked()
    server.sendall(said)
    assert why in lost(call)


@pytest.mark.parametrize(
    ("said", "why"),
    [(b"", "it ended without an answer"), (DONE.encode()[:-1], "its answer is none: not one whole line"), (b"{", "not one whole line")],
)
def test_an_end_without_a_whole_answer_is_lost(helper: Helper, said: bytes, why: str) -> None:
    call, server = helper.asked()
    server.recv(4096)
    server.sendall(said)
    server.close()
    assert why in lost(call)


def test_an_end_between_two_pieces_is_lost(helper: Helper) -> None:
    call, server = helper.asked()
    server.recv(4096)
    server.sendall(b'{"ok": ')
    assert call.answer() is None
    server.close()
    assert "not one whole line" in lost(call)


@pytest.mark.parametrize("length", [MAX_ANSWER + 1, 3 * MAX_ANSWER])
def test_an_answer_that_is_too_long_is_not_read_to_its_end(helper: Helper, length: int) -> None:
    call, server = helper.asked()
    server.sendall(b"x" * length)
    assert "its answer is too long" in lost(call)
    assert len(call.heard) <= 2 * MAX_ANSWER


def test_a_line_that_is_too_long_is_lost(helper: Helper) -> None:
    call, server = helper.asked()
    server.sendall(b" " * MAX_ANSWER + b"\n")
    assert "not one whole line" in lost(call)


def test_a_connection_that_breaks_off_is_lost(helper: Helper) -> None:
    """The other end is gone with what we sent still unread."""
    call, server = helper.asked()
    server.close()
    assert lost(call).startswith("the root helper: the connection broke off (Connection reset by peer); ")


def test_what_is_said_tells_where_to_look(helper: Helper) -> None:
    call, server = helper.asked()
    server.recv(4096)
    server.close()
    assert lost(call) == "the root helper: it ended without an answer; `journalctl -u 'guestward-helper@*'` tells what it did"


# --- nobody waits ---


@pytest.mark.parametrize("request_", [UNLOCK, DELETE])
def test_after_its_time_no_answer_is_waited_for(helper: Helper, request_: Request) -> None:
    call, server = helper.asked(request_)
    helper.clock.now += ANSWERED_WITHIN[request_.verb] - 0.001
    assert call.answer() is None and not closed(call)
    helper.clock.now += 0.001
    assert "it did not answer in time" in lost(call)
    assert server.recv(4096) == request_.encode() and server.recv(1) == b""


def test_an_answer_that_is_there_counts_however_late(helper: Helper) -> None:
    call, server = helper.asked()
    server.sendall(DONE.encode())
    helper.clock.now += 10_000
    assert call.answer() == DONE


def test_a_helper_has_time_for_a_delete_and_less_for_an_unlock() -> None:
    assert ANSWERED_WITHIN == {Verb.UNLOCK: 30.0, Verb.DELETE_SNAPSHOT: 660.0, Verb.RELEASE_SCRATCH: 45.0, Verb.REGRANT: 75.0}


def test_nothing_blocks_after_the_request(helper: Helper) -> None:
    call, _ = helper.asked()
    assert call.connection.getblocking() is False
    assert [call.answer() for _ in range(100)] == [None] * 100


def test_two_at_once_have_their_own_answers(helper: Helper) -> None:
    (first, one), (second, two) = helper.asked(), helper.asked(DELETE)
    two.sendall(Answer(HelperCode.BUSY, "two").encode())
    assert (first.answer(), second.answer()) == (None, Answer(HelperCode.BUSY, "two"))
    one.sendall(DONE.encode())
    assert first.answer() == DONE


# --- it cannot be asked ---


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """All that the client opens."""
    made: list[socket.socket] = []
    real = socket.socket

    def open_one(*of: int) -> socket.socket:
        made.append(real(*of))
        return made[-1]

    monkeypatch.setattr("guestward.adapters.helper.socket.socket", open_one)
    return made


def unreachable(client: SocketHelper) -> str:
    with pytest.raises(HelperUnreachable) as caught:
        client.ask(UNLOCK)
    return str(caught.value)


def nothing(path: Path) -> None:
    path.unlink()


def a_file(path: Path) -> None:
    path.unlink()
    path.touch()


def no_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


def a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (nothing, "No such file or directory"),
        (no_folder, "No such file or directory"),
        (a_file, "Connection refused"),
        (a_loop, "Too many levels of symbolic links"),
    ],
)
def test_without_a_socket(helper: Helper, sockets: list[socket.socket], make: Callable[[Path], None], why: str) -> None:
    make(helper.path)
    assert unreachable(helper.client) == f"{helper.path}: {why}; see `systemctl status guestward-helper.socket`"
    assert [one.fileno() for one in sockets] == [-1]


def test_a_socket_that_nobody_listens_at(helper: Helper, sockets: list[socket.socket]) -> None:
    helper.listening.close()
    assert "Connection refused" in unreachable(helper.client)
    assert [one.fileno() for one in sockets] == [-1]


def test_a_socket_that_is_not_for_us(helper: Helper, sockets: list[socket.socket]) -> None:
    """Root may do anything, so it is tried as somebody else."""
    helper.path.chmod(0o600)
    for folder in (helper.path.parent, *helper.path.parent.relative_to(helper.root).parents):
        (helper.root / folder).chmod(0o700)
    if os.geteuid() != 0:
        helper.path.chmod(0o000)
        assert "Permission denied" in unreachable(helper.client)
    else:
        os.seteuid(65534)
        try:
            assert "Permission denied" in unreachable(helper.client)
        finally:
            os.seteuid(0)
    assert [one.fileno() for one in sockets] == [-1]


def test_a_socket_whose_backlog_is_full(folder: Path, sockets: list[socket.socket]) -> None:
    """Nobody takes connections; the client does not wait until somebody does."""
    helper = Helper(folder, backlog=0)
    sockets.clear()
    helper.open.append(helper.client.ask(UNLOCK).connection)
    try:
        assert "Resource temporarily unavailable" in unreachable(helper.client)
        assert [one.fileno() for one in sockets][1:] == [-1]
    finally:
        helper.close()


def test_a_path_that_is_too_long(tmp_path: Path, sockets: list[socket.socket]) -> None:
    assert "path too long" in unreachable(SocketHelper(tmp_path / ("x" * 200), Clock()))
    assert [one.fileno() for one in sockets] == [-1]


def test_both_ways_to_fail_are_told_apart() -> None:
    assert issubclass(HelperLost, HelperError) and issubclass(HelperUnreachable, HelperError)
    assert not issubclass(HelperLost, HelperUnreachable) and not issubclass(HelperUnreachable, HelperLost)
