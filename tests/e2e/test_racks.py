"""Bytes of clients that cross racks, as brokers count them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import ledgermq
from tests.e2e.admin_port import AdminPort
from tests.e2e.processes import QUICK, BrokerProcesses

SENT = 200_000
"""Bytes of a record that no compression makes smaller."""


@pytest.mark.slow
async def test_bytes_of_clients_are_counted_by_their_racks(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), QUICK) as brokers:
        broker = brokers.start("--admin-port", "0", "--log-format", "json", "--rack", "zone-1")
        async with ledgermq.connect(brokers.addresses, rack="zone-1") as same:
            await same.create_topic("t", 1)
            async with same.producer() as producer:
                await producer.send("t", os.urandom(SENT))
        async with (
            ledgermq.connect(brokers.addresses, rack="zone-2") as other,
            other.consumer("t", start="earliest") as consumer,
        ):
            assert len((await anext(consumer)).value) == SENT
        async with ledgermq.connect(brokers.addresses) as unknown:
            async with unknown.producer() as producer:
                for _ in range(2):
                    await producer.send("t", os.urandom(SENT))
            found = {each.rack: each for each in (await unknown.describe_costs()).traffic}
            assert (await unknown.describe_costs("t")).traffic, "of all topics"
        assert SENT < found["same"].bytes_in < 1.5 * SENT
        assert found["same"].bytes_out < SENT / 2
        assert SENT < found["other"].bytes_out < 1.5 * SENT
        assert found["other"].bytes_in < SENT / 2
        assert 2 * SENT < found["unknown"].bytes_in < 2.5 * SENT
        metric = AdminPort(broker).metrics()["ledgermq_client_bytes_total"]
        assert metric["in", "same"] == found["same"].bytes_in
        assert metric["out", "other"] == found["other"].bytes_out


@pytest.mark.slow
async def test_records_without_a_key_do_not_cross(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), (*QUICK, "--bundles", "5")) as brokers:
        for number in (1, 2):
            brokers.start("--rack", f"zone-{number}")
        async with ledgermq.connect(brokers.addresses, rack="zone-1") as client:
            await client.create_topic("t", 8)
            async with asyncio.timeout(60):
                while len({part.owner for part in (await client.describe_topic("t")).partitions}) < 2:
                    await asyncio.sleep(0.2)

            async def crossed() -> int:
                return sum(each.bytes_in for each in (await client.describe_costs()).traffic if each.rack == "other")

            async with client.producer() as producer:
                before = await crossed()
                for _ in range(20):
                    await producer.send("t", os.urandom(SENT))
                assert await crossed() - before < SENT, "what calls cost besides records"
                before = await crossed()
                for number in range(20):
                    await producer.send("t", os.urandom(SENT), key=f"{number}")
                assert await crossed() - before > 4 * SENT, "a key has its partition"
