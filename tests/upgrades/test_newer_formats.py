"""Objects of a later version than this program knows: refused by a typed error that names them, and
nothing is written on top of them.
"""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

import ledgermq
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.errors import FormatNotSupported, LedgerMQError
from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq.sources import Sources
from ledgermq_broker.groups.offsets_topic import partition_of
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import RESTORED_VERSION, ClusterSettings, read_cluster
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.log.chains.checkpoint import PINS_VERSION
from ledgermq_ledger.log.chains.envelope import TRAILER as ENVELOPE
from ledgermq_ledger.log.chains.plans import TYPED_VERSION
from ledgermq_ledger.log.segments.segment import MOVES_VERSION, TRAILER, Batch
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.catalog import read_catalog
from ledgermq_ledger.topics.topic import topic_key
from ledgermq_offsets.format import ledgermq_offsets_pb2 as offsets_fmt
from ledgermq_tools.ledger import fsck
from ledgermq_tools.ledger.compact import command as compact
from ledgermq_tools.ledger.inspect import command as inspect
from tests.e2e.admin_port import ADMIN, AdminPort
from tests.e2e.processes import BrokerProcesses
from tests.upgrades.golden import VERSIONS, contents, copy_root
from tests.worlds.ledgers import append_and_wait, ledger_of, take_over
from tests.worlds.root_commands import RootCommand
from tests.worlds.roots import cluster_with
from tests.worlds.source_readers import batch_reader

NEWER = max(MOVES_VERSION, PINS_VERSION, TYPED_VERSION) + 1
"""Of all objects and records: checkpoints and plans have three versions, segments two, the others one."""
NEWER_ROOT = RESTORED_VERSION + 1
BUNDLE = 1
"""It has a plan that is not finished, groups, and a third of the topic `flights`."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_root(VERSIONS[-1], tmp_path)


def newest(root: Path, prefix: str) -> Path:
    return max((root / prefix).iterdir())


def make_newer(path: Path, trailer: struct.Struct, version_at: int) -> Path:
    """Let the format version of an object be the next one."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, len(data) - trailer.size + version_at, NEWER)
    path.write_bytes(data)
    return path


def newer_sealed(path: Path) -> Path:
    return make_newer(path, ENVELOPE, 12)


def newer_segment(path: Path) -> Path:
    return make_newer(path, TRAILER, 16)


async def error_of(waiting: Awaitable[object]) -> LedgerMQError:
    with pytest.raises(LedgerMQError) as raised:
        await waiting
    return raised.value


def assert_names(error: BaseException, path: Path) -> None:
    assert isinstance(error, FormatNotSupported), repr(error)
    assert f"version {NEWER}" in error.message
    assert error.object_key is not None
    assert str(path).endswith(error.object_key)


async def partition_in(root: Path, bundle: int) -> int:
    """Of the topic `flights`."""
    async with FileStore(root, Sources()) as store:
        return (
            (await read_catalog(ledger_of(store, 0, cluster=ClusterSettings(producer_states_max=1000))))
            .topics_by_name["flights"]
            .bundles.index(bundle)
        )


async def produce(client: ledgermq.Client, partition: int) -> object:
    async with client.producer(delivery_timeout_s=10) as producer:
        return await producer.send("flights", b"new", partition=partition)


async def compaction_errors(root: Path) -> dict[int, LedgerMQError]:
    async with FileStore(root, Sources()) as store:
        return (await compact_root(store, Sources(), LocalEngine(Sources()))).failures


async def damage(root: Path) -> set[tuple[str, str]]:
    async with FileStore(root, Sources()) as store:
        checked = await check_root(store, await read_cluster(store))
    return {(problem.code, problem.object_key) for problem in checked.problems if problem.severity is Severity.DAMAGE}


def read_by_source(root: Path) -> int:
    reader = batch_reader({"root": str(root), "topic": "flights"})
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


async def troubled(client: ledgermq.Client) -> list[int]:
    """Bundles that a broker refuses for their version; while it tries again it has nothing to say
    of them.
    """
    async with asyncio.timeout(60):
        while True:
            described = await client.describe_cluster()
            if found := [info.bundle for info in described.bundles if "version" in info.trouble]:
                return found
            await asyncio.sleep(0.1)


LEDGER_CASES: list[Callable[[Path], Path]] = [
    lambda root: newer_segment(newest(root, keys.segments(BUNDLE))),
    lambda root: newer_sealed(newest(root, keys.checkpoints(BUNDLE))),
]


@pytest.mark.parametrize("make", LEDGER_CASES, ids=["segment", "checkpoint"])
async def test_a_bundle_with_a_newer_object_is_left_alone_and_the_others_are_served(
    root: Path, make: Callable[[Path], Path]
) -> None:
    partition, other = await partition_in(root, BUNDLE), await partition_in(root, 2)
    path = make(root)
    before = contents(root / keys.ledger(BUNDLE))
    async with ledgermq.connect(root.as_uri(), timeout_s=10) as client:
        assert_names(await error_of(produce(client, partition)), path)
        await produce(client, other)
        assert await troubled(client) == [BUNDLE]
    failures = await compaction_errors(root)
    assert failures.keys() == {BUNDLE}
    assert_names(failures[BUNDLE], path)
    assert_names((await asyncio.gather(asyncio.to_thread(read_by_source, root), return_exceptions=True))[0], path)  # type: ignore[arg-type]
    assert ("FORMAT_NOT_SUPPORTED", str(path.relative_to(root))) in await damage(root)
    assert contents(root / keys.ledger(BUNDLE)) == before


async def test_groups_in_a_newer_snapshot_are_refused_and_their_bundle_is_served(root: Path, tmp_path: Path) -> None:
    group = "readers"
    bundle = await bundle_of(root, group)
    path = newer_sealed(newest(root, keys.snapshots(bundle)))
    partition = await partition_in(root, bundle)
    with BrokerProcesses(tmp_path, root.as_uri()) as brokers:
        broker = await asyncio.to_thread(brokers.start, *ADMIN)
        async with ledgermq.connect(broker.address, timeout_s=20) as client:
            await produce(client, partition)
            assert_names(await error_of(client.groups.describe(group)), path)
        admin = AdminPort(broker)
        status, found = await asyncio.to_thread(admin.ready)
        assert status == 200, "the rest of it works"
        assert path.name in str(found["notes"]), "and the operator is told"
        assert (await asyncio.to_thread(admin.metrics))["ledgermq_refused_group_partitions"][
            ("FORMAT_NOT_SUPPORTED",)
        ] >= 1
    failures = await compaction_errors(root)
    assert_names(failures[bundle], path)


async def bundle_of(root: Path, group: str) -> int:
    """Whose owner coordinates the group."""
    async with FileStore(root, Sources()) as store:
        topic = (
            await read_catalog(ledger_of(store, 0, cluster=ClusterSettings(producer_states_max=1000)))
        ).topics_by_name[keys.OFFSETS_TOPIC]
    return topic.bundles[partition_of(group, topic.partitions)]


async def group_in(root: Path, bundle: int) -> str:
    """A group's name whose coordinator is the bundle's owner."""
    async with FileStore(root, Sources()) as store:
        topic = (
            await read_catalog(ledger_of(store, 0, cluster=ClusterSettings(producer_states_max=1000)))
        ).topics_by_name[keys.OFFSETS_TOPIC]
    return next(
        name for i in range(1000) if topic.bundles[partition_of(name := f"group-{i}", topic.partitions)] == bundle
    )


async def test_a_newer_plan_stops_compaction_and_nothing_else(root: Path) -> None:
    path = newer_sealed(newest(root, keys.compactions(BUNDLE)))
    partition = await partition_in(root, BUNDLE)
    async with ledgermq.connect(root.as_uri(), timeout_s=10) as client:
        await produce(client, partition)
    before = contents(root / "parquet")
    failures = await compaction_errors(root)
    assert failures.keys() == {BUNDLE}
    assert_names(failures[BUNDLE], path)
    added = contents(root / "parquet").keys() - before.keys()
    assert f"topic=flights/partition={partition}/" not in str(added), "no file of a plan that cannot be read"
    assert path.exists()


async def test_what_a_newer_page_lists_is_refused_and_the_rest_is_read(root: Path) -> None:
    partition = await partition_in(root, BUNDLE)
    path = newer_sealed(newest(root, keys.file_pages(BUNDLE)))
    for page in (root / keys.file_pages(BUNDLE)).iterdir():
        if page != path:
            newer_sealed(page)
    async with ledgermq.connect(root.as_uri(), timeout_s=10) as client:
        async with client.consumer("flights", [partition]) as consumer:
            error = await error_of(consumer.fetch(timeout=10))
            assert isinstance(error, FormatNotSupported), repr(error)
        end = (await client.list_offsets("flights"))[partition]
        async with client.consumer("flights", [partition], start={partition: end - 1}) as consumer:
            assert len(await consumer.fetch(timeout=10)) == 1


def offset_record(group: str) -> tuple[bytes, bytes]:
    return f"offset/{group}/1/0".encode(), offsets_fmt.Offset(
        version=NEWER, offset=1, topic="flights"
    ).SerializeToString()


def group_record(group: str) -> tuple[bytes, bytes]:
    return f"group/{group}".encode(), offsets_fmt.Group(version=NEWER, epoch=1).SerializeToString()


def member_record(group: str) -> tuple[bytes, bytes]:
    return f"member/{group}/m".encode(), offsets_fmt.Member(version=NEWER).SerializeToString()


def floor_record(group: str) -> tuple[bytes, bytes]:
    return b"floor", offsets_fmt.Floor(version=NEWER, epoch=1).SerializeToString()


def unknown_record(group: str) -> tuple[bytes, bytes]:
    return f"share/{group}".encode(), b"what a later version keeps"


@pytest.mark.parametrize("make", [offset_record, group_record, member_record, floor_record, unknown_record])
async def test_a_newer_record_of_groups_refuses_its_partition(
    root: Path, make: Callable[[str], tuple[bytes, bytes]]
) -> None:
    group = await group_in(root, BUNDLE)
    async with FileStore(root, Sources()) as store:
        topic = (
            await read_catalog(ledger_of(store, 0, cluster=ClusterSettings(producer_states_max=1000)))
        ).topics_by_name[keys.OFFSETS_TOPIC]
        await append_record(store, BUNDLE, topic.id, partition_of(group, topic.partitions), *make(group))
    async with ledgermq.connect(root.as_uri(), timeout_s=10) as client:
        error = await error_of(client.groups.describe(group))
        assert isinstance(error, FormatNotSupported), repr(error)
        assert error.object_key is not None
        await client.groups.describe(await healthy_group(root, group))


async def healthy_group(root: Path, refused: str) -> str:
    """One of the root's groups in another partition."""
    async with FileStore(root, Sources()) as store:
        topic = (
            await read_catalog(ledger_of(store, 0, cluster=ClusterSettings(producer_states_max=1000)))
        ).topics_by_name[keys.OFFSETS_TOPIC]
    place = partition_of(refused, topic.partitions)
    return next(name for name in ("readers", "late") if partition_of(name, topic.partitions) != place)


async def append_record(store: FileStore, bundle: int, topic_id: int, partition: int, key: bytes, value: bytes) -> None:
    writer = await take_over(
        ledger_of(store, bundle, cluster=ClusterSettings(producer_states_max=1000), sources=Sources()), "later"
    )
    data = encode_batch(pa.RecordBatch.from_pylist([{"key": key, "value": value}], SCHEMA))
    await append_and_wait(writer, Batch(topic_id, partition, 1, crc32c(data), 0, 0, data))


async def test_a_topic_with_a_setting_of_a_later_version_is_not_guessed_at(root: Path) -> None:
    record = fmt.TopicRecord(topic_id=1, name="flights", bundles=[1, 2, 3], settings={"later.setting": "1"})
    async with FileStore(root, Sources()) as store:
        await append_record(store, 0, 0, 0, topic_key("flights"), record.SerializeToString())
    before = contents(root)
    failures = await compaction_errors(root)
    assert {bundle: type(error) for bundle, error in failures.items()} == {0: FormatNotSupported}
    assert contents(root) == before
    async with ledgermq.connect(root.as_uri(), timeout_s=10) as client:
        error = await error_of(client.create_topic("new"))
        assert isinstance(error, FormatNotSupported), repr(error)
        assert "has a later format version" in error.message


def run_process(root: Path, *command: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "ledgermq.cli.main", *command, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


COMMANDS: dict[str, Callable[[Path], tuple[int, str, str]]] = {
    "fsck": RootCommand(fsck),
    "inspect": lambda root: RootCommand(inspect)("cluster", root),
    "compact": RootCommand(compact),
    "broker": lambda root: run_process(root, "broker", "--port", "0"),
    "compactor": lambda root: run_process(root, "compactor"),
}


def newer_root(root: Path) -> dict[str, bytes]:
    path = root / keys.CLUSTER
    path.write_bytes(cluster_with(path.read_bytes(), format_version=NEWER_ROOT))
    return contents(root)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_newer_root_and_leaves_it_alone(root: Path, command: str) -> None:
    before = newer_root(root)
    code, _, errors = COMMANDS[command](root)
    assert (code, "FORMAT_NOT_SUPPORTED" in errors, f"version {NEWER_ROOT}" in errors) == (
        ExitCode.DAMAGED,
        True,
        True,
    ), errors
    assert "Traceback" not in errors
    assert contents(root) == before


async def test_programs_refuse_a_newer_root_and_leave_it_alone(root: Path) -> None:
    before = newer_root(root)
    error = await error_of(open_embedded(root))
    assert isinstance(error, FormatNotSupported)
    [found] = await asyncio.gather(asyncio.to_thread(read_by_source, root), return_exceptions=True)
    assert isinstance(found, FormatNotSupported)
    assert contents(root) == before


async def open_embedded(root: Path) -> None:
    async with ledgermq.connect(root.as_uri()):
        pass


async def test_a_heartbeat_of_a_later_version_is_read_as_far_as_it_is_known(root: Path, tmp_path: Path) -> None:
    """Brokers of neighbouring versions see each other: what one adds to its heartbeat the other
    passes over.
    """
    with BrokerProcesses(tmp_path, root.as_uri()) as brokers:
        first = await asyncio.to_thread(brokers.start, "--broker-id", "a")
        path = root / keys.broker("z")
        body = json.loads((root / keys.broker("a")).read_text())
        path.write_text(
            json.dumps(
                body | {"version": NEWER, "broker": "z", "address": "127.0.0.1:1", "later": {"x": 1}, "bundles": {}}
            )
        )
        async with ledgermq.connect(first.address) as client, asyncio.timeout(60):
            while "z" not in {broker.id for broker in (await client.describe_cluster()).brokers}:
                await asyncio.sleep(0.1)
