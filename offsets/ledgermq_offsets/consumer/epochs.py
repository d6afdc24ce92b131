"""Epochs of groups as clients of the Kafka protocol see them: 31 bits, from 1 on, where ours have 64.

After the highest one comes 1 again. What a client names is at most so old that no two epochs look alike.
"""

from __future__ import annotations

EPOCHS = 2**31 - 1


def shown_epoch(epoch: int) -> int:
    """Return what a client sees of a group's epoch: 1 to 2**31 - 1; 0 for 0."""
    return (epoch - 1) % EPOCHS + 1 if epoch else 0


def meant_epoch(shown: int, newest: int) -> int:
    """Return the latest epoch up to `newest` that is shown so; 0: there is none."""
    if not 0 < shown <= EPOCHS:
        return 0
    return max(0, newest - (newest - shown) % EPOCHS)
