"""The command line against a real broker process: topics, status, roots, help and errors."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

import ledgermq.sync
from tests.e2e.shell import LEDGERMQ, Shell, shell_beside_a_broker
from tests.waiting import wait_until

shell = pytest.fixture(scope="module")(shell_beside_a_broker)


def test_records_are_deleted_on_demand_and_held(shell: Shell) -> None:
    shell("produce", "aging", stdin="a\nb\nc\n")
    done = shell.json("topic", "delete-records", "aging", "--before-offset", "0:2", "--yes")
    assert done["partition_list"] == [{"partition": 0, "log_start_before": 0, "log_start": 2, "records": 2}]
    shell.json("topic", "alter", "aging", "--set", "legal.hold=true")
    refused = shell("topic", "delete-records", "aging", "--before-time", "0s", "--yes")
    assert (refused.code, "LEGAL_HOLD" in refused.err, "--unset legal.hold" in refused.err) == (7, True, True)


def test_a_topic_from_creation_to_deletion(shell: Shell) -> None:
    made = shell.json("topic", "create", "life", "--partitions", 3, "--set", "retention.ms=86400000")
    assert (made["topic"], made["partitions"], made["settings"]) == ("life", 3, {"retention.ms": "86400000"})
    again = shell("topic", "create", "life")
    assert again.code == 5
    assert again.err.startswith("error [TOPIC_EXISTS]")
    assert shell("topic", "create", "life", "--if-not-exists").code == 0
    assert "life" in [topic["topic"] for topic in shell.json("topic", "list")["topics"]]
    changed = shell.json(
        "topic", "alter", "life", "--partitions", 5, "--set", "compression.type=zstd", "--unset", "retention.ms"
    )
    assert (changed["partitions"], changed["settings"]) == (5, {"compression.type": "zstd"})
    described = shell.json("topic", "describe", "life")
    assert [(p["partition"], p["owner"], p["end"]) for p in described["partition_list"]] == [
        (n, shell.address, 0) for n in range(5)
    ]
    assert shell("topic", "delete", "life", "--yes").code == 0
    gone = shell("topic", "describe", "life")
    assert gone.code in (3, 4)  # being deleted, or gone already
    assert gone.err.startswith(("error [TOPIC_BEING_DELETED]", "error [UNKNOWN_TOPIC]"))


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("topic", "describe", "never"), 4, "UNKNOWN_TOPIC"),
        (("topic", "create", "../up"), 2, "INVALID_TOPIC_NAME"),
        (("topic", "create", "a", "--set", "retention.hours=1"), 2, "INVALID_CONFIG"),
        (("consume", "never", "--until-end"), 4, "UNKNOWN_TOPIC"),
    ],
)
def test_errors_are_one_line(shell: Shell, arguments: tuple[str, ...], code: int, error: str) -> None:
    done = shell(*arguments)
    assert done.code == code, done.err
    assert done.err.startswith(f"error [{error}]")
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


@pytest.mark.parametrize(
    "words", [["status"], ["topic", "list", "--output", "json"], ["--help"], ["broker", "--help"]], ids=" ".join
)
def test_tables_and_help_may_be_cut_off_too(shell: Shell, words: list[str]) -> None:
    environment = {**os.environ, "LEDGERMQ_TARGET": shell.address}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [LEDGERMQ, *words], stdout=write, stderr=subprocess.PIPE, env=environment, timeout=120, check=False
    )
    os.close(write)
    told = [line for line in done.stderr.splitlines() if not line.startswith(b"waiting")]  # on a slow machine
    assert (done.returncode, told) == (0, [])


def test_status(shell: Shell) -> None:
    wait_until(lambda: shell("status").code == 0)  # where this test is the first, bundles are still being taken
    found = shell.json("status")
    assert found["health"] == "ok"
    assert [(broker["address"], broker["alive"]) for broker in found["brokers"]] == [(shell.address, True)]
    assert {bundle["owner"] for bundle in found["bundles"]} == {shell.address}


def test_the_root_can_be_inspected_and_compacted_while_the_broker_runs(shell: Shell) -> None:
    shell("topic", "create", "lake", "--partitions", 2)
    shell("produce", "lake", "--key-separator", ":", stdin="".join(f"{n % 7}:{n}\n" for n in range(500)))
    found = shell.json("inspect", "cluster", shell.root, "--full")
    assert found["findings"] == []
    assert {t["topic"]: t["records"] for t in found["topics"]}["lake"] == 500
    shell.json("compact", shell.root)
    assert {t["topic"]: t["in_parquet"] for t in shell.json("inspect", "cluster", shell.root)["topics"]}["lake"] == 500
    again = shell("consume", "lake", "--from", "earliest", "--until-end").out.splitlines()
    assert sorted(map(int, again)) == list(range(500))


@pytest.mark.slow
def test_a_root_url_as_target_needs_no_broker(tmp_path: Path) -> None:
    folder = str(tmp_path / "embedded")
    assert Shell(folder, tmp_path, LEDGERMQ)("status").code == 4, "no cluster there yet"
    assert Shell(folder, tmp_path, LEDGERMQ).json("topic", "create", "hello", "--partitions", 2)["partitions"] == 2
    shell = Shell((tmp_path / "embedded").as_uri(), tmp_path / "embedded", LEDGERMQ)
    assert shell.json("produce", "hello", stdin="first message\n")["records"] == 1
    assert shell("consume", "hello", "--from", "earliest", "--until-end").out == "first message\n"


@pytest.mark.slow
def test_the_shell_completes_commands_and_topic_names(shell: Shell, tmp_path: Path) -> None:
    shell("produce", "completed-name", stdin="x\n")
    complete = partial(shell.completed, tmp_path)

    def completes(typed: str, name: str) -> None:
        wait_until(lambda: complete(f"ledgermq {typed} completed-") == [name])

    assert complete("ledgermq prod") == ["produce"]
    completes("consume", "completed-name")
    assert shell("consume", "completed-name", "--group", "completed-group", "--until-end").out == "x\n"
    for typed in ("group describe", "consume completed-name --group", "group reset g --like"):
        completes(typed, "completed-group")
    assert shell("group", "delete", "completed-group", "--yes").code == 0
    with ledgermq.sync.connect(shell.address) as client, client.transactions("completed-id"):
        completes("transaction describe", "completed-id")
    assert complete("ledgermq topic create t --set retention") == ["retention.bytes=", "retention.ms="]
    assert complete("ledgermq topic alter t --unset retention.m") == ["retention.ms"]


@pytest.mark.slow
def test_bundles_are_shown_and_added(shell: Shell) -> None:
    before = shell.json("cluster", "describe")["bundles"]
    count = len(before)
    shell("topic", "create", "first", "--partitions", 4)
    held = {each["bundle"]: each["partitions"] for each in shell.json("cluster", "describe")["bundles"]}
    assert held[0] == 0
    assert sum(held.values()) == sum(each["partitions"] for each in before) + 4
    tried = shell.json("cluster", "add-bundles", 2, "--dry-run")
    assert tried == {"dry_run": True, "bundles_before": count, "added": 2, "bundles": count + 2}
    assert len(shell.json("cluster", "describe")["bundles"]) == count
    done = shell.json("cluster", "add-bundles", 2)
    assert done == {"dry_run": False, "bundles_before": count, "added": 2, "bundles": count + 2}
    shell("topic", "create", "second", "--partitions", 2)
    bundles = shell.json("cluster", "describe")["bundles"]
    assert [each["partitions"] for each in bundles[count:]] == [1, 1]
    shell("produce", "second", stdin="a\n")
    assert shell("consume", "second", "--from", "earliest", "--until-end").out == "a\n"
    assert shell("fsck", shell.root).code in (0, 9)
    for count_of_bundles in ("0", "-1", "few"):
        assert shell("cluster", "add-bundles", "--", count_of_bundles).code == 2
    refused = shell("cluster", "add-bundles", 1000)
    assert refused.code == 2
    assert "a cluster has 2 to 1000 bundles" in refused.err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_partitions_move_until_bundles_are_even(shell: Shell) -> None:
    shell("topic", "create", "wide", "--partitions", 100)
    shell("cluster", "add-bundles", 1)
    planned = shell.json("cluster", "rebalance", "--dry-run", "--measured", 0, "--max-moves", 3)
    added = planned["bundles"][-1]
    assert (planned["dry_run"], planned["moves_left"] > 0) == (True, True)
    assert (added["partitions"], added["partitions_after"]) == (0, 3)
    assert {move["target"] for move in planned["moves"]} == {added["bundle"]}
    assert shell.json("cluster", "describe")["bundles"][-1]["partitions"] == 0
    done = shell("cluster", "rebalance", "--measured", 0, "--max-moves", 3, "--at-once", 2)
    assert done.code == 0, done.err
    for move in planned["moves"]:
        assert f"{move['partition']} moves from bundle {move['source']} to bundle {move['target']}: bundle" in done.err
        assert f"{move['partition']} has moved to bundle {move['target']}" in done.err
        assert move["partition"] in done.out
    described = shell.json("cluster", "describe")["bundles"]
    assert described[-1]["partitions"] == 3
    assert shell("fsck", shell.root).code in (0, 9)
    assert shell("cluster", "rebalance", "--at-once", 0).code == 2


def test_topics_are_applied_from_a_file(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "topics.yaml"
    file.write_text(
        "topics:\n  - {name: applied, partitions: 2, settings: {retention.ms: 7d}}\n  - {name: applied-2}\n"
    )

    def apply(*options: str) -> list[tuple[str, str]]:
        found = shell("topic", "apply", "--file", file, "--output", "json", *options).json()
        return [(change["topic"], change["action"]) for change in found["topics"]]

    assert apply("--dry-run") == [("applied", "create"), ("applied-2", "create")]
    assert shell("topic", "describe", "applied").code != 0, "a dry run creates nothing"
    assert apply() == [("applied", "create"), ("applied-2", "create")]
    assert apply() == [("applied", "unchanged"), ("applied-2", "unchanged")]
    file.write_text("topics:\n  - {name: applied, partitions: 3, settings: {max.message.bytes: 2000}}\n")
    assert apply() == [("applied", "alter")]
    found = shell("topic", "describe", "applied", "--output", "json").json()
    assert (found["partitions"], found["settings"]) == (3, {"max.message.bytes": "2000"})
    file.write_text("topics:\n  - {name: applied, partitions: 1}\n")
    refused = shell("topic", "apply", "--file", file)
    assert refused.code == 2
    assert "partitions cannot be removed" in refused.err
    refused = shell("topic", "apply", "--file", tmp_path / "topics.txt")
    assert refused.code == 2
    assert "must end in .yaml, .yml, .json, .toml" in refused.err
