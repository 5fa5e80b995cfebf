"""What all verbs share: what they work with, how a lock is cleared, and what is said of it: only what was seen afterwards.

Sources: as of `verbs`.
"""

from __future__ import annotations

from dataclasses import dataclass

from guestward.helper.child import Ended, Programs
from guestward.helper.facts import Host
from guestward.helper.trust import Refused, Scope
from guestward.model.guest import GuestId, GuestKind
from guestward.model.helper import Answer, HelperCode
from guestward.model.pvefiles import GuestFile

HOLD = 8.0
"""Longest time for an unlock, and in which no backup can begin: startall and vzdump wait 10 s for the flock (Nodes.pm, pve-facts B4)."""
LONGEST = 600.0
"""Longest time for the deletion of a snapshot."""
REGRANT = 50.0
"""Longest time for all of a regrant's writes: of one the cluster's lock may take 10 s (AccessControl.pm:lock_user_config)."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What a verb works with. hold, longest, regrant: as HOLD, LONGEST and REGRANT, shorter in tests."""

    host: Host
    programs: Programs
    scope: Scope
    hold: float = HOLD
    longest: float = LONGEST
    regrant: float = REGRANT


def clear_lock(desk: Desk, id: GuestId, file: GuestFile, limit: float) -> Ended:
    """Clear whatever lock is there, in `limit` seconds.

    `pct unlock` and `qm unlock` do just that (CLI/pct.pm, CLI/qm.pm). A VM has something safer: its configuration API takes the digest of
    the file that is to be changed, and compares it under the flock of the configuration (API2/Qemu.pm:update_vm_api). `lock` is deleted at
    once, for a running VM too (QemuServer.pm:fast_plug_option). The call would apply everything else that is pending, and write a
    changed cloud-init drive anew; so it is used only where the file has neither section. For `localhost`, since pvesh would go to another
    node by ssh.
    """
    if id.kind is GuestKind.LXC:
        return desk.programs.run("pct", "unlock", str(id.vmid), limit=limit)
    if file.pending is not None or "cloudinit" in file.special:
        return desk.programs.run("qm", "unlock", str(id.vmid), limit=limit)
    path = f"/nodes/localhost/qemu/{id.vmid}/config"
    return desk.programs.run("pvesh", "set", path, "--delete", "lock", "--skiplock", "1", "--digest", file.digest, limit=limit)


def unlocked(host: Host, id: GuestId, expect: str, done: Ended) -> Answer:
    """What became of that lock. Only what is seen afterwards counts; an exit code proves nothing."""
    after = look_again(host, id, done)
    if isinstance(after, Answer):
        return after
    if after.lock is None:
        return Answer(HelperCode.OK, f"{id}: lock {expect} cleared{said(done) if done.code != 0 else ''}")
    if after.lock != expect:
        return Answer(HelperCode.FAILED, f"{id}: now it has the lock {after.lock}: somebody else is at work on it{said(done)}")
    rest = ""
    if after.waits_to_drop_lock:
        rest = f"; a pending change `delete: lock` was left, `qm set {id.vmid} --revert lock` takes it back once the lock is gone"
    return Answer(outcome(done), f"{id}: the lock {expect} is still there{said(done)}{rest}")


def look_again(host: Host, id: GuestId, done: Ended) -> GuestFile | Answer:
    """The guest's file as it is now, or the answer where there is nothing to be seen any more."""
    if not done.reaped:
        return Answer(HelperCode.UNKNOWN, f"{id}: PVE's program hangs in the kernel and cannot be killed; it may still act")
    try:
        return host.guest(id)
    except Refused as refused:
        gone = refused.answer.code in (HelperCode.NO_GUEST, HelperCode.WRONG_KIND)
        why = "the guest is gone" if gone else "what came of it cannot be read"
        return Answer(HelperCode.FAILED if gone else HelperCode.UNKNOWN, f"{why}: {refused.answer.message}{said(done)}")


def outcome(done: Ended) -> HelperCode:
    """The code where what was wanted is not there."""
    return HelperCode.FAILED if done.code is not None else HelperCode.TIMEOUT


def said(done: Ended, program: str = "PVE's program") -> str:
    """What PVE's program said, for the end of a sentence."""
    if done.code is None:
        return f"; {program} did not end in time and was killed"
    return f"; {program} ended with {done.code}: {done.last_line}"
