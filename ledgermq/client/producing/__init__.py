"""The producer: turns records into acknowledged batches. Does not depend on consumers."""
