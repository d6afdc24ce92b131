"""What a ledger remembers of its partitions: producers, ids of messages, moves. Pure."""
