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
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledgermq import errors as errors
    from ledgermq import sync as sync
    from ledgermq.client.admin.access import Access, AccessDecision, AccessRule, NewToken, TokenDescription
    from ledgermq.client.admin.brokers.costs import ClientTraffic, CostReport
    from ledgermq.client.admin.brokers.reports import BrokerReport, ConnectionDescription, KeptCost, TopicCost
    from ledgermq.client.admin.deletion import DeletedRecords
    from ledgermq.client.admin.quotas import QuotaDescription, Quotas, QuotaUse
    from ledgermq.client.admin.rebalancing import BundleBalance, KeptPartition, RebalanceMove, RebalanceResult
    from ledgermq.client.admin.topic_admin import TopicAdmin
    from ledgermq.client.admin.topic_plan import TopicChange, TopicSpec
    from ledgermq.client.client import Client
    from ledgermq.client.connecting import connect
    from ledgermq.client.consuming.consumer import Consumer
    from ledgermq.client.consuming.described import MessageDescription, StoredBy
    from ledgermq.client.consuming.frames import to_pandas, to_polars
    from ledgermq.client.consuming.message import Message
    from ledgermq.client.consuming.reader import FilterCounts
    from ledgermq.client.cuts.admin import CutBundle, CutDescription, CutFile, CutPartition, Cuts
    from ledgermq.client.delayed import DelayedBundle, DelayedList, DelayedMessage, DelayedRange, RecallOutcome
    from ledgermq.client.finding import Search
    from ledgermq.client.groups.admin.descriptions import GroupDescription, GroupLag, GroupSummary, MemberDescription
    from ledgermq.client.groups.admin.group_admin import GroupAdmin
    from ledgermq.client.groups.admin.resets import Like, PlannedReset, Shift
    from ledgermq.client.groups.group_consumer import GroupConsumer
    from ledgermq.client.groups.handlers.handler import Handler
    from ledgermq.client.groups.handlers.retry import Retry
    from ledgermq.client.groups.lag import Lag
    from ledgermq.client.groups.message import GroupMessage
    from ledgermq.client.messages.descriptions import (
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
    from ledgermq.client.messages.message_id import MessageId
    from ledgermq.client.messages.record import Outgoing, Record
    from ledgermq.client.operating.dead_letters import (
        DeadLetter,
        DeadLetterAdmin,
        DeadLetterCounts,
        DeadLetterFilter,
        DeadLetterList,
        LetterPlace,
        RetryCopies,
    )
    from ledgermq.client.operating.tracing import GroupRead, MessageCopy, MessageTrace, QueueRead
    from ledgermq.client.operating.unresolved import UnresolvedAdmin, UnresolvedMessage
    from ledgermq.client.paging.pages import Page
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
    from ledgermq.client.queues.leases.answering import LeaseAnswer, LeaseResult
    from ledgermq.client.queues.leases.leasing import LeasedMessage
    from ledgermq.client.queues.message import QueueMessage, Reply
    from ledgermq.client.queues.queue import Queue
    from ledgermq.client.queues.runner import QueueHandler
    from ledgermq.client.schemas.admin import Schemas
    from ledgermq.client.schemas.descriptions import SchemaDescription, SchemaField, SubjectDescription
    from ledgermq.client.schemas.serializer import SchemaSerializer
    from ledgermq.client.settings.serializers import Serializer
    from ledgermq.client.settings.spill import Spill, SpillState
    from ledgermq.client.settings.tls import Tls
    from ledgermq.client.tables.admin import TableAdmin, TableDescription, TablePartition, TableSummary
    from ledgermq.client.tables.rows import Change
    from ledgermq.client.tables.table import Table
    from ledgermq.client.tables.undecoded import UndecodedValue, UndecodedValues
    from ledgermq.client.transactions.admin import (
        StagedTransaction,
        TransactionDescription,
        TransactionList,
        TransactionPart,
    )
    from ledgermq.client.transactions.checks import CheckedMessage
    from ledgermq.client.transactions.decisions import TransactionOutcome
    from ledgermq.client.transactions.half_messages import HalfMessage, HalfMessages
    from ledgermq.client.transactions.once import SentOnce
    from ledgermq.client.transactions.sending.group_offsets import GroupOffset
    from ledgermq.client.transactions.transaction import Transaction
    from ledgermq.client.transactions.transactions import TransactionClient, Transactions
    from ledgermq.client.transactions.two_phase.two_phase import TwoPhase
    from ledgermq.client.transactions.two_phase.xid import Xid
    from ledgermq.errors import LedgerMQError
    from ledgermq.filters.functions import FilterMessage
    from ledgermq.offset_stores.contract import GivenPartition, OffsetEntry, OffsetStore, StoredOffset

    __version__: str

__all__ = [
    "Access",
    "AccessDecision",
    "AccessRule",
    "AddedBundles",
    "BatchDelivery",
    "BatchResult",
    "BrokerDescription",
    "BrokerReport",
    "BundleBalance",
    "BundleDescription",
    "BundleLoads",
    "Change",
    "CheckedMessage",
    "Client",
    "ClientTraffic",
    "ClusterDescription",
    "ConnectionDescription",
    "Consumer",
    "CostReport",
    "CutBundle",
    "CutDescription",
    "CutFile",
    "CutPartition",
    "Cuts",
    "DeadLetter",
    "DeadLetterAdmin",
    "DeadLetterCounts",
    "DeadLetterFilter",
    "DeadLetterList",
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
    "GroupLag",
    "GroupMessage",
    "GroupOffset",
    "GroupRead",
    "GroupSummary",
    "HalfMessage",
    "HalfMessages",
    "Handler",
    "KeptCost",
    "KeptPartition",
    "Lag",
    "LeaseAnswer",
    "LeaseResult",
    "LeasedMessage",
    "LedgerMQError",
    "LetterPlace",
    "Like",
    "MemberDescription",
    "Message",
    "MessageCopy",
    "MessageDescription",
    "MessageId",
    "MessageTrace",
    "NewToken",
    "OffsetEntry",
    "OffsetStore",
    "Outgoing",
    "Page",
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
    "QueueRead",
    "QuotaDescription",
    "QuotaUse",
    "Quotas",
    "RebalanceMove",
    "RebalanceResult",
    "RecallOutcome",
    "Record",
    "Reply",
    "Retry",
    "RetryCopies",
    "SchemaDescription",
    "SchemaField",
    "SchemaSerializer",
    "Schemas",
    "Search",
    "SendResult",
    "SentOnce",
    "Serializer",
    "Shift",
    "Spill",
    "SpillState",
    "Spilled",
    "SpilledBatch",
    "StagedTransaction",
    "StoredBy",
    "StoredOffset",
    "SubjectDescription",
    "Table",
    "TableAdmin",
    "TableDescription",
    "TablePartition",
    "TableSummary",
    "Tls",
    "TokenDescription",
    "TopicAdmin",
    "TopicChange",
    "TopicCost",
    "TopicDescription",
    "TopicPartition",
    "TopicSpec",
    "Transaction",
    "TransactionClient",
    "TransactionDescription",
    "TransactionList",
    "TransactionOutcome",
    "TransactionPart",
    "Transactions",
    "TwoPhase",
    "UndecodedValue",
    "UndecodedValues",
    "UnresolvedAdmin",
    "UnresolvedMessage",
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

_MODULES = {
    "client.admin.access": ("Access", "AccessDecision", "AccessRule", "NewToken", "TokenDescription"),
    "client.client": ("Client",),
    "client.connecting": ("connect",),
    "client.consuming.consumer": ("Consumer",),
    "client.consuming.described": ("MessageDescription", "StoredBy"),
    "client.consuming.message": ("Message",),
    "client.paging.pages": ("Page",),
    "client.consuming.reader": ("FilterCounts",),
    "client.delayed": ("DelayedBundle", "DelayedList", "DelayedMessage", "DelayedRange", "RecallOutcome"),
    "client.admin.brokers.costs": ("ClientTraffic", "CostReport"),
    "client.admin.brokers.reports": ("BrokerReport", "ConnectionDescription", "KeptCost", "TopicCost"),
    "client.admin.deletion": ("DeletedRecords",),
    "client.admin.topic_admin": ("TopicAdmin",),
    "client.admin.topic_plan": ("TopicChange", "TopicSpec"),
    "client.messages.descriptions": (
        "AddedBundles",
        "BrokerDescription",
        "BundleDescription",
        "BundleLoads",
        "ClusterDescription",
        "PartitionDescription",
        "PartitionHolder",
        "TopicDescription",
        "TopicPartition",
    ),
    "client.finding": ("Search",),
    "client.groups.admin.descriptions": ("GroupDescription", "GroupLag", "GroupSummary", "MemberDescription"),
    "client.groups.admin.group_admin": ("GroupAdmin",),
    "client.groups.admin.resets": ("Like", "PlannedReset", "Shift"),
    "client.groups.group_consumer": ("GroupConsumer",),
    "client.groups.handlers.handler": ("Handler",),
    "client.groups.handlers.retry": ("Retry",),
    "client.groups.lag": ("Lag",),
    "client.groups.message": ("GroupMessage",),
    "client.messages.message_id": ("MessageId",),
    "client.operating.dead_letters": (
        "DeadLetter",
        "DeadLetterAdmin",
        "DeadLetterCounts",
        "DeadLetterFilter",
        "DeadLetterList",
        "LetterPlace",
        "RetryCopies",
    ),
    "client.admin.rebalancing": ("BundleBalance", "KeptPartition", "RebalanceMove", "RebalanceResult"),
    "client.operating.tracing": ("GroupRead", "MessageCopy", "MessageTrace", "QueueRead"),
    "client.operating.unresolved": ("UnresolvedAdmin", "UnresolvedMessage"),
    "client.producing.delivery": (
        "BatchDelivery",
        "BatchResult",
        "Deliveries",
        "Delivery",
        "SendResult",
        "Spilled",
        "SpilledBatch",
    ),
    "client.producing.producer": ("Producer",),
    "client.queues.admin": ("QueueAdmin", "QueueDescription", "QueueMember", "QueuePartition"),
    "client.queues.leases.answering": ("LeaseAnswer", "LeaseResult"),
    "client.queues.leases.leasing": ("LeasedMessage",),
    "client.queues.message": ("QueueMessage", "Reply"),
    "client.queues.queue": ("Queue",),
    "client.queues.runner": ("QueueHandler",),
    "client.admin.quotas": ("QuotaDescription", "QuotaUse", "Quotas"),
    "client.messages.record": ("Outgoing", "Record"),
    "client.settings.serializers": ("Serializer",),
    "client.settings.spill": ("Spill", "SpillState"),
    "client.schemas.admin": ("Schemas",),
    "client.schemas.descriptions": ("SchemaDescription", "SchemaField", "SubjectDescription"),
    "client.schemas.serializer": ("SchemaSerializer",),
    "client.cuts.admin": ("CutBundle", "CutDescription", "CutFile", "CutPartition", "Cuts"),
    "client.tables.admin": ("TableAdmin", "TableDescription", "TablePartition", "TableSummary"),
    "client.tables.rows": ("Change",),
    "client.tables.table": ("Table",),
    "client.tables.undecoded": ("UndecodedValue", "UndecodedValues"),
    "client.settings.tls": ("Tls",),
    "client.transactions.admin": ("StagedTransaction", "TransactionDescription", "TransactionList", "TransactionPart"),
    "client.transactions.checks": ("CheckedMessage",),
    "client.transactions.decisions": ("TransactionOutcome",),
    "client.transactions.half_messages": ("HalfMessage", "HalfMessages"),
    "client.transactions.transaction": ("Transaction",),
    "client.transactions.once": ("SentOnce",),
    "client.transactions.sending.group_offsets": ("GroupOffset",),
    "client.transactions.transactions": ("TransactionClient", "Transactions"),
    "client.transactions.two_phase.two_phase": ("TwoPhase",),
    "client.transactions.two_phase.xid": ("Xid",),
    "errors": ("LedgerMQError",),
    "filters.functions": ("FilterMessage",),
    "client.consuming.frames": ("to_pandas", "to_polars"),
    "offset_stores.contract": ("GivenPartition", "OffsetEntry", "OffsetStore", "StoredOffset"),
}
"""Where the public names are. A name is imported when a program first uses it, so a command that needs no client
starts without gRPC and Arrow. Type checkers read the imports above.
"""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # otherwise type checkers would take any name for one of this module

    def __getattr__(name: str) -> Any:  # imports a public name, or a module of this package, and keeps it
        return globals().setdefault(name, _found(name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def _found(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(f"ledgermq.{_MODULE_OF[name]}"), name)
    if name == "__version__":
        return _version()
    if not name.startswith("_") and find_spec(f"ledgermq.{name}") is not None:
        return import_module(f"ledgermq.{name}")
    errors = import_module("ledgermq.errors")
    place = f"; it is ledgermq.errors.{name}" if hasattr(errors, name) else ""
    raise AttributeError(f"module 'ledgermq' has no attribute {name!r}{place}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ledgermq")
    except PackageNotFoundError:  # running from a checkout that was not installed
        return "0"
