"""Fixtures for every test."""

from __future__ import annotations

import pytest

from ledgermq.sources import Sources
from tests.stores import seeded_sources


@pytest.fixture
def sources() -> Sources:
    return seeded_sources()
