"""Run changes of topics, rules, tokens, quotas, schemas and bundles at the controller: in this broker, or forwarded
once to the broker that is the controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from ledgermq.errors import DeadlineExceeded, NotOwner, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger import keys

FORWARD_S_MAX = 15.0

R = TypeVar(
    "R",
    pb.CreateTopicRequest,
    pb.AlterTopicRequest,
    pb.DeleteTopicRequest,
    pb.UndeleteTopicRequest,
    pb.ChangeRulesRequest,
    pb.CreateTokenRequest,
    pb.RevokeTokenRequest,
    pb.ChangeScramRequest,
    pb.ChangeQuotaRequest,
    pb.AddBundlesRequest,
    pb.MovePartitionRequest,
    pb.PutSchemaRequest,
    pb.DeleteSchemaRequest,
    pb.TakeCutRequest,
    pb.KeepCutRequest,
    pb.DropCutRequest,
)
A = TypeVar("A")


class AtController:
    """`address`: the address of this broker."""

    def __init__(
        self, address: str, ownership: Ownership, metadata: Metadata, connect: Callable[[str], Connection]
    ) -> None:
        self._address = address
        self._ownership = ownership
        self._metadata = metadata
        self._connect = connect

    async def run(
        self, request: R, here: Callable[[], Awaitable[A]], there: Callable[[Connection, R], Awaitable[A]]
    ) -> A:
        """Run `here()` if this broker is the controller or about to become it; otherwise forward
        the change.

        A forwarded change is in this broker's catalog when the call returns.
        """
        try:
            async with asyncio.timeout(FORWARD_S_MAX):
                address = self._ownership.address_of(keys.METADATA_BUNDLE)
                if address and address != self._address and not request.forwarded:
                    try:
                        return await self._pass_on(request, address, there)
                    except (NotOwner, Unavailable):
                        pass  # the controller has just changed: look again
                try:
                    return await here()
                except NotOwner as error:
                    if request.forwarded or not error.owner:
                        raise
                    address = error.owner
                return await self._pass_on(request, address, there)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the controller has not answered within {FORWARD_S_MAX:g} s; the change may still happen"
            ) from None

    async def _pass_on(self, request: R, address: str, there: Callable[[Connection, R], Awaitable[A]]) -> A:
        passed = type(request)()
        passed.CopyFrom(request)
        passed.forwarded = True
        answer = await there(self._connect(address), passed)
        with suppress(Unavailable):  # the change is made, even if this broker has not read it yet
            await self._metadata.catch_up()
        return answer
