"""What has to be true of what becomes visible, and of the answers that clients got."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.models.timed.places import Key
from tests.models.timed.state import BEGINNING, Message, State, Topic, Visible
from tests.models.walk import Violation

if TYPE_CHECKING:
    from tests.models.timed.world import World

RETENTION = 60
"""Records are deleted so many seconds after their time."""


class Judge:
    def __init__(self, world: World) -> None:
        self._world = world
        self._visible: dict[int, Visible] = {}
        self._last: dict[int, Key] = {}
        """bundle -> the last message that it delivered"""
        self._kept: list[Message] = []
        """visible messages whose retention is not over"""
        self.sent: dict[int, Message] = {}
        self.promised: dict[int, Message] = {}
        """messages whose send was acknowledged"""
        self.recalled: set[int] = set()
        self.too_late: set[int] = set()
        self._tombstones: set[int] = set()
        """messages whose recall is durable, whatever was answered"""
        self.gone: set[Topic] = set()
        """topics whose removal has begun"""

    def landed(self, bundle: int, before: State, after: State) -> None:
        """An append is durable: look at what it makes visible."""
        for offset, row in after.recalled.keys() - before.recalled.keys():
            self._tombstones.add(after.intake[offset].messages[row].id)
        for visible in after.visible[len(before.visible) :]:
            message = visible.message
            if message.id in self._visible:
                raise Violation(f"{message} is delivered twice")
            if message.id in self.recalled | self._tombstones:
                raise Violation(f"{message} was recalled and is delivered")
            if visible.topic != message.topic:
                raise Violation(f"{message} is delivered to {visible.topic}")
            if visible.topic in before.removed:
                raise Violation(f"{message} is delivered to a topic that is removed")
            if visible.key <= (last := self._last.get(bundle, BEGINNING)):
                raise Violation(f"bundle {bundle} delivers {visible.key} after {last}")
            self._last[bundle] = visible.key
            self._visible[message.id] = visible
            self._kept.append(message)

    def expire(self) -> None:
        """Retention deletes records by their timestamps; it must not before their time is over."""
        horizon = self._world.store_time() - RETENTION
        for message in [message for message in self._kept if message.timestamp < horizon]:
            if message.due >= horizon:
                raise Violation(f"{message} is deleted at {self._world.store_time():.0f}")
            self._kept.remove(message)
            self._world.walk.saw("a delivered message was deleted by its age")

    def check_rest(self) -> None:
        """All is quiet: what was promised is delivered, unless something took it away."""
        for term in self._world.owners():
            if left := self._world.held(term):
                raise Violation(f"bundle {term.ledger} at {term.state.watermark}, {term.now()}: still {left}")
        if both := self.recalled & self.too_late:
            raise Violation(f"{both}: one recall was answered too late, another one recalled")
        for message in (self.sent[number] for number in sorted(self.too_late)):
            if message.id not in self._visible and message.topic not in self.gone:
                raise Violation(f"{message}: its recall was too late, and it is never delivered")
        for message in self.promised.values():
            if message.id in self._visible:
                continue
            if message.id not in self._tombstones and message.topic not in self.gone:
                raise Violation(f"{message} is never delivered")
        self._world.walk.saw("messages delivered", len(self._visible))
