"""Model of Parquet compaction, retention and garbage collection: one bundle, one partition, one
file a plan.

Rival runners, retention and a collector of garbage may sleep between any two steps, and a put that
was sent may land long after. After every step a plain reader lists the files. Invariants: the files
are one gapless run without doubles, no file that the newest checkpoint names is missing, and no
plan becomes impossible to finish. On files a task's put goes through the plan's *fence* (a folder
that must exist); on S3 through a presigned URL that expires.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from tests.models.walk import Model, Process, Violation, Walk

STEPS = 2500
URL_LIFE = 20
UPLOAD_LIFE = 40
"""The longest that the store lets one upload take."""
COMMIT_AGE_MIN = URL_LIFE + UPLOAD_LIFE + 1
"""A file is deleted only when its commit is older: no put of its plan can land any more."""
Span = tuple[int, int]
FenceId = tuple[int, int]

RULES = {
    "unfenced-put": "a task's put is refused once its fence is closed or its URL has expired",
    "stale-plan-run": "a runner looks whether its plan is still open after it has read it",
    "stale-commit": "a commit is a conditional put upon the checkpoint that it was made from",
    "deleted-in-any-order": "expired files go in order of offset, each confirmed before the next",
    "looks-before-it-lists": "the collector lists files first, then reads plans, then the checkpoint",
    "records-dropped-beside-files": "a plan leaves out records only where no file of the partition is left",
}
FILE_RULES = {"open-fences-removed": "the fence of an open plan stays"}
S3_RULES = {
    "file-taken-by-name": "a commit looks whether the file is of its own plan",
    "slow-upload": "the store cuts off an upload that takes too long",
    "url-signed-after-the-look": "the URL's life counts from before the look that the plan is still open",
}


@dataclass(frozen=True, slots=True)
class Commit:
    """One file that a checkpoint names."""

    span: Span
    at: int
    plan: FenceId


@dataclass(frozen=True, slots=True)
class Checkpoint:
    finished: int = 0
    end: int = 0
    start: int = 0
    files: tuple[Commit, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    id: FenceId
    first: int
    last: int

    @property
    def span(self) -> Span:
        return self.first, self.last


class World:
    def __init__(self, walk: Walk, on_s3: bool) -> None:
        self.walk = walk
        self.on_s3 = on_s3
        self.now = 0
        self.log_end = 0
        self.newest = Checkpoint()
        self.plans: dict[int, Plan] = {}
        self.stored: dict[Span, FenceId] = {}
        self.fences: set[FenceId] = set()
        self.late: list[Process] = []
        self._ids = 0

    def breaks(self, rule: str) -> bool:
        return rule in self.walk.broken

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def commit(self, base: Checkpoint, new: Checkpoint) -> bool:
        """Put the next checkpoint if `base` is still the newest."""
        if self.newest is not base:
            return False
        self.newest = new
        return True

    def look(self) -> None:
        """What a plain reader sees now."""
        files = sorted(self.stored)
        for before, after in pairwise(files):
            if after[0] != before[1] + 1:
                raise Violation(f"{'doubled' if after[0] <= before[1] else 'gap'} {before} {after}")
        for commit in self.newest.files:
            if commit.span not in self.stored:
                raise Violation(f"a live file was deleted: {commit.span}")
        plan = self.plans.get(self.newest.finished + 1)
        if plan is not None and not self.on_s3 and plan.id not in self.fences and plan.span not in self.stored:
            raise Violation("a plan can never finish")


def send(world: World, plan: Plan, expires: int) -> Process:
    """One put of a task: it lands now or later."""
    while world.walk.chance(0.5):
        yield
    if world.on_s3:  # S3 looks at the URL when the request begins
        if not world.breaks("unfenced-put") and world.now > expires:
            world.walk.saw("a put was refused by its URL's age")
            return
        begun = world.now
        while world.walk.chance(0.7):
            yield
        if world.now > begun + UPLOAD_LIFE and not world.breaks("unfenced-put") and not world.breaks("slow-upload"):
            world.walk.saw("an upload was cut off")
            return
    elif plan.id not in world.fences and not world.breaks("unfenced-put"):
        world.walk.saw("a put was refused by its fence")
        return
    world.stored.setdefault(plan.span, plan.id)


def runner(world: World) -> Process:
    while True:
        base = world.newest
        yield
        number = base.finished + 1
        plan = world.plans.get(number)
        yield
        if plan is None:
            plan = yield from freeze(world, base, number)
            if plan is None:
                continue
        expires = world.now + URL_LIFE
        yield
        if not world.breaks("stale-plan-run") and world.newest.finished != number - 1:
            world.walk.saw("a plan was overtaken while it was run")
            continue
        if world.breaks("url-signed-after-the-look"):
            yield
            expires = world.now + URL_LIFE
        task = send(world, plan, expires)
        if world.walk.chance(0.3):  # the process sleeps forever, its put does not
            world.late.append(task)
            continue
        yield from task
        yield
        yield from commit(world, plan, number)


def freeze(world: World, base: Checkpoint, number: int) -> Process:
    """Put a plan if there is none of that number; return the one that counts, or None."""
    walk = world.walk
    if world.log_end <= base.end:
        return None
    first = base.end
    none_left = not base.files and not world.stored
    if (
        walk.chance(0.1)
        and world.log_end - base.end > 1
        and (none_left or world.breaks("records-dropped-beside-files"))
    ):
        first = walk.random.randrange(base.end + 1, world.log_end)
        walk.saw("a plan left out records")
    mine = Plan((number, world.next_id()), first, walk.random.randint(first, world.log_end - 1))
    world.fences.add(mine.id)
    yield
    while walk.chance(0.3):
        yield
    plan = world.plans.setdefault(number, mine)
    if plan is not mine:
        world.fences.discard(mine.id)
    return None if walk.chance(0.2) else plan  # None: the process dies after its put


def commit(world: World, plan: Plan, number: int) -> Process:
    while (base := world.newest).finished == number - 1:
        if world.stored.get(plan.span) != plan.id and not world.breaks("file-taken-by-name"):
            return
        yield
        current = world.newest if world.breaks("stale-commit") else base
        files = (*base.files, Commit(plan.span, world.now, plan.id))
        if world.commit(current, Checkpoint(number, plan.last + 1, base.start, files)):
            world.walk.saw("a plan was finished")
            for old in [old for old in world.plans if old <= world.newest.finished]:
                yield
                world.plans.pop(old, None)
            return


def retention(world: World) -> Process:
    walk = world.walk
    while True:
        yield
        base = world.newest
        expired = [file for file in base.files if world.now - file.at >= COMMIT_AGE_MIN][
            : walk.random.choice((1, 2, 9))
        ]
        if expired and walk.chance(0.5):
            yield
            world.commit(base, replace(base, files=base.files[len(expired) :], start=expired[-1].span[1] + 1))
        yield
        start = world.newest.start
        spans = sorted(span for span in world.stored if span[1] < start)
        yield
        if world.breaks("deleted-in-any-order"):
            walk.random.shuffle(spans)
        for span in spans:
            plan = world.stored.get(span)
            if plan is not None and not world.breaks("unfenced-put"):
                world.fences.discard(plan)
            yield
            world.stored.pop(span, None)
            walk.saw("an expired file was deleted")
            yield


def collector(world: World) -> Process:
    while True:
        for _ in range(world.walk.random.randrange(9)):
            yield
        if world.breaks("looks-before-it-lists"):
            checkpoint = world.newest
            yield
            plans = list(world.plans.values())
            yield
            listed = list(world.stored)
        else:
            listed = list(world.stored)
            yield
            plans = list(world.plans.values())
            yield
            checkpoint = world.newest
        yield
        for fence in sorted(world.fences):
            if fence[0] <= checkpoint.finished or world.breaks("open-fences-removed"):
                world.fences.discard(fence)
                world.walk.saw("a fence was removed")
                yield
        live = {file.span for file in checkpoint.files} | {plan.span for plan in plans}
        for span in listed:
            if span not in live and span[0] >= checkpoint.start:
                world.stored.pop(span, None)
                world.walk.saw("garbage was collected")
                yield


def _walk(walk: Walk, on_s3: bool) -> None:
    world = World(walk, on_s3)
    processes = [*(runner(world) for _ in range(4)), retention(world), retention(world), collector(world)]
    asleep: set[int] = set()
    for world.now in range(STEPS):
        if walk.chance(0.3):
            world.log_end += 1
        if walk.chance(0.02):
            asleep.add(walk.random.randrange(len(processes)))
        if asleep and walk.chance(0.02):
            asleep.discard(walk.random.choice(sorted(asleep)))
        if world.late and walk.chance(0.02):
            late = walk.random.choice(world.late)
            if next(late, "landed") == "landed":
                world.late.remove(late)
        chosen = walk.random.randrange(len(processes))
        if chosen not in asleep:
            next(processes[chosen])
        world.look()


def run_on_files(walk: Walk) -> None:
    _walk(walk, on_s3=False)


def run_on_s3(walk: Walk) -> None:
    _walk(walk, on_s3=True)


REACHED = (
    "a plan was finished",
    "a plan was overtaken while it was run",
    "an expired file was deleted",
    "a fence was removed",
    "a plan left out records",
)
ON_FILES = Model("parquet-on-files", run_on_files, RULES | FILE_RULES, (*REACHED, "a put was refused by its fence"))
ON_S3 = Model(
    "parquet-on-s3",
    run_on_s3,
    RULES | S3_RULES,
    (*REACHED, "a put was refused by its URL's age", "an upload was cut off"),
)
