"""Free what is delivered or moved: raise the log starts of a bundle's hidden partitions, once in a while."""

from __future__ import annotations

import asyncio

from stateless_broker.timers.held import Held
from timers.places import PLACES, RangeId


class LogStarts:
    def __init__(self, held: Held) -> None:
        self._held = held

    async def until_due(self) -> None:
        await asyncio.sleep(self._held.limits.log_start_ms / 1000)
        await self._held.is_ready.wait()
        await self._held.freed.wait()

    async def move(self) -> None:
        """Raise the log starts as far as the state of this moment allows, once it is durable (R15). Raises
        the store's errors; then it is repeated after the pause.
        """
        held = self._held
        held.freed.clear()
        try:
            begins = dict(held.timers.range_starts())
            for far, places in enumerate(PLACES):
                for place in places:
                    range_id = RangeId(bool(far), place)
                    if range_id not in begins:
                        begins[range_id] = held.logs.next_offset(range_id)
            starts = {held.logs.place_of(range_id): begin for range_id, begin in begins.items()}
            starts[held.logs.intake] = held.timers.intake_start()
            await held.state.durable()
            await held.logs.owner.move_internal_log_starts(starts)
        except BaseException:
            held.freed.set()
            raise
