from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.random_model import write_random_model


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
