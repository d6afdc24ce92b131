"""Who may write the records that decide about unresolved half messages."""

from __future__ import annotations

import pytest

from ledgermq.errors import Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from tests.broker.access import RULES, change, codes_of, token
from tests.broker.cluster import Cluster, frame_of, in_cluster

TOPIC = "shop-checkers.unresolved"
PRODUCE = "allow user:ann produce shop*"


async def _codes(cluster: Cluster, who: str, topic: str) -> list[str]:
    """Write a record, and stage one; return the codes of the errors."""
    line, frame = cluster.line("a:1", who), frame_of(topic, 0, b"decision")
    batches = [pb.StageBatch(batch=batch) for batch in frame.header.batches]
    header = pb.StageHeader(transaction=pb.TransactionRef(transactional_id="ids-1"), batches=batches)

    async def once():  # type: ignore[no-untyped-def]
        yield Frame(header, frame.payload)

    answers = [await line.produce_once(frame), await anext(aiter(line.stage(once())))]
    return [next(iter(codes_of(answer)), "") for answer in answers]


@pytest.mark.parametrize(
    ("more", "may"),
    [
        ("", False),
        ("allow user:ann group shop", False),
        ("allow user:ann group shop-checkers", True),
        ("allow user:ann cluster", True),
    ],
)
@in_cluster("a:1", **RULES)
async def test_only_a_check_group_and_operators_write_to_its_unresolved_messages(
    cluster: Cluster, more: str, may: bool
) -> None:
    root = (await token(cluster, "root")).text
    await cluster.create(TOPIC, 1, root)
    await cluster.create("shop", 1, root)
    await change(cluster, grant=[PRODUCE, "allow user:ann transaction ids*", *([more] if more else [])])
    ann = (await token(cluster, "ann")).text
    codes = await _codes(cluster, ann, TOPIC)
    assert [code == Unauthorized.code for code in codes] == [not may, not may]
    assert not codes[0] or not may
    assert (await _codes(cluster, ann, "shop"))[0] == "", "other topics take the right to produce only"
    assert (await _codes(cluster, root, TOPIC))[0] == ""
