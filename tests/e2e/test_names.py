"""A model may be given by the name it has on the hub, if its files are in the hub client's cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.random_model import random_model

from holdfast import LLM, ConfigError, SamplingParams


def test_a_downloaded_model_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = random_model()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    shutil.copytree(random, tmp_path / "models--tide--pool-1b" / "snapshots" / "abc123")
    params = SamplingParams(max_tokens=4, temperature=0.0)
    assert LLM("tide/pool-1b").generate("Hi", params)[0].text == LLM(random).generate("Hi", params)[0].text


def test_one_that_was_not_downloaded_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="tide/pool-1b is not a directory"):
        LLM("tide/pool-1b")
