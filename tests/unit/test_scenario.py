"""Scenarios: what is read, what is made of it, and where and how a file that is wrong is refused."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guestward.sim.log import Effect
from guestward.sim.scenario import Scenario, ScenarioError, load
from guestward.sim.toml_lines import Lines

HEAD = 'summary = "test"\nuntil = "10m"\n'
GUEST = HEAD + "[[guest]]\nvmid = 101\n"


def refused(tmp_path: Path, text: str) -> ScenarioError:
    file = tmp_path / "scenario.toml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load(file)
    assert str(caught.value) == f"{file}:{caught.value.line}: {caught.value.reason}"
    assert caught.value.reason.isprintable()
    return caught.value


def read(tmp_path: Path, text: str) -> Scenario:
    file = tmp_path / "scenario.toml"
    file.write_text(text)
    return load(file)


# --------------------------------------------------------------------- refused. The line is the one that says HERE, or the last one.

WRONG = {
    # The whole
    "no summary": ('until = "1m" ', 1, "summary is missing; write at the top one line for people, as in summary = "),
    "no until": ('# HERE\nsummary = "x"', None, 'until is missing; write at the top when it ends, as in until = "15m"'),
    "empty": ("", 1, "summary is missing"),
    "only comments": ("# nothing\n# at all # HERE\n", 1, "summary is missing"),
    "until not at the top": (
        'summary = "x"\nuntil = "1m"\n[[guest]]\nvmid = 101\nuntil = "2m"',
        None,
        'unknown key "until" in guest; until stands at the top, before the first section',
    ),
    "unknown key at the top": (HEAD + "untill = 3", None, 'unknown key "untill"; did you mean until?'),
    "unknown section": (HEAD + "[hosts] # HERE\n", None, 'unknown key "hosts"; did you mean host?'),
    "a section of the configuration": (HEAD + "[watchdog]", None, 'unknown key "watchdog"; it is written as [config.watchdog]'),
    "unknown and like nothing": (HEAD + "zzz = 3", None, 'unknown key "zzz"; known are summary, until, host, config, guest, at, after'),
    "an empty summary": ('summary = "" # HERE\nuntil = "1m"', None, "summary: must be text, in quotes, on one line, and not empty"),
    "a summary of two lines": ('until = "1m"\nsummary = """a\nb"""', 2, "summary: must be text, in quotes, on one line, and not empty"),
    "until is a number": ('summary = "x"\nuntil = 90', None, 'until: a duration is a number with a unit, as in "60s", "5m", "2h" or "1d"'),
    "until without unit": (
        'summary = "x"\nuntil = "90"',
        None,
        'until: a duration is a number with a unit, as in "60s", "5m", "2h" or "1d"',
    ),
    "until far away": ('summary = "x"\nuntil = "400d"', None, "until: must be at most 366d"),
    # TOML itself
    "no value": (HEAD + "\n[host]\nnode =\n[config]", 5, "is not TOML: "),
    "the same key twice": (HEAD + "[host]\nquorate = true\nquorate = true # HERE\n", None, "is not TOML: "),
    "the same table twice": (HEAD + "[host]\n[host] # HERE\n", None, "is not TOML: "),
    "a string without end": (HEAD + '[host]\nnode = "pve1\n', 4, "is not TOML: "),
    "an array without end": (HEAD + "\nat = [1,\n", 4, "is not TOML: "),
    # [host]
    "host is no table": (HEAD + 'host = "pve1"', None, "host must be a table"),
    "unknown key of the host": (HEAD + '[host]\nphse = "up"', None, 'unknown key "phse" in host; did you mean phase?'),
    "a phase that is none": (HEAD + '[host]\n\nphase = "down"', None, 'phase: must be one of "up", "booting", "stopping"'),
    "no name of a node": (HEAD + '[host]\nnode = "pve 1"', None, "node: must be a node name"),
    "a long name of a node": (HEAD + f'[host]\nnode = "{"x" * 64}"', None, "node: must be a node name: letters, digits and -, 63 at most"),
    "no version": (HEAD + "[host]\nversion = 9.1", None, 'version: must be a version of PVE 8 or 9, as in "8.4" or "9.1.2"'),
    "version 7": (HEAD + '[host]\nversion = "7.4"', None, 'version: must be a version of PVE 8 or 9, as in "8.4" or "9.1.2"'),
    "fine grained": (HEAD + '[host]\nfine_grained = "yes"', None, "fine_grained: must be true or false"),
    "quorate in words": (HEAD + '[host]\nquorate = "yes"', None, "quorate: must be true or false"),
    # [config.*]
    "config is no table": (HEAD + "config = 3", None, "config must be written as [config.SECTION]"),
    "unknown section of the configuration": (
        HEAD + "[config.watchdog]\n[config.watchdogs] # HERE\nx = 1",
        None,
        "config.watchdogs: unknown section; known are pve, scope, watchdog, locks, scratch, operations, metrics, log, state, host",
    ),
    "a section with a dot": (HEAD + '[config.watchdog]\n[config."a.b"]', None, "config.a.b: unknown section; known are "),
    "unknown key of the configuration": (
        HEAD + '[config.watchdog]\n# intervl = 3\nintervl = "9s"',
        None,
        "config.watchdog.intervl: unknown key",
    ),
    "a value of the configuration": (
        HEAD + '[config.watchdog]\ninterval = "0s"',
        None,
        "config.watchdog.interval: must be from 1s to 366d",
    ),
    "a value in one line": (HEAD + "config.watchdog = { attempts = 3, parallel = 99 }", None, "config.watchdog.parallel: must be a whole"),
    "a value with dots": (HEAD + "[config]\nwatchdog.attempts = 0", None, "config.watchdog.attempts: must be a whole number from 1 to 10"),
    "a quoted section": (HEAD + '["config" . \'watchdog\']\n"attempts" = true', None, "config.watchdog.attempts: must be a whole number"),
    "a section that is none": (HEAD + "[config]\nscope = 5", None, "config.scope: must be a section, as in [scope]"),
    "pve that is none": (HEAD + "[config]\npve = 5", None, "config.pve: must be a section, as in [pve]"),
    "a token": (HEAD + '[config.pve]\ntoken_id = "root"', None, "config.pve.token_id: must be USER@REALM!TOKEN"),
    "two keys that do not go together": (
        HEAD + "[config.scratch]\nlast = 989999",
        None,
        "config.scratch.last: is smaller than scratch.first",
    ),
    "keys of two sections": (
        HEAD + "[config.scope]\nexclude = [990001]\n[config.log]",
        4,
        "config.scope.exclude: 990001 is in the scratch",
    ),
    "a token of one letter": (
        HEAD + '[config.pve]\ntoken_id = "ab@pve!x"',
        None,
        "config.pve.token_id: must be USER@REALM!TOKEN, with a realm",
    ),
    "a long token": (
        HEAD + f'[config.pve]\ntimeout = "9s"\ntoken_id = "{"x" * 100}@pve!agent"',
        None,
        "config.pve.token_id: is longer than 100 characters",
    ),
    "a section of the host's": (
        HEAD + '[config.watchdog]\n[config.host] # HERE\nroot = "/tmp"',
        None,
        "config.host: has no meaning in a simulation, which honours the sections pve, scope, watchdog, locks, scratch",
    ),
    "a section for Prometheus": (HEAD + '[config]\nmetrics.listen = "127.0.0.1:1"', None, "config.metrics: has no meaning in a simulation"),
    "a level of the log": (HEAD + '[config.log] # HERE\nlevel = "warn"', None, "config.log: has no meaning in a simulation"),
    "a folder": (HEAD + '[config.state] # HERE\ndir = "/tmp"', None, "config.state: has no meaning in a simulation"),
    "operations": (HEAD + '[config.operations] # HERE\ntimeout = "1m"', None, "config.operations: has no meaning in a simulation"),
    "a node in two places": (
        HEAD + '[config.pve]\ntimeout = "9s"\nnode = "pve2"',
        None,
        "config.pve.node: has no meaning in a simulation, which honours token_id and timeout; the node's name stands in [host]",
    ),
    "an address": (HEAD + '[config.pve]\nhost = "10.0.0.1"', None, "config.pve.host: has no meaning in a simulation"),
    "an unknown key of pve": (HEAD + '[config.pve]\nhots = "10.0.0.1"', None, "config.pve.hots: unknown key"),
    # [[guest]]
    "guest in single brackets": (HEAD + "[guest]\nvmid = 101", 3, "guest must be written as [[guest]]"),
    "a guest with a name": (HEAD + "\n[guest.web]\nvmid = 101", 4, "guest must be written as [[guest]]"),
    "a guest that is a number": (HEAD + "guest = [\n  {vmid = 101},\n  102, # HERE\n]", None, "guest must be a table"),
    "no vmid": (GUEST + "[[guest]] # HERE\nkind = 'lxc'", None, "guest: vmid is missing"),
    "vmid in words": (HEAD + '[[guest]]\nvmid = "101"', None, "vmid: must be a whole number from 100 to 999999999"),
    "vmid too small": (HEAD + "[[guest]]\nvmid = 99", None, "vmid: must be a whole number from 100 to 999999999"),
    "vmid too large": (HEAD + "[[guest]]\nvmid = 1000000000", None, "vmid: must be a whole number from 100 to 999999999"),
    "vmid is true": (HEAD + "[[guest]]\nvmid = true", None, "vmid: must be a whole number from 100 to 999999999"),
    "the same vmid twice": (GUEST + "[[guest]]\nkind = 'qemu'\nvmid = 101", None, "there is a guest 101 already, on line 4"),
    "kind": (GUEST + 'kind = "ct"', None, 'kind: must be one of "lxc", "qemu"'),
    "unknown key of a guest": (GUEST + "on_boot = true", None, 'unknown key "on_boot" in guest; did you mean onboot?'),
    "onboot is a number": (GUEST + "onboot = 2", None, "onboot: must be true or false, 1 or 0, or text as it stands in the file"),
    "onboot is 1.0": (GUEST + "onboot = 1.0", None, "onboot: must be true or false, 1 or 0, or text as it stands in the file"),
    "onboot is empty": (GUEST + 'onboot = " "', None, "onboot: must be true or false, 1 or 0, or text as it stands in the file"),
    "onboot with quotes in quotes": (GUEST + "onboot = '\"no\"'", None, 'onboot: has quotes in its quotes: "no"'),
    "onboot is nearly true": (GUEST + 'onboot = "ture"', None, 'onboot: there is no "ture"; did you mean true?'),
    "a VM": (GUEST + 'kind = "vm"', None, 'kind: must be one of "lxc", "qemu"'),
    "a lock that is nearly one": (GUEST + 'lock = "bakcup"', None, 'lock: there is no "bakcup"; did you mean backup?'),
    "a state of HA": (GUEST + 'ha = "start"', None, 'ha: there is no "start"; did you mean started?'),
    "a pool with quotes in quotes": (GUEST + "pool = \"'guestward'\"", None, "pool: has quotes in its quotes: 'guestward'"),
    "a name that is a number": (GUEST + "name = 7", None, "name: must be printable text, in quotes"),
    "a blank name": (GUEST + 'name = " "', None, "name: must not be blank"),
    "a pool that PVE could not have": (
        GUEST + 'pool = "päöl"',
        None,
        'pool: "päöl" is no name of a pool: letters, digits, . - and _, a letter first',
    ),
    "a pool of two words": (GUEST + 'pool = "a b"', None, 'pool: "a b" is no name of a pool'),
    "a storage that no verb could name": (GUEST + 'storage = "näs"', None, "storage: must be the name of a storage, or a list of names"),
    "startup in words": (GUEST + 'startup = "first"', None, 'startup: must be as PVE has it, like "order=1,up=5"'),
    "a state of a snapshot": (
        GUEST + 'snapshots = [{name = "a", state = "prepared"}]',
        None,
        "snapshots: state must be one of prepare, delete",
    ),
    "a snapshot twice": (GUEST + 'snapshots = [{name = "a"}, {name = "a"}]', None, 'snapshots: "a" is there twice'),
    "a snapshot without a name": (GUEST + 'snapshots = [{name = ""}]', None, 'snapshots: "" is no name of a snapshot'),
    "a start that takes for ever": (GUEST + 'start_takes = "367d"', None, "start_takes: must be at most 366d"),
    "a start that flaps late": (GUEST + 'start = "flap 367d"', None, "start: must be at most 366d"),
    "status": (GUEST + 'status = "paused"', None, 'status: must be "running" or "stopped"'),
    "state is for later": (GUEST + 'state = "paused"', None, 'state cannot be given here; let it come to pass: [[at]] t = "0s"'),
    "template": (GUEST + 'template = "no"', None, "template: must be true or false"),
    "storage": (GUEST + "storage = []", None, "storage: must be the name of a storage, or a list of names"),
    "one storage of several": (GUEST + 'storage = [\n  "nas",\n  3, # HERE\n]', None, "storage: must be the name of a storage"),
    "snapshots": (GUEST + 'snapshots = [ {name = "a"},\n {state = "b"} ]', None, "snapshots: must be a list like"),
    "a start that is none": (
        GUEST + 'start = ["ok",\n"ok: later"] # HERE',
        None,
        'start: "ok: later" is none of ok, ok: stays stopped, hang',
    ),
    "a start after a long text": (GUEST + 'start = ["""ok""", \'\'\'hang\'\'\',\n\n"flap"\n]', 7, 'start: "flap" is none of'),
    "start_takes": (GUEST + "start_takes = 3", None, "start_takes: a duration is a number with a unit"),
    # [[at]]
    "at in single brackets": (HEAD + '[at]\nt = "1s"', 3, "at must be written as [[at]]"),
    "no t": (GUEST + '[[at]] # HERE\ndo = "die 101"', None, "at: t is missing"),
    "no do": (GUEST + '[[at]] # HERE\nt = "1s"\n[[at]]\nt = "1s"', None, "at: do is missing"),
    "t is a number": (GUEST + '[[at]]\nt = 65 # HERE\ndo = "die 101"', None, "t: a duration is a number with a unit"),
    "t is negative": (GUEST + '[[at]]\nt = "-1s" # HERE\ndo = "die 101"', None, "t: a duration is a number with a unit"),
    "t after the end": (
        GUEST + '[[at]]\nt = "11m" # HERE\ndo = "die 101"',
        None,
        't: 11m is after the end of the run, which is until = "10m"',
    ),
    "do is a list": (GUEST + '[[at]]\nt = "1s"\ndo = ["die 101"]', None, "do: must be text, in quotes"),
    "do is empty": (GUEST + '[[at]]\nt = "1s"\ndo = " "', None, "do: must be text, in quotes"),
    "no such verb": (GUEST + '[[at]]\ndo = "dye 101" # HERE\nt = "1s"', None, '"dye 101": there is no verb dye; did you mean die?'),
    "no such guest": (GUEST + '[[at]]\nt = "1s"\ndo = "die 102"', None, '"die 102": there is no guest 102; there are 101'),
    "no guests": (HEAD + '[[at]]\nt = "1s"\ndo = "die 102"', None, '"die 102": there is no guest 102; no guest is declared'),
    "second of two on one page": (
        GUEST + '[[at]]\nt="1s"\ndo="die 101"\n[[at]]\nt="1s"\ndo="dye 101"',
        None,
        '"dye 101": there is no verb dye',
    ),
    "a guest that comes later": (
        GUEST + '[[at]]\nt = "1s"\ndo = "stop 102" # HERE\n[[at]]\nt = "2s"\ndo = "create 102 lxc"',
        None,
        '"stop 102": there is no guest 102; there are 101',
    ),
    "unknown key at a time": (GUEST + '[[at]]\nt = "1s"\ndoes = "die 101"', None, 'unknown key "does" in at; did you mean do?'),
    "a list of tables in one line": (GUEST + 'at = [{t = "1s", do = "die 101"}, {t = "1s", do = "x"}]', None, "unknown key"),
    # [[after]]
    "no effect": (GUEST + '[[after]] # HERE\ndo = "die 101"', None, "after: effect is missing"),
    "an effect that is none": (
        GUEST + '[[after]]\neffect = "strat 101" # HERE\ndo = "die 101"',
        None,
        'effect: the agent has no act "strat"; did',
    ),
    "an effect on nobody": (GUEST + '[[after]]\neffect = "start" # HERE\ndo = "die 101"', None, "effect: must be an act and a VMID, as in"),
    "an effect on a stranger": (GUEST + '[[after]]\neffect = "start 102" # HERE\ndo = "die 101"', None, "effect: there is no guest 102"),
    "a delay": (GUEST + '[[after]]\neffect = "start 101"\ndelay = 1 # HERE\ndo = "die 101"', None, "delay: a duration is a number"),
    "what it does": (GUEST + '[[after]]\neffect = "start 101"\ndo = "die" # HERE', None, '"die": VMID is missing; usage: die VMID'),
    "a stranger in it": (GUEST + '[[after]]\neffect = "start 101"\ndo = "die 102"', None, '"die 102": there is no guest 102'),
}


@pytest.mark.parametrize(("text", "line", "reason"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, line: int | None, reason: str) -> None:
    marked = [number for number, words in enumerate(text.split("\n"), 1) if "HERE" in words]
    expected = line or (marked[0] if marked else len(text.rstrip("\n").split("\n")))
    error = refused(tmp_path, text)
    assert error.line == expected, error
    assert error.reason.startswith(reason), error


def test_windows_lines_count_as_one(tmp_path: Path) -> None:
    assert refused(tmp_path, HEAD.replace("\n", "\r\n") + "\r\n[host]\r\nphase = 3\r\n").line == 5


def test_a_file_of_windows_is_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    file.write_bytes(b"\xef\xbb\xbf" + GUEST.replace("\n", "\r\n").encode())
    assert load(file).guests[0].vmid == 101


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    bad, huge, pipe = tmp_path / "bad", tmp_path / "huge", tmp_path / "pipe"
    bad.write_bytes(b'summary = "a"\nuntil = "\xff"\n')
    huge.write_bytes(b"#" * ((1 << 20) + 1))
    os.mkfifo(pipe)
    reasons = {
        tmp_path / "none": "cannot be read: No such file or directory",
        tmp_path: "cannot be read: Is a directory",
        pipe: "is no regular file",
        huge: "is larger than 1024 KiB",
    }
    for file, reason in reasons.items():
        with pytest.raises(ScenarioError) as caught:
            load(file)
        assert str(caught.value) == f"{file}: {reason}"
    with pytest.raises(ScenarioError, match=r"bad:2: is not UTF-8 text"):
        load(bad)
    with pytest.raises(ScenarioError, match="cannot be read: not a file name"):
        load("a\0b")


@pytest.mark.parametrize("text", ["x = " + "[" * 20_000, "x = " + "[" * 20_000 + "]" * 20_000, "x = " + "9" * 5_000])
def test_a_file_that_nobody_would_write(tmp_path: Path, text: str) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(text)
    with pytest.raises(ScenarioError, match="is not TOML"):
        load(file)


# --------------------------------------------------------------------- lines

NASTY = '''
# [not.a.table]
"summary" = "x = [ # no comment" # a comment = 3
text = """
[[at]]
t = "1s" \\" """
raw = \'\'\'
[host]
node = \'\'\'
empty = ""
  [ config . "watch\\u0064og" ]  # watchdog
    interval = "1s"
    backoff = [ "1m", # one
      "2m", "]",

      [ { a = 1, "b.c" = [ 2, \'}\' ] }, {} ], # b.c
    ]
deep.er.est = 1979-05-27 07:32:00
deep."er".other = [ ]
[[guest]]
vmid = 0x65
[[guest.disk]]
size = 1e3
[[guest.disk]]
size.of = { a = { b = "c" } }
[guest.more]
x = true
[[guest]]
vmid = +1_02
[guest.more]
x = -inf'''


def places(value: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*where, key)
        yield from places(inner, (*where, key))


def test_every_key_is_found_on_its_line() -> None:
    lines = Lines(NASTY)
    text = NASTY.split("\n")
    found = {place: lines.of(place) for place in places(tomllib.loads(NASTY))}
    for place, line in found.items():
        if isinstance(place[-1], str):
            assert place[-1] in text[line - 1], place
    assert found["config", "watchdog", "backoff", 1] == found["config", "watchdog", "backoff", 2] == 14
    assert found["config", "watchdog", "backoff", 3, 0, "b.c", 1] == 16
    assert (found["guest", 0, "disk", 1, "size"], found["guest", 1, "vmid"], found["guest", 1, "more", "x"]) == (25, 29, 31)


def test_what_is_not_there_has_the_line_of_what_it_would_be_in() -> None:
    lines = Lines(NASTY)
    assert lines.of(("guest", 0, "kind")) == 20
    assert lines.of(("guest", 0, "disk", 0, "x", "y")) == 22
    assert lines.of(("config", "watchdog", "nothing")) == 11
    assert lines.of(("host", "node")) == lines.of(()) == 1


# --------------------------------------------------------------------- read


def test_the_example_of_the_design(tmp_path: Path) -> None:
    scenario = read(
        tmp_path,
        """
        summary = "Guest rebooted mid-backup comes back unattended"
        until = "15m"
        [host]
        [config.watchdog]
        interval = "60s"
        [[guest]]
        vmid = 9201
        kind = "lxc"
        onboot = true
        status = "running"
        pool = "guestward"
        start = ["fail: storage 'nas' is not online", "ok"]
        start_takes = "3s"
        [[at]]
        t = "65s"
        do = "stop 9201 by root@pam"
        """,
    )
    assert (scenario.summary, scenario.until) == ("Guest rebooted mid-backup comes back unattended", 900)
    sim = scenario.simulation()
    assert [entry.fields["outcome"] for entry in sim.run(scenario.until) if entry.event == "start_result"] == ["failed", "started"]
    assert [entry.verb for entry in sim.stream if isinstance(entry, Effect)] == ["start", "start"]


def test_a_guest_of_which_nothing_is_said(tmp_path: Path) -> None:
    sim = read(tmp_path, GUEST).simulation()
    guest = sim.world.guests[101]
    assert (str(guest.id), guest.running, guest.pool, guest.config().onboot, guest.lock) == ("lxc/101", True, None, False, None)


def test_everything_that_can_be_said_of_a_guest(tmp_path: Path) -> None:
    keys = """
        kind = "qemu"
        onboot = "yes"
        status = "stopped"
        pool = "guestward"
        name = "db"
        lock = "backup"
        template = true
        ha = "started"
        tags = "a;b"
        startup = "order=1,up=5"
        protection = true
        snapshots = [{name = "vzdump", state = "prepare"}, {name = "before"}]
        storage = ["nas", "local"]
        identity = "x"
        start = ["ok", "ok: stays stopped", "warnings: 2", "fail: no", "hang", "lost before", "lost after", "flap 30s"]
        start_takes = "3s"
    """
    guest = read(tmp_path, GUEST + keys).simulation().world.guests[101]
    assert (str(guest.id), guest.name, guest.onboot, guest.running, guest.pool) == ("qemu/101", "db", "yes", False, "guestward")
    assert (guest.lock, guest.template, guest.ha, guest.tags, guest.startup) == ("backup", True, ("started",), "a;b", "order=1,up=5")
    assert (guest.protection, guest.snapshots) == (True, {"vzdump": "prepare", "before": ""})
    assert (guest.storages, guest.identity, guest.start_takes) == ({"nas", "local"}, "x", 3)
    assert guest.start[-1] == "flap 30"


def test_the_host(tmp_path: Path) -> None:
    sim = read(
        tmp_path, HEAD + '[host]\nnode = "n2"\nphase = "booting"\nquorate = false\nversion = "8.4"\nfine_grained = true'
    ).simulation()
    world = sim.world
    assert (world.node, world.phases.phase, world.quorate, world.pve_version) == ("n2", "booting", False, "8.4")
    assert world.fine_grained and not read(tmp_path, HEAD).simulation().world.fine_grained
    assert world.token_id == sim.config.pve.token_id == "guestward-n2@pve!agent"


@pytest.mark.parametrize("node", ["other", "pve2", "n"])
def test_guests_are_on_the_node_of_the_scenario_whatever_its_name(tmp_path: Path, node: str) -> None:
    rest = 'onboot = true\npool = "guestward"\n[[at]]\nt = "5s"\ndo = "die 101"\n[[at]]\nt = "6s"\ndo = "create 102 lxc"\n'
    moves = '[[at]]\nt = "7s"\ndo = "migrate 102 away"\n[[at]]\nt = "8s"\ndo = "migrate 102 here"'
    sim = read(tmp_path, HEAD + f'[host]\nnode = "{node}"\n[[guest]]\nvmid = 101\n{rest}{moves}').simulation()
    sim.run(7)
    assert [guest.node for guest in sim.world.guests.values()] == [node, "pve1" if node == "pve2" else "pve2"]
    sim.run(600)
    sim.finish()
    assert sim.world.guests[102].node == node
    assert sim.starts(101) == [90]
    assert sim.world.guests[101].running
    assert sim.violation is None


@pytest.mark.parametrize(
    ("value", "on"),
    [
        ("true", True),
        ("1", True),
        ('"1"', True),
        ('"On"', True),
        ("false", False),
        ("0", False),
        ('"0"', False),
        ('"no"', False),
        ('"x"', False),
    ],
)
def test_onboot_is_what_pve_makes_of_it(tmp_path: Path, value: str, on: bool) -> None:
    assert read(tmp_path, GUEST + f"onboot = {value}").simulation().world.guests[101].config().onboot is on
    later = GUEST + f"onboot = {'false' if on else 'true'}\n[[at]]\nt = '0s'\ndo = 'set 101 onboot={value}'"
    sim = read(tmp_path, later).simulation()
    sim.run(0)
    assert sim.world.guests[101].config().onboot is on


OWNED = GUEST + 'pool = "guestward"\n'
NOTES = {
    "all is well": (OWNED, None, ""),
    "no guests": (HEAD, None, ""),
    "another guest's": (OWNED + "[[guest]]\nvmid = 102", None, ""),
    "no pools": (GUEST + "[[guest]]\nvmid = 102", 3, 'no guest is guarded: none is in the pool "guestward"'),
    "no pool yet": (GUEST + '[[at]]\nt = "1s"\ndo = "set 101 pool=guestward"', None, ""),
    "a pool that nobody watches": (
        GUEST + 'pool = "guestwrad"',
        5,
        'guest 101 is not guarded: its pool is not "guestward", as in [scope] pools',
    ),
    "a pool of another scope": (OWNED + '[config.scope]\npools = ["a", "b"]', 5, 'guest 101 is not guarded: its pool is not "a" or "b"'),
    "a storage of nobody's": (
        OWNED + 'storage = ["nas", "ssd"]\n[[at]]\nt = "1s"\ndo = "storage Nas offline"',
        9,
        '"storage Nas offline": no guest is on that storage; they are on local, nas, ssd',
    ),
    "a storage of later": (OWNED + '[[at]]\nt = "1s"\ndo = "storage nas offline"\n[[at]]\nt = "2s"\ndo = "set 101 storage=nas"', None, ""),
    "a route that nobody asks": (
        OWNED + '[[after]]\neffect = "start 101"\ndo = "api hang GET /node/pve1/lxc"',
        8,
        '"api hang GET /node/pve1/lxc": the agent asks nothing there; it asks /nodes/pve1/lxc, /nodes/pve1/qemu',
    ),
    "a route of another node": (
        OWNED + '[host]\nnode = "n2"\n[[at]]\nt = "1s"\ndo = "api fault /nodes/pve1/lxc 500"',
        10,
        '"api fault /nodes/pve1/lxc 500": the agent asks nothing there; it asks /nodes/n2/lxc',
    ),
    "a part of a route": (OWNED + '[[at]]\nt = "1s"\ndo = "api slow 1s /nodes/pve1/lx"', None, ""),
    "more than a route": (OWNED + '[[at]]\nt = "1s"\ndo = "api slow 1s /api2/json/nodes/pve1/lxc/101/config"', None, ""),
}


@pytest.mark.parametrize(("text", "line", "note"), NOTES.values(), ids=NOTES.keys())
def test_what_is_hardly_meant_so_is_noted(tmp_path: Path, text: str, line: int | None, note: str) -> None:
    notes = read(tmp_path, text).notes
    assert len(notes) == (line is not None)
    assert all(found.startswith(f"{tmp_path}/scenario.toml:{line}: {note}") for found in notes), notes


def test_the_configuration_is_that_of_the_agent(tmp_path: Path) -> None:
    text = '[config.watchdog]\nattempts = 2\n[config.pve]\ntoken_id = "ab@pve!cd"\n[config.scope]\npools = ["p", "q"]'
    sim = read(tmp_path, HEAD + text).simulation()
    assert (sim.config.watchdog.attempts, sim.config.scope.pools, sim.world.token_id) == (2, ("p", "q"), "ab@pve!cd")


def test_entries_of_one_second_happen_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = GUEST + "".join(
        f'[[at]]\nt = "{t}"\ndo = "{do}"\n' for t, do in (("9s", "die 101"), ("5s", "lock 101 backup"), ("5s", "unlock 101"))
    )
    sim = read(tmp_path, text).simulation()
    sim.run(5)
    assert (sim.world.guests[101].lock, sim.world.guests[101].running) == (None, True)
    sim.run(9)
    assert not sim.world.guests[101].running


def test_what_happens_at_the_first_second_comes_before_the_agent(tmp_path: Path) -> None:
    sim = read(tmp_path, GUEST + 'onboot = true\npool = "guestward"\n[[at]]\nt = "0s"\ndo = "die 101"').simulation()
    sim.run(31)
    assert sim.starts(101) == [30]


@pytest.mark.parametrize(("delay", "lock_at"), [("", 0), ('delay = "2s"', 2)])
def test_a_reaction(tmp_path: Path, delay: str, lock_at: int) -> None:
    after = f'[[after]]\neffect = "start 101"\n{delay}\ndo = "lock 101 migrate"'
    sim = read(tmp_path, GUEST + f'onboot = true\npool = "guestward"\nstart_takes = "5s"\nstatus = "stopped"\n{after}').simulation()
    sim.run(30 + lock_at - 0.5)
    assert sim.world.guests[101].lock is None
    sim.run(30 + lock_at)
    assert sim.world.guests[101].lock == "migrate"


@pytest.mark.parametrize(
    "entries",
    [
        (("1s", "create 102 lxc"), ("1s", "start 102")),
        (("1s", "create 102 qemu"), ("2s", "start 102")),
        (("2s", "start 102"), ("2s", "create 102 lxc"), ("1s", "restore 102")),
        (("2s", "create 102 lxc"), ("3s", "destroy 102"), ("4s", "destroy 102"), ("5s", "release 102")),
    ],
)
def test_a_guest_may_come_to_be(tmp_path: Path, entries: tuple[tuple[str, str], ...]) -> None:
    scenario = read(tmp_path, HEAD + "".join(f'[[at]]\nt = "{t}"\ndo = "{do}"\n' for t, do in entries))
    scenario.simulation().run(60)


def test_a_guest_that_is_gone_when_something_is_to_happen_to_it(tmp_path: Path) -> None:
    scenario = read(tmp_path, GUEST + '[[at]]\nt = "1s"\ndo = "destroy 101"\n[[at]]\nt = "70s"\ndo = "start 101"')
    with pytest.raises(ScenarioError) as caught:
        scenario.simulation().run(100)
    assert (caught.value.line, caught.value.reason) == (10, '"start 101", 70 s: there is no guest 101 any more')


@pytest.mark.parametrize(
    ("do", "times", "reason"),
    [
        ("clock wall -366d", 61, "PVE's clock goes from 1970 to 2104"),
        ("clock wall +366d", 74, "PVE's clock goes from 1970 to 2104"),
        ("clock suspend 366d", 15, "no host sleeps for so many years"),
    ],
)
def test_a_clock_that_leaves_what_a_upid_can_say(tmp_path: Path, do: str, times: int, reason: str) -> None:
    scenario = read(tmp_path, GUEST + f'[[at]]\nt = "1s"\ndo = "{do}"\n' * times)
    with pytest.raises(ScenarioError) as caught:
        scenario.simulation().run(10)
    assert (caught.value.line, caught.value.reason) == (4 + 3 * times, f'"{do}", 1 s: {reason}')


def test_the_longest_words_make_a_upid(tmp_path: Path) -> None:
    name = "x" * 90
    text = HEAD + f'[host]\nnode = "{"n" * 63}"\n[config.pve]\ntoken_id = "{name}@pve!agent"\n'
    text += '[[guest]]\nvmid = 999999999\nonboot = true\npool = "guestward"\nstatus = "stopped"\n'
    text += f'[[at]]\nt = "5m"\ndo = "stop 999999999 by {name}@pve!agent"\n[[at]]\nt = "6m"\ndo = "task begin {"t" * 40} 999999999"'
    sim = read(tmp_path, text).simulation()
    sim.run(600)
    sim.finish()
    assert (sim.starts(), sim.violation) == ([30, 330], None)


def test_one_scenario_makes_many_simulations_that_are_alike(tmp_path: Path) -> None:
    scenario = read(tmp_path, GUEST + 'onboot = true\npool = "guestward"\nstart = ["fail: a"]\n[[at]]\nt = "65s"\ndo = "die 101"')
    one, other = scenario.simulation(), scenario.simulation()
    one.run(600)
    for moment in range(0, 601, 7):
        other.run(moment)
    other.run(600)
    assert one.stream == other.stream
    assert one.starts() == other.starts() != []


def test_every_simulation_is_watched(tmp_path: Path) -> None:
    assert len(read(tmp_path, GUEST).simulation().monitors) > 1
