"""Each way in which a principal has delayed messages wait in a bundle."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ProduceFrame, StageFrame
from ledgermq.protocol.limits import DELAYED_BRANCH
from ledgermq.protocol.status import error_to_proto
from tests.broker.shared_groups import Caller, Fill, refusal
from tests.broker.timer_calls import Timed, now_s, timed_frame
from tests.broker.transaction_calls import timed_stage_frame

AHEAD_S = 60.0
"""How far ahead the messages are due: they stay in memory."""
VALUE = bytes(1000)


def message(ahead_s: float = AHEAD_S) -> Timed:
    return VALUE, now_s() + ahead_s


async def one_delayed(caller: Caller, n: int) -> pb.Error | None:
    return await refusal(caller.line.produce_delayed_once(timed_frame(caller.topic, 0, [message()])))


async def one_delayed_by_a_stream(caller: Caller, n: int) -> pb.Error | None:
    async def frames() -> AsyncIterator[ProduceFrame]:
        yield timed_frame(caller.topic, 0, [message()])

    [answer] = [answer async for answer in caller.line.produce_delayed(frames())]
    [result] = answer.results
    return result.error if result.HasField("error") else None


async def began(caller: Caller, n: int) -> pb.TransactionRef:
    """Begin a transaction of an id of its own."""
    name = f"{caller.topic}-delayed-{n}"
    made = await caller.line.init_transactions(pb.InitTransactionsRequest(transactional_id=name))
    return pb.TransactionRef(
        transactional_id=name, coordinator=made.coordinator, producer_id=made.producer_id, epoch=made.epoch, number=1
    )


async def staged(caller: Caller, ref: pb.TransactionRef, sequence: int = 0) -> pb.Error | None:
    async def frames() -> AsyncIterator[StageFrame]:
        yield timed_stage_frame(ref, caller.topic, 0, sequence, [message()])

    [answer] = [answer async for answer in caller.line.stage_delayed(frames())]
    [result] = answer.results
    caller.topic_id, caller.bundle = result.topic_id, result.bundle
    return result.error if result.HasField("error") else None


async def one_delayed_that_is_staged(caller: Caller, n: int) -> pb.Error | None:
    return await staged(caller, await began(caller, n))


async def one_delayed_that_is_committed(caller: Caller, n: int) -> pb.Error | None:
    ref = await began(caller, n)
    error = await staged(caller, ref)
    if error is None:
        assert await ended(caller, ref, pb.COMMITTED, 1) == pb.COMMITTED
    return error


async def ended(caller: Caller, ref: pb.TransactionRef, outcome: pb.TransactionState, batches: int) -> int:
    counts = [pb.StagedCount(branch=DELAYED_BRANCH, topic_id=caller.topic_id, partition=0, batches=batches)]
    request = pb.EndTransactionRequest(
        transaction=ref, outcome=outcome, parts=[pb.TransactionPart(bundle=caller.bundle, counts=counts)]
    )
    try:
        return (await caller.line.end_transaction(request)).state
    except LedgerMQError as error:
        raise AssertionError(error_to_proto(error)) from error


WAYS: tuple[Fill, ...] = (
    one_delayed,
    one_delayed_by_a_stream,
    one_delayed_that_is_staged,
    one_delayed_that_is_committed,
)
