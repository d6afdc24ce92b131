"""Record batches of the Kafka protocol, and Arrow."""
