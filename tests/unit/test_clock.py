"""The host's clocks and name."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from guestward.adapters.clock import HostClock, node_name
from guestward.ports import Clock

REAL = Path("/proc/sys/kernel/random/boot_id")


def tree(root: Path, content: bytes) -> Path:
    file = root / "proc/sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return root


def test_it_is_a_clock() -> None:
    clock: Clock = HostClock(Path("/"))
    assert abs(clock.wall() - time.time()) < 5
    assert abs(clock.boottime() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5
    assert clock.boottime() >= time.monotonic() - 5


def test_the_boot_id_is_the_trees_own(tmp_path: Path) -> None:
    assert HostClock(tree(tmp_path, b"c0ffee\n")).boot_id() == "c0ffee"


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_the_boot_id_falls_back_to_the_kernels(tmp_path: Path, content: bytes | None) -> None:
    root = tmp_path if content is None else tree(tmp_path, content)
    assert HostClock(root).boot_id() == REAL.read_text().strip()


def test_the_boot_id_is_unknown_when_nothing_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, encoding: str) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert HostClock(tmp_path).boot_id() == "unknown"


def test_a_pause_ends_when_the_agent_is_asked_to() -> None:
    stop = threading.Event()
    clock = HostClock(Path("/"), stop)
    timer = threading.Timer(0.05, stop.set)
    timer.start()
    began = time.monotonic()
    clock.pause(60)
    assert time.monotonic() - began < 5
    timer.join()
    clock.pause(60)  # and none begins after it
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("seconds", [0.02, 0, -1])
def test_a_pause_lasts_as_long_as_asked(seconds: float) -> None:
    began = time.monotonic()
    HostClock(Path("/")).pause(seconds)
    assert max(0, seconds) <= time.monotonic() - began < 5


@pytest.mark.parametrize(("uname", "node"), [("pve1", "pve1"), ("pve1.example.org", "pve1"), ("", "")])
def test_the_node_is_named_without_its_domain(monkeypatch: pytest.MonkeyPatch, uname: str, node: str) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", uname, "6.8", "#1", "x86_64")))
    assert node_name() == node
