"""The pytest plugin, run by a pytest of its own as in a user's project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest
from kafka import KafkaConsumer, KafkaProducer

def test_one(kafka_broker):
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
    producer.send("orders", b"first").get(60)
    producer.close()
    assert [record.value for record in kafka_broker.log.read("orders", follow=False)] == [b"first"]

def test_each_test_has_its_own_log(kafka_broker):
    assert kafka_broker.log.topics() == []

def test_shared_a(kafka_broker_session):
    kafka_broker_session.log.create_topic("shared")

def test_shared_b(kafka_broker_session):
    assert kafka_broker_session.log.topics() == ["shared"]
    assert kafka_broker_session.settings.num_partitions == 3

@pytest.fixture(scope="session")
def kafka_broker_settings():
    return {"num_partitions": 3}
"""


def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_with_broker.py").write_text(TESTS)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout


def test_a_run_that_asks_for_no_broker_imports_none(tmp_path: Path) -> None:
    (tmp_path / "test_without.py").write_text(
        "import sys\ndef test_it():\n    assert 'embedlog' not in sys.modules\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout
