"""Uses of the client as its users' type checkers see them; tests/unit/test_typed_uses.py runs mypy and
pyright over this file.

A line that ends with `# wrong` must be refused, all others accepted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]

import ledgermq
from ledgermq import Retry, Serializer, sync


@dataclass
class Order:
    amount: int


async def names(client: ledgermq.Client) -> None:
    client.nonsense()  # wrong
    print(ledgermq.nonsense)  # wrong

    await ledgermq.connect("x", timeout="abc").__aenter__()  # wrong
    async with ledgermq.connect("x", timeout_s=3, client_id="billing") as other:
        await other.list_topics()


def without_asyncio() -> None:
    with ledgermq.sync.connect("x", timeout_s=3) as client:
        client.nonsense()  # wrong
        client.producer(lingerms=5)  # wrong
        with client.producer(linger_ms=5) as producer:
            producer.send("t", b"v").result(3)
        with client.consumer("t", group="g", commit="acked") as consumer:
            consumer.nonsense()  # wrong
    with sync.connect("x") as client:
        client.listen("t", print, group="g", concurrency=3).close()
        client.listen("t", print, group="g", concurency=3)  # wrong


async def settings(client: ledgermq.Client) -> None:
    client.producer(lingerms=5)  # wrong
    client.producer(linger_ms="five")  # wrong
    client.producer(acks="durably")  # wrong
    client.producer(linger_ms=5, acks="received", serializer=Serializer.json())
    client.consumer("t", group="g", commit="autoo")  # wrong
    client.consumer("t", commit="auto")  # wrong
    client.consumer("t", group="g", commit="acked", retry=Retry.levels(), on_lost=print)
    client.consumer("t", deserializer=Serializer.pydantic(Order), filter="a || b")
    client.queue("t", group="g", lease_s=10)
    client.queue("t", group="g", leases=10)  # wrong
    client.table("t", table_bytes_max=10)
    client.transactions("app", linger_ms=5)
    client.transactions("app", linger=5)  # wrong


def handlers(client: ledgermq.Client) -> None:
    @client.handler("t", group="g", concurrency=8, ordered_by="key", start="latest", retry=Retry.in_order())
    async def handle(message: ledgermq.GroupMessage) -> None:
        print(message.value, message.attempt)

    client.handler("t", group="g", concurency=8)  # wrong
    client.handler("t", group="g", ordered_by="keys")  # wrong
    client.queue_handler("t", group="g", concurrency=8, lease_s=10, start="latest")
    client.queue_handler("t", group="g", ordered_by="key")  # wrong


async def sending(producer: ledgermq.Producer) -> None:
    result = await producer.send("t", b"v")
    print(result.offset)
    results = await (await producer.send_many("t", [b"v"]))
    print(results[0].offset, results.offset)  # wrong
    batches = await (await producer.send_batch("t", pa.table({"value": [b"v"]})))
    print(batches[0].base_offset)
    deliveries = await asyncio.create_task(producer.send_many("t", (b"v" for _ in range(3))))
    print(len(deliveries))


def serializers(plain: Serializer) -> None:
    orders = Serializer.pydantic(Order)
    orders.to_bytes(Order(3))
    orders.to_bytes("an order")  # wrong
    amount: int = orders.from_bytes(b"{}").amount
    print(amount, orders.from_bytes(b"{}").nonsense)  # wrong
    plain.to_bytes(3)
    Serializer.json().to_bytes([3])


async def sending_values(client: ledgermq.Client, threads: sync.Client) -> None:
    orders = Serializer.pydantic(Order)
    producer = client.producer(serializer=orders, linger_ms=5)
    await producer.send("t", Order(3), key="k")
    await producer.send("t", None, "k")
    producer.send("t", "an order")  # wrong
    await producer.send_many("t", [Order(3), ledgermq.Record(Order(4), key=b"k")])
    await producer.send_many("t", ["an order"])  # wrong
    of_texts: ledgermq.Producer[str] = producer  # wrong
    of_anything: ledgermq.Producer = producer
    of_anything.send("t", "an order")
    client.producer().send("t", b"v")
    client.producer(interceptors=[lambda record: record]).send("t", {"amount": 3})
    print(of_texts)
    async with client.transactions("app", serializer=orders) as transactions, transactions.begin() as transaction:
        transaction.send("t", Order(3), timeout=3)
        transaction.send("t", 3)  # wrong
    async with client.transactions.two_phase(serializer=orders) as branch:
        branch.send("t", Order(3))
        branch.send("t", 3)  # wrong
    async with client.half_messages("g", check=lambda message: "commit", serializer=orders) as half:
        await half.send("t", Order(3))
        await half.send("t", 3)  # wrong
    with threads.producer(serializer=orders) as sender:
        sender.send("t", Order(3)).result(3)
        sender.send("t", 3)  # wrong
        sender.send_many("t", [3])  # wrong
    with threads.transactions("app", serializer=orders) as several, several.begin() as one:
        one.send("t", Order(3))
        one.send("t", 3)  # wrong
        one.send("t", Order(3), b"k", expected_end=3)  # wrong


async def values(client: ledgermq.Client) -> None:
    orders = Serializer.pydantic(Order)
    async for message in client.consumer("t", deserializer=orders):
        print(message.value.amount, message.value.nonsense)  # wrong
    consumer = client.consumer("t", group="g", deserializer=orders, commit="acked")
    for received in await consumer.fetch():
        amount: int = received.value.amount
        print(amount, received.value.nonsense, received.ack())  # wrong
    async with client.queue("t", group="q", deserializer=orders) as queue:
        for leased in await queue.fetch():
            print(leased.value.amount, leased.value.nonsense)  # wrong
    for plain in await client.consumer("t", until_end=True).fetch():
        print(plain.value.decode())

    @client.handler("t", group="g", retry=Retry.levels())
    async def handle(message: ledgermq.GroupMessage[Order]) -> None:
        print(message.value.amount, message.value.nonsense)  # wrong


def handlers_of_values(client: ledgermq.Client, threads: sync.Client, texts: Serializer[str]) -> None:
    orders = Serializer.pydantic(Order)

    @client.handler("t", group="g", deserializer=orders)
    async def handle(message: ledgermq.GroupMessage[Order]) -> None:
        print(message.value.amount)

    @client.handler("t", group="g", deserializer=orders)  # wrong
    async def handle_text(message: ledgermq.GroupMessage[str]) -> None:
        print(message.value.upper())

    @client.handler("t", group="g", deserializer=orders, batch=True)
    async def handle_many(messages: list[ledgermq.GroupMessage[Order]]) -> None:
        print(messages[0].value.amount)

    @threads.queue_handler("t", group="g", deserializer=orders)
    def work(message: ledgermq.QueueMessage[Order]) -> None:
        print(message.value.amount)

    @threads.queue_handler("t", group="g", deserializer=orders, batch=True)  # wrong
    def work_on_texts(messages: list[ledgermq.QueueMessage[str]]) -> None:
        print(messages[0].value.upper())

    def plain(message: ledgermq.GroupMessage) -> None:
        print(message.value.anything)

    def failed(message: ledgermq.GroupMessage[Order], error: Exception, attempt: int) -> None:
        print(message.value.amount, error, attempt)

    async def of_orders(handler: ledgermq.Handler[Order], worker: ledgermq.QueueHandler[Order]) -> None:
        await client.run_handlers(handler, worker)

    print(of_orders(handle, work), of_orders(handle_many, work))
    print(of_orders(work, handle))  # wrong
    client.handler("t", group="g", deserializer=orders)(plain)
    client.handler("t", group="g", deserializer=orders, on_failure=failed)(lambda message: message.value.amount)
    client.handler("t", group="g", deserializer=texts, on_failure=failed)  # wrong
    threads.listen("t", plain, group="g", deserializer=orders)
    threads.listen("t", lambda message: print(message.value.amount), group="g", deserializer=orders)
    threads.listen("t", handle.function, group="g", deserializer=texts)  # wrong


async def tables(client: ledgermq.Client, threads: sync.Client) -> None:
    orders = Serializer.pydantic(Order)
    table = client.table("t", deserializer=orders)
    amounts: list[int] = [order.amount for order in table.values()]
    order: Order | None = table.get("k")
    print(amounts, order, table["k"].amount, table.get("k", Order(3)).amount, dict(table.items())[b"k"].amount)
    print(table["k"].nonsense)  # wrong
    table.get("k", b"none")  # wrong
    async for change in table.changes(existing=True):
        if change.value is not None and change.message is not None:
            print(change.value.amount, change.message.value.nonsense)  # wrong
    raw: ledgermq.Table = client.table("t", table_bytes_max=10)
    print(raw.get("k", b"none").decode(), raw["k"].amount)  # wrong
    with threads.table("t", deserializer=orders) as view:
        print(view["k"].amount, [each.amount for each in view.values()])
        print(view["k"].nonsense)  # wrong
        for changed in view.changes():
            print(changed.value.amount)  # wrong


async def replies(client: ledgermq.Client, threads: sync.Client) -> None:
    reply: bytes = (await client.request("t", b"ping")).value
    print(reply, (await client.request("t", b"ping")).value.nonsense)  # wrong
    print(threads.request("t", b"ping").value.decode(), threads.request("t", b"ping").value.nonsense)  # wrong


def values_without_asyncio(client: sync.Client) -> None:
    orders = Serializer.pydantic(Order)
    for message in client.consumer("t", deserializer=orders):
        print(message.value.amount, message.value.nonsense)  # wrong
    for received in client.consumer("t", group="g", deserializer=orders).fetch():
        print(received.value.amount, received.value.nonsense)  # wrong
    with client.queue("t", group="q", deserializer=orders) as queue:
        for leased in queue.fetch():
            print(leased.value.amount, leased.value.nonsense)  # wrong
    kept: list[ledgermq.Message] = client.consumer("t").fetch()
    print(kept[0].value.decode())
