"""The log of a Delta table: whatever is committed is read back, from any log checkpoint on; statistics
hold every row; hostile bytes give an error or a commit.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged
from ledgermq_ledger.delta.actions import (
    Action,
    Add,
    Commit,
    CommitInfo,
    Remove,
    Txn,
    decode_commit,
    decode_path,
    encode_commit,
    encode_path,
)
from ledgermq_ledger.delta.checkpoint import decode_log_checkpoint, encode_log_checkpoint
from ledgermq_ledger.delta.names import checkpoint_name, choose, commit_name
from ledgermq_ledger.delta.statistics import encode_statistics, statistics_of_footer
from ledgermq_ledger.delta.table import Table
from tests.worlds.delta_tables import first_actions

_text = st.text(st.characters(codec="utf-8"), max_size=6)
_paths = st.sampled_from(["a", "b", "c/d", "ü %"]).map(encode_path)
_values = st.dictionaries(_text, st.none() | _text, max_size=2)
_count = st.integers(0, 2**63 - 1)
_actions = st.one_of(
    st.builds(Add, _paths, _count, _count, st.booleans(), _values, st.none() | _text),
    st.builds(
        Remove,
        _paths,
        st.none() | _count,
        st.booleans(),
        st.none() | st.booleans(),
        st.none() | _values,
        st.none() | _count,
    ),
    st.builds(Txn, _text, _count, st.none() | _count),
)
_commits = st.lists(st.lists(_actions, max_size=4), min_size=1, max_size=5)


def _commit(actions: list[Action], version: int) -> bytes:
    return b"".join(encode_commit(actions, CommitInfo(version, "WRITE", txn_id=f"{version}")))


def _state(table: Table) -> tuple[Any, ...]:
    """Return what a log checkpoint keeps of a table."""
    unchanging: list[Any] = [
        {path: msgspec.structs.replace(action, data_change=False) for path, action in found.items()}
        for found in (table.files, table.removed)
    ]
    return table.version, table.protocol, table.metadata, table.txns, *unchanging


@settings(max_examples=40, deadline=None)
@given(commits=_commits, start=st.integers(0, 4))
def test_a_log_is_read_back_from_any_checkpoint(commits: list[list[Action]], start: int) -> None:
    versions = [_commit([*first_actions(), *commits[0]], 0)] + [_commit(c, v) for v, c in enumerate(commits[1:], 1)]
    whole, table, start = Table(), Table(), min(start, len(commits) - 1)
    for version, written in enumerate(versions):
        commit = decode_commit(written, "k")
        assert commit.info is not None
        assert commit.info.txn_id == str(version)
        assert commit.actions[-len(commits[version]) :] == commits[version] or not commits[version]
        whole.apply(version, commit, "k")
        if version == start:
            encoded, hint = encode_log_checkpoint(whole, removed_after_ms=0, put_id="", key="k")
            assert hint.num_of_add_files == len(whole.files)
            table = decode_log_checkpoint(bytes(encoded), version, "k")
    for version in range(start + 1, len(versions)):
        table.apply(version, decode_commit(versions[version], "k"), "k")
    assert _state(table) == _state(whole)


@given(there=st.sets(st.integers(0, 12)), checkpoints=st.sets(st.integers(0, 12)), noise=st.lists(_text, max_size=3))
def test_a_reader_reads_a_whole_chain_or_none(there: set[int], checkpoints: set[int], noise: list[str]) -> None:
    names = [*map(commit_name, there), *map(checkpoint_name, checkpoints), *noise]
    base = max(checkpoints, default=-1)
    above = sorted(version for version in there if version > base)
    try:
        needed = choose(names, "")
    except DataDamaged as damaged:
        missing = int(re.match(r"\d{20}", str(damaged))[0])  # type: ignore[index]
        assert missing not in there
        assert base < missing < above[-1]
        return
    assert list(needed.commits) == above
    assert needed.newest == max([base, *above])


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b'{"add":', b"{}", b"}", b'"path":"x"', b"\n"]), max_size=6))
def test_hostile_bytes(parts: list[bytes]) -> None:
    try:
        found = decode_commit(b"".join(parts), "k")
    except DataDamaged:
        return
    assert isinstance(found, Commit)


@given(st.text(st.characters(codec="utf-8"), max_size=12))
def test_a_path_is_the_same_after_a_way_through_the_log(path: str) -> None:
    assert decode_path(encode_path(path)) == path
    assert encode_path(path).isascii()


_US = st.integers(-(2**63), 2**63 - 1)
_TIME = pa.timestamp("us", tz="UTC")


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.none() | _US, st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | _text), max_size=8
    ),
    group=st.integers(1, 4),
)
def test_statistics_hold_every_row(rows: list[tuple[int | None, int | None, str | None]], group: int) -> None:
    times, numbers, texts = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {
        "t": pa.array(times, pa.int64()).cast(_TIME),
        "n": pa.array(numbers, pa.int64()),
        "s": pa.array(texts, pa.string()),
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=group)
    found = json.loads(encode_statistics(statistics_of_footer(pq.read_metadata(pa.BufferReader(sink.getvalue())))))
    assert found["numRecords"] == len(rows)
    for name, values in (("t", times), ("n", numbers), ("s", texts)):
        if rows:
            assert found["nullCount"][name] == values.count(None)
        known = [value for value in values if value is not None]
        if name in found["minValues"]:
            assert all(_plain(found["minValues"][name]) <= value for value in known)
        if name in found["maxValues"]:
            assert all(value <= _plain(found["maxValues"][name]) for value in known)


def _plain(bound: Any) -> Any:
    if not isinstance(bound, str) or not bound.endswith("Z") or len(bound) != 24:
        return bound
    since = dt.datetime.fromisoformat(bound) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return since // dt.timedelta(microseconds=1)
