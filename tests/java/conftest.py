"""The broker that the clients here talk to."""

from pathlib import Path

import pytest
from broker_process import bootstrap

__all__ = ["bootstrap"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.program("java", "mvn"))
