"""Access rules of ours as ACLs of Kafka, and back. Pure.

    Kafka                                               here
    User:NAME, User:*                                   user:NAME, *
    cert:NAME, jwt:SUBJECT, group:NAME                  the same
    TOPIC: Write, Read, Describe, Create, Alter, Delete produce, consume, describe, create, alter, delete
    TOPIC: All                                          these six in one rule
    GROUP: Read                                         group
    TRANSACTIONAL_ID: Write                             transaction
    CLUSTER kafka-cluster: Alter                        cluster
    PREFIXED; LITERAL *                                 a prefix; the empty prefix
    host *                                              a rule has no host

GROUP, TRANSACTIONAL_ID and CLUSTER have one operation here. So `All` means it, too, and what Kafka's operation does
not include, such as deleting a group, comes with it. An ACL that would allow more than it says is refused, unless a
rule allows that already (`is_included`). A rule that no ACL can say is left out of lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ledgermq.errors import InvalidGroupName, InvalidRequest
from ledgermq.protocol.naming.names import is_name
from ledgermq_broker.access.state.rules import EVERYONE, TOPIC_OPERATIONS, Rule, checked_rule
from ledgermq_broker.access.state.rules import Operation as Ours
from ledgermq_broker.kafka.handlers.groups.names import inside, outside
from ledgermq_offsets.names import KAFKA_PREFIX

CLUSTER_NAME = "kafka-cluster"
WILDCARD = "*"
USER = "User:"
ANY = 1
"""In filters, of each kind of number."""
DENY, ALLOW = 2, 3


class Resource(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    MATCH = 2
    """In filters: whatever is for the name."""
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


TOPICS = {
    Operation.WRITE: Ours.PRODUCE,
    Operation.READ: Ours.CONSUME,
    Operation.DESCRIBE: Ours.DESCRIBE,
    Operation.CREATE: Ours.CREATE,
    Operation.ALTER: Ours.ALTER,
    Operation.DELETE: Ours.DELETE,
}
ONLY = {
    Resource.GROUP: (Operation.READ, Ours.GROUP),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Ours.TRANSACTION),
    Resource.CLUSTER: (Operation.ALTER, Ours.CLUSTER),
}
"""The only operation that there is."""
INCLUDED = {
    (Resource.TOPIC, Operation.DESCRIBE_CONFIGS): Ours.DESCRIBE,
    (Resource.TOPIC, Operation.ALTER_CONFIGS): Ours.ALTER,
    (Resource.GROUP, Operation.DESCRIBE): Ours.GROUP,
    (Resource.GROUP, Operation.DELETE): Ours.GROUP,
    (Resource.TRANSACTIONAL_ID, Operation.DESCRIBE): Ours.TRANSACTION,
    (Resource.CLUSTER, Operation.DESCRIBE): Ours.CLUSTER,
    (Resource.CLUSTER, Operation.ALTER_CONFIGS): Ours.CLUSTER,
    (Resource.CLUSTER, Operation.DESCRIBE_CONFIGS): Ours.CLUSTER,
}
"""What an operation of ours allows beside the one of its name."""
_OF_OURS = {ours: (Resource.TOPIC, kafkas) for kafkas, ours in TOPICS.items()} | {
    ours: (resource, kafkas) for resource, (kafkas, ours) in ONLY.items()
}


@dataclass(frozen=True, slots=True)
class Acl:
    """One ACL, in Kafka's numbers and names."""

    resource: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


@dataclass(frozen=True, slots=True)
class Filter:
    """Which ACLs are meant; None: any."""

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @classmethod
    def of(cls, message: Any) -> Filter:
        """Return the filter of a request, or of an entry. Raises InvalidRequest."""
        self = cls(
            message.resource_type_filter,
            message.resource_name_filter,
            message.pattern_type_filter,
            message.principal_filter,
            message.host_filter,
            message.operation,
            message.permission_type,
        )
        for what, number, known in (
            ("resource type", self.resource, Resource),
            ("pattern type", self.pattern, Pattern),
            ("operation", self.operation, Operation),
            ("permission type", self.permission, (DENY, ALLOW)),
        ):
            if number != ANY and number not in list(known):
                raise InvalidRequest(f"the filter names {what} {number}, which is unknown")
        return self

    def matches(self, acl: Acl) -> bool:
        is_all = self.operation == Operation.ALL and acl.resource != Resource.TOPIC
        return (
            self.resource in (ANY, acl.resource)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and (self.operation in (ANY, acl.operation) or is_all)
            and self.permission in (ANY, acl.permission)
            and self.pattern in (ANY, Pattern.MATCH, acl.pattern)
            and self._means(acl)
        )

    def _means(self, acl: Acl) -> bool:
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern != Pattern.MATCH:
            return False
        return self.name.startswith(acl.name) if acl.pattern == Pattern.PREFIXED else acl.name == WILDCARD


def rule_of(acl: Acl) -> Rule:
    """Return the rule that says the same. Raises InvalidRequest, which says what to write."""
    if acl.host != WILDCARD:
        raise InvalidRequest(f"host {acl.host[:100]!r}: rules count for every host, so the host of an ACL is *")
    if acl.permission not in (ALLOW, DENY):
        raise InvalidRequest(f"permission type {acl.permission}: an ACL allows ({ALLOW}) or denies ({DENY})")
    if acl.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        raise InvalidRequest(f"pattern type {acl.pattern}: the pattern of an ACL is LITERAL or PREFIXED")
    operations = _operations(acl)
    name, prefix = _name(acl)
    return checked_rule(
        deny=acl.permission == DENY,
        principal=_principal(acl.principal),
        operations=[each.value for each in operations],
        name=name,
        prefix=prefix,
    )


def is_included(acl: Acl, rules: Iterable[Rule]) -> bool:
    """Return whether one of these rules allows what the ACL does, to the same principal and on the same names, or
    everyone may do it. For ACLs of which there is no rule alone.
    """
    if acl.permission != ALLOW or acl.host != WILDCARD:
        return False
    if (acl.resource, acl.operation) == (Resource.CLUSTER, Operation.IDEMPOTENT_WRITE):
        return acl.name == CLUSTER_NAME and acl.pattern == Pattern.LITERAL
    needed = INCLUDED.get((Resource(acl.resource), Operation(acl.operation))) if _is_known(acl) else None
    if needed is None:
        return False
    try:
        name, prefix = _name(acl)
        principal = _principal(acl.principal)
    except InvalidRequest:
        return False
    return any(
        rule.is_for(needed) and not rule.deny and (rule.principal, rule.name, rule.prefix) == (principal, name, prefix)
        for rule in rules
    )


def acls_of(rule: Rule) -> Sequence[Acl]:
    """Return what a rule is in Kafka's words; nothing if they cannot say it."""
    found = [_OF_OURS[each] for each in rule.operations]
    resource = found[0][0]
    named = _shown_name(rule, resource)
    principal = _shown_principal(rule.principal)
    if named is None or principal is None:
        return ()
    operations = sorted(kafkas for _, kafkas in found)
    if rule.operations == TOPIC_OPERATIONS:
        operations = [Operation.ALL]
    permission = DENY if rule.deny else ALLOW
    return [Acl(resource, named[1], named[0], principal, WILDCARD, each, permission) for each in operations]


def left_of(rule: Rule, gone: Sequence[Acl]) -> Rule | None:
    """Return what is left of a rule without some of its ACLs; None if nothing is."""
    if len(gone) == len(acls_of(rule)):
        return None
    operations = rule.operations - {TOPICS[Operation(acl.operation)] for acl in gone}
    return Rule(rule.deny, rule.principal, operations, rule.name, rule.prefix)


def _is_known(acl: Acl) -> bool:
    return acl.resource in list(Resource) and acl.operation in list(Operation)


def _operations(acl: Acl) -> Iterable[Ours]:
    resource, operation = acl.resource, acl.operation
    if not _is_known(acl) or resource not in (Resource.TOPIC, *ONLY):
        kind = Resource(resource).name if resource in list(Resource) else f"resource type {resource}"
        raise InvalidRequest(
            f"{kind}, operation {operation}: rules are for topics, groups, transactional ids and the cluster"
        )
    if resource == Resource.TOPIC:
        if operation == Operation.ALL:
            return TOPIC_OPERATIONS
        if operation in TOPICS:
            return (TOPICS[Operation(operation)],)
        raise InvalidRequest(
            f"there is no rule for {Operation(operation).name} on topics: use READ, WRITE, CREATE, DELETE, ALTER or"
            " DESCRIBE. DESCRIBE shows the settings of a topic, and ALTER changes them"
        )
    kafkas, ours = ONLY[Resource(resource)]
    if operation in (Operation.ALL, kafkas):
        return (ours,)
    if (resource, operation) == (Resource.CLUSTER, Operation.CREATE):
        raise InvalidRequest("there is no rule for CREATE on the cluster: give CREATE on topics, of which * is all")
    raise InvalidRequest(
        f"there is no rule for {Operation(operation).name} alone on {Resource(resource).name}: give {kafkas.name},"
        " which allows all of it"
    )


def _name(acl: Acl) -> tuple[str, bool]:
    """Return the name of a rule, and whether it is a prefix. Raises InvalidRequest."""
    name, is_prefix = acl.name, acl.pattern == Pattern.PREFIXED
    if acl.resource == Resource.CLUSTER:
        if name != CLUSTER_NAME or is_prefix:
            raise InvalidRequest(f"the only valid name for the CLUSTER resource is {CLUSTER_NAME}, LITERAL")
        return "", False
    if not name:
        raise InvalidRequest("the name of a resource is empty: * means all names")
    if name == WILDCARD and not is_prefix:
        return "", True
    if acl.resource == Resource.TOPIC:
        return name, is_prefix
    if not is_prefix:
        return _inside(name), False
    if not is_name(name) or name.startswith(KAFKA_PREFIX) or KAFKA_PREFIX.startswith(name):
        raise InvalidRequest(
            f"prefix {name[:100]!r}: a prefix of groups or transactional ids has letters, digits, '.', '_' and '-',"
            f" and is no beginning of {KAFKA_PREFIX!r}. Name single ones, or use * for all"
        )
    if acl.permission == DENY:
        raise InvalidRequest(
            "groups and transactional ids are not denied by a prefix: names with other characters than letters,"
            " digits, '.', '_' and '-' are stored in another form, which it would not match. Name single ones, or *"
        )
    return name, True


def _inside(name: str) -> str:
    try:
        return inside(name)
    except InvalidGroupName as error:
        raise InvalidRequest(error.message) from None


def _shown_name(rule: Rule, resource: Resource) -> tuple[Pattern, str] | None:
    if resource == Resource.CLUSTER:
        return Pattern.LITERAL, CLUSTER_NAME
    if rule.prefix:
        return (Pattern.PREFIXED, rule.name) if rule.name else (Pattern.LITERAL, WILDCARD)
    shown = rule.name if resource == Resource.TOPIC else outside(rule.name)
    if shown == WILDCARD:
        return None
    if resource != Resource.TOPIC:
        try:
            if inside(shown) != rule.name:
                return None
        except InvalidGroupName:
            return None
    return Pattern.LITERAL, shown


def _principal(text: str) -> str:
    """Return a principal of ours. Raises InvalidRequest."""
    if text == USER + WILDCARD:
        return EVERYONE
    if text.startswith(USER):
        return "user:" + text.removeprefix(USER)
    if text.startswith(("cert:", "jwt:", "group:")):
        return text
    raise InvalidRequest(
        f"principal {text[:100]!r}: write User:NAME, or User:* for everyone; cert:NAME, jwt:SUBJECT and group:NAME"
        " are known, too"
    )


def _shown_principal(text: str) -> str | None:
    if text == EVERYONE:
        return USER + WILDCARD
    if text.startswith("user:"):
        name = text.removeprefix("user:")
        return USER + name if name != WILDCARD else None
    return text
