"""What all bundles of one broker share: clocks, limits, memory, turns, and the state of the store."""
