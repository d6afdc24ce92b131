"""Run the driver's half of an exactly-once write whose tasks stage in the store: decide what the
epoch is, publish it, clean up.

If a task failed, delete everything that was staged.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.errors import Unavailable
from ledgermq_ledger import keys
from ledgermq_ledger.garbage.staged_rows import STAGED_AGE_MS, forget, remove_done
from ledgermq_ledger.sinks import Decision
from ledgermq_spark.sink.cluster import Place, opened
from ledgermq_spark.sink.epochs.epochs import settle_epoch
from ledgermq_spark.sink.options import SinkOptions
from ledgermq_spark.sink.staged import Staged, note_topic


async def commit(options: SinkOptions, write: str, epoch: int, messages: Sequence[Staged], *, repeatable: bool) -> None:
    """Commit as `commit_epoch` does, with the driver's own connections."""
    async with opened(options) as place:
        await commit_epoch(place, write, epoch, messages, repeatable=repeatable)


async def commit_epoch(place: Place, write: str, epoch: int, messages: Sequence[Staged], *, repeatable: bool) -> None:
    """Commit the epoch. `messages`: of all its tasks. `repeatable`: the same write may be repeated,
    and must add nothing then.

    Raises what `publish` raises; a repeated call continues the commit.
    """

    async def propose() -> Decision | None:
        if not any(message.records for message in messages):
            return None
        await _check_age(place, write, epoch, messages)
        return await wanted_decision(place, messages)

    if await settle_epoch(place, write, epoch, propose):
        await (remove_done(place.store, write, epoch) if repeatable else forget(place.store, write))


async def _check_age(place: Place, write: str, epoch: int, messages: Sequence[Staged]) -> None:
    """Check the age of staged rows. Garbage collection deletes staged rows without a decision after
    a time, so well before that no driver may decide on them.

    Only the store's clock counts, as for garbage collection. Neither the driver's nor an executor's
    clock may let deleted rows be decided.
    """
    wanted = {key for message in messages for key in message.objects}
    dates = [
        info.modified_ms async for info in place.store.list(keys.sink_staged_of(write, epoch)) if info.key in wanted
    ]
    if len(dates) < len(wanted):
        raise Unavailable(
            f"{len(wanted) - len(dates)} objects with staged rows are gone; nothing was written: run the write again"
        )
    age_ms = await place.store.store_time_ms() - min(dates, default=0)
    if age_ms > STAGED_AGE_MS // 2:
        raise Unavailable(
            f"rows were staged {age_ms // 3_600_000} hours ago, which is too long; nothing was written: run the write"
            " again"
        )


async def wanted_decision(place: Place, messages: Sequence[Staged]) -> Decision:
    """Return the decision on what these tasks have staged, with an identity that brokers have
    opened now.

    Raises UnknownTopic, UnknownPartition, Unavailable.
    """
    topics: dict[str, int] = {}
    for message in messages:
        for name, topic_id in message.topics.items():
            note_topic(topics, name, topic_id)
    put_id = place.sources.new_id()
    partitions = sorted({each for message in messages for each in message.partitions})
    sessions = await place.client.open_sessions(put_id, partitions)
    return Decision(
        put_id=put_id,
        created_ms=place.sources.now_ms(),
        records=sum(message.records for message in messages),
        objects=tuple(key for message in messages for key in message.objects),
        topics=topics,
        opened_slots={each: session.opened_slot for each, session in sessions.items()},
    )


async def discard(options: SinkOptions, messages: Sequence[Staged]) -> None:
    """Delete what these tasks have staged. Call it only if another task of the epoch has failed,
    because then no driver has tried to decide.

    After a failed commit nothing is deleted: its decision may still be on its way to the store, and
    names what they staged.
    """
    objects = [key for message in messages for key in message.objects]
    if objects:
        async with opened(options) as place:
            await place.store.delete(objects)
