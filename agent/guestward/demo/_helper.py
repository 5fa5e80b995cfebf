"""The root side of a stand-in PVE host: the real root helper behind a real socket, and stand-ins for the programs that it runs.

A thread does what systemd does for the helper: it accepts, and starts one process for each connection. PVE's programs are short scripts;
each hands its arguments to this process, where the world lives, and ends as it is told here.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shlex
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ._state import Guest, conf_path, digest

if TYPE_CHECKING:
    from ._world import World

SOCKET = "run/guestward/helper.sock"
LOG = "var/log/guestward-helper.log"
FOLDER = "usr/bin"
NAMES = ("pct", "qm", "pvesh", "pveum")
PATIENCE = 5.0
SCRIPT = """\
#!/bin/sh
# Stand-in: does what the stand-in PVE host says.
exec @PYTHON@ -IS @CLIENT@ "${0##*/}" "$@"
"""
CLIENT = """\
import json, os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)
folder = os.open(@FOLDER@, os.O_PATH)
with socket.socket(socket.AF_UNIX) as host:
    host.connect(f"/proc/self/fd/{folder}/@NAME@")
    host.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    code, said = json.loads(host.makefile().readline())
print(said, end="", file=sys.stderr if code else sys.stdout)
sys.exit(code)
"""

Said = tuple[int, str]  # exit code, and the line that is printed


def _listener(path: Path) -> socket.socket:
    """A socket that listens there. A socket's address holds 107 bytes, and a test's folder may be deep: so by way of its folder."""
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_PATH)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        listener.listen(8)
    finally:
        os.close(folder)
    return listener


class Programs:
    """PVE's programs of one host. ran: every call, as a command line; failures: what the next call of a verb fails with."""

    def __init__(self, world: World) -> None:
        """Write the scripts; they work from `serve` on."""
        self._world = world
        self.ran: list[str] = []
        self.failures: dict[str, list[str]] = {}
        self._path = world.root / "usr/lib/pvehost/programs"
        self._server: asyncio.Server | None = None
        client = self._path.with_name("program.py")
        client.parent.mkdir(parents=True, exist_ok=True)
        client.write_text(CLIENT.replace("@FOLDER@", repr(str(self._path.parent))).replace("@NAME@", self._path.name))
        text = SCRIPT.replace("@PYTHON@", shlex.quote(sys.executable)).replace("@CLIENT@", shlex.quote(str(client)))
        for name in NAMES:
            script = world.root / FOLDER / name
            script.write_text(text)
            script.chmod(0o755)

    async def serve(self) -> None:
        """Answer the scripts from now on."""
        # Not start_unix_server: from Python 3.13 on it looks the address up again, and that folder's descriptor is closed by then.
        self._server = await asyncio.start_server(self._one, sock=_listener(self._path))

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One call; a program that is killed hands that on to the task which it began."""
        work = asyncio.ensure_future(self.run(json.loads(await reader.readline())))
        gone = asyncio.ensure_future(reader.read())
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            writer.write(json.dumps(work.result()).encode() + b"\n")
            with suppress(ConnectionError):
                await writer.drain()
        for unneeded in (work, gone):
            unneeded.cancel()
        writer.close()
        self._world.changed()

    async def run(self, argv: list[str]) -> Said:
        """What the program does, with exit codes and texts as recorded (pve-9.1; texts of pvesh by API2/Qemu.pm)."""
        self.ran.append(" ".join(argv))
        match argv:
            case ["pct", "unlock", vmid]:
                return self._unlock("lxc", int(vmid), self._failure("unlock"))
            case ["qm", "unlock", vmid]:
                return self._unlock("qemu", int(vmid), self._failure("unlock"))
            case ["pct", "delsnapshot", vmid, name]:
                return await self._delete(int(vmid), name, self._failure("delsnapshot"))
            case ["pvesh", "set", path, "--delete", "lock", "--skiplock", "1", "--digest", wanted]:
                return self._set(int(path.split("/")[4]), wanted, self._failure("unlock"))
            case ["pveum", "acl", "modify", path, *lists, "--roles", "GuestwardScratch", "--propagate", "1"]:
                return self._grant(path, ",".join(lists[1::2]).split(","), self._failure("acl"))
        return 255, "400 not enough arguments\n"

    def _failure(self, verb: str) -> str:
        return next(iter(self.failures.get(verb, [])), "") and self.failures[verb].pop(0)

    def _found(self, kind: str, vmid: int) -> Guest | Said:
        guest = self._world.here(kind, vmid)
        if guest is None:
            return 2, f"Configuration file '{conf_path(self._world.node, kind, vmid)}' does not exist\n"
        return guest if self._world.quorate else (255, "cluster not ready - no quorum?\n")

    def _unlock(self, kind: str, vmid: int, failure: str) -> Said:
        guest = self._found(kind, vmid)
        if not isinstance(guest, Guest):
            return guest
        if failure:
            return 255, f"{failure}\n"
        if guest.lock is None and kind == "lxc":
            return 255, "no lock found trying to remove any lock\n"
        guest.lock = None
        self._world.changed()
        return 0, ""

    def _set(self, vmid: int, wanted: str, failure: str) -> Said:
        guest = self._found("qemu", vmid)
        if not isinstance(guest, Guest):
            return guest
        if failure or digest(guest) != wanted:
            return 255, f"{failure or 'checksum mismatch (file change by other user?)'}\n"
        guest.lock = None
        self._world.changed()
        return 0, f"update VM {vmid}: -delete lock -skiplock 1\n"

    def _grant(self, path: str, whos: list[str], failure: str) -> Said:
        if not self._world.quorate:
            return 13, "ACL update failed: cfs-lock 'file-user_cfg' error: no quorum!\n"
        unknown = [f"user '{who}' does not exist" for who in whos if who not in self._world.known]
        if failure or unknown:
            return 255, f"ACL update failed: {failure or unknown[0]}\n"
        for who in whos:
            self._world.grant_scratch(path, who)
        self._world.changed()
        return 0, ""

    async def _delete(self, vmid: int, name: str, failure: str) -> Said:
        guest = self._found("lxc", vmid)
        if not isinstance(guest, Guest):
            return guest
        task = self._world.delete_snapshot(guest, name, "root@pam", by_api=False, failure=failure)
        try:
            if task.job is not None:
                await asyncio.wait([task.job])
        except asyncio.CancelledError:
            await self._world.interrupt(task)
            raise
        return (0, "") if task.exitstatus == "OK" else (255, f"{task.exitstatus}\n")


class HelperSocket:
    """What systemd does: a listening socket, and one process of the real helper for each connection. delay: before each, in seconds."""

    def __init__(self, root: Path) -> None:
        """Nothing is opened yet."""
        self._root = root
        self.delay = 0.0
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        """Listen from now on."""
        path = self._root / SOCKET
        path.parent.mkdir(parents=True, exist_ok=True)
        self._listener = listener = _listener(path)
        path.chmod(0o660)
        self._thread = threading.Thread(target=self._accept, args=(listener,), name="helper's socket", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; the socket's file goes too."""
        if self._listener is None or self._thread is None:
            return
        (self._root / SOCKET).unlink(missing_ok=True)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._listener = None

    def end(self) -> None:
        """The same, and no helper is left at work."""
        self._ending.set()
        self.close()
        for process in self._processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                self._ending.wait(self.delay)
                if not self._ending.is_set():
                    self._spawn(connection)

    def _spawn(self, connection: socket.socket) -> None:
        self._processes = [process for process in self._processes if process.poll() is None]
        root, log, peer = str(self._root), self._root / LOG, connection.fileno()
        command = [sys.executable, "-m", "guestward.helper.main", "--root", root, "--programs", f"{root}/{FOLDER}"]
        if os.getuid() != 0:
            with suppress(KeyError):  # a user without a name: the helper then serves root only, and says so
                command += ["--user", pwd.getpwuid(os.getuid()).pw_name]
        with log.open("ab") as errors:
            self._processes.append(subprocess.Popen(command, stdin=peer, stdout=peer, stderr=errors, start_new_session=True))
