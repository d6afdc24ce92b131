"""A message is stored once within the window of its topic, whatever becomes of owners, puts, checkpoints
and clocks; after the window it is stored again.

Many senders send the same few ids, in batches that hold some of them several times, and send again what
they were not told to leave out, as producers do. The judge knows only the log: two records with one id
are at least a window apart, and each answer names the offset of a record with this id.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgermq.errors import DuplicateMessage, ResourceExhausted, StoreFull
from ledgermq.protocol.naming.message_ids import NO_ID, count_ids, hash_of, split_ids
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.writer import LedgerWriter
from tests.stores.full import RefusingStore
from tests.virtual_time import run_virtual, virtual_sources
from tests.worlds.ledgers import append, batch, ledger_of, take_over

IDS_MAX = 12
CLUSTER = ClusterSettings(producer_states_max=IDS_MAX)
WINDOW_US = 100
NAMES = "abcdefgh"


@dataclass(frozen=True)
class Step:
    what: str
    wait_us: int
    ids: str = ""
    """Of the records of a batch, one letter each; a dot is a record without an id."""
    partition: int = 0


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["send"] * 8 + ["take over", "checkpoint", "refuse"]),
        st.integers(0, 60),
        st.text(NAMES + ".", min_size=1, max_size=6),
        st.integers(0, 1),
    ),
    min_size=2,
    max_size=40,
)


def batch_with(ids: str, partition: int, now_us: int) -> Batch:
    made = batch(*[name.encode() for name in ids], partition=partition)
    hashes = b"".join(NO_ID if name == "." else hash_of(name.encode()) for name in ids)
    return replace(made, ids=hashes, ids_us=now_us, ids_until_us=now_us + WINDOW_US)


class Life:
    def __init__(self) -> None:
        self.sources = virtual_sources(1)
        self.store = RefusingStore()
        self.ledger = ledger_of(self.store, cluster=CLUSTER, sources=self.sources)
        self.now_us = 1
        self.log: dict[int, list[tuple[str, int]]] = defaultdict(list)
        """By partition, the id and the time of each stored record."""

    async def own(self) -> LedgerWriter:
        return await take_over(self.ledger, "a")

    async def send(self, writer: LedgerWriter, ids: str, partition: int) -> None:
        """Send a batch, and what is left of it after each answer."""
        while ids:
            fits = self.count(partition) + sum(name != "." for name in ids) <= IDS_MAX
            [done] = append(writer, batch_with(ids, partition, self.now_us))
            [answer] = await asyncio.gather(done, return_exceptions=True)
            if isinstance(answer, DuplicateMessage):
                ids = self.left_of(ids, partition, answer)
                continue
            if isinstance(answer, ResourceExhausted):
                assert not fits
                assert answer.retry_after_ms
                return
            assert answer == len(self.log[partition])
            self.log[partition] += [(name, self.now_us) for name in ids]
            return

    def left_of(self, ids: str, partition: int, found: DuplicateMessage) -> str:
        assert found.stored or found.repeated
        for row, offset in found.stored:
            name, at_us = self.log[partition][offset]
            assert name == ids[row]
            assert self.now_us < at_us + WINDOW_US
        for row, first in found.repeated:
            assert ids[first] == ids[row]
            assert first < row
        left_out = {row for row, _ in (*found.stored, *found.repeated)}
        return "".join(name for row, name in enumerate(ids) if row not in left_out)

    def count(self, partition: int) -> int:
        """Return the number of ids that are within the window, in all partitions."""
        return sum(name != "." and self.now_us < at_us + WINDOW_US for log in self.log.values() for name, at_us in log)

    def judge(self) -> None:
        for log in self.log.values():
            last: dict[str, int] = {}
            for name, at_us in log:
                if name != ".":
                    assert at_us >= last.get(name, -WINDOW_US) + WINDOW_US, (name, log)
                    last[name] = at_us


async def live(wanted: list[Step]) -> None:
    life = Life()
    writer = await life.own()
    for step in wanted:
        life.now_us += step.wait_us
        match step.what:
            case "send":
                await life.send(writer, step.ids, step.partition)
            case "take over":
                await writer.close()
                writer = await life.own()
            case "checkpoint":
                await advance_checkpoint(life.ledger, durable=writer.durable)
            case "refuse":
                life.store.refusal = StoreFull("full")
                [done] = append(writer, batch_with("a", step.partition, life.now_us))
                try:
                    await done
                except (StoreFull, DuplicateMessage, ResourceExhausted):
                    pass
                life.store.refusal = None
        known = LedgerState.from_proto(writer.durable.to_proto(), IDS_MAX)
        assert known.to_proto() == writer.durable.to_proto()
        assert writer.durable.ids.count <= IDS_MAX
    life.judge()
    await writer.close()


@given(steps)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_message_is_stored_once_within_the_window(wanted: list[Step]) -> None:
    run_virtual(lambda: live(wanted))


@given(st.text(NAMES + ".", min_size=1, max_size=20))
def test_hashes_are_one_for_each_row(ids: str) -> None:
    found = list(split_ids(batch_with(ids, 0, 0).ids))
    assert [name == NO_ID for name in found] == [name == "." for name in ids]
    assert count_ids(b"".join(found)) == sum(name != "." for name in ids)
