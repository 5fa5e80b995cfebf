"""`release-scratch`: clears what a restore or a destroy that died left as a lock, inside the scratch band and nowhere else.

Sources: pve-container 94f5585 (API2/LXC.pm), qemu-server e6352be6 (API2/Qemu.pm), pve-guest-common 4a8f6cb (AbstractConfig.pm).
"""

from __future__ import annotations

from guestward.helper.desk import Desk, clear_lock, unlocked
from guestward.helper.facts import Host
from guestward.helper.trust import Refused, Scope
from guestward.model.guest import GuestId
from guestward.model.helper import SCRATCH_LOCKS, Answer, HelperCode, Request
from guestward.model.pvefiles import GuestFile

_INTO_ANY = ("vzclone",)  # its task names the source, and its target has the lock `create` and no flock (API2/LXC.pm:clone_vm)


def release_scratch(desk: Desk, request: Request) -> Answer:
    """Clear the lock `create` or `destroyed` of a leftover in the band: nobody, not even by force, can destroy a container that has it.

    Two whole looks, and whatever differs between them is refused. What remains is the start of PVE's program: in it, somebody would have
    to clear the lock by hand, destroy the guest and begin to make another one there. While the lock is there PVE begins nothing
    (AbstractConfig.pm:create_and_lock_config), and once a new restore works it holds the flock that the unlock needs, too.

    Not held back by [locks] recover, which is about the locks of guests that are guarded: in the band none is.
    """
    vmid = request.vmid or 0
    _check_in_band(desk.scope, vmid)
    id, file = seen = _leftover(desk.host, vmid)
    if _leftover(desk.host, vmid) != seen:
        raise Refused(HelperCode.LOCK_CHANGED, f"{id}: the configuration changed a moment ago: somebody is at work on it")
    return unlocked(desk.host, id, file.lock or "", clear_lock(desk, id, file, desk.hold))


def _check_in_band(scope: Scope, vmid: int) -> None:
    if not scope.first <= vmid <= scope.last:
        raise Refused(HelperCode.NOT_SCRATCH, f"{vmid} is not in the scratch band {scope.first}-{scope.last}")
    if vmid in scope.exclude:
        raise Refused(HelperCode.EXCLUDED, f"{vmid} is in [scope] exclude")


def _leftover(host: Host, vmid: int) -> tuple[GuestId, GuestFile]:
    """One look at all of it: which guest that is, that it has such a lock, and that nobody works on it. Raises Refused."""
    host.check_ready()
    id = host.find(vmid)
    file = host.guest(id)
    if file.template:
        raise Refused(HelperCode.TEMPLATE, f"{id} is a template")
    if file.lock is None:
        raise Refused(HelperCode.NOT_LOCKED, f"{id} has no lock")
    if file.lock not in SCRATCH_LOCKS:
        raise Refused(HelperCode.LOCK_KIND, f"{id}: the lock {file.lock} is none of {', '.join(SCRATCH_LOCKS)}")
    host.check_no_task(vmid, of_any_guest=_INTO_ANY)
    host.check_config_is_free(id)
    return id, file
