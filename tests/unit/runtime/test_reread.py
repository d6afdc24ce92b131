"""A bounded number of looks at what others replace."""

import pytest

from ledgermq.errors import Unavailable
from ledgermq.runtime.reread import Rereads


def test_the_attempts_are_counted_and_the_error_names_what_moved() -> None:
    rereads = Rereads(3, "bundle 7: its files vanish faster than they can be read", retry_after_ms=200)
    for _ in range(3):
        rereads.begin()
    with pytest.raises(Unavailable, match="gave up after 3 attempts: bundle 7: its files vanish") as raised:
        rereads.begin()
    assert raised.value.retry_after_ms == 200
