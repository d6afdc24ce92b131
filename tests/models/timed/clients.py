"""Programs: producers that repeat delayed sends, recalls, and topics that come and go."""

from __future__ import annotations

from tests.models.timed.bundle import recall, remove_topic, stage
from tests.models.timed.places import MINUTE, WIDTHS
from tests.models.timed.state import DONE, FENCED, GONE, RECALLED, TOO_LATE, Handle, Message, Session
from tests.models.timed.world import BUNDLES, World
from tests.models.walk import Process

DELAYS = (-60, -20, -3, -1, 0, 1, 5, 8, 13, 20, 35, 35, 60, 60, 100, 100)


class Clients:
    def __init__(self, world: World) -> None:
        self._world = world
        self._handles: list[Handle] = []
        """what may be recalled"""
        self._busy_second = 1
        """many messages are due in this one"""

    def processes(self) -> list[Process]:
        clients = [*(self.producer(name) for name in "abcdef"), *(self.recaller() for _ in range(3))]
        return [*(self._working(client) for client in clients), *(self.remover(bundle) for bundle in BUNDLES)]

    def _working(self, client: Process) -> Process:
        self._world.working += 1
        yield
        yield from client
        self._world.working -= 1

    def _message(self, bundle: int) -> Message:
        """The sender fixes the time; a delay counts from the store's time, as a broker answered it."""
        world, random = self._world, self._world.walk.random
        now, delay = int(world.store_time()), random.choice(DELAYS)
        due = now + delay
        if delay > 0 and random.random() < 0.3:
            width = random.choice(WIDTHS)
            due += -due % width if random.random() < 0.5 else width - 1 - due % width  # at the edges of ranges
        elif random.random() < 0.3:
            due = self._busy(now)
        elif random.random() < 0.15:
            due = self._world.owners()[bundle].issued.watermark.due  # just late
        timestamp = now if world.breaks("timestamp-of-the-send") else due
        topic = world.topic(random.choice((f"kept{bundle}", f"removed{bundle}")))
        message = Message(world.next_id(), bundle, topic, max(due, 1), max(timestamp, 1), max(delay, 0))
        world.judge.sent[message.id] = message
        return message

    def _busy(self, now: int) -> int:
        if self._busy_second < now - 1:
            first = now + self._world.walk.random.choice((0, 1, 2, 3, 16, 24))
            self._busy_second = first if self._world.walk.chance(0.5) else first + MINUTE - 1 - first % MINUTE
        return self._busy_second

    def producer(self, name: str) -> Process:
        """Send one block after the other, each until it is answered; one sequence for each bundle.

        After a refusal a new epoch begins: its sequences have nothing to do with what was refused.
        """
        world, random = self._world, self._world.walk.random
        sessions = {bundle: Session(f"{name}{bundle}", 0, 0) for bundle in BUNDLES}
        while not world.healed:
            for _ in range(random.randrange(world.idle * 20) if world.idle > 1 else 0):
                yield
            target = random.choice(BUNDLES)
            messages = tuple(self._message(target) for _ in range(random.choice((1, 1, 2, 3))))
            elsewhere = world.breaks("staged-elsewhere") and world.walk.chance(0.5)
            bundle = 1 - target if elsewhere else target
            session = sessions[bundle]
            answer = yield from world.until_answered(bundle, stage, session, messages)
            if answer in (GONE, FENCED):
                world.walk.saw("a send found its topic removed")
                world.deliver_within(400, bundle, stage, session, messages)
                if not world.breaks("sequence-of-a-refused-send"):
                    sessions[bundle] = session._replace(epoch=session.epoch + 1, sequence=0)
            else:
                sessions[bundle] = session._replace(sequence=session.sequence + 1)
                world.judge.promised |= {message.id: message for message in messages}
                self._handles += [
                    Handle(message.id, bundle, answer, row, message.due) for row, message in enumerate(messages)
                ]
            yield

    def recaller(self) -> Process:
        """Recall messages, some again and again, also after an answer."""
        world, random = self._world, self._world.walk.random
        recent: list[Handle] = []
        while not world.healed:
            yield
            if not self._handles or random.random() < 0.8:
                continue
            handle = random.choice(
                [self._next_due(), random.choice(self._handles[-20:]), self._handles[-1], *recent[-2:]]
            )
            recent.append(handle)
            for _ in range(random.choice((1, 1, 4))):
                answer = yield from world.call(handle.bundle, recall, handle)
                world.walk.saw(f"a recall was answered: {answer}")
                if answer == RECALLED:
                    world.judge.recalled.add(handle.message)
                elif answer == TOO_LATE:
                    world.judge.too_late.add(handle.message)

    def _next_due(self) -> Handle:
        """Return a handle of what is delivered next, as a program would that recalls in the last moment."""
        marks = [term.issued.watermark.due for term in self._world.owners()]
        return min(self._handles[-40:], key=lambda handle: abs(handle.due - marks[handle.bundle] - 1))

    def remover(self, bundle: int) -> Process:
        """Remove a topic now and then, and create one of the same name."""
        world, name = self._world, f"removed{bundle}"
        while not world.healed:
            yield
            if not world.walk.chance(0.03):
                continue
            topic = world.topic(name)
            world.judge.gone.add(topic)
            while (yield from world.call(bundle, remove_topic, topic)) != DONE:
                for _ in range(0 if world.healed else world.walk.random.choice((0, 40))):
                    yield  # it is tried again later
            world.incarnations[name] += 1
            world.walk.saw("a topic was removed, and created again")


def retention(world: World) -> Process:
    while not world.at_rest():
        yield
        if world.walk.chance(0.1):
            world.judge.expire()
