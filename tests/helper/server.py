"""What systemd does for the helper: a listening socket, and one process for each connection."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helper.tree import Tree

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 20.0
Record = dict[str, Any]


def python(*arguments: str) -> list[str]:
    """This Python, measured where the tests are."""
    coverage = ["-m", "coverage", "run", "-p", f"--rcfile={REPOSITORY / 'pyproject.toml'}"] if os.environ.get("GUESTWARD_COVERAGE") else []
    return [sys.executable, *coverage, *arguments]


def environment() -> dict[str, str]:
    ours = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "PYTHONPATH") if key in os.environ}
    measured = (
        {"COVERAGE_FILE": os.environ.get("COVERAGE_FILE", str(REPOSITORY / ".coverage"))} if os.environ.get("GUESTWARD_COVERAGE") else {}
    )
    return measured | ours


class Zygote:
    """The process that forks helpers."""

    def __init__(self) -> None:
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(PATIENCE)
        with other:
            argv = python("-m", "tests.helper.zygote", str(other.fileno()))
            self.process = subprocess.Popen(argv, pass_fds=[other.fileno()], cwd=REPOSITORY, env=environment())

    def fork(self, arguments: list[str], connection: socket.socket, log: int) -> int:
        socket.send_fds(self.control, [json.dumps(arguments).encode()], [connection.fileno(), log])
        return int(self.control.recv(64))

    def close(self) -> None:
        self.control.close()
        self.process.wait(PATIENCE)


@dataclass
class Call:
    """One connection from the client's side. With `with`, and read to its end."""

    client: socket.socket
    pid: int

    def send(self, data: bytes) -> None:
        self.client.sendall(data)

    def end(self) -> None:
        """Half-close."""
        self.client.shutdown(socket.SHUT_WR)

    def read(self) -> bytes:
        data = b""
        try:
            while more := self.client.recv(65536):
                data += more
        except ConnectionResetError:  # it did not read all that was sent
            pass
        self.client.close()
        return data

    def answer(self) -> Record:
        """The one line, checked for its form."""
        line = self.read()
        assert line.endswith(b"\n"), line
        assert line.count(b"\n") == 1
        assert len(line) <= 4096
        record: Record = json.loads(line)
        assert list(record) == ["ok", "code", "message"]
        assert record["ok"] is (record["code"] == "ok")
        return record


@dataclass
class Server:
    """The helper's socket on one tree."""

    tree: Tree
    zygote: Zygote
    arguments: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = self.tree.root / "log"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.settimeout(PATIENCE)
        self.listener.bind(f"\0guestward-helper-test-{os.getpid()}-{id(self)}")  # anybody can connect: the helper itself has to look
        self.listener.listen(8)
        self.path = self.listener.getsockname()

    def options(self) -> list[str]:
        user = [] if os.getuid() == 0 else ["--user", pwd.getpwuid(os.getuid()).pw_name]
        return ["--root", str(self.tree.root), "--programs", str(self.tree.root / "bin"), *user, *self.arguments]

    def accept(self) -> int:
        """Start a helper for the connection that comes next."""
        connection, _ = self.listener.accept()
        with connection, self.log.open("ab") as log:
            return self.zygote.fork(self.options(), connection, log.fileno())

    def call(self) -> Call:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE)
        client.connect(self.path)
        return Call(client, self.accept())

    def ask(self, request: bytes) -> Record:
        call = self.call()
        call.send(request)
        return call.answer()

    def ask_again(self, request: bytes) -> Record:
        """For a short `--hold` on a busy machine: do what the answer says."""
        while (answer := self.ask(request))["code"] == "too_slow":
            pass
        return answer

    def code(self, request: bytes) -> str:
        return str(self.ask(request)["code"])

    def spawn(self, argv: list[str], **extra: str) -> tuple[Call, subprocess.Popen[bytes]]:
        """Start a program of its own for a connection, instead of a fork."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE)
        client.connect(self.path)
        connection, _ = self.listener.accept()
        with connection, self.log.open("ab") as log:
            argv = [*argv, *self.options()]
            process = subprocess.Popen(argv, stdin=connection, stdout=connection, stderr=log, cwd=self.tree.root, env=environment() | extra)
        return Call(client, process.pid), process

    def records(self) -> list[Record]:
        """What the helper logged, each line with its priority."""
        found = []
        for line in self.log.read_text().splitlines():
            assert line[:3] in ("<6>", "<4>", "<3>"), line
            record = json.loads(line[3:])
            assert {"<6>": "info", "<4>": "warn", "<3>": "error"}[line[:3]] == record["level"]
            found.append(record)
        return found
