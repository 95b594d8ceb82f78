"""Walks over the batches of a segment file: in order, in batches, in parallel, and past damage."""
