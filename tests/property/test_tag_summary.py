"""The summary of a batch never denies a tag that it has."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ledgermq_ledger.log.segments.tag_summary import (
    ALL_BITS,
    KNOWN,
    TAGS_SUMMARIZED_MAX,
    masks_of,
    may_have,
    summary_of,
)
from ledgermq_ledger.view.partition_index import LOOKED_MAX, IndexedBatch, PartitionIndex

TAGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.lists(st.none() | TAGS, min_size=1, max_size=60), st.lists(TAGS, min_size=1, max_size=3))
def test_a_batch_may_have_each_tag_that_it_has(tags: list[str | None], others: list[str]) -> None:
    summary = summary_of(pa.array(tags, pa.string()))
    assert KNOWN <= summary <= ALL_BITS
    for tag in tags:
        if tag is not None:
            assert may_have(summary, masks_of([tag]))
            assert may_have(summary, masks_of([*others, tag]))
    assert may_have(0, masks_of(others)), "a summary that is not known denies nothing"
    assert not may_have(summary_of(pa.nulls(3, pa.string())), masks_of(others))


def test_few_tags_are_told_apart_and_many_are_not() -> None:
    names = [f"tag-{number}" for number in range(1000)]
    one = summary_of(pa.array(["tag-0"] * 5000))
    assert sum(may_have(one, masks_of([name])) for name in names) < 5
    assert summary_of(pa.array(names[: TAGS_SUMMARIZED_MAX + 1])) == ALL_BITS


@given(
    st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, max_size=40), st.integers(0, 39), st.sets(st.sampled_from("ab"))
)
def test_the_index_goes_past_batches_without_the_tags_and_no_others(
    kinds: list[int], first: int, wanted: set[str]
) -> None:
    """Of the batches some have no known summary, no tag, the tag a, the tag b."""
    summaries = [0, KNOWN, *(summary_of(pa.array([tag])) for tag in "ab")]
    fits = [kind == 0 or (kind > 1 and "ab"[kind - 2] in wanted) for kind in kinds]
    index = PartitionIndex(
        IndexedBatch(10 * at, 10, at, 0, 5, 7, 0, 0, summaries[kind]) for at, kind in enumerate(kinds)
    )
    first = min(first, len(kinds) - 1)
    masks = masks_of(sorted(wanted))
    expected = [at for at in range(first, len(kinds)) if fits[at]]
    assert list(index.wanted(first, masks)) == expected
    assert list(index.wanted(first, None)) == list(range(first, len(kinds)))
    offset = 10 * first + 3
    past = index.past_unwanted(offset, masks)
    assert past == (max(offset, 10 * expected[0]) if expected else index.end)
    assert index.past_unwanted(offset, None) == offset


def test_one_look_is_bounded() -> None:
    batches = (IndexedBatch(at, 1, at, 0, 5, 7, 0, 0, KNOWN) for at in range(LOOKED_MAX + 5))
    index = PartitionIndex(batches)
    assert index.past_unwanted(0, masks_of(["a"])) == LOOKED_MAX
    assert index.past_unwanted(LOOKED_MAX, masks_of(["a"])) == index.end
    assert list(index.wanted(0, masks_of(["a"]))) == []
