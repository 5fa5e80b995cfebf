"""What was recorded on real PVE nodes, and how it is replayed to the real API client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

from guestward.adapters import pve as adapter
from guestward.adapters.pve import ProxmoxPve
from guestward.config import PveSection
from guestward.model.scratch import ScratchBand

FOLDER = Path(__file__).parent / "recorded"
VERSIONS = ("8.4", "9.1", "9.2")
TOKEN = "guestward@pve!agent"
# Recorded are stops and destroys of whatever VMID; what may be sent at all is tested in tests/unit/test_scratch_requests.py.
EVERY_VMID = ScratchBand(100, 999_999_999)
# The role of the token in the recorded calls.
ROLE = (
    *("VM.Allocate", "VM.Audit", "VM.Backup", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.Memory", "VM.Config.Network"),
    *("VM.Config.Options", "VM.PowerMgmt", "VM.Snapshot"),
)


@dataclass(frozen=True)
class Recorded:
    """One call of a real node, its body byte for byte. state: what was the case, for people."""

    id: str
    state: str
    request: str
    status: str
    body: str

    @property
    def code(self) -> int:
        return int(self.status[:3])

    @property
    def words(self) -> str:
        return self.status[4:]

    @property
    def path(self) -> str:
        return unquote(self.request).partition("?")[0]


def load(name: str) -> dict[str, Recorded]:
    values: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    found = {value["id"]: Recorded(**value) for value in values}
    assert len(found) == len(values)
    return found


def permissions(version: str) -> list[dict[str, Any]]:
    value: list[dict[str, Any]] = json.loads((FOLDER / f"permissions-{version}.json").read_text("utf-8"))
    return value


class _Clock:
    def boottime(self) -> float:
        return 1000.0

    def wall(self) -> float:
        return 0.0

    def boot_id(self) -> str:
        return "boot"

    def pause(self, seconds: float) -> None:
        raise AssertionError("a client does not wait")


@contextmanager
def replayed(answer: Recorded) -> Iterator[tuple[ProxmoxPve, list[str]]]:
    """The real client, to which every request is answered as recorded; and the paths that it asks for. Only the socket is not there."""
    asked: list[str] = []

    def once(self: object, request: Any, *, reuse: bool) -> object:
        asked.append(f"{request.method} {unquote(request.path_url).removeprefix('/api2/json').partition('?')[0]}")
        return adapter._Answer(answer.code, answer.words, answer.body.encode())

    client = ProxmoxPve(PveSection(token_id=TOKEN), "pve1", lambda: "5ec2e700-1111-4222-8333-abcdefabcdef", _Clock(), band=EVERY_VMID)
    with mock.patch.object(adapter._Transport, "_once", once):
        yield client, asked
    client.close()


Ask = Callable[[Any], object]
