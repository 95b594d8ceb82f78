"""Scans segment files: runs of valid batches; resync after damage."""
