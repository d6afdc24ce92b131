"""How a cut is taken: begin, pin, hold, place, confirm, fix; and how it ends."""

from __future__ import annotations

from tests.models.cuts.state import BUNDLES, KEYED_BUNDLE, USERS, Bundle, Cut, State, Term
from tests.models.cuts.world import World
from tests.models.walk import Process

LOOKS_MAX = 40


def take(world: World) -> Process:
    is_moving = world.move is not None and not world.breaks("taken-beside-a-move")
    if is_moving or any(cut.state is State.PENDING for cut in world.cuts.values()):
        return
    cut, acknowledged = Cut(world.new("c")), list(world.acknowledged)
    world.cuts[cut.name] = cut
    late = world.breaks("pinned-after-the-place")
    if not late:
        yield from _pin(world, cut)
    terms = {number: world.some_owner(number, 0.1) for number in BUNDLES}
    for term in terms.values():
        term.holds.add(cut.name)
        yield
    ok = yield from _quiet(world, cut, terms)
    if ok:
        yield from _place_all(world, cut, terms)
        ok = yield from _confirm(world, cut, terms)
    if late:
        yield from _pin(world, cut)
    if ok and (cut.state is State.PENDING or world.breaks("fixed-though-abandoned")):
        cut.state = State.TAKEN
        world.judge(cut, acknowledged)
        world.walk.saw("cuts")
    for term in terms.values():
        term.holds.discard(cut.name)
    if cut.state is State.PENDING:
        cut.state = State.OVER


def _pin(world: World, cut: Cut) -> Process:
    for number, bundle in world.bundles.items():
        first = bundle.newest
        while number not in cut.bases:
            seen = bundle.newest
            yield
            base = first.number if world.breaks("base-read-before-the-pin") else seen.number + 1
            if world.put(number, seen, pins=seen.pins | {(cut.name, base)}):
                cut.bases[number] = base


def _is_open(world: World, bundle: Bundle, term: Term) -> bool:
    """Whether, by what it knows, the owner draws an epoch, has a decision in flight, or one that is not complete."""
    if not term.has_read:
        return not world.breaks("quiet-before-it-has-read")
    if term.drawing and not world.breaks("quiet-beside-a-draw"):
        return True
    return bool(term.deciding or (bundle.open if bundle.term is term else term.seen_open))


def _quiet(world: World, cut: Cut, terms: dict[int, Term]) -> Process:
    for number in USERS:
        bundle, term = world.bundles[number], terms[number]
        for _ in range(LOOKS_MAX):
            if world.breaks("quiet-without-drain") or not _is_open(world, bundle, term):
                break
            yield
        else:
            return False
        yield
        if world.breaks("placed-before-all-are-quiet"):
            yield from _place(world, cut, number, term)
    return True


def _place_all(world: World, cut: Cut, terms: dict[int, Term]) -> Process:
    users = world.random.sample(USERS, 2)
    order = [0, *users] if world.breaks("catalog-placed-first") else [*users, 0]
    for number in order:
        if number not in cut.places:
            yield from _place(world, cut, number, terms[number])
        for _ in range(world.random.choice((0, 0, 8, 30))):
            yield


def _place(world: World, cut: Cut, number: int, term: Term) -> Process:
    while term.in_flight and not world.breaks("placed-above-the-durable"):
        yield
    bundle = world.bundles[number]
    if bundle.term is term and cut.name in term.holds:
        cut.places[number] = len(bundle.history) + term.in_flight
        if number == KEYED_BUNDLE:
            cut.version = max(world.versions)


def _confirm(world: World, cut: Cut, terms: dict[int, Term]) -> Process:
    ok = True
    for number in BUNDLES:
        is_fenced = world.bundles[number].term is not terms[number] and not world.breaks("confirm-without-fence")
        is_held = world.breaks("no-confirm") or (cut.name in terms[number].holds and not is_fenced)
        ok = ok and number in cut.places and is_held
        yield
    return ok


def end(world: World) -> Process:
    """Drop a cut, or abandon the attempt of another controller."""
    cuts = [cut for cut in world.cuts.values() if cut.state is not State.OVER]
    if cuts:
        cut = world.random.choice(cuts)
        if cut.state is State.TAKEN or world.walk.chance(0.3):
            cut.state = State.OVER
    yield
