"""What the next version of a topic's table says: rows, a removal, an exchange of files, or all of the table again.
Computed from exactly the version before it and from the file lists of the partitions (design Z4, Z5, Z7, Z8). Pure.

How far a partition is registered stands in the table as two `txn` actions: its end, and its start,
which is the log start up to which files have been removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa

from ledgermq.errors import DataDamaged
from ledgermq_ledger import keys
from ledgermq_ledger.delta.actions import Action, Add, MetaData, Remove, Txn, decode_path, encode_path
from ledgermq_ledger.delta.table import Table, grown, new_table
from ledgermq_ledger.delta.table import merged as merged_columns
from ledgermq_ledger.parquet.merging.names import parse_merged

ACTIONS_MAX = 5000
"""Files that one version adds or removes, but for a rebuild, which replaces all at once."""
Generation = tuple[int, int]
"""The topic's id, and the offset in `__metadata` of the record that set its table: both only rise."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The table that a registrar works for. `keyed`: it is over the versions of a keyed topic. `place`: where the
    table is, for errors; "": a Delta log in the topic's folder.
    """

    cluster: str
    name: str
    generation: Generation
    partitions: int
    schema: pa.Schema
    keyed: bool = False
    place: str = ""

    @property
    def folder(self) -> str:
        return keys.keyed_topic(self.generation[0]) if self.keyed else keys.parquet_topic(self.name)

    def txn(self, partition: int, what: str, offset: int) -> Txn:
        return Txn(f"ledgermq/{self.cluster}/{self.generation[0]}/{partition}/{what}", offset)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a partition's list. `end`: the offset after its last one; `stats`: as in `Add`. `typed`: it has columns
    of typed values, which its footer names.
    """

    key: str
    first: int
    end: int
    size: int
    modified_ms: int
    stats: str
    typed: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """What the checkpoint in charge says of a partition: log start, end of Parquet, and the files between. `merged`:
    those in the table's folder that stand for runs of `files`; None: it is not known.
    """

    log_start: int
    end: int
    files: Sequence[ListedFile]
    merged: Sequence[ListedFile] | None = ()


@dataclass(slots=True)
class Draft:
    """`operation`: "" if there is nothing to say. `stopped`: why nothing is said of a partition, although its
    list and the table differ.
    """

    operation: str = ""
    actions: list[Action] = field(default_factory=list)
    stopped: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Named:
    """A file that the table names."""

    add: Add
    first: int
    end: int
    is_merged: bool = False


def generation_of(table: Table, topic: Topic) -> Generation | None:
    """Return the generation of the table in a topic's folder; None: there is no table yet.

    Raises DataDamaged if another program, or another cluster, made the table.
    """
    if table.metadata is None:
        return None
    said = table.metadata.configuration
    try:
        found = int(said["ledgermq.topic.id"]), int(said["ledgermq.generation"])
    except (KeyError, ValueError) as error:
        raise foreign_table(topic, "another program made it") from error
    if said.get("ledgermq.cluster") != topic.cluster:
        raise foreign_table(topic, f"it is of cluster {said.get('ledgermq.cluster')!r}, this one is {topic.cluster!r}")
    return found


def foreign_table(topic: Topic, why: str) -> DataDamaged:
    if topic.place:
        advice = "set another table.namespace, after `ledgermq table drop`, or rename that one"
        return DataDamaged(f"{topic.place}: there is another table: {why}; {advice}", object_key=topic.place)
    folder = f"{topic.folder}_delta_log/"
    return DataDamaged(f"{folder}: there is another Delta table: {why}; move this folder away", object_key=folder)


def draft_version(table: Table, topic: Topic, lists: Mapping[int, Listed], now_ms: int, *, adds: bool = True) -> Draft:
    """Return what version `table.version + 1` says. `lists`: of partitions that some bundle is in charge of;
    that one is missing says nothing. `now_ms`: the store's clock. `adds`: False: it adds no rows.

    A table of a later generation is left as it is. Raises DataDamaged (see `generation_of`; or the table names
    a file that is none of the topic's).
    """
    found = generation_of(table, topic)
    if found is not None and found > topic.generation:
        return Draft()
    if found != topic.generation:
        return _rebuild(table, topic, lists, now_ms) if len(lists) == topic.partitions else Draft()
    named = _named_files(table, topic)
    rows = _rows(table, topic, lists, named)
    if not adds:
        rows = Draft(stopped=rows.stopped)
    removal = _removal(table, topic, lists, named, now_ms)
    exchange = _exchange(table, topic, lists, named, now_ms)
    if exchange.operation and (table.version % 4 == 3 or not (rows.operation or removal.operation)):
        exchange.stopped = rows.stopped | exchange.stopped
        return exchange
    rows.stopped |= exchange.stopped
    is_turn_of_removal = table.version % 2 == 1
    if removal.operation and (is_turn_of_removal or not rows.operation):
        removal.stopped = rows.stopped
        return removal
    return rows


def registered(table: Table, topic: Topic, partition: int, what: str) -> int:
    """Return the `start` or the `end` that the table says of a partition; 0: nothing yet."""
    txn = table.txns.get(topic.txn(partition, what, 0).app_id)
    return 0 if txn is None else txn.version


def _named_files(table: Table, topic: Topic) -> dict[int, list[_Named]]:
    found: dict[int, list[_Named]] = {}
    for add in table.files.values():
        key = topic.folder + decode_path(add.path)
        name, merged = keys.parse_parquet(key), parse_merged(key)
        if name is not None and name.topic_id == topic.generation[0]:
            named = _Named(add, name.first_offset, name.last_offset + 1)
            found.setdefault(name.partition, []).append(named)
        elif merged is not None and merged.place.topic_id == topic.generation[0] and merged.offsets is not None:
            named = _Named(add, merged.offsets[0], merged.offsets[1] + 1, is_merged=True)
            found.setdefault(merged.place.partition, []).append(named)
        else:
            raise foreign_table(topic, f"it names {add.path}, which is no file of topic {topic.name}")
    for files in found.values():
        files.sort(key=lambda file: file.first)
    return found


def merged_in(table: Table, topic: Topic) -> dict[int, list[tuple[str, int, int]]]:
    """Return the merged files that a table names, by partition: key, first offset, and the offset after the last one.

    Raises DataDamaged (it names a file that is none of the topic's).
    """
    return {
        partition: [
            (topic.folder + decode_path(file.add.path), file.first, file.end) for file in files if file.is_merged
        ]
        for partition, files in _named_files(table, topic).items()
    }


def add_of(topic: Topic, file: ListedFile, *, data_change: bool = True) -> Add:
    path = encode_path(file.key.removeprefix(topic.folder))
    return Add(path, file.size, file.modified_ms, data_change, stats=file.stats)


def remove_of(add: Add, now_ms: int, *, data_change: bool = True) -> Remove:
    return Remove(add.path, now_ms, data_change, extended_file_metadata=True, partition_values={}, size=add.size)


def typed_files(draft: Draft, topic: Topic, lists: Mapping[int, Listed]) -> list[str]:
    """Return the keys of the files with columns of typed values that a draft adds."""
    added = {topic.folder + decode_path(action.path) for action in draft.actions if isinstance(action, Add)}
    files = (file for listed in lists.values() for file in listed.files)
    return [file.key for file in files if file.typed and file.key in added]


def with_columns(draft: Draft, table: Table, schemas: Sequence[pa.Schema]) -> Draft:
    """Return a draft whose version names the columns of these files, in the same version that names the files (design
    Z5). If one name has two types, nothing is said of any partition that would get files.
    """
    try:
        if any(isinstance(action, MetaData) for action in draft.actions):
            return replace(draft, actions=merged_columns(draft.actions, schemas))
        assert table.metadata is not None
        found = grown(table.metadata, schemas)
    except ValueError as error:
        return Draft(stopped={partition: str(error) for partition in partitions_of(draft)} | draft.stopped)
    return draft if found is None else replace(draft, actions=[found, *draft.actions])


def partitions_of(draft: Draft) -> set[int]:
    return {int(action.app_id.split("/")[-2]) for action in draft.actions if isinstance(action, Txn)}


def draft_empty(table: Table, now_ms: int) -> Draft:
    """Return what a version says that has no files; nothing if `table` has none. `now_ms`: the store's clock."""
    if not table.files:
        return Draft()
    return Draft("DELETE", [remove_of(add, now_ms) for add in table.files.values()])


def _rebuild(table: Table, topic: Topic, lists: Mapping[int, Listed], now_ms: int) -> Draft:
    """Replace all files by what the lists have above the log start. A first version may show fewer: nothing was
    shown before.
    """
    topic_id, generation = topic.generation
    draft = Draft(
        "CREATE TABLE" if table.metadata is None else "REPLACE TABLE",
        new_table(
            topic.schema,
            cluster=topic.cluster,
            topic=topic.name,
            topic_id=topic_id,
            generation=generation,
            created_ms=now_ms,
        ),
    )
    room = ACTIONS_MAX if table.metadata is None else None
    kept = dict[str, Add]()
    for partition, listed in sorted(lists.items()):
        above = _with_merged([file for file in listed.files if file.end > listed.log_start], listed)
        files = above if room is None else above[:room]
        room = None if room is None else room - len(files)
        kept |= {add.path: add for add in (add_of(topic, file) for file in files)}
        reached = files[-1].end if files else above[0].first if above else listed.end
        draft.actions += [topic.txn(partition, "start", listed.log_start), topic.txn(partition, "end", reached)]
    draft.actions += [remove_of(add, now_ms) for path, add in table.files.items() if path not in kept]
    draft.actions += kept.values()
    return draft


def _rows(table: Table, topic: Topic, lists: Mapping[int, Listed], named: Mapping[int, list[_Named]]) -> Draft:
    """Add the files after the registered ends, in order."""
    draft, adds = Draft(), list[Action]()
    for partition, listed in sorted(lists.items()):
        end = registered(table, topic, partition, "end")
        lowest = max(listed.log_start, registered(table, topic, partition, "start"))
        new = [file for file in listed.files if file.first >= end and file.end > lowest]
        if end > listed.end:
            draft.stopped[partition] = (
                f"the table has it up to offset {end}, but its Parquet files end at {listed.end}: the log is older"
                " than its table"
            )
            continue
        if new and new[0].first != end:
            if new[0].first > listed.log_start:
                draft.stopped[partition] = (
                    f"the table has it up to offset {end}, the next file begins at {new[0].first}"
                )
                continue
            if named.get(partition):
                continue  # what is below the log start is removed first
        new = new[: ACTIONS_MAX - len(adds)]
        if new:
            adds += [add_of(topic, file) for file in new]
            draft.actions.append(topic.txn(partition, "end", new[-1].end))
    if adds:
        draft.operation, draft.actions = "WRITE", draft.actions + adds
    return draft


def _removal(
    table: Table, topic: Topic, lists: Mapping[int, Listed], named: Mapping[int, list[_Named]], now_ms: int
) -> Draft:
    """Remove the files below the log start, and say that start, also if no file goes."""
    draft, removes = Draft(), list[Action]()
    for partition, listed in sorted(lists.items()):
        start, end = (registered(table, topic, partition, what) for what in ("start", "end"))
        if any(file.is_merged and file.first < listed.log_start < file.end for file in named.get(partition, ())):
            continue  # no version says a start within a merged file: its small files take its place first
        gone = [file for file in named.get(partition, ()) if file.end <= listed.log_start]
        if not gone and listed.log_start <= start:
            continue
        reached = listed.log_start
        if len(gone) > ACTIONS_MAX - len(removes):
            gone = gone[: ACTIONS_MAX - len(removes)]
            reached = gone[-1].end if gone else start
        removes += [remove_of(file.add, now_ms) for file in gone]
        if reached > start:
            draft.actions.append(topic.txn(partition, "start", reached))
        if reached == listed.log_start > end:
            above = (file.first for file in listed.files if file.end > listed.log_start)
            draft.actions.append(topic.txn(partition, "end", max(end, next(above, listed.end))))
    if draft.actions or removes:
        draft.operation, draft.actions = "DELETE", draft.actions + removes
    return draft


def _with_merged(files: Sequence[ListedFile], listed: Listed) -> list[ListedFile]:
    """Return files with merged ones in the place of the runs that they stand for, from the log start on."""
    stand = {file.first: file for file in listed.merged or () if file.first >= listed.log_start}
    found: list[ListedFile] = []
    end = 0
    for file in files:
        if file.first < end:
            continue
        merged = stand.get(file.first)
        run = [] if merged is None else [each for each in files if file.first <= each.first and each.end <= merged.end]
        if merged is not None and _is_run(run, merged.first, merged.end):
            found.append(merged)
            end = merged.end
        else:
            found.append(file)
    return found


def _exchange(
    table: Table, topic: Topic, lists: Mapping[int, Listed], named: Mapping[int, list[_Named]], now_ms: int
) -> Draft:
    """Let merged files take the place of small ones, which the table names all, or small files that of a merged one
    which the log start is about to pass, or which no list names any longer. No row changes.
    """
    draft, removes, adds = Draft(), list[Action](), list[Action]()
    for partition, listed in sorted(lists.items()):
        files, start = named.get(partition, []), registered(table, topic, partition, "start")
        stand = None if listed.merged is None else {file.key for file in listed.merged}
        for file in files:
            is_listed = stand is None or topic.folder + decode_path(file.add.path) in stand
            is_right = is_listed and file.first >= listed.log_start
            if not file.is_merged or is_right or file.end <= listed.log_start or len(adds) > ACTIONS_MAX:
                continue
            small = [each for each in listed.files if file.first <= each.first and each.end <= file.end]
            if not _is_run(small, file.first, file.end):
                draft.stopped[partition] = f"it names {file.add.path}, whose small files are not all listed"
                continue
            removes.append(remove_of(file.add, now_ms, data_change=False))
            adds += [add_of(topic, each, data_change=False) for each in small]
        for merged in listed.merged or ():
            run = [file for file in files if merged.first <= file.first and file.end <= merged.end]
            is_small = not any(file.is_merged for file in run) and _is_run(run, merged.first, merged.end)
            if is_small and merged.first >= max(listed.log_start, start) and len(removes) <= ACTIONS_MAX:
                removes += [remove_of(file.add, now_ms, data_change=False) for file in run]
                adds.append(add_of(topic, merged, data_change=False))
    if removes:
        draft.operation, draft.actions = "OPTIMIZE", removes + adds
    return draft


def _is_run(files: Sequence[ListedFile | _Named], first: int, end: int) -> bool:
    """Return whether files are all rows from `first` up to `end`, without it."""
    follow = all(one.end == other.first for one, other in pairwise(files))
    return bool(files) and follow and (files[0].first, files[-1].end) == (first, end)
