"""Answers have the form that was asked for, whatever else the engine does meanwhile."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from tests.random_model import ENDOFTEXT, IM_END, random_model
from tests.spec.drafters import Blind, Knowing, KnowingTree, speculating

from holdfast import LLM, Rejected, SamplingParams, Structured, engine
from holdfast.executor.inputs import uniform_shapes
from holdfast.executor.runner import Runner
from holdfast.grammar import Matcher
from holdfast.request import FinishReason

ENGINE: dict[str, Any] = dict(exact=True, max_num_seqs=4, max_model_len=256, page_size=16)
TIGHT = ENGINE | dict(max_model_len=128, num_pages=9, num_slots=4)
"""Pages for one request of full length: of several that grow, some are pre-empted."""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["ebb", "flow"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ENDS = (IM_END, ENDOFTEXT)
CHOICES = ["high tide", "high water", "naïve"]
FORMS: dict[str, tuple[Structured | None, Callable[[str], object]]] = {
    "json": (Structured(json=SCHEMA), lambda text: jsonschema.validate(json.loads(text), SCHEMA)),
    "regex": (
        Structured(regex=r"(\d{1,3}\.){3}\d{1,3}"),
        lambda text: _matches(r"(\d{1,3}\.){3}\d{1,3}", text),
    ),
    "choice": (
        Structured(choice=["high tide", "high water", "naïve"]),
        lambda text: text in FORMS["choice"][0].choice,
    ),
    "grammar": (
        Structured(grammar='start: sum\nsum: NUMBER ("+" NUMBER)~1..4\nNUMBER: /[1-9][0-9]{0,2}/'),
        lambda text: _matches(r"[1-9]\d{0,2}(\+[1-9]\d{0,2}){1,4}", text),
    ),
    "after": (
        Structured(choice=["yes", "no"], after="L"),
        lambda text: _matches(r"(?s)[^L]*L(yes|no)", text),
    ),
    "none": (None, lambda text: None),
}
PROMPTS = [f"Tide {number}: what is it?" for number in range(2 * len(FORMS))]


def _matches(pattern: str, text: str) -> None:
    assert re.fullmatch(pattern, text), text


def every_form() -> list[SamplingParams]:
    """Greedy ones, then drawn ones."""
    return [
        SamplingParams(structured=form, max_tokens=most, temperature=temperature, seed=seed)
        for temperature in (0.0, 0.8)
        for seed, (form, _) in enumerate(FORMS.values())
        for most in [16 if form is None else 90]
    ]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(random_model(), **ENGINE)


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    """One at a time, with nothing on."""
    llm = LLM(random_model(), **ENGINE | dict(max_num_seqs=1, overlap=False))
    outputs = [llm.generate([prompt], p)[0] for prompt, p in zip(PROMPTS, every_form(), strict=True)]
    for output, (form, check) in zip(outputs, [*FORMS.values()] * 2, strict=True):
        if form is not None:
            assert output.finish_reason is FinishReason.STOP, output.text
            check(output.text)
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 16, "sanitizer": "full"},
    ],
    ids=["together", "in chunks and watched"],
)
def test_the_same_answers_together(options: dict[str, Any], expected: list[tuple[int, ...]]) -> None:
    llm = LLM(random_model(), **ENGINE | options)
    assert [output.token_ids for output in llm.generate(PROMPTS, every_form())] == expected


def test_in_uniform_steps_as_a_gpu_has_them(
    monkeypatch: pytest.MonkeyPatch, expected: list[tuple[int, ...]]
) -> None:
    """In which lanes have places that nobody chooses at, between those that are masked."""

    def uniform(ensemble: Any, limits: Any, *args: Any, **options: Any) -> Runner:
        shapes = uniform_shapes(limits, (0, limits.max_drafts))
        return Runner(ensemble, limits, *args, **options | {"shapes": shapes})

    monkeypatch.setattr(engine, "Runner", uniform)
    spec = {"method": "ngram", "num_speculative_tokens": 3}
    llm = LLM(random_model(), eager=True, speculative_config=spec, **ENGINE)
    assert [output.token_ids for output in llm.generate(PROMPTS, every_form())] == expected


def test_pre_empted_in_the_middle_of_a_form(expected: list[tuple[int, ...]]) -> None:
    llm = LLM(random_model(), **TIGHT)
    outputs = llm.generate(PROMPTS, every_form())
    assert [output.token_ids for output in outputs] == expected
    assert llm._engine.scheduler.counters.preempted > 0


@pytest.mark.parametrize("kind", ["blind", "chain", "tree"])
def test_drafts_change_nothing(kind: str, llm: LLM, expected: list[tuple[int, ...]]) -> None:
    """Right ones and wrong ones, permitted or not: the answer is the one without drafts."""
    prompts = [list(llm.tokenizer.encode(prompt)) for prompt in PROMPTS]
    said = [[token for token in answer if token != IM_END] for answer in expected]
    texts = [[*prompt, *answer] for prompt, answer in zip(prompts, said, strict=True)]
    drafter: Any = {
        "blind": lambda: Blind(3),
        "chain": lambda: Knowing(4, texts, right=0.8),
        "tree": lambda: KnowingTree(5, texts, right=0.8),
    }[kind]()
    drafted = speculating(random_model(), drafter, **ENGINE)
    assert [output.token_ids for output in drafted.generate(prompts, every_form())] == expected
    if kind != "blind":
        assert drafted.speculation_stats().accepted > 50


@pytest.mark.parametrize("drafts", [0, 3])
def test_it_ends_exactly_where_the_form_may(drafts: int) -> None:
    """However much the model wants to end sooner, or to go on."""
    spec = {"method": "ngram", "num_speculative_tokens": drafts} if drafts else None
    llm = LLM(random_model(), speculative_config=spec, **ENGINE)
    params = [
        SamplingParams(
            structured=Structured(regex=pattern), logit_bias={IM_END: bias, ENDOFTEXT: bias}, max_tokens=40
        )
        for pattern in ("x{5}", "(ab){3,}", "(ab){3,9}")
        for bias in (100, -100)
    ]
    texts = [(o.text, o.finish_reason) for o in llm.generate(["Tide"] * len(params), params)]
    assert texts[:2] == [("xxxxx", "stop")] * 2
    assert texts[2:] == [("ababab", "stop"), ("ab" * 20, "length"), ("ababab", "stop"), ("ab" * 9, "stop")]


def test_a_row_has_nothing_of_the_one_before() -> None:
    """Whose last token, chosen after a stop string had ended it, comes when the row is another's."""
    llm = LLM(random_model(), **ENGINE | dict(max_num_seqs=1))
    params = [
        SamplingParams(structured=Structured(regex=pattern), stop=stop, max_tokens=40)
        for pattern, stop in [("(ab){9,}", ["bab"]), ("[ab]{6}", []), ("(ab){9,}", ["baba"]), ("[ab]{6}", [])]
    ]
    texts = [output.text for output in llm.generate(["Tide"] * len(params), params)]
    assert texts[::2] == ["a", "a"] and [len(text) for text in texts[1::2]] == [6, 6]


def test_an_answer_that_is_cut_off_says_so(llm: LLM) -> None:
    whole, cut = (
        llm.generate(["Tide"], SamplingParams(structured=Structured(json=SCHEMA), max_tokens=most))[0]
        for most in (90, 20)
    )
    assert (whole.finish_reason, cut.finish_reason) == ("stop", "length")
    assert whole.token_ids[:20] == cut.token_ids and whole.token_ids[-1] in ENDS


def test_log_probabilities_are_the_models_own(llm: LLM) -> None:
    free = llm.generate(["Tide"], SamplingParams(max_tokens=1, logprobs=20))[0].logprobs[0]
    held = llm.generate(["Tide"], SamplingParams(max_tokens=1, logprobs=20, structured=Structured(regex="x")))
    assert held[0].logprobs[0].top == free.top and held[0].logprobs[0].logprob < free.top[0][1]


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= verb " " noun{1,2}\nverb ::= "ebb" | "flow"\nnoun ::= [a-c]+ "."',
        'start: verb " " noun~1..2\nverb: "ebb" | "flow"\nnoun: /[a-c]+/ mark\nmark: "." // not ::=',
    ],
    ids=["EBNF", "Lark"],
)
def test_grammars_of_both_syntaxes(grammar: str, llm: LLM) -> None:
    params = SamplingParams(
        structured=Structured(grammar=grammar), max_tokens=60, temperature=1.0, seed=4, n=3
    )
    for answer in llm.generate(["Tide"], params)[0].outputs:
        assert re.fullmatch(r"(ebb|flow) ([a-c]+\.){1,2}", answer.text), answer.text


def test_several_answers_to_one_prompt(llm: LLM) -> None:
    params = SamplingParams(structured=FORMS["choice"][0], n=6, temperature=1.5, seed=3)
    texts = [completion.text for completion in llm.generate(["Tide"], params)[0].outputs]
    assert len(set(texts)) > 1 and set(texts) <= set(CHOICES)


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"json": {"type": "objct"}}, "structured.json: Invalid type: objct"),
        (
            {"json": {"properties": {"a": {"items": {"type": "array", "uniqueItems": True}}}}},
            'structured.json.properties.a.items: Unimplemented keys: ["uniqueItems"]',
        ),
        (
            {"json": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"minimum": "1"}}}},
            "structured.json.anyOf[1]: Expected f64 for 'minimum'",
        ),
        ({"json": {"$ref": "#/$defs/nowhere"}}, "structured.json: Pointer"),
        ({"json": {"$ref": "file:///etc/passwd"}}, "structured.json: Resource 'file:///etc/passwd' is not"),
        ({"json": {"properties": {f"p{i}": {} for i in range(5000)}}}, "structured.json: grammar size"),
        ({"json": {"enum": []}}, "structured.json: Unsatisfiable schema"),
        ({"json": '{"items":' * 300 + "{}" + "}" * 300}, "structured.json: recursion limit exceeded"),
        ({"grammar": "start: %json " + '{"items":' * 300 + "{}" + "}" * 300}, "recursion limit exceeded"),
        ({"regex": "a["}, 'structured.regex: at 1(8): invalid regex "a["'),
        ({"regex": "(?=a)b"}, "structured.regex: at 1(8)"),
        ({"grammar": "start: tide"}, 'structured.grammar: at 1(8): unknown name: "tide"'),
        ({"grammar": "strt: /a/"}, "structured.grammar: "),
        (
            {"grammar": 'start: %json {"type": "null"} | %json {"items": {"not": {}}}'},
            'structured.grammar %json.items: Unimplemented keys: ["not"]',
        ),
        (
            {"json": {"properties": {"a\nb": {"type": "objct"}}}},
            "structured.json.properties.a b: Invalid type: objct",
        ),
        ({"grammar": "start: /a"}, "structured.grammar: 2(1): lexer error"),
        ({"grammar": 'root ::= "a'}, "structured.grammar: Unexpected end of input at line 1"),
        ({"grammar": "root ::= ebb"}, "structured.grammar: Rule 'ebb' not found"),
        ({"grammar": "root ::= " + "(" * 5000}, "structured.grammar: "),
        ({"grammar": "root ::= [a]\n" * 2000}, "structured.grammar: 26,000 characters of EBNF; it may have"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(form: dict[str, Any], sentence: str, llm: LLM) -> None:
    with pytest.raises(Rejected) as refused:
        llm.generate(["Tide"], SamplingParams(structured=Structured(**form)))
    assert sentence in refused.value.reason and "\n" not in refused.value.reason
    assert not llm._engine.has_work


def test_a_model_without_a_tokenizer_has_no_forms(tmp_path: Any) -> None:
    for file in random_model().iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(Rejected, match="the model's directory has no tokenizer"):
        LLM(tmp_path, **ENGINE).generate([[1, 2]], SamplingParams(structured=Structured(regex="a")))


def test_a_form_that_cannot_be_followed_ends_with_an_error(monkeypatch: pytest.MonkeyPatch, llm: LLM) -> None:
    """The others of its batch do not notice."""
    pushed = Matcher.push

    def push(self: Matcher, tokens: Any) -> None:
        pushed(self, tokens)
        if ord("!") in tokens:
            self._matcher.consume_token(ord("?"))  # which is not permitted: the matcher gives up

    monkeypatch.setattr(Matcher, "push", push)
    forms = [Structured(regex=pattern) for pattern in ("ab!{8}", "ab{8}")]
    params = [SamplingParams(structured=form, max_tokens=20) for form in forms]
    broken, fine = llm.generate(["Tide", "Tide"], params)
    assert (broken.text, broken.finish_reason) == ("ab!", "error")
    assert (fine.text, fine.finish_reason) == ("abbbbbbbb", "stop")
    assert llm.constraint_stats().masks >= 14 and llm.constraint_stats().seconds > 0
