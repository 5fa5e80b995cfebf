"""Fixtures of the tests of host-install.sh."""

from __future__ import annotations

from pathlib import Path

import pytest

from .host import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Node pve1 with PVE 9."""
    return Host(tmp_path / "host")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Host:
    host = Host(tmp_path_factory.mktemp("template") / "host")
    host.ran("install", "--yes", "--band", "990000-990001", "--add-guests", "101")
    return host


@pytest.fixture
def installed(template: Host, tmp_path: Path) -> Host:
    """Node pve1 with Guestward on it, two VMIDs in the band, and a guest that is guarded."""
    return template.copy(tmp_path / "host")
