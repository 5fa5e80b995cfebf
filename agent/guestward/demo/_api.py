"""The HTTP side of a stand-in PVE host: fakepve's server, schema checks and permission rules, with answers as recorded.

fakepve answers what is not listed in `_table` (reads and guest agent calls only); everything else here follows
reference/recorded/pve-9.1.md. A mutating call that is not modelled answers 501 rather than pretend.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from fakepve import FakePve, FakeVm
from fakepve import schema as pve_schema
from fakepve.model import PveError
from fakepve.server import params as request_params

from ._state import DISK_SIZE, Fault, Guest, Storage, Task, conf_path, digest
from ._world import World

API = "/api2/json"
MEMORY = 512 << 20
PRESSURE = tuple(f"pressure{what}{how}" for what in ("cpu", "io", "memory") for how in ("some", "full"))
UPID = re.compile(r"UPID:[A-Za-z0-9-]+:[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:[^:\s/]+:[^:\s/]*:[^:\s/]+:")
DEFAULT_PATHS = ("/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms")
ROOT = "root@pam"

Row = dict[str, Any]


class Cut(Exception):
    """The connection ends here, without an answer."""


@dataclass
class Call:
    """A request whose token, permissions and parameters are in order."""

    user: str
    values: Row
    match: Any

    @property
    def kind(self) -> str:
        """lxc or qemu, from the path."""
        return "qemu" if "/qemu" in self.match.template else "lxc"

    @property
    def vmid(self) -> int:
        """The VMID in the path."""
        return int(self.values["vmid"])


@dataclass
class Listing:
    """Data with PVE's `total` beside it."""

    data: list[Row]
    total: int


Handler = Callable[[Call], Awaitable[Any]]


class StandIn(FakePve):  # type: ignore[misc]
    """fakepve with the answers of a real node where the two differ."""

    def __init__(self, world: World, *, token_secret: str, version: str, auth_delay: float) -> None:
        """Serve this world to its one token."""
        super().__init__(host="127.0.0.1", port=0)
        self.world = world
        self.seen: list[tuple[str, str]] = []
        self.effects: list[tuple[str, int]] = []
        self.faults: list[Fault] = []
        self.unhang = asyncio.Event()
        self.auth_ok = True
        self.pvedaemon_up = True
        self.version = version
        self.nodes = {world.node: {"online": True}}
        self.acl: Row = {}  # not None: fakepve then asks `allowed`
        self._secret = token_secret
        self._auth_delay = auth_delay
        self._transports: set[asyncio.Transport] = set()
        self._vms: dict[int, Any] = {}
        self._handlers = self._table()

    def app(self) -> web.Application:
        """The application: our answers first, fakepve's behind them."""
        app: web.Application = self._build_app()
        app.middlewares.insert(0, self.front)
        return app

    def cut_all(self) -> None:
        """Close every connection."""
        for transport in list(self._transports):
            transport.abort()
        self._transports.clear()

    # ------------------------------------------------------- the way in

    @web.middleware
    async def front(self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        """Record, apply faults, answer; PVE closes the connection after every error (facts I)."""
        path = request.raw_path.removeprefix(API)
        self.seen.append((request.method, path))
        self._remember(request)
        try:
            response = await self._with_faults(request, path, handler)
        except Cut:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        if response.status >= 400:
            response.force_close()
        return response

    def _remember(self, request: web.Request) -> None:
        self._transports = {transport for transport in self._transports if not transport.is_closing()}
        if request.transport is not None:
            self._transports.add(request.transport)

    async def _with_faults(self, request: web.Request, path: str, handler: Any) -> web.StreamResponse:
        fault = next((fault for fault in self.faults if fault.matches(request.method, path)), None)
        if fault is None:
            return await self._respond(request, handler)
        if fault.times is not None:
            fault.times -= 1
        await asyncio.sleep(fault.delay)
        if fault.kind in ("slow", "reset_after", "truncated"):
            response = await self._respond(request, handler)
            if fault.kind == "reset_after":
                raise Cut
            return await self._truncate(request, response) if fault.kind == "truncated" else response
        return await self._instead(fault)

    async def _instead(self, fault: Fault) -> web.StreamResponse:
        """The answers that come without any effect."""
        if fault.kind == "hang":
            await self.unhang.wait()
        if fault.kind in ("hang", "reset"):
            raise Cut
        if fault.kind == "html":
            return web.Response(status=fault.status, text=f"<html><body><h1>{fault.message}</h1></body></html>", content_type="text/html")
        if fault.kind == "empty":
            return web.Response(status=fault.status)
        if fault.kind == "null":
            return web.json_response({"data": None})
        # 401 and the proxy's own 59x come with an empty body (facts I; recorded, outages).
        if fault.status == 401 or fault.status >= 590:
            return bare(fault.status, fault.message)
        return failure(fault.status, fault.message)

    async def _truncate(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        """Half of the body that Content-Length promises, then the end of the connection."""
        body = response.body if isinstance(response, web.Response) and isinstance(response.body, bytes) else b"{}"
        half = web.StreamResponse(status=response.status)
        half.content_type, half.content_length = "application/json", len(body)
        await half.prepare(request)
        await half.write(body[: len(body) // 2])
        if request.transport is not None:
            request.transport.close()
        return half

    async def _respond(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if not self.world.pmxcfs_up:  # recorded, outages: an empty body
            return bare(500, "RPCEnvironment init request failed: Unable to load access control list: Connection refused")
        refused = self._refuse(request)
        if refused is not None:
            await asyncio.sleep(self._auth_delay)
            return bare(401, refused)
        try:
            return await self._dispatch(request, handler)
        except PveError as error:
            return failure(error.status, error.message, error.errors)
        finally:
            self.world.changed()

    def _refuse(self, request: web.Request) -> str | None:
        """The reason phrase of the 401, as recorded in section 0; None for our token and its secret."""
        given = request.headers.get("Authorization", "")
        if not given.startswith("PVEAPIToken="):
            return "No ticket"
        token_id, _, secret = given.removeprefix("PVEAPIToken=").partition("=")
        user, bang, name = token_id.partition("!")
        if not (user and bang and name and secret):
            return "no tokenid specified"
        if user != self.world.user_id:
            return f"'{token_id}' is not a valid token ID - not able to split into user and token parts"
        if token_id != self.world.token_id:
            return f"no such token '{name}' for user '{user}'"
        return None if secret == self._secret and self.auth_ok else "invalid token value!"

    def _authenticate(self, request: web.Request) -> str:
        return self.world.token_id  # fakepve's own check; `front` has already let the request in

    async def _dispatch(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """The order is PVE's: path, permissions, node, pvedaemon, parameters (facts, request life-cycle)."""
        match = self.resolve(request, API)
        info = match.methods.get(request.method) if match else None
        if info is None:
            raise PveError(501, f"Method '{request.method} {request.path.removeprefix(API)}' not implemented")
        raw = {**await request_params(request), **match.params}
        self._may(info, raw)
        self._reach(info, match.params.get("node"))
        call = Call(self.world.token_id, self._checked(request, info, raw, match.params), match)
        ours = self._handlers.get((request.method, match.template))
        if ours is not None:
            return answer(await ours(call))
        if request.method == "GET" or "/agent" in match.template:
            self._mirror(match)
            return await handler(request)  # type: ignore[no-any-return]
        raise PveError(501, f"Method '{request.method} {request.path.removeprefix(API)}' not implemented (by the stand-in)")

    def _may(self, info: Row, raw: Row) -> None:
        declared = (info.get("parameters") or {}).get("properties", {})
        self.check_permissions(self.world.token_id, info.get("permissions"), raw, declared)

    def _reach(self, info: Row, node: str | None) -> None:
        if node is not None and node != self.world.node:
            if any(guest.node == node for guest in self.world.guests.values()):
                raise PveError(595, "No route to host")
            raise PveError(500, f"hostname lookup '{node}' failed - failed to get address info for: {node}: Name or service not known")
        if info.get("protected") and not self.pvedaemon_up:
            raise PveError(595, "Connection refused")  # recorded, outages

    def _checked(self, request: web.Request, info: Row, raw: Row, in_path: Row) -> Row:
        """The parameters by PVE's schema; booleans are 1 or 0 and nothing else (facts I)."""
        if request.method == "DELETE" and request.can_read_body:
            raise PveError(501, "Unexpected content for method 'DELETE'")
        declared = (info.get("parameters") or {}).get("properties", {})
        values, errors = pve_schema.validate(info.get("parameters"), {k: v for k, v in raw.items() if k in declared or k not in in_path})
        for name, given in raw.items():
            if declared.get(name, {}).get("type") == "boolean" and str(given) not in ("0", "1"):
                errors[name] = f"type check ('boolean') failed - got '{given}'"
        if "skiplock" in raw and "skiplock" in declared:
            errors["skiplock"] = "Only root may use this option."
        if errors:
            raise PveError(400, "Parameter verification failed.", errors)
        return {**in_path, **values}

    def allowed(self, user: str, path: str, priv: str) -> bool:
        """PVE's rules in place of fakepve's."""
        return user.partition("!")[0] == ROOT or priv in self.world.acl.effective(user, path, self.world.pools)

    def _mirror(self, match: Any) -> None:
        """Show fakepve's guest agent the VM that is asked about."""
        vmid = int(match.params.get("vmid", 0) or 0)
        guest = self.world.here("qemu", vmid)
        if "/agent" not in match.template:
            return
        if guest is None:
            raise PveError(500, f"Configuration file '{conf_path(self.world.node, 'qemu', vmid)}' does not exist")
        if not guest.agent:
            raise PveError(500, "No QEMU guest agent configured")
        if not guest.running:
            raise PveError(500, f"VM {vmid} is not running")
        vm = self._vms.setdefault(vmid, FakeVm(vmid, guest.name, node=guest.node))
        vm.status, vm.agent = guest.status, vm.agent or {}
        self.vms = list(self._vms.values())

    # -------------------------------------------------------- the table

    def _table(self) -> dict[tuple[str, str], Handler]:
        table: dict[tuple[str, str], Handler] = {
            ("GET", "/version"): self.get_version,
            ("GET", "/nodes"): self.get_nodes,
            ("GET", "/pools"): self.get_pools,
            ("GET", "/pools/{poolid}"): self.get_pool,
            ("GET", "/access/permissions"): self.get_permissions,
            ("GET", "/access/acl"): self.get_acl,
            ("GET", "/cluster/resources"): self.get_resources,
            ("GET", "/cluster/tasks"): self.get_cluster_tasks,
            ("GET", "/nodes/{node}/tasks"): self.get_tasks,
            ("GET", "/nodes/{node}/tasks/{upid}/status"): self.get_task_status,
            ("GET", "/nodes/{node}/tasks/{upid}/log"): self.get_task_log,
            ("DELETE", "/nodes/{node}/tasks/{upid}"): self.delete_task,
            ("GET", "/nodes/{node}/storage"): self.get_storages,
            ("GET", "/nodes/{node}/storage/{storage}/status"): self.get_storage,
            ("GET", "/nodes/{node}/storage/{storage}/content"): self.get_content,
            ("POST", "/nodes/{node}/qemu/{vmid}/status/reset"): self.post_reset,
        }
        for kind in ("lxc", "qemu"):
            guest = f"/nodes/{{node}}/{kind}/{{vmid}}"
            table |= {
                ("GET", f"/nodes/{{node}}/{kind}"): self.get_guests,
                ("GET", f"{guest}/status/current"): self.get_current,
                ("GET", f"{guest}/config"): self.get_config,
                ("GET", f"{guest}/snapshot"): self.get_snapshots,
                ("DELETE", f"{guest}/snapshot/{{snapname}}"): self.delete_snapshot,
                ("POST", f"{guest}/status/start"): self.post_start,
                ("POST", f"{guest}/status/stop"): self.post_stop,
                ("POST", f"{guest}/status/shutdown"): self.post_shutdown,
                ("POST", f"{guest}/status/reboot"): self.post_reboot,
                ("DELETE", guest): self.delete_guest,
            }
        return table

    # ------------------------------------------------- version and rights

    async def get_version(self, call: Call) -> Row:
        """GET /version."""
        return {"version": self.version, "release": ".".join(self.version.split(".")[:2]), "repoid": "0000000000000000"}

    async def get_permissions(self, call: Call) -> dict[str, dict[str, int]]:
        """Effective rights; the value is the propagate flag, 0 for what comes from a pool (recorded, section 2)."""
        who = call.values.get("userid", call.user)
        if who != call.user:
            self._require(call, "/access", "Sys.Audit")
        path = call.values.get("path")
        if path is not None:
            return {path: self._effective(who, path)}
        pools = self.world.pools
        paths = {*DEFAULT_PATHS, *self.world.acl.paths(), *(f"/pool/{pool}" for pool in pools)}
        paths |= {f"/vms/{vmid}" for members in pools.values() for vmid in members}
        return {path: perms for path in sorted(paths) if (perms := self._effective(who, path))}

    def _effective(self, who: str, path: str) -> dict[str, int]:
        return self.world.acl.effective(who, path, self.world.pools)

    async def get_acl(self, call: Call) -> list[Row]:
        """Entries at the paths on which the caller could change them (recorded, section 2)."""
        rows = []
        for path in sorted(self.world.acl.paths()):
            if path.startswith("/vms/") and self.allowed(call.user, path, "VM.Allocate"):
                rows += [
                    {"path": path, "ugid": who, "roleid": "GuestwardScratch", "propagate": 1, "type": "token" if "!" in who else "user"}
                    for who in sorted(self.world.acl.at(path))
                ]
        return rows

    def _require(self, call: Call, path: str, priv: str) -> None:
        if not self.allowed(call.user, path, priv):
            raise PveError(403, f"Permission check failed ({path}, {priv})")

    def _audits(self, call: Call, vmid: int) -> bool:
        return self.allowed(call.user, f"/vms/{vmid}", "VM.Audit")

    # ----------------------------------------------------------- guests

    def _guest(self, call: Call) -> Guest:
        guest = self.world.here(call.kind, call.vmid)
        if guest is None:
            raise PveError(500, f"Configuration file '{conf_path(self.world.node, call.kind, call.vmid)}' does not exist")
        return guest

    async def get_guests(self, call: Call) -> list[Row]:
        """The node's guests of one kind; without VM.Audit a guest is silently absent (facts A2)."""
        full = bool(call.values.get("full"))
        mine = [guest for guest in self.world.guests.values() if guest.kind == call.kind and guest.node == self.world.node]
        return [
            guest_row(guest) | ({"qmpstatus": guest.qmpstatus} if full and guest.kind == "qemu" else {})
            for guest in mine
            if self._audits(call, guest.vmid)
        ]

    async def get_current(self, call: Call) -> Row:
        """One guest, live, with its HA state (facts A3)."""
        guest = self._guest(call)
        row = guest_row(guest) | {"ha": {"managed": 1, "state": guest.ha_state} if guest.ha_managed else {"managed": 0}}
        return row | ({"qmpstatus": guest.qmpstatus} if guest.kind == "qemu" else {})

    async def get_config(self, call: Call) -> Row:
        """The configuration, or a snapshot's, with its digest."""
        guest = self._guest(call)
        snapshot = call.values.get("snapshot")
        if snapshot is not None and snapshot not in guest.snapshots:
            raise PveError(500, f"snapshot '{snapshot}' does not exist")
        return {**(guest.snapshots[snapshot] if snapshot else guest.config), "digest": digest(guest)}

    async def get_snapshots(self, call: Call) -> list[Row]:
        """Snapshots, with PVE's pseudo-entry `current` (recorded, section 11)."""
        guest = self._guest(call)
        rows: list[Row] = []
        for name, config in guest.snapshots.items():
            picked: Row = {key: config[key] for key in ("snaptime", "snapstate", "parent") if key in config}
            rows.append({"name": name, "description": f"{config.get('description', '')}\n", **picked})
        parent = {"parent": guest.config["parent"]} if "parent" in guest.config else {}
        current = {"name": "current", "description": "You are here!", "running": int(guest.running), "digest": digest(guest)}
        return [*rows, current | parent]

    async def delete_snapshot(self, call: Call) -> str:
        """Begin the deletion; a lock shows in the task only."""
        return self.world.delete_snapshot(self._guest(call), call.values["snapname"], call.user).upid

    async def delete_guest(self, call: Call) -> str:
        """Destroy a guest: the checks in PVE's order (facts E5; recorded, section 1), once more in its task."""
        guest = self._guest(call)
        force, purge = bool(call.values.get("force")), bool(call.values.get("purge"))
        if kept := self.world.why_kept(guest, force=force, purge=purge):
            raise PveError(500, kept)
        unreferenced = bool(call.values.get("destroy-unreferenced-disks"))
        task = self.world.destroy(guest, call.user, by_api=True, force=force, unreferenced=unreferenced)
        return self._effect("destroy", guest.vmid, task)

    # ------------------------------------------------------------ power

    def _effect(self, verb: str, vmid: int, task: Task) -> str:
        self.effects.append((verb, vmid))
        return task.upid

    def _need_quorum(self) -> None:
        if not self.world.quorate:
            raise PveError(500, "cluster not ready - no quorum?")

    async def post_start(self, call: Call) -> str:
        """A running container is a 500, everything else a task (facts D1, D2; recorded, section 3)."""
        guest = self.world.here(call.kind, call.vmid)
        if guest and guest.kind == "lxc" and guest.running:
            raise PveError(500, f"CT {guest.vmid} already running")
        self._need_quorum()
        if guest and guest.ha_starts_it and not guest.template:
            return self._effect("start", guest.vmid, self.world.ha_request(guest, "started", call.user))
        step = self.world.next_step(guest) if guest else "ok"
        if step == "lost before":
            raise Cut
        upid = self._effect("start", call.vmid, self.world.start(call.kind, call.vmid, call.user, step, by_api=True))
        if step == "lost after":
            raise Cut
        return upid

    async def post_stop(self, call: Call) -> str:
        """A stopped container is a 500, a stopped VM an OK that does nothing (facts D3)."""
        guest = self._switchable(call)
        if guest.ha_starts_it:
            return self._effect("stop", guest.vmid, self.world.ha_request(guest, "stopped", call.user))
        return self._effect("stop", guest.vmid, self.world.stop(guest, call.user, by_api=True))

    async def post_shutdown(self, call: Call) -> str:
        """Like stop, with a deadline; a paused VM is refused (facts D3)."""
        guest = self._switchable(call)
        force, timeout = bool(call.values.get("forceStop")), float(call.values.get("timeout", 60))
        if guest.qmpstatus == "paused" and not force:
            raise PveError(500, "VM is paused - cannot shutdown")
        if guest.ha_starts_it:
            return self._effect("shutdown", guest.vmid, self.world.ha_request(guest, "stopped", call.user))
        return self._effect("shutdown", guest.vmid, self.world.shutdown(guest, call.user, timeout, force, by_api=True))

    def _switchable(self, call: Call) -> Guest:
        guest = self._guest(call)
        if guest.kind == "lxc" and not guest.running:
            raise PveError(500, f"CT {guest.vmid} not running")
        self._need_quorum()
        return guest

    async def post_reboot(self, call: Call) -> str:
        """A stopped guest of either kind is a 500 that says VM (facts D3)."""
        guest = self._guest(call)
        if not guest.running:
            raise PveError(500, f"VM {guest.vmid} not running")
        self._need_quorum()
        return self._effect("reboot", guest.vmid, self.world.reboot(guest, call.user, by_api=True))

    async def post_reset(self, call: Call) -> str:
        """VMs only."""
        guest = self._guest(call)
        if not guest.running:
            raise PveError(500, f"VM {guest.vmid} not running")
        self._need_quorum()
        return self._effect("reset", guest.vmid, self.world.reset(guest, call.user, by_api=True))

    # ------------------------------------------------- cluster and pools

    async def get_nodes(self, call: Call) -> list[Row]:
        """This node; its load only with Sys.Audit."""
        load = self._load(call)
        print_ = self.world.authority.fingerprint
        return [
            {
                "node": self.world.node,
                "id": f"node/{self.world.node}",
                "type": "node",
                "status": "online",
                "level": "",
                "ssl_fingerprint": print_,
                **load,
            }
        ]

    def _load(self, call: Call) -> Row:
        if not self.allowed(call.user, f"/nodes/{self.world.node}", "Sys.Audit"):
            return {}
        return {"cpu": 0.03, "maxcpu": 2, "mem": 1 << 30, "maxmem": 8 << 30, "disk": 4 << 30, "maxdisk": 64 << 30, "uptime": 3600}

    async def get_resources(self, call: Call) -> list[Row]:
        """What the token may see of everything; a fresh lock beside an older status (facts A1; recorded, section 6)."""
        kind = call.values.get("type")
        rows: list[Row] = []
        if kind is None:
            pools = [pool for pool in sorted(self.world.pools) if self._sees_pool(call, pool)]
            rows += [{"id": f"/pool/{pool}", "type": "pool", "pool": pool} for pool in pools]
        if kind in (None, "vm"):
            rows += [self._resource(call, guest) for guest in self.world.guests.values() if self._audits(call, guest.vmid)]
        if kind in (None, "node"):
            rows.append(self._node_resource(call))
        if kind in (None, "storage"):
            rows += [self._storage_resource(storage) for storage in self._storages(call)]
        return rows

    def _sees_pool(self, call: Call, pool: str) -> bool:
        return self.allowed(call.user, f"/pool/{pool}", "Pool.Audit")

    def _resource(self, call: Call, guest: Guest) -> Row:
        row = self._member(guest)
        pool = next((pool for pool, members in self.world.pools.items() if guest.vmid in members), None)
        if pool is not None and self._sees_pool(call, pool):
            row["pool"] = pool
        row |= {key: guest.config[key] for key in ("lock", "tags") if key in guest.config}
        return row | ({"hastate": guest.ha_state} if guest.ha_managed else {})

    def _member(self, guest: Guest) -> Row:
        """What pvestatd says of a guest; of one it never told there is only an id (facts A1)."""
        row: Row = {"id": f"{guest.kind}/{guest.vmid}", "vmid": guest.vmid, "type": guest.kind, "node": guest.node}
        told = self.world.broadcast(guest)
        if told is None:
            return row | {"status": "unknown"}
        zero = dict.fromkeys(("cpu", "mem", "memhost", "disk", "diskread", "diskwrite", "netin", "netout"), 0)
        return (
            row
            | zero
            | {
                "status": told[0],
                "uptime": told[1],
                "name": guest.name,
                "template": int(guest.template),
                "maxcpu": 1,
                "maxmem": MEMORY,
                "maxdisk": DISK_SIZE,
            }
        )

    def _node_resource(self, call: Call) -> Row:
        row = {"id": f"node/{self.world.node}", "type": "node", "node": self.world.node, "status": "online", "level": "", "cgroup-mode": 2}
        return row | self._load(call) | ({"hastate": "maintenance"} if self.world.maintenance else {})

    def _storages(self, call: Call) -> list[Storage]:
        every = sorted(self.world.storages.items())
        return [storage for name, storage in every if self.allowed(call.user, f"/storage/{name}", "Datastore.Audit")]

    def _storage_resource(self, storage: Storage) -> Row:
        size, used = self.world.capacity(storage)
        return {
            "id": f"storage/{self.world.node}/{storage.name}",
            "type": "storage",
            "node": self.world.node,
            "storage": storage.name,
            "plugintype": storage.type,
            "content": storage.content,
            "shared": storage.shared,
            "maxdisk": size,
            "disk": used,
            "status": "available" if storage.online else "unknown",
        }

    async def get_pools(self, call: Call) -> list[Row]:
        """The pools, or the members of one: those come without Pool.Audit too (recorded, section 6)."""
        pool = call.values.get("poolid")
        if pool is None:
            return [{"poolid": name} for name in sorted(self.world.pools) if self._sees_pool(call, name)]
        return [{"poolid": pool, "members": self._members(pool, call.values.get("type"))}]

    async def get_pool(self, call: Call) -> Row:
        """The older path of the same; here Pool.Audit is needed."""
        return {"members": self._members(call.values["poolid"], call.values.get("type"))}

    def _members(self, pool: str, kind: str | None) -> list[Row]:
        if pool not in self.world.pools:
            raise PveError(500, f"pool '{pool}' does not exist")
        found = [self.world.guests[vmid] for vmid in sorted(self.world.pools[pool]) if vmid in self.world.guests]
        return [self._member(guest) for guest in found if kind in (None, guest.kind)]

    # ------------------------------------------------------------ tasks

    async def get_cluster_tasks(self, call: Call) -> list[Row]:
        """A token without Sys.Audit on / sees nothing here, its own tasks neither (facts C1)."""
        if not self.allowed(call.user, "/", "Sys.Audit"):
            return []
        return [task_row(task) | {"saved": "1"} for task in reversed(self.world.tasks.values())]

    async def get_tasks(self, call: Call) -> Listing:
        """Tasks of the node; without Sys.Audit on it only the token's own, and still a 200 (facts C1; recorded, section 7)."""
        values, source = call.values, call.values.get("source", "archive")
        audit = self.allowed(call.user, f"/nodes/{self.world.node}", "Sys.Audit")
        newest = list(reversed(self.world.tasks.values()))
        listed = [task for task in newest if task.running and source != "archive"]
        listed += [task for task in newest if not task.running and source != "active"]
        found = [task_row(task) for task in listed if (audit or task.user == call.user) and wanted(task, values)]
        start = int(values.get("start", 0))
        return Listing(found[start : start + int(values.get("limit", 50))], len(found))

    def _task(self, call: Call) -> Task:
        upid = call.values["upid"]
        if not UPID.fullmatch(upid):
            raise PveError(400, "Parameter verification failed.", {"upid": "unable to parse worker upid"})
        task = self.world.tasks.get(upid)
        if task is None:
            raise PveError(400, "Parameter verification failed.", {"upid": "no such task"})
        return task

    def _own_or(self, call: Call, task: Task, priv: str) -> Task:
        if task.user != call.user:
            self._require(call, f"/nodes/{self.world.node}", priv)
        return task

    async def get_task_status(self, call: Call) -> Row:
        """One task: `user` without the token, exitstatus when it ended (facts D6)."""
        task = self._own_or(call, self._task(call), "Sys.Audit")
        row = task.fields() | task.split_user()
        return row | ({"status": "running"} if task.running else {"status": "stopped", "exitstatus": task.exitstatus})

    async def get_task_log(self, call: Call) -> Listing:
        """Its log. One that is not there is no error (pve-common Tools.pm:dump_logfile)."""
        known = self.world.tasks.get(call.values["upid"])
        if known is None and UPID.fullmatch(call.values["upid"]):
            if call.values["upid"].split(":")[7] != call.user:
                self._require(call, f"/nodes/{self.world.node}", "Sys.Audit")
            return Listing([{"n": 1, "t": "unable to open file - No such file or directory"}], 1)
        task = self._own_or(call, self._task(call), "Sys.Audit")
        lines = [{"n": n, "t": text} for n, text in enumerate(task.log or ["no content"], 1)]
        start = int(call.values.get("start", 0))
        return Listing(lines[start : start + int(call.values.get("limit", 50))], len(lines))

    async def delete_task(self, call: Call) -> None:
        """Stop a task: one's own, or with Sys.Modify."""
        task = self._own_or(call, self._task(call), "Sys.Modify")
        if task.running:
            await self.world.interrupt(task)

    # --------------------------------------------------------- storages

    async def get_storages(self, call: Call) -> list[Row]:
        """The storages that the token may audit."""
        return [{"storage": storage.name, **self._storage_row(storage)} for storage in self._storages(call)]

    async def get_storage(self, call: Call) -> Row:
        """One storage."""
        return self._storage_row(self._storage(call))

    def _storage(self, call: Call) -> Storage:
        storage = self.world.storages.get(call.values["storage"])
        if storage is None:
            raise PveError(500, f"storage '{call.values['storage']}' does not exist")
        return storage

    def _storage_row(self, storage: Storage) -> Row:
        size, used = self.world.capacity(storage)
        return {
            "type": storage.type,
            "content": storage.content,
            "shared": storage.shared,
            "enabled": 1,
            "active": int(storage.online),
            "total": size,
            "used": used,
            "avail": size - used,
        }

    async def get_content(self, call: Call) -> list[Row]:
        """The volumes, as recorded in section 6. Those of a guest whose disks the token may not change are left out (facts F3)."""
        storage, vmid = self._storage(call), call.values.get("vmid")
        if not storage.online:
            raise PveError(500, f"storage '{storage.name}' is not online")
        return [
            self._volume(volume, owner)
            for volume, owner in sorted(self.world.volumes.items())
            if volume.startswith(storage.name + ":") and vmid in (None, owner) and self._sees_volumes(call, storage, owner)
        ]

    def _sees_volumes(self, call: Call, storage: Storage, owner: int) -> bool:
        """PVE::Storage `check_volume_access`, of images and directories of guests."""
        path = f"/storage/{storage.name}"
        both = self.allowed(call.user, path, "Datastore.Audit") and self.allowed(call.user, f"/vms/{owner}", "VM.Config.Disk")
        return both or self.allowed(call.user, path, "Datastore.Allocate")

    def _volume(self, volume: str, owner: int) -> Row:
        """`rootdir` is what a container has; of a guest that is gone nobody knows (PVE::Storage::Plugin `list_volumes`)."""
        guest = self.world.guests.get(owner)
        content = "rootdir" if guest is not None and guest.kind == "lxc" else "images"
        return {"volid": volume, "vmid": owner, "size": DISK_SIZE, "format": "raw", "ctime": self.world.booted, "content": content}


# ------------------------------------------------------------------ rows


def guest_row(guest: Guest) -> Row:
    """A guest as the lists and status/current have it in common (recorded, sections 3 and 6)."""
    keys = ["cpu", "mem", "disk", "netin", "netout"]
    keys += ["diskread", "diskwrite", "swap", "maxswap"] if guest.kind == "lxc" else ["memhost"]
    row: Row = dict.fromkeys(keys, 0)
    row |= {
        "vmid": guest.vmid,
        "name": guest.name,
        "status": guest.status,
        "uptime": guest.uptime(),
        "cpus": 1,
        "maxmem": MEMORY,
        "maxdisk": DISK_SIZE,
    }
    row |= {"type": "lxc"} if guest.kind == "lxc" else {}
    row |= {key: guest.config[key] for key in ("lock", "tags") if key in guest.config}
    row |= {"template": 1} if guest.template else {}
    if guest.running:
        row |= dict.fromkeys(PRESSURE, None if guest.kind == "lxc" else 0)
        row |= {"pid": guest.pid} if guest.pid else {}
    return row


def task_row(task: Task) -> Row:
    """A task in a list: a running one with its user unsplit, an ended one with its exit status as `status` (facts C1, D6)."""
    if task.running:
        return task.fields() | {"user": task.user, "status": "RUNNING", "saved": "0"}
    return task.fields() | task.split_user() | {"endtime": task.endtime, "status": task.exitstatus}


def wanted(task: Task, values: Mapping[str, Any]) -> bool:
    """Whether a task passes the filters of the request."""
    return (
        str(values.get("vmid", task.id)) == task.id
        and values.get("typefilter", task.type) == task.type
        and str(values.get("userfilter", "")).lower() in task.user.lower()
        and int(values.get("since", 0)) <= task.starttime <= int(values.get("until", task.starttime))
        and not (values.get("errors") and task.exitstatus in (None, "OK"))
    )


# --------------------------------------------------------------- answers


def answer(result: Any) -> web.Response:
    """The data as PVE wraps it; a `total` of 0 is left out (recorded, section 9)."""
    if isinstance(result, Listing):
        return web.json_response({"data": result.data, **({"total": result.total} if result.total else {})})
    return web.json_response({"data": result})


def failure(status: int, message: str, errors: Mapping[str, str] | None = None) -> web.Response:
    """An error: the first line in the status line, everything in the body; the proxy's own 59x have no body (recorded)."""
    if status >= 590:
        return bare(status, message)
    body = {"data": None, "message": message + "\n", **({"errors": errors} if errors else {})}
    return web.Response(status=status, reason=message.partition("\n")[0], text=json.dumps(body), content_type="application/json")


def bare(status: int, reason: str) -> web.Response:
    """A status line and nothing else."""
    return web.Response(status=status, reason=reason)
