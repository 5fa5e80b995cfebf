"""The programs of a PVE host that host-install.sh calls: pveum, pvesh, and a `guestward check --rights` that needs no HTTPS.

Texts are PVE's, as recorded (recorded/pveum-9.1.json); of exit codes only zero or not is meant. They are run in the process of the tests,
for stand-ins that start in no time (call.sh). A call that changes something is counted, and the one that `kill` names is the last thing
that the script lives to see: the power goes, after the change. The one that `fail` names fails instead, without quorum.
"""

from __future__ import annotations

import json
import os
import re
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .access import PATH, Access, known, special

Options = dict[str, str]


class Failed(Exception):
    """A program that ends with words on stderr."""


class Standin(Access):
    """One call on the host in a folder. pid: the caller's process, 0 for none."""

    def __init__(self, host: Path, pid: int = 0, kill: str = "", fail: str = "") -> None:
        self.host, self.at, self.pid, self.kill, self.fail = host, host / "standin", pid, kill, fail
        self.out = ""
        super().__init__(host / "etc/pve", int((self.at / "version").read_text().split(".")[0]))

    def run(self, program: str, words: list[str]) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        self._note(program, words)
        if (self.at / "pmxcfs-down").exists():
            lines = [f"ipcc_send_rec[{n}] failed: Connection refused" for n in (1, 2, 3)]
            return 111, "", "\n".join([*lines, "Unable to load access control list: Connection refused", ""])
        warnings = "" if program == "guestward" else "".join(f"{warning}\n" for warning in self.warnings)
        try:
            {"pveum": pveum, "pvesh": pvesh, "guestward": guestward}[program](self, words)
        except Failed as failed:
            if program == "guestward":  # JSON goes to stdout, also when it is an error
                return 1, f"{failed}\n", ""
            return 255, self.out, f"{warnings}{failed}\n"
        return 0, self.out, warnings

    def _note(self, program: str, words: list[str]) -> None:
        """Every call, and whether a secret was where others can read it."""
        environ = Path(f"/proc/{self.pid}/environ").read_text() if self.pid else ""
        leak = any(secret in text for secret in self.secrets.values() for text in (*words, environ))
        with (self.at / "calls").open("a") as file:
            file.write(json.dumps([program, *words]) + (" LEAK" if leak else "") + "\n")

    def show(self, value: Any) -> None:
        self.out += json.dumps(value, separators=(",", ":"), sort_keys=True) + "\n"

    def write(
        self,
        what: str,
        *words: str,
        secrets: dict[str, str] | None = None,
        dangles: Callable[[str, str], bool] = lambda who, role: False,
    ) -> None:
        """dangles: which entries, by who and role, mean nothing from now on; PVE leaves them in the file until the next write."""
        if (self.at / "no-quorum").exists() or self.fail == str(len(self.steps) + 1):
            raise Failed("trying to acquire cfs lock 'file-user_cfg' ...\n" * 9 + f"{what}: cfs-lock 'file-user_cfg' error: no quorum!")
        for line in (self.folder / "user.cfg").read_text().splitlines():
            if line.startswith("acl:"):
                _, flag, path, whos, roles, *_ = line.split(":")
                for who, role in ((who, role) for who in whos.split(",") for role in roles.split(",") if dangles(who, role)):
                    self.acl.setdefault(path, {}).setdefault(who, {})[role] = int(flag)
        if secrets is not None:
            self.keep_secrets(secrets)
        (self.folder / "user.cfg").write_text(self.text())
        with (self.at / "steps").open("a") as file:
            file.write(f"pveum {' '.join(words)}\n")
        if self.kill == str(len(self.steps)):
            os.killpg(os.getpgid(self.pid), signal.SIGKILL)

    @property
    def steps(self) -> list[str]:
        """Those of the other stand-ins (tools.sh) are counted in the same file."""
        file = self.at / "steps"
        return file.read_text().splitlines() if file.exists() else []


# ------------------------------------------------------------------------------------------------------------------ pveum


def options(words: list[str]) -> tuple[list[str], Options]:
    plain, found, i = [], {}, 0
    while i < len(words):
        if words[i].startswith("--"):
            found[words[i][2:]] = words[i + 1]
            i += 2
        else:
            plain.append(words[i])
            i += 1
    return plain, found


def bad(usage: str, *faults: str, gap: bool = False) -> Failed:
    return Failed("\n".join(["400 Parameter verification failed.", *faults, *([""] if gap else []), usage]))


def pveum(access: Standin, words: list[str]) -> None:
    words = {"roleadd": ["role", "add"], "roledel": ["role", "delete"]}.get(words[0], [words[0]]) + words[1:]
    depth = 3 if words[:2] == ["user", "token"] else 2
    command = COMMANDS.get(" ".join(words[:depth]))
    if command is None:
        raise Failed(f"ERROR: unknown command 'pveum {' '.join(words[:depth])}' (of the stand-in)")
    command(access, *options(words[depth:]))


def privileges(access: Standin, text: str, usage: str) -> set[str]:
    found = [word for word in re.split(r"[,; ]+", text) if word]
    for word in found:
        if word not in known(access.major):
            raise bad(usage, f"privs: invalid format - invalid privilege '{word}'", gap=True)
    return set(found)


def role_add(access: Standin, words: list[str], given: Options) -> None:
    usage, (name, *_) = "pveum role add <roleid> [OPTIONS]", words
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise bad(usage, f"roleid: invalid format - role name '{name}' contains invalid characters", gap=True)
    privs = privileges(access, given.get("privs", ""), usage)
    if name.lower().startswith("pve"):
        raise bad(usage, "roleid: cannot use role ID starting with the (case-insensitive) 'PVE' namespace")
    if name in access.roles:
        raise Failed(f"create role failed: role '{name}' already exists")
    access.own_roles[name] = privs
    access.write("create role failed", "role", "add", name)


def role_modify(access: Standin, words: list[str], given: Options) -> None:
    name, privs = words[0], privileges(access, given.get("privs", ""), "pveum role modify <roleid> [OPTIONS]")
    if name in special(access.major):
        raise Failed(f"auto-generated role '{name}' cannot be modified")
    if name not in access.own_roles:
        raise Failed(f"update role failed: role '{name}' does not exist")
    access.own_roles[name] = privs | (access.own_roles[name] if given.get("append") == "1" else set())
    access.write("update role failed", "role", "modify", name)


def role_delete(access: Standin, words: list[str], given: Options) -> None:
    """Succeeds while entries use it; those dangle (field case C86)."""
    if words[0] in special(access.major):
        raise Failed(f"auto-generated role '{words[0]}' cannot be deleted")
    if access.own_roles.pop(words[0], None) is None:
        raise Failed(f"delete role failed: role '{words[0]}' does not exist")
    access.write("delete role failed", "role", "delete", words[0], dangles=lambda who, role: role == words[0])


def role_list(access: Standin, words: list[str], given: Options) -> None:
    access.show(
        [
            {"privs": ",".join(sorted(privs)), "roleid": name, "special": int(name in special(access.major))}
            for name, privs in sorted(access.roles.items())
        ]
    )


def user_add(access: Standin, words: list[str], given: Options) -> None:
    if not re.fullmatch(r"[^\s:/]+@[A-Za-z][\w.-]+", words[0]):
        fault = f"userid: invalid format - value '{words[0]}' does not look like a valid user name"
        raise bad("pveum user add <userid> [OPTIONS]", fault, gap=True)
    if words[0] in access.users:
        raise Failed(f"create user failed: user '{words[0]}' already exists")
    access.users[words[0]] = {
        "enable": "1",
        "expire": "0",
        "first": "",
        "last": "",
        "email": "",
        "comment": given.get("comment", ""),
        "keys": "",
    }
    access.write("create user failed", "user", "add", words[0])


def user_modify(access: Standin, words: list[str], given: Options) -> None:
    if words[0] not in access.users:
        raise Failed(f"update user failed: no such user ('{words[0]}')")
    access.users[words[0]].update({key: given[key] for key in ("enable", "expire", "comment") if key in given})
    access.write("update user failed", "user", "modify", words[0])


def user_delete(access: Standin, words: list[str], given: Options) -> None:
    """A missing user is no error. The token's entries stay until the next write, its secret for good."""
    user = words[0]
    access.users.pop(user, None)
    tokens = [id for id in access.tokens if id.startswith(f"{user}!")]
    for id in tokens:
        del access.tokens[id]
    for entries in access.acl.values():
        for who in (user, *tokens):
            entries.pop(who, None)
    for name, users in access.groups.items():
        access.groups[name] = [other for other in users if other != user]
    access.write("delete user failed", "user", "delete", user, dangles=lambda who, role: who in tokens)


def user_list(access: Standin, words: list[str], given: Options) -> None:
    rows: list[dict[str, Any]] = []
    for user, about in sorted(access.users.items()):
        row: dict[str, Any] = {"enable": int(about["enable"]), "expire": int(about["expire"]), "userid": user}
        row |= {"realm-type": user.partition("@")[2]} if user.endswith(("@pve", "@pam")) else {}
        rows.append(row | ({"comment": about["comment"], "email": about["email"]} if about["comment"] else {}))
    access.show(rows)


def user_permissions(access: Standin, words: list[str], given: Options) -> None:
    access.show({given["path"]: access.effective(words[0], given["path"])} if "path" in given else access.listed(words[0]))


def token_permissions(access: Standin, words: list[str], given: Options) -> None:
    user_permissions(access, [f"{words[0]}!{words[1]}"], given)


def token_add(access: Standin, words: list[str], given: Options) -> None:
    usage, (user, name) = "pveum user token add <userid> <tokenid> [OPTIONS] [FORMAT_OPTIONS]", words
    id, privsep = f"{user}!{name}", given.get("privsep", "1")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9.\-_]+", name):
        raise bad(usage, "tokenid: value does not match the regex pattern")
    if user not in access.users:
        raise Failed(f"no such user ('{user}')")
    if id in access.tokens:
        raise bad(usage, "tokenid: Token already exists.")
    secret = "-".join(os.urandom(n).hex() for n in (4, 2, 2, 2, 6))
    access.tokens[id] = {"expire": "0", "privsep": privsep, "comment": given.get("comment", "")}
    info = {"privsep": privsep} | ({"comment": given["comment"]} if "comment" in given else {})
    text = json.dumps({"full-tokenid": id, "info": info, "value": secret}, separators=(",", ":"), sort_keys=True)
    access.write("creating token failed", "user", "token", "add", id, secrets=access.secrets | {id: secret})
    access.out += f"{text}\n"


def _token(access: Standin, user: str, name: str) -> str:
    if user not in access.users:
        raise Failed(f"no such user ('{user}')")
    if f"{user}!{name}" not in access.tokens:
        raise Failed(f"no such token '{name}' for user '{user}'")
    return f"{user}!{name}"


def token_modify(access: Standin, words: list[str], given: Options) -> None:
    id = _token(access, *words)
    access.tokens[id].update({key: given[key] for key in ("expire", "privsep", "comment") if key in given})
    access.write("updating token failed", "user", "token", "modify", id)


def token_remove(access: Standin, words: list[str], given: Options) -> None:
    id = _token(access, *words)
    del access.tokens[id]
    for entries in access.acl.values():
        entries.pop(id, None)
    secrets = access.secrets
    secrets.pop(id, None)
    access.write("deleting token failed", "user", "token", "remove", id, secrets=secrets, dangles=lambda who, role: who == id)


def token_list(access: Standin, words: list[str], given: Options) -> None:
    if words[0] not in access.users:
        raise Failed(f"no such user ('{words[0]}')")
    found = {id: about for id, about in sorted(access.tokens.items()) if id.startswith(f"{words[0]}!")}
    access.show(
        [
            {"expire": int(about["expire"]), "privsep": int(about["privsep"]), "tokenid": id.partition("!")[2]}
            | ({"comment": about["comment"]} if about["comment"] else {})
            for id, about in found.items()
        ]
    )


def pool_add(access: Standin, words: list[str], given: Options) -> None:
    if words[0] in access.pools:
        raise Failed(f"create pool failed: pool '{words[0]}' already exists")
    access.pools[words[0]] = (given.get("comment", ""), [])
    access.write("create pool failed", "pool", "add", words[0])


def pool_modify(access: Standin, words: list[str], given: Options) -> None:
    """A VMID that does not exist is taken, too."""
    pool = words[0]
    if pool not in access.pools:
        raise Failed(f"update pools failed: pool '{pool}' does not exist")
    for vmid in map(int, re.split(r"[,; ]+", given.get("vms", ""))):
        inside = next((name for name, (_, vms) in access.pools.items() if vmid in vms), None)
        if given.get("delete") == "1":
            if inside != pool:
                raise Failed(f"update pools failed: VM {vmid} is not a pool member")
            access.pools[pool][1].remove(vmid)
            continue
        if inside == pool and given.get("allow-move") != "1":
            raise Failed(f"update pools failed: VM {vmid} is already a pool member")
        if inside is not None and given.get("allow-move") != "1":
            raise Failed(f"update pools failed: VM {vmid} belongs already to pool '{inside}' and 'allow-move' is not set")
        if inside is not None:
            access.pools[inside][1].remove(vmid)
        access.pools[pool][1].append(vmid)
    access.write("update pools failed", "pool", "modify", pool)


def pool_delete(access: Standin, words: list[str], given: Options) -> None:
    if words[0] not in access.pools:
        raise Failed(f"delete pool failed: pool '{words[0]}' does not exist")
    there = [vmid for vmid in access.pools[words[0]][1] if list(access.folder.glob(f"nodes/*/*/{vmid}.conf"))]
    if there:  # a VMID without a guest is no member that counts
        raise Failed(f"delete pool failed: pool '{words[0]}' is not empty (contains VM {there[0]})")
    del access.pools[words[0]]
    access.acl.pop(f"/pool/{words[0]}", None)
    access.write("delete pool failed", "pool", "delete", words[0])


def pool_list(access: Standin, words: list[str], given: Options) -> None:
    access.show([{"poolid": name} | ({"comment": comment} if comment else {}) for name, (comment, _) in sorted(access.pools.items())])


def acl_change(access: Standin, words: list[str], given: Options, *, delete: bool) -> None:
    usage = "pveum acl modify <path> --roles <string> [OPTIONS]"
    path = "/" + words[0].strip("/")
    if not PATH.fullmatch(path):
        raise bad(usage, f"path: invalid ACL path '{words[0]}'")
    if "roles" not in given:
        raise bad(usage, "roles: property is missing and it is not optional")
    names = [(kind, name) for kind in ("users", "groups", "tokens") for name in given.get(kind, "").split(",") if name]
    if not names:
        raise bad(usage, *(f"{kind}: either 'users', 'groups' or 'tokens' is required." for kind in ("users", "groups", "tokens")))
    for role in given["roles"].split(","):
        if role not in access.roles:
            raise Failed(f"ACL update failed: role '{role}' does not exist")
        for kind, name in names:
            who = _subject(access, kind, name)
            entries = access.acl.setdefault(path, {})
            if delete:
                entries.get(who, {}).pop(role, None)
            else:
                entries.setdefault(who, {})[role] = int(given.get("propagate", "1"))
    access.acl[path] = {who: roles for who, roles in access.acl[path].items() if roles}
    access.write("ACL update failed", "acl", "delete" if delete else "modify", path)


def _subject(access: Standin, kind: str, name: str) -> str:
    if kind == "groups" and name not in access.groups:
        raise Failed(f"ACL update failed: group '{name}' does not exist")
    if kind == "users" and name not in access.users:
        raise Failed(f"ACL update failed: user '{name}' does not exist")
    if kind == "tokens" and name not in access.tokens:
        user, _, token = name.partition("!")
        missing = f"no such token '{token}' for user '{user}'" if user in access.users else f"no such user ('{user}')"
        raise Failed(f"ACL update failed: {missing}")
    return f"@{name}" if kind == "groups" else name


def acl_list(access: Standin, words: list[str], given: Options) -> None:
    rows: list[dict[str, Any]] = []
    for path, entries in sorted(access.acl.items()):
        for who, roles in sorted(entries.items()):
            kind = "group" if who[0] == "@" else "token" if "!" in who else "user"
            rows += [
                {"path": path, "propagate": flag, "roleid": role, "type": kind, "ugid": who.lstrip("@")}
                for role, flag in sorted(roles.items())
            ]
    access.show(rows)


COMMANDS: dict[str, Callable[[Standin, list[str], Options], None]] = {
    "role add": role_add,
    "role modify": role_modify,
    "role delete": role_delete,
    "role list": role_list,
    "user add": user_add,
    "user modify": user_modify,
    "user delete": user_delete,
    "user list": user_list,
    "user permissions": user_permissions,
    "user token add": token_add,
    "user token modify": token_modify,
    "user token remove": token_remove,
    "user token delete": token_remove,
    "user token list": token_list,
    "user token permissions": token_permissions,
    "pool add": pool_add,
    "pool modify": pool_modify,
    "pool delete": pool_delete,
    "pool list": pool_list,
    "acl modify": lambda *given: acl_change(*given, delete=False),
    "acl delete": lambda *given: acl_change(*given, delete=True),
    "acl list": acl_list,
}


# ------------------------------------------------------------------------------------------------------- pvesh, guestward


def pvesh(access: Standin, words: list[str]) -> None:
    verb, path, *rest = words
    _, given = options(rest)
    if (verb, path) == ("set", "/pools") or (verb == "set" and path.startswith("/pools/")):
        pool = given.pop("poolid", path.removeprefix("/pools/"))
        pool_modify(access, [pool], given)
    elif (verb, path) == ("get", "/pools"):
        if given["poolid"] not in access.pools:
            raise Failed(f"pool '{given['poolid']}' does not exist")
        comment, vms = access.pools[given["poolid"]]
        found = {vmid: file for vmid in vms for file in access.folder.glob(f"nodes/*/*/{vmid}.conf")}
        members = [{"id": f"lxc/{vmid}", "node": file.parts[-3], "type": "lxc", "vmid": vmid} for vmid, file in sorted(found.items())]
        access.show([{"comment": comment, "members": members, "poolid": given["poolid"]}])
    elif verb == "get" and path.startswith("/access/roles/"):
        name = path.removeprefix("/access/roles/")
        if name not in access.roles:
            raise Failed(f"role '{name}' does not exist")
        access.show(dict.fromkeys(access.roles[name], 1))
    elif (verb, path) == ("get", "/access/permissions"):
        user_permissions(access, [given["userid"]], given)
    else:
        raise Failed(f"no '{verb}' handler for '{path}' (of the stand-in)")


def guestward(access: Standin, words: list[str]) -> None:
    """What `guestward check --rights` answers, from the same state; the tests over HTTPS show that the real one answers the same."""
    config, paths = Path(words[words.index("--config") + 1]), words[words.index("--rights") + 1 :]
    token, file = tomllib.loads(config.read_text())["pve"]["token_id"], access.host / "etc/guestward/token"
    fault = None
    if (access.at / "api-down").exists():
        fault = ("api", "GET /access/permissions: 127.0.0.1:8006 refuses connections; is pveproxy running?")
    elif not file.exists() or not file.read_text().strip():
        fault = ("secret", f"token file {file} is empty")
    elif token not in access.tokens or access.secrets.get(token) != file.read_text().strip():
        fault = ("token_refused", "GET /access/permissions: 401 invalid token value!")
    if fault:
        raise Failed(json.dumps({"schema": 1, "error": {"code": fault[0], "message": fault[1], "hint": ""}}))
    held = access.listed(token) | {path: access.effective(token, path) for path in paths}
    access.show({"schema": 1, "node": "pve1", "at": 0, "data": {"paths": {path: sorted(held[path]) for path in held}}})
