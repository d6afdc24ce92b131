from __future__ import annotations

import pytest

from tests.unit.transactions.desks import Bundle, Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def bundle() -> Bundle:
    return Bundle()
