"""Decide about unresolved half messages (`client.unresolved`) in the place of their producers: publish one, or drop
it.

Copies of them lie in the topic `<check group>.unresolved`. A decision is another record in it:

    half.transactional-id   which message it is about
    half.decision           commit | rollback

Invariants: a message is published in the transaction that records the decision, so it is published
once, however often a command is repeated. All decisions about a group are made under one
transactional id, which has the topic's name. Its epoch begins before the topic is read: what an earlier
command decided is then in the topic, and what it has not decided never will be.

The cluster may store a copy again, seldom: after its ledger forgot the session in which it was stored. A record
with the content of one before it, under the same id, is such a repetition, and does not count.

Any program with the right to produce may write into the topic. So before a message is published, the
coordinator of its id is asked whether it is an unresolved half message of this check group, for this
topic and partition: its producer had to be allowed to stage it there.
"""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from ledgermq.client.admin.topics import Admin
from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import Message
from ledgermq.client.context import ClientContext
from ledgermq.client.settings.values import ConsumerSettings
from ledgermq.client.transactions.transactions import TransactionClient
from ledgermq.errors import InvalidRequest, TransactionUnknown, UnknownPartition, UnknownTopic
from ledgermq.protocol.naming.unresolved import CHECKS, DECISION, ID, PARTITION, SUFFIX, TOPIC

Decision = Literal["commit", "rollback"]


@dataclass(slots=True)
class UnresolvedMessage:
    """One half message that no producer knew about. `offset`: of its first record in
    `<group>.unresolved`. `messages`: those of wanted ids only, as they were stored there.
    """

    transactional_id: str
    group: str
    topic: str
    partition: int
    checks: int
    offset: int
    timestamp_us: int | None
    key: bytes | None
    bytes: int = 0
    decision: Decision | None = None
    messages: list[Message] = field(default_factory=list)
    _contents: set[builtins.bytes] = field(default_factory=set, init=False, repr=False, compare=False)
    """Hashes of the records that count."""


class UnresolvedAdmin:
    """Half messages whose producers never answered, as `client.unresolved`: list them, publish or drop them."""

    def __init__(self, context: ClientContext, admin: Admin, transactions: TransactionClient) -> None:
        self._context = context
        self._admin = admin
        self._transactions = transactions

    async def groups(self) -> builtins.list[str]:
        """Return the check groups that have, or had, unresolved messages. Raises Unavailable."""
        names = await self._admin.topic_names()
        return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and name != SUFFIX)

    async def list(self, group: str, *, decided: bool = False) -> builtins.list[UnresolvedMessage]:
        """Return the unresolved messages of a check group in the order of their arrival, without their contents; with
        `decided`, also those that are decided. None if the group has never had one. Raises Unavailable, DataDamaged.
        """
        return [each for each in await self._read(group) if decided or each.decision is None]

    async def get(self, group: str, transactional_id: str) -> UnresolvedMessage:
        """Return an unresolved message with its contents. Raises InvalidRequest, Unavailable, DataDamaged."""
        for each in await self._read(group, (transactional_id,)):
            if each.transactional_id == transactional_id:
                return each
        raise InvalidRequest(f"check group {group!r} has no unresolved message {transactional_id!r}")

    async def commit(
        self, group: str, transactional_ids: Iterable[str], *, unverified: bool = False
    ) -> builtins.list[UnresolvedMessage]:
        """Publish messages in the topic and the partition that they were meant for, and return them.

        Each is published in a transaction, once, however often this is repeated; it cannot be undone. `unverified`:
        also what its coordinator no longer knows. Raises InvalidRequest for an id that is not there, is decided
        otherwise, or is not the unresolved half message that its headers claim, and nothing has changed then;
        UnknownTopic, UnknownPartition; TransactionFenced if another call decides about the group at the same time,
        TransactionOutcomeUnknown, and what the message's topic refuses: repeat the call.
        """
        return await self._decide(group, transactional_ids, "commit", unverified=unverified)

    async def rollback(self, group: str, transactional_ids: Iterable[str]) -> builtins.list[UnresolvedMessage]:
        """Drop messages, and return them: `list` leaves them out, and `commit` refuses them. They stay readable in
        `<group>.unresolved`. Raises as `commit` does.
        """
        return await self._decide(group, transactional_ids, "rollback")

    async def _read(self, group: str, contents_of: Collection[str] = ()) -> builtins.list[UnresolvedMessage]:
        found: dict[str, UnresolvedMessage] = {}
        topics, settings = [group + SUFFIX], ConsumerSettings(deliver_expired=True)
        try:
            async with Consumer(self._context, topics, None, "earliest", "latest", settings) as consumer:
                async for message in consumer:
                    _take(found, group, message, contents_of.__contains__)
        except UnknownTopic:
            return []
        return [*found.values()]

    async def _decide(
        self, group: str, names: Iterable[str], decision: Decision, *, unverified: bool = False
    ) -> builtins.list[UnresolvedMessage]:
        names = [*dict.fromkeys(names)]
        must_verify = decision == "commit" and not unverified
        verified: dict[str, tuple[str, int]] = {}
        if must_verify:
            verified = await self._verified(await self._read(group), names)
        async with self._transactions(group + SUFFIX) as transactions:
            known = {each.transactional_id: each for each in await self._read(group, set(names))}
            chosen = [_decidable(known, group, name, decision) for name in names]
            for each in chosen if must_verify else ():
                if each.decision is None and verified.get(each.transactional_id) != (each.topic, each.partition):
                    raise _unverified(each, "it has just come, or changed; repeat the command")
            for each in chosen:
                if each.decision is not None:
                    continue
                async with transactions.begin() as transaction:
                    for message in each.messages if decision == "commit" else ():
                        transaction.send(
                            each.topic,
                            message.value,
                            key=message.key,
                            headers=_original(message),
                            tag=message.tag,
                            timestamp=message.timestamp_us,
                            partition=each.partition,
                        )
                    headers = [(ID, each.transactional_id.encode()), (DECISION, decision.encode())]
                    transaction.send(group + SUFFIX, None, headers=headers)
                each.decision = decision
        return chosen

    async def _verified(self, found: Iterable[UnresolvedMessage], names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Return id -> topic and partition of those messages that are to be published. This is done before the
        epoch begins, which makes other calls about the group fail.
        """
        waiting = [each for each in found if each.transactional_id in names and each.decision is None]
        for each in waiting:
            await self._check_known(each)
        return {each.transactional_id: (each.topic, each.partition) for each in waiting}

    async def _check_known(self, each: UnresolvedMessage) -> None:
        """Check with the coordinator of the id what the headers of the message claim."""
        topic = await self._admin.describe_topic(each.topic)
        if each.partition >= len(topic.partitions):
            raise UnknownPartition(
                f"topic {each.topic} has no partition {each.partition}, which the message is meant for"
            )
        try:
            known = await self._transactions.describe(each.transactional_id, staged=False)
        except TransactionUnknown:
            raise _unverified(
                each, "its coordinator does not know the id: it expired, or a stranger has written it"
            ) from None
        if (known.kind, known.state, known.check_group) != ("half_message", "unresolved", each.group):
            raise _unverified(
                each,
                f"its coordinator knows the id as a {known.kind} of group {known.check_group!r} that is {known.state}",
            )
        meant = {place for part in known.parts for place in part.batches}
        if not meant:
            raise _unverified(
                each, "an earlier release has ended it, which did not keep what the message was meant for"
            )
        if meant != {(topic.topic_id, each.partition)}:
            raise _unverified(each, f"it was not staged for partition {each.partition} of this topic")


def _is_number(text: bytes) -> bool:
    """Return whether these are digits of an int32, for any program may have written them."""
    return text.isdigit() and len(text) < 10


def _take(found: dict[str, UnresolvedMessage], group: str, message: Message, wanted: Callable[[str], bool]) -> None:
    """Take in one record of the topic; those of other programs have no effect."""
    headers = {name: value for name, value in message.headers if name.startswith("half.")}
    name = (headers.get(ID) or b"").decode(errors="replace")
    decision = (headers.get(DECISION) or b"").decode(errors="replace")
    if decision in ("commit", "rollback"):
        if name in found:
            found[name].decision = cast(Decision, decision)
        return
    if not name or not headers.get(TOPIC) or not _is_number(headers.get(PARTITION) or b""):
        return
    each = found.setdefault(
        name,
        UnresolvedMessage(
            transactional_id=name,
            group=group,
            topic=(headers[TOPIC] or b"").decode(errors="replace"),
            partition=int(headers[PARTITION] or b"0"),
            checks=int(checks) if _is_number(checks := headers.get(CHECKS) or b"0") else 0,
            offset=message.offset,
            timestamp_us=message.timestamp_us,
            key=message.key,
        ),
    )
    content = _hash(message)
    if content in each._contents:
        return
    each._contents.add(content)
    each.bytes += len(message.key or b"") + len(message.value or b"")
    if wanted(name):
        each.messages.append(message)


def _hash(message: Message) -> bytes:
    """Return a hash of all that the producer gave, and of the headers that the cluster added."""
    content = message.key, message.value, message.headers, message.tag, message.timestamp_us
    return hashlib.sha256(repr(content).encode()).digest()


def _decidable(known: dict[str, UnresolvedMessage], group: str, name: str, decision: Decision) -> UnresolvedMessage:
    if name not in known:
        raise InvalidRequest(
            f"check group {group!r} has no unresolved message {name!r}: `ledgermq transaction unresolved list {group}`"
            " shows those there are"
        )
    if known[name].decision not in (None, decision):
        raise InvalidRequest(
            f"unresolved message {name!r} of check group {group!r} was decided before, by {known[name].decision};"
            " nothing was changed"
        )
    return known[name]


def _unverified(each: UnresolvedMessage, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"message {each.transactional_id!r} in {each.group}{SUFFIX}, for topic {each.topic!r}, is not published: {why}."
        " Nothing was changed; look at the message with `ledgermq transaction unresolved show`, then drop it, or"
        " publish it by its headers alone with --unverified"
    )


def _original(message: Message) -> Sequence[tuple[str, bytes | None]]:
    """Return the headers that the producer gave: the cluster has added its own behind them."""
    added = (ID, TOPIC, PARTITION, CHECKS)
    return [header for header in message.headers if header[0] not in added]
