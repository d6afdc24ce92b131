"""Authorities and certificates for tests, as files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trustme

from ledgermq import Tls

HOSTS = ("localhost", "127.0.0.1")
PAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC)


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key."""

    cert: Path
    key: Path

    def settings(self) -> dict[str, str]:
        return {"tls_cert_file": str(self.cert), "tls_key_file": str(self.key)}

    def take(self, other: Pair) -> None:
        """Replace the files by those of another pair, as an operator does: one after the other."""
        for old, new in ((self.cert, other.cert), (self.key, other.key)):
            beside = old.with_suffix(".new")
            shutil.copyfile(new, beside)
            beside.rename(old)


class Authority:
    """`ca`: its certificate as a file of `folder`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._authority = trustme.CA()
        self._folder = folder
        self._name = name
        self.ca = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *hosts: str, expired: bool = False, common_name: str | None = None) -> Pair:
        """Issue a certificate for the hosts; without any for HOSTS, or for none if it has a common name."""
        times = {"not_before": PAST[0], "not_after": PAST[1]} if expired else {}
        names = hosts or (() if common_name else HOSTS)
        issued = self._authority.issue_cert(*names, common_name=common_name, **times)
        found = Pair(self._folder / f"{self._name}-{name}.pem", self._folder / f"{self._name}-{name}.key")
        found.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(found.key)
        return found

    def tls(self, pair: Pair | None = None) -> Tls:
        """TLS of a client that trusts this authority."""
        return Tls(ca=self.ca) if pair is None else Tls(ca=self.ca, cert=pair.cert, key=pair.key)
