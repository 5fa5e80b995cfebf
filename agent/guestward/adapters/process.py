"""The only module that spawns processes: no shell, a clean environment, bounded in time and output, errors as a value."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from guestward.model.reading import Reading, Unreadable
from guestward.model.task import bounded

OUTPUT_LIMIT = 64 * 1024
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_CHUNK = 64 * 1024
_LOOK = 0.05  # seconds between two looks at a program whose child holds its output open
_REAP = 1.0  # seconds that a killed program gets to vanish (it may hang in the kernel)


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that ended by itself. code: its exit code, or minus the signal that killed it.

    cut: whether a stream had more than OUTPUT_LIMIT bytes; the rest was read and thrown away.
    """

    code: int
    stdout: str
    stderr: str
    cut: bool = False

    @property
    def complaint(self) -> str:
        """What it said about its failure, in one line for people."""
        return bounded(self.stderr.strip() or self.stdout.strip() or "no output")


@dataclass(slots=True)
class _Stream:
    kept: bytearray = field(default_factory=bytearray)
    cut: bool = False

    def take(self, data: bytes) -> None:
        room = OUTPUT_LIMIT - len(self.kept)
        self.kept += data[:room]
        self.cut = self.cut or len(data) > room

    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")


def run(argv: Sequence[str], timeout: float) -> Reading[Completed]:
    """Run a program to its end; past the time limit its whole process group is killed. Never raises."""
    program = argv[0] if argv else ""
    if not os.path.isabs(program):
        return Unreadable(f"{bounded(program) or 'no program'}: not an absolute path")
    try:
        process = _spawn(argv)
    except OSError as error:
        return Unreadable(f"{program}: {error.strerror}")
    except ValueError as error:  # a NUL in an argument
        return Unreadable(f"{bounded(program)}: {error}")
    try:
        return _finish(process, time.monotonic() + timeout)
    except subprocess.TimeoutExpired:
        _kill(process)
        return Unreadable(f"{program}: no answer within {timeout:g}s, killed")
    finally:
        _close(process)


def _spawn(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_ENVIRONMENT,
        cwd="/",
        bufsize=0,
        start_new_session=True,
    )


def _finish(process: subprocess.Popen[bytes], deadline: float) -> Completed:
    out, err = _Stream(), _Stream()
    with selectors.DefaultSelector() as selector:
        for pipe, stream in ((process.stdout, out), (process.stderr, err)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, stream)
        _collect(process, selector, deadline)
    code = process.wait(max(0.0, deadline - time.monotonic()))
    return Completed(code, out.text(), err.text(), out.cut or err.cut)


def _collect(process: subprocess.Popen[bytes], selector: selectors.BaseSelector, deadline: float) -> None:
    """Read both streams until they end, or until the program ended and nothing more is there: a child may hold them open."""
    while selector.get_map():
        ended = process.poll() is not None
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise subprocess.TimeoutExpired(process.args, 0)
        ready = selector.select(0 if ended else min(remaining, _LOOK))
        if ended and not ready:
            return
        for key, _ in ready:
            if data := os.read(key.fd, _CHUNK):
                key.data.take(data)
            else:
                selector.unregister(key.fileobj)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
