"""Typed values of level *tables*: a subject with two versions, of which the second one widens a column, bad values, and
now and then one that ends the process which decodes it. Every value is text: numbers are small, and lengths below 64.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq_broker.schemas.state.registry import judge, parsed, put, registry_of
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.parquet.files.typed_files import versions_of
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import METADATA
from ledgermq_ledger.typed.children import OF_THIS_PROCESS, Child
from tests.worlds.typed_values import avro, framed, record

SUBJECT = "lake-value"
TYPED = {"value.schema.subject": SUBJECT}
VERSIONS = (
    record(("n", "int"), ("text", "string")),
    record(("n", "long"), ("text", "string"), ("more", ["null", "string"])),
)
DEADLY = "!"
BAD = 0.1
PROGRAM = f"""
import os
from ledgermq_ledger.typed import child, chunk
real = chunk.ChunkDecoder.decode
def decode(self, values):
    if any(value.endswith(b"{DEADLY}") or b"{DEADLY}\\0" in value for value in values.to_pylist()): os._exit(1)
    return real(self, values)
chunk.ChunkDecoder.decode = decode
child.main()
"""
"""A decoder that a value ends, as a fault in a library would."""


def let_values_end_decoders() -> None:
    """From now on decoders of this process die of deadly values. They are as good as others for all other values."""
    OF_THIS_PROCESS._start = lambda: Child(PROGRAM)
    OF_THIS_PROCESS.close()


def registration(catalog: Catalog) -> Batch | None:
    """Return the records of the next version, in one batch; None if the subject has all versions."""
    known = versions_of(catalog.others, SUBJECT, catalog.offset)
    if len(known) == len(VERSIONS):
        return None
    registry, wanted = registry_of(catalog.others), parsed("avro", json.dumps(VERSIONS[len(known)]))
    judge(registry, SUBJECT, wanted, "none")
    _, changes = put(registry, SUBJECT, wanted, "none", 0, "")
    data = encode_batch(pa.RecordBatch.from_pylist([{"key": key, "value": value} for key, value in changes], SCHEMA))
    return Batch(METADATA.id, 0, len(changes), crc32c(data), 0, 0, data)


def value_of(text: str, number: int, r: random.Random, catalog: Catalog, *, deadly: bool) -> str:
    """Return a value, as the text that its bytes are: of a version that the catalog has."""
    schemas = versions_of(catalog.others, SUBJECT, catalog.offset)
    if r.random() < BAD or not schemas:
        return f"bad {text}"
    schema = r.choice(schemas)
    said = {"n": number % 50, "text": text + (DEADLY if deadly else ""), "more": None}
    return framed(schema.id, avro(VERSIONS[schema.version - 1], said)).decode()


def is_right(value: str, typed: Mapping[str, Any] | None, error: str | None) -> bool:
    """Return whether a row has the columns that its value asks for."""
    if value.startswith("bad ") or value.rstrip("\0").endswith(DEADLY):
        return typed is None and bool(error)
    text = value[5:].rstrip("\0")
    return typed is not None and error is None and text.endswith(typed["text"]) and ord(text[0]) == 2 * typed["n"]
