"""The official client, unmodified."""

from __future__ import annotations

import openai
import pytest

from holdfast import LLM, SamplingParams

from .running import Running

MESSAGES = [{"role": "user", "content": "What is a tide?"}]


def test_a_chat_is_what_the_offline_api_says(client: openai.OpenAI, offline: LLM) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_completion_tokens=24, temperature=0.8, seed=7
    )
    [expected] = offline.chat(MESSAGES, SamplingParams(max_tokens=24, temperature=0.8, seed=7))
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer._request_id


def test_a_stream_is_the_same_in_pieces(client: openai.OpenAI, offline: LLM) -> None:
    options = {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 40,
        "temperature": 1.0,
        "seed": 3,
        "n": 3,
    }
    chunks = list(
        client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    )
    [expected] = offline.chat(MESSAGES, SamplingParams(max_tokens=40, temperature=1.0, seed=3, n=3))
    texts, reasons = ["", "", ""], {}
    assert chunks[0].choices[0].delta.role == "assistant"
    for chunk in chunks[:-1]:
        assert chunk.usage is None
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert texts == [each.text for each in expected.outputs]
    assert [reasons[index] for index in range(3)] == [each.finish_reason for each in expected.outputs]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == sum(len(each.token_ids) for each in expected.outputs)
    assert len(chunks) > 10


def test_log_probabilities_of_a_chat(client: openai.OpenAI, offline: LLM) -> None:
    params = SamplingParams(max_tokens=6, temperature=0.0, logprobs=3)
    [expected] = offline.chat(MESSAGES, params)
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    found = answer.choices[0].logprobs.content
    assert [each.logprob for each in found] == [each.logprob for each in expected.logprobs]
    assert [[t.logprob for t in each.top_logprobs] for each in found] == [
        [value for _, value in each.top] for each in expected.logprobs
    ]
    said = offline.tokenizer
    assert [each.token for each in found] == [said.decode([token]) for token in expected.token_ids]
    assert [bytes(each.bytes).decode() for each in found] == [each.token for each in found]


def test_streamed_log_probabilities_are_those_of_the_whole(client: openai.OpenAI) -> None:
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 9, "seed": 5, "logprobs": True}
    whole = client.chat.completions.create(**options)
    streamed = [
        scored
        for chunk in client.chat.completions.create(**options, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for scored in choice.logprobs.content
    ]
    assert streamed == whole.choices[0].logprobs.content and len(streamed) == 9


def test_a_prompt_is_scored(client: openai.OpenAI, offline: LLM) -> None:
    """As harnesses ask for it: token ids, echo, no answer."""
    prompt = list(b"The tide rises, the tide falls")
    [expected] = offline.generate([prompt], SamplingParams(max_tokens=1, prompt_logprobs=2))
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=0, echo=True, logprobs=2)
    choice = answer.choices[0]
    assert choice.text == "The tide rises, the tide falls" and choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 0
    assert choice.logprobs.tokens == list(choice.text)
    assert choice.logprobs.text_offset == list(range(len(prompt)))
    assert choice.logprobs.token_logprobs == [None, *(each.logprob for each in expected.prompt_logprobs[1:])]
    assert choice.logprobs.top_logprobs[0] is None and len(choice.logprobs.top_logprobs[1]) == 2


def test_echo_streams_the_prompt_first(client: openai.OpenAI, offline: LLM) -> None:
    options = {"model": "tiny", "prompt": "Low water", "max_tokens": 5, "seed": 1, "logprobs": 0, "n": 2}
    whole = client.completions.create(**options, echo=True)
    alone = client.completions.create(**options)
    assert [c.text for c in whole.choices] == ["Low water" + c.text for c in alone.choices]
    texts, tokens, offsets = ["", ""], [[], []], [[], []]
    for chunk in client.completions.create(**options, echo=True, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
            offsets[choice.index] += choice.logprobs.text_offset
    assert texts == [c.text for c in whole.choices]
    assert tokens == [c.logprobs.tokens for c in whole.choices]
    assert offsets == [c.logprobs.text_offset for c in whole.choices]


def test_several_prompts_in_one_request(client: openai.OpenAI, offline: LLM) -> None:
    prompts = ["ebb", "flood", "slack"]
    params = SamplingParams(max_tokens=8, temperature=0.9, seed=2, n=2)
    answer = client.completions.create(
        model="tiny", prompt=prompts, max_tokens=8, temperature=0.9, seed=2, n=2
    )
    expected = offline.generate(prompts, params)
    assert [c.text for c in answer.choices] == [each.text for o in expected for each in o.outputs]
    assert [c.index for c in answer.choices] == list(range(6))


def test_stop_strings_and_penalties(client: openai.OpenAI, offline: LLM) -> None:
    plain = offline.generate(["tide"], SamplingParams(max_tokens=60, temperature=0.0))[0].text
    stop = plain[20:23]
    answer = client.completions.create(model="tiny", prompt="tide", max_tokens=60, temperature=0, stop=[stop])
    assert answer.choices[0].text == plain[: plain.index(stop)]
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].stop_reason == stop
    options = {"presence_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": {"65": 5, "66": -100}}
    answer = client.completions.create(model="tiny", prompt="tide", max_tokens=20, temperature=0, **options)
    params = SamplingParams(
        max_tokens=20, presence_penalty=1.5, frequency_penalty=0.5, logit_bias={65: 5, 66: -100}
    )
    assert answer.choices[0].text == offline.generate(["tide"], params)[0].text


def test_what_others_computed_is_reported(client: openai.OpenAI) -> None:
    prompt = list(range(3, 200))
    first = client.completions.create(model="tiny", prompt=prompt, max_tokens=2)
    again = client.completions.create(model="tiny", prompt=prompt, max_tokens=2)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens_details.cached_tokens >= 128


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="'other' here"):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature=-1"),
        ({"max_tokens": 401}, openai.BadRequestError, "more than this server gives: 400"),
        ({"n": 1000}, openai.BadRequestError, "1000 answers were asked for at once; the most is 64"),
        ({"top_logprobs": 2}, openai.BadRequestError, "top_logprobs needs logprobs=true"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "function is missing"),
        ({"response_format": {"type": "xml"}}, openai.BadRequestError, "response_format.type"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "did you mean 'temperature'"),
        ({"messages": []}, openai.BadRequestError, "messages is empty"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, openai.BadRequestError, "max_model_len=512"),
        ({"model": "gpt"}, openai.NotFoundError, "there is no model 'gpt'"),
    ],
)
def test_errors_are_the_clients_own_exceptions(
    client: openai.OpenAI, options: dict, kind: type[openai.APIStatusError], sentence: str
) -> None:
    with pytest.raises(kind) as refused:
        client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, "max_tokens": 4} | options)
    assert sentence in refused.value.message
    assert refused.value.body["message"]


def test_a_wrong_key(server: Running) -> None:
    for key in ("wrong", "other,sesame"):
        stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
    assert openai.OpenAI(base_url=f"{server.url}/v1", api_key="other").models.list()
