"""The command line over the wire: `--bootstrap-server host:port` instead of a directory."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_commands import Ran, Run, call, runner, spawn
from rounds import first_is_quick

import embedlog
from embedlog.cli import COMMANDS
from embedlog.cluster import Broker
from embedlog.codec import encode_batch
from embedlog.errors import ProducerFenced

FLAG = "--bootstrap-server"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process, in a directory of its own."""
    return runner(capsys, tmp_path, monkeypatch)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker on ./data, with 30 records in topic clicks (3 partitions) and an empty topic."""
    as_in_a_directory = {"offsets_topic_num_partitions": 2, "message_timestamp_after_max_ms": 2**63 - 1}
    with Broker(tmp_path / "data", **as_in_a_directory) as broker:
        broker.log.create_topic("clicks", partitions=3, compression_type="zstd")
        broker.log.create_topic("empty")
        for number in range(30):
            broker.log.append(
                "clicks",
                b"value %d" % number,
                key=b"k%d" % number,
                partition=number % 3,
                timestamp_ms=1_700_000_000_000 + number * 1000,
            )
        yield broker


@pytest.fixture
def wire(broker: Broker, run: Run) -> Run:
    """Run a command over the wire: `--bootstrap-server` and the address come last."""

    def over_wire(*arguments: str) -> Ran:
        return run(*arguments, FLAG, broker.bootstrap_servers)

    return over_wire


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nothing listens or will listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


# -- records ---------------------------------------------------------------------------------------------


def test_lines_are_appended_and_come_back(wire: Run, broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"k1=one\nk1=two\n")
    ran = wire("append", "empty", "lines", "--key-separator", "=")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("empty: 2 records appended to 1 partition · 12 B in ")
    assert [(each.key, each.value) for each in broker.log.read("empty")] == [(b"k1", b"one"), (b"k1", b"two")]
    assert wire("cat", "empty", "--format", "{offset} {key} {value}").out == "0 k1 one\n1 k1 two\n"
    assert wire("cat", "empty", "--partition", "0", "--from", "1").out == "two\n"
    assert wire("append", "empty", "lines", "--partition", "0", "--ack").out == "ACK 0 2\nACK 0 3\n"


def test_append_can_make_the_topic(wire: Run, broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\n")
    assert wire("append", "more", "lines", "--create", "-q") == (0, "", "")
    assert list(broker.log.read_values("more")) == [b"one"]


def test_append_reads_the_output_of_cat(wire: Run, broker: Broker, tmp_path: Path) -> None:
    ran = wire("cat", "clicks", "--json")
    assert len(ran.objects) == 30
    (tmp_path / "lines").write_text(ran.out)
    wire("topics", "create", "copy", "--partitions", "3")
    assert wire("append", "copy", "lines", "--json", "-q") == (0, "", "")
    assert [each._replace(topic="clicks") for each in broker.log.read("copy")] == list(
        broker.log.read("clicks")
    )


@pytest.mark.parametrize("form", first_is_quick([[], ["--json"]]))
def test_a_range_that_may_lack_late_records_says_so_once(
    broker: Broker, tmp_path: Path, form: list[str]
) -> None:
    """A backfill after what is newer: Kafka's seek by time finds none of it."""
    november, year = 1_700_000_000_000, 1_600_000_000_000
    broker.log.create_topic("late", partitions=3)
    for time_ms in (november, year, year + 1):
        for number in range(3):
            broker.log.append("late", b"v", partition=number, timestamp_ms=time_ms)
    served = f"kafka://{broker.bootstrap_servers}"
    bounds = ["--from", "2020-01-01T00:00Z", "--to", "2021-01-01T00:00Z", *form]
    code, out, err = call(["cat", served, "late", *bounds], tmp_path)
    assert (code, out, err.count(b"\n")) == (0, b"", 1)
    assert b"late: through brokers a range of times ends" in err
    assert b"came late" in err
    assert call(["cat", "data", "late", *bounds], tmp_path)[1].count(b"\n") == 6
    for bounds in (["--from", "2020-01-01T00:00Z"], ["--to", "2030-01-01"]):
        code, out, err = call(["cat", served, "late", *bounds, *form], tmp_path)
        assert (code, out.count(b"\n"), err) == (0, 9, b""), "nothing follows"


def test_times_before_1970_are_read(wire: Run, broker: Broker) -> None:
    """Brokers look up no such time, so a range from then begins at the log start."""
    for time_ms in (-5_000, -3_000, 7_000):
        broker.log.backend.append("empty", 0, encode_batch([(None, b"%d" % time_ms, (), time_ms)]))
    assert wire("cat", "empty", "--from", "1969-12-01T00:00Z").out == "-5000\n-3000\n7000\n"
    assert wire("cat", "empty", "--from", "1970-01-01T00:00Z").out == "7000\n"
    with embedlog.open(f"kafka://{broker.bootstrap_servers}") as log:
        before = log.offset_for_time("empty", 0, -1)
        assert before is not None and before[:2] == (0, -1)
        assert log.offset_for_time("clicks", 0, -1) == log.offset_for_time("clicks", 0, 0)
        log.create_topic("nothing")
        assert log.offset_for_time("nothing", 0, -1) is None
        log.create_topic("old")  # and nothing since
        broker.log.backend.append("old", 0, encode_batch([(None, b"old", (), -5_000)]))
        before = log.offset_for_time("old", 0, -1)
        assert before is not None and before[:2] == (0, -1)
        assert log.offset_for_time("old", 0, 0) is None
    assert wire("cat", "old", "--from", "1969-12-01T00:00Z").out == "old\n"


def test_tail_shows_the_last_records_of_all_partitions(wire: Run, run: Run, broker: Broker) -> None:
    assert wire("tail", "clicks", "-n", "2").out == "value 28\nvalue 29\n"
    for target in ([FLAG, broker.bootstrap_servers], [f"{FLAG}=kafka://{broker.bootstrap_servers}"]):
        assert run("tail", *target, "clicks", "-n", "1").out == "value 29\n"
    assert run("tail", f"kafka://{broker.bootstrap_servers}", "clicks", "-n", "1").out == "value 29\n"


def test_tail_follows(broker: Broker, tmp_path: Path) -> None:
    arguments = ["tail", "-f", "-n", "1", "--max-records", "3", FLAG, broker.bootstrap_servers, "clicks"]
    with spawn(arguments, tmp_path) as tail:
        assert tail.stdout is not None and tail.stderr is not None
        assert tail.stdout.readline() == b"value 29\n"
        broker.log.append("clicks", b"next", partition=0)
        assert tail.stdout.readline() == b"next\n"
        broker.log.append("clicks", b"last", partition=2)
        assert tail.stdout.read() == b"last\n"
        assert tail.stderr.read() == b""
        assert tail.wait() == 0


def test_tail_continues_after_a_broker_restart(broker: Broker, tmp_path: Path) -> None:
    arguments = ["tail", "-f", "-n", "1", "--max-records", "2", FLAG, broker.bootstrap_servers, "clicks"]
    with spawn(arguments, tmp_path) as tail:
        assert tail.stdout is not None and tail.stderr is not None
        assert tail.stdout.readline() == b"value 29\n"
        broker.close()
        with Broker(tmp_path / "data", port=broker.port) as again:
            again.log.append("clicks", b"next", partition=0)
            assert tail.stdout.read() == b"next\n"
        assert tail.stderr.read() == b""
        assert tail.wait() == 0


# -- topics ----------------------------------------------------------------------------------------------


def test_topics_are_listed_and_described(wire: Run, run: Run, broker: Broker) -> None:
    assert wire("topics", "list").rows() == [
        ["topic", "partitions", "offsets", "settings"],
        ["clicks", "3", "30", "compression_type=zstd"],
        ["empty", "1", "0"],
    ]
    assert wire("topics", "describe", "clicks").rows()[1:] == [
        ["setting", "value"],
        ["compression_type", "zstd"],
        [],
        ["partition", "log", "start", "log", "end"],
        ["0", "0", "10"],
        ["1", "0", "10"],
        ["2", "0", "10"],
    ]


@pytest.mark.parametrize("command", [["topics", "list"], ["topics", "describe"], ["stats"]], ids=" ".join)
def test_json_equals_a_directorys_except_for_disk_usage(
    run: Run, wire: Run, broker: Broker, command: list[str]
) -> None:
    unknown = {"flushed_offset": None, "segments": None, "bytes": None, "state": None}
    unsampled = {"codecs": [], "sampled_bytes": 0, "sampled_raw_bytes": 0}
    expected = run(*command, "data", "--json").objects
    for each in expected:
        for facts in (each, *(each["partitions"] if isinstance(each.get("partitions"), list) else ())):
            facts |= {name: value for name, value in (unknown | unsampled).items() if name in facts}
            if command == ["stats"]:  # brokers tell the first timestamp, but not the smallest
                facts["first_timestamp_ms"], facts["oldest_timestamp_ms"] = facts["oldest_timestamp_ms"], None
    assert wire(*command, "--json").objects == expected


def test_topics_are_made_altered_and_deleted(wire: Run, broker: Broker) -> None:
    ran = wire("topics", "create", "t", "--partitions", "2", "--config", "retention.ms=86400000")
    assert ran == (0, "created t: 2 partitions, retention_ms=86400000\n", "")
    (made,) = wire("topics", "create", "t", "--if-not-exists", "--json").objects
    assert (made["created"], made["partitions"]) == (False, 2)
    assert wire("topics", "alter", "t", "--partitions", "4", "--config", "flush_ms=5").out == (
        "altered t: 4 partitions, flush_ms=5 retention_ms=86400000\n"
    )
    assert wire("topics", "alter", "t", "--default", "flush_ms").out == (
        "altered t: 4 partitions, retention_ms=86400000\n"
    )
    assert broker.log.describe_topic("t").settings == {"retention_ms": 86_400_000}
    assert wire("topics", "delete", "t").out == "deleted t: 4 partitions, 0 offsets\n"
    assert broker.log.topics() == ["clicks", "empty"]


def test_no_topics(run: Run) -> None:
    with Broker() as broker:
        address = f"kafka://{broker.bootstrap_servers}"
        assert run("topics", "list", FLAG, broker.bootstrap_servers).out == (
            f"no topics yet; embedlog topics create {address} NAME   makes one\n"
        )
        assert run("stats", address).out == "no topics yet\n"


def test_stats(wire: Run) -> None:
    assert wire("stats").rows() == [
        ["topic", "partitions", "offsets", "first", "newest"],
        ["clicks", "3", "30", "14", "Nov", "2023", "14", "Nov", "2023"],
        ["empty", "1", "0", "-", "-"],
        ["total", "4", "30", "14", "Nov", "2023", "14", "Nov", "2023"],
    ]
    assert wire("stats", "--partitions", "clicks").rows()[1][:3] == ["clicks", "0", "10"]
    assert wire("stats", "--build").out.startswith("embedlog ")


@pytest.mark.parametrize("first_ms", [1_700_000_005_000, -5_000])
def test_stats_of_late_records(wire: Run, broker: Broker, first_ms: int) -> None:
    """The first record's time is called so, and the newest is not that of the last record."""
    times_ms = (first_ms, 1_700_000_009_000, -7_000, 1_700_000_001_000)
    for time_ms in times_ms:
        broker.log.backend.append("empty", 0, encode_batch([(None, b"v", (), time_ms)]))
    (facts,) = wire("stats", "empty", "--json").objects
    assert facts["first_timestamp_ms"] == first_ms
    assert facts["newest_timestamp_ms"] == max(times_ms)
    assert facts["oldest_timestamp_ms"] is None
    assert "oldest" not in wire("stats", "empty").out


# -- groups ----------------------------------------------------------------------------------------------


def test_groups_are_reset_described_and_deleted(wire: Run) -> None:
    assert wire("groups", "list").out == "no groups yet\n"
    dry = wire("groups", "reset", "billing", "--topic", "clicks", "--to", "latest", "--dry-run")
    assert dry.out.endswith("\nbilling: 3 partitions would be reset; nothing was changed\n")
    assert wire("groups", "list").out == "no groups yet\n"
    done = wire("groups", "reset", "billing", "--topic", "clicks", "--to", "2023-11-14T22:13:35Z", "--json")
    assert [(each["partition"], each["reset_to"]) for each in done.objects] == [(0, 5), (1, 5), (2, 5)]
    assert wire("groups", "list").rows() == [
        ["group", "members", "lag", "topics"],
        ["billing", "0", "15", "clicks"],
    ]
    told = wire("groups", "describe", "billing")
    assert told.rows()[1] == ["clicks", "0", "5", "10", "5"]
    assert told.out.splitlines()[-1].startswith("15 behind · oldest unread ")
    assert told.out.endswith(" ago · no members\n")
    assert wire("groups", "delete", "billing", "--json").objects == [
        {"group": "billing", "offsets": 3, "deleted": True}
    ]
    assert wire("groups", "list", "--json").objects == []


def test_members_of_a_group_are_shown_and_keep_it_from_being_reset(wire: Run, broker: Broker) -> None:
    with (
        embedlog.open(f"kafka://{broker.bootstrap_servers}") as log,
        log.consumer("clicks", group="billing", group_instance_id="web-1") as consumer,
    ):
        assert consumer.poll(10_000)
        consumer.commit()
        (group,) = wire("groups", "list", "--json").objects
        assert (group["members"], group["topics"]) == (1, ["clicks"])
        assert {each["consumer"] for each in wire("groups", "describe", "billing", "--json").objects} == {
            "web-1"
        }
        assert "1 member" in wire("groups", "describe", "billing").out
        for arguments in (["reset", "billing", "--to", "earliest"], ["delete", "billing"]):
            ran = wire("groups", *arguments)
            assert (ran.code, ran.out) == (2, "")
            assert "billing" in ran.err and "has members" in ran.err


def test_unknown_groups(wire: Run, broker: Broker) -> None:
    address = f"kafka://{broker.bootstrap_servers}"
    wire("groups", "reset", "others", "--topic", "clicks", "--to", "latest")
    assert wire("groups", "describe", "billing") == (
        2,
        "",
        f"no group 'billing' in {address} (groups: others)\n",
    )
    assert wire("groups", "delete", "billing") == (
        2,
        "",
        f"no group 'billing' in {address}\nembedlog groups list {address}   shows those that there are\n",
    )


def test_transactions_are_listed_and_aborted(wire: Run, broker: Broker) -> None:
    with pytest.raises(ProducerFenced), broker.log.transaction("loader-1") as tx:
        tx.append("clicks", b"1", partition=2)
        (found,) = wire("transactions", "list", "--open", "--json").objects
        assert (found["transactional_id"], found["state"]) == ("loader-1", "Ongoing")
        assert wire("transactions", "describe", "loader-1").rows()[-1] == ["clicks", "2"]
        assert wire("transactions", "abort", "loader-1").out.startswith("aborted the transaction of loader-1")
        tx.append("clicks", b"2", partition=2)
    assert wire("transactions", "list", "--open").out == "no open transactions\n"
    unknown = wire("transactions", "abort", "others")
    assert (unknown.code, unknown.out) == (2, "")
    assert "no transactional id 'others'" in unknown.err and "loader-1" in unknown.err


# -- mistakes and failures -------------------------------------------------------------------------------

HERE_ONLY = (
    "dump",
    "verify",
    "repair",
    "compact",
    "backup",
    "export",
    "import",
    "move",
    "serve",
    "zookeeper",
    "demo",
)
# With actions of their own; --from and --to; a function before the directory (tests/test_workers.py); no log.
OTHERWISE = (
    *("topics", "groups", "queue", "transactions", "cluster", "mirror", "work"),
    *("users", "acls", "quotas", "completion"),
)


BOTH = (
    *([name] for name in COMMANDS if name not in (*HERE_ONLY, *OTHERWISE)),
    ["cluster", "describe"],
    *(["topics", action] for action in ("list", "create", "describe", "alter", "delete")),
    *(["groups", action] for action in ("list", "describe", "reset", "delete")),
    *(["transactions", action] for action in ("list", "describe", "abort")),
    *(["users", action] for action in ("list", "add", "delete")),
    *(["acls", action] for action in ("list", "add", "remove")),
    *(["quotas", action] for action in ("list", "set", "remove")),
)


@pytest.mark.parametrize("command", BOTH, ids=" ".join)
def test_every_other_command_takes_brokers(run: Run, command: list[str]) -> None:
    assert FLAG in run(*command, "--help").out


@pytest.mark.parametrize("name", HERE_ONLY)
@pytest.mark.parametrize("target", [[FLAG, "localhost:9"], ["kafka://localhost:9"]], ids=["flag", "address"])
def test_commands_without_a_wire_request_are_refused(
    run: Run, tmp_path: Path, name: str, target: list[str]
) -> None:
    ran = run(name, *target)
    assert (ran.code, ran.out) == (2, "")
    said, where = ran.err.splitlines()
    assert said.startswith(f"embedlog {name}: ") and len(said.split()) > 10
    assert where == f"embedlog {name} --help explains"
    assert not list(tmp_path.iterdir())


def test_queues_are_not_looked_at_over_the_wire_yet(run: Run, broker: Broker) -> None:
    ran = run("queue", "list", f"kafka://{broker.bootstrap_servers}")
    assert ran.code == 2, ran
    assert "brokers do not tell which jobs are locked" in ran.err


def test_flush_is_refused_over_the_wire(wire: Run, broker: Broker) -> None:
    ran = wire("append", "clicks", "/dev/null", "--flush")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "--flush: a request cannot ask brokers to fsync\n"
        f"embedlog topics alter kafka://{broker.bootstrap_servers} clicks --config flush_messages=1   "
        "has them do it\n"
    )


def test_the_next_command_has_the_same_config(wire: Run, broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "client of.properties").write_text("security.protocol=PLAINTEXT\n")
    given = ("--command-config", "client of.properties")
    again = f"kafka://{broker.bootstrap_servers} clix --command-config 'client of.properties'"
    assert f"embedlog topics create {again}   makes it\n" in wire("append", "clix", "/dev/null", *given).err
    flush = wire("append", "clix", "/dev/null", "--flush", *given).err
    assert "--config flush_messages=1 --command-config 'client of.properties'   has" in flush
    broker.log.delete_topic("clicks")
    broker.log.delete_topic("empty")
    assert "NAME --command-config 'client of.properties'   makes one" in wire("topics", "list", *given).out


def test_unknown_topics(wire: Run, broker: Broker) -> None:
    address = f"kafka://{broker.bootstrap_servers}"
    assert wire("append", "clix", "/dev/null") == (
        2,
        "",
        f"no topic 'clix' at {address}: did you mean clicks?\n"
        f"embedlog topics create {address} clix   makes it\n",
    )
    for command in (["cat"], ["tail"], ["stats"], ["topics", "describe"], ["topics", "delete"]):
        assert wire(*command, "clix") == (
            2,
            "",
            f"no topic 'clix' at {address}: did you mean clicks?\n"
            f"embedlog topics list {address}   shows those that there are\n",
        )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["topics", "create", "clicks"], "topic 'clicks' exists already\n--if-not-exists"),
        (
            ["topics", "create", "t", "--config", "colour=red"],
            "unknown setting 'colour'\nembedlog topics create ",
        ),
        (["topics", "create", "t", "--config", "retention_ms=soon"], "retention_ms must be"),
        (["topics", "create", "t", "--layout", "kafka"], "belongs to a directory"),
        (["topics", "alter", "clicks", "--partitions", "2"], "the new number must be larger"),
        (["cat", "clicks", "--partition", "7"], "has partitions 0 to 2"),
        (["cat", "clicks", "--partition", "0", "--from", "99"], "offset 99 is outside 0..10"),
        (["cat", "clicks", "--from", "5"], "add --partition 0..2"),
        (["groups", "reset", "g", "--to", "99", "--topic", "empty"], "offset 99 is outside 0..0"),
    ],
    ids=str,
)
def test_errors_read_as_with_a_directory(wire: Run, arguments: list[str], says: str) -> None:
    ran = wire(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert len(ran.err.splitlines()) <= 2


@pytest.mark.parametrize("address", ["localhost:x", "", "http://localhost:8"])
def test_invalid_addresses(run: Run, address: str) -> None:
    ran = run("topics", "list", FLAG, address)
    assert (ran.code, ran.out) == (2, "")
    assert "is not an address of brokers: use kafka://host:9092" in ran.err
    assert run("topics", "list", FLAG).err.startswith("embedlog topics list: argument --bootstrap-server: ")


def test_nothing_listens_there(run: Run, tmp_path: Path, nobody: str) -> None:
    for command in (["topics", "list"], ["topics", "create", "t"], ["append", "t", "/dev/null"], ["stats"]):
        ran = run(*command, FLAG, nobody)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == (
            f"broker {nobody}: Connection refused\n"
            "is a broker running there? embedlog serve DIR   starts one\n"
        )
    assert not list(tmp_path.iterdir())


def test_one_of_several_brokers_is_enough(run: Run, broker: Broker, nobody: str) -> None:
    ran = run("tail", FLAG, f"{nobody},{broker.bootstrap_servers}", "clicks", "-n", "1")
    assert ran == (0, "value 29\n", "")


def test_a_foreign_server_listens_there(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        here = f"127.0.0.1:{server.getsockname()[1]}"
        ran = run("topics", "list", FLAG, here)
        thread.join()
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"{here} does not speak Kafka's protocol: ")


# -- the directory that a broker has ---------------------------------------------------------------------


def test_a_directory_that_is_locked_by_a_broker_says_where_it_is(
    run: Run, broker: Broker, tmp_path: Path
) -> None:
    """What the broker's process can do for a command is done there."""
    here = broker.bootstrap_servers
    (tmp_path / "more.txt").write_text("one\n")
    assert run("append", "data", "clicks", "more.txt", "--partition", "0", "--ack").code == 0
    assert run("topics", "create", "data", "more").code == 0
    assert run("compact", "data").code == 0
    assert "more" in run("topics", "list", FLAG, here).out
    ran = run("export", "data", "copy")
    assert (ran.code, ran.out) == (2, "")
    first, second = ran.err.splitlines()
    assert first.startswith("data is open for writing in process ")
    assert second == f"It is the broker at {here}: stop that first."
    with pytest.raises(embedlog.DirectoryLocked, match=f'embedlog.open\\("kafka://{here}"\\)') as caught:
        embedlog.open(tmp_path / "data")
    assert caught.value.broker == here


def test_writer_json_names_the_broker_only_while_it_serves(run: Run, tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "data") as log:
        noted = tmp_path / "data" / "writer.json"
        before = json.loads(noted.read_bytes())
        with Broker(log) as broker:
            here = broker.bootstrap_servers
            assert json.loads(noted.read_bytes()) == before | {"broker": here}
            ran = run("append", "data", "clicks", "/dev/null")  # the log is not shared
            assert (ran.code, ran.out) == (2, "")
            assert ran.err.endswith(f"\nIt is a broker: give --bootstrap-server {here} in place of data\n")
        assert json.loads(noted.read_bytes()) == before
        assert before["broker"] is None
