"""Many partitions in one directory: topics, background work, quotas, backup, verification and repair."""
