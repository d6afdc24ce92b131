"""How readers of a backlog wait for records that are on their way to the store."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from ledgermq_broker.bundle.shared.byte_budget import ByteBudget
from ledgermq_broker.paths.fetching.giving_way import CREDIT_S_MAX, GivingWay
from tests.virtual_time import run_virtual

SHARE = 0.25


async def waited(way: GivingWay) -> float:
    began = asyncio.get_running_loop().time()
    await way.give_way()
    return asyncio.get_running_loop().time() - began


def test_a_reader_waits_until_nothing_is_under_way() -> None:
    async def run() -> None:
        admitted = ByteBudget(1000)
        way = GivingWay(admitted, SHARE)
        assert await waited(way) == 0
        assert admitted.take(10)
        assert admitted.take(20)
        asyncio.get_running_loop().call_later(0.002, admitted.give, 10)
        asyncio.get_running_loop().call_later(0.004, admitted.give, 20)
        assert 0.0039 < await waited(way) < 0.0041
        assert await waited(way) == 0

    run_virtual(run)


def test_a_reader_with_no_share_never_waits() -> None:
    async def run() -> None:
        admitted = ByteBudget(1000)
        assert admitted.take(10)
        way = GivingWay(admitted, 0.0)
        for _ in range(10):
            assert await waited(way) == 0
            await asyncio.sleep(1)

    run_virtual(run)


@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.05, 0.25, 1.0]), chance=st.sampled_from([0.1, 0.5, 1.0]))
def test_a_reader_waits_for_its_share_at_most_and_for_that_if_producers_never_rest(
    seed: int, share: float, chance: float
) -> None:
    """`chance`: that a record is under way when the reader has something to send."""

    async def run() -> None:
        loop, draw, admitted = asyncio.get_running_loop(), random.Random(seed), ByteBudget(1000)
        way, began, all_waits_s = GivingWay(admitted, share), loop.time(), 0.0
        for _ in range(400):
            if draw.random() < chance and admitted.is_empty.is_set():
                assert admitted.take(1)
                if chance < 1:
                    loop.call_later(draw.uniform(0, 0.01), admitted.give, 1)
            all_waits_s += await waited(way)
            worked_s = loop.time() - began - all_waits_s
            assert all_waits_s <= share * worked_s + CREDIT_S_MAX + 1e-6
            await asyncio.sleep(draw.uniform(0, 0.005))
        if chance == 1:
            assert all_waits_s > 0.9 * share * (loop.time() - began - all_waits_s)

    run_virtual(run)
