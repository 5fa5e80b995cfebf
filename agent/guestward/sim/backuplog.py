"""What vzdump writes in its task's log, line by line (PVE/VZDump.pm:exec_backup_task; pve-container VZDump/LXC.pm; timelines 3-7)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

DUMPS = "/var/lib/vz/dump"
FLOCK = "/var/run/vzdump.lock"
SIGNAL = "interrupted by signal"
COMMAND = "command 'tar' failed"  # of a real node the whole pipe, with all its options
BROKEN = {"lxc": f"{COMMAND}: exit code 2", "qemu": "job failed with err -5 - Input/output error"}


class Saved(NamedTuple):
    """A guest as it is when its turn comes. kind: `lxc` or `qemu`. snapshot: it has one of an earlier vzdump."""

    vmid: int
    kind: str
    name: str
    running: bool
    snapshot: bool


@dataclass(slots=True)
class BackupLog:
    """The log of one job. guest: the one that it is at; began, wall: since when, on a clock of seconds and since the epoch.

    down_at, up_at: when it stopped that guest, and when that ran again. writing: it has begun the archive.
    """

    lines: list[str]
    guest: Saved = Saved(0, "", "", running=False, snapshot=False)
    began: float = 0.0
    wall: float = 0.0
    down_at: float | None = None
    up_at: float | None = None
    writing: bool = False

    def say(self, *lines: str) -> None:
        """Lines as vzdump's own, in the order in which they come."""
        self.lines.extend([f"INFO: {line}" for line in lines])

    def waits(self) -> None:
        """Another job holds the flock."""
        self.say("trying to get global lock - waiting...")

    def waits_in_vain(self) -> None:
        """It is interrupted before it has the flock."""
        self.lines.append(f"ERROR: can't acquire lock '{FLOCK}' - {SIGNAL}")

    def begins(self, command: str) -> None:
        """It has the flock."""
        if self.lines:
            self.say("got global lock")
        self.say(f"starting new backup job: {command}")

    def comes_to(self, guest: Saved, now: float, wall: float) -> None:
        """The next guest's turn; the lock is what it tries next."""
        self.guest = guest
        self.began, self.wall, self.down_at, self.up_at, self.writing = now, wall, None, None, False
        self.say(
            f"Starting Backup of VM {guest.vmid} ({guest.kind})",
            f"Backup started at {moment(wall)}",
            f"status = {'running' if guest.running else 'stopped'}",
        )

    def failed(self, vmid: int, why: str, wall: float) -> None:
        """That guest has not been saved."""
        self.lines.append(f"ERROR: Backup of VM {vmid} failed - {why}")
        self.say(f"Failed at {moment(wall)}")

    def locked(self, mode: str, now: float) -> None:
        """It has the lock. A guest that does not run is saved in stop mode, whatever the job's; name and mode come the other way round."""
        guest = self.guest
        name = [f"{'CT' if guest.kind == 'lxc' else 'VM'} Name: {guest.name}"] if guest.name else []
        if mode == "stop" or not guest.running:
            self.say("backup mode: stop", *name)
        else:
            found = ["found old vzdump snapshot (force removal)"] if guest.kind == "lxc" and guest.snapshot else []
            self.say(*name, *found, f"backup mode: {mode}")
        if mode == "stop" and guest.running:
            self.down_at = now
            self.say("stopping virtual guest")

    def snapshots(self) -> None:
        """Before it asks for the snapshot."""
        self.say("create storage snapshot 'vzdump'")

    def archives(self, *, starts: bool = False) -> None:
        """It begins to write. starts: a VM that does not run is started, paused, for that."""
        guest, self.writing = self.guest, True
        stamp = datetime.fromtimestamp(self.wall, UTC).strftime("%Y_%m_%d-%H_%M_%S")
        self.say(f"creating vzdump archive '{DUMPS}/vzdump-{guest.kind}-{guest.vmid}-{stamp}.{'tar' if guest.kind == 'lxc' else 'vma'}'")
        if starts:
            self.say("starting kvm to execute backup task")

    def warns(self, text: str) -> None:
        """A plain warning of Perl, which neither the job nor anybody else counts."""
        self.lines.append(text)

    def stops_again(self) -> None:
        """A VM that was started for it."""
        self.say("stopping kvm after backup task")

    def keeps_running(self, state: str) -> None:
        """A VM that was started for it, and that somebody has resumed meanwhile."""
        self.say(f"kvm status changed after backup ('{state}') - keep VM running")

    def cannot_clean_up_yet(self) -> None:
        """Replication has the guest."""
        self.say("waiting for active replication or other operation..")

    def cleans_up(self) -> None:
        """It is about to delete its snapshot."""
        self.say("cleanup temporary 'vzdump' snapshot")

    def not_removed(self, why: str) -> None:
        """Its delete failed."""
        self.warns(f"snapshot 'vzdump' was not (fully) removed - {why}")

    def starts_again(self) -> None:
        """A guest that it stopped."""
        self.say("restarting vm")

    def online_again(self) -> None:
        """A guest that it stopped, whoever started it."""
        if self.down_at is not None and self.up_at is not None:
            seconds = round(self.up_at - self.down_at)
            self.say(f"guest is online again after {seconds if seconds >= 1 else '<1'} seconds")

    def finished(self, now: float, wall: float) -> None:
        """That guest has been saved."""
        minutes, seconds = divmod(round(now - self.began), 60)
        took = f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
        self.say(f"Finished Backup of VM {self.guest.vmid} ({took})", f"Backup finished at {moment(wall)}")

    @property
    def interruption(self) -> str:
        """How a signal ends what it is at: a container's archive is written by a command, all else by itself (timelines 6a)."""
        return f"{COMMAND}: {SIGNAL}" if self.writing and self.guest.kind == "lxc" else SIGNAL

    def breaks_off(self) -> None:
        """A signal ended the job itself."""
        self.lines.append(f"ERROR: Backup job failed - {SIGNAL}")

    def ends(self, *, well: bool) -> None:
        """No guest is left."""
        self.say(f"Backup job finished {'successfully' if well else 'with errors'}")


def moment(wall: float) -> str:
    """A moment as vzdump writes it."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S")
