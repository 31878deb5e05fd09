"""Options that are wrong in themselves, at odds with each other, or with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import LLM, ConfigError


def ngram(count: object, **further: object) -> dict[str, Any]:
    return {"speculative_config": {"method": "ngram", "num_speculative_tokens": count, **further}}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        # choices
        ({"dtype": "fp4"}, "dtype='fp4' is not one of float32, bfloat16, float16"),
        (
            {"state_dtype": "float16"},
            "state_dtype='float16' is not one of float32, bfloat16, int8, float8_e4m3fn",
        ),
        ({"device": "tpu"}, "device='tpu' is not one of cpu, cuda"),
        ({"device": "cuda:x"}, "device='cuda:x' is not one of cpu, cuda"),
        ({"backend": "fast"}, "backend='fast' is not one of reference"),
        ({"load_format": "gguf"}, "load_format='gguf' is not one of auto, dummy"),
        # types
        ({"dtype": torch.float32}, "dtype=torch.float32 must be a string"),
        ({"device": torch.device("cpu")}, "device=device(type='cpu') must be a string"),
        ({"max_num_seqs": "8"}, "max_num_seqs='8' must be a whole number"),
        ({"max_num_seqs": 8.0}, "max_num_seqs=8.0 must be a whole number"),
        ({"max_num_seqs": True}, "max_num_seqs=True must be a whole number"),
        ({"max_num_seqs": None}, "max_num_seqs=None must be a whole number"),
        ({"max_model_len": "4k"}, "max_model_len='4k' must be a whole number or None"),
        ({"overlap": 1}, "overlap=1 must be True or False"),
        ({"memory": 0.9}, "memory=0.9 must be a whole number or a string or None"),
        # values
        ({"max_num_seqs": 0}, "max_num_seqs=0 must be at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0 must be at least 1"),
        ({"page_size": -64}, "page_size=-64 must be at least 1"),
        ({"max_model_len": 0}, "max_model_len=0 must be at least 2"),
        ({"num_pages": 0}, "num_pages=0 must be at least 1"),
        ({"num_slots": 0}, "num_slots=0 must be at least 1"),
        ({"memory": "lots"}, "memory='lots' is not a size: write it like 80GiB"),
        # contradictions
        ({"page_size": 48}, "page_size=48 must divide 64 or be a multiple of it"),
        ({"fold_every": 24}, "fold_every=24 must divide page_size=64 and 64"),
        ({"page_size": 16, "fold_every": 32}, "fold_every=32 must divide page_size=16 and 64"),
        (
            ngram(8) | {"fold_every": 8},
            "num_speculative_tokens=8 makes windows of 9 tokens, more than fold_every=8",
        ),
        # speculation
        ({"speculative_config": "ngram"}, "speculative_config='ngram' must be None, or name a method"),
        (
            {"speculative_config": {"method": "oracle"}},
            "method='oracle' is not one of ngram, mtp, eagle, eagle_multi, dflash, standalone",
        ),
        ({"speculative_config": {"method": "ngram"}}, "ngram needs 'num_speculative_tokens'"),
        (ngram(0), "num_speculative_tokens=0 must be 1 to 15"),
        (ngram(16), "num_speculative_tokens=16 must be 1 to 15"),
        (ngram("4"), "num_speculative_tokens='4' must be a whole number"),
        (
            ngram(4, model="elsewhere"),
            "ngram has no 'model'; it has method, num_speculative_tokens, adaptive, prompt",
        ),
        (ngram(4, prompt_lookup_min=5), "prompt_lookup_min=5 must be 1 to prompt_lookup_max=4"),
        ({"exact": True, "dtype": "bfloat16"}, "exact=True needs device='cpu' and dtype='float32'"),
        ({"exact": True, "device": "cuda"}, "exact=True needs device='cpu' and dtype='float32'"),
        ({"max_model_len": 5000}, "max_model_len=5000: the model has 4096 positions"),
        ({"num_pages": 3, "max_model_len": 500}, "num_pages=3 cannot hold one request of max_model_len=500"),
        ({"memory": "1MiB"}, "give memory='"),
        ({"memory": -5}, "give memory='"),
        ({"memory": "8MiB", "num_pages": 2000, "max_model_len": 500}, "give memory='"),
    ],
)
def test_one_sentence_for_each(model_dir: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(model_dir, **options)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_an_option_that_does_not_exist(model_dir: Path) -> None:
    with pytest.raises(
        TypeError, match="there is no option 'gpu_memory_utilization'; the options are device, "
    ):
        LLM(model_dir, gpu_memory_utilization=0.9)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("options", [{}, {"memory": "1GiB"}])
def test_a_gpu_that_is_not_there(model_dir: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="device='cuda'"):
        LLM(model_dir, device="cuda", **options)
