"""Subjects and limits of our quotas as entities and keys of Kafka's client quotas, and back. Pure.

    Kafka                                            here
    user NAME; default                               user:NAME; *
    user cert:NAME, jwt:SUBJECT                      the same
    user ANONYMOUS                                   anonymous
    user …, client-id ID; default                    … with the client id ID; *
    producer_byte_rate, consumer_byte_rate           bytes_in, bytes_out

A client id without a user has no counterpart, because a quota here is for each principal. A subject that Kafka's
words cannot say is left out of lists, and so are the other limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq.errors import InvalidConfig, InvalidRequest
from ledgermq.protocol.naming.client_ids import check_client_id
from ledgermq_broker.access.state.quotas import ANONYMOUS, EACH, Limit, Subject, checked_limits, checked_subject

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)
ANONYMOUS_USER = "ANONYMOUS"
EXACT, DEFAULT, ANY = 0, 1, 2
"""How a filter matches the name of an entity."""
KEYS = {"producer_byte_rate": Limit.BYTES_IN, "consumer_byte_rate": Limit.BYTES_OUT}
OTHER_KEYS = {
    "request_percentage": "the limit here is calls a second: `ledgermq quota set … --requests`",
    "controller_mutation_rate": "there is no such limit here",
    "connection_creation_rate": "the limit here is open connections: `ledgermq quota set … --connections`",
}
_TYPED = ("cert:", "jwt:")

Entity = Mapping[str, str | None]
"""Name by type of entity; None: the default."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one entry asks for, in our names."""

    subject: Subject
    given: Mapping[str, int]
    dropped: Sequence[str]


def change_of(entry: Any) -> Change:
    """Return what an entry of AlterClientQuotas asks for. Raises InvalidRequest, which says what to write."""
    subject = subject_of(entity_of(entry.entity))
    given: dict[str, int] = {}
    dropped: list[str] = []
    for one in entry.ops:
        limit = _limit(one.key).value
        if limit in given or limit in dropped:
            raise InvalidRequest(f"quota {one.key!r} stands twice in the request for {subject}")
        if one.remove:
            dropped.append(limit)
        elif not one.value.is_integer():  # NaN and the infinities are none, either
            raise InvalidRequest(f"{one.key} is a whole number of bytes a second, not {one.value}")
        else:
            given[limit] = int(one.value)
    return Change(subject, checked_limits(given), dropped)


def entity_of(parts: Sequence[Any]) -> dict[str, str | None]:
    """Return the entity of a request. Raises InvalidRequest."""
    found: dict[str, str | None] = {}
    for part in parts:
        _check_type(part.entity_type)
        if part.entity_type in found:
            raise InvalidRequest(f"entity type {part.entity_type!r} stands twice in one entity")
        found[part.entity_type] = part.entity_name
    if not found:
        raise InvalidRequest("an entity has a user, or a user and a client id")
    return found


def subject_of(entity: Entity) -> Subject:
    """Return whose quota it is here. Raises InvalidRequest."""
    if IP in entity:
        raise InvalidRequest("quotas are for principals here, not for addresses: name a user")
    if USER not in entity:
        raise InvalidRequest(
            "a client id has a quota for each principal here: name the user, too, or the default user for every"
            " principal (kafka-configs: --entity-type users --entity-default)"
        )
    client_id = ""
    if CLIENT_ID in entity:
        client_id = _client_id(entity[CLIENT_ID])
    return checked_subject(_principal(entity[USER]), client_id)


def shown(subject: Subject) -> dict[str, str | None] | None:
    """Return the entity that a subject is; None if Kafka's words cannot say it."""
    found: dict[str, str | None] = {USER: _user(subject.principal)}
    if subject.client_id:
        found[CLIENT_ID] = None if subject.client_id == EACH else subject.client_id
    try:
        return found if subject_of(found) == subject else None
    except InvalidRequest:
        return None


def values(limits: Mapping[str, int]) -> dict[str, float]:
    """Return the limits that Kafka has, by its keys."""
    return {key: float(limits[limit.value]) for key, limit in KEYS.items() if limits.get(limit.value)}


@dataclass(frozen=True, slots=True)
class Filter:
    """`wanted`: how to match, and the name, by type of entity. `strict`: entities have no other types."""

    wanted: Mapping[str, tuple[int, str | None]]
    strict: bool

    @classmethod
    def of(cls, message: Any) -> Filter:
        """Return the filter of DescribeClientQuotas. Raises InvalidRequest."""
        wanted: dict[str, tuple[int, str | None]] = {}
        for one in message.components:
            _check_type(one.entity_type)
            if one.entity_type in wanted:
                raise InvalidRequest(f"entity type {one.entity_type!r} stands twice in the filter")
            if one.match_type not in (EXACT, DEFAULT, ANY):
                raise InvalidRequest(f"match type {one.match_type} is unknown")
            if (one.match_type == EXACT) != (one.match is not None):
                raise InvalidRequest("a filter has a name to match exactly, and none otherwise")
            wanted[one.entity_type] = one.match_type, one.match
        return cls(wanted, message.strict)

    def matches(self, entity: Entity) -> bool:
        if self.strict and len(entity) != len(self.wanted):
            return False
        return all(
            kind in entity and (how == ANY or entity[kind] == (name if how == EXACT else None))
            for kind, (how, name) in self.wanted.items()
        )


def _check_type(kind: str) -> None:
    if kind not in ENTITY_TYPES:
        raise InvalidRequest(f"entity type {kind[:100]!r} is unknown: entities are of the types user and client-id")


def _limit(key: str) -> Limit:
    if key in KEYS:
        return KEYS[key]
    why = OTHER_KEYS.get(key, "unknown")
    raise InvalidRequest(f"quota {key[:100]!r}: {why}. Known are {', '.join(KEYS)}")


def _principal(name: str | None) -> str:
    if name is None:
        return EACH
    if name == ANONYMOUS_USER:
        return ANONYMOUS
    if name.lower().startswith("user:"):
        raise InvalidRequest(f"user {name[:100]!r}: write the name alone, without its kind")
    return name if name.startswith(_TYPED) else f"user:{name}"


def _user(principal: str) -> str | None:
    if principal == EACH:
        return None
    return ANONYMOUS_USER if principal == ANONYMOUS else principal.removeprefix("user:")


def _client_id(name: str | None) -> str:
    if name is None:
        return EACH
    try:
        return check_client_id(name)
    except InvalidConfig as error:
        raise InvalidRequest(error.message) from None
