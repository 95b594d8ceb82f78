"""The page as a client of brokers: what they do not tell is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from servers import Started
from starlette.testclient import TestClient

import embedlog
from embedlog.ui import application


def test_topics_of_brokers(path: Path, start: Callable[..., Started]) -> None:
    broker = start("-m", "embedlog", "serve", path, "--json", "--port", 0)
    address = broker.find(r'"listening": ?"([^"]+)"')[0]
    with (
        embedlog.open(f"kafka://{address}", default_api_timeout_ms=2_000) as brief,
        embedlog.open(f"kafka://{address}") as log,
    ):
        log.create_topic("clicks", 2, retention_ms=86_400_000)
        for number in range(10):
            log.append("clicks", b"1", partition=number % 2, timestamp_ms=1_767_225_600_000 + number * 1_000)
        with TestClient(application(log)) as client:
            page = client.get("/").text
            assert address in page
            assert "controller" in page
            assert "for 24 h" in page
            assert "on disk" not in page
            assert "2026-01-01 " in page or "2025-12-31 " in page  # its first time
            topic = client.get("/topics/clicks").text
            assert "10 records; at most 2 records in" in topic or "10 records; at most 1 record in" in topic
            assert "bytes over time" not in topic
            assert "broker 0" in topic
            assert client.get("/topics/clicks/partitions/0").status_code == 404
        with TestClient(application(brief)) as client:
            assert client.get("/").status_code == 200
            broker.kill()
            for page_of in ("/", "/topics/clicks"):
                assert client.get(page_of).status_code in (200, 409)
