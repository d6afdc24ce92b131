"""What may be added within a format version: fields that this program does not know, in every
object and every request, disturb nothing.
"""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import grpc.aio
import pytest
from crc32c import crc32c

import ledgermq
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.protocol.methods import (
    PRODUCE,
    PRODUCE_DELAYED,
    PRODUCE_DELAYED_ONCE,
    PRODUCE_ONCE,
    STAGE,
    STAGE_DELAYED,
)
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.log.chains.envelope import TRAILER as ENVELOPE
from ledgermq_ledger.log.chains.envelope import ObjectKind
from ledgermq_ledger.log.segments.segment import TRAILER
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.e2e.processes import BrokerProcesses
from tests.upgrades.calls import Call, base_offsets, errors_in, load, records_in, repeat, wait_settled
from tests.upgrades.golden import ROOTS, VERSIONS, Expected, contents, copy_root
from tests.upgrades.test_golden_roots import consume
from tests.upgrades.transactions import NEVER_UNRESOLVED
from tests.worlds.roots import cluster_with

FRAMES = (PRODUCE, PRODUCE_ONCE, STAGE, STAGE_DELAYED, PRODUCE_DELAYED, PRODUCE_DELAYED_ONCE)
UNKNOWN = b"\x82\xf4\x03\x05later"
"""Field 8000, five bytes."""


def test_this_version_has_its_golden_root() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] in VERSIONS, "`make golden` is a step of each release, see docs/upgrades.md"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The newest golden root, with one more field in every object."""
    folder = copy_root(VERSIONS[-1], tmp_path)
    for name in contents(folder):
        path = folder / name
        if path.parent.name == "segments":
            add_to_segment(path)
        elif name.startswith("ledgers/") and path.parent.name in ("checkpoints", "compactions", "files", "snapshots"):
            add_to_sealed(path)
        elif name == keys.CLUSTER:
            add_to_cluster(path)
        elif path.suffix == ".json":
            path.write_text(path.read_text().rstrip().removesuffix("}") + ', "later": {"x": 1}}')
    return folder


def add_to_sealed(path: Path) -> None:
    data = path.read_bytes()
    _, _, version, kind, magic = ENVELOPE.unpack_from(data, len(data) - ENVELOPE.size)
    body = data[: -ENVELOPE.size]
    if kind == ObjectKind.COMPACTION_PLAN:  # it says how long the ends of segments are
        plan = fmt.CompactionPlan.FromString(body)
        for slot in (*plan.slots, *plan.lagging):
            slot.tail_length += len(UNKNOWN)
        body = plan.SerializeToString(deterministic=True)
    body += UNKNOWN
    path.write_bytes(body + ENVELOPE.pack(len(body), crc32c(body), version, kind, magic))


def add_to_segment(path: Path) -> None:
    data = path.read_bytes()
    at, length, _, version, zero, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    index = data[at : at + length] + UNKNOWN
    path.write_bytes(data[:at] + index + TRAILER.pack(at, len(index), crc32c(index), version, zero, magic))


def add_to_cluster(path: Path) -> None:
    """A version that adds a field writes a checksum: a file without one has the fields of before,
    and no other.
    """
    path.write_bytes(cluster_with(path.read_bytes(), later={"x": 1}))


async def test_objects_with_more_fields_are_served_checked_and_compacted(root: Path) -> None:
    expected = Expected.of(VERSIONS[-1])
    async with ledgermq.connect(root.as_uri()) as client:
        assert await consume(client) == expected.records
        for group in expected.committed:
            assert (await client.groups.describe(group)).committed
    async with FileStore(root, Sources()) as store:
        assert not (await compact_root(store, Sources(), LocalEngine(Sources()))).failures
        checked = await check_root(store, await read_cluster(store))
    assert checked.worst in (None, Severity.NOTE, Severity.UNTIDY), checked.problems


async def test_requests_with_more_fields_are_answered_alike(tmp_path: Path) -> None:
    """But for the frames of produce, which have two fields forever: what is added goes into their
    header.
    """
    root = copy_root(VERSIONS[-1], tmp_path)
    with BrokerProcesses(tmp_path, root.as_uri(), (NEVER_UNRESOLVED,)) as brokers:
        broker = await asyncio.to_thread(brokers.start)
        await wait_settled(root, broker.address, broker.address)
        async with grpc.aio.insecure_channel(broker.address, options=GRPC_OPTIONS) as channel:
            given: dict[bytes, bytes] = {}
            for call in load(ROOTS / VERSIONS[-1]):
                is_frame = call.of in FRAMES
                more = call.requests if is_frame else [request + UNKNOWN for request in call.requests]
                done = await repeat(Call(call.method, more, call.answers), channel, given)
                assert errors_in(done) <= errors_in(call), call.method
                assert (base_offsets(done), records_in(done)) == (base_offsets(call), records_in(call)), call.method
