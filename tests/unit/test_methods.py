"""The method table is the .proto, neither more nor less."""

from __future__ import annotations

import inspect

import pytest

from ledgermq.errors import CorruptFrame
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol import methods
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.methods import METHODS, Kind, Method

_DESCRIPTORS = pb.DESCRIPTOR.services_by_name["Broker"].methods_by_name


def test_the_table_has_every_method_of_the_service() -> None:
    assert [method.name for method in METHODS] == list(_DESCRIPTORS)
    assert pb.DESCRIPTOR.services_by_name["Broker"].full_name == methods.SERVICE


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_method_has_the_streaming_kind_of_the_proto(method: Method) -> None:
    descriptor = _DESCRIPTORS[method.name]
    streams = (descriptor.client_streaming, descriptor.server_streaming)
    assert (
        streams
        == {Kind.UNARY: (False, False), Kind.SERVER_STREAM: (False, True), Kind.BIDI_STREAM: (True, True)}[method.kind]
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_method_is_one_of_the_seam(method: Method) -> None:
    assert inspect.isfunction(getattr(BrokerApi, method.attribute))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_garbage_is_a_corrupt_frame_both_ways(method: Method) -> None:
    with pytest.raises(CorruptFrame):
        method.decode_request(b"\xff\xff\xff")
    with pytest.raises(CorruptFrame):
        method.decode_response(b"\xff\xff\xff")


def test_a_unary_message_survives_the_way() -> None:
    request = pb.CreateTopicRequest(name="t", partitions=3, settings={"retention.ms": "5"})
    assert methods.CREATE_TOPIC.decode_request(methods.CREATE_TOPIC.encode_request(request)) == request
