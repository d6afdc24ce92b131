"""Represent the position of a streaming query: offsets by topic and partition, as Spark keeps them
in its checkpoint. A value; no Spark, no store.

    {"version": 1, "cluster": "4f…", "topics": {"flights": {"id": 17, "offsets": {"0": 120, "1": 98}}}, "from": {…}}

`cluster` and a topic's `id` reveal a cluster or a topic that was created again under the same name.
Spark writes the end of each batch before it runs, but never where the first batch begins: so the
end of the first batch records that itself, as `from` (in the form of `topics`), and a stream that
began at "latest" runs its first batch again with the same rows. What is not done yet at the begin
is marked `"first": true`.

Spark compares positions as text: the same position is always the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ledgermq.errors import FormatNotSupported, InvalidConfig
from ledgermq.protocol.limits import OFFSET_MAX

VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """`offsets`: by partition, the next one to read."""

    id: int
    offsets: Mapping[int, int]


Topics = Mapping[str, TopicPosition]


@dataclass(frozen=True, slots=True)
class Position:
    """`is_first`: nothing was read yet.

    `begun`: where the batch that ends here began, only for the first batch.
    """

    cluster: str
    topics: Topics
    begun: Topics | None = None
    is_first: bool = False

    def moved_to(self, topics: Topics) -> Position:
        """Return the end of a batch that begins here, or this position if nothing is new and
        something was read before.
        """
        if self.is_first:
            return Position(self.cluster, topics, begun=self.topics)
        return self if topics == self.topics else replace(self, topics=topics, begun=None)


def encode(position: Position) -> dict[str, Any]:
    found: dict[str, Any] = {"version": VERSION, "cluster": position.cluster, "topics": _encode_topics(position.topics)}
    if position.begun is not None:
        found["from"] = _encode_topics(position.begun)
    if position.is_first:
        found["first"] = True
    return found


def _encode_topics(topics: Topics) -> dict[str, Any]:
    return {name: _encode_topic(topics[name]) for name in sorted(topics)}


def _encode_topic(topic: TopicPosition) -> dict[str, Any]:
    return {
        "id": topic.id,
        "offsets": {str(partition): topic.offsets[partition] for partition in sorted(topic.offsets)},
    }


def decode(found: Any) -> Position:
    """Decode a position. Raises FormatNotSupported (a later version wrote it), InvalidConfig (it
    does not come from this source).
    """
    try:
        version = _whole(found["version"])
        if version != VERSION:
            raise FormatNotSupported(
                f"the checkpoint was written by format version {version} of this source; this software reads {VERSION}"
            )
        cluster = found["cluster"]
        if not isinstance(cluster, str):
            raise TypeError("cluster is text")
        begun = found.get("from")
        return Position(
            cluster,
            _decode_topics(found["topics"]),
            begun=None if begun is None else _decode_topics(begun),
            is_first=found.get("first") is True,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidConfig(
            f"the checkpoint holds {found!r:.300}, which is not a position of this source: {error!r}"
        ) from error


def _decode_topics(found: Any) -> Topics:
    return {
        name: TopicPosition(
            _whole(topic["id"]), {int(partition): _whole(offset) for partition, offset in topic["offsets"].items()}
        )
        for name, topic in found.items()
    }


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= OFFSET_MAX:
        raise ValueError(f"{value!r} is not the number of an offset, a topic or a version")
    return value


def share(lags: Mapping[tuple[str, int], int], rows_max: int) -> dict[tuple[str, int], int]:
    """Return how far each partition moves if all together move at most `rows_max`: in proportion to
    what waits there, or all of it if it fits.
    """
    total = sum(lags.values())
    if total <= rows_max:
        return dict(lags)
    shares = {part: lag * rows_max // total for part, lag in lags.items()}
    left = rows_max - sum(shares.values())
    for part in sorted(lags, key=lambda part: (shares[part], part)):  # so that the smallest ones do not starve
        step = min(left, 1, lags[part] - shares[part])
        shares[part] += step
        left -= step
    return shares
