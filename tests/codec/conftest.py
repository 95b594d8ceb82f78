"""Runs every test of the codec once for each implementation of its hot loops."""

import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest

from embedlog.codec import plain

with warnings.catch_warnings():
    # On its import kafka-python uses what Python 3.11 deprecates (and later versions take back).
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401

IMPLEMENTATIONS = {"plain": plain}


@pytest.fixture(scope="module", autouse=True, params=sorted(IMPLEMENTATIONS))
def implementation(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    loops = IMPLEMENTATIONS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embedlog.codec.batch_encode.loops", loops)
        patch.setattr("embedlog.codec.batch_decode.loops", loops)
        yield loops
