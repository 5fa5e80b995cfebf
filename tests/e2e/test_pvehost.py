"""The stand-in PVE host answers as the recordings of a real node do (reference/recorded, reference/pve-facts.md)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from proxmoxer import ProxmoxAPI

from guestward.demo.pvehost import PveHost
from tests.contract.test_backup_logs import RECORDED, SIMPLIFIED, plain

from .agent import wait_until

ME = "guestward-pve1@pve!agent"
UPID = re.compile(r"UPID:pve1:([0-9A-F]{8}):([0-9A-F]{8,9}):([0-9A-F]{8}):([^:\s/]+):([^:\s/]*):([^:\s/]+):")


class Client:
    """A token's view of the API, with status lines."""

    def __init__(self, host: PveHost) -> None:
        self.host = host
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.verify = str(host.ca_file)
        self.session.headers["Authorization"] = f"PVEAPIToken={host.token_id}={host.token_secret}"

    def __call__(self, method: str, path: str, /, wait: float = 10, **form: Any) -> requests.Response:
        kwargs = {"params" if method in ("GET", "DELETE") else "data": form}
        return self.session.request(method, f"{self.host.url}/api2/json{path}", timeout=wait, **kwargs)  # type: ignore[arg-type]

    def get(self, path: str, /, **query: Any) -> Any:
        response = self("GET", path, **query)
        assert response.status_code == 200, response.reason
        return response.json()["data"]

    def upid(self, method: str, path: str, /, **form: Any) -> str:
        response = self(method, path, **form)
        assert response.status_code == 200, response.reason
        upid = response.json()["data"]
        assert UPID.fullmatch(upid)
        return str(upid)

    def task(self, upid: str) -> dict[str, Any]:
        """The task's status once it has ended."""
        wait_until(lambda: self.get(f"/nodes/pve1/tasks/{upid}/status")["status"] == "stopped", 5)
        return dict(self.get(f"/nodes/pve1/tasks/{upid}/status"))

    def end(self, method: str, path: str, /, **form: Any) -> str:
        """The exit status of the task that this call begins."""
        return str(self.task(self.upid(method, path, **form))["exitstatus"])

    def row(self, path: str, vmid: int) -> dict[str, Any]:
        return next(row for row in self.get(path) if row.get("vmid") == vmid)


def line(response: requests.Response) -> tuple[int, str]:
    return response.status_code, response.reason


@pytest.fixture
def host(tmp_path: Path) -> Iterator[PveHost]:
    with PveHost(tmp_path / "host") as host:
        host.add_guest(101, "lxc", status="stopped", start_takes=0.05)
        host.add_guest(200, "qemu", status="stopped", start_takes=0.05)
        yield host


@pytest.fixture
def api(host: PveHost) -> Iterator[Client]:
    client = Client(host)
    yield client
    client.session.close()


# ---------------------------------------------------------------- who may come in


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (None, "No ticket"),
        (f"PVEAPIToken={ME}=wrong", "invalid token value!"),
        ("PVEAPIToken=guestward-pve1@pve!nope=x", "no such token 'nope' for user 'guestward-pve1@pve'"),
        ("PVEAPIToken=rubbish", "no tokenid specified"),
    ],
)
def test_a_bad_token_gets_the_recorded_reason_and_no_body(api: Client, header: str | None, reason: str) -> None:
    api.session.headers["Authorization"] = header  # type: ignore[assignment]
    response = api("GET", "/nodes")
    assert (line(response), response.content) == ((401, reason), b"")


def test_auth_can_be_lost_and_come_back(host: PveHost, api: Client) -> None:
    host.auth(False)
    assert line(api("GET", "/version")) == (401, "invalid token value!")
    host.auth(True)
    assert api.get("/version") == {"version": "9.1.3", "release": "9.1", "repoid": "0000000000000000"}


def test_proxmoxer_talks_to_it(host: PveHost) -> None:
    pve = ProxmoxAPI(
        "127.0.0.1",
        port=host.port,
        user="guestward-pve1@pve",
        token_name="agent",
        token_value=host.token_file.read_text().strip(),
        verify_ssl=str(host.ca_file),
    )
    assert [guest["vmid"] for guest in pve.nodes("pve1").lxc.get()] == [101]
    pve._store["session"].close()


def test_certificate_is_signed_by_the_ca_and_can_be_renewed(host: PveHost, api: Client) -> None:
    def served() -> str:
        pem = ssl.get_server_certificate(("127.0.0.1", host.port))
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest().upper()

    first, ca = served(), host.ca_file.read_text()
    assert host.fingerprint.replace(":", "") == first
    host.renew_certificate()
    assert host.fingerprint.replace(":", "") == served() != first
    assert host.ca_file.read_text() == ca and api("GET", "/version").ok
    host.renew_certificate(new_ca=True)
    assert host.ca_file.read_text() != ca and Client(host)("GET", "/version").ok


@pytest.mark.parametrize("key_usage", [True, False])
def test_strict_verification_needs_the_key_usage_that_old_cas_lack(tmp_path: Path, key_usage: bool) -> None:
    with PveHost(tmp_path, ca_key_usage=key_usage) as host:
        context = ssl.create_default_context(cafile=str(host.ca_file))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        with socket.create_connection(("127.0.0.1", host.port)) as raw:
            if key_usage:
                context.wrap_socket(raw, server_hostname="localhost").close()
            else:
                with pytest.raises(ssl.SSLCertVerificationError, match="key usage"):
                    context.wrap_socket(raw, server_hostname="localhost")


# -------------------------------------------------------------------- reads


def test_a_stopped_guest_has_no_pid_and_a_running_one_has(host: PveHost, api: Client) -> None:
    assert set(api.row("/nodes/pve1/lxc", 101)) == {
        "vmid",
        "maxmem",
        "cpu",
        "diskwrite",
        "swap",
        "name",
        "type",
        "netout",
        "status",
        "mem",
        "uptime",
        "cpus",
        "diskread",
        "maxdisk",
        "netin",
        "disk",
        "maxswap",
    }
    assert set(api.row("/nodes/pve1/qemu", 200)) == {
        "netout",
        "name",
        "cpu",
        "maxmem",
        "vmid",
        "disk",
        "netin",
        "maxdisk",
        "memhost",
        "uptime",
        "cpus",
        "mem",
        "status",
    }
    host.add_guest(102, uptime=100)
    row = api.get("/nodes/pve1/lxc/102/status/current")
    assert row["status"] == "running" and row["pid"] > 0 and 100 <= row["uptime"] < 105 and row["ha"] == {"managed": 0}
    assert "pressurecpusome" in row and row["pressurecpusome"] is None


def test_lists_leave_out_silently_what_the_token_may_not_see(host: PveHost, api: Client) -> None:
    host.add_guest(102, pool=None)
    assert [row["vmid"] for row in api.get("/nodes/pve1/lxc")] == [101]
    assert [row["vmid"] for row in api.get("/cluster/resources", type="vm")] == [101, 200]
    assert line(api("GET", "/nodes/pve1/lxc/102/status/current")) == (403, "Permission check failed (/vms/102, VM.Audit)")
    host.revoke("VM.Audit", "/pool/guestward", "token")
    assert api.get("/nodes/pve1/lxc") == []


def test_errors_have_a_message_and_end_the_connection(api: Client) -> None:
    response = api("GET", "/nodes/pve1/lxc/990005/status/current")
    text = "Configuration file 'nodes/pve1/lxc/990005.conf' does not exist"
    assert line(response) == (500, text) and response.json() == {"data": None, "message": text + "\n"}
    assert response.headers["Connection"] == "close"


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/nodes/pve1/nosuch", 501, "Method 'GET /nodes/pve1/nosuch' not implemented"),
        ("/nodes/nosuch/lxc", 500, "hostname lookup 'nosuch' failed - failed to get address info for: nosuch: Name or service not known"),
        ("/cluster/status", 403, "Permission check failed (/, Sys.Audit)"),
        ("/nodes/pve1/lxc/102/config", 403, "Permission check failed (/vms/102, VM.Audit)"),
        ("/access/permissions?userid=root@pam", 403, "Permission check failed (/access, Sys.Audit)"),
    ],
)
def test_refusals(api: Client, path: str, status: int, reason: str) -> None:
    assert line(api("GET", path)) == (status, reason)


def test_booleans_are_one_or_zero_and_parameters_are_checked(api: Client) -> None:
    path = "/nodes/pve1/lxc/101/status/start"
    response = api("POST", path, skiplock=1)
    assert response.status_code == 400 and response.json()["errors"] == {"skiplock": "Only root may use this option."}
    assert api("POST", path, debug="True").json()["errors"] == {"debug": "type check ('boolean') failed - got 'True'"}
    assert "overrule" in api("POST", path, overrule=1).json()["errors"]


def test_config_is_the_file(host: PveHost, api: Client) -> None:
    config = api.get("/nodes/pve1/lxc/101/config")
    text = (host.root / "etc/pve/local/lxc/101.conf").read_text()
    assert config["onboot"] == 1 and config["net0"].startswith("name=eth0,bridge=vmbr0,hwaddr=BC:24:11:")
    assert text == "".join(f"{key}: {value}\n" for key, value in sorted(config.items()) if key != "digest")
    vm = api.get("/nodes/pve1/qemu/200/config")
    assert {"smbios1", "vmgenid", "meta", "scsi0"} <= vm.keys()


# -------------------------------------------------------------------- rights


def test_permissions_carry_the_propagate_flag_and_pool_rights_are_zero(api: Client) -> None:
    scratch = dict.fromkeys(("VM.Audit", "VM.PowerMgmt", "VM.Allocate", "VM.Config.Disk", "VM.Config.Options"), 1)
    member = dict.fromkeys(("VM.Audit", "VM.PowerMgmt", "Pool.Audit"), 0)
    every = api.get("/access/permissions")
    assert every["/vms/990003"] == scratch and every["/vms/101"] == member and every["/nodes/pve1"] == {"Sys.Audit": 0}
    assert every["/storage"] == {"Datastore.Audit": 1} and "/" not in every and "/vms" not in every
    assert api.get("/access/permissions", path="/vms/102") == {"/vms/102": {}}
    assert api.get("/access/permissions", path="/storage/local") == {"/storage/local": {"Datastore.Audit": 1}}


def test_a_token_has_at_most_what_its_user_has_and_a_deeper_entry_replaces(host: PveHost, api: Client) -> None:
    host.revoke("VM.Allocate", "/vms/990001", "user")
    assert "VM.Allocate" not in api.get("/access/permissions", path="/vms/990001")["/vms/990001"]
    host.grant("VM.Allocate", "/vms")
    assert api.get("/access/permissions", path="/vms/555") == {"/vms/555": {"VM.Allocate": 1}}
    assert "VM.Allocate" not in api.get("/access/permissions", path="/vms/990001")["/vms/990001"]


def test_destroy_takes_the_grants_of_that_vmid_along(host: PveHost, api: Client) -> None:
    host.create(990000, "lxc")
    assert api.end("DELETE", "/nodes/pve1/lxc/990000", purge=1) == "OK"
    assert api.get("/access/permissions", path="/vms/990000") == {"/vms/990000": {}}
    assert line(api("DELETE", "/nodes/pve1/lxc/990000")) == (403, "Permission check failed (/vms/990000, VM.Allocate)")
    assert host.effects() == [("destroy", 990000)] and not (host.root / "etc/pve/local/lxc/990000.conf").exists()
    host.regrant(990000)
    assert api.get("/access/permissions", path="/vms/990000")["/vms/990000"]["VM.Allocate"] == 1


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        ("lxc", {"lock": "backup"}, "CT is locked (backup)"),
        ("lxc", {"lock": "create", "protection": 1}, "can't remove CT 990001 - protection mode enabled"),
        ("lxc", {"lock": "create", "ha": "stopped"}, "CT is locked (create)"),
        ("qemu", {"ha": "started", "status": "running"}, "unable to remove VM 990001 - used in HA resources and purge parameter not set."),
        ("lxc", {"protection": 1}, "can't remove CT 990001 - protection mode enabled"),
        ("lxc", {"status": "running"}, "unable to destroy CT 990001 - container is running"),
        ("qemu", {"status": "running"}, "VM 990001 is running - destroy failed"),
    ],
)
def test_destroy_is_refused(host: PveHost, api: Client, kind: str, config: dict[str, Any], reason: str) -> None:
    host.add_guest(990001, kind, pool=None, **{"status": "stopped", **config})
    assert line(api("DELETE", f"/nodes/pve1/{kind}/990001")) == (500, reason)
    assert host.effects() == []


def test_a_vms_lock_is_told_by_the_task_only(host: PveHost, api: Client) -> None:
    host.add_guest(990001, "qemu", pool=None, status="stopped", lock="create")
    assert api.end("DELETE", "/nodes/pve1/qemu/990001", purge=1) == "VM is locked (create)"
    host.lock(990001, "suspended")
    assert api.end("DELETE", "/nodes/pve1/qemu/990001", purge=1) == "OK"
    assert host.volumes(990001) == []


def test_destroy_by_force_stops_a_container(host: PveHost, api: Client) -> None:
    host.add_guest(990001, pool=None)
    assert api("DELETE", "/nodes/pve1/lxc/990001", skiplock=1).status_code == 400
    assert api.end("DELETE", "/nodes/pve1/lxc/990001", force=1, purge=1) == "OK"


def test_leftover_volumes_stay_in_the_storage_and_show_with_the_grant_alone(host: PveHost, api: Client) -> None:
    host.add_guest(990002, "qemu", pool=None, status="stopped", leaves_volumes=True)
    assert api.end("DELETE", "/nodes/pve1/qemu/990002") == "WARNINGS: 1"
    content = "/nodes/pve1/storage/local-lvm/content"
    assert api.get(content, vmid=990002) == []  # PVE leaves it out in silence: the grant went with the guest
    host.regrant(990002)
    assert [row["volid"] for row in api.get(content, vmid=990002)] == ["local-lvm:vm-990002-disk-0"]
    assert [row["storage"] for row in api.get("/nodes/pve1/storage", enabled=1)] == ["local", "local-lvm"]
    host.revoke("Datastore.Audit", "/storage")
    assert line(api("GET", content, vmid=990002))[0] == 403 and api.get("/nodes/pve1/storage", enabled=1) == []


def test_a_killed_restore_leaves_a_lock_and_an_orphan(host: PveHost, api: Client) -> None:
    """Timelines 8n."""
    by, content = "restic@pve!restore", "/nodes/pve1/storage/local-lvm/content"
    host.create(990000, by=by, how="restore", killed=True)
    assert conf(host, 990000) == "lock: create\n"
    row = api.row("/nodes/pve1/lxc", 990000)
    assert (row["name"], row["status"], row["lock"]) == ("CT990000", "stopped", "create")
    (task,) = api.get("/nodes/pve1/tasks", source="archive", vmid=990000)
    assert (task["type"], task["user"], task["tokenid"], task["status"]) == ("vzrestore", "restic@pve", "restore", "unexpected status")
    assert api.end("POST", "/nodes/pve1/lxc/990000/status/start") == "CT is locked (create)"
    for force in ({}, {"force": 1}):
        assert line(api("DELETE", "/nodes/pve1/lxc/990000", **force)) == (500, "CT is locked (create)")
    host.unlock(990000)
    assert api.end("DELETE", "/nodes/pve1/lxc/990000", purge=1) == "OK"
    assert host.volumes(990000) == ["local-lvm:vm-990000-disk-0"] and api.get(content, vmid=990000) == []

    host.regrant(990000)
    host.create(990000, by=by, how="restore")
    volumes = {row["volid"]: row["content"] for row in api.get(content, vmid=990000)}
    assert volumes == dict.fromkeys(("local-lvm:vm-990000-disk-0", "local-lvm:vm-990000-disk-1"), "rootdir")
    assert api.end("DELETE", "/nodes/pve1/lxc/990000", **{"destroy-unreferenced-disks": 1}) == "OK"
    assert host.volumes(990000) == []


def test_pveum_puts_back_what_a_destroy_wiped(host: PveHost, api: Client) -> None:
    """And nothing else does: user.cfg has the entries of the band and those who PVE knows."""
    tester = "restic@pve!restore"
    host.add_grantee(tester)
    users = host.root / "etc/pve/user.cfg"
    assert f"acl:1:/vms/990003:{tester}:GuestwardScratch:" in users.read_text()
    host.create(990003)
    host.join_pool(990003)
    api.end("DELETE", "/nodes/pve1/lxc/990003", purge=1)
    assert "/vms/990003:" not in users.read_text() and "990003" not in users.read_text()
    assert not host.held(ME, "/vms/990003") and not host.held(tester, "/vms/990003")
    lists = ("--users", f"{ME.partition('!')[0]},restic@pve", "--tokens", f"{ME},{tester}")
    command = [str(host.root / "usr/bin/pveum"), "acl", "modify", "/vms/990003", *lists, "--roles", "GuestwardScratch", "--propagate", "1"]
    assert subprocess.run(command, check=False).returncode == 0
    assert api.get("/access/permissions", path="/vms/990003")["/vms/990003"].keys() == host.held(tester, "/vms/990003")
    command[5] = "nobody@pve"
    assert subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 255


# ------------------------------------------------------------ pools, resources


def test_pool_members_show_the_qmp_status_and_no_lock(host: PveHost, api: Client) -> None:
    host.add_guest(201, "qemu", lock="backup")
    host.qmpstatus(201, "io-error")
    members = {row["vmid"]: row for row in api.get("/pools", poolid="guestward")[0]["members"]}
    assert members[201]["status"] == "io-error" and "lock" not in members[201]
    assert set(members[101]) == {
        "maxmem",
        "disk",
        "maxcpu",
        "netin",
        "mem",
        "id",
        "vmid",
        "netout",
        "name",
        "cpu",
        "node",
        "status",
        "memhost",
        "diskread",
        "template",
        "uptime",
        "type",
        "maxdisk",
        "diskwrite",
    }
    assert line(api("GET", "/pools?poolid=nosuch")) == (500, "pool 'nosuch' does not exist")


def test_resources_show_ha_storage_and_maintenance(host: PveHost, api: Client) -> None:
    host.ha(101, None)
    host.maintenance(True)
    host.add_guest(103, storage="nas", ha="started")
    host.storage("nas", online=False)
    rows = {row["id"]: row for row in api.get("/cluster/resources")}
    assert rows["lxc/101"]["hastate"] is None and rows["lxc/103"]["hastate"] == "started" and "hastate" not in rows["qemu/200"]
    assert rows["node/pve1"]["hastate"] == "maintenance" and rows["lxc/101"]["pool"] == "guestward"
    assert rows["storage/pve1/nas"]["status"] == "unknown" and rows["storage/pve1/local"]["status"] == "available"
    assert json.loads((host.root / "etc/pve/local/lrm_status").read_text())["mode"] == "maintenance"
    host.revoke("Pool.Audit", "/pool/guestward")
    host.revoke("Datastore.Audit", "/storage")
    rows = {row["id"]: row for row in api.get("/cluster/resources")}
    assert "pool" not in rows["lxc/101"] and "storage/pve1/local" not in rows and "/pool/guestward" not in rows


def test_resources_keep_an_old_status_beside_a_fresh_lock(host: PveHost, api: Client) -> None:
    host.pvestatd(False)
    host.start(101)
    host.lock(101, "backup")
    row = api.row("/cluster/resources", 101)
    assert (row["status"], row["lock"]) == ("stopped", "backup")
    assert api.row("/nodes/pve1/lxc", 101)["status"] == "running"
    host.add_guest(104)
    assert api.row("/cluster/resources", 104)["status"] == "unknown"


# -------------------------------------------------------------------- power


@pytest.mark.parametrize(("kind", "vmid", "type_"), [("lxc", 101, "vzstart"), ("qemu", 200, "qmstart")])
def test_a_start_is_a_task_and_then_it_runs(host: PveHost, api: Client, kind: str, vmid: int, type_: str) -> None:
    upid = api.upid("POST", f"/nodes/pve1/{kind}/{vmid}/status/start")
    task = api.task(upid)
    assert (task["type"], task["exitstatus"], task["user"], task["tokenid"]) == (type_, "OK", "guestward-pve1@pve", "agent")
    assert api.get(f"/nodes/pve1/{kind}/{vmid}/status/current")["pid"] > 0
    assert host.effects() == [("start", vmid)]


def test_pstart_is_boot_time(api: Client) -> None:
    upid = api.upid("POST", "/nodes/pve1/lxc/101/status/start")
    match = UPID.fullmatch(upid)
    assert match and abs(int(match[2], 16) / 100 - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5
    assert abs(int(match[3], 16) - time.time()) < 5


def test_running_already_is_a_500_for_a_container_and_a_task_error_for_a_vm(host: PveHost, api: Client) -> None:
    host.start(101)
    host.start(200)
    assert line(api("POST", "/nodes/pve1/lxc/101/status/start")) == (500, "CT 101 already running")
    assert api.end("POST", "/nodes/pve1/qemu/200/status/start") == "VM 200 already running"


def test_what_cannot_start_ends_as_a_task_error(host: PveHost, api: Client) -> None:
    host.lock(101, "backup")
    assert api.end("POST", "/nodes/pve1/lxc/101/status/start") == "CT is locked (backup)"
    host.lock(200, "backup")
    assert api.end("POST", "/nodes/pve1/qemu/200/status/start") == "VM is locked (backup)"
    assert api.end("POST", "/nodes/pve1/lxc/990007/status/start") == "Configuration file 'nodes/pve1/lxc/990007.conf' does not exist"
    host.add_guest(105, template=True, status="stopped")
    assert api.end("POST", "/nodes/pve1/lxc/105/status/start") == "you can't start a CT if it's a template"


def test_a_start_plan_goes_attempt_by_attempt(host: PveHost, api: Client) -> None:
    host.plan(101, "fail: storage 'nas' is not online", "ok: stays stopped", "warnings: 1")
    path = "/nodes/pve1/lxc/101/status/start"
    assert api.end("POST", path) == "storage 'nas' is not online"
    assert api.end("POST", path) == "OK" and host.guest(101)["status"] == "stopped"
    assert api.end("POST", path) == "WARNINGS: 1" and host.guest(101)["status"] == "running"
    assert host.guest(101)["attempts"] == 3


@pytest.mark.parametrize(("step", "status"), [("lost before", "stopped"), ("lost after", "running")])
def test_an_answer_can_get_lost(host: PveHost, api: Client, step: str, status: str) -> None:
    host.plan(101, step)
    with pytest.raises(requests.ConnectionError):
        api("POST", "/nodes/pve1/lxc/101/status/start")
    wait_until(lambda: host.guest(101)["status"] == status, 5)
    assert host.effects() == ([("start", 101)] if status == "running" else [])


def test_a_start_can_hang_until_its_task_is_stopped(host: PveHost, api: Client) -> None:
    host.plan(101, "hang")
    upid = api.upid("POST", "/nodes/pve1/lxc/101/status/start")
    wait_until(lambda: api.get(f"/nodes/pve1/tasks/{upid}/status")["status"] == "running", 1)
    assert api("DELETE", f"/nodes/pve1/tasks/{upid}").json() == {"data": None}
    assert api.task(upid)["exitstatus"] == "received interrupt"


def test_a_guest_can_flap(host: PveHost, api: Client) -> None:
    host.plan(101, "flap 0.1")
    assert api.end("POST", "/nodes/pve1/lxc/101/status/start") == "OK"
    wait_until(lambda: host.guest(101)["status"] == "stopped", 2)


def test_ha_takes_the_request_and_starts_later(host: PveHost, api: Client) -> None:
    host.ha(101, "stopped")
    upid = api.upid("POST", "/nodes/pve1/lxc/101/status/start")
    assert ":hastart:101:" in upid and api.task(upid)["exitstatus"] == "OK"
    wait_until(lambda: host.guest(101)["status"] == "running", 2)
    host.ha(200, "ignored")
    assert ":qmstart:" in api.upid("POST", "/nodes/pve1/qemu/200/status/start")


def test_stop_and_shutdown_of_a_stopped_guest(api: Client) -> None:
    for verb in ("stop", "shutdown"):
        assert line(api("POST", f"/nodes/pve1/lxc/101/status/{verb}")) == (500, "CT 101 not running")
        assert api.end("POST", f"/nodes/pve1/qemu/200/status/{verb}") == "OK"
    for path in ("lxc/101", "qemu/200"):
        assert line(api("POST", f"/nodes/pve1/{path}/status/reboot"))[1] == f"VM {path[-3:]} not running"


def test_a_guest_that_ignores_shutdown(host: PveHost, api: Client) -> None:
    host.add_guest(201, "qemu", ignores_shutdown=True)
    path = "/nodes/pve1/qemu/201/status/shutdown"
    assert api.end("POST", path, timeout=0) == "VM quit/powerdown failed - got timeout"
    assert api.end("POST", path, timeout=0, forceStop=1) == "OK" and host.guest(201)["status"] == "stopped"


def test_a_stopping_container_is_running_without_pid_for_a_while(host: PveHost, api: Client) -> None:
    host.start(101)
    api.upid("POST", "/nodes/pve1/lxc/101/status/stop")
    wait_until(lambda: "pid" not in (row := api.row("/nodes/pve1/lxc", 101)) and row["status"] == "running", 2)
    wait_until(lambda: api.row("/nodes/pve1/lxc", 101)["status"] == "stopped", 2)


def test_reboot_inside_leaves_no_task_and_comes_back(host: PveHost, api: Client) -> None:
    host.start(101)
    before = len(api.get("/nodes/pve1/tasks", source="all"))
    host.reboot(101)
    assert api.row("/nodes/pve1/lxc", 101)["status"] == "stopped"
    wait_until(lambda: "pid" in api.row("/nodes/pve1/lxc", 101), 3)
    assert len(api.get("/nodes/pve1/tasks", source="all")) == before


def test_reboot_of_a_vm_has_a_gap_without_a_task_and_a_start_by_root(host: PveHost, api: Client) -> None:
    host.start(200)
    assert api.end("POST", "/nodes/pve1/qemu/200/status/reboot") == "OK"
    assert (host.guest(200)["status"], api.get("/nodes/pve1/tasks", source="active")) == ("stopped", [])
    wait_until(lambda: host.guest(200)["status"] == "running", 3)
    assert [task["user"] for task in api.get("/nodes/pve1/tasks", typefilter="qmstart")][-1:] == ["root@pam"]


# -------------------------------------------------------------------- tasks


def test_an_active_task_keeps_its_token_and_an_ended_one_is_split(host: PveHost, api: Client) -> None:
    host.task_begin("vzdump", by="root@pam!probe")
    [row] = api.get("/nodes/pve1/tasks", source="active")
    assert (row["user"], row["status"], row["id"]) == ("root@pam!probe", "RUNNING", "") and "endtime" not in row and "tokenid" not in row
    host.task_end("vzdump", "job errors")
    assert api("GET", "/nodes/pve1/tasks?source=active").json() == {"data": []}  # no total either, as recorded
    [row] = api.get("/nodes/pve1/tasks")
    assert (row["user"], row["tokenid"], row["status"]) == ("root@pam", "probe", "job errors") and row["endtime"] >= row["starttime"]


def test_filters_and_limit(host: PveHost, api: Client) -> None:
    for vmid in (101, 101, 200):
        host.task_begin("vzstop", vmid)
        host.task_end("vzstop")
    assert len(api.get("/nodes/pve1/tasks", vmid=101)) == 2
    assert api("GET", "/nodes/pve1/tasks?limit=1").json()["total"] == 3
    assert api.get("/nodes/pve1/tasks", limit=0) == [] == api.get("/nodes/pve1/tasks", typefilter="vzdump")
    assert api.get("/nodes/pve1/tasks", since=int(time.time()) + 100) == []
    assert api.get("/nodes/pve1/tasks", userfilter="nobody") == []


def test_without_sys_audit_only_own_tasks_show_and_still_a_200(host: PveHost, api: Client) -> None:
    foreign = host.backup_begin(101)
    own = api.upid("POST", "/nodes/pve1/qemu/200/status/start")
    api.task(own)
    host.revoke("Sys.Audit", "/nodes/pve1")
    assert api.get("/nodes/pve1/tasks", source="active") == []
    assert [task["upid"] for task in api.get("/nodes/pve1/tasks", source="all")] == [own]
    assert line(api("GET", f"/nodes/pve1/tasks/{foreign}/status")) == (403, "Permission check failed (/nodes/pve1, Sys.Audit)")
    assert api.get("/cluster/tasks") == []


def test_unknown_and_malformed_upids(api: Client) -> None:
    unknown = "UPID:pve1:00001234:00001234:6B0DF801:vzstart:101:guestward@pve!agent:"
    for upid, text in ((unknown, "no such task"), ("nonsense", "unable to parse worker upid")):
        response = api("GET", f"/nodes/pve1/tasks/{upid}/status")
        assert response.status_code == 400 and response.json()["errors"] == {"upid": text}


def test_task_log(api: Client) -> None:
    upid = api.upid("POST", "/nodes/pve1/lxc/101/status/start")
    api.task(upid)
    assert api("GET", f"/nodes/pve1/tasks/{upid}/log").json() == {"data": [{"n": 1, "t": "TASK OK"}], "total": 1}


def test_the_log_of_a_task_that_never_was(api: Client, host: PveHost) -> None:
    """PVE looks for the file after it has looked at the user, and a missing one is no error."""
    own, foreign = (f"UPID:pve1:00001234:00001234:6B0DF801:vzstart:101:{user}:" for user in ("guestward@pve!agent", "root@pam"))
    gone = {"data": [{"n": 1, "t": "unable to open file - No such file or directory"}], "total": 1}
    assert api("GET", f"/nodes/pve1/tasks/{own}/log").json() == gone
    host.revoke("Sys.Audit", "/nodes/pve1")
    assert line(api("GET", f"/nodes/pve1/tasks/{foreign}/log"))[0] == 403
    host.grant("Sys.Audit", "/nodes/pve1")
    assert api("GET", f"/nodes/pve1/tasks/{foreign}/log").json() == gone
    assert api("GET", "/nodes/pve1/tasks/nonsense/log").status_code == 400


# ------------------------------------------------------------------- backups


def backup_log(api: Client, upid: str) -> list[str]:
    """Its log, without times and names."""
    rows = api.get(f"/nodes/pve1/tasks/{upid}/log", limit=20000)
    assert [row["n"] for row in rows] == [*range(1, len(rows) + 1)]
    return plain([row["t"] for row in rows])


def recorded_log(name: str) -> list[str]:
    lines = RECORDED[name]
    for simpler in SIMPLIFIED.values():
        lines = simpler(lines)
    return [text.replace("110", "101") for text in plain(lines)]


@pytest.mark.parametrize(("mode", "name"), [("snapshot", "4.1"), ("stop", "3b.1")])
def test_the_log_of_a_backup_is_the_recorded_one(host: PveHost, api: Client, mode: str, name: str) -> None:
    host.start(101)
    upid = host.backup_begin(101, mode)
    host.backup_end()
    lines = [text.replace("after <*", "after *") for text in backup_log(api, upid)]
    assert lines == recorded_log(name)


def test_the_logs_of_backups_that_do_not_end_well(host: PveHost, api: Client) -> None:
    host.start(101)
    killed = host.backup_begin(101)
    host.backup_kill()
    refused = host.backup_begin(101)
    host.unlock(101)
    interrupted = host.backup_begin(101, by="root@pam!probe")
    waiting = host.backup_begin(101)
    assert backup_log(api, killed) == recorded_log("6c.1")
    assert backup_log(api, refused) == recorded_log("6d.2")
    assert backup_log(api, waiting) == ["INFO: trying to get global lock - waiting..."]
    host.grant("Sys.Modify", "/nodes/pve1")
    assert api("DELETE", f"/nodes/pve1/tasks/{interrupted}").status_code == 200
    found = "INFO: found old vzdump snapshot (force removal)"
    assert [text for text in backup_log(api, interrupted) if text != found] == recorded_log("6a.1")


def test_the_log_of_a_job_of_two(host: PveHost, api: Client) -> None:
    """As timeline 7: one that runs, and one that does not."""
    host.add_guest(102, status="stopped")
    host.start(101)
    first, second = host.backup_begin(101), host.backup_begin([101, 102])
    host.backup_end()
    host.backup_end()
    assert backup_log(api, first)[-1] == "TASK OK" and backup_log(api, second) == recorded_log("7.2")


def conf(host: PveHost, vmid: int) -> str:
    return next((host.root / "etc/pve/local").glob(f"*/{vmid}.conf")).read_text()


def flocks(host: PveHost) -> list[str]:
    found = (host.root / "run/vzdump.lock").stat()
    lines = (host.root / "proc/locks").read_text().splitlines()
    return [
        text.partition(": ")[2].partition(" WRITE ")[0].strip() + text.partition(" WRITE ")[2]
        for text in lines
        if f":{found.st_ino} 0 EOF" in text
    ]


def test_snapshot_mode_shows_lock_section_flock_pid_file_and_archive(host: PveHost, api: Client) -> None:
    host.start(101)
    assert not (host.root / "run/vzdump.lock").exists()
    upid = host.backup_begin(101)
    assert "\nlock: backup\n" in conf(host, 101) and "\nparent: vzdump\n" in conf(host, 101)
    assert "\n[vzdump]\n#vzdump backup snapshot\n" in conf(host, 101) and "snapstate" not in conf(host, 101)
    assert (host.root / "run/vzdump.pid").read_text() == upid and ":vzdump:101:root@pam:" in upid
    pid, pstart = int(upid.split(":")[2], 16), int(upid.split(":")[3], 16)
    fields = (host.root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert len(fields) == 50 and int(fields[19]) == pstart
    commands = [path.read_text().split("\0") for path in host.root.glob("proc/[0-9]*/cmdline")]
    assert any(
        re.fullmatch(r"--directory=/var/lib/vz/dump/vzdump-lxc-101-\d{4}(_\d\d){2}-\d\d(_\d\d){2}\.tmp", arg)
        for args in commands
        for arg in args
    )
    with (host.root / "run/vzdump.lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    host.backup_end()
    assert "vzdump" not in conf(host, 101) and "lock" not in conf(host, 101) and flocks(host) == []
    assert not (host.root / "run/vzdump.pid").exists() and not (host.root / f"proc/{pid}").exists()
    assert api.get("/nodes/pve1/tasks", typefilter="vzdump")[0]["status"] == "OK"


def test_stop_mode_has_a_stopped_and_unlocked_window_and_no_start_task(host: PveHost, api: Client) -> None:
    host.start(101)
    host.backup_begin([101], mode="stop")
    assert (host.guest(101)["status"], host.guest(101)["lock"]) == ("stopped", "backup")
    host.backup_end(101, restart_window=0.3, wait=False)
    wait_until(lambda: host.guest(101)["lock"] is None, 1)
    assert host.guest(101)["status"] == "stopped" and api.get("/nodes/pve1/tasks", source="active")[0]["type"] == "vzdump"
    assert len(flocks(host)) == 1
    wait_until(lambda: host.guest(101)["status"] == "running" and flocks(host) == [], 2)
    assert len(api.get("/nodes/pve1/tasks", typefilter="vzstart")) == 1  # the one from the first line


def test_a_job_of_several_guests_has_no_id_and_saves_one_at_a_time(host: PveHost) -> None:
    host.add_guest(102)
    upid = host.backup_begin([101, 102], by="root@pam!probe")
    assert ":vzdump::root@pam!probe:" in upid
    assert (host.guest(101)["lock"], host.guest(102)["lock"]) == ("backup", None)
    host.backup_end(101)
    assert (host.guest(101)["lock"], host.guest(102)["lock"]) == (None, "backup")
    host.backup_end()
    assert host.guest(102)["lock"] is None


def test_a_second_job_waits_for_the_flock(host: PveHost) -> None:
    host.add_guest(102)
    first, second = host.backup_begin(101), host.backup_begin(102)
    pids = [str(int(upid.split(":")[2], 16)) for upid in (first, second)]
    lines = [text for text in (host.root / "proc/locks").read_text().splitlines() if "FLOCK" in text]
    assert re.match(rf"\d+: FLOCK  ADVISORY  WRITE {pids[0]} [0-9a-f]+:[0-9a-f]+:\d+ 0 EOF$", lines[0])
    assert f": -> FLOCK  ADVISORY  WRITE {pids[1]} " in lines[1]
    assert host.guest(102)["lock"] is None
    host.backup_end()
    assert host.guest(102)["lock"] == "backup"


def test_a_job_waits_for_somebody_elses_flock(host: PveHost) -> None:
    with (host.root / "run/vzdump.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        host.backup_begin(101)
        assert host.guest(101)["lock"] is None
    wait_until(lambda: host.guest(101)["lock"] == "backup", 2)


def test_a_killed_backup_leaves_lock_section_pid_file_and_archive(host: PveHost, api: Client) -> None:
    host.start(101)
    upid = host.backup_begin(101)
    host.backup_kill(archive_seconds=0.3)
    assert api.task(upid)["exitstatus"] == "unexpected status" and flocks(host) == []
    assert "lock: backup" in conf(host, 101) and "[vzdump]" in conf(host, 101)
    assert (host.root / "run/vzdump.pid").read_text() == upid
    archives = [path for path in host.root.glob("proc/[0-9]*/cmdline") if "vzdump-lxc-101" in path.read_text()]
    assert archives and not (host.root / f"proc/{int(upid.split(':')[2], 16)}").exists()
    wait_until(lambda: not any(path.exists() for path in archives), 2)


def test_incident_a_container_that_reboots_during_its_backup_stays_down(host: PveHost, api: Client) -> None:
    host.start(101)
    upid = host.backup_begin(101)
    host.reboot(101)
    wait_until(lambda: "running" in api.row("/nodes/pve1/lxc", 101)["status"], 3)  # the false running of the failing start
    wait_until(lambda: api.row("/nodes/pve1/lxc", 101)["status"] == "stopped", 3)
    host.backup_end()
    assert api.task(upid)["exitstatus"] == "OK"
    row = api.row("/nodes/pve1/lxc", 101)
    assert row["status"] == "stopped" and "lock" not in row


def test_a_locked_snapshot_cannot_be_deleted_and_an_unlocked_one_can(host: PveHost, api: Client) -> None:
    host.start(101)
    host.backup_begin(101)
    host.backup_kill()
    assert line(api("DELETE", "/nodes/pve1/lxc/101/snapshot/vzdump")) == (403, "Permission check failed (/vms/101, VM.Snapshot)")
    host.grant("VM.Snapshot", "/pool/guestward")
    assert api.end("DELETE", "/nodes/pve1/lxc/101/snapshot/vzdump") == "CT is locked (backup)"
    assert [row["name"] for row in api.get("/nodes/pve1/lxc/101/snapshot")] == ["vzdump", "current"]
    host.unlock(101)
    assert api.end("DELETE", "/nodes/pve1/lxc/101/snapshot/vzdump") == "OK" and "vzdump" not in conf(host, 101)


# --------------------------------------------------- PVE's programs, root helper


def program(host: PveHost, *words: str) -> tuple[int, str, str]:
    name, *arguments = words
    done = subprocess.run([str(host.root / "usr/bin" / name), *arguments], capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stdout, done.stderr


SET = ("pvesh", "set", "/nodes/localhost/qemu/200/config", "--delete", "lock", "--skiplock", "1", "--digest")


def test_programs_clear_whatever_lock_is_there(host: PveHost) -> None:
    assert program(host, "pct", "unlock", "101") == (255, "", "no lock found trying to remove any lock\n")
    assert program(host, "qm", "unlock", "200") == (0, "", "")
    for vmid, words in ((101, ("pct", "unlock", "101")), (200, ("qm", "unlock", "200"))):
        host.lock(vmid, "migrate")
        assert program(host, *words) == (0, "", "") and host.guest(vmid)["lock"] is None
        assert "lock:" not in conf(host, vmid)
    assert program(host, "pct", "unlock", "200") == (2, "", "Configuration file 'nodes/pve1/lxc/200.conf' does not exist\n")
    assert program(host, "pct", "list")[0] == 255
    assert host.programs_run()[:2] == ["pct unlock 101", "qm unlock 200"] and host.effects() == []


def test_the_api_clears_a_lock_only_in_the_file_that_was_read(host: PveHost) -> None:
    host.lock(200, "backup")
    digest = hashlib.sha1(conf(host, 200).encode()).hexdigest()
    host.set(200, cores=2)
    assert program(host, *SET, digest) == (255, "", "checksum mismatch (file change by other user?)\n")
    digest = hashlib.sha1(conf(host, 200).encode()).hexdigest()
    assert program(host, *SET, digest) == (0, "update VM 200: -delete lock -skiplock 1\n", "")
    assert host.guest(200)["lock"] is None


def test_a_snapshot_is_deleted_by_a_task_and_a_failure_leaves_its_lock(host: PveHost, api: Client) -> None:
    words = ("pct", "delsnapshot", "101", "vzdump")
    assert program(host, *words) == (255, "", "snapshot 'vzdump' does not exist\n")
    host.snapshot(101, "vzdump")
    host.lock(101, "backup")
    assert program(host, *words) == (255, "", "CT is locked (backup)\n")
    host.unlock(101)
    host.program_fails("delsnapshot", "lvremove failed")
    assert program(host, *words) == (255, "", "lvremove failed\n")
    assert host.guest(101)["lock"] == "snapshot-delete" and "snapstate: delete" in conf(host, 101)
    host.unlock(101)
    assert program(host, *words) == (0, "", "") and host.guest(101)["snapshots"] == []
    newest = api.get("/nodes/pve1/tasks")[0]
    assert (newest["type"], newest["user"], newest["id"], newest["status"]) == ("vzdelsnapshot", "root@pam", "101", "OK")
    assert newest["upid"] in (host.root / "var/log/pve/tasks/active").read_text()


ACL = ("pveum", "acl", "modify", "/vms/990000", "--users", "guestward@pve", "--tokens", "guestward@pve!agent")


def test_grants_of_the_scratch_band_are_in_the_users_file_and_pveum_puts_them_back(host: PveHost, api: Client) -> None:
    file = host.root / "etc/pve/user.cfg"
    words = (*(word.replace("guestward@pve", host.token_id.partition("!")[0]) for word in ACL), "--roles", "GuestwardScratch")
    assert file.read_text().count(":GuestwardScratch:\n") == 20
    host.revoke("VM.Allocate", "/vms/990000")
    assert "/vms/990000" not in file.read_text() and file.read_text().count(":GuestwardScratch:\n") == 18
    host.program_fails("acl", "got timeout")
    assert program(host, *words, "--propagate", "1") == (255, "", "ACL update failed: got timeout\n")
    assert program(host, *words, "--propagate", "1") == (0, "", "")
    assert file.read_text().count(":GuestwardScratch:\n") == 20
    assert api.get("/access/permissions", path="/vms/990000")["/vms/990000"]["VM.Allocate"] == 1
    host.quorum(False)
    assert program(host, *words, "--propagate", "1")[0] == 13


def test_a_program_that_is_killed_interrupts_its_task(host: PveHost, api: Client) -> None:
    host.snapshot(101, "vzdump")
    host.snapshot_deletion(30)
    with subprocess.Popen([str(host.root / "usr/bin/pct"), "delsnapshot", "101", "vzdump"]) as process:
        wait_until(lambda: host.guest(101)["lock"] == "snapshot-delete")
        process.terminate()
    wait_until(lambda: api.get("/nodes/pve1/tasks")[0].get("status") == "received interrupt")
    assert host.guest(101)["lock"] == "snapshot-delete"


def test_the_real_helper_answers_behind_its_socket(host: PveHost) -> None:
    def ask(**request: object) -> tuple[str, bool]:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(host.root / "run/guestward/helper.sock"))
            client.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(client.makefile().readline())
        return answer["code"], answer["ok"]

    unlock = {"verb": "unlock", "kind": "lxc", "vmid": 101, "expect": "backup"}
    host.start(101)
    host.backup_begin(101)
    assert ask(**unlock) == ("busy", False), "the vzdump holds the flock"
    host.backup_kill(archive_seconds=3600)
    assert ask(**unlock) == ("backup_running", False), "its archive process lives"
    host.archives_end()
    host.quorum(False)
    assert ask(**unlock) == ("no_quorum", False)
    host.quorum(True)
    host.boot_phase("stopping")
    assert ask(**unlock) == ("stopping", False)
    host.boot_phase("up")
    host.leave_pool(101)
    assert ask(**unlock) == ("not_owned", False)
    host.join_pool(101)
    assert host.programs_run() == []
    assert ask(**unlock) == ("ok", True)
    assert ask(verb="delete-snapshot", vmid=101) == ("ok", True)
    assert host.programs_run() == ["pct unlock 101", "pct delsnapshot 101 vzdump"]
    assert host.guest(101)["lock"] is None and host.guest(101)["snapshots"] == []


# ---------------------------------------------------------------------- host


def systemctl(host: PveHost, *arguments: str) -> list[str]:
    done = subprocess.run([str(host.root / "usr/bin/systemctl"), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("phase", "unit", "system"),
    [
        ("booting", "activating start", "starting"),
        ("up", "active exited", "running"),
        ("stopping", "deactivating stop", "stopping"),
        ("failed", "failed failed", "degraded"),
        ("disabled", "inactive dead", "running"),
    ],
)
def test_systemctl_knows_the_phase(host: PveHost, phase: str, unit: str, system: str) -> None:
    host.boot_phase(phase)
    active, sub = unit.split()
    wanted = ["ActiveState=" + active, "SubState=" + sub]
    assert systemctl(host, "show", "-p", "SubState", "--property=ActiveState", "pve-guests.service") == wanted
    assert systemctl(host, "show", "pve-guests.service", "--property=ActiveState,SubState") == wanted
    assert systemctl(host, "show", "--property=SystemState") == ["SystemState=" + system]
    assert systemctl(host, "show", "-p", "ActiveState", "--value", "pve-guests") == [active]
    assert systemctl(host, "show", "-p", "LoadState", "nosuch.service") == ["LoadState=not-found"]


def test_quorum_is_the_write_bit_and_power_needs_it(host: PveHost, api: Client) -> None:
    local = host.root / "etc/pve/local"
    assert local.stat().st_mode & stat.S_IWUSR
    host.quorum(False)
    assert not local.stat().st_mode & stat.S_IWUSR
    assert line(api("POST", "/nodes/pve1/lxc/101/status/start")) == (500, "cluster not ready - no quorum?")
    assert api.row("/nodes/pve1/lxc", 101)["status"] == "stopped"
    host.quorum(True)
    assert local.stat().st_mode & stat.S_IWUSR and api.end("POST", "/nodes/pve1/lxc/101/status/start") == "OK"


def test_without_pmxcfs_etc_pve_is_empty_and_every_call_a_500(host: PveHost, api: Client) -> None:
    api.session.verify = str(host.root / "ca.pem")
    (host.root / "ca.pem").write_bytes(host.ca_file.read_bytes())
    host.pmxcfs(False)
    assert list((host.root / "etc/pve").iterdir()) == []
    response = api("GET", "/cluster/resources")
    assert line(response) == (500, "RPCEnvironment init request failed: Unable to load access control list: Connection refused")
    assert response.content == b""
    host.die(101)
    host.pmxcfs(True)
    assert (host.root / "etc/pve/local/lxc/101.conf").exists() and api("GET", "/cluster/resources").ok


def test_a_power_cut_and_the_boot_after_it(host: PveHost, api: Client) -> None:
    host.start(101)
    upid, boot = host.backup_begin(101), host.boot_id
    host.reboot_host()
    assert api.task(upid)["exitstatus"] == "unexpected status" and host.guest(101)["status"] == "stopped"
    assert (host.root / "proc/sys/kernel/random/boot_id").read_text().strip() == host.boot_id != boot
    assert host.guest(101)["lock"] == "backup" and not (host.root / "run/vzdump.lock").exists()
    host.boot_phase("up")
    assert (host.guest(101)["status"], host.guest(101)["lock"]) == ("running", None) and "[vzdump]" in conf(host, 101)


def test_a_guest_that_moves_leaves_the_lists_but_not_the_pool(host: PveHost, api: Client) -> None:
    host.migrate(101, "away")
    assert api.get("/nodes/pve1/lxc") == [] and (host.root / "etc/pve/nodes/pve2/lxc/101.conf").exists()
    assert not (host.root / "etc/pve/local/lxc/101.conf").exists()
    assert {row["vmid"]: row["node"] for row in api.get("/pools", poolid="guestward")[0]["members"]}[101] == "pve2"
    assert line(api("GET", "/nodes/pve2/lxc")) == (595, "No route to host")
    host.migrate(101, "here")
    assert api.row("/nodes/pve1/lxc", 101)["vmid"] == 101


def test_a_new_guest_has_a_new_identity(host: PveHost, api: Client) -> None:
    old = host.guest(101)["config"]["net0"]
    host.destroy(101)
    assert 101 not in {row["vmid"] for row in api.get("/pools", poolid="guestward")[0]["members"]}
    host.create(101, "lxc", by=ME, how="restore")
    assert host.guest(101)["config"]["net0"] != old
    assert api.get("/nodes/pve1/tasks", typefilter="vzrestore")[0]["status"] == "OK"


def test_control_groups_say_frozen(host: PveHost) -> None:
    events = host.root / "sys/fs/cgroup/lxc/101/cgroup.events"
    assert not events.exists()
    host.start(101)
    host.freeze(101)
    assert events.read_text() == "populated 1\nfrozen 1\n"
    host.die(101)
    assert not events.exists()


def test_token_file(host: PveHost) -> None:
    assert host.token_file.read_text() == host.token_secret + "\n"
    assert stat.S_IMODE(host.token_file.stat().st_mode) == 0o640


# -------------------------------------------------------------------- faults


def test_a_status_fault_lasts_as_often_as_asked(host: PveHost, api: Client) -> None:
    text = "failed to read from command socket: Connection reset by peer"
    host.fault("GET /nodes/pve1/lxc", 500, message=text, times=1)
    assert line(api("GET", "/nodes/pve1/lxc")) == (500, text)
    assert api.get("/nodes/pve1/lxc")
    host.fault("/nodes/pve1/lxc", 596, message="Connection timed out")
    response = api("POST", "/nodes/pve1/lxc/101/status/start")
    assert (line(response), response.content, host.effects()) == ((596, "Connection timed out"), b"", [])
    host.clear_faults()
    assert api.get("/nodes/pve1/lxc")


@pytest.mark.parametrize(("kind", "effects"), [("reset", []), ("reset_after", [("start", 101)]), ("truncated", [("start", 101)])])
def test_a_cut_connection_before_and_after_the_effect(host: PveHost, api: Client, kind: str, effects: list[Any]) -> None:
    host.fault("POST /nodes/pve1/lxc", kind=kind)
    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        api("POST", "/nodes/pve1/lxc/101/status/start")
    assert host.effects() == effects


@pytest.mark.parametrize(("kind", "status", "body"), [("html", 502, b"<html>"), ("empty", 200, b""), ("null", 200, b'{"data": null}')])
def test_answers_that_are_none(host: PveHost, api: Client, kind: str, status: int, body: bytes) -> None:
    host.fault("GET /nodes/pve1/lxc", kind=kind)
    response = api("GET", "/nodes/pve1/lxc")
    assert response.status_code == status and response.content.startswith(body)


def test_a_call_can_hang_or_be_slow(host: PveHost, api: Client) -> None:
    host.fault("GET /version", kind="hang")
    with pytest.raises(requests.ReadTimeout):
        api("GET", "/version", wait=0.2)
    host.clear_faults()
    host.fault("GET /version", kind="slow", delay=0.2)
    began = time.monotonic()
    assert api("GET", "/version").ok and time.monotonic() - began >= 0.2


def test_a_restart_of_pvedaemon_refuses_protected_calls_and_ends_our_tasks(host: PveHost, api: Client) -> None:
    host.plan(101, "hang")
    upid = api.upid("POST", "/nodes/pve1/lxc/101/status/start")
    host.pvedaemon_restart(seconds=0.3)
    response = api("GET", "/nodes/pve1/lxc")
    assert (line(response), response.content) == ((595, "Connection refused"), b"")
    assert api("GET", "/cluster/resources").ok
    wait_until(lambda: api("GET", "/nodes/pve1/lxc").ok, 2)
    assert api.task(upid)["exitstatus"] == "received interrupt"


def test_pveproxy_can_be_down(host: PveHost, api: Client) -> None:
    host.pveproxy(False)
    with pytest.raises(requests.ConnectionError):
        api("GET", "/version")
    host.pveproxy(True)
    assert api("GET", "/version").ok


def test_requests_are_remembered_without_headers(host: PveHost, api: Client) -> None:
    api.get("/nodes/pve1/tasks", source="active")
    assert host.requests_seen()[-1] == ("GET", "/nodes/pve1/tasks?source=active")
    assert host.token_secret not in repr(host.requests_seen())


def test_the_guest_agent_answers_for_a_running_vm(host: PveHost, api: Client) -> None:
    host.add_guest(201, "qemu", agent=True)
    assert line(api("POST", "/nodes/pve1/qemu/201/agent/ping"))[0] == 403
    host.grant("VM.GuestAgent.Audit", "/pool/guestward")
    assert api("POST", "/nodes/pve1/qemu/201/agent/ping").json() == {"data": {"result": {}}}
    assert line(api("POST", "/nodes/pve1/qemu/200/agent/ping")) == (500, "No QEMU guest agent configured")
