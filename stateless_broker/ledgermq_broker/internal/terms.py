"""Serve the internal topics' partitions that one broker owns, and route calls to them.

The owner of a bundle serves its partitions; any other broker raises NotOwner, which names the owner.
Partitions are loaded when their bundle is opened, not at the first request, so that their time-outs
run without requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, TypeVar, cast

from ledgermq.errors import LedgerMQError, NotOwner, Unavailable
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.internal.core import Core, CoreKind, Follower, Hosted
from ledgermq_broker.internal.term import RETRY_AFTER_MS, InternalTerm, TermParts
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.history import read_whole
from ledgermq_ledger.log.internal_topic import read_internal
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.topics.topic import Topic

A = TypeVar("A")
C = TypeVar("C", bound=Core)
H = TypeVar("H", bound=Hosted)


class InternalTerms:
    """The internal terms of one broker. Add all kinds before the first bundle is opened."""

    def __init__(self, ownership: Ownership, parts: TermParts) -> None:
        self._ownership = ownership
        self._parts = parts
        self._kinds: list[CoreKind[Any, Any]] = []
        self._terms: dict[int, InternalTerm] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, kind: CoreKind[C, H]) -> None:
        """Serve the partitions of the kind's topic."""
        self._kinds.append(kind)

    async def call(self, kind: CoreKind[C, H], topic: Topic, partition: int, call: Callable[[H], Awaitable[A]]) -> A:
        """Return what `call` returns for a partition of the kind's topic.

        Raises NotOwner, which names the owner; Unavailable; and the error of damaged data.
        """
        bundle = self._bundle_of(topic, partition)
        owner = await self._ownership.owner(bundle)
        try:
            return await call(cast(H, await self._term(owner).loaded(kind.topic, partition)))
        except NotOwner as error:
            if error.owner or error.retry_after_ms:
                raise
            raise await self._ownership.redirect(bundle) from error

    def hosted(self, kind: CoreKind[C, H], topic: Topic, partition: int) -> H:
        """Return a partition that is served here now, for a decision of another partition.

        Raises NotOwner; Unavailable while it is being loaded; and the error of damaged data.
        """
        bundle = self._bundle_of(topic, partition)
        term = self._terms.get(bundle)
        if term is None:
            raise self._ownership.not_owner(bundle)
        return cast(H, term.hosted(kind.topic, partition))

    def kept(self, bundle: int, place: PartitionId) -> list[str]:
        """Return why a partition of users may not leave a bundle that this broker owns; see `InternalTerm.kept`.

        Raises NotOwner; Unavailable while that is not known; and the error of damaged data.
        """
        if bundle not in self._bundles():
            return []  # no internal topic has a partition there
        owner = self._ownership.opened.get(bundle)
        if owner is None:
            raise self._ownership.not_owner(bundle)
        return self._term(owner).kept(place)

    async def bring(self, source: LedgerRef, target: int, places: Collection[PartitionId]) -> None:
        """Bring what internal topics know of partitions of users from another bundle into one that this broker owns,
        durably: the other one has sealed these partitions, and this one has not opened them. Costs no request if
        there is no such topic. May be repeated.

        Raises NotOwner; Unavailable; the error of damaged data; and the store's errors.
        """
        for kind in self._kinds:
            topic = self._parts.catalog().topics_by_name.get(kind.topic)
            if not kind.follows or topic is None or source.bundle not in topic.bundles:
                continue
            [there], [here] = ([*topic.partitions_in(bundle)] for bundle in (source.bundle, target))
            records = await read_whole(source, partial(read_internal, source.store, topic_id=topic.id, partition=there))
            if (owner := self._ownership.opened.get(target)) is None:
                raise self._ownership.not_owner(target)
            hosted = cast(Follower, await self._term(owner).loaded(kind.topic, here))
            await hosted.bring(places, records)

    def ready(self, kind: CoreKind[C, H]) -> list[H]:
        """Return the partitions of the kind's topic that are served here now."""
        return [
            cast(H, hosted)
            for term in self._terms.values()
            for (topic, _), hosted in term.ready.items()
            if topic == kind.topic
        ]

    def refused(self, topic: str) -> dict[int, LedgerMQError]:
        """Return the partitions of an internal topic that this broker owns but cannot serve, because
        they are damaged, with the errors.
        """
        return {
            partition: error
            for term in self._terms.values()
            for (name, partition), error in sorted(term.refused.items(), key=lambda refused: refused[0])
            if name == topic
        }

    def ownership_changed(self) -> None:
        """Open a term for each bundle that this broker owns now, and end all other terms."""
        opened = self._ownership.opened
        for bundle, term in list(self._terms.items()):
            if opened.get(bundle) is not term.owner:
                self._end(bundle)
            else:
                term.resume()
        for bundle in self._bundles() & opened.keys():
            self._term(opened[bundle])

    def catalog_changed(self) -> None:
        self.ownership_changed()  # a topic itself may be new
        for term in self._terms.values():
            term.tick()

    async def close(self) -> None:
        """Close all terms; leave no task behind."""
        for bundle in list(self._terms):
            self._end(bundle)
        if self._closing:
            await asyncio.wait(self._closing)

    def _bundle_of(self, topic: Topic, partition: int) -> int:
        """Return the bundle of a partition. The caller may have found the topic before bundles were added, and
        the partition after that.
        """
        if partition >= topic.partitions:
            topic = self._parts.catalog().living(topic.name)
        if partition >= topic.partitions:
            raise Unavailable(
                f"this broker has not read of partition {partition} of {topic.name} yet; retry",
                retry_after_ms=RETRY_AFTER_MS,
            )
        return topic.bundles[partition]

    def _bundles(self) -> set[int]:
        """Return the bundles that hold partitions of internal topics."""
        topics = self._parts.catalog().topics_by_name
        return {bundle for kind in self._kinds if kind.topic in topics for bundle in topics[kind.topic].bundles}

    def _term(self, owner: BundleOwner) -> InternalTerm:
        term = self._terms.get(owner.bundle)
        if term is None or term.owner is not owner:
            self._end(owner.bundle)
            term = self._terms[owner.bundle] = InternalTerm(owner, self._kinds, self._parts)
        return term

    def _end(self, bundle: int) -> None:
        term = self._terms.pop(bundle, None)
        if term is not None:
            closing = asyncio.create_task(term.close(), name=f"close internal topics of bundle {bundle}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
