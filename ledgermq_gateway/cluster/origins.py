"""Say to brokers for which client, and for which of its requests, a call is made. They believe it if this gateway's own
token or certificate is one of their setting `delegates`, and their audit log then has both.

Invariant: what a request says ends with it. Tasks that outlive it, such as those of a producer, inherit its context,
and say nothing from then on. Streams of requests say nothing at all, because several requests of a caller share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from ipaddress import ip_address, ip_network

from ledgermq.protocol.naming.client_ids import CLIENT_ADDRESS, CLIENT_REQUEST, DELEGATE, found_address

Metadata = tuple[tuple[str, str], ...]

_current: ContextVar[list[tuple[str, str]]] = ContextVar("ledgermq_gateway_origin")
"""Emptied at the end of its request."""


def calls_for(address: str, request_id: str) -> Callable[[], None]:
    """Let the calls that this task makes from now on say that they are made for this client's request. Call what is
    returned when the request ends.
    """
    said = [(CLIENT_ADDRESS, address), (CLIENT_REQUEST, request_id)] if address else []
    _current.set(said)  # it is not reset: the request may end in another task
    return said.clear


def said_by(delegate: Callable[[str], str] | None) -> Callable[[str], Metadata]:
    """Return what makes the metadata of a call to an address. `delegate`: the gateway's own credential, by the address
    of the broker; None: its certificate says who it is.
    """

    def made(broker: str) -> Metadata:
        said = tuple(_current.get([]))
        return said if delegate is None or not said else (*said, (DELEGATE, delegate(broker)))

    return made


class Proxies:
    """Addresses and networks of the proxies in front that are trusted."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ip_network(each) for each in networks]

    def __contains__(self, host: object) -> bool:
        try:
            address = ip_address(str(host))
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def client_of(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return the address of a request's client: the peer of its connection; behind trusted proxies, the last
        address in `forwarded` that is none of them. `forwarded`: the headers X-Forwarded-For, in their order. What
        stands before that address may be forged.
        """
        found = found_address(peer.partition("%")[0])
        for hop in reversed([hop for line in forwarded for hop in line.split(",")]):
            if found not in self:
                break
            named = found_address(_without_port(hop.strip()))
            if not named:
                break
            found = named
        return found


def _without_port(hop: str) -> str:
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
