"""Mirrors carry the committed offsets of groups: what is unread in the source is unread in the target."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rounds import ROUNDS
from unread import carry, commit, committed, no_lag_below_zero, some_transactions, unread
from zookeepers import eventually

import embedlog
from embedlog import InvalidArgument, Log, Mirror, MirrorStatus
from embedlog.cli import main
from embedlog.cluster import Broker

KINDS = ("directory", "serve")
EVERY_WAY = [(source, target) for source in KINDS for target in KINDS]

MIRROR = """
import sys, embedlog
source, target = sys.argv[1:]
embedlog.Mirror(source, target, topics="t", groups=True, sync_group_offsets_interval_ms=20).run()
"""


@contextlib.contextmanager
def log_of(kind: str, path: Path) -> Iterator[Log]:
    if kind == "directory":
        with embedlog.open(path) as log:
            yield log
    else:
        with (
            embedlog.open(path) as owned,
            Broker(owned, port=0) as broker,
            embedlog.open(f"kafka://{broker.bootstrap_servers}", default_api_timeout_ms=60_000) as log,
        ):
            log.compact = owned.compact  # type: ignore[method-assign]
            yield log


@pytest.fixture(params=EVERY_WAY, ids=lambda way: "-to-".join(way))
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Log, Log]]:
    """A source and a target, of each kind."""
    source, target = request.param
    with log_of(source, tmp_path / "source") as here, log_of(target, tmp_path / "target") as there:
        yield here, there


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Log, Log]]:
    """Two directories."""
    with embedlog.open(tmp_path / "source") as here, embedlog.open(tmp_path / "target") as there:
        yield here, there


def test_each_offset_is_translated_exactly_after_transactions(logs: tuple[Log, Log]) -> None:
    """Markers and aborted records take offsets in the source alone."""
    source, target = logs
    source.create_topic("t")
    some_transactions(source, "t", 12, lambda number: number % 3 == 1)
    source.append_many("t", [b"x", b"y", b"z"])
    end = source.offsets("t")[0].log_end_offset
    for offset in range(end + 1):
        commit(source, f"at-{offset}", "t", offset, metadata=f"meta {offset}")
    status = carry(source, target)
    assert len(status.groups) == end + 1
    assert {group.trouble for group in status.groups} == {None}
    for offset in range(end + 1):
        assert unread(target, f"at-{offset}") == unread(source, f"at-{offset}")
        (carried,) = target.group(f"at-{offset}").offsets().values()
        assert (carried.metadata, carried.leader_epoch) == (f"meta {offset}", -1)
    assert committed(target, f"at-{end}") == [target.offsets("t")[0].log_end_offset]
    assert committed(target, f"at-{end}")[0] < end


def test_every_gap_of_compaction(logs: tuple[Log, Log]) -> None:
    source, target = logs
    settings = {"cleanup_policy": "compact", "segment_bytes": 1024, "min_cleanable_dirty_ratio": 0.0}
    source.create_topic("t", **settings)  # type: ignore[arg-type]
    for i in range(100):
        source.append_many("t", [(b"k%d" % (i % 7), b"v%d" % i), (b"other%d" % i, b"w%d" % i)])
    source.compact("t")
    for offset in range(0, 201, 9):
        commit(source, f"at-{offset}", "t", offset)
    carry(source, target)
    for offset in range(0, 201, 9):
        assert unread(target, f"at-{offset}") == unread(source, f"at-{offset}")


def test_an_empty_source_partition(logs: tuple[Log, Log]) -> None:
    """All its records were deleted before they were mirrored: the number is not copied (KAFKA-12635)."""
    source, target = logs
    source.create_topic("t")
    source.append_many("t", [b"%d" % i for i in range(100)])
    source.delete_records("t", 0, 100)
    commit(source, "g", "t", 100)
    carry(source, target)
    assert committed(target, "g") == [0]
    source.append("t", b"new")
    carry(source, target)
    assert unread(target, "g") == [[b"new"]]
    commit(source, "g", "t", 101)
    carry(source, target)
    assert committed(target, "g") == [1]


def test_it_follows_forwards_and_backwards(logs: tuple[Log, Log]) -> None:
    """As long as nobody else changes the group in the target; each time by another mirror."""
    source, target = logs
    source.create_topic("t", partitions=2)
    source.append_many("t", [b"%d" % i for i in range(20)], partition=0)
    some_transactions(source, "t", 5, lambda number: number == 2)
    for first, second in ((3, 0), (20, 0), (29, 0), (7, 0), (0, 0)):
        commit(source, "g", "t", first, second)
        status = carry(source, target)
        assert [group.trouble for group in status.groups] == [None]
        assert unread(target, "g") == unread(source, "g")


def test_a_group_that_others_changed_is_left_alone(logs: tuple[Log, Log]) -> None:
    source, target = logs
    source.create_topic("t")
    source.append_many("t", [b"%d" % i for i in range(10)])
    commit(source, "g", "t", 4)
    commit(source, "other", "t", 4)
    carry(source, target)
    target.group("g").reset("t", to=6)
    commit(source, "g", "t", 8)
    commit(source, "other", "t", 8)
    status = carry(source, target)
    troubles = {group.group: group.trouble or "" for group in status.groups}
    assert "set by others (6; the mirror has 8)" in troubles["g"]
    assert troubles["other"] == ""
    assert (committed(target, "g"), committed(target, "other")) == ([6], [8])
    target.group("g").delete_offsets("t")
    carry(source, target)
    assert committed(target, "g") == [8]


def test_a_group_that_was_there_before_is_left_alone(pair: tuple[Log, Log]) -> None:
    """Also if it had the right offset for a while."""
    source, target = pair
    for log in pair:
        log.create_topic("t")
    source.append_many("t", [b"%d" % i for i in range(10)])
    commit(source, "g", "t", 4)
    carry(source, target, groups=False)
    target.group("g").reset("t", to=4)
    assert [group.trouble for group in carry(source, target).groups] == [None]
    commit(source, "g", "t", 5)
    (group,) = carry(source, target).groups
    assert "set by others" in (group.trouble or "")
    assert committed(target, "g") == [4]


def test_a_group_with_members_is_left_alone(logs: tuple[Log, Log]) -> None:
    source, target = logs
    for log in logs:
        log.create_topic("t", exist_ok=True)
    source.append_many("t", [b"%d" % i for i in range(10)])
    carry(source, target)
    commit(source, "g", "t", 4)
    with target.consumer("t", group="g", auto_commit=False) as consumer:
        eventually(lambda: consumer.poll(100))
        before = committed(target, "g")
        (group,) = carry(source, target).groups
        assert "members" in (group.trouble or "") or "others" in (group.trouble or "")
        assert committed(target, "g") == before
    target.group("g").delete()
    carry(source, target)
    assert committed(target, "g") == [4]


def test_groups_are_chosen_by_their_names(pair: tuple[Log, Log]) -> None:
    source, target = pair
    source.create_topic("t")
    source.append("t", b"a")
    for group in ("billing", "billing-old", "audit"):
        commit(source, group, "t", 1)
    assert [group.group for group in carry(source, target, groups="billing|b.*old").groups] == [
        "billing",
        "billing-old",
    ]
    assert committed(target, "audit") == []


def test_groups_are_not_carried_unless_it_is_asked_for(pair: tuple[Log, Log]) -> None:
    source, target = pair
    source.create_topic("t")
    source.append("t", b"a")
    commit(source, "g", "t", 1)
    assert carry(source, target, groups=False).groups == ()
    assert target.groups() == []


def test_offsets_past_what_is_copied_wait(logs: tuple[Log, Log]) -> None:
    """An offset in the target is never past its end (negative lag: KAFKA-12468)."""
    source, target = logs
    source.create_topic("t")
    source.append_many("t", [b"%d" % i for i in range(10)])
    commit(source, "g", "t", 500)
    carry(source, target)
    assert committed(target, "g") == [10]
    assert no_lag_below_zero(target, "g")


def test_retention_in_the_target(logs: tuple[Log, Log]) -> None:
    source, target = logs
    source.create_topic("t")
    source.append_many("t", [b"%d" % i for i in range(10)])
    commit(source, "g", "t", 2)
    carry(source, target)
    target.delete_records("t", 0, 5)
    carry(source, target)
    assert committed(target, "g") == [5]
    commit(source, "g", "t", 7)
    carry(source, target)
    assert committed(target, "g") == [7]


def test_retention_in_the_source_ahead_of_the_mirror(logs: tuple[Log, Log]) -> None:
    source, target = logs
    source.create_topic("t")
    source.append_many("t", [b"%d" % i for i in range(5)])
    carry(source, target)
    source.append_many("t", [b"%d" % i for i in range(5, 10)])
    source.delete_records("t", 0, 8)
    for offset in range(11):
        commit(source, f"at-{offset}", "t", offset)
    carry(source, target)
    for offset in range(8, 11):
        assert unread(target, f"at-{offset}") == unread(source, f"at-{offset}")
    for offset in range(8):  # the target has kept what the group would have read
        assert unread(target, f"at-{offset}") == [
            [b"%d" % i for i in [*range(min(offset, 5), 5), 8, 9] if i >= offset]
        ]


def test_start_latest(logs: tuple[Log, Log]) -> None:
    source, target = logs
    source.create_topic("t")
    source.append_many("t", [b"%d" % i for i in range(10)])
    commit(source, "at-0", "t", 0)
    with Mirror(source, target, topics="t", start="latest", groups=True) as mirror:

        def look(status: MirrorStatus) -> None:
            if not status.records and status.topics:
                source.append_many("t", [b"%d" % i for i in range(10, 15)])
                for offset in (0, 7, 10, 12, 15):
                    commit(source, f"at-{offset}", "t", offset)
            elif status.records == 5:
                mirror.stop()

        mirror.run(on_status=look)
    for offset, at in ((0, 0), (7, 0), (10, 0), (12, 2), (15, 5)):
        assert committed(target, f"at-{offset}") == [at]


def test_a_topic_made_again(logs: tuple[Log, Log]) -> None:
    """The new topic's records follow the old one's in the target."""
    source, target = logs
    source.create_topic("t")
    source.append_many("t", [b"old %d" % i for i in range(10)])
    commit(source, "g", "t", 6)
    carry(source, target)
    source.delete_topic("t")
    source.create_topic("t")
    source.append_many("t", [b"new %d" % i for i in range(5)])
    for offset in range(6):
        commit(source, f"at-{offset}", "t", offset)
    carry(source, target)
    for offset in range(6):
        assert unread(target, f"at-{offset}") == unread(source, f"at-{offset}")


def test_partitions_that_are_added_later(logs: tuple[Log, Log]) -> None:
    source, target = logs
    source.create_topic("t")
    source.append_many("t", [b"%d" % i for i in range(5)])
    commit(source, "g", "t", 3)
    carry(source, target)
    source.create_partitions("t", 3)
    source.append_many("t", [b"second %d" % i for i in range(5)], partition=1)
    commit(source, "g", "t", 4, 2, 0)
    carry(source, target)
    assert committed(target, "g") == [4, 2, 0]
    assert unread(target, "g") == unread(source, "g")


def test_renamed_copies_and_a_mirror_back(tmp_path: Path) -> None:
    """Two mirrors in both directions: groups do not go round, and those of mirrors are not carried."""
    with embedlog.open(tmp_path / "a") as a, embedlog.open(tmp_path / "b") as b:
        a.create_topic("t")
        b.create_topic("u")
        some_transactions(a, "t", 4, lambda number: number == 1)
        some_transactions(b, "u", 4, lambda number: number == 2)
        commit(a, "g", "t", 3)
        commit(b, "g", "u", 3)
        for _ in range(3):
            with Mirror(f"a={a.path}", b, groups=True, exclude=r"[ab]\..*") as there:
                there.run(until_caught_up=True)
            with Mirror(f"b={b.path}", a, groups=True, exclude=r"[ab]\..*") as back:
                back.run(until_caught_up=True)
        assert unread(b, "g", "a.t") == unread(a, "g", "t")
        assert unread(a, "g", "b.u") == unread(b, "g", "u")
        names = {"g", "mirror-a:g", "mirror-b:g"}
        assert set(a.groups()) | set(b.groups()) == names
        assert sorted({name.topic for name in a.group("g").offsets()}) == ["b.u", "t"]


def test_several_sources_need_names(tmp_path: Path) -> None:
    for name in "ab":
        with embedlog.open(tmp_path / name) as log:
            log.create_topic("t")
    with pytest.raises(InvalidArgument, match="name of its own"):
        Mirror([tmp_path / "a", tmp_path / "b"], tmp_path / "c", groups=True)
    with Mirror(
        [f"a={tmp_path / 'a'}", f"b={tmp_path / 'b'}"], tmp_path / "c", groups=True, topics="t"
    ) as mirror:
        mirror.run(until_caught_up=True)


def test_a_source_that_lost_its_tail(pair: tuple[Log, Log], tmp_path: Path) -> None:
    """What the source has now is not skipped; what it has lost may come again."""
    source, target = pair
    source.create_topic("t")
    source.append_many("t", [b"kept %d" % i for i in range(8)])
    source.backup(tmp_path / "before")
    for i in range(4):
        source.append("t", b"lost %d" % i)
    commit(source, "g", "t", 11)
    carry(source, target)
    with embedlog.open(tmp_path / "before") as restored:
        restored.append_many("t", [b"new %d" % i for i in range(6)])
        for offset in range(15):
            commit(restored, f"at-{offset}", "t", offset)
        carry(restored, target)
        for offset in range(15):
            (ours,), (theirs,) = unread(target, f"at-{offset}"), unread(restored, f"at-{offset}")
            assert [value for value in ours if b"lost" not in (value or b"")][
                -len(theirs) :
            ] == theirs or not theirs
            assert set(theirs) <= set(ours)


def test_records_of_others_in_the_target(logs: tuple[Log, Log]) -> None:
    source, target = logs
    source.create_topic("t")
    for i in range(5):
        source.append_many("t", [b"%d %d" % (i, j) for j in range(3)])
        carry(source, target)
        target.append("t", b"other %d" % i)
    for offset in range(16):
        commit(source, f"at-{offset}", "t", offset)
    carry(source, target)
    for offset in range(16):
        ours, theirs = unread(target, f"at-{offset}"), unread(source, f"at-{offset}")
        assert [[value for value in part if b"other" not in (value or b"")] for part in ours] == theirs
        others = [value for value in ours[0] if b"other" in (value or b"")]
        assert len(others) == 5 - max(0, offset - 1) // 3  # none that follows the last record read is skipped


def test_continuously_while_it_mirrors(logs: tuple[Log, Log]) -> None:
    source, target = logs
    source.create_topic("t")
    source.append_many("t", [b"%d" % i for i in range(10)])
    commit(source, "g", "t", 2)
    mirror = Mirror(source, target, topics="t", groups=True, sync_group_offsets_interval_ms=20, refresh_ms=20)
    running = threading.Thread(target=mirror.run)
    running.start()
    try:
        eventually(lambda: committed(target, "g") == [2])
        some_transactions(source, "t", 3, lambda number: number == 1)
        commit(source, "g", "t", 14)
        eventually(lambda: unread(target, "g") == unread(source, "g"))
        commit(source, "g", "t", 5)
        eventually(lambda: committed(target, "g") == [5])
    finally:
        mirror.stop()
        running.join()
        mirror.close()


def test_a_mirror_killed_between_its_note_and_its_commit(pair: tuple[Log, Log]) -> None:
    """The next one knows the offset in the target as its own, and goes on."""
    source, target = pair
    source.create_topic("t")
    source.append_many("t", [b"%d" % i for i in range(10)])
    commit(source, "g", "t", 2)
    carry(source, target)
    commit(source, "g", "t", 5)
    coordinator = target.backend.coordinator
    commit_offsets = coordinator.commit_offsets  # type: ignore[union-attr]

    def killed(group: str, *args: Any, **options: Any) -> None:
        if group == "g":
            raise KeyboardInterrupt
        commit_offsets(group, *args, **options)

    coordinator.commit_offsets = killed  # type: ignore[union-attr, method-assign]
    with pytest.raises(KeyboardInterrupt):
        carry(source, target)
    coordinator.commit_offsets = commit_offsets  # type: ignore[union-attr, method-assign]
    assert committed(target, "g") == [2]
    commit(source, "g", "t", 8)
    assert [group.trouble for group in carry(source, target).groups] == [None]
    assert committed(target, "g") == [8]


def test_the_command_line(pair: tuple[Log, Log], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, _ = pair
    source.create_topic("t")
    some_transactions(source, "t", 4, lambda number: number == 1)
    commit(source, "billing", "t", 9)
    commit(source, "audit", "t", 1)
    target = str(tmp_path / "copy")
    command = ["mirror", "--from", source.path, "--to", target, "--once", "--topics", "t"]
    assert main([*command, "--groups"]) == 0
    printed = capsys.readouterr().out
    assert "billing" in printed and "audit" in printed
    assert main([*command, "--groups", "bill.*", "--sync-group-offsets-interval", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["groups"] == [
        {"source": source.path, "group": "billing", "partitions": 1, "behind": 0, "trouble": None}
    ]
    with embedlog.open(target) as copy:
        assert committed(copy, "billing") == [4]
        copy.group("billing").reset("t", to=0)
    assert main([*command, "--groups"]) == 0
    assert "left alone" in capsys.readouterr().out


@pytest.mark.random
@pytest.mark.parametrize("target_kind", KINDS)
def test_a_mirror_that_is_killed(tmp_path: Path, target_kind: str) -> None:
    """SIGKILL at any moment: the next one knows the group as its own, and skips nothing. A directory gets
    each record once; brokers may get some again."""
    chosen = random.Random()
    with log_of("serve", tmp_path / "source") as source, contextlib.ExitStack() as stack:
        source.create_topic("t")
        target_path: Any = tmp_path / "target"
        if target_kind == "serve":
            target_path = stack.enter_context(log_of("serve", target_path)).path
        command = [sys.executable, "-c", MIRROR, source.path, str(target_path)]
        for number in range(3 * ROUNDS):
            mirror = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            kill_at = time.monotonic() + chosen.uniform(0.5, 3)
            while time.monotonic() < kill_at:
                source.append_many("t", [b"%d %d" % (number, chosen.getrandbits(40)) for _ in range(3)])
                some_transactions(source, "t", 1, lambda _: chosen.random() < 0.3)
                commit(source, "g", "t", chosen.randrange(source.offsets("t")[0].log_end_offset + 1))
            mirror.kill()
            assert not mirror.communicate()[1]
        commit(source, "g", "t", chosen.randrange(source.offsets("t")[0].log_end_offset + 1))
        (group,) = carry(source, target_path).groups
        assert group.trouble is None
        target = stack.enter_context(embedlog.open(target_path))
        (theirs,), (ours,) = unread(source, "g"), unread(target, "g")
        if target_kind == "directory":
            assert ours == theirs
        else:
            assert Counter(theirs) <= Counter(ours)


def test_offsets_that_do_not_change_are_committed_again(
    pair: tuple[Log, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers let the offsets of idle groups expire."""
    source, target = pair
    source.create_topic("t")
    source.append("t", b"a")
    commit(source, "g", "t", 1)
    carry(source, target)

    def commits() -> int:
        return sum(edge.log_end_offset for edge in target.offsets("__consumer_offsets").values())

    before = commits()
    carry(source, target)
    assert commits() == before
    monkeypatch.setattr("embedlog.mirroring.group_sync._COMMIT_AGAIN_S", 0.0)
    carry(source, target)
    assert commits() >= before + 2  # the group's and the mirror's note
    assert committed(target, "g") == [1]
