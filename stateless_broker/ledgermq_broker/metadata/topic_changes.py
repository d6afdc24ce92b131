"""Decide changes of topics. Pure: a catalog and a request in, the changed topic (or a typed error)
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ledgermq.errors import (
    InvalidConfig,
    InvalidRequest,
    InvalidTopicName,
    LegalHold,
    ResourceExhausted,
    TopicBeingDeleted,
    TopicExists,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.protocol.limits import check_nonce, with_nonce
from ledgermq.protocol.naming.names import DEAD_LETTER_SUFFIX, RETRY_SUFFIX
from ledgermq_broker.settings.processes import default_of
from ledgermq_ledger import keys
from ledgermq_ledger.log.partitions.moves import MOVES_END
from ledgermq_ledger.topics.archive_location import archive_urls_of, check_archive_beside
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.settings import (
    CLUSTER_BUNDLES,
    NAMES,
    PARTITIONS_MOVED,
    SYSTEM_NAMES,
    TopicSettings,
    check_together,
    parse_settings,
    parse_stored_settings,
)
from ledgermq_ledger.topics.tables import FORMAT, LET_GO, check_has_table, with_generation
from ledgermq_ledger.topics.topic import METADATA, PartitionMove, Topic, Trash, removed

SETTING_CHARS_MAX = 200
CHANGES_KEPT = 16
"""Nonces of a topic's newest changes that are kept, so that a repeated one is known as such."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The broker's settings of these names."""

    default_partitions: int
    partitions_max: int
    topics_max: int
    offsets_partitions: int = default_of("offsets_partitions")
    message_ttl_ms: int | None = default_of("message_ttl_ms")
    message_ttl_ms_max: int | None = default_of("message_ttl_ms_max")
    archive_urls: str = default_of("archive_urls")
    topic_delete_grace_ms: int = default_of("topic_delete_grace_ms")

    def check_archive(self, root_url: str, wish: Topic, before: Topic | None = None) -> None:
        """Check where a topic's archive may be, unless it was there before. Raises InvalidConfig."""
        if before is None or before.settings.archive_url != wish.settings.archive_url:
            check_archive_beside(root_url, wish.settings.archive_url, archive_urls_of(self.archive_urls))

    def grace_ms_of(self, topic: Topic) -> int:
        """Return for how long the topic can be brought back once it is deleted; 0: not at all."""
        chosen = topic.settings.topic_delete_grace_ms
        return self.topic_delete_grace_ms if chosen is None else chosen

    def ttl_of(self, topic: Topic) -> tuple[int, int]:
        """Return the time to live that is in force for messages without their own, and the longest one, in
        milliseconds; 0: none.

        The broker's do not count for retry and dead-letter topics: a copy has its own, and a dead letter none.
        """
        default_ms, max_ms = topic.settings.message_ttl_ms, topic.settings.message_ttl_ms_max
        if not topic.internal and not topic.name.endswith((RETRY_SUFFIX, DEAD_LETTER_SUFFIX)):
            default_ms = self.message_ttl_ms if default_ms is None else default_ms
            max_ms = self.message_ttl_ms_max if max_ms is None else max_ms
        return max(0, default_ms or 0), max(0, max_ms or 0)


def created(
    catalog: Catalog,
    name: str,
    partitions: int,
    settings: Mapping[str, str],
    bundles: int,
    limits: TopicLimits,
    now_ms: int,
    nonce: bytes = b"",
) -> Topic:
    """Return the new topic; the offset of its record becomes its id. `partitions` 0 = the default. `nonce`: of the
    call, the same in all its attempts; if the topic has it, an earlier attempt created it, and nothing changes.

    Raises InvalidTopicName, InvalidConfig, TopicExists, TopicBeingDeleted, InvalidRequest,
    ResourceExhausted.
    """
    _check_user_topic(name)
    _check_lengths(settings)
    wanted = partitions or limits.default_partitions
    _check_partitions(wanted, limits)
    check_nonce(nonce)
    before = catalog.topics_by_name.get(name)
    if before is not None and before.removed:
        raise TopicBeingDeleted(f"topic {name!r} is being deleted; its name is not free yet", retry_after_ms=1000)
    if before is not None and before.trash is not None:
        raise TopicExists(f"{before.trash.describe(name)}, and `ledgermq topic delete --now {name}` frees the name")
    if before is not None and nonce and before.nonce == nonce:
        return before
    if before is not None:
        raise TopicExists(f"topic {name!r} exists, with {before.partitions} partitions")
    if catalog.own_topics >= limits.topics_max:
        raise ResourceExhausted(f"the cluster has {limits.topics_max} topics, the most that are allowed")
    checked = check_together(parse_settings(settings), wanted)
    raw, checked = with_generation(settings, checked, TopicSettings(), catalog.offset)
    return Topic(-1, name, assign(catalog, wanted, bundles), raw, checked, now_ms, nonce=nonce)


@dataclass(frozen=True)
class TopicSpec:
    """An internal topic: where its partitions lie, and the settings that it has from the system.

    `in_each_bundle`: its number of partitions in each user bundle, in ascending order of the bundles;
    `keys.bundle_partition` and its like count on the order. Added bundles get theirs. `spread`: returns the number
    of its partitions instead, which lie as those of a user's topic do and whose number never changes. `counted_in`:
    the setting that keeps the number of partitions that the topic was created with.
    """

    name: str
    in_each_bundle: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    counted_in: str = ""
    spread: Callable[[TopicLimits], int] | None = None

    def bundles(self, first: int, end: int) -> tuple[int, ...]:
        """Return the placement of its partitions in the bundles from `first` to `end - 1`, if each has some."""
        return tuple(bundle for bundle in range(first, end) for _ in range(self.in_each_bundle))


def created_internal(catalog: Catalog, spec: TopicSpec, bundles: int, limits: TopicLimits, now_ms: int) -> Topic:
    """Return the new topic. Raises TopicExists."""
    if spec.spread is not None:
        placement = assign(catalog, spec.spread(limits), bundles)
    else:
        placement = spec.bundles(keys.METADATA_BUNDLE + 1, bundles)
    counted = {spec.counted_in: str(len(placement))} if spec.counted_in else {}
    return created_internal_topic(catalog, spec.name, placement, {**spec.settings, **counted}, now_ms)


def created_internal_topic(
    catalog: Catalog, name: str, placement: tuple[int, ...], settings: Mapping[str, str], now_ms: int
) -> Topic:
    """Return a new internal topic; `placement[p]` is the bundle of partition p. Raises TopicExists."""
    if name in catalog.topics_by_name:
        raise TopicExists(f"topic {name!r} exists")
    raw = dict(settings)
    return Topic(-1, name, placement, raw, parse_stored_settings(raw), created_ms=now_ms)


def altered(
    catalog: Catalog,
    name: str,
    partitions: int,
    change: Mapping[str, str],
    unset: Sequence[str],
    bundles: int,
    limits: TopicLimits,
    now_ms: int,
    nonce: bytes = b"",
    topic_id: int = 0,
    *,
    rebuild_table: bool = False,
    let_go: tuple[int, int] = (0, 0),
) -> Topic:
    """Return the changed topic. `partitions` 0 = unchanged. `nonce`: of the call, the same in all its attempts; a
    topic that has it was changed by an earlier attempt, and nothing of it changes, for other calls may have changed
    it since. `topic_id`: of the topic that is meant; 0: the one that has the name now. `let_go`: see `with_generation`.

    Raises UnknownTopic, TopicBeingDeleted, InvalidTopicName, InvalidConfig, InvalidRequest.
    """
    _check_user_topic(name)
    check_nonce(nonce)
    topic = _meant(catalog.living(name), topic_id)
    if nonce and nonce in topic.changes:
        return topic
    if partitions and partitions < topic.partitions:
        raise InvalidRequest(
            f"topic {name!r} has {topic.partitions} partitions; their number may only grow, not become {partitions}"
        )
    _check_partitions(partitions or topic.partitions, limits)
    for setting in unset:
        if setting in SYSTEM_NAMES:
            raise InvalidConfig(f"topic setting {setting!r} is set by the system only; leave it out")
        if setting not in NAMES:
            raise InvalidConfig(f"unknown topic setting {setting!r}")
        if setting in change:
            raise InvalidConfig(f"topic setting {setting!r} cannot be set and unset at once")
    _check_lengths(change)
    parse_settings(change)
    raw = {key: value for key, value in (topic.raw_settings | dict(change)).items() if key not in unset}
    more = assign(catalog, partitions - topic.partitions, bundles) if partitions else ()
    settings = check_together(parse_stored_settings(raw), topic.partitions + len(more))
    if rebuild_table:
        check_has_table(topic)
    if FORMAT in change:
        raw.pop(LET_GO, None)
    raw, settings = with_generation(raw, settings, topic.settings, catalog.offset, rebuild=rebuild_table, let_go=let_go)
    return replace(
        topic,
        bundles=topic.bundles + more,
        raw_settings=raw,
        settings=settings,
        altered_ms=now_ms,
        changes=with_nonce(topic.changes, nonce, CHANGES_KEPT),
    )


def deleted(catalog: Catalog, name: str, topic_id: int, grace_ms: int, now_ms: int) -> Topic:
    """Return the topic as deleted: trashed for `grace_ms` from `now_ms` on, which is the later of two clocks; removed
    for good with a grace of 0. A topic that is trashed already stays as it is, unless the grace is 0.

    `topic_id`: of the topic that is meant; 0: the one that has the name now. Raises UnknownTopic,
    TopicBeingDeleted, InvalidTopicName, LegalHold.
    """
    _check_user_topic(name)
    topic = _meant(catalog.trashed.get(name) or catalog.living(name), topic_id)
    if topic.settings.legal_hold:
        raise LegalHold(
            f"topic {name!r} is under legal hold: it cannot be deleted until the setting legal.hold is unset"
        )
    for partition, move in topic.moves.items():
        _check_ended(topic, partition, move)
    if grace_ms == 0:
        return removed(topic)
    return topic if topic.trash is not None else replace(topic, trash=Trash(now_ms, grace_ms))


def undeleted(catalog: Catalog, name: str, now_ms: int, nonce: bytes = b"", topic_id: int = 0) -> Topic:
    """Return the topic as it was before it was deleted; a living one stays as it is. `now_ms`: the later of two
    clocks; a time of `delete.when` before it is not carried out. `nonce`, `topic_id`: as in `altered`; a topic that
    has the nonce stays as it is, for another call may have deleted it again.

    Raises InvalidTopicName, and UnknownTopic if nothing of this name is kept, or another topic than is meant.
    """
    _check_user_topic(name)
    check_nonce(nonce)
    topic = catalog.topics_by_name.get(name)
    if topic is not None and topic.removed:
        raise UnknownTopic(f"topic {name!r} cannot be brought back: it is deleted for good, and its files go")
    if topic is None:
        return catalog.living(name)  # raises UnknownTopic
    topic = _meant(topic, topic_id)
    if nonce and nonce in topic.changes:
        return topic
    changes = with_nonce(topic.changes, nonce, CHANGES_KEPT)
    if topic.trash is None:
        return replace(topic, changes=changes) if nonce else topic
    return replace(topic, trash=None, undeleted_ms=now_ms, altered_ms=now_ms, changes=changes)


def grace_ended(catalog: Catalog, topic_id: int, now_ms: int) -> Topic | None:
    """Return a trashed topic as removed for good; None while it can be brought back, or if it was. `now_ms`: the
    earlier of two clocks.
    """
    topic = catalog.topics_by_id.get(topic_id)
    if topic is None or topic.trash is None or now_ms < topic.trash.until_ms:
        return None
    return removed(topic)


def _meant(topic: Topic, topic_id: int) -> Topic:
    """Return the topic. Raises UnknownTopic if the name has passed to another one than is meant."""
    if topic_id not in (0, topic.id):
        raise UnknownTopic(
            f"topic {topic.name!r} with the id {topic_id} does not exist; the topic of that name has the id {topic.id}"
        )
    return topic


def moved(
    catalog: Catalog,
    name: str,
    partition: int,
    bundle: int,
    bundles: int,
    nonce: bytes = b"",
    topic_id: int = 0,
) -> Topic:
    """Return the topic with a partition on its way to a bundle; the offset of its record becomes the id of the
    move. A partition that is there, or on its way there, stays so. The topic does not count as altered: a time of
    `delete.when` that has passed is still to be carried out. `nonce`, `topic_id`: as in `altered`.

    Raises UnknownTopic, TopicBeingDeleted, InvalidTopicName, UnknownPartition, InvalidRequest, and Unavailable
    while the partition moves elsewhere.
    """
    _check_user_topic(name)
    check_nonce(nonce)
    topic = _meant(catalog.living(name), topic_id)
    if nonce and nonce in topic.changes:
        return topic
    if not 0 <= partition < topic.partitions:
        raise UnknownPartition(f"topic {name!r} has partitions 0 to {topic.partitions - 1}, not {partition}")
    if not keys.METADATA_BUNDLE < bundle < bundles:
        raise InvalidRequest(f"a partition can move to the bundles 1 to {bundles - 1}, not to {bundle}")
    source, before = topic.bundles[partition], topic.moves.get(partition)
    changes = with_nonce(topic.changes, nonce, CHANGES_KEPT)
    if source == bundle:
        return replace(topic, changes=changes) if nonce else topic
    if before is not None:
        _check_ended(topic, partition, before)
    if catalog.offset >= MOVES_END:
        raise InvalidRequest(
            f"partitions can move only within the first {MOVES_END} records of {keys.METADATA_TOPIC}; it has"
            f" {catalog.offset}"
        )
    raw = topic.raw_settings | {PARTITIONS_MOVED: "true"}
    earlier = PartitionMove(0, source) if before is None else before
    move = PartitionMove(0, source, earlier.id, count=earlier.count + 1)
    return replace(
        topic,
        bundles=(*topic.bundles[:partition], bundle, *topic.bundles[partition + 1 :]),
        raw_settings=raw,
        settings=parse_stored_settings(raw),
        moves={**topic.moves, partition: move},
        changes=changes,
    )


def move_ended(catalog: Catalog, topic_id: int, partition: int, move: int) -> Topic | None:
    """Return the topic as it is when a move has ended; None if that is known, or the topic is gone."""
    topic = catalog.topics_by_id.get(topic_id)
    found = None if topic is None else topic.moves.get(partition)
    if topic is None or found is None or found.id != move or found.ended:
        return None
    return replace(topic, moves={**topic.moves, partition: replace(found, ended=True)})


def _check_ended(topic: Topic, partition: int, move: PartitionMove) -> None:
    """Raise Unavailable while a partition is between two bundles."""
    if not move.ended:
        raise Unavailable(
            f"{topic.name}/{partition} still moves from bundle {move.source} to bundle {topic.bundles[partition]} (move"
            f" {move.id}); retry when it has ended",
            retry_after_ms=5000,
        )


def with_more_bundles(
    catalog: Catalog, before: int, bundles: int, now_ms: int, internal: Iterable[TopicSpec]
) -> list[Topic]:
    """Return the topics as they are once the cluster has so many bundles: `__metadata`, which says so, and
    each of the `internal` topics that has partitions in every user bundle, with those of the added ones.

    One batch has them all, so no process sees a bundle without its internal partitions. Partitions that
    exist stay where they are, and groups and transactional ids with them. `before`: the number in force;
    the result is empty if it is enough.
    """
    if bundles <= before:
        return []
    founded = catalog.topics_by_name[METADATA.name]
    raw = founded.raw_settings | {CLUSTER_BUNDLES: str(bundles)}
    changed = [replace(founded, raw_settings=raw, settings=parse_stored_settings(raw), altered_ms=now_ms)]
    for spec in internal:
        if spec.spread is None and (topic := catalog.topics_by_name.get(spec.name)) is not None:
            added = spec.bundles(before, bundles)
            changed.append(replace(topic, bundles=topic.bundles + added, altered_ms=now_ms))
    return changed


def assign(catalog: Catalog, partitions: int, bundles: int) -> tuple[int, ...]:
    """Assign a bundle to each new partition: always the one with the fewest partitions. Bundle 0
    holds only `__metadata`.
    """
    load = {bundle: catalog.load[bundle] for bundle in range(1, bundles)}
    chosen = []
    for _ in range(partitions):
        bundle = min(range(1, bundles), key=lambda b: (load[b], b))
        load[bundle] += 1
        chosen.append(bundle)
    return tuple(chosen)


def _check_user_topic(name: str) -> None:
    if keys.is_internal(keys.check_topic_name(name)):
        raise InvalidTopicName(f"topic name {name!r}: names that begin with two underscores belong to the system")


def _check_lengths(settings: Mapping[str, str]) -> None:
    """Bound what is kept permanently in `__metadata`."""
    for name, value in settings.items():
        if len(value) > SETTING_CHARS_MAX:
            raise InvalidConfig(
                f"topic setting {name[:100]!r}: at most {SETTING_CHARS_MAX} characters are allowed, not {len(value)}"
            )


def _check_partitions(partitions: int, limits: TopicLimits) -> None:
    if partitions > limits.partitions_max:
        raise InvalidRequest(f"a topic has at most {limits.partitions_max} partitions, not {partitions}")
