"""A client of LedgerMQ's protocol without the SDK: what docs/protocol.md calls levels 1 and 2.

It needs a gRPC library, an Arrow library, CRC-32C and the classes generated from ledgermq.proto, as any language has
them. Here they come from the package `ledgermq`; nothing else of it is used. It has the tasks that `ledgermq
conformance` asks of a client: topic, partition, and which numbers to store, or which records to print.

    python examples/protocol/minimal_client.py produce localhost:9650 orders 0 1 10
    python examples/protocol/minimal_client.py fetch localhost:9650 orders 0 0 10
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeVar

import grpc
import pyarrow as pa
from crc32c import crc32c
from google.protobuf.message import Message

from ledgermq.protocol import ledgermq_pb2 as pb

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("tag", pa.string()),
    ]
)
RETRIABLE = {
    "NOT_OWNER",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "TOPIC_BEING_DELETED",
    "RESOURCE_EXHAUSTED",
    "QUOTA_EXCEEDED",
    "STORE_FULL",
}
LOST = {"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "UNKNOWN"}
"""Statuses that libraries make of a line that broke during the call."""
REDIRECTS = 3
"""In a row, without a pause."""
LIMITS = [("grpc.max_receive_message_length", 34 * 1024 * 1024), ("grpc.max_send_message_length", 34 * 1024 * 1024)]
ANSWER_S = 40.0
BATCH = 4
M = TypeVar("M", bound=Message)


class Refused(Exception):
    """A broker's error that no retry mends."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class MinimalClient:
    """Talks to the brokers of a cluster; `address` is that of any of them."""

    def __init__(self, address: str, token: str = "") -> None:
        self._first = address
        self._owners: dict[tuple[str, int], str] = {}
        self._channels: dict[str, grpc.Channel] = {}
        self._metadata = [("authorization", f"Bearer {token}")] if token else []

    def produce(self, topic: str, partition: int, values: list[bytes], session: Session) -> int:
        """Store records once, however often the call is repeated; return the offset of the first one."""
        payload = batch_of(values)
        batch = pb.ProduceBatch(
            topic=topic,
            partition=partition,
            length=len(payload),
            crc=crc32c(payload),
            record_count=len(values),
            schema=1,
        )
        if session.opened_slot is None:
            wanted = pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic=topic, partition=partition)])
            opened = self.retry(topic, partition, "OpenProducer", wanted, pb.OpenProducerResponse)
            session.opened_slot = opened.partitions[0].opened_slot
        batch.producer.id, batch.producer.epoch = session.id, 0
        batch.producer.sequence, batch.producer.opened_slot = session.sequence, session.opened_slot
        request = pb.ProduceRequest(header=pb.ProduceHeader(batches=[batch]), payload=payload)
        stored = self.retry(topic, partition, "ProduceOnce", request, pb.ProduceResponse)
        session.sequence += len(values)
        return stored.results[0].base_offset

    def fetch(self, topic: str, partition: int, offset: int, wait_ms: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the offsets and values of the records from an offset on, until none has come for `wait_ms`."""
        while True:
            want = pb.FetchPartition(topic=topic, partition=partition, offset=offset)
            request = pb.FetchRequest(partitions=[want], max_wait_ms=wait_ms)
            found = batches_of(self.retry(topic, partition, "FetchOnce", request, pb.FetchResponse))
            for base, data in found:
                for row, value in records_of(data):
                    if base + row >= offset:  # the first batch may begin below it
                        yield base + row, value
                offset = max(offset, base + pa.ipc.read_record_batch(pa.py_buffer(data), SCHEMA).num_rows)
            if not found:
                return

    def retry(self, topic: str, partition: int, method: str, request: Message, answers: type[M]) -> M:
        """Call the owner of the partition, whom answers name. A batch that is sent again is stored once. For the
        coordinator of a group, `topic` is another name.
        """
        pause_s, redirects, place = 0.05, 0, (topic, partition)
        for _ in range(60):
            address = self._owners.get(place, self._first)
            try:
                answer = self._call(address, method, request, answers)
                error = error_in(answer)
                if not error.code:
                    return answer
            except grpc.RpcError as failed:
                error = error_of(failed)
            if error.code not in RETRIABLE:
                raise Refused(error.exact_code or error.code, error.message)
            if error.owner and error.owner != address:
                self._owners[place], redirects = error.owner, redirects + 1
                if redirects <= REDIRECTS:  # more: two brokers name each other
                    continue
            else:
                self._owners.pop(place, None)
                redirects = 0
            time.sleep(max(pause_s, error.retry_after_ms / 1000))
            pause_s = min(2.0, pause_s * 2)
        raise Refused("UNAVAILABLE", f"the owner of {topic}-{partition} did not answer")

    def _call(self, address: str, method: str, request: Message, answers: type[M]) -> M:
        if address not in self._channels:
            self._channels[address] = grpc.insecure_channel(address, options=LIMITS)
        call = self._channels[address].unary_unary(
            f"/ledgermq.v1.Broker/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answers.FromString,
        )
        return call(request, timeout=ANSWER_S, metadata=self._metadata)  # type: ignore[no-any-return]


class Session:
    """What makes a producer idempotent in one partition: its id, and how many records it has sent there."""

    def __init__(self) -> None:
        self.id, self.sequence = secrets.token_bytes(16), 0
        self.opened_slot: int | None = None


def batch_of(values: list[bytes]) -> bytes:
    """Return a record batch message of Arrow IPC: a stream without its schema and its end."""
    now, count = time.time_ns() // 1000, len(values)
    columns = [
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([[]] * count, HEADERS),
        pa.array([now] * count, SCHEMA.field("timestamp").type),
        pa.array([0] * count, pa.int32()),
        pa.nulls(count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA).serialize().to_pybytes()


def records_of(message: bytes) -> list[tuple[int, bytes]]:
    """Return row and value of the records of a batch that have not expired."""
    rows = pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA).to_pylist()
    return [(row, record["value"]) for row, record in enumerate(rows) if not is_expired(record["headers"] or [])]


def is_expired(headers: list[dict[str, Any]]) -> bool:
    now_ms = time.time_ns() // 1_000_000
    return any(header["key"] == "ledgermq.expires-ms" and int(header["value"]) <= now_ms for header in headers)


def batches_of(answer: pb.FetchResponse) -> list[tuple[int, bytes]]:
    """Return base offset and bytes of each batch."""
    found, at = [], 0
    for batch in answer.header.partitions[0].batches:
        found.append((batch.base_offset, answer.payload[at : at + batch.length]))
        at += batch.length
    return found


def damage_in(answer: pb.FetchResponse) -> pb.Error:
    """Return an error that lets the batches be fetched again, if they are not what the broker sent."""
    for batch, (base, data) in zip(answer.header.partitions[0].batches, batches_of(answer), strict=True):
        if crc32c(data) != batch.crc:
            return pb.Error(code="UNAVAILABLE", message=f"the batch at offset {base} came damaged")
    return pb.Error()


def error_in(answer: Message) -> pb.Error:
    """Return the error of the one partition that was asked for; without a code, there is none."""
    if isinstance(answer, pb.FetchResponse) and not answer.header.partitions[0].error.code:
        return damage_in(answer)
    holder = getattr(answer, "header", answer)
    for name in ("results", "partitions"):
        for place in getattr(holder, name, ()):
            return place.error  # type: ignore[no-any-return]
    return pb.Error()


def error_of(failed: grpc.RpcError) -> pb.Error:
    """Return the broker's error, which a trailer carries. A status without it was made on the way, or by no broker."""
    for key, value in failed.trailing_metadata() or ():
        if key == "ledgermq-error-bin":
            return pb.Error.FromString(value)
    status = failed.code().name
    return pb.Error(code="UNAVAILABLE" if status in LOST else "NO_BROKER", message=f"{status}: {failed.details()}")


def main(task: str, address: str, topic: str, partition: str, first: str, count: str) -> None:
    client, place = MinimalClient(address), (topic, int(partition))
    if task == "produce":
        session, numbers = Session(), range(int(first), int(first) + int(count))
        for at in range(0, len(numbers), BATCH):
            client.produce(*place, [b"%d" % number for number in numbers[at : at + BATCH]], session)
    elif task == "fetch":
        for offset, value in islice(client.fetch(*place, int(first), wait_ms=30_000), int(count)):
            print(offset, value.decode(), flush=True)
    else:
        sys.exit(f"there is no task {task}: produce, fetch")


if __name__ == "__main__":
    main(*sys.argv[1:])
