"""docs/reference/settings.md lists exactly the existing settings, with defaults and ranges."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from embedlog import synonyms
from embedlog.cluster import BrokerSettings
from embedlog.cluster.broker.group_settings import GroupSettings
from embedlog.cluster.classic.connector_settings import ConnectorSettings
from embedlog.cluster.settings.topic_configs import FIXED
from embedlog.config import LogSettings, Settings, TopicSettings
from embedlog.errors import InvalidSetting
from embedlog.fields import Secret
from embedlog.synonyms import Meaning, plain
from embedlog.wire_client.settings import ClientSettings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "settings.md"
ROW = re.compile(r"\| `(\w+)` \| `(.+?)` \| (.+?) \| (.+) \|")
SECTIONS = [
    ("Of a topic", TopicSettings),
    ("Of a log", LogSettings),
    ("Of a broker", BrokerSettings),
    ("Of a group", GroupSettings),
    ("Of a client over the wire", ClientSettings),
    ("Of a ConsumerConnector", ConnectorSettings),
]
RANGE = re.compile(r"(-?[\d^-]+) to ([\d^-]+)\Z")


def rows(heading: str) -> dict[str, tuple[object, str]]:
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return {name: (ast.literal_eval(default), values) for name, default, values, _ in ROW.findall(section)}


def number(text: str) -> int:
    power, _, less = text.partition("-") if "^" in text else (text, "", "0")
    base, _, exponent = power.partition("^")
    return int(base) ** int(exponent or 1) - int(less or 0)


@pytest.mark.parametrize(("heading", "settings"), SECTIONS)
def test_every_setting_with_its_default(heading: str, settings: type[Settings]) -> None:
    there = {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in settings().as_dict().items()
    }
    assert {name: default for name, (default, _) in rows(heading).items()} == there


@pytest.mark.parametrize(("heading", "settings"), SECTIONS)
def test_values_are_those_that_are_accepted(heading: str, settings: type[Settings]) -> None:
    for name, (default, values) in rows(heading).items():
        if match := RANGE.match(values):
            low, high = number(match[1]), number(match[2])
            assert settings.parse({name: low}) == {name: low}
            assert settings.parse({name: high}) == {name: high}
            for outside in (low - 1, high + 1):
                with pytest.raises(InvalidSetting):
                    settings.parse({name: outside})
        elif isinstance(default, str) and values != "text":
            for choice in values.split(", "):
                kept = "uncompressed" if choice == "none" and name == "compression_type" else choice
                assert settings.parse({name: choice}) == {name: kept}
            with pytest.raises(InvalidSetting, match="must be one of"):
                settings.parse({name: "something else"})


def test_every_accepted_setting_of_kafka_without_effect() -> None:
    section = PAGE.read_text().split("### Kafka's topic settings without effect\n")[1].split("\n##")[0]
    listed = re.findall(r"`([a-z0-9.]+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.M)))
    assert sorted(listed) == sorted(FIXED)


def test_every_other_name() -> None:
    section = PAGE.read_text().split("## Other names\n")[1].split("\n## ")[0]
    units = {"": 1, " (minutes)": 60_000, " (hours)": 3_600_000}
    listed = sorted(
        (plain(typed), Meaning(name, units[unit]))
        for name, names in re.findall(r"^\| .*? \| `(\w+)` \| (.*) \|$", section, re.M)
        for typed, unit in re.findall(r"`([\w.]+)`( \(\w+\))?", names)
    )
    names = {name for name in vars(synonyms) if name.isupper() and not name.startswith("_")} - {
        "BROKER_NAMES"
    }
    tables = [getattr(synonyms, name) for name in names]
    assert listed == sorted(entry for table in tables for entry in table.items())
