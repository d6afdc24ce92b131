"""The producer, from records to acknowledged batches. Knows nothing of consumers."""
