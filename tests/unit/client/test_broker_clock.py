"""The brokers' time of a client whose own clock is set while it runs."""

from __future__ import annotations

import asyncio
import random

from ledgermq.client.messages.broker_clock import BrokerClock
from ledgermq.sources import Sources
from tests.virtual_time import EPOCH_US, virtual

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


@virtual
async def test_a_clock_that_is_set_shifts_neither_a_delay_nor_the_brokers_time() -> None:
    wrong_us = [3 * DAY_US]
    loop = asyncio.get_running_loop()
    clock = BrokerClock(
        Sources(lambda: EPOCH_US + wrong_us[0] + round(loop.time() * SECOND_US), random.Random(1)),
    )
    begun_us = clock.local_us()
    wrong_us[0] = -4 * DAY_US
    await asyncio.sleep(5.0)
    assert abs(clock.local_us() - begun_us - 5 * SECOND_US) <= 1
    reported_us = EPOCH_US + 7 * SECOND_US
    clock.learn(reported_us, loop.time())
    assert abs(begun_us + clock.correction_us() - (reported_us - 5 * SECOND_US)) <= 1
    assert abs(clock.now_us() - reported_us) <= 1


def test_without_a_loop_it_is_the_time_of_the_machine() -> None:
    now_us = [EPOCH_US]
    clock = BrokerClock(Sources(lambda: now_us[0], random.Random(1)))
    now_us[0] += SECOND_US
    assert clock.local_us() == clock.now_us() == EPOCH_US + SECOND_US
