"""Spark refuses a Java that it cannot run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedlog.runtime.java import java_home as any_java_home
from embedlog.spark.session import java_home


@pytest.mark.parametrize(
    ("release", "taken"),
    [
        ('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\n', True),
        ('JAVA_VERSION="25"\n', True),
        ('IMPLEMENTOR="x"\nJAVA_VERSION="11.0.2"\n', False),
        ('JAVA_VERSION="1.8.0_392"\n', False),
        ("\x00garbage", True),
        (None, True),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_a_java_that_is_too_old(
    release: str | None, taken: bool, named: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    if release is not None:
        (tmp_path / "release").write_text(release)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if named:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    else:
        monkeypatch.setenv("PATH", str(java.parent))
    assert (java_home() == str(tmp_path)) == taken
    assert (Path(java_home()) / "bin" / "java").exists()
    assert any_java_home() == tmp_path  # ZooKeeper runs on older ones
