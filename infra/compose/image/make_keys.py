"""Make what the HTTP gateway needs and does not have yet: a certificate with its key, and the key that seals cookies.

`make_keys.py FOLDER`: gateway.pem and gateway.key, signed by itself for PUBLIC_HOST and localhost; console.key. To use
a certificate that browsers trust, put both files there, and start the gateway again. Exit status 0: all are there.
"""

import os
import secrets
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 825
"""The longest life of a certificate that all browsers accept."""


def certificate(host: str) -> tuple[bytes, bytes]:
    """Return a certificate for this host and this machine, and its key, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "LedgerMQ gateway")])
    now = datetime.now(UTC)
    names = dict.fromkeys((host, "localhost", "127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([_name(each) for each in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return made.public_bytes(serialization.Encoding.PEM), key.private_bytes(serialization.Encoding.PEM, *form)


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def put(path: Path, data: bytes) -> None:
    """Write a file that no other user can read, whole or not at all."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)


def main(folder: Path, host: str) -> None:
    pem, key, sealing = folder / "gateway.pem", folder / "gateway.key", folder / "console.key"
    if not (pem.exists() and key.exists()):
        public, private = certificate(host)
        put(key, private)
        put(pem, public)
        print(f"{pem}: made for {host} and this machine, for {DAYS} days")
    if not sealing.exists():
        put(sealing, secrets.token_hex(32).encode())
        print(f"{sealing}: made")


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.environ.get("PUBLIC_HOST") or "127.0.0.1")
