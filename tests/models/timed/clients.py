"""Programs: producers that repeat delayed sends, recalls, transactions, and topics that come and go."""

from __future__ import annotations

from tests.models.timed.bundle import complete, recall, remove_topic, stage, stage_in_transaction
from tests.models.timed.state import ABORT, COMMIT, DONE, GONE, RECALLED, TOO_LATE, Handle, Message
from tests.models.timed.wheel import MINUTE
from tests.models.timed.world import BUNDLES, World
from tests.models.walk import Process

DELAYS = (-20, -3, -1, -1, 0, 0, 1, 2, 3, 5, 8, 13, 20, 60, 100)


class Clients:
    def __init__(self, world: World) -> None:
        self._world = world
        self._handles: list[Handle] = []
        """what may be recalled"""
        self._busy_second = 1
        """many messages are due in this one"""

    def processes(self) -> list[Process]:
        clients = [*(self.producer(name) for name in "abcdef"), self.transactor(), self.transactor()]
        clients += [self.recaller() for _ in range(3)]
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
            due += -due % MINUTE if random.random() < 0.5 else MINUTE - 1 - due % MINUTE  # at the edges of slots
        elif random.random() < 0.5:
            self._busy_second = self._busy_second if self._busy_second >= now - 1 else now + random.randrange(4)
            due = self._busy_second
        elif random.random() < 0.15:
            due = self._world.owners()[bundle].issued.watermark.second  # just late
        timestamp = now if world.breaks("timestamp-of-the-send") else due
        topic = world.topic(random.choice((f"kept{bundle}", f"removed{bundle}")))
        message = Message(world.next_id(), bundle, topic, max(due, 1), max(timestamp, 1), max(delay, 0))
        world.judge.sent[message.id] = message
        return message

    def producer(self, name: str) -> Process:
        """Send one message after the other, each until it is answered; one sequence for each bundle."""
        world = self._world
        sequences = dict.fromkeys(BUNDLES, 0)
        while not world.healed:
            target = world.walk.random.choice(BUNDLES)
            message = self._message(target)
            elsewhere = world.breaks("staged-elsewhere") and world.walk.chance(0.5)
            bundle = 1 - target if elsewhere else target
            answer = yield from world.until_answered(bundle, stage, name, sequences[bundle], message)
            if answer == GONE:
                world.walk.saw("a send found its topic removed")
                world.deliver_within(400, bundle, stage, name, sequences[bundle], message)
            else:
                sequences[bundle] += 1
                world.judge.promised[message.id] = message
                self._handles.append(answer)
            yield

    def recaller(self) -> Process:
        """Recall messages, some again and again, also after an answer."""
        world, random = self._world, self._world.walk.random
        recent: list[Handle] = []
        while not world.healed:
            yield
            if not self._handles or random.random() < 0.8:
                continue
            handle = random.choice([self._next_due(), random.choice(self._handles[-20:]), *recent[-2:]])
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
        marks = [term.issued.watermark.second for term in self._world.owners()]
        return min(self._handles[-40:], key=lambda handle: abs(handle.due - marks[handle.bundle] - 1))

    def transactor(self) -> Process:
        """Stage some messages, wait, commit or abort. Once it is decided, handles are given out."""
        world, random = self._world, self._world.walk.random
        while not world.healed:
            transaction, bundle = world.next_id(), random.choice(BUNDLES)
            messages = [self._message(bundle) for _ in range(1 + random.randrange(3))]
            for message in messages:
                yield from world.until_answered(bundle, stage_in_transaction, transaction, message)
            outcome = random.choice((COMMIT, COMMIT, ABORT))
            if outcome == ABORT:
                world.judge.aborted |= {message.id for message in messages}
                if world.breaks("recall-in-transaction"):
                    self._handles += [Handle(message.id, bundle, message.due) for message in messages]
            else:
                world.judge.promised |= {message.id: message for message in messages}
                self._handles += [Handle(message.id, bundle, message.due) for message in messages]
            for _ in range(0 if world.healed else random.choice((0, 5, 20))):
                yield  # the decision is on its way
            yield from world.until_answered(bundle, complete, transaction, outcome)

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
