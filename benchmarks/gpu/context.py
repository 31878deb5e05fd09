"""One request with ever more context: what a token costs, in prefill and in decode."""

from __future__ import annotations

from typing import Any

from .models import prompts, serving, timed

LENGTHS = (1024, 8192, 32768, 65536, 126976)
OUT = 64


def measure(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with serving(name, 1, max_model_len=max(LENGTHS) + 2 * OUT) as llm:
        timed(llm, prompts(name, 1, max(LENGTHS), 0), 2)  # compiles
        for length in LENGTHS:
            given = prompts(name, 1, length, 1)
            timed(llm, given, 2)
            first = timed(llm, given, 1)[0]
            half, whole = timed(llm, given, 1 + OUT // 2)[0], timed(llm, given, 1 + OUT)[0]
            found.append(
                {
                    "model": name,
                    "context": length,
                    "decode_ms": 1e3 * (whole - half) / (OUT // 2),
                    "prefill_us_per_token": 1e6 * first / length,
                }
            )
            row = found[-1]
            print(
                f"{name} context {length:7}: decode {row['decode_ms']:.3f} ms, "
                f"prefill {row['prefill_us_per_token']:.2f} us a token",
                flush=True,
            )
    return found
