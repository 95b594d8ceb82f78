"""Registers `format("embedlog")`: Spark imports every package whose name begins with pyspark_."""

from embedlog.spark.source import EmbedlogSource as DefaultSource

__all__ = ["DefaultSource"]
