"""Completion in real shells: commands, options, topics and groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_commands import Run, environment
from rounds import first_is_quick

import embedlog

CASES = [
    ("embedlog comp", "compact"),
    ("embedlog topics cr", "create"),
    ("embedlog cat data --kc", "--kcat-format"),
    ("embedlog cat data cli", "clicks"),
    ("embedlog groups describe data bil", "billing"),
]


@pytest.fixture
def given(log: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds the command, beside a log with a group."""
    with embedlog.open(log) as opened:
        opened.group("billing").reset("clicks", to="earliest")
    command = tmp_path / "bin" / "embedlog"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m embedlog "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"
    return {**environment(), "PATH": path, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}


def ask(shell: str, script: str, cwd: Path, environ: dict[str, str]) -> list[str]:
    quiet = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *quiet, "-c", script], cwd=cwd, env=environ, capture_output=True, text=True, check=True
    )
    return [line.split("\t")[0].strip().removesuffix(":") for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("line", "wanted"), first_is_quick(CASES, 2))
def test_bash(given: dict[str, str], tmp_path: Path, line: str, wanted: str) -> None:
    script = f"""
        eval "$(embedlog completion bash)"
        COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9; COMP_WORDBREAKS=' '
        _python_argcomplete embedlog
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    assert wanted in ask("bash", script, tmp_path, given)


@pytest.mark.parametrize(("line", "wanted"), CASES)
@pytest.mark.slow
@pytest.mark.program("fish")
def test_fish(given: dict[str, str], tmp_path: Path, line: str, wanted: str) -> None:
    assert wanted in ask("fish", f"embedlog completion fish | source; complete -C '{line}'", tmp_path, given)


@pytest.mark.program("zsh")
def test_zsh(given: dict[str, str], tmp_path: Path) -> None:
    script = """
        autoload -Uz compinit && compinit -u
        eval "$(embedlog completion zsh)"
        print -r -- $_comps[embedlog]
        _describe() { print -rl -- ${(P)2} }
        words=(embedlog cat data cli); BUFFER="embedlog cat data cli"; CURSOR=$#BUFFER; service=embedlog
        _python_argcomplete embedlog
    """
    said = ask("zsh", script, tmp_path, given)
    assert said[0] == "_python_argcomplete"
    assert "clicks" in said


def test_an_unknown_shell(run: Run) -> None:
    assert run("completion", "tcsh").code == 2
