"""Model of undelete: a deleted topic is kept for its grace, and can be brought back until the controller
has recorded that the grace is over.

One name, one chain of records that the newest controller extends (older ones live on and try to),
collectors and retention that act on what they read some time ago, clocks of machines that are wrong,
and one clock of the store. Moves, plans and barriers are taken for granted (design D4).

    R1 Nothing of a trashed topic is deleted.
    R2 REMOVED is written only when the grace is over by both clocks; its begin is the later of the two.
    R3 The controller's chain orders delete, undelete and REMOVED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.models.walk import Model, Process, Violation, Walk

LIVING, TRASHED, REMOVED = "LIVING", "TRASHED", "REMOVED"
GRACE = 40
RETENTION = 25
STEPS = 700
CLOCK_ERROR_MAX = 60
FILES_AT_FIRST = 3


@dataclass(frozen=True, slots=True)
class Topic:
    id: int
    state: str = LIVING
    deleted_at: int = 0


@dataclass(slots=True)
class World:
    walk: Walk
    now: int = 0
    """By the store's clock, the only one that counts for the judge."""
    chain: list[Topic | None] = field(default_factory=list)
    """The records of the name; None: a tombstone."""
    files: dict[int, dict[int, int]] = field(default_factory=dict)
    """By topic id: number of a file -> when it was written."""
    held: set[int] = field(default_factory=set)
    """The topics that the bundle's newest checkpoint names as held."""
    offsets: set[int] = field(default_factory=set)
    """The topics of which the group has committed offsets."""
    answered: dict[int, int] = field(default_factory=dict)
    """The deletions with grace that were answered, and not undone: topic id -> begin of the call."""
    ids: int = 0

    def breaks(self, rule: str) -> bool:
        return rule in self.walk.broken

    @property
    def topic(self) -> Topic | None:
        return self.chain[-1] if self.chain else None

    def append(self, known: int, record: Topic | None) -> bool:
        """Extend the chain if it ends where the caller believes: a conditional put."""
        if known != len(self.chain):
            return False
        before = self.topic
        if record is not None and record.state == REMOVED and before is not None and before.state == TRASHED:
            begun = self.answered.pop(before.id, None)
            if begun is not None and self.now < begun + GRACE:
                raise Violation(f"topic {before.id} is removed {self.now - begun} after it was deleted, grace {GRACE}")
        self.chain.append(record)
        return True

    def delete_file(self, topic_id: int, number: int) -> None:
        topic = self.topic
        if topic is not None and topic.id == topic_id and topic.state == TRASHED and topic_id in self.answered:
            raise Violation(f"file {number} of topic {topic_id} is deleted while it can be brought back")
        self.files[topic_id].pop(number, None)


def controller(world: World) -> Process:
    """Change the topic, end graces, free the name: each time by the newest record, or not at all."""
    error = world.walk.random.randint(-CLOCK_ERROR_MAX, CLOCK_ERROR_MAX)
    while True:
        yield
        step = world.walk.random.choice((_create, _delete, _delete_at_once, _undelete, _undelete, _end_grace, _free))
        yield from step(world, lambda: world.now + error)


def _ready(world: World) -> tuple[int, Topic | None]:
    return len(world.chain), world.topic


def _create(world: World, clock: Callable[[], int]) -> Process:
    known, topic = _ready(world)
    taken = topic is not None and not (world.breaks("name-given-away") and topic.state == TRASHED)
    yield
    if taken:
        return
    world.ids += 1
    if world.append(known, Topic(world.ids)):
        world.files[world.ids] = dict.fromkeys(range(FILES_AT_FIRST), world.now)
        world.offsets.add(world.ids)
        world.walk.saw("topics created")
        if topic is not None and topic.id in world.answered:
            raise Violation(f"topic {world.ids} takes the name of topic {topic.id}, which can be brought back")


def _delete(world: World, clock: Callable[[], int]) -> Process:
    begun = world.now
    known, topic = _ready(world)
    if topic is None or topic.state != LIVING:
        return
    yield
    stamp = clock() if world.breaks("begun-by-one-clock") else max(clock(), world.now)
    yield
    if not world.append(known, replace(topic, state=TRASHED, deleted_at=stamp)):
        return
    yield
    if not world.breaks("answered-before-it-is-in-force"):
        _take_in_facts(world)
    if world.topic == replace(topic, state=TRASHED, deleted_at=stamp):
        world.answered[topic.id] = begun
        world.walk.saw("deletions answered")


def _delete_at_once(world: World, clock: Callable[[], int]) -> Process:
    known, topic = _ready(world)
    yield
    if topic is not None and topic.state != REMOVED and world.walk.chance(0.2):
        kept = world.answered.pop(topic.id, None)
        if world.append(known, replace(topic, state=REMOVED)):
            world.walk.saw("deleted at once")
        elif kept is not None:
            world.answered[topic.id] = kept


def _undelete(world: World, clock: Callable[[], int]) -> Process:
    known, topic = _ready(world)
    yield
    may_return = topic is not None and (
        topic.state == TRASHED or (world.breaks("undeleted-after-removed") and topic.state == REMOVED)
    )
    if not may_return or topic is None or not world.append(known, Topic(topic.id)):
        return
    answered = world.answered.pop(topic.id, None)
    _take_in_facts(world)
    world.walk.saw("topics brought back")
    if not world.files[topic.id] and answered is not None:
        raise Violation(f"topic {topic.id} is back without its files")
    if topic.id not in world.offsets:
        raise Violation(f"topic {topic.id} is back without the offsets of its group")
    yield


def _end_grace(world: World, clock: Callable[[], int]) -> Process:
    _, topic = _ready(world)
    if topic is None or topic.state != TRASHED:
        return
    yield
    now = clock() if world.breaks("ended-by-one-clock") else min(clock(), world.now)
    if now < topic.deleted_at + GRACE:
        return
    yield
    known, current = _ready(world)
    if current != topic and not world.breaks("ended-by-an-old-look"):
        return
    if world.append(known, replace(topic, state=REMOVED)):
        world.walk.saw("graces ended")
        if current != topic:
            raise Violation(f"topic {topic.id} is removed, though it is {current} by now")


def _free(world: World, clock: Callable[[], int]) -> Process:
    known, topic = _ready(world)
    yield
    if topic is not None and topic.state == REMOVED and not world.files[topic.id] and world.append(known, None):
        world.walk.saw("names freed")


def _take_in_facts(world: World) -> None:
    topic = world.topic
    world.held = {topic.id} if topic is not None and topic.state == TRASHED else set()


def facts(world: World) -> Process:
    """A round of any process brings the checkpoint up to date."""
    while True:
        yield
        if not world.breaks("answered-before-it-is-in-force") or world.walk.chance(0.05):
            _take_in_facts(world)


def collector(world: World) -> Process:
    """Delete the files of a removed topic, by a catalog that was read some time ago."""
    while True:
        yield
        topic = world.topic
        gone = (REMOVED, TRASHED) if world.breaks("collected-within-the-grace") else (REMOVED,)
        if topic is None or topic.state not in gone:
            continue
        for number in sorted(world.files[topic.id]):
            yield
            world.delete_file(topic.id, number)
            current = world.topic
            if current is not None and current.id == topic.id and current.state == LIVING:
                raise Violation(f"file {number} of topic {topic.id} is deleted, though the topic is back")
            world.walk.saw("files collected")


def retention(world: World) -> Process:
    """Delete old files of a living topic: the catalog was read before, the checkpoint just before each deletion."""
    while True:
        yield
        topic = world.topic
        if topic is None or (topic.state != LIVING and not world.breaks("retention-of-a-trashed-topic")):
            continue
        yield
        for number, written in sorted(world.files[topic.id].items()):
            if written + RETENTION > world.now or len(world.files[topic.id]) == 1:
                break
            if topic.id in world.held and not world.breaks("retention-of-a-trashed-topic"):
                break
            world.delete_file(topic.id, number)
            world.walk.saw("files expired")
            yield


def group(world: World) -> Process:
    """Forget committed offsets of topics that are gone."""
    while True:
        yield
        topic = world.topic
        gone = (REMOVED, TRASHED) if world.breaks("offsets-forgotten-within-the-grace") else (REMOVED,)
        if topic is not None and topic.state in gone:
            yield
            world.offsets.discard(topic.id)


def writer(world: World) -> Process:
    while True:
        yield
        topic = world.topic
        if topic is not None and topic.state == LIVING and world.walk.chance(0.1):
            files = world.files[topic.id]
            files[max(files, default=-1) + 1] = world.now


def run(walk: Walk) -> None:
    world = World(walk)
    makers = (controller, controller, controller, facts, collector, collector, retention, retention, group, writer)
    processes = [make(world) for make in makers]
    for _ in range(STEPS):
        world.now += walk.random.choice((0, 0, 1, 1, 5))
        next(walk.random.choice(processes))


UNDELETE = Model(
    "undelete",
    run,
    mutants={
        "collected-within-the-grace": "R1: a collector takes only what is REMOVED",
        "retention-of-a-trashed-topic": "R1: retention stops while a topic can be brought back",
        "answered-before-it-is-in-force": "R1: the answer to a deletion waits until each checkpoint holds the topic",
        "offsets-forgotten-within-the-grace": "R1: groups forget what is REMOVED",
        "begun-by-one-clock": "R2: the grace begins at the later of two clocks",
        "ended-by-one-clock": "R2: the grace ends at the earlier of two clocks",
        "undeleted-after-removed": "R3: what is REMOVED never comes back",
        "ended-by-an-old-look": "R3: REMOVED follows the deletion whose grace is over",
        "name-given-away": "a name is free only when nothing of its topic is left",
    },
    must_reach=(
        "topics created",
        "deletions answered",
        "deleted at once",
        "topics brought back",
        "graces ended",
        "names freed",
        "files collected",
        "files expired",
    ),
)
