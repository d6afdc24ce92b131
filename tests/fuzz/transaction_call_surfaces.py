"""Calls about transactions to a broker, in this process and in virtual time: each gets an answer or a
typed error, and no call of another client touches a transaction that it cannot name.

As the surface `service`, with these methods only. An input names the producer id `iiiiiiiiiiiiiiii`, which
becomes the one that the broker gave to that transactional id last: else every call would be fenced.
"""

from __future__ import annotations

import random
from typing import Any

from crc32c import crc32c
from google.protobuf.message import Message

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.methods import (
    ASK_TRANSACTION,
    COMPLETE_TRANSACTION,
    DESCRIBE_TRANSACTION,
    END_TRANSACTION,
    FETCH_COMMITTED,
    INIT_TRANSACTIONS,
    LIST_TRANSACTIONS,
    METHODS,
    POLL_CHECKS,
    READ_STAGED,
    RESOLVE_TRANSACTION,
    STAGE,
    STAGE_OFFSETS,
    TRANSACTION_OUTCOME,
    Method,
)
from tests.broker.cluster import Cluster, batch_header, encoded, read_all
from tests.broker.transaction_calls import Producer, beginner
from tests.fuzz.service_surfaces import Served, spoil
from tests.fuzz.surface import Surface, Untyped

PLACEHOLDER = b"i" * 16
NAMES = ("kept", "x")
POLL_MS = 7000
"""Long enough that a half message comes to be checked."""
TIMEOUT_MS = 900_000
"""Polls take virtual time, which counts against what another client has open."""
COORDINATORS = 2
"""User bundles of the cluster of `Served`."""
CALLED = (
    STAGE,
    STAGE_OFFSETS,
    INIT_TRANSACTIONS,
    END_TRANSACTION,
    TRANSACTION_OUTCOME,
    RESOLVE_TRANSACTION,
    LIST_TRANSACTIONS,
    DESCRIBE_TRANSACTION,
    COMPLETE_TRANSACTION,
    ASK_TRANSACTION,
    POLL_CHECKS,
    READ_STAGED,
    FETCH_COMMITTED,
)
"""All methods of transactions, and one that shows what they do to groups."""


class ServedTransactions(Served):
    """`_open`: a transaction that no input can name; it is committed at the end of each cluster's life
    but one, and goes on meanwhile. `_half`: a half message of the check group that inputs poll for; it
    is committed at the next look.
    """

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[str, pb.InitTransactionsResponse] = {}
        self._of: Cluster | None = None
        self._open: Producer | None = None
        self._half: Producer | None = None
        self._sent: list[bytes] = []
        self._seen: list[bytes] = []

    async def answers(self, cluster: Cluster, method: Method, data: bytes) -> list[Any]:
        if self._of is not cluster:
            self._of, self._given, self._seen = cluster, {}, []
            self._open = await beginner(cluster, "health", timeout_ms=TIMEOUT_MS)
            self._sent, self._half = [], None
        request = method.decode_request(data)
        self._name_producer(request.header if isinstance(request, Frame) else request)
        if isinstance(request, pb.StageOffsetsRequest):
            await self._take_token(cluster, request)
        found = await super().answers(cluster, method, method.encode_request(request))
        if method is INIT_TRANSACTIONS and found:
            self._given[request.transactional_id] = found[0]
        return found

    def _name_producer(self, message: Message) -> None:
        ref = getattr(message, "transaction", None)
        given = self._given.get(ref.transactional_id) if isinstance(ref, pb.TransactionRef) else None
        if given is not None and isinstance(ref, pb.TransactionRef) and ref.producer_id == PLACEHOLDER:
            ref.producer_id = given.producer_id
            ref.epoch = given.epoch if ref.epoch == 1 else ref.epoch

    async def _take_token(self, cluster: Cluster, request: pb.StageOffsetsRequest) -> None:
        """Let offsets be those of a process that has fetched what is committed just now."""
        wanted = [pb.TopicPartition(topic="kept", partition=1)]
        fetch = pb.FetchCommittedRequest(group="g", partitions=wanted)
        [found] = (await cluster.line("a:1").fetch_committed(fetch)).partitions
        for commit in request.commits:
            if (commit.epoch, commit.counter) == (0, 1):
                commit.epoch, commit.counter = found.epoch, found.counter + 1

    async def check_health(self, cluster: Cluster) -> None:
        """What an open transaction has staged is still there, and is visible after its commit only."""
        await super().check_health(cluster)
        if self._of is not cluster or self._open is None:
            return
        try:
            value = b"in a transaction, %d" % self._served
            await self._open.send("kept", 0, value)
            self._sent.append(value)
            if len(self._sent) == 4:
                await self._open.commit()
                await self._open.completed()
                self._seen += self._sent
                self._sent = []
                self._open.begin()
            values = [value for value in await cluster.read_all("kept", 0) if value and value.startswith(b"in a")]
        except (LedgerMQError, TimeoutError, AssertionError) as error:
            raise Untyped(f"the transaction of another client failed: {error!r}") from error
        if values != self._seen:
            raise Untyped(f"{values} were read, and {self._seen} were committed")
        try:
            await self._check_half(cluster)
        except (LedgerMQError, TimeoutError, AssertionError) as error:
            raise Untyped(f"the half message of another client failed: {error!r}") from error

    async def _check_half(self, cluster: Cluster) -> None:
        """The last one is still prepared, unless it was checked too often; after its commit it is there
        once, and the next one begins.
        """
        half = self._half
        if half is not None:
            request = pb.DescribeTransactionRequest(transactional_id=half.name)
            found = (await cluster.line("a:1").describe_transaction(request)).transaction
            if found.state == pb.PREPARED:
                assert await half.commit() == pb.COMMITTED
                await half.completed()
            else:
                assert found.state == pb.UNRESOLVED, pb.TransactionState.Name(found.state)
            values = await read_all(cluster.line("a:1"), "kept", 1)
            assert values.count(half.name.encode()) == (found.state == pb.PREPARED)
        self._half = await beginner(cluster, f"half-{self._served}", kind=pb.HALF_MESSAGE, check_group="g")
        await self._half.send("kept", 1, self._half.name.encode())
        assert await self._half.end(pb.PREPARED) == pb.PREPARED


def ref_of(name: str) -> pb.TransactionRef:
    return pb.TransactionRef(
        transactional_id=name,
        coordinator=crc32c(name.encode()) % COORDINATORS,
        producer_id=PLACEHOLDER,
        epoch=1,
        number=1,
    )


def seeds() -> list[bytes]:
    good = encoded([b"good"])
    found: list[bytes] = []

    def add(method: Method, *requests: Any) -> None:
        found.extend(bytes([METHODS.index(method)]) + method.encode_request(request) for request in requests)

    for name in NAMES:
        ref = ref_of(name)
        parts = [pb.TransactionPart(bundle=bundle) for bundle in (1, 2)]
        for part in parts:
            part.counts.add(topic_id=1, partition=part.bundle - 1, batches=1)
        add(INIT_TRANSACTIONS, *[pb.InitTransactionsRequest(transactional_id=name)] * 3)
        for partition in range(2):
            header = pb.StageHeader(transaction=ref)
            header.batches.add(batch=batch_header("kept", partition, good, 1))
            add(STAGE, *[Frame(header, [good])] * 3)
        offsets = pb.StageOffsetsRequest(transaction=ref, group="g")
        offsets.commits.add(topic="kept", partition=1, offset=1, counter=1)
        add(STAGE_OFFSETS, offsets)
        for outcome in (pb.COMMITTED, pb.ABORTED, pb.PREPARED):
            for counted in (parts, parts[:1], [pb.TransactionPart(bundle=1, groups=["g"])], []):
                add(END_TRANSACTION, pb.EndTransactionRequest(transaction=ref, outcome=outcome, parts=counted))
        add(TRANSACTION_OUTCOME, pb.TransactionOutcomeRequest(transactional_id=name, epoch=1, number=1))
        for resolution in (pb.COMMIT, pb.ABORT, pb.FORGET, pb.GIVE_UP):
            add(
                RESOLVE_TRANSACTION,
                pb.ResolveTransactionRequest(transactional_id=name, resolution=resolution, bundle=1),
            )
        add(LIST_TRANSACTIONS, pb.ListTransactionsRequest(partition=1), pb.ListTransactionsRequest(open_only=True))
        add(DESCRIBE_TRANSACTION, pb.DescribeTransactionRequest(transactional_id=name))
        for part in parts:
            for end in (pb.COMMITTED, pb.ABORTED):
                add(COMPLETE_TRANSACTION, pb.CompleteTransactionRequest(transaction=ref, outcome=end, part=part))
            add(READ_STAGED, *(pb.ReadStagedRequest(transaction=ref, part=part, skip=skip) for skip in range(2)))
            for question in (pb.FATE, pb.CONFIRM, pb.EXPIRED):
                add(ASK_TRANSACTION, pb.AskTransactionRequest(transaction=ref, question=question, part=part))
    for kind in (pb.TWO_PHASE, pb.HALF_MESSAGE):
        add(
            INIT_TRANSACTIONS,
            pb.InitTransactionsRequest(transactional_id="x", kind=kind, check_group="g" if kind else ""),
        )
    for partition in range(COORDINATORS):
        for checks_max in range(3):
            poll = pb.PollChecksRequest(
                partition=partition, check_group="g", max_wait_ms=POLL_MS, max_checks=checks_max
            )
            add(POLL_CHECKS, poll)
    add(
        FETCH_COMMITTED,
        pb.FetchCommittedRequest(group="g", partitions=[pb.TopicPartition(topic="kept", partition=1)]),
    )
    return found


def spoil_call(rng: random.Random, data: bytes) -> bytes:
    """A third of them as they are: only a sequence of valid calls leads far."""
    return data if rng.random() < 0.35 else spoil(rng, data)


def surfaces() -> list[Surface]:
    service = ServedTransactions()
    return [Surface("transaction-call", seeds(), service.serve, spoil_call, close=service.close)]
