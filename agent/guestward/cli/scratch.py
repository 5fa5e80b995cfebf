"""`guestward scratch`: what is in the band, a claim on a VMID of it, and the wish that a leftover be torn down now."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from guestward.adapters import store
from guestward.cli.orders import Desk, attempt, seconds_of
from guestward.cli.output import REFUSED, USAGE, Answer, CommandError, Table, count, moment, span
from guestward.cli.show import View, freshness, grants_words, hold_data, hold_words, noun, scope, view, warning
from guestward.config import Config
from guestward.model.guest import GuestId, GuestKind
from guestward.model.memory import Hold
from guestward.model.scratch import REFUSALS, SCRATCH_MEANING, ScratchBand, ScratchDecision, ScratchVerdict
from guestward.model.task import bounded
from guestward.ports import Clock

STAYS = REFUSALS | {ScratchVerdict.TASK, ScratchVerdict.HOST_GATE, ScratchVerdict.YOUNG}
"""What looking once more does not change. Claims and holds are looked up, and are not in here."""
_FOLDERS = {GuestKind.LXC: "lxc", GuestKind.QEMU: "qemu-server"}


def scratch_list(config: Config, clock: Clock) -> Answer:
    """`guestward scratch list`."""
    seen = view(config, clock)
    found = _guests(seen)
    data = {
        "band": {"first": config.scratch.first, "last": config.scratch.last},
        "scratch": [_data(seen, guest) for guest in found],
        "claims": [hold_data(*entry, seen.wall) for entry in _claims(seen)],
        "observed_age_s": None if seen.age is None else round(seen.age, 1),
    }
    return Answer(seen.board.node, seen.wall, tuple(_parts(seen, found)), data, seen.verdict, warning(seen))


def _guests(seen: View) -> tuple[ScratchDecision, ...]:
    """What the agent thought of each guest at its last look at the band, as far as it is there still; and those that came after it."""
    here, judged = _here(seen), {found.id: found for found in seen.board.scratch}
    if here is None:
        return seen.board.scratch
    evidence = f"not looked at yet: the band is looked at every {span(seen.config.scratch.interval)}"
    names = {row.decision.id: row.decision.name for row in seen.board.rows}
    return tuple(judged.get(id) or ScratchDecision(id, names.get(id, ""), ScratchVerdict.UNKNOWN, evidence) for id in here)


def _here(seen: View) -> list[GuestId] | None:
    """All guests of the band that have a configuration file on this node now; None where nobody can say."""
    folder = os.path.join(seen.config.host.root, "etc/pve/nodes", seen.board.node)
    try:
        files = {kind: os.listdir(os.path.join(folder, name)) for kind, name in _FOLDERS.items()}
    except OSError:
        return None
    return sorted(GuestId(kind, vmid) for vmid in _band(seen.config) for kind, names in files.items() if f"{vmid}.conf" in names)


def _claims(seen: View) -> list[tuple[Hold, float]]:
    return [(hold, left) for hold, left in seen.holds if hold.claim]


def _next_in(seen: View, found: ScratchDecision) -> float | None:
    return None if found.next_at is None or not seen.acting else max(0.0, found.next_at - seen.now)


def _data(seen: View, found: ScratchDecision) -> dict[str, object]:
    left = _next_in(seen, found)
    return {
        "id": str(found.id),
        "kind": found.id.kind.value,
        "vmid": found.id.vmid,
        "name": found.name,
        "verdict": found.verdict.value,
        "evidence": found.evidence,
        "proof": found.proof,
        "next_action_s": None if left is None else round(left),
    }


def _parts(seen: View, found: tuple[ScratchDecision, ...]) -> Iterator[str | Table]:
    scratch = seen.config.scratch
    yield f"node {seen.board.node}: {freshness(seen)}"
    yield f"band {scratch.first}-{scratch.last}: looked at every {span(scratch.interval)}"
    for hold, left in _claims(seen):
        yield f"{noun(hold)}: {scope(hold.vmid)}, {hold_words(hold, left, seen.wall)}"
    lost = [text for text in seen.board.lost if text.partition(" on /vms/")[2] in {str(vmid) for vmid in _band(seen.config)}]
    if lost:
        yield f"grants MISSING: {grants_words(lost)}; the root helper is asked to put them back, or: host-install.sh repair"
    yield ""
    if seen.board.seen_at is None and not found:
        yield "guests in the band: not known yet"
    elif not found:
        yield "no guest is in the band on this node"
    else:
        yield from _table(seen, found)


def _table(seen: View, found: tuple[ScratchDecision, ...]) -> Iterator[str | Table]:
    lines = ((str(guest.id), guest.name, guest.verdict, span(_next_in(seen, guest)), _readable(guest.evidence)) for guest in found)
    yield Table([("GUEST", "NAME", "VERDICT", "NEXT", "WHY"), *lines], shrink=1)
    yield ""
    yield Table([(verdict, SCRATCH_MEANING[verdict]) for verdict in ScratchVerdict if verdict in {guest.verdict for guest in found}])
    yield ""
    leftover = sum(guest.verdict is ScratchVerdict.LEFTOVER for guest in found)
    yield f"{count(len(found), 'guest')} in the band; to be torn down now: {leftover if seen.acting else 0}"


def claim(config: Config, clock: Clock, vmid: int, how_long: str, reason: str, by: str) -> Answer:
    """`guestward scratch claim VMID --for 2h`: that VMID is in use, and what is made there meanwhile is ours."""
    _in_band(config, vmid)
    seconds = seconds_of(how_long, "scratch claim")
    desk = Desk.open(config, clock)
    wish = Hold(vmid, bounded(reason, 200), bounded(by, 80), seconds, clock.boot_id(), clock.boottime(), clock.wall(), claim=True)
    attempt(lambda: store.add_hold(config.state.dir, wish))
    ends = wish.wall + seconds
    lines = [f"{scope(vmid)} is claimed until {moment(ends)}, for {span(seconds)}; by {wish.by}: {wish.reason or 'no reason given'}"]
    lines += desk.replaced(wish)
    there = [found for found in (desk.board.scratch if desk.board is not None else ()) if found.id.vmid == vmid]
    lines += [f"{_named(found)} was there already at the last look; a claim does not make it ours" for found in there]
    lines += [
        "nothing with this VMID is torn down until then",
        f"what is made there until then counts as ours, and is torn down when nobody has used it for {span(config.scratch.min_age)}",
        f"it ends by itself, or with: guestward release {vmid}",
    ]
    data = {
        "vmid": vmid,
        "changed": True,
        "for_s": seconds,
        "until": round(ends),
        "by": wish.by,
        "reason": wish.reason,
        "replaced": desk.hold_on(vmid) is not None,
        "there": str(there[0].id) if there else None,
    }
    return desk.answer(lines, data)


def teardown(config: Config, clock: Clock, vmid: int | None, *, everything: bool, dry_run: bool) -> Answer:
    """`guestward scratch teardown [VMID | --all] [--dry-run]`: have the agent look now, and begin what may be done."""
    if (vmid is None) != everything:
        raise CommandError("usage", "one of them is needed, and not both: VMID, --all", "guestward scratch teardown --help", USAGE)
    if vmid is not None:
        _in_band(config, vmid)
    seen = view(config, clock)
    wanted = [found for found in _guests(seen) if vmid in (None, found.id.vmid)]
    if vmid is not None and not wanted:
        message = f"no guest {vmid} was seen in the band on node {seen.board.node}"
        raise CommandError("unknown_vmid", message, "guestward scratch list", USAGE)
    desk = Desk.open(config, clock)
    if not dry_run:
        for found in wanted:
            attempt(partial(store.request_rearm, config.state.dir, found.id.vmid))
    soon = _soon(seen, desk)
    refused = {found.id: _refusal(seen, found) for found in wanted}
    if vmid is not None and all(refused.values()):
        after = (
            "nothing was changed"
            if dry_run
            else f"the agent looks at it once more {soon}, and tears it down if nothing speaks against it then"
        )
        raise CommandError(
            "refused", f"{_named(wanted[0])} is not torn down: {refused[wanted[0].id]}", f"guestward scratch list; {after}", REFUSED
        )
    data = {
        "changed": bool(wanted) and not dry_run,
        "scratch": [{**_data(seen, found), "refused": refused[found.id] or None} for found in wanted],
    }
    answer = desk.answer(_said(wanted, refused, "" if dry_run else soon), data)
    return replace(answer, warning=warning(seen)) if dry_run else answer


def _refusal(seen: View, found: ScratchDecision) -> str:
    """Why nothing will come of it as far as is known; "" where something may. Holds and claims are those of now."""
    for entry in (seen.hold_on(found.id.vmid), seen.hold_on(None)):
        if entry is not None:
            state, whose = ("claimed", "") if entry[0].claim else ("held", "the whole node is " if entry[0].vmid is None else "")
            return f"{whose}{state} {hold_words(*entry, seen.wall)}"
    return f"{found.verdict}: {_readable(found.evidence)}" if found.verdict in STAYS else ""


def _soon(seen: View, desk: Desk) -> str:
    if not desk.agent_runs():
        return "as soon as it runs"
    return "as soon as its sweeps are not aborted any more" if seen.board.aborted else f"within {span(desk.config.watchdog.interval)}"


def _said(wanted: list[ScratchDecision], refused: dict[GuestId, str], soon: str) -> Iterator[str | Table]:
    """soon: when the agent looks; "" for a dry run."""
    if not wanted:
        yield "no guest is in the band on this node: nothing to do"
        return
    yield Table(
        [
            (found.id, found.name, "stays" if refused[found.id] else found.verdict, refused[found.id] or _readable(found.evidence))
            for found in wanted
        ]
    )
    yield ""
    if not soon:
        yield "this command has changed nothing; what is a leftover is torn down at the agent's next look at the band"
        return
    yield f"the agent looks at the band {soon}, and tears down what is a leftover then, one guest after the other"
    yield "what comes of it: journalctl -u guestward; guestward scratch list"


def _readable(evidence: str) -> str:
    """Long times as people say them."""
    return re.sub(r"\b([0-9]{3,9}) s\b", lambda found: span(int(found[1])), evidence)


def _named(found: ScratchDecision) -> str:
    return f"{found.id} {found.name}".rstrip()


def _band(config: Config) -> ScratchBand:
    return ScratchBand(config.scratch.first, config.scratch.last)


def _in_band(config: Config, vmid: int) -> None:
    band = _band(config)
    if vmid not in band:
        message = f"{vmid} is not in the scratch band {band.first}-{band.last}, and nothing outside of it is ever torn down"
        raise CommandError("refused", message, "docs/configuration.md, [scratch] first and last", REFUSED)
