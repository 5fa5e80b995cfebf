"""The process: who may ask, what a request is, what is trusted, what is logged; and the programs that it runs."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import time
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guestward import config as agent_config
from guestward.helper import child, desk, facts, main, trust, verbs
from guestward.model.guest import GuestId, GuestKind
from guestward.model.helper import (
    ARGUMENTS,
    EXPECTABLE,
    HELPER_CODE_MEANING,
    MAX_ANSWER,
    MAX_REQUEST,
    TRIED,
    Answer,
    HelperCode,
    Request,
    Verb,
)
from tests.helper.server import REPOSITORY, Server, environment, python
from tests.helper.test_unlock import until
from tests.helper.tree import CONFIG, VM_UNLOCK, Tree, delete, unlock

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


# --- the caller ---


def as_user(uid: int, server: Server, request: bytes) -> bytes:
    """Ask as somebody else, from a process of its own: the kernel notes who connects."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(20)
                client.connect(server.path)
                client.sendall(request)
                while data := client.recv(65536):
                    os.write(writer, data)
        finally:
            os._exit(0)
    os.close(writer)
    server.accept()
    with open(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return data


@as_root
@pytest.mark.parametrize("uid", [NOBODY, 1, 1000])
def test_a_caller_who_is_neither_root_nor_the_service_user_is_refused_and_logged(server: Server, tree: Tree, uid: int) -> None:
    answer = Answer.decode(as_user(uid, server, unlock()))
    assert answer.code is HelperCode.FORBIDDEN
    assert answer.message.startswith(f"uid {uid} (process ")
    assert (tree.calls, tree.looks, tree.lock()) == ([], 0, "backup")
    (record,) = server.records()
    assert (record["level"], record["event"], record["code"], record["peer_uid"]) == ("warn", "helper_answer", "forbidden", uid)


@as_root
def test_the_service_user_may_ask_and_its_name_comes_from_the_unit(server: Server, tree: Tree) -> None:
    server.arguments += ["--user", pwd.getpwuid(NOBODY).pw_name]
    assert Answer.decode(as_user(1, server, unlock())).code is HelperCode.FORBIDDEN
    assert Answer.decode(as_user(NOBODY, server, unlock())).code is HelperCode.OK


# --- the request ---

GARBAGE = {
    "nothing": b"\n",
    "text": b"unlock lxc 101 backup\n",
    "not UTF-8": b'{"verb":"unlock\xff"}\n',
    "a NUL": b"\0\n",
    "a list": b"[]\n",
    "a number": b"1\n",
    "null": b"null\n",
    "no verb": b'{"kind":"lxc","vmid":101,"expect":"backup"}\n',
    "an unknown verb": b'{"verb":"destroy","vmid":101}\n',
    "a verb that is no text": b'{"verb":["unlock"],"vmid":101}\n',
    "a verb in capitals": b'{"verb":"UNLOCK","kind":"lxc","vmid":101,"expect":"backup"}\n',
    "a missing key": b'{"verb":"unlock","kind":"lxc","vmid":101}\n',
    "an extra key": b'{"verb":"unlock","kind":"lxc","vmid":101,"expect":"backup","force":true}\n',
    "an argument of the other verb": b'{"verb":"delete-snapshot","vmid":101,"kind":"lxc"}\n',
    "a kind of a leftover": b'{"verb":"release-scratch","vmid":990001,"kind":"lxc"}\n',
    "no leftover": b'{"verb":"release-scratch"}\n',
    "a guest of a regrant": b'{"verb":"regrant","vmid":990001}\n',
    "somebody to be granted to": b'{"verb":"regrant","users":"a@pve"}\n',
    "a key twice": b'{"verb":"unlock","kind":"lxc","vmid":102,"vmid":101,"expect":"backup"}\n',
    "the verb twice": b'{"verb":"unlock","verb":"unlock","kind":"lxc","vmid":101,"expect":"backup"}\n',
    "an unknown kind": b'{"verb":"unlock","kind":"openvz","vmid":101,"expect":"backup"}\n',
    "a lock that is nobody's business": b'{"verb":"unlock","kind":"lxc","vmid":101,"expect":"migrate"}\n',
    "two lines": unlock() + unlock(),
    "something behind the line": unlock() + b"x",
    "a carriage return between": unlock().replace(b" ", b"\n"),
    "deep": b"[" * 4000 + b"\n",
    "deep objects": b'{"a":' * 700 + b"\n",
}
for _value in (
    "true",
    '"101"',
    "101.0",
    "1.01e2",
    "-101",
    "0",
    "99",
    "1000000000",
    "9" * 3000,
    "NaN",
    "Infinity",
    "-Infinity",
    "null",
    "[101]",
):
    GARBAGE[f"a VMID {_value[:12]}"] = b'{"verb":"delete-snapshot","vmid":%b}\n' % _value.encode()


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_a_bad_request(server: Server, tree: Tree, name: str) -> None:
    answer = server.ask(GARBAGE[name])
    assert answer["code"] == "bad_request", answer
    assert (tree.calls, tree.looks) == ([], 0)
    assert [record["event"] for record in server.records()] == ["helper_answer"]


def test_white_space_and_the_order_of_keys_do_not_matter(server: Server) -> None:
    assert server.code(b' {"vmid" :101, "expect":"backup","kind":"lxc",\t"verb":"unlock"} \r\n') == "ok"


def test_the_longest_line_is_4_kib(server: Server) -> None:
    assert server.code(unlock()[:-1].ljust(MAX_REQUEST - 1) + b"\n") == "ok"
    answer = server.ask(unlock()[:-1].ljust(MAX_REQUEST) + b"\n")
    assert (answer["code"], answer["message"]) == ("bad_request", "refused: longer than 4096 bytes")


def test_a_flood_without_a_line_is_not_read_to_its_end(server: Server) -> None:
    call = server.call()
    call.client.setblocking(False)
    try:
        while True:
            call.client.send(b"x" * 65536)
    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
        call.client.settimeout(20)
    assert b'"bad_request"' in call.read()


@pytest.mark.parametrize("begun", [b"", b"{", unlock()[:-1]])
def test_a_request_that_is_not_ended_is_refused(server: Server, begun: bytes) -> None:
    call = server.call()
    call.send(begun)
    call.end()
    assert call.answer()["message"] == f"refused: the connection ended after {len(begun)} bytes without a whole line"


def test_a_line_that_comes_in_pieces(server: Server) -> None:
    call = server.call()
    for byte in unlock():
        call.send(bytes([byte]))
    assert call.answer()["code"] == "ok"


def test_a_slow_caller_gets_5_seconds_in_all(server: Server) -> None:
    assert main.PATIENCE == 5.0
    server.arguments += ["--patience", "0.3"]
    call = server.call()
    began = time.monotonic()
    try:
        for byte in unlock() * 100:
            call.send(bytes([byte]))
            time.sleep(0.02)
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert time.monotonic() - began < 5
    assert b"no whole line within 0.3 s" in call.read()


def test_a_connection_that_breaks() -> None:
    one, other = socket.socketpair()
    with one:
        with other:
            one.send(b"not read")
        with pytest.raises(ValueError, match=r"^the connection broke: Connection reset by peer$"):
            main._line(one, 5)


def test_a_caller_that_says_nothing(server: Server) -> None:
    server.arguments += ["--patience", "0.1"]
    assert server.call().answer()["code"] == "bad_request"


WORDS = st.sampled_from(
    ["verb", "kind", "vmid", "expect", "unlock", "delete-snapshot", "release-scratch", "lxc", "qemu", "backup", "snapshot", "force"]
)
VALUES = st.one_of(WORDS, st.integers(), st.sampled_from([101, 200, 990001]), st.floats(), st.booleans(), st.none(), st.text(max_size=9))
NESTED = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5), max_leaves=8)
LINES = st.one_of(st.binary(max_size=200), NESTED.map(lambda value: json.dumps(value).encode()))


@settings(max_examples=150)
@given(LINES)
def test_any_line_is_a_request_or_a_value_error_that_does_not_quote_it(line: bytes) -> None:
    try:
        request = Request.decode(line)
    except ValueError as error:
        assert len(str(error)) < 160
        return
    assert request.verb in Verb
    assert ("vmid" in ARGUMENTS[request.verb]) is (request.vmid is not None)
    assert request.vmid is None or 100 <= request.vmid <= 999_999_999
    assert Request.decode(request.encode().rstrip()) == request


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES)
def test_any_bytes_get_an_answer_and_change_nothing(server: Server, tree: Tree, line: bytes) -> None:
    call = server.call()
    call.send(line)
    call.end()
    assert call.answer()["code"] == "bad_request"  # there is no line end, or it is no request
    assert (tree.calls, tree.looks) == ([], 0)


# --- what is trusted ---

ROTTEN: dict[str, Callable[[Path], object]] = {
    "not there": lambda file: file.unlink(),
    "writable by the group": lambda file: file.chmod(0o664),
    "writable by everybody": lambda file: file.chmod(0o646),
    "in a folder of everybody's": lambda file: file.parent.chmod(0o777),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a FIFO": lambda file: (file.unlink(), os.mkfifo(file)),
    "huge": lambda file: file.write_bytes(b"#" * (1 << 20) + b"x"),
    "not TOML": lambda file: file.write_text("[scope"),
    "not UTF-8": lambda file: file.write_bytes(b"\xff"),
    "nested without end": lambda file: file.write_text("a = " + "[" * 100_000),
}
for _text in (
    "scope = 1",
    "scratch = []",
    "[scope]\npools = []",
    '[scope]\npools = "guestward"',
    "[scope]\npools = [1]",
    '[scope]\npools = ["a b"]',
    '[scope]\npools = ["a:b"]',
    "[scope]\nexclude = 101",
    '[scope]\nexclude = ["101"]',
    "[scope]\nexclude = [true]",
    "[scope]\nexclude = [99]",
    "[scratch]\nfirst = 1.5",
    "[scratch]\nfirst = true",
    "[scratch]\nfirst = 990010",
    "[scratch]\nfirst = 1000\nlast = 2000",
    "[scratch]\nlast = 9999999999",
    "[scope]\nexclud = [101]",
    "[scratch]\nfrist = 990001",
    '[locks]\nrecovery = "report"',
    "locks = 1",
    "[locks]\nrecover = 7",
    "[locks]\nrecover = true",
    '[locks]\nrecover = ["report"]',
    '[locks]\nrecover = "Report"',
    '[locks]\nrecover = ""',
    "pve = 1",
    "[pve]\ntoken_id = 1",
    '[pve]\ntoken_id = ""',
    '[pve]\ntoken_id = "a@pve"',
    '[pve]\ntoken_id = "a@pve!b,c"',
    '[pve]\ntoken_id = "-a@pve!bb"',
    '[scratch]\ngrantees = "a@pve"',
    "[scratch]\ngrantees = [1]",
    '[scratch]\ngrantees = ["a"]',
    '[scratch]\ngrantees = ["@a@pve"]',
    '[scratch]\ngrantees = ["a,b@pve"]',
    '[scratch]\ngrantees = ["a@pve\\n"]',
):
    ROTTEN[_text] = lambda file, text=_text: file.write_text(text + "\n")  # type: ignore[misc]


def _linked(file: Path) -> None:
    (file.parent / "y").rename(file.parent / "x")
    file.symlink_to("x")


ROTTEN["a link"] = lambda file: (file.rename(file.parent / "y"), _linked(file))


@pytest.mark.parametrize("name", ROTTEN)
def test_a_configuration_that_cannot_be_trusted_stops_everything(server: Server, tree: Tree, name: str) -> None:
    ROTTEN[name](tree.root / "etc/guestward/guestward.toml")
    answer = server.ask(unlock())
    assert answer["code"] == "config", answer
    assert (tree.calls, tree.looks) == ([], 0)
    assert server.records()[-1]["level"] == "error"


@as_root
@pytest.mark.parametrize("path", ["etc/guestward/guestward.toml", "etc/guestward"])
def test_a_configuration_of_somebody_else_is_refused(server: Server, tree: Tree, path: str) -> None:
    os.chown(tree.root / path, NOBODY, NOBODY)
    assert server.code(unlock()) == "config"


def test_what_stands_in_the_configuration_counts(server: Server, tree: Tree) -> None:
    tree.put("etc/guestward/guestward.toml", '[scope]\npools = ["other"]\n[scratch]\nfirst = 101\nlast = 103\n[locks]\nconfirm = 7\n')
    assert server.code(unlock()) == "scratch_band"
    tree.put("etc/guestward/guestward.toml", '[scope]\npools = ["other"]\n')
    assert server.ask(unlock(200, "qemu"))["message"] == "qemu/200 is in the pool guestward, and not in one of [scope] pools (other)"


def test_defaults_and_bounds_are_the_agents(tmp_path: Path) -> None:
    ours, theirs = trust.Scope(), agent_config.Config().rules()
    assert (ours.pools, ours.exclude) == (theirs.pools, theirs.exclude)
    assert (ours.first, ours.last) == (theirs.scratch_first, theirs.scratch_last)
    assert (ours.token_id, ours.grantees) == (agent_config.Config().pve.token_id, agent_config.Config().scratch.grantees)
    assert ours.report_only is not theirs.lock_recovery
    file = tmp_path / "guestward.toml"
    file.write_text(
        '[pve]\ntoken_id = "a@pve!aa"\n[scope]\npools = ["a/b/c", "d.e-f_g"]\nexclude = [100, 999999999]\n'
        '[scratch]\nfirst = 1000\nlast = 1099\ngrantees = ["a@b.c@pve", "x@pve!a.a"]\n[locks]\nrecover = "report"\n'
    )
    config, scope = agent_config.load(file), trust.read_scope(str(file))
    rules, own = config.rules(), (config.pve.token_id, config.scratch.grantees)
    assert scope == trust.Scope(rules.pools, rules.exclude, rules.scratch_first, rules.scratch_last, not rules.lock_recovery, *own)
    assert scope.report_only
    assert str(agent_config.DEFAULT_FILE).lstrip("/") == main.CONFIG


@pytest.mark.parametrize("request_", [unlock(), VM_UNLOCK, delete()])
def test_where_locks_are_only_reported_nothing_is_touched(server: Server, tree: Tree, request_: bytes) -> None:
    tree.put("etc/guestward/guestward.toml", CONFIG + '[locks]\nrecover = "report"\n')
    answer = server.ask(request_)
    assert answer == {
        "ok": False,
        "code": "report_only",
        "message": "[locks] recover is `report`: locks are told, and neither they nor snapshots are touched",
    }
    assert (tree.calls, tree.looks) == ([], 0)
    tree.put("etc/guestward/guestward.toml", CONFIG + '[locks]\nrecover = "prove"\n')
    assert server.code(request_) in ("ok", "locked")


def test_a_hold_file_that_cannot_be_looked_for_counts_as_unreadable(tree: Tree) -> None:
    (tree.root / "etc/guestward/guestward.toml").unlink()
    (tree.root / "etc/guestward").rmdir()
    tree.put("etc/guestward")
    with pytest.raises(trust.Refused, match="/etc/guestward/hold: Not a directory") as caught:
        facts.Host(str(tree.root), child.Programs(str(tree.root / "bin"))).check_ready()
    assert caught.value.answer.code is HelperCode.UNREADABLE


def test_no_variable_of_the_environment_is_trusted(server: Server, tree: Tree) -> None:
    tree.put("other.toml", CONFIG.replace("guestward", "other"))
    hostile = {"GUESTWARD_CONFIG": str(tree.root / "other.toml"), "LISTEN_FDS": "1", "LISTEN_PID": "1", "GUESTWARD_USER": "nobody"}
    call, process = server.spawn(python("-m", "guestward.helper.main"), **hostile)
    call.send(unlock())
    assert call.answer()["code"] == "ok"
    assert process.wait(20) == 0


# --- as systemd starts it ---


def test_a_connection_as_descriptor_3(server: Server, tree: Tree) -> None:
    shell = 'exec 3<&0 </dev/null >$ROOT/stdout; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"'
    call, process = server.spawn(["sh", "-c", shell, "sh", *python("-m", "guestward.helper.main")], ROOT=str(tree.root))
    call.send(unlock())
    assert call.answer()["code"] == "ok"
    assert (process.wait(20), (tree.root / "stdout").read_text()) == (0, "")


def test_the_installed_program_is_this_one_and_needs_a_connection() -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["guestward-helper"] == f"{main.__name__}:{main.main.__name__}"
    done = subprocess.run(
        python("-m", main.__name__), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment()
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert json.loads(done.stderr.removeprefix("<3>"))["event"] == "helper_failed"


def test_a_datagram_socket_is_no_connection() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        done = subprocess.run(python("-m", main.__name__), stdin=one, stderr=subprocess.DEVNULL, check=False, env=environment())
    assert done.returncode == 2


def test_every_request_and_answer_is_a_line_of_the_journal(server: Server) -> None:
    server.ask(unlock())
    server.ask(b"secret\n")
    asked, answered, refused = server.records()
    assert {key: asked[key] for key in ("level", "event", "verb", "kind", "vmid", "expect", "peer_uid", "peer_pid")} == {
        "level": "info",
        "event": "helper_request",
        "verb": "unlock",
        "kind": "lxc",
        "vmid": 101,
        "expect": "backup",
        "peer_uid": os.getuid(),
        "peer_pid": os.getpid(),
    }
    assert (answered["level"], answered["code"], answered["vmid"]) == ("info", "ok", 101)
    assert answered["message"] == "lxc/101: lock backup cleared"
    assert (refused["level"], refused["code"]) == ("warn", "bad_request")
    assert "secret" not in server.log.read_text()


def test_what_pve_says_is_bounded_and_one_line(server: Server, tree: Tree) -> None:
    tree.before("pct", "printf '\\033[31m'; head -c 5000 /dev/zero | tr '\\0' '\\351'; echo; exit 1")
    answer = server.ask(unlock())
    assert answer["code"] == "failed"
    assert len(answer["message"]) <= 600
    assert answer["message"].isprintable()


def test_a_defect_is_an_unknown_outcome(server: Server, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(at: object, request: object) -> Answer:
        raise RuntimeError("broken")

    monkeypatch.setattr(main, "VERBS", {Verb.UNLOCK: broken})
    one, other = socket.socketpair()
    with one, other:
        other.sendall(unlock())
        answer = main._serve(one, trust.Peer(1, 0), main._options(server.options()), {})
    assert answer.code is HelperCode.UNKNOWN
    assert answer.message.endswith("RuntimeError: broken")


# --- the closed set ---


def test_every_code_has_a_meaning_and_every_verb_a_function() -> None:
    assert set(HELPER_CODE_MEANING) == set(HelperCode)
    assert set(verbs.VERBS) == set(Verb) == set(ARGUMENTS)
    assert {HelperCode.OK} | TRIED <= set(HelperCode)
    assert EXPECTABLE == ("backup", "snapshot", "snapshot-delete")


@pytest.mark.parametrize("code", HelperCode)
def test_an_answer_comes_back_as_it_was_sent(code: HelperCode) -> None:
    answer = Answer(code, "what 'ever' \"it\" \\ is")
    assert Answer.decode(answer.encode()) == answer
    assert len(Answer(code, '\U0001f600\\"\u00e9' * 5000).encode()) <= MAX_ANSWER
    assert answer.encode().isascii()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"ok":true,"code":"ok","message":"x"}',
        b"x\n",
        b"[]\n",
        b'{"ok":true}\n',
        b'{"ok":true,"code":"failed","message":"x"}\n',
        b'{"ok":1,"code":"ok","message":"x"}\n',
        b'{"ok":true,"code":"fine","message":"x"}\n',
        b'{"ok":true,"code":"ok","message":1}\n',
        b"[" * 4000 + b"\n",
        b'"' + b"x" * MAX_ANSWER + b'"\n',
    ],
)
def test_what_the_helper_does_not_say_is_no_answer(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"not|none|contradict"):
        Answer.decode(line)


# --- the flock and the programs, from inside ---


def _is_free(host: facts.Host) -> bool:
    try:
        host.check_flock_is_free()
    except trust.Refused:
        return False
    return True


def test_the_flock_is_given_back_in_time_even_where_we_hang(tree: Tree) -> None:
    host = facts.Host(str(tree.root), child.Programs(str(tree.root / "bin")))
    with host.no_backup_begins(0.2) as held:
        until(lambda: _is_free(host))  # we hang, as in a read of pmxcfs that does not come back
        with pytest.raises(trust.Refused, match="too long"):
            held.budget()


def test_the_real_limits() -> None:
    assert (desk.HOLD, desk.LONGEST, desk.REGRANT) == (8.0, 600.0, 50.0)
    options = main._options([])
    assert (options.root, options.programs, options.user) == ("/", None, "guestward")
    assert (options.hold, options.longest, options.regrant) == (8.0, 600.0, 50.0)


def test_the_real_programs_are_absolute() -> None:
    assert all(path.startswith(("/usr/sbin/", "/usr/bin/")) and path.endswith(f"/{name}") for name, path in child.PROGRAMS.items())
    done = child.Programs().run("systemctl", "--version", limit=5) if os.path.exists("/usr/bin/systemctl") else None
    assert done is None or "systemd" in done.output


def test_a_program_that_closes_its_output_and_hangs_is_killed(tree: Tree) -> None:
    tree.before("pct", "exec >&- 2>&-; exec sleep 300")
    done = child.Programs(str(tree.root / "bin")).run("pct", limit=0.2)
    assert (done.code, done.reaped) == (None, True)


def test_what_a_killed_program_began_is_waited_for_but_not_for_ever(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker that hangs in the kernel: a SIGKILL does nothing to it."""
    with subprocess.Popen(["sleep", "300"]) as hung:
        monkeypatch.setattr(child, "_descendants", lambda root: {hung.pid: child._stat(hung.pid)[1]})
        monkeypatch.setattr(child, "_REAP", 0.3)
        monkeypatch.setattr(os, "kill", lambda pid, number: None)
        tree.before("pct", "exec sleep 300")
        began = time.monotonic()
        done = child.Programs(str(tree.root / "bin")).run("pct", limit=0.1)
        assert 0.4 <= time.monotonic() - began < 10
        assert (done.code, done.reaped) == (None, True)
        monkeypatch.undo()
        hung.kill()


def test_a_zombie_is_gone() -> None:
    with subprocess.Popen(["true"]) as ended:
        until(lambda: os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None)
        assert child._stat(ended.pid) == ("", "")


def test_a_program_that_cannot_be_killed_may_still_act(tree: Tree) -> None:
    done = child.Ended(None, "", reaped=False)
    host = facts.Host(str(tree.root), child.Programs(str(tree.root / "bin")))
    answer = desk.unlocked(host, GuestId(GuestKind.LXC, 101), "backup", done)
    assert answer.code is HelperCode.UNKNOWN


def test_a_request_of_the_delete_verb() -> None:
    assert Request.decode(delete().rstrip()) == Request(Verb.DELETE_SNAPSHOT, vmid=101)
