"""LedgerMQ without asyncio: the same names, driving the one asynchronous implementation on a
background thread.

    with ledgermq.sync.connect("localhost:9650") as client:
        with client.producer() as producer:
            print(producer.send("flights", b"...", key=b"UA").result())
        for message in client.consumer("flights"):
            ...

Each client has one thread with one event loop. A client, and the objects that it made, may be used
from any thread, but only by one thread at a time; messages may be acknowledged from any thread.
Calls block; Ctrl-C interrupts them. They have the deadlines of the asynchronous calls that they
wait for.
"""

from __future__ import annotations

from ledgermq.sync.client import Client, connect
from ledgermq.sync.consuming import Consumer, GroupConsumer
from ledgermq.sync.finding import Search
from ledgermq.sync.generated.cuts import Cuts
from ledgermq.sync.generated.half_messages import HalfMessage
from ledgermq.sync.generated.operating import DeadLetterAdmin, UnresolvedAdmin
from ledgermq.sync.generated.queues import QueueAdmin
from ledgermq.sync.generated.schemas import Schemas
from ledgermq.sync.generated.table_admin import TableAdmin
from ledgermq.sync.generated.topics import TopicAdmin
from ledgermq.sync.listening import Listener
from ledgermq.sync.producing import Delivery, Producer
from ledgermq.sync.queues import Queue
from ledgermq.sync.tables import Table
from ledgermq.sync.transactions.half_messages import HalfMessages
from ledgermq.sync.transactions.transaction_admin import TransactionClient
from ledgermq.sync.transactions.transactions import Transaction, Transactions, TwoPhase

__all__ = [
    "Client",
    "Consumer",
    "Cuts",
    "DeadLetterAdmin",
    "Delivery",
    "GroupConsumer",
    "HalfMessage",
    "HalfMessages",
    "Listener",
    "Producer",
    "Queue",
    "QueueAdmin",
    "Schemas",
    "Search",
    "Table",
    "TableAdmin",
    "TopicAdmin",
    "Transaction",
    "TransactionClient",
    "Transactions",
    "TwoPhase",
    "UnresolvedAdmin",
    "connect",
]
