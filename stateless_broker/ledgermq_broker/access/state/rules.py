"""Access rules as values: who, what, on which names.

A rule allows or denies operations to one principal, on one name or on all names with a prefix. The
operations decide what kind of name it is: of a topic, a group, a transactional id, or none for the
cluster itself. A rule has operations of one kind. Equal rules have equal ids, so a rule that is
granted twice is stored once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from ledgermq.errors import InvalidRequest
from ledgermq.hints import did_you_mean

NAME_CHARS_MAX = 249
PRINCIPAL_CHARS_MAX = 300
GROUPS_MAX = 100
EVERYONE = "*"
KINDS_OF_PRINCIPAL = ("user", "cert", "jwt", "group")

_PRINCIPAL = re.compile(r"(?:user|cert|jwt|group):[^\s\x00-\x1f\x7f]+\Z")
_USER = re.compile(r"[^\s\x00-\x1f\x7f]+\Z")


class Operation(Enum):
    """What a rule may allow. The value is its name in rules, commands and records."""

    PRODUCE = "produce"
    CONSUME = "consume"
    DESCRIBE = "describe"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    GROUP = "group"
    TRANSACTION = "transaction"
    CLUSTER = "cluster"

    __hash__ = object.__hash__  # a member is equal to itself only; Enum's own hash runs Python code for each call


TOPIC_OPERATIONS = frozenset(
    {
        Operation.PRODUCE,
        Operation.CONSUME,
        Operation.DESCRIBE,
        Operation.CREATE,
        Operation.ALTER,
        Operation.DELETE,
    }
)
_SHOWING = frozenset({Operation.PRODUCE, Operation.CONSUME, Operation.ALTER, Operation.DELETE, Operation.DESCRIBE})
"""A principal that may do one of these to a topic may also see it."""


class ScramProof(NamedTuple):
    """A caller has proved that it knows a password. `digest`: of what is stored of that password."""

    user: str
    mechanism: str
    digest: str


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a call. `name`: ``user:alice``, ``cert:client.example.org``, ``jwt:subject``. `is_broker`:
    a broker of this cluster, which may also make the calls between brokers.

    `token_id`: of the static token that proved it, "" if another credential did. `signing_key`: the thumbprint
    of the identity provider's key that signed its token, "" for other credentials. `session`: of a broker's process,
    "" for others. `expires_ms`: when the credential ends, 0 for never. `scram`: the password that it proved, None for
    other credentials.
    """

    name: str
    groups: frozenset[str] = frozenset()
    is_broker: bool = False
    token_id: str = ""
    signing_key: str = ""
    session: str = ""
    expires_ms: int = 0
    scram: ScramProof | None = None

    @property
    def named_in_rules(self) -> tuple[str, ...]:
        """Return all texts of rules that mean this principal."""
        return (self.name, EVERYONE, *(f"group:{group}" for group in sorted(self.groups)))


@lru_cache(maxsize=10_000)
def hash_of(principal: str) -> int:
    """Return what is stored of a principal with an identity that it uses, such as a producer's id: 64 bits of a
    hash of its name, so that all its tokens have the same; 0 for "", a caller whose name is not known.
    """
    if not principal:
        return 0
    return int.from_bytes(hashlib.sha256(principal.encode()).digest()[:8], "little") or 1


@dataclass(frozen=True, slots=True)
class Rule:
    """`prefix`: the rule is for all names that begin with `name`."""

    deny: bool
    principal: str
    operations: frozenset[Operation]
    name: str
    prefix: bool
    id: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", hashlib.sha256(str(self).encode()).hexdigest()[:16])

    def __str__(self) -> str:
        """Return the rule as one line, by which its id is computed: never change it."""
        operations = ",".join(sorted(operation.value for operation in self.operations))
        name = f" {self.name}{'*' if self.prefix else ''}" if self.operations != {Operation.CLUSTER} else ""
        return f"{'deny' if self.deny else 'allow'} {self.principal} {operations}{name}"

    def matches(self, name: str) -> bool:
        return name.startswith(self.name) if self.prefix else name == self.name

    def covers(self, prefix: str) -> bool:
        """Return whether the rule is for every name that begins with `prefix`."""
        return self.prefix and prefix.startswith(self.name)

    def touches(self, prefix: str) -> bool:
        """Return whether the rule is for any name that begins with `prefix`."""
        return self.name.startswith(prefix) or self.covers(prefix)

    def is_for(self, operation: Operation) -> bool:
        """Return whether the rule decides about an operation. To allow something on a topic is to allow
        seeing it; to deny something does not hide the topic.
        """
        shows = operation is Operation.DESCRIBE and not self.deny and not self.operations.isdisjoint(_SHOWING)
        return operation in self.operations or shows


def checked_rule(*, deny: bool, principal: str, operations: Iterable[str], name: str, prefix: bool) -> Rule:
    """Return the rule with these parts. Raises InvalidRequest, which names the part that is wrong."""
    chosen = frozenset(operation_named(operation) for operation in operations)
    if not chosen:
        raise InvalidRequest("a rule needs one or more operations")
    if not chosen <= TOPIC_OPERATIONS and len(chosen) > 1:
        raise InvalidRequest(
            "a rule has operations on names of one kind: either some of"
            f" {', '.join(sorted(each.value for each in TOPIC_OPERATIONS))}, or one of group, transaction, cluster."
            " Grant several rules"
        )
    if chosen == {Operation.CLUSTER}:
        if name or prefix:
            raise InvalidRequest("a rule for the operation cluster has no name")
    elif not name and not prefix:
        raise InvalidRequest("a rule needs a name, or a prefix of names; * means all names")
    if len(name) > NAME_CHARS_MAX or any(ord(sign) < 32 for sign in name):
        raise InvalidRequest(f"a name in a rule has at most {NAME_CHARS_MAX} characters, and no control characters")
    return Rule(deny, checked_principal(principal), chosen, name, prefix)


def operation_named(name: str) -> Operation:
    """Return the operation. Raises InvalidRequest, with the nearest name."""
    try:
        return Operation(name)
    except ValueError:
        known = [operation.value for operation in Operation]
        raise InvalidRequest(f"unknown operation {name[:100]!r}; {did_you_mean(name[:100], known)}") from None


def checked_principal(text: str) -> str:
    """Return the principal of a rule. Raises InvalidRequest."""
    if text == EVERYONE or (len(text) <= PRINCIPAL_CHARS_MAX and _PRINCIPAL.match(text)):
        return text
    raise InvalidRequest(
        f"principal {text[:100]!r}: write user:NAME, group:NAME, cert:NAME or jwt:SUBJECT, or * for every principal;"
        f" at most {PRINCIPAL_CHARS_MAX} characters, no spaces"
    )


def checked_user(text: str, what: str = "user") -> str:
    """Return the name of a user or of a group, without its kind. Raises InvalidRequest."""
    if len(text) <= NAME_CHARS_MAX and _USER.match(text):
        return text
    raise InvalidRequest(f"{what} {text[:100]!r}: a name has 1 to {NAME_CHARS_MAX} characters, and no spaces")
