"""Access rules and quotas, as administrators of the Kafka protocol see and change them."""
