"""What people write: settings of brokers and topics, input files, arguments of the command line."""

from __future__ import annotations

import atexit
import io
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from ledgermq.cli.arguments.start import parse_start
from ledgermq.cli.messages.inputs import InputFormat, Shape, read_records
from ledgermq.cli.messages.lines import LineSource
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger.keys import check_topic_name
from ledgermq_ledger.object_store.names import check_fence, check_key, check_prefix
from ledgermq_ledger.topics.settings import parse_settings
from tests.fuzz.surface import Surface

FOLDER = tempfile.TemporaryDirectory(prefix="ledgermq-fuzz-")
atexit.register(FOLDER.cleanup)


def check_config(data: bytes) -> None:
    file = Path(FOLDER.name, "broker.toml")
    file.unlink(missing_ok=True)  # to overwrite a file costs a flush of the disk
    file.write_bytes(data)
    load_settings(file)


CONFIGS = [
    (
        b'host = "0.0.0.0"\nport = 9650\nflush_spacing_ms = 5\nbundles = 5\nlog_format = "json"\nauto_create_topics ='
        b" true\n"
    ),
    b"port = 99999\n",
    b"[port]\nx = 1\n",
    b"port = 1979-05-27T07:32:00Z\n",
    b"flush_bytes = nan\ntopics_max = inf\n",
    b"a = " + b"[" * 5000,
]


def check_topic_settings(data: bytes) -> None:
    pairs = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
    parse_settings({name: value for name, _, value in pairs})


TOPIC_SETTINGS = [
    b"retention.ms=1000\ncleanup.policy=compact\naccept.publish=TRUE",
    b"max.message.bytes=" + b"9" * 5000,
    "retention.bytes=\u0663\u0664".encode(),
    b"retention.ms= 1_000 ",
]


def check_jsonl(data: bytes) -> None:
    for shape in (Shape(), Shape(key="k", value="v")):
        list(read_records(LineSource(io.BytesIO(data), "fuzz", None), InputFormat.JSONL, shape))


def check_csv(data: bytes) -> None:
    for shape in (Shape(), Shape(key="k")):
        list(read_records(LineSource(io.BytesIO(data), "fuzz", None), InputFormat.CSV, shape))


JSONL = [
    b'{"k": "a", "v": 1}\n{"k": null, "v": {"x": [1, 2]}}\n\n{"v": "b", "k": true}',
    b'{"k": "\\ud800", "v": 1e999}\n',
    b"[" * 100_000,
    b'{"k": ' + b"9" * 5000 + b', "v": 1}',
]
CSVS = [
    b'k,v\na,1\n"b ""x""",2\r\n',
    b"k\n" + b'"' * 9,
    "k,ä\n\u2028,\ufeff".encode(),
    b'k,v\n"' + b"x" * 200_000 + b'",1\n',
]


def check_names(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for check in (check_topic_name, check_key, check_prefix, check_fence):
        try:
            accepted = check(text)
        except Exception as error:
            last: Exception | None = error
            continue
        last = None
        parts = accepted.split("/")
        assert accepted.isascii(), accepted
        assert ".." not in parts, accepted
        assert not accepted.startswith("/"), accepted
    if last is not None:
        raise last


def check_start(data: bytes) -> None:
    parse_start(data.decode("utf-8", "replace"), datetime(2026, 11, 21, tzinfo=UTC))


STARTS = [
    b"earliest",
    b"15m",
    b"999999999d",
    b"2026-11-21T07:30",
    b"0:15,3:20",
    b"9" * 5000,
    "\u0663m".encode(),
    "\u0663:\u0664".encode(),
]


def surfaces() -> list[Surface]:
    return [
        Surface("broker-config", CONFIGS, check_config),
        Surface("topic-settings", TOPIC_SETTINGS, check_topic_settings),
        Surface("cli-jsonl", JSONL, check_jsonl),
        Surface("cli-csv", CSVS, check_csv),
        Surface(
            "names",
            [b"flights", b"a/b_c/d=1", b"..", b"a/../b", b"topic\n", "fl\u00fcge".encode(), b"2024-01-01", b"x" * 250],
            check_names,
        ),
        Surface("cli-start", STARTS, check_start),
    ]
