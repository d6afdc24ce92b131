"""The records of schemas as the first release with them wrote them: they are read forever."""

from __future__ import annotations

from pathlib import Path

from ledgermq_ledger.schemas.fields import NumberedField
from ledgermq_ledger.schemas.records import (
    Counts,
    Schema,
    Subject,
    decode_counts,
    decode_schema,
    decode_subject,
    encode_counts,
    encode_schema,
    encode_subject,
    schema_key,
    subject_key,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SCHEMA = Schema(
    "orders-value",
    3,
    7,
    "avro",
    '{"type": "record", "name": "R", "fields": []}',
    bytes(range(32)),
    (NumberedField(101, "/amount", "double", "/amount"), NumberedField(102, "/old", "long", "/old", removed=True)),
    1_764_547_200_000,
    "user:root",
)
SUBJECT = Subject("full_transitive", 3, frozenset({1}), frozenset({2}))
COUNTS = Counts(7, 102, (b"n" * 16, b"m" * 16))


def test_golden_records_of_version_1() -> None:
    assert schema_key("orders-value", 3) == b"schema/orders-value/3"
    assert subject_key("orders-value") == b"subject/orders-value"
    value = (GOLDEN / "schemas-schema-v1.bin").read_bytes()
    assert decode_schema(b"schema/orders-value/3", value) == SCHEMA
    assert encode_schema(SCHEMA) == value
    value = (GOLDEN / "schemas-subject-v1.bin").read_bytes()
    assert decode_subject(value) == SUBJECT
    assert encode_subject(SUBJECT) == value
    value = (GOLDEN / "schemas-counts-v1.bin").read_bytes()
    assert decode_counts(value) == COUNTS
    assert encode_counts(COUNTS) == value
