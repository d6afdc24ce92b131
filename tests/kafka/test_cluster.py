"""A client that knows one of three brokers is sent to its group's coordinator, and goes on when that broker leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

DEADLINE_S = 150.0  # all brokers and clients share this process
GROUPS = 3


async def start(folder: Path) -> Node:
    settings = load_settings(
        port=0, kafka_port=0, auto_create_topics=True, default_partitions=3, background_compaction=False
    )
    return await Node.start(folder.as_uri(), settings, Sources())


async def test_members_go_on_when_brokers_leave_one_by_one(tmp_path: Path) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    nodes = [await start(tmp_path) for _ in range(3)]
    addresses = [str(node.kafka_address) for node in nodes]
    consumers = [
        AIOKafkaConsumer(
            "t",
            bootstrap_servers=addresses[number % 3],
            group_id=f"g{number}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=1000,
        )
        for number in range(GROUPS)
    ]
    try:
        patient = AIOKafkaProducer(bootstrap_servers=addresses, request_timeout_ms=int(DEADLINE_S * 1000))
        async with asyncio.timeout(800), patient as producer:
            await producer.send_and_wait("t", b"0", partition=0)
            for consumer in consumers:
                await consumer.start()
            for number in range(3):
                if number:
                    await nodes.pop(0).stop()
                    await producer.send_and_wait("t", b"%d" % number, partition=0)
                for consumer in consumers:
                    message = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
                    assert message.value == b"%d" % number
                    await consumer.commit()
    finally:
        for consumer in consumers:
            await consumer.stop()
        for node in nodes:
            await node.stop()


async def test_a_transaction_goes_on_when_its_brokers_leave(tmp_path: Path) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    nodes = [await start(tmp_path) for _ in range(3)]
    addresses = [str(node.kafka_address) for node in nodes]
    wait_ms = int(DEADLINE_S * 1000)
    try:
        patient = AIOKafkaProducer(bootstrap_servers=addresses, transactional_id="x", request_timeout_ms=wait_ms)
        async with asyncio.timeout(800), patient as producer:
            for number in range(3):
                await producer.begin_transaction()
                for partition in range(3):
                    await producer.send_and_wait("t", b"%d first" % number, partition=partition)
                if number:
                    await nodes.pop(0).stop()
                for partition in range(3):
                    await producer.send_and_wait("t", b"%d second" % number, partition=partition)
                await producer.commit_transaction()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=str(nodes[0].kafka_address),
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        async with asyncio.timeout(DEADLINE_S), consumer:
            consumer.assign([TopicPartition("t", partition) for partition in range(3)])
            await consumer.seek_to_beginning()
            found: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
            for _ in range(18):
                message = await consumer.getone()
                found[message.partition].append(message.value)
            wanted = [b"%d %s" % (number, which) for number in range(3) for which in (b"first", b"second")]
            assert found == dict.fromkeys(range(3), wanted)
    finally:
        for node in nodes:
            await node.stop()
