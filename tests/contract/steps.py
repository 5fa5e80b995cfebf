"""A simulated host that nobody watches over, and what is done to it."""

from __future__ import annotations

from guestward.sim import verbs
from guestward.sim.run import Simulation
from guestward.sim.world import World


def unwatched(world: World) -> Simulation:
    """The world without an agent."""
    sim = Simulation(world, monitored=False)
    sim.kill()
    return sim


def do(sim: Simulation, *steps: str | float) -> None:
    """Verbs, and seconds that pass."""
    for step in steps:
        if isinstance(step, str):
            verbs.parse(step).run(sim)
        else:
            sim.world.advance(step)
