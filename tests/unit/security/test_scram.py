"""Credentials of SCRAM: their records, and how long a proof of one counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import InvalidRequest
from ledgermq_broker.access.state.format import ledgermq_security_pb2 as fmt
from ledgermq_broker.access.state.rule_set import RuleSet, rule_set_of
from ledgermq_broker.access.state.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    KEY_BYTES,
    ScramName,
    StoredScram,
    checked_name,
    decode_scram,
    decoy,
    encode_scram,
)
from ledgermq_ledger.format.versioned import Unreadable

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "security-scram-v1.bin"
STORED = StoredScram(
    ScramName("alice/x", "SCRAM-SHA-512"),
    bytes(range(24)),
    8192,
    bytes(range(64)),
    bytes(range(64, 128)),
    1_764_547_200_000,
    "user:root",
)
KEY = b"scram/SCRAM-SHA-512/alice/x"


def rules(*stored: StoredScram, before: RuleSet | None = None, offset: int = 0) -> RuleSet:
    records = {one.name.key: (offset + number, encode_scram(one)) for number, one in enumerate(stored)}
    return rule_set_of(records, before)


def test_golden_record() -> None:
    """What is stored must be read forever."""
    assert STORED.name.key == KEY
    assert decode_scram(KEY, GOLDEN.read_bytes()) == STORED
    assert encode_scram(STORED) == GOLDEN.read_bytes()


users = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=249)


@given(users, st.sampled_from(sorted(KEY_BYTES)), st.integers(ITERATIONS_MIN, ITERATIONS_MAX), st.data())
def test_records_come_back(user: str, mechanism: str, iterations: int, data: st.DataObject) -> None:
    keys = st.binary(min_size=KEY_BYTES[mechanism], max_size=KEY_BYTES[mechanism])
    salt = data.draw(st.binary(min_size=12, max_size=128))
    stored = StoredScram(ScramName(user, mechanism), salt, iterations, data.draw(keys), data.draw(keys), 7, "user:root")
    assert decode_scram(stored.name.key, encode_scram(stored)) == stored


@given(st.binary(max_size=80), st.binary(max_size=120))
def test_any_bytes_are_read_or_no_credential(key: bytes, value: bytes) -> None:
    found = decode_scram(b"scram/" + key, value)
    if not isinstance(found, Unreadable):
        assert decode_scram(found.name.key, encode_scram(found)) == found
    assert isinstance(rule_set_of({b"scram/" + key: (0, value)}), RuleSet)


@pytest.mark.parametrize(
    "value",
    [
        fmt.ScramRecord(version=2),
        fmt.ScramRecord(version=1),
        fmt.ScramRecord(version=1, salt=b"s" * 12, iterations=4095, stored_key=b"k" * 64, server_key=b"k" * 64),
        fmt.ScramRecord(version=1, salt=b"s" * 12, iterations=4096, stored_key=b"k" * 32, server_key=b"k" * 32),
    ],
)
def test_a_record_that_cannot_be_read_is_no_password_and_denies_nothing(value: fmt.ScramRecord) -> None:
    found = rule_set_of({KEY: (0, value.SerializeToString())})
    assert not found.scram
    assert not found.unreadable


def test_a_proof_counts_for_one_password_of_one_user() -> None:
    proof = STORED.proof
    assert rules(STORED).proven(proof) == STORED
    assert rules(replace(STORED, created_ms=1)).proven(proof) is not None
    for other in (
        replace(STORED, stored_key=bytes(64)),
        replace(STORED, salt=bytes(24)),
        replace(STORED, name=ScramName("bob", "SCRAM-SHA-512")),
        replace(STORED, name=ScramName("alice/x", "SCRAM-SHA-256"), stored_key=bytes(32), server_key=bytes(32)),
    ):
        assert rules(other).proven(proof) is None
    assert rules().proven(proof) is None


def test_a_rule_set_changes_with_a_password() -> None:
    before = rules(STORED)
    assert rules(STORED, before=before) is before
    after = rules(replace(STORED, stored_key=bytes(64)), before=before, offset=5)
    assert after is not before
    assert after.proven(STORED.proof) is None


def test_a_decoy_is_the_same_each_time_and_proves_nothing() -> None:
    name = ScramName("eve", "SCRAM-SHA-256")
    one = decoy(name, b"secret")
    assert one == decoy(name, b"secret")
    assert one.salt != decoy(name, b"other").salt
    assert one.salt != decoy(ScramName("bob", "SCRAM-SHA-256"), b"secret").salt
    assert rules(STORED).proven(one.proof) is None


@pytest.mark.parametrize(
    ("user", "mechanism"), [("a b", "SCRAM-SHA-256"), ("", "SCRAM-SHA-256"), ("ⅸ", "SCRAM-SHA-512"), ("a", "PLAIN")]
)
def test_a_name_that_is_none_is_refused(user: str, mechanism: str) -> None:
    with pytest.raises(InvalidRequest):
        checked_name(user, mechanism)
