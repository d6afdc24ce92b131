"""What an epoch of a sink consists of, decided once: `put_if_absent` of one small object, before
anything is published.

    {"format": "ledgermq-sink", "format_version": 1, "put_id": "…", "created_ms": …, "records": 12,
     "objects": ["sinks/…/staged/…", …],                    in the order in which they are published
     "topics": [{"name": "t", "id": 7, "opened_slots": {"0": 41, "3": 17}}]}

A *write* is a streaming query, by its id in the checkpoint, or one `df.write`; its *epochs* are the
query's micro-batches (a `df.write` has one, 0). Invariant: the put id is the producer id under
which the epoch's batches are sent, and `opened_slots` were learned before the decision was put; so
whoever publishes the epoch, however often, sends the same batches with the same sequences (design
P1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger import keys
from ledger.object_store.contract import ObjectMissing, ObjectStore
from ledger.object_store.settle import PutOutcome, settle_put
from ledgermq.client.descriptions import TopicPartition
from ledgermq.errors import DataDamaged, FormatNotSupported, Unavailable
from ledgermq.sources import Sources

FORMAT = "ledgermq-sink"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Decision:
    """`topics`: ids by name. `opened_slots`: of each partition that gets something."""

    put_id: bytes
    created_ms: int
    records: int
    objects: tuple[str, ...]
    topics: Mapping[str, int]
    opened_slots: Mapping[TopicPartition, int]


async def read_decision(store: ObjectStore, write: str, epoch: int) -> Decision | None:
    """None: nothing is decided. Raises DataDamaged, FormatNotSupported, the store's errors."""
    key = keys.sink_decision(write, epoch)
    try:
        return decode(await store.get(key), key)
    except ObjectMissing:
        return None


async def decide(store: ObjectStore, sources: Sources, write: str, epoch: int, wanted: Decision) -> Decision:
    """The decision of the epoch: `wanted`, or whatever was decided before. Raises Unavailable,
    DataDamaged, the store's errors.
    """
    key = keys.sink_decision(write, epoch)
    outcome = await settle_put(store, key, [encode(wanted)], sources=sources)
    decided = await read_decision(store, write, epoch) if outcome is not PutOutcome.UNKNOWN else None
    if decided is None:
        raise Unavailable(f"{store.url}: it cannot be told whether {key} was put")
    return decided


async def is_settled(store: ObjectStore, write: str, epoch: int) -> bool:
    """Whether this epoch's rows are decided, so that a task has nothing to add: also where the
    decision was long ago, and is gone.
    """
    decided = keys.sink_decided(write)
    async for info in store.list(decided):
        oldest = keys.number(info.key)
        return oldest > epoch or await read_decision(store, write, epoch) is not None
    return False


def encode(decision: Decision) -> bytes:
    topics = [
        {
            "name": name,
            "id": topic_id,
            "opened_slots": {
                str(p): slot for (topic, p), slot in sorted(decision.opened_slots.items()) if topic == name
            },
        }
        for name, topic_id in sorted(decision.topics.items())
    ]
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "put_id": decision.put_id.hex(),
        "created_ms": decision.created_ms,
        "records": decision.records,
        "objects": list(decision.objects),
        "topics": topics,
    }
    return json.dumps(content, indent=1).encode() + b"\n"


def decode(data: bytes, key: str) -> Decision:
    """Raises DataDamaged, FormatNotSupported, naming the object."""
    try:
        found: Any = json.loads(data)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("it is no decision of a sink")
        if found["format_version"] != FORMAT_VERSION:
            text = f"{key}: format version {found['format_version']}, this software reads {FORMAT_VERSION}"
            raise FormatNotSupported(text, object_key=key)
        return _decoded(found)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DataDamaged(f"{key}: {error!r}", object_key=key) from error


def _decoded(found: Mapping[str, Any]) -> Decision:
    topics: Sequence[Mapping[str, Any]] = found["topics"]
    put_id = bytes.fromhex(found["put_id"])
    if len(put_id) != 16:
        raise ValueError("a put id has 16 bytes")
    return Decision(
        put_id=put_id,
        created_ms=int(found["created_ms"]),
        records=int(found["records"]),
        objects=tuple(str(key) for key in found["objects"]),
        topics={str(topic["name"]): int(topic["id"]) for topic in topics},
        opened_slots={
            TopicPartition(str(topic["name"]), int(partition)): int(slot)
            for topic in topics
            for partition, slot in topic["opened_slots"].items()
        },
    )
