"""The memory of producers against plain lists: it is packed, stored by a checkpoint, loaded and handed over, and
judges by what it was told all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ledgermq_ledger.log.partitions.producers
from ledgermq.errors import ProducerError
from ledgermq.protocol.limits import WINDOW_BATCHES
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.producers import Producers, ProducerSession, RememberedBatch

STATES_MAX = 4
PRODUCERS = [b"a" * 16, b"b" * 16, b"c" * 16]
PARTITIONS = [PartitionId(1, 0), PartitionId(1, 1), PartitionId(1 << 40, 1)]
Key = tuple[bytes, PartitionId]
Known = tuple[int, list[RememberedBatch]]

batches = st.tuples(
    st.sampled_from(PRODUCERS),
    st.sampled_from(PARTITIONS),
    st.integers(0, 2),
    st.integers(1, 1 << 31),
    st.sampled_from([0, 1, 1 << 31]),
)
between = st.sampled_from(["", "", "copied", "stored", "loaded", "handed over", "left", "removed"])


@pytest.fixture(autouse=True, scope="module")
def few_at_once() -> Iterator[None]:
    """Of the oldest states only some are looked up at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledgermq_ledger.log.partitions.producers, "OLDEST_AT_ONCE", 2)
        yield


def told(
    producers: Producers, key: Key, session: ProducerSession, count: int, crc: int
) -> RememberedBatch | str | None:
    try:
        return producers.judge(session, *key[1], count, crc)
    except ProducerError as error:
        return type(error).__name__


def expected(known: Known | None, session: ProducerSession, count: int, crc: int) -> RememberedBatch | str | None:
    if known is None:
        return None if session.sequence == 0 else "UnknownProducer"
    epoch, remembered = known
    if session.epoch != epoch:
        return "ProducerEpochFenced" if session.epoch < epoch else "OutOfOrderSequence" if session.sequence else None
    if session.sequence == remembered[-1].sequence + remembered[-1].record_count:
        return None
    found = (each for each in remembered if (each.sequence, each.record_count) == (session.sequence, count))
    stored = next(found, None)
    if session.sequence + count <= remembered[0].sequence:
        return "SequencePassed"
    return stored if stored is not None and (not crc or stored.crc in (0, crc)) else "OutOfOrderSequence"


def check(producers: Producers, model: dict[Key, Known]) -> None:
    opened = producers.forgotten_to + 1
    assert len(producers) == len(model)
    for key in ((producer, partition) for producer in PRODUCERS for partition in PARTITIONS):
        known = model.get(key)
        following = 0 if known is None else known[1][-1].sequence + known[1][-1].record_count
        assert producers.next_sequence(key[0], *key[1]) == following
        tried = [(following, 7), (following + 1, 7), (0, 7)]
        tried += [] if known is None else [(each.sequence, each.record_count) for each in known[1]]
        for sequence, count in tried:
            for epoch in range(3):
                session = ProducerSession(key[0], epoch, sequence, opened)
                for crc in (0, 1, 2, 1 << 31):
                    assert told(producers, key, session, count, crc) == expected(known, session, count, crc)


def loaded(producers: Producers) -> Producers:
    again = Producers(STATES_MAX)
    again.load(fmt.LedgerState.FromString(producers.encode()).producers, producers.forgotten_to)
    return again


@given(st.lists(st.tuples(batches, between), max_size=30))
def test_it_judges_by_the_last_batches(steps: list[tuple[tuple[bytes, PartitionId, int, int, int], str]]) -> None:
    producers = Producers(STATES_MAX)
    model: dict[Key, Known] = {}
    for slot, ((producer, partition, epoch, count, crc), then) in enumerate(steps, 1):
        key = (producer, partition)
        before = model.pop(key, (epoch, []))
        remembered = before[1] if before[0] == epoch else []
        sequence = remembered[-1].sequence + remembered[-1].record_count if remembered else 0
        newest = RememberedBatch(sequence, count, 1000 * slot, slot, crc)
        entry = fmt.BatchEntry(
            topic_id=partition.topic_id,
            partition=partition.partition,
            base_offset=newest.base_offset,
            record_count=count,
            producer_id=producer,
            producer_epoch=epoch,
            sequence=sequence,
            sent_crc=crc,
        )
        producers.add(entry, slot)
        model[key] = (epoch, [*remembered, newest][-WINDOW_BATCHES:])
        if len(model) > STATES_MAX:
            oldest = model.pop(next(iter(model)))
            assert producers.forgotten_to == oldest[1][-1].slot
        if then == "copied":
            producers = producers.copy()
        elif then == "stored":
            assert producers.encode() == loaded(producers).encode() == producers.encode()
        elif then == "loaded":
            producers = loaded(producers)
        elif then in ("handed over", "left"):
            states = producers.states_of(partition)
            assert [(state.producer_id, state.epoch) for state in states] == [
                (key[0], known[0]) for key, known in model.items() if key[1] == partition
            ]
            producers.drop_partition(partition)
            here = [key for key in model if key[1] == partition]
            moved = {key: model.pop(key) for key in here}
            if then == "handed over":
                producers.take_in(states, slot)
                for gone, (its_epoch, its) in moved.items():
                    model[gone] = (
                        its_epoch,
                        [RememberedBatch(b.sequence, b.record_count, b.base_offset, slot, b.crc) for b in its],
                    )
        elif then == "removed":
            producers.drop_topic(partition.topic_id)
            model = {key: known for key, known in model.items() if key[1].topic_id != partition.topic_id}
        check(producers, model)
