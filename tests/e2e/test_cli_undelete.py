"""Deleted topics that can be brought back, by the command line and the synchronous client."""

from __future__ import annotations

import pytest

import ledgermq.sync
from tests.e2e.shell import Shell, shell_beside_a_broker

shell = pytest.fixture(scope="module")(shell_beside_a_broker)


@pytest.mark.slow
def test_a_deleted_topic_is_shown_with_what_it_keeps_and_comes_back(shell: Shell) -> None:
    shell("topic", "create", "gone", "--partitions", 1)
    shell("produce", "gone", stdin="a\nb\n")
    shell.json("compact", shell.root)
    before = shell.json("status")
    assert shell("topic", "delete", "gone", "--yes").code == 0
    assert [topic["topic"] for topic in shell.json("topic", "list", "--deleted")["topics"]] == ["gone"]
    now = shell.json("status")
    assert (now["topics"], now["deleted_topics"]) == (before["topics"] - 1, before["deleted_topics"] + 1)
    found = shell.json("gc", shell.root, "--dry-run", "--grace", "0s")
    (kept,) = found["kept"]
    files = [*(shell.root / "parquet" / "topic=gone").rglob("*.parquet")]
    assert (kept["topic"], kept["objects"], kept["bytes"]) == ("gone", 1, sum(file.stat().st_size for file in files))
    assert found["kept_to_undelete"] == 1
    assert kept["until_ms"] > 0
    assert "gone" in shell("gc", shell.root).out
    shell("topic", "undelete", "gone")
    assert shell("consume", "gone", "--until-end", "--from", "earliest").out.split() == ["a", "b"]
    assert "kept" not in shell.json("gc", shell.root, "--dry-run")
    with ledgermq.sync.connect(shell.address) as client:
        assert client.delete_topic("gone") is not None
        assert [topic.name for topic in client.list_topics(deleted=True)] == ["gone"]
        assert client.undelete_topic("gone").name == "gone"
        assert client.delete_topic("gone", now=True) is None
        assert client.list_topics(deleted=True) == []
