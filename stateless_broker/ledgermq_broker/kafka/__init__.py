"""The Kafka protocol: programs that speak it use the broker as they use Kafka."""
