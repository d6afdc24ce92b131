"""Encode and decode the objects below `sinks/`: staged rows, decisions and done marks of Spark's
sink (docs/decisions/0024). Pure.

staged      | a segment (`ledgermq_ledger.log.segments.segment`) of bundle, slot and kind 0, named by its put id
decided     {"format": "ledgermq-sink", "format_version": 1, "put_id": "…", "created_ms": …, "records": 12,
             "objects": ["sinks/…/staged/…", …],                    in the order in which they are published
             "topics": [{"name": "t", "id": 7, "opened_slots": {"0": 41, "3": 17}}]}
            of a transaction: format version 2 with "transactional_id": "…", without objects and topics
done        {"done_ms": …, "put_id": "…"}

Staged rows have checksums. Decisions and done marks have none: a flipped digit stays unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.segment import check_whole, decode_tail

FORMAT = "ledgermq-sink"
FORMAT_VERSION = 1
FORMAT_VERSION_TRANSACTION = 2
"""Of the decision for a transaction: software that does not know it must not publish its no rows."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`topics`: ids by name. `opened_slots`: those of each partition that receives records.

    `transactional_id`: the epoch is what this transaction commits, if it does; nothing is staged as
    objects then.
    """

    put_id: bytes
    created_ms: int
    records: int
    objects: tuple[str, ...]
    topics: Mapping[str, int]
    opened_slots: Mapping[TopicPartition, int]
    transactional_id: str = ""


def encode_decision(decision: Decision) -> bytes:
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
    content: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION_TRANSACTION if decision.transactional_id else FORMAT_VERSION,
        "put_id": decision.put_id.hex(),
        "created_ms": decision.created_ms,
        "records": decision.records,
        "objects": list(decision.objects),
        "topics": topics,
    }
    if decision.transactional_id:
        content["transactional_id"] = decision.transactional_id
    return json.dumps(content, indent=1).encode() + b"\n"


def decode_decision(data: bytes, key: str) -> Decision:
    """Decode a decision. Raises DataDamaged, FormatNotSupported, naming the object."""
    try:
        found: Any = json.loads(data)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("this is not a decision of a sink")
        if found["format_version"] not in (FORMAT_VERSION, FORMAT_VERSION_TRANSACTION):
            text = (
                f"{key}: format version {found['format_version']}, this software reads {FORMAT_VERSION} and"
                f" {FORMAT_VERSION_TRANSACTION}"
            )
            raise FormatNotSupported(text, object_key=key)
        return _decoded(found)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DataDamaged(f"{key}: {error!r}", object_key=key) from error


def _decoded(found: Mapping[str, Any]) -> Decision:
    topics: Sequence[Mapping[str, Any]] = found["topics"]
    put_id = bytes.fromhex(found["put_id"])
    if len(put_id) != 16:
        raise ValueError("a put id has 16 bytes")
    transactional_id = str(found.get("transactional_id", ""))
    if bool(transactional_id) is not (found["format_version"] == FORMAT_VERSION_TRANSACTION):
        raise ValueError(f"format version {found['format_version']} with transactional id {transactional_id!r}")
    if transactional_id and (found["objects"] or topics):
        raise ValueError("the decision for a transaction names staged objects")
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
        transactional_id=transactional_id,
    )


@dataclass(frozen=True, slots=True)
class DoneMark:
    """`done_ms`: by the clock of the driver that has published the epoch."""

    done_ms: int
    put_id: bytes


def encode_done(mark: DoneMark) -> bytes:
    return b'{"done_ms": %d, "put_id": "%s"}\n' % (mark.done_ms, mark.put_id.hex().encode())


def decode_done(data: bytes, key: str) -> DoneMark:
    """Decode a done mark. Raises DataDamaged, naming the object."""
    try:
        found: Any = json.loads(data)
        mark = DoneMark(int(found["done_ms"]), bytes.fromhex(found["put_id"]))
        if len(mark.put_id) != 16:
            raise ValueError("a put id has 16 bytes")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DataDamaged(f"{key}: {error!r}", object_key=key) from error
    return mark


def staged_index(data: bytes, key: str) -> fmt.SegmentIndex:
    """Return the index of an object of staged rows. Raises DataDamaged, FormatNotSupported, naming
    it.
    """
    try:
        return decode_tail(data, 0, 0).index
    except (DataDamaged, FormatNotSupported) as error:
        raise type(error)(f"{key}, staged rows: {error.message}", object_key=key) from error


def check_staged(data: bytes, key: str) -> None:
    """Check every byte of an object of staged rows. Raises what `staged_index` raises."""
    try:
        check_whole(data, 0, 0)
    except (DataDamaged, FormatNotSupported) as error:
        raise type(error)(f"{key}, staged rows: {error.message}", object_key=key) from error
