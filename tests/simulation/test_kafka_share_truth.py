"""The judge of share groups of Kafka clients finds what it is for."""

from __future__ import annotations

from tests.broker.kafka_sharers import Got
from tests.simulation.history import FinalLog
from tests.simulation.kafka_share_truth import SharesTruth

LOGS = {0: FinalLog({0: "a", 1: "b", 2: "c"}, log_start=0)}


def kinds(truth: SharesTruth, *letters: str) -> list[str]:
    return [violation.kind for violation in truth.judge(LOGS, letters)]


def test_a_message_is_accepted_or_in_doubt_or_a_dead_letter() -> None:
    truth = SharesTruth()
    truth.counts((0, 0), 1.0)
    truth.unsure.add((0, 1))
    assert kinds(truth, "c") == []
    assert kinds(truth) == ["share group lost a message"]


def test_what_retention_took_is_not_missed() -> None:
    truth = SharesTruth()
    logs = {0: FinalLog({0: "a", 1: "b"}, log_start=2)}
    assert list(truth.judge(logs, ())) == []


def test_a_message_that_was_accepted_does_not_come_again() -> None:
    truth = SharesTruth(unsure={(0, 1), (0, 2)})
    truth.counts((0, 0), 5.0)
    truth.granted(Got(0, 0, b"a", 2), 4.0)
    assert kinds(truth) == [], "it was leased before the answer"
    truth.granted(Got(0, 0, b"a", 2), 5.5)
    assert kinds(truth) == ["acknowledged message came again"]


def test_one_member_accepts_a_message() -> None:
    truth = SharesTruth(unsure={(0, 1), (0, 2)})
    truth.counts((0, 0), 5.0)
    truth.counts((0, 0), 6.0)
    assert kinds(truth) == ["message accepted twice"]
