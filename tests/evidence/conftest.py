from __future__ import annotations

import pytest
import torch

from .library import Library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    torch.set_num_threads(1)  # these models are far too small to share among cores
    return Library(tmp_path_factory.mktemp("models"))
