"""FastStream: each order makes an invoice, each invoice is noted. The arguments: the Kafka port's address, how many."""

import asyncio
import sys

from faststream import FastStream
from faststream.kafka import KafkaBroker

broker = KafkaBroker(sys.argv[1])
app = FastStream(broker)
wanted = int(sys.argv[2])
seen: list[dict[str, int]] = []


@broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest")
@broker.publisher("invoices")
async def bill(order: dict[str, int]) -> dict[str, int]:
    return {"order": order["id"], "euros": order["cups"] * 3}


@broker.subscriber("invoices", group_id="post", auto_offset_reset="earliest")
async def post(invoice: dict[str, int]) -> None:
    seen.append(invoice)
    if len(seen) == wanted:
        app.exit()


@app.after_startup
async def order() -> None:
    for number in range(wanted):
        await broker.publish({"id": number, "cups": number % 4}, "orders", key=str(number % 5).encode())


asyncio.run(app.run())
print(len({invoice["order"] for invoice in seen}), sum(invoice["euros"] for invoice in seen))
