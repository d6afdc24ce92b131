"""The log of a Delta table: its bytes, which of its objects are read, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_ledger.delta.actions import (
    Add,
    CommitInfo,
    Protocol,
    Remove,
    check_protocol,
    decode_commit,
    encode_commit,
    encode_path,
)
from ledgermq_ledger.delta.checkpoint import (
    decode_hint,
    decode_log_checkpoint,
    encode_hint,
    encode_log_checkpoint,
)
from ledgermq_ledger.delta.names import checkpoint_name, choose, commit_name
from ledgermq_ledger.delta.statistics import Statistics, encode_statistics, statistics_of_footer, time_of_us
from ledgermq_ledger.delta.table import Table
from tests.worlds.delta_tables import CREATED_MS, first_actions, registered, remove_of

GOLDEN = Path(__file__).parents[2] / "golden" / "delta-log-v1"
STATS = encode_statistics(
    Statistics(
        10,
        {"topic": "flights", "partition": 2, "offset": 10, "timestamp": dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)},
        {"topic": "flights", "partition": 2, "offset": 19, "timestamp": dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)},
        {"timestamp": 0},
    )
)
FILE = Add("partition=2/00000000000000000010-00000000000000000019-7-4.parquet", 4096, CREATED_MS, stats=STATS)
COMMITS = [
    encode_commit([*first_actions(), FILE, registered(2, 20)], CommitInfo(CREATED_MS, "WRITE", "LedgerMQ", txn_id="a")),
    encode_commit([remove_of(FILE)], CommitInfo(CREATED_MS, "DELETE", "LedgerMQ", txn_id="b")),
]


@pytest.mark.parametrize("version", [0, 1])
def test_a_commit_is_the_golden_one(version: int) -> None:
    assert b"".join(COMMITS[version]) == (GOLDEN / commit_name(version)).read_bytes()


def test_the_golden_log_is_read_forever() -> None:
    table = Table()
    for version in (0, 1):
        name = commit_name(version)
        table.apply(version, decode_commit((GOLDEN / name).read_bytes(), name), name)
    assert table.files == {}
    assert table.removed == {FILE.path: remove_of(FILE)}
    name = checkpoint_name(0)
    at_first = decode_log_checkpoint((GOLDEN / name).read_bytes(), 0, name)
    assert at_first.txns == {"ledgermq/c1/7/2/end": registered(2, 20)}
    assert at_first.files[FILE.path].stats == STATS
    assert at_first.metadata == first_actions()[1]
    assert at_first.protocol == first_actions()[0]


def test_a_commit_ends_with_the_id_of_its_put() -> None:
    assert COMMITS[0][-1].endswith(b'"txnId":"a"}}\n')
    with pytest.raises(AssertionError, match="id of its put"):
        encode_commit([], CommitInfo(CREATED_MS, "WRITE"))


def test_actions_of_others_are_passed_over() -> None:
    data = b'{"domainMetadata":{"domain":"x"}}\n\n{"add":{"path":"p","size":1,"modificationTime":2,"tags":{"a":"b"}}}\n'
    assert decode_commit(data, "k").actions == [Add("p", 1, 2)]


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"add":{}}',
        b'{"add":{"path":1,"size":1,"modificationTime":1}}',
        b"\xff",
        b"[" * 100_000,
        b'{"a":1}x',
    ],
)
def test_damaged_commits_are_refused(data: bytes) -> None:
    with pytest.raises(DataDamaged, match=r"log/7: line 1 is no action"):
        decode_commit(data, "log/7")


@pytest.mark.parametrize("protocol", [Protocol(2, 7), Protocol(3, 7, ["deletionVectors"], []), Protocol(1, 7, ["x"])])
def test_a_table_for_newer_readers_is_refused(protocol: Protocol) -> None:
    with pytest.raises(FormatNotSupported, match="asks for readers of version"):
        check_protocol(protocol, "log/7")
    with pytest.raises(FormatNotSupported):
        Table().take([protocol], "log/7")


def test_a_log_without_metadata_makes_no_table() -> None:
    commit = decode_commit(b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}', "k")
    with pytest.raises(DataDamaged, match="names no protocol or no metadata"):
        Table().apply(0, commit, "k")


def test_what_is_read_of_a_log() -> None:
    def newest(*names: str) -> tuple[int | None, list[int], int]:
        needed = choose(names, "t/_delta_log/")
        return needed.checkpoint, list(needed.commits), needed.newest

    commits = [commit_name(n) for n in range(6)]
    assert newest() == (None, [], -1)
    assert newest(*commits) == (None, [0, 1, 2, 3, 4, 5], 5)
    assert newest(*commits, checkpoint_name(3)) == (3, [4, 5], 5)
    assert newest(commits[1], commits[4], checkpoint_name(2), checkpoint_name(3)) == (3, [4], 4)
    assert newest(commits[0], checkpoint_name(3)) == (3, [], 3)
    strange = ["_last_checkpoint", "1.json", commits[0] + ".tmp", "x" + commits[0], commit_name(7)[:-5] + ".crc"]
    assert newest(*strange) == (None, [], -1)


@pytest.mark.parametrize(("names", "missing"), [([0, 2], 1), ([1, 2], 0), ([9], 0)])
def test_a_gap_is_an_error(names: list[int], missing: int) -> None:
    with pytest.raises(DataDamaged, match=rf"t/_delta_log/{commit_name(missing)}: it is missing, although"):
        choose([commit_name(n) for n in names], "t/_delta_log/")


def _checkpoint() -> tuple[Table, bytes]:
    table = Table(4)
    table.take([*first_actions(), FILE, registered(2, 20), Remove("old", 5), Remove("older", 3), Remove("undated")], "")
    data, hint = encode_log_checkpoint(table, removed_after_ms=5, put_id="ab" * 16, key="")
    assert decode_hint(encode_hint(hint)) == hint
    assert (hint.version, hint.size, hint.size_in_bytes, hint.num_of_add_files) == (4, 5, len(bytes(data)), 1)
    assert b"ab" * 16 in bytes(data.ending), "the put is told by the end of the object"
    return table, bytes(data)


def test_a_log_checkpoint_has_all_but_what_no_reader_reads() -> None:
    table, data = _checkpoint()
    found = decode_log_checkpoint(data, 4, "k")
    assert (found.version, found.protocol, found.metadata, found.txns) == (
        4,
        table.protocol,
        table.metadata,
        table.txns,
    )
    assert [(file.path, file.data_change, file.stats) for file in found.files.values()] == [(FILE.path, False, STATS)]
    assert list(found.removed) == ["old"]


def test_a_damaged_log_checkpoint_never_reaches_the_parquet_reader() -> None:
    _, data = _checkpoint()
    for at in range(0, len(data), 7):
        with pytest.raises(DataDamaged):
            decode_log_checkpoint(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 4, "k")
    for end in (0, 3, 100, len(data) - 1):
        with pytest.raises(DataDamaged):
            decode_log_checkpoint(data[:end], 4, "k")
    other = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), other)
    with pytest.raises(DataDamaged, match="no checksum of LedgerMQ"):
        decode_log_checkpoint(other.getvalue().to_pybytes(), 4, "k")


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"version":"x","size":1}', b"\xff"])
def test_a_hint_that_says_nothing(data: bytes) -> None:
    assert decode_hint(data) is None


def test_the_same_generation_has_the_same_id() -> None:
    assert first_actions() == first_actions()
    assert (
        json.loads(encode_commit(first_actions(), CommitInfo(0, "w", txn_id="a"))[0].split(b"\n")[1])["metaData"][
            "id"
        ].count("-")
        == 4
    )


def test_paths_are_encoded_once() -> None:
    assert encode_path("partition=3/00-01-7-4.parquet") == "partition=3/00-01-7-4.parquet"
    assert encode_path("a b%20/ü.parquet") == "a%20b%2520/%C3%BC.parquet"


def test_bounds_of_times_are_never_too_narrow() -> None:
    def bounds(us: int) -> tuple[object, object]:
        when = time_of_us(us)
        assert when is not None
        found = json.loads(encode_statistics(Statistics(1, {"t": when}, {"t": when})))
        return found["minValues"].get("t"), found["maxValues"].get("t")

    assert bounds(1_999) == ("1970-01-01T00:00:00.001Z", "1970-01-01T00:00:00.002Z")
    assert bounds(2_000) == ("1970-01-01T00:00:00.002Z", "1970-01-01T00:00:00.002Z")
    assert bounds(-1) == ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z")
    assert bounds(253_402_300_799_999_999) == ("9999-12-31T23:59:59.999Z", None)
    assert time_of_us(253_402_300_800_000_000) is None
    assert time_of_us(-(2**63)) is None


def test_bounds_that_json_cannot_say_are_left_out() -> None:
    odd = {"a": float("nan"), "b": float("inf"), "c": "\ud800", "d": "x" * 250, "e": 1.5, "f": "ü"}
    found = json.loads(encode_statistics(Statistics(1, dict(odd), dict(odd))))
    assert found["minValues"] == found["maxValues"] == {"e": 1.5, "f": "ü"}


def test_what_one_group_of_rows_does_not_say_the_file_does_not() -> None:
    sink = pa.BufferOutputStream()
    times = pa.array([0, None, 2**62, None, None, 7], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"n": pa.array(range(6)), "t": times, "k": [b"x"] * 6}), sink, row_group_size=2)
    found = statistics_of_footer(pq.read_metadata(pa.BufferReader(sink.getvalue())))
    assert (found.rows, found.least, found.most) == (6, {"n": 0}, {"n": 5})
    assert found.nulls == {"n": 0, "t": 3, "k": 0}
