from __future__ import annotations

import functools

import pytest
import torch
from tests.evidence import Library
from tests.reuse.families import Find
from tests.spec.families import make


@pytest.fixture(scope="session")
def find(tmp_path_factory: pytest.TempPathFactory) -> Find:
    torch.set_num_threads(1)  # these models are far too small to share among cores
    library = Library(tmp_path_factory.mktemp("models"))
    return functools.cache(lambda family: make(family, library, tmp_path_factory.mktemp(family)))
