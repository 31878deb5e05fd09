"""Requests to send, and when."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TEXT = """
the of and to in is that for it was on are as with his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would
other into has more her two like him see time could no make than first been its who now people my made over did down
only way find use may water long little very after words called just where most know
"""
WORDS = TEXT.split()
"""Short and common: about one token each, for most tokenizers."""

BLOCK = 512
"""Tokens that one hash of a published trace stands for."""


@dataclass(frozen=True)
class Shot:
    at: float
    """Seconds after the beginning."""
    prompt: str
    max_tokens: int


def words(count: int, source: random.Random) -> str:
    return " ".join(source.choices(WORDS, k=max(1, count)))


def poisson(count: int, rate: float, input_len: int, output_len: int, seed: int) -> list[Shot]:
    """Nothing in common. A rate of infinity sends all at once."""
    source = random.Random(seed)
    return [Shot(at, words(input_len, source), output_len) for at in _arrivals(count, rate, source)]


def shared_prefix(
    count: int, rate: float, input_len: int, output_len: int, seed: int, groups: int, share: float
) -> list[Shot]:
    """Requests of a group begin alike: `share` of each prompt is the group's."""
    source = random.Random(seed)
    common = [words(round(input_len * share), source) for _ in range(groups)]
    rest = input_len - round(input_len * share)
    return [
        Shot(at, f"{source.choice(common)} {words(rest, source)}", output_len)
        for at in _arrivals(count, rate, source)
    ]


def trace(path: Path, count: int, seed: int, speed: float = 1.0) -> list[Shot]:
    """JSON lines, as traces are published: timestamp in milliseconds, input_length, output_length, and hash_ids
    of blocks that requests have in common; or a prompt of one's own instead of length and hashes."""
    shots: list[Shot] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip() and len(shots) < count:
            try:
                shots.append(_traced(json.loads(line), seed + number, seed, speed))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}") from None
    return sorted(shots, key=lambda shot: shot.at)


def _traced(entry: dict, own: int, seed: int, speed: float) -> Shot:  # type: ignore[type-arg]
    at, output_len = float(entry["timestamp"]) / 1000 / speed, int(entry["output_length"])
    if "prompt" in entry:
        return Shot(at, str(entry["prompt"]), output_len)
    length, parts = int(entry["input_length"]), []
    for block in entry.get("hash_ids", [])[: length // BLOCK]:
        parts.append(words(BLOCK, random.Random(f"{seed}/{block}")))
    parts.append(words(length - BLOCK * len(parts), random.Random(own)))
    return Shot(at, " ".join(parts), output_len)


def _arrivals(count: int, rate: float, source: random.Random) -> Iterator[float]:
    at = 0.0
    for _ in range(count):
        yield at
        at += source.expovariate(rate) if rate != float("inf") else 0.0
