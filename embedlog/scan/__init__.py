"""Scans segment files: runs of valid batches, in two threads if the file is long; resync after damage."""
