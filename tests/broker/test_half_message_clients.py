"""Half messages from client to broker, in virtual time: what programs see of them, and what checks
by other programs of the group do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from crc32c import crc32c

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.client.transactions.checks import Resolution
from ledgermq.client.transactions.half_messages import BYTES_MAX
from ledgermq.errors import (
    Closed,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    MessageTooLarge,
    TransactionAborted,
    TransactionError,
    TransactionOutcomeUnknown,
    Unavailable,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from ledgermq_broker.ports.in_process import InProcessConnection, InProcessConnector, Network
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.transaction_calls import constants_of, served
from tests.virtual_time import virtual_sources
from tests.waiting import until

BUNDLES = {"bundles": 4}
GROUP = "orders-checkers"


@asynccontextmanager
async def client_of(
    cluster: Cluster, connector: InProcessConnector | None = None, **settings: Any
) -> AsyncIterator[ledgermq.Client]:
    sources = virtual_sources(next(cluster.client_seeds))
    made = ledgermq.Client(
        connector or InProcessConnector(cluster.network),
        cluster.network.addresses(),
        ClientSettings(**settings),
        sources,
    )
    async with made as client:
        yield client


class Checker:
    """A program's answers to checks. `asked`: what it was asked about."""

    def __init__(self, answer: Resolution | BaseException = "unknown") -> None:
        self.answer = answer
        self.asked: list[ledgermq.CheckedMessage] = []
        self.running = self.running_max = 0
        self.takes_s = 0.0

    async def __call__(self, message: ledgermq.CheckedMessage) -> Resolution:
        self.asked.append(message)
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.running -= 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


async def reads(cluster: Cluster, *values: bytes) -> None:
    async def same() -> bool:
        return sorted(await cluster.read_all("t", 0)) == sorted(values)

    await until(same, 60)


def staged(cluster: Cluster) -> int:
    return sum(found.participant.staged_batches for found in served(cluster).values())


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_committed_message_is_visible_and_a_rolled_back_one_never(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    check = Checker()
    async with client_of(cluster) as client, client.half_messages(GROUP, check=check) as half:
        first = await half.send("t", "a", key="1")
        second = await half.send("t", "b", key="2")
        assert (first.state, first.topic, first.key) == ("pending", "t", b"1")
        assert first.transactional_id.startswith(f"{GROUP}.")
        assert await cluster.read_all("t", 0) == []
        await first.commit()
        await second.rollback()
        await reads(cluster, b"a")
        for _ in range(2):
            await first.commit()
            await second.rollback()
        assert (first.state, second.state) == ("committed", "rolled_back")
        with pytest.raises(TransactionError, match="is committed"):
            await first.rollback()
        with pytest.raises(TransactionAborted):
            await second.commit()
        await asyncio.sleep(60)
        assert check.asked == []
        await until(lambda: not staged(cluster))
    assert await cluster.read_all("t", 0) == [b"a"]


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_the_local_transaction_decides(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    check = Checker()
    async with client_of(cluster) as client, client.half_messages(GROUP, check=check) as half:

        async def later(message: ledgermq.HalfMessage) -> Resolution:
            assert await cluster.read_all("t", 0) == []
            await asyncio.sleep(1)
            return "commit"

        def fails(message: ledgermq.HalfMessage) -> Resolution:
            raise OSError("the database went away")

        assert (await half.send_in_transaction("t", "a", execute=later)).state == "committed"
        assert (await half.send_in_transaction("t", "b", execute=lambda _: "rollback")).state == "rolled_back"
        with pytest.raises(OSError, match="went away"):
            await half.send_in_transaction("t", "c", execute=fails)
        with pytest.raises(InvalidRequest, match="'commit', 'rollback' or 'unknown'"):
            await half.send_in_transaction("t", "d", execute=lambda _: "maybe")  # type: ignore[arg-type,return-value]
        check.answer = "commit"
        await reads(cluster, b"a", b"c", b"d")  # what was left open was asked about
    assert {message.value for message in check.asked} == {b"c", b"d"}


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_client_with_a_short_deadline_answers_the_checks_of_all_coordinators(cluster: Cluster) -> None:
    """Its polls end before its calls do; else it would never learn how many coordinators there are."""
    await cluster.create("t", 1)
    async with client_of(cluster) as client, client.half_messages(GROUP, check=Checker()) as half:
        coordinators = BUNDLES["bundles"] - 1
        name = next(f"order-{i}" for i in range(100) if crc32c(f"order-{i}".encode()) % coordinators)
        await half.send("t", "kept", transactional_id=name)  # the first coordinator has nothing to ask
    check = Checker("commit")
    async with client_of(cluster, timeout_s=3.0) as other, other.half_messages(GROUP, check=check):
        await reads(cluster, b"kept")


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_another_program_of_the_group_answers_for_one_that_died(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with client_of(cluster) as client, client.half_messages(GROUP, check=Checker()) as half:
        await half.send("t", "kept", key="k", headers={"h": "1"}, tag="x", transactional_id="order-17")
    check = Checker("commit")
    async with client_of(cluster) as other, other.half_messages(GROUP, check=check):
        await reads(cluster, b"kept")
    [message] = check.asked
    assert message[:7] == ("order-17", 1, "t", 0, b"k", b"kept", (("h", b"1"),))
    assert (message.tag, message.timestamp is not None) == ("x", True)


@pytest.mark.parametrize("error", [ValueError("which order?"), asyncio.CancelledError()], ids=["error", "cancelled"])
@in_cluster("a:1", "b:1", **BUNDLES)
async def test_unknown_and_exceptions_are_asked_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    await cluster.create("t", 1)
    check = Checker(error)
    async with client_of(cluster) as client, client.half_messages(GROUP, check=check) as half:
        message = await half.send("t", "a")
        await until(lambda: len(check.asked) == 1, 30)
        check.answer = "unknown"
        await until(lambda: len(check.asked) == 2, 60)
        check.answer = "rollback"
        await until(lambda: len(check.asked) == 3, 60)
        await until(lambda: not staged(cluster), 30)
        with pytest.raises(TransactionAborted):
            await message.commit()
        assert message.state == "rolled_back"
    assert "which counts as unknown" in caplog.text
    assert [message.attempt for message in check.asked] == [1, 2, 3]


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_checks_run_side_by_side_up_to_a_bound(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    check = Checker("commit")
    check.takes_s = 3.0
    async with client_of(cluster) as client, client.half_messages(GROUP, check=check, concurrency=3) as half:
        await asyncio.gather(*(half.send("t", str(number)) for number in range(12)))
        await reads(cluster, *(b"%d" % number for number in range(12)))
    assert check.running_max == 3
    assert len(check.asked) == 12


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_message_under_the_id_of_a_pending_one_does_not_replace_it(cluster: Cluster) -> None:
    """A program that died after `send` sends again: what it sent first may belong to a local
    transaction that has committed.
    """
    await cluster.create("t", 1)
    check = Checker("commit")
    async with client_of(cluster) as client, client.half_messages(GROUP, check=check) as half:
        await half.send("t", "a", transactional_id="order-1")
        with pytest.raises(TransactionAborted):
            await half.send("t", "b", transactional_id="order-1")
        await reads(cluster, b"a")


@in_cluster("a:1", "b:1", **BUNDLES, auto_create_topics=False)
async def test_what_cannot_be_sent_leaves_nothing_behind(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    check = Checker("commit")
    async with client_of(cluster) as client, client.half_messages(GROUP, check=check) as half:
        with pytest.raises(InvalidRecord):
            await half.send("t", 1)  # type: ignore[arg-type]
        with pytest.raises(UnknownTopic):
            await half.send("nothing", "a")
        used = await half.send("t", "a", transactional_id="order-1")
        await used.rollback()
        with pytest.raises(InvalidRequest, match="was used"):
            await half.send("t", "b", transactional_id="order-1")
        await asyncio.sleep(60)
        assert await cluster.read_all("t", 0) == []
        assert check.asked == []
    with pytest.raises(Closed, match="closed"):
        await half.send("t", "a")
    async with client_of(cluster) as client:
        for wrong in (
            {"group": "a/b"},
            {"group": "g" * 240},
            {"check": None},
            {"concurrency": 0},
            {"acks": "received"},
        ):
            given: dict[str, Any] = {"group": GROUP, "check": check, **wrong}
            with pytest.raises(InvalidConfig):
                client.half_messages(given.pop("group"), **given)


class Deaf(InProcessConnector):
    """Loses the answers to `EndTransaction`."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.loses = True

    def connect(self, address: str) -> Connection:
        outer = self

        class Line(InProcessConnection):
            async def end_transaction(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
                answer = await super().end_transaction(request)
                if outer.loses:
                    raise Unavailable("the line was cut")
                return answer

        return Line(self.network, address, lambda _: "")


@in_cluster("a:1", "b:1", **BUNDLES)
async def test_a_commit_without_an_answer_may_be_repeated(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    deaf = Deaf(cluster.network)
    async with client_of(cluster, deaf) as client, client.half_messages(GROUP, check=Checker()) as half:
        message = await half.send("t", "a")
        with pytest.raises(TransactionOutcomeUnknown, match="repeat the call, or leave it to the checks"):
            await message.commit(timeout_s=3)
        assert message.state == "unknown"
        deaf.loses = False
        await message.commit()
        assert message.state == "committed"
        await reads(cluster, b"a")


@in_cluster("a:1", "b:1", "c:1", **BUNDLES)
async def test_checks_go_on_while_brokers_come_and_go(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    check = Checker("commit")
    async with client_of(cluster) as client, client.half_messages(GROUP, check=check) as half:
        for number in range(6):
            await half.send("t", str(number))
        await cluster.stop("a:1", graceful=False)
        await cluster.start("d:1")
        await reads(cluster, *(b"%d" % number for number in range(6)))
        await asyncio.sleep(60)
    assert await cluster.read_all("t", 0) != []
    assert staged(cluster) == 0


@in_cluster("a:1", **BUNDLES, constants=constants_of(unchecked_ms_max=10_000))
async def test_the_largest_message_has_room_for_what_its_copy_adds(cluster: Cluster) -> None:
    await cluster.create("t", 1, max_message_bytes=str(FRAME_PAYLOAD_BYTES_MAX))
    async with client_of(cluster) as client:
        async with client.half_messages(GROUP, check=Checker("unknown")) as half:
            with pytest.raises(MessageTooLarge, match="half message"):
                await half.send("t", b"x" * (BYTES_MAX + 1))
            message = await half.send("t", b"x" * BYTES_MAX, transactional_id="h" * 249)
        topic = f"{GROUP}.unresolved"
        await until(lambda: is_unresolved(client, message), 120, every_s=1)
        assert await cluster.read_all(topic, 0) == [b"x" * BYTES_MAX]


async def is_unresolved(client: ledgermq.Client, message: ledgermq.HalfMessage) -> bool:
    found = await client.transactions.describe(message.transactional_id)
    return found.complete and found.state == "unresolved"
