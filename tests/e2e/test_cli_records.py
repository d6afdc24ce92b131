"""The command line against a real broker process: records go in and come out, in every format."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ledgermq.sync
from tests.e2e.shell import LEDGERMQ, Shell, shell_beside_a_broker

shell = pytest.fixture(scope="module")(shell_beside_a_broker)


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
