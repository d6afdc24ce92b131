"""Run the ownership loop, which acts on the decisions of placement and takeover.

Every round: heartbeat, look at the others, decide. A bundle is claimed when this broker is its
wanted owner and no present broker owns it, after the wait that its recent claims require. It is
released when another broker has been its wanted owner for two intervals and the minimum holding
time is over. One that moves for load waits longer (`load_moves`). Nothing here is about safety: the
ledger refuses a wrong claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from ledgermq.errors import LedgerMQError
from ledgermq.runtime.wait import wait_until
from ledgermq.sources import Sources
from ledgermq_broker.bundle.loads import Loads, PartitionLoads, RackLoads
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.cluster.directory import Directory
from ledgermq_broker.cluster.heartbeat import LOADS, NEAR, Heartbeat
from ledgermq_broker.cluster.membership import Membership, Superseded
from ledgermq_broker.cluster.owners import Owners, OwnershipTimes
from ledgermq_broker.cluster.peers import Peers
from ledgermq_broker.cluster.placement.bundles import Relief, place, relief
from ledgermq_broker.cluster.placement.load_moves import LoadMoves, promised_in
from ledgermq_broker.cluster.placement.nearness import Patience, nearer
from ledgermq_broker.cluster.placement.takeover import may_claim_back
from ledgermq_broker.cluster.pulse import Pulse
from ledgermq_broker.cluster.terms import Terms
from ledgermq_broker.logs import get_logger

HANDOVER_AFTER_INTERVALS = 2
SILENT_INTERVALS = 2
STORE_PATIENCE_INTERVALS = 10
LOOKS_PER_INTERVAL_MAX = 5
MOMENT_S = 0.01
"""Timers may fire this much early."""

log = get_logger(__name__)


class Ownership(Owners):
    """`on_change` is called after each round, and whenever the set of bundles served here changes.

    `times` may be replaced, except for the interval.
    """

    def __init__(
        self,
        membership: Membership,
        peers: Peers,
        directory: Directory,
        context: BundleContext,
        sources: Sources,
        times: OwnershipTimes,
        on_change: Callable[[], None],
    ) -> None:
        self.pulse = Pulse(self._goes_on)
        opened: dict[int, BundleOwner] = {}
        terms = Terms(
            opened,
            context,
            directory.claims,
            lambda: self.times.damaged_retry_s,
            self._hands_changed,
            self._announce_release,
            self._stood_still,
        )
        super().__init__(membership, directory, terms, opened, times)
        self._peers = peers
        self._sources = sources
        self._on_change = on_change
        self._loads = Loads(times.loads)
        self.partition_loads = PartitionLoads(times.loads)
        self._rack_loads = RackLoads(times.loads)
        self._load_moves = LoadMoves(self.me)
        self._patience = Patience(self.me)
        self._wanted_elsewhere: dict[int, tuple[str, float]] = {}
        self._beat_due = True
        self._looked_at = self._beat_at = float("-inf")
        self._beaten_at = float("inf")
        self._were_present: set[str] = set()
        self._beat_failed = False
        self._announced_draining = False
        self.on_leave: Callable[[], None] = _nothing
        """Called before this broker's heartbeat is removed."""

    def heartbeat_age_s(self) -> float:
        """Return the seconds since this broker's heartbeat was last written; 0 before the first
        one.
        """
        return max(0.0, asyncio.get_running_loop().time() - self._beaten_at)

    async def drain(self, *, is_draining: bool) -> None:
        """Hand over everything soon and take nothing new, or take a share of the bundles again. Return when
        that is announced to the other brokers, or after `request_wait_s`.

        A drained broker goes on serving what no other broker can take.
        """
        if is_draining != self._membership.is_draining:
            log.warning("broker drained" if is_draining else "broker no longer drained")
            self._membership.is_draining = is_draining
            self._wanted_elsewhere.clear()
            self._beat_due = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.times.request_wait_s
        while self._announced_draining != is_draining and loop.time() < deadline and not self.leaving:
            await self._next_round(deadline)

    def bundles_added(self) -> None:
        """Look at the other brokers at once, and take what of the added bundles is this broker's."""
        self._look_due = True
        self._wake.set()

    def report_lost(self, broker: str, refused: bool) -> None:
        """Note that a connection to another broker broke, or that it did not answer.

        If its address does not refuse connections, the look at its heartbeat shows more.
        """
        log.info("line to broker lost", peer=broker, refused=refused)
        self._membership.report_lost(broker, refused=refused)
        self._look_due |= not refused
        self._wake.set()

    # The loop

    async def run(self) -> None:
        """Run rounds until cancelled. Raises Superseded when another process has taken this
        broker's address or id.
        """
        while True:
            await self._exchange()
            # A look that began before this process stood still shows an outdated state.
            self._decide(may_open=self._looked_at >= self.pulse.went_on_at)
            await self._pause()

    async def stop(self) -> None:
        """Hand everything over after `run` was cancelled: announce it, let waiting batches become
        durable, release. A bundle that cannot be released is fenced later.
        """
        self.leaving = True
        await self._beat()
        self._decide()
        await self.terms.release_all(self._successor_address)
        await self._beat()
        self.on_leave()
        try:
            await self._membership.leave()
        except LedgerMQError as error:
            log.warning("heartbeat not removed", error=str(error))

    async def close(self) -> None:
        self.leaving = True
        await self.terms.close()
        await self._peers.close()

    async def _exchange(self) -> None:
        """Write the heartbeat and look at the others. A store that does not answer only costs time."""
        loop = asyncio.get_running_loop()
        if self._beat_due or loop.time() - self._beat_at >= self.times.interval_s:
            await self._beat()
        await asyncio.sleep(max(0.0, self._looked_at + self.times.interval_s / LOOKS_PER_INTERVAL_MAX - loop.time()))
        self._look_due = False
        self._looked_at = loop.time()
        self._looks_begun += 1
        try:
            async with asyncio.timeout(STORE_PATIENCE_INTERVALS * self.times.interval_s):
                await self._membership.look()
        except Superseded:
            raise
        except (LedgerMQError, TimeoutError) as error:
            log.warning("heartbeats of the others cannot be read", error=str(error) or "time-out")
        self._looks_done = self._looks_begun
        others = {name: heartbeat for name, heartbeat in self._membership.present().items() if name != self.me}
        reached_at = {
            heartbeat.address: heartbeat.peer_address for heartbeat in others.values() if heartbeat.peer_address
        }
        self._peers.watch({name: heartbeat.address for name, heartbeat in others.items()}, reached_at)

    async def _beat(self) -> None:
        self._beat_due = False
        now = asyncio.get_running_loop().time()
        # others may have counted this broker as gone
        if now - self._beaten_at > SILENT_INTERVALS * self.times.interval_s:
            self.terms.suspect()
        self._beat_at = now
        bundles = {bundle: owner.epoch for bundle, owner in self.opened.items()}
        try:
            async with asyncio.timeout(STORE_PATIENCE_INTERVALS * self.times.interval_s):
                await self._membership.beat(
                    bundles,
                    self._troubles(),
                    self.terms.releasing,
                    leaving=self.leaving,
                    loads=self._loads_now(),
                    promised=self._load_moves.promised,
                )
            self._beaten_at = asyncio.get_running_loop().time()
            self._announced_draining = self._membership.me.draining
            if self._beat_failed:
                log.warning("heartbeat written again")
            self._beat_failed = False
        except (LedgerMQError, TimeoutError) as error:
            if not self._beat_failed:
                log.warning("heartbeat not written, will be tried again", error=str(error) or "time-out")
            self._beat_failed = True
            if isinstance(error, LedgerMQError):
                self.terms.context.write_gate.refused(error)

    async def _announce_release(self) -> None:
        if not self.leaving:  # otherwise it is announced already
            await self._beat()

    async def _pause(self) -> None:
        """Pause until the next interval. It ends early if a look is requested, would show more
        about a broker in doubt, or something is to be announced.
        """
        deadline = min(self._looked_at + self.times.interval_s, self._membership.judged_at() + MOMENT_S)
        # A bundle that changes owners while a heartbeat is written needs another heartbeat at once.
        while not (self._look_due or self._beat_due) and await wait_until(self._wake, deadline):
            self._wake.clear()
            # While a look is due, its findings count: another broker may have claimed a moment ago.
            self._decide(may_open=not self._look_due)

    def _hands_changed(self) -> None:
        """Announce at once that the set of bundles served here has changed, and look, because
        another broker may have claimed one.
        """
        self._look_due = self._beat_due = True
        self._wake.set()
        self._notify()

    def _notify(self) -> None:
        self._round.set()
        self._on_change()

    def _goes_on(self) -> None:
        """Continue after this process stood still for a while: other brokers may have counted it as
        gone.
        """
        log.warning("this process stood still", seconds=round(self.pulse.stood_still_s, 1))
        self.terms.suspect()
        self._look_due = self._beat_due = True
        self._wake.set()

    def _stood_still(self) -> bool:
        went_on_s = asyncio.get_running_loop().time() - self.pulse.went_on_at
        return went_on_s < STORE_PATIENCE_INTERVALS * self.times.interval_s

    def _is_uncontested(self, broker: str) -> bool:
        """Return whether a claim of what this broker owned last is uncontested.

        For a while after this process stood still, that holds for its own former bundles.
        """
        return self._stood_still() if broker == self.me else self._membership.is_uncontested(broker)

    # Deciding

    def _decide(self, *, may_open: bool = True) -> None:
        now = asyncio.get_running_loop().time()
        present = self._present()
        # a broker that is gone may have claimed before it died, without announcing it
        if self._were_present - present.keys():
            self.terms.suspect()
        self._were_present = set(present)
        self._directory.update(present, now, self._is_uncontested)
        self._place(present, now)
        for bundle in self._directory.claims:
            if self.terms.is_busy(bundle):
                continue
            if bundle in self._directory.owners or self.wanted.get(bundle, self.me) != self.me:
                self.terms.forgive(bundle)
            if bundle in self.opened:
                self._decide_opened(bundle, now)
            elif may_open and self._may_open(bundle):
                wait_s = self._directory.claims[bundle].wait_s(now, self._sources.random)
                self.terms.open(bundle, wait_s, lambda bundle=bundle: self._may_open(bundle))  # type: ignore[misc]
        self._notify()

    def _present(self) -> dict[str, Heartbeat]:
        """Return what all brokers announce, with this broker's part as it is now."""
        present = self._membership.present()
        present[self.me] = replace(
            self._membership.me,
            bundles={bundle: owner.epoch for bundle, owner in self.opened.items()},
            troubles=self._troubles(),
            releasing=tuple(self.terms.releasing),
            loads=self._loads_now(),
            promised=self._load_moves.promised,
        )
        return present

    def _loads_now(self) -> dict[int, int]:
        now = asyncio.get_running_loop().time()
        served = {bundle: owner.traffic for bundle, owner in self.opened.items()}
        self.partition_loads.sample(served, now)
        self._rack_loads.sample(served, now)
        counted = {bundle: traffic.cost_bytes for bundle, traffic in served.items()}
        return self._loads.announced(counted, self._directory.loads, now)

    def _place(self, present: Mapping[str, Heartbeat], now: float) -> None:
        """Set the wanted owners, and begin a move for load, or to a rack, if one is due and nothing else is under
        way.
        """
        live, owners = self._membership.live(), self._owners_now()
        loads = self._directory.loads if all(LOADS in heartbeat.features for heartbeat in live.values()) else {}
        racks = self._racks(live) if loads else {}
        self._load_moves.forget_ended(owners, live, self.terms.is_busy, now - self.times.loads.wait_s)
        promised = promised_in(present, owners, live)
        self.wanted = place(self._directory.claims, live, owners | promised, loads, by_rack=bool(racks)) | promised
        is_at_rest = self.wanted == owners and not any(owner.leaving for owner in self._directory.owners.values())
        wish = relief(live, owners, loads) if is_at_rest and loads else None
        near = None
        if wish is None and is_at_rest and racks:
            near = nearer(self.me, racks, owners, loads, self._rack_loads.known(), self.times.loads.near_bytes)
        turn_s = HANDOVER_AFTER_INTERVALS * self.times.interval_s
        if self._load_moves.is_due(wish, owners, now, self.times.loads.wait_s) and wish is not None:
            self._begin_move(wish, now, self.terms.context.metrics.moved_for_load)
        elif self._patience.is_over(near, owners, now, self.times.loads.wait_s, turn_s) and near is not None:
            self._begin_move(near, now, self.terms.context.metrics.moved_to_rack)

    def _racks(self, live: Mapping[str, Heartbeat]) -> dict[str, str]:
        """Return the racks of the live brokers; none if they are all in one, or one does not follow bytes."""
        racks = {name: heartbeat.rack for name, heartbeat in live.items()}
        follows = all(NEAR in heartbeat.features for heartbeat in live.values())
        return racks if follows and len({*racks.values()} - {""}) > 1 else {}

    def _begin_move(self, move: Relief, now: float, count: Callable[[int], None]) -> None:
        """Hand a bundle over, if it has been here for long enough and the store takes what that needs."""
        wait_s = max(self.times.loads.wait_s, self.times.holding_s)
        is_settled = now - self.terms.opened_at[move.bundle] >= wait_s and not self.terms.is_busy(move.bundle)
        if is_settled and self.write_refusal is None:
            self._load_moves.begin(move, now)
            count(move.bundle)
            log.info("bundle is handed over", bundle=move.bundle, successor=move.broker)
            self.wanted[move.bundle] = move.broker
            self.terms.release(move.bundle, self._successor_address(move.bundle))

    def _troubles(self) -> dict[int, str]:
        """Return by bundle why it is not served here, or that it is served to readers only."""
        gate = self.terms.context.write_gate
        refused = {bundle: refusal for bundle in self.opened if (refusal := gate.refusal_of(bundle)) is not None}
        troubles = {bundle: f"takes no records: {refusal.message}" for bundle, refusal in refused.items()}
        return troubles | {bundle: str(trouble.error) for bundle, trouble in self.terms.troubles.items()}

    def _owners_now(self) -> dict[int, str]:
        return {bundle: owner.broker for bundle, owner in self._directory.owners.items()}

    def _may_open(self, bundle: int) -> bool:
        now = asyncio.get_running_loop().time()
        trouble = self.terms.troubles.get(bundle)
        if self.leaving or self.wanted.get(bundle) != self.me or bundle in self._directory.owners:
            return False
        if trouble is not None and now < trouble.retry_at:
            return False
        claims = self._directory.claims[bundle]
        winner_gone = (
            claims.lost_at is not None and now - claims.lost_at > HANDOVER_AFTER_INTERVALS * self.times.interval_s
        )
        return may_claim_back(claims, winner_gone=winner_gone, now=now, holding_s=self.times.holding_s)

    def _decide_opened(self, bundle: int, now: float) -> None:
        claims = self._directory.claims[bundle]
        owner = self._directory.owners.get(bundle)
        if claims.epoch > self.opened[bundle].epoch:
            self.terms.drop(bundle, f"epoch {claims.epoch} was claimed" + (f" by {owner.broker}" if owner else ""))
            return
        wanted = self.wanted.get(bundle, self.me)
        if wanted == self.me:
            self._wanted_elsewhere.pop(bundle, None)
            return
        patience_s = HANDOVER_AFTER_INTERVALS * self.times.interval_s
        since = self._wanted_elsewhere.get(bundle)
        if since is None or since[0] != wanted:
            since = (wanted, now - patience_s if self._membership.is_draining else now)
            self._wanted_elsewhere[bundle] = since
        if self._may_hand_over(bundle, now) and now - since[1] >= patience_s:
            self._wanted_elsewhere[bundle] = (wanted, now)  # if the store refuses it, the next attempt has to wait
            self.terms.release(bundle, self._successor_address(bundle))

    def _may_hand_over(self, bundle: int, now: float) -> bool:
        """Return whether bundles may be handed over: a full store refuses the successor's claim.

        The first term of a bundle need not last: a young cluster spreads quickly.
        """
        held_s = now - self.terms.opened_at[bundle]
        may_move = self._membership.is_draining or self.opened[bundle].epoch == 1 or held_s >= self.times.holding_s
        return self.write_refusal is None and may_move

    def _successor_address(self, bundle: int) -> str:
        heartbeat = self._membership.live().get(self.wanted.get(bundle, ""))
        return heartbeat.address if heartbeat is not None and heartbeat.broker != self.me else ""


def _nothing() -> None:
    return None
