"""Schemas, by the command line and the synchronous client."""

from __future__ import annotations

from pathlib import Path

import pytest

import ledgermq.sync
from tests.e2e.shell import Shell, shell_beside_a_broker

shell = pytest.fixture(scope="module")(shell_beside_a_broker)
ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "double"}]}'


@pytest.mark.slow
def test_a_schema_from_its_file_to_its_deletion(shell: Shell, tmp_path: Path) -> None:
    file, other = tmp_path / "order.avsc", tmp_path / "order.json"
    file.write_text(ORDER)
    other.write_text("{}")
    made = shell.json("schema", "put", "orders-value", file, "--compatibility", "full")
    assert (made["id"], made["version"], made["kind"], made["compatibility"]) == (1, 1, "avro", "full")
    shown = shell.json("schema", "show", "orders-value")
    assert (shown["text"], [field["path"] for field in shown["fields"]]) == (ORDER, ["/amount"])
    assert shell.json("schema", "show", "1")["subject"] == "orders-value"
    refused = shell("schema", "check", "orders-value", other)
    assert (refused.code, refused.err.splitlines()[0][:27]) == (2, "error [INCOMPATIBLE_SCHEMA]")
    assert "backward" in shell("schema", "put", "orders-value", "--compatibility", "backward").out
    [row] = shell.json("schema", "list")["schemas"]
    assert (row["subject"], row["version"], row["compatibility"]) == ("orders-value", 1, "backward")
    with ledgermq.sync.connect(shell.address) as client:
        assert client.schemas.by_id(1).text == ORDER
        assert client.schemas.check("orders-value", ORDER, "avro").version == 1
    assert shell("schema", "delete", "orders-value", "--yes").code == 0
    assert shell("schema", "show", "orders-value").code == 4
    assert shell("schema", "put", "orders-value", tmp_path / "none.avsc").code == 2
    assert shell("schema", "put", "orders-value", tmp_path).code == 2
