"""Watch what members of groups do with messages that expire: each one is skipped from its time on by the
member's clock, and not before.

handed out too late     a message was returned to a program that had expired by its clock
skipped too early       a message was skipped as expired before its time
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pytest

from ledgermq.client.consuming.reading import Reading
from ledgermq.client.groups.holding.handing_out import HandingOut
from ledgermq.client.groups.message import GroupMessage
from tests.judges.violation import Violation
from tests.simulation.loop import current_process
from tests.simulation.world import World

EXPIRES_MS = "ledgermq.expires-ms"

Place = tuple[str, int, int]
"""(topic, partition, offset)."""


class ExpiryWatch:
    """`skipped`: by the first letter of members' names."""

    def __init__(self, world: World) -> None:
        self.skipped: defaultdict[str, set[Place]] = defaultdict(set)
        self._world = world

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at every skip while this is open."""
        real_skipped, real_expire = HandingOut.skipped_expired, HandingOut.expire

        def skipped(found: HandingOut, reading: Reading, rows: pa.RecordBatch, offsets: Sequence[int]) -> None:
            topic, partition = reading.partition
            for at, headers in zip(offsets, rows.column("headers").to_pylist(), strict=True):
                self._note_skip((topic, partition, at), [(pair["key"], pair["value"]) for pair in headers or ()])
            real_skipped(found, reading, rows, offsets)

        def expire(found: HandingOut, message: GroupMessage) -> bool:
            is_over = real_expire(found, message)
            if is_over:
                self._note_skip((message.topic, message.partition, message.offset), message.headers)
            return is_over

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HandingOut, "skipped_expired", skipped)
            patch.setattr(HandingOut, "expire", expire)
            yield

    def judge_handed_out(self, member: str, messages: Iterable[GroupMessage]) -> None:
        """Judge messages in the turn in which a program gets them."""
        now_us = self._now_us(member)
        for message in messages:
            expires_us = expires_us_of(message.headers)
            self._world.coverage.saw("a message that will expire was handed out", expires_us is not None)
            if expires_us is not None and expires_us <= now_us:
                place = (message.topic, message.partition, message.offset)
                self._report("handed out too late", member, place, now_us - expires_us)

    def _note_skip(self, place: Place, headers: Iterable[tuple[str, bytes | None]]) -> None:
        process = current_process()
        assert process is not None
        member, expires_us = process.name, expires_us_of(headers)
        self._world.coverage.saw("an expired message was skipped")
        now_us = self._now_us(member)
        if expires_us is None or expires_us > now_us:
            self._report("skipped too early", member, place, now_us - (expires_us or 0))
        else:
            self.skipped[member[0]].add(place)

    def _now_us(self, member: str) -> int:
        return self._world.sources(f"watch of {member}", clock=member).now_us()

    def _report(self, kind: str, member: str, place: Place, after_us: int) -> None:
        text = f"{place} by {member}, {after_us / 1e6:.6f} s after it expired"
        self._world.violations.append(Violation(kind, text))


def expires_us_of(headers: Iterable[tuple[str, bytes | None]], name: str = EXPIRES_MS) -> int | None:
    """Return when a record of the simulation expires: it has the header once, or not at all."""
    found = dict(headers).get(name)
    return None if found is None else int(found) * 1000
