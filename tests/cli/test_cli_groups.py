"""`embedlog groups`: committed offsets, lag, reset and deletion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_commands import Run

import embedlog
from embedlog.model import CommittedOffset, TopicPartition


@pytest.fixture
def committed(log: Path) -> Path:
    """Group billing has read 4 and 10 records of two of the three partitions."""
    with embedlog.open(log, offsets_topic_num_partitions=3) as writer:
        coordinator = writer.backend.coordinator
        assert coordinator is not None
        coordinator.commit_offsets(
            "billing",
            {
                TopicPartition("clicks", 0): CommittedOffset(4, metadata="here"),
                TopicPartition("clicks", 1): CommittedOffset(10),
            },
        )
    return log


def offsets(log: Path, group: str = "billing") -> dict[tuple[str, int], int]:
    with embedlog.open(log) as writer:
        coordinator = writer.backend.coordinator
        assert coordinator is not None
        return {tuple(name): each.offset for name, each in coordinator.committed_offsets(group).items()}


def test_no_groups(run: Run, log: Path) -> None:
    assert run("groups", "list", "data").out == "no groups yet\n"
    assert run("groups", "list", "data", "--json").out == ""
    ran = run("groups", "describe", "data", "billing")
    assert (ran.code, ran.err) == (2, "no group 'billing' in data (groups: none yet)\n")


def test_the_offsets_are_not_deleted_as_a_topic(run: Run, committed: Path) -> None:
    for command in (
        ["delete", "data", "__consumer_offsets", "--yes"],
        ["alter", "data", "__consumer_offsets", "--partitions", "9"],
        ["alter", "data", "__consumer_offsets", "--config", "cleanup_policy=delete"],
    ):
        ran = run("topics", *command)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("'__consumer_offsets' is an internal topic: ")
    assert "embedlog groups delete" in run("topics", "delete", "data", "__consumer_offsets").err
    assert len(offsets(committed)) == 2


def test_list_and_describe(run: Run, committed: Path) -> None:
    assert run("groups", "list", "data").rows() == [
        ["group", "members", "lag", "topics"],
        ["billing", "0", "6", "clicks"],
    ]
    rows = run("groups", "describe", "data", "billing").rows()
    assert rows[:4] == [
        ["topic", "partition", "committed", "log", "end", "lag", "consumer"],
        ["clicks", "0", "4", "10", "6"],
        ["clicks", "1", "10", "10", "0"],
        ["clicks", "2", "-", "10", "-"],
    ]
    assert " ".join(rows[5]).startswith("6 behind · oldest unread ")
    assert " ".join(rows[5]).endswith(" ago · no members")
    found = run("groups", "describe", "data", "billing", "--json").objects
    assert [(each["partition"], each["committed"], each["lag"]) for each in found] == [
        (0, 4, 6),
        (1, 10, 0),
        (2, None, None),
    ]
    assert found[0]["metadata"] == "here"


def test_members_are_those_of_the_running_writer(run: Run, log: Path) -> None:
    with (
        embedlog.open(log, offsets_topic_num_partitions=3) as writer,
        writer.consumer("clicks", group="billing", group_instance_id="web-1") as consumer,
    ):
        assert consumer.poll(10_000)
        consumer.commit()
        (group,) = run("groups", "list", "data", "--json").objects
        assert (group["members"], group["topics"]) == (1, ["clicks"])
        found = run("groups", "describe", "data", "billing", "--json").objects
        assert {each["consumer"] for each in found} == {"web-1"}
        assert "1 member · generation 1" in run("groups", "describe", "data", "billing").out


def test_lag_with_unknown_parts(run: Run, committed: Path) -> None:
    with embedlog.open(committed) as writer:
        writer.delete_records("clicks", 0, 7)
    ran = run("groups", "describe", "data", "billing")
    assert ran.out.endswith("clicks 0: 3 offsets deleted unread (the log starts at 7)\n")
    with embedlog.open(committed) as writer:  # as a log may be that another program made
        gone = {TopicPartition("gone", 0): CommittedOffset(3)}
        coordinator = writer.backend.coordinator
        assert coordinator is not None
        coordinator.commit_offsets("billing", gone)
    ran = run("groups", "describe", "data", "billing")
    assert ran.code == 0
    assert "gone 0: there is no such partition any more" in ran.out
    with embedlog.open(committed) as writer:
        writer.delete_topic("clicks")
    assert "clicks" not in run("groups", "describe", "data", "billing").out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--to", "earliest"], {("clicks", 0): 0, ("clicks", 1): 0, ("clicks", 2): 0}),
        (["--to", "latest", "--topic", "clicks"], {("clicks", 0): 10, ("clicks", 1): 10, ("clicks", 2): 10}),
        (["--to", "3", "--partition", "1"], {("clicks", 0): 4, ("clicks", 1): 3}),
        (
            ["--to", "2023-11-14T22:13:45Z", "--topic", "clicks", "--topic", "empty"],
            {("clicks", 0): 9, ("clicks", 1): 8, ("clicks", 2): 8, ("empty", 0): 0},
        ),
        (["--to", "2099-01-01"], {("clicks", 0): 10, ("clicks", 1): 10, ("clicks", 2): 10}),
    ],
)
def test_reset(run: Run, committed: Path, arguments: list[str], expected: dict[tuple[str, int], int]) -> None:
    before = offsets(committed)
    dry = run("groups", "reset", "data", "billing", *arguments, "--dry-run")
    assert dry.code == 0
    assert dry.out.endswith("would be reset; nothing was changed\n")
    assert offsets(committed) == before
    ran = run("groups", "reset", "data", "billing", *arguments)
    assert ran.code == 0
    assert ran.out.splitlines()[:-1] == dry.out.splitlines()[:-1]
    assert offsets(committed) == expected


def test_a_dry_run_works_beside_a_writer(run: Run, committed: Path) -> None:
    with embedlog.open(committed):
        ran = run("groups", "reset", "data", "billing", "--to", "latest", "--dry-run", "--json")
        assert ran.code == 0
        assert ran.objects[0] == {"topic": "clicks", "partition": 0, "committed": 4, "reset_to": 10}
        ran = run("groups", "reset", "data", "billing", "--to", "latest")
        assert ran.code == 2
        assert "There it can be done by log.group(...).reset(...)" in ran.err
        assert "log.group(...).delete()" in run("groups", "delete", "data", "billing").err


OWNER = """
import sys, embedlog
with embedlog.open(sys.argv[1], shared=True) as log, log.consumer("clicks", group="busy") as consumer:
    assert consumer.poll(60_000)
    print("polled", flush=True)
    sys.stdin.readline()
    assert log.groups() == ["busy"]
    print("one left", flush=True)
    sys.stdin.readline()
"""


def test_groups_of_a_log_that_is_shared(run: Run, committed: Path, program: Any) -> None:
    owner = program(OWNER, committed)
    assert owner.line() == "polled"
    ran = run("groups", "reset", "data", "billing", "--to", "latest")
    assert ran.code == 0, ran.err
    assert ran.out.endswith("billing: 3 partitions reset\n")
    found = run("groups", "describe", "data", "billing", "--json").objects
    assert [each["committed"] for each in found] == [10, 10, 10]
    for command in (
        ["reset", "data", "busy", "--topic", "clicks", "--to", "latest"],
        ["delete", "data", "busy"],
    ):
        ran = run("groups", *command)
        assert (ran.code, ran.out) == (2, "")
        assert "members" in ran.err
    assert run("groups", "delete", "data", "billing").out == "deleted group billing and its offsets\n"
    owner.say("look")
    assert owner.line() == "one left"
    owner.say("end")
    owner.end()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["other", "--to", "earliest"], "has no offsets: give --topic"),
        (["billing", "--to", "5"], "belongs to one partition: give --partition 0..2"),
        (["billing", "--to", "11", "--partition", "0"], "offset 11 is outside 0..10"),
        (["billing", "--to", "latest", "--partition", "3"], "has partitions 0 to 2; there is no 3"),
        (["billing", "--to", "latest", "--topic", "nope"], "no topic 'nope'"),
        (["billing"], "required: --to"),
    ],
)
def test_reset_mistakes(run: Run, committed: Path, arguments: list[str], words: str) -> None:
    for dry in ([], ["--dry-run"]):
        ran = run("groups", "reset", "data", *arguments, *dry)
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err
    assert offsets(committed) == {("clicks", 0): 4, ("clicks", 1): 10}


def test_delete(run: Run, committed: Path) -> None:
    run("groups", "reset", "data", "another", "--topic", "clicks", "--to", "earliest")
    told = {"group": "another", "offsets": 3, "deleted": True}
    assert run("groups", "delete", "data", "another", "--json").objects == [told]
    assert run("groups", "delete", "data", "billing").out == "deleted group billing and its offsets\n"
    assert run("groups", "list", "data").out == "no groups yet\n"
    assert run("groups", "delete", "data", "billing").code == 2
