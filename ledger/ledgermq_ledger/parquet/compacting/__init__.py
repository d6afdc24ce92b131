"""One round of compaction: plan, tasks, commit; and what an operator mends in its partitions."""
