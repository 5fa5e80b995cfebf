"""The only module of the helper that spawns processes: PVE's own programs and systemctl, without a shell, bounded in time and output."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from guestward.model.task import bounded

PROGRAMS: Mapping[str, str] = {
    "pct": "/usr/sbin/pct",
    "qm": "/usr/sbin/qm",
    "pvesh": "/usr/bin/pvesh",
    "pveum": "/usr/sbin/pveum",
    "systemctl": "/usr/bin/systemctl",
}
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/root"}
NOT_RUN = 127  # as the shell says it
_ENDED = os.WEXITED | os.WNOWAIT | os.WNOHANG
_KEPT = 16 * 1024  # bytes of output: the last ones, where PVE says why it failed
_LOOK = 0.05  # seconds between two looks at a program whose child holds its output open
_REAP = 1.0  # seconds that a killed program gets to vanish: it may hang in the kernel


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a program. code: None when it had to be killed. reaped: whether it is gone. output: the end of both streams."""

    code: int | None
    output: str
    reaped: bool = True

    @property
    def last_line(self) -> str:
        """Where PVE says why it failed: the task's error is the last thing that its programs write (RESTEnvironment.pm:tee_worker)."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return bounded(lines[-1]) if lines else "no output"


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs are. folder: all in one, for tests."""

    folder: str | None = None

    def run(self, name: str, *arguments: str, limit: float, grace: float = 0.0) -> Ended:
        """Run one to its end; past the limit its whole group is killed, after SIGTERM and `grace` seconds. Never raises OSError."""
        program = PROGRAMS[name] if self.folder is None else os.path.join(self.folder, name)
        try:
            process = _spawn(program, arguments)
        except OSError as error:
            return Ended(NOT_RUN, f"{program}: {error.strerror}")
        tail = bytearray()
        try:
            in_time = _collect(process, tail, time.monotonic() + limit)
            if not in_time:
                _end(process, grace)
        finally:
            if process.stdout is not None:
                process.stdout.close()
        code = process.returncode
        return Ended(code if in_time else None, tail.decode("utf-8", "replace"), code is not None)


def _spawn(program: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_ENVIRONMENT,
        cwd="/",
        bufsize=0,
        start_new_session=True,
    )


def _collect(process: subprocess.Popen[bytes], tail: bytearray, deadline: float) -> bool:
    """Read until the program ended; a child of it may hold its output open. Returns whether that was in time."""
    pipe = process.stdout.fileno() if process.stdout is not None else -1
    is_open = True
    while process.poll() is None or is_open:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        if not is_open:
            with suppress(subprocess.TimeoutExpired):
                process.wait(left)
            continue
        ended = process.returncode is not None
        if select.select([pipe], [], [], 0 if ended else min(left, _LOOK))[0]:
            data = os.read(pipe, _KEPT)
            is_open = bool(data)
            tail += data
            del tail[:-_KEPT]
        elif ended:
            return True
    return True


def _end(process: subprocess.Popen[bytes], grace: float) -> None:
    """Kill the group and whatever it started in sessions of its own.

    `pct delsnapshot` works in a forked worker that is a session of its own (RESTEnvironment.pm:fork_worker); a SIGTERM to the program is
    handed on to the worker, which then ends in order as with a stopped task, a SIGKILL is not.
    """
    family = _descendants(process.pid)
    if grace > 0:
        _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and os.waitid(os.P_PID, process.pid, _ENDED) is None:
            time.sleep(_LOOK)
    _signal_group(process.pid, signal.SIGKILL)  # not reaped yet: the number is still its own
    for pid, began in family.items():
        if _stat(pid)[1] == began:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP)
    deadline = time.monotonic() + _REAP
    while any(_stat(pid)[1] == began for pid, began in family.items()) and time.monotonic() < deadline:
        time.sleep(_LOOK)


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _descendants(root: int) -> dict[int, str]:
    """All processes below one, with their start times: a number may be given anew."""
    table = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdecimal()}
    found: dict[int, str] = {}
    parents = {str(root)}
    while below := {pid: began for pid, (parent, began) in table.items() if parent in parents and pid not in found}:
        found |= below
        parents = {str(pid) for pid in below}
    return found


def _stat(pid: int) -> tuple[str, str]:
    """Parent and start time (proc(5), fields 4 and 22), empty for a process that is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return (fields[1], fields[19]) if len(fields) > 19 and fields[0] != "Z" else ("", "")
