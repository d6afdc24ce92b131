"""Batches that threads decode ahead of the program: the same rows, the same errors at the same
place, and never more than a few.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
from crc32c import crc32c

import ledgermq
from ledgermq import errors
from ledgermq.client.consuming.fetching.prefetch import (
    DATA_BYTES_MIN,
    DECODED_BYTES_MAX,
    RUNS_MAX,
    DecodeAhead,
    Prefetch,
)
from ledgermq.client.consuming.reading import FetchedRun, FlowStep, Reading
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.settings.values import ClientSettings
from ledgermq.protocol.batches.records import decode_batch, encode_batch
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources
from tests.unit.client.hostile import ADDRESS, HostileBroker, fetched
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.batches import batch_of

MIB = 1024 * 1024


class Stepwise(Executor):
    """Does what it was given when the test says so."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self) -> int:
        """How many were done, of those that were not cancelled."""
        done = 0
        while self.waiting:
            future, work = self.waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            done += 1
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
        return done


def large(number: int, size: int = DATA_BYTES_MIN) -> bytes:
    return encode_batch(batch_of([{"value": random.Random(number).randbytes(size)}]))


class Fetched:
    """A prefetch with large batches at the offsets 0, 1, …"""

    def __init__(self, count: int = 0, decoded_bytes_max: int = 256 * MIB) -> None:
        self.threads = Stepwise()
        self.prefetch = Prefetch(64 * MIB, DecodeAhead(self.threads, decoded_bytes_max))
        self.reading = Reading(TopicPartition("t", 0), 1, 0, Backoff(Sources(), 0.001, 0.001))
        for number in range(count):
            self.add(large(number))

    def add(self, data: bytes, crc: int | None = None) -> None:
        offset = self.reading.fetch_at
        self.reading.fetch_at += 1
        self.prefetch.add(
            FetchedRun(self.reading, self.reading.generation, offset, 1, crc32c(data) if crc is None else crc, data)
        )

    def head(self) -> FetchedRun:
        head = self.prefetch.head()
        assert head is not None
        return head

    def rows_of_head(self) -> list[Any]:
        head = self.head()
        rows = self.prefetch.rows(head)
        assert rows.equals(decode_batch(head.data))
        self.prefetch.take(head)
        return rows.column("value").to_pylist()


def test_no_more_than_a_few_are_decoded_ahead_and_others_follow_when_some_were_taken() -> None:
    made = Fetched(3 * RUNS_MAX)
    assert made.threads.run() == RUNS_MAX
    assert made.threads.run() == 0
    for taken in range(3 * RUNS_MAX):
        assert made.rows_of_head() == decode_batch(large(taken)).column("value").to_pylist()
        assert made.threads.run() == (1 if taken < 2 * RUNS_MAX else 0)


def test_what_no_thread_has_begun_is_decoded_by_who_asks_and_not_a_second_time() -> None:
    made = Fetched(1)
    made.rows_of_head()
    assert made.threads.run() == 0


def test_a_small_batch_is_handed_to_no_thread() -> None:
    made = Fetched()
    made.add(large(0, 100))
    assert not made.threads.waiting
    made.rows_of_head()


@pytest.mark.parametrize("ahead", [True, False])
def test_a_damaged_batch_is_told_when_it_is_asked_for_each_time_in_the_same_words(ahead: bool) -> None:
    made = Fetched(1)
    made.add(large(1), crc=1)
    if ahead:
        made.threads.run()
    made.rows_of_head()
    for _ in range(2):
        with pytest.raises(
            errors.CorruptFrame, match=r"^t/0, offsets 1 to 1: the checksum .*; seek past it to continue$"
        ):
            made.prefetch.rows(made.head())


def test_a_batch_too_large_to_be_decoded_ahead_is_decoded_when_it_is_asked_for() -> None:
    made = Fetched()
    made.add(
        encode_batch(
            batch_of([{"value": bytes(DECODED_BYTES_MAX) + random.Random(0).randbytes(DATA_BYTES_MIN)}]), "zstd"
        )
    )
    assert made.threads.run() == 1
    made.rows_of_head()


def test_a_batch_above_the_programs_own_bound_is_refused() -> None:
    made = Fetched(1, decoded_bytes_max=DATA_BYTES_MIN)
    made.threads.run()
    with pytest.raises(errors.MessageTooLarge):
        made.prefetch.rows(made.head())


def test_batches_before_a_seek_are_not_decoded() -> None:
    made = Fetched(RUNS_MAX)
    made.reading.seek(0)
    made.prefetch.drop_unwanted()
    assert made.threads.run() == 0
    assert not made.prefetch.ahead._begun
    made.add(large(7))
    assert made.threads.run() == 1
    assert made.rows_of_head() == decode_batch(large(7)).column("value").to_pylist()


def test_a_partition_that_is_held_back_is_not_decoded_ahead() -> None:
    made = Fetched()
    made.reading.turn(FlowStep.HOLD_BACK)
    made.add(large(0))
    assert not made.threads.waiting


def test_a_prefetch_that_is_cleared_leaves_nothing_to_threads() -> None:
    made = Fetched(RUNS_MAX)
    made.prefetch.clear()
    assert made.threads.run() == 0


async def _consumed(client: ledgermq.Client, broker: HostileBroker) -> None:
    """Good, good, damaged, good: the good ones first, then the error until the program seeks past
    it.
    """
    data = [large(number) for number in range(4)]
    frames = [fetched(each, count=1, base=number, crc=1 if number == 2 else None) for number, each in enumerate(data)]
    broker.fetches = [frames, frames[3:]]
    consumer = client.consumer("t", partitions=[0])
    while (position := consumer.position(0) if consumer.state != "new" else 0) < 2:
        assert [message.offset for message in await consumer.fetch(1)] == [position]
    for _ in range(3):
        with pytest.raises(errors.CorruptFrame, match="t/0, offsets 2 to 2"):
            await consumer.fetch()
        with pytest.raises(errors.CorruptFrame, match="t/0, offsets 2 to 2"):
            await consumer.fetch_arrow()
        with pytest.raises(errors.CorruptFrame, match="t/0, offsets 2 to 2"):
            await anext(consumer)
        assert consumer.position(0) == 2
    await consumer.seek(3)
    table = await consumer.fetch_arrow()
    assert (table["offset"].to_pylist(), table["value"].to_pylist()) == (
        [3],
        decode_batch(data[3]).column("value").to_pylist(),
    )


@pytest.mark.parametrize("threads", [0, 1, 2])
@virtual
async def test_a_consumer_hands_out_and_refuses_the_same_with_threads_and_without(threads: int) -> None:
    broker = HostileBroker()
    settings = ClientSettings(timeout_s=5, attempt_timeout_s=2)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        async with ledgermq.Client(
            broker, [ADDRESS], settings, virtual_sources(5), pool if threads else None
        ) as client:
            await _consumed(client, broker)
