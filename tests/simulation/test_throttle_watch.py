"""The judge of quotas, by itself: what it takes from the buckets of a principal."""

from __future__ import annotations

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.access.state.quotas import Limit, Quota, Subject
from tests.judges.violation import Violation
from tests.simulation.throttle_watch import Place, QuotaTruth

BOUND = 5


def refusal(limit: Limit, bound: int) -> pb.Error:
    return pb.Error(message=f"user:cat has reached its quota at this broker: {limit.value} {bound}", retry_after_ms=1)


@pytest.mark.parametrize(("answered_late", "is_wrong"), [(BOUND, False), (BOUND - 1, True)])
def test_a_call_that_finds_no_room_for_its_answer_counts_as_a_request(answered_late: int, is_wrong: bool) -> None:
    """So a principal whose calls were let in, and refused above `bytes_out` later, has used its requests up."""
    now = [0.0]
    truth = QuotaTruth(lambda: now[0])
    subject = Subject("user:cat")
    truth.begin(subject, Quota(bytes_out=100, requests=BOUND))
    truth.answered(subject)
    place = Place(truth, 1, "b0", "user:cat")
    now[0] = 10.0
    for _ in range(answered_late):
        assert place.came({Limit.REQUESTS: 1}).refused_by(refusal(Limit.BYTES_OUT, 100))
    assert place.came({Limit.REQUESTS: 1}).refused_by(refusal(Limit.REQUESTS, BOUND))
    wrong = [found.kind for found in truth.judge() if isinstance(found, Violation)]
    assert wrong == (["refused below a quota"] if is_wrong else [])
