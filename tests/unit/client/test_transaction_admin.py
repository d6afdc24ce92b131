"""Decisions of operators whose answers are lost, and calls without asyncio, against coordinators in
memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import InvalidRequest, NotOwner, TransactionUnknown, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.sources import Sources
from ledgermq.sync import Client
from ledgermq.sync.background import Background
from ledgermq.sync.transactions.transaction_admin import TransactionAdmin
from tests.unit.client.transaction_broker import ADDRESSES, MemoryBroker, TransactionCluster


class Desk(TransactionCluster):
    """Knows one transaction, `xid`, which is committed, and incomplete in bundle 2. `lost`: answers
    to decisions that are lost. `decided`: what was asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.info: pb.TransactionInfo | None = pb.TransactionInfo(
            transaction=pb.TransactionRef(transactional_id="xid", epoch=1, number=1),
            kind=pb.TWO_PHASE,
            state=pb.PREPARED,
            missing=[2],
            parts=[
                pb.TransactionPart(
                    bundle=2,
                    counts=[
                        pb.StagedCount(topic_id=7, partition=1, batches=2),
                        pb.StagedCount(branch=b"b", topic_id=7, partition=1, batches=3),
                    ],
                    groups=["g"],
                )
            ],
        )
        self.lost = 0
        self.decided: list[int] = []
        self.brokers = {address: DeskBroker(self, address) for address in ADDRESSES}


class DeskBroker(MemoryBroker):
    def __init__(self, desk: Desk, address: str) -> None:
        super().__init__(desk, address)
        self._desk = desk

    def _known(self) -> pb.TransactionInfo:
        if self.address != self._desk.coordinator:
            raise NotOwner("another broker coordinates it", owner=self._desk.coordinator)
        if self._desk.info is None:
            raise TransactionUnknown("there is no such id")
        return self._desk.info

    async def list_transactions(self, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
        staged = [pb.StagedInfo(transaction=self._known().transaction, batches=5, bytes=500, oldest_ms=1000)]
        return pb.ListTransactionsResponse(transactions=[self._known()], staged=staged, partitions=1, bundle=2)

    async def describe_transaction(self, request: pb.DescribeTransactionRequest) -> pb.DescribeTransactionResponse:
        return pb.DescribeTransactionResponse(transaction=self._known(), coordinator=self.address)

    async def resolve_transaction(self, request: pb.ResolveTransactionRequest) -> pb.ResolveTransactionResponse:
        info = self._known()
        self._desk.decided.append(request.resolution)
        if request.resolution == pb.FORGET:
            self._desk.info = None
        elif request.resolution == pb.GIVE_UP:
            if request.bundle not in info.missing:
                raise InvalidRequest(f"it is not incomplete in bundle {request.bundle}")
            info.missing.remove(request.bundle)
        else:
            commit = request.resolution == pb.COMMIT
            info.state = pb.COMMITTED_BY_OPERATOR if commit else pb.ABORTED_BY_OPERATOR
        if self._desk.lost:
            self._desk.lost -= 1
            raise Unavailable("the line was lost")
        return pb.ResolveTransactionResponse(transaction=info)


@asynccontextmanager
async def connection(desk: Desk) -> AsyncIterator[ledgermq.Client]:
    async with ledgermq.Client(desk, ADDRESSES, ClientSettings(timeout_s=5, attempt_timeout_s=2), Sources()) as client:
        yield client


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def admin(desk: Desk) -> Iterator[TransactionAdmin]:
    background = Background()
    opened = connection(desk)
    with Client(background, opened, background.run(opened.__aenter__()), Sources()) as client:
        yield client.transactions


def test_each_call_is_passed_on(desk: Desk, admin: TransactionAdmin) -> None:
    found = admin.list()
    [one], [staged] = found.transactions, found.staged
    assert (one.transactional_id, one.kind, one.state, one.missing) == ("xid", "two_phase", "prepared", (2,))
    assert one.parts == (ledgermq.TransactionPart(2, {(7, 1): 5}, ("g",)),), "over all branches"
    assert (staged.bundle, staged.batches, staged.bytes, staged.oldest_ms) == (2, 5, 500, 1000)
    assert admin.describe("xid").staged == found.staged
    assert admin.describe("xid", staged=False).staged == ()
    assert admin.resolve("xid", commit=False).state == "aborted_by_operator"
    assert admin.resolve("xid", commit=True).state == "committed_by_operator"
    assert admin.give_up("xid", 2).missing == ()
    admin.forget("xid")
    with pytest.raises(TransactionUnknown):
        admin.describe("xid")


@pytest.mark.parametrize("lost", [1, 2])
def test_a_decision_whose_answer_was_lost_is_not_an_error(desk: Desk, admin: TransactionAdmin, lost: int) -> None:
    desk.lost = lost
    assert admin.resolve("xid", commit=True).state == "committed_by_operator"
    desk.lost = 1
    assert admin.give_up("xid", 2).missing == ()
    desk.lost = 1
    admin.forget("xid")
    assert desk.info is None
    assert desk.decided == [pb.COMMIT] * (lost + 1) + [pb.GIVE_UP] * 2 + [pb.FORGET]


def test_refusals_are_raised_when_every_attempt_was_answered(desk: Desk, admin: TransactionAdmin) -> None:
    desk.coordinator = ADDRESSES[1]  # to be asked elsewhere leaves nothing in doubt
    with pytest.raises(InvalidRequest, match="bundle 3"):
        admin.give_up("xid", 3)
    desk.info = None
    with pytest.raises(TransactionUnknown):
        admin.forget("xid")
    assert desk.decided == [pb.GIVE_UP]


def test_an_id_that_is_no_name_is_refused_here(desk: Desk, admin: TransactionAdmin) -> None:
    for call in (admin.describe, admin.forget, lambda name: admin.give_up(name, 1)):
        with pytest.raises(InvalidRequest, match="letters"):
            call("two words")
    assert desk.decided == []


def test_a_state_of_a_newer_release_says_so(desk: Desk, admin: TransactionAdmin) -> None:
    assert desk.info is not None
    desk.info.state = 99  # type: ignore[assignment]
    with pytest.raises(Unavailable, match="upgrade this client"):
        admin.list()
