"""`guestward check` against a stand-in PVE host: what it finds, what it says about it, and that it only reads."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import socketserver
import sqlite3
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guestward.adapters import store
from guestward.cli import main
from guestward.demo.pvehost import PveHost
from guestward.model.memory import Hold

NEEDED = [
    ("VM.Audit", "/pool/guestward"),
    ("VM.PowerMgmt", "/pool/guestward"),
    ("Pool.Audit", "/pool/guestward"),
    ("Sys.Audit", "/nodes/pve1"),
    ("Datastore.Audit", "/storage"),
]
ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PveHost]:
    with PveHost(tmp_path_factory.mktemp("host")) as host:
        host.add_guest(9201, name="web")
        host.add_guest(103, "qemu", name="db")
        yield host
        methods = {method for method, _ in host.requests_seen()}
        assert methods == {"GET"}, "check only reads"
        assert host.effects() == []


@pytest.fixture
def own(tmp_path: Path) -> Iterator[PveHost]:
    """A host that a test may spoil."""
    with PveHost(tmp_path / "host") as host:
        host.add_guest(9201, name="web")
        yield host
        assert {method for method, _ in host.requests_seen()} <= {"GET"}


Run = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Check as a program and as a person would; both must come to the same."""

    def check(host: PveHost, **pve: Any) -> tuple[int, list[dict[str, Any]]]:
        file = configuration(tmp_path, host, **pve)
        code = main(["check", "--config", str(file), "--output", "json"])
        told = capsys.readouterr()
        assert told.err == ""
        body = json.loads(told.out)
        assert (set(body), body["schema"], body["node"]) == ({"schema", "node", "at", "data"}, 1, pve.get("node", "pve1"))
        findings = body["data"]["findings"]
        assert body["data"]["ok"] is (code == 0)
        assert all(finding["hint"] for finding in findings if finding["note"] or not finding["ok"]), "what to do is always said"
        assert main(["check", "--config", str(file)]) == code
        lines = capsys.readouterr().out
        for finding in findings:
            mark = "note  " if finding["note"] else "ok    " if finding["ok"] else "BAD   "
            assert f"{mark}{finding['what']}: " in lines
        assert host.token_secret not in told.out + lines
        assert lines.count("what to do: ") == sum(bool(finding["hint"]) for finding in findings)
        return code, findings

    return check


def configuration(folder: Path, host: PveHost, *, trust: str | None = None, listen: str = "127.0.0.1:0", **pve: Any) -> Path:
    """The agent's configuration for a host; what a test names is different."""
    state = pve.pop("state", folder / "state")
    pools = pve.pop("pools", ["guestward"])
    if state == folder / "state":
        state.mkdir(exist_ok=True)
    section = {"port": host.port, "node": "pve1", "token_id": host.token_id, "token_file": str(host.token_file), "timeout": "5s"} | pve
    lines = [f"{key} = {json.dumps(value)}" for key, value in section.items()]
    trusted = f'ca_file = "{host.ca_file}"' if trust is None else trust
    file = folder / "guestward.toml"
    file.write_text(
        "\n".join(["[pve]", *lines, trusted, "[scope]", f"pools = {json.dumps(pools)}"])
        + f'\n[metrics]\nlisten = "{listen}"\n[state]\ndir = "{state}"\n[host]\nroot = "{host.root}"\n'
    )
    return file


def bad(findings: list[dict[str, Any]]) -> list[str]:
    return [finding["what"] for finding in findings if not finding["ok"]]


def found(findings: list[dict[str, Any]], what: str) -> dict[str, Any]:
    return next(finding for finding in findings if finding["what"] == what)


# ------------------------------------------------------------------- all good


def test_all_good(shared: PveHost, run: Run) -> None:
    code, findings = run(shared)
    assert (code, bad(findings)) == (0, [])
    assert found(findings, "pool guestward")["detail"] == "2 guests on this node, 0 on others"
    assert found(findings, "HA and storages")["detail"] == "0 guests under HA; storages: local available, local-lvm available"


def test_a_pinned_certificate(shared: PveHost, run: Run) -> None:
    assert run(shared, trust=f'fingerprint = "{shared.fingerprint}"')[0] == 0


@pytest.mark.skipif(not ROOT, reason="as root")
def test_root_without_a_service_user_says_so(shared: PveHost, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_there(_: str) -> Any:
        raise KeyError

    monkeypatch.setattr("pwd.getpwnam", nobody_there)
    code, findings = run(shared)
    assert (code, found(findings, "user")["note"]) == (0, True)
    assert found(findings, "user")["detail"] == "checked as root; the service user guestward does not exist"


def test_findings_come_one_by_one(own: PveHost, tmp_path: Path) -> None:
    own.fault("GET /cluster/resources", kind="hang")
    words = [sys.executable, "-m", "guestward", "check", "--config", str(configuration(tmp_path, own))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ok    tasks of the node"):
                break
        assert process.poll() is None, "the next answer has not come"
        own.clear_faults()
        assert "HA and storages" in process.stdout.read()


def test_the_reader_may_go_away(shared: PveHost, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "guestward", "check", "--config", str(configuration(tmp_path, shared))]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, timeout=20, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_cannot_be_written_is_a_failure(shared: PveHost, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "guestward", "check", "--output", "json", "--config", str(configuration(tmp_path, shared))]
    with open("/dev/full", "w") as full:
        assert subprocess.run(words, stdout=full, stderr=subprocess.PIPE, timeout=20, check=False).returncode == 1


def test_ctrl_c(shared: PveHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("guestward.adapters.pve.ProxmoxPve.privileges", interrupted)
    assert main(["check", "--config", str(configuration(tmp_path, shared))]) == 3
    assert "interrupted" in capsys.readouterr().err


# --------------------------------------------------------------------- grants


@pytest.mark.parametrize("who", ["user", "token", "both"])
@pytest.mark.parametrize(("privilege", "path"), NEEDED)
def test_a_missing_grant_is_named_and_nothing_else(privilege: str, path: str, who: str, shared: PveHost, run: Run) -> None:
    shared.revoke(privilege, path, who)
    try:
        code, findings = run(shared)
    finally:
        shared.grant(privilege, path, who, propagate=not path.startswith("/nodes"))
    assert (code, bad(findings)) == (5, [f"grant {privilege} on {path}"])
    assert "grant it to the token and to its user" in found(findings, f"grant {privilege} on {path}")["hint"]


def test_a_missing_grant_and_something_else_is_a_failure(own: PveHost, run: Run) -> None:
    own.revoke("Datastore.Audit", "/storage")
    own.token_file.chmod(0o640)
    own.fault("GET /cluster/resources", 500)
    code, findings = run(own)
    assert (code, bad(findings)) == (1, ["grant Datastore.Audit on /storage", "HA and storages"])


def test_a_pool_that_does_not_exist(shared: PveHost, run: Run) -> None:
    code, findings = run(shared, pools=["guestward", "nope"])
    assert (code, bad(findings)) == (5, [f"grant {privilege} on /pool/nope" for privilege, path in NEEDED if path.startswith("/pool")])
    assert "perhaps there is no such pool" in found(findings, "grant VM.Audit on /pool/nope")["detail"]


def test_a_pool_with_grants_that_is_not_shown(own: PveHost, run: Run) -> None:
    own.fault("GET /pools", kind="null")
    code, findings = run(own)
    assert (code, bad(findings)) == (1, ["pool guestward"])


def test_an_empty_pool_is_a_note(own: PveHost, run: Run) -> None:
    own.leave_pool(9201)
    code, findings = run(own)
    assert (code, found(findings, "pool guestward")["note"]) == (0, True)


def test_a_guest_that_an_acl_hides(own: PveHost, run: Run) -> None:
    """A deeper entry replaces what would be inherited (C83)."""
    own.fault("GET /nodes/pve1/lxc", kind="null")
    code, findings = run(own)
    assert code == 1
    assert bad(findings) == ["list of lxc guests", "pool guestward"]
    assert "lxc/9201 is a member on this node, but in no list" in found(findings, "pool guestward")["detail"]


# --------------------------------------------------------- token and trust


@pytest.mark.parametrize(
    ("spoil", "detail"),
    [
        ("missing", "does not exist"),
        ("empty", "is empty"),
        ("blank", "is empty"),
        ("two lines", "more than one line"),
        ("blanks", "holds blanks"),
        ("other token", "is for token other@pve!x"),
        ("folder", "is not a regular file"),
        ("long", "longer than"),
    ],
)
def test_a_token_file_that_is_none(spoil: str, detail: str, shared: PveHost, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "token"
    contents = {
        "empty": "",
        "blank": " \n",
        "two lines": "a\nb\n",
        "blanks": "a b",
        "other token": "other@pve!x=secret",
        "long": "x" * 5000,
    }
    if spoil == "folder":
        file.mkdir()
    elif spoil != "missing":
        file.write_text(contents[spoil])
    code, findings = run(shared, token_file=str(file))
    assert (code, bad(findings)) == (1, ["token"])
    assert detail in found(findings, "token")["detail"]
    assert found(findings, "PVE API")["note"] is True, "what nobody can ask is not a fault of its own"


def test_a_token_file_that_everybody_may_read(shared: PveHost, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(shared.token_secret)
    file.chmod(0o644)
    code, findings = run(shared, token_file=str(file))
    assert (code, found(findings, "token")["note"], found(findings, "token")["hint"]) == (0, True, f"chmod 0640 {file}")


def test_a_wrong_secret(shared: PveHost, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("not-the-secret")
    file.chmod(0o640)
    code, findings = run(shared, token_file=str(file))
    assert (code, bad(findings)) == (1, ["PVE API"])
    assert "401 invalid token value!" in found(findings, "PVE API")["detail"]
    assert "a new one: host-install.sh repair" in found(findings, "PVE API")["hint"]
    assert "not-the-secret" not in json.dumps(findings)


@pytest.mark.parametrize(
    ("trust", "detail"),
    [
        ('fingerprint = "' + "a" * 64 + '"', "is not the pinned one"),
        ("", "is not signed by a CA that this system trusts"),
        ('ca_file = "/nowhere/ca.pem"', "cannot be read"),
        ('ca_file = "/etc/passwd"', "holds no certificate"),
    ],
)
def test_a_peer_that_is_not_trusted(trust: str, detail: str, shared: PveHost, run: Run) -> None:
    seen = len(shared.requests_seen())
    code, findings = run(shared, trust=trust)
    assert (code, bad(findings)) == (1, ["PVE API"])
    assert detail in found(findings, "PVE API")["detail"]
    assert "ca_file, fingerprint" in found(findings, "PVE API")["hint"]
    assert len(shared.requests_seen()) == seen, "the token was not shown to it"


def test_another_ca(shared: PveHost, own: PveHost, run: Run) -> None:
    code, findings = run(shared, trust=f'ca_file = "{own.ca_file}"')
    assert (code, bad(findings)) == (1, ["PVE API"])
    assert f"is not signed by the CA in {own.ca_file}" in found(findings, "PVE API")["detail"]


def test_nobody_listens(own: PveHost, run: Run) -> None:
    own.pveproxy(False)
    code, findings = run(own)
    assert (code, bad(findings)) == (1, ["PVE API"])
    assert "refuses connections" in found(findings, "PVE API")["detail"]
    assert "systemctl status pveproxy" in found(findings, "PVE API")["hint"]
    own.pveproxy(True)


# ------------------------------------------------------------------ the host


def test_the_name_of_another_node(shared: PveHost, run: Run) -> None:
    code, findings = run(shared, node="pve7")
    assert (code, bad(findings)) == (1, ["node"])
    assert found(findings, "node")["detail"] == "this is node pve1, not pve7"


def test_pmxcfs_is_down(own: PveHost, run: Run, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    shutil.copyfile(own.ca_file, ca)
    own.pmxcfs(False)
    code, findings = run(own, trust=f'ca_file = "{ca}"')
    assert code == 1
    assert {"node", "PVE API", "quorum", "guests under /etc/pve"} <= set(bad(findings))
    own.pmxcfs(True)


def test_a_link_that_cannot_be_read(own: PveHost, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("guestward.cli.check.os.readlink", refused)
    code, findings = run(own)
    assert (code, found(findings, "node")["detail"]) == (1, "/etc/pve/local: Permission denied")


def loop(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("proc/locks", "flock on vzdump.lock"),
        ("run/vzdump.pid", "vzdump.pid"),
        ("etc/guestward/hold/x", "hold file"),
        ("etc/pve/nodes/pve1/lrm_status", "maintenance mode"),
        ("usr/bin/systemctl", "pve-guests.service"),
        ("usr/bin/systemctl", "state of systemd"),
    ],
)
def test_a_witness_that_cannot_be_read(path: str, what: str, own: PveHost, run: Run) -> None:
    if what == "flock on vzdump.lock":
        (own.root / "run/vzdump.lock").touch()
    if path.startswith("etc/guestward"):
        own.token_file.rename(own.root / "token")
        loop(own.root / "etc/guestward")
        code, findings = run(own, token_file=str(own.root / "token"))
    else:
        loop(own.root / path)
        code, findings = run(own)
    assert code == 1
    assert what in bad(findings)
    assert set(bad(findings)) <= {what, "pve-guests.service", "state of systemd"}
    assert "Until then guests are left alone" in found(findings, what)["hint"]


# ---------------------------------------------------------- lock recovery


def test_the_root_helper_is_looked_for_and_not_asked(own: PveHost, run: Run) -> None:
    assert found(run(own)[1], "root helper")["detail"].endswith("helper.sock is there, and may be used")
    assert own.helper_log() == [], "each connection would start a process of root's"
    own.helper(False)
    code, findings = run(own)
    helper = found(findings, "root helper")
    assert (code, helper["note"]) == (0, True), "guests are guarded without it"
    assert "helper.sock is not there: no stale lock can be cleared; guests are guarded all the same" in helper["detail"]
    assert "systemctl enable --now guestward-helper.socket" in helper["hint"]
    path = own.root / "run/guestward/helper.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert "nobody listens" in found(run(own)[1], "root helper")["detail"]
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        assert "something else" in found(run(own)[1], "root helper")["detail"]


def test_who_only_reports_needs_no_helper(own: PveHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.helper(False)
    file = configuration(tmp_path, own)
    file.write_text(file.read_text() + '[locks]\nrecover = "report"\n')
    assert main(["check", "--config", str(file)]) == 0
    out = capsys.readouterr().out
    assert 'ok    root helper: is not needed: [locks] recover is "report"' in out
    assert "root helper: is not there" not in out


def test_what_lock_recovery_reads(own: PveHost, run: Run) -> None:
    own.snapshot(9201, "before")
    code, findings = run(own)
    assert (code, found(findings, "snapshots of containers")["detail"]) == (0, "lxc/9201 has 1")
    assert found(findings, "times of guests' files")["detail"] == "readable"
    own.fault("GET /nodes/pve1/lxc/9201/snapshot", 500)
    code, findings = run(own)
    assert (code, bad(findings)) == (1, ["snapshots of containers"])
    own.clear_faults()
    (own.root / "etc/pve/nodes/pve1/lxc/9201.conf").unlink()
    code, findings = run(own)
    assert (code, found(findings, "times of guests' files")["note"]) == (0, True)
    assert "the file of lxc/9201" in found(findings, "times of guests' files")["detail"]


def test_a_node_without_containers(own: PveHost, run: Run) -> None:
    own.destroy(9201)
    own.add_guest(103, "qemu")
    code, findings = run(own)
    assert (code, "no container" in found(findings, "snapshots of containers")["detail"]) == (0, True)


def test_a_closed_gate_is_no_fault(own: PveHost, run: Run) -> None:
    own.boot_phase("booting")
    code, findings = run(own)
    assert (code, found(findings, "host gate")["note"]) == (0, True)
    own.boot_phase("failed")
    code, findings = run(own)
    assert (code, found(findings, "host")["note"]) == (0, True)
    assert "pve-guests.service failed" in found(findings, "host")["detail"]


def test_without_quorum(own: PveHost, run: Run) -> None:
    own.quorum(False)
    code, findings = run(own)
    assert code == 0
    assert "no_quorum" in found(findings, "host gate")["detail"]
    own.quorum(True)


# ------------------------------------------------------------ state and port


def test_a_state_folder_that_is_missing(shared: PveHost, run: Run, tmp_path: Path) -> None:
    code, findings = run(shared, state=tmp_path / "none")
    assert (code, bad(findings)) == (0, [])
    assert "the agent makes it" in found(findings, "state")["detail"]
    assert not (tmp_path / "none").exists(), "check only reads"
    code, findings = run(shared, state=tmp_path / "none" / "deeper")
    assert (code, bad(findings)) == (1, ["state"])
    assert "No such file or directory" in found(findings, "state")["detail"]
    assert "can write" in found(findings, "state")["hint"]


SAID = {
    "rubbish": ("not a database", "sets it aside when it starts", "its holds are gone: set them again"),
    "inner page": ("is damaged", "sets it aside when it starts", "holds"),
    "hold": ("does not hold what it should", "sets it aside when it starts", "its holds are gone: set them again"),
    "newer": ("written by a newer Guestward", "the agent leaves it", "holds that were read go on: 1"),
    "newer without holds": ("written by a newer Guestward", "the agent leaves it", "no guest is started until"),
}


@pytest.mark.parametrize("damage", SAID)
def test_a_state_that_is_none(damage: str, shared: PveHost, run: Run, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    file = state / store.FILE
    store.add_hold(state, Hold(None, "x" * 9000, "x", 1.0, "b", 0.0, 0.0))  # reaches over several pages
    assert (run(shared)[0], len(store.list_holds(state))) == (0, 1)
    if damage == "rubbish":
        file.write_text("rubbish " * 2000)
    elif damage == "inner page":
        data = bytearray(file.read_bytes())
        data[-4096:] = b"\xff" * 4096
        file.write_bytes(data)
    else:
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("UPDATE hold SET hold = '{}'" if damage == "hold" else "PRAGMA user_version=99")
            if damage == "newer without holds":
                connection.execute("DROP TABLE hold")
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    code, findings = run(shared)
    assert (code, bad(findings)) == (1, ["state"])
    assert all(part in found(findings, "state")["detail"] for part in SAID[damage]), found(findings, "state")
    assert f"{file}* away" in found(findings, "state")["hint"]
    assert {path.name: path.read_bytes() for path in state.iterdir()} == before, "check only reads"


@pytest.fixture
def open_tmp() -> Iterator[Path]:
    """A folder that another user can get at; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="guestward-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_state_that_belongs_to_somebody_else(
    what: str, shared: PveHost, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a call by root on a host where the service user came later. Root may do everything, so access(2) is asked for another."""
    state = tmp_path / "state"
    state.mkdir()
    if what == "folder":

        def refused(**_: object) -> Any:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("guestward.cli.check.tempfile.TemporaryFile", refused)
    else:
        store.add_hold(state, Hold(None, "", "x", 1.0, "b", 0.0, 0.0))
        monkeypatch.setattr("guestward.cli.check.os.access", lambda *_: False)
    code, findings = run(shared)
    assert (code, bad(findings)) == (1, ["state"])
    assert "can write" in found(findings, "state")["hint"]


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
def test_as_another_user_for_real(open_tmp: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with PveHost(open_tmp / "host") as host:
        host.add_guest(101)
        file = configuration(open_tmp, host)
        file.chmod(0o644)
        words = ["check", "--output", "json", "--config", str(file)]
        assert main(words) == 0, "root may; and all that is needed is imported now"
        capfd.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            code = 99
            with contextlib.suppress(BaseException):
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                code = main(words)
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    findings = json.loads(capfd.readouterr().out)["data"]["findings"]
    assert {"token", "state"} <= set(bad(findings))
    assert "Permission denied" in found(findings, "token")["detail"]
    assert "Permission denied" in found(findings, "state")["detail"]
    assert found(findings, "user")["detail"].startswith("checked as ")
    assert "may not be used by this user" in found(findings, "root helper")["detail"]


class _Page(socketserver.BaseRequestHandler):
    page = b""

    def handle(self) -> None:
        self.request.recv(1000)
        self.request.sendall(self.page)


@contextlib.contextmanager
def listening(page: bytes) -> Iterator[int]:
    handler = type("Page", (_Page,), {"page": page})
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_port_that_somebody_else_has(shared: PveHost, run: Run) -> None:
    with listening(b"HTTP/1.0 404 Not Found\r\n\r\n") as port:
        code, findings = run(shared, listen=f"127.0.0.1:{port}")
    assert (code, bad(findings)) == (1, ["metrics"])
    assert "ss -ltnp" in found(findings, "metrics")["hint"]


def test_a_port_that_the_agent_has(shared: PveHost, run: Run) -> None:
    with listening(b'HTTP/1.0 200 OK\r\n\r\nguestward_build_info{version="1"} 1.0\n') as port:
        code, findings = run(shared, listen=f"127.0.0.1:{port}")
    assert (code, found(findings, "metrics")["detail"]) == (0, f"127.0.0.1:{port} is served by the agent that runs")


def test_an_address_that_is_not_ours(shared: PveHost, run: Run) -> None:
    code, findings = run(shared, listen="192.0.2.1:9612")
    assert (code, bad(findings)) == (1, ["metrics"])


@pytest.mark.skipif(not socket.has_ipv6, reason="IPv6")
def test_an_ipv6_address(shared: PveHost, run: Run) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no ::1")
    assert run(shared, listen="[::1]:0")[0] == 0


def test_a_configuration_that_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.toml").write_text("[pve]\ntoken = 'x'\n")
    assert main(["check", "--config", str(tmp_path / "g.toml"), "--output", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "configuration"


# ------------------------------------------------------------------------------------------------------------------- rights only


def test_rights_on_paths(shared: PveHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names only; a path that is asked for is answered also where nothing is held."""
    words = ["check", "--config", str(configuration(tmp_path, shared)), "--rights", "/vms", "/vms/989999"]
    assert main([*words, "--output", "json"]) == 0
    paths = json.loads(capsys.readouterr().out)["data"]["paths"]
    assert (paths["/vms"], paths["/vms/989999"], paths["/nodes/pve1"]) == ([], [], ["Sys.Audit"])
    assert "VM.Allocate" in paths["/vms/990009"] and "VM.Allocate" not in paths["/vms/9201"]
    assert main(words) == 0
    assert "/vms/989999      none\n" in capsys.readouterr().out


def test_rights_say_whose_fault_it_is(own: PveHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "--config", str(configuration(tmp_path, own)), "--output", "json", "--rights", "/"]

    def fault() -> str:
        assert main(words) == 1
        return str(json.loads(capsys.readouterr().out)["error"]["code"])

    own.auth(False)
    assert fault() == "token_refused"
    own.token_file.write_text("")
    assert fault() == "secret"
    own.token_file.write_text("x\n")
    own.pveproxy(False)
    assert fault() == "api"
