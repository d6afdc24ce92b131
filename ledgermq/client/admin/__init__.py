"""Administration: topics, access rules, quotas, deletion of records."""
