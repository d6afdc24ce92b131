"""The method table is the .proto, neither more nor less."""

from __future__ import annotations

import ast
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from ledgermq.errors import CorruptFrame
from ledgermq.protocol import calls, methods
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import FRAMES, Frame
from ledgermq.protocol.methods import METHODS, Calls, Kind, Method

_DESCRIPTORS = pb.DESCRIPTOR.services_by_name["Broker"].methods_by_name


def _typed() -> dict[str, tuple[Kind, str, str]]:
    """What `calls/__init__.pyi` says: for each call its kind, the type of the request and of the response."""
    found = {}
    for kind in ast.parse(Path(calls.__file__).with_suffix(".pyi").read_text()).body:
        for call in kind.body if isinstance(kind, ast.ClassDef) else ():
            assert isinstance(call, ast.FunctionDef | ast.AsyncFunctionDef)
            assert call.returns is not None
            request, response = (ast.unparse(type_) for type_ in (call.args.args[1].annotation, call.returns) if type_)
            streams = request.startswith("AsyncIterator["), response.startswith("AsyncIterator[")
            assert isinstance(call, ast.AsyncFunctionDef) == (streams == (False, False))
            found[call.name] = (
                {(False, False): Kind.UNARY, (False, True): Kind.SERVER_STREAM, (True, True): Kind.BIDI_STREAM}[
                    streams
                ],
                *(type_.removeprefix("AsyncIterator[").removesuffix("]") for type_ in (request, response)),
            )
    return found


TYPED = _typed()


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


class Told(Calls):
    """A connection that keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Method, Any]] = []

    async def ask(self, method: Method, request: Any) -> Any:
        self.asked.append((method, request))
        return "answer"

    async def stream(self, method: Method, requests: Any) -> AsyncIterator[Any]:
        self.asked.append((method, requests))
        yield "answer"


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_a_method_is_one_of_the_seam(method: Method) -> None:
    call = getattr(Calls, method.attribute)
    assert inspect.isfunction(call)
    assert call.__name__ == method.attribute
    line = Told()
    answers = getattr(line, method.attribute)("request")
    assert await answers == "answer" if method.kind is Kind.UNARY else [each async for each in answers] == ["answer"]
    assert line.asked == [(method, "request")]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_method_has_the_types_that_are_written_down(method: Method) -> None:
    kind, request, response = TYPED[method.attribute]
    assert kind is method.kind
    for type_, decode, message in (
        (request, method.decode_request, method.descriptor.input_type),
        (response, method.decode_response, method.descriptor.output_type),
    ):
        found = decode(b"")
        if isinstance(found, Frame):
            assert type_ == message.name.replace("Request", "Frame").replace("Response", "Frame")
            assert found.header.DESCRIPTOR is message.fields_by_name["header"].message_type
        else:
            assert type_ == f"pb.{type(found).__name__}" == f"pb.{message.name}"


def test_no_other_calls_are_written_down() -> None:
    assert TYPED.keys() == {method.attribute for method in METHODS}


def test_frames_are_the_messages_with_a_header_and_a_payload() -> None:
    messages = pb.DESCRIPTOR.message_types_by_name.values()
    assert FRAMES.keys() == {each.name for each in messages if set(each.fields_by_name) == {"header", "payload"}}
    assert {method.name for method in METHODS if method.sends_records} == {
        *("Produce", "ProduceOnce", "ProduceDelayed", "ProduceDelayedOnce", "Stage", "StageDelayed")
    }
    assert {method.name for method in METHODS if method.receives_records} == {"Fetch", "FetchOnce", "ShareFetch"}


def test_a_long_poll_may_take_its_wait_in_addition() -> None:
    found = {method.name for method in METHODS if method.is_long_poll}
    assert found == {"Fetch", "FetchOnce", "GroupHeartbeat", "PollChecks", "ShareFetch"}
    assert methods.FETCH_ONCE.wait_s(pb.FetchRequest(max_wait_ms=1500)) == 1.5
    assert methods.PRODUCE_ONCE.wait_s(Frame(pb.ProduceHeader(), [])) == 0.0


def test_a_method_that_code_names_has_its_own_name() -> None:
    named = {name: value for name, value in vars(methods).items() if isinstance(value, Method) and name.isupper()}
    assert {methods.FETCH, methods.PRODUCE} <= set(named.values())
    for name, value in named.items():
        assert value.attribute == name.lower()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_garbage_is_a_corrupt_frame_both_ways(method: Method) -> None:
    with pytest.raises(CorruptFrame):
        method.decode_request(b"\xff\xff\xff")
    with pytest.raises(CorruptFrame):
        method.decode_response(b"\xff\xff\xff")


def test_a_unary_message_survives_the_way() -> None:
    request = pb.CreateTopicRequest(name="t", partitions=3, settings={"retention.ms": "5"})
    assert methods.CREATE_TOPIC.decode_request(methods.CREATE_TOPIC.encode_request(request)) == request


OF_TOPICS = ("produce", "consume", "describe", "create", "alter", "delete")
NAMES = (*OF_TOPICS, "group", "transaction")


def _path_of(method: Method, path: str) -> list[FieldDescriptor]:
    found, message = [], method.descriptor.input_type
    for name in path.split("."):
        found.append(message.fields_by_name[name])
        message = found[-1].message_type
    return found


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_guard_of_a_method_names_fields_that_exist(method: Method) -> None:
    guard = method.guard
    assert guard != pb.Guard(), "a new method has the option `guard` in the .proto"
    paths = {name: _path_of(method, path) for name in NAMES if (path := getattr(guard, name))}
    assert bool(paths) + guard.cluster + guard.brokers + guard.by_code == 1, "one of them says who may call"
    for path in paths.values():
        assert path[-1].type == FieldDescriptor.TYPE_STRING
        assert not any(field.is_repeated for field in path[1:])
    lists = [name for name, path in paths.items() if path[0].is_repeated]
    assert len(lists) <= 1
    assert len(paths.keys() & set(OF_TOPICS)) <= 1
    if guard.answers:
        [_] = lists
        answers = method.descriptor.output_type.fields_by_name[guard.answers]
        assert answers.is_repeated
        assert "error" in answers.message_type.fields_by_name
    if guard.by_code or guard.brokers:
        assert not guard.change


def test_what_clients_must_not_call_and_what_no_quota_refuses() -> None:
    """The .proto says it; a change of it is seen here."""
    assert {method.name for method in METHODS if method.guard.brokers} == {
        *("CompleteTransaction", "AskTransaction", "ReadStaged", "ConfirmRules", "SlowestCommits", "PrepareMove"),
        "HoldForCut",
        *("JoinTransaction", "CountStaged"),
    }
    assert {method.name for method in METHODS if method.is_never_refused} == {
        *("GroupHeartbeat", "ShareAnswer", "EndTransaction", "ChangeRules", "ListRules", "RevokeToken", "ChangeQuota"),
        *("AddToTransaction", "FindTransactionCoordinator", "ChangeScram"),
        *("FindCoordinator", "JoinClassicGroup", "SyncClassicGroup", "ClassicHeartbeat", "LeaveClassicGroup"),
        *("ListQuotas", "DrainBroker", "AddBundles", "MovePartition", "ListLoads", "DropCut"),
        "ListCosts",
        "DescribeBroker",
    }
    for method in METHODS:
        if "created_by" in method.descriptor.input_type.fields_by_name:
            is_signed = method.guard.cluster or method.name == "PutSchema"  # its own guard does it, too
            assert is_signed, "the guard of the cluster sets it to the caller's name"
