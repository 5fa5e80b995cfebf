"""A PVE host in a folder, on which host-install.sh runs with stand-ins for PVE's programs and real files."""

from __future__ import annotations

import json
import shutil
import socketserver
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .access import Access
from .programs import Standin

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "install/host-install.sh"
TOOLS = (
    "pveversion",
    "hostname",
    "id",
    "getent",
    "adduser",
    "usermod",
    "chown",
    "stat",
    "mv",
    "rm",
    "dpkg-deb",
    "dpkg-query",
    "apt-get",
    "systemctl",
)
PROGRAMS = ("pveum", "pvesh", "guestward")
USER, TOKEN = "guestward-pve1@pve", "guestward-pve1@pve!agent"
TESTER, TESTER_TOKEN = "tester@pve", "tester@pve!t1"
SCRATCH = {"VM.Audit", "VM.PowerMgmt", "VM.Allocate", "VM.Config.Disk", "VM.Config.Options"}


class Serve(socketserver.StreamRequestHandler):
    """One call of a stand-in, which call.sh sends: words that end with NUL, their number first. Answered in lines."""

    def handle(self) -> None:
        host, pid, kill, fail, program, *words = [self._word() for _ in range(int(self._word()))]
        code, out, err = Standin(Path(host), int(pid), kill, fail).run(program, words)
        lines = [str(code), *(f"o{line}" for line in out.splitlines()), *(f"e{line}" for line in err.splitlines())]
        self.wfile.write(("\n".join(lines) + "\n").encode())

    def _word(self) -> str:
        found = bytearray()
        while (byte := self.rfile.read(1)) not in (b"", b"\0"):
            found += byte
        return found.decode()


@cache
def port() -> int:
    """Where the stand-ins of this process are served."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Serve)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


@dataclass(frozen=True)
class Ran:
    """code: exit code; out, err: what it said."""

    code: int
    out: str
    err: str

    def steps(self, mark: str) -> list[str]:
        """What is said of the steps with this mark: done, already so, would do."""
        return [line[12:] for line in self.out.splitlines() if line.startswith(f"{mark:<12}")]


class Host:
    """Node pve1 with two guests and a stranger's user; `guestward` is installed unless a test says otherwise."""

    def __init__(self, folder: Path, version: str = "9.1.3") -> None:
        self.root, self.bin, self.at = folder, folder / "bin", folder / "standin"
        self.major = int(version.partition(".")[0])
        for path in (
            "bin",
            "standin/units",
            "run",
            "etc/guestward",
            "etc/pve/priv",
            "etc/pve/nodes/pve1/lxc",
            "etc/pve/nodes/pve1/qemu-server",
        ):
            (folder / path).mkdir(parents=True)
        self.pve = folder / "etc/pve"
        (self.pve / "local").symlink_to("nodes/pve1")
        (self.pve / "user.cfg").write_text("user:ops@pve:1:0::::::\nuser:root@pam:1:0::::::\n")
        (self.pve / "pve-root-ca.pem").write_text("")
        self.write("version", version)
        self.write("pveversion", f"pve-manager/{version}/0000000000000000 (running kernel: 6.18.44)")
        self.write("uid", "0")
        self.write("fqdn", "pve1.example.org")
        self.write("groups", "guestward www-data")
        self.write("user", "")
        for tool in TOOLS:
            (self.bin / tool).symlink_to(HERE / "tools.sh")
        for program in PROGRAMS:
            (self.bin / program).symlink_to(HERE / "call.sh")
        shutil.copy(HERE / "call.sh", self.at / "guestward")
        # An interpreter that is started in an instant, whatever the test machine calls python3.
        (self.bin / "python3").symlink_to(Path(sys.executable).resolve())
        for unit in ("guestward.service", "guestward-helper.socket"):
            self.write(f"units/{unit}", "")
        self.guest(101)
        self.guest(200, "qemu-server")

    def copy(self, folder: Path) -> Host:
        """The same host in another folder."""
        shutil.copytree(self.root, folder, symlinks=True)
        host = Host.__new__(Host)
        host.root, host.bin, host.at, host.pve, host.major = folder, folder / "bin", folder / "standin", folder / "etc/pve", self.major
        host.config.write_text(self.config.read_text().replace(str(self.root), str(folder)))
        return host

    def program(self, name: str, text: str) -> None:
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def write(self, name: str, text: str) -> None:
        (self.at / name).write_text(text)

    def guest(self, vmid: int, kind: str = "lxc") -> None:
        (self.pve / f"nodes/pve1/{kind}/{vmid}.conf").write_text("")

    def tester(self, *others: str) -> None:
        """A restore tester with a token, which the configuration names first of all; others: grantees besides it."""
        text = self.config.read_text() if self.config.exists() else "[scratch]\n"
        head, _, _ = text.partition("grantees = ")
        named = ", ".join(f'"{id}"' for id in (TESTER_TOKEN, *others))
        self.config.write_text(f"{head}grantees = [{named}]\n")
        if TESTER not in self.access.users:
            self.pveum("user", "add", TESTER)
            self.pveum("user", "token", "add", TESTER, "t1")

    # ------------------------------------------------------------------------------------------------------- running

    def run(self, *words: str, trace: bool = False, **environ: str) -> Ran:
        """The script, as its own process group: a stand-in may take it down with itself."""
        for file in ("steps", "calls"):
            (self.at / file).unlink(missing_ok=True)
        env = {"PATH": f"{self.bin}:/usr/bin:/bin:/usr/sbin:/sbin", "STANDIN": str(self.root), "STANDIN_PORT": str(port())}
        env |= {"GUESTWARD_ROOT": str(self.root), **environ}
        argv = ["bash", *(["-x"] if trace else []), str(SCRIPT), *words]
        done = subprocess.run(
            argv, check=False, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, start_new_session=True, timeout=120
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def ran(self, *words: str, code: int = 0, **environ: str) -> Ran:
        """The same, with the exit code that it must have."""
        found = self.run(*words, **environ)
        assert found.code == code, f"{words} ended with {found.code}\n{found.out}\n{found.err}"
        return found

    def pveum(self, *words: str) -> str:
        """What somebody else does on this host."""
        code, out, err = Standin(self.root).run("pveum", list(words))
        assert code == 0, err
        return out

    @property
    def steps(self) -> list[str]:
        """What was changed in the last run, in order."""
        file = self.at / "steps"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def calls(self) -> list[list[str]]:
        """Every call of PVE's programs and of `guestward` in the last run."""
        lines = (self.at / "calls").read_text().splitlines()
        assert not [line for line in lines if line.endswith("LEAK")], "a secret was in the arguments or the environment of a program"
        return [json.loads(line) for line in lines]

    # ------------------------------------------------------------------------------------------------------ its state

    @property
    def access(self) -> Access:
        return Access(self.pve, self.major)

    @property
    def config(self) -> Path:
        return self.root / "etc/guestward/guestward.toml"

    @property
    def secret(self) -> Path:
        return self.root / "etc/guestward/token"

    def state(self) -> dict[str, str]:
        """All that an installation leaves, without what differs from one to the next: the secret itself."""
        files = {str(file.relative_to(self.root)): file for file in (self.root / "etc").rglob("*") if file.is_file()}
        found = {name: f"{file.stat().st_mode & 0o777:o} {file.read_text()}" for name, file in files.items()}
        for number, secret in enumerate(self.access.secrets.values()):
            found = {name: text.replace(secret, f"SECRET-{number}") for name, text in found.items()}
        return found | {unit.name: unit.read_text() for unit in (self.at / "units").iterdir()}
