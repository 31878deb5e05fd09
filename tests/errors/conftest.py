from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.random_model import write_random_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good model with a tokenizer. Not to be changed."""
    directory = tmp_path_factory.mktemp("model")
    write_random_model(directory)
    return directory


@pytest.fixture
def spoilt(model_dir: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(model_dir, tmp_path / "model"))
