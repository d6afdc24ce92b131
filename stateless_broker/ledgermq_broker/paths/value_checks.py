"""Check values by the schemas of their topic before they are stored (`value.validate`).

Without it a bad value costs its row the typed columns, and nothing else; with it its producer learns of it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.errors import InvalidRecord
from ledgermq.protocol.naming.schema_ids import NONE
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.parquet.files.typed_files import versions_of
from ledgermq_ledger.topics.settings import FULL
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.typed.children import Decoders
from ledgermq_ledger.typed.column import Subject, TypedColumns
from ledgermq_ledger.typed.framing import ids_of

AT_ONCE = 2
"""Batches whose values are decoded at a time: each needs a process."""
compute: Any = pc


class ValueChecks:
    """`run_blocking` waits for the processes that decode values."""

    def __init__(self, metadata: Metadata, run_blocking: RunBlocking) -> None:
        self._metadata = metadata
        self._run_blocking = run_blocking
        self._decoding = asyncio.Semaphore(AT_ONCE)
        self._known: dict[tuple[str, str, int], tuple[int, Subject]] = {}
        """By what a topic's settings say: as of which offset of the catalog."""

    async def check(self, topic: Topic, records: pa.RecordBatch) -> None:
        """Raise InvalidRecord, which names the first bad value, and Unavailable if a schema that it names may be newer
        than what this broker knows, and the controller cannot be asked.
        """
        values, headers = records.column("value"), records.column("headers")
        subject = self._subject(topic)
        if subject.framing != NONE:
            subject = await self._checked_ids(topic, subject, ids_of(subject.framing, values, headers), values)
        if topic.settings.value_validate == FULL:
            async with self._decoding:
                columns = TypedColumns(subject, Decoders())
                _, errors = await self._run_blocking(partial(columns.decoded, values, headers))
            wrong = compute.indices_nonzero(compute.is_valid(errors))
            if len(wrong):
                first = wrong[0].as_py()
                raise _refused(topic, first, f"is bad: {errors[first].as_py()}")

    async def _checked_ids(self, topic: Topic, subject: Subject, ids: pa.Array, values: pa.Array) -> Subject:
        """Return the subject with the schemas that the values name; this broker may not know of the newest yet."""
        if self._unknown(subject, ids, values) is not None:
            await self._metadata.catch_up()
            subject = self._subject(topic)
        unknown = self._unknown(subject, ids, values)
        if unknown is not None:
            id_ = ids[unknown].as_py()
            why = "names no schema" if id_ is None else f"names schema {id_}, which is none of subject {subject.name}"
            raise _refused(topic, unknown, why)
        return subject

    def _unknown(self, subject: Subject, ids: pa.Array, values: pa.Array) -> int | None:
        """Return the place of the first value whose schema the subject does not have; None if there is none."""
        known = pa.array([each.id for each in subject.versions], pa.int64())
        wrong = compute.indices_nonzero(compute.and_not(compute.is_valid(values), compute.is_in(ids, known)))
        return int(wrong[0].as_py()) if len(wrong) else None

    def _subject(self, topic: Topic) -> Subject:
        settings, catalog = topic.settings, self._metadata.catalog
        key = (settings.value_schema_subject, settings.value_schema_framing, settings.value_schema_version)
        offset, found = self._known.get(key, (-1, None))
        if found is None or offset != catalog.offset:
            versions = versions_of(catalog.others, settings.value_schema_subject, catalog.offset)
            found = found if found is not None and found.versions == versions else Subject(*key, versions)
            self._known[key] = (catalog.offset, found)
        return found


def _refused(topic: Topic, at: int, why: str) -> InvalidRecord:
    return InvalidRecord(
        f"value {at} of the batch {why}. None of the batch is stored: topic {topic.name!r} takes values of subject"
        f" {topic.settings.value_schema_subject} only (value.validate={topic.settings.value_validate})"
    )
