"""PVE's tasks: they run, end, are shown to those who may see them, and are rotated away (pve-facts C1, D5, D6)."""

from __future__ import annotations

from dataclasses import dataclass, field

from guestward.model.task import Error, Ok, Task, Upid, Warnings, exit_status, task_status

KEPT = 2000  # index and index.1 hold about that many (pve-facts D6)


@dataclass(slots=True)
class SimTask:
    """One task. said: its exit status, None while it runs. log: what its worker wrote, without the last line."""

    upid: Upid
    said: str | None = None
    ended_wall: int | None = None
    row: Task | None = None
    log: list[str] = field(default_factory=list)

    def as_row(self) -> Task:
        """The row of a task list; the same object as long as nothing changes."""
        if self.row is None:
            self.row = Task(self.upid, task_status("running" if self.said is None else "stopped", self.said), self.ended_wall)
        return self.row

    def lines(self) -> tuple[str, ...]:
        """Its whole log. A worker that was killed wrote no last line."""
        match exit_status(self.said or ""):
            case Ok():
                return (*self.log, "TASK OK")
            case Warnings(count):
                return (*self.log, f"TASK WARNINGS: {count}")
            case Error():
                return (*self.log, f"TASK ERROR: {self.said}")
        return tuple(self.log)

    def end(self, said: str, wall: int) -> None:
        """The worker is gone; its log's last line says so."""
        self.said, self.ended_wall, self.row = said, wall, None
