"""The matrix of docs/explanation/promoting.md: every public method, on a directory and on brokers.

    cases.py            what a case is
    *_cases.py          the cases
    columns.py          where they run
    page.py             the tables
    `make matrix`       runs all cases everywhere, and writes the tables

tests/test_matrix.py compares the page with what the cases do here, tests/java/test_matrix_kafka.py with what
they do on Apache Kafka.
"""

from . import client_cases, consumer_cases, log_cases, queue_cases, read_cases
from .cases import CASES

__all__ = ["CASES", "client_cases", "consumer_cases", "log_cases", "queue_cases", "read_cases"]
