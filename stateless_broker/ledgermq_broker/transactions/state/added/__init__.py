"""What transactions of Kafka clients need beyond our own: pure states and their records."""
