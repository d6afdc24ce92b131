"""What the owner of a bundle does for a cut: pin, hold decisions, place a slot, confirm (design I2 to I5, I8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ledgermq.errors import InvalidRequest, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.tasks import all_of
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.numbered import list_numbered

QUIET_WAIT_S = 2.0
LOOK_S = 0.01
LISTS_AT_ONCE = 16

Quiet = Callable[[int], bool]
"""Whether the coordinator of a bundle that this broker owns has no decision that is not complete. Raises NotOwner,
Unavailable while it is not loaded.
"""
Drained = Callable[[int], Awaitable[None]]
"""Waits until all that this coordinator has decided is durable."""


class Holding:
    def __init__(self, ownership: Ownership, context: BundleContext, quiet: Quiet, drained: Drained) -> None:
        self._ownership = ownership
        self._context = context
        self._quiet = quiet
        self._drained = drained

    async def hold_for_cut(self, request: pb.HoldForCutRequest) -> pb.HoldForCutResponse:
        """Do one step. Raises NotOwner, Unavailable, InvalidRequest, ResourceExhausted (too many pins), the store's
        errors.
        """
        owner = await self._ownership.owner(request.bundle)
        if request.step == pb.CUT_PIN:
            return pb.HoldForCutResponse(ok=True, epoch=owner.epoch, base=await owner.pin(request.cut))
        if request.step == pb.CUT_RELEASE:
            owner.hold.end(request.cut)
            return pb.HoldForCutResponse(ok=True, epoch=owner.epoch)
        if request.step == pb.CUT_HOLD:
            number = owner.hold.begin(request.cut)
            is_quiet = await self._is_quiet(owner, number)
            return pb.HoldForCutResponse(ok=is_quiet, epoch=owner.epoch, hold=number)
        if request.step == pb.CUT_PLACE:
            return await self._place(owner)
        if request.step == pb.CUT_CONFIRM:
            await owner.check_fence()
            hold = owner.hold
            return pb.HoldForCutResponse(ok=hold.is_of(request.cut), epoch=owner.epoch, hold=hold.number)
        raise InvalidRequest(f"this broker knows no step {request.step} of a cut; upgrade it")

    async def _is_quiet(self, owner: BundleOwner, number: int) -> bool:
        """Wait until nothing decided is incomplete, and all of it durable (I22), but not for long. One that is being
        loaded is not quiet.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + QUIET_WAIT_S
        while not self._is_quiet_now(owner.bundle):
            if loop.time() >= until_s or owner.hold.number != number:
                return False
            await asyncio.sleep(LOOK_S)
        try:
            async with asyncio.timeout_at(until_s):
                await self._drained(owner.bundle)
        except (TimeoutError, Unavailable):
            return False
        return owner.hold.number == number

    def _is_quiet_now(self, bundle: int) -> bool:
        try:
            return self._quiet(bundle)
        except Unavailable:
            return False

    async def _place(self, owner: BundleOwner) -> pb.HoldForCutResponse:
        """Answer the last durable slot. Versions are listed before that, because none of them has more than what is
        durable then.
        """
        answer = pb.HoldForCutResponse(ok=True, epoch=owner.epoch)
        places = sorted(
            PartitionId(topic.id, partition)
            for topic in self._context.catalog().living_topics()
            if topic.settings.keyed or topic.version != topic.id
            for partition, bundle in enumerate(topic.bundles)
            if bundle == owner.bundle and not topic.internal
        )
        numbers = await all_of((self._newest_version(place) for place in places), LISTS_AT_ONCE)
        for place, number in zip(places, numbers, strict=True):
            if number:
                answer.versions.add(topic_id=place.topic_id, partition=place.partition, version=number)
        answer.slot = owner.durable_slot
        await owner.check_fence()
        return answer

    async def _newest_version(self, place: PartitionId) -> int:
        newest = 0
        async for number, _ in list_numbered(self._context.store, keys.keyed_versions(place)):
            newest = number
        return newest
