"""Cause disturbances: pauses, kills, restarts and clock jumps, by the seed's own dice."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.simulation.loop import Process, State
from tests.simulation.plan import RunPlan
from tests.simulation.world import World


async def fill_and_free(world: World, full: float, seconds_max: float = 8.0) -> None:
    """The store is full now and then: it refuses this share of puts, of all or of the large ones.

    Until cancelled.
    """
    r = random.Random(f"filling {world.seed}")
    while full:
        await asyncio.sleep(r.expovariate(1 / seconds_max))
        world.weather.full, world.weather.full_for_all = full, r.random() < 0.5
        world.note("world", f"the store is full, for {'all' if world.weather.full_for_all else 'data'}")
        world.coverage.saw("disturbance: full store")
        await asyncio.sleep(r.uniform(0, seconds_max))
        world.weather.full = 0.0
        world.note("world", "the store has room")


class Disturbances:
    """`victims`: who may be hurt now. `restart(name)` starts a new incarnation."""

    def __init__(
        self, world: World, plan: RunPlan, victims: Callable[[], Sequence[Process]], restart: Callable[[str], None]
    ) -> None:
        self._world = world
        self._plan = plan
        self._victims = victims
        self._restart = restart
        self.more: list[Callable[[Process], None]] = []
        """Other things that may happen to a victim."""
        self.jump_s_max = 3600.0
        self._pending: list[asyncio.Task[None]] = []
        self._healing = asyncio.Event()

    async def run(self) -> None:
        random = self._world.random
        while True:
            await asyncio.sleep(random.expovariate(1 / self._plan.event_every_s))
            victims = [process for process in self._victims() if process.state is State.RUNNING]
            if not victims:
                continue
            victim = random.choice(victims)
            what = random.choices(
                (self._pause, self._kill, self._jump, *self.more), (6, 3, 1, *(2 for _ in self.more))
            )[0]
            what(victim)

    def _pause(self, victim: Process) -> None:
        seconds = self._world.random.uniform(0, self._plan.pause_s_max)
        self._note(victim, f"paused for {seconds:.1f} s", "pause")
        victim.pause()
        self.later(seconds, lambda: self._wake(victim))

    def _wake(self, victim: Process) -> None:
        if victim.state is State.PAUSED:
            self._world.note(victim.name, "resumed")
            victim.resume()

    def _kill(self, victim: Process) -> None:
        seconds = self._world.random.uniform(0, 5)
        self._note(victim, f"killed, back in {seconds:.1f} s", "kill")
        victim.kill()
        self.later(seconds, lambda: self._restart(victim.name))

    def _jump(self, victim: Process) -> None:
        seconds = self._world.random.uniform(-self.jump_s_max, self.jump_s_max)
        self._note(victim, f"clock jumps by {seconds:.0f} s", "clock jump")
        self._world.skew_us[victim.name] += round(seconds * 1e6)

    def _note(self, victim: Process, what: str, kind: str) -> None:
        self._world.note(victim.name, what)
        self._world.coverage.saw(f"disturbance: {kind}")

    def restart_later(self, victim: Process) -> None:
        """The process ends by itself; it comes back in a while."""
        self._world.coverage.saw("a process ended by itself")
        victim.kill()
        self.later(1.0, lambda: self._restart(victim.name))

    def later(self, seconds: float, work: Callable[[], object]) -> None:
        """`work` may be a coroutine function; `heal` has all of them done at once, and waits for
        them.
        """

        async def wait() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._healing.wait()
            done = work()
            if inspect.isawaitable(done):
                await done

        self._pending.append(self._world.loop.in_world(wait()))

    async def heal(self) -> None:
        """Wake and restart at once all that was hurt."""
        self._healing.set()
        for process in self._world.loop.processes:
            self._wake(process)
        await asyncio.gather(*self._pending)
