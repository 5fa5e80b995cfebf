"""systemctl: what it says, and all that it may say instead. Its stand-ins are small shell scripts below a test root."""

from __future__ import annotations

from pathlib import Path

import pytest

from guestward.adapters import units
from guestward.adapters.units import find_systemctl, system_state, unit_state
from guestward.model.observation import UnitState
from guestward.model.reading import Reading, Unreadable

UNIT = "pve-guests.service"
NOT_BOOTED = "System has not been booted with systemd as init system (PID 1). Can't operate."


def stand_in(root: Path, script: str, place: str = "usr/bin") -> Path:
    path = root / place / "systemctl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def answer(root: Path, *lines: str) -> None:
    stand_in(root, "cat <<'END'\n" + "\n".join(lines) + "\nEND")


def reason(reading: Reading[object]) -> str:
    assert isinstance(reading, Unreadable)
    return reading.reason


@pytest.mark.parametrize(
    ("values", "state"),
    [
        (("loaded", "active", "exited", "enabled"), UnitState("loaded", "active", "exited", "enabled")),
        (("loaded", "activating", "start", "enabled"), UnitState("loaded", "activating", "start", "enabled")),
        (("masked", "inactive", "dead", "masked"), UnitState("masked", "inactive", "dead", "masked")),
        (("not-found", "inactive", "dead", ""), UnitState("not-found", "inactive", "dead", "")),
    ],
)
def test_the_state_of_a_unit_is_read_in_whatever_order_it_comes(
    tmp_path: Path, values: tuple[str, str, str, str], state: UnitState
) -> None:
    load, active, sub, file = values
    answer(tmp_path, f"ActiveState={active}", f"UnitFileState={file}", f"LoadState={load}", f"SubState={sub}")
    assert unit_state(tmp_path, UNIT) == state


def test_the_manager_says_how_the_system_is(tmp_path: Path) -> None:
    answer(tmp_path, "SystemState=degraded")
    assert system_state(tmp_path) == "degraded"


def test_the_calls_ask_for_what_is_needed_and_nothing_else(tmp_path: Path) -> None:
    stand_in(
        tmp_path, f'echo "$@" >> {tmp_path}/calls; printf "%s\\n" SystemState=running LoadState=a ActiveState=b SubState=c UnitFileState=d'
    )
    unit_state(tmp_path, UNIT)
    system_state(tmp_path)
    assert (tmp_path / "calls").read_text().splitlines() == [
        "show --property=LoadState,ActiveState,SubState,UnitFileState pve-guests.service",
        "show --property=SystemState",
    ]


def test_a_host_without_systemd_is_unreadable_with_its_text(tmp_path: Path) -> None:
    stand_in(tmp_path, f'echo "{NOT_BOOTED}" >&2; echo "Failed to connect to bus: Host is down" >&2; exit 1')
    assert reason(unit_state(tmp_path, UNIT)) == (
        f"systemctl show {UNIT}: exit code 1: {NOT_BOOTED} Failed to connect to bus: Host is down"
    )
    assert reason(system_state(tmp_path)).startswith(f"systemctl show: exit code 1: {NOT_BOOTED}")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 0", "no LoadState, ActiveState, SubState, UnitFileState in its answer: no output"),
        ("echo 'Running in chroot, ignoring command' >&2", "UnitFileState in its answer: Running in chroot, ignoring command"),
        ("printf 'LoadState=loaded\\nSubState=dead\\n'", "no ActiveState, UnitFileState in its answer"),
        ("printf 'LoadState=\\nActiveState=\\nSubState=\\nUnitFileState=\\n'", "empty LoadState, ActiveState or SubState"),
        ("head -c 100000 /dev/zero", "exit code 0"),
        ("kill -9 $$", "exit code -9: no output"),
    ],
)
def test_an_answer_that_is_none_is_unreadable(tmp_path: Path, script: str, why: str) -> None:
    stand_in(tmp_path, script)
    assert why in reason(unit_state(tmp_path, UNIT))


def test_an_empty_system_state_is_unreadable(tmp_path: Path) -> None:
    answer(tmp_path, "SystemState=")
    assert reason(system_state(tmp_path)) == "systemctl show: empty SystemState"


def test_a_systemctl_that_hangs_is_unreadable_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "TIMEOUT", 0.2)
    stand_in(tmp_path, "exec sleep 300")
    assert reason(system_state(tmp_path)) == f"{tmp_path}/usr/bin/systemctl: no answer within 0.2s, killed"


def test_a_systemctl_that_may_not_run_is_unreadable(tmp_path: Path) -> None:
    stand_in(tmp_path, "").chmod(0o644)
    assert reason(system_state(tmp_path)) == f"{tmp_path}/usr/bin/systemctl: Permission denied"


def test_where_systemctl_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    monkeypatch.setenv("PATH", str(elsewhere))
    assert find_systemctl(root) is None
    assert reason(system_state(root)) == "systemctl: not found"
    on_path = stand_in(elsewhere, "", place="")
    assert find_systemctl(root) == str(on_path)
    in_bin = stand_in(root, "", place="bin")
    assert find_systemctl(root) == str(in_bin)
    in_usr = stand_in(root, "")
    assert find_systemctl(root) == str(in_usr)


def test_a_real_host_takes_no_systemctl_from_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "", place="")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("guestward.adapters.units.os.path.isfile", lambda path: False)
    assert find_systemctl(Path("/")) is None
