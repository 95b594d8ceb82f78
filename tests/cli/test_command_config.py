"""--command-config: a client's settings for commands over the wire."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from certificates import Authority
from cli_commands import Run
from secure_peers import Peer, Says, accepted, refused

PASSWORD = "alice's secret"


def plain() -> Says:
    return lambda said: accepted() if said == f"\0alice\0{PASSWORD}".encode() else refused("no such user")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    authority = Authority(tmp_path)
    path = tmp_path / "client.properties"
    path.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.location={authority.file}\nsasl.mechanism=PLAIN\n"
        'sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" '
        f'password="{PASSWORD}";\n'
    )
    path.chmod(0o600)
    authority.issue()
    return path


def server(config: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config.with_name("certificate-1.pem"))
    return context


def test_by_option_and_by_the_environment(run: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Peer(plain, server(config)) as peer:
        address = f"127.0.0.1:{peer.port}"
        for arguments in (
            ["topics", "list", "--bootstrap-server", address, "--command-config", str(config)],
            ["topics", "list", f"kafka://{address}", "--command-config", str(config)],
            ["groups", "list", f"kafka://{address}", "--command-config", str(config)],
        ):
            ran = run(*arguments)
            assert "SaslAuthenticate" in peer.asked
            assert PASSWORD not in ran.out + ran.err
            peer.asked.clear()
        monkeypatch.setenv("EMBEDLOG_COMMAND_CONFIG", str(config))
        assert run("topics", "list", f"kafka://{address}").code == 0
        assert run("mirror", "--from", f"kafka://{address}", "--to", "copy", "--once").code == 0


def test_what_is_refused_says_why(run: Run, config: Path) -> None:
    text = config.read_text()
    with Peer(plain, server(config)) as peer:
        address = f"kafka://127.0.0.1:{peer.port}"
        config.write_text(text.replace(PASSWORD, "wrong"))
        ran = run("topics", "list", address, "--command-config", str(config))
        assert (ran.code, "does not accept the user 'alice'" in ran.err) == (2, True)
        config.write_text(text.replace("ssl.truststore.location", "ssl.truststore.certificates"))
        ran = run("topics", "list", address, "--command-config", str(config))
        assert (ran.code, "unknown setting" in ran.err) == (2, True)
        config.write_text(text.replace(str(config.with_name("ca.pem")), "/etc/hostname"))
        ran = run("topics", "list", address, "--command-config", str(config))
        assert (ran.code, "no certificate in PEM" in ran.err) == (2, True)
        config.write_text("security.protocol=SSL\n")
        ran = run("topics", "list", address, "--command-config", str(config))
        assert (ran.code, "ssl_cafile" in ran.err, "embedlog serve" in ran.err) == (1, True, False)
        config.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=alice\n")
        ran = run("topics", "list", address, "--command-config", str(config))
        assert (ran.code, "in the file of --command-config" in ran.err) == (2, True)


def test_a_directory_has_none(run: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("topics", "create", "data", "clicks").code == 0
    ran = run("topics", "list", "data", "--command-config", str(config))
    assert (ran.code, ran.err) == (2, "--command-config is for brokers, and data is a directory\n")
    monkeypatch.setenv("EMBEDLOG_COMMAND_CONFIG", str(config))
    assert run("topics", "list", "data").code == 0
    assert (
        run("topics", "list", "kafka://alice:secret@h", "--command-config", str(config)).err.count("secret")
        == 0
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list"],
        ["topics", "create", "t"],
        ["topics", "describe", "t"],
        ["topics", "alter", "t", "--config", "retention_ms=1"],
        ["topics", "delete", "t", "--yes"],
        ["append", "t", "/dev/null"],
        ["cat", "t"],
        ["tail", "t"],
        ["groups", "list"],
        ["groups", "describe", "g"],
        ["groups", "reset", "g", "--to", "earliest"],
        ["groups", "delete", "g"],
        ["transactions", "list"],
        ["transactions", "describe", "id"],
        ["transactions", "abort", "id"],
        ["stats"],
        ["cluster", "describe"],
        ["acls", "list"],
        ["quotas", "list"],
        ["users", "list"],
        ["load", "--to", "table", "--topic", "t"],
    ],
    ids=" ".join,
)
def test_every_command_over_the_wire_takes_it(run: Run, config: Path, arguments: list[str]) -> None:
    """It authenticates first, whatever it then does."""
    with Peer(lambda: lambda said: refused("not you"), server(config)) as peer:
        here = ["--bootstrap-server", f"127.0.0.1:{peer.port}", "--command-config", str(config)]
        words = 2 if arguments[0] not in ("append", "cat", "tail", "stats", "load") else 1
        ran = run(*arguments[:words], *here, *arguments[words:])
        assert "not you" in ran.err, ran
        assert ran.code == 2
