"""What the settings of Iceberg tables may be."""

from __future__ import annotations

import pytest

from ledgermq.errors import InvalidConfig
from ledgermq_ledger.topics.parsers.tables import PARTITIONS_MAX, catalog_name, check_iceberg, namespace


@pytest.mark.parametrize("text", ["", "lake", "a.b-c.d_1", ".".join("x" * 10)])
def test_namespaces(text: str) -> None:
    assert namespace(text) == text


@pytest.mark.parametrize("text", [".", "a.", "a..b", "a b", "é", "a/b", ".".join("x" * 11), "x" * 101, "a\n"])
def test_no_namespaces(text: str) -> None:
    with pytest.raises(ValueError, match="separated by dots"):
        namespace(text)


@pytest.mark.parametrize("text", ["a.b", " ", "-a", "x" * 101, "a\n"])
def test_no_names_of_catalogs(text: str) -> None:
    assert catalog_name("") == ""
    assert catalog_name("lake-1") == "lake-1"
    with pytest.raises(ValueError, match="a name of letters"):
        catalog_name(text)


def test_what_goes_together() -> None:
    check_iceberg("lake", "events", PARTITIONS_MAX, keyed=False)
    for catalog, within, partitions, keyed in (
        ("", "events", 1, False),
        ("lake", "", 1, False),
        ("lake", "events", PARTITIONS_MAX + 1, False),
        ("lake", "events", 1, True),
    ):
        with pytest.raises(InvalidConfig):
            check_iceberg(catalog, within, partitions, keyed=keyed)
