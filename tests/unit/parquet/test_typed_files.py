"""Files with typed values: columns, bad rows, evolution over files, plans that name their catalog, Delta tables."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ledgermq.errors import FormatNotSupported, InvalidConfig
from ledgermq.sources import Sources
from ledgermq_ledger.delta.actions import decode_path
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.files.parquet_rows import find_wrong_rows
from ledgermq_ledger.keys import parse_parquet
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.chains.envelope import ObjectKind, unseal
from ledgermq_ledger.log.chains.plans import HAND_OVER_VERSION, encode_plan, read_plan
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.files.typed_files import schemas_of as schemas_of_plan
from ledgermq_ledger.parquet.files.typed_files import versions_of
from ledgermq_ledger.tables.formats.contract import Committed
from ledgermq_ledger.tables.formats.delta import DeltaLog
from ledgermq_ledger.topics.settings import check_together, parse_settings
from tests.stores.backends import file_store
from tests.unit.parquet.duckdb_process import answers
from tests.virtual_time import virtual
from tests.worlds.roots import NoTasks, Root, parquet_keys
from tests.worlds.set_tables import KEEP_MS, lost, raise_start, registrar, set_table
from tests.worlds.typed_values import avro, framed, record, register

ONE, TWO = record(("amount", "int")), record(("amount", "double"), ("city", ["null", "string"]))
LATER = record(("amount", "long"), ("city", ["null", "string"]))


async def opened(**settings: str) -> Root:
    loop = asyncio.get_running_loop()
    sources = Sources(lambda: 10**15 + int(loop.time() * 1e6))
    root = await Root.open(MemoryStore("typed", sources), sources)
    await root.create_topic("t", value_schema_subject="t-value", **settings)
    return root


async def tables(root: Root) -> list[pa.Table]:
    keys = [key for key in await parquet_keys(root.store) if "_delta_log" not in key]
    found = [pq.ParquetFile(io.BytesIO(await root.store.get(key))).read() for key in keys]
    return sorted(found, key=lambda table: table["offset"][0].as_py())


def rows(table: pa.Table) -> list[tuple[Any, str | None]]:
    return list(zip(table["value_typed"].to_pylist(), table["value_error"].to_pylist(), strict=True))


@virtual
async def test_a_file_has_the_struct_after_the_tag_and_raw_values_as_they_came() -> None:
    root = await opened()
    await register(root, ONE)
    values = [framed(1, avro(ONE, {"amount": 5})), b"bad", framed(9, b"x")]
    await root.produce("t", (0, values))
    assert not (await root.compact()).failures
    [table] = await tables(root)
    assert table.schema.names[8:] == ["tag", "value_typed", "value_error", "appended"]
    assert table["value"].to_pylist() == values
    assert rows(table) == [
        ({"amount": 5}, None),
        (None, "the value names no schema"),
        (None, "schema 9 is none of subject t-value"),
    ]
    [key] = await parquet_keys(root.store)
    data = await root.store.get(key)
    ids = {
        field.name: field.metadata[b"PARQUET:field_id"] for field in pq.read_schema(io.BytesIO(data)) if field.metadata
    }
    assert (ids["value_typed"], ids["value_error"], ids["appended"]) == (b"100", b"14", b"13")
    name = parse_parquet(key)
    assert name is not None
    assert find_wrong_rows(data, key, name) is None, "fsck knows such files"
    group = pq.read_metadata(io.BytesIO(data)).row_group(0)
    bounds = {group.column(i).path_in_schema: group.column(i).statistics for i in range(group.num_columns)}
    assert (bounds["value_typed.amount"].min, bounds["value_typed.amount"].max) == (5, 5), "readers prune by them"


@virtual
async def test_a_topic_without_a_schema_yet_has_reasons_only() -> None:
    root = await opened(value_schema_framing="none")
    await root.produce("t", (0, [b"a"]))
    assert not (await root.compact()).failures
    [table] = await tables(root)
    assert table["value_error"].to_pylist() == ["subject t-value has no schema"]
    assert "value_typed" not in table.schema.names


@virtual
async def test_bare_values_are_of_the_version_that_is_set() -> None:
    root = await opened(value_schema_framing="none", value_schema_version="1")
    await register(root, ONE)
    await register(root, LATER)
    await root.produce("t", (0, [avro(ONE, {"amount": 5})]))
    assert not (await root.compact()).failures
    [table] = await tables(root)
    assert rows(table) == [({"amount": 5, "city": None}, None)]


async def two_files(root: Root) -> None:
    """One file before the second version, which adds a field, and one after it."""
    await register(root, ONE)
    await root.produce("t", (0, [framed(1, avro(ONE, {"amount": 1}))]))
    assert not (await root.compact()).failures
    await register(root, LATER)
    value = {"amount": 2**40, "city": "Bonn"}
    await root.produce("t", (0, [framed(2, avro(LATER, value)), framed(1, avro(ONE, {"amount": 3}))]))
    assert not (await root.compact()).failures


async def test_old_and_new_files_are_read_as_one_by_plain_readers(tmp_path: Path) -> None:
    async with file_store(tmp_path) as store:
        root = await Root.open(store, Sources())
        await root.create_topic("t", value_schema_subject="t-value")
        await two_files(root)
    folder = tmp_path / "parquet/topic=t/partition=0"
    wanted = [{"amount": 1, "city": None}, {"amount": 2**40, "city": "Bonn"}, {"amount": 3, "city": None}]
    query = f"select value_typed from read_parquet('{folder}/*.parquet', union_by_name=true) order by \"offset\""
    (found_by_duckdb,) = answers(query)
    assert [row[0] for row in found_by_duckdb] == wanted
    newest = max(folder.glob("*.parquet"))
    found = ds.dataset(folder, schema=pq.read_schema(newest)).to_table().sort_by("offset")
    assert found["value_typed"].to_pylist() == wanted
    ids = [pq.read_schema(path).field("value_typed").type.field("amount").metadata for path in folder.glob("*.parquet")]
    assert ids[0] == ids[1] == {b"PARQUET:field_id": b"101"}


@virtual
async def test_a_plan_names_the_catalog_that_was_read_after_its_last_record() -> None:
    """A schema that is registered after a process has read the catalog, and before the record (design R4)."""
    root = await opened()
    old = await root.catalog()
    await register(root, ONE)
    await root.produce("t", (0, [framed(1, avro(ONE, {"amount": 5}))]))
    assert (await root.compact(NoTasks(root.store))).failures
    plan = await read_plan(root.store, 1, 1)
    assert plan is not None
    assert plan.metadata_offset == (await root.catalog()).offset > old.offset


@virtual
async def test_all_runners_of_a_plan_resolve_ids_by_its_catalog() -> None:
    """A runner that has read more makes the same rows as the one that planned them (design R5)."""
    root = await opened()
    await register(root, ONE)
    await root.produce("t", (0, [framed(1, avro(ONE, {"amount": 5})), framed(2, b"")]))
    assert (await root.compact(NoTasks(root.store))).failures
    await register(root, LATER)
    assert not (await root.compact()).failures
    [table] = await tables(root)
    assert rows(table) == [({"amount": 5}, None), (None, "schema 2 is none of subject t-value")]


@virtual
async def test_a_plan_with_typed_values_is_refused_by_releases_that_would_leave_them_out() -> None:
    root = await opened()
    await root.produce("t", (0, [b"a"]))
    assert (await root.compact(NoTasks(root.store))).failures
    plan = await read_plan(root.store, 1, 1)
    assert plan is not None
    with pytest.raises(FormatNotSupported, match="format version 3"):
        unseal(ObjectKind.COMPACTION_PLAN, fmt.CompactionPlan(), encode_plan(plan), "plan", HAND_OVER_VERSION)


@virtual
async def test_a_plan_with_other_rules_of_decoding_is_refused() -> None:
    root = await opened()
    await root.produce("t", (0, [b"a"]))
    assert (await root.compact(NoTasks(root.store))).failures
    plan = await read_plan(root.store, 1, 1)
    assert plan is not None
    plan.files[0].schema.rules += 1
    key = "ledgers/0001/compactions/" + f"{1:020d}"
    await root.store.delete([key])
    await root.store.put_if_absent(key, [encode_plan(plan)])
    [error] = (await root.compact()).failures.values()
    assert isinstance(error, FormatNotSupported)


@virtual
async def test_a_schema_of_a_later_release_stops_the_round_and_no_row_is_taken_for_a_bad_one() -> None:
    root = await opened()
    await register(root, ONE)
    catalog = await root.catalog()
    records = dict(catalog.others) | {b"schema/t-value/2": (catalog.offset, b"\x08\x09")}
    assert len(versions_of(records, "t-value", catalog.offset)) == 1
    with pytest.raises(FormatNotSupported, match="format version 9"):
        versions_of(records, "t-value", catalog.offset + 1)
    plan = fmt.CompactionPlan(metadata_offset=catalog.offset)
    plan.files.add().schema.subject = "t-value"
    assert [each.id for each in schemas_of_plan(records, plan)["t-value"]] == [1]


@virtual
async def test_the_catalog_of_a_plan_is_waited_for() -> None:
    """A root that was put back from a copy has a plan of a later catalog."""
    root = await opened()
    await root.produce("t", (0, [b"a"]))
    assert (await root.compact(NoTasks(root.store))).failures
    plan = await read_plan(root.store, 1, 1)
    assert plan is not None
    plan.metadata_offset += 100
    key = "ledgers/0001/compactions/" + f"{1:020d}"
    await root.store.delete([key])
    await root.store.put_if_absent(key, [encode_plan(plan)])
    [error] = (await root.compact()).failures.values()
    assert "needs the catalog up to offset" in str(error)
    assert (await newest_checkpoint(root.store, 1)).finished_plan == 0


async def columns_of_table(root: Root) -> dict[str, Any]:
    folder = root.topics["t"].parquet_folder
    await set_table(root, 1)
    assert not (await registrar(root).catch_up()).stopped
    table = await DeltaLog(root.store, folder, root.sources).read()
    assert table.metadata is not None
    assert sorted(folder + decode_path(path) for path in table.files) == [
        key for key in await parquet_keys(root.store) if "_delta_log" not in key
    ]
    fields = json.loads(table.metadata.schema_string)["fields"]
    return {field["name"]: field["type"] for field in fields}


@virtual
async def test_a_table_has_the_columns_with_the_first_file_that_needs_them() -> None:
    root = await opened()
    await root.alter_topic("t", value_schema_subject="")
    await root.produce("t", (0, [b"a"]))
    assert not (await root.compact()).failures
    assert "value_typed" not in await columns_of_table(root)
    await root.alter_topic("t", value_schema_subject="t-value")
    await two_files(root)
    found = await columns_of_table(root)
    assert {each["name"]: each["type"] for each in found["value_typed"]["fields"]} == {
        "amount": "long",
        "city": "string",
    }
    assert found["value_error"] == "string"


async def test_readers_of_the_table_see_old_and_new_files_as_one(tmp_path: Path) -> None:
    async with file_store(tmp_path) as store:
        root = await Root.open(store, Sources())
        await root.create_topic("t", value_schema_subject="t-value")
        await two_files(root)
        await columns_of_table(root)
    wanted = [{"amount": 1, "city": None}, {"amount": 2**40, "city": "Bonn"}, {"amount": 3, "city": None}]
    table = str(tmp_path / "parquet/topic=t")
    found = DeltaTable(table).to_pyarrow_table(columns=["offset", "value_typed"]).sort_by("offset")
    assert found["value_typed"].to_pylist() == wanted
    assert pl.read_delta(table).sort("offset")["value_typed"].to_list() == wanted


@virtual
async def test_a_column_with_two_types_stops_the_table_and_nothing_else() -> None:
    """Another subject was set, which has a field of the same name and of another type."""
    root = await opened()
    await two_files(root)
    await register(root, record(("amount", "string")), subject="other")
    await columns_of_table(root)
    await root.alter_topic("t", value_schema_subject="other")
    await root.produce("t", (0, [framed(3, avro(record(("amount", "string")), {"amount": "x"}))]))
    assert not (await root.compact()).failures
    assert rows((await tables(root))[-1]) == [({"amount": "x"}, None)]
    await set_table(root, 1)
    turn = await registrar(root).catch_up()
    assert turn.stopped == {0: "the column value_typed.amount has two types: long and string"}
    for start in (1, 3):  # versions of both kinds
        await raise_start(root, start)
        turn = await registrar(root).turn()
        assert turn.committed is Committed.WON, "what cannot be added keeps nothing from going"
    turn = await registrar(root).turn()
    assert turn.committed is None
    assert turn.stopped == {0: "the column value_typed.amount has two types: long and string"}


@pytest.mark.parametrize("rounds", [3, 4, 5])
@virtual
async def test_a_merged_file_leaves_a_table_that_refuses_a_column(rounds: int) -> None:
    """What puts small files back is no row, so the log start goes on within a merged file."""
    root = await opened()
    await root.alter_topic("t", value_schema_subject="", parquet_merge_files="3")
    await set_table(root, 1, KEEP_MS)
    for _ in range(rounds):
        await root.produce("t", (0, [b"a"]))
        assert not (await root.compact()).failures
        await registrar(root).catch_up()
    assert any("_merged" in path for path in (await registrar(root)._log.read()).files)
    await root.alter_topic("t", value_schema_subject="t-value")
    await two_files(root)
    await register(root, record(("amount", "string")), subject="other")
    await root.alter_topic("t", value_schema_subject="other")
    await registrar(root).catch_up()
    for _ in range(3):
        await root.produce("t", (0, [framed(3, avro(record(("amount", "string")), {"amount": "x"}))]))
    assert not (await root.compact()).failures
    await set_table(root, 1, KEEP_MS)
    await registrar(root).catch_up()
    await raise_start(root, 2)
    turn = await registrar(root).catch_up()
    assert turn.stopped == {0: "the column value_typed.amount has two types: long and string"}
    assert await lost(root) == []
    await asyncio.sleep(2 * KEEP_MS / 1000)
    assert await registrar(root).raise_gates() == 1
    checkpoint = await newest_checkpoint(root.store, 1)
    assert [part.table_start for part in checkpoint.partitions if part.topic_id == root.topics["t"].id] == [2]


def test_settings_that_contradict_one_another_are_refused() -> None:
    typed = {"value.schema.subject": "t-value"}
    assert check_together(parse_settings(typed), 1).value_schema_framing == "confluent"
    with pytest.raises(InvalidConfig, match="keyed topic"):
        check_together(parse_settings(typed | {"cleanup.policy": "compact"}), 1)
    with pytest.raises(InvalidConfig, match=r"parquet\.appended=true"):
        check_together(parse_settings(typed | {"parquet.appended": "false"}), 1)
    with pytest.raises(InvalidConfig, match="a subject has 1 to 255 letters"):
        parse_settings({"value.schema.subject": "a/b"})
    with pytest.raises(InvalidConfig, match="confluent, header, none"):
        parse_settings({"value.schema.framing": "x"})
