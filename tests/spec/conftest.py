from __future__ import annotations

import functools

import pytest
from tests.evidence import Library
from tests.reuse.families import Find
from tests.spec.families import make


@pytest.fixture(scope="session")
def find(tmp_path_factory: pytest.TempPathFactory) -> Find:
    library = Library(tmp_path_factory.mktemp("models"))
    return functools.cache(lambda family: make(family, library, tmp_path_factory.mktemp(family)))
