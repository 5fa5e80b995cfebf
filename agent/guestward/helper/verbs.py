"""What the helper does: one function a verb. Each checks everything itself, acts through PVE's own programs, and looks again.

Sources: pve-container 94f5585, qemu-server e6352be6, pve-guest-common, pve-manager 14a22df3, pve-common f665029.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from guestward.helper.child import Ended
from guestward.helper.desk import Desk, clear_lock, look_again, outcome, said, unlocked
from guestward.helper.facts import Host
from guestward.helper.grants import regrant
from guestward.helper.scratch import release_scratch
from guestward.helper.trust import Refused
from guestward.model.guest import GuestId, GuestKind
from guestward.model.helper import SNAPSHOT, STATE_OF_LOCK, Answer, HelperCode, Request, Verb
from guestward.model.pvefiles import GuestFile

_OURS = "snapshot-delete"  # the lock that `pct delsnapshot` sets first, and leaves when it fails
_NEVER_LOCKED = ("CT is locked (", "Failed to obtain guest migration lock")  # what it dies with when somebody else was first
_GRACE = 5.0  # seconds between SIGTERM and SIGKILL, as PVE's own (RESTEnvironment.pm:kill_process_group)


def unlock(desk: Desk, request: Request) -> Answer:
    """Clear a lock that a dead vzdump left, if it still is the expected one.

    PVE's own programs clear whatever lock is there, so all is checked while no backup can begin, and the lock is read from the node's
    own file right before. What remains for a container is the start of `pct`: between our read and its own, somebody could clear the
    lock by hand and begin what sets another one. PVE refuses to set a lock over a lock.
    """
    id = GuestId(request.kind or GuestKind.LXC, request.vmid or 0)
    expect = request.expect or ""
    if id.kind is GuestKind.QEMU and expect in STATE_OF_LOCK:
        raise Refused(HelperCode.LOCK_KIND, f"{id}: vzdump sets no lock `{expect}` on a VM; its snapshots are its owner's")
    _check_allowed(desk, id)
    desk.host.guest(id)
    with desk.host.no_backup_begins(desk.hold) as held:
        desk.host.check_no_backup(id.vmid)
        desk.host.check_ready()
        desk.host.check_no_task(id.vmid)
        before = desk.host.guest(id)
        _check_lock(id, before, expect)
        done = clear_lock(desk, id, before, held.budget())
        if done.code is not None:  # under the flock: no lock of a new backup can be mistaken for the old one
            return unlocked(desk.host, id, expect, done)
    return unlocked(desk.host, id, expect, done)  # it hung until the time was up


def delete_snapshot(desk: Desk, request: Request) -> Answer:
    """Delete a container's snapshot named exactly `vzdump`, without --force: that drops the entry and may leave the storage's snapshot.

    It works for minutes, and the flock is not held meanwhile: a backup that begins fails at the lock `snapshot-delete`, which PVE sets
    first (AbstractConfig.pm:snapshot_delete) and leaves when it fails. vzdump itself holds neither lock while it waits up to 600 s for
    a replication with the section there (pve-facts C5): so no vzdump at all may live. The lock of a failed deletion goes at once.
    """
    id = GuestId(GuestKind.LXC, request.vmid or 0)
    _check_allowed(desk, id)
    before = _snapshot(desk.host, id)
    desk.host.check_flock_is_free()
    desk.host.check_no_backup(id.vmid, of_any_guest=True)
    desk.host.check_no_task(id.vmid)
    desk.host.check_no_replication(id.vmid)
    desk.host.check_ready()
    if _snapshot(desk.host, id) != before:
        raise Refused(HelperCode.SNAPSHOT_CHANGED, f"{id}: the snapshot {SNAPSHOT} changed a moment ago: somebody is at work on it")
    done = desk.programs.run("pct", "delsnapshot", str(id.vmid), SNAPSHOT, limit=desk.longest, grace=_GRACE)
    return _deleted(desk, id, done)


VERBS: Mapping[Verb, Callable[[Desk, Request], Answer]] = {
    Verb.UNLOCK: unlock,
    Verb.DELETE_SNAPSHOT: delete_snapshot,
    Verb.RELEASE_SCRATCH: release_scratch,
    Verb.REGRANT: regrant,
}


def _check_allowed(desk: Desk, id: GuestId) -> None:
    """Root lets us, the host is ready, and the guest is not in the scratch band, not excluded, and a member of one of our pools."""
    scope = desk.scope
    if scope.report_only:
        raise Refused(HelperCode.REPORT_ONLY, "[locks] recover is `report`: locks are told, and neither they nor snapshots are touched")
    desk.host.check_ready()
    if scope.first <= id.vmid <= scope.last:
        raise Refused(HelperCode.SCRATCH_BAND, f"{id} is in the scratch band {scope.first}-{scope.last}")
    if id.vmid in scope.exclude:
        raise Refused(HelperCode.EXCLUDED, f"{id} is in [scope] exclude")
    pool = desk.host.pool(id.vmid)
    if pool not in scope.pools:
        where = f"in the pool {pool}" if pool else "in no pool"
        raise Refused(HelperCode.NOT_OWNED, f"{id} is {where}, and not in one of [scope] pools ({', '.join(scope.pools)})")


def _check_lock(id: GuestId, file: GuestFile, expect: str) -> None:
    if file.lock != expect:
        raise Refused(HelperCode.LOCK_CHANGED, f"{id}: the lock is {_named(file.lock)}, not {expect}: it was changed meanwhile")
    state = file.snapshots.get(SNAPSHOT, {}).get("snapstate")
    if expect in STATE_OF_LOCK and state != STATE_OF_LOCK[expect]:
        what = f"in the state {state}" if state else "in no such state" if SNAPSHOT in file.snapshots else "not there"
        raise Refused(HelperCode.LOCK_KIND, f"{id}: the lock {expect} is not vzdump's: its snapshot {SNAPSHOT} is {what}")
    others = [f"{name} ({keys['snapstate']})" for name, keys in file.snapshots.items() if name != SNAPSHOT and "snapstate" in keys]
    if expect in STATE_OF_LOCK and others:
        raise Refused(HelperCode.LOCK_KIND, f"{id}: the lock {expect} may be that of another snapshot: {', '.join(others)}")


def _snapshot(host: Host, id: GuestId) -> Mapping[str, str]:
    file = host.guest(id)
    if file.lock is not None:
        raise Refused(HelperCode.LOCKED, f"{id} has the lock {file.lock}: PVE deletes no snapshot of a locked guest")
    if SNAPSHOT not in file.snapshots:
        raise Refused(HelperCode.NO_SNAPSHOT, f"{id} has no snapshot named exactly {SNAPSHOT}")
    return file.snapshots[SNAPSHOT]


def _deleted(desk: Desk, id: GuestId, done: Ended) -> Answer:
    """A deletion that failed keeps no guest down: the lock that it left goes in the same request, if it provably is its own."""
    after, last, why = look_again(desk.host, id, done), done, ""
    if isinstance(after, GuestFile) and SNAPSHOT in after.snapshots and after.lock == _OURS:
        try:
            _check_left_by_us(desk.host, id, after, done)
            last = desk.programs.run("pct", "unlock", str(id.vmid), limit=desk.hold)
            why = said(last, "`pct unlock`")
        except Refused as refused:
            why = f": {refused.answer.message.removeprefix(f'{id}: ')}"
        after = look_again(desk.host, id, last)
    if isinstance(after, Answer):
        return after
    if after.lock is not None:
        lock = f"; the lock {after.lock} is there now, and keeps the guest down{why}"
    else:
        lock = f"; its lock {_OURS} was cleared, so that the guest can start" if last is not done else ""
    if SNAPSHOT not in after.snapshots:
        return Answer(HelperCode.OK, f"{id}: snapshot {SNAPSHOT} deleted{lock}{said(done) if done.code != 0 else ''}")
    return Answer(outcome(done), f"{id}: the snapshot {SNAPSHOT} is still there{lock}{said(done)}")


def _check_left_by_us(host: Host, id: GuestId, file: GuestFile, done: Ended) -> None:
    """The lock that was not there when our deletion began is its own, and nobody works under it. Raises Refused.

    While a lock is there nobody sets one: whoever tries dies with `CT is locked` (AbstractConfig.pm:set_lock, with check_lock before
    the write, both under the flock of the configuration). So vzdump's flock is not needed: no backup, of this guest or another, can
    put its lock over ours. One that began before ours was set has made our deletion die with just that; and who deletes this snapshot
    now is a task of this guest, or holds its migration flock, as vzdump does (VZDump/LXC.pm:cleanup).
    """
    _check_lock(id, file, _OURS)
    if done.last_line.startswith(_NEVER_LOCKED):
        raise Refused(HelperCode.LOCKED, f"{id}: somebody else set it first")
    host.check_no_task(id.vmid)
    host.check_no_replication(id.vmid)
    if host.guest(id) != file:
        raise Refused(HelperCode.LOCK_CHANGED, f"{id}: the configuration changed a moment ago: somebody is at work on it")


def _named(lock: str | None) -> str:
    return lock if lock is not None else "gone"
