"""Connections that break between an append and its response: retries duplicate nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cutter import Cutter
from rounds import first_is_quick

from embedlog.cluster import Broker

RECORDS = 600
PRODUCERS = Path(__file__).with_name("producers.py")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
@pytest.mark.parametrize("flush_messages", first_is_quick([None, 1]), ids=["page cache", "fsync"])
def test_exactly_once_and_in_order(client: str, flush_messages: int | None) -> None:
    durable = {} if flush_messages is None else {"flush_messages": flush_messages}
    with Cutter() as cutter, Broker(advertised_port=cutter.port) as broker:
        cutter.broker_port = broker.port
        broker.log.create_topic("t", **durable)
        command = [sys.executable, str(PRODUCERS), client, f"127.0.0.1:{cutter.port}", "t", "idempotent"]
        ran = subprocess.run([*command, str(RECORDS)], stdout=subprocess.PIPE, text=True)
        assert ran.returncode == 0
        numbers = [int(record.value) for record in broker.log.read("t", 0, follow=False)]
        assert numbers == list(range(RECORDS))
        assert cutter.cuts
