"""The client of examples/protocol with one planted fault: FAULT TASK ADDRESS …"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from google.protobuf.message import Message

import examples.protocol.minimal_client as minimal
from examples.protocol.minimal_client import M, MinimalClient, Refused, Session, batch_of
from ledgermq.protocol import ledgermq_pb2 as pb


class GivesUp(MinimalClient):
    """It never repeats a call that failed."""

    def retry(self, topic: str, partition: int, method: str, request: Message, answers: type[M]) -> M:
        answer = self._call(self._first, method, request, answers)
        if code := minimal.error_in(answer).code:
            raise Refused(code, "")
        return answer


class NewSession(GivesUp):
    """It repeats a batch in doubt under a new session."""

    def produce(self, topic: str, partition: int, values: list[bytes], session: Session) -> int:
        while True:
            try:
                return super().produce(topic, partition, values, session)
            except minimal.grpc.RpcError:
                session.id, session.sequence, session.opened_slot = minimal.secrets.token_bytes(16), 0, None


class NewSequence(GivesUp):
    """It repeats a batch in doubt under the next sequence."""

    def produce(self, topic: str, partition: int, values: list[bytes], session: Session) -> int:
        while True:
            try:
                return super().produce(topic, partition, values, session)
            except minimal.grpc.RpcError:
                session.sequence += len(values)


class NewBytes(GivesUp):
    """It encodes a batch in doubt again."""

    def produce(self, topic: str, partition: int, values: list[bytes], session: Session) -> int:
        while True:
            try:
                return super().produce(topic, partition, values, session)
            except minimal.grpc.RpcError:
                continue


class IgnoresOwners(MinimalClient):
    """It goes on asking the broker that it was told at first."""

    def _call(self, address: str, method: str, request: Message, answers: type[M]) -> M:
        return super()._call(self._first, method, request, answers)


class HasNoSession(MinimalClient):
    """Its batches have no session."""

    def produce(self, topic: str, partition: int, values: list[bytes], session: Session) -> int:
        payload = batch_of(values)
        batch = pb.ProduceBatch(
            topic=topic,
            partition=partition,
            length=len(payload),
            crc=minimal.crc32c(payload),
            record_count=len(values),
            schema=1,
        )
        request = pb.ProduceRequest(header=pb.ProduceHeader(batches=[batch]), payload=payload)
        return self.retry(topic, partition, "ProduceOnce", request, pb.ProduceResponse).results[0].base_offset


class SkipsSlots(MinimalClient):
    """It does not ask for the slot of its session."""

    def produce(self, topic: str, partition: int, values: list[bytes], session: Session) -> int:
        session.opened_slot = session.opened_slot or 0
        return super().produce(topic, partition, values, session)


class IsImpatient(MinimalClient):
    """It repeats at once."""

    def retry(self, topic: str, partition: int, method: str, request: Message, answers: type[M]) -> M:
        wait = time.sleep
        minimal.time.sleep = lambda _: wait(0.03)
        return super().retry(topic, partition, method, request, answers)


class TakesDoubtForRefusal(MinimalClient):
    """It takes a status that no broker sent for the refusal of the call, and goes on with the next batch."""

    def produce(self, topic: str, partition: int, values: list[bytes], session: Session) -> int:
        minimal.LOST = {"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
        try:
            return super().produce(topic, partition, values, session)
        except Refused:
            return -1


class RepeatsAll(MinimalClient):
    """It takes each status without an error for a trouble that passes."""

    def retry(self, topic: str, partition: int, method: str, request: Message, answers: type[M]) -> M:
        minimal.LOST = {code.name for code in minimal.grpc.StatusCode}
        return super().retry(topic, partition, method, request, answers)


class TakesAllForDone(MinimalClient):
    """It says that all went well, whatever the answer is."""

    def produce(self, topic: str, partition: int, values: list[bytes], session: Session) -> int:
        try:
            return super().produce(topic, partition, values, session)
        except Refused:
            return -1


class FollowsForEver(MinimalClient):
    """It follows redirects without a pause."""

    def retry(self, topic: str, partition: int, method: str, request: Message, answers: type[M]) -> M:
        minimal.REDIRECTS = 1000
        return super().retry(topic, partition, method, request, answers)


class TrustsBytes(MinimalClient):
    """It compares no checksum."""

    def fetch(self, topic: str, partition: int, offset: int, wait_ms: int = 0) -> Iterator[tuple[int, bytes]]:
        minimal.damage_in = lambda _: pb.Error()
        return super().fetch(topic, partition, offset, wait_ms)


class TakesWholeBatches(MinimalClient):
    """It passes on all records of the first batch."""

    def fetch(self, topic: str, partition: int, offset: int, wait_ms: int = 0) -> Iterator[tuple[int, bytes]]:
        return super().fetch(topic, partition, offset - offset % 10, wait_ms)


class KeepsExpired(MinimalClient):
    """It passes on records that have expired."""

    def fetch(self, topic: str, partition: int, offset: int, wait_ms: int = 0) -> Iterator[tuple[int, bytes]]:
        minimal.is_expired = lambda _: False
        return super().fetch(topic, partition, offset, wait_ms)


FAULTS = {kind.__name__: kind for kind in (*MinimalClient.__subclasses__(), *GivesUp.__subclasses__())}

if __name__ == "__main__":
    minimal.MinimalClient = FAULTS[sys.argv[1]]  # type: ignore[misc]
    minimal.main(*sys.argv[2:])
