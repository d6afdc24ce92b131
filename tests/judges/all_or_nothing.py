"""All or nothing: a transaction is visible as a whole, or not at all, as its program was told."""

from __future__ import annotations

from tests.judges.violation import Violation


def judge_whole(
    client: str, told: bool | None, shown: int, count: int, what: str, *, promised: bool = False
) -> list[Violation]:
    """`told`: True committed, False aborted, None not known. `shown`: how many of its `count` records are visible;
    `what`: words for that. `promised`: it is prepared, and its program has not asked to roll it back.

    told another outcome    committed, and nothing is visible; or aborted, and something is
    broken promise          prepared, and not all is visible
    torn transaction        a part is visible
    """
    if told is not None and told != bool(shown) and count:
        text = f"{client} was told {'committed' if told else 'aborted'}; {what}"
        return [Violation("told another outcome", text)]
    if promised and shown < count:
        return [Violation("broken promise", f"{client} has prepared it; {what}")]
    if 0 < shown < count:
        return [Violation("torn transaction", f"{client}: {what}")]
    return []
