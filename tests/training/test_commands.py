"""The commands from texts to drafters, on a pocket-sized model."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from training.chat import Turn, pieces
from training.models import build
from training.muon import Optimizer, Rates, orthogonal
from training.prepare import NOT_LEARNED
from training.rows import Rows, batch, heldout_tasks
from training.tasks import RECALL, TASKS

from holdfast import LLM, SamplingParams
from training import drafters, hub, prepare, train

WORDS = list("abcdefghijklmnopqrstuvwxyz")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw, out = tmp_path_factory.mktemp("raw"), tmp_path_factory.mktemp("data")
    random = Random(0)

    def talk(path: Path, count: int) -> None:
        rows = []
        for number in range(count):
            answer = " ".join(random.sample(WORDS, len(WORDS))) + f" {number}."
            asked = f"Say {random.choice(WORDS)} {number}."
            rows.append({"kind": "ask", "prompt": asked, "response": answer, "whole": True})
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))

    talk(raw / "small_talk" / "train-00.jsonl.xz", 300)
    talk(raw / "small_talk" / "heldout.jsonl.xz", 100)
    (raw / "gsm8k").mkdir()
    problem = {"question": "How much is 2 + 2?", "answer": "It is 2 + 2 = <<2+2=4>>4.\n#### 4"}
    (raw / "gsm8k" / "train.jsonl").write_text(json.dumps(problem) + "\n")
    (raw / "shakespeare_full").mkdir()
    (raw / "shakespeare_full" / "shakespeare.txt").write_text("To be, or not to be:\n" * 6000)
    prepare.main(["--data", str(raw), "--out", str(out)])
    return out


def tiny(data: Path, out: Path, *more: str) -> list[str]:
    common = ["--what", "tiny-small", "--data", str(data), "--out", str(out), "--minutes", "0.01"]
    return [*common, "--batch", "1", "--length", "256", "--workers", "0", *more]


def test_a_run_is_continued_and_served(data: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    train.main(tiny(data, first, "--total-minutes", "0.02"))
    assert (first / "progress.json").is_file()
    train.main(tiny(data, second, "--total-minutes", "0.02", "--resume", str(first)))
    assert sorted(it.name for it in second.iterdir()) == ["config.json", "log.jsonl", "model.safetensors"]
    log = [json.loads(line) for line in (second / "log.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in log if "step" in line]
    assert steps == sorted(steps) and log[-1]["final"]

    options = [
        "--minutes",
        "0.01",
        "--questions",
        "2",
        "--rounds",
        "1",
        "--answer-length",
        "64",
        "--batch",
        "2",
    ]
    begin = ["--target", str(second), "--data", str(data), *options]
    drafters.main([*begin, "--out", str(tmp_path / "drafters")])
    again = ["--what", "eagle3", "--minutes", "0", "--resume", str(tmp_path / "drafters"), "--seed", "1"]
    drafters.main([*begin, *again, "--out", str(tmp_path / "resumed")])
    made, resumed = (
        load_file(tmp_path / it / "eagle3" / "model.safetensors") for it in ("drafters", "resumed")
    )
    assert made.keys() == resumed.keys() and all(torch.equal(made[name], resumed[name]) for name in made)
    target = load_file(second / "model.safetensors")
    trained = load_file(tmp_path / "drafters" / "model.safetensors")
    changed = {name for name in target if not torch.equal(target[name], trained[name])}
    assert changed and all(name.startswith("mtp.") for name in changed)
    llm = LLM(tmp_path / "drafters", max_num_seqs=1, max_model_len=64)
    [output] = llm.generate([[1, 5, 9]], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
    assert len(output.token_ids) == 4


def test_what_is_resumed_is_what_was_saved(tmp_path: Path) -> None:
    model = build(hub.TINY_LFM2).to(train.DEVICE)
    optimizer = Optimizer(model.named_parameters(), Rates())
    tokens = torch.randint(4096, (1, 65), generator=torch.Generator().manual_seed(0)).to(train.DEVICE)
    train.training_step(model, batch(tokens), 0.0)
    optimizer.step(1.0)
    train.save(tmp_path, model, optimizer, train.Progress(step=1), finished=False)

    again = build(hub.TINY_LFM2).to(train.DEVICE)
    resumed = Optimizer(again.named_parameters(), Rates())
    assert train.resume(tmp_path, again, resumed).step == resumed.steps == 1
    for name, it in model.named_parameters():
        torch.testing.assert_close(dict(again.named_parameters())[name], it, rtol=2**-15, atol=1e-12)
        torch.testing.assert_close(resumed.first[name], optimizer.first[name], rtol=2**-8, atol=1e-12)


def test_only_answers_of_tasks_are_learnt(data: Path) -> None:
    found = batch(heldout_tasks(data, "copy", 40, 256, 1))
    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    learned = tokenizer.decode(found.targets[found.targets >= 0].tolist(), skip_special_tokens=False)
    asked = tokenizer.decode(found.tokens[0].tolist(), skip_special_tokens=False)
    text = learned.removesuffix("<|im_end|>")
    assert text != learned and asked.count(text) == 2  # in the question and in the answer


def test_rows_are_full_and_start_with_a_document(data: Path) -> None:
    rows = Rows(data, batch=8, length=256, tasks=0.5, seed=0)
    found = next(iter(rows))
    assert found.shape == (8, 257)
    assert ((found & ~NOT_LEARNED) < 4096).all()
    assert torch.equal(found, next(iter(rows)))  # by the seed alone


@pytest.mark.parametrize("name", list(TASKS))
def test_an_answer_can_be_found_in_what_was_said(name: str) -> None:
    random = Random(name)
    for tokens in (24, 200, 1000):
        turns = TASKS[name](random, tokens)
        assert turns and all(turn.user and turn.assistant for turn in turns)
        if name in RECALL:
            assert all(turn.assistant in turns[0].user for turn in turns)
        else:
            for turn in turns:
                sum_, result = turn.assistant.split(" = ")
                assert eval(sum_) == int(result)


def test_pieces_are_the_chat_template() -> None:
    text = "".join(piece.text for piece in pieces([Turn("a", "b")], learn_questions=False))
    assert text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|endoftext|>"


def test_orthogonal_has_singular_values_near_one() -> None:
    x = torch.randn(3, 48, 32, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(x))
    assert values.min() > 0.5 and values.max() < 1.5
