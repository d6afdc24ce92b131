"""Generated messages of the Kafka protocol: `make kafka-messages`."""
