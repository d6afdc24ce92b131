"""What the parts of a client have in common: they make objects, and the client closes these at its end."""

from __future__ import annotations

from ledgermq.client.admin.topics import Admin
from ledgermq.client.context import ClientContext, Made
from ledgermq.client.requests import Requests
from ledgermq.client.transactions.transactions import TransactionClient, Transactions
from ledgermq.client.transactions.two_phase.two_phase import TwoPhase


class Making:
    """Makes objects that live no longer than the client."""

    def __init__(self, context: ClientContext, admin: Admin, requests: Requests) -> None:
        self._context = context
        self._connections = context.connections
        self._routing = context.routing
        self._sources = context.sources
        self._admin = admin
        self._requests = requests
        self._made: list[Made] = [requests]
        self.transactions = TransactionClient(context, self._keep)
        """Transactions: records of any topics, and offsets of groups, all or nothing."""

    def _keep(self, made: Transactions | TwoPhase) -> None:
        self._forget_closed()
        self._made.append(made)

    def _forget_closed(self) -> None:
        """Make room for another object of this client. Raises Closed."""
        self._connections.check_open()
        self._made = [made for made in self._made if not made.closed]
