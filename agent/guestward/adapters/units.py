"""What systemd says of units and of the system, asked through `systemctl show`.

Two calls, since one cannot ask for both: systemctl(1) shows the manager's properties only when no unit is named (252 to 257).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from guestward.adapters.process import run
from guestward.model.observation import UnitState
from guestward.model.reading import Reading, Unreadable
from guestward.model.task import bounded

TIMEOUT = 5.0
_UNIT = ("LoadState", "ActiveState", "SubState", "UnitFileState")


def unit_state(root: Path, unit: str) -> Reading[UnitState]:
    """The state of one unit. A unit that does not exist has one too: `LoadState=not-found`, with an empty UnitFileState."""
    values = _show(root, _UNIT, unit)
    if isinstance(values, Unreadable):
        return values
    state = UnitState(*(values[name] for name in _UNIT))
    if not (state.load and state.active and state.sub):
        return Unreadable(f"systemctl show {unit}: empty LoadState, ActiveState or SubState")
    return state


def system_state(root: Path) -> Reading[str]:
    """The manager's state: initializing, starting, running, degraded, maintenance, stopping (systemctl(1), is-system-running).

    `show` and not `is-system-running`, whose exit code is a failure for most of these.
    """
    values = _show(root, ("SystemState",))
    if isinstance(values, Unreadable):
        return values
    return values["SystemState"] or Unreadable("systemctl show: empty SystemState")


def find_systemctl(root: Path) -> str | None:
    """Where systemctl is: below root; a test tree without one falls back to PATH, a real host does not."""
    for place in ("usr/bin/systemctl", "bin/systemctl"):
        path = os.path.join(root.absolute(), place)
        if os.path.isfile(path):
            return path
    return shutil.which("systemctl") if root.absolute() != Path("/") else None


def _show(root: Path, names: Sequence[str], *units: str) -> Reading[dict[str, str]]:
    program = find_systemctl(root)
    if program is None:
        return Unreadable("systemctl: not found")
    done = run([program, "show", f"--property={','.join(names)}", *units], TIMEOUT)
    if isinstance(done, Unreadable):
        return done
    what = " ".join(("systemctl show", *units))
    if done.code != 0 or done.cut:
        return Unreadable(f"{what}: exit code {done.code}: {done.complaint}")
    values = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if missing := [name for name in names if name not in values]:
        return Unreadable(f"{what}: no {', '.join(missing)} in its answer: {done.complaint}")
    return {name: bounded(values[name]) for name in names}
