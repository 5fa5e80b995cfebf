"""The configuration: every default of DESIGN.md's table, and every bad input refused with file, key and reason."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from guestward.config import Config, ConfigError, duration, load, parse, sections
from guestward.helper.trust import _KEYS

FILE = Path("/etc/guestward/guestward.toml")
TOKEN = {"pve": {"token_id": "guestward-pve1@pve!agent"}}


def read(**given: Any) -> Config:
    values: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in given.items()}
    if isinstance(values.setdefault("pve", {}), dict):
        values["pve"] = TOKEN["pve"] | values["pve"]
    return parse(values, FILE)


DEFAULTS: dict[str, dict[str, Any]] = {
    "pve": {
        "host": "127.0.0.1",
        "port": 8006,
        "node": "auto",
        "token_file": None,
        "ca_file": None,
        "fingerprint": None,
        "server_name": None,
        "timeout": 35,
    },
    "scope": {"pools": ("guestward",), "exclude": ()},
    "watchdog": {
        "interval": 60,
        "confirm": 30,
        "attempts": 3,
        "backoff": (60, 120, 240),
        "stable": 600,
        "parallel": 2,
        "start_timeout": 120,
        "heartbeat_every": 10,
        "operator_stop": "start",
        "backup_wait_warn": 3 * 3600,
        "mass_stop": 3,
    },
    "locks": {"recover": "prove", "confirm": 60, "warn_after": 86400},
    "scratch": {
        "first": 990000,
        "last": 990009,
        "tag": "guestward-scratch",
        "origins": (),
        "grantees": (),
        "min_age": 7200,
        "interval": 300,
    },
    "operations": {"timeout": 300, "drift_after": 300},
    "metrics": {"listen": "127.0.0.1:9612"},
    "log": {"level": "info"},
    "state": {"dir": Path("/var/lib/guestward")},
    "host": {"root": Path("/")},
}


@pytest.mark.parametrize(("section", "key"), [(s, k) for s, keys in DEFAULTS.items() for k in keys])
def test_the_defaults_of_the_design(section: str, key: str) -> None:
    assert getattr(getattr(read(), section), key) == DEFAULTS[section][key]


def test_there_are_no_other_sections_and_keys() -> None:
    found = {name: {f.name for f in dataclasses.fields(cls)} for name, cls in sections().items()}
    assert found == {name: set(keys) | ({"token_id"} if name == "pve" else set()) for name, keys in DEFAULTS.items()}


def test_every_key_says_what_it_means() -> None:
    assert all(f.metadata["meaning"] for cls in sections().values() for f in dataclasses.fields(cls))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("5m", 300), ("2h", 7200), ("1d", 86400), ("0s", 0), ("1.5s", 1.5), ("0.25m", 15)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "60",
        60,
        60.0,
        True,
        None,
        "60 s",
        " 60s",
        "60s ",
        "60S",
        "-60s",
        "+1s",
        "1e3s",
        "infs",
        "nans",
        "1w",
        "1h30m",
        "60s\n",
        "s",
        ".5s",
        "６０s",
        "1.0000s",
        "9999999999s",
        ["60s"],
    ],
)
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match="a duration is a number with a unit"):
        duration(value)


GOOD: list[tuple[str, str, Any, Any]] = [
    ("pve", "host", "pve1.example.org", "pve1.example.org"),
    ("pve", "port", 443, 443),
    ("pve", "node", "pve-2", "pve-2"),
    ("pve", "token_id", "a.b-c@pam!x_1", "a.b-c@pam!x_1"),
    ("pve", "token_file", "/etc/guestward/token", Path("/etc/guestward/token")),
    ("pve", "fingerprint", ":".join(["AB"] * 32), "ab" * 32),
    ("pve", "server_name", "pve1.example.org", "pve1.example.org"),
    ("scope", "pools", ["a", "b/c/d"], ("a", "b/c/d")),
    ("scope", "exclude", [101, 102], (101, 102)),
    ("watchdog", "backoff", ["10s"], (10.0,)),
    ("watchdog", "operator_stop", "hold", "hold"),
    ("watchdog", "confirm", "0s", 0.0),
    ("locks", "recover", "report", "report"),
    ("scratch", "origins", ["restore@pve!test"], ("restore@pve!test",)),
    ("scratch", "origins", ["bob@corp.org@oidc!t1", "root@pam!t1"], ("bob@corp.org@oidc!t1", "root@pam!t1")),
    ("scratch", "grantees", ["tester@pve!t1", "bob@corp.org@oidc"], ("tester@pve!t1", "bob@corp.org@oidc")),
    ("scratch", "tag", "our-scratch_1+x.y", "our-scratch_1+x.y"),
    ("scratch", "min_age", "0s", 0.0),
    ("scratch", "interval", "1s", 1.0),
    ("metrics", "listen", "[::1]:0", "[::1]:0"),
    ("metrics", "listen", "localhost:65535", "localhost:65535"),
    ("log", "level", "debug", "debug"),
    ("host", "root", "/tmp/x", Path("/tmp/x")),
]


@pytest.mark.parametrize(("section", "key", "value", "right"), GOOD, ids=str)
def test_good_values(section: str, key: str, value: Any, right: Any) -> None:
    assert getattr(getattr(read(**{section: {key: value}}), section), key) == right


BAD: list[tuple[str, Any, str]] = [
    ("pve.host", "", "not empty"),
    ("pve.host", 5, "text"),
    ("pve.host", "a\nb", "text"),
    ("pve.port", 0, "from 1 to 65535"),
    ("pve.port", 65536, "from 1 to 65535"),
    ("pve.port", "8006", "whole number"),
    ("pve.port", True, "whole number"),
    ("pve.port", 8006.0, "whole number"),
    ("pve.node", "pve.1", "node name"),
    ("pve.node", "-pve", "node name"),
    ("pve.node", "", "node name"),
    ("pve.token_id", "root@pam", "USER@REALM!TOKEN"),
    ("pve.token_id", "agent", "USER@REALM!TOKEN"),
    ("pve.token_id", "a@pve!b\n", "USER@REALM!TOKEN"),
    ("pve.token_id", 7, "USER@REALM!TOKEN"),
    ("pve.token_file", "token", "absolute"),
    ("pve.ca_file", "", "not empty"),
    ("pve.fingerprint", "AB:CD", "64 hexadecimal"),
    ("pve.fingerprint", "g" * 64, "64 hexadecimal"),
    ("pve.fingerprint", 1, "64 hexadecimal"),
    ("pve.server_name", "a b", "host name"),
    ("pve.timeout", "0s", "from 1s to 366d"),
    ("pve.timeout", 35, "duration"),
    ("scope.pools", [], "not empty"),
    ("scope.pools", "guestward", "list"),
    ("scope.pools", ["a b"], "pool's name"),
    ("scope.pools", ["a/b/c/d"], "pool's name"),
    ("scope.pools", ["a", "a"], "twice"),
    ("scope.exclude", 101, "list"),
    ("scope.exclude", ["101"], "whole number"),
    ("scope.exclude", [99], "from 100"),
    ("scope.exclude", [101, 101], "twice"),
    ("scope.exclude", [990003], "scratch band"),
    ("watchdog.interval", "0s", "from 1s to 366d"),
    ("watchdog.confirm", "-1s", "duration"),
    ("watchdog.attempts", 0, "from 1 to 10"),
    ("watchdog.attempts", 11, "from 1 to 10"),
    ("watchdog.backoff", [], "not empty"),
    ("watchdog.backoff", "1m", "list of durations"),
    ("watchdog.backoff", ["1m", 2], "duration"),
    ("watchdog.stable", "0s", "from 1s to 366d"),
    ("watchdog.parallel", 0, "from 1 to 16"),
    ("watchdog.start_timeout", "4s", "from 5s to 366d"),
    ("watchdog.heartbeat_every", 0, "from 1"),
    ("watchdog.operator_stop", "ignore", '"start", "hold"'),
    ("watchdog.operator_stop", True, '"start", "hold"'),
    ("watchdog.operator_stop", ["start"], '"start", "hold"'),
    ("watchdog.backup_wait_warn", "59s", "from 60s to 366d"),
    ("watchdog.mass_stop", 1, "from 2"),
    ("locks.recover", "always", '"prove", "report"'),
    ("scratch.tag", "UPPER", "lower case"),
    ("scratch.first", 99, "from 100"),
    ("scratch.last", 989999, "smaller than scratch.first"),
    ("scratch.last", 990100, "more than 100"),
    ("scratch.tag", "", "lower case"),
    ("scratch.tag", "a;b", "lower case"),
    ("scratch.tag", ["a"], "lower case"),
    ("scratch.min_age", "-1s", "duration"),
    ("scratch.interval", "0s", "from 1s to 366d"),
    ("scratch.origins", ["root@pam"], "USER@REALM!TOKEN"),
    ("scratch.origins", "restore@pve!test", "list"),
    ("scratch.origins", ["a@pve!aa", "a@pve!aa"], "twice"),
    ("scratch.grantees", "tester@pve!t1", "list"),
    ("scratch.grantees", [7], "USER@REALM"),
    ("scratch.grantees", ["tester"], "USER@REALM"),
    ("scratch.grantees", ["tester@pve!"], "USER@REALM"),
    ("scratch.grantees", ["tester@pve!t"], "2 characters"),
    ("scratch.grantees", ["a,b@pve"], "USER@REALM"),
    ("scratch.grantees", ["-a@pve"], "USER@REALM"),
    ("scratch.grantees", ["@a@pve"], "USER@REALM"),
    ("scratch.grantees", ["a@pve\n"], "USER@REALM"),
    ("scratch.grantees", ["a\x00b@pve"], "USER@REALM"),
    ("scratch.grantees", ["a@pve", "a@pve"], "twice"),
    ("metrics.listen", "9612", "ADDRESS:PORT"),
    ("metrics.listen", "127.0.0.1:65536", "ADDRESS:PORT"),
    ("metrics.listen", "::1:9612", "ADDRESS:PORT"),
    ("metrics.listen", 9612, "ADDRESS:PORT"),
    ("log.level", "trace", '"debug"'),
    ("state.dir", "state", "absolute"),
    ("host.root", "", "not empty"),
]


@pytest.mark.parametrize(("key", "value", "reason"), BAD, ids=lambda x: str(x)[:40])
def test_bad_values_are_refused_with_file_key_and_reason(key: str, value: Any, reason: str) -> None:
    section, _, name = key.partition(".")
    with pytest.raises(ConfigError) as error:
        read(**{section: {name: value}})
    assert (error.value.file, error.value.key) == (str(FILE), key)
    assert reason in error.value.reason
    assert all(part in str(error.value) for part in (str(FILE), key, reason))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "key", "reason"),
    [
        ({"watchdgo": {}}, "watchdgo", "unknown section"),
        ({"interval": "60s"}, "interval", "unknown section"),
        ({"watchdog": {"intervall": "60s"}}, "watchdog.intervall", "unknown key"),
        ({"pve": {"token_secret": "x"}}, "pve.token_secret", "unknown key"),
        ({"watchdog": []}, "watchdog", "must be a section"),
        ({"watchdog": "60s"}, "watchdog", "must be a section"),
        ({"pve": 8006}, "pve", "must be a section"),
        ({"pve": {"ca_file": "/ca.pem", "fingerprint": "ab" * 32}}, "pve.fingerprint", "one way of trust"),
        ({"pve": {"server_name": "a", "fingerprint": "ab" * 32}}, "pve.server_name", "no meaning"),
    ],
    ids=lambda x: str(x)[:60],
)
def test_unknown_and_contradicting_keys_are_refused(given: dict[str, Any], key: str, reason: str) -> None:
    """C09: never silently "nothing excluded"."""
    with pytest.raises(ConfigError) as error:
        read(**given)
    assert (error.value.key, reason in error.value.reason) == (key, True)


def test_an_unknown_key_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"interval, confirm, attempts"):
        read(watchdog={"x": 1})


def test_without_a_token_nothing_works() -> None:
    with pytest.raises(ConfigError) as error:
        parse({}, FILE)
    assert error.value.key == "pve.token_id"


class TestFile:
    """Reading the file itself."""

    def test_a_good_one(self, tmp_path: Path) -> None:
        file = tmp_path / "guestward.toml"
        file.write_text('[pve]\ntoken_id = "a@pve!bb"\n[watchdog]\ninterval = "30s"\n')
        found = load(file)
        assert (found.file, found.watchdog.interval, found.pve.token_id) == (file, 30.0, "a@pve!bb")

    @pytest.mark.parametrize(
        ("content", "reason"),
        [(b"[pve\n", "is not TOML"), (b"\xff\xfe", "is not UTF-8"), (b"[pve]\nport=1\nport=2\n", "is not TOML")],
    )
    def test_a_bad_one(self, tmp_path: Path, content: bytes, reason: str) -> None:
        file = tmp_path / "guestward.toml"
        file.write_bytes(content)
        with pytest.raises(ConfigError) as error:
            load(file)
        assert (error.value.file, error.value.key, reason in error.value.reason) == (str(file), "", True)

    def test_none(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be read: No such file"):
            load(tmp_path / "guestward.toml")
        with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
            load(tmp_path)


def test_the_rules_are_those_of_the_file() -> None:
    text = """
        [pve]
        token_id = "a@pve!bb"
        [scope]
        pools = ["web"]
        exclude = [105]
        [scratch]
        first = 800
        last = 809
        [watchdog]
        attempts = 2
        backoff = ["10s", "20s"]
        operator_stop = "hold"
    """
    found = parse(tomllib.loads(text), FILE).rules()
    assert (found.pools, found.exclude, found.attempts, found.operator_stop_holds) == (("web",), {105}, 2, True)
    assert [found.in_scratch_band(vmid) for vmid in (799, 800, 809, 810)] == [False, True, True, False]
    assert [found.backoff_after(n) for n in (1, 2, 3, 9)] == [10, 20, 20, 20]


@pytest.mark.parametrize("key", ["interval", "confirm", "stable", "start_timeout", "backup_wait_warn"])
def test_a_duration_that_never_ends_is_refused(key: str) -> None:
    """With an interval of a million years the agent would look once and never again."""
    with pytest.raises(ConfigError, match="366d"):
        parse({"pve": {"token_id": "u@pve!tok"}, "watchdog": {key: "999999999d"}}, Path("f"))


@pytest.mark.parametrize("wait", ["0s", "999999999d"])
def test_a_back_off_is_neither_nothing_nor_for_ever(wait: str) -> None:
    with pytest.raises(ConfigError, match="366d"):
        parse({"pve": {"token_id": "u@pve!tok"}, "watchdog": {"backoff": [wait]}}, Path("f"))


@pytest.mark.parametrize(
    "text",
    ["[pve]\nport=" + "9" * 5000, "a = " + "[" * 100_000, "a = " + "{b = " * 3000, "x" * (1 << 20) + "=1"],
    ids=["a number without end", "lists without end", "tables without end", "a file without end"],
)
def test_a_file_that_is_made_to_break_the_reader_is_refused_like_any_other(tmp_path: Path, text: str) -> None:
    file = tmp_path / "guestward.toml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load(file)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for what in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigError):
            load(what)


def test_the_root_helper_knows_the_same_keys() -> None:
    """It reads the file by itself, and refuses what it does not know: an exclusion that is written wrong would exclude nobody."""
    for name, keys in _KEYS.items():
        assert {field.name for field in dataclasses.fields(sections()[name])} == set(keys)
