"""The APIs of the Kafka protocol whose messages are known here, by their keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

from ledgermq.buffers import Buffer
from ledgermq_broker.kafka.wire.generated import (
    api_versions_request,
    api_versions_response,
    fetch_request,
    fetch_response,
    init_producer_id_request,
    init_producer_id_response,
    list_offsets_request,
    list_offsets_response,
    metadata_request,
    metadata_response,
    offset_for_leader_epoch_request,
    offset_for_leader_epoch_response,
    produce_request,
    produce_response,
)
from ledgermq_broker.kafka.wire.primitives import Put, Reader


class Message(Protocol):
    """A generated request or response."""

    @classmethod
    def read(cls, r: Reader, version: int) -> Self: ...

    def write(self, put: Put, version: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Api:
    """`versions`: those that the definitions describe. `flexible_from`: the first version with tagged fields."""

    name: str
    key: int
    versions: tuple[int, int]
    flexible_from: int
    request: type[Message]
    response: type[Message]
    carries_records: bool = False
    plain_response_head: bool = False

    def reads(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]


PRODUCE = Api(
    "Produce",
    produce_request.API_KEY,
    produce_request.VERSIONS,
    produce_request.FLEXIBLE_FROM,
    produce_request.ProduceRequest,
    produce_response.ProduceResponse,
    carries_records=True,
)
FETCH = Api(
    "Fetch",
    fetch_request.API_KEY,
    fetch_request.VERSIONS,
    fetch_request.FLEXIBLE_FROM,
    fetch_request.FetchRequest,
    fetch_response.FetchResponse,
)
LIST_OFFSETS = Api(
    "ListOffsets",
    list_offsets_request.API_KEY,
    list_offsets_request.VERSIONS,
    list_offsets_request.FLEXIBLE_FROM,
    list_offsets_request.ListOffsetsRequest,
    list_offsets_response.ListOffsetsResponse,
)
METADATA = Api(
    "Metadata",
    metadata_request.API_KEY,
    metadata_request.VERSIONS,
    metadata_request.FLEXIBLE_FROM,
    metadata_request.MetadataRequest,
    metadata_response.MetadataResponse,
)
API_VERSIONS = Api(
    "ApiVersions",
    api_versions_request.API_KEY,
    api_versions_request.VERSIONS,
    api_versions_request.FLEXIBLE_FROM,
    api_versions_request.ApiVersionsRequest,
    api_versions_response.ApiVersionsResponse,
    plain_response_head=True,
)
INIT_PRODUCER_ID = Api(
    "InitProducerId",
    init_producer_id_request.API_KEY,
    init_producer_id_request.VERSIONS,
    init_producer_id_request.FLEXIBLE_FROM,
    init_producer_id_request.InitProducerIdRequest,
    init_producer_id_response.InitProducerIdResponse,
)
OFFSET_FOR_LEADER_EPOCH = Api(
    "OffsetForLeaderEpoch",
    offset_for_leader_epoch_request.API_KEY,
    offset_for_leader_epoch_request.VERSIONS,
    offset_for_leader_epoch_request.FLEXIBLE_FROM,
    offset_for_leader_epoch_request.OffsetForLeaderEpochRequest,
    offset_for_leader_epoch_response.OffsetForLeaderEpochResponse,
)

APIS = (PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID, OFFSET_FOR_LEADER_EPOCH)
_BY_KEY = {api.key: api for api in APIS}


def api_of(key: int) -> Api | None:
    return _BY_KEY.get(key)


def written(message: Message, version: int) -> list[Buffer]:
    """Return the pieces of a message; records are not copied."""
    pieces: list[Buffer] = []
    message.write(pieces.append, version)
    return pieces


def read_whole(kind: type[Message], reader: Reader, version: int) -> Message:
    """Read a message that ends where its frame does. Raises CorruptFrame."""
    message = kind.read(reader, version)
    reader.check_end()
    return message
