"""`embedlog transactions`: list, describe, abort, also beside the process that has the log open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_commands import Run, spawn

import embedlog
from embedlog import TransactionAborted


def test_no_transactions(run: Run, log: Path) -> None:
    assert run("transactions", "list", "data").out == "no transactions yet\n"
    assert run("transactions", "list", "data", "--open").out == "no open transactions\n"
    assert run("transactions", "list", "data", "--json").out == ""
    for action in ("describe", "abort"):
        ran = run("transactions", action, "data", "loader-1")
        assert (ran.code, ran.err) == (
            2,
            "no transactional id 'loader-1' in data (there are: none yet)\n",
        )


def test_list_describe_and_abort_beside_the_owner(run: Run, log: Path) -> None:
    with embedlog.open(log) as owner:
        with owner.transaction("done-1") as tx:
            tx.append("clicks", b"1", partition=0)
        with pytest.raises(TransactionAborted), owner.transaction("loader-1") as tx:
            tx.append("clicks", b"2", partition=1)
            tx.append("clicks", b"3", partition=0)
            rows = run("transactions", "list", "data").rows()
            assert " ".join(rows[0]) == "transactional id state producer epoch partitions open for"
            assert rows[1] == ["done-1", "CompleteCommit", "0", "1", "0", "-"]
            assert rows[2][:5] == ["loader-1", "Ongoing", "1", "0", "2"]
            (found,) = run("transactions", "list", "data", "--open", "--json").objects
            assert found["start_ms"] > 0
            assert found["partitions"] == [{"topic": "clicks", "partition": n} for n in (0, 1)]
            ran = run("transactions", "describe", "data", "loader-1")
            assert ran.out.startswith("loader-1: Ongoing · producer 1, epoch 0 · open for ")
            assert ran.rows()[-1] == ["clicks", "1"]
            ran = run("transactions", "abort", "data", "loader-1")
            assert ran.out.startswith("aborted the transaction of loader-1, which was open for ")
    assert run("transactions", "abort", "data", "loader-1").out == "loader-1 has no open transaction\n"
    (found,) = run("transactions", "describe", "data", "loader-1", "--json").objects
    assert (found["state"], found["partitions"]) == ("CompleteAbort", [])


def test_abort_what_a_killed_process_has_left(run: Run, log: Path) -> None:
    with embedlog.open(log) as owner:
        coordinator = owner.backend.transactions
        producer = coordinator.init_producer_id("left", timeout_ms=900_000)
        coordinator.add_partitions("left", producer, [embedlog.TopicPartition("clicks", 0)])
    assert run("transactions", "abort", "data", "left", "--json").objects == [
        {"transactional_id": "left", "aborted": True}
    ]
    assert run("transactions", "list", "data", "--open").out == "no open transactions\n"


def test_tail_that_follows_says_what_it_waits_for(tmp_path: Path) -> None:
    """Also for a transaction that has begun after it came to the end."""
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        log.append("t", b"plain")
        arguments = ["tail", "-f", "data", "t", "--max-records", "2"]
        with spawn(arguments, tmp_path) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"plain\n"
            with log.transaction("loader-1") as tx:
                tx.append("t", b"open")
                said = process.stderr.readline().decode()
            assert process.stdout.readline() == b"open\n"
    assert re.fullmatch(
        r"t 0: committed records end before offset 1, where an open transaction begins: that of 'loader-1' "
        r"\(producer id \d+, epoch 0\), open since 20[\d:.T-]+Z; "
        r"--isolation-level read_uncommitted prints what follows\n",
        said,
    )


@pytest.mark.parametrize("name", ["cat", "tail"])
@pytest.mark.parametrize("form", [[], ["--json"], ["--partition", "0"], ["--from", "earliest"]])
def test_printed_records_are_committed(run: Run, tmp_path: Path, name: str, form: list[str]) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        log.append("t", b"plain")
        with pytest.raises(ValueError, match="abort"), log.transaction("tx-1") as tx:
            tx.append("t", b"aborted")
            raise ValueError("abort")
        with log.transaction("tx-2") as tx:
            tx.append("t", b"committed")

        def values(*options: str) -> tuple[list[str], str]:
            ran = run(name, "data", "t", *form, *options)
            if "--json" in form:
                return [each["value"] for each in ran.objects], ran.err
            return ran.out.splitlines(), ran.err

        asked = ["--isolation-level", "read_uncommitted"]
        assert values() == (["plain", "committed"], "")
        assert values(*asked) == (["plain", "aborted", "committed"], "")
        with log.transaction("loader-1") as tx:
            tx.append("t", b"open")
            found, said = values()
            assert found == ["plain", "committed"]
            assert re.fullmatch(
                r"t 0: committed records end before offset 5, where an open transaction begins: that of "
                r"'loader-1' \(producer id 2, epoch 0\), open since 20[\d:.T-]+Z; "
                r"--isolation-level read_uncommitted prints what follows\n",
                said,
            )
            assert values(*asked)[0] == ["plain", "aborted", "committed", "open"]
