"""List the timed messages of one bundle: the next ones, the ranges behind them, and a summary."""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.timed.held import Held
from ledgermq_broker.timed.state.blocks import Id
from ledgermq_broker.timed.state.memory.rows import Rows
from ledgermq_ledger.topics.catalog import Catalog

MESSAGES_MAX = 1000
"""In one answer, at most."""
LOOKED_AT_BYTES = 1024 * 1024
"""How many bytes of the next messages one call looks at, about; with a filter, some of them match."""
KEY_BYTES_MAX = 256


async def listed(
    held: Held,
    now_us: int | None,
    catalog: Catalog,
    topic_id: int | None,
    partition: int | None,
    messages_max: int,
    trouble: str,
) -> pb.ListDelayedResponse:
    """Return the next messages in memory that match, ranges that are not in memory, and the summary.

    `left` counts all other messages in memory, whether they match or not. Raises the errors of
    `HiddenLogs.read`.
    """
    chunk = None
    if messages_max:
        chunk = await held.with_chunk(lambda waiting: waiting.first(LOOKED_AT_BYTES), lambda chunk: chunk)
    answer = pb.ListDelayedResponse(left=held.waiting.rows)
    if chunk is not None:
        at_most, is_recalled = min(messages_max, MESSAGES_MAX), held.timers.is_recalled
        answer.messages.extend(_messages(chunk.rows, catalog, topic_id, partition, at_most, is_recalled))
        answer.left = held.waiting.rows - len(answer.messages)
    aside = [found for range_id, found in held.timers.ranges.items() if range_id not in held.loaded]
    for found in sorted(aside, key=lambda each: each.from_us):
        answer.ranges.add(from_us=found.from_us, to_us=found.to_us, messages=found.records, size_bytes=found.size_bytes)
    firsts = [found.from_us for found in aside]
    if held.waiting.next_due_us is not None:
        firsts.append(held.waiting.next_due_us)
    answer.summary.CopyFrom(
        pb.DelayedSummary(
            messages=held.waiting.rows + sum(found.records for found in aside),
            size_bytes=held.size_bytes,
            next_due_us=min(firsts, default=0),
            watermark_us=held.timers.watermark.due_us,
            now_us=now_us or 0,
            trouble=trouble,
        )
    )
    return answer


def _messages(
    rows: Rows,
    catalog: Catalog,
    topic_id: int | None,
    partition: int | None,
    at_most: int,
    is_recalled: Callable[[Id, int], bool],
) -> list[pb.DelayedMessage]:
    found: list[pb.DelayedMessage] = []
    for at in range(len(rows)):
        block = rows.blocks[rows.of[at].as_py()]
        if (topic_id is not None and block.topic_id != topic_id) or (
            partition is not None and block.partition != partition
        ):
            continue
        if len(found) == at_most:
            break
        key_of, topic = rows.key(at), catalog.topics_by_id.get(block.topic_id)
        if is_recalled(Id(key_of.offset, key_of.row), block.topic_id):
            continue
        message = pb.DelayedMessage(
            topic=topic.name if topic is not None and not topic.removed else "",
            topic_id=block.topic_id,
            partition=block.partition,
            offset=key_of.offset,
            row=key_of.row,
            due_us=key_of.due_us,
            size_bytes=rows.sizes[at].as_py(),
        )
        key = block.records.column("key")[rows.rows[at].as_py()].as_py()
        if key is not None and len(key) <= KEY_BYTES_MAX:
            message.key = key
        found.append(message)
    return found
