"""Filter functions in real processes: installed by entry points, with a bound of time, and never silent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c
from prometheus_client import CollectorRegistry

import ledgermq
from ledgermq import errors
from ledgermq.client.messages.columns import rows_to_arrow
from ledgermq.filters.functions import installed
from ledgermq.protocol.batches.records import encode_batch
from ledgermq.sources import Sources
from ledgermq_broker.filter_functions import processes
from ledgermq_broker.filter_functions.judging import BatchPlace, FilterFunctionCounts
from ledgermq_broker.filter_functions.processes import ProcessFunctions
from ledgermq_broker.metrics.features.functions import FunctionMetrics
from ledgermq_broker.node import Hooks, Node
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from tests.e2e.filter_functions import NAMES, install

MESSAGE_S = 2.0
"""For functions that hang: a busy machine holds up another message, or the start of its process, for less."""


class Counted(FilterFunctionCounts):
    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.stops = 0

    def judged(self, function: str, outcome: str, records: int) -> None:
        self.outcomes[outcome] += records

    def stopped(self, function: str) -> None:
        self.stops += 1


class Functions:
    """The functions of the test, of which a message has `message_s`."""

    def __init__(self, message_s: float) -> None:
        self.counted = Counted()
        self.pauses = 0
        """How often a batch was not finished within a call."""
        self.inner = ProcessFunctions(installed(), lambda: message_s, self.counted)

    async def kept(self, function: str, count: int = 20, at: int = 0) -> list[int]:
        """Judge a batch of the numbers below `count`, and return those that are kept. As readers do, ask again for
        what is not finished within a call.
        """
        data = encode_batch(rows_to_arrow([(None, b"%d" % number, None, 5, None) for number in range(count)]))
        batch = StoredBatch(at, count, crc32c(data), data)
        while True:
            try:
                judgement = await self.inner.judge(function, BatchPlace(1, 0, at, batch.crc), batch)
                break
            except errors.Unavailable as error:
                if "goes on" not in error.message:
                    raise
                self.pauses += 1
        bits = pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(judgement.passes)]).to_pylist()
        found = [number for number in range(count) if bits[number]]
        assert len(found) == judgement.kept
        return found


@asynccontextmanager
async def functions_of(message_s: float = 30.0) -> AsyncIterator[Functions]:
    found = Functions(message_s)
    try:
        yield found
    finally:
        await found.inner.close()


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)


async def test_a_function_sees_each_message_and_what_it_prints_disturbs_nothing() -> None:
    async with functions_of() as functions:
        assert await functions.kept("even") == list(range(0, 20, 2))
        assert await functions.kept("even", 3000, at=20) == list(range(0, 3000, 2))
        assert functions.counted.outcomes == {"kept": 1510, "left_out": 1510}
        assert await functions.kept("even") == list(range(0, 20, 2))
        assert functions.counted.outcomes.total() == 3020, "verdicts are kept for readers that come again"


async def test_an_unknown_name_and_functions_that_cannot_be_loaded_are_typed_errors() -> None:
    async with functions_of() as functions:
        with pytest.raises(
            errors.UnknownFunction, match=r"no filter function 'os\.system', it has by_everything, even"
        ):
            await functions.kept("os.system")
        for name, why in (("missing", "AttributeError"), ("wrong", "does not name a function")):
            with pytest.raises(errors.Unavailable, match=f"{name}.*cannot be loaded: .*{why}"):
                await functions.kept(name)
        assert functions.counted.outcomes == {}


async def test_where_it_raises_a_message_is_left_out_and_counted() -> None:
    async with functions_of() as functions:
        assert await functions.kept("raising") == [number for number in range(20) if number % 3]
        assert functions.counted.outcomes == {"kept": 13, "raised": 7}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hanging", "exiting"])
async def test_a_message_without_a_verdict_is_tried_twice_then_left_out_and_counted(name: str) -> None:
    async with functions_of(MESSAGE_S) as functions:
        assert await functions.kept(name) == [number for number in range(20) if number != 7]
        assert functions.counted.outcomes == {"kept": 19, "overtime": 1}
        assert functions.counted.stops == 2


async def test_a_stall_that_passes_loses_nothing() -> None:
    async with functions_of(MESSAGE_S) as functions:
        assert await functions.kept("hanging_once") == list(range(20))
        assert (functions.counted.outcomes, functions.counted.stops) == ({"kept": 20}, 1)


async def test_a_slow_function_goes_on_where_it_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BATCH_S", 0.4)
    async with functions_of() as functions:
        assert await functions.kept("slow", 60) == list(range(0, 60, 2))
        assert functions.pauses > 0, "no single call is as long as the batch"
        assert functions.counted.outcomes == {"kept": 30, "left_out": 30}, "no message is judged twice, or left out"


async def test_a_reader_that_goes_away_leaves_a_sound_function() -> None:
    async with functions_of() as functions:
        leaving = asyncio.create_task(functions.kept("slow", 100))
        await asyncio.sleep(1.0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await functions.kept("slow", 30, at=100) == list(range(0, 30, 2))


async def test_verdicts_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BATCHES_KEPT_MAX", 3)
    async with functions_of() as functions:
        for at in range(0, 200, 20):
            assert len(await functions.kept("even", at=at)) == 10
        assert len(functions.inner._outcomes) == 3


# -- from end to end, in an embedded broker


def embedded(test: Callable[[ledgermq.Client], Awaitable[None]]) -> Callable[[Path], Awaitable[None]]:
    async def run(tmp_path: Path) -> None:
        async with ledgermq.connect(f"file://{tmp_path}/root") as client:
            await client.create_topic("t", 1)
            async with client.producer(batch_bytes_max=100) as producer:
                for number in range(100):
                    await producer.send(
                        "t", f"{number}", key=b"k", tag="AB"[number % 2 == 0], headers={"n": str(number)}
                    )
            await test(client)

    return run


async def read(client: ledgermq.Client, text: str) -> list[int]:
    async with client.consumer("t", until_end=True, filter=text) as consumer:
        return [int(message.value or b"") async for message in consumer]


@embedded
async def test_consumers_get_what_functions_keep(client: ledgermq.Client) -> None:
    assert await read(client, "FUNCTION('even')") == list(range(0, 100, 2))
    assert await read(client, "FUNCTION('even') AND n > 90") == [92, 94, 96, 98]
    assert await read(client, "FUNCTION('by_everything')") == [5]
    async with client.consumer("t", until_end=True, filter="FUNCTION('raising')") as consumer:
        assert len([message async for message in consumer]) == 66
        assert (consumer.filter_counts.failed, consumer.filtered, consumer.position(0)) == (34, 34, 100)
    with pytest.raises(errors.UnknownFunction, match="it has by_everything"):
        await read(client, "FUNCTION('odd')")


def test_the_names_are_those_of_the_entry_points() -> None:
    assert set(NAMES) <= set(installed())


@pytest.mark.slow
async def test_a_message_has_the_time_that_is_set(tmp_path: Path) -> None:
    settings = load_settings(None, filter_message_ms_max=round(MESSAGE_S * 1000), port=0)
    registry = CollectorRegistry()
    counted = FunctionMetrics(registry)
    async with await Node.start(f"file://{tmp_path}/root", settings, Sources(), hooks=Hooks(functions=counted)) as node:
        async with ledgermq.connect(node.address) as client:
            await client.create_topic("t", 1)
            async with client.producer() as producer:
                for number in range(10):
                    producer.send("t", f"{number}")
            begin_s = asyncio.get_running_loop().time()
            async with client.consumer("t", until_end=True, filter="FUNCTION('hanging')") as consumer:
                assert [message.value async for message in consumer] == [b"%d" % n for n in range(10) if n != 7]
                assert consumer.filter_counts.failed == 1
            took_s = asyncio.get_running_loop().time() - begin_s
            assert 2 * MESSAGE_S <= took_s < 60, "twice the time that is set"
        for outcome, records in (("kept", 9), ("overtime", 1)):
            labels = {"function": "hanging", "outcome": outcome}
            assert registry.get_sample_value("ledgermq_filter_function_records_total", labels) == records
        assert registry.get_sample_value("ledgermq_filter_function_stops_total", {"function": "hanging"}) == 2
