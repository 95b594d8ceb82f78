"""The commands of the reference and explanation pages run, and print what the pages show.

Each section runs by itself, in a directory prepared as the page assumes. Figures, ids and times may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from documents import DOCS, DOCUMENTS, Shell, blocks, on_free_ports, programs_of

FIGURES: Final = re.compile(
    r"(?<![\w/.-])[\w-]{22,24}(?![\w.-])"  # an id, a token
    r"|\d{1,2} [A-Z][a-z]{2} \d\d:\d\d"
    r"|\d{4}-\d\d-\d\d(?:[T ][\d:.]+Z?)?"
    r"|\d[\d,.]*(?: (?:B|kB|MB|GB|TB|ms|s|min|h|d)\b)?"
)
SCRIPTS: Final = {
    "data.py": """\
import embedlog
with embedlog.open("./data") as log:
    log.create_topic("clicks", partitions=2, compression_type="zstd")
    log.append_many("clicks", [(b"user-%d" % i, b'{"page": "/%d"}' % i) for i in range(1002)])
    with log.consumer("clicks", group="billing", auto_commit=False) as consumer:
        consumer.poll(1_000, max_records=700)
        consumer.commit()
with open("lines.tsv", "w") as lines:
    lines.writelines(f"user-{i}\\tvisit {i}\\n" for i in range(1000))
""",
    "transaction.py": """\
import time, embedlog
with embedlog.open("./data") as log:
    log.create_topic("invoices", partitions=3)
    with log.consumer("clicks", group="invoicing", auto_commit=False) as consumer:
        consumer.poll(1_000)
        with log.transaction("billing-1", timeout_ms=60_000) as transaction:
            transaction.append("invoices", b"5 euro", partition=2)
            transaction.commit_offsets(consumer)
            print("open", flush=True)
            time.sleep(600)
""",
    "jobs.py": """\
import time, embedlog
log = embedlog.open("./data", shared=True)
queue = log.queue("jobs", group="mailers")
for i in range(20):
    queue.send(b"job %d" % i)
jobs = [queue.take(timeout_ms=1_000) for _ in range(10)]
for job in jobs[:3]:
    job.accept()
for job in jobs[4:6]:
    job.reject("no such address")
jobs[6].release(delay_ms=300_000)
while "dlq.jobs" not in log.topics() or sum(1 for _ in log.read("dlq.jobs")) < 2:
    time.sleep(0.01)
print("taken", flush=True)
time.sleep(600)
""",
    "mailer.py": """\
import embedlog
@embedlog.worker("mails", str)
def send_mail(job):
    print(job.value)
if __name__ == "__main__":
    with embedlog.open("./shop") as log:
        log.queue("mails").send(b"welcome bob")
""",
    "damage.py": """\
import sys
with open(sys.argv[1], "r+b") as segment:
    segment.seek(70)
    segment.write(b"!!!!")
""",
    "traffic.py": """\
import time, embedlog
with embedlog.open("./data") as log:
    for topic, partitions in ("clicks", 4), ("orders", 2), ("audit.log", 1):
        log.create_topic(topic, partitions=partitions)
    log.append("audit.log", b"begun")
    with log.consumer("clicks", group="billing") as consumer:
        consumer.poll(0)
    print("begun", flush=True)
    while True:
        log.append_many("clicks", [b"click"] * 10)
        log.append("orders", b"order")
        time.sleep(0.01)
""",
    "flights.py": """\
import datetime, embedlog
with embedlog.open("./data") as log:
    log.create_topic("flights", partitions=4)
    for day in (datetime.datetime(2013, 1, 1), datetime.datetime(2013, 11, 6)):
        flights = [
            embedlog.Record(
                key=b"%d" % i,
                value=b'{"carrier": "UA", "dep_delay": %d, "tailnum": "N14228"}' % i,
                timestamp_ms=int(day.timestamp() * 1000),
            )
            for i in range(100)
        ]
        log.append_many("flights", flights)
        log.append("flights", b"no JSON", timestamp_ms=int(day.timestamp() * 1000))
""",
}
DATA: Final = "$ python data.py\n"
TWO_MORE: Final = DATA + r"$ printf 'a\nb\n' | embedlog append ./data clicks --partition 0" + "\n"
THREE_TOPICS: Final = DATA + "".join(
    f"$ embedlog topics create ./data {name}\n" for name in ("orders", "audit.log")
)
SERVED: Final = f"{DATA}$ embedlog serve ./data --port 9092 &\n"
SECURE: Final = f"{DATA}$ embedlog serve ./data --secure --port 9093 &\n"
ON_A_TERMINAL: Final = "< /dev/null COLUMNS=76 python -c 'import pty, sys; pty.spawn(sys.argv[1:])' "
SEVERAL_LOGS: Final = """\
$ mkdir east && cd east && python ../data.py && embedlog serve ./data --port 9192 &
$ embedlog serve ./target --port 9392 &
"""
CLUSTER: Final = """\
$ embedlog zookeeper ./zk --port 2181 &
$ embedlog serve ./data --broker-id 0 --port 9092 --zookeeper 127.0.0.1:2181 &
$ embedlog serve ./data1 --broker-id 1 --port 9093 --zookeeper 127.0.0.1:2181 &
$ embedlog serve ./data2 --broker-id 2 --port 9094 --zookeeper 127.0.0.1:2181 &
$ embedlog topics create --bootstrap-server 127.0.0.1:9092 clicks --partitions 6
$ echo one | embedlog append --bootstrap-server 127.0.0.1:9092 clicks
$ embedlog cat --bootstrap-server 127.0.0.1:9092 clicks --group billing
"""


class Case(NamedTuple):
    """What is typed before a section's commands, and what is typed in place of what."""

    first: str = ""
    instead: tuple[tuple[str, str], ...] = ()


CASES: Final = {
    "explanation/queues.md: Workers": Case("$ python mailer.py\n", ((" ./shop", " ./shop &\n..."),)),
    "explanation/queues.md: Damage": Case(
        "$ python mailer.py && python damage.py ./shop/mails_0/00000000000.kafka\n"
    ),
    "reference/broker.md: From the command line": Case(),
    "reference/broker.md: TLS": Case(
        f"{SECURE}$ kill %1; wait; cp data-security/broker.pem .\n", ((".pem", ".pem &"),)
    ),
    "reference/cli.md: Output and exit codes": Case(
        f"{DATA}$ embedlog topics create ./data clicks-of-the-other.archived\n",
        (("embedlog stats", f"{ON_A_TERMINAL}embedlog stats"), ("/srv", "...")),
    ),
    "reference/cli.md: Completion": Case("$ export HOME=$PWD; mkdir -p ~/.config/fish/completions\n"),
    "reference/cli.md: Over the wire": Case(
        f"{SERVED}$ address=kafka://localhost:9092\n$ embedlog topics delete $address clicks --yes\n"
        "$ embedlog topics create $address clicks --partitions 2 --config compression_type=zstd\n",
        (("tail -f", "tail -n 0"),),
    ),
    "reference/cli.md: Brokers with TLS and passwords": Case(
        f"{SECURE}$ cp data-security/client.properties .\n",
        (("broker1:", "localhost:"), ("--from kafka", "--until-caught-up --from kafka")),
    ),
    "reference/cli.md: Topics": Case(DATA),
    "reference/cli.md: Append records": Case(DATA),
    "reference/cli.md: Print records": Case(TWO_MORE),
    "reference/cli.md: Groups": Case(DATA),
    "reference/cli.md: Transactions": Case(f"{DATA}$ python transaction.py &\nopen\n"),
    "reference/cli.md: Queues": Case("$ python jobs.py &\ntaken\n"),
    "reference/cli.md: Inspect files": Case(TWO_MORE),
    "reference/cli.md: Watch a log live": Case("$ python traffic.py &\nbegun\n"),
    "reference/cli.md: When something is wrong": Case(
        f"{DATA}$ python damage.py ./data/clicks_1/00000000000.kafka\n"
    ),
    "reference/cli.md: Copies and other layouts": Case(
        f"{DATA}$ embedlog export ./data ./kafka --layout kafka && rm -r data\n", (("/var/lib/", "./"),)
    ),
    "reference/cli.md: Load a table": Case("$ python flights.py\n"),
    "reference/cli.md: A broker": Case(THREE_TOPICS, (("-port 9308", "-port 9308 --port 9092 &"),)),
    "reference/cli.md: The page": Case(DATA, ((" ./data", " ./data --port 9480 &"),)),
    "reference/cli.md: Users": Case(f"{DATA}$ echo 'correct horse battery staple' > password\n"),
    "reference/cli.md: ACLs": Case(DATA),
    "reference/cli.md: Quotas": Case(DATA),
    "reference/cli.md: A cluster": Case(CLUSTER),
    "reference/cli.md: A ZooKeeper": Case("", ((" --servers 3", " --servers 3 &"),)),
    "reference/mirroring.md: Run a mirror": Case(
        SERVED + SEVERAL_LOGS,
        (
            ("a:9092,kafka://b:9092", "127.0.0.1:9192"),
            ("a:9092", "127.0.0.1:9192"),
            ("b:9092", "127.0.0.1:9192"),
            ("c:9092", "127.0.0.1:9392"),
            ("mirror --from", "mirror --until-caught-up --from"),
        ),
    ),
    "reference/ui.md: The page": Case(
        SERVED, ((" ./data", " ./data --port 9480 &\n..."), (":9092", ":9092 --port 9481 &\n..."))
    ),
    "reference/ui.md: For other machines": Case(DATA, ((".com", ".com --port 9480 &\n..."),)),
}
JVM: Final = {"Load a table", "A cluster", "A ZooKeeper"}
ELSEWHERE: Final = DOCS / "reference" / "cluster.md"  # cluster/test_documented_commands.py


def sections() -> Iterator[tuple[str, str]]:
    """The name of each section that shows commands, and the section."""
    for path in sorted(DOCS.rglob("*.md")):
        if path in DOCUMENTS or path == ELSEWHERE:
            continue
        page = path.read_text()
        for section in re.split(r"^#{1,3} (?=[A-Z][^\n]*\n\n)", page, flags=re.M):
            if any(block.language == "console" for block in blocks(section)):
                yield f"{path.relative_to(DOCS)}: {section.partition(chr(10))[0]}", section


SECTIONS: Final = dict(sections())


def test_every_section() -> None:
    assert SECTIONS.keys() == CASES.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                *programs_of(SECTIONS[name]),
                *([pytest.mark.jvm] if name.partition(": ")[2] in JVM else []),
            ],
        )
        for name in CASES
        if name in SECTIONS
    ],
)
def test_the_commands_of_a_section(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for script, text in SCRIPTS.items():
        (tmp_path / script).write_text(text)
    first, instead = CASES[name]
    section = "".join(block.text for block in blocks(SECTIONS[name]) if block.language == "console")
    for shown, typed in instead:
        assert shown in section
        section = section.replace(shown, typed)
    first, section = on_free_ports(f"{first}\0{section}").split("\0")
    with Shell(tmp_path) as shell:
        shell.type(first)
        shell.type(section, figures=FIGURES, failing=True)
