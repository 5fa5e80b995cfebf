"""What the log of a vzdump tells of one guest (PVE/VZDump.pm:exec_backup_task; the lines as recorded: timelines 3-7)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

BEGIN = re.compile(r"INFO: Starting Backup of VM (\d+) \((?:lxc|qemu)\)")
END = re.compile(r"(?:INFO: Finished|ERROR:) Backup of VM \d+ ")
BEYOND_THE_LOCK = ("INFO: CT Name: ", "INFO: VM Name: ", "INFO: backup mode: ")
NOT_REMOVED = "snapshot 'vzdump' was not (fully) removed"


class VisitEnd(StrEnum):
    """How its work on a guest ended. NONE: not at all, it was killed in the middle of it."""

    NONE = "none"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Visit:
    """The last time that a vzdump was at a guest. locked: it has got beyond the guest's lock. not_removed: it could not delete its
    snapshot.
    """

    locked: bool = False
    end: VisitEnd = VisitEnd.NONE
    not_removed: bool = False


def visit(log: Iterable[str], vmid: int) -> Visit | None:
    """Read a whole log; None when it never was at that guest.

    It sets the lock right after `status = ...`; where that fails the next thing that it says of the guest is why, as in `CT is locked
    (backup)`. The guest's name and the mode come from a guest that it has locked.
    """
    found: Visit | None = None
    there = False
    for line in log:
        if begun := BEGIN.fullmatch(line):
            there = int(begun[1]) == vmid
            found = Visit() if there else found
        elif not there or found is None:
            continue
        elif END.match(line):
            end = VisitEnd.FAILED if line.startswith("ERROR") else VisitEnd.FINISHED
            found, there = replace(found, end=end), False
        elif line.startswith(BEYOND_THE_LOCK):
            found = replace(found, locked=True)
        elif line.startswith(NOT_REMOVED):
            found = replace(found, not_removed=True)
    return found
