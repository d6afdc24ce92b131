"""Settings have their documented effect: those that no other test covers.
`tests/unit/test_every_setting.py` has the table of all.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import InvalidRequest, LedgerMQError, ResourceExhausted, Unavailable, UnknownGroup
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker import logs
from ledgermq_broker.health.readiness import Health
from ledgermq_broker.metrics.process_metrics import ProcessMetrics
from ledgermq_broker.ports.in_process import InProcessConnector, Network
from ledgermq_broker.process.run import admin_port
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_ledger import keys
from ledgermq_ledger.rounds.engines import find_engine
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import Member, Outsider, ask, committed_offset, settled
from tests.e2e.processes import BrokerProcesses
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import wait_until
from tests.worlds.keyed_root import Keyed


@in_cluster("a:1", topics_max=1, partitions_max=3)
async def test_topics_and_partitions_are_bounded(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match="3"):
        await cluster.create("t", 4)
    await cluster.create("t", 3)
    with pytest.raises(ResourceExhausted):
        await cluster.create("u", 1)


@in_cluster("a:1", offsets_partitions=3)
async def test_the_topic_of_offsets_has_as_many_partitions_as_set(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"a")
    assert await Outsider(cluster, "g").commit(("t", 0, 1)) == [""]
    assert cluster.brokers["a:1"].metadata.catalog.topics_by_name[keys.OFFSETS_TOPIC].partitions == 3


async def _offset_after_two_minutes(cluster: Cluster) -> int | None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"a")
    assert await Outsider(cluster, "g").commit(("t", 0, 1)) == [""]
    await asyncio.sleep(120)
    return await committed_offset(cluster, "g", "t", 0)


@in_cluster("a:1", offsets_retention_ms=1000)
async def test_offsets_go_after_their_retention(cluster: Cluster) -> None:
    assert await _offset_after_two_minutes(cluster) is None


@in_cluster("a:1")
async def test_offsets_stay_until_their_retention(cluster: Cluster) -> None:
    assert await _offset_after_two_minutes(cluster) == 1


async def _members_after_ten_seconds(cluster: Cluster) -> int:
    """Of a group whose member chose no session time-out, and has stopped."""
    await cluster.create("t", 1)
    request = pb.GroupHeartbeatRequest(
        group="g", member_id="m", step=pb.JOIN, subscription=pb.GroupSubscription(topics=["t"])
    )
    await ask(cluster, lambda line: line.group_heartbeat(request))
    await asyncio.sleep(10)
    try:
        described = await ask(cluster, lambda line: line.describe_group(pb.DescribeGroupRequest(group="g")))
    except UnknownGroup:
        return 0
    return len(described.group.members)


@in_cluster("a:1", group_session_timeout_ms=5000)
async def test_a_silent_member_goes_after_the_session_timeout(cluster: Cluster) -> None:
    assert await _members_after_ten_seconds(cluster) == 0


@in_cluster("a:1")
async def test_a_silent_member_stays_until_the_session_timeout(cluster: Cluster) -> None:
    assert await _members_after_ten_seconds(cluster) == 1


@in_cluster("a:1", group_members_max=1)
async def test_a_group_takes_no_more_members_than_set(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    one = Member(cluster, "g", "one", ["t"])
    await one.join()
    joining = pb.GroupHeartbeatRequest(
        group="g", member_id="two", step=pb.JOIN, subscription=pb.GroupSubscription(topics=["t"])
    )
    with pytest.raises(ResourceExhausted, match="1 members"):
        await cluster.line("a:1").group_heartbeat(joining)
    await settled([one])
    assert len(one.owned) == 2


@in_cluster("a:1", answer_memory_bytes_max=2**21, compaction_memory_bytes_max=2**25)
async def test_memory_bounds_come_to_their_budgets_and_change_while_the_broker_runs(cluster: Cluster) -> None:
    broker = cluster.brokers["a:1"]
    assert (broker.context.answers.bytes_max, broker.context.engine.memory_bytes) == (2**21, 2**25)
    changed = {"answer_memory_bytes_max": 2**22, "compaction_memory_bytes_max": 2**26}
    broker.apply(cluster.settings.model_copy(update=changed))
    assert (broker.context.answers.bytes_max, broker.context.engine.memory_bytes) == (2**22, 2**26)


@pytest.mark.slow
def test_the_reserve_has_the_size_that_was_set(tmp_path: Path) -> None:
    sizes = {}
    for reserve_bytes in (0, 2 * 1024 * 1024):
        root = tmp_path / str(reserve_bytes)
        reserve = root / ".reserve"
        with BrokerProcesses(tmp_path, root.as_uri()) as brokers:
            brokers.start("--reserve-bytes", str(reserve_bytes))
            # The file exists before it has its size.
            wait_until(lambda: (reserve.stat().st_size if reserve.exists() else 0) >= reserve_bytes)  # noqa: B023
        sizes[reserve_bytes] = reserve.stat().st_size if reserve.exists() else 0
    assert sizes == {0: 0, 2 * 1024 * 1024: 2 * 1024 * 1024}


async def test_the_admin_port_listens_at_the_admin_host_alone() -> None:
    settings = BrokerSettings(admin_host="127.0.0.2", admin_port=0)
    async with admin_port(settings, Health(), ProcessMetrics("memory://"), None) as port:
        _, writer = await asyncio.open_connection("127.0.0.2", port)
        writer.close()
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", port)


def test_lines_look_as_log_format_says(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        logs.configure_logs("json", "info")
        logs.get_logger("ledgermq-test").info("hello")
        as_json = capsys.readouterr().err
        logs.configure_logs("console", "info")
        logs.get_logger("ledgermq-test").info("hello")
        as_text = capsys.readouterr().err
    finally:
        logs.configure_logs("console", "warning")
    assert as_json.startswith("{")
    assert "hello" in as_text
    assert not as_text.startswith("{")


def test_a_compaction_engine_that_is_not_installed_is_refused() -> None:
    """`compaction_engine` names it."""
    assert callable(find_engine("local"))
    with pytest.raises(InvalidRequest, match="nonsense"):
        find_engine("nonsense")


@pytest.mark.parametrize(("ratio", "versions"), [("0", 1), ("0.9", 0)])
async def test_a_partition_is_cleaned_from_its_dirty_ratio_on(ratio: str, versions: int) -> None:
    """`min.cleanable.dirty.ratio`: half of the bytes are not cleaned yet."""
    keyed = await Keyed.open()
    await keyed.put(("a", "1"), ("b", "2"))
    await keyed.compact()
    assert await keyed.clean() == 1
    await keyed.alter(min_cleanable_dirty_ratio=ratio)
    await keyed.put(("a", "3"), ("b", "4"))
    await keyed.compact()
    assert await keyed.clean() == versions


async def test_records_younger_than_the_lag_are_not_cleaned() -> None:
    """`min.compaction.lag.ms`."""
    keyed = await Keyed.open(min_compaction_lag_ms="60000")
    await keyed.put(("a", "1"), ("b", "2"))
    await keyed.put(("a", "3"), ("b", "4"))
    await keyed.compact()
    assert await keyed.clean() == 0
    keyed.wait(0.5)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [2, 3]


async def _attempts(**settings: int) -> int:
    """At an address where no broker listens, in a second."""
    errors: list[LedgerMQError | None] = []
    chosen = ClientSettings(timeout_s=1.0, on_trouble=errors.append, **settings)
    async with ledgermq.Client(InProcessConnector(Network()), ["a:1"], chosen, virtual_sources()) as client:
        with pytest.raises(Unavailable):
            await client.list_topics()
    return len(errors)


@virtual
async def test_waits_between_attempts_are_as_set() -> None:
    """`backoff_ms_first` and `backoff_ms_max`."""
    assert await _attempts(backoff_ms_first=400, backoff_ms_max=800) <= 4
    assert await _attempts(backoff_ms_first=1, backoff_ms_max=800) > 5
    assert await _attempts(backoff_ms_first=1, backoff_ms_max=2) > 20


@in_cluster("a:1")
async def test_a_failed_message_is_handled_again_within_retry_ms_max(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"v")
    attempts: dict[int, int] = {}
    for retry_ms_max in (5, 10_000):
        async with cluster.client() as client:
            count = 0

            @client.handler("t", group=f"g-{retry_ms_max}", retry_ms_first=5, retry_ms_max=retry_ms_max)
            async def handle(message: ledgermq.GroupMessage) -> None:
                nonlocal count
                count += 1
                raise ValueError("it fails")

            running = asyncio.create_task(client.run_handlers())
            async with asyncio.timeout(20):
                while not count:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(1)
            running.cancel()
            await asyncio.wait([running])
            attempts[retry_ms_max] = count
    assert attempts[10_000] < 12
    assert attempts[5] > 3 * attempts[10_000]
