"""Find a topic's Iceberg table in its catalog: PyIceberg's client, with bounds of time, and with the project's errors.

A catalog is configured as PyIceberg documents it, by environment variables or its file; settings of a topic only name
it. Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import ValidationError
from pyiceberg.catalog import AVAILABLE_CATALOGS, TYPE, Catalog, CatalogType, infer_catalog_type
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

from ledgermq.errors import DataDamaged, InvalidConfig, LedgerMQError, Unavailable

ANSWER_S = 30.0
"""Without a bound a catalog that does not answer would hold a thread of the broker without end."""
RETRY_AFTER_MS = 1000


class _Bounded(HTTPAdapter):
    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        options["timeout"] = options.get("timeout") or ANSWER_S
        return super().send(request, *args, **options)


class _Rest(RestCatalog):
    def _create_session(self) -> Session:
        session = super()._create_session()
        for scheme, adapter in list(session.adapters.items()):
            if type(adapter) is HTTPAdapter:
                session.mount(scheme, _Bounded(max_retries=adapter.max_retries))
        return session


class Place:
    """`topic`: the table's name. `store_url`: of the root, below which the data files are."""

    def __init__(self, catalog: str, namespace: str, topic: str, store_url: str) -> None:
        self._catalog_name = catalog
        self.namespace = tuple(namespace.split("."))
        self.identifier = (*self.namespace, topic)
        parts = urlsplit(store_url)
        self.root = urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")).rstrip("/") + "/"

    def __str__(self) -> str:
        return f"table {'.'.join(self.identifier)} of catalog {self._catalog_name}"

    @cached_property
    def catalog(self) -> Catalog:
        """Raises InvalidConfig, Unavailable."""
        name = self._catalog_name
        said = Config().get_catalog_config(name)
        try:
            properties = {str(key): str(value) for key, value in (said or {}).items()}
            kind = CatalogType(properties[TYPE].lower()) if TYPE in properties else infer_catalog_type(name, said or {})
        except ValueError as error:
            raise _unknown(name, error) from error
        if kind is None:
            raise _unknown(name, "it has no type")
        with self.asking():
            if kind is CatalogType.REST:
                return _Rest(name, **properties)
            return AVAILABLE_CATALOGS[kind](name, properties)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Turn what a catalog's client raises into Unavailable; metadata that cannot be read into DataDamaged."""
        try:
            yield
        except (LedgerMQError, NoSuchTableError, TableAlreadyExistsError):
            raise
        except ValidationError as error:
            raise DataDamaged(f"{self}: its metadata cannot be read: {error}", object_key=str(self)) from error
        except Exception as error:  # each catalog has its own, also those of a database's driver
            text = f"{self} cannot be reached: {str(error) or repr(error)}"
            raise Unavailable(text, retry_after_ms=RETRY_AFTER_MS) from error

    def check(self) -> None:
        """Raises InvalidConfig, Unavailable."""
        with self.asking():
            self.catalog.create_namespace_if_not_exists(self.namespace)
        warehouse = self.catalog.properties.get("warehouse", "")
        if f"{warehouse.rstrip('/')}/".startswith(self.root):
            raise InvalidConfig(f"catalog {self._catalog_name}: its warehouse {warehouse} lies in the root {self.root}")

    def load(self) -> Table | None:
        """Return the table as it is now. Raises InvalidConfig, Unavailable, DataDamaged."""
        with self.asking():
            try:
                return self.catalog.load_table(self.identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def create(self, schema: Schema, properties: dict[str, str]) -> Table:
        """Return a new table, or the one that another process has created. Raises as `check`, DataDamaged."""
        self.check()
        with self.asking():
            try:
                return self.catalog.create_table(self.identifier, schema, properties=properties)
            except TableAlreadyExistsError:
                return self.catalog.load_table(self.identifier)


def _unknown(name: str, error: object) -> InvalidConfig:
    variable = f"PYICEBERG_CATALOG__{name.upper().replace('-', '_')}__URI"
    return InvalidConfig(f"catalog {name!r} is not configured in this broker: {error}; set {variable}, for instance")
