"""Errors survive the wire; what is not ours becomes one of ours."""

from __future__ import annotations

import grpc
import pytest

from ledgermq import errors
from ledgermq.errors import BY_CODE, LedgerMQError
from ledgermq.protocol import status


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=lambda kind: kind.code)
def test_every_error_comes_back_as_it_was(kind: type[LedgerMQError]) -> None:
    sent = kind("what happened: é €", retry_after_ms=250, owner="host:1", object_key="ledgers/0001/segments/5")
    got = status.error_from_status(status.status_code(sent), "details", status.trailing_metadata(sent), "host:2")
    assert type(got) is kind
    assert vars(got) == vars(sent)


def test_absent_fields_come_back_absent() -> None:
    got = status.error_from_proto(status.error_to_proto(errors.UnknownTopic("no")))
    assert (got.retry_after_ms, got.owner, got.object_key) == (None, None, None)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.CANCELLED, errors.Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Unavailable),
        (grpc.StatusCode.UNKNOWN, errors.Unavailable),
        (grpc.StatusCode.INTERNAL, errors.Unavailable),
        (grpc.StatusCode.UNAUTHENTICATED, errors.Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, errors.Unauthorized),
        (grpc.StatusCode.UNIMPLEMENTED, errors.InvalidRequest),
        (grpc.StatusCode.ABORTED, LedgerMQError),
    ],
)
def test_a_status_without_our_metadata_is_still_typed(code: grpc.StatusCode, kind: type[LedgerMQError]) -> None:
    got = status.error_from_status(code, "details", (), "host:1")
    assert type(got) is kind
    assert "host:1" in got.message


def test_grpc_s_own_size_limit_is_message_too_large() -> None:
    text = "Received message larger than max (40000000 vs. 34603072)"
    assert type(status.error_from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, text, (), "h:1")) is errors.MessageTooLarge


def test_metadata_that_is_garbage_falls_back_to_the_status() -> None:
    got = status.error_from_status(grpc.StatusCode.UNAVAILABLE, "", ((status.ERROR_KEY, b"\xff\xff"),), "h:1")
    assert type(got) is errors.Unavailable


def test_an_endless_text_is_cut() -> None:
    sent = errors.StoreError("x" * 1_000_000)
    assert len(status.error_to_proto(sent).SerializeToString()) < 3000


@pytest.mark.parametrize("text", ["\udcff", "a\ud800b", "\0", "ä" * 5000])
@pytest.mark.parametrize("retry_after_ms", [None, -1, 0, 7, 2**40])
def test_any_error_can_be_sent(text: str, retry_after_ms: int | None) -> None:
    """Names of files may be no text, and stores may ask for any pause."""
    sent = status.error_to_proto(errors.DataDamaged(text, retry_after_ms=retry_after_ms, owner=text, object_key=text))
    back = status.error_from_proto(type(sent).FromString(sent.SerializeToString()))
    assert isinstance(back, errors.DataDamaged)
    assert back.retry_after_ms is None or 0 < back.retry_after_ms <= 2**31


def test_an_older_client_reads_a_code_that_it_knows() -> None:
    """It knows `code`, by which it finds the class; a code that it does not know would be INTERNAL."""
    sent = status.error_to_proto(errors.Unauthenticated("who are you?"))
    assert (sent.code, sent.exact_code) == ("UNAUTHORIZED", "UNAUTHENTICATED")
    assert status.status_code(errors.Unauthenticated("")) is grpc.StatusCode.UNAUTHENTICATED
    assert status.status_code(errors.Unauthorized("")) is grpc.StatusCode.PERMISSION_DENIED


def test_an_older_broker_and_a_newer_one_are_understood() -> None:
    older = status.error_from_proto(type(status.error_to_proto(LedgerMQError("")))(code="UNAUTHORIZED"))
    assert type(older) is errors.Unauthorized
    newer = status.error_to_proto(errors.Unauthorized("no"))
    newer.exact_code = "A_CODE_OF_THE_FUTURE"
    assert type(status.error_from_proto(newer)) is errors.Unauthorized


@pytest.mark.parametrize("details", ["Internal error from Core", "Socket closed"])
def test_a_connection_that_broke_off_is_told_in_words(details: str) -> None:
    found = status.error_from_status(grpc.StatusCode.UNAVAILABLE, details, (), "a:9650")
    assert isinstance(found, errors.Unavailable)
    assert found.message == "a:9650: the connection broke off during the call; the broker may have ended"
