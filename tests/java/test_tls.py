"""Apache Kafka's console clients and kafka-topics against listeners with TLS, with certificates in PEM."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from java_programs import properties
from kafka_tools import classpath

from embedlog.cluster import Broker
from embedlog.runtime.java import java_home
from embedlog.security.certificates import Certificates


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the tools."""
    return classpath(tmp_path_factory.mktemp("tools") / "classpath")


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_console_clients_with_certificates(tools: str, tmp_path: Path, version: str) -> None:
    made = Certificates(str(tmp_path / "tls"), "team")
    config = properties(
        tmp_path / "client.properties",
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": made.authority,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": made.of_client("alice"),
        },
    )
    with Broker(
        listeners="SSL://127.0.0.1:0",
        ssl_keystore_location=made.of_server(["127.0.0.1"]),
        ssl_truststore_location=made.authority,
        ssl_client_auth="required",
        ssl_enabled_protocols=version,
    ) as broker:

        def ran(name: str, *arguments: str, lines: str = "") -> str:
            command = [str(java_home() / "bin" / "java"), "-cp", tools, f"org.apache.kafka.tools.{name}"]
            command += [
                "--bootstrap-server",
                broker.bootstrap_servers,
                "--command-config",
                str(config),
                *arguments,
            ]
            done = subprocess.run(command, input=lines, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        ran("TopicCommand", "--create", "--topic", "t", "--partitions", "2")
        large = "x" * 900_000
        ran("ConsoleProducer", "--topic", "t", lines=f"one\n{large}\n")
        read = ["--topic", "t", "--from-beginning", "--max-messages", "2"]
        found = ran("consumer.ConsoleConsumer", *read).split()
        assert sorted(found) == ["one", large]
