"""What is trained is what is served: the trainer's forward beside the engine's and transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tests.models.conformance import prompts
from torch import Tensor
from training.models import Model, build
from training.sample import answers

from holdfast import LLM, SamplingParams
from training import delta, hub

TOLERANCE = 1e-3
"""Of a log-probability, float32."""
KINDS = ("tiny-small", "tiny-lfm2")


def loud(kind: str) -> Model:
    """Every weight drawn: as they start, mixers say nothing."""
    model = build(hub.CONFIGS[kind]).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, it in model.named_parameters():
            noise = torch.randn(it.shape, generator=generator)
            if it.dim() > 1:
                it.copy_(noise * (0.3 if "embed" in name else it[0].numel() ** -0.5))
            else:
                it.add_(0.2 * noise)
            it.copy_(it.bfloat16())  # as it is saved
    return model


def logprobs(model: Model, tokens: list[int]) -> Tensor:
    """[tokens, vocab] after each"""
    padded = torch.tensor([tokens + [0] * (-len(tokens) % delta.CHUNK)])
    with torch.no_grad():
        return model.logits(model(padded)[0])[0, : len(tokens)].log_softmax(-1)


@pytest.mark.parametrize("alike", [False, True])
def test_chunks_give_what_the_definition_gives(alike: bool) -> None:
    """alike: every key is the same, nothing is forgotten: the worst case for what is solved in a chunk"""
    generator = torch.Generator().manual_seed(0)
    batch, length, heads, keys, values = 2, 3 * delta.CHUNK, 2, 16, 8
    q, k = (torch.randn(batch, length, heads, keys, generator=generator) for _ in "qk")
    v = torch.randn(batch, length, heads, values, generator=generator)
    log_g = -0.1 * torch.rand(batch, length, heads, generator=generator)
    beta = torch.rand(batch, length, heads, generator=generator)
    if alike:
        k, log_g, beta = k[:, :1].expand_as(k), log_g * 1e-3, 1 - 1e-3 * beta
    inputs = [it.requires_grad_() for it in (q, k / k.norm(dim=-1, keepdim=True), v, log_g, beta)]

    chunked = delta.gated_delta(*inputs)
    state, outputs = torch.zeros(batch, heads, keys, values), []
    for t in range(length):
        out, state = delta.step(state, *(it[:, t] for it in inputs))
        outputs.append(out)
    one_by_one = torch.stack(outputs, 1)

    torch.testing.assert_close(chunked, one_by_one, atol=1e-4, rtol=1e-4)
    loudness = torch.randn(chunked.shape, generator=generator)
    grads = (torch.autograd.grad((it * loudness).sum(), inputs) for it in (chunked, one_by_one))
    for found, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_serves_what_is_trained(kind: str, tmp_path: Path) -> None:
    model = loud(kind)
    hub.save(tmp_path, model.config, model.state_dict())
    llm = LLM(tmp_path, dtype="float32", max_num_seqs=4, max_model_len=256)
    asked = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True, logprobs=4, prompt_logprobs=4)
    for output in llm.generate(prompts(150, 65, 3, vocab=4096), asked):
        wanted = logprobs(model, [*output.prompt_token_ids, *output.token_ids])
        assert output.prompt_logprobs is not None and output.logprobs is not None
        scored = [*output.prompt_logprobs[1:], *output.logprobs]
        assert len({found.token_id for found in output.logprobs}) > 4  # a model that says something
        for place, found in enumerate(scored):
            assert found is not None
            for token, logprob in (*found.top, (found.token_id, found.logprob)):
                assert abs(logprob - float(wanted[place, token])) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_loads_the_files_unchanged(kind: str, tmp_path: Path) -> None:
    model = loud(kind)
    hub.save(tmp_path, model.config, model.state_dict())
    oracle, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["mismatched_keys"]
    assert all(name.startswith("mtp.") for name in report["unexpected_keys"])
    tokens = prompts(130, vocab=4096)[0]
    with torch.no_grad():
        wanted = oracle(torch.tensor([tokens])).logits[0].log_softmax(-1)
    torch.testing.assert_close(logprobs(model, tokens), wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_token_by_token_is_all_at_once(kind: str) -> None:
    model = loud(kind)
    questions = [torch.tensor(it).numpy() for it in prompts(40, 9, vocab=4096)]
    rows = answers(model, questions, 70, temperature=0.0, end=-1).tolist()
    for question, row in zip(questions, rows, strict=True):
        likeliest = logprobs(model, row).argmax(-1).tolist()
        assert row[: len(question)] == question.tolist()
        assert row[len(question) :] == likeliest[len(question) - 1 : -1]
