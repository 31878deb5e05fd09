"""One request with ever more context: what a token costs, in prefill and in decode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .models import serving, timed
from .shapes import prompts

LENGTHS = (1024, 4096, 16384, 32768, 65536, 126_976)
"""LFM2 has 128,000 positions."""
OUT = 64


def measure(name: str) -> Iterator[dict[str, Any]]:
    with serving(name, 1, max_model_len=max(LENGTHS) + 2 * OUT) as llm:
        for length in LENGTHS:
            given = prompts(name, 1, length, 1)
            timed(llm, given, 2)  # compiles what is left
            first, half, whole = (timed(llm, given, tokens)[0] for tokens in (1, 1 + OUT // 2, 1 + OUT))
            yield {
                "model": name,
                "context": length,
                "decode_ms": 1e3 * (whole - half) / (OUT - OUT // 2),
                "prefill_us_per_token": 1e6 * first / length,
            }


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['model']} context {row['context']:7}: decode {row['decode_ms']:.3f} ms, "
        f"prefill {row['prefill_us_per_token']:.2f} us a token"
    )
