"""Spark looks for packages called pyspark_...: this one makes `format("embedlog")` known without a word."""

from embedlog.spark.source import EmbedlogSource as DefaultSource

__all__ = ["DefaultSource"]
