"""The broker as a process: its answers to stock gRPC tools, and its refusals."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.errors import DataDamaged, ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import MESSAGE_BYTES_MAX
from ledgermq.protocol.methods import METHODS, SERVICE
from ledgermq_ledger import keys
from tests.broker.cluster import fetch_of
from tests.e2e.processes import BrokerProcess, BrokerProcesses
from tests.e2e.raw_client import RawClient
from tests.worlds.roots import cluster_with


@pytest.fixture
def brokers(tmp_path: Path) -> BrokerProcesses:
    return BrokerProcesses(tmp_path, (tmp_path / "root").as_uri())


def refused(brokers: BrokerProcesses, *options: str, port: int = 0) -> tuple[int, str]:
    """Exit code and last line of a broker that must not come up."""
    broker = brokers.spawn(*options, port=port)
    code = brokers.wait(broker)
    assert "Traceback" not in broker.text()
    return code, broker.text().strip().splitlines()[-1]


def test_health_and_reflection_by_the_stock_tools(brokers: BrokerProcesses) -> None:
    with brokers, grpc.insecure_channel(brokers.start().address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        unknown = health.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=60)
        assert unknown.status == health_pb2.HealthCheckResponse.SERVING, "requests of health are not received"
        database = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in database.get_services()
        published = database.FindFileContainingSymbol(SERVICE).service[0]
        assert sorted(method.name for method in published.method) == sorted(method.name for method in METHODS)


def test_the_published_proto_is_enough_to_talk_to_a_broker(brokers: BrokerProcesses) -> None:
    """A third-party client: plain protobuf messages, no frame of ours."""
    with brokers, grpc.insecure_channel(brokers.start("--constant-ownership-wait-s=15").address) as channel:

        def call(name: str, request: object, answer: type[object]) -> object:
            return channel.unary_unary(f"/{SERVICE}/{name}", request.SerializeToString, answer.FromString)(
                request, timeout=60
            )  # type: ignore[attr-defined]

        from tests.broker.cluster import batch_header, encoded

        call("CreateTopic", pb.CreateTopicRequest(name="plain", partitions=1), pb.CreateTopicResponse)
        data = encoded([b"hello"])
        request = pb.ProduceRequest(header=pb.ProduceHeader(batches=[batch_header("plain", 0, data, 1)]), payload=data)
        produced = call("ProduceOnce", request, pb.ProduceResponse)
        assert isinstance(produced, pb.ProduceResponse)
        assert not produced.results[0].HasField("error"), produced
        wanted = pb.FetchRequest(partitions=[pb.FetchPartition(topic="plain", partition=0)])
        fetched = call("FetchOnce", wanted, pb.FetchResponse)
        assert isinstance(fetched, pb.FetchResponse)
        assert fetched.payload == data
        assert fetched.header.partitions[0].batches[0].length == len(data)


def test_garbage_on_the_wire_is_refused_and_the_broker_stays_healthy(brokers: BrokerProcesses) -> None:
    with brokers, grpc.insecure_channel(brokers.start().address) as channel:
        for method in METHODS:
            call = (
                channel.unary_unary(f"/{SERVICE}/{method.name}", bytes, bytes)
                if "STREAM" not in method.kind.name
                else None
            )
            if call is None:
                continue
            with pytest.raises(grpc.RpcError) as error:
                call(b"\xff" * 100, timeout=60)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT, method.name
        stream = channel.stream_stream(f"/{SERVICE}/Produce", bytes, bytes)(iter([b"\xff" * 100]), timeout=60)
        with pytest.raises(grpc.RpcError) as error:
            list(stream)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)


@pytest.mark.parametrize(
    ("options", "is_warned"),
    [
        (("--host=0.0.0.0", "--security=open"), True),
        (("--host=0.0.0.0", "--security=rules"), False),
        (("--security=open",), False),
    ],
)
def test_an_open_broker_that_other_machines_reach_says_so(
    brokers: BrokerProcesses, options: tuple[str, ...], is_warned: bool
) -> None:
    with brokers:
        said = brokers.start(*options, "--advertised-address=127.0.0.1:1").text()
    assert ("every program that the port lets in may read and change everything" in said) is is_warned


def test_a_port_that_is_taken(brokers: BrokerProcesses) -> None:
    with brokers, socket.create_server(("127.0.0.1", 0)) as taken:
        code, line = refused(brokers, port=taken.getsockname()[1])
        assert code == ExitCode.USAGE
        assert "the port is in use" in line


def test_a_root_that_another_format_version_wrote(brokers: BrokerProcesses, tmp_path: Path) -> None:
    with brokers:
        brokers.stop(brokers.start())
        path = tmp_path / "root" / keys.CLUSTER
        path.write_bytes(cluster_with(path.read_bytes(), format_version=99))
        code, line = refused(brokers)
        assert code == ExitCode.DAMAGED
        assert "FORMAT_NOT_SUPPORTED" in line
        assert "version 99" in line


@pytest.mark.slow
def test_wrong_settings_and_roots(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("heartbeat_intervall_ms = 5\n")
    cases: list[tuple[str, tuple[str, ...], ExitCode, str]] = [
        ("ftp://x/y", (), ExitCode.USAGE, "root URL"),
        (
            (tmp_path / "root").as_uri(),
            ("--config", str(config)),
            ExitCode.USAGE,
            "did you mean 'heartbeat_interval_ms'",
        ),
        ((tmp_path / "root").as_uri(), ("--bundles", "1"), ExitCode.USAGE, "bundles"),
        ((config / "below-a-file").as_uri(), (), ExitCode.DAMAGED, "STORE_UNUSABLE"),
    ]
    for root, options, expected, text in cases:
        code, line = refused(BrokerProcesses(tmp_path, root), *options)
        assert (code, text in line) == (expected, True), line


def test_of_two_brokers_with_one_address_the_earlier_one_ends_with_a_clear_error(brokers: BrokerProcesses) -> None:
    with brokers:
        first = brokers.start("--advertised-address", "127.0.0.1:19999")
        brokers.start("--advertised-address", "127.0.0.1:19999")
        assert brokers.wait(first) == ExitCode.USAGE
        assert "give each broker its own address" in first.text().strip().splitlines()[-1]


def test_a_second_signal_ends_a_broker_that_cannot_drain(brokers: BrokerProcesses) -> None:
    with brokers:
        broker = brokers.start()
        brokers.pause(broker)
        brokers.terminate(broker)
        broker.process.send_signal(signal.SIGINT)
        brokers.resume(broker)
        assert brokers.wait(broker) in (128 + signal.SIGINT, 128 + signal.SIGTERM), (
            "it drained, or ignored the second signal"
        )


async def test_damaged_objects_stop_their_bundle_and_no_other(brokers: BrokerProcesses, tmp_path: Path) -> None:
    with brokers:
        first = brokers.start("--checkpoint-slots", "4")
        async with RawClient(first.address) as client:
            topic = await client.create("t", 4)
            for partition in range(4):
                for i in range(10):
                    await client.produce("t", partition, b"%d" % i)
        brokers.kill(first)
        bundles = [part.bundle for part in topic.partitions]
        with_checkpoint, with_segment = bundles[0], bundles[1]
        checkpoint = max((tmp_path / "root" / keys.checkpoints(with_checkpoint)).iterdir())
        checkpoint.write_bytes(checkpoint.read_bytes()[:-9] + b"x" * 9)
        segment = max((tmp_path / "root" / keys.segments(with_segment)).iterdir())
        segment.write_bytes(segment.read_bytes()[:-40] + b"\0" * 40)
        again = brokers.start()
        async with RawClient(again.address) as client:
            for partition, damaged in ((0, checkpoint), (1, segment)):
                error = await client.error_of("t", partition)
                assert isinstance(error, DataDamaged), error
                assert error.object_key is not None
                assert str(damaged).endswith(error.object_key)
            for partition in (2, 3):
                assert await client.read_all("t", partition) == [b"%d" % i for i in range(10)]
                assert (await client.produce("t", partition, b"10"))[0] == 10
            described = await client.describe()
            assert {info.bundle for info in described.bundles if info.trouble} == {with_checkpoint, with_segment}
        _assert_alive(again)


def _assert_alive(broker: BrokerProcess) -> None:
    assert broker.process.poll() is None, broker.text()


async def test_calls_above_the_bound_are_refused_until_others_end(brokers: BrokerProcesses) -> None:
    """One caller alone gets half of them, so another is served meanwhile."""
    with brokers:
        address = brokers.start("--constant-calls-max=12").address
        async with RawClient(address) as client, RawClient(address) as other:
            line = client.line(brokers.addresses)
            await client.create("t", 1)
            streams = [line.fetch(fetch_of("t", 0)) for _ in range(6)]
            for stream in streams:
                await anext(stream)
            with pytest.raises(ResourceExhausted, match="6 calls and streams under way"):
                await client.describe()
            await other.describe()
            for stream in streams:
                await stream.aclose()  # type: ignore[attr-defined]
            async with asyncio.timeout(20):
                while True:
                    with suppress(ResourceExhausted):
                        await client.describe()
                        break
                    await asyncio.sleep(0.05)


def test_a_request_above_the_bound_is_refused_before_it_is_read(brokers: BrokerProcesses) -> None:
    with brokers:
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(brokers.start().address, options=options) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ProduceOnce", bytes, bytes)
            with pytest.raises(grpc.RpcError) as refused:
                call(bytes(MESSAGE_BYTES_MAX + 1), timeout=60)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)


def test_a_leaving_broker_tells_load_balancers_at_once(brokers: BrokerProcesses) -> None:
    with brokers:
        broker = brokers.start()
        with grpc.insecure_channel(broker.address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=60
            )
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            brokers.terminate(broker)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert brokers.wait(broker) == 0
