"""Administration of transactions without asyncio."""

from __future__ import annotations

from ledgermq.client.transactions.admin import TransactionAdmin as AsyncTransactionAdmin
from ledgermq.client.transactions.admin import TransactionDescription, TransactionList
from ledgermq.sync.background import Background


class TransactionAdmin:
    """The methods of `client.transactions` for operators. Every call ends within the client's
    `timeout_s`.
    """

    def __init__(self, background: Background, inner: AsyncTransactionAdmin) -> None:
        self._background = background
        self._admin = inner

    def list(self, *, open_only: bool = True) -> TransactionList:
        """See `ledgermq.TransactionClient.list`."""
        return self._background.run(self._admin.list(open_only=open_only))

    def describe(self, transactional_id: str, *, staged: bool = True) -> TransactionDescription:
        """See `ledgermq.TransactionClient.describe`."""
        return self._background.run(self._admin.describe(transactional_id, staged=staged))

    def resolve(self, transactional_id: str, *, commit: bool) -> TransactionDescription:
        """See `ledgermq.TransactionClient.resolve`."""
        return self._background.run(self._admin.resolve(transactional_id, commit=commit))

    def forget(self, transactional_id: str) -> None:
        """See `ledgermq.TransactionClient.forget`."""
        self._background.run(self._admin.forget(transactional_id))

    def give_up(self, transactional_id: str, bundle: int) -> TransactionDescription:
        """See `ledgermq.TransactionClient.give_up`."""
        return self._background.run(self._admin.give_up(transactional_id, bundle))
