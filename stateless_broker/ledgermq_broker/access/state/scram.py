"""Credentials of users for SCRAM (RFC 5802), as values and as records of `__metadata`. Pure.

    key                         value
    scram/<mechanism>/<user>    ScramRecord     what proves a password; never the password

A user may have one for each mechanism. A new password makes another credential: what the one before has proved no
longer counts.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ledgermq.errors import InvalidRequest
from ledgermq_broker.access.state.format import ledgermq_security_pb2 as fmt
from ledgermq_broker.access.state.rules import Principal, ScramProof, checked_user
from ledgermq_ledger.format.versioned import Unreadable, read_versioned

VERSION = 1
SCRAM_PREFIX = b"scram/"
KEY_BYTES: Mapping[str, int] = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
"""Length of the keys, by mechanism."""
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16_384
"""As Kafka's: fewer are soon guessed, more cost each client a long time."""
SALT_BYTES_MIN, SALT_BYTES_MAX = 12, 128
SCRAM_MAX = 10_000
"""Credentials of a cluster."""


class ScramName(NamedTuple):
    user: str
    mechanism: str

    @property
    def key(self) -> bytes:
        return SCRAM_PREFIX + f"{self.mechanism}/{self.user}".encode()


@dataclass(frozen=True, slots=True)
class StoredScram:
    """`stored_key` and `server_key` are those of RFC 5802; no text shows them."""

    name: ScramName
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    created_ms: int = 0
    created_by: str = ""

    @property
    def proof(self) -> ScramProof:
        """Return what a caller gets that has proved it: it counts for this password alone."""
        digest = hashlib.sha256(self.salt + self.stored_key).hexdigest()[:32]
        return ScramProof(*self.name, digest)

    @property
    def principal(self) -> Principal:
        return Principal(f"user:{self.name.user}", scram=self.proof)


def checked_name(user: str, mechanism: str) -> ScramName:
    """Raises InvalidRequest."""
    if mechanism not in KEY_BYTES:
        raise InvalidRequest(f"mechanism {mechanism[:100]!r} is unknown: {' and '.join(KEY_BYTES)} are offered")
    if unicodedata.normalize("NFKC", user) != user:
        raise InvalidRequest(f"user {user[:100]!r} is not in the normal form NFKC, in which SCRAM has names")
    return ScramName(checked_user(user), mechanism)


def checked_scram(stored: StoredScram) -> StoredScram:
    """Return a credential whose numbers and lengths are right. Raises InvalidRequest."""
    name = checked_name(*stored.name)
    if not ITERATIONS_MIN <= stored.iterations <= ITERATIONS_MAX:
        raise InvalidRequest(
            f"{name.mechanism} of user {name.user!r} has {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations,"
            f" not {stored.iterations}"
        )
    if not SALT_BYTES_MIN <= len(stored.salt) <= SALT_BYTES_MAX:
        raise InvalidRequest(
            f"the salt of {name.mechanism} has {SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes, not {len(stored.salt)}"
        )
    wanted = KEY_BYTES[name.mechanism]
    if {len(stored.stored_key), len(stored.server_key)} != {wanted}:
        raise InvalidRequest(f"the keys of {name.mechanism} have {wanted} bytes each")
    return stored


def decoy(name: ScramName, secret: bytes) -> StoredScram:
    """Return what a caller is shown of a user that has no password: the same each time, as for other users. Nothing
    proves it.
    """
    drawn = hashlib.sha512(secret + name.key).digest()
    keys = hashlib.sha512(drawn).digest()[: KEY_BYTES[name.mechanism]]
    return StoredScram(name, drawn[:24], ITERATIONS_MIN, keys, keys)


def encode_scram(stored: StoredScram) -> bytes:
    record = fmt.ScramRecord(
        version=VERSION,
        salt=stored.salt,
        iterations=stored.iterations,
        stored_key=stored.stored_key,
        server_key=stored.server_key,
        created_ms=stored.created_ms,
        created_by=stored.created_by,
    )
    return record.SerializeToString(deterministic=True)


def decode_scram(key: bytes, value: bytes) -> StoredScram | Unreadable:
    mechanism, _, user = key.removeprefix(SCRAM_PREFIX).decode(errors="replace").partition("/")
    record = read_versioned(fmt.ScramRecord, value, VERSION, "a SCRAM credential")
    if isinstance(record, Unreadable):
        return record
    try:
        return checked_scram(
            StoredScram(
                ScramName(user, mechanism),
                record.salt,
                record.iterations,
                record.stored_key,
                record.server_key,
                record.created_ms,
                record.created_by,
            )
        )
    except InvalidRequest as error:
        return Unreadable(error.message)
