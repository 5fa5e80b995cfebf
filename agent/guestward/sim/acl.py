"""Who may what: PVE's access control for our user and its privilege-separated token (pve-facts E2, E3, E5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Privileges = Mapping[str, bool]
NONE: Privileges = {}
SUBJECTS = ("user", "token")
NO_ACCESS = "NoAccess"  # a role that takes all others away; here it is granted and revoked as if it were a privilege


@dataclass(slots=True)
class Acl:
    """Entries by subject and path: privilege -> propagate. A token has what both it and its user have.

    pools: which VMIDs are in which pool. changed: called after each change.
    """

    pools: Callable[[], Mapping[str, Iterable[int]]]
    changed: Callable[[], None]
    entries: dict[tuple[str, str], dict[str, bool]] = field(default_factory=dict)

    def grant(self, privilege: str, path: str, who: str = "both", *, propagate: bool = True) -> None:
        """Add a privilege on a path for user, token or both."""
        for subject in _subjects(who):
            self.entries.setdefault((subject, path), {})[privilege] = propagate
        self.changed()

    def revoke(self, privilege: str, path: str, who: str = "both") -> None:
        """Take a privilege away where it was granted. An entry without privileges is none, and what it hid shows again."""
        for subject in _subjects(who):
            held = self.entries.get((subject, path), {})
            held.pop(privilege, None)
            if not held:
                self.entries.pop((subject, path), None)
        self.changed()

    def wipe(self, vmid: int) -> None:
        """What destroying a guest does: every entry on `/vms/VMID` goes (`AccessControl.pm:remove_vm_access`)."""
        for subject in SUBJECTS:
            self.entries.pop((subject, f"/vms/{vmid}"), None)
        self.changed()

    def has(self, subject: str, path: str, privileges: Iterable[str]) -> bool:
        """Whether an entry there has all of them, and hands them down."""
        here = self.entries.get((subject, path), NONE)
        return all(here.get(privilege, False) for privilege in privileges)

    def is_barred(self, subject: str, path: str) -> bool:
        """Whether NO_ACCESS takes away there whatever else is granted there."""
        return NO_ACCESS in self.entries.get((subject, path), NONE)

    def held(self, path: str) -> Privileges:
        """What the token has on a path, with the propagate flag as `/access/permissions` shows it."""
        both = [self._of(subject, path) for subject in SUBJECTS]
        of_user, of_token = (NONE if NO_ACCESS in of else of for of in both)
        return {privilege: flag and of_user[privilege] for privilege, flag in of_token.items() if privilege in of_user}

    def listed(self) -> dict[str, Privileges]:
        """`/access/permissions` without a path: paths of ACLs and of pool members that have something; others are left out."""
        members = {f"/vms/{vmid}" for vmids in self.pools().values() for vmid in vmids}
        paths = {path for _, path in self.entries} | members
        return {path: held for path in sorted(paths) if (held := self.held(path))}

    def _of(self, subject: str, path: str) -> dict[str, bool]:
        """A deeper entry replaces what comes from above; roles on a pool are added to its members and never handed down.

        NO_ACCESS wins over all that is there with it (`AccessControl.pm:roles`).
        """
        found: dict[str, bool] = {}
        for above in _ancestors(path):
            here = self.entries.get((subject, above), NONE)
            applies = {privilege: flag for privilege, flag in here.items() if flag or above == path}
            found = applies or found
        for pool in self._pools_of(path):
            found = dict.fromkeys(self._of(subject, f"/pool/{pool}"), False) | found
        return found

    def _pools_of(self, path: str) -> list[str]:
        if not path.startswith("/vms/"):
            return []
        return [pool for pool, vmids in self.pools().items() if int(path.removeprefix("/vms/")) in vmids]


def _subjects(who: str) -> tuple[str, ...]:
    return SUBJECTS if who == "both" else (who,)


def _ancestors(path: str) -> list[str]:
    """The path and everything above it, from the root down."""
    parts = [part for part in path.split("/") if part]
    return ["/", *("/" + "/".join(parts[: i + 1]) for i in range(len(parts)))]
