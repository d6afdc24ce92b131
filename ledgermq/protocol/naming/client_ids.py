"""Name who is behind a call, in its metadata: the program by its client id, which quotas may name, and the client that
a program such as a gateway passes the call on for. Brokers believe the latter only from the principals of their
setting `delegates`: any other program could name any address.

    ledgermq-client-id        id of the program
    ledgermq-rack             rack or availability zone in which it runs
    ledgermq-delegate         credential of the program that passes a client's calls on, `Bearer TOKEN`; without it,
                              its certificate says which principal it is
    ledgermq-client-address   IP address of the client
    ledgermq-client-request   id of the client's request, 1 to 64 letters, digits and hyphens
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address

from ledgermq.errors import InvalidConfig

CLIENT_ID = "ledgermq-client-id"
"""The key of a client id in the metadata of a call."""
CLIENT_ID_CHARS_MAX = 249

RACK = "ledgermq-rack"
RACK_CHARS_MAX = 249
DELEGATE = "ledgermq-delegate"
CLIENT_ADDRESS = "ledgermq-client-address"
CLIENT_REQUEST = "ledgermq-client-request"

_REQUEST_ID = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
_ADDRESS_CHARS_MAX = 64
_SENDABLE = re.compile(rf"[\x21-\x7e]{{1,{CLIENT_ID_CHARS_MAX}}}\Z")


def check_client_id(text: str) -> str:
    """Return the id. Raises InvalidConfig."""
    if text == "*" or not _SENDABLE.match(text):
        raise InvalidConfig(
            f"client id {text[:100]!r}: write 1 to {CLIENT_ID_CHARS_MAX} ASCII letters, digits and signs, without"
            " spaces, and not only an asterisk"
        )
    return text


def check_rack(text: str) -> str:
    """Return the name of a rack. Raises InvalidConfig."""
    if not _SENDABLE.match(text):
        raise InvalidConfig(
            f"rack {text[:100]!r}: write 1 to {RACK_CHARS_MAX} ASCII letters, digits and signs, without spaces"
        )
    return text


def metadata_of(client_id: str, rack: str) -> tuple[tuple[str, str], ...]:
    """Return what calls of a program carry; "": it has none."""
    return tuple((key, value) for key, value in ((CLIENT_ID, client_id), (RACK, rack)) if value)


def found_rack(text: str) -> str:
    """Return the name of a rack; "" for a text that is none."""
    return text if _SENDABLE.match(text) else ""


def found_address(text: str) -> str:
    """Return an IP address as it is usually written; "" for a text that is none."""
    return _address(text) if len(text) <= _ADDRESS_CHARS_MAX else ""


@lru_cache(1024)
def _address(text: str) -> str:
    try:
        address = ip_address(text)
    except ValueError:
        return ""
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def found_request_id(text: str) -> str:
    """Return the id of a request; "" for a text that is none."""
    return text if _REQUEST_ID.match(text) else ""
