"""Stop strings: found wherever token boundaries fall, cut where they begin, and never shown in part."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import LLM, FinishReason, Rejected, SamplingParams, TokenLogprob
from holdfast.answer import Answer
from holdfast.executor.readback import InFlight
from holdfast.plan import StepPlan
from holdfast.request import Request
from holdfast.text import Detokenizer, StoppingText, StopStrings

from .conftest import ROOMY, Engines

LETTERS = st.text(alphabet="abé€😀", max_size=30)
STOPS = st.lists(st.text(alphabet="abé€😀", min_size=1, max_size=4), min_size=1, max_size=4)


def decode_bytes(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode("utf-8", errors="replace")


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """By trying every end, and every stop at it, the longest first."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return end - len(stop), stop
    return None


@given(text=LETTERS, stops=STOPS, cuts=st.sets(st.integers(0, 30)))
@example(text="abab", stops=["abab", "ba"], cuts=set())
def test_the_pieces_of_a_text_do_not_matter(text: str, stops: list[str], cuts: set[int]) -> None:
    finder, searched = StopStrings(stops), 0
    found = None
    for end in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        found = found or finder.find(text[:end], searched)
        searched = end
    assert found == first_stop(text, stops)


@given(text=LETTERS, stops=STOPS, include=st.booleans())
def test_bytes_of_characters_are_put_together_first(text: str, stops: list[str], include: bool) -> None:
    """One token for each byte: every character but a and b, and every longer stop, spans several."""
    stream = StoppingText(Detokenizer(decode_bytes), stops, include_stop=include)
    shown, stopped = [], False
    for byte in text.encode():
        stopped = stream.push(byte)
        shown.append(stream.text)
        if stopped:
            break
    stream.finish()
    shown.append(stream.text)
    found = first_stop(text, stops)
    assert stopped == (found is not None)
    assert stream.stop == (found[1] if found else None)
    end = len(text) if found is None else found[0] + (len(found[1]) if include else 0)
    assert stream.text == text[:end]
    if found is not None:
        assert stream.tokens == len(text[: found[0] + len(found[1])].encode())
    for before, after in itertools.pairwise(shown):
        assert after.startswith(before), "what was shown was taken back"


def test_no_more_is_held_back_than_may_be_a_stop() -> None:
    stream = StoppingText(Detokenizer(decode_bytes), ["END!"])
    seen = []
    for byte in b"the EN EEND?":
        stream.push(byte)
        seen.append(stream.text)
    assert seen[4:7] == ["the ", "the ", "the EN "]
    assert seen[-1] == "the EN EEND?"
    stream.push(ord("E"))
    stream.finish()
    assert stream.text == "the EN EEND?E"


@pytest.mark.parametrize(
    ("min_tokens", "text"),
    [(0, "a"), (2, "a"), (3, "axxb"), (5, "axxb"), (6, "axxbxxc"), (8, "axxbxxc"), (9, "axxbxxcxx")],
)
def test_a_stop_that_ends_within_min_tokens_is_text(min_tokens: int, text: str) -> None:
    stream = StoppingText(Detokenizer(decode_bytes), ["xx"], min_tokens=min_tokens)
    assert any(stream.push(byte) for byte in b"axxbxxcxx") == (min_tokens < 9)
    stream.finish()
    assert stream.text == text


def test_a_stop_may_begin_before_min_tokens_and_end_after() -> None:
    stream = StoppingText(Detokenizer(decode_bytes), ["xyz"], min_tokens=2)
    assert [stream.push(byte) for byte in b"xyz"] == [False, False, True]
    assert stream.text == ""


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("place", [0, 5, 15])
def test_an_answer_is_cut_where_the_stop_begins(
    engines: Engines, overlap: bool, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engines(**ROOMY, overlap=overlap)
    assert llm.tokenizer is not None
    params = dict(max_tokens=20, ignore_eos=True, logprobs=0)
    whole = llm.generate("A prompt", SamplingParams(**params))[0]
    stop = whole.text[place : place + 3]
    begin = whole.text.index(stop)
    completed = next(n for n in range(31) if stop in llm.tokenizer.decode(whole.token_ids[:n]))
    seen = sampled_by(llm, monkeypatch)
    cut = llm.generate("A prompt", SamplingParams(**params, stop=stop))[0]
    assert cut.text == whole.text[:begin]
    assert (cut.finish_reason, cut.stop_reason) == (FinishReason.STOP, stop)
    assert cut.token_ids == whole.token_ids[:completed]
    assert cut.logprobs is not None and whole.logprobs is not None
    assert cut.logprobs == whole.logprobs[: len(cut.token_ids)]
    assert completed <= seen[-1] <= completed + 1, "the engine went on"
    kept = llm.generate(
        "A prompt", SamplingParams(**params, stop=["###", stop], include_stop_str_in_output=True)
    )[0]
    assert kept.text == whole.text[: begin + 3]
    check_idle(llm)


def test_a_stop_of_several_bytes_each(engines: Engines) -> None:
    """Only the two bytes of é may be said: the answer is full of them, and of halves."""
    llm = engines(**ROOMY)
    bias = dict.fromkeys("é".encode(), 100.0)
    params = dict(temperature=1.0, seed=4, max_tokens=60, logit_bias=bias)
    whole = llm.generate("x", SamplingParams(**params))[0]
    assert "éé" in whole.text and "�" in whole.text
    cut = llm.generate("x", SamplingParams(**params, stop="éé"))[0]
    assert cut.text == whole.text[: whole.text.index("éé")]
    assert bytes(cut.token_ids).endswith("éé".encode())
    assert bytes(whole.token_ids).startswith(bytes(cut.token_ids))


def test_a_stream_shows_what_the_answer_will_be(engines: Engines) -> None:
    llm = engines(**ROOMY)
    params = dict(max_tokens=30, ignore_eos=True)
    whole = llm.generate("Another", SamplingParams(**params))[0].text
    stop = whole[12:15]
    outputs = list(llm.stream("Another", SamplingParams(**params, stop=stop)))
    texts = [output.text for output in outputs]
    assert texts[-1] == whole[: whole.index(stop)] and outputs[-1].stop_reason == stop
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
    check_idle(llm)


def test_the_last_token_may_complete_a_stop(engines: Engines) -> None:
    llm = engines(**ROOMY)
    whole = llm.generate("Third", SamplingParams(max_tokens=12, ignore_eos=True))[0]
    assert whole.finish_reason is FinishReason.LENGTH and whole.stop_reason is None
    length = next(n for n in range(3, 12) if whole.text[:n].index(whole.text[n - 2 : n]) == n - 2)
    params = SamplingParams(max_tokens=length, ignore_eos=True, stop=whole.text[length - 2 : length])
    cut = llm.generate("Third", params)[0]
    assert cut.finish_reason is FinishReason.STOP and cut.text == whole.text[: length - 2]
    assert len(cut.token_ids) == length


def test_others_go_on_when_one_is_stopped(engines: Engines) -> None:
    llm = engines(**ROOMY)
    plain = SamplingParams(max_tokens=12, ignore_eos=True)
    prompts = ["One", "Two", "Three", "Four"]
    alone = llm.generate(prompts, plain)
    stop = alone[1].text[4:6]
    stopping = SamplingParams(max_tokens=12, ignore_eos=True, stop=stop)
    together = llm.generate(prompts, [plain, stopping, plain, plain])
    assert together[1].text == alone[1].text[: alone[1].text.index(stop)]
    assert [together[i].token_ids for i in (0, 2, 3)] == [alone[i].token_ids for i in (0, 2, 3)]
    check_idle(llm)


def test_tokens_that_come_with_the_last_one_are_no_part_of_the_answer(engines: Engines) -> None:
    """A step may bring several tokens, and a stop string end among them."""
    request = Request("1", (1, 2), SamplingParams(stop="cd", logprobs=0))
    answer = Answer(request, engines(**ROOMY).tokenizer)
    request.tokens += b"abcdefg"
    request.logprobs += [TokenLogprob(token, -1.0) for token in b"abcdefg"]
    assert answer.advance() and not answer.advance()
    completion = answer.completion()
    assert (completion.text, bytes(completion.token_ids), completion.stop_reason) == ("ab", b"abcd", "cd")
    assert completion.logprobs is not None and len(completion.logprobs) == answer.length == 4
    assert answer.finished and completion.finish_reason is FinishReason.STOP


def test_stop_tokens_are_named(engines: Engines) -> None:
    llm = engines(**ROOMY)
    whole = llm.generate("Fifth", SamplingParams(max_tokens=20, ignore_eos=True))[0].token_ids
    token = whole[6]
    cut = llm.generate("Fifth", SamplingParams(max_tokens=20, ignore_eos=True, stop_token_ids=[token]))[0]
    assert cut.token_ids == whole[: whole.index(token) + 1]
    assert (cut.finish_reason, cut.stop_reason) == (FinishReason.STOP, token)


def test_text_needs_a_tokenizer(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = engines(**ROOMY)
    monkeypatch.setattr(llm._service.intake, "tokenizer", None)
    with pytest.raises(Rejected, match="use stop_token_ids"):
        llm.generate([[1, 2]], SamplingParams(stop="x"))
    assert llm.generate([[1, 2]], SamplingParams(max_tokens=2))[0].text == ""


def sampled_by(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens were sampled, after each step."""
    counts = [0]
    launch = llm._engine.runner.launch

    def count(plan: StepPlan) -> InFlight:
        counts.append(counts[-1] + sum(work.sample for work in plan.work))
        return launch(plan)

    monkeypatch.setattr(llm._engine.runner, "launch", count)
    return counts


def check_idle(llm: LLM) -> None:
    """Whatever a stopped request held has come back."""
    engine = llm._engine
    assert not engine.has_work and not llm._service._answers
    audit = engine.scheduler._cache.check()
    assert audit.clean, audit
    for census in (audit.rows, audit.slots, audit.pages):
        assert census.free + census.idle == census.total, audit
