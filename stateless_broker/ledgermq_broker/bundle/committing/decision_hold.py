"""Hold the decisions of one bundle's term while a cut is taken (design I2 to I4).

While the hold is there, the bundle's coordinator decides no commit, and prepares nothing: either counts what other
bundles have, which may be placed already. It draws no epoch of a transactional id either: what is staged under that may
be in the cut, which lacks the epoch (I22). Everything else goes on, and what is decided completes. The hold ends by
itself after `HOLD_S`, so a controller that dies delays no commit for longer, and with the term. The controller asks
afterwards whether it is unbroken. A hold that has ended never comes back: the next one has another number, if the same
cut begins it, too.
"""

from __future__ import annotations

import asyncio

from ledgermq.errors import LedgerMQError, Unavailable

HOLD_S = 5.0
RETRY_AFTER_MS = 100


class DecisionHold:
    def __init__(self, bundle: int) -> None:
        self._bundle = bundle
        self._cut = 0
        self._begun = 0
        self._closed: LedgerMQError | None = None
        self._ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_held(self) -> bool:
        return self._cut != 0

    @property
    def number(self) -> int:
        """The number of the hold that is there, from 1 on, in this term; 0: there is none."""
        return self._begun if self._cut else 0

    def begin(self, cut: int) -> int:
        """Begin to hold, and return the number of the hold. While this cut holds already, it is that one's, and its
        time goes on. Raises Unavailable while another cut holds, and what the term ended with.
        """
        if self._closed is not None:
            raise self._closed
        if self._cut not in (0, cut):
            raise Unavailable(
                f"cut {self._cut} holds the decisions of bundle {self._bundle}; retry", retry_after_ms=RETRY_AFTER_MS
            )
        if self._cut == 0:
            self._cut = cut
            self._begun += 1
            self._ended.clear()
            self._timer = asyncio.get_running_loop().call_later(HOLD_S, self.end, cut)
        return self._begun

    def end(self, cut: int) -> None:
        """End the hold of this cut, if it is there. Idempotent."""
        if self._cut == cut:
            self._cut = 0
            self._ended.set()
            if self._timer is not None:
                self._timer.cancel()

    def is_of(self, cut: int) -> bool:
        """Return whether this cut holds now. `number` says whether it is the same hold as before."""
        return self._cut == cut

    def close(self, error: LedgerMQError) -> None:
        """End with the term: whatever waits goes on, and fails there because the term has ended."""
        self._closed = error
        self.end(self._cut)

    async def passed(self) -> None:
        """Wait until nothing is held. In the same turn anything may be decided."""
        while self._cut:
            await self._ended.wait()
