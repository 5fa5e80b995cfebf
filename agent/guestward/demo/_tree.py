"""The host tree: the files below the root which are the local witnesses of a stand-in PVE host."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ._state import boottime, render_config

if TYPE_CHECKING:
    from ._world import World

# What systemd says about pve-guests.service, and about itself, in each phase (facts H; timelines 11d, 11e).
PHASES = {
    "booting": ("loaded", "activating", "start", "enabled", "starting"),
    "up": ("loaded", "active", "exited", "enabled", "running"),
    "stopping": ("loaded", "deactivating", "stop", "enabled", "stopping"),
    "failed": ("loaded", "failed", "failed", "enabled", "degraded"),
    "disabled": ("loaded", "inactive", "dead", "disabled", "running"),
    "masked": ("masked", "inactive", "dead", "masked", "running"),
}

LISTED = 25  # tasks
SYSTEMCTL = """\
#!/bin/sh
# Stand-in: answers `show` (and is-system-running) from the state files that the stand-in PVE host writes.
state='@STATE@'
unit='' wanted='' value='' verb=''
while [ $# -gt 0 ]; do
    case $1 in
        -p|-P|--property) [ "$1" = -P ] && value=1; wanted="$wanted,$2"; shift ;;
        --property=*) wanted="$wanted,${1#--property=}" ;;
        -p*) wanted="$wanted,${1#-p}" ;;
        --value) value=1 ;;
        -*) ;;
        *) if [ -z "$verb" ]; then verb=$1; else unit=$1; fi ;;
    esac
    shift
done
file=$state/manager
if [ "$verb" = is-system-running ]; then
    while IFS='=' read -r key text; do [ "$key" = SystemState ] && echo "$text"; done < "$file"
    exit 0
fi
[ "$verb" = show ] || { echo "Unknown command verb $verb." >&2; exit 1; }
if [ -n "$unit" ]; then
    case $unit in *.*) ;; *) unit=$unit.service ;; esac
    file=$state/$unit
    [ -e "$file" ] || file=$state/not-found
fi
while IFS= read -r line; do
    case ",$wanted," in ,,|*",${line%%=*},"*) ;; *) continue ;; esac
    if [ -n "$value" ]; then echo "${line#*=}"; else echo "$line"; fi
done < "$file"
"""


class HostTree:
    """Writes what changed since the last time, and removes what is gone."""

    def __init__(self, world: World) -> None:
        """Make the fixed part of the tree."""
        self._world = world
        self._root = world.root
        self._written: dict[str, str] = {}
        self._quorate = True
        self._pve = self._root / "etc/pve"
        self._state = self._root / "usr/lib/pvehost"
        for path in ("etc/guestward", "etc/pve", "proc", "run", "usr/bin", "var/log/pve/tasks", "var/lib/vz/dump", "tmp"):
            (self._root / path).mkdir(parents=True, exist_ok=True)
        self._link("var/run", "../run")
        for name, target in (
            ("local", f"nodes/{world.node}"),
            ("lxc", f"nodes/{world.node}/lxc"),
            ("qemu-server", f"nodes/{world.node}/qemu-server"),
        ):
            self._link(f"etc/pve/{name}", target)
        systemctl = self._root / "usr/bin/systemctl"
        systemctl.write_text(SYSTEMCTL.replace("@STATE@", str(self._state)))
        systemctl.chmod(0o755)

    def _link(self, path: str, target: str) -> None:
        link = self._root / path
        if not link.is_symlink():
            link.symlink_to(target)

    def sync(self) -> None:
        """Bring the files in step with the world."""
        self._mount()
        wanted = self._wanted()
        gone = self._written.keys() - wanted.keys()
        changed = [path for path, text in wanted.items() if self._written.get(path) != text]
        if gone or changed:
            self._modes(True)
        for path in gone:
            self._remove(path)
        for path in changed:
            self._write(path, wanted[path])
        self._written = wanted
        self._modes(self._world.quorate)

    # ------------------------------------------------------------ files

    def _place(self, path: str) -> Path:
        return self._pve / path.removeprefix("etc/pve/") if path.startswith("etc/pve/") else self._root / path

    def _write(self, path: str, text: str) -> None:
        place = self._place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._root / "tmp/fresh"
        fresh.write_text(text)
        fresh.chmod(0o640 if path.startswith("etc/") else 0o644)
        fresh.replace(place)  # a reader sees the old or the new file, never half of one

    def _remove(self, path: str) -> None:
        place = self._place(path)
        place.unlink(missing_ok=True)
        if path.startswith(("proc/", "sys/")):  # a process or control group is a directory that goes with it
            shutil.rmtree(place.parent, ignore_errors=True)

    def _modes(self, quorate: bool) -> None:
        """Without quorum pmxcfs takes away every write bit (facts A5); that bit is PVE's own test."""
        if quorate == self._quorate:
            return
        self._quorate = quorate
        for directory, _, files in os.walk(self._pve):
            os.chmod(directory, 0o755 if quorate else 0o555)
            for name in files:
                path = Path(directory, name)
                if not path.is_symlink():
                    path.chmod(0o640 if quorate else 0o440)

    def _mount(self) -> None:
        """Without pmxcfs /etc/pve is an empty directory (facts A5); the files wait elsewhere."""
        mounted, aside = self._root / "etc/pve", self._root / "etc/.pve-unmounted"
        if not self._world.pmxcfs_up and self._pve == mounted:
            self._modes(True)
            mounted.rename(aside)
            mounted.mkdir()
            self._pve = aside
        elif self._world.pmxcfs_up and self._pve == aside:
            mounted.rmdir()
            aside.rename(mounted)
            self._pve = mounted

    # ---------------------------------------------------------- content

    def _wanted(self) -> dict[str, str]:
        return {**self._pve_files(), **self._proc_files(), **self._cgroup_files(), **self._systemd_files(), **self._task_files()}

    def _pve_files(self) -> dict[str, str]:
        world = self._world
        files = {f"etc/pve/{guest.conf_path}": render_config(guest) for guest in world.guests.values()}
        files["etc/pve/user.cfg"] = self._users()
        home = f"etc/pve/nodes/{world.node}"
        mode = "maintenance" if world.maintenance else "active"
        files[f"{home}/lrm_status"] = f'{{"mode":"{mode}","results":{{}},"state":"wait_for_agent_lock","timestamp":{world.booted}}}'
        files[f"{home}/pve-ssl.pem"] = world.authority.leaf_pem
        files["etc/pve/pve-root-ca.pem"] = world.authority.ca_pem
        # The guests' directories exist even when no guest does.
        for directory in ("lxc", "qemu-server"):
            self._place(f"{home}/{directory}").mkdir(parents=True, exist_ok=True)
        return files

    def _users(self) -> str:
        """What the root helper reads: our ids, the pools, and the scratch band's entries (pve-access-control write_user_config)."""
        world = self._world
        ids = ["user:root@pam:1:0::::::", *(f"token:{id}:0:1::" if "!" in id else f"user:{id}:1:0::::::" for id in world.known)]
        pools = [f"pool:{name}::{','.join(map(str, sorted(members)))}::" for name, members in sorted(world.pools.items())]
        entries = [f"acl:1:{path}:{who}:GuestwardScratch:" for path, who in world.scratch_entries()]
        return "\n".join([*ids, "", *pools, "", world.scratch_role(), "", *entries]) + "\n"

    def _task_files(self) -> dict[str, str]:
        """Running tasks, and the last that have ended (pve-common INotify.pm:write_active_workers)."""
        newest = list(reversed(self._world.tasks.values()))[:LISTED]
        lines = [f"{task.upid} 0" if task.running else f"{task.upid} 1 {task.endtime or 0:08X} {task.exitstatus}" for task in newest]
        return {"var/log/pve/tasks/active": "".join(f"{line}\n" for line in lines)}

    def _proc_files(self) -> dict[str, str]:
        world = self._world
        files = {"proc/sys/kernel/random/boot_id": world.boot_id + "\n", "proc/locks": self._locks()}
        files["proc/uptime"] = f"{boottime() // 60 * 60:.2f} 0.00\n"  # by the minute: not a file to write with every change
        for pid, (command, pstart) in world.processes().items():
            files[f"proc/{pid}/cmdline"] = "".join(arg + "\0" for arg in command)
            files[f"proc/{pid}/stat"] = _stat(pid, command[0], pstart)
        if world.vzdump_pid is not None:
            files["run/vzdump.pid"] = world.vzdump_pid
        return files

    def _locks(self) -> str:
        """/proc/locks: another program's lock, then the vzdump flock with its waiters (timelines 7)."""
        lines = ["1: POSIX  ADVISORY  WRITE 611 00:18:921 0 EOF"]
        where = self._lock_inode()
        for number, job in enumerate(self._world.backups.jobs if where else ()):
            arrow = "" if number == 0 and job.holding else "-> " if number == 1 else " -> "
            lines.append(f"2: {arrow}FLOCK  ADVISORY  WRITE {job.task.pid} {where} 0 EOF")
        return "\n".join(lines) + "\n"

    def _lock_inode(self) -> str | None:
        try:
            found = (self._root / "run/vzdump.lock").stat()
        except FileNotFoundError:
            return None
        return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"

    def _cgroup_files(self) -> dict[str, str]:
        files = {}
        for guest in self._world.guests.values():
            if guest.running and guest.node == self._world.node:
                group = f"lxc/{guest.vmid}" if guest.kind == "lxc" else f"qemu.slice/{guest.vmid}.scope"
                files[f"sys/fs/cgroup/{group}/cgroup.events"] = f"populated 1\nfrozen {int(guest.frozen)}\n"
        return files

    def _systemd_files(self) -> dict[str, str]:
        load, active, sub, enabled, system = PHASES[self._world.phase]
        result = "exit-code" if active == "failed" else "success"
        unit = f"Type=oneshot\nResult={result}\nId=pve-guests.service\nLoadState={load}\nActiveState={active}\nSubState={sub}\n"
        return {
            "usr/lib/pvehost/pve-guests.service": f"{unit}UnitFileState={enabled}\n",
            "usr/lib/pvehost/manager": f"Version=257\nSystemState={system}\n",
            "usr/lib/pvehost/not-found": "LoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\n",
        }


def _stat(pid: int, command: str, pstart: int) -> str:
    """/proc/PID/stat: 52 fields; the second can hold spaces, the 22nd is the start in jiffies."""
    name = command.rsplit("/", 1)[-1] if command.startswith("/") else command
    before = f"{pid} ({name[:15]}) S 1 {pid} {pid} 0 -1 4194560 900 0 0 0 3 1 0 0 20 0 1 0 {pstart} 98304000 15000 18446744073709551615"
    return before + " 1 1 0 0 0 0 0 4096 81922 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
