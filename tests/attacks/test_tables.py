"""Tables of a bundle that one principal fills on a real broker, with the sizes that brokers have, while another one
works.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pyarrow as pa
import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.methods import INIT_TRANSACTIONS, PRODUCE_ONCE, STAGE
from ledgermq.protocol.naming.message_ids import MESSAGE_ID
from ledgermq_broker.bundle.committing.new_producers import REFILL_S
from tests.attacks.cluster import SLOW_S, Attacked, attacked, raw_channel, unary
from tests.broker.cluster import batch_header, encoded
from tests.virtual_time import EPOCH_US

WEEK_MS = str(7 * 24 * 3600 * 1000)
HALVES = {"message_ids": 50_000, "staged_batches": 70_000, "new_producers": 50_000}
"""Half of the entries that each of these tables takes."""

Attack = Callable[[Attacked, grpc.aio.Channel, int], Awaitable[list[pb.Error]]]
"""Take some thousand entries more, as attempt `n`; the errors of what was refused."""
AT_ONCE = {"message_ids": 20_000, "staged_batches": 4_000, "new_producers": 1_000}


def id_batch(n: int, rows: int) -> bytes:
    columns = [
        pa.nulls(rows, pa.binary()),
        pa.array([b"v"] * rows, pa.binary()),
        pa.array([[(MESSAGE_ID, b"%d-%d" % (n, row))] for row in range(rows)], SCHEMA.field("headers").type),
        pa.array([EPOCH_US] * rows, SCHEMA.field("timestamp").type),
        pa.array([0] * rows, pa.int32()),
        pa.nulls(rows, pa.string()),
    ]
    return encode_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


async def produced(at: Attacked, channel: grpc.aio.Channel, frame: Frame[pb.ProduceHeader]) -> list[pb.Error]:
    call, request = unary(channel, PRODUCE_ONCE), PRODUCE_ONCE.encode_request(frame)
    while True:
        try:
            answer = await call(request, metadata=at.metadata("mallory"), timeout=SLOW_S)
            break
        except grpc.aio.AioRpcError as error:  # the lease of the rules, while the machine has no time for the broker
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
    return [result.error for result in pb.ProduceResponse.FromString(answer).results if result.HasField("error")]


async def ids(at: Attacked, channel: grpc.aio.Channel, n: int) -> list[pb.Error]:
    rows = AT_ONCE["message_ids"]
    data = id_batch(n, rows)
    return await produced(at, channel, Frame(pb.ProduceHeader(batches=[batch_header("mine", 0, data, rows)]), [data]))


async def producers(at: Attacked, channel: grpc.aio.Channel, n: int) -> list[pb.Error]:
    data, count = encoded([b"v"]), AT_ONCE["new_producers"]
    batches = [
        batch_header("mine", 0, data, 1, pb.ProducerSession(id=b"%08d%08d" % (n, each), opened_slot=1_000_000))
        for each in range(count)
    ]
    return await produced(at, channel, Frame(pb.ProduceHeader(batches=batches), [data] * count))


async def staged(at: Attacked, channel: grpc.aio.Channel, n: int) -> list[pb.Error]:
    data, count, name = encoded([b"v"]), AT_ONCE["staged_batches"], f"mine-{n}"
    request = pb.InitTransactionsRequest(transactional_id=name, timeout_ms=900_000).SerializeToString()
    answer = await unary(channel, INIT_TRANSACTIONS)(request, metadata=at.metadata("mallory"), timeout=SLOW_S)
    made = pb.InitTransactionsResponse.FromString(answer)
    header = pb.StageHeader(
        transaction=pb.TransactionRef(
            transactional_id=name,
            coordinator=made.coordinator,
            producer_id=made.producer_id,
            epoch=made.epoch,
            number=1,
        )
    )
    for sequence in range(count):
        header.batches.add(batch=batch_header("mine", 0, data, 1), sequence=sequence)
    frame = STAGE.encode_request(Frame(header, [data] * count))
    stage: Any = channel.stream_stream(STAGE.path)  # type: ignore[call-arg]  # the stubs want serializers
    [answer] = [each async for each in stage(iter([frame]), metadata=at.metadata("mallory"), timeout=SLOW_S)]
    return [result.error for result in pb.StageResponse.FromString(answer).results if result.HasField("error")]


async def works(at: Attacked) -> None:
    """What the victim does, of all that uses these tables."""
    async with at.client("victim") as client, client.producer() as producer:
        assert not (await producer.send("once", b"v", id="order-1")).duplicate
        assert (await producer.send("once", b"v", id="order-1")).duplicate
        async with client.transactions("payments") as transactions, transactions.begin() as transaction:
            await transaction.send("once", b"v")


ATTACKS: dict[str, Attack] = {"message_ids": ids, "staged_batches": staged, "new_producers": producers}


@pytest.mark.slow
@pytest.mark.parametrize("table", ATTACKS)
async def test_a_principal_fills_its_share_of_a_table_and_no_other_one_notices(tmp_path: Path, table: str) -> None:
    """Each of these was full for all within ten seconds: ids for seven days, staged batches for 15 minutes, and
    producers of others were forgotten.
    """
    async with (
        attacked(tmp_path, "--bundles", "2") as at,
        raw_channel(at) as channel,
        at.client("root") as root,
        at.client("victim") as victim,
        victim.producer() as producer,
    ):
        for topic in ("mine", "once"):
            await root.create_topic(topic, 1, settings={"dedup.window.ms": WEEK_MS})
        await producer.send("once", b"before")
        await works(at)
        half, taken, refused, begun = HALVES[table], 0, list[pb.Error](), time.monotonic()
        for n in range(10 * half // AT_ONCE[table]):
            errors = await ATTACKS[table](at, channel, n)
            taken += AT_ONCE[table] - (AT_ONCE[table] if table != "staged_batches" and errors else len(errors))
            refused += errors[:1]
            if errors:
                break
        assert {(error.exact_code, error.limit) for error in refused} == {("QUOTA_EXCEEDED", table)}
        refilled = (time.monotonic() - begun) * half / REFILL_S if table == "new_producers" else 0
        assert half - AT_ONCE[table] < taken < half + AT_ONCE[table] + refilled
        assert not (await producer.send("once", b"after", id="order-2")).duplicate
        await works_again(at)
        [use] = await root.quotas.describe("user:mallory")
        assert use.used[table] == taken or table == "new_producers"


async def works_again(at: Attacked) -> None:
    async with at.client("victim") as client, client.producer() as producer:
        assert (await producer.send("once", b"v", id="order-1")).duplicate
        assert not (await producer.send("once", b"v", id="order-3")).duplicate
        async with client.transactions("payments") as transactions, transactions.begin() as transaction:
            await transaction.send("once", b"v")
