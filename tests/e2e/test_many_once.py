"""Transactions of one call with an id each, as the gateway sends them, for longer than a coordinator has room for ids.

The gateway lets a principal send five in a second. A coordinator has room for 100,000 ids, which are 5.6 hours of that,
so it must forget them as fast as they come. All limits are a 500th of the real ones here, the rate is the real one, and
twice as many transactions as there is room for stand for 200,000. Virtual time.
"""

from __future__ import annotations

import asyncio

import pytest

from ledgermq_broker.transactions.state.coordinating import expiry
from ledgermq_broker.transactions.state.limits import EXPIRED_AT_ONCE_MAX, TransactionLimits
from ledgermq_gateway.settings import GatewaySettings
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.transaction_calls import constants_of, served
from tests.e2e.test_client_takeover import client_of

SCALE = 500
REAL = TransactionLimits()
GATEWAY = GatewaySettings()
IDS_MAX = REAL.ids_max // SCALE
KEPT_S = GATEWAY.transaction_kept_ms / SCALE / 1000
LOOK_S = REAL.expiry_look_ms / SCALE / 1000
PER_SECOND = GATEWAY.transactions_per_second_max
COUNT = 2 * IDS_MAX


@in_cluster("a:1", bundles=2, constants=constants_of(ids_max=IDS_MAX, expiry_look_ms=REAL.expiry_look_ms // SCALE))
async def test_ids_of_single_transactions_go_as_fast_as_they_come(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "EXPIRED_AT_ONCE_MAX", EXPIRED_AT_ONCE_MAX // SCALE)
    known_most = 0
    async with client_of(cluster) as client:
        await client.create_topic("a", 1)
        async with client.transactions("billing") as native:
            [partition] = served(cluster).values()
            for number in range(COUNT):
                sent = await client.transactions.send_once(f"web.{number}", [("a", b"1")], open_max=5, kept=KEPT_S)
                assert not sent.repeated
                await asyncio.sleep(1 / PER_SECOND)
                known_most = max(known_most, partition.coordinator.size)
                if number % 20 == 0:
                    async with native.begin() as transaction:
                        transaction.send("a", b"native")
        async with client.transactions("billing-2") as native, native.begin() as transaction:
            transaction.send("a", b"native")
        assert known_most < 2 * PER_SECOND * (KEPT_S + LOOK_S) < IDS_MAX
        again = [
            (await client.transactions.send_once(f"web.{number}", [("a", b"1")], open_max=5, kept=KEPT_S)).repeated
            for number in (COUNT - 1, 0)
        ]
        assert again == [True, False], "those of the last hour are known"
