"""Compression "auto": lz4 where it pays, by what was seen of the partition; no producer pays long
for what does not compress.
"""

from __future__ import annotations

import itertools
import random

import pyarrow as pa
import pytest

from ledgermq.client.producing.partition.compressor import (
    LEFT_FIRST,
    LEFT_MAX,
    SMALL_BYTES_MAX,
    Compressor,
    TopicExperience,
)
from ledgermq.protocol.batches.batch_header import walk_batch
from ledgermq.protocol.batches.records import Compression, decode_batch, encode_batch
from tests.worlds.batches import batch_of

TEXT = batch_of([{"value": b"the order of names " * 20}] * 50)
_chance = random.Random(7)
NOISE = batch_of([{"value": _chance.randbytes(400)} for _ in range(50)])


def codec_of(data: bytes) -> str:
    return walk_batch(data, decoded_bytes_max=1 << 20).codec


def codecs(compressor: Compressor, rows: pa.RecordBatch, count: int) -> list[str]:
    return [codec_of(compressor.encode(rows)) for _ in range(count)]


def test_text_is_always_compressed() -> None:
    assert codecs(Compressor("auto"), TEXT, 100) == ["lz4"] * 100


def test_noise_is_tried_ever_more_rarely() -> None:
    found = codecs(Compressor("auto"), NOISE, 1000)
    tried = [at for at, codec in enumerate(found) if codec == "lz4"]
    gaps = [after - before - 1 for before, after in itertools.pairwise(tried)]
    assert gaps[:5] == [LEFT_FIRST, 2 * LEFT_FIRST, 4 * LEFT_FIRST, 8 * LEFT_FIRST, LEFT_MAX]
    assert set(gaps[5:]) == {LEFT_MAX}


def test_what_begins_to_compress_is_seen_and_stays() -> None:
    compressor = Compressor("auto")
    codecs(compressor, NOISE, 1000)
    found = codecs(compressor, TEXT, 100)
    assert "lz4" in found[: LEFT_MAX + 1]
    assert set(found[found.index("lz4") :]) == {"lz4"}
    assert codecs(compressor, NOISE, 3 + LEFT_FIRST) == ["lz4", *["none"] * LEFT_FIRST, "lz4", "none"], (
        "and it begins small again"
    )


def test_a_small_batch_is_left_alone_and_says_nothing_of_others() -> None:
    small = batch_of([{"value": bytes(100)}])
    assert small.nbytes <= SMALL_BYTES_MAX
    compressor = Compressor("auto")
    for _ in range(50):
        assert codecs(compressor, small, 3) == ["none"] * 3
        assert codecs(compressor, TEXT, 1) == ["lz4"]


@pytest.mark.parametrize("chosen", ["none", "lz4", "zstd"])
def test_what_is_chosen_is_not_measured(chosen: Compression) -> None:
    compressor = Compressor(chosen)
    for _ in range(5):
        for rows in (TEXT, NOISE):
            assert compressor.encode(rows) == encode_batch(rows, chosen)


def test_any_of_it_is_read_back() -> None:
    compressor = Compressor("auto")
    for rows in (TEXT, NOISE, NOISE, TEXT):
        assert decode_batch(compressor.encode(rows)).equals(rows)


def test_a_partition_begins_with_what_its_topic_has_found() -> None:
    experience = TopicExperience()
    first, second, third = (Compressor("auto", experience) for _ in range(3))
    assert codecs(first, NOISE, 1) == ["lz4"]
    assert codecs(second, NOISE, LEFT_FIRST + 1) == ["none"] * LEFT_FIRST + ["lz4"], "it tries by itself later"
    assert codecs(first, TEXT, LEFT_FIRST + 1)[-1] == "lz4"
    assert codecs(third, TEXT, 10) == ["lz4"] * 10, "the last try of the topic saved something"
