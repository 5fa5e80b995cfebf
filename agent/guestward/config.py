"""The configuration: one schema is the source of defaults, validation and of `docs/configuration.md`."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from guestward.model.rules import Rules
from guestward.model.usercfg import TOKEN_ID, USER_ID

DEFAULT_FILE = Path("/etc/guestward/guestward.toml")
LONGEST = 366 * 86400.0
LARGEST = 1 << 20
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
T = TypeVar("T")


class ConfigError(Exception):
    """A configuration that is refused. file, key and reason are for people."""

    def __init__(self, file: Path | str, key: str, reason: str) -> None:
        """key is `section.key`, or empty when the file as a whole is at fault."""
        self.file, self.key, self.reason = str(file), key, reason
        super().__init__(f"{file}: {key + ': ' if key else ''}{reason}")


def duration(value: object) -> float:
    """Read `"60s"`, `"5m"`, `"2h"` or `"1d"` into seconds. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('a duration is a number with a unit, as in "60s", "5m", "2h" or "1d"')
    return float(match[1]) * _UNITS[match[2]]


def _at_least(low: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        seconds = duration(value)
        if not low <= seconds <= LONGEST:
            raise ValueError(f"must be from {low:g}s to 366d")
        return seconds

    return parse


def _durations(value: object) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of durations that is not empty")
    return tuple(_at_least(0.1)(item) for item in value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("must be text, in quotes, and not empty")
    return value


def _path(value: object) -> Path:
    path = Path(_text(value))
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


def _number(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return parse


def _one_of(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in words:
            raise ValueError("must be one of " + ", ".join(f'"{w}"' for w in words))
        return str(value)

    return parse


def _matching(pattern: str, meaning: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(f"must be {meaning}")
        return value

    return parse


def _list_of(parse: Callable[[object], T], *, least: int = 0) -> Callable[[object], tuple[T, ...]]:
    def parse_all(value: object) -> tuple[T, ...]:
        if not isinstance(value, list) or len(value) < least:
            raise ValueError("must be a list" + (" that is not empty" if least else ""))
        found = tuple(parse(item) for item in value)
        if len(set(found)) != len(found):
            raise ValueError("names something twice")
        return found

    return parse_all


_NODE = r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_TOKEN = "USER@REALM!TOKEN, with a realm and a token of 2 characters or more"  # noqa: S105
_POOL = r"[A-Za-z][A-Za-z0-9.\-_]*(/[A-Za-z][A-Za-z0-9.\-_]*){0,2}"


def _fingerprint(value: object) -> str:
    text = value.replace(":", "").lower() if isinstance(value, str) else ""
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError("must be the SHA-256 fingerprint of the certificate: 64 hexadecimal digits, with or without colons")
    return text


def _listen(value: object) -> str:
    match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:\[\]]+):([0-9]{1,5})", value) if isinstance(value, str) else None
    if match is None or not 0 <= int(match[2]) <= 65535:
        raise ValueError('must be ADDRESS:PORT, as in "127.0.0.1:9612"')
    return str(value)


def _key(parse: Callable[[object], T], default: Any, meaning: str) -> Any:
    """One key: how its value is read, its default as it would stand in the file (None: no default), what it means."""
    value = None if default is None else parse(default)
    return field(default=value, metadata={"parse": parse, "default": default, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class PveSection:
    """`[pve]`: where the API of this node is, and how it is trusted."""

    host: str = _key(_text, "127.0.0.1", "Address of this node's API.")
    port: int = _key(_number(1, 65535), 8006, "Its port.")
    node: str = _key(
        _matching(_NODE, "a node name"), "auto", 'This node\'s name; "auto" is the host name up to the first dot, as PVE has it.'
    )
    token_id: str | None = _key(_matching(TOKEN_ID, _TOKEN), None, "The API token's id, as in `guestward-pve1@pve!agent`. Required.")
    token_file: Path | None = _key(
        _path, None, "File with the token's secret on one line. Without it: the systemd credential `token`, then `/etc/guestward/token`."
    )
    ca_file: Path | None = _key(
        _path,
        None,
        "Trust the certificates that this CA signed, as `/etc/pve/pve-root-ca.pem`. Read again when a certificate is not trusted.",
    )
    fingerprint: str | None = _key(_fingerprint, None, "Trust the one certificate with this SHA-256 fingerprint, whatever name it bears.")
    server_name: str | None = _key(
        _matching(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", "a host name"),
        None,
        "The name that the certificate must bear when it is not the address: for a custom or ACME certificate, with the system's CAs.",
    )
    timeout: float = _key(_at_least(1), "35s", "Longest wait for one answer. PVE's own proxy gives up after 30 s.")


@dataclass(frozen=True, slots=True)
class ScopeSection:
    """`[scope]`: the guests that are guarded."""

    pools: tuple[str, ...] = _key(
        _list_of(_matching(_POOL, "a pool's name"), least=1), ["guestward"], "Guests in these pools, on this node, are guarded."
    )
    exclude: tuple[int, ...] = _key(_list_of(_number(100, 999999999)), [], "VMIDs that are left alone although they are in a pool.")


@dataclass(frozen=True, slots=True)
class WatchdogSection:
    """`[watchdog]`: the power watchdog."""

    interval: float = _key(_at_least(1), "60s", "Time between two sweeps.")
    confirm: float = _key(_at_least(0), "30s", "A guest seen stopped is looked at again after this long before it is started.")
    attempts: int = _key(_number(1, 10), 3, "Starts that are tried before the guest is given up.")
    backoff: tuple[float, ...] = _key(_durations, ["1m", "2m", "4m"], "Wait after the end of each attempt; the last repeats.")
    stable: float = _key(_at_least(1), "10m", "A guest that ran for this long, unlocked, has all its attempts again.")
    parallel: int = _key(_number(1, 16), 2, "Starts under way at once.")
    start_timeout: float = _key(_at_least(5), "2m", "From before a start is sent to its end; what comes later is not accepted.")
    heartbeat_every: int = _key(_number(1, 1440), 10, "A heartbeat at every so many complete sweeps.")
    operator_stop: str = _key(
        _one_of("start", "hold"),
        "start",
        'A guest with onboot that somebody stopped through PVE: "start" it, or "hold" it until it runs, is re-armed or reconfigured.',
    )
    backup_wait_warn: float = _key(_at_least(60), "3h", "A guest that waits longer than this for a backup is reported once.")
    mass_stop: int = _key(_number(2, 1000), 3, "So many guests stopped by others within 60 s: nothing is started for 15 min.")


@dataclass(frozen=True, slots=True)
class LocksSection:
    """`[locks]`: recovery of locks that a dead vzdump left."""

    recover: str = _key(
        _one_of("prove", "report"), "prove", '"prove": clear a lock that provably nobody owns. "report": say so, and never clear one.'
    )
    confirm: float = _key(_at_least(1), "60s", "Time between the two observations of a proof.")
    warn_after: float = _key(_at_least(60), "1d", "A lock older than this is reported once.")


@dataclass(frozen=True, slots=True)
class ScratchSection:
    """`[scratch]`: the band of scratch guests. No duty ever starts a guest in it, and what a restore test leaves there is torn down."""

    first: int = _key(_number(100, 999999999), 990000, "First VMID of the band.")
    last: int = _key(_number(100, 999999999), 990009, "Last VMID of the band.")
    tag: str = _key(
        _matching(r"[a-z0-9_][a-z0-9_\-+.]*", "a PVE tag in lower case"), "guestward-scratch", "A guest in the band with this tag is ours."
    )
    origins: tuple[str, ...] = _key(_list_of(_matching(TOKEN_ID, _TOKEN)), [], "Tokens whose restores into the band are ours.")
    grantees: tuple[str, ...] = _key(
        _list_of(_matching(f"{TOKEN_ID}|{USER_ID}", f"{_TOKEN}, or USER@REALM")),
        [],
        "Others whose grants in the band are put back with ours, as the restore tester's: a token, with it its user, or a user.",
    )
    min_age: float = _key(_at_least(0), "2h", "A leftover is not touched before this long after the last task on it.")
    interval: float = _key(_at_least(1), "5m", "Time between two looks at the band.")


@dataclass(frozen=True, slots=True)
class OperationsSection:
    """`[operations]`: lifecycle operations. Read and checked; operations are not part of this version."""

    timeout: float = _key(_at_least(1), "5m", "Longest wait for an operation.")
    drift_after: float = _key(_at_least(1), "5m", "A requested state that is not there for this long is reported.")


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """`[metrics]`: for Prometheus."""

    listen: str = _key(_listen, "127.0.0.1:9612", "Address and port of `/metrics`.")


@dataclass(frozen=True, slots=True)
class LogSection:
    """`[log]`."""

    level: str = _key(_one_of("debug", "info", "warn", "error"), "info", "The least level that is logged.")


@dataclass(frozen=True, slots=True)
class StateSection:
    """`[state]`."""

    dir: Path = _key(_path, "/var/lib/guestward", "Folder of the agent's state.")


@dataclass(frozen=True, slots=True)
class HostSection:
    """`[host]`: for tests only."""

    root: Path = _key(_path, "/", "Folder under which the host's witnesses are looked for. The packaged unit refuses anything but `/`.")


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration. file: where it came from."""

    pve: PveSection = PveSection()
    scope: ScopeSection = ScopeSection()
    watchdog: WatchdogSection = WatchdogSection()
    locks: LocksSection = LocksSection()
    scratch: ScratchSection = ScratchSection()
    operations: OperationsSection = OperationsSection()
    metrics: MetricsSection = MetricsSection()
    log: LogSection = LogSection()
    state: StateSection = StateSection()
    host: HostSection = HostSection()
    file: Path = DEFAULT_FILE
    _rules: Rules = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out the rules once: every look asks for them again and again."""
        watchdog = self.watchdog
        rules = Rules(
            pools=self.scope.pools,
            exclude=frozenset(self.scope.exclude),
            scratch_first=self.scratch.first,
            scratch_last=self.scratch.last,
            confirm=watchdog.confirm,
            attempts=watchdog.attempts,
            backoff=watchdog.backoff,
            stable=watchdog.stable,
            parallel=watchdog.parallel,
            start_timeout=watchdog.start_timeout,
            operator_stop_holds=watchdog.operator_stop == "hold",
            backup_wait_warn=watchdog.backup_wait_warn,
            mass_stop=watchdog.mass_stop,
            lock_recovery=self.locks.recover == "prove",
            lock_confirm=self.locks.confirm,
            lock_warn_after=self.locks.warn_after,
            scratch_tag=self.scratch.tag,
            scratch_origins=frozenset(self.scratch.origins),
            scratch_min_age=self.scratch.min_age,
        )
        object.__setattr__(self, "_rules", rules)

    def rules(self) -> Rules:
        """What decisions depend on; of one configuration always the same object."""
        return self._rules


def sections() -> dict[str, type]:
    """Name -> class of every section, in the order of the reference."""
    return {f.name: type(f.default) for f in dataclasses.fields(Config) if f.init and f.name != "file"}


def load(file: Path) -> Config:
    """Read and check a configuration file. Raises ConfigError."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            regular = stat.S_ISREG(os.fstat(opened.fileno()).st_mode)
            content = opened.read(LARGEST + 1) if regular else b""
    except OSError as error:
        raise ConfigError(file, "", f"cannot be read: {error.strerror}") from None
    if not regular or len(content) > LARGEST:
        raise ConfigError(file, "", "is no regular file" if not regular else f"is larger than {LARGEST >> 10} KiB")
    try:
        values = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(file, "", f"is not UTF-8 text (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(file, "", f"is not TOML: {error}") from None
    return parse(values, file)


def parse(values: Mapping[str, Any], file: Path) -> Config:
    """Check what a file holds, and fill in the defaults. Raises ConfigError for the first thing that is wrong."""
    known = sections()
    for name in values:
        if name not in known:
            raise ConfigError(file, name, "unknown section; known are " + ", ".join(known))
    config = Config(**{name: _parse_section(cls, values.get(name, {}), name, file) for name, cls in known.items()}, file=file)
    _check_together(config)
    return config


def _parse_section(cls: type, values: object, name: str, file: Path) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(file, name, "must be a section, as in [" + name + "]")
    keys = {f.name: f for f in dataclasses.fields(cls)}
    found = {}
    for key, value in values.items():
        if key not in keys:
            raise ConfigError(file, f"{name}.{key}", "unknown key; known are " + ", ".join(keys))
        try:
            found[key] = keys[key].metadata["parse"](value)
        except ValueError as error:
            raise ConfigError(file, f"{name}.{key}", str(error)) from None
    return cls(**found)


def _check_together(config: Config) -> None:
    def refuse(key: str, reason: str) -> None:
        raise ConfigError(config.file, key, reason)

    if config.pve.token_id is None:
        refuse("pve.token_id", "is missing; without it nothing can be asked of PVE")
    if config.pve.ca_file is not None and config.pve.fingerprint is not None:
        refuse("pve.fingerprint", "stands beside pve.ca_file; choose one way of trust")
    if config.pve.fingerprint is not None and config.pve.server_name is not None:
        refuse("pve.server_name", "has no meaning beside pve.fingerprint")
    if config.scratch.last < config.scratch.first:
        refuse("scratch.last", "is smaller than scratch.first")
    if config.scratch.last - config.scratch.first > 99:
        refuse("scratch.last", "the band holds more than 100 VMIDs")
    inside = [vmid for vmid in config.scope.exclude if config.scratch.first <= vmid <= config.scratch.last]
    if inside:
        refuse("scope.exclude", f"{inside[0]} is in the scratch band, which is never guarded")
