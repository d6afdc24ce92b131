"""Compaction with typed values against plain compaction of the same values: processor time a record, children included.

    python -m bench.typed --records 500000

Values have eleven fields: about 290 bytes as JSON, 160 as Avro or Protobuf. Both topics are compacted in turns,
by the same engine, on one core. The rate is that of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import resource
import shutil
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import fastavro
import fastavro.schema
import pyarrow as pa
from crc32c import crc32c
from google.protobuf import descriptor_pb2

from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.typed.children import OF_THIS_PROCESS
from ledgermq_ledger.typed.rows.protobuf import message_class
from tests.worlds.ledgers import append_and_wait
from tests.worlds.roots import Root
from tests.worlds.typed_values import framed, register

FIELDS = {
    "id": "long",
    "user": "string",
    "amount": "double",
    "currency": "string",
    "city": "string",
    "country": "string",
    "paid": "bool",
    "quantity": "long",
    "at": "long",
    "note": "string",
    "sku": "string",
}
BATCH_ROWS, SEGMENT_BATCHES = 2_000, 8
TARGETS = {"json": 3.0, "avro": 2.2, "protobuf": 2.2}
Encode = Callable[[dict[str, Any]], bytes]


def value_of(r: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "user": f"user-{r.randrange(100_000):08d}",
        "amount": r.randrange(10**6) / 100,
        "currency": r.choice(["EUR", "USD", "CHF"]),
        "city": r.choice(["Bonn", "Zürich", "Springfield", "Amsterdam"]),
        "country": r.choice(["DE", "CH", "US", "NL"]),
        "paid": r.random() < 0.9,
        "quantity": r.randrange(1, 20),
        "at": 1_790_000_000_000_000 + number * 1_000,
        "note": f"{r.getrandbits(240):060x}",
        "sku": f"{r.randrange(10**9):012d}",
    }


def json_kind() -> tuple[Any, Encode]:
    types = {"long": "integer", "double": "number", "string": "string", "bool": "boolean"}
    schema = {"type": "object", "properties": {name: {"type": types[kind]} for name, kind in FIELDS.items()}}
    return schema, lambda value: json.dumps(value, ensure_ascii=False).encode()


def avro_kind() -> tuple[Any, Encode]:
    types = {"bool": "boolean"}
    fields = [{"name": name, "type": types.get(kind, kind)} for name, kind in FIELDS.items()]
    schema = {"type": "record", "name": "Order", "fields": fields}
    parsed = fastavro.schema.parse_schema(schema)

    def encode(value: dict[str, Any]) -> bytes:
        out = BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        return out.getvalue()

    return schema, encode


def protobuf_kind() -> tuple[Any, Encode]:
    t = descriptor_pb2.FieldDescriptorProto
    types = {"long": t.TYPE_INT64, "double": t.TYPE_DOUBLE, "string": t.TYPE_STRING, "bool": t.TYPE_BOOL}
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(FIELDS.items(), 1):
        message.field.add(name=name, number=number, type=types[kind], label=t.LABEL_OPTIONAL)
    text = base64.b64encode(file.SerializeToString()).decode()
    made: Any = message_class(text)
    return text, lambda value: b"\0" + bytes(made(**value).SerializeToString())


KINDS: dict[str, Callable[[], tuple[Any, Encode]]] = {"json": json_kind, "avro": avro_kind, "protobuf": protobuf_kind}


async def fill(folder: Path, kind: str, records: int, *, typed: bool) -> float:
    """Write the values; return their mean size."""
    schema, encode = KINDS[kind]()
    r = random.Random(7)
    async with FileStore(folder, Sources()) as store:
        root = await Root.open(store, Sources())
        topic = await root.create_topic("t", **({"value_schema_subject": "t-value"} if typed else {}))
        await register(root, schema, kind)
        writer, size, batches = await root.writer(1), 0, list[Batch]()
        for first in range(0, records, BATCH_ROWS):
            values = [framed(1, encode(value_of(r, first + at))) for at in range(min(BATCH_ROWS, records - first))]
            size += sum(map(len, values))
            data = encode_batch(pa.RecordBatch.from_pylist([{"value": value} for value in values], SCHEMA))
            batches.append(Batch(topic.id, 0, len(values), crc32c(data), 0, 0, data))
            if len(batches) == SEGMENT_BATCHES or first + BATCH_ROWS >= records:
                await append_and_wait(writer, *batches)
                batches = []
    return size / records


def cpu_s() -> float:
    OF_THIS_PROCESS.close()  # the time of a child counts once it has ended
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


async def compacted_cpu_s(folder: Path, records: int) -> tuple[float, int]:
    """Compact a copy; return processor seconds and the bytes of its files."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    try:
        async with FileStore(copy, Sources()) as store:
            begun_s = cpu_s()
            report = await compact_root(store, Sources(), LocalEngine(Sources(), run_inline, tasks_at_once=1))
            took_s = cpu_s() - begun_s
        assert not report.failures
        assert report.records == records
        return took_s, report.stored_bytes
    finally:
        shutil.rmtree(copy)


async def measure(kind: str, records: int, rounds: int, folder: Path) -> dict[str, Any]:
    mean = 0.0
    for name in ("plain", "typed"):
        mean = await fill(folder / name, kind, records, typed=name == "typed")
    took: dict[str, list[float]] = {"plain": [], "typed": []}
    sizes = {}
    for turn in range(rounds + 1):
        for name in sorted(took, reverse=bool(turn % 2)):
            seconds, sizes[name] = await compacted_cpu_s(folder / name, records)
            if turn:
                took[name].append(seconds)
    plain, typed = median(took["plain"]), median(took["typed"])
    return {
        "kind": kind,
        "records": records,
        "value_bytes": round(mean),
        "plain_us": round(plain / records * 1e6, 2),
        "typed_us": round(typed / records * 1e6, 2),
        "times_plain": round(typed / plain, 2),
        "target": TARGETS[kind],
        "times_plain_bytes": round(sizes["typed"] / sizes["plain"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Typed compaction against plain compaction, processor time a record.")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    chosen = parser.parse_args()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for kind in chosen.kinds:
        folder = Path(tempfile.mkdtemp(prefix="ledgermq-bench-"))
        try:
            print(json.dumps(asyncio.run(measure(kind, chosen.records, chosen.rounds, folder))), flush=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
