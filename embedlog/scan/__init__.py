"""Scans of a segment's batches: runs of valid ones, in parallel if it is long, and past damage."""
