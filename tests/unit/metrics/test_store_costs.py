"""What requests cost, and who pays: parts add up exactly, whatever the prices and the bytes are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq_broker.costs.counted import CLUSTER, REST, StoreCosts
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.prices import PICO, S3_PRICES, Prices, prices_for
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore
from ledgermq_ledger.object_store.wrappers.payers import Payer, divided, paid_by, payers
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from tests.virtual_time import virtual, virtual_sources

T = TypeVar("T")

A, B, C = Payer(1, "user:a"), Payer(1, "user:b"), Payer(2)
PUT, GET = S3_PRICES.picodollars("put"), S3_PRICES.picodollars("get")


@given(st.integers(0, 10**9), st.dictionaries(st.builds(Payer, st.integers(0, 9)), st.integers(0, 10**12), min_size=1))
def test_parts_add_up_and_none_is_off_by_one(amount: int, shares: dict[Payer, int]) -> None:
    parts = dict(divided(amount, shares))
    assert sum(parts.values()) == amount
    assert parts.keys() == shares.keys()
    total = sum(shares.values())
    for payer, part in parts.items():
        assert part >= 0
        if total:
            assert abs(part * total - amount * shares[payer]) < total


def test_a_put_is_paid_by_bytes_and_what_is_for_no_topic_by_the_cluster() -> None:
    costs = StoreCosts(S3_PRICES)
    with paid_by({A: 600, B: 300, C: 100}):
        costs.request_ended("put_if_absent", "OK", 0.1, 1000, 0)
    with paid_by({C: 1}):
        costs.request_ended("get_range", "OK", 0.1, 0, 10)
    costs.request_ended("list", "OK", 0.1, 0, 0)
    costs.request_ended("open_fence", "OK", 0.1, 0, 0)

    found = costs.by_payer([1, 2])
    assert (found[A].writes, found[B].writes) == (PUT * 6 // 10, PUT * 3 // 10)
    assert (found[C].writes, found[C].reads) == (PUT // 10, GET)
    assert found[CLUSTER].total == PUT
    assert costs.total == 2 * PUT + GET


def test_topics_that_are_gone_and_payers_above_the_bound_are_summed_up_for_good() -> None:
    costs = StoreCosts(S3_PRICES, payers_max=2)
    for payer in (A, C, Payer(3)):
        with paid_by({payer: 1}):
            costs.request_ended("put", "OK", 0.1, 1, 0)
    assert {payer: spent.total for payer, spent in costs.by_payer([1, 2, 3]).items()} == {
        A: PUT, C: PUT, REST: PUT, CLUSTER: 0,
    }  # fmt: skip
    assert costs.by_payer([2])[REST].total == 2 * PUT
    assert costs.by_payer([1, 2])[REST].total == 2 * PUT, "a topic's costs do not come back"
    with paid_by({Payer(3): 1}):
        costs.request_ended("put", "OK", 0.1, 1, 0)
    assert costs.by_payer([2, 3])[Payer(3)].total == PUT, "there is room again"


def test_tasks_pay_for_whom_they_were_begun_and_nothing_stays_behind() -> None:
    async def run() -> StoreCosts:
        costs = StoreCosts(S3_PRICES)
        store = MeteredStore(MemoryStore(""), costs)
        with paid_by({A: 1}):
            later = asyncio.create_task(store.put("a", b"x"))
        with paid_by({B: 1}):
            await store.get_range("a", 0, 1) if later.done() else await later
        await store.put("b", b"x")
        assert not payers()
        return costs

    found = asyncio.run(run()).by_payer([1, 2])
    assert found[A].writes == PUT, "begun for A, awaited by B"
    assert B not in found
    assert found[CLUSTER].writes == PUT


def test_another_price_counts_from_now_on() -> None:
    costs = StoreCosts(Prices(write=1.0))
    costs.request_ended("put", "OK", 0.1, 1, 0)
    costs.prices = Prices(write=2.0)
    costs.request_ended("put", "OK", 0.1, 1, 0)
    assert costs.total == 3 * PICO // 1000


def test_prices_are_set_or_those_of_the_store() -> None:
    root, chosen = "s3://bucket", load_settings(None, price_put_dollars=0.02, price_tb_month_dollars=5)
    assert chosen.prices(root) == Prices(write=0.02, read=S3_PRICES.read, tb_month=5)
    assert load_settings(None, price_get_dollars=0).prices(root) == Prices(S3_PRICES.write, 0, 0, S3_PRICES.tb_month)
    assert load_settings(None).prices("file:///x") == prices_for("file:///x") == Prices()
    assert S3_PRICES.storage(10**12) == pytest.approx(23)


class _StandsStill(StoreWrapper):
    """The first put is on its way for ten seconds, and so long that it is sent a second time."""

    puts = 0

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        self.puts += operation == "put_if_absent"
        if operation == "put_if_absent" and self.puts == 1:
            await asyncio.sleep(10)
        return await step()


@virtual
async def test_a_put_that_is_sent_twice_is_paid_twice_by_the_same_principals() -> None:
    costs, spent = StoreCosts(S3_PRICES), Counter[str]()
    costs.on_spent = lambda principal, part, now_s: spent.update({principal: part})
    store = MeteredStore(_StandsStill(MemoryStore("")), costs)
    with paid_by({A: 3, B: 1}):
        outcome = await settle_put(store, "a", [b"x"], sources=virtual_sources(), hedge_after_s=1.0)
    assert outcome is PutOutcome.WON
    await asyncio.sleep(20)
    assert spent == {"user:a": 2 * PUT * 3 // 4, "user:b": 2 * PUT // 4}
    assert costs.by_payer([1])[CLUSTER].total == 0
