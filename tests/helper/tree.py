"""A small PVE host as files, with stand-ins for PVE's programs that behave as `recorded` ones: exit codes, texts, what they change."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

NODE = "pve1"
CONFIG = '[pve]\ntoken_id = "guestward-pve1@pve!agent"\n\n[scope]\npools = ["guestward", "more"]\nexclude = [109]\n'
USERS = "user:root@pam:1:0::::::\npool:guestward:our guests:101,102,109,200,990001:local:\npool:more::103::\npool:other::104,101::\n"
USER, TOKEN = "guestward-pve1@pve", "guestward-pve1@pve!agent"
ROLE = "GuestwardScratch"
UPTIME = "100000.12 5.00\n"
STATES = {
    "SystemState": "running",
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "exited",
    "UnitFileState": "enabled",
}
LXC = "arch: amd64\nhostname: ct101\nlock: backup\nmemory: 64\nonboot: 1\nrootfs: local:101/vm-101-disk-0.raw,size=204M\n"
VM = "#a VM\nboot: order=scsi0\nlock: backup\nmemory: 64\nname: vm200\n\n[vzdump]\nmemory: 64\nsnaptime: 1796081478\n"
SNAPSHOT = "arch: amd64\nrootfs: local:101/vm-101-disk-0.raw,size=204M\nsnaptime: 1796081478\n"

# What is recorded of `pct unlock`, `pct delsnapshot`, `qm unlock` and `pveum acl`; pvesh by API2/Qemu.pm.
# `before-NAME` and `after-NAME` are races.
STAND_IN = r"""#!/bin/sh
root=@ROOT@
me=${0##*/}
conf=$root/etc/pve/nodes/pve1
echo "$me $*" >>"$root/calls"
say() { echo "$1" >&2; exit "$2"; }
missing() { say "Configuration file 'nodes/pve1/$1' does not exist" 2; }
drop_lock() { sed -i '0,/^lock:/{/^lock:/d}' "$1"; }
asked=$*
second_look() { [ "${asked#*SystemState}" != "$asked" ] && [ "$(grep -c SystemState "$root/calls")" -eq 2 ]; }
if [ -f "$root/before-$me" ]; then . "$root/before-$me"; fi
case "$me $1" in
"systemctl show") cat "$root/systemctl" ;;
"pct unlock")
    f=lxc/$2.conf; [ -f "$conf/$f" ] || missing "$f"
    grep -q '^lock:' "$conf/$f" || say 'no lock found trying to remove any lock' 255
    drop_lock "$conf/$f" ;;
"pct delsnapshot")
    f=lxc/$2.conf; [ -f "$conf/$f" ] || missing "$f"
    if grep -q '^lock:' "$conf/$f"; then say "CT is locked ($(sed -n 's/^lock: //p;/^lock: /q' "$conf/$f"))" 255; fi
    grep -q "^\[$3\]" "$conf/$f" || say "snapshot '$3' does not exist" 255
    sed -i "/^\[$3\]/,/^\$/d; /^parent: $3\$/d" "$conf/$f" ;;
"qm unlock")
    f=qemu-server/$2.conf; [ -f "$conf/$f" ] || missing "$f"
    drop_lock "$conf/$f" ;;
"pvesh set")
    id=${2#/nodes/localhost/qemu/}; id=${id%/config}; f=qemu-server/$id.conf
    [ -f "$conf/$f" ] || missing "$f"
    [ "$3 $4 $5 $6 $7" = "--delete lock --skiplock 1 --digest" ] || say '400 Parameter verification failed.' 255
    [ "$(sha1sum <"$conf/$f")" = "$8  -" ] || say 'checksum mismatch (file change by other user?)' 255
    drop_lock "$conf/$f"
    echo "update VM $id: -delete lock -skiplock 1" ;;
"pveum acl")
    f=$root/etc/pve/user.cfg; what=$2; path=$3; whos=; shift 3
    while [ $# -gt 0 ]; do
        case $1 in
        --users|--tokens) whos=$whos${whos:+,}$2 ;;
        --roles) role=$2 ;;
        --propagate) flag=$2 ;;
        *) say "Unknown option: $1" 255 ;;
        esac
        shift 2
    done
    grep -q "^role:$role:" "$f" || say "ACL update failed: role '$role' does not exist" 255
    for who in $(echo "$whos" | tr , ' '); do
        grep -q -e "^user:$who:" -e "^token:$who:" "$f" || say "ACL update failed: user '$who' does not exist" 255
    done
    [ "$what" != modify ] || echo "acl:$flag:$path:$whos:$role:" >>"$f" ;;
*) say "400 not enough arguments" 255 ;;
esac
if [ -f "$root/after-$me" ]; then . "$root/after-$me"; fi
"""


class Tree:
    """Files below `root`; guests 101 (lxc) and 200 (qemu) have a stale lock `backup`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("etc/guestward/guestward.toml", CONFIG)
        self.put("etc/pve/user.cfg", USERS)
        self.put("proc/uptime", UPTIME)
        self.put("var/log/pve/tasks/active", "")
        for folder in ("run/lock/pve-manager", "bin", f"etc/pve/nodes/{NODE}/lxc", f"etc/pve/nodes/{NODE}/qemu-server"):
            (root / folder).mkdir(parents=True)
        (root / "etc/pve/local").symlink_to(f"nodes/{NODE}")
        for name in ("pct", "qm", "pvesh", "pveum", "systemctl"):
            self.put(f"bin/{name}", STAND_IN.replace("@ROOT@", str(root))).chmod(0o755)
        self.systemd()
        self.lxc(101, LXC)
        self.vm(200, VM)

    def put(self, path: str, content: str | bytes = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def lxc(self, vmid: int, text: str) -> Path:
        return self.put(f"etc/pve/nodes/{NODE}/lxc/{vmid}.conf", text)

    def vm(self, vmid: int, text: str) -> Path:
        return self.put(f"etc/pve/nodes/{NODE}/qemu-server/{vmid}.conf", text)

    def users(self, *lines: str, without: str = "", who: str = f"{USER},{TOKEN}") -> Path:
        """A user.cfg in which the whole band is granted; lines: besides, without: lines with this text are left out."""
        own = [f"user:{USER}:1:0::::::", f"token:{TOKEN}:0:1::", *(line for line in lines if line.startswith(("user:", "token:")))]
        role = f"role:{ROLE}:VM.Allocate,VM.Audit,VM.Config.Disk,VM.Config.Options,VM.PowerMgmt:"
        entries = [f"acl:1:/vms/{vmid}:{who}:{ROLE}:" for vmid in range(990000, 990010)]
        rest = [line for line in lines if line.startswith("acl:")]
        every = [*USERS.splitlines(), *own, "", role, "", *entries, *rest]
        return self.put("etc/pve/user.cfg", "".join(f"{line}\n" for line in every if not without or without not in line))

    def snapshot(self, lock: str = "", state: str = "", name: str = "vzdump", vmid: int = 101) -> Path:
        """A container with a snapshot, and a lock if there is one."""
        main = LXC.replace("lock: backup\n", f"lock: {lock}\n" if lock else "") + "parent: vzdump\n"
        return self.lxc(vmid, f"{main}\n[{name}]\n{SNAPSHOT}{f'snapstate: {state}' if state else 'unprivileged: 1'}\n")

    def systemd(self, **states: str) -> None:
        self.put("systemctl", "".join(f"{name}={value}\n" for name, value in (STATES | states).items()))

    def before(self, program: str, shell: str) -> None:
        """Run this shell text in the stand-in before it does its work; `exit` leaves it out."""
        self.put(f"before-{program}", shell.replace("@CT@", str(self.config("lxc"))).replace("@VM@", str(self.config("qemu"))))

    def during(self, *, deletion: str = "", unlock: str = "") -> None:
        """The same in `pct delsnapshot` and `pct unlock`."""
        self.before("pct", f'case "$1" in\ndelsnapshot) :; {deletion} ;;\nunlock) :; {unlock} ;;\nesac')

    def after(self, program: str, shell: str) -> None:
        """The same when its work is done."""
        self.put(f"after-{program}", shell.replace("@CT@", str(self.config("lxc"))).replace("@VM@", str(self.config("qemu"))))

    def config(self, kind: str) -> Path:
        """The file of the container 101 or the VM 200."""
        return self.root / f"etc/pve/nodes/{NODE}" / ("lxc/101.conf" if kind == "lxc" else "qemu-server/200.conf")

    def lock(self, kind: str = "lxc") -> str | None:
        lines = self.config(kind).read_text().partition("\n[")[0].splitlines()
        return next((line.removeprefix("lock: ") for line in lines if line.startswith("lock: ")), None)

    def digest(self) -> str:
        return hashlib.sha1(self.config("qemu").read_bytes()).hexdigest()

    def process(self, pid: int, *argv: str, start: int = 5, state: str = "S", namespaces: str = "") -> None:
        self.put(f"proc/{pid}/cmdline", "".join(f"{argument}\0" for argument in argv))
        self.put(f"proc/{pid}/stat", f"{pid} (task UPID:pve1:0) {state} 1 {pid} {pid} 0 -1 0 1 0 0 0 2 1 0 0 20 0 1 0 {start} 9 2 1\n")
        self.put(f"proc/{pid}/status", f"Name:\tx\nNSpid:\t{namespaces or pid}\n")

    def real_proc(self) -> None:
        shutil.rmtree(self.root / "proc")
        (self.root / "proc").symlink_to("/proc")

    @property
    def calls(self) -> list[str]:
        """What was run of PVE's programs, systemctl left out."""
        file = self.root / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if not line.startswith("systemctl ")]

    @property
    def looks(self) -> int:
        """How often systemctl was asked."""
        file = self.root / "calls"
        return sum(line.startswith("systemctl ") for line in file.read_text().splitlines()) if file.exists() else 0


def upid(pid: int, type_: str, id_: str, start: int = 5, node: str = NODE) -> str:
    return f"UPID:{node}:{pid:08X}:{start:08X}:6B0E0471:{type_}:{id_}:root@pam:"


def unlock(vmid: int = 101, kind: str = "lxc", expect: str = "backup") -> bytes:
    return json.dumps({"verb": "unlock", "kind": kind, "vmid": vmid, "expect": expect}).encode() + b"\n"


def delete(vmid: int = 101) -> bytes:
    return json.dumps({"verb": "delete-snapshot", "vmid": vmid}).encode() + b"\n"


def release(vmid: int = 990001) -> bytes:
    return json.dumps({"verb": "release-scratch", "vmid": vmid}).encode() + b"\n"


REGRANT = b'{"verb": "regrant"}\n'
VM_UNLOCK = unlock(200, "qemu")
