"""Serve the calls about SCRAM credentials: change them at the controller, list them.

A change is answered when it is durable and in force everywhere, as for tokens. A repetition of a change is recognized
by its nonce.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ledgermq.errors import InvalidRequest, ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import check_nonce
from ledgermq.sources import Sources
from ledgermq_broker.access.freshness import RulesInForce
from ledgermq_broker.access.state.records import ACCESS_CHANGES_KEY, absent_before, knows_change, noted_change
from ledgermq_broker.access.state.rules import PRINCIPAL_CHARS_MAX
from ledgermq_broker.access.state.scram import (
    SCRAM_MAX,
    SCRAM_PREFIX,
    ScramName,
    StoredScram,
    checked_name,
    checked_scram,
    encode_scram,
)
from ledgermq_broker.cluster.heartbeat import SCRAM
from ledgermq_broker.metadata.at_controller import AtController
from ledgermq_broker.metadata.controller import Decide
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger.topics.catalog import Catalog

CHANGES_MAX = 1000
"""Credentials that one call may set and remove together."""

Change = tuple[bytes, bytes | None]


class ScramPath:
    """`put(decide, feature)` writes records that need a feature of every broker, and returns when they are in force
    everywhere.
    """

    def __init__(
        self,
        at_controller: AtController,
        metadata: Metadata,
        put: Callable[[Decide, str], Awaitable[None]],
        in_force: RulesInForce,
        sources: Sources,
    ) -> None:
        self._at_controller = at_controller
        self._metadata = metadata
        self._put = put
        self._in_force = in_force
        self._sources = sources

    async def change_scram(self, request: pb.ChangeScramRequest) -> pb.ChangeScramResponse:
        """Set and remove credentials, all of them or none. Raises InvalidRequest, ResourceExhausted, Unavailable."""
        if len(request.set) + len(request.unset) > CHANGES_MAX:
            raise InvalidRequest(f"at most {CHANGES_MAX} SCRAM credentials in one request")
        check_nonce(request.nonce)
        given = [self._from_wire(one, request.created_by) for one in request.set]
        gone = [checked_name(one.user, one.mechanism) for one in request.unset]
        names = [*(one.name for one in given), *gone]
        if len(set(names)) < len(names):
            raise InvalidRequest("a user and mechanism stands twice in the request: name each once")
        absent: list[ScramName] = []

        def decide(catalog: Catalog) -> list[Change]:
            if knows_change(catalog.others, ACCESS_CHANGES_KEY, request.nonce):
                places = absent_before(catalog.others, ACCESS_CHANGES_KEY, request.nonce)
                absent[:] = [gone[place] for place in places if place < len(gone)]
                return []
            missing = [place for place, name in enumerate(gone) if name.key not in catalog.others]
            absent[:] = [gone[place] for place in missing]
            after = {key for key in catalog.others if key.startswith(SCRAM_PREFIX)} - {name.key for name in gone}
            if len(after | {one.name.key for one in given}) > max(SCRAM_MAX, len(after)):
                raise ResourceExhausted(f"the cluster has {SCRAM_MAX} SCRAM credentials at most: remove some")
            return [
                *((one.name.key, encode_scram(one)) for one in given),
                *((name.key, None) for name in gone if name not in absent),
                *noted_change(catalog.others, ACCESS_CHANGES_KEY, request.nonce, missing),
            ]

        async def here() -> pb.ChangeScramResponse:
            await self._put(decide, SCRAM)
            return pb.ChangeScramResponse(absent=[_to_wire(name) for name in absent])

        return await self._at_controller.run(request, here, lambda line, passed: line.change_scram(passed))

    async def list_scram(self, request: pb.ListScramRequest) -> pb.ListScramResponse:
        await self._metadata.catch_up()
        self._in_force.catalog_changed()
        return pb.ListScramResponse(
            credentials=[
                pb.ScramInfo(
                    name=_to_wire(name),
                    iterations=one.iterations,
                    created_ms=one.created_ms,
                    created_by=one.created_by,
                )
                for name, one in sorted(self._in_force.rules.scram.items())
            ]
        )

    def _from_wire(self, one: pb.ScramCredential, created_by: str) -> StoredScram:
        return checked_scram(
            StoredScram(
                checked_name(one.name.user, one.name.mechanism),
                one.salt,
                one.iterations,
                one.stored_key,
                one.server_key,
                self._sources.now_ms(),
                created_by[:PRINCIPAL_CHARS_MAX],
            )
        )


def _to_wire(name: ScramName) -> pb.ScramName:
    return pb.ScramName(user=name.user, mechanism=name.mechanism)
