"""What the pages on ZooKeeper and mirroring show, and the commands of the README, as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import DOCS, ROOT, Shell, blocks, on_free_ports, python_blocks
from registered_brokers import Cluster
from zookeepers import Znodes

from embedlog import errors


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    with Shell(tmp_path) as shell:
        yield shell


@pytest.mark.jvm
def test_from_one_process_to_three_brokers_and_into_a_copy(shell: Shell) -> None:
    page = on_free_ports((ROOT / "docs" / "reference" / "cluster.md").read_text())
    typed = [block.text for block in blocks(page) if block.language == "console"]
    assert len(typed) == 3
    for text in typed:
        shell.type(text)
    described = re.search(r"`(embedlog cluster describe .*?)`", page)
    assert described is not None
    shell.type(f"$ {described[1]}\n")
    broker = described[1].split()[-1]
    mirroring = (ROOT / "docs" / "reference" / "mirroring.md").read_text()
    (command,) = re.findall(r"^\$ (embedlog mirror .* --until-caught-up)$", mirroring, re.M)
    shell.type(f"$ {command.replace('localhost:9092', broker)}\n")
    shell.type("$ embedlog cat ./copy clicks\nso far\n")


def test_the_commands_of_the_readme(shell: Shell) -> None:
    readme = (ROOT / "README.md").read_text()
    section = readme.split("## On the command line")[1].split("\n## ")[0]
    (text,) = [block.text for block in blocks(section) if block.language == "console"]
    names: dict[str, Any] = {}
    exec(python_blocks(readme)[0], names)  # makes what the commands look at
    names["log"].close()
    shell.type(text.replace("tail -f ", "tail -f --max-records 1 "))
    assert len(text.splitlines()) == 5


@pytest.mark.jvm
def test_the_program_with_zookeepers_consumer(zookeeper: Znodes, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = python_blocks((DOCS / "reference" / "consumer-connector.md").read_text())
    program = program.replace("127.0.0.1:2181", zookeeper.connect)
    program = program.replace('"smallest"', '"smallest", consumer_timeout_ms=1_000')  # it would wait forever
    with Cluster(zookeeper.connect, 2) as cluster:
        cluster.create_topic("clicks", [0, 0])
        for partition in range(2):
            cluster.append("clicks", partition, [b"here"])
        with pytest.raises(errors.ConsumerTimeout):
            exec(program, {})
    assert capsys.readouterr().out in ("clicks 0 0 None b'here'\n", "clicks 1 0 None b'here'\n")
