"""Judge how the cluster grew, by the records of `__metadata` alone: after each batch of them, the number of
bundles is at least the one before, and every topic of the system that has partitions in the user bundles has
the same number of them in each bundle that there is, in the same order as before. Every other new partition
is in the bundle that had the fewest partitions when it was decided, those of internal topics included; of
equal bundles, in the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.topics.topic import topic_key
from tests.judges.violation import Violation
from tests.simulation.watch import WatchedStore

Batch = list[fmt.TopicRecord]
"""The records of topics that came in one segment."""
IN_EACH_BUNDLE = {
    "__staged",
    "__transactions",
    "__delayed",
    "__delayed_far",
    "__timers",
    "__shares",
    "__holders",
}


def metadata_batches(store: WatchedStore) -> Iterator[Batch]:
    for segment in store.history(keys.METADATA_BUNDLE):
        found = [
            fmt.TopicRecord.FromString(value)
            for _, key, value in (segment.records() if segment.valid else ())
            if value is not None and key.startswith(topic_key(""))
        ]
        if found:
            yield found


def numbers_of_bundles(batches: Iterable[Batch], first: int) -> list[int]:
    """Return the number with which the cluster began, and each that was decided later."""
    return [
        first,
        *(
            int(record.settings["cluster.bundles"])
            for batch in batches
            for record in batch
            if record.name == "__metadata" and "cluster.bundles" in record.settings
        ),
    ]


def judge_growth(batches: Iterable[Batch], first: int) -> list[Violation]:
    found: list[Violation] = []
    placed: dict[str, tuple[int, ...]] = {}
    living: dict[str, tuple[int, ...]] = {}
    bundles = first
    for batch in batches:
        now = numbers_of_bundles([batch], bundles)[-1]
        if now < bundles:
            found.append(Violation("bundles", f"their number became {now}, and was {bundles}"))
        bundles = now
        for record in batch:
            if record.name in IN_EACH_BUNDLE:
                before, after = placed.get(record.name, ()), tuple(record.bundles)
                if after[: len(before)] != before:
                    found.append(Violation("bundles", f"partitions of {record.name} moved: {before}, then {after}"))
                placed[record.name] = after
            else:
                found += _judge_places(record, living, bundles)
            living[record.name] = tuple(record.bundles) if record.state != fmt.REMOVED else ()
        for name, places in placed.items():
            counts = Counter(places)
            if (
                set(counts) != set(range(1, bundles))
                or len(set(counts.values())) != 1
                or list(places) != sorted(places)
            ):
                found.append(
                    Violation(
                        "bundles", f"{name} has no equal part in each of {bundles - 1} user bundles: {dict(counts)}"
                    )
                )
    return found


def _judge_places(record: fmt.TopicRecord, living: Mapping[str, Sequence[int]], bundles: int) -> list[Violation]:
    """`living`: the bundles of the partitions that exist, by topic."""
    chosen = list(record.bundles)[len(living.get(record.name, ())) :]
    counts = Counter(bundle for places in living.values() for bundle in places)
    if record.name == "__metadata" or record.state == fmt.REMOVED:
        return []
    for place in chosen:
        fewest = min(range(1, bundles), key=counts.__getitem__)
        if place != fewest:
            text = f"new partitions of {record.name} are in {chosen}, one in {place}, though {fewest} had fewer"
            return [Violation("placement", f"{text}, or as many and comes first: {dict(counts)}")]
        counts[place] += 1
    return []
