"""Run fake-gcs-server, an emulator of Google Cloud Storage, for tests: built once by Go, kept in .cache/bin/.

It has Google's JSON API. What it lacks of the XML API is in tests/servers/gcs_xml.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from infra.emulator import answers
from infra.go_binary import GoBinary

BINARY = GoBinary(
    name="fake-gcs-server",
    variable="LEDGERMQ_FAKE_GCS",
    module="github.com/fsouza/fake-gcs-server@v1.56.1",
    minutes=5,
)
EMAIL = "ledgermq-test@emulator.example"


@dataclass(frozen=True)
class FakeGcs:
    """A running emulator. `endpoint` is an http URL. Objects are in its memory alone."""

    endpoint: str

    def command(self) -> list[str]:
        """Return the command that starts it."""
        host, _, port = self.endpoint.removeprefix("http://").partition(":")
        return [
            *(str(BINARY.install()), "-scheme", "http", "-host", host, "-port", port, "-public-host", host),
            *("-backend", "memory", "-log-level", "error"),
        ]

    def is_ready(self) -> bool:
        """Return whether it answers; blocks for at most a second."""
        return answers(f"{self.endpoint}/_internal/healthcheck")


def write_service_account(path: Path, token_uri: str) -> None:
    """Write the file of a service account with a new private key, as Google gives it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    account = {
        "type": "service_account",
        "project_id": "emulator",
        "private_key_id": "1",
        "private_key": pem,
        "client_email": EMAIL,
        "client_id": "1",
        "token_uri": token_uri,
    }
    path.write_text(json.dumps(account))


if __name__ == "__main__":
    print(BINARY.install())
