"""Bugs in what consumers and brokers leave out by filters."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ledgermq.client.consuming import reader
from ledgermq.client.consuming.reading import Reading, Reports
from ledgermq_broker.filter_functions.judging import Judgement
from ledgermq_broker.paths import received_batches
from ledgermq_broker.paths.fetching.fetch_path import FetchPath
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("cluster")
def filter_skips_beyond_its_batch(patch: Patch) -> None:
    """A consumer whose filter leaves out a batch goes on one record behind its end."""
    real = reader.go_past

    def go_past(reading: Reading, end: int, reports: Reports) -> None:
        real(reading, end + 1, reports)

    patch.setattr(reader, "go_past", go_past)


@mutant("cluster")
def tag_summary_misses_a_tag(patch: Patch) -> None:
    """The summary of a batch has the tag of its first record alone."""
    real = received_batches.summary_of

    def summary_of(tags: pa.StringArray) -> int:
        return real(tags.slice(0, 1))

    patch.setattr(received_batches, "summary_of", summary_of)


@mutant("cluster")
def function_leaves_out_what_it_has_not_judged(patch: Patch) -> None:
    """The last batch of an answer is left out, whatever the function says of it."""
    real = FetchPath._judge

    async def judge(self: FetchPath, cursor: Any, fetched: Any) -> Any:
        judged = await real(self, cursor, fetched)
        batch, _ = judged[-1]
        return [*judged[:-1], (batch, Judgement(b"", 0, 0))]

    patch.setattr(FetchPath, "_judge", judge)
