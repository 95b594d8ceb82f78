"""docs/reference/cli.md lists every command, and the commands it shows can be parsed."""

from __future__ import annotations

import re
import shlex

import pytest
from documents import DOCS, DOCUMENTS, ROOT

from embedlog.cli import COMMANDS, _parser

PAGE = (DOCS / "reference" / "cli.md").read_text()
PAGES = "\n".join(
    path.read_text() for path in [ROOT / "README.md", *DOCS.rglob("*.md")] if path not in DOCUMENTS
).replace("\\\n", " ")
SHOWN = sorted(set(re.findall(r"^\$ (?:.* \| )?(embedlog .*?)(?:\s+(?:#|> ~).*)?$", PAGES, re.M)))


def test_every_command() -> None:
    commands = PAGE.split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", commands, re.M) == list(COMMANDS)


@pytest.mark.parametrize("line", SHOWN)
def test_shown_commands_work(line: str) -> None:
    arguments = shlex.split(line.removesuffix(" &").replace("$'\\t'", "'\t'"))[1:]
    assert _parser(arguments).parse_args(arguments).command == arguments[0]
