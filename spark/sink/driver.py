"""The driver's half of an exactly-once write: decide what the epoch is, publish it, tidy up. Or, where tasks failed, leave nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.client.client import Client
from ledgermq.client.descriptions import TopicPartition
from ledgermq.sources import Sources
from spark.sink.cluster import opened
from spark.sink.decision import Decision, decide, read_decision
from spark.sink.options import SinkOptions
from spark.sink.publishing import clean_up, forget, is_done, publish
from spark.sink.staged import Staged


async def commit(options: SinkOptions, write: str, epoch: int, messages: Sequence[Staged], *, repeatable: bool) -> None:
    """`messages`: of all tasks of the epoch. `repeatable`: the same write may come again, and has to add nothing then.

    Raises what `publish` raises; whoever calls this again goes on.
    """
    sources = Sources()
    async with opened(options, sources) as (client, store):
        decision = await read_decision(store, write, epoch)
        if decision is None:
            decision = await decide(store, sources, write, epoch, await _wanted(client, sources, messages))
        if not await is_done(store, write, epoch):
            await publish(store, client, options, write, epoch, decision, sources)
        await (clean_up(store, write, epoch) if repeatable else forget(store, write))


async def _wanted(client: Client, sources: Sources, messages: Sequence[Staged]) -> Decision:
    topics = {name: topic_id for message in messages for name, topic_id in message.topics.items()}
    partitions = sorted({place for message in messages for place in message.partitions})
    put_id = sources.new_id()
    sessions = await client.open_sessions(put_id, [TopicPartition(*place) for place in partitions])
    return Decision(
        put_id=put_id,
        created_ms=sources.now_ms(),
        records=sum(message.records for message in messages),
        objects=tuple(key for message in messages for key in message.objects),
        topics=topics,
        opened_slots={place: session.opened_slot for place, session in sessions.items()},
    )


async def abort(options: SinkOptions, write: str, epoch: int) -> None:
    """Some task failed for good, or the commit did. What is decided is left to whoever repeats the write."""
    async with opened(options, Sources()) as (_, store):
        if await read_decision(store, write, epoch) is None:
            await clean_up(store, write, epoch)
