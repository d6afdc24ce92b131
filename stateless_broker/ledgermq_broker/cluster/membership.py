"""Track membership: write this broker's heartbeat, and read the heartbeats of the others.

It costs one PUT and one LIST per interval. A broker is alive if the ETag or the time of its
heartbeat changed. A body is read only when its ETag is new. A heartbeat that has not changed for an
hour is removed. Times are this process's monotonic ones: no two machines' clocks are compared. The
date of this broker's own heartbeat gives the store's time without another request
(`ledgermq_ledger.root.two_clocks`). If two processes announce the same address or id, the later incarnation
stays; the other one gets `Superseded` and must stop. Must not know: which broker should own what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Any

from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.write_gate import REFUSALS
from ledgermq_broker.cluster.heartbeat import COMMON, Heartbeat, decode_heartbeat, encode_heartbeat
from ledgermq_broker.cluster.placement.takeover import Evidence, has_ended, is_gone, stands_still, stands_still_at
from ledgermq_ledger import keys
from ledgermq_ledger.garbage import heartbeats
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectMissing, ObjectStore

REMOVED_AFTER_S = heartbeats.AGE_MS / 1000
NOTHING: Mapping[int, Any] = MappingProxyType({})


class Superseded(InvalidConfig):
    """Another process took this broker's address or id."""


@dataclass(slots=True)
class Member:
    """Another broker. `seen`: ETag and time of its heartbeat at the last look, which began at
    `looked_at`.
    """

    heartbeat: Heartbeat
    seen: tuple[str, int]
    looked_at: float
    evidence: Evidence

    def advanced(self, seen: tuple[str, int], now: float) -> None:
        self.seen = seen
        self.evidence.advanced_at, self.evidence.written_after = now, self.looked_at


class Membership:
    def __init__(
        self,
        store: ObjectStore,
        sources: Sources,
        broker_id: str,
        address: str,
        interval_s: float,
        peer_address: str = "",
        on_store_time: Callable[[int, float], None] = lambda store_ms, at_s: None,
        rack: str = "",
        alarms: Callable[[], tuple[str, ...]] = tuple,
        release: str = "",
        features: tuple[str, ...] = COMMON,
        on_store_time_reached: Callable[[int, float], None] = lambda store_ms, at_s: None,
        public_key: str = "",
        kafka_address: str = "",
    ) -> None:
        """`on_store_time(store_ms, at_s)` is called with the time that each look shows; see
        `TwoClocks.learn`. `on_store_time_reached(store_ms, at_s)`: the store's clock showed `store_ms`
        or later at `at_s`. `alarms()` returns the alarms for the next heartbeat.
        """
        self.me = Heartbeat(
            broker=broker_id,
            address=address,
            incarnation=0,
            session=sources.new_id().hex(),
            peer_address=peer_address,
            rack=rack,
            release=release,
            features=features,
            public_key=public_key,
            kafka_address=kafka_address,
        )
        self._sources = sources
        self.members: dict[str, Member] = {}
        self.interval_s = interval_s
        self.alarms = alarms
        self.is_draining = False
        """An operator has drained this broker: it hands over what it owns, and takes nothing new."""
        self._store = store
        self._on_store_time = on_store_time
        self._on_store_time_reached = on_store_time_reached
        self._beaten_s: float | None = None
        """When the last successful put of this broker's heartbeat began; the store has dated it
        later.
        """
        self._own_etag = ""
        self._id_is_taken = False
        self._is_refused = False
        """The store accepts no heartbeats: it is full, or closed to writers.

        Then the silence of other brokers proves nothing.
        """
        self._unreadable: dict[str, tuple[tuple[str, int], float]] = {}
        """Keys below brokers/ that hold no readable heartbeat: as seen, and since when."""

    async def join(self, features: Callable[[], tuple[str, ...]] | None = None) -> None:
        """Take the next incarnation of this address and id, and announce it, with what `features` returns
        after a look at the other brokers.

        Raises the store's errors.
        """
        await self.look()
        rivals = [m.heartbeat for m in self.members.values() if self._is_rival(m.heartbeat)]
        try:
            before = decode_heartbeat(await self._store.get(keys.broker(self.me.broker)))
        except ObjectMissing:
            before = None
        if features is not None:
            self.me = replace(self.me, features=features())
        if self.me.kafka_address:
            self.me = replace(self.me, kafka_node=self._kafka_node(before))
        known = [heartbeat.incarnation for heartbeat in rivals] + ([before.incarnation] if before else [])
        self.me = replace(self.me, incarnation=max(known, default=0) + 1)
        await self.beat({}, {})

    async def beat(
        self,
        bundles: Mapping[int, int],
        troubles: Mapping[int, str],
        releasing: Collection[int] = (),
        *,
        leaving: bool = False,
        loads: Mapping[int, int] = NOTHING,
        promised: Mapping[int, str] = NOTHING,
    ) -> None:
        """Write the heartbeat: this broker lives, and owns these bundles. Raises the store's
        errors.
        """
        if self._id_is_taken:
            return
        now = replace(
            self.me,
            bundles=dict(bundles),
            troubles=dict(troubles),
            releasing=tuple(sorted(releasing)),
            leaving=leaving or self.is_draining,
            draining=self.is_draining and not leaving,
            alarms=self.alarms(),
            loads=dict(loads),
            promised=dict(promised),
        )
        if now != self.me:
            self.me = replace(now, counter=now.counter + 1)
        began_s = asyncio.get_running_loop().time()
        try:
            await self._store.put(keys.broker(self.me.broker), encode_heartbeat(self.me))
        except REFUSALS:
            self._is_refused = True
            raise
        self._beaten_s = began_s
        if self._is_refused:
            self._forget_silence()
            self._is_refused = False

    async def leave(self) -> None:
        if self._id_is_taken:
            return
        self._beaten_s = None
        await self._store.delete([keys.broker(self.me.broker)])

    async def announced(self) -> dict[str, Heartbeat | None]:
        """Return the heartbeats of all other brokers that the store holds now, by id, whether they are
        alive or not; None for one that cannot be read. It changes nothing that `look` found.

        Raises the store's errors.
        """
        heartbeats: dict[str, Heartbeat | None] = {}
        async for info in self._store.list(keys.BROKERS):
            name = keys.parse_broker(info.key)
            if name is None or name == self.me.broker:
                continue
            member = self.members.get(name)
            if member is not None and member.seen[0] == info.etag:
                heartbeats[name] = member.heartbeat
                continue
            with suppress(ObjectMissing):
                heartbeats[name] = decode_heartbeat(await self._store.get(info.key))
        return heartbeats

    async def heartbeat_of(self, broker: str, session: str) -> Heartbeat | None:
        """Return the heartbeat of a process, from the store if the last look did not find it; None if
        there is none. Raises the store's errors.
        """
        member = self.members.get(broker)
        found = member.heartbeat if member is not None else None
        if found is None or found.session != session:
            try:
                found = decode_heartbeat(await self._store.get(keys.broker(broker)))
            except ObjectMissing:
                return None
        return found if found is not None and found.session == session else None

    def unwritten_s(self) -> float:
        """Return the seconds since the last successful put of this broker's heartbeat began; infinity
        before the first one, and after the heartbeat was removed.
        """
        return inf if self._beaten_s is None else asyncio.get_running_loop().time() - self._beaten_s

    async def look(self) -> None:
        """Read the others' heartbeats. Raises Superseded, and the store's errors."""
        began, beaten_s = asyncio.get_running_loop().time(), self._beaten_s
        found = [info async for info in self._store.list(keys.BROKERS) if keys.parse_broker(info.key) is not None]
        if found:  # the store has dated all of them before its answer arrived
            self._on_store_time_reached(max(info.modified_ms for info in found), asyncio.get_running_loop().time())
        names = {_broker_of(info.key) for info in found}
        for gone in self.members.keys() - names:
            del self.members[gone]
        for key in self._unreadable.keys() - {info.key for info in found}:
            del self._unreadable[key]
        for info in found:
            if _broker_of(info.key) == self.me.broker:
                if beaten_s is not None:
                    self._on_store_time(info.modified_ms, beaten_s)
                await self._check_own(info)
            else:
                await self._check_other(info, began)
        await self._remove_silent()
        for member in self.members.values():
            if self._is_rival(member.heartbeat) and member.heartbeat.supersedes(self.me) and self.me.incarnation:
                raise Superseded(
                    f"broker {member.heartbeat.broker} has announced the address {self.me.address} after this one did: "
                    "give each broker its own address"
                )

    def present(self) -> dict[str, Heartbeat]:
        """Return the brokers that may own something at present, by id: this one, and all others
        that are neither gone nor superseded.
        """
        others = {name: member.heartbeat for name, member in self.members.items() if not self._is_gone(member)}
        found = {
            name: heartbeat
            for name, heartbeat in others.items()
            if not self._is_rival(heartbeat)
            and not any(
                m.heartbeat.address == heartbeat.address and m.heartbeat.supersedes(heartbeat)
                for m in self.members.values()
            )
        }
        found[self.me.broker] = self.me
        return found

    def lacking(self, feature: str) -> list[Heartbeat]:
        """Return the brokers that are present and do not announce the feature, ascending by id."""
        return [heartbeat for _, heartbeat in sorted(self.present().items()) if feature not in heartbeat.features]

    def is_uncontested(self, broker: str) -> bool:
        """Return whether a claim of the broker's bundles is uncontested: its address refuses
        connections, its heartbeat is gone, or it stands still. A broker that is merely silent may
        live.
        """
        if broker == self.me.broker:
            return False
        member = self.members.get(broker)
        return (
            member is None
            or has_ended(member.evidence)
            or stands_still(member.evidence, member.looked_at, self.interval_s)
        )

    def judged_at(self) -> float:
        """Return when a look may show that a broker which does not answer stands still; infinity if
        all answer, or are gone already.
        """
        doubted = (stands_still_at(m.evidence, self.interval_s) for m in self.members.values() if not self._is_gone(m))
        return min((at for at in doubted if at is not None), default=inf)

    def _is_gone(self, member: Member) -> bool:
        return is_gone(member.evidence, member.looked_at, self.interval_s) and not (
            self._is_refused and self._is_merely_silent(member)
        )

    def _is_merely_silent(self, member: Member) -> bool:
        return not has_ended(member.evidence) and stands_still_at(member.evidence, self.interval_s) is None

    def _forget_silence(self) -> None:
        """Forget the silence of the others: the store accepts heartbeats again, and each of theirs
        is due within an interval from now.
        """
        now = asyncio.get_running_loop().time()
        for member in self.members.values():
            if self._is_merely_silent(member):
                member.evidence.advanced_at = now

    def live(self) -> dict[str, Heartbeat]:
        """Return those of `present` that may be given bundles; brokers that leave hand over what
        they have. Drained brokers are among them only if there are no others.
        """
        present = self.present()
        staying = {name: heartbeat for name, heartbeat in present.items() if not heartbeat.leaving}
        return staying or {name: heartbeat for name, heartbeat in present.items() if heartbeat.draining}

    def report_lost(self, broker: str, *, refused: bool) -> None:
        """Note that the connection to a broker broke, or that its address refuses connections."""
        member = self.members.get(broker)
        if member is None:
            return
        now = asyncio.get_running_loop().time()
        if refused:
            member.evidence.refused_at = now
        else:
            member.evidence.lost_at = now

    def _kafka_node(self, before: Heartbeat | None) -> int:
        """Return the number of this broker among clients of the Kafka protocol: that of the former process of this
        broker, or a new one that no other broker has.
        """
        taken = {member.heartbeat.kafka_node for member in self.members.values()}
        node = before.kafka_node if before is not None else 0
        while not node or node in taken:
            node = self._sources.random.getrandbits(30)
        return node

    def _is_rival(self, other: Heartbeat) -> bool:
        return other.address == self.me.address and other.session != self.me.session

    async def _check_own(self, info: ObjectInfo) -> None:
        """Check that no other process writes under this broker's id."""
        if not self.me.incarnation or info.etag == self._own_etag:
            return
        try:
            found = decode_heartbeat(await self._store.get(info.key))
        except ObjectMissing:
            return
        if found is not None and found.session != self.me.session and found.supersedes(self.me):
            self._id_is_taken = True
            raise Superseded(f"another process runs as broker {self.me.broker} since: give each broker its own id")
        self._own_etag = info.etag

    async def _check_other(self, info: ObjectInfo, began: float) -> None:
        """Check the heartbeat of another broker; `began`: when the look began that found it."""
        name, seen, now = _broker_of(info.key), (info.etag, info.modified_ms), asyncio.get_running_loop().time()
        member = self.members.get(name)
        if member is not None and member.seen[0] == info.etag:
            if member.seen != seen:
                member.advanced(seen, now)
            member.looked_at = began
            return
        if self._unreadable.get(info.key, (None, 0.0))[0] == seen:
            if member is not None:
                member.looked_at = began
            return
        try:
            heartbeat = decode_heartbeat(await self._store.get(info.key))
        except ObjectMissing:
            self.members.pop(name, None)
            return
        if heartbeat is None or heartbeat.broker != name:
            self._unreadable[info.key] = (seen, now)
        elif member is not None and member.heartbeat.session == heartbeat.session:
            member.heartbeat = heartbeat
            member.advanced(seen, now)
            member.looked_at = began
        else:
            self.members[name] = Member(heartbeat, seen, began, Evidence(advanced_at=now, written_after=began))

    async def _remove_silent(self) -> None:
        if self._is_refused:
            return
        now = asyncio.get_running_loop().time()
        silent = [name for name, member in self.members.items() if now - member.evidence.advanced_at > REMOVED_AFTER_S]
        silent_keys = [keys.broker(name) for name in silent]
        silent_keys += [key for key, (_, since) in self._unreadable.items() if now - since > REMOVED_AFTER_S]
        if silent_keys:
            await self._store.delete(silent_keys)
        for name in silent:
            del self.members[name]


def _broker_of(key: str) -> str:
    return key.removeprefix(keys.BROKERS).removesuffix(".json")
