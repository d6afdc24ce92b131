"""Look again when what was read has been replaced meanwhile, a bounded number of times.

Objects are immutable, and names move on to newer ones: a reader that follows a checkpoint to a
file may find the file deleted, because a newer checkpoint no longer names it. The cure is always
the same: take the newer checkpoint and begin again. It ends, because others cannot be faster for
ever; where they seem to be, that is an error that names what moved.

    rereads = Rereads(10, f"bundle {bundle}: its records move faster than they can be read")
    while True:
        rereads.begin()
        try:
            return await read(...)
        except ObjectMissing:
            continue  # what it read from has been replaced
"""

from __future__ import annotations

from ledgermq.errors import Unavailable


class Rereads:
    """`what`: ends the message of the error; names the object and what happened to it.

    `retry_after_ms`: wait that the error suggests to its receiver.
    """

    __slots__ = ("_attempts_max", "_left", "_retry_after_ms", "_what")

    def __init__(self, attempts_max: int, what: str, retry_after_ms: int | None = None) -> None:
        self._attempts_max = attempts_max
        self._left = attempts_max
        self._what = what
        self._retry_after_ms = retry_after_ms

    def begin(self) -> None:
        """Count an attempt that begins. Raises Unavailable when all attempts have been made."""
        if self._left == 0:
            raise Unavailable(
                f"gave up after {self._attempts_max} attempts: {self._what}", retry_after_ms=self._retry_after_ms
            )
        self._left -= 1
