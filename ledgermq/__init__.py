"""LedgerMQ: a message broker with nothing durable but an object-store bucket. This package is its
client.

    async with ledgermq.connect("localhost:9650") as client:
        async with client.producer() as producer:
            result = await producer.send("flights", b"...", key=b"UA")
        async for message in client.consumer("flights", group="reports"):
            ...

        @client.handler("flights", group="billing", concurrency=8, ordered_by="key")
        async def bill(message): ...

        await client.run_handlers()

`ledgermq.sync` offers the same without asyncio.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING

from ledgermq import errors
from ledgermq.client.access import Access, AccessDecision, AccessRule, NewToken, TokenDescription
from ledgermq.client.client import Client, connect
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import Message
from ledgermq.client.consuming.reader import FilterCounts
from ledgermq.client.delayed import DelayedBundle, DelayedList, DelayedMessage, DelayedRange, RecallOutcome
from ledgermq.client.deletion import DeletedRecords
from ledgermq.client.descriptions import (
    AddedBundles,
    BrokerDescription,
    BundleDescription,
    BundleLoads,
    ClusterDescription,
    PartitionDescription,
    PartitionHolder,
    TopicDescription,
    TopicPartition,
)
from ledgermq.client.finding import MessageDescription, Search, StoredBy
from ledgermq.client.groups.admin.descriptions import GroupDescription, GroupSummary, MemberDescription
from ledgermq.client.groups.admin.group_admin import GroupAdmin
from ledgermq.client.groups.admin.resets import Like, PlannedReset, Shift
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.handlers.handler import Handler
from ledgermq.client.groups.handlers.retry import Retry
from ledgermq.client.groups.lag import Lag
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.message_id import MessageId
from ledgermq.client.producing.delivery import (
    BatchDelivery,
    BatchResult,
    Deliveries,
    Delivery,
    SendResult,
    Spilled,
    SpilledBatch,
)
from ledgermq.client.producing.producer import Producer
from ledgermq.client.queues.admin import QueueAdmin, QueueDescription, QueueMember, QueuePartition
from ledgermq.client.queues.message import QueueMessage, Reply
from ledgermq.client.queues.queue import Queue
from ledgermq.client.queues.runner import QueueHandler
from ledgermq.client.quotas import QuotaDescription, Quotas
from ledgermq.client.record import Outgoing, Record
from ledgermq.client.serializers import Serializer
from ledgermq.client.spill import Spill, SpillState
from ledgermq.client.tables.rows import Change
from ledgermq.client.tables.table import Table
from ledgermq.client.tls import Tls
from ledgermq.client.transactions.admin import (
    StagedTransaction,
    TransactionDescription,
    TransactionList,
    TransactionPart,
)
from ledgermq.client.transactions.checks import CheckedMessage
from ledgermq.client.transactions.decisions import TransactionOutcome
from ledgermq.client.transactions.half_messages import HalfMessage, HalfMessages
from ledgermq.client.transactions.transaction import Transaction
from ledgermq.client.transactions.transactions import TransactionClient, Transactions
from ledgermq.client.transactions.two_phase import TwoPhase
from ledgermq.client.transactions.xid import Xid
from ledgermq.errors import LedgerMQError
from ledgermq.filters.functions import FilterMessage
from ledgermq.frames import to_pandas, to_polars
from ledgermq.offset_stores.contract import GivenPartition, OffsetEntry, OffsetStore, StoredOffset

if TYPE_CHECKING:
    from ledgermq import sync as sync

try:
    __version__ = version("ledgermq")
except PackageNotFoundError:  # running from a checkout that was not installed
    __version__ = "0"

__all__ = [
    "Access",
    "AccessDecision",
    "AccessRule",
    "AddedBundles",
    "BatchDelivery",
    "BatchResult",
    "BrokerDescription",
    "BundleDescription",
    "BundleLoads",
    "Change",
    "CheckedMessage",
    "Client",
    "ClusterDescription",
    "Consumer",
    "DelayedBundle",
    "DelayedList",
    "DelayedMessage",
    "DelayedRange",
    "DeletedRecords",
    "Deliveries",
    "Delivery",
    "FilterCounts",
    "FilterMessage",
    "GivenPartition",
    "GroupAdmin",
    "GroupConsumer",
    "GroupDescription",
    "GroupMessage",
    "GroupSummary",
    "HalfMessage",
    "HalfMessages",
    "Handler",
    "Lag",
    "LedgerMQError",
    "Like",
    "MemberDescription",
    "Message",
    "MessageDescription",
    "MessageId",
    "NewToken",
    "OffsetEntry",
    "OffsetStore",
    "Outgoing",
    "PartitionDescription",
    "PartitionHolder",
    "PlannedReset",
    "Producer",
    "Queue",
    "QueueAdmin",
    "QueueDescription",
    "QueueHandler",
    "QueueMember",
    "QueueMessage",
    "QueuePartition",
    "QuotaDescription",
    "Quotas",
    "RecallOutcome",
    "Record",
    "Reply",
    "Retry",
    "Search",
    "SendResult",
    "Serializer",
    "Shift",
    "Spill",
    "SpillState",
    "Spilled",
    "SpilledBatch",
    "StagedTransaction",
    "StoredBy",
    "StoredOffset",
    "Table",
    "Tls",
    "TokenDescription",
    "TopicDescription",
    "TopicPartition",
    "Transaction",
    "TransactionClient",
    "TransactionDescription",
    "TransactionList",
    "TransactionOutcome",
    "TransactionPart",
    "Transactions",
    "TwoPhase",
    "Xid",
    "__version__",
    "connect",
    "errors",
    "sync",
    "to_pandas",
    "to_polars",
]
"""The names that programs import: what they call, receive, and use in annotations.

Settings are keyword arguments; their classes are in `ledgermq.client.settings`.
"""


if not TYPE_CHECKING:  # to type checkers it would mean that every name exists

    def __getattr__(name: str) -> ModuleType:
        """Import `ledgermq.sync` when a program first uses it.

        It builds on this package, so this module cannot import it at its top.
        """
        if name == "sync":
            return import_module("ledgermq.sync")
        place = f"; it is ledgermq.errors.{name}" if hasattr(errors, name) else ""
        raise AttributeError(f"module 'ledgermq' has no attribute {name!r}{place}")
