"""Tables of topics, by the command line and the synchronous client."""

from __future__ import annotations

import pytest

import ledgermq.sync
from tests.e2e.shell import Shell, shell_beside_a_broker

shell = pytest.fixture(scope="module")(shell_beside_a_broker)
TABLE = ("--set", "table.format=delta", "--set", "table.delta.place=topic")


@pytest.mark.slow
def test_a_table_is_described(shell: Shell) -> None:
    shell("topic", "create", "tabled", "--partitions", 2, *TABLE)
    said = shell.json("table", "describe", "tabled")
    assert (said["topic"], said["format"], said["rows"], len(said["partition_list"])) == ("tabled", "delta", 0, 2)
    assert said["folder"] == f"{shell.root.as_uri()}/parquet/topic=tabled/"
    [row] = shell.json("table", "list")["tables"]
    assert (row["topic"], row["format"], row["rows"], row["trouble"]) == ("tabled", "delta", 0, "")
    assert "waits for" in shell("table", "describe", "tabled").out
    with ledgermq.sync.connect(shell.address) as client:
        assert client.tables.describe("tabled").generation == said["generation"]
        done = shell("table", "rebuild", "tabled", "--yes")
        assert (done.code, client.tables.describe("tabled").generation > said["generation"]) == (0, True)
        assert [shell("table", "drop", "tabled", "--yes").code for _ in range(2)] == [0, 0]
        assert client.describe_topic("tabled").settings == {}


@pytest.mark.slow
def test_a_topic_without_a_table_is_one_line(shell: Shell) -> None:
    shell("topic", "create", "plain")
    refused = shell("table", "describe", "plain")
    assert (refused.code, len(refused.err.splitlines()), refused.out) == (2, 1, "")
    assert refused.err.startswith("error [INVALID_REQUEST] topic 'plain' has no table")
    assert shell("table", "rebuild", "plain", "--yes").err == refused.err
    assert [
        shell("table", what, "never", *yes).code
        for what, *yes in (("describe",), ("rebuild", "--yes"), ("drop", "--yes"))
    ] == [4] * 3


@pytest.mark.slow
def test_records_that_could_not_be_decoded_are_listed_by_pages(shell: Shell) -> None:
    shell("topic", "create", "typed", "--set", "value.schema.subject=typed-value")
    shell("produce", "typed", stdin="bare\nother\n")
    assert shell.json("table", "errors", "typed")["errors"] == []
    assert shell("compact", shell.root).code == 0
    first = shell.json("table", "errors", "typed", "--limit", 1)
    [row] = first["errors"]
    assert row == {"partition": 0, "offset": 0, "error": "the value names no schema", "schema_id": None}
    behind = shell.json("table", "errors", "typed", "--after", first["next"])
    assert ([each["offset"] for each in behind["errors"]], behind["next"]) == ([1], "")
    with ledgermq.sync.connect(shell.address) as client:
        assert [each.offset for each in client.tables.errors("typed").values] == [0, 1]
    shell("topic", "create", "untyped")
    assert "are not decoded" in shell("table", "errors", "untyped").err
    assert shell("table", "errors", "never").code == 4
    assert shell("table", "errors", "typed", "--after", "x").code == 2
