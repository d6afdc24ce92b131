"""Calls about timed messages to a broker, in this process and in virtual time: each gets an answer or a typed
error, and the timed messages of another client come once and at their time, or never after a recall.

As the surface `transaction-call`, with the methods of timed messages, and those that a transaction with
timed messages needs.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.limits import DELAYED_BRANCH
from ledgermq.protocol.methods import (
    COMPLETE_TRANSACTION,
    END_TRANSACTION,
    INIT_TRANSACTIONS,
    LIST_DELAYED,
    METHODS,
    PRODUCE_DELAYED,
    PRODUCE_DELAYED_ONCE,
    RECALL_DELAYED,
    STAGE_DELAYED,
    Method,
)
from tests.broker.cluster import Cluster, read_all
from tests.broker.timer_calls import listed, now_s, recall, send, timed_batch, timed_frame
from tests.fuzz.service_surfaces import Served
from tests.fuzz.surface import Surface, Untyped
from tests.fuzz.transaction_call_surfaces import ServedTransactions, ref_of, spoil_call

DUES_S = (-1e9, 0.0, 30.0, 500.0, 7200.0, 3e5, 1e7, 1e12)
"""After the begin of virtual time; the last one is beyond what is allowed."""
DUE_S, NEVER_S = 5.0, 900.0
"""Of the messages of another client."""
CAME_S_MAX = 60.0


class ServedTimers(ServedTransactions):
    async def check_health(self, cluster: Cluster) -> None:
        """Two messages of another client: one comes, once; one is recalled, and is no longer listed."""
        await Served.check_health(self, cluster)
        value = b"in time, %d" % self._served
        try:
            async with asyncio.timeout(CAME_S_MAX):
                due_s = now_s() + DUE_S
                await send(cluster, "kept", 0, (value, due_s))
                never_s = now_s() + NEVER_S
                offset = await send(cluster, "kept", 0, (b"never", never_s))
                outcome = await recall(cluster, "kept", 0, offset, 0, never_s)
                while value not in (found := await read_all(cluster.line("a:1"), "kept", 0)):
                    await asyncio.sleep(0.1)
                await listed(cluster, 1, max_messages=1000)
        except (LedgerMQError, TimeoutError, AssertionError) as error:
            raise Untyped(f"the timed message of another client failed: {error!r}") from error
        if outcome != "RECALLED" or found.count(value) != 1 or b"never" in found or now_s() < due_s:
            raise Untyped(f"recalled: {outcome}; came {now_s() - due_s} s after its time: {found.count(value)} times")


def seeds() -> list[bytes]:
    found: list[bytes] = []

    def add(method: Method, *requests: Any) -> None:
        found.extend(bytes([METHODS.index(method)]) + method.encode_request(request) for request in requests)

    session = pb.ProducerSession(id=b"i" * 16, epoch=1, opened_slot=99)
    for number, due_s in enumerate(DUES_S):
        messages = [(b"a%d" % number, due_s), (b"b", due_s + 1), (b"c" * 100, due_s + 100)]
        frame = timed_frame("kept", number % 2, messages, session if number % 3 == 0 else None)
        add(PRODUCE_DELAYED_ONCE, frame)
        add(PRODUCE_DELAYED, frame)
        for row in range(2):
            request = pb.RecallDelayedRequest(topic="kept", topic_id=1, partition=1, offset=number, row=row)
            request.due_us = timed_batch("kept", 0, messages)[0].timestamp_min_us
            add(RECALL_DELAYED, request)
    for bundle in range(3):
        add(LIST_DELAYED, pb.ListDelayedRequest(bundle=bundle, max_messages=9))
    add(LIST_DELAYED, pb.ListDelayedRequest(bundle=1, topic="kept", partition=0, max_messages=2))
    ref = ref_of("kept")
    for _ in range(3):
        add(INIT_TRANSACTIONS, pb.InitTransactionsRequest(transactional_id="kept"))
        for number, due_s in enumerate(DUES_S):
            batch, data = timed_batch("kept", number % 2, [(b"staged", due_s)])
            header = pb.StageHeader(transaction=ref, branch=DELAYED_BRANCH)
            header.batches.add(batch=batch)
            add(STAGE_DELAYED, Frame(header, [data]))
    for bundle in (1, 2):
        part = pb.TransactionPart(bundle=bundle)
        part.counts.add(branch=DELAYED_BRANCH, topic_id=1, partition=bundle - 1, batches=1)
        for outcome in (pb.COMMITTED, pb.ABORTED):
            add(END_TRANSACTION, *[pb.EndTransactionRequest(transaction=ref, outcome=outcome, parts=[part])] * 2)
            add(COMPLETE_TRANSACTION, pb.CompleteTransactionRequest(transaction=ref, outcome=outcome, part=part))
    return found


def surfaces() -> list[Surface]:
    service = ServedTimers()
    return [Surface("timer-call", seeds(), service.serve, spoil_call, close=service.close)]
