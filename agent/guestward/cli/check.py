"""`guestward check`: finds beforehand whatever would stop the agent or make it blind. It only reads."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from guestward.adapters.clock import HostClock, node_name
from guestward.adapters.host import LinuxHost
from guestward.adapters.pve import ProxmoxPve
from guestward.adapters.secret import SecretError, SecretFile
from guestward.cli.output import FAILED, GRANTS, OK
from guestward.config import Config
from guestward.model.guest import GuestKind
from guestward.model.observation import HostState, LostGrant
from guestward.model.reading import Unreadable
from guestward.policy import gate, rights
from guestward.ports import PveError

REPAIR = "/usr/share/guestward/host-install.sh repair"


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
    """One run over everything that the agent will read, in the order in which it needs it."""

    config: Config
    clock: HostClock
    node: str
    pve: ProxmoxPve
    secret: SecretFile
    host: LinuxHost

    @classmethod
    def of(cls, config: Config) -> Check:
        """Make all doors as the agent does; nothing is opened yet."""
        clock = HostClock(config.host.root)
        node = node_name() if config.pve.node == "auto" else config.pve.node
        secret = SecretFile(config.pve.token_file, config.pve.token_id)
        return cls(config, clock, node, ProxmoxPve(config.pve, node, secret.read, clock), secret, LinuxHost(config.host.root, node))

    def findings(self) -> Iterator[Finding]:
        """Everything, one by one, as it is found."""
        yield Finding("configuration", True, f"{self.config.file} is valid")
        yield from self._token()
        yield from self._api()
        yield from self._witnesses()
        yield self._state()
        yield self._metrics()

    def _deadline(self) -> float:
        return self.clock.boottime() + self.config.pve.timeout

    def _token(self) -> Iterator[Finding]:
        try:
            self.secret.read()
        except SecretError as error:
            yield Finding("token", False, str(error), f"make a new one: {REPAIR}")
        else:
            yield Finding("token", True, f"{self.config.pve.token_id} from {self.secret.path}")

    def _api(self) -> Iterator[Finding]:
        where = f"https://{self.config.pve.host}:{self.config.pve.port}"
        try:
            held = self.pve.privileges(deadline=self._deadline())
        except PveError as error:
            yield Finding("PVE API", False, str(error), f"the agent asks {where}; see [pve] in {self.config.file}")
            return
        yield Finding("PVE API", True, f"{where} is trusted and knows the token")
        needed = rights.needed(self.config.scope.pools, self.node)
        lost = rights.missing(needed, held)
        yield from (_grant(grant, held=grant not in lost) for grant in needed)
        yield from self._lists()
        yield from self._pools()
        yield self._asked("tasks of the node", lambda: f"{len(self.pve.active_tasks(deadline=self._deadline()))} running")
        yield self._asked("HA and storages", self._resources)

    def _lists(self) -> Iterator[Finding]:
        for kind in GuestKind:
            yield self._asked(f"list of {kind} guests", partial(self._visible, kind))

    def _pools(self) -> Iterator[Finding]:
        for pool in self.config.scope.pools:
            yield self._asked(f"pool {pool}", partial(self._members, pool))

    def _visible(self, kind: GuestKind) -> str:
        return f"{len(self.pve.guests(kind, deadline=self._deadline()))} visible"

    def _members(self, pool: str) -> str:
        members = self.pve.members(pool, deadline=self._deadline())
        here = [member for member in members if member.node == self.node]
        return f"{len(here)} guests on this node, {len(members) - len(here)} on others"

    def _resources(self) -> str:
        found = self.pve.resources(deadline=self._deadline())
        return f"{len(found.ha)} guests under HA; storages: " + (
            ", ".join(f"{n} {s}" for n, s in sorted(found.storages.items())) or "none visible"
        )

    @staticmethod
    def _asked(what: str, ask: Callable[[], str]) -> Finding:
        try:
            return Finding(what, True, ask())
        except PveError as error:
            return Finding(what, False, str(error), "without it sweeps are aborted or guests are left alone")

    def _witnesses(self) -> Iterator[Finding]:
        state = self.host.host()
        if not state.pmxcfs:
            yield Finding("/etc/pve", False, "/etc/pve/local is missing: pmxcfs is down", "systemctl status pve-cluster")
        backups = self.host.backups()
        for what, reading, words in (
            ("guests under /etc/pve", state.names, "readable"),
            ("quorum", state.quorate, "readable"),
            ("pve-guests.service", state.pve_guests, "readable"),
            ("state of systemd", state.system, "readable"),
            ("hold file", state.hold_file, "readable"),
            ("maintenance mode", state.maintenance, "readable"),
            ("flock on vzdump.lock", backups.flock, "readable in /proc/locks"),
            ("vzdump.pid", backups.live_upid, "readable"),
            ("archive processes", backups.archives, "readable in /proc"),
        ):
            if isinstance(reading, Unreadable):
                hint = "the service user must be in group www-data and see /proc; until then guests are left alone"
                yield Finding(what, False, reading.reason, hint)
            else:
                yield Finding(what, True, words)
        yield from self._gate(state)

    def _gate(self, state: HostState) -> Iterator[Finding]:
        found = gate.gate(state, (), Unreadable("not asked"), self.clock.boottime(), None, None)
        yield Finding("host gate", True if found.open else None, "open" if found.open else f"closed now: {found.evidence}")
        yield from (Finding("host", None, warning) for warning in found.warnings)

    def _state(self) -> Finding:
        folder = self.config.state.dir
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"guestward check")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            hint = f"install -d -o guestward -g guestward -m 0750 {folder}; without it attempts are forgotten at a restart"
            return Finding("state folder", False, f"{folder}: {error.strerror}", hint)
        return Finding("state folder", True, f"{folder} can be written")

    def _metrics(self) -> Finding:
        host, _, port = self.config.metrics.listen.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            detail = f"{self.config.metrics.listen}: {error.strerror} (right if the agent runs already)"
            return Finding("metrics", None, detail, "choose another [metrics] listen if something else has the port")
        return Finding("metrics", True, f"{self.config.metrics.listen} is free")


def check(config: Config, output: str) -> int:
    """Print every finding as it is found, then what it comes to. Returns 0, 1, or 5 when grants are missing and nothing else is wrong."""
    run, found = Check.of(config), []
    for finding in run.findings():
        found.append(finding)
        if output == "table":
            print(_line(finding), flush=True)
    bad = [finding for finding in found if finding.good is False]
    code = OK if not bad else GRANTS if all(finding.grant for finding in bad) else FAILED
    if output == "json":
        rows = [{"what": f.what, "ok": f.good is not False, "note": f.good is None, "detail": f.detail, "hint": f.hint} for f in found]
        print(json.dumps({"schema": 1, "node": run.node, "at": time.time(), "data": {"ok": not bad, "findings": rows}}))
    else:
        print()
        print(
            "all good" if not bad else f"{len(bad)} of {len(found)} things are wrong; the agent cannot guard all guests like this",
            file=sys.stdout,
        )
    return code


def _line(finding: Finding) -> str:
    mark = {True: "ok  ", False: "BAD ", None: "note"}[finding.good]
    hint = f"\n        what to do: {finding.hint}" if finding.hint and finding.good is not True else ""
    return f"{mark}  {finding.what}: {finding.detail}{hint}"


def _grant(grant: LostGrant, *, held: bool) -> Finding:
    return Finding(
        f"grant {grant}", held, "held" if held else "missing for the token, or for the user that it belongs to", REPAIR, grant=True
    )
