"""A process that was stopped notices it when it goes on."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq_broker.cluster.pulse import Pulse
from tests.simulation.loop import Process, SimulatedLoop, run_simulated


def test_a_process_that_was_stopped_notices_it_once_and_one_that_is_only_late_does_not() -> None:
    async def main(loop: SimulatedLoop) -> None:
        process, went_on = Process(loop, "p"), list[float]()
        pulse = Pulse(lambda: went_on.append(loop.time()))
        process.spawn(pulse.run())
        await asyncio.sleep(10)
        for seconds in (1.0, 5.0):
            process.pause()
            await asyncio.sleep(seconds)
            process.resume()
            await asyncio.sleep(10)
        assert went_on == [pytest.approx(26.0)]
        assert pulse.went_on_at == went_on[0]
        assert 4.0 < pulse.stood_still_s <= 5.0

    run_simulated(main)
