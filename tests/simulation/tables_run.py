"""Level *tables*: a topic with a Delta or an Iceberg table on a store that refuses late puts as files do or as S3 does.

Compactions, retention, deletion on demand and garbage collection go on beside registrars, of which one sleeps before
its puts until much has happened. The table is rebuilt, unset, set again, dropped and unset because it holds back too
much; the topic moves between bundles, is deleted, brought back, deleted for good and created again. `TableWatch` reads
the table's log as a foreign reader whenever it changes, `ParquetWatch` reads the folder as plain readers do, and at the
end delta-rs reads the table, or PyIceberg.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ledgermq.errors import LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.topic import METADATA, Topic, encode_topic_record
from ledgermq_ledger.typed.shape import VALUE_ERROR, VALUE_TYPED
from tests.judges.violation import Violation
from tests.simulation.checker import check
from tests.simulation.history import FinalLog, LogStart, Partition
from tests.simulation.iceberg_lake import Lake
from tests.simulation.iceberg_watch import IcebergWatch
from tests.simulation.keyed_table_watch import KeyedTableWatch
from tests.simulation.loop import SimulatedLoop
from tests.simulation.parquet_watch import judge_parquet
from tests.simulation.result import Result
from tests.simulation.rounds_plan import BUNDLES
from tests.simulation.rounds_processes import PARTITIONS, Founder, Worker, metadata_batch
from tests.simulation.rounds_run import HEALING_S, RoundsRun
from tests.simulation.table_watch import Promises, TableWatch
from tests.simulation.tables_plan import lake_disturbances_of, lake_rounds_of, tables_plan_of
from tests.simulation.tables_processes import (
    LAKE,
    Keeper,
    LakeCompactor,
    LakeController,
    LakeProducer,
    LetGo,
    SlowRegistrar,
)
from tests.simulation.typed_lake import is_right, let_values_end_decoders
from tests.simulation.watch import ledger_log

FOLDER = keys.parquet_topic(LAKE)
COLUMNS = ("partition", "offset", "value", "key")
VERSIONS_READ_MAX = 6
CUT_S_MAX = 60.0
DATED_S = 190.0
"""So long, at most, it takes until the newest snapshot has a date, and those before it are looked at by it."""


class TablesRun(RoundsRun):
    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self.plan, self.rounds, self.tables = lake_disturbances_of(seed), lake_rounds_of(seed), tables_plan_of(seed)
        self._requests: list[LetGo] = []
        self._deadly = [1, 1]
        self._topic: Topic | None = None
        """As it is at the end."""
        self._random = random.Random(f"end of tables {seed}")
        self._outages = random.Random(f"outages of tables {seed}")
        self._promises = Promises()
        self._lake = Lake(self.world) if self.tables.is_iceberg else None
        self._watches: dict[str, TableWatch] = {}
        """By folder: a keyed topic has one of its own, and takes it along."""
        self.world.store.on_table = lambda key: self._watch_of(key.partition("_delta_log/")[0]).on_table(key)
        if self.tables.is_typed:
            let_values_end_decoders()
        if self.tables.is_keyed:
            self.world.store.on_keyed = self._on_keyed
            self.world.judged_elsewhere.add(LAKE)

    async def run(self) -> Result:
        if self._lake is None:
            return await super().run()
        self.healing_s = 2 * HEALING_S
        watch = self._watch_of(FOLDER)
        assert isinstance(watch, IcebergWatch)
        self._lake.on_commit = watch.on_metadata
        with self._lake.open():
            return await super().run()

    def _watch_of(self, folder: str) -> TableWatch:
        if folder not in self._watches:
            kind = KeyedTableWatch if self.tables.is_keyed else IcebergWatch if self._lake else TableWatch
            watch = kind(self.world, folder, self.tables.keep_ms, BUNDLES, self._promises)
            if isinstance(watch, IcebergWatch):
                assert self._lake is not None
                watch.lake = self._lake
            self._watches[folder] = watch
        return self._watches[folder]

    def _folder_of(self, topic_id: int) -> str:
        return keys.keyed_topic(topic_id) if self.tables.is_keyed else keys.parquet_topic(LAKE)

    def _on_keyed(self, changed: keys.KeyedName) -> None:
        watch = self._watch_of(self._folder_of(changed.place.topic_id))
        assert isinstance(watch, KeyedTableWatch)
        watch.on_keyed(changed)

    def _processes(self) -> list[str]:
        registrars = [f"r{number}" for number in range(self.tables.registrars)]
        return ["w", "t", *registrars, *(f"c{number}" for number in range(self.rounds.compactors))]

    def _kind_of(self, name: str) -> type[Worker]:
        if name == "r0":
            return SlowRegistrar
        return {"w": LakeProducer, "t": LakeController, "r": Keeper}.get(name[0], LakeCompactor)

    def _start(self, name: str) -> None:
        super()._start(name)
        worker = self.workers[name]
        if isinstance(worker, (LakeController, Keeper, SlowRegistrar, LakeCompactor, LakeProducer)):
            worker.tables = self.tables
        if isinstance(worker, LakeProducer):
            worker.deadly = self._deadly
        if isinstance(worker, SlowRegistrar) and self._lake is not None:
            worker.run_blocking = self._lake.line(name)
        if isinstance(worker, (LakeController, Keeper)):
            worker.requests = self._requests

    async def _create_topics(self) -> None:
        first = Founder(self.world, self.rounds, self.cluster, "setup", 0)
        await first.append(0, metadata_batch(METADATA.name, encode_topic_record(METADATA, creation=True)))
        first.process.kill()

    def _on_parquet(self, changed: keys.ParquetName) -> None:
        super()._on_parquet(changed)
        if self.tables.is_typed and self.world.store.has(changed.key):
            self._judge_typed(pq.ParquetFile(self.world.store.reader(changed.key)).read(use_threads=False))
        if not self.tables.is_keyed:
            self._watch_of(FOLDER).on_parquet(changed)

    def _on_merged(self, key: str) -> None:
        super()._on_merged(key)
        if not self.tables.is_keyed:
            self._watch_of(FOLDER).on_merged(key)

    def _on_checkpoint(self, checkpoint: fmt.Checkpoint) -> None:
        super()._on_checkpoint(checkpoint)
        self._promises.on_checkpoint(checkpoint)
        for part in checkpoint.partitions:
            if part.topic_id != METADATA.id and part.log_start:
                self.world.history.add(LogStart((f"{LAKE}#{part.topic_id}", part.partition), part.log_start))

    async def _let_run(self) -> None:
        in_world = self.world.loop.in_world
        troubles = [in_world(self._damage_the_log())] if self.tables.is_damaged else []
        troubles += [in_world(self._give_no_answers())] if self.tables.outage_s else []
        await self.world.go_on(self.rounds.seconds, self.tables.requests_max)
        for trouble in troubles:
            trouble.cancel()
        self.world.weather.silent = ""
        self._mend()
        for watch in self._watches.values():
            self._read_as_others(watch, self._logs(), is_whole=False)

    async def _give_no_answers(self) -> None:
        """A version that is put meanwhile lands or does not, and its registrar never learns which."""
        weather = self.world.weather
        while True:
            await asyncio.sleep(self._outages.uniform(5.0, 30.0))
            self.world.note("world", "the store gives no answers to puts of versions")
            weather.silent = "/_delta_log/"
            await asyncio.sleep(self.tables.outage_s)
            self.world.note("world", "the store answers again")
            self.world.coverage.saw("the store gave no answers for a while")
            weather.silent = ""

    async def _damage_the_log(self) -> None:
        """Cut a commit that readers need, for a while."""
        store, world = self.world.store, self.world
        while not world.damaged:
            await asyncio.sleep(self._random.uniform(0, 60.0))
            commits = [key for key in store.keys_now("") if "/_delta_log/" in key and key.endswith(".json")]
            if len(commits) > 1:
                world.damaged = self._random.choice(commits[-3:-1])
                data = store.first[world.damaged]
                store.damage_now(world.damaged, data[: data.rindex(b"}")])
                world.note("world", f"{world.damaged} is cut")
                world.coverage.saw("a commit of a table's log was cut")
        await asyncio.sleep(self._random.uniform(5.0, CUT_S_MAX))
        self._mend()

    def _mend(self) -> None:
        store, key = self.world.store, self.world.damaged
        if key and store.has(key):
            store.damage_now(key, store.first[key])

    async def _finish_all(self) -> None:
        """Carry out what is decided, move all to Parquet and into the table, and let go of what is held no longer."""
        world = self.world
        producer, controller = self._last(LakeProducer), self._last(LakeController)
        keeper = self._last(Keeper)
        assert isinstance(producer, LakeProducer)
        assert isinstance(controller, LakeController)
        assert isinstance(keeper, Keeper)
        store, sources = world.line("last"), world.sources("last rounds", clock="last")
        calm_since_s, engine = world.loop.time(), LocalEngine(sources, run_inline)
        waits_s = 2 * (self.tables.keep_ms + self.rounds.cluster.parquet_min_age_ms) / 1000 + 70
        waits_s += DATED_S if self._lake else 0.0
        while not world.has_failed:
            try:
                topic = await controller.settle()
                if topic is None:
                    await controller.create()
                elif topic.living:
                    await producer.carry_out(topic)
                elif topic.trash is not None:
                    await controller.step()
                report = await compact_root(store, sources, engine)
                for bundle, error in report.failures.items():
                    text = f"bundle {bundle}: {type(error).__name__} {error.message}"
                    world.violations.append(Violation("compaction fails", text))
                if topic is not None and topic.settings.table_generation and topic.living:
                    await keeper.follow(topic, await controller._catalog())
                is_calm = topic is not None and topic.living and all(move.ended for move in topic.moves.values())
                calm_since_s = calm_since_s if is_calm else world.loop.time()
                if topic is not None and world.loop.time() - calm_since_s > waits_s:
                    self._topic = topic
                    return
            except LedgerMQError as error:
                world.note("last", f"{type(error).__name__} {error.message[:100]}")
                world.judge_error(error)
            await asyncio.sleep(20.0)

    def _last(self, kind: type[Worker]) -> Worker:
        worker = kind(self.world, self.rounds, self.cluster, f"last {kind.__name__}", 0)
        if isinstance(worker, (LakeController, Keeper)):
            worker.tables, worker.requests = self.tables, []
        return worker

    def _conclude(self) -> None:
        world, topic = self.world, self._topic
        if topic is None:
            return
        self.watch.look_at_all()
        table, logs = self._watch_of(self._folder_of(topic.id)), self._logs()
        world.violations += check(world.history, logs)
        living = {(f"{LAKE}#{topic.id}", partition) for partition in range(PARTITIONS)}
        world.violations += judge_parquet(world, logs, set() if self.tables.is_keyed else living & logs.keys())
        has_table = bool(topic.settings.table_generation)
        if has_table:
            table.check_complete((topic.id, topic.settings.table_generation), PARTITIONS)
            world.coverage.saw("a table was whole at the end")
        self._read_as_others(table, logs, is_whole=has_table and not self.tables.is_keyed)
        world.coverage.saw("a run on S3" if self.rounds.is_s3 else "a run on files")

    def _logs(self) -> dict[Partition, FinalLog]:
        """Those of both ledgers together: partitions move between them."""
        store = self.world.store
        records: defaultdict[PartitionId, dict[int, str]] = defaultdict(dict)
        starts: defaultdict[PartitionId, int] = defaultdict(int)
        for bundle in range(1, BUNDLES):
            for key, found in ledger_log(store, bundle).items():
                records[PartitionId(*key)] |= found
            for part in store.newest_checkpoint(bundle).partitions:
                key = PartitionId(part.topic_id, part.partition)
                starts[key] = max(starts[key], part.log_start)
        return {
            (f"{LAKE}#{key.topic_id}", key.partition): FinalLog(found, starts[key])
            for key, found in sorted(records.items())
        }

    def _read_as_others(self, watch: TableWatch, logs: dict[Partition, FinalLog], *, is_whole: bool) -> None:
        """Some versions that can be read, and the rows of the newest if its files are there. `is_whole`: all that the
        log has is in it.
        """
        if not watch.versions or self.world.has_failed or watch.is_over:
            return
        newest = watch.versions[-1]
        rows = self._rows_by_pyiceberg if isinstance(watch, IcebergWatch) else self._rows_by_delta_rs
        found = rows(watch)  # type: ignore[arg-type]
        if found is not None:
            self._judge_rows(found, newest.generation[0], logs, is_whole=is_whole)

    def _rows_by_pyiceberg(self, watch: IcebergWatch) -> pa.Table | None:
        """Return the newest version's rows, after a look at some others; None: its files need not be there."""
        world, newest, table = self.world, watch.versions[-1], watch.lake.table()
        kept = [number for number, id_ in enumerate(watch.ids) if table.snapshot_by_id(id_) is not None]
        for number in {*self._random.sample(kept, min(VERSIONS_READ_MAX, len(kept))), newest.number}:
            tasks = table.scan(snapshot_id=watch.ids[number]).plan_files()
            found = {task.file.file_path.removeprefix(watch.lake.root + watch.folder) for task in tasks}
            if found != set(watch.versions[number].files):
                text = f"version {number}: {sorted(found)}, its manifests say {sorted(watch.versions[number].files)}"
                world.violations.append(Violation("PyIceberg reads otherwise", text))
            world.coverage.saw("PyIceberg read a version")
        if not watch.is_promised(newest):
            return None
        there = {field.name for field in table.schema().fields}
        columns = tuple(name for name in (*COLUMNS, VALUE_TYPED, VALUE_ERROR) if name in there)
        return table.scan(selected_fields=columns).to_arrow()

    def _rows_by_delta_rs(self, watch: TableWatch) -> pa.Table | None:
        """Return the newest version's rows, after a look at some others; None: its files need not be there."""
        world, versions = self.world, watch.versions
        log = f"{watch.folder}_delta_log/"
        names = [key.removeprefix(log) for key in world.store.keys_now(log)]
        commits = sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))
        newest = versions[-1].number
        base = max((int(name.partition(".")[0]) for name in names if ".checkpoint." in name), default=0)
        readable = [number for number in commits if base <= number < newest]
        chosen = [*self._random.sample(readable, min(VERSIONS_READ_MAX, len(readable))), newest]
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for key in world.store.keys_now(watch.folder):
                path = root / key.removeprefix(watch.folder)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(world.store.read_now(key))
            for number in chosen:
                table = DeltaTable(root, version=number)
                found = {uri.removeprefix(f"{root.as_uri()}/").removeprefix(f"{root}/") for uri in table.file_uris()}
                if found != set(versions[number].files):
                    text = f"version {number}: {sorted(found)}, the log says {sorted(versions[number].files)}"
                    world.violations.append(Violation("delta-rs reads otherwise", text))
            world.coverage.saw("delta-rs read a version", len(chosen))
            if not watch.is_promised(versions[-1]):
                return None
            newest_table = DeltaTable(root)
            there = {field.name for field in newest_table.schema().fields}
            columns = [*COLUMNS, *(name for name in (VALUE_TYPED, VALUE_ERROR) if name in there)]
            return newest_table.to_pyarrow_table(columns=columns)

    def _judge_rows(self, rows: pa.Table, topic_id: int, logs: dict[Partition, FinalLog], *, is_whole: bool) -> None:
        if self.tables.is_typed:
            self._judge_typed(rows)
        found: defaultdict[int, dict[int, str]] = defaultdict(dict)
        seen = set[tuple[int, bytes]]()
        for partition, offset, value, key in zip(*(rows[name].to_pylist() for name in COLUMNS), strict=True):
            if self.tables.is_keyed and (partition, key) in seen:
                self._differs(f"partition {partition}: key {key!r} is there twice")
            seen.add((partition, key))
            if offset in found[partition]:
                self._differs(f"partition {partition}: offset {offset} is there twice")
            found[partition][offset] = value.decode()
        for partition in range(PARTITIONS):
            log = logs.get((f"{LAKE}#{topic_id}", partition), FinalLog({}))
            here = found[partition]
            if any(log.records.get(offset) != value for offset, value in here.items()):
                self._differs(f"partition {partition}: a row is another record than the log's")
            missing = [o for o in log.records if o >= log.log_start and o not in here] if is_whole else []
            if missing:
                self._differs(f"partition {partition}: {missing[0]} is missing of {len(missing)}")
            self.world.coverage.saw("PyIceberg read rows" if self._lake else "delta-rs read rows", len(here))

    def _judge_typed(self, rows: pa.Table) -> None:
        """Rows of a file, or of the table. They have no struct before the subject has a schema."""
        if VALUE_ERROR not in rows.column_names:
            return
        structs = rows[VALUE_TYPED].to_pylist() if VALUE_TYPED in rows.column_names else [None] * len(rows)
        for value, typed, error in zip(rows["value"].to_pylist(), structs, rows[VALUE_ERROR].to_pylist(), strict=True):
            self.world.coverage.saw("a typed value was read" if typed else "a value without its columns was read")
            if not is_right(value.decode(), typed, error):
                text = f"value {value!r} is typed as {typed}, {error}"
                self.world.violations.append(Violation("a value is typed otherwise", text))

    def _differs(self, text: str) -> None:
        who = "PyIceberg" if self._lake else "delta-rs"
        self.world.violations.append(Violation(f"{who} reads otherwise", text))
