"""The types of a topic's settings, for type checkers: all settings, each with what it takes."""

from __future__ import annotations

import re
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any, get_args

import pytest

import embedlog
from embedlog import TopicSettings
from embedlog.clients.options import TopicChanges, TopicOptions

ROOT = Path(__file__).parent.parent
NONE = type(None)


def kinds(annotation: Any) -> set[Any]:
    """The members of a union, with the values of a Literal in its place."""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return set(get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return set().union(*map(kinds, get_args(annotation)))
    return {annotation}


def test_every_setting_of_a_topic_has_its_type() -> None:
    options, changes = typing.get_type_hints(TopicOptions), typing.get_type_hints(TopicChanges)
    assert list(options) == list(changes) == list(TopicSettings.names())
    defaults = TopicSettings().as_dict()
    for name, annotation in options.items():
        allowed = TopicSettings.rules.get(name, {}).get("allowed")
        accepted = kinds(annotation)
        if allowed is None:
            assert type(defaults[name]) in accepted, name
        else:
            assert {each for each in accepted if isinstance(each, str)} == set(allowed), name
        assert kinds(changes[name]) == accepted | {NONE}, name


@pytest.mark.parametrize("name", TopicSettings.names())
def test_what_the_types_allow_is_taken(log: embedlog.Log, name: str) -> None:
    for number, each in enumerate(kinds(typing.get_type_hints(TopicOptions)[name])):
        value = each if isinstance(each, str) else TopicSettings().as_dict()[name]
        if not isinstance(each, str | type):  # Sequence[str]
            value = value.split(",")
        made = log.create_topic(f"{name}-{number}", **{name: value})
        assert made.settings.keys() == {name}
        assert log.alter_topic(f"{name}-{number}", **{name: None}).settings == {}


SNIPPET = """
from typing import Any, assert_type
import embedlog
import embedlog.aio
log = embedlog.open("data")
log.create_topic("t", 3, exist_ok=True, retention_ms=5, compression_type="zstd", preallocate=True)
log.create_topic("t", cleanup_policy=["compact", "delete"], min_cleanable_dirty_ratio=1)
log.alter_topic("t", retention_ms=None, compression_type=None)
dotted: dict[str, Any] = {"retention.ms": 5, "compression.type": "zstd"}
log.create_topic("t", **dotted)
log.alter_topic("t", **dotted)
log.create_topic("t", retention_ms="5")  # error: arg-type
log.create_topic("t", retention_ms=None)  # error: arg-type
log.create_topic("t", retention=5)  # error: call-arg
log.create_topic("t", compression_type="zip")  # error: arg-type
log.alter_topic("t", flush_ms=1.5)  # error: arg-type
assert_type(log.group("g").reset(to="latest"), dict[embedlog.TopicPartition, embedlog.OffsetReset])
log.group("g").reset(to=b"latest")  # error: arg-type
async def tasks(log: embedlog.aio.Log) -> None:
    await log.create_topic("t", 3, exist_ok=True, retention_ms=5, compression_type="zstd")
    await log.alter_topic("t", retention_ms=None)
    await log.create_topic("t", **dotted)
    await log.create_topic("t", retention_ms="5")  # error: arg-type
    await log.create_topic("t", retention=5)  # error: call-arg
    await log.alter_topic("t", flush_ms=1.5)  # error: arg-type
    described = await log.alter_topic("t")
    assert_type(described, embedlog.TopicDescription)
class Mail: ...
mails = log.topic("mails", Mail, key_type=str).queue("g", lock_ms=5)
assert_type(mails, embedlog.Queue[Mail, str])
for job in mails:
    assert_type(job.value, Mail | None)
assert_type(log.queue("jobs").take(), embedlog.Job[bytes, bytes])
assert_type(log.queue("jobs").take(default=None), embedlog.Job[bytes, bytes] | None)
mails.send(b"mail")  # error: arg-type
log.queue("jobs", lock="5")  # error: call-arg
@embedlog.worker("mails", Mail, key_type=str, concurrency=2)
def send(job: embedlog.Job[Mail, str]) -> int:
    return job.deliveries
assert_type(send(next(mails)), int)
send(5)  # error: arg-type
"""


@pytest.mark.slow
def test_a_type_checker_knows_the_settings(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SNIPPET)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "program.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    found = {
        int(line): code
        for line, code in re.findall(r"^program.py:(\d+): error: .*\[([a-z-]+)\]$", checked.stdout, re.M)
    }
    expected = {
        number: line.partition("# error: ")[2]
        for number, line in enumerate(SNIPPET.splitlines(), 1)
        if "# error: " in line
    }
    assert found == expected, checked.stdout
