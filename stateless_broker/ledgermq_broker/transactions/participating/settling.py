"""Wait for what clients of the Kafka protocol count on when they ask for the latest offset of a partition (X25).

A program that keeps its state in a topic reads this to its end when it takes a task over, and goes on at the offsets
that its group has committed. So this end must not lie before the records of a transaction whose offsets are
committed, or may still be.
"""

from __future__ import annotations

import asyncio

from ledgermq.errors import InvalidRequest, Unavailable
from ledgermq_broker.transactions.peers import Peers
from ledgermq_broker.transactions.state.checks import describe
from ledgermq_broker.transactions.state.limits import RETRY_MS
from ledgermq_broker.transactions.state.participant import Participant
from ledgermq_ledger.keys import PartitionId

SETTLE_S_MAX = 10.0
"""One call waits so long for all its partitions together."""
LOOK_S = 0.05
ASK_S_MAX = 1.0
"""Longest pause between two questions to a coordinator, which many calls may ask."""


async def settle(participant: Participant, peers: Peers, place: PartitionId, end_s: float) -> None:
    """Wait until no transaction with batches for a partition is committed and incomplete, or open with a group added.

    `end_s`: loop time. Raises Unavailable if one is so until then, and what asking its coordinator raises.
    """
    loop = asyncio.get_running_loop()
    for transaction in participant.of_kafka_in(place):
        pause_s, ask_s = LOOK_S, loop.time()
        while participant.has_staged(transaction.producer_id, *transaction.pair):
            if loop.time() < min(ask_s, end_s):
                await asyncio.sleep(LOOK_S)
                continue
            try:
                if await peers.is_settled(transaction):
                    break
            except InvalidRequest as error:  # the broker of an earlier release
                raise Unavailable(error.message, retry_after_ms=RETRY_MS) from error
            pause_s = min(2 * pause_s, ASK_S_MAX)
            ask_s = loop.time() + pause_s
            if loop.time() >= end_s:
                raise Unavailable(
                    f"{describe(transaction)} has batches for this partition and offsets of a group, and has not ended;"
                    " ask for the latest offset again",
                    retry_after_ms=RETRY_MS,
                )
