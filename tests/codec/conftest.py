"""Runs every test of the codec once for each implementation of its hot loops."""

import importlib
import warnings
from collections.abc import Iterator

import pytest

from embedlog.codec import loops

with warnings.catch_warnings():
    # On its import kafka-python uses what Python 3.11 deprecates (and later versions take back).
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401

IMPLEMENTATIONS = ("plain",) if loops.IMPLEMENTATION == "plain" else ("compiled", "plain")


@pytest.fixture(scope="module", autouse=True, params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    halves = ("encoding", "decoding")
    bodies = [importlib.import_module(f"embedlog.codec.{request.param}_{half}") for half in halves]
    with pytest.MonkeyPatch.context() as patch:
        for body in bodies:
            for name in set(vars(loops)) & set(vars(body)):
                if callable(getattr(loops, name)) and not name.startswith("_"):
                    patch.setattr(loops, name, getattr(body, name))
        yield request.param
