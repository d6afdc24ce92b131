"""`ledgermq top`: rates from two readings, several brokers, some of which do not answer."""

from __future__ import annotations

import io
import json
import random
import socket

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ledgermq.cli.main import build
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq_tools.top.readings import BrokerRow, TopicRow, View, broker_row, parse, quantile, topic_rows
from ledgermq_tools.top.screen import screen

BEFORE = """
ledgermq_broker_info{broker="b-1",root="s3://b"} 1
ledgermq_ready 1
ledgermq_owned_bundles 3
ledgermq_produced_records_total{topic="t"} 100
ledgermq_produced_bytes_total{topic="t"} 1000
ledgermq_fetched_bytes_total{topic="t"} 0
ledgermq_store_requests_total{operation="put_if_absent",outcome="OK"} 10
ledgermq_store_requests_total{operation="get",outcome="OK"} 5
ledgermq_flush_seconds_bucket{le="0.01"} 4
ledgermq_flush_seconds_bucket{le="0.1"} 4
ledgermq_flush_seconds_bucket{le="+Inf"} 4
ledgermq_reads_total{source="cache"} 0
ledgermq_reads_total{source="segment"} 0
process_cpu_seconds_total 1
"""
NOW = """
ledgermq_broker_info{broker="b-1",root="s3://b"} 1
ledgermq_ready 1
ledgermq_owned_bundles 3
ledgermq_produced_records_total{topic="t"} 300
ledgermq_produced_records_total{topic="u"} 20
ledgermq_produced_bytes_total{topic="t"} 5000
ledgermq_produced_bytes_total{topic="u"} 8000
ledgermq_fetched_bytes_total{topic="t"} 200
ledgermq_store_requests_total{operation="put_if_absent",outcome="OK"} 20
ledgermq_store_requests_total{operation="put_if_absent",outcome="STORE_THROTTLED"} 2
ledgermq_store_requests_total{operation="get",outcome="OK"} 5
ledgermq_flush_seconds_bucket{le="0.01"} 5
ledgermq_flush_seconds_bucket{le="0.1"} 14
ledgermq_flush_seconds_bucket{le="+Inf"} 14
ledgermq_reads_total{source="cache"} 3
ledgermq_reads_total{source="segment"} 1
ledgermq_bundle_trouble{bundle="2",code="DATA_DAMAGED"} 1
ledgermq_parked_partitions{bundle="1"} 2
process_cpu_seconds_total 1.5
process_resident_memory_bytes 2e8
"""


def test_rates_are_what_happened_between_two_readings() -> None:
    row = broker_row("h:1", parse(BEFORE, 10.0), parse(NOW, 12.0))
    assert (row.broker, row.ready, row.bundles) == ("b-1", True, 3)
    assert (row.records_in, row.bytes_in, row.bytes_out, row.puts, row.gets) == (110, 6000, 100, 6, 0)
    assert (row.flush_p99_s, row.cache_hits, row.cpu, row.memory_bytes) == (0.1, 0.75, 0.25, 2e8)
    assert row.trouble == "bundle 2 is in trouble, 2 partitions parked"


def test_a_restarted_broker_counts_from_zero() -> None:
    row = broker_row("h:1", parse(NOW, 10.0), parse(BEFORE, 12.0))
    assert row.records_in == 50
    assert row.bytes_in == 500


def test_topics_are_summed_over_brokers_busiest_first() -> None:
    rows = topic_rows([(parse(BEFORE, 0.0), parse(NOW, 2.0))] * 2)
    assert rows == [TopicRow("u", 20, 8000, 0, 0), TopicRow("t", 200, 4000, 0, 200)]


def test_a_quantile_of_nothing_is_none() -> None:
    reading = parse(NOW, 1.0)
    assert quantile(0.99, reading, reading, "ledgermq_flush_seconds_bucket") is None


def test_text_that_is_broken_is_refused_or_shown_never_a_crash() -> None:
    chosen, refused = random.Random(1), 0
    for _ in range(1500):
        text = list(NOW)
        for _ in range(chosen.randrange(1, 8)):
            text[chosen.randrange(len(text))] = chosen.choice('{}"=,\n \\#0eNaN+-xl\x00\u00e9')
        try:
            found = parse("".join(text), 2.0)
        except ValueError:
            refused += 1
            continue
        before = parse(BEFORE, 1.0)
        Console(file=io.StringIO()).print(
            screen(View([broker_row("h:1", before, found)], topic_rows([(before, found)])))
        )
    assert 100 < refused < 1400


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e300"])
def test_values_that_are_no_numbers_are_left_out(value: str) -> None:
    row = broker_row(
        "h:1", parse(BEFORE, 1.0), parse(f"ledgermq_owned_bundles {value}\nledgermq_open_streams 2\n", 2.0)
    )
    assert row.streams == 2


def test_the_screen_shows_who_does_not_answer_and_what_is_amiss() -> None:
    found = View(
        [broker_row("h:1", parse(BEFORE, 10.0), parse(NOW, 12.0)), BrokerRow("h:2", trouble="no answer: refused")], []
    )
    out = io.StringIO()
    Console(file=out, width=200).print(screen(found))
    text = out.getvalue()
    assert "1 of 2 brokers ready" in text
    assert "6.0 kB/s" in text
    assert "h:2: no answer: refused" in text
    assert "b-1: bundle 2 is in trouble" in text


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner(env={"COLUMNS": "200"}).invoke(build(), ["top", *arguments])
    return found.exit_code, found.stdout, found.stderr


def test_no_broker_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    code, out, _ = run(f"127.0.0.1:{port}", "--once", "--interval", "0.2", "--output", "json")
    assert code == ExitCode.UNAVAILABLE
    assert "no answer" in json.loads(out)["brokers"][0]["trouble"]


@pytest.mark.parametrize("address", ["localhost", "host:port", "http://x:1", ":1", "a/b:1"])
def test_a_text_that_is_no_address_is_refused(address: str) -> None:
    code, _, err = run(address, "--once")
    assert (code, "host:port" in err) == (ExitCode.USAGE, True)
