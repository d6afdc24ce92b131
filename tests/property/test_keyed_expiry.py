"""Random lives of a keyed partition whose keys are forgotten: the old ones go, none of the others,
and then there is quiet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.topics.deletion_times import last_time_ms
from tests.virtual_time import virtual
from tests.worlds.keyed_root import HOUR_MS, Keyed
from tests.worlds.keyed_topics import Pair, Row, read_plain_version

EVERY_THREE_HOURS = "0 */3 * * *"

_pairs = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.sampled_from([b"1", b"x" * 300, None])),
    min_size=1,
    max_size=4,
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), _pairs, st.sampled_from([0, HOUR_MS // 2, 5 * HOUR_MS, 5 * HOUR_MS, -HOUR_MS])),
        st.tuples(st.just("compact")),
        st.tuples(st.just("clean")),
        st.tuples(st.just("clean")),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 0.3, 0.6, 1.2, 3.0])),
    ),
    max_size=30,
)


@dataclass
class _Life:
    keyed: Keyed
    delete_when: str
    times_ms: list[int] = field(default_factory=list)
    """Of records, by offset."""
    seen: list[Row] = field(default_factory=list)
    """In the version before, which was looked at in `period`; without its last, which stays too
    long and then goes at any time.
    """
    period: int = 0

    async def put(self, pairs: list[Pair], age_ms: int) -> None:
        await self.keyed.put(*pairs, age_ms=age_ms)
        self.times_ms += [self.keyed.clock.now_us // 1000 - age_ms] * len(pairs)

    async def clean(self) -> None:
        await self.keyed.clean()
        assert await self.keyed.clean() == 0
        found = await read_plain_version(self.keyed.root.store, self.keyed.topic)
        if found is not None:
            await self._judge(*found)

    async def _judge(self, end: int, rows: list[Row]) -> None:
        now_ms = self.keyed.clock.now_us // 1000
        judged_ms = last_time_ms(self.delete_when, "UTC", now_ms) if self.delete_when else now_ms
        start = partition_of(await self.keyed.root.newest(), self.keyed.topic.id, 0).log_start
        latest = self.keyed.written.latest(end)
        assert [row.offset for row in rows] == sorted({row.offset for row in rows})
        assert all(latest[row.key or b""] == row for row in rows)
        young = [
            row for row in latest.values() if row.offset >= start and self.times_ms[row.offset] >= judged_ms - HOUR_MS
        ]
        assert {row.offset for row in young} <= {row.offset for row in rows}
        if not self.delete_when:
            old = [row.offset for row in rows if self.times_ms[row.offset] < now_ms - 1.1 * HOUR_MS]
            assert old in ([], [end - 1])
        elif judged_ms == self.period:
            kept = {row.offset for row in self.seen if row.offset >= start and latest[row.key or b""] == row}
            assert kept <= {row.offset for row in rows}, "in between nothing goes"
        self.seen, self.period = [row for row in rows if row.offset < end - 1], judged_ms


@pytest.mark.parametrize("delete_when", ["", EVERY_THREE_HOURS])
@settings(max_examples=40, deadline=None)
@given(steps=_steps)
@virtual
async def test_old_keys_go_and_then_there_is_quiet(delete_when: str, steps: list[tuple[object, ...]]) -> None:
    keyed = await Keyed.open(delete_when=delete_when, parquet_target_bytes="4000")
    life = _Life(keyed, delete_when)
    for step, *values in [*steps, ("compact",), ("clean",), ("wait", 30.0), ("clean",), ("wait", 30.0), ("clean",)]:
        if step == "put":
            await life.put(*values)  # type: ignore[arg-type]
        elif step == "compact":
            await keyed.compact()
        elif step == "clean":
            await life.clean()
        else:
            keyed.wait(float(values[0]))  # type: ignore[arg-type]
    assert not life.seen
