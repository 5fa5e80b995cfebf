"""A stand-in PVE host: an API on loopback that answers as recorded, and a host tree with the local witnesses.

It serves `guestward demo` and the end-to-end tests. The API is fakepve with the differences that matter corrected
(see `_api`); the tree (see `_tree`) is what `[host] root` points the agent at. By hand:
`python -m guestward.demo.pvehost ROOT`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from aiohttp import web

from ._api import StandIn
from ._helper import LOG, HelperSocket, Programs
from ._state import Fault, Guest, Task, Value, new_config
from ._world import BAND, World

T = TypeVar("T")

HOST_POOL = ""  # for `pool=`: the host's own pool
FAULTS = ("status", "hang", "reset", "reset_after", "html", "empty", "null", "truncated", "slow")
STATUS = {"status": 500, "html": 502}


class PveHost:
    """The host, as a context manager; its verbs may be called from any thread and return when their effect is there."""

    def __init__(
        self,
        root: Path,
        *,
        node: str = "pve1",
        pool: str = "guestward",
        token_id: str = "guestward-pve1@pve!agent",
        token_secret: str | None = None,
        port: int = 0,
        version: str = "9.1.3",
        ca_key_usage: bool = True,
        auth_delay: float = 0.0,
        stats_lag: float = 0.0,
    ) -> None:
        """Describe the host; `with` starts it.

        `auth_delay` is what a 401 takes (3 s on PVE); `stats_lag` how old the status in /cluster/resources and pools gets (10 s on PVE).
        """
        self.root = root.absolute()
        self.node = node
        self.pool = pool
        self.token_id = token_id
        self.token_secret = token_secret or secrets.token_hex(16)
        self.port = port
        self._grantees: list[str] = []
        self._make = lambda: self._create(version, ca_key_usage, auth_delay, stats_lag)

    # -------------------------------------------------------- life cycle

    def __enter__(self) -> PveHost:
        """Make the tree and serve."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pvehost", daemon=True)
        self._thread.start()
        try:
            self._do(self._make)
            self._wait(self._serve)
        except BaseException:
            self._end()
            raise
        folder = self.token_file.parent
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # as the file below: the root helper trusts what nobody else can write
        self._put(self.token_file, self.token_secret + "\n")
        self._configure()
        self._helper.open()
        return self

    def _configure(self) -> None:
        """What the root helper trusts."""
        keys = {"pve": ("token_id", self.token_id), "scope": ("pools", [self.pool]), "scratch": ("grantees", self._grantees)}
        lines = (f"[{section}]\n{key} = {json.dumps(value)}\n" for section, (key, value) in keys.items())
        self._put(self.token_file.with_name("guestward.toml"), "\n".join(lines))

    def _put(self, file: Path, text: str) -> None:
        file.touch(0o640)
        file.chmod(0o640)
        file.write_text(text)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop serving; the tree stays."""
        self._helper.end()
        self._wait(self._close)
        self._end()

    def _create(self, version: str, key_usage: bool, auth_delay: float, stats_lag: float) -> None:
        self._world = World(self.root, node=self.node, pool=self.pool, token_id=self.token_id, key_usage=key_usage, stats_lag=stats_lag)
        self._api = StandIn(self._world, token_secret=self.token_secret, version=version, auth_delay=auth_delay)
        self._programs = Programs(self._world)
        self._helper = HelperSocket(self.root)

    async def _serve(self) -> None:
        # PVE's proxy drops an idle connection after 5 s (facts I).
        self._runner = web.AppRunner(self._api.app(), access_log=None, keepalive_timeout=5, shutdown_timeout=0.1)
        await self._runner.setup()
        await self._listen()
        await self._programs.serve()

    async def _listen(self) -> None:
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._world.authority.context, reuse_address=True)
        await site.start()
        self.port = self.port or self._runner.addresses[0][1]
        self._site = site

    async def _close(self) -> None:
        self._api.unhang.set()
        self._world.close()
        self._programs.close()
        await self._runner.cleanup()
        await asyncio.sleep(0)

    def _end(self) -> None:
        async def cancel_rest() -> None:
            rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        self._wait(cancel_rest)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a function on the loop; whatever it changed is in the tree when this returns."""

        async def run() -> T:
            return work(*args, **kwargs)

        return self._wait(run)

    def _wait(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        """The same for a coroutine function, to its end."""

        async def run() -> T:
            result = await work(*args, **kwargs)
            if hasattr(self, "_world"):
                self._world.changed()
            return result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    async def _ends(self, begin: Callable[[], Task]) -> str:
        """Begin a task and wait for its end."""
        task = begin()
        if task.job is not None:
            await asyncio.wait([task.job])
        return task.upid

    # ------------------------------------------------------ where things are

    @property
    def url(self) -> str:
        """Where the API listens."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        """The host's CA."""
        return self.root / "etc/pve/pve-root-ca.pem"

    @property
    def token_file(self) -> Path:
        """The token's secret, on one line."""
        return self.root / "etc/guestward/token"

    @property
    def fingerprint(self) -> str:
        """Sha256 of the served certificate, as AA:BB:..."""
        return self._world.authority.fingerprint

    @property
    def boot_id(self) -> str:
        """The boot id in the tree."""
        return self._world.boot_id

    def requests_seen(self) -> list[tuple[str, str]]:
        """Every request: method, path with query below /api2/json."""
        return self._do(lambda: list(self._api.seen))

    def effects(self) -> list[tuple[str, int]]:
        """What the token did through the API: start stop shutdown reboot reset destroy, and the VMID; once PVE accepted it."""
        return self._do(lambda: list(self._api.effects))

    def programs_run(self) -> list[str]:
        """What the root helper ran of PVE's programs, as command lines."""
        return self._do(lambda: list(self._programs.ran))

    def helper_log(self) -> list[dict[str, Any]]:
        """What the root helper logged."""
        log = self.root / LOG
        return [json.loads(line[3:]) for line in log.read_text().splitlines()] if log.exists() else []

    def guest(self, vmid: int) -> dict[str, Any]:
        """What the host itself knows of a guest: status, qmpstatus, lock, pid, node, attempts, snapshots, config."""

        def look() -> dict[str, Any]:
            guest = self._world.guests[vmid]
            return {
                "status": guest.status,
                "qmpstatus": guest.qmpstatus,
                "lock": guest.lock,
                "pid": guest.pid,
                "node": guest.node,
                "attempts": guest.attempts,
                "snapshots": sorted(guest.snapshots),
                "config": dict(guest.config),
            }

        return self._do(look)

    # ---------------------------------------------------------------- guests

    def add_guest(
        self,
        vmid: int,
        kind: str = "lxc",
        *,
        name: str | None = None,
        onboot: bool = True,
        status: str = "running",
        pool: str | None = HOST_POOL,
        lock: str | None = None,
        template: bool = False,
        startup: str | None = None,
        ha: str | None = None,
        storage: str | Sequence[str] = "local-lvm",
        start: Sequence[str] = ("ok",),
        start_takes: float = 0.3,
        uptime: float = 86400,
        net: bool = True,
        agent: bool = False,
        ignores_shutdown: bool = False,
        leaves_volumes: bool = False,
        **config: Value,
    ) -> None:
        """Put a guest on the host; `config` is any further configuration key.

        `start`, one entry for each start attempt over the API, the last repeats: `ok`, `ok: stays stopped`, `warnings: N`,
        `fail: TEXT`, `hang`, `lost before`, `lost after`, `flap SECONDS`. `pool=None` leaves it out of every pool.
        """
        storages = [storage] if isinstance(storage, str) else list(storage)
        guest = Guest(
            vmid,
            kind,
            self.node,
            new_config(vmid, kind, storages, net=net, name=name),
            status=status,
            plan=list(start),
            start_takes=start_takes,
            agent=agent,
            ignores_shutdown=ignores_shutdown,
            leaves_volumes=leaves_volumes,
        )
        guest.ha_managed, guest.ha_state = ha is not None, ha
        flags: dict[str, Value | None] = {
            "onboot": int(onboot) or None,
            "lock": lock,
            "template": int(template) or None,
            "startup": startup,
            "agent": "1" if agent else None,
            **config,
        }
        guest.config.update({key: plain(value) for key, value in flags.items() if value is not None})
        self._do(self._world.add, guest, self.pool if pool == HOST_POOL else pool, uptime)

    def _guest(self, vmid: int) -> Guest:
        return self._world.guests[vmid]

    def die(self, vmid: int) -> None:
        """It is gone at once and no task says why."""
        self._do(self._world.go_down, self._guest(vmid))

    def stop(self, vmid: int, by: str = "root@pam") -> str:
        """Somebody stops it; returns the UPID when the task has ended."""
        return self._wait(self._ends, lambda: self._world.stop(self._guest(vmid), by))

    def start(self, vmid: int, by: str = "root@pam") -> str:
        """Somebody starts it, outside of its plan; returns the UPID when the task has ended."""
        return self._wait(self._ends, lambda: self._world.start(self._guest(vmid).kind, vmid, by))

    def reboot(self, vmid: int, how: str = "inside") -> None:
        """It goes down now and comes back a second later; a locked container stays down (timelines 5). `inside` or `api`."""
        if how == "inside":
            self._wait(self._world.reboot_inside, self._guest(vmid))
        else:
            self._wait(self._reboot_api, self._guest(vmid))

    async def _reboot_api(self, guest: Guest) -> None:
        self._world.reboot(guest, "root@pam")
        while guest.running:
            await asyncio.sleep(0.01)

    def set(self, vmid: int, **config: Value | None) -> None:
        """Change configuration keys; None removes one. `name` is a container's hostname."""

        def change() -> None:
            guest = self._guest(vmid)
            for key, value in config.items():
                real = "hostname" if key == "name" and guest.kind == "lxc" else key
                if value is None:
                    guest.config.pop(real, None)
                else:
                    guest.config[real] = plain(value)

        self._do(change)

    def plan(self, vmid: int, *start: str) -> None:
        """Replace its start plan; attempts count from here."""

        def change() -> None:
            self._guest(vmid).plan, self._guest(vmid).attempts = list(start), 0

        self._do(change)

    def lock(self, vmid: int, kind: str) -> None:
        """Set the config lock."""
        self.set(vmid, lock=kind)

    def unlock(self, vmid: int) -> None:
        """Clear the config lock, whatever it is, as `pct unlock` does."""
        self.set(vmid, lock=None)

    def snapshot(self, vmid: int, name: str, state: str | None = None) -> None:
        """Add a snapshot section; `state` is its snapstate, or `gone` to remove it."""

        def change() -> None:
            guest = self._guest(vmid)
            guest.snapshots.pop(name, None)
            guest.config.pop("parent", None)
            if state != "gone":
                saved = {key: value for key, value in guest.config.items() if key != "lock"}
                guest.snapshots[name] = saved | {"snaptime": int(time.time())} | ({"snapstate": state} if state else {})
                guest.config["parent"] = name

        self._do(change)

    def ha(self, vmid: int, state: str | None) -> None:
        """Its HA state; `off` takes it out of HA, None is a resource without a requested state (`hastate: null`)."""

        def change() -> None:
            guest = self._guest(vmid)
            guest.ha_managed, guest.ha_state = state != "off", None if state == "off" else state

        self._do(change)

    def qmpstatus(self, vmid: int, state: str) -> None:
        """A VM that runs but does not work: paused, io-error, prelaunch ..."""
        self._do(setattr, self._guest(vmid), "qmpstatus", state)

    def freeze(self, vmid: int, frozen: bool = True) -> None:
        """Freeze its control group."""
        self._do(setattr, self._guest(vmid), "frozen", frozen)

    def destroy(self, vmid: int, by: str = "root@pam") -> str:
        """Stop it if need be and destroy it, with its ACL entries and pool membership; returns the UPID."""

        async def work() -> str:
            guest = self._guest(vmid)
            self._world.go_down(guest)
            return await self._ends(lambda: self._world.destroy(guest, by))

        return self._wait(work)

    def create(
        self, vmid: int, kind: str = "lxc", *, by: str = "root@pam", how: str = "create", killed: bool = False, **config: Value
    ) -> str:
        """A new guest with a new identity: stopped, no onboot, in no pool. `how`: create, restore, clone.

        `killed` half-way: nothing but the lock `create` is in its configuration, and its volume is nobody's (timelines 8).
        """
        return self._wait(self._world.create, vmid, kind, by, how, killed, **{key: plain(value) for key, value in config.items()})

    def migrate(self, vmid: int, where: str, node: str = "pve2") -> None:
        """Its configuration goes `away` to another node, or is `here` again."""
        self._do(setattr, self._guest(vmid), "node", self.node if where == "here" else node)

    def join_pool(self, vmid: int, pool: str = HOST_POOL) -> None:
        """Make it a member."""
        self._do(lambda: self._world.pools.setdefault(pool or self.pool, set()).add(vmid))

    def leave_pool(self, vmid: int) -> None:
        """Take it out of every pool."""

        def leave() -> None:
            for members in self._world.pools.values():
                members.discard(vmid)

        self._do(leave)

    # --------------------------------------------------------------- backups

    def backup_begin(self, vmids: int | Sequence[int], mode: str = "snapshot", by: str = "root@pam") -> str:
        """A vzdump job begins with its first guest, or queues behind the one that runs; returns the UPID."""
        return self._wait(self._world.backups.begin, [vmids] if isinstance(vmids, int) else list(vmids), mode, by)

    def backup_end(self, vmid: int | None = None, *, restart_window: float = 0.9, wait: bool = True) -> None:
        """End the guest that is being saved (the next one begins), or without a VMID the whole job.

        `restart_window`: how long a guest of stop mode is stopped and unlocked. `wait=False` returns before that is over.
        """
        if wait:
            self._wait(self._world.backups.end, vmid, restart_window)
        else:
            self._do(lambda: self._world.later(self._world.backups.end(vmid, restart_window)))

    def backup_kill(self, archive_seconds: float = 0) -> None:
        """kill -9 of the worker; the archive processes live on for a while."""
        self._wait(self._world.backups.kill, archive_seconds)

    def archives_end(self) -> None:
        """All archive processes of killed backups end."""
        self._do(self._world.backups.archives.clear)

    # ---------------------------------------------------------- root helper

    def helper(self, up: bool) -> None:
        """Whether its socket is there."""
        if up:
            self._helper.open()
        else:
            self._helper.close()

    def helper_slow(self, seconds: float) -> None:
        """Each request is served only after so long."""
        self._helper.delay = seconds

    def program_fails(self, verb: str, text: str) -> None:
        """PVE's next `unlock`, `delsnapshot` or `acl` fails with this text; a deletion leaves its lock, as PVE's does."""
        self._do(lambda: self._programs.failures.setdefault(verb, []).append(text))

    def snapshot_deletion(self, seconds: float) -> None:
        """How long the deletion of a snapshot takes."""
        self._do(setattr, self._world, "delete_takes", seconds)

    # ------------------------------------------------------------------ host

    def volumes(self, vmid: int) -> list[str]:
        """All volumes that have this VMID, whoever refers to them."""
        return self._do(lambda: sorted(volume for volume, owner in self._world.volumes.items() if owner == vmid))

    def free(self, volume: str) -> None:
        """Somebody runs `pvesm free`."""
        self._do(self._world.volumes.pop, volume)

    def storage(self, name: str, online: bool) -> None:
        """A storage goes or comes back."""
        self._do(setattr, self._world.storages[name], "online", online)

    def quorum(self, quorate: bool) -> None:
        """Without it /etc/pve has no write bits and power calls are refused."""
        self._do(setattr, self._world, "quorate", quorate)

    def pmxcfs(self, up: bool) -> None:
        """Without it /etc/pve is empty and every call is a 500."""
        self._do(setattr, self._world, "pmxcfs_up", up)

    def pvestatd(self, up: bool) -> None:
        """Without it the status in /cluster/resources and pools stays what it is."""

        def change() -> None:
            self._world.publish()
            self._world.pvestatd_up = up

        self._do(change)

    def pveproxy(self, up: bool) -> None:
        """Without it the port refuses connections."""

        async def change() -> None:
            if up:
                await self._listen()
            else:
                await self._site.stop()
                self._api.cut_all()

        self._wait(change)

    def pvedaemon_restart(self, seconds: float = 4) -> None:
        """Protected calls answer 595 for so long; tasks begun over the API are interrupted (timelines 10a, outages)."""

        async def restart() -> None:
            self._api.pvedaemon_up = False
            for task in self._world.active():
                if task.by_api:
                    await self._world.interrupt(task)
            asyncio.get_running_loop().call_later(seconds, setattr, self._api, "pvedaemon_up", True)

        self._wait(restart)

    def maintenance(self, on: bool) -> None:
        """Node maintenance, as lrm_status and /cluster/resources show it."""
        self._do(setattr, self._world, "maintenance", on)

    def boot_phase(self, phase: str) -> None:
        """What systemctl says: booting, up, stopping, failed, disabled, masked. From booting to up runs startall."""
        self._wait(self._world.set_phase, phase)

    def reboot_host(self) -> None:
        """A power cut: a new boot id, nothing runs, phase `booting`."""
        self._wait(self._world.power_cut)

    def task_begin(self, type_: str, vmid: int | str = "", by: str = "root@pam") -> str:
        """A task and nothing else; returns the UPID."""
        return self._do(lambda: self._world.start_task(type_, str(vmid), by).upid)

    def task_end(self, type_: str, status: str = "OK", vmid: int | None = None) -> None:
        """End the newest running task of this type."""
        self._do(lambda: self._world.end_task(self._world.active(type_, vmid)[0], status))

    def renew_certificate(self, new_ca: bool = False) -> None:
        """Serve a new leaf from now on; with a new CA, `ca_file` changes too. Open connections end."""

        def renew() -> None:
            self._world.authority.renew(self.root, new_ca)
            self._api.cut_all()

        self._do(renew)

    # ---------------------------------------------------------------- rights

    def grant(self, priv: str, path: str, who: str = "both", propagate: bool = True) -> None:
        """Give a privilege to `user`, `token` or `both` of ours, or to another id."""
        self._do(self._world.change_grant, True, priv, path, who, propagate)

    def revoke(self, priv: str, path: str, who: str = "both") -> None:
        """Take a privilege from the entry at this path."""
        self._do(self._world.change_grant, False, priv, path, who, True)

    def held(self, who: str, path: str) -> frozenset[str]:
        """What this user or token may do there."""
        return self._do(lambda: frozenset(self._world.acl.effective(who, path, self._world.pools)))

    def add_grantee(self, token_id: str) -> None:
        """Another token, as the restore tester's: it has the scratch band too, and the root helper's configuration names it."""
        self._do(self._world.know, token_id)
        self._grantees.append(token_id)
        self._configure()

    def regrant(self, *vmids: int) -> None:
        """Put the scratch role back at each /vms/VMID (all of the band without an argument), as the helper does."""
        self._do(self._world.regrant, vmids or BAND)

    def auth(self, ok: bool) -> None:
        """Whether the token's secret is right."""
        self._do(setattr, self._api, "auth_ok", ok)

    # ---------------------------------------------------------------- faults

    def fault(
        self,
        route: str,
        status: int | None = None,
        *,
        message: str = "",
        kind: str = "status",
        times: int | None = None,
        delay: float = 0.0,
    ) -> None:
        """Disturb requests; the newest fault that matches wins.

        `route`: a path prefix below /api2/json, optionally after a method. Kinds: `status` (an error, no effect), `hang` (until
        `clear_faults`), `reset` and `reset_after` (the connection is cut before, after the effect), `html`, `empty`, `null` (an
        answer without effect), `truncated` (half of the body), `slow` (the right answer, `delay` seconds late).
        """
        if kind not in FAULTS:
            raise ValueError(f"kind {kind!r}: one of {', '.join(FAULTS)}")
        method, _, prefix = route.rpartition(" ")
        code = status or STATUS.get(kind, 200)
        fault = Fault(method or None, prefix, kind, code, message or "got timeout", times, delay)
        self._do(lambda: self._api.faults.insert(0, fault))

    def clear_faults(self) -> None:
        """End every fault; calls that hang are cut."""

        def clear() -> None:
            self._api.faults.clear()
            self._api.unhang.set()
            self._api.unhang = asyncio.Event()

        self._do(clear)


def plain(value: Value) -> Value:
    """A configuration value as PVE writes it: booleans are 1 and 0."""
    return int(value) if isinstance(value, bool) else value


def main() -> None:
    """Serve a host with two guests until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m guestward.demo.pvehost", description=main.__doc__)
    parser.add_argument("root", type=Path, help="directory for the host tree")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    with PveHost(options.root, port=options.port) as host:
        host.add_guest(101, "lxc", name="web")
        host.add_guest(200, "qemu", name="db")
        os.write(1, f"{host.url}\nroot  {host.root}\nCA    {host.ca_file}\ntoken {host.token_id} in {host.token_file}\n".encode())
        while not done.wait(1):
            pass


if __name__ == "__main__":
    main()
