"""Xids as transactional ids: reversible, readable where they can be, within the limit of ids."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.transactions.two_phase.xid import FORMAT_ID_MAX, Xid, named, transactional_id_of, xid_from, xid_of
from ledgermq.errors import InvalidRequest
from ledgermq.protocol.naming.names import NAME_CHARS_MAX, is_name

XID_CHARS_MAX = 190

texts = st.text(max_size=64).filter(lambda text: len(text.encode()) <= 64)
plain = st.text("ab-_.09Z", max_size=64)
parts = texts | plain


@given(st.integers(0, FORMAT_ID_MAX), parts.filter(bool), parts)
def test_an_xid_comes_back_from_its_transactional_id(format_id: int, gtrid: str, bqual: str) -> None:
    xid = xid_of(format_id, gtrid, bqual)
    assert is_name(xid.transactional_id)
    assert len(xid.transactional_id) <= XID_CHARS_MAX <= NAME_CHARS_MAX
    assert xid_from(xid.transactional_id) == xid


@given(st.text("xid.01_-aQ=", min_size=1, max_size=40) | st.from_regex(r"xid\.[0-9]+\._?[A-Za-z]*\._?[A-Za-z]*"))
def test_every_transactional_id_comes_back_from_what_it_is_shown_as(name: str) -> None:
    if is_name(name):
        assert xid_from(name).transactional_id == name


@given(texts.filter(bool), texts, texts.filter(bool), texts)
def test_two_xids_have_two_ids(gtrid: str, bqual: str, other_gtrid: str, other_bqual: str) -> None:
    same = (gtrid, bqual) == (other_gtrid, other_bqual)
    assert (
        transactional_id_of(xid_of(1, gtrid, bqual)) == transactional_id_of(xid_of(1, other_gtrid, other_bqual))
    ) is same


def test_plain_names_can_be_read() -> None:
    assert transactional_id_of(Xid(7, "transfer-17", "")) == "xid.7.transfer-17."
    assert transactional_id_of(Xid(0, "a.b", "_c")) == "xid.0._YS5i._X2M"
    assert transactional_id_of(Xid(FORMAT_ID_MAX, "." * 64, "ä" * 32)).startswith("xid.2147483647._")
    assert len(transactional_id_of(Xid(FORMAT_ID_MAX, "." * 64, "ä" * 32))) == XID_CHARS_MAX


def test_the_xid_of_a_driver_and_an_id_are_taken_too() -> None:
    driver = psycopg.Xid.from_parts(7, "transfer-17", "ledger")
    assert transactional_id_of(driver) == "xid.7.transfer-17.ledger"
    assert transactional_id_of(psycopg.Xid.from_string("transfer-17")) == "transfer-17"
    assert transactional_id_of("transfer-17") == "transfer-17"
    assert xid_from("transfer-17") == Xid(None, "transfer-17", None)
    assert tuple(xid_of(1, "a", "b")) == (1, "a", "b")


@pytest.mark.parametrize("name", [None, 5, b"transfer-17", ("transfer-17", 1, 1)])
def test_what_is_neither_a_text_nor_an_xid_is_refused(name: Any) -> None:
    with pytest.raises(InvalidRequest, match="a text or an xid, not"):
        transactional_id_of(name)


@pytest.mark.parametrize(
    "name", ["xid.1.a", "xid.01.a.b", "xid.1..b", "xid.1._.b", "xid.1._YQ.b", "xid.9999999999.a.b"]
)
def test_an_id_that_no_xid_has_stays_an_id(name: str) -> None:
    assert xid_from(name) == Xid(None, name, None)


@pytest.mark.parametrize(
    ("format_id", "gtrid", "bqual", "text"),
    [
        (-1, "a", "", "format id"),
        (FORMAT_ID_MAX + 1, "a", "", "format id"),
        (True, "a", "", "format id"),
        (1, "", "", "needs a gtrid"),
        (1, "a" * 65, "", "the gtrid of an xid has at most 64 bytes"),
        (1, "a", "ä" * 33, "the bqual of an xid has at most 64 bytes in UTF-8, .* has 66"),
        (1, "\ud800", "", "not valid text"),
        (1, "a", None, "is a text"),
    ],
)
def test_others_are_refused_with_the_reason(format_id: int, gtrid: str, bqual: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        xid_of(format_id, gtrid, bqual)


def test_names_of_transactions() -> None:
    assert named("billing-7:3:17", 0, 0) == ("billing-7", 3, 17)
    assert named("billing-7", 3, 17) == ("billing-7", 3, 17)
    assert named(Xid(1, "a", ""), 0, 0) == ("xid.1.a.", 0, 0)
    for wrong in ("billing-7:3", "billing-7:0:1", ":1:1", "a:1:1:1", "a b:1:1"):
        with pytest.raises(InvalidRequest):
            named(wrong, 0, 0)
    with pytest.raises(InvalidRequest, match="needs nothing beside it"):
        named("billing-7:3:17", 3, 17)
