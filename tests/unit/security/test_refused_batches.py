"""Answers in which some batches are refused before the others are passed on."""

from __future__ import annotations

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.access.wrappers.refused_batches import merged


def test_an_answer_keeps_all_that_it_says_beside_its_results() -> None:
    refusal = pb.Error(code="UNAUTHORIZED")
    stored = [pb.ProduceResult(base_offset=7), pb.ProduceResult(base_offset=9)]
    answer = pb.ProduceResponse(results=stored, number=3, put_ms=60)
    assert merged(answer, [None, refusal, None]) == pb.ProduceResponse(
        results=[stored[0], pb.ProduceResult(error=refusal), stored[1]], number=3, put_ms=60
    )
