"""Delayed records without asyncio: their due times are those of the call, and they cross threads with the
others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.client.settings.values import ClientSettings
from ledgermq.sources import Sources
from ledgermq.sync import Client
from ledgermq.sync.background import Background
from tests.unit.client.delayed_broker import DelayedBroker
from tests.unit.client.hostile import ADDRESS

NOW_US = 1_764_547_200_000_000
SECOND_US = 1_000_000
SOURCES = Sources(now_us=lambda: NOW_US)
"""A wall clock that stands still."""


@asynccontextmanager
async def connection(broker: DelayedBroker) -> AsyncIterator[ledgermq.Client]:
    async with ledgermq.Client(broker, [ADDRESS], ClientSettings(timeout_s=10), SOURCES) as client:
        yield client


@pytest.fixture
def broker() -> DelayedBroker:
    return DelayedBroker()


@pytest.fixture
def client(broker: DelayedBroker) -> Iterator[Client]:
    background = Background()
    opened = connection(broker)
    with Client(background, opened, background.run(opened.__aenter__()), SOURCES) as client:
        yield client


@pytest.mark.parametrize("when_full", ["wait", "fail"])
def test_delayed_records_cross_with_the_others(broker: DelayedBroker, client: Client, when_full: str) -> None:
    with client.producer(when_full=when_full) as producer:
        plain = producer.send("t", b"now", partition=0)
        delayed = producer.send("t", b"later", partition=0, delay=timedelta(seconds=5))
        [listed] = producer.send_many("t", [ledgermq.Record(b"level", partition=0, delay_level=1)])
        producer.flush()
        assert plain.result(60).handle is None
        dues = [delayed.result(60).timestamp_us, listed.result(60).timestamp_us]
    ages_us = [dues[0] - NOW_US - 5 * SECOND_US, dues[1] - NOW_US - SECOND_US]
    assert all(0 <= age_us < 600 * SECOND_US for age_us in ages_us), "the client's loop is real, and has gone on"
    assert [value for block in broker.blocks for value in block.column("value")] == [b"later", b"level"]


def test_a_wrong_delay_is_refused_at_once(broker: DelayedBroker, client: Client) -> None:
    with client.producer() as producer, pytest.raises(errors.InvalidRecord, match="1 to 18"):
        producer.send("t", b"v", delay_level=19)
    assert not broker.blocks


def test_recall_and_list(broker: DelayedBroker, client: Client) -> None:
    with client.producer() as producer:
        handle = producer.send("t", b"v", partition=1, delay=60).result(60).handle
    assert client.recall(handle or "") is ledgermq.RecallOutcome.RECALLED
    client.list_delayed("t", 1, messages_max=7)
    assert [(call.bundle, call.partition, call.max_messages) for call in broker.listed] == [(2, 1, 7)]
