"""Encode and decode the records of rules, tokens and quotas in `__metadata`.

    key                 value
    acl/<rule id>       RuleRecord      an access rule
    token/<token id>    TokenRecord     what is known of a static token; never the token
    scram/…             ScramRecord     what proves a password, see `scram`
    quota/<subject>     QuotaRecord     limits; the subject is a principal, a space and a client id or none
    quota-changes       QuotaChanges    nonces of the newest changes of quotas, removals too, oldest first
    access-changes      QuotaChanges    nonces of the newest changes of rules and tokens, ids of new tokens

A record without a value deletes its key. `Unreadable` stands for a record that this release cannot
read: a rule may deny something, so a broker that meets it must not let calls through. A quota that cannot
be read bounds nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ledgermq.errors import InvalidRequest
from ledgermq.protocol.limits import with_nonce
from ledgermq.protocol.naming.tokens import HASH_BYTES
from ledgermq_broker.access.state.format import ledgermq_security_pb2 as fmt
from ledgermq_broker.access.state.quotas import Limit, Quota, QuotaSet, StoredQuota, Subject, checked_subject
from ledgermq_broker.access.state.rules import Principal, Rule, checked_rule
from ledgermq_ledger.format.versioned import Unreadable, read_versioned

VERSION = 1
RULE_PREFIX = b"acl/"
TOKEN_PREFIX = b"token/"
PREFIXES = (RULE_PREFIX, TOKEN_PREFIX)
QUOTA_PREFIX = b"quota/"
QUOTA_CHANGES_KEY = b"quota-changes"
ACCESS_CHANGES_KEY = b"access-changes"
CHANGES_KEPT = 64
"""Of either kind."""


@dataclass(frozen=True, slots=True)
class StoredRule:
    rule: Rule
    created_ms: int = 0
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class StoredToken:
    """`expires_ms`: since the epoch, 0 for never. `hash`: SHA-256 of the token."""

    token_id: str
    hash: bytes
    user: str
    groups: tuple[str, ...] = ()
    created_ms: int = 0
    expires_ms: int = 0
    created_by: str = ""

    @property
    def principal(self) -> Principal:
        return Principal(
            f"user:{self.user}", frozenset(self.groups), token_id=self.token_id, expires_ms=self.expires_ms
        )


def rule_key(rule_id: str) -> bytes:
    return RULE_PREFIX + rule_id.encode()


def token_key(token_id: str) -> bytes:
    return TOKEN_PREFIX + token_id.encode()


def quota_key(subject: Subject) -> bytes:
    return QUOTA_PREFIX + str(subject).encode()


def encode_rule(stored: StoredRule) -> bytes:
    rule = stored.rule
    record = fmt.RuleRecord(
        version=VERSION,
        effect=fmt.DENY if rule.deny else fmt.ALLOW,
        principal=rule.principal,
        operations=sorted(operation.value for operation in rule.operations),
        name=rule.name,
        prefix=rule.prefix,
        created_ms=stored.created_ms,
        created_by=stored.created_by,
    )
    return record.SerializeToString(deterministic=True)


def decode_rule(key: bytes, value: bytes) -> StoredRule | Unreadable:
    """Decode a rule. A record whose key is not that of its rule is unreadable, too."""
    record = read_versioned(fmt.RuleRecord, value, VERSION, "a rule")
    if isinstance(record, Unreadable):
        return record
    if record.effect not in (fmt.ALLOW, fmt.DENY):
        return Unreadable(f"unknown effect {record.effect}")
    try:
        rule = checked_rule(
            deny=record.effect == fmt.DENY,
            principal=record.principal,
            operations=record.operations,
            name=record.name,
            prefix=record.prefix,
        )
    except InvalidRequest as error:
        return Unreadable(error.message)
    if rule_key(rule.id) != key:
        return Unreadable("its key is that of another rule")
    return StoredRule(rule, record.created_ms, record.created_by)


def encode_token(stored: StoredToken) -> bytes:
    record = fmt.TokenRecord(
        version=VERSION,
        hash=stored.hash,
        user=stored.user,
        groups=stored.groups,
        created_ms=stored.created_ms,
        expires_ms=stored.expires_ms,
        created_by=stored.created_by,
    )
    return record.SerializeToString(deterministic=True)


def decode_token(key: bytes, value: bytes) -> StoredToken | Unreadable:
    record = read_versioned(fmt.TokenRecord, value, VERSION, "a token's record")
    if isinstance(record, Unreadable):
        return record
    if len(record.hash) != HASH_BYTES or not record.user:
        return Unreadable("it lacks the hash or the user")
    return StoredToken(
        key.removeprefix(TOKEN_PREFIX).decode(errors="replace"),
        record.hash,
        record.user,
        tuple(record.groups),
        record.created_ms,
        record.expires_ms,
        record.created_by,
    )


def encode_quota(stored: StoredQuota) -> bytes:
    quota = stored.quota
    record = fmt.QuotaRecord(
        version=VERSION,
        created_ms=stored.created_ms,
        created_by=stored.created_by,
        **{limit.value: quota.of(limit) for limit in Limit},
    )
    return record.SerializeToString(deterministic=True)


def decode_quota(key: bytes, value: bytes) -> tuple[Subject, StoredQuota] | Unreadable:
    try:
        principal, _, client_id = key.removeprefix(QUOTA_PREFIX).decode().partition(" ")
        subject = checked_subject(principal, client_id)
    except UnicodeDecodeError as error:
        return Unreadable(f"not a quota: {error}")
    except InvalidRequest as error:
        return Unreadable(error.message)
    record = read_versioned(fmt.QuotaRecord, value, VERSION, "a quota")
    if isinstance(record, Unreadable):
        return record
    quota = Quota(**{limit.value: getattr(record, limit.value) for limit in Limit})
    if any(quota.of(limit) < 0 for limit in Limit):
        return Unreadable("a limit is negative")
    return subject, StoredQuota(quota, record.created_ms, record.created_by)


def knows_change(records: Mapping[bytes, tuple[int, bytes]], key: bytes, nonce: bytes) -> bool:
    """Return whether a change of this kind is an earlier attempt of one that was made."""
    return bool(nonce) and nonce in _changes_of(records, key).nonces


def noted_change(
    records: Mapping[bytes, tuple[int, bytes]], key: bytes, nonce: bytes, absent: Collection[int] = ()
) -> list[tuple[bytes, bytes | None]]:
    """Return the record that remembers this change; none for a client of an earlier release. `absent`: the places
    of the names in the request that do not exist, for the answer to a repetition.
    """
    if not nonce:
        return []
    before = _changes_of(records, key)
    nonces = with_nonce(tuple(before.nonces), nonce, CHANGES_KEPT)
    kept = [entry for entry in before.absent if entry.nonce in nonces]
    if absent:
        places = sum(1 << place for place in absent).to_bytes(max(absent) // 8 + 1, "little")
        kept.append(fmt.Absent(nonce=nonce, places=places))
    record = fmt.QuotaChanges(version=VERSION, nonces=nonces, absent=kept)
    return [(key, record.SerializeToString(deterministic=True))]


def absent_before(records: Mapping[bytes, tuple[int, bytes]], key: bytes, nonce: bytes) -> Collection[int]:
    """Return the places of the names in a request that did not exist when its change was made. None are known after
    a broker of an earlier release has written the record.
    """
    for entry in _changes_of(records, key).absent:
        if entry.nonce == nonce:
            bits = int.from_bytes(entry.places, "little")
            return {place for place in range(bits.bit_length()) if bits >> place & 1}
    return ()


def _changes_of(records: Mapping[bytes, tuple[int, bytes]], key: bytes) -> fmt.QuotaChanges:
    """Return the newest changes of a kind, oldest first; none if the record cannot be read."""
    try:
        record = fmt.QuotaChanges.FromString(records[key][1])
    except (KeyError, DecodeError):
        return fmt.QuotaChanges()
    return record if record.version == VERSION else fmt.QuotaChanges()


def quota_set_of(records: Mapping[bytes, tuple[int, bytes]], before: QuotaSet | None = None) -> QuotaSet:
    """Return the quotas of these records: by key, the offset and value of the newest. `before`: a set of
    earlier records, which is returned if they are the same.
    """
    offsets = {key: offset for key, (offset, _) in records.items() if key.startswith(QUOTA_PREFIX)}
    if before is not None and offsets == before.offsets:
        return before
    quotas: dict[Subject, StoredQuota] = {}
    unreadable: dict[str, str] = {}
    for key in offsets:
        found = decode_quota(key, records[key][1])
        if isinstance(found, Unreadable):
            unreadable[key.removeprefix(QUOTA_PREFIX).decode(errors="replace")] = found.why
        else:
            quotas[found[0]] = found[1]
    return QuotaSet(quotas, unreadable, offsets)
