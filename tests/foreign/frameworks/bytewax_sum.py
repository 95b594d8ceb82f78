"""Sums each key's numbers with Bytewax, from the last snapshot on. Ends at the end of the topic.

python bytewax_sum.py BOOTSTRAP RECOVERY_DIRECTORY
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from bytewax import operators as op
from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSourceMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

bootstrap, directory = sys.argv[1], Path(sys.argv[2])
if not directory.exists():
    directory.mkdir()
    init_db_dir(directory, 1)


def of_key(message: KafkaSourceMessage[bytes, bytes]) -> tuple[str, int]:
    return message.key.decode(), int(message.value)


def add(total: int | None, number: int) -> tuple[int, int]:
    total = (total or 0) + number
    return total, total


def message(key_total: tuple[str, int]) -> KafkaSinkMessage[bytes, bytes]:
    key, total = key_total
    return KafkaSinkMessage(key.encode(), b"%d" % total)


flow = Dataflow("sum")
taken = kop.input("in", flow, brokers=[bootstrap], topics=["bytewax-in"], tail=False)
numbers = op.map("of key", taken.oks, of_key)
totals = op.stateful_map("add", numbers, add)
kop.output("out", op.map("message", totals, message), brokers=[bootstrap], topic="bytewax-out")
op.inspect("errors", taken.errs)
cluster_main(flow, [], 0, epoch_interval=timedelta(0), recovery_config=RecoveryConfig(directory))
