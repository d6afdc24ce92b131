"""Epochs of groups as clients of the Kafka protocol see them, also beyond 31 bits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq_offsets.consumer.epochs import EPOCHS, meant_epoch, shown_epoch

epochs = st.integers(1, 2**40) | st.integers(EPOCHS - 3, EPOCHS + 3) | st.integers(2 * EPOCHS - 3, 2 * EPOCHS + 3)


@given(newest=epochs, behind=st.integers(0, EPOCHS - 1))
def test_what_is_shown_is_what_is_meant(newest: int, behind: int) -> None:
    epoch = newest - behind
    if epoch < 1:
        return
    shown = shown_epoch(epoch)
    assert 1 <= shown <= 2**31 - 1, "0 joins, and clients have 31 bits"
    assert meant_epoch(shown, newest) == epoch


@pytest.mark.parametrize(
    ("shown", "newest", "meant"),
    [(5, 7, 5), (8, 7, 0), (0, 7, 0), (2**31, 7, 0), (2**32 - 1, 7, 0), (EPOCHS, EPOCHS, EPOCHS), (1, 2**31, 2**31)],
)
def test_an_epoch_that_the_group_never_had_means_none(shown: int, newest: int, meant: int) -> None:
    assert meant_epoch(shown, newest) == meant


def test_no_epoch_is_shown_as_none() -> None:
    assert shown_epoch(0) == 0
