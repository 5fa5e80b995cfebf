"""`guestward check`: finds beforehand whatever would stop the agent or make it blind. It only reads."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from guestward.adapters import store
from guestward.adapters.clock import HostClock, node_name
from guestward.adapters.helper import SOCKET
from guestward.adapters.host import LinuxHost
from guestward.adapters.pve import ProxmoxPve
from guestward.adapters.secret import SecretError, SecretFile
from guestward.cli.output import FAILED, GRANTS, OK, count, envelope, plain, put
from guestward.config import Config
from guestward.model.guest import GuestId, GuestKind
from guestward.model.observation import HostState, LostGrant
from guestward.model.reading import Unreadable
from guestward.policy import gate, rights
from guestward.policy.rights import REPAIR
from guestward.ports import PveError, PveRefused

_PROC = "/proc must show the service user all processes: no hidepid at its mount, no ProtectProc or ProcSubset in the unit"
_PMXCFS = "pve-cluster must run (systemctl status pve-cluster), and the agent's user be in www-data (usermod -aG www-data guestward)"
_SYSTEMD = "systemctl must answer the service user; try: systemctl show pve-guests.service"
_HELPER_FAULTS = {
    errno.ENOENT: "is not there",
    errno.ECONNREFUSED: "is there, but nobody listens",
    errno.EACCES: "may not be used by this user",
}
_AGENT, _ANSWER_S = b"guestward_build_info", 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. good None: looked at, and worth a word, but nothing stops the agent. hint: what to do."""

    what: str
    good: bool | None
    detail: str
    hint: str = ""
    grant: bool = False


@dataclass(slots=True)
class Check:
    """One run over everything that the agent will read, in the order in which it needs it.

    note: who reads, where it is not the service user. lost, visible, misnamed: what was found so far.
    """

    config: Config
    clock: HostClock
    node: str
    pve: ProxmoxPve
    secret: SecretFile
    host: LinuxHost
    note: str = ""
    lost: tuple[LostGrant, ...] = ()
    visible: set[GuestId] = field(default_factory=set)
    misnamed: bool = False

    @classmethod
    def of(cls, config: Config, note: str = "") -> Check:
        """Make all doors as the agent does; nothing is opened yet."""
        clock = HostClock(config.host.root)
        node = node_name() if config.pve.node == "auto" else config.pve.node
        secret = SecretFile(config.pve.token_file, config.pve.token_id)
        return cls(config, clock, node, ProxmoxPve(config.pve, node, secret.read, clock), secret, LinuxHost(config.host.root, node), note)

    def findings(self) -> Iterator[Finding]:
        """Everything, one by one, as it is found."""
        yield Finding("configuration", True, f"{self.config.file} is valid")
        if self.note:
            yield Finding(
                "user", None, self.note, "fine for a trial; for good: adduser --system --group guestward && adduser guestward www-data"
            )
        state = self.host.host()
        yield self._node(state)
        token = self._token()
        yield token
        if token.good is False:
            yield Finding("PVE API", None, "not asked: there is no token to show", "mend the token first")
        else:
            yield from self._api()
            self.pve.close()
        yield from self._witnesses(state)
        yield self._written()
        yield self._helper()
        yield from self._gate(state)
        yield self._state()
        yield self._metrics()

    def _deadline(self) -> float:
        return self.clock.boottime() + self.config.pve.timeout

    def _node(self, state: HostState) -> Finding:
        if not state.pmxcfs:
            return Finding(
                "node", False, "/etc/pve/local is missing: pmxcfs is down, so nobody knows its guests", "systemctl start pve-cluster"
            )
        try:
            name = os.path.basename(os.readlink(os.path.join(self.config.host.root, "etc/pve/local")))
        except OSError as error:
            return Finding("node", False, f"/etc/pve/local: {error.strerror}", _PMXCFS)
        self.misnamed = name != self.node
        if self.misnamed:
            return Finding("node", False, f"this is node {name}, not {self.node}", f"correct [pve] node in {self.config.file}")
        return Finding("node", True, self.node)

    def _token(self) -> Finding:
        path = self.secret.path
        try:
            self.secret.read()
        except SecretError as error:
            return Finding(
                "token",
                False,
                str(error),
                "put the secret of the token there, on one line; a new one: host-install.sh repair",
            )
        with suppress(OSError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o007:
                return Finding("token", None, f"everybody on this host may read or write {path} (mode {mode:04o})", f"chmod 0640 {path}")
        return Finding("token", True, f"{self.config.pve.token_id} from {path}")

    def _api(self) -> Iterator[Finding]:
        where = f"https://{self.config.pve.host}:{self.config.pve.port}"
        try:
            held = self.pve.privileges(deadline=self._deadline())
        except PveError as error:
            yield Finding("PVE API", False, str(error), self._api_hint(error))
            return
        yield Finding("PVE API", True, f"{where} is trusted and knows the token")
        needed = rights.needed(self.config.scope.pools, self.node)
        if self.misnamed:  # what is missing there is the name, not the grant
            needed = tuple(grant for grant in needed if not grant.path.startswith("/nodes/"))
        self.lost = rights.missing(needed, held)
        yield from (self._grant(grant) for grant in needed)
        yield self._band(held)
        yield from self._excess(held)
        if self.misnamed:
            yield Finding("guests and tasks", None, f"not asked: this is not node {self.node}", "correct [pve] node first")
        else:
            yield from (self._asked(f"list of {kind} guests", partial(self._list, kind)) for kind in GuestKind)
            yield from (self._pool(pool) for pool in self.config.scope.pools)
            yield self._tasks()
            yield self._snapshots()
        yield self._asked("HA and storages", self._resources)

    def _api_hint(self, error: PveError) -> str:
        if isinstance(error, PveRefused) and error.status == 401:
            return f"the secret is not (or no longer) that of {self.config.pve.token_id}; a new one: host-install.sh repair"
        section = f"see host, port, ca_file, fingerprint and server_name of [pve] in {self.config.file}"
        return f"{section}; systemctl status pveproxy pvedaemon"

    def _grant(self, grant: LostGrant) -> Finding:
        if grant not in self.lost:
            return Finding(f"grant {grant}", True, "held", grant=True)
        detail = "missing for the token, or for the user that it belongs to: both need it"
        if grant.path.startswith("/pool/") and sum(other.path == grant.path for other in self.lost) == len(rights.OWNERSHIP):
            detail += "; nothing at all is granted there, so perhaps there is no such pool"
        return Finding(f"grant {grant}", False, detail, REPAIR, grant=True)

    def _band(self, held: rights.Privileges) -> Finding:
        scratch = self.config.scratch
        what = f"grants of the band {scratch.first}-{scratch.last}"
        lost = rights.missing(rights.of_band(scratch.first, scratch.last), held)
        if not lost:
            return Finding(what, True, f"held on each of them: {' '.join(rights.SCRATCH)}", grant=True)
        others = f" and {count(len(lost) - 1, 'other')}" if len(lost) > 1 else ""
        words = f"{lost[0]}{others} missing, for the token or its user"
        return Finding(what, False, f"{words}; the agent has the root helper put them back", REPAIR, grant=True)

    def _excess(self, held: rights.Privileges) -> Iterator[Finding]:
        scratch = self.config.scratch
        for grant in rights.excess(held, range(scratch.first, scratch.last + 1)):
            yield Finding(
                f"grant {grant}", None, "the token may do more than it needs, and that is dangerous", "pveum acl list; pveum acl delete"
            )

    def _list(self, kind: GuestKind) -> str:
        found = self.pve.guests(kind, deadline=self._deadline())
        self.visible |= found.keys()
        return f"{len(found)} visible"

    def _tasks(self) -> Finding:
        """Without Sys.Audit PVE shows the token's own tasks only, as if there were no others (pve-facts C1)."""
        hiding = LostGrant(f"/nodes/{self.node}", "Sys.Audit")
        if hiding in self.lost:
            return Finding("tasks of the node", None, f"not asked: {hiding} is missing", "grant it first")
        return self._asked("tasks of the node", lambda: f"{len(self.pve.active_tasks(deadline=self._deadline()))} active")

    def _snapshots(self) -> Finding:
        """Of one container: whether a snapshot of vzdump was left is asked for containers only."""
        what = "snapshots of containers"
        container = next((id for id in sorted(self.visible) if id.kind is GuestKind.LXC), None)
        if container is None:
            return Finding(what, True, "no container is visible, so there is none to ask for")
        return self._asked(what, lambda: f"{container} has {len(self.pve.snapshots(container, deadline=self._deadline()))}")

    def _pool(self, pool: str) -> Finding:
        """What a missing grant hides is no fault of its own."""
        what = f"pool {pool}"
        hiding = LostGrant(f"/pool/{pool}", "Pool.Audit")
        if hiding in self.lost:
            return Finding(what, None, f"not asked: {hiding} is missing", "grant it first")
        try:
            members = self.pve.members(pool, deadline=self._deadline())
        except PveError as error:
            return self._fault(what, error)
        here = {member.id for member in members if member.node == self.node}
        hidden = ", ".join(str(id) for id in sorted(here - self.visible))
        if hidden and LostGrant(f"/pool/{pool}", "VM.Audit") not in self.lost:
            hint = "if it is not being moved or destroyed just now, an ACL at /vms/VMID hides it from the token: pveum acl list"
            return Finding(what, False, f"{hidden} is a member on this node, but in no list; sweeps are aborted while that is so", hint)
        words = f"{count(len(here), 'guest')} on this node, {len(members) - len(here)} on others"
        if not here:
            return Finding(what, None, f"{words}: nothing is guarded", f"add guests: pvesh set /pools/{pool} -vms VMID")
        return Finding(what, True, words)

    def _resources(self) -> str:
        found = self.pve.resources(deadline=self._deadline())
        storages = ", ".join(f"{name} {state}" for name, state in sorted(found.storages.items()))
        return f"{count(len(found.ha), 'guest')} under HA; storages: {storages or 'none visible'}"

    def _asked(self, what: str, ask: Callable[[], str]) -> Finding:
        try:
            return Finding(what, True, ask())
        except PveError as error:
            return self._fault(what, error)

    def _fault(self, what: str, error: PveError) -> Finding:
        return Finding(
            what, False, str(error), "without it sweeps are aborted or guests are left alone; journalctl -u pvedaemon -u pveproxy"
        )

    def _witnesses(self, state: HostState) -> Iterator[Finding]:
        backups = self.host.backups()
        readings: tuple[tuple[str, object, str], ...] = (
            ("quorum", state.quorate, _PMXCFS),
            ("maintenance mode", state.maintenance, _PMXCFS),
            ("pve-guests.service", state.pve_guests, _SYSTEMD),
            ("state of systemd", state.system, _SYSTEMD),
            ("hold file", state.hold_file, "the service user must be able to enter /etc/guestward: chmod o+x /etc/guestward"),
            ("flock on vzdump.lock", backups.flock, _PROC),
            ("vzdump.pid", backups.live_upid, f"the service user must be able to read /run/vzdump.pid; {_PROC}"),
            ("archive processes", backups.archives, _PROC),
        )
        if not self.misnamed:
            readings = (("guests under /etc/pve", state.names, _PMXCFS), *readings)
        for what, reading, hint in readings:
            if isinstance(reading, Unreadable):
                yield Finding(what, False, reading.reason, f"{hint}. Until then guests are left alone")
            else:
                yield Finding(what, True, "readable")

    def _written(self) -> Finding:
        """When each guest's file was last written tells who left a lock."""
        what = "times of guests' files"
        if self.misnamed:
            return Finding(what, None, f"not asked: this is not node {self.node}", "correct [pve] node first")
        found = self.host.written(self.visible)
        untold = [str(id) for id in sorted(self.visible) if id not in found]
        if untold:
            hint = f"{_PMXCFS}. Until then no lock is cleared"
            return Finding(what, None, f"nobody can tell when the file of {untold[0]} was last written", hint)
        return Finding(what, True, "readable")

    def _helper(self) -> Finding:
        """Nothing is sent, and no connection is made: each one starts a process of root's.

        A datagram socket cannot be connected to a stream socket, but before the kernel says so (EPROTOTYPE) it looks whether
        somebody has that socket and whether we may write to it (net/unix/af_unix.c:unix_find_bsd).
        """
        path = self.config.host.root / SOCKET
        if self.config.locks.recover == "report":
            return Finding("root helper", True, 'is not needed: [locks] recover is "report"')
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                probe.connect(str(path))
            fault = "is the socket of something else"
        except OSError as error:
            if error.errno == errno.EPROTOTYPE:
                return Finding("root helper", True, f"{path} is there, and may be used")
            fault = _HELPER_FAULTS.get(error.errno or 0, error.strerror or str(error))
        hint = "systemctl enable --now guestward-helper.socket; its SocketGroup must be a group of the service user"
        return Finding("root helper", None, f"{path} {fault}: no stale lock can be cleared; guests are guarded all the same", hint)

    def _gate(self, state: HostState) -> Iterator[Finding]:
        found = gate.gate(state, (), Unreadable("not asked"), self.clock.boottime(), None, None)
        if found.open:
            yield Finding("host gate", True, "open")
        else:
            hint = "nothing, if that is meant: it opens by itself when the reason is gone, and nothing is started before"
            yield Finding("host gate", None, f"closed now: {found.evidence}", hint)
        for warning in found.warnings:
            yield Finding("host", None, warning, "systemctl status pve-guests; journalctl -b -u pve-guests")

    def _state(self) -> Finding:
        """A file that does not belong to the service user, as after a call by root, is as bad as a folder that does not."""
        folder = self.config.state.dir
        hint = f"make {folder} a folder that the agent's user can write; without it attempts are forgotten at a restart"
        if not folder.exists() and os.access(folder.parent, os.W_OK | os.X_OK):
            return Finding("state", True, f"{folder} is not there yet; the agent makes it")
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"guestward check")
                file.flush()
                os.fsync(file.fileno())
            if os.path.exists(folder / store.FILE) and not os.access(folder / store.FILE, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, "the service user cannot read and write it", str(folder / store.FILE))
        except OSError as error:
            return Finding("state", False, f"{folder}: {error.strerror}", hint)
        fault = store.inspect(folder)
        if fault is not None:
            away = f"with the agent stopped move {folder / store.FILE}* away, and set holds again once it runs: guestward hold"
            care = f"a newer file needs a newer Guestward, a damaged one a look at the disk; otherwise {away}"
            return Finding("state", False, fault, care)
        return Finding("state", True, f"{folder} can be written")

    def _metrics(self) -> Finding:
        listen = self.config.metrics.listen
        host, _, port = listen.rpartition(":")
        where: tuple[str, int] = ("127.0.0.1", int(port))
        try:
            family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
            where = (str(address[0]), int(address[1]))
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and _is_agent(where):
                return Finding("metrics", True, f"{listen} is served by the agent that runs")
            hint = f"choose another listen in [metrics] of {self.config.file}; who has it: ss -ltnp"
            return Finding("metrics", False, f"{listen}: {error.strerror}", hint)
        return Finding("metrics", True, f"{listen} is free")


def _is_agent(where: tuple[str, int]) -> bool:
    """Whether it is Guestward that serves metrics there."""
    page = b""
    with suppress(OSError), socket.create_connection(where, timeout=_ANSWER_S) as peer:
        peer.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        for _ in range(64):  # the first lines say it; a peer that drips is not the agent
            page += peer.recv(65536)
            if _AGENT in page:
                break
    return _AGENT in page


def check(config: Config, output: str, note: str = "") -> int:
    """Print every finding as it is found, then what it comes to. Returns 0, 1, or 5 when grants are missing and nothing else is wrong."""
    run, found = Check.of(config, note), []
    for finding in run.findings():
        found.append(finding)
        if output == "table":
            put(_line(finding))
    bad = [finding for finding in found if finding.good is False]
    code = OK if not bad else GRANTS if all(finding.grant for finding in bad) else FAILED
    if output == "json":
        said = put(envelope(run.node, run.clock.wall(), {"ok": not bad, "findings": [_data(finding) for finding in found]}))
    else:
        said = put(f"\n{_sum(found, bad, code)}")
    return code if said else code or FAILED


def _line(finding: Finding) -> str:
    mark = {True: "ok  ", False: "BAD ", None: "note"}[finding.good]
    hint = f"\n        what to do: {plain(finding.hint)}" if finding.hint and finding.good is not True else ""
    return f"{mark}  {plain(f'{finding.what}: {finding.detail}')}{hint}"


def _data(finding: Finding) -> dict[str, object]:
    return {
        "what": finding.what,
        "ok": finding.good is not False,
        "note": finding.good is None,
        "grant": finding.grant,
        "detail": finding.detail,
        "hint": "" if finding.good else finding.hint,
    }


def _sum(found: list[Finding], bad: list[Finding], code: int) -> str:
    notes = sum(finding.good is None for finding in found)
    if not bad:
        return "all good" + (f", but see the {count(notes, 'note')}" if notes else "")
    if code == GRANTS:
        return f"{count(len(bad), 'grant')} missing and nothing else is wrong; {REPAIR}"
    return f"{count(len(bad), 'fault')} in {len(found)} things looked at; the agent cannot guard all guests like this"
