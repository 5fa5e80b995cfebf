"""What restore testers leave in the scratch band, and what happens while it is torn down. Drawn apart, so that it changes no other draw."""

from __future__ import annotations

from random import Random

from tests.soak.plan import BAND, DAY, HOUR, MINUTE, Plan, seconds

ORIGIN = "restic@pve!restore"
WITHOUT = 0.4  # of the scenarios
STEPS = ("stop", "destroy", "release-scratch", "regrant")
RIGHTS = ("VM.Audit", "VM.Allocate", "VM.Config.Disk", "VM.PowerMgmt")


def scratch(plan: Plan, rng: Random) -> None:
    """Restores into the band, most of them by an origin, and trouble on the way to their end."""
    if rng.random() < WITHOUT:
        return
    plan.config["scratch"] = {
        "origins": [ORIGIN],
        "min_age": rng.choice(("0s", "10m", "2h")),
        "interval": rng.choice(("30s", "5m", "30m")),
    }
    vmids = [rng.choice(BAND) for _ in range(rng.randint(1, 8))]
    for vmid in vmids:
        _restore(plan, rng, vmid, rng.uniform(0, plan.end))
    if rng.random() < 0.7:
        _trouble(plan, rng, rng.choice(vmids))


def _restore(plan: Plan, rng: Random, vmid: int, t: float) -> None:
    by = ORIGIN if rng.random() < 0.7 else rng.choice(("root@pam", "alice@pve"))
    plan.at(t, f"restore {vmid} by {by}{rng.choice(('', ' killed'))}")
    traits = ("protection=true", "template=true", "tags=guestward-scratch", "onboot=true", 'storage=["nas"]', "pool=guestward")
    for trait in rng.sample(traits, rng.choice((0, 0, 1, 2))):
        plan.at(t + rng.uniform(0, HOUR), f"set {vmid} {trait}")
    later = t + rng.uniform(1, 3 * HOUR)
    deeds = (
        *(f"start {vmid}", f"start {vmid}", f"stop {vmid}", f"destroy {vmid}", f"hold {vmid} for {seconds(rng.uniform(60, DAY))}"),
        *(f"claim {vmid} for {seconds(rng.uniform(60, DAY))}", f"ha {vmid} started", f"lock {vmid} backup", f"unlock {vmid}"),
        *(f"restore {vmid} by {ORIGIN}", f"migrate {vmid} away", f"rearm {vmid}"),
    )
    for deed in rng.sample(deeds, rng.choice((0, 1, 1, 2))):
        plan.at(later, deed)
        if deed.endswith(" away"):
            plan.at(later + rng.uniform(1, DAY), f"migrate {vmid} here")
    if rng.random() < 0.3:
        plan.at(later, f'fail next {rng.choice(STEPS)} "it cannot be"')
    if rng.random() < 0.4:
        who = rng.choice(("", " user", " token"))
        plan.at(later + rng.uniform(-HOUR, HOUR), f"revoke {rng.choice(RIGHTS)} /vms/{rng.choice(BAND)}{who}")


def _trouble(plan: Plan, rng: Random, vmid: int) -> None:
    """Right when a step reaches the world, or soon after."""
    step, delay = rng.choice(STEPS), rng.choice((0.0, 0.5, 1.0, 3.0, 30.0))
    begins, ends = rng.choice(
        (
            ("agent kill", "agent restart"),
            ("agent restart", ""),
            ("api down", "api up"),
            ("helper down", "helper up"),
            ("quorum lost", "quorum back"),
            (f"hold {vmid}", f"release {vmid}"),
            ("maintenance on", "maintenance off"),
            (f"revoke VM.Config.Disk /vms/{vmid}", ""),
            (f"clock wall {rng.choice(('+', '-'))}3h", ""),
        )
    )
    plan.after(vmid, begins, delay, step)
    if ends:
        plan.after(vmid, ends, delay + rng.choice((1.0, 20.0, 10 * MINUTE)), step)
