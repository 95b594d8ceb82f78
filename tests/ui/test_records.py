"""The records of a topic over HTTP: pages of them, one by itself, what a search and a tail send."""

from __future__ import annotations

import html
import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import embedlog
from embedlog import Log
from embedlog.cli.serializers import serializers
from embedlog.clients.places import place
from embedlog.clients.serializers import Schemas, serializer_for
from embedlog.errors import InvalidArgument
from embedlog.ui import application
from embedlog.ui.places import link, positions

HOSTILE = [
    b"<script>alert(1)</script>",
    b"</textarea><img src=x onerror=alert(2)>",
    "\u202eevil\u2066".encode(),
    b"\x00\x1b[31m",
    b"\xff\xfe\xe2\x82",
    b"[" * 100_000,
    b'{"a":' * 400 + b"1" + b"}" * 400,
    b'{"a": 1e999, "b": NaN, "c": 0.10, "d": ' + b"9" * 5_000 + b"}",
    b'{"<b>": "</script>\\ud800\\u202e", "<b>": 2}',
    json.dumps(list(range(50_000))).encode(),
    b"k" * 1_000_000,
    b"",
]


@pytest.fixture
def visitor(log: Log) -> Iterator[TestClient]:
    """A browser at a log of this process."""
    with TestClient(application(log)) as client:
        yield client


def offsets_in(page: str) -> list[tuple[int, int]]:
    """Partition and offset of each row, in their order."""
    found = re.findall(r'data-href="[^"]*\?partition=(\d+)&amp;offset=(\d+)["&]', page)
    return [(int(partition), int(offset)) for partition, offset in found]


def linked(page: str, name: str) -> str | None:
    found = re.search(rf'<a href="(\?[^"]*)">{name}</a>', page)
    return html.unescape(found[1]) if found else None


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize(("first", "onwards"), [("newest", "Older"), ("oldest", "Newer")])
def test_pages_have_every_record_once(log: Log, visitor: TestClient, first: str, onwards: str) -> None:
    log.create_topic("t", 3)
    for number in range(400):
        log.append("t", b"%d" % number, partition=number % 7 % 3, timestamp_ms=1_000 + number)
    seen: list[tuple[int, int]] = []
    where: str | None = f"?order={first}"
    back = None
    while where:
        page = visitor.get(f"/topics/t/records{where}").text
        if seen:  # and the way back leads to where one was
            back = linked(page, "Newer" if onwards == "Older" else "Older")
            assert offsets_in(visitor.get(f"/topics/t/records{back}").text) == seen[-50:]
        seen += offsets_in(page)
        where = linked(page, onwards)
    expected = [(record.timestamp_ms, record.partition, record.offset) for record in log.read("t")]
    expected.sort(reverse=first == "newest")
    assert seen == [each[1:] for each in expected]
    assert back


def test_places(log: Log, visitor: TestClient) -> None:
    log.create_topic("t", 2)
    for number in range(100):
        log.append("t", b"x", partition=0, timestamp_ms=1_700_000_000_000 + number * 1_000)
    log.append("t", b"now", partition=1)

    def shown(query: str) -> list[tuple[int, int]]:
        return offsets_in(visitor.get(f"/topics/t/records?order=oldest&{query}").text)

    assert shown("from=97&partition=0") == [(0, 97), (0, 98), (0, 99)]
    assert shown("from=-2") == [(0, 98), (0, 99), (1, 0)]
    assert shown("from=-1h") == [(1, 0)]
    assert shown("from=2023-11-14T22:14:58Z") == [(0, 98), (0, 99), (1, 0)]
    assert shown("from=latest") == []
    for wrong in (
        "from=7",
        "from=sometime",
        "from=-9999999999999999999d",
        "after=1",
        "before=x",
        "partition=2",
    ):
        page = visitor.get(f"/topics/t/records?{wrong}")
        assert 'role="alert"' in page.text, wrong
    assert visitor.get("/topics/absent/records").status_code == 409


@pytest.mark.parametrize("text", ["", "1e5", "--1", "-1y", "٣", "2024-13-01", "-999999999w"])
def test_no_place(text: str) -> None:
    with pytest.raises(InvalidArgument):
        place(text)


def test_links_of_positions() -> None:
    assert positions(link({3: 7, 0: 2})) == {0: 2, 3: 7}
    for wrong in ("", "1", "1:", "1:2.", "-1:2", "1:2" * 5_000, "1:" + "9" * 30):
        with pytest.raises(InvalidArgument):
            positions(wrong)


def test_compacted_and_aborted(log: Log, visitor: TestClient) -> None:
    """What is not there leaves no holes in a page; control batches never show."""
    log.create_topic("t")
    log.append("t", b"first")
    with pytest.raises(RuntimeError, match="as asked"), log.transaction("tx") as transaction:
        for _ in range(300):
            transaction.append("t", b"aborted")
        raise RuntimeError("as asked")
    log.append("t", b"last")
    everything = visitor.get("/topics/t/records?uncommitted=yes").text
    assert len(offsets_in(everything)) == 50
    committed = visitor.get("/topics/t/records").text
    last = log.offsets("t")[0].log_end_offset - 1
    assert offsets_in(committed) == [(0, last), (0, 0)]
    assert linked(committed, "Older") is None
    assert visitor.get("/topics/t/record?partition=0&offset=7").status_code == 404
    shown = re.findall(r'<a href="([^"]*/record\?[^"]*)"', everything)[-1]
    assert "aborted" in visitor.get(html.unescape(shown)).text


def test_an_open_transaction_ends_a_page(log: Log, visitor: TestClient) -> None:
    log.create_topic("t")
    log.append("t", b"first")
    with log.transaction("loader-1") as transaction:
        transaction.append("t", b"open")
        log.append("t", b"behind it")
        page = visitor.get("/topics/t/records").text
        assert offsets_in(page) == [(0, 0)]
        assert "t 0: committed records end before offset 1, where an open transaction begins" in page
        assert "loader-1" in page
        assert offsets_in(visitor.get("/topics/t/records?uncommitted=yes").text) == [(0, 2), (0, 1), (0, 0)]
    page = visitor.get("/topics/t/records").text
    assert offsets_in(page) == [(0, 2), (0, 1), (0, 0)]
    assert "loader-1" not in page


@pytest.mark.slow
def test_hostile_records(log: Log, visitor: TestClient) -> None:
    """Nothing of a record is markup, whatever shows it; pages stay small; a download has every byte."""
    log.create_topic("t", max_message_bytes=8_000_000)
    for data in HOSTILE:
        log.append("t", data, key=data, headers=[("<i>", data), ("none", None)])
    own = visitor.get("/topics/t/records?from=latest").text
    pages = [visitor.get("/topics/t/records"), visitor.get("/topics/t/records/search?search=key=*")]
    for offset, data in enumerate(HOSTILE):
        where = f"/topics/t/record?partition=0&offset={offset}"
        for form in ("", "json", "text", "hex", "<b>"):
            for part in ("", "&part=yes"):
                pages.append(visitor.get(f"{where}&as={form}{part}"))
        for which in ("value", "key", "header-0"):
            whole = visitor.get(f"/topics/t/record/bytes?partition=0&offset={offset}&of={which}")
            assert whole.content == data
            assert whole.headers["content-disposition"].startswith("attachment")
            assert whole.headers["content-type"] == "application/octet-stream"
    for page in pages:
        assert page.status_code == 200
        assert len(page.content) < 1_500_000
        assert page.text.count("<script") <= own.count("<script")
        for forbidden in ("<img src=x", "<i>", "<b>h", "\u202e", "\u2066", "\x00", "\x1b"):
            assert forbidden not in page.text.replace("<i>null</i>", "").replace("<i>empty</i>", "")
    assert "1e999" in pages[0].text
    assert "0.10" in visitor.get("/topics/t/record?partition=0&offset=7").text


def test_a_record_that_is_not_there(log: Log, visitor: TestClient) -> None:
    log.create_topic("t")
    for where in ("partition=0&offset=0", "partition=1&offset=0"):
        assert visitor.get(f"/topics/t/record?{where}").status_code == 404
    for where in ("", "partition=x&offset=0", "partition=0&offset=-1", "partition=0&offset=" + "9" * 19):
        assert visitor.get(f"/topics/t/record?{where}").status_code == 404
    assert visitor.get("/topics/t/record/bytes?partition=0&offset=x").status_code == 404


def test_a_header_that_is_shortened_can_be_downloaded(log: Log, visitor: TestClient) -> None:
    log.create_topic("t")
    log.append("t", b"v", headers=[("short", b"x"), ("long", b"y" * 5_000), ("none", None)])
    page = visitor.get("/topics/t/record?partition=0&offset=0").text
    assert "the first 1,000 of 5,000 bytes" in page
    assert page.count("of=header-") == 1
    where = "/topics/t/record/bytes?partition=0&offset=0&of="
    assert where.replace("&", "&amp;") + "header-1" in page
    assert visitor.get(f"{where}header-1").content == b"y" * 5_000
    for wrong in ("header-2", "header-3", "header-x", "header-", "header--1", "header-" + "9" * 30, "offset"):
        assert visitor.get(f"{where}{wrong}").status_code == 404


def test_commands_and_programs_do_what_they_say(path: Path) -> None:
    """What the page offers to copy runs, and prints the record."""
    with embedlog.open(path) as log:
        log.create_topic("t")
        log.append("t", b"one")
        log.append("t", b"two")
        with TestClient(application(log)) as visitor:
            page = visitor.get("/topics/t/record?partition=0&offset=1").text
            listed = visitor.get("/topics/t/records?from=1").text
            (printed,) = re.findall(r"<code>(embedlog cat .*?)</code>", listed)
    ran = subprocess.run([sys.executable, "-m", *shlex.split(printed)], capture_output=True, check=True)
    assert ran.stdout.count(b"\n") == 1
    command, program = (html.unescape(each) for each in re.findall(r"<code>(.*?)</code>", page, re.DOTALL))
    words = shlex.split(command)
    assert words[0] == "embedlog"
    ran = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["value"] == "two"
    program += "\nprint(record.value)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "b'two'\n"


def test_serializers(log: Log) -> None:
    """Values are shown, and searched, by what a topic's serializer makes of them; or it says why not."""
    schema = {"type": "record", "name": "Sale", "fields": [{"name": "total", "type": "int"}]}
    log.create_topic("sales")
    log.create_topic("packed")
    log.topic("sales", serializer="avro", schema=schema).append({"total": 4711})
    log.topic("packed", serializer="msgpack").append({"total": 4712, "raw": b"\xff"})
    log.append("sales", b"\x08more")
    avro = serializer_for(None, "avro", Schemas(schema))
    msgpack = serializer_for(None, "msgpack")
    assert avro is not None
    assert msgpack is not None
    with TestClient(application(log, serializers={"sales": avro, "packed": msgpack})) as visitor:
        assert "4711" in visitor.get("/topics/sales/records").text
        assert (
            '<span class="digit">4711</span>' in visitor.get("/topics/sales/record?partition=0&offset=0").text
        )
        wrong = visitor.get("/topics/sales/record?partition=0&offset=1").text
        assert "avro cannot read it: 4 bytes are left" in wrong
        assert "4712" in visitor.get("/topics/packed/record?partition=0&offset=0").text
        for topic, total in (("sales", 4711), ("packed", 4712)):
            found = events(visitor.get(f"/topics/{topic}/records/search?search=total={total}").text)
            assert found[-1]["found"] == 1


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_search(log: Log, visitor: TestClient, order: str) -> None:
    """It is streamed, ends, tells how far it is, and goes on where it was cut off."""
    log.create_topic("t", 2)
    for number in range(3_000):
        log.append("t", b'{"n": %d}' % number, partition=number % 2)
    search = f"/topics/t/records/search?order={order}&search="
    found = events(visitor.get(f"{search}n<10 OR n=2999").text)
    assert found[-1]["end"]
    assert not found[-1]["more"]
    assert (found[-1]["found"], found[-1]["looked_at"], found[-1]["total"]) == (11, 3_000, 3_000)
    of_one = [each for each in offsets_in("".join(each["html"] for each in found)) if each[0] == 1]
    assert of_one == sorted([(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 1_499)], reverse=order == "newest")
    response = visitor.get(f"{search}n=*")
    assert events(response.text)[-1]["found"] == 500
    rows = offsets_in("".join(each["html"] for each in events(response.text)))
    while events(response.text)[-1]["more"]:
        last = re.findall(r"^id: (.*)$", response.text, re.MULTILINE)[-1]
        response = visitor.get(f"{search}n=*", headers={"last-event-id": last})
        rows += offsets_in("".join(each["html"] for each in events(response.text)))
    assert len(rows) == len(set(rows)) == 3_000
    ranged = events(visitor.get(f"{search}n=*&partition=1&from=10&to=12").text)
    assert (ranged[-1]["found"], ranged[-1]["total"]) == (2, 2)
    assert events(visitor.get(f"{search}n=*&from=latest").text)[-1]["total"] == 0
    assert events(visitor.get(f"{search}n=*&from=latest&to=earliest").text)[-1]["end"]
    assert "problem" in events(visitor.get(f'{search}"').text)[0]
    assert "problem" in events(visitor.get("/topics/absent/records/search?search=x").text)[0]


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_search_in_a_range_of_times(log: Log, visitor: TestClient, order: str) -> None:
    """It finds what came out of order, too, and goes on where it was cut off."""
    log.create_topic("t", 2, segment_bytes=4096)
    hour_ms = 3_600_000
    for hours in (*range(500, 700), *range(100, 500), *range(700, 710)):
        log.append("t", b'{"n": %d}' % hours, partition=hours % 2, timestamp_ms=hours * hour_ms)

    def found(query: str) -> list[int]:
        where = f"/topics/t/records/search?order={order}&search=n=*&{query}"
        texts = [visitor.get(where).text]
        while events(texts[-1])[-1]["more"]:
            last = re.findall(r"^id: (.*)$", texts[-1], re.MULTILINE)[-1]
            texts.append(visitor.get(where, headers={"last-event-id": last}).text)
        rows = [row for text in texts for row in offsets_in("".join(each["html"] for each in events(text)))]
        records = [log.read_at("t", *row) for row in rows]
        return sorted(record.timestamp_ms // hour_ms for record in records if record is not None)

    assert found("from=1970-01-09T00:00Z&to=1970-01-11T00:00Z") == list(range(192, 240))
    assert found("from=1970-01-29T00:00Z") == list(range(672, 710))
    assert found("to=1970-01-22T00:00Z") == list(range(100, 504))
    assert found("partition=1&from=3&to=1970-01-06T00:00Z") == list(range(101, 120, 2))
    assert found("from=1970-01-11T00:00Z&to=1970-01-09T00:00Z") == []


def test_many_partitions_are_bounded(log: Log, visitor: TestClient) -> None:
    log.create_topic("t", 100)
    for number in range(100):
        log.append("t", b"x", partition=number)
    page = visitor.get("/topics/t/records").text
    assert "64 of 100 partitions are looked at" in page
    assert len(offsets_in(page)) == 50
    assert offsets_in(visitor.get("/topics/t/records?partition=99").text) == [(99, 0)]


def test_damage_is_told_and_hides_nothing_else(path: Path) -> None:
    with embedlog.open(path) as log:
        log.create_topic("t", 2)
        for number in range(10):
            log.append("t", b"x" * 100, partition=number % 2)
    segment = next((path / "t_0").glob("*.kafka"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    with embedlog.open(path, mode="r") as log, TestClient(application(log)) as visitor:
        page = visitor.get("/topics/t/records").text
        assert 'role="alert"' in page
        assert len([each for each in offsets_in(page) if each[0] == 1]) == 5
        for order in ("newest", "oldest"):
            found = events(visitor.get(f"/topics/t/records/search?search=x&order={order}").text)[-1]
            assert found["problems"]
            assert (found["end"], found["found"]) == (True, 2 + 5)  # before the damage, and of the other


def test_over_brokers(path: Path, start: Callable[..., Any]) -> None:
    broker = start("-m", "embedlog", "serve", path, "--port", 0, "--json")
    port = json.loads(broker.find(r"^(\{.*\})$")[0])["port"]
    with embedlog.open(f"kafka://127.0.0.1:{port}") as log, TestClient(application(log)) as visitor:
        log.create_topic("t", 2)
        for number in range(20):
            log.append("t", b"%d" % number, partition=number % 2)
        assert len(offsets_in(visitor.get("/topics/t/records").text)) == 20
        assert "19" in visitor.get("/topics/t/record?partition=1&offset=9").text
        assert events(visitor.get("/topics/t/records/search?search=1").text)[-1]["found"] == 11


def test_serializers_of_the_command(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each form of --serializer reads what that serializer writes."""
    schema = tmp_path / "sale.avsc"
    schema.write_text('{"type": "record", "name": "Sale", "fields": [{"name": "total", "type": "int"}]}')
    (tmp_path / "of_the_shop.py").write_text(
        "import json\nclass Reversed:\n"
        "    def dumps(self, value): return json.dumps(value).encode()[::-1]\n"
        "    def loads(self, data): return json.loads(data[::-1])\n"
        "mine = Reversed()\n"
        "from google.protobuf.struct_pb2 import Struct\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = serializers(
        [
            *(f"a=avro:{schema}", "m=msgpack", "j=json", "o=of_the_shop:mine"),
            *("p=protobuf:of_the_shop:Struct", "b=bytes"),
        ]
    )
    assert sorted(found) == ["a", "j", "m", "o", "p"]
    struct = importlib.import_module("of_the_shop").Struct()
    struct.update({"total": 4711})
    values = {key: {"total": 4711} for key in "ajmo"} | {"p": struct}
    with embedlog.open(path) as log, TestClient(application(log, serializers=found)) as visitor:
        for topic, value in values.items():
            log.create_topic(topic)
            log.append(topic, found[topic].dumps(value))
            assert '<span class="digit">4711' in visitor.get(f"/topics/{topic}/records").text
            searched = visitor.get(f"/topics/{topic}/records/search?search=total=4711").text
            assert events(searched)[-1]["found"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "json",
        "t=",
        "=json",
        "t=nothing",
        "t=avro",
        "t=avro:gone.avsc",
        "t=protobuf:",
        "t=no_such:thing",
        "t=json:x",
    ],
)
def test_wrong_serializers(text: str) -> None:
    with pytest.raises(InvalidArgument):
        serializers([text])
