from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from tests.evidence import Library, Oracle
from tests.reuse.families import FAMILIES, Find, make


@pytest.fixture(scope="session")
def find(tmp_path_factory: pytest.TempPathFactory) -> Find:
    torch.set_num_threads(1)  # these models are far too small to share among cores
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
