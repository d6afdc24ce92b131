"""Lose the first answer to a call, so that the client repeats it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ledgermq.errors import Unavailable

Then = Callable[[], Awaitable[object]]


def lose_the_answer(
    patch: pytest.MonkeyPatch, owner: object, method: str, *, stored: bool, then: Then | None = None
) -> None:
    """Lose the first answer of the owner's method, or with `stored=False` the first request; then something else
    happens before the next attempt. `owner`: a class, or one object.
    """
    true: Callable[..., Awaitable[Any]] = getattr(owner, method)

    async def first(*given: Any, **named: Any) -> Any:
        patch.setattr(owner, method, true)
        if stored:
            await true(*given, **named)
        if then is not None:
            await then()
        raise Unavailable("the answer is lost")

    patch.setattr(owner, method, first)
