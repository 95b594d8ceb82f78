"""`embedlog queue`: what waits, is worked on and has failed; peek and purge."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_commands import Run
from rich.cells import cell_len
from share_groups import STATES, key_of, state_of, work

import embedlog


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """The log `data`, with a group in the middle of its work, and two dead letters."""
    with embedlog.open(tmp_path / "data") as log:
        work(log)
        log.create_topic("dlq.jobs")
        log.append_many("dlq.jobs", [b"dead"] * 2)
    return tmp_path / "data"


def test_no_queues(run: Run, log: Path) -> None:
    assert run("queue", "list", "data").out == "no queues yet\n"
    assert run("queue", "list", "data", "--json").out == ""
    assert run("queue", "describe", "data", "clicks").out == "no group has taken jobs of clicks yet\n"
    assert run("queue", "peek", "data", "clicks").out == "nothing is unfinished\n"
    ran = run("queue", "describe", "data", "clicks", "--group", "g")
    assert (ran.code, ran.err) == (2, "no share group 'g' of topic 'clicks'\n")
    assert run("queue", "peek", "data", "nothing").code == 2


def test_list_and_describe(run: Run, queue: Path) -> None:
    rows = run("queue", "list", "data").rows()
    assert rows[0] == ["topic", "group", "waiting", "locked", "delayed", "dead", "oldest"]
    assert rows[1][:6] == ["jobs", "mailers", "10", "4", "1", "2"]
    (found,) = run("queue", "list", "data", "--json").objects
    assert found.pop("oldest_timestamp_ms") > 0
    counts = {"waiting": 10, "locked": 4, "delayed": 1, "dead": 2}
    assert found == {"topic": "jobs", "group": "mailers", **counts}
    ran = run("queue", "describe", "data", "jobs")
    assert ran.out.splitlines()[0] == "mailers"
    assert ran.rows()[2][:6] == ["0", "3", "20", "10", "4", "1"]
    assert ran.out.endswith("\n10 waiting · 4 locked · 1 delayed · 2 dead letters\n")
    (found,) = run("queue", "describe", "data", "jobs", "--group", "mailers", "--json").objects
    assert found.pop("oldest_timestamp_ms") > 0
    where = {"topic": "jobs", "group": "mailers", "partition": 0, "start_offset": 3, "end_offset": 20}
    assert found == {**where, **counts, "damaged_offset": None}


def test_peek_takes_nothing(run: Run, queue: Path) -> None:
    found = run("queue", "peek", "data", "jobs", "-n", "100", "--json").objects
    assert {each["offset"]: (each["state"], each["deliveries"]) for each in found} == STATES
    assert found[0]["value"] == "job 3"
    assert found[0]["member"] == "m-1"
    assert found[-1]["until_ms"] is None
    rows = run("queue", "peek", "data", "jobs", "-n", "2").rows()
    assert len(rows) == 3
    assert rows[1][:3] == ["0", "3", "1"]
    assert len(run("queue", "peek", "data", "jobs", "-n", "100", "--json").objects) == len(STATES)
    with embedlog.open(queue) as log:
        work(log, 1)
        assert log.backend.share_reader().list_share_groups() == [("mailers", "jobs")]


def test_peek_fits_a_terminal(run: Run, queue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide characters take two columns."""
    values = [b"a value\twith\nlines " * 9, "\N{SNOWMAN}\u6f22\u5b57 ".encode() * 50, b"\x1b\xff", None]
    with embedlog.open(queue) as log:
        keys = [b"user-7/" * 9, None, b"k", b""]
        log.append_many("jobs", list(zip(keys, values, strict=True)))
    command = "queue", "peek", "data", "jobs", "-n", "20"
    found = [each["value"] for each in run(*command, "--json").objects[-4:]]
    assert found[0] == values[0].decode() and found[2:] == [{"base64": "G/8="}, None]
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(*command).out.splitlines()
    assert max(cell_len(line) for line in lines) <= 80
    assert len(lines) == 1 + len(STATES) + len(values)
    assert [" for " in line for line in lines[1:3]] == [True, True]
    at = [lines[0].index(name) for name in ("key", "value")]
    assert lines[-4][at[0] :].startswith("user-7/user-7…  a value") and lines[-4].count("…") == 2
    assert r"a value\twi" in lines[-4]
    assert lines[-3].endswith("…") and lines[-2].endswith(r"k" + " " * (at[1] - at[0] - 1) + r"\x1b\xff")
    assert lines[-1][at[1] :] == "-"


def test_of_several_groups_one_is_named(run: Run, queue: Path) -> None:
    with embedlog.open(queue) as log:
        state_of(log).begin(key_of(log, "others"), 19)
    ran = run("queue", "peek", "data", "jobs")
    assert (ran.code, ran.err) == (2, "several groups take jobs of jobs: --group mailers or others\n")
    assert [
        each["offset"] for each in run("queue", "peek", "data", "jobs", "--group", "others", "--json").objects
    ] == [19]
    ran = run("queue", "describe", "data", "jobs")
    assert [line for line in ran.out.splitlines() if line in ("mailers", "others")] == ["mailers", "others"]


def test_redrive(run: Run, queue: Path) -> None:
    with embedlog.open(queue) as log:
        for number in range(3):
            log.append("dlq.jobs", b"%d" % number, headers=[("embedlog.origin_topic", b"jobs")])
    assert run("queue", "redrive", "data", "dlq.jobs", "--only", "0:3", "--json").objects == [
        {"partition": 0, "offset": 3, "topic": "jobs", "new_partition": 0, "new_offset": 20}
    ]
    ran = run("queue", "redrive", "data", "dlq.jobs", "--only", "3", "--only", "4")
    assert (ran.code, ran.out) == (1, "1 dead letter of dlq.jobs sent again\n")
    assert ran.err == "not among the dead letters, or sent again before: 0:3\n"
    ran = run("queue", "redrive", "data", "dlq.jobs")
    assert ran.code == 2
    assert "dlq.jobs 0, offset 0, does not say where it comes from" in ran.err
    assert run("queue", "redrive", "data", "dlq.jobs", "--to", "jobs").out.startswith("3 dead letters of")
    (found,) = run("queue", "list", "data", "--json").objects
    assert (found["waiting"], found["dead"]) == (15, 0)
    assert run("queue", "redrive", "data", "dlq.jobs", "--only", "x:1").code == 2


def test_beside_an_application_that_shares_the_log(run: Run, queue: Path) -> None:
    with embedlog.open(queue, shared=True) as log:
        log.append("dlq.jobs", b"late", headers=[("embedlog.origin_topic", b"jobs")])
        assert run("queue", "redrive", "data", "dlq.jobs", "--only", "2").code == 0
        assert [record.value for record in log.read("jobs")][-1] == b"late"
        assert run("queue", "delete", "data", "jobs", "mailers").code == 0
        assert run("queue", "list", "data").out == "no queues yet\n"
        assert run("queue", "purge", "data", "jobs").out == "jobs: 21 offsets deleted\n"
        assert list(log.read("jobs")) == []


def test_delete(run: Run, queue: Path) -> None:
    ran = run("queue", "delete", "data", "jobs", "others")
    assert (ran.code, ran.err) == (
        2,
        "no group 'others' in data\nembedlog queue list data   shows those that there are\n",
    )
    assert (
        run("queue", "delete", "data", "jobs", "mailers").out == "jobs: forgot what group mailers has done\n"
    )
    assert run("queue", "list", "data").out == "no queues yet\n"
    with embedlog.open(queue) as log:
        state_of(log).begin(key_of(log, "mailers"), 7)
    (found,) = run("queue", "describe", "data", "jobs", "--json").objects
    assert (found["start_offset"], found["waiting"]) == (7, 13)
    assert run("queue", "delete", "data", "jobs", "mailers", "--json").objects[0]["deleted"]


def test_purge(run: Run, queue: Path) -> None:
    with embedlog.open(queue):
        ran = run("queue", "purge", "data", "jobs")
        assert ran.code == 2
        assert "log.delete_records(...)" in ran.err
        assert len(run("queue", "peek", "data", "jobs", "-n", "100", "--json").objects) == len(STATES)
    assert run("queue", "purge", "data", "jobs").out == "jobs: 20 offsets deleted\n"
    assert run("queue", "peek", "data", "jobs").out == "nothing is unfinished\n"
    assert run("queue", "purge", "data", "dlq.jobs", "--json").objects == [
        {"topic": "dlq.jobs", "partition": 0, "before": 0, "after": 2}
    ]
    (found,) = run("queue", "list", "data", "--json").objects
    assert (found["waiting"], found["dead"], found["oldest_timestamp_ms"]) == (0, 0, None)


def test_peek_shows_no_job_that_a_transaction_took_back(run: Run, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("orders")
        log.append("orders", b"1")
        with log.queue("orders") as queue:
            queue.take(10_000).release()
        with pytest.raises(ValueError, match="undo"), log.transaction("loader-1") as tx:
            tx.append("orders", b"aborted")
            raise ValueError("undo")
        with log.transaction("loader-2") as tx:
            tx.append("orders", b"open")
            assert [each["value"] for each in run("queue", "peek", "data", "orders", "--json").objects] == [
                "1"
            ]
        found = [each["value"] for each in run("queue", "peek", "data", "orders", "--json").objects]
        assert found == ["1", "open"]
