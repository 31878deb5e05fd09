from __future__ import annotations

import functools
from pathlib import Path

import pytest
from tests.evidence import Library, Oracle
from tests.reuse.families import FAMILIES, Find, make


@pytest.fixture(scope="session")
def find(tmp_path_factory: pytest.TempPathFactory) -> Find:
    library = Library(tmp_path_factory.mktemp("models"))
    return functools.cache(lambda family: make(family, library, tmp_path_factory.mktemp(family)))


@pytest.fixture(params=FAMILIES)
def directory(request: pytest.FixtureRequest, find: Find) -> Path:
    """A tiny model of each family of state."""
    return find(request.param)[0]


@pytest.fixture(params=FAMILIES)
def oracle(request: pytest.FixtureRequest, find: Find) -> Oracle:
    """And transformers, asked about it."""
    return find(request.param)[1]
