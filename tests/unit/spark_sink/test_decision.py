"""The decision of an epoch: a golden file that stays readable forever, a round trip, damage that
is found, and who is too late.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.staged_rows import remove_done
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.sinks import Decision
from ledgermq_ledger.sinks import decode_decision as decode
from ledgermq_ledger.sinks import encode_decision as encode
from ledgermq_spark.sink.epochs.decision import decide, is_settled, read_decision
from ledgermq_spark.sink.epochs.staging import read_staged
from tests.stores.backends import seeded_sources

GOLDEN = Path(__file__).parents[2] / "golden" / "sink-decision-v1.json"
GOLDEN_OF_TRANSACTION = GOLDEN.with_name("sink-decision-v2.json")
DECISION = Decision(
    b"p" * 16,
    1_700_000_000_000,
    12,
    (keys.sink_staged_rows("q", 3, b"a" * 16), keys.sink_staged_rows("q", 3, b"b" * 16)),
    {"t": 7, "u": 9},
    {TopicPartition("t", 0): 41, TopicPartition("t", 11): 0, TopicPartition("u", 1): 2**40},
)


def test_the_golden_file_is_read() -> None:
    assert decode(GOLDEN.read_bytes(), "x") == DECISION
    assert encode(DECISION) == GOLDEN.read_bytes()


NUMBER = st.integers(0, 2**63 - 1)


TOPICS = st.dictionaries(st.text(), NUMBER, min_size=1, max_size=3)


@given(st.binary(min_size=16, max_size=16), NUMBER, st.lists(st.text(), max_size=3), TOPICS, st.data())
def test_a_decision_that_is_written_is_read_again(
    put_id: bytes, number: int, objects: list[str], topics: dict[str, int], data: st.DataObject
) -> None:
    places = st.builds(TopicPartition, st.sampled_from(sorted(topics)), st.integers(0, 99))
    decision = Decision(
        put_id, number, number, tuple(objects), topics, data.draw(st.dictionaries(places, NUMBER, max_size=5))
    )
    assert decode(encode(decision), "x") == decision


@given(st.data())
def test_damage_is_found(data: st.DataObject) -> None:
    """Every cut, and every other byte: a typed error, or another decision of the same form."""
    content = bytearray(GOLDEN.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 2))]
        with pytest.raises(DataDamaged, match=r"^some/key"):
            decode(bytes(content), "some/key")
    else:
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        with suppress(DataDamaged, FormatNotSupported):
            assert isinstance(decode(bytes(content), "some/key"), Decision)


def test_another_version_is_refused() -> None:
    with pytest.raises(FormatNotSupported, match="format version 3, this software reads 1 and 2"):
        decode(GOLDEN.read_bytes().replace(b'"format_version": 1', b'"format_version": 3'), "x")


def test_the_golden_file_of_a_transaction_is_read() -> None:
    decision = Decision(b"p" * 16, 1_700_000_000_000, 12, (), {}, {}, "spark-0a")
    assert decode(GOLDEN_OF_TRANSACTION.read_bytes(), "x") == decision
    assert encode(decision) == GOLDEN_OF_TRANSACTION.read_bytes()


@pytest.mark.parametrize(
    ("changed", "to"),
    [
        (b'"format_version": 2', b'"format_version": 1'),
        (b'"transactional_id": "spark-0a"', b'"transactional_id": ""'),
        (b'"objects": []', b'"objects": ["sinks/q/staged/x"]'),
    ],
)
def test_a_decision_is_for_staged_rows_or_for_a_transaction(changed: bytes, to: bytes) -> None:
    """Software of before the transactions refuses version 2, and never publishes its no rows."""
    content = GOLDEN_OF_TRANSACTION.read_bytes()
    assert changed in content
    with pytest.raises(DataDamaged, match=r"^some/key"):
        decode(content.replace(changed, to), "some/key")


def test_the_first_decides_and_old_epochs_stay_settled() -> None:
    async def run() -> None:
        sources = seeded_sources(1)
        store = MemoryStore("", sources)
        other = Decision(b"o" * 16, 1, 0, (), {}, {})
        assert not await is_settled(store, "q", 0)
        for epoch in range(1, 250):
            assert await decide(store, sources, "q", epoch, DECISION) == DECISION
            assert await decide(store, sources, "q", epoch, other) == DECISION
            await store.put_if_absent(keys.sink_done_epoch("q", epoch), [b"."])
            await store.put_if_absent(keys.sink_staged_rows("q", epoch, sources.new_id()), [b"."])
            await remove_done(store, "q", epoch)
        assert await is_settled(store, "q", 3), "its decision is gone, later ones are there"
        assert await read_decision(store, "q", 3) is None
        assert await is_settled(store, "q", 249)
        assert not await is_settled(store, "q", 250)
        assert not await is_settled(store, "another", 3)
        left = [info.key async for info in store.list("sinks/")]
        assert len(left) == 200
        of_transaction = Decision(b"t" * 16, 1, 1, (), {}, {}, "spark-1")
        await decide(store, sources, "q", 250, of_transaction)
        assert not await is_settled(store, "q", 250), "its transaction may be aborted"
        assert await decide(store, sources, "q", 250, other, attempt=1) == other
        assert await read_decision(store, "q", 250, 1) == other
        assert keys.parse_sink(keys.sink_decision("q", 250, 1)) == keys.SinkName("q", "decided", 250)
        left = [info.key async for info in store.list("sinks/")]
        assert all(keys.parse_sink(key) for key in left)

    asyncio.run(run())


def test_staged_rows_that_are_damaged_are_named() -> None:
    async def run() -> None:
        store = MemoryStore("", seeded_sources(1))
        await store.put_if_absent("sinks/q/staged/x", [b"nonsense" * 10])
        with pytest.raises(DataDamaged, match=r"^sinks/q/staged/x, staged rows: ") as damage:
            await read_staged(store, "sinks/q/staged/x")
        assert damage.value.object_key == "sinks/q/staged/x"

    asyncio.run(run())
