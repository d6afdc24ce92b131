"""Operate a broker process: admin port, SIGHUP, a store that does not answer at the start and
later.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import ledgermq
from infra.minio import Minio
from infra.ports import free_port
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq_broker.process.run import END_ANYWAY_CODE
from tests.e2e.admin_port import ADMIN, AdminPort
from tests.e2e.processes import QUICK, BrokerProcess, BrokerProcesses
from tests.e2e.raw_client import RawClient
from tests.servers.cutting_proxy import NEVER, cutting_proxy
from tests.waiting import wait_until


def lines(broker: BrokerProcess, event: str) -> list[dict[str, object]]:
    """What it has logged of one kind."""
    found = [json.loads(line) for line in broker.text().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


@pytest.mark.slow
async def test_the_admin_port_tells_of_health_and_what_was_done(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        broker = brokers.start(*ADMIN)
        admin = AdminPort(broker)
        assert admin.get("/livez") == (200, "ok\n")
        assert admin.ready()[0] == 200
        wait_until(
            lambda: admin.ready() == (200, {"ready": True, "why": "", "notes": []})
        )  # a moment after its start no bundle has an owner
        assert admin.get("/nothing")[0] == 404
        async with RawClient(broker.address) as client:
            await client.create("t", 2)
            for i in range(5):
                await client.produce("t", 0, b"%d" % i)
            assert len(await client.read_all("t", 0)) == 5
        wait_until(lambda: admin.metrics()["ledgermq_owned_bundles"][()] == 5)
        # a call is counted when it has ended, which its caller may know sooner
        wait_until(lambda: admin.metrics()["ledgermq_calls_total"].get(("OK", "FetchOnce"), 0) >= 1)
        found = admin.metrics()
        assert found["ledgermq_produced_records_total"][("t",)] == 5
        assert found["ledgermq_fetched_records_total"][("t",)] == 5
        assert found["ledgermq_calls_total"][("OK", "ProduceOnce")] == 5
        assert found["ledgermq_flush_bytes_count"][()] >= 6, "five segments and the topic's record"
        assert found["ledgermq_store_requests_total"][("put_if_absent", "OK")] >= 6
        assert found["ledgermq_store_sent_bytes_total"][("put_if_absent",)] > 1000
        assert found["ledgermq_owned_bundles"][()] == 5
        assert found["ledgermq_claims_total"][("won",)] == 5
        assert found["ledgermq_ready"][()] == 1
        assert found["process_resident_memory_bytes"][()] > 1e7
        command = [
            sys.executable,
            "-m",
            "ledgermq.cli.main",
            "top",
            admin.address,
            "--interval",
            "3",
            "--output",
            "json",
        ]
        shown = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=True)
        [row] = json.loads(shown.stdout)["brokers"]
        assert (row["ready"], row["bundles"], row["trouble"]) == (True, 5, "")
        assert row["puts"] > 0, "heartbeats"
        brokers.terminate(broker)
        assert brokers.wait(broker) == 0


async def test_one_message_can_be_followed_by_its_ids_from_end_to_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The producer's log → the broker's log → the segment, by `ledgermq inspect` → the client
    that fetched it.
    """
    root = tmp_path / "root"
    with BrokerProcesses(tmp_path, root.as_uri()) as brokers:
        broker = brokers.start(*ADMIN[2:], "--log-level", "debug", "--broker-id", "b-log")
        async with ledgermq.connect(broker.address) as client:
            topic_id = (await client.create_topic("t", 1)).topic_id
            with caplog.at_level("DEBUG", "ledgermq.producer"):
                async with client.producer(linger_ms=100) as producer:
                    first, second = producer.send("t", b"x"), producer.send("t", b"secret")
                    assert [(await each).offset for each in (first, second)] == [0, 1]
            async with client.consumer("t") as consumer:
                assert len(await consumer.fetch(timeout=10)) == 2
        [said] = [record.getMessage() for record in caplog.records if record.name == "ledgermq.producer"]
        told = dict(pair.split("=") for pair in said.split() if "=" in pair)
        assert (told["topic"], told["base_offset"], told["records"], told["broker"]) == ("t", "0", "2", broker.address)
        [answered] = [line for line in lines(broker, "batch answered") if line["producer"] == told["producer"]]
        assert (answered["broker"], answered["method"], answered["base_offset"]) == ("b-log", "Produce", 0)
        assert (
            (str(answered["topic_id"]), str(answered["sequence"]))
            == (told["topic_id"], told["sequence"])
            == (str(topic_id), "0")
        )
        assert str(answered["connection"]).startswith("ipv4:127.0.0.1:")
        [stored] = [line for line in lines(broker, "segment durable") if line["bundle"] == answered["bundle"]]
        assert (stored["batches"], stored["epoch"]) == ([f"{topic_id}/0:0+2"], 1)
        command = [
            sys.executable,
            "-m",
            "ledgermq.cli.main",
            "inspect",
            "segment",
            str(root),
            str(stored["bundle"]),
            str(stored["slot"]),
        ]
        shown = await asyncio.to_thread(
            subprocess.run, [*command, "--output", "json"], capture_output=True, text=True, timeout=60, check=True
        )
        [batch] = json.loads(shown.stdout)["batches"]
        assert (batch["topic_id"], batch["partition"], batch["base_offset"], batch["records"]) == (topic_id, 0, 0, 2)
        assert told["producer"].startswith(batch["producer"])
        [sent] = [line for line in lines(broker, "batches sent") if line["topic"] == "t"]
        assert (sent["bundle"], sent["end"], sent["method"]) == (answered["bundle"], 2, "Fetch")
        assert sent["request"] != answered["request"]
        assert "Signature" not in broker.text()
        assert "secret" not in broker.text() + said


def test_an_admin_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers,
    ):
        broker = brokers.spawn("--admin-port", str(taken.getsockname()[1]))
        assert brokers.wait(broker) == ExitCode.USAGE
        assert "for the admin port" in broker.text().splitlines()[-1]


NOBODY = "s3://bucket/root?region=us-east-1&endpoint=http://127.0.0.1"


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")


@pytest.mark.slow
def test_a_broker_that_waits_for_its_store_obeys_signals(tmp_path: Path, credentials: None) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("")
    store_port, port = free_port(), free_port()
    with BrokerProcesses(tmp_path, f"{NOBODY}:{store_port}") as brokers:
        broker = brokers.spawn(*ADMIN, "--config", str(file), port=port)
        wait_until(lambda: bool(lines(broker, "waiting for the object store")))
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        file.write_text('flush_spacing_ms = 5\nhost = "0.0.0.0"')
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: bool(lines(broker, "settings reloaded")))
        assert brokers.stop(broker) == 0


def test_a_bucket_that_does_not_exist_ends_the_start(tmp_path: Path, moto_root: str) -> None:
    with BrokerProcesses(tmp_path, moto_root.replace("//ledgermq-test/", "//no-such-bucket/")) as brokers:
        broker = brokers.spawn()
        assert brokers.wait(broker) == ExitCode.DAMAGED
        assert "STORE_UNUSABLE" in broker.text().splitlines()[-1]


@pytest.mark.real
def test_wrong_credentials_end_the_start(tmp_path: Path, minio_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with BrokerProcesses(tmp_path, minio_root) as brokers:
        broker = brokers.spawn("--log-level", "debug")
        assert brokers.wait(broker) == ExitCode.REFUSED
        assert "UNAUTHORIZED" in broker.text().splitlines()[-1]
        assert "not-the-secret" not in broker.text()


@pytest.mark.slow
def test_a_store_that_never_answers_cannot_keep_a_broker_from_ending(tmp_path: Path, credentials: None) -> None:
    """It takes connections and is silent: threads wait for it, and threads cannot be cancelled."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        BrokerProcesses(tmp_path, f"{NOBODY}:{silent.getsockname()[1]}") as brokers,
    ):
        broker = brokers.spawn(*ADMIN, "--shutdown-ms", "500")
        AdminPort(broker)
        connection, _ = silent.accept()
        with connection:
            assert brokers.stop(broker) == 3
        assert lines(broker, "not everything has ended in time")


def test_sighup_takes_what_is_live_and_refuses_the_rest_by_name(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('log_level = "warning"\nflush_spacing_ms = 0\n')
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        broker = brokers.start(*ADMIN[2:], "--config", str(file))
        assert not lines(broker, "broker started"), "the level of the file counts"
        for text, event in (
            ('log_level = "info"\nflush_spacing_ms = 50\nbundles = 9\n', "settings reloaded"),
            ("flush_spacing_ms = 'x'\n", "settings not reloaded"),
        ):
            file.write_text(text)
            os.kill(broker.pid, signal.SIGHUP)
            wait_until(lambda event=event: bool(lines(broker, event)))  # type: ignore[misc]
        [done] = lines(broker, "settings reloaded")
        assert (done["changed"], done["refused"]) == ({"log_level": "info", "flush_spacing_ms": 50}, ["bundles"])
        assert [line["setting"] for line in lines(broker, "setting needs a restart")] == ["bundles"]
        assert "flush_spacing_ms" in str(lines(broker, "settings not reloaded")[0]["error"])
        assert brokers.stop(broker) == 0


@pytest.mark.slow
@pytest.mark.parametrize("outage_s", [3.0])
async def test_a_store_that_is_away_at_the_start_and_later(
    tmp_path: Path, moto: Minio, moto_root: str, outage_s: float
) -> None:
    await _lives_through_outages(tmp_path, moto, moto_root, outage_s)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_minute_without_the_store_needs_no_restart(tmp_path: Path, minio: Minio, minio_root: str) -> None:
    await _lives_through_outages(tmp_path, minio, minio_root, 60.0)


async def _lives_through_outages(tmp_path: Path, server: Minio, root: str, outage_s: float) -> None:
    async with cutting_proxy(server.endpoint, seed=1, pieces_max=NEVER) as proxy:
        proxy.cut_off()
        with BrokerProcesses(tmp_path, root.replace(server.endpoint, proxy.endpoint), QUICK) as brokers:
            broker = brokers.spawn(*ADMIN, "--shutdown-ms", "2000")
            admin = await asyncio.to_thread(AdminPort, broker)
            await _until_ready(admin, "waiting for the object store")
            assert lines(broker, "waiting for the object store")
            assert (await asyncio.to_thread(admin.get, "/livez"))[0] == 200
            await asyncio.sleep(outage_s)
            proxy.restore()
            await _until_ready(admin, "")
            async with (
                ledgermq.connect(_address(broker), timeout_s=90 + outage_s) as client,
                client.producer() as producer,
            ):
                await client.create_topic("t", partitions=4)
                sent = [await producer.send("t", b"%d" % i) for i in range(20)]
                proxy.cut_off()
                waiting = [producer.send("t", b"%d" % i) for i in range(20, 40)]
                await asyncio.sleep(outage_s)
                await asyncio.to_thread(wait_until, lambda: told_of_silence(admin))
                proxy.restore()
                sent += [await done for done in waiting]
                assert len({(done.partition, done.offset) for done in sent}) == 40
            assert broker.process.poll() is None
            proxy.cut_off()
            brokers.terminate(broker)  # nothing can be handed over now: the deadline ends it
            assert await asyncio.to_thread(brokers.wait, broker) in (0, END_ANYWAY_CODE)  # its store is away


def told_of_silence(admin: AdminPort) -> bool:
    status, found = admin.ready()
    assert status == 200, found
    return "no heartbeat has reached the object store" in str(found["notes"])


def _address(broker: BrokerProcess) -> str:
    return next(
        line.split()[3].rstrip(",") for line in broker.text().splitlines() if line.startswith("broker listens on")
    )


async def _until_ready(admin: AdminPort, why: str) -> None:
    """Until /readyz gives this reason; "" = it is ready."""

    def told() -> bool:
        status, found = admin.ready()
        return why in found["why"] and (status == 200) == (not why) and found["why"] != "the process is starting"

    await asyncio.to_thread(wait_until, told, what=f"/readyz says {why!r}")
