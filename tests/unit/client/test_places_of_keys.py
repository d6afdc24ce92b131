"""What is remembered of keys is what hashing them again would say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.producing.routing.places_of_keys import KEY_CHARS_MAX, KEYS_MAX, PlacesOfKeys
from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.errors import InvalidRecord


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=70) | st.binary(max_size=70), max_size=30))
def test_a_key_has_its_bytes_and_its_partition_each_time(keys: list[str | bytes]) -> None:
    places = PlacesOfKeys(queues := cast_queues(7))
    for key in [*keys, *keys]:
        data = key.encode() if isinstance(key, str) else key
        assert places[key] == (data, queues[partition_of_key(data, 7)])
    assert all(len(key) <= KEY_CHARS_MAX for key in places)


def test_a_topic_that_has_grown_has_other_places() -> None:
    places = PlacesOfKeys(queues := cast_queues(3))
    before = {key: places[key] for key in map(str, range(20))}
    queues += cast_queues(2)
    places.renew()

    assert places.count == 5
    after = {key: places[key] for key in before}
    assert after == {key: (key.encode(), queues[partition_of_key(key.encode(), 5)]) for key in before}
    assert after != before


def test_what_is_remembered_is_bounded() -> None:
    places = PlacesOfKeys(cast_queues(3))
    for number in range(KEYS_MAX + 10):
        assert places[str(number)][0] == str(number).encode()

    assert len(places) <= KEYS_MAX


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="key"):
        PlacesOfKeys(cast_queues(3))["\ud800"]


def cast_queues(count: int) -> list[Any]:
    return [object() for _ in range(count)]
