"""What the next version of a keyed topic's table says: one partition's newest version in place of the one that the
table shows, in one step, so no reader sees a key twice or not at all (design V5). Pure.

Which version of a partition the table shows stands in it as a `txn` action, and so does that version's end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ledgermq_ledger import keys
from ledgermq_ledger.delta.actions import Add, decode_path
from ledgermq_ledger.delta.table import Table, new_table
from ledgermq_ledger.delta.versions import (
    Draft,
    ListedFile,
    Topic,
    add_of,
    foreign_table,
    generation_of,
    registered,
    remove_of,
)


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest version of a partition: the latest record of each key below `end`. `number` 0: there is none yet."""

    number: int = 0
    end: int = 0
    files: Sequence[ListedFile] = ()


def draft_latest(table: Table, topic: Topic, found: Mapping[int, Latest], now_ms: int) -> Draft:
    """Return what version `table.version + 1` says. `found`: the newest version of each partition, read after `table`.
    `now_ms`: the store's clock.

    A table of a later generation is left as it is. Raises DataDamaged (see `generation_of`; or the table names a file
    that is none of the topic's).
    """
    generation = generation_of(table, topic)
    if generation is not None and generation > topic.generation:
        return Draft()
    if generation != topic.generation:
        return _rebuild(table, topic, found, now_ms)
    draft = Draft()
    for partition in _in_turn(table, topic):
        latest, shown = found[partition], registered(table, topic, partition, "version")
        if latest.number < shown:
            draft.stopped[partition] = (
                f"the table shows its version {shown}, and its newest one is {latest.number}: the log is older than its"
                " table"
            )
        elif latest.number > shown and not draft.operation:
            _replace(draft, table, topic, partition, latest, now_ms)
    return draft


def _in_turn(table: Table, topic: Topic) -> list[int]:
    """Return the partitions, another one first for each version, so that none waits forever."""
    first = table.version % topic.partitions
    return [*range(first, topic.partitions), *range(first)]


def _replace(draft: Draft, table: Table, topic: Topic, partition: int, latest: Latest, now_ms: int) -> None:
    """Name exactly the files of a version: what both versions have stays as it is."""
    before = {path: add for path, add in table.files.items() if _partition_of(topic, path) == partition}
    after = {add.path: add for add in (add_of(topic, file) for file in latest.files)}
    draft.operation = "MERGE"
    draft.actions += [
        topic.txn(partition, "version", latest.number),
        topic.txn(partition, "end", latest.end),
        *(remove_of(add, now_ms) for path, add in before.items() if path not in after),
        *(add for path, add in after.items() if path not in before),
    ]


def _partition_of(topic: Topic, path: str) -> int:
    name = keys.parse_keyed(topic.folder + decode_path(path))
    if name is None or not name.is_file or name.place.topic_id != topic.generation[0]:
        raise foreign_table(topic, f"it names {path}, which is no file of topic {topic.name}")
    return name.place.partition


def _rebuild(table: Table, topic: Topic, found: Mapping[int, Latest], now_ms: int) -> Draft:
    topic_id, generation = topic.generation
    first = new_table(
        topic.schema,
        cluster=topic.cluster,
        topic=topic.name,
        topic_id=topic_id,
        generation=generation,
        created_ms=now_ms,
    )
    draft, kept = Draft("CREATE TABLE" if table.metadata is None else "REPLACE TABLE", first), dict[str, Add]()
    for partition, latest in sorted(found.items()):
        kept |= {add.path: add for add in (add_of(topic, file) for file in latest.files)}
        draft.actions += [topic.txn(partition, "version", latest.number), topic.txn(partition, "end", latest.end)]
    draft.actions += [remove_of(add, now_ms) for path, add in table.files.items() if path not in kept]
    draft.actions += kept.values()
    return draft
