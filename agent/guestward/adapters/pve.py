"""The PVE API over HTTPS: the only module that talks HTTP.

proxmoxer builds the requests and reads the JSON; below it a transport of our own replaces what differs between proxmoxer 1.2.0, 2.2.0
and 2.3.0 and between requests and urllib3 (containers.md 2.1): time limits, trust, what an error says, and above all whether a request
that failed can have had an effect. Whatever an answer holds is checked here once; nobody behind this module sees a raw value.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import requests
from proxmoxer import ProxmoxAPI
from proxmoxer.core import ResourceException
from requests.adapters import BaseAdapter

from guestward.adapters.secret import SecretError, usable
from guestward.adapters.trust import Budget, Trust, TrustError
from guestward.config import PveSection
from guestward.model.guest import GuestConfig, GuestId, GuestKind, ListedGuest, LiveStatus
from guestward.model.observation import Member, Resources, StorageState
from guestward.model.scratch import ScratchBand, ScratchId
from guestward.model.task import Running, Task, TaskStatus, Unknown, Upid, UpidError, bounded, exit_status, task_status
from guestward.ports import Clock, PveAnswerLost, PveError, PveRefused, PveUnreachable

NO_BAND = ScratchBand(0, -1)
T = TypeVar("T")
D = TypeVar("D")

CONNECT_TIMEOUT = 5.0
MAX_BODY = 32 * 1024 * 1024
KEPT_FOR = 4.0  # pveproxy closes a connection that is idle for 5 s (pve-facts I)
ACTIVE_PAGE, ARCHIVE_PAGE, LOG_PAGE = 1000, 500, 20_000
MAX_LINE = 500  # characters of a log's line
_VOLUME_CONTENT = frozenset({"images", "rootdir"})
LOGIN_FAILURES, LOGIN_PAUSE = 3, 300.0
_CHANGES = re.compile(
    r"/api2/json/nodes/(?P<node>[A-Za-z0-9-]+)/(lxc|qemu)/(?P<vmid>[1-9][0-9]{2,8})(?P<what>/status/start|/status/stop|\?purge=1)"
)
_SENT = frozenset({("POST", "/status/start"), ("POST", "/status/stop"), ("DELETE", "?purge=1")})
_VMIDS = range(100, 1_000_000_000)

# 595-599: pveproxy got no proper answer from pvedaemon or another node (AnyEvent::HTTP); 502-504: a proxy in between said so.
_LOST = frozenset({502, 503, 504, 595, 596, 597, 598, 599})


class _NotSent(PveUnreachable):
    """The connection broke off before the request was sent."""


class _NoAnswer(PveAnswerLost):
    """The connection broke off after the request was sent, before an answer began."""


class _Answer(NamedTuple):
    status: int
    reason: str
    body: bytes


class _Connection(http.client.HTTPConnection):
    """Never opens a connection by itself: that would be one without TLS."""

    auto_open = 0


def may_send(method: str, path: str, band: ScratchBand, *, node: str, body: object = None) -> bool:
    """Whether a request is one of those that there are: reads, starts, and of guests in the band stops and deletes; on our node alone.

    path: as it goes over the wire, parameters included. body: there is none, since it would hold more parameters. Asked once more here,
    whatever made the request believe that it may (C53).
    """
    if method == "GET":
        return True
    found = _CHANGES.fullmatch(path)
    if found is None or (method, found["what"]) not in _SENT or found["node"] != node or body not in (None, b"", ""):
        return False
    return found["what"] == "/status/start" or int(found["vmid"]) in band


class _Transport(BaseAdapter):
    """One exchange with the API inside the time that the budget leaves. Raises PveError and nothing else.

    Trust is decided before anything is sent. No redirect is followed, no proxy asked, nothing but GET is ever repeated.
    """

    def __init__(self, section: PveSection, budget: Budget, hide: str, band: ScratchBand, node: str) -> None:
        """hide: the secret, which nothing that is told to people may hold. band, node: outside of them nothing is stopped or destroyed."""
        super().__init__()
        self._band, self._node = band, node
        self._host, self._port = section.host, section.port
        self._peer = f"{section.host}:{section.port}"
        self._longest, self._hide = section.timeout, hide
        self._budget, self._trust = budget, Trust(section, budget)
        self._deadline = 0.0
        self._kept: _Connection | None = None
        self._kept_at = 0.0

    def until(self, deadline: float) -> None:
        """Set the deadline of the calls to come."""
        self._deadline = deadline

    def close(self) -> None:
        """Close the connection that is kept alive."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        """Called by requests; only an answer with status 200 comes back, anything else is raised."""
        if not may_send(str(request.method), request.path_url, self._band, node=self._node, body=request.body):
            raise PveUnreachable(f"{_route(request)}: not sent, since the agent may not send such a request at all")
        answer = self._asked(request)
        if answer.status != 200:
            raise _error(_route(request), answer, self._hide)
        response = requests.Response()
        response.status_code, response.reason, response.encoding = answer.status, answer.reason, "utf-8"
        response.raw, response.request, response.url = io.BytesIO(answer.body), request, str(request.url)
        return response

    def _asked(self, request: requests.PreparedRequest) -> _Answer:
        """A GET is asked once more when the connection broke off before an answer (C66); anything else goes over a new one, once."""
        again = request.method == "GET"
        try:
            return self._once(request, reuse=again)
        except (_NotSent, _NoAnswer):
            if not again:
                raise
        return self._once(request, reuse=False)

    def _once(self, request: requests.PreparedRequest, *, reuse: bool) -> _Answer:
        route = _route(request)
        self._budget.begin(self._longest, self._deadline)
        with contextlib.ExitStack() as stack:
            connection = self._kept_alive() if reuse else None
            if connection is None:
                self.close()
                connection = self._new_connection(route)
            self._kept = None
            stack.callback(connection.close)
            self._check_time(route)
            answer, may_stay = self._exchange(connection, request, route)
            if may_stay:
                stack.pop_all()
                self._kept, self._kept_at = connection, self._budget.clock.boottime()
        return answer

    def _kept_alive(self) -> _Connection | None:
        return self._kept if self._budget.clock.boottime() - self._kept_at < KEPT_FOR else None

    def _check_time(self, route: str) -> None:
        try:
            self._budget.left()
        except TimeoutError:
            raise PveUnreachable(f"{route}: no time left to ask {self._peer}") from None

    def _new_connection(self, route: str) -> _Connection:
        self._check_time(route)
        connection = _Connection("localhost")  # the name goes nowhere: it is not this object that connects
        try:
            connection.sock = self._trust.open(self._connect)
        except TrustError as error:
            raise PveUnreachable(f"{route}: {error}") from None
        except TimeoutError:
            raise PveUnreachable(f"{route}: {self._peer} did not take the connection in time") from None
        except ConnectionRefusedError:
            raise PveUnreachable(f"{route}: {self._peer} refuses connections; is pveproxy running?") from None
        except ConnectionError:
            raise _NotSent(f"{route}: {self._peer} closed the connection at once; see ALLOW_FROM in /etc/default/pveproxy") from None
        except (OSError, UnicodeError) as error:
            raise PveUnreachable(f"{route}: {self._peer} cannot be reached: {_why(error)}") from None
        return connection

    def _connect(self) -> socket.socket:
        """The first address that answers. Every address has its turn within the budget."""
        failure: OSError = OSError("it has no address")
        for _, _, _, _, address in socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM):
            try:
                plain = socket.create_connection((str(address[0]), self._port), timeout=min(CONNECT_TIMEOUT, self._budget.left()))
            except OSError as error:
                failure = error
            else:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as http.client does
                return plain
        raise failure

    def _exchange(self, connection: _Connection, request: requests.PreparedRequest, route: str) -> tuple[_Answer, bool]:
        headers: dict[str, Any] = {name: _bytes(value) for name, value in request.headers.items()}
        headers["Host"] = urlsplit(str(request.url)).netloc
        with self._losses(route, _NoAnswer):
            connection.request(str(request.method), request.path_url, request.body, headers)
            response = connection.getresponse()
        with contextlib.closing(response):
            with self._losses(route, PveAnswerLost):
                body = self._body(response, route)
            may_stay = response.status == 200 and not response.will_close and response.isclosed()
        reason = response.reason.encode("latin-1", "replace").decode("utf-8", "replace")
        return _Answer(response.status, reason, body), may_stay

    def _body(self, response: http.client.HTTPResponse, route: str) -> bytes:
        body = b"" if (response.length or 0) > MAX_BODY else response.read(MAX_BODY + 1)
        if len(body) > MAX_BODY or (response.length or 0) > MAX_BODY:
            raise PveAnswerLost(f"{route}: the answer is larger than {MAX_BODY // 1024} KiB")
        if response.length:
            raise PveAnswerLost(f"{route}: the answer broke off {response.length} bytes before its end")
        return body

    @contextlib.contextmanager
    def _losses(self, route: str, broke_off: type[PveAnswerLost]) -> Iterator[None]:
        """From here on the request may have been carried out, whatever becomes of the answer (C20)."""
        try:
            yield
        except TimeoutError:
            raise PveAnswerLost(f"{route}: {self._peer} did not answer in time") from None
        except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise broke_off(f"{route}: {self._peer} closed the connection before it had answered") from None
        except OSError as error:
            raise PveAnswerLost(f"{route}: the connection to {self._peer} failed: {_why(error)}") from None
        except (http.client.HTTPException, ValueError) as error:
            raise PveAnswerLost(f"{route}: {self._peer} sent no whole answer of HTTP: {_why(error)}") from None


def _why(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return bounded(text or str(error) or type(error).__name__, 120)


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else value


def _route(request: requests.PreparedRequest) -> str:
    return bounded(f"{request.method} {request.path_url.removeprefix('/api2/json')}", 160)


def _error(route: str, answer: _Answer, hide: str) -> PveError:
    """What an answer other than 200 means. 4xx never has an effect; 5xx has none when it is PVE's own (pve-facts D4)."""
    status, body = answer.status, _error_body(answer.body)
    told = bounded(_told(answer.reason, body or {}).replace(hide, "[secret]"))
    message = f"{route}: {status} {told}{_advice(status, told)}"
    if 400 <= status < 500 or (500 <= status < 600 and status not in _LOST and body is not None):
        return PveRefused(message, status)
    return PveAnswerLost(message if status >= 500 else f"{route}: {status} {told}: not an answer of PVE's API", status)


def _error_body(body: bytes) -> dict[str, Any] | None:
    """PVE's JSON. Empty is PVE's too (401, 595-599); None: somebody else's."""
    if not body:
        return {}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _told(reason: str, body: Mapping[str, Any]) -> str:
    """The reason has the first line only; `message`, there since pve-http-server 5.2, has all of it; `errors` names parameters."""
    message, errors = body.get("message"), body.get("errors")
    text = message.strip() if isinstance(message, str) and message.strip() else reason
    if isinstance(errors, dict) and errors:
        text += " " + "; ".join(f"{key}: {value}" for key, value in errors.items())
    return text


def _advice(status: int, told: str) -> str:
    if re.match(r"hostname lookup '.*' failed", told):
        return "; the node's name in [pve] node is wrong, it must be what `hostname -s` prints on this host"
    if status == 595:
        return " (pveproxy cannot reach pvedaemon; `systemctl status pvedaemon`)"
    if 596 <= status <= 599:
        return " (pveproxy lost pvedaemon's answer)"
    return ""


class _Logins:
    """Keeps failed logins few: each one feeds fail2ban, which would shut this host out of its own API (C65)."""

    def __init__(self) -> None:
        self._failures, self._last, self._said = 0, 0.0, ""

    def failed(self, now: float, said: str) -> None:
        self._failures, self._last, self._said = self._failures + 1, now, said

    def forget(self) -> None:
        self._failures = 0

    def silence(self, now: float) -> PveRefused | None:
        """What to raise instead of asking again."""
        wait = self._last + LOGIN_PAUSE - now
        if self._failures < LOGIN_FAILURES or wait <= 0:
            return None
        return PveRefused(
            f"{self._said}; not asked again for {wait:.0f} s, or until the secret changes, lest fail2ban shuts this host out", 401
        )


# What proxmoxer lets through when a body with status 200 is not PVE's: 1.2.0 to 2.3.0 differ, and `{"errors": bytes}` comes besides.
_SURPRISES = (LookupError, TypeError, AttributeError, ValueError, RecursionError, requests.RequestException, ResourceException)


class ProxmoxPve:
    """`guestward.ports.Pve` over HTTPS. For one thread only: neither requests' session nor the connection below it is locked.

    Reads nothing and asks nothing until the first call. One connection is kept alive for GET.
    """

    def __init__(
        self,
        section: PveSection,
        node: str,
        read_secret: Callable[[], str],
        clock: Clock,
        on_call: Callable[[], None] | None = None,
        band: ScratchBand = NO_BAND,
    ) -> None:
        """read_secret: may raise SecretError; asked again after each 401. on_call: told of each call before anything is sent.

        band: guests that may be stopped and destroyed; by default none.
        """
        self._band = band
        self.node, self.token_id = node, section.token_id or ""
        self._section, self._read_secret, self._clock = section, read_secret, clock
        self._on_call = on_call or (lambda: None)
        self._budget, self._logins = Budget(clock), _Logins()
        self._secret = ""
        self._api: Any = None
        self._transport: _Transport | None = None

    def close(self) -> None:
        """Close the connection that is kept alive; the next call opens another."""
        if self._transport is not None:
            self._transport.close()

    def guests(self, kind: GuestKind, *, deadline: float) -> Mapping[GuestId, ListedGuest]:
        """See `Pve.guests`. Status is `running` or `stopped` here and live; `template` may be missing (pve-facts A2)."""
        rows = self._rows(deadline, "nodes", self.node, kind.value)
        now = self._clock.boottime()
        return _by_id((_listed(kind, row, now) for row in rows), rows)

    def members(self, pool: str, *, deadline: float) -> tuple[Member, ...]:
        """See `Pve.members`. `poolid` is a parameter, since the name of a nested pool has a slash in it."""
        pools = [row for row in self._rows(deadline, "pools", poolid=pool) if row.get("poolid", _text) == pool]
        if not pools:
            raise PveAnswerLost(f"GET /pools: pool {bounded(pool, 80)} is not shown; it does not exist, or Pool.Audit on it is missing")
        rows = [_Object(pools[0].route, row) for row in pools[0].get("members", _list)]
        guests = [row for row in rows if row.get("type", _text) in tuple(GuestKind)]
        return tuple(_by_id((_member(pool, row) for row in guests), guests).values())

    def active_tasks(self, *, deadline: float) -> tuple[Task, ...]:
        """See `Pve.active_tasks`. A row that cannot be read spoils the answer: it could be the backup."""
        rows = self._rows(deadline, "nodes", self.node, "tasks", source="active", limit=ACTIVE_PAGE)
        if len(rows) >= ACTIVE_PAGE:
            raise PveAnswerLost(f"{rows[0].route}: a full page of {ACTIVE_PAGE} tasks; there may be more that are not shown")
        return tuple(_task(row) for row in rows)

    def past_tasks(self, *, deadline: float) -> tuple[Task, ...]:
        """See `Pve.past_tasks`; the 500 newest."""
        rows = self._rows(deadline, "nodes", self.node, "tasks", source="archive", limit=ARCHIVE_PAGE)
        return tuple(_task(row) for row in rows)

    def past_tasks_of(self, vmid: int, *, deadline: float) -> tuple[Task, ...]:
        """See `Pve.past_tasks_of`; the 500 newest (pve-manager API2/Tasks.pm `vmid`, an exact match). Whose a guest is rests on it."""
        rows = self._rows(deadline, "nodes", self.node, "tasks", source="archive", vmid=vmid, limit=ARCHIVE_PAGE)
        tasks = tuple(_task(row) for row in rows)
        for other in (task.upid for task in tasks if task.upid.id != str(vmid)):
            raise PveAnswerLost(f"{rows[0].route}: asked for tasks of {vmid}, PVE sent {bounded(other.text, 120)}")
        return tasks

    def past_backups(self, *, deadline: float) -> tuple[Task, ...]:
        """See `Pve.past_backups`; the 500 newest (pve-manager API2/Tasks.pm `typefilter`, an exact match)."""
        rows = self._rows(deadline, "nodes", self.node, "tasks", source="archive", typefilter="vzdump", limit=ARCHIVE_PAGE)
        return tuple(_task(row) for row in rows)

    def privileges(self, *, deadline: float) -> Mapping[str, Mapping[str, bool]]:
        """See `Pve.privileges`. The value is the propagate flag, the key is the grant (pve-facts E3)."""
        paths = self._object(deadline, "access", "permissions")
        return {path: _Object(paths.route, paths.get(path, _dict)).all(_flag) for path in paths}

    def privileges_on(self, path: str, *, deadline: float) -> Mapping[str, bool]:
        """The same for one path, which PVE works out even where no ACL names it. Not a door of the agent's: it needs the list only."""
        answer = _Object(*self._call("GET", deadline, ("access", "permissions"), path=path))
        return _Object(answer.route, answer.get(path, _dict)).all(_flag)

    def resources(self, *, deadline: float) -> Resources:
        """See `Pve.resources`. `hastate` may be null for a guest that HA manages (pve-facts A1)."""
        rows = [(row.get("type", _text), row) for row in self._rows(deadline, "cluster", "resources")]
        guests = [row for kind, row in rows if kind in tuple(GuestKind)]
        ids = _by_id(((_guest_id(row), row) for row in guests), guests)
        here = [(kind, row) for kind, row in rows if kind in ("node", "storage") and row.get("node", _text) == self.node]
        return Resources(
            listed=frozenset(guest for guest, row in ids.items() if row.get("node", _text) == self.node),
            ha={guest: row.find("hastate", _text, None) for guest, row in ids.items() if "hastate" in row},
            storages=_storages([row for kind, row in here if kind == "storage"]),
            maintenance=any(row.find("hastate", _text, "") == "maintenance" for kind, row in here if kind == "node"),
        )

    def config(self, guest: GuestId, *, deadline: float) -> GuestConfig:
        """See `Pve.config`. `digest` is always there (pve-facts A4); an answer without it is no configuration."""
        config = self._object(deadline, *self._guest(guest), "config")
        config.get("digest", _text)
        return GuestConfig.from_api(guest.kind, config.all(_config_text))

    def live(self, guest: GuestId, *, deadline: float) -> LiveStatus:
        """See `Pve.live`. `ha.managed` is the cheapest test whether HA manages the guest (pve-facts A3)."""
        row = self._object(deadline, *self._guest(guest), "status", "current")
        return LiveStatus(
            running=row.get("status", _running),
            pid=row.find("pid", _whole, None) or None,
            uptime=row.find("uptime", _whole, 0),
            lock=row.find("lock", _text, None),
            qmpstatus=row.find("qmpstatus", _text, None),
            ha_managed=_Object(row.route, row.get("ha", _dict)).get("managed", _flag),
        )

    def snapshots(self, guest: GuestId, *, deadline: float) -> Mapping[str, str]:
        """See `Pve.snapshots`. The entry `current` is none; `snapstate` is there while one is made or deleted (pve-facts C6)."""
        rows = self._rows(deadline, *self._guest(guest), "snapshot")
        return {name: row.find("snapstate", _text, "") for row in rows if (name := row.get("name", _text)) != "current"}

    def task(self, upid: Upid, *, deadline: float) -> TaskStatus:
        """See `Pve.task`. Rotated away is 400 `errors: {upid: "no such task"}` (pve-facts D6, C61)."""
        try:
            row = self._object(deadline, "nodes", self.node, "tasks", upid.text, "status")
        except PveRefused as refused:
            if refused.status in (400, 500) and re.search("no such task|unable to parse worker upid", str(refused)):
                return Unknown("rotated away or unknown")
            raise
        return task_status(row.get("status", _text), row.find("exitstatus", lambda value: value, None))

    def task_log(self, upid: Upid, *, deadline: float) -> tuple[str, ...]:
        """See `Pve.task_log`. PVE answers an empty or a missing log with one line that says so (pve-common Tools.pm `dump_logfile`)."""
        rows = self._rows(deadline, "nodes", self.node, "tasks", upid.text, "log", limit=LOG_PAGE)
        route = f"GET /nodes/{self.node}/tasks/{upid}/log"
        if len(rows) >= LOG_PAGE:
            raise PveAnswerLost(f"{route}: a full page of {LOG_PAGE} lines; there may be more that are not shown")
        lines = {row.get("n", _whole): row.get("t", _line) for row in rows}
        if not rows or sorted(lines) != [*range(1, len(rows) + 1)]:
            raise PveAnswerLost(f"{route}: the lines are not numbered from 1 on, each once")
        found = tuple(lines[n] for n in range(1, len(rows) + 1))
        if len(found) == 1 and found[0].startswith("unable to open file - "):
            raise PveAnswerLost(f"{route}: the log is gone: {bounded(found[0])}")
        return () if found == ("no content",) else found

    def start(self, guest: GuestId, *, deadline: float) -> Upid:
        """See `Pve.start`. A type `hastart` in the UPID says that it was handed to HA (pve-facts D1)."""
        return self._worker("POST", deadline, (*self._guest(guest), "status", "start"))

    def stop_scratch(self, kind: GuestKind, scratch: ScratchId, *, deadline: float) -> Upid:
        """See `Pve.stop_scratch`."""
        return self._worker("POST", deadline, (*self._guest(GuestId(kind, scratch.vmid)), "status", "stop"))

    def destroy_scratch(self, kind: GuestKind, scratch: ScratchId, *, deadline: float) -> Upid:
        """See `Pve.destroy_scratch`."""
        return self._worker("DELETE", deadline, self._guest(GuestId(kind, scratch.vmid)), purge=1)

    def volume_storages(self, *, deadline: float) -> Mapping[str, bool]:
        """See `Pve.volume_storages`. PVE leaves out storages that the token may not see (pve-facts F3)."""
        rows = self._rows(deadline, "nodes", self.node, "storage", enabled=1)
        holds = [row for row in rows if not _VOLUME_CONTENT.isdisjoint(row.get("content", _text).split(","))]
        return {row.get("storage", _text): row.find("active", _flag, False) for row in holds}

    def volumes(self, storage: str, scratch: ScratchId, *, deadline: float) -> tuple[str, ...]:
        """See `Pve.volumes`. Backups with that VMID are no volumes of a guest; a plugin may not know the filter, and show all guests'."""
        rows = self._rows(deadline, "nodes", self.node, "storage", storage, "content", vmid=scratch.vmid)
        found = [row for row in rows if row.get("content", _text) in _VOLUME_CONTENT]
        return tuple(row.get("volid", _volid) for row in found if row.get("vmid", _whole) == scratch.vmid)

    def _worker(self, method: str, deadline: float, path: tuple[str, ...], **params: str | int) -> Upid:
        route, data = self._call(method, deadline, path, **params)
        try:
            return Upid.parse(data)
        except UpidError as error:
            raise PveAnswerLost(f"{route}: PVE answered something else than a task: {error}") from None

    def _guest(self, guest: GuestId) -> tuple[str, ...]:
        return "nodes", self.node, guest.kind.value, str(guest.vmid)

    def _rows(self, deadline: float, *path: str, **params: str | int) -> list[_Object]:
        route, data = self._call("GET", deadline, path, **params)
        if not isinstance(data, list):
            raise _wrong(route, "`data`", "a list", data)
        return [_Object(route, row) for row in data]

    def _object(self, deadline: float, *path: str) -> _Object:
        return _Object(*self._call("GET", deadline, path))

    def _call(self, method: str, deadline: float, path: tuple[str, ...], /, **params: str | int) -> tuple[str, Any]:
        """One call, and one more when the secret turns out to have changed: a 401 has no effect, so that holds for POST too."""
        self._on_call()
        silence = self._logins.silence(self._clock.boottime())
        if silence is not None and not self._renewed(silence):
            raise silence
        try:
            return self._sent(method, deadline, path, params)
        except PveRefused as refused:
            if refused.status != 401 or not self._renewed(refused):
                raise
        return self._sent(method, deadline, path, params)

    def _sent(self, method: str, deadline: float, path: tuple[str, ...], params: dict[str, str | int]) -> tuple[str, Any]:
        if self._transport is None or self._api is None:
            self._secret = self._new_secret()
            self._api, self._transport = self._new_api()
        self._transport.until(deadline)
        route = f"{method} /{'/'.join(path)}"
        resource = self._api(tuple(quote(part, safe=":@!") for part in path))
        try:
            data = {"GET": resource.get, "POST": resource.post, "DELETE": resource.delete}[method](**params)
        except PveRefused as refused:
            self._note_login(refused)
            raise
        except _SURPRISES as error:
            raise PveAnswerLost(f"{route}: the answer is not PVE's JSON ({type(error).__name__})") from None
        self._logins.forget()
        if isinstance(data, dict) and isinstance(data.get("errors"), bytes):
            begin = data["errors"].replace(self._secret.encode(), b"[secret]")[:40]
            raise PveAnswerLost(f"{route}: the answer is not PVE's JSON, it begins {bounded(begin)}")
        return route, data

    def _note_login(self, refused: PveRefused) -> None:
        if refused.status == 401:
            self._logins.failed(self._clock.boottime(), str(refused))
        elif refused.status == 403:
            self._logins.forget()

    def _renewed(self, refused: PveRefused) -> bool:
        """Whether there is another secret now than the one that was refused."""
        try:
            secret = self._new_secret()
        except PveUnreachable as error:
            raise PveRefused(f"{refused}; {error}", 401) from None
        if secret == self._secret:
            return False
        self.close()
        self._transport = self._api = None
        self._logins.forget()
        return True

    def _new_secret(self) -> str:
        try:
            secret = self._read_secret()
        except SecretError as error:
            raise PveUnreachable(str(error)) from None
        if not usable(secret):
            raise PveUnreachable("the token's secret is empty or holds characters that no secret has")
        return secret

    def _new_api(self) -> tuple[Any, _Transport]:
        """proxmoxer on top of our transport. The host in its URL is for the Host header alone: 1.2.0 cannot write IPv6 addresses."""
        user, _, name = self.token_id.partition("!")
        plain = re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", self._section.host)
        host = self._section.server_name or (self._section.host if plain else "localhost")
        api = ProxmoxAPI(host, user=user, token_name=name, token_value=self._secret, port=self._section.port)
        session: requests.Session = api._store["session"]
        session.trust_env = False  # no HTTPS_PROXY, no REQUESTS_CA_BUNDLE, no .netrc
        session.headers["Accept-Encoding"] = "identity"  # a bound on the body is a bound on memory
        session.adapters.clear()
        transport = _Transport(self._section, self._budget, self._secret, self._band, self.node)
        session.mount("https://", transport)
        return api, transport


class _Object:
    """One JSON object of an answer. Every value goes through a reader that checks it; what nobody asks for is ignored."""

    def __init__(self, route: str, value: object) -> None:
        if not isinstance(value, dict):
            raise _wrong(route, "an entry", "an object", value)
        self.route, self._values = route, value

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, key: str, read: Callable[[object], T]) -> T:
        """A value that has to be there."""
        if self._values.get(key) is None:
            raise _wrong(self.route, f"`{bounded(key, 60)}`", "there", None)
        return self._read(key, read)

    def find(self, key: str, read: Callable[[object], T], default: D) -> T | D:
        """A value that may be absent, null or empty."""
        return default if self._values.get(key) in (None, "") else self._read(key, read)

    def all(self, read: Callable[[object], T]) -> dict[str, T]:
        """Every value."""
        return {key: self._read(key, read) for key in self._values}

    def _read(self, key: str, read: Callable[[object], T]) -> T:
        try:
            return read(self._values[key])
        except ValueError as error:
            raise _wrong(self.route, f"`{bounded(key, 60)}`", str(error), self._values[key]) from None


def _wrong(route: str, what: str, wanted: str, value: object) -> PveAnswerLost:
    shown = type(value).__name__ if isinstance(value, (list, dict)) else bounded(value, 60)
    return PveAnswerLost(f"{bounded(route, 160)}: {what} should be {wanted}, PVE sent {shown}")


def _whole(value: object) -> int:
    """Perl's JSON writes a number as text or not, as it was last used (pve-facts A2)."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("a whole number")
    return value


def _vmid(value: object) -> int:
    vmid = _whole(value)
    if vmid not in _VMIDS:
        raise ValueError("a VMID")
    return vmid


def _flag(value: object) -> bool:
    known = {"1": True, "yes": True, "on": True, "true": True, "0": False, "no": False, "off": False, "false": False}
    word = str(value).lower() if isinstance(value, (int, str)) else ""
    if word not in known:
        raise ValueError("a yes or no")
    return known[word]


def _text(value: object) -> str:
    """Text for comparing and showing: one bounded line. A name that is all digits may come as a number."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError("text")
    return bounded(str(value), 200)


def _volid(value: object) -> str:
    """A volume's name as it is: it goes into a command, where half a name would be another volume's."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 200:
        raise ValueError("a volume's name")
    return value


def _line(value: object) -> str:
    """A line of a log as it stands there, blanks and all: which words begin it matters."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError("text")
    text = str(value)[:MAX_LINE]
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _running(value: object) -> bool:
    if value not in ("running", "stopped"):
        raise ValueError('"running" or "stopped"')
    return value == "running"


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list")
    return value


def _dict(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object")
    return value


def _config_text(value: object) -> str:
    """Every option as PVE writes it in the file; `lxc:` lines come as a list of pairs."""
    if value is None or isinstance(value, bool):
        return str(int(value)) if value is not None else ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _by_id(pairs: Iterable[tuple[GuestId, T]], rows: list[_Object]) -> dict[GuestId, T]:
    """A VMID is unique in a cluster, whatever the kind; an answer that has one twice cannot be trusted."""
    found: dict[GuestId, T] = {}
    seen: set[int] = set()
    for guest, value in pairs:
        if guest.vmid in seen:
            raise PveAnswerLost(f"{rows[0].route}: VMID {guest.vmid} is listed twice")
        seen.add(guest.vmid)
        found[guest] = value
    return found


def _guest_id(row: _Object) -> GuestId:
    return GuestId(GuestKind(row.get("type", _text)), row.get("vmid", _vmid))


def _listed(kind: GuestKind, row: _Object, now: float) -> tuple[GuestId, ListedGuest]:
    guest, running = GuestId(kind, row.get("vmid", _vmid)), row.get("status", _running)
    return guest, ListedGuest(
        id=guest,
        name=row.find("name", _text, ""),
        running=running,
        pid=row.find("pid", _whole, None) or None,
        up_since=now - row.find("uptime", _whole, 0) if running else None,
        lock=row.find("lock", _text, None),
        template=row.find("template", _flag, False),
    )


def _member(pool: str, row: _Object) -> tuple[GuestId, Member]:
    """Status and name are pvestatd's and may be missing for a while (pve-facts A1)."""
    guest = _guest_id(row)
    return guest, Member(guest, row.get("node", _text), pool, row.find("status", _text, "unknown"), row.find("name", _text, ""))


def _task(row: _Object) -> Task:
    upid, status = row.get("upid", _upid), row.find("status", _text, None)
    endtime = row.find("endtime", _whole, None)
    if status == "RUNNING" or (status is None and endtime is None):
        return Task(upid, Running())
    return Task(upid, Unknown("ended without a status") if status is None else exit_status(status), endtime)


def _upid(value: object) -> Upid:
    try:
        return Upid.parse(value)
    except UpidError as error:
        raise ValueError(f"a task's UPID ({error})") from None


def _storages(rows: list[_Object]) -> dict[str, StorageState]:
    """pvestatd broadcasts active storages only, and pmxcfs drops an entry after 300 s (pve-manager `extract_storage_stats`,
    `update_storage_status`). So a storage without a fresh entry is offline, unless none has one: then it is pvestatd that is dead.
    """
    available = {row.get("storage", _text): row.find("status", _text, "unknown") == "available" for row in rows}
    missing = StorageState.OFFLINE if any(available.values()) else StorageState.UNKNOWN
    return {name: StorageState.AVAILABLE if up else missing for name, up in available.items()}
