"""`regrant`: puts back the entries of the scratch band. PVE takes them away each time a guest with that VMID is destroyed, by anybody.

Sources: pve-access-control 5ccd07d (API2/ACL.pm:update_acl, AccessControl.pm:remove_vm_access, lock_user_config).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from guestward.helper.child import Ended
from guestward.helper.desk import Desk, outcome, said
from guestward.helper.trust import Refused, Scope
from guestward.model.helper import Answer, HelperCode, Request
from guestward.model.usercfg import SCRATCH_ROLE, UserCfg, subjects

_ONE = 20.0  # seconds for one write: pveum waits up to 10 s for the cluster's lock (pve-facts E4), and starts slowly on a busy host
_REPAIR = "`host-install.sh repair`"

Missing = Mapping[int, tuple[str, ...]]
"""VMID -> users and tokens that have no entry there that counts."""


@dataclass(frozen=True, slots=True)
class _Written:
    """What was tried. stopped: why not all of it, empty where all was."""

    done: tuple[Ended, ...] = ()
    stopped: str = ""
    in_time: bool = True


def regrant(desk: Desk, request: Request) -> Answer:
    """Write what is missing, for us and for [scratch] grantees, one pveum a VMID, and say what is there afterwards.

    pveum ends with 0 where it changed nothing, and otherwise with any number: only user.cfg counts, before and after. It is the node's
    own copy of what the cluster agreed on, so without quorum nothing is asked for at all.

    Neither a boot nor a hold stands in the way: an entry starts and stops nothing, and without it the next leftover is stranded. A
    host that stops does: its pmxcfs may leave in the middle of a write, and the cluster's lock on user.cfg stays for two minutes.
    """
    deadline = time.monotonic() + desk.regrant
    desk.host.check_quorum()
    desk.host.check_not_stopping()
    before = desk.host.users()
    ours = _ours(desk.scope, before)
    absent = tuple(id for id in desk.scope.grantees if not all(map(before.knows, subjects(id))))
    others = [who for id in desk.scope.grantees if id not in absent for who in subjects(id)]
    wanted = tuple(dict.fromkeys((*ours, *others)))
    lost = _missing(before, desk.scope, wanted)
    written = _write(desk, before, lost, deadline)
    try:
        after = desk.host.users() if written.done else before
    except Refused as refused:
        return Answer(HelperCode.UNKNOWN, f"entries were written, and what came of it cannot be read: {refused.answer.message}")
    return _answer(_Result(after, ours, lost, _missing(after, desk.scope, wanted), absent, written))


def _ours(scope: Scope, users: UserCfg) -> tuple[str, ...]:
    """Our own user and token. Raises Refused where PVE does not know them, or the role: then more is missing than entries."""
    if scope.token_id is None:
        raise Refused(HelperCode.CONFIG, "[pve] token_id is missing: nobody can tell for whom the entries are")
    ours = subjects(scope.token_id)
    unknown = [f"role {SCRATCH_ROLE}"] if SCRATCH_ROLE not in users.roles else []
    unknown += [f"{'token' if '!' in who else 'user'} {who}" for who in ours if not users.knows(who)]
    if unknown:
        raise Refused(HelperCode.NOT_INSTALLED, f"PVE knows no {' and no '.join(unknown)}: {_REPAIR} makes what is missing")
    return ours


def _missing(users: UserCfg, scope: Scope, wanted: Iterable[str]) -> dict[int, tuple[str, ...]]:
    band = range(scope.first, scope.last + 1)
    found = {vmid: tuple(who for who in wanted if not users.holds(_path(vmid), who, SCRATCH_ROLE)) for vmid in band}
    return {vmid: whos for vmid, whos in found.items() if whos}


def _write(desk: Desk, users: UserCfg, missing: Missing, deadline: float) -> _Written:
    """One write a VMID, as long as there are time and quorum. Where `NoAccess` bars somebody an entry would change nothing."""
    done: list[Ended] = []
    for vmid, whos in missing.items():
        free = [who for who in whos if not users.is_barred(_path(vmid), who)]
        if not free:
            continue
        left = deadline - time.monotonic()
        if left <= 0:
            return _Written(tuple(done), "the time is up", in_time=False)
        try:
            desk.host.check_quorum()
        except Refused as refused:
            return _Written(tuple(done), refused.answer.message)
        done.append(desk.programs.run("pveum", *_arguments(vmid, free), limit=min(left, _ONE)))
        if not done[-1].reaped:
            return _Written(tuple(done), "pveum hangs in the kernel and cannot be killed; it may still act")
    return _Written(tuple(done))


def _arguments(vmid: int, whos: Iterable[str]) -> tuple[str, ...]:
    """As the install script calls it, so that the entries are the same."""
    users, tokens = [who for who in whos if "!" not in who], [who for who in whos if "!" in who]
    lists = (*(("--users", ",".join(users)) if users else ()), *(("--tokens", ",".join(tokens)) if tokens else ()))
    return ("acl", "modify", _path(vmid), *lists, "--roles", SCRATCH_ROLE, "--propagate", "1")


@dataclass(frozen=True, slots=True)
class _Result:
    """users: as they are now. lost, still: what was missing, and what is. absent: grantees that do not exist."""

    users: UserCfg
    ours: tuple[str, ...]
    lost: Missing
    still: Missing
    absent: tuple[str, ...]
    written: _Written


def _answer(result: _Result) -> Answer:
    still, done = result.still, result.written.done
    barred = {vmid: tuple(who for who in whos if result.users.is_barred(_path(vmid), who)) for vmid, whos in still.items()}
    plain = {vmid: tuple(who for who in whos if who not in barred[vmid]) for vmid, whos in still.items()}
    back = {vmid: tuple(who for who in whos if who not in still.get(vmid, ())) for vmid, whos in result.lost.items()}
    parts = [f"{SCRATCH_ROLE} is missing for {_named(plain)}"] if any(plain.values()) else []
    parts += [f"NoAccess bars {_named(barred)}; `pveum acl delete` removes it"] if any(barred.values()) else []
    parts += [f"PVE does not know {', '.join(result.absent)} of [scratch] grantees"] if result.absent else []
    parts += [f"{SCRATCH_ROLE} put back for {_named(back)}"] if any(back.values()) else []
    parts += [] if parts else [f"{SCRATCH_ROLE} is there at every VMID of the band: nothing was missing"]
    why = said(_worst(done), "pveum") if any(plain.values()) and done else ""
    why += f"; {result.written.stopped}" if result.written.stopped else ""
    return Answer(_code(result), "; ".join(parts) + why)


def _code(result: _Result) -> HelperCode:
    if not result.still and not result.absent:
        return HelperCode.OK
    if not any(who in result.ours for whos in result.still.values() for who in whos):
        return HelperCode.INCOMPLETE
    if any(not done.reaped for done in result.written.done):
        return HelperCode.UNKNOWN
    if not result.written.in_time:
        return HelperCode.TIMEOUT
    return outcome(_worst(result.written.done)) if result.written.done else HelperCode.FAILED


def _worst(done: tuple[Ended, ...]) -> Ended:
    """The last that did not end well, or the last of all."""
    return next((one for one in reversed(done) if one.code != 0), done[-1])


def _named(entries: Missing) -> str:
    """Whom and where, VMIDs with the same ones together."""
    places: dict[tuple[str, ...], list[int]] = {}
    for vmid, whos in entries.items():
        if whos:
            places.setdefault(whos, []).append(vmid)
    return ", ".join(f"{' and '.join(whos)} at {_paths(vmids)}" for whos, vmids in places.items())


def _paths(vmids: list[int]) -> str:
    spans: list[list[int]] = []
    for vmid in vmids:
        if spans and spans[-1][-1] == vmid - 1:
            spans[-1].append(vmid)
        else:
            spans.append([vmid])
    return ", ".join(_path(span[0]) + (f" to {_path(span[-1])}" if len(span) > 1 else "") for span in spans)


def _path(vmid: int) -> str:
    return f"/vms/{vmid}"
