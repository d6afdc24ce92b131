"""Bytes of bundles by the rack of the programs, as calls over gRPC say it, and as a broker measures them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ledgermq.client.connection.grpc_connection import GrpcConnector
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.access.door import Admitted
from ledgermq_broker.access.state.rules import Principal
from ledgermq_broker.bundle.loads import RACKS_MAX, LoadTimes, RackLoads, Traffic, set_rack
from ledgermq_broker.ports.call_meter import CallMeter
from ledgermq_broker.ports.grpc_server import GrpcServer
from ledgermq_ledger.keys import PartitionId
from tests.unit.broker.test_loads import batch_of

KEY = PartitionId(7, 0)


def served(traffic: Traffic, rack: str, produced: int, fetched: int = 0) -> None:
    set_rack(rack)
    traffic.produced([batch_of(KEY, produced)])
    if fetched:
        traffic.fetched(KEY, fetched)
    set_rack("")


def test_bytes_count_for_the_rack_that_sent_or_received_them() -> None:
    traffic = Traffic()
    served(traffic, "a", 10, 5)
    served(traffic, "b", 7)
    served(traffic, "", 1)
    assert traffic.take_racks() == {"a": 15, "b": 7, "": 1}
    assert traffic.take_racks() == {}


def test_racks_are_bounded() -> None:
    traffic = Traffic()
    for number in range(2 * RACKS_MAX):
        served(traffic, f"r{number}", 1)
    taken = traffic.take_racks()
    assert len(taken) == RACKS_MAX + 1
    assert taken[""] == RACKS_MAX
    assert sum(taken.values()) == 2 * RACKS_MAX, "no byte is lost"


def test_a_bundle_is_known_when_it_was_measured_for_long_enough() -> None:
    times, traffic = LoadTimes(sample_s=15, near_s=600), Traffic()
    loads = RackLoads(times)
    for second in range(0, 600, 15):
        loads.sample({1: traffic}, second)
        served(traffic, "a", 15_000, 15_000)
        served(traffic, "b", 30_000)
        assert loads.known() == {}
    loads.sample({1: traffic}, 600)
    assert loads.known() == {1: {"a": pytest.approx(2000, abs=1), "b": pytest.approx(2000, abs=1)}}
    loads.sample({1: Traffic()}, 615)
    assert loads.known() == {}, "another term begins anew"
    loads.sample({}, 630)
    assert loads.known() == {}


class Counting:
    """Counts as a term does."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        self._traffic.fetched(KEY, 8)
        return pb.ListOffsetsResponse()


class OpenDoor:
    """Admits each caller; those with a credential as brokers."""

    closed = True

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    async def admit(self, credential: str, certified: object = (), client_id: str = "") -> Admitted:
        return Admitted(cast(Any, Counting(self._traffic)), Principal("p", is_broker=bool(credential)), None)


async def test_calls_over_grpc_say_the_rack_and_brokers_none() -> None:
    traffic = Traffic()
    server = GrpcServer(100, CallMeter())
    port = await server.listen("127.0.0.1", 0)
    await server.serve(cast(Any, object()), cast(Any, OpenDoor(traffic)))
    connectors = [
        GrpcConnector(rack="zone-1"),
        GrpcConnector(),
        GrpcConnector(credential=lambda _: "Bearer broker", rack="zone-2"),
    ]
    connections = [connector.connect(f"127.0.0.1:{port}") for connector in connectors]
    for connection in connections:
        await connection.list_offsets(pb.ListOffsetsRequest())
    for connection in connections:
        await connection.close()
    await server.stop(0)
    assert traffic.take_racks() == {"zone-1": 8, "": 16}
