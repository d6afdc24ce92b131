"""What the next version of a table says, by the version before it and by lists alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from ledgermq.errors import DataDamaged
from ledgermq_ledger.delta import versions
from ledgermq_ledger.delta.actions import Add, Commit, MetaData, Remove
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Draft, Listed, ListedFile, Topic, draft_version, registered
from ledgermq_ledger.keys import ParquetName
from ledgermq_ledger.parquet.files.columns import SCHEMA

TOPIC = Topic("c", "t", (7, 12), 2, SCHEMA)


def listed(log_start: int, *bounds: int, partition: int = 0, end: int | None = None) -> Listed:
    """Files from each bound to the next."""
    files = [
        ListedFile(ParquetName("t", partition, first, last - 1, 7, 1).key, first, last, 10, 0, "{}")
        for first, last in pairwise(bounds)
    ]
    return Listed(log_start, bounds[-1] if end is None else end, files)


def put(table: Table, draft: Draft) -> Table:
    table.apply(table.version + 1, Commit(draft.actions, None), "k")
    return table


def begun(*lists: Listed) -> Table:
    return put(Table(), draft_version(Table(), TOPIC, dict(enumerate(lists)), 0))


def said(draft: Draft) -> tuple[str, list[str], list[str]]:
    """Operation, files added, files removed; a file by its first offset."""

    def firsts(kind: type[Any]) -> list[str]:
        return [
            action.path.split("/")[1].lstrip("0")[:2].strip("0-") or "0"
            for action in draft.actions
            if isinstance(action, kind)
        ]

    return draft.operation, firsts(Add), firsts(Remove)


def test_a_table_begins_when_every_partition_has_a_list() -> None:
    assert draft_version(Table(), TOPIC, {0: listed(0, 0, 5)}, 0) == Draft()
    table = begun(listed(0, 0, 5), listed(3, 0, 3, 9, partition=1))
    assert sorted(table.files) == [
        ParquetName("t", *where, 7, 1).key.removeprefix("parquet/topic=t/") for where in ((0, 0, 4), (1, 3, 8))
    ]
    assert [registered(table, TOPIC, p, what) for p in (0, 1) for what in ("start", "end")] == [0, 5, 3, 9]


def test_a_partition_without_a_list_is_left_as_it_is() -> None:
    table = begun(listed(0, 0, 5), listed(0, 0, partition=1))
    assert draft_version(table, TOPIC, {}, 0) == Draft()


def test_a_gap_above_the_log_start_stops_its_partition_alone() -> None:
    table = begun(listed(0, 0, 5), listed(0, 0, partition=1))
    draft = draft_version(table, TOPIC, {0: listed(0, 6, 8), 1: listed(0, 0, 4, partition=1)}, 0)
    assert draft.stopped == {0: "the table has it up to offset 5, the next file begins at 6"}
    assert said(draft)[0] == "WRITE"
    assert registered(put(table, draft), TOPIC, 0, "end") == 5


def test_older_files_go_before_a_gap_is_jumped() -> None:
    table = begun(listed(0, 0, 5), listed(0, 0, partition=1))
    lists = {0: listed(8, 8, 9)}
    removal = draft_version(table, TOPIC, lists, 0)
    assert removal.operation == "DELETE"
    assert not [action for action in removal.actions if isinstance(action, Add)]
    rows = draft_version(put(table, removal), TOPIC, lists, 0)
    assert rows.operation == "WRITE"
    table = put(table, rows)
    assert (len(table.files), registered(table, TOPIC, 0, "end"), registered(table, TOPIC, 0, "start")) == (1, 9, 8)
    assert draft_version(table, TOPIC, lists, 0) == Draft()


def test_rows_and_removals_take_turns() -> None:
    table = begun(listed(0, 0, 5), listed(0, 0, partition=1))
    operations = []
    for number in range(1, 7):
        bounds = [5 * i for i in range(number, number + 2)]
        draft = draft_version(table, TOPIC, {0: listed(bounds[0], *bounds)}, 0)
        operations.append(draft.operation)
        put(table, draft)
    assert {"WRITE", "DELETE"} == set(operations)
    assert all(pair != ("WRITE", "WRITE") for pair in pairwise(operations))


def test_a_start_is_said_also_where_no_file_goes() -> None:
    table = begun(listed(0, 0, 5), listed(0, 0, partition=1))
    table = put(table, draft_version(table, TOPIC, {0: listed(2, 0, 5)}, 0))
    assert (registered(table, TOPIC, 0, "start"), len(table.files)) == (2, 1)


def test_a_version_says_no_start_above_a_file_that_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "ACTIONS_MAX", 2)
    bounds = range(0, 60, 10)
    table = begun(listed(0, 0, partition=0), listed(0, 0, partition=1))
    while (draft := draft_version(table, TOPIC, {0: listed(0, *bounds)}, 0)).operation:
        put(table, draft)
        assert sum(isinstance(action, Add) for action in draft.actions) <= 2
    assert len(table.files) == 5
    starts = []
    while (draft := draft_version(table, TOPIC, {0: Listed(50, 50, [])}, 0)).operation:
        put(table, draft)
        starts.append(registered(table, TOPIC, 0, "start"))
    assert starts == [20, 40, 50]
    assert table.files == {}


@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"ledgermq.topic.id": "x", "ledgermq.generation": "1"},
        {"ledgermq.cluster": "d", "ledgermq.topic.id": "7", "ledgermq.generation": "12"},
    ],
)
def test_a_table_of_others_is_refused(configuration: dict[str, str]) -> None:
    table = Table(0, metadata=MetaData("x", "{}", configuration=configuration))
    with pytest.raises(
        DataDamaged, match=r"parquet/topic=t/_delta_log/: there is another Delta table: .*move this folder away"
    ):
        draft_version(table, TOPIC, {}, 0)


def test_a_file_that_is_none_of_the_topic_is_refused() -> None:
    table = begun(listed(0, 0, 5), listed(0, 0, partition=1))
    table.take([Add("part-0001.parquet", 1, 1)], "k")
    with pytest.raises(DataDamaged, match="no file of topic t"):
        draft_version(table, TOPIC, {}, 0)
