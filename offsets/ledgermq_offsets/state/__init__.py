"""What is persisted of groups: their records, and the fold of these."""
