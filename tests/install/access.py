"""PVE's access control as pve-access-control keeps it: user.cfg is the state, read and written as PVE does.

Reading ignores entries whose role, user or token is gone, and says so; writing drops them. So an entry dangles until the next write of
anything, as recorded. `effective` evaluates as `RPCEnvironment.pm:permissions` does: deeper replaces, pools add, a token has at most
what its user has. It imports little, because the stand-in programs load it at each start.
"""

from __future__ import annotations

import re
from pathlib import Path

COMMON = (
    "Datastore.Allocate",
    "Datastore.AllocateSpace",
    "Datastore.AllocateTemplate",
    "Datastore.Audit",
    "Group.Allocate",
    "Mapping.Audit",
    "Mapping.Modify",
    "Mapping.Use",
    "Permissions.Modify",
    "Pool.Allocate",
    "Pool.Audit",
    "Realm.Allocate",
    "Realm.AllocateUser",
    "SDN.Allocate",
    "SDN.Audit",
    "SDN.Use",
    "Sys.AccessNetwork",
    "Sys.Audit",
    "Sys.Console",
    "Sys.Incoming",
    "Sys.Modify",
    "Sys.PowerMgmt",
    "Sys.Syslog",
    "User.Modify",
    "VM.Allocate",
    "VM.Audit",
    "VM.Backup",
    "VM.Clone",
    "VM.Config.CDROM",
    "VM.Config.CPU",
    "VM.Config.Cloudinit",
    "VM.Config.Disk",
    "VM.Config.HWType",
    "VM.Config.Memory",
    "VM.Config.Network",
    "VM.Config.Options",
    "VM.Console",
    "VM.Migrate",
    "VM.PowerMgmt",
    "VM.Snapshot",
    "VM.Snapshot.Rollback",
)
ONLY = {
    8: ["VM.Monitor"],
    9: [
        *("VM.GuestAgent.Audit", "VM.GuestAgent.FileRead", "VM.GuestAgent.FileSystemMgmt", "VM.GuestAgent.FileWrite"),
        *("VM.GuestAgent.Unrestricted", "VM.Replicate"),
    ],
}
PATH = re.compile(
    r"/|/access(/groups|/realm)?(/[\w.-]+)?|/nodes(/[\w.-]+)?|/pool(/[\w.-]+){0,3}|/sdn|/storage(/[\w.-]+)?|/vms(/[1-9][0-9]{2,})?"
)


def known(major: int) -> set[str]:
    """The privileges of a version."""
    return {*COMMON, *ONLY[major]}


def special(major: int) -> dict[str, set[str]]:
    """Some of the roles that PVE brings."""
    vm_user = {"VM.Audit", "VM.Backup", "VM.Config.CDROM", "VM.Config.Cloudinit", "VM.Console", "VM.PowerMgmt"}
    if major >= 9:
        vm_user |= {f"VM.GuestAgent.{what}" for what in ("Audit", "FileRead", "FileSystemMgmt", "FileWrite")}
    return {
        "Administrator": known(major),
        "NoAccess": set(),
        "PVEAdmin": known(major) - {"Permissions.Modify", "Sys.Modify", "Sys.PowerMgmt", "Sys.AccessNetwork", "Realm.Allocate"},
        "PVEVMUser": vm_user,
    }


class Access:
    """users, tokens, groups, pools, roles; acl: path -> who -> role -> propagate. Groups are written `@NAME`."""

    def __init__(self, folder: Path, major: int) -> None:
        self.folder, self.major = folder, major
        self.warnings: list[str] = []
        self.users: dict[str, dict[str, str]] = {}
        self.tokens: dict[str, dict[str, str]] = {}
        self.groups: dict[str, list[str]] = {}
        self.pools: dict[str, tuple[str, list[int]]] = {}
        self.own_roles: dict[str, set[str]] = {}
        self.acl: dict[str, dict[str, dict[str, int]]] = {}
        for line in (folder / "user.cfg").read_text().splitlines():
            if line:
                self._read(line.split(":"))

    def _read(self, fields: list[str]) -> None:
        kind, name = fields[0], fields[1]
        if kind == "user":
            self.users[name] = dict(zip(("enable", "expire", "first", "last", "email", "comment", "keys"), fields[2:], strict=False))
        elif kind == "token":
            self.tokens[name] = dict(zip(("expire", "privsep", "comment"), fields[2:], strict=False))
        elif kind == "group":
            self.groups[name] = [user for user in fields[2].split(",") if user]
        elif kind == "pool":
            self.pools[name] = (fields[2], [int(vmid) for vmid in fields[3].split(",") if vmid])
        elif kind == "role":  # a privilege that this version does not know is ignored in silence
            self.own_roles[name] = {privilege for privilege in fields[2].split(",") if privilege in known(self.major)}
        elif kind == "acl":
            self._read_acl(int(name), fields[2], fields[3].split(","), fields[4].split(","))

    def _read_acl(self, propagate: int, path: str, whos: list[str], roles: list[str]) -> None:
        for role in roles:
            if role not in self.roles:
                self.warnings.append(f"user config - ignore invalid acl role '{role}'")
                continue
            for who in whos:
                kind = "group" if who[0] == "@" else "token" if "!" in who else "user"
                if who in {"group": {f"@{group}" for group in self.groups}, "token": self.tokens, "user": self.users}[kind]:
                    self.acl.setdefault(path, {}).setdefault(who, {})[role] = propagate
                else:
                    self.warnings.append(f"user config - ignore invalid acl {kind} '{who}'")

    @property
    def roles(self) -> dict[str, set[str]]:
        return special(self.major) | self.own_roles

    def text(self) -> str:
        """user.cfg as PVE writes it."""
        lines: list[str] = []
        for user, about in sorted(self.users.items()):
            lines.append(":".join(["user", user, *about.values(), ""]))
            lines += [
                ":".join(["token", id, *token.values(), ""]) for id, token in sorted(self.tokens.items()) if id.startswith(f"{user}!")
            ]
        lines += ["", *(f"group:{name}:{','.join(users)}::" for name, users in sorted(self.groups.items())), ""]
        lines += [f"pool:{name}:{comment}:{','.join(map(str, sorted(vms)))}::" for name, (comment, vms) in sorted(self.pools.items())]
        lines += ["", *(f"role:{name}:{','.join(sorted(privs))}:" for name, privs in sorted(self.own_roles.items())), ""]
        for path, entries in sorted(self.acl.items()):
            together: dict[tuple[int, str], list[str]] = {}
            for who, roles in sorted(entries.items()):
                for flag in (0, 1):
                    names = ",".join(sorted(role for role, propagate in roles.items() if propagate == flag))
                    if names:
                        together.setdefault((flag, names), []).append(who)
            lines += [f"acl:{flag}:{path}:{','.join(whos)}:{names}:" for (flag, names), whos in sorted(together.items())]
        return "\n".join(lines) + "\n"

    # ------------------------------------------------------------------------------------------------------ secrets

    @property
    def secrets(self) -> dict[str, str]:
        """priv/token.cfg."""
        file = self.folder / "priv/token.cfg"
        return dict(line.split(" ", 1) for line in file.read_text().splitlines()) if file.exists() else {}

    def keep_secrets(self, secrets: dict[str, str]) -> None:
        file = self.folder / "priv/token.cfg"
        file.write_text("".join(f"{id} {secret}\n" for id, secret in sorted(secrets.items())))

    # --------------------------------------------------------------------------------------------------- evaluation

    def effective(self, who: str, path: str) -> dict[str, int]:
        """Privilege -> whether it is handed down, which a pool's are not."""
        if "!" not in who:
            return self._own(who, path)
        user, token = who.partition("!")[0], self.tokens.get(who)
        if token is None:
            return {}
        of_user = self._own(user, path)
        if token["privsep"] != "1":
            return of_user
        return {privilege: flag and of_user[privilege] for privilege, flag in self._own(who, path).items() if privilege in of_user}

    def _own(self, who: str, path: str) -> dict[str, int]:
        if who == "root@pam":
            return dict.fromkeys(known(self.major), 1)
        if who not in self.users and who not in self.tokens:
            return {}
        roles = self._walk(who, path)
        vmid = re.fullmatch(r"/vms/([0-9]+)", path)
        for pool, (_, members) in self.pools.items():
            if vmid and int(vmid[1]) in members:
                roles = {**dict.fromkeys(self._walk(who, f"/pool/{pool}"), 0), **roles}
        if "NoAccess" in roles:
            return {}
        found: dict[str, int] = {}
        for role, flag in roles.items():
            for privilege in self.roles[role]:
                found[privilege] = max(flag, found.get(privilege, 0))
        return found

    def _walk(self, who: str, path: str) -> dict[str, int]:
        """What is found deeper replaces what comes from above; a user's own entry hides those of its groups."""
        found: dict[str, int] = {}
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            level, last = self.acl.get("/" + "/".join(parts[:depth]), {}), depth == len(parts)
            groups = [f"@{group}" for group, users in self.groups.items() if who in users]
            for names in ([who], groups):
                here = {role: flag for name in names for role, flag in level.get(name, {}).items() if flag or last}
                if here:
                    found = {"NoAccess": 1} if "NoAccess" in here else here
                    break
        return found

    def listed(self, who: str) -> dict[str, dict[str, int]]:
        """Without a path: what entries and pool members name, where there is anything."""
        paths = {"/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms", *self.acl}
        paths |= {f"/pool/{pool}" for pool in self.pools} | {f"/vms/{vmid}" for _, vms in self.pools.values() for vmid in vms}
        return {path: held for path in sorted(paths) if (held := self.effective(who, path))}
