"""Share groups (KIP-932): members of queue groups that speak the Kafka protocol."""
