"""The methods of the service `ledgermq.v1.Broker` as a table, from which gRPC clients and servers
are built, and the calls of a connection (`UnaryCalls`, `Calls`).

The table is read from the descriptor of the .proto, so a new method is written there only. gRPC itself
gets no (de)serializers: it carries bytes, and the handler of a call decodes them with this table. So
bytes that cannot be decoded give a typed CorruptFrame in one place, not an internal error of the
library. Messages that are frames (`frames.FRAMES`) are never copied through protobuf.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message

from ledgermq.errors import CorruptFrame
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.calls import StreamApi, UnaryApi
from ledgermq.protocol.frames import FRAMES, encode_frame
from ledgermq.protocol.list_bounds import check_lists

_SERVICE = pb.DESCRIPTOR.services_by_name["Broker"]
SERVICE = _SERVICE.full_name

M = TypeVar("M", bound=Message)


class Kind(Enum):
    UNARY = "one request, one response"
    SERVER_STREAM = "one request, a stream of responses"
    BIDI_STREAM = "a stream of each"


@dataclass(frozen=True, slots=True)
class Method:
    """A method. `attribute`: its name in `BrokerApi`. `encode_*`: value of BrokerApi -> bytes.

    `decode_*`: bytes -> value; raises CorruptFrame, for a request also InvalidRequest if a list in it is
    longer than its bound (`list_bounds`), and no other error. `is_long_poll`: a broker holds the call for up to
    `max_wait_ms` of the request. `sends_records`, `receives_records`: the request or the response is a frame.
    """

    name: str
    attribute: str
    kind: Kind
    encode_request: Callable[[Any], bytes]
    decode_request: Callable[[bytes], Any]
    encode_response: Callable[[Any], bytes]
    decode_response: Callable[[bytes], Any]
    is_long_poll: bool
    descriptor: MethodDescriptor

    @property
    def path(self) -> str:
        """Return its gRPC path: "/ledgermq.v1.Broker/Produce"."""
        return f"/{SERVICE}/{self.name}"

    @property
    def sends_records(self) -> bool:
        return self.descriptor.input_type.name in FRAMES

    @property
    def receives_records(self) -> bool:
        return self.descriptor.output_type.name in FRAMES

    @property
    def guard(self) -> pb.Guard:
        """Return what a caller needs to be allowed to do, as the .proto says it."""
        found: pb.Guard = self.descriptor.GetOptions().Extensions[pb.guard]  # type: ignore[index]  # the stubs know it as a field
        return found

    @property
    def is_never_refused(self) -> bool:
        """Return whether a quota never refuses the call."""
        found: bool = self.descriptor.GetOptions().Extensions[pb.never_refused]  # type: ignore[index]  # as above
        return found

    def wait_s(self, request: Any) -> float:
        """Return how long the broker may hold the request on purpose, on top of the call's own time."""
        return request.max_wait_ms / 1000 if self.is_long_poll else 0.0


def _decoder(kind: type[M]) -> Callable[[bytes], M]:
    def decode(data: bytes) -> M:
        message = kind()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise CorruptFrame(f"not a valid {kind.DESCRIPTOR.name}: {error}") from error
        return message

    return decode


def _encode(message: Message) -> bytes:
    return message.SerializeToString()


def _codec(message: Descriptor) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Return how a message is encoded, and how it is decoded."""
    if (decode_frame := FRAMES.get(message.name)) is not None:
        return encode_frame, decode_frame
    return _encode, _decoder(getattr(pb, message.name))


def _decode_bounded(decode: Callable[[bytes], Any], *, is_frame: bool) -> Callable[[bytes], Any]:
    def decode_request(data: bytes) -> Any:
        found = decode(data)
        check_lists(found.header if is_frame else found)
        return found

    return decode_request


def _method(descriptor: MethodDescriptor) -> Method:
    assert descriptor.server_streaming or not descriptor.client_streaming, descriptor.full_name
    request, response = descriptor.input_type, descriptor.output_type
    encode_request, decode_request = _codec(request)
    return Method(
        descriptor.name,
        re.sub(r"(?<!^)(?=[A-Z])", "_", descriptor.name).lower(),
        Kind.BIDI_STREAM
        if descriptor.client_streaming
        else Kind.SERVER_STREAM
        if descriptor.server_streaming
        else Kind.UNARY,
        encode_request,
        _decode_bounded(decode_request, is_frame=request.name in FRAMES),
        *_codec(response),
        "max_wait_ms" in request.fields_by_name,
        descriptor,
    )


METHODS: tuple[Method, ...] = tuple(_method(descriptor) for descriptor in _SERVICE.methods)
"""In the order of the .proto."""
METHODS_BY_NAME = {method.name: method for method in METHODS}

# Methods that code names. A new method needs no line here.
PRODUCE = METHODS_BY_NAME["Produce"]
PRODUCE_ONCE = METHODS_BY_NAME["ProduceOnce"]
FETCH = METHODS_BY_NAME["Fetch"]
FETCH_ONCE = METHODS_BY_NAME["FetchOnce"]
LIST_OFFSETS = METHODS_BY_NAME["ListOffsets"]
DESCRIBE_TOPICS = METHODS_BY_NAME["DescribeTopics"]
CREATE_TOPIC = METHODS_BY_NAME["CreateTopic"]
FIND_MESSAGES = METHODS_BY_NAME["FindMessages"]
FETCH_COMMITTED = METHODS_BY_NAME["FetchCommitted"]
STAGE = METHODS_BY_NAME["Stage"]
STAGE_DELAYED = METHODS_BY_NAME["StageDelayed"]
STAGE_OFFSETS = METHODS_BY_NAME["StageOffsets"]
INIT_TRANSACTIONS = METHODS_BY_NAME["InitTransactions"]
END_TRANSACTION = METHODS_BY_NAME["EndTransaction"]
TRANSACTION_OUTCOME = METHODS_BY_NAME["TransactionOutcome"]
RESOLVE_TRANSACTION = METHODS_BY_NAME["ResolveTransaction"]
LIST_TRANSACTIONS = METHODS_BY_NAME["ListTransactions"]
DESCRIBE_TRANSACTION = METHODS_BY_NAME["DescribeTransaction"]
COMPLETE_TRANSACTION = METHODS_BY_NAME["CompleteTransaction"]
ASK_TRANSACTION = METHODS_BY_NAME["AskTransaction"]
POLL_CHECKS = METHODS_BY_NAME["PollChecks"]
READ_STAGED = METHODS_BY_NAME["ReadStaged"]
PRODUCE_DELAYED = METHODS_BY_NAME["ProduceDelayed"]
PRODUCE_DELAYED_ONCE = METHODS_BY_NAME["ProduceDelayedOnce"]
RECALL_DELAYED = METHODS_BY_NAME["RecallDelayed"]
LIST_DELAYED = METHODS_BY_NAME["ListDelayed"]
SHARE_FETCH = METHODS_BY_NAME["ShareFetch"]
HOLD_PARTITIONS = METHODS_BY_NAME["HoldPartitions"]
LIST_RULES = METHODS_BY_NAME["ListRules"]


class UnaryCalls(UnaryApi):
    """Implements the unary calls of `BrokerApi` through one method `ask`."""

    @abstractmethod
    async def ask(self, method: Method, request: Any) -> Any:
        """Return the answer to one request."""


class Calls(UnaryCalls, StreamApi):
    """Implements all calls of `BrokerApi` through `ask` and `stream`; shared by all connections, however they
    carry a call.
    """

    @abstractmethod
    def stream(self, method: Method, requests: Any) -> AsyncIterator[Any]:
        """Yield the answers of a stream. `requests`: those of `BrokerApi`, one or an iterator."""


def _unary(method: Method) -> Callable[[UnaryCalls, Any], Any]:
    async def call(self: UnaryCalls, request: Any) -> Any:
        return await self.ask(method, request)

    return call


def _stream(method: Method) -> Callable[[Calls, Any], AsyncIterator[Any]]:
    def call(self: Calls, requests: Any) -> AsyncIterator[Any]:
        return self.stream(method, requests)

    return call


def _named(call: Callable[..., Any], kind: type, method: Method) -> Callable[..., Any]:
    """Let tracebacks show the name of the method."""
    call.__name__, call.__qualname__ = method.attribute, f"{kind.__name__}.{method.attribute}"
    return call


for _each in METHODS:
    if _each.kind is Kind.UNARY:
        setattr(UnaryCalls, _each.attribute, _named(_unary(_each), UnaryCalls, _each))
    else:
        setattr(Calls, _each.attribute, _named(_stream(_each), Calls, _each))
