"""Kafka's own kafka-configs.sh sets, shows and removes quotas of `embedlog serve`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from kafka_tools import classpath

import embedlog
from embedlog.backends.remote import RemoteBackend
from embedlog.runtime.java import java_home
from embedlog.security.quota_rules import QuotasByEntity


@pytest.fixture(scope="module")
def broker_classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of Kafka's broker, which has ConfigCommand."""
    return classpath(tmp_path_factory.mktemp("kafka") / "classpath", "../../benchmarks/kafka")


@pytest.fixture
def configs(broker_classes: str, bootstrap: str) -> Callable[..., str]:
    """Runs kafka-configs.sh; returns what it prints."""

    def run(*arguments: str) -> str:
        java = str(java_home() / "bin" / "java")
        command = [java, "-cp", broker_classes, "kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap]
        ran = subprocess.run([*command, *arguments], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return run


@pytest.mark.parametrize(
    ("entity", "quota", "value"),
    [
        (("users", "Zoë & co"), "producer_byte_rate", "1024"),
        (("clients", "app"), "request_percentage", "50.5"),
        (("ips", "10.0.0.1"), "connection_creation_rate", "7"),
    ],
)
def test_quotas_come_and_go(
    configs: Callable[..., str], bootstrap: str, entity: tuple[str, str], quota: str, value: str
) -> None:
    def quotas() -> QuotasByEntity:
        with embedlog.open(f"kafka://{bootstrap}") as log:
            assert isinstance(log.backend, RemoteBackend)
            return log.backend.quotas.read()

    kind, name = entity
    for which in (["--entity-name", name], ["--entity-default"]):
        of = ["--entity-type", kind, *which]
        configs("--alter", *of, "--add-config", f"{quota}={value}")
        (found,) = quotas().items()
        assert found[0][0][1] == (name if "--entity-name" in which else None)
        assert found[1] == {quota: float(value)}
        assert f"{quota}={float(value)}" in configs("--describe", *of)
        configs("--alter", *of, "--delete-config", quota)
        assert quotas() == {}


def test_of_a_user_and_a_client_id(configs: Callable[..., str]) -> None:
    both = ["--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients"]
    both += ["--entity-name", "reports"]
    configs("--alter", *both, "--add-config", "consumer_byte_rate=65536,controller_mutation_rate=0.5")
    found = configs("--describe", *both)
    assert "consumer_byte_rate=65536.0" in found
    assert "controller_mutation_rate=0.5" in found
    configs("--alter", *both, "--delete-config", "consumer_byte_rate,controller_mutation_rate")
