"""Whole requests to a broker with rules, by callers of several rights: no credential, a token without a rule, a
reader, a producer, an administrator. As the surface `service`; besides, no input shows or changes what the caller's
rights do not allow.

Inputs name `kept`, on which reader and producer have their rights, and `them`, which belongs to others. No input
names `unseen`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from ledgermq.errors import LedgerMQError, Unauthenticated
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.methods import Method
from tests.broker.access import RULES, change, codes_of, token
from tests.broker.cluster import Cluster, batch_header, cluster_of, encoded, frame_of, read_all
from tests.broker.timer_calls import now_s, timed_frame
from tests.fuzz import service_surfaces, timer_call_surfaces, transaction_call_surfaces
from tests.fuzz.service_surfaces import ANSWER_S, LIMITS, Served, spoil
from tests.fuzz.surface import Surface, Untyped

KEPT, THEM, UNSEEN = "kept", "them", "unseen"
SECRET = b"a secret of others"
DUE_S = 300_000.0
NO_CREDENTIAL, NO_RULE, READER, PRODUCER, ADMIN = "stranger", "nobody", "reader", "producer", "root"
GRANTS = (
    f"allow user:{READER} consume {KEPT}",
    f"allow user:{READER} group g",
    f"allow user:{PRODUCER} produce {KEPT}",
    f"allow user:{PRODUCER} transaction {KEPT}",
)


@dataclass(frozen=True)
class State:
    """What is stored, as an administrator sees it. `ends`: of the partitions of `kept`."""

    ends: tuple[int, ...]
    rest: tuple[bytes, ...]


class ServedWithRights(Served):
    """A broker with rules; `caller` sends the inputs. A token is made for each of the five, so that a token of
    another right is not what is missing.
    """

    def __init__(self, caller: str) -> None:
        super().__init__()
        self._caller = caller
        self._tokens: dict[str, str] = {}
        self._theirs = pb.InitTransactionsResponse()

    async def begin(self, stack: AsyncExitStack) -> Cluster:
        cluster = await stack.enter_async_context(cluster_of("a:1", **LIMITS, **RULES))
        self._tokens = {name: (await token(cluster, name)).text for name in (NO_RULE, READER, PRODUCER, ADMIN)}
        await change(cluster, grant=GRANTS)
        root = self._root(cluster)
        for topic in (KEPT, THEM, UNSEEN):
            await cluster.create(topic, 2, self._tokens[ADMIN])
        for topic in (THEM, UNSEEN):
            for partition in range(2):
                await root.produce_once(frame_of(topic, partition, SECRET))
            await root.produce_delayed_once(timed_frame(topic, 0, [(SECRET, now_s() + DUE_S)]))
            async with (
                cluster.client(self._tokens[ADMIN]) as client,
                client.consumer(topic, group=topic) as consumer,
            ):
                await anext(aiter(consumer))
                await consumer.commit()
        self._theirs = await root.init_transactions(
            pb.InitTransactionsRequest(transactional_id=THEM, timeout_ms=900_000)
        )
        await self._stage(root)
        return cluster

    async def _stage(self, root: Connection) -> None:
        """A batch of others that stays open while inputs come."""
        ref = pb.TransactionRef(transactional_id=THEM, number=1)
        ref.producer_id, ref.epoch, ref.coordinator = (
            self._theirs.producer_id,
            self._theirs.epoch,
            self._theirs.coordinator,
        )
        data = encoded([SECRET])
        header = pb.StageHeader(transaction=ref)
        header.batches.add(batch=batch_header(THEM, 0, data, 1), sequence=0)

        async def frames():  # type: ignore[no-untyped-def]
            yield Frame(header, [data])

        [answer] = [answer async for answer in root.stage(frames())]
        if answer.results[0].HasField("error"):
            raise Untyped(f"the surface cannot stage: {answer}")

    def _root(self, cluster: Cluster) -> Connection:
        return cluster.line("a:1", self._tokens[ADMIN])

    def line(self, cluster: Cluster) -> Connection:
        return cluster.line("a:1", self._tokens.get(self._caller, ""))

    async def answers(self, cluster: Cluster, method: Method, data: bytes) -> list[Any]:
        before = None if self._caller == ADMIN else await self._state(cluster)
        try:
            found = await super().answers(cluster, method, data)
        except LedgerMQError as error:
            self._check_shown(method, str(error).encode())
            raise
        finally:
            if before is not None:
                self._check_unchanged(method, before, await self._state(cluster))
        for answer in found:
            if LedgerMQError.code in codes_of(answer):
                raise Untyped(f"{method.name} was answered by {LedgerMQError.code}: {answer}")
            self._check_shown(method, method.encode_response(answer))
        if self._caller == NO_CREDENTIAL and found:
            raise Untyped(f"{method.name} served a caller without a credential: {found}")
        return found

    def _check_shown(self, method: Method, answer: bytes) -> None:
        if self._caller == ADMIN:
            return
        for secret in (SECRET, UNSEEN.encode()):
            if secret in answer:
                raise Untyped(f"{method.name} showed {secret!r} to {self._caller}: {answer[:500]!r}")

    def _check_unchanged(self, method: Method, before: State, after: State) -> None:
        if after.rest != before.rest:
            changed = [(was, now) for was, now in zip(before.rest, after.rest, strict=True) if was != now]
            raise Untyped(f"{method.name} of {self._caller} changed what others have: {changed}")
        may_grow = self._caller == PRODUCER
        if after.ends != before.ends and not (
            may_grow and all(now >= was for was, now in zip(before.ends, after.ends, strict=True))
        ):
            raise Untyped(f"{method.name} of {self._caller} moved the ends of {KEPT}: {before.ends}, {after.ends}")

    async def _state(self, cluster: Cluster) -> State:
        root = self._root(cluster)
        queries = [
            pb.OffsetQuery(topic=topic, partition=partition, **{which: True})
            for topic in (KEPT, THEM, UNSEEN)
            for partition in range(2)
            for which in ("earliest", "latest")
        ]
        offsets = [found.offset for found in (await root.list_offsets(pb.ListOffsetsRequest(queries=queries))).results]
        ends = (offsets[1], offsets[3])
        offsets[1] = offsets[3] = 0
        wanted = [pb.TopicPartition(topic=THEM, partition=0), pb.TopicPartition(topic=THEM, partition=1)]
        described = (await root.describe_transaction(pb.DescribeTransactionRequest(transactional_id=THEM))).transaction
        topics = (await root.describe_topics(pb.DescribeTopicsRequest())).topics
        rest: list[Any] = [
            *sorted(topics, key=lambda topic: topic.name),
            await root.list_rules(pb.ListRulesRequest()),
            await root.list_tokens(pb.ListTokensRequest()),
            await root.list_quotas(pb.ListQuotasRequest()),
            await root.fetch_committed(pb.FetchCommittedRequest(group=THEM, partitions=wanted)),
        ]
        wait = 0
        for bundle in (1, 2):
            wait += (await root.list_delayed(pb.ListDelayedRequest(bundle=bundle))).summary.messages
        delayed = min(wait, 2) if self._caller == PRODUCER else wait  # it may have sent some itself
        is_committed = described.state == pb.COMMITTED  # time alone may abort it
        seen = [found.SerializeToString(deterministic=True) for found in rest]
        return State(ends, (*seen, repr((offsets, delayed, is_committed)).encode()))

    async def check_health(self, cluster: Cluster) -> None:
        """The next client is served, and what is stored can be read; a stranger is still refused."""
        value, root = b"%d" % self._served, self._root(cluster)
        try:
            async with asyncio.timeout(ANSWER_S):
                [result] = (await root.produce_once(frame_of(KEPT, 0, value))).results
                values = await read_all(root, KEPT, 0)
        except (LedgerMQError, TimeoutError) as error:
            raise Untyped(f"the next client was not served: {error!r}") from error
        if result.HasField("error") or value not in values:
            raise Untyped(f"a record was not stored, or is not read back: {result}")
        try:
            await cluster.line("a:1").list_offsets(pb.ListOffsetsRequest())
        except Unauthenticated:
            return
        raise Untyped("a caller without a credential is served")


def seeds() -> list[bytes]:
    """Of all methods, once on what the caller has rights on, once on what others have."""
    found = [
        seed
        for module in (service_surfaces, transaction_call_surfaces, timer_call_surfaces)
        for seed in dict.fromkeys(module.seeds())
    ]
    return found + [seed.replace(KEPT.encode(), THEM.encode()) for seed in found if KEPT.encode() in seed]


def surfaces() -> list[Surface]:
    inputs, found = seeds(), []
    for caller in (NO_CREDENTIAL, NO_RULE, READER, PRODUCER, ADMIN):
        service = ServedWithRights(caller)
        name = "admin" if caller == ADMIN else caller
        found.append(Surface(f"rights-{name}", inputs, service.serve, spoil, weight=0.6, close=service.close))
    return found
