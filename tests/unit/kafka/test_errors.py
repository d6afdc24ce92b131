"""Every error of ours has a code in each area, and the codes that clients act on are the right ones."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from ledgermq import errors
from ledgermq.errors import BY_CODE, LedgerMQError
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of, error_of

NOT_SEEN_BY_KAFKA_CLIENTS = {
    # of our own client, or of calls that the Kafka protocol has not
    *("BAD_VALUE", "CLOSED", "USED_ELSEWHERE", "PARTITION_BUSY", "COMMIT_GOES_BACK", "NO_REPLY", "SEARCH_STOPPED"),
    *("PRODUCER_FENCED", "PRODUCER_ERROR", "TRANSACTION_ERROR", "GROUP_ERROR", "INTERNAL"),
}


def test_codes_have_the_numbers_and_names_of_another_implementation() -> None:
    assert {code.name: code.value for code in Code} == {code.name.upper(): code.value for code in ErrorCode}


@pytest.mark.parametrize("area", list(Area))
def test_every_error_that_a_client_can_meet_has_a_code(area: Area) -> None:
    unknown = {
        code for code, kind in BY_CODE.items() if code_of(kind("x"), area) in (Code.UNKNOWN_SERVER_ERROR, Code.NONE)
    }
    assert unknown <= NOT_SEEN_BY_KAFKA_CLIENTS


@pytest.mark.parametrize("area", list(Area))
def test_an_error_that_may_be_repeated_never_becomes_a_permanent_code(area: Area) -> None:
    """librdkafka takes codes that it does not know for permanent, and drops the messages."""
    retried = {2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 56, 89}
    for kind in BY_CODE.values():
        if kind.retriable and not (kind is errors.TopicBeingDeleted and area is Area.ADMIN):
            assert code_of(kind("x"), area) in retried, kind


@pytest.mark.parametrize("code", [code for code in Code if code != Code.NONE])
def test_a_code_becomes_an_error_that_is_repeated_only_if_clients_repeat_it(code: Code) -> None:
    error = error_of(code)
    assert code.name in error.message or type(error) is not LedgerMQError
    if code in (Code.NOT_LEADER_OR_FOLLOWER, Code.REQUEST_TIMED_OUT, Code.NOT_ENOUGH_REPLICAS):
        assert error.retriable
    if code in (Code.INVALID_RECORD, Code.POLICY_VIOLATION, Code.MESSAGE_TOO_LARGE):
        assert not error.retriable


def test_a_code_of_a_newer_release_is_an_error_nevertheless() -> None:
    assert "9999" in error_of(9999).message


def test_a_class_may_choose_its_code() -> None:
    class WrongCrc(errors.CorruptFrame):
        kafka_code = 2

    assert code_of(WrongCrc("x"), Area.PRODUCE) is Code.CORRUPT_MESSAGE
    assert code_of(errors.CorruptFrame("x"), Area.PRODUCE) is Code.INVALID_RECORD
