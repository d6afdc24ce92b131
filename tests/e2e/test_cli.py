"""The command line against a real broker process: run every command as a user does, each in a
separate process.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ledgermq.sync
from ledgermq.client.connection.grpc_connection import GrpcConnector
from ledgermq.protocol import ledgermq_pb2 as pb
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


def test_lines_go_in_and_come_out(shell: Shell) -> None:
    sent = shell.json("produce", "lines", stdin="one\ntwo\n\nfour ü\n")
    assert (sent["records"], sent["partitions"]) == (
        4,
        [{"partition": 0, "records": 4, "first_offset": 0, "last_offset": 3}],
    )
    assert shell("consume", "lines", "--from", "earliest", "--until-end").out == "one\ntwo\n\nfour ü\n"
    assert shell("consume", "lines", "--from", "1", "--max", 2).out == "two\n\n"
    assert shell("consume", "lines", "--from", "1", "--max", 2, "--direct", shell.root.as_uri()).out == "two\n\n"
    assert shell("consume", "lines", "--direct", shell.root).err.startswith("error [INVALID_CONFIG] direct_reads")
    assert shell("consume", "lines", "--from", "1h", "--max", 1).out == "one\n"


def test_offsets_of_partitions_mean_what_they_mean_in_python(shell: Shell) -> None:
    shell("topic", "create", "two", "--partitions", 2)
    for number in (0, 1):
        shell("produce", "two", "--partition", number, stdin=f"{number}a\n{number}b\n")
    read = ("consume", "two", "--until-end", "--from")
    assert sorted(shell(*read, "0:1").out.split()) == ["0b", "1a", "1b"]
    assert shell(*read, "0:1", "--partition", 0).out.split() == ["0b"]
    with ledgermq.sync.connect(shell.address) as client, client.consumer("two", start={0: 1}) as consumer:
        found: list[bytes | None] = []
        while len(found) < 3:
            found += [message.value for message in consumer.fetch()]
    assert sorted(filter(None, found)) == [b"0b", b"1a", b"1b"]
    for arguments, code in ((("2:0",), 4), (("0:1", "--partition", 1), 2), (("0:1", "--partition", 2), 4)):
        assert shell(*read, *arguments).code == code


def test_a_csv_file_with_a_key_column(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    path.write_text("carrier,delay\n" + "".join(f"{'UA' if n % 2 else 'AA'},{n}\n" for n in range(3000)))
    shell("topic", "create", "csv", "--partitions", 4)
    assert shell.json("produce", "csv", path, "--format", "csv", "--key", "carrier")["records"] == 3000
    done = shell("consume", "csv", "--until-end", "--format", "jsonl")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert len(rows) == 3000
    for carrier in ("AA", "UA"):
        delays = [int(json.loads(row["value"])["delay"]) for row in rows if row["key"] == carrier]
        assert delays == sorted(delays)
        assert len({row["partition"] for row in rows if row["key"] == carrier}) == 1


def test_headers_tag_and_binary_values_in_every_format(shell: Shell) -> None:
    sent = shell(
        "produce",
        "formats",
        "--header",
        "a=1",
        "--header",
        "a=2",
        "--tag",
        "red",
        "--key-separator",
        ":",
        stdin=b"k:\xff\xfe\nk:x,y\n",
    )
    assert sent.code == 0, sent.err
    read = ("consume", "formats", "--from", "earliest", "--until-end", "--format")
    first, second = (json.loads(line) for line in shell(*read, "jsonl").out.splitlines())
    assert (first["key"], first["value_base64"], first["tag"]) == ("k", "//4=", "red")
    assert first["headers"] == [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]
    assert (second["value"], second["offset"], second["partition"]) == ("x,y", 1, 0)
    rows = list(csv.DictReader(io.StringIO(shell(*read, "csv").out)))
    assert [row["value"] for row in rows] == ["\\xff\\xfe", "x,y"]
    table = shell(*read, "table").out.splitlines()
    assert table[0].split() == ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE"]
    assert table[2].split()[:2] == ["0", "1"]


@pytest.mark.slow
def test_what_passes_a_filter_is_printed(shell: Shell) -> None:
    for tag, price in (("red", "5"), ("blue", "7"), ("green", "9")):
        assert shell("produce", "sold", "--tag", tag, "--header", f"price={price}", stdin=f"{tag}\n").code == 0
    read = "consume", "sold", "--from", "earliest", "--until-end"
    assert shell(*read, "--filter", "red || green").out == "red\ngreen\n"
    assert shell(*read, "--filter", "price > 5", "--max", "1").out == "blue\n"
    assert shell(*read, "--filter", "price > 5", "--group", "sellers").out == "blue\ngreen\n"
    assert shell(*read, "--filter", "none", "--group", "filtering").out == ""
    wrong = shell(*read, "--filter", "price >")
    assert (wrong.code, wrong.out) == (2, "")
    assert "at character 8, at the end" in wrong.err


def test_rows_with_ids_are_stored_once(shell: Shell, tmp_path: Path) -> None:
    assert shell("topic", "create", "paid", "--set", "dedup.window.ms=10m").code == 0
    rows = '{"order": "1", "amount": 5}\n{"order": 2, "amount": 6}\n{"order": "1", "amount": 7}\n'
    send = "produce", "paid", "--format", "jsonl", "--id", "order", "--value", "amount"
    first = shell.json(*send, stdin=rows)
    assert (first["records"], first["duplicates"]) == (3, 1)
    again = shell.json(*send, stdin=rows + '{"order": "3", "amount": 8}\n{"order": null, "amount": 9}\n')
    assert (again["records"], again["duplicates"]) == (5, 3)
    assert sum(row["records"] for row in again["partitions"]) == 2
    table = tmp_path / "paid.csv"
    table.write_text("order,amount\n1,5\n4,10\n")
    assert shell.json("produce", "paid", table, "--format", "csv", "--id", "order")["duplicates"] == 1
    assert len(shell("consume", "paid", "--from", "earliest", "--until-end").out.splitlines()) == 5
    for wrong, why in (
        (("produce", "paid", "--id", "order"), "lines have no ids"),
        ((*send[:4], "--id", "ordre"), "there is no field 'ordre'"),
        (("produce", "aged", "--format", "jsonl", "--id", "order"), "set dedup.window.ms"),
    ):
        done = shell(*wrong, stdin='{"order": "1"}\n')
        assert done.code == 2
        assert why in done.err


@pytest.mark.slow
def test_what_is_older_than_its_ttl_is_printed_only_on_demand(shell: Shell) -> None:
    assert shell("produce", "aged", "--ttl", "1ms", stdin="short\n").code == 0
    assert shell("produce", "aged", "--ttl", "1d", "--header", "a=1", stdin="long\n").code == 0
    read = "consume", "aged", "--from", "earliest", "--until-end"
    assert shell(*read).out == "long\n"
    assert shell(*read, "--expired").out == "short\nlong\n"
    assert shell(*read, "--group", "aged-readers").out == "long\n"
    assert shell(*read, "--group", "aged-archivers", "--expired").out == "short\nlong\n"
    for wrong in ("soon", "0s"):
        done = shell("produce", "aged", "--ttl", wrong, stdin="x\n")
        assert done.code == 2
        assert "--ttl" in done.err
    done = shell("topic", "alter", "aged", "--set", "message.ttl.ms=1d", "--set", "message.ttl.ms.max=2d")
    assert done.code == 0, done.err
    settings = shell.json("topic", "describe", "aged")["settings"]
    assert (settings["message.ttl.ms"], settings["message.ttl.ms.max"]) == ("86400000", "172800000")


def test_tombstones(shell: Shell) -> None:
    shell(
        "produce",
        "tombs",
        "--format",
        "jsonl",
        "--key",
        "k",
        "--value",
        "v",
        stdin='{"k": "a", "v": null}\n{"k": "a", "v": {"x": 1}}\n',
    )
    rows = [
        json.loads(line)
        for line in shell("consume", "tombs", "--from", "earliest", "--until-end", "--format", "jsonl").out.splitlines()
    ]
    assert [row["value"] for row in rows] == [None, '{"x":1}']


def test_bad_input_stops_with_its_line_and_what_was_before_is_stored(shell: Shell) -> None:
    done = shell("produce", "bad", "--format", "jsonl", stdin='{"a": 1}\n{"a": 2}\n{"a": \n{"a": 4}\n')
    assert done.code == 2
    assert "stdin, line 3: not JSON" in done.err
    assert "Traceback" not in done.err
    assert "2 records were stored before the error: lines 1 to 2 of stdin. --skip 2 resumes after them." in done.err
    assert shell("consume", "bad", "--from", "earliest", "--until-end").out == '{"a": 1}\n{"a": 2}\n'


def test_too_large_a_record_is_refused(shell: Shell) -> None:
    shell("topic", "create", "small", "--partitions", 1, "--set", "max.message.bytes=100")
    done = shell("produce", "small", stdin="x" * 101 + "\n")
    assert done.code == 2
    assert "error [MESSAGE_TOO_LARGE] stdin, line 1: " in done.err


def test_a_record_that_is_too_large_is_named_and_the_run_goes_on_behind_it(shell: Shell, tmp_path: Path) -> None:
    shell("topic", "create", "gap", "--partitions", 1, "--set", "max.message.bytes=100")
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(2500)) + f'"{"x" * 200}"\n' + '{"n": 2500}\n')
    done = shell("produce", "gap", path, "--format", "jsonl")
    assert done.code == 2
    assert f"error [MESSAGE_TOO_LARGE] {path}, line 2501: " in done.err
    assert (
        f"2,500 records were stored before the error: lines 1 to 2,500 of {path}. --skip 2500 resumes after them."
        in done.err
    )
    assert shell.json("produce", "gap", path, "--format", "jsonl", "--skip", 2501)["records"] == 1
    assert shell("consume", "gap", "--until-end").out == "".join(f'{{"n": {n}}}\n' for n in range(2501))


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(shell: Shell) -> None:
    shell("produce", "pipe", stdin="x\n" * 200_000)
    command = (
        f"'{LEDGERMQ}' consume pipe --from earliest --until-end --target {shell.address} | head -1; exit"
        " ${PIPESTATUS[0]}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")


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
    assert (done.returncode, done.stderr) == (0, b"")


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
def test_a_group_from_its_first_message_to_its_deletion(shell: Shell, tmp_path: Path) -> None:
    shell.json("topic", "create", "grouped", "--partitions", 2)
    assert shell("produce", "grouped", stdin="\n".join(f"m{number}" for number in range(10)) + "\n").code == 0
    assert sorted(shell("consume", "grouped", "--group", "g", "--until-end").out.split()) == [
        f"m{number}" for number in range(10)
    ]
    assert shell("consume", "grouped", "--group", "g", "--until-end").out == ""
    assert "g" in [group["group"] for group in shell.json("group", "list")["groups"]]
    described = shell.json("group", "describe", "g")
    assert (described["state"], described["lag"]) == ("empty", 0)
    assert sum(row["committed"] for row in described["offsets"]) == 10
    assert "--dry-run" in shell("group", "reset", "g", "--to", "earliest", "--dry-run").err
    assert shell.json("group", "describe", "g")["lag"] == 0
    assert sum(row["after"] for row in shell.json("group", "reset", "g", "--to", "1h", "--yes")["resets"]) == 0
    assert shell.json("group", "describe", "g")["lag"] == 10
    file = tmp_path / "offsets.json"
    assert shell("group", "reset", "g", "--to", "latest", "--yes").code == 0
    assert shell("group", "export", "g", file).code == 0
    assert shell("group", "import", "copy", file).code == 0
    assert shell.json("group", "describe", "copy")["lag"] == 0
    assert shell("group", "delete", "g", "--yes").code == 0
    groups = [group["group"] for group in shell.json("group", "list")["groups"]]
    assert ("copy" in groups, "g" in groups) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["describe", "nobody"], 4, "UNKNOWN_GROUP"),
        (["delete", "nobody", "--yes"], 4, "UNKNOWN_GROUP"),
        (["describe", "a/b"], 2, "INVALID_GROUP_NAME"),
        (["reset", "nobody"], 2, "--to, --shift and --like"),
        (["reset", "nobody", "--to", "earliest", "--shift", "1"], 2, "--to, --shift and --like"),
        (["reset", "nobody", "--to", "someday"], 2, "--to 'someday'"),
        (["reset", "nobody", "--to", "earliest"], 4, "UNKNOWN_GROUP"),
        (["reset", "nobody", "--to", "earliest", "--partition", "t"], 2, "TOPIC:N"),
        (["reset", "nobody", "--to", "earliest", "--topic", "none"], 4, "UNKNOWN_TOPIC"),
        (
            ["reset", "nobody", "--to", "earliest", "--partition", "parted:99"],
            4,
            "topic 'parted' has partitions 0 to 0, not 99",
        ),
        (["import", "nobody", "/nowhere"], 2, "/nowhere"),
        (["import", "nobody", "/dev/null"], 2, "/dev/null"),
    ],
)
def test_bad_group_commands(shell: Shell, arguments: list[str], code: int, text: str) -> None:
    shell("topic", "create", "parted", "--partitions", 1, "--if-not-exists")
    done = shell("group", *arguments)
    assert done.code == code, done.err
    assert text in done.err
    assert "Traceback" not in done.err


def test_a_group_keeps_the_place_itself(shell: Shell) -> None:
    shell.json("topic", "create", "placed")
    done = shell("consume", "placed", "--group", "g9", "--partition", 0)
    assert done.code == 2
    assert "group reset" in done.err


@pytest.mark.slow
def test_transactions_are_listed_resolved_and_forgotten(shell: Shell) -> None:
    assert shell("transaction", "list").err == "No transaction is open.\n"
    with ledgermq.sync.connect(shell.address) as client, client.transactions("billing-7") as transactions:
        with transactions.begin() as transaction:
            transaction.send("invoices", b"x")
        with transactions.begin() as transaction:
            transaction.send("invoices", b"y")
            transaction.flush()
            found = shell.json("transaction", "list", "--staged")
            assert [(row["id"], row["number"], row["batches"], row["bundle"] > 0) for row in found["staged"]] == [
                ("billing-7", 2, 1, True)
            ]
            transaction.abort()
    prepare(shell.address, "payment-1", "payment-2")
    rows = shell.json("transaction", "list")["transactions"]
    assert [(row["id"], row["kind"], row["state"]) for row in rows] == [
        (f"payment-{number}", "two_phase", "prepared") for number in (1, 2)
    ]
    listed = shell("transaction", "list", "--all")
    assert all(text in listed.out for text in ("billing-7", "ordinary", "aborted", "payment-2", "prepared"))
    described = shell.json("transaction", "describe", "payment-1")
    assert (described["state"], described["coordinator"], described["staged"]) == ("prepared", shell.address, [])
    asked = shell("transaction", "commit", "payment-1", stdin="n\n")
    assert (asked.code, "heuristic decision" in asked.err, "database" in asked.err) == (1, True, True)
    assert shell.json("transaction", "commit", "payment-1", "--yes")["state"] == "committed_by_operator"
    assert shell("transaction", "abort", "payment-2", stdin="y\n").code == 0
    assert shell.json("transaction", "list")["transactions"] == []
    lost = shell("transaction", "give-up", "payment-1", "--bundle", 1, stdin="y\n")
    assert (lost.code, "DATA WILL BE LOST" in lost.err, "not incomplete in bundle 1" in lost.err) == (2, True, True)
    for name in ("payment-1", "payment-2"):
        assert shell("transaction", "forget", name, "--yes").code == 0
    gone = shell("transaction", "describe", "payment-1")
    assert (gone.code, "TRANSACTION_UNKNOWN" in gone.err, "transaction list --all" in gone.err) == (4, True, True)
    refused = shell("transaction", "abort", "two words", "--yes")
    assert (refused.code, "INVALID_REQUEST" in refused.err) == (2, True)


@pytest.mark.slow
def test_unresolved_messages_are_listed_shown_published_and_dropped(shell: Shell) -> None:
    """The copies are written here as brokers write them, so no coordinator knows of their ids."""
    assert shell("transaction", "unresolved", "list").err == "No unresolved message waits for a decision.\n"
    shell.json("topic", "create", "orders", "--partitions", 2)
    with ledgermq.sync.connect(shell.address) as client, client.producer() as producer:
        for number in range(4):
            added = {"transactional-id": f"order-{number}", "topic": "orders", "partition": "1", "checks": "15"}
            headers = {"mine": "x", **{f"half.{name}": value for name, value in added.items()}}
            producer.send("shops.unresolved", f"coffee {number}", key=f"k{number}", headers=headers)
    rows = shell.json("transaction", "unresolved", "list")["messages"]
    assert [(row["group"], row["id"], row["topic"], row["partition"], row["key"], row["checks"]) for row in rows] == [
        ("shops", f"order-{number}", "orders", 1, f"k{number}", 15) for number in range(4)
    ]
    shown = json.loads(shell("transaction", "unresolved", "show", "shops", "order-1").out)
    assert (shown["value"], shown["offset"]) == ("coffee 1", 1)
    kept = shell("transaction", "unresolved", "commit", "shops", "order-1", "--unverified", stdin="n\n")
    assert (kept.code, "Publish 1 unresolved messages of shops (order-1)?" in kept.err) == (1, True)
    done = shell("transaction", "unresolved", "commit", "shops", "order-1", "order-2", "--unverified", "--yes")
    assert (done.code, "2 unresolved messages of shops are published." in done.err) == (0, True)
    assert shell("transaction", "unresolved", "rollback", "shops", "--all", stdin="y\n").code == 0
    # a commit shows a moment after its command
    wait_until(lambda: shell.json("transaction", "unresolved", "list", "shops")["messages"] == [])
    decided = shell.json("transaction", "unresolved", "list", "--all")["messages"]
    assert [row["decision"] for row in decided] == ["rollback", "commit", "commit", "rollback"]
    for wrong in (["commit", "shops", "order-0"], ["commit", "shops", "order-9"], ["rollback", "shops"]):
        refused = shell("transaction", "unresolved", *wrong, "--yes")
        assert (refused.code, "INVALID_REQUEST" in refused.err) == (2, True)
    read = ("consume", "orders", "--until-end", "--format", "jsonl")
    wait_until(lambda: len(shell(*read).out.splitlines()) >= 2)
    rows = [json.loads(line) for line in shell(*read).out.splitlines()]
    assert [(row["partition"], row["key"], row["value"]) for row in rows] == [
        (1, f"k{number}", f"coffee {number}") for number in (1, 2)
    ]
    assert [[header["key"] for header in row["headers"]] for row in rows] == [["mine"], ["mine"]]


def prepare(address: str, *names: str) -> None:
    """Prepare two-phase transactions without records, as a transaction manager does."""

    async def call() -> None:
        line = GrpcConnector(request_timeout_s=10).connect(address)
        for name in names:
            begun = await line.init_transactions(pb.InitTransactionsRequest(transactional_id=name, kind=pb.TWO_PHASE))
            ref = pb.TransactionRef(transactional_id=name, coordinator=begun.coordinator, number=1)
            ref.producer_id, ref.epoch = begun.producer_id, begun.epoch
            await line.end_transaction(pb.EndTransactionRequest(transaction=ref, outcome=pb.PREPARED))
        await line.close()

    asyncio.run(call())


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


@pytest.mark.slow
def test_records_are_copied_whole_by_a_pipe(shell: Shell) -> None:
    async def send() -> None:
        async with ledgermq.connect(shell.address) as client:
            await client.create_topic("original", 3)
            await client.create_topic("copy", 3)
            async with client.producer() as producer:
                headers = [("h", b"\xff"), ("h", None), ("", b"x")]
                await producer.send(
                    "original", b"\xff\x00", key=b"\xfe", headers=headers, tag="red", timestamp=17, partition=2
                )
                await producer.send("original", None, key="k", timestamp=-1, partition=0)
                await producer.send("original", '{"NaN": "\\u2028"}', partition=1)

    asyncio.run(send())
    everything = ("--from", "earliest", "--until-end", "--format", "jsonl")
    lines = shell("consume", "original", *everything).out
    assert shell("produce", "copy", "--format", "records", "--keep-partition", stdin=lines).code == 0

    def plain(printed: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in printed.splitlines()]
        return sorted(({**each, "topic": None} for each in found), key=lambda each: int(each["partition"]))

    assert plain(shell("consume", "copy", *everything).out) == plain(lines)
    assert shell("consume", "copy", "--from", "earliest", "-e", "-p", 0, "-f", "%p:%o %k %S").out == "0:0 k -1\n"
    assert shell("consume", "copy", "--from", "earliest", "-e", "-o", "json").out.count("\n") == 3
    refused = shell("produce", "copy", "-f", "records", stdin='{"value": 1}\n')
    assert (refused.code, "stdin, line 1: field 'value' must be text" in refused.err) == (2, True)


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
