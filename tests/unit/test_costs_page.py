"""docs/costs.md is up to date, adds up, and uses the prices by which brokers count."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.sizing.model import Prices
from infra.costs_page import (
    CORE_HOUR,
    KEPT_GIB,
    SOURCES,
    WARPSTREAM_WRITTEN,
    crossing,
    page,
    sized,
    systems,
    tiered,
)
from infra.crossing import read, written
from ledgermq_ledger.object_store.prices import S3_PRICES

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "costs.md").read_text() == page(), "run: make pages"


def test_prices_are_those_of_the_sizing_page_and_of_brokers() -> None:
    assert Prices().core_hour == CORE_HOUR
    assert Prices().tb_month == S3_PRICES.tb_month
    for system in systems():
        if not system.disks:
            assert system.objects == pytest.approx(KEPT_GIB * 2**30 / 1e12 * S3_PRICES.tb_month)


def test_a_part_that_is_not_published_is_no_zero() -> None:
    for system in systems():
        assert system.is_whole == (None not in system.parts)
        row = next(line for line in page().splitlines() if line.startswith(f"| {system.name} |"))
        assert ("more than" in row) == ("not published" in row) == (not system.is_whole)
        assert f"{system.known:,.0f}" in row


def test_tiers_cost_what_each_part_costs() -> None:
    assert tiered(1024, WARPSTREAM_WRITTEN) == pytest.approx(10.24)
    assert tiered(60 * 1024, WARPSTREAM_WRITTEN) == pytest.approx(1024 * (50 * 0.01 + 10 * 0.0075))
    assert tiered(8000 * 1024, WARPSTREAM_WRITTEN) == pytest.approx(
        1024 * (50 * 0.01 + 250 * 0.0075 + 1250 * 0.0055 + 6250 * 0.004 + 200 * 0.003)
    )


def test_what_crosses_is_computed_with_the_rules_of_the_product() -> None:
    assert written(3, with_rack=True) == read(3, with_rack=True) == 0
    assert written(3, with_rack=False) == pytest.approx(2 / 3)
    assert read(3, with_rack=False) == pytest.approx(2 / 3, abs=0.1)
    dollars = {system.name: system.zones for system in systems() if system.name.startswith("LedgerMQ, in three zones")}
    assert list(dollars.values()) == sorted(dollars.values(), key=lambda zones: zones or 0)
    assert len(dollars) == 3


def test_figures_come_from_the_sizing_page_and_sources_are_used() -> None:
    assert sized("requests of brokers, $ a month") > 0
    with pytest.raises(AssertionError, match="no row"):
        sized("no such row")
    assert crossing(1) == pytest.approx(730 * 3600 * 2**30 / 1e9 * 0.02)
    assert all(url in page() for url in SOURCES.values())
