"""Quotas on a real broker: the client id in each call, connections, the command line, metrics."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledgermq
from ledgermq.errors import DeadlineExceeded, ResourceExhausted
from tests.e2e.admin_port import AdminPort
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.e2e.warm_cli import WarmCommands
from tests.waiting import until

KIB = 1024


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with WarmCommands(tmp_path_factory.mktemp("c")) as path:
        yield path


def run(program: Path, target: str, *words: str, code: int = 0) -> tuple[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGERMQ_")}
    done = subprocess.run(
        [program, *words, "--target", target], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
async def test_a_program_is_bound_by_the_quota_of_its_client_id(tmp_path: Path, program: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), QUICK) as brokers:
        broker = brokers.start("--admin-port", "0", "--log-format", "json")
        target = brokers.addresses
        run(program, target, "topic", "create", "t", "--partitions", "1")
        out, _ = run(program, target, "quota", "set", "anonymous", "-c", "nightly", "--bytes-in", "20000", "-o", "json")
        assert json.loads(out)["bytes_in"] == 20000
        began_s = time.monotonic()
        async with (
            ledgermq.connect(target, client_id="nightly") as client,
            client.producer(linger_ms=0) as producer,
        ):
            for _ in range(5):
                await producer.send("t", os.urandom(15 * KIB))
        took_s = time.monotonic() - began_s
        assert took_s > (4 * 15 * KIB - 2 * 20000) / 20000, "waits as long as the broker says"
        [quota] = json.loads(run(program, target, "quota", "list", "-o", "json")[0])["quotas"]
        assert (quota["principal"], quota["client_id"], quota["bytes_in"]) == ("anonymous", "nightly", 20000)
        refusals = AdminPort(broker).metrics()["ledgermq_quota_refusals_total"]
        assert sum(refusals.values()) >= 1
        assert set(refusals) == {("bytes_in", "anonymous")}
        _, note = run(program, target, "quota", "unset", "anonymous", "-c", "nightly", "-l", "requests")
        assert "bytes_in 20000" in note
        run(program, target, "quota", "unset", "anonymous", "-c", "nightly")
        assert json.loads(run(program, target, "quota", "list", "-o", "json")[0])["quotas"] == []
        run(program, target, "quota", "set", "anonymous", code=2)


@pytest.mark.slow
async def test_a_budget_in_dollars_binds_where_requests_have_a_price(tmp_path: Path, program: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "free").as_uri(), QUICK) as brokers:
        brokers.start()
        _, why = run(program, brokers.addresses, "quota", "set", "anonymous", "--dollars-month", "1", code=2)
        assert "no price" in why
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), QUICK) as brokers:
        broker = brokers.start("--admin-port", "0", "--log-format", "json", "--price-put-dollars", "5")
        target = brokers.addresses
        run(program, target, "topic", "create", "t", "--partitions", "1")
        _, why = run(program, target, "quota", "set", "anonymous", "--dollars-month", "nan", code=2)
        assert "dollars_month must be" in why
        set_, _ = run(program, target, "quota", "set", "anonymous", "--dollars-month", "7.3", "-o", "json")
        assert json.loads(set_)["dollars_month"] == 7.3, "two PUTs an hour"
        with pytest.raises(DeadlineExceeded, match=r"dollars_month 7\.3"):
            await _send(target, 10)
        shown, _ = run(program, target, "quota", "describe", "anonymous", "-o", "json")
        [row] = [row for row in json.loads(shown)["use"] if row["limit"] == "dollars_month"]
        assert (row["bound"], row["used"] >= 0.01) == (7.3, True)
        assert {limit for limit, _ in AdminPort(broker).metrics()["ledgermq_quota_refusals_total"]} == {"dollars_month"}
        run(program, target, "quota", "unset", "anonymous", "-l", "dollars_month")
        await _send(target, 1)


async def _send(target: str, count: int) -> None:
    """Send records one by one, each in a segment."""
    async with (
        ledgermq.connect(target) as client,
        client.producer(linger_ms=0, delivery_timeout_s=10) as producer,
    ):
        for _ in range(count):
            await producer.send("t", b"x")


@pytest.mark.slow
async def test_connections_are_counted_while_they_have_calls(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), QUICK) as brokers:
        brokers.start()
        target = brokers.addresses
        async with ledgermq.connect(target, client_id="many") as first:
            await first.create_topic("t", 1)
            async with first.producer() as producer:
                await producer.send("t", b"x")
            await first.quotas.set("anonymous", "many", connections=1)
            async with ledgermq.connect(target, client_id="many", timeout_s=10) as second:
                async with first.consumer("t", start="earliest") as consumer:
                    assert (await anext(consumer)).value == b"x"  # its stream stays open
                    assert await first.list_topics(), "the same connection"
                    with pytest.raises(ResourceExhausted, match="connections 1"):
                        await second.list_topics()
                    async with ledgermq.connect(target, client_id="another") as third:
                        assert await third.list_topics()

                async def works() -> bool:
                    try:
                        return bool(await second.list_topics())
                    except ResourceExhausted:
                        return False

                await until(works)
