"""The stand-in pveum against what a real one answered, command by command, and its ACL model against what the API answered a token."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.recordings import ROLE, permissions

from .access import Access
from .programs import Standin

RECORDED = Path(__file__).parent / "recorded"
VERSIONS = {"8.4": "8.4.21", "9.1": "9.1.3", "9.2": "9.2.1"}


def host(folder: Path, version: str) -> Path:
    (folder / "etc/pve/priv").mkdir(parents=True)
    (folder / "standin").mkdir()
    (folder / "standin/version").write_text(VERSIONS[version])
    (folder / "etc/pve/user.cfg").write_text("user:root@pam:1:0::::::\n")
    (folder / "etc/pve/nodes/pve1/lxc").mkdir(parents=True)
    for vmid in (101, 102, 103):
        (folder / f"etc/pve/nodes/pve1/lxc/{vmid}.conf").touch()
    return folder


def plain(lines: list[str]) -> list[Any]:
    """JSON as values in any order; secrets as they are masked in the recordings."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", "\n".join(lines))
    if not text.startswith(("{", "[")):
        return sorted(line for line in lines if line)
    value = json.loads(text)
    return sorted(value, key=json.dumps) if isinstance(value, list) else [value]


@pytest.mark.parametrize("version", ["8.4", "9.1"])
def test_pveum_answers_as_recorded(version: str, tmp_path: Path) -> None:
    """In order: roles, users, tokens, pools, ACLs, permissions, and deletions in orders that leave entries dangling.

    9.1 is a real session without its tables; 8.4 the same with the differences that were recorded there. `given` is a state that the
    session had reached by commands that were not recorded.
    """
    folder = host(tmp_path, version)
    config = folder / "etc/pve/user.cfg"
    for entry in json.loads((RECORDED / f"pveum-{version}.json").read_text("utf-8")):
        if "given" in entry:
            config.write_text("\n".join(entry["given"]) + "\n")
        elif "file" in entry:
            assert [line for line in config.read_text().splitlines() if line] == entry["file"]
        else:
            program, *words = shlex.split(entry["command"])
            code, out, err = Standin(folder).run(program, words)
            said = (code != 0, plain(err.splitlines()), plain(out.splitlines()) if entry["out"] is not None else None)
            told = (entry["failed"], plain(entry["err"]), plain(entry["out"]) if entry["out"] is not None else None)
            assert said == told, entry["command"]


# ------------------------------------------------------------------------------------------ what the API answered a token

USER, TOKEN = "guestward@pve", "guestward@pve!agent"
Prepare = Callable[[Access], object]


def grant(path: str, privileges: tuple[str, ...] = ROLE, whos: tuple[str, ...] = (USER, TOKEN)) -> Prepare:
    def do(access: Access) -> None:
        name = f"Role{len(access.own_roles)}"
        access.own_roles[name] = set(privileges)
        for who in whos:
            access.acl.setdefault(path, {})[who] = {name: 1}

    return do


def installed(access: Access) -> None:
    access.pools["guestward"] = ("", [101, 200])
    for path in ("/pool/guestward", *(f"/vms/{vmid}" for vmid in range(990000, 990010))):
        grant(path)(access)


def destroyed(access: Access) -> None:
    installed(access)
    del access.acl["/vms/990000"]


def destroyed_granted_above(access: Access) -> None:
    destroyed(access)
    grant("/vms", ("VM.Allocate",))(access)


def one_privilege(access: Access) -> None:
    installed(access)
    grant("/vms/102", ("VM.Audit",))(access)


CASES: dict[str, Prepare] = {
    "nothing-granted-to-the-user": grant("/vms/990000", whos=(TOKEN,)),
    "nothing-granted-to-the-token": grant("/vms/990000", whos=(USER,)),
    "after-destroy": destroyed,
    "after-destroy-granted-above": destroyed_granted_above,
    "one-privilege": one_privilege,
    **dict.fromkeys(("granted", "pool-member", "outside", "pool", "root", "listed", "no-such-guest", "no-such-path"), installed),
    **dict.fromkeys(("role-deleted", "role-back"), installed),  # its entries mean nothing (test above), as if there were none
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_acl_model_answers_as_the_api_did(version: str, tmp_path: Path) -> None:
    recorded = {entry["id"]: entry for entry in permissions(version)}
    assert recorded.keys() == CASES.keys()
    folder = host(tmp_path, version)
    for id, prepare in CASES.items():
        access = Access(folder / "etc/pve", int(version[0]))
        access.users[USER], access.tokens[TOKEN] = {}, {"expire": "0", "privsep": "1", "comment": ""}
        prepare(access)
        path = recorded[id]["path"]
        assert ({path: access.effective(TOKEN, path)} if path else access.listed(TOKEN)) == recorded[id]["body"], id
