"""Topics and the cluster: list, describe, create, alter, delete, offsets, deletion of records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.records.bodies import decode
from ledgermq_gateway.resources.parameters import flag, position, whole

LIMIT, LIMIT_MAX = 100, 1_000
Setting = str | int | float | bool


class Partition(Struct, kw_only=True):
    """`owner`: address of the broker that serves it; empty: none does at present."""

    partition: int
    bundle: int
    owner: str
    moving_from: int | None = None


class Topic(Struct, kw_only=True):
    """`settings`: those that were set. `topic_id`: another one when a topic of the name is made again."""

    name: str
    topic_id: int
    partitions: int
    settings: dict[str, str]
    created: datetime


class TopicDetails(Topic, kw_only=True):
    """A topic with its partitions."""

    owners: list[Partition]


class Topics(Struct, kw_only=True):
    """A page of topics, by name. `after`: what to ask for next; null at the end."""

    topics: list[Topic]
    after: str | None


class TopicIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """A topic to create. `partitions`: 0 for the cluster's default."""

    name: Annotated[str, Meta(min_length=1, max_length=249)]
    partitions: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    settings: dict[str, Setting] = {}


class TopicChange(Struct, forbid_unknown_fields=True, kw_only=True):
    """`partitions`: the new number; 0: unchanged. `unset`: settings that get their default again."""

    partitions: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    settings: dict[str, Setting] = {}
    unset: list[str] = []


class PartitionOffset(Struct, kw_only=True):
    partition: int
    offset: int


class TopicOffsets(Struct, kw_only=True):
    offsets: list[PartitionOffset]


class Deleted(Struct, kw_only=True):
    """Where the log of a partition begins from now on, and how many records that removed."""

    partition: int
    log_start: int
    records: int


class DeletedRecords(Struct, kw_only=True):
    partitions: list[Deleted]


class Broker(Struct, kw_only=True):
    id: str
    address: str
    alive: bool
    draining: bool


class Bundle(Struct, kw_only=True):
    bundle: int
    owner: str
    epoch: int
    trouble: str
    load: int


class Cluster(Struct, kw_only=True):
    """`problems`: why the cluster is not well; empty if it is."""

    cluster_id: str
    version: str
    brokers: list[Broker]
    bundles: list[Bundle]
    problems: list[str]


_topic_in = msgspec.json.Decoder(TopicIn)
_topic_change = msgspec.json.Decoder(TopicChange)


async def get_cluster(call: Call) -> Answer:
    found = await call.caller.client.describe_cluster()
    return Answer(
        msgspec.json.encode(
            Cluster(
                cluster_id=found.cluster_id,
                version=found.version,
                brokers=[Broker(id=b.id, address=b.address, alive=b.alive, draining=b.draining) for b in found.brokers],
                bundles=[
                    Bundle(bundle=b.bundle, owner=b.owner, epoch=b.epoch, trouble=b.trouble, load=b.load)
                    for b in found.bundles
                ],
                problems=list(found.problems),
            )
        )
    )


async def list_topics(call: Call) -> Answer:
    """The page is cut after brokers have left out what the caller may not see, so `after` names no other topic."""
    limit = whole(call.query, "limit", LIMIT, 1, LIMIT_MAX)
    prefix, after = call.query.get("prefix", ""), call.query.get("after", "")
    found = await call.caller.client.topics.list(prefix=prefix, after=after, limit=limit + 1)
    page = found[:limit]
    last = page[-1].name if len(found) > limit else None
    return Answer(msgspec.json.encode(Topics(topics=[_topic(each) for each in page], after=last)))


async def create_topic(call: Call) -> Answer:
    given: TopicIn = decode(_topic_in, call.body)
    made = await call.caller.client.create_topic(given.name, given.partitions, given.settings)
    return Answer(_details(made), status=201, headers=(("Location", f"/v1/topics/{made.name}"),))


async def get_topic(call: Call) -> Answer:
    return Answer(_details(await call.caller.topic(call.names["topic"], anew=True)))


async def alter_topic(call: Call) -> Answer:
    given: TopicChange = decode(_topic_change, call.body)
    name = call.names["topic"]
    await _check_id(call)
    changed = await call.caller.client.alter_topic(name, given.partitions, given.settings, given.unset)
    call.caller.forget(name)
    return Answer(_details(changed))


async def delete_topic(call: Call) -> Answer:
    await _check_id(call)
    await call.caller.client.delete_topic(call.names["topic"], now=flag(call.query, "now"))
    call.caller.forget(call.names["topic"])
    return Answer(status=204)


async def undelete_topic(call: Call) -> Answer:
    return Answer(_details(await call.caller.client.undelete_topic(call.names["topic"])))


async def _check_id(call: Call) -> None:
    """Raise Problem (409) if the topic is not the one that the caller has seen."""
    if "topic_id" not in call.query:
        return
    wanted = whole(call.query, "topic_id", 0, 0, 2**63 - 1)
    found = await call.caller.topic(call.names["topic"], anew=True)
    if found.topic_id != wanted:
        raise Problem(
            "OTHER_TOPIC",
            f"topic {found.name!r} was deleted and made again: it has the id {found.topic_id}, not {wanted}",
        )


async def get_offsets(call: Call) -> Answer:
    at = position(call, "at", "latest")
    if isinstance(at, int):
        raise Problem("INVALID_REQUEST", "the parameter at is earliest, latest, a time or an age, not an offset")
    found = await call.caller.client.list_offsets(call.names["topic"], cast(Any, at))
    offsets = [PartitionOffset(partition=partition, offset=offset) for partition, offset in sorted(found.items())]
    return Answer(msgspec.json.encode(TopicOffsets(offsets=offsets)))


async def delete_records(call: Call) -> Answer:
    partitions = None
    if "partition" in call.query:
        partitions = [whole(call.query, "partition", 0, 0, 2**31 - 1)]
    before = position(call, "before", None)
    if before == "earliest":
        raise Problem("INVALID_REQUEST", "before=earliest deletes nothing: give an offset, a time, an age, or latest")
    found = await call.caller.client.delete_records(
        call.names["topic"],
        "end" if before == "latest" else cast(Any, before),
        partitions,
        dry_run=flag(call.query, "dry_run"),
    )
    deleted = [
        Deleted(partition=partition, log_start=each.log_start, records=each.records)
        for partition, each in sorted(found.items())
    ]
    return Answer(msgspec.json.encode(DeletedRecords(partitions=deleted)))


def _topic(found: TopicDescription) -> Topic:
    return Topic(**_fields(found))


def _details(found: TopicDescription) -> bytes:
    owners = [
        Partition(partition=each.partition, bundle=each.bundle, owner=each.owner, moving_from=each.moving_from)
        for each in found.partitions
    ]
    return msgspec.json.encode(TopicDetails(**_fields(found), owners=owners))


def _fields(found: TopicDescription) -> Mapping[str, Any]:
    return {
        "name": found.name,
        "topic_id": found.topic_id,
        "partitions": len(found.partitions),
        "settings": dict(found.settings),
        "created": found.created,
    }
