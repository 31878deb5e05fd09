"""A request that cannot run is refused with a reason, and nobody else notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast import LLM, Rejected, SamplingParams
from holdfast.engine import EngineFailed

LENGTH = 200
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)
GOOD = [list(range(1, 70)), [5, 6, 7]]

BAD: dict[str, tuple[Any, str]] = {
    "empty": ([], "the prompt is empty; give at least one token"),
    "empty text": ("", "the prompt is empty; give at least one token"),
    "negative": ([1, -1, 2], "token -1 at place 1 of the prompt is not one of the 259"),
    "too large": ([1, 2, 259], "token 259 at place 2 of the prompt is not one of the 259"),
    "float": ([1, 2.0], "float 2.0 at place 1 of the prompt is no token id"),
    "bool": ([1, True], "bool True at place 1 of the prompt is no token id"),
    "text inside": ([1, "two"], "str 'two' at place 1 of the prompt is no token id"),
    "none inside": ([1, None], "NoneType None at place 1 of the prompt is no token id"),
    "float array": (np.array([1.0, 2.0]), "float 1.0 at place 0 of the prompt is no token id"),
    "too long": ([1] * LENGTH, f"the prompt has {LENGTH} tokens, and max_model_len={LENGTH} leaves room for"),
    "far too long": ([1] * 5000, "shorten the prompt or raise max_model_len"),
}
bad_prompts = pytest.mark.parametrize(("prompt", "sentence"), BAD.values(), ids=BAD)


@pytest.fixture(scope="module")
def llm(model_dir: Path) -> LLM:
    return LLM(model_dir, max_num_seqs=4, max_model_len=LENGTH)


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[tuple[int, ...]]:
    return [output.token_ids for output in llm.generate(GOOD, PARAMS)]


@pytest.fixture(autouse=True)
def nothing_is_left(llm: LLM, expected: list[tuple[int, ...]]) -> Any:
    """After each test: nobody runs or waits, and good prompts get what they always got."""
    yield
    assert not llm._engine.has_work
    assert [output.token_ids for output in llm.generate(GOOD, PARAMS)] == expected


@bad_prompts
def test_alone(llm: LLM, prompt: Any, sentence: str) -> None:
    with pytest.raises(Rejected) as refused:
        llm.generate([prompt], PARAMS)
    assert sentence in refused.value.reason and "prompts[" not in refused.value.reason
    assert "\n" not in str(refused.value)


@bad_prompts
def test_among_good_ones(llm: LLM, prompt: Any, sentence: str) -> None:
    """Which of them it was is said, and none is run."""
    steps = llm._engine.scheduler.counters.steps
    with pytest.raises(Rejected) as refused:
        llm.generate([GOOD[0], prompt, GOOD[1]], PARAMS)
    assert refused.value.reason.startswith("prompts[1]: ") and sentence in refused.value.reason
    assert llm._engine.scheduler.counters.steps == steps


@bad_prompts
def test_streamed(llm: LLM, prompt: Any, sentence: str) -> None:
    with pytest.raises(Rejected) as refused:
        llm.stream(prompt, PARAMS)
    assert sentence in refused.value.reason


@bad_prompts
def test_while_another_streams(llm: LLM, prompt: Any, sentence: str, expected: list[tuple[int, ...]]) -> None:
    streams = [llm.stream(good, PARAMS) for good in GOOD]
    for number, stream in enumerate(streams):
        last = next(stream)
        for refused in (lambda: llm.generate([GOOD[0], prompt], PARAMS), lambda: llm.stream(prompt, PARAMS)):
            with pytest.raises(Rejected):
                refused()
        for last in stream:  # noqa: B007  the last one is wanted
            pass
        assert last.token_ids == expected[number]


def test_a_bad_prompt_costs_a_running_stream_not_even_a_step(llm: LLM) -> None:
    stream = llm.stream(GOOD[0], PARAMS)
    next(stream)
    before = llm._engine.scheduler.counters.steps
    with pytest.raises(Rejected):
        llm.generate([GOOD[1], [-1]], PARAMS)
    assert llm._engine.scheduler.counters.steps == before
    assert len(list(stream)) > 0


# What is no prompt at all


@pytest.mark.parametrize("prompts", [None, 5, 1.5, b"bytes", {"prompt": "Hi"}, object()])
def test_no_prompts(llm: LLM, prompts: Any) -> None:
    with pytest.raises(TypeError, match="prompts must be a string or a list of token ids, or a list of such"):
        llm.generate(prompts, PARAMS)


@pytest.mark.parametrize("prompt", [None, b"bytes", {"prompt": "Hi"}])
def test_no_prompt_among_others(llm: LLM, prompt: Any) -> None:
    with pytest.raises(Rejected, match=r"prompts\[1\]: a prompt is a string or a list of token ids, not"):
        llm.generate([GOOD[0], prompt], PARAMS)


@pytest.mark.parametrize("messages", ["Hi", [], ["Hi"], [[{"role": "user"}], "Hi"], None, {"role": "user"}])
def test_no_messages(llm: LLM, messages: Any) -> None:
    if messages == []:
        assert llm.chat(messages, PARAMS) == []
        return
    with pytest.raises(TypeError, match="chat takes a list of messages"):
        llm.chat(messages, PARAMS)


@pytest.mark.parametrize("params", ["greedy", {"temperature": 0}, 5, [PARAMS, None]])
def test_no_params(llm: LLM, params: Any) -> None:
    with pytest.raises(TypeError, match="params must be SamplingParams, or a list of them, not"):
        llm.generate(GOOD, params)


def test_as_many_params_as_prompts(llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 prompts but 3 SamplingParams; give one for all, or one for each"):
        llm.generate(GOOD, [PARAMS] * 3)


# What will do for a prompt


def test_arrays_and_tensors_will_do(llm: LLM, expected: list[tuple[int, ...]]) -> None:
    for prompt in (np.array(GOOD[1]), torch.tensor(GOOD[1]), tuple(GOOD[1]), [np.int64(t) for t in GOOD[1]]):
        assert llm.generate(prompt, PARAMS)[0].token_ids == expected[1]
        assert llm.generate([prompt], PARAMS)[0].token_ids == expected[1]
    assert len(llm.generate(np.array([[1, 2], [3, 4]]), PARAMS)) == 2
    assert llm.generate([], PARAMS) == []


def test_the_longest_prompt_that_fits(llm: LLM) -> None:
    [output] = llm.generate([[1] * (LENGTH - 1)], PARAMS)
    assert len(output.token_ids) == 1 and output.finish_reason == "length"


# Text without a tokenizer


@pytest.fixture(scope="module")
def no_tokenizer(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    directory = tmp_path_factory.mktemp("bare")
    for name in ("config.json", "model.safetensors"):
        (directory / name).write_bytes((model_dir / name).read_bytes())
    return LLM(directory, max_num_seqs=4, max_model_len=LENGTH)


def test_text_needs_a_tokenizer(no_tokenizer: LLM) -> None:
    sentence = "the model's directory has no tokenizer.json, so prompts must be token ids"
    with pytest.raises(Rejected, match=sentence):
        no_tokenizer.generate("Hi", PARAMS)
    with pytest.raises(Rejected, match=sentence):
        no_tokenizer.stream([{"role": "user", "content": "Hi"}], PARAMS)
    with pytest.raises(ValueError, match=sentence):
        no_tokenizer.chat([{"role": "user", "content": "Hi"}], PARAMS)
    assert len(no_tokenizer.generate([1, 2], PARAMS)[0].token_ids) == 6


# Pools that are too small for what comes


def test_a_prompt_that_the_pools_can_never_hold(model_dir: Path) -> None:
    llm = LLM(model_dir, num_pages=2, max_num_seqs=2)
    assert llm.capacity.limits.max_model_len == 127
    with pytest.raises(
        Rejected, match="the prompt has 127 tokens, and max_model_len=127 leaves room for 126"
    ):
        llm.generate([[1] * 127], PARAMS)
    [output] = llm.generate([[1] * 126], PARAMS)
    assert len(output.token_ids) == 1


# A step that breaks off


def test_after_a_broken_step_the_engine_says_so_and_does_not_hang(model_dir: Path) -> None:
    llm = LLM(model_dir, max_num_seqs=2, max_model_len=LENGTH)
    launch = llm._engine.runner.launch

    def break_off(plan: Any) -> Any:
        raise RuntimeError("out of memory")

    llm._engine.runner.launch = break_off  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory"):
        llm.generate(GOOD, PARAMS)
    llm._engine.runner.launch = launch  # type: ignore[method-assign]
    with pytest.raises(
        EngineFailed, match=r"broke off \(RuntimeError\('out of memory'\)\); load the model anew"
    ):
        llm.generate(GOOD, PARAMS)
