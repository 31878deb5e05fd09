"""How `resolve` divides memory, with costs that fit on a page. No model and no device is needed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import ConfigError, EngineConfig, Limits, ModelFacts
from holdfast.resolve import CHECKPOINTS_PER_ROW, Costs, resolve
from holdfast.units import enough_bytes, format_bytes, parse_bytes

WEIGHTS, PAGE, SLOT, ROW, POSITION = 1000, 16, 300, 7, 1


def fixed(limits: Limits) -> int:
    rows = limits.max_num_seqs + 1
    return WEIGHTS + rows * ROW + rows * limits.max_model_len * POSITION


HYBRID = Costs(weights=WEIGHTS, page=PAGE, slot=SLOT, fixed=fixed)
NO_STATE = replace(HYBRID, slot=0)
NO_KV = replace(HYBRID, page=0)


def total(limits: Limits, costs: Costs) -> int:
    return costs.fixed(limits) + limits.num_pages * costs.page + limits.num_slots * costs.slot


def drafting(count: int) -> dict[str, Any]:
    config = {"method": "ngram", "num_speculative_tokens": count}
    return {"speculative_config": config if count else None}


def divide(
    costs: Costs = HYBRID, available: int | None = None, positions: int = 4096, **options: Any
) -> Limits:
    facts = ModelFacts(vocab_size=100, max_positions=positions, recurrent=costs.slot > 0)
    return resolve(EngineConfig(**options), facts, costs, available)


# What comes out is within the budget, and nothing useful is left over


@given(
    memory=st.integers(1000, 200_000),
    rows=st.integers(1, 9),
    positions=st.integers(2, 5000),
    length=st.none() | st.integers(2, 5000),
    drafts=st.integers(0, 5),
    costs=st.sampled_from([HYBRID, NO_STATE, NO_KV]),
    num_pages=st.none() | st.integers(1, 200),
    num_slots=st.none() | st.integers(1, 20),
)
def test_the_memory_is_divided_or_the_refusal_is_explained(
    memory: int,
    rows: int,
    positions: int,
    length: int | None,
    drafts: int,
    costs: Costs,
    num_pages: int | None,
    num_slots: int | None,
) -> None:
    options = dict(memory=memory, max_num_seqs=rows, max_model_len=length, **drafting(drafts))
    options |= dict(num_pages=num_pages, num_slots=num_slots)
    try:
        limits = divide(costs, positions=positions, **options)
    except ConfigError as refused:
        assert re.search(r"needs .* memory='\d+MiB'|cannot hold one request|the model has", str(refused))
        return
    recurrent = costs.slot > 0
    assert total(limits, costs) <= memory
    assert limits.num_pages >= limits.pages_per_row, "one request of full length must fit"
    assert limits.num_pages == (num_pages or limits.num_pages)
    assert limits.num_slots == (num_slots or limits.num_slots if recurrent else 0)
    assert limits.num_checkpoints == (
        max(0, num_slots - rows) if num_slots and recurrent else limits.num_checkpoints
    )
    assert limits.max_model_len == (length or limits.max_model_len) <= positions
    assert limits.running_slots >= 1 or not recurrent
    if num_pages is None:
        useful = (1 + CHECKPOINTS_PER_ROW) * rows * limits.pages_per_row + 1
        assert limits.num_pages == useful or total(limits, costs) + costs.page > memory
    if num_slots is None and recurrent:
        assert limits.running_slots <= rows and limits.num_checkpoints <= CHECKPOINTS_PER_ROW * rows


@given(memory=st.integers(5_000, 100_000), slots=st.integers(1, 5), rows=st.integers(1, 8))
def test_a_context_that_was_not_asked_for_is_cut_to_what_fits(memory: int, slots: int, rows: int) -> None:
    options = dict(memory=memory, num_slots=slots, max_num_seqs=rows)
    limits = divide(**options)
    if limits.max_model_len < 4096:
        with pytest.raises(ConfigError):
            divide(**options, max_model_len=limits.max_model_len + 1)


def test_everything_useful_is_had_where_there_is_room() -> None:
    limits = divide(memory=10**9, max_num_seqs=4)
    assert (limits.max_model_len, limits.running_slots, limits.num_checkpoints) == (4096, 4, 16)
    assert limits.num_pages == 20 * limits.pages_per_row + 1
    assert divide(max_num_seqs=4) == limits, "where nothing is known of the memory, there is enough"


def test_short_memory_goes_to_slots_and_pages_as_requests_of_2048_tokens_need_them() -> None:
    each = SLOT + 33 * PAGE
    limits = divide(memory=WEIGHTS + 9 * (ROW + 2048) + 5 * each, max_num_seqs=8)
    assert limits.running_slots == 5
    limits = divide(NO_STATE, memory=60_000, max_num_seqs=8)
    assert limits.num_slots == 0


def test_a_context_that_was_asked_for_comes_before_further_slots() -> None:
    memory = fixed(divide(max_num_seqs=8, max_model_len=4000)) + 63 * PAGE + 2 * SLOT
    limits = divide(memory=memory, max_num_seqs=8, max_model_len=4000)
    assert (limits.num_slots, limits.num_pages) == (2, 63)


def test_explicit_pools_leave_the_rest_alone() -> None:
    limits = divide(memory=60_000, num_pages=70, max_num_seqs=8)
    assert limits.num_pages == 70 and limits.running_slots == 8
    limits = divide(memory=60_000, num_slots=3, max_num_seqs=8)
    assert limits.num_slots == 3 and limits.num_pages > 65


def test_checkpoints_get_a_quarter_of_what_is_left_or_what_was_asked_for() -> None:
    needed = fixed(divide(max_num_seqs=4, max_model_len=2048)) + 4 * SLOT + 33 * PAGE
    limits = divide(memory=needed + 4 * 5 * SLOT, max_num_seqs=4, max_model_len=2048)
    assert (limits.running_slots, limits.num_checkpoints) == (4, 5)
    limits = divide(
        memory=needed + 7 * SLOT + 99 * PAGE, max_num_seqs=4, max_model_len=2048, num_checkpoints=7
    )
    assert (limits.running_slots, limits.num_checkpoints, limits.num_slots) == (4, 7, 11)
    assert divide(NO_STATE, num_checkpoints=7).num_checkpoints == 0


@pytest.mark.parametrize(
    ("options", "running", "kept"),
    [
        ({"num_slots": 10}, 4, 6),
        ({"num_slots": 3}, 3, 0),
        ({"num_slots": 10, "num_checkpoints": 8}, 2, 8),
        ({"num_slots": 10, "enable_prefix_caching": False}, 10, 0),
        ({"enable_prefix_caching": False, "num_checkpoints": 5}, 4, 0),
        ({"num_checkpoints": 0}, 4, 0),
    ],
)
def test_slots_beyond_the_rows_keep_prefixes(options: dict[str, Any], running: int, kept: int) -> None:
    limits = divide(max_num_seqs=4, **options)
    assert (limits.running_slots, limits.num_checkpoints) == (running, kept)


def test_without_prefix_caching_no_page_is_kept_for_later() -> None:
    limits = divide(max_num_seqs=4, enable_prefix_caching=False)
    assert limits.num_pages == 4 * limits.pages_per_row + 1


def test_pages_that_were_given_bound_a_context_that_was_not() -> None:
    limits = divide(num_pages=5)
    assert limits.max_model_len == 5 * 64 - 1 and limits.pages_per_row == 5
    assert divide(num_pages=5, **drafting(3)).max_model_len == 5 * 64 - 4


# When nothing was said about memory


def test_a_gpu_is_taken_but_for_a_tenth() -> None:
    limits = divide(device="cuda", available=100_000, max_num_seqs=8, positions=100_000)
    assert 90_000 - PAGE < total(limits, HYBRID) <= 90_000


def test_a_cpu_gives_a_quarter_beside_one_request() -> None:
    needed = fixed(divide(max_num_seqs=8, max_model_len=2048)) + SLOT + 33 * PAGE
    limits = divide(available=needed + 4 * 10_000, max_num_seqs=8, positions=100_000)
    assert needed + 10_000 - PAGE - 9 < total(limits, HYBRID) <= needed + 10_000


def test_a_cpu_gives_more_for_what_was_asked_in_as_many_words() -> None:
    needed = fixed(divide(max_num_seqs=2, max_model_len=4000)) + SLOT + 63 * PAGE
    assert divide(available=needed * 2, max_num_seqs=2, max_model_len=4000).max_model_len == 4000
    with pytest.raises(ConfigError, match="nine tenths of what is free"):
        divide(available=needed, max_num_seqs=2, max_model_len=4000)


# Refusals, and whether their advice helps


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        divide(**options)
    return str(caught.value)


def test_memory_too_small_for_one_request() -> None:
    options: dict[str, Any] = dict(max_num_seqs=2, max_model_len=4000)
    message = refusal(memory=10_000, **options)
    assert message.startswith(
        "one request of max_model_len=4000 tokens needs 13.99 KiB: weights take 1000 B; "
    )
    assert "only 9.77 KiB, memory=10000" in message
    memory = re.search(r"give memory='(\w+)'", message)
    shorter = re.search(r"lower max_model_len to (\d+)", message)
    assert memory and shorter
    assert divide(memory=memory[1], **options).max_model_len == 4000
    assert divide(memory=10_000, max_num_seqs=2, max_model_len=int(shorter[1])).num_slots == 1
    refusal(memory=10_000, max_num_seqs=2, max_model_len=int(shorter[1]) + 1)


def test_memory_too_small_for_anything() -> None:
    for options in ({}, {"max_model_len": 100}):
        message = refusal(memory=900, **options)
        assert "lower max_model_len" not in message, "it would not help"
        assert "give memory='1MiB'" in message


def test_pools_that_exceed_the_memory() -> None:
    message = refusal(memory=20_000, num_pages=2000, num_slots=3, max_num_seqs=2)
    assert "num_pages, num_slots, max_num_seqs=2 and max_num_batched_tokens=2048 3" in message


def test_pages_too_few_for_the_context() -> None:
    assert refusal(num_pages=5, max_model_len=400) == (
        "num_pages=5 cannot hold one request of max_model_len=400 tokens, which takes 7 pages of 64; "
        "raise num_pages or lower max_model_len"
    )


def test_checkpoints_that_leave_no_slot_to_run_in() -> None:
    assert refusal(num_slots=4, num_checkpoints=4) == (
        "num_checkpoints=4 of num_slots=4 leave no slot to run in; raise num_slots"
    )


def test_a_context_longer_than_the_model() -> None:
    assert refusal(max_model_len=5000) == "max_model_len=5000: the model has 4096 positions"


# Sizes as people write them


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 << 30),
        ("500 MiB", 500 << 20),
        ("1.5GB", 1_500_000_000),
        ("2kb", 2000),
        ("1TiB", 1 << 40),
        ("4096", 4096),
        (4096, 4096),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "8 apples", "-1GiB", "8G", "0x10", "1e9", 1.5, True, None])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a size: write it like 80GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (51_511_296, "49.12 MiB"), (80 << 30, "80.00 GiB")],
)
def test_sizes_are_shown(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(1, 1 << 45))
def test_an_advised_size_is_enough(size: int) -> None:
    assert size <= parse_bytes(enough_bytes(size)) < size + (1 << 20)
