"""Give the rows of a query with `typed` the columns `value_typed` and `value_error`, which compaction also writes.

The driver says which type the query has, and finds the schemas after it has planned what is read: the schema of a value
is registered before the value is sent, so none is missing. Executors decode the values, compacted or not, in child
processes. A field that a schema gets after the query has begun is left out; one that a schema lacks is NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cuts.reading.root import open_named
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.parquet.files.typed_files import versions_of
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.typed.children import Decoders
from ledgermq_ledger.typed.column import Subject, TypedColumns
from ledgermq_ledger.typed.shape import VALUE_ERROR, VALUE_TYPED, union_type
from ledgermq_spark.shared_root import cluster_of
from ledgermq_spark.source.options import SourceOptions
from ledgermq_spark.source.ranges.planning import TopicRange, topics_of

Subjects = Mapping[int, Subject]
"""By the id of a topic, what its values are decoded by."""


async def with_known_type(options: SourceOptions) -> SourceOptions:
    """Return the options with the type of `value_typed` that the schemas of the topics make by now; `options.root` is
    a root URL.

    Raises InvalidConfig (a named topic has no schemas; two topics have another type for one name), UnknownTopic,
    UnknownCut, DataDamaged, FormatNotSupported, the store's errors.
    """
    async with await open_store(options.root, sources=Sources()) as store:
        cluster = await cluster_of(store)
        if options.cut:
            catalog = (await open_named(store, cluster, options.cut)).catalog
        else:
            catalog = await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, Sources()))
    return replace(options, value_type=_type_of(catalog, options))


def _type_of(catalog: Catalog, options: SourceOptions) -> pa.DataType | None:
    topics = topics_of(catalog, options)
    typed = [topic for topic in topics if topic.settings.value_schema_subject]
    without = [topic.name for topic in topics if topic not in typed]
    if not typed or (without and options.topics):
        what = f"topic {without[0]!r} has no" if options.topics else "no topic that matches has a"
        raise InvalidConfig(
            f"typed=true, and {what} value.schema.subject: set it (`ledgermq topic alter`), or leave typed out"
        )
    found = None
    for topic in typed:
        kind = subject_of(catalog, topic).shape.type
        both = union_type(found, kind) if found is not None and kind is not None else found or kind
        if both is None and kind is not None:
            raise InvalidConfig(
                f"typed=true, and value_typed of topic {topic.name!r} has a column with another type than that of a"
                " topic before it: read each of them by its own query"
            )
        found = both
    return found


def subject_of(catalog: Catalog, topic: Topic) -> Subject:
    """Return the schemas of a topic. Raises FormatNotSupported for a record of a later release."""
    said = topic.settings
    versions = versions_of(catalog.others, said.value_schema_subject, catalog.offset)
    return Subject(said.value_schema_subject, said.value_schema_framing, said.value_schema_version, versions)


def subjects_of(catalog: Catalog, tasks: Iterable[Iterable[TopicRange]], options: SourceOptions) -> Subjects:
    """Return what the rows of these tasks are decoded by; a topic that was deleted meanwhile, or has no subject, is
    left out. `catalog`: read after the tasks were planned.

    Raises InvalidConfig if a column of the query has another type by now, FormatNotSupported.
    """
    if not is_typed(options):
        return {}
    found = {}
    for id_ in sorted({each.range.key.topic_id for task in tasks for each in task}):
        topic = catalog.topics_by_id.get(id_)
        if topic is None or not topic.settings.value_schema_subject:
            continue
        found[id_] = subject_of(catalog, topic)
        kind = found[id_].shape.type
        for path, wanted, known in _differences(options.value_type, kind, VALUE_TYPED):
            if known is not None:
                raise InvalidConfig(
                    f"topic {topic.name!r} has {_text(known)} as {path} by now, the query began with {_text(wanted)}:"
                    " begin it again"
                )
    return found


def is_typed(options: SourceOptions) -> bool:
    """Return whether the query has a column that has to be decoded."""
    return not {VALUE_TYPED, VALUE_ERROR}.isdisjoint(options.columns)


def spark_type(kind: pa.DataType) -> DataType:
    return from_arrow_type(kind)


def part_of(given: DataType, known: DataType) -> pa.DataType:
    """Return the type of `value_typed` in a query's own schema, which may name a part of the fields, in its own order.

    Raises InvalidConfig, naming the first field that the topics do not have, or have with another type.
    """
    wanted, had = (to_arrow_type(_nullable(kind), timezone="UTC") for kind in (given, known))
    for path, kind, found in _differences(wanted, had, VALUE_TYPED):
        if found is None:
            raise InvalidConfig(f"the schema has {path}, which no schema of the topics has")
        raise InvalidConfig(f"the schema says that {path} is {_text(kind)}, it is {_text(found)}")
    return wanted


def _nullable(kind: DataType) -> DataType:
    """Return a type whose parts may all be NULL: a value that cannot be decoded is."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    return MapType(kind.keyType, _nullable(kind.valueType)) if isinstance(kind, MapType) else kind


def _differences(
    wanted: pa.DataType | None, found: pa.DataType | None, path: str
) -> Iterator[tuple[str, pa.DataType, pa.DataType | None]]:
    """Yield each field of `wanted` that is another one in `found`, by its path, with both types; None: it has none."""
    if wanted is None or found is None or wanted == found:
        return
    if pa.types.is_struct(wanted) and pa.types.is_struct(found):
        for field in wanted:
            at = found.get_field_index(field.name)
            if at < 0:
                yield f"{path}.{field.name}", field.type, None
            else:
                yield from _differences(field.type, found.field(at).type, f"{path}.{field.name}")
    elif pa.types.is_list(wanted) and pa.types.is_list(found):
        yield from _differences(wanted.value_type, found.value_type, f"{path}[]")
    elif pa.types.is_map(wanted) and pa.types.is_map(found) and wanted.key_type == found.key_type:
        yield from _differences(wanted.item_type, found.item_type, f"{path}[]")
    else:
        yield path, wanted, found


def _text(kind: pa.DataType) -> str:
    return from_arrow_type(kind).simpleString()


class TypedRows:
    """Decodes the values of one task's rows. Blocking: it waits for child processes."""

    def __init__(self, subjects: Subjects, options: SourceOptions) -> None:
        self._options = options
        decoders = Decoders()
        self._columns = {id_: TypedColumns(subject, decoders) for id_, subject in subjects.items()}

    def of(self, topic: str, topic_id: int, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the typed columns by name. `rows`: with value and headers. Raises Unavailable."""
        values, columns = rows.column("value"), self._columns.get(topic_id)
        if columns is None:
            why = pa.scalar(f"topic {topic} has no value.schema.subject", pa.string())
            typed, errors = None, pc.if_else(values.is_valid(), why, pa.scalar(None, pa.string()))
        else:
            typed, errors = columns.decoded(values, rows.column("headers"))
        kind = self._options.value_type
        if kind is None:
            return {VALUE_ERROR: errors}
        return {VALUE_TYPED: pa.nulls(len(values), kind) if typed is None else typed.cast(kind), VALUE_ERROR: errors}
