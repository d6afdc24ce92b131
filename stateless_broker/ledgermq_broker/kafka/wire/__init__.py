"""The bytes of the Kafka protocol: frames, messages, record batches, error codes. No I/O."""
