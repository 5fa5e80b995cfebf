"""A scenario out of a seed: seven virtual days of a host, its guests, and what happens to them. The same seed is the same scenario."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.soak import heal
from tests.soak.episodes import EPISODES, STRANGERS, repairs, start_script
from tests.soak.liveness import bounds
from tests.soak.plan import BAND, DAY, HOUR, MINUTE, Plan, seconds
from tests.soak.scratch import scratch
from tests.soak.toml_text import Data

LEFT_OUT = 0.35  # of the kinds of episodes in each scenario: those that are left meet each other more often
HEALING = 10 * MINUTE
QUIET = 4 * HOUR  # of the days that were asked for; a scenario that needs more at its end is a little longer


def generate(seed: int, days: float = 7) -> Data:
    """The scenario of a seed, as plain data shaped like its TOML file. The faults end about four hours before the days do."""
    rng = Random(seed)
    plan = Plan(rng, max(HOUR, days * DAY - QUIET), _config(rng), [])
    plan.guests += _guests(plan)
    if plan.chance(0.1):
        plan.host["phase"] = plan.pick(("booting", "stopping"))
        plan.then(0.0, "host up", 10, HOUR)
    if plan.chance(0.3):
        plan.deeds += [(0.0, do) for do in STRANGERS]
    _draw(plan, days)
    scratch(plan, Random(f"scratch {seed}"))
    data: Data = {"summary": f"soak, seed {seed}", "until": "", "host": plan.host, "config": plan.config, "guest": plan.guests}
    faults = plan.ordered()
    healed = faults + heal.ends(plan, faults)
    data |= {"at": _entries(healed), "after": plan.reactions}
    limits = bounds(data)
    rearmed = plan.end + HEALING + limits.settle
    data["at"] += _entries(heal.rearms(plan, faults, rearmed))
    data["until"] = seconds(max(days * DAY, rearmed + limits.bound + MINUTE))
    return data


def _entries(deeds: list[tuple[float, str]]) -> list[Data]:
    return [{"t": seconds(t), "do": do} for t, do in sorted(deeds, key=lambda deed: deed[0])]


def _draw(plan: Plan, days: float) -> None:
    """Episodes of the kinds that this scenario has, a few or a few hundred of them."""
    kinds = [kind for kind in EPISODES if not plan.chance(LEFT_OUT)] or EPISODES
    weights = [kind.weight * plan.span(0.3, 3) for kind in kinds]
    for kind in plan.rng.choices(kinds, weights, k=max(3, round(plan.span(20, 130) * days / 7))):
        kind.draw(plan, plan.moment())
    if plan.chance(0.8):
        t, every = 0.0, plan.span(4 * HOUR, 2 * DAY)
        while (t := t + every) < plan.end:
            repairs(plan, round(t, 1))


def _config(rng: Random) -> dict[str, dict[str, Any]]:
    """Each key is mostly left at its default."""
    found: dict[str, dict[str, Any]] = {"watchdog": {}}
    variants: dict[str, tuple[Any, ...]] = {
        "interval": ("30s", "45s", "90s", *("120s",) * 5, *("180s",) * 10, *("240s",) * 5, "300s"),  # a run is its sweeps
        "confirm": ("0s", "5s", "30s", "60s", "90s"),
        "attempts": (1, 2, 3, 5),
        "backoff": (["1m"], ["10s", "20s"], ["1m", "2m", "4m", "8m"], ["5m", "1m"], ["0.1s"], ["15m"]),
        "stable": ("1m", "10m", "1h"),
        "parallel": (1, 2, 4, 16),
        "start_timeout": ("10s", "30s", "2m", "5m"),
        "heartbeat_every": (2, 10, 60),
        "operator_stop": ("hold",),
        "mass_stop": (2, 3, 5, 1000),
        "backup_wait_warn": ("10m", "3h"),
    }
    for key, values in variants.items():
        if rng.random() < (0.93 if key == "interval" else 0.25):
            found["watchdog"][key] = rng.choice(values)
    locks: dict[str, tuple[Any, ...]] = {
        "recover": ("report",),
        "confirm": ("1s", "30s", "5m", "15m"),
        "warn_after": ("1h", "3d"),
    }
    found["locks"] = {key: rng.choice(values) for key, values in locks.items() if rng.random() < 0.15}
    if rng.random() < 0.15:
        found["scope"] = {"pools": ["guestward", "guestward2"]}
    if rng.random() < 0.1:
        found.setdefault("scope", {})["exclude"] = [103]
    if rng.random() < 0.1:
        found["pve"] = {"timeout": rng.choice(("1s", "5s", "90s"))}
    return {section: keys for section, keys in found.items() if keys}


def _guests(plan: Plan) -> list[Data]:
    count = plan.pick((1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 9)) if plan.chance(0.99) else 50
    found = [_guest(plan, 101 + number) for number in range(count)]
    if plan.chance(0.1):
        found.append(_guest(plan, plan.pick(BAND)))
    return found


def _guest(plan: Plan, vmid: int) -> Data:
    """Mostly an owned guest with onboot that runs; each trait may be otherwise."""
    guest: Data = {"vmid": vmid, "kind": plan.pick(("lxc", "lxc", "qemu"))}
    guest["onboot"] = True if plan.chance(0.85) else plan.pick((False, "yes", "0", "off", "On", "2"))
    guest["pool"] = "guestward" if plan.chance(0.9) else plan.pick(("other", "guestward2"))
    rare: dict[str, tuple[Any, ...]] = {
        "status": ("stopped",),
        "name": ("web", "db 1", "größe"),
        "lock": ("backup", "snapshot", "create", "mounted"),
        "template": (True,),
        "ha": ("started", "stopped", "ignored", "null"),
        "tags": ("a;b", "guestward-scratch"),
        "startup": ("order=1", "order=1,up=20", "2", "up=5", "order=3,up=60"),
        "protection": (True,),
        "snapshots": ([{"name": "vzdump", "state": "prepare"}], [{"name": "daily"}]),
        "storage": ("nas", ["local", "ceph-vm"]),
        "start": (start_script(plan),),
        "start_takes": ("0s", "0.5s", "8s", "30s"),
    }
    guest |= {key: plan.pick(values) for key, values in rare.items() if plan.chance(0.03 if key in ("template", "ha") else 0.1)}
    for key, ends in (("lock", f"unlock {vmid}"), ("ha", f"ha {vmid} off")):
        if key in guest:
            plan.then(0.0, ends)
    return guest
