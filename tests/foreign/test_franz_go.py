"""franz-go's own tests, of the version that franz-go/go.mod pins, against `embedlog serve`, over TLS as well.

They come from the Go module proxy and are copied to a temporary directory, since the module cache is
read-only. Needs Go 1.26 or newer. Those that skip themselves stand here by name, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import served
from certificates import Authority

pytestmark = pytest.mark.program("go")
HERE = Path(__file__).parent
HANGS_S = 1_200
RECORDS = 20_000  # that each of the larger tests produces; franz-go's own number is 500,000

LISTENERS = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"

SKIPPED = {
    "TestIssueProduceBrokerTooOldFailsRecords": "it wants a broker that refuses Produce before version 3",
}
"""These skip themselves, by what the broker says that it has."""

NOT_OVER_TLS = "TestIssue769"
"""It has a dialer of its own, which franz-go takes no TLS beside."""

PASS = {
    "TestGroupETL",
    "TestGroupETL/range",
    "TestGroupETL/cooperative-sticky",
    "TestGroupETL/cooperative-sticky/static",
    "TestGroupETL/range/848",
    "TestGroupETL/sticky/848",
    "TestGroupETL/sticky/848/static",
    "TestGroupSimple/classic",
    "TestGroupSimple/848",
    "Test848RegexBrokerResolves",
    "TestTxnEtl",
    "TestTxnEtl/range/848",
    "TestTxnEtl/sticky/848",
    "TestTxnEtl/sticky/848/static",
    "TestClient_Produce",
    "TestClient_ProduceLargeMessages",
    "TestConsumeRegex",
    "TestAddRemovePartitions",
    "TestPauseIssueOct2023",
    "TestConsumeRegexShareSkipsInternal",
    "TestShareGroup",
    "TestShareGroupAckOnClose",
    "TestShareGroupETL",
    "TestShareGroupOffsetsAdmin",
    "TestIssue434",
    "TestIssue523/roundrobin",
    "TestIssue523/sticky",
    "TestSCRAMAuth",
    "TestSCRAMAuthBadCredentials",
}
"""Some of those that pass: here lest a filter or a new version lets them fall silent."""


@pytest.fixture(scope="module")
def tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with its tests, built."""
    told = subprocess.run(
        ["go", "mod", "download", "-json", "github.com/twmb/franz-go"],
        cwd=HERE / "franz-go",
        check=True,
        capture_output=True,
    )
    copy = tmp_path_factory.mktemp("franz-go") / "franz-go"
    shutil.copytree(json.loads(told.stdout)["Dir"], copy, copy_function=shutil.copyfile)
    for directory, _, _ in os.walk(copy):
        os.chmod(directory, 0o755)
    package = copy / "pkg" / "kgo"
    subprocess.run(["go", "test", "-c", "-o", "kgo.test", "."], cwd=package, check=True)
    return package


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """What tells franz-go's tests where the broker is, by the protocol of the listener."""
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory)
    options = ("--set", f"listeners={LISTENERS}", "--set", f"ssl_keystore_location={authority.issue()}")
    with served(directory, *options, "--set", "sasl_enabled_mechanisms=SCRAM-SHA-256") as told:
        ports = dict(each.split("://") for each in told["listeners"])
        add = ["users", "add", str(directory / "log"), "alice", "--password-file", "-"]
        subprocess.run([sys.executable, "-m", "embedlog", *add], input="a secret\n", text=True, check=True)
        scram = {"KGO_TEST_SCRAM": "alice:a secret", "KGO_TEST_SCRAM_SEEDS": ports["SASL_PLAINTEXT"]}
        yield {
            "PLAINTEXT": {"KGO_SEEDS": ports["PLAINTEXT"], **scram},
            "SSL": {"KGO_SEEDS": ports["SSL"], "KGO_TEST_TLS": f"ca:{authority.file}", **scram},
        }


@pytest.mark.timeout(2 * HANGS_S)
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_franz_gos_own_tests(environments: dict[str, dict[str, str]], protocol: str, tests: Path) -> None:
    ran = subprocess.run(
        [
            "./kgo.test",
            "-test.v",
            f"-test.timeout={HANGS_S}s",
            f"-test.skip={NOT_OVER_TLS if protocol == 'SSL' else ''}",
        ],
        cwd=tests,
        env={
            **os.environ,
            **environments[protocol],
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": str(RECORDS),
            "KGO_LOG_LEVEL": "error",
        },
        capture_output=True,
        text=True,
        errors="replace",
    )
    said = ran.stdout + ran.stderr
    ended = {name: how for how, name in re.findall(r"^\s*--- (\w+): (\S+) \(", said, re.M)}
    failed = sorted(name for name, how in ended.items() if how == "FAIL")
    assert not failed, said[-20_000:]
    assert ran.returncode == 0, said[-20_000:]
    assert {name for name, how in ended.items() if how == "SKIP"} == set(SKIPPED)
    assert {name for name, how in ended.items() if how == "PASS"} >= PASS
