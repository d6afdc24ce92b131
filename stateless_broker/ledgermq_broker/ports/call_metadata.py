"""Read who makes a call of gRPC: what its metadata say, and the names in its certificate."""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.errors import Unauthenticated
from ledgermq.protocol.naming.client_ids import (
    CLIENT_ADDRESS,
    CLIENT_ID,
    CLIENT_REQUEST,
    DELEGATE,
    RACK,
    found_address,
    found_rack,
    found_request_id,
)
from ledgermq.protocol.naming.tokens import AUTHORIZATION
from ledgermq_broker.ports.metered_call import Context

USER_AGENT = "user-agent"
SUBJECT_ALTERNATIVE_NAME = "x509_subject_alternative_name"
"""What gRPC calls the kind of identity by which a caller is known."""


@dataclass(slots=True)
class CallMetadata:
    """What the metadata of a call say; "" for what they do not have. `library`: name and version of the client's.
    `delegate`: credential of the program that says that it passes the call on for a client at `address`, whose request
    is `request_id`.
    """

    credential: str = ""
    client_id: str = ""
    rack: str = ""
    library: str = ""
    delegate: str = ""
    address: str = ""
    request_id: str = ""


def call_metadata(context: Context) -> CallMetadata:
    """Raises Unauthenticated for more than one credential."""
    found = CallMetadata()
    credentials: list[str | bytes] = []
    for key, value in context.invocation_metadata() or ():
        if key == AUTHORIZATION:
            credentials.append(value)
        elif key == CLIENT_ID:
            found.client_id = str(value)
        elif key == RACK:
            found.rack = found_rack(str(value))
        elif key == USER_AGENT:
            found.library = str(value)
        elif key == DELEGATE:
            found.delegate = str(value)
        elif key == CLIENT_ADDRESS:
            found.address = found_address(str(value))
        elif key == CLIENT_REQUEST:
            found.request_id = found_request_id(str(value))
    if len(credentials) > 1 or not all(isinstance(value, str) for value in credentials):
        raise Unauthenticated("a call carries one credential at most")
    found.credential = str(credentials[0]) if credentials else ""
    return found


def certified_names(context: Context) -> list[str]:
    """Return the subject alternative names in the certificate that the transport has verified; none without
    one. gRPC would take the common name instead of missing names, but authorities do not verify it.
    """
    if context.peer_identity_key() != SUBJECT_ALTERNATIVE_NAME:
        return []
    return [name.decode(errors="replace") for name in context.peer_identities() or ()]
