"""The real agent process under test: started, watched through its log and metrics, commanded, killed.

Nothing here sleeps but `wait_until`. Whatever a test does, at its end the process is gone and the secret is in nothing that it said.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from guestward.demo.pvehost import PveHost

CLOSED = -1
REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 60.0  # for everything that has to happen; the machine may be busy
SHORT: Mapping[str, Mapping[str, object]] = {
    "pve": {"node": "pve1", "timeout": "5s"},
    "watchdog": {
        "interval": "1s",
        "confirm": "0.5s",
        "backoff": ["1s", "1.5s", "2s"],
        "stable": "1h",
        "start_timeout": "40s",  # a test that waits for its end sets 5s
        "heartbeat_every": 1000,
    },
}
_ports = itertools.count(20_000 + os.getpid() % 120 * 100)  # below those that the kernel gives to clients
_port_lock = threading.Lock()

Record = dict[str, Any]


def wait_until(predicate: Callable[[], object], timeout: float = PATIENCE, every: float = 0.01) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(every)


def free_port() -> int:
    """A port that nobody has."""
    with _port_lock:
        for port in _ports:
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
                return port
    raise AssertionError("no port is free")


def toml(sections: Mapping[str, Mapping[str, object]]) -> str:
    """Sections of text, numbers and lists; JSON writes those as TOML does."""
    lines = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def has(*parts: str) -> Callable[[object], bool]:
    """For `wait_for` and `events`: a text that has all of these in it."""
    return lambda value: all(part in str(value) for part in parts)


@dataclass
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Of `--output json`."""
        return json.loads(self.out)["data"]


@dataclass
class _Run:
    """One process and the thread that reads its log."""

    process: subprocess.Popen[bytes]
    reader: threading.Thread | None
    killed: bool = False


@dataclass
class Agent:
    """`guestward run` with a configuration of its own. Records are those of all its runs, in order."""

    host: PveHost
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)
    planted: str = ""
    """Code that is run before the agent's own: a defect, say."""

    def __post_init__(self) -> None:
        """Write the configuration; nothing runs yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config_file, self.state = self.folder / "guestward.toml", self.folder / "state"
        self.metrics_port = free_port()
        self.secrets.add(self.host.token_secret)
        self.records: list[Record] = []
        self._raw: list[bytes] = []
        self._said: list[str] = []
        self._news = threading.Condition()
        self._run: _Run | None = None
        self._start_with: int | None = None
        self.configure()

    def configure(self, **changed: Mapping[str, object]) -> None:
        """Write the configuration anew; what was changed before stays changed. A value of None leaves the key out."""
        self.settings = _merged(self.settings, changed)
        ours: dict[str, dict[str, object]] = {
            "pve": {
                "port": self.host.port,
                "token_id": self.host.token_id,
                "token_file": str(self.host.token_file),
                "ca_file": str(self.host.ca_file),
            },
            "metrics": {"listen": f"127.0.0.1:{self.metrics_port}"},
            "state": {"dir": str(self.state)},
            "host": {"root": str(self.host.root)},
        }
        wanted = _merged(_merged(SHORT, ours), self.settings)
        self.config_file.write_text(toml({name: {k: v for k, v in keys.items() if v is not None} for name, keys in wanted.items()}))

    # ------------------------------------------------------------ the process

    def __enter__(self) -> Agent:
        """Start it."""
        self.start(stdout=self._start_with)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it, by force if need be. A failed test gets the log as a note."""
        try:
            if self.alive:
                self._scrape()
                self.sigterm()
        finally:
            self._end()
        if error is not None:
            error.add_note(self.story())
            return
        try:
            self._check()
        except BaseException as found:
            found.add_note(self.story())
            raise

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process of now, or the last one."""
        assert self._run is not None, "never started"
        return self._run.process

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._run is not None and self._run.process.poll() is None

    def start(self, *, stdout: int | None = None) -> None:
        """Start the process. stdout: a descriptor to write to instead of the pipe that is read here, or CLOSED."""
        assert not self.alive
        closing = ["sh", "-c", 'exec "$@" >&-', "sh"] if stdout == CLOSED else []
        with (self.folder / "stderr").open("ab") as stderr:
            process = subprocess.Popen(
                [*closing, *self._program(), "run", "--config", str(self.config_file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if stdout is None else subprocess.DEVNULL if stdout == CLOSED else stdout,
                stderr=stderr,
                cwd=self.folder,
                env=self._environment(),
            )
        reader = None
        if process.stdout is not None:
            reader = threading.Thread(target=self._read, args=(process.stdout,), name="log", daemon=True)
            reader.start()
        self._run = _Run(process, reader)

    def _program(self) -> list[str]:
        if not self.planted:
            return _python("-m", "guestward")
        script = self.folder / "planted.py"
        script.write_text(f"{self.planted}\nimport sys\nfrom guestward.cli import main\nsys.exit(main())\n")
        return _python(str(script))

    @contextmanager
    def silent(self, stdout: int) -> Iterator[Agent]:
        """As `with agent`, but its log goes there."""
        self._start_with = stdout
        try:
            with self:
                yield self
        finally:
            self._start_with = None

    def _environment(self) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "PYTHONPATH") if key in os.environ}
        if os.environ.get("GUESTWARD_COVERAGE"):
            kept["COVERAGE_FILE"] = os.environ.get("COVERAGE_FILE", str(REPOSITORY / ".coverage"))
        return kept | dict(self.environ)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait until it ended by itself, and return its exit code."""
        code = self.process.wait(timeout)
        self._end()
        return code

    def sigterm(self, signal_: int = signal.SIGTERM) -> float:
        """Ask it to end; returns how many seconds that took. It has to end well."""
        self._look_at_process()
        began = time.monotonic()
        self.process.send_signal(signal_)
        code = self.process.wait(PATIENCE)
        took = time.monotonic() - began
        self._end()
        assert code == 0
        return took

    def kill9(self) -> None:
        """End it as a power cut would."""
        assert self._run is not None
        self._run.killed = True
        self.process.kill()
        self._end()

    def restart(self) -> None:
        """End it in good order and start it again."""
        self.sigterm()
        self.start()

    def hup(self) -> None:
        """Ask it to read its configuration again."""
        self.process.send_signal(signal.SIGHUP)

    def _end(self) -> None:
        if self._run is None:
            return
        if self._run.process.poll() is None:
            self._run.killed = True
            self._run.process.kill()
        self._run.process.wait()
        if self._run.reader is not None:
            self._run.reader.join()
        if self._run.process.stdout is not None:
            self._run.process.stdout.close()

    # ---------------------------------------------------------------- its log

    def _read(self, stream: IO[bytes]) -> None:
        try:
            for line in stream:
                self._hear(line)
        except ValueError:
            return  # closed by the test
        with self._news:
            self._news.notify_all()

    def _hear(self, line: bytes) -> None:
        with self._news:
            self._raw.append(line)
            try:
                self.records.append(json.loads(line.decode()))
            except ValueError:
                self.records.append({"event": "", "broken": line.decode("utf-8", "replace")})
            self._news.notify_all()

    @property
    def mark(self) -> int:
        """How many records there are: `after=` this, only news count."""
        with self._news:
            return len(self.records)

    def events(self, event: str | None = None, *, after: int = 0, **fields: object) -> list[Record]:
        """The records with this event and these values; a value may be a predicate."""
        with self._news:
            return [record for record in self.records[after:] if _matches(record, event, fields)]

    def wait_for(self, event: str, *, after: int = 0, timeout: float = PATIENCE, **fields: object) -> Record:
        """The first such record, as soon as it is there."""
        deadline = time.monotonic() + timeout
        with self._news:
            while True:
                found = next((record for record in self.records[after:] if _matches(record, event, fields)), None)
                if found is not None:
                    return found
                assert self.alive, f"the agent ended before it said {event}"
                left = deadline - time.monotonic()
                assert left > 0, f"no {event} {fields or ''} within {timeout:g} s"
                self._news.wait(min(left, 0.5))

    def story(self) -> str:
        """What it said, for whoever reads about a failure."""
        with self._news:
            lines = [f"{r.get('ts', '')[14:]} {r.get('level')} {r.get('event')} {r.get('message', r.get('broken'))}" for r in self.records]
        stderr = (self.folder / "stderr").read_text() if (self.folder / "stderr").exists() else ""
        return "\n".join(["--- the agent said", *lines, "--- stderr", stderr, "--- effects", str(self.host.effects())])

    # ------------------------------------------------------------ its metrics

    def _scrape(self) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
                text = str(answer.read().decode())
        except OSError:
            return ""
        self._said.append(text)
        del self._said[:-20]
        return text

    def metrics(self) -> dict[str, float]:
        """A scrape: sample with its labels -> value. Nothing when nobody answers."""
        rows = (line.rpartition(" ") for line in self._scrape().splitlines() if line and not line.startswith("#"))
        return {name.removeprefix("guestward_"): float(value) for name, _, value in rows}

    def swept(self, result: str | None = None) -> int:
        """How many sweeps this process has made."""
        name = "sweeps_total" if result is None else f'sweeps_total{{result="{result}"}}'
        return round(sum(value for sample, value in self.metrics().items() if sample.startswith(name)))

    def sweeps(self, more: int, result: str | None = None) -> None:
        """Wait until so many sweeps have been made that began after now."""
        before = self.swept()
        self.until_swept(before + 1)  # the one that may be under way
        self.until_swept(self.swept(result) + more, result)

    def until_swept(self, count: int, result: str | None = None) -> None:
        """Wait until this process has made so many sweeps in all."""

        def enough() -> bool:
            assert self.alive, "the agent ended"
            return self.swept(result) >= count

        wait_until(enough, every=0.1)

    # ------------------------------------------------------------- commands

    def cli(self, *words: str, environ: Mapping[str, str] | None = None) -> Answer:
        """Run a command with this agent's configuration."""
        done = subprocess.run(
            [*_python("-m", "guestward"), *words, "--config", str(self.config_file)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=self._environment() | dict(environ or {}),
            check=False,
        )
        self._said += [done.stdout, done.stderr]
        return Answer(done.returncode, done.stdout, done.stderr)

    # ---------------------------------------------------- at every test's end

    def _look_at_process(self) -> None:
        """What everybody on the host can see of it, and what only root can."""
        where = Path(f"/proc/{self.process.pid}")
        for name in ("cmdline", "environ"):
            self._leaks(f"/proc/PID/{name}", (where / name).read_bytes())

    def _leaks(self, where: str, said: bytes | str) -> None:
        data = said.encode() if isinstance(said, str) else said
        for secret in self.secrets:
            assert secret.encode() not in data, f"the secret is in {where}"

    def _check(self) -> None:
        for line in self._raw:
            self._leaks("the log", line)
        for text in self._said:
            self._leaks("a command's or the metrics' output", text)
        stderr = (self.folder / "stderr").read_bytes() if (self.folder / "stderr").exists() else b""
        self._leaks("stderr", stderr)
        for file in self.state.rglob("*") if self.state.is_dir() else ():
            if file.is_file():
                self._leaks(str(file), file.read_bytes())
        assert stderr == b"", "the agent wrote to stderr"
        torn = self._run is not None and self._run.killed
        assert torn or not self.events(broken=lambda line: line is not None), "a line of the log is no JSON"
        assert self.planted or not self.events("internal_error"), "the agent met a defect of its own"


def _python(*program: str) -> list[str]:
    if os.environ.get("GUESTWARD_COVERAGE"):
        return [sys.executable, "-m", "coverage", "run", "-p", f"--rcfile={REPOSITORY / 'pyproject.toml'}", *program]
    return [sys.executable, *program]


def _merged(base: Mapping[str, Mapping[str, object]], over: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    names = [*base, *(name for name in over if name not in base)]
    return {name: {**base.get(name, {}), **over.get(name, {})} for name in names}


def _matches(record: Record, event: str | None, fields: Mapping[str, object]) -> bool:
    if event is not None and record.get("event") != event:
        return False
    return all(wanted(record.get(name)) if callable(wanted) else record.get(name) == wanted for name, wanted in fields.items())


def is_json_line(line: bytes) -> bool:
    """Whether a line of the log is one object with what every event has."""
    record = json.loads(line)
    return {"ts", "level", "event", "message"} <= record.keys() and re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", record["ts"]) is not None
