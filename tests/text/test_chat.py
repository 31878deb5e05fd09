from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.text import ChatTemplate, ChatTemplateError, Tokenizer

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Is 1 < 2 & "so"? 数学'},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Sure?"},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"a": "<int>", "ü": "&"}}}]

# What templates on the hub use, one feature each.
TEMPLATES = {
    "bos and loops": """
{{- bos_token }}{% for m in messages %}[{{ loop.index0 }}]{{ m['content'] }}{% endfor %}""",
    "blocks on lines of their own": """
    {%- if tools %}
        {{- 'tools: ' + tools | tojson }}
    {%- endif %}
    {% for message in messages %}
        {% if loop.first and message.role == 'system' %}
    <sys>{{ message.content | trim }}</sys>
        {% continue %}
        {% endif %}
    {{ message.role }}: {{ message.content }}
    {% endfor %}
    {%- if add_generation_prompt %}assistant:{% endif %}
    """,
    "tojson with options": "{{ tools | tojson(indent=2) }}{{ messages[0] | tojson(ensure_ascii=True) }}",
    "generation tags": """
{% for m in messages %}
    {% generation %}
{{ m.content }}{{ eos_token }}
    {% endgeneration %}
{% endfor %}""",
    "namespace": """
{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}""",
    "string methods": """
{{ messages[-1].content.split('?')[0].strip() }}{{ messages[0].content.startswith('Be') }}""",
    "a switch of the model's own": """
{% if enable_thinking is defined and not enable_thinking %}<no>{% endif %}{{ missing }}""",
    "macro": """
{% macro say(m) %}({{ m.role }}){{ m.content }}{% endmacro %}
{% for m in messages %}{{ say(m) }}{% endfor %}""",
    "date": "{{ strftime_now('%Y') }}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
@pytest.mark.parametrize("extra", [{}, {"tools": TOOLS}, {"enable_thinking": False}], ids=str)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_prompts_agree_with_transformers(
    byte_level_dir: Path, template: str, extra: dict[str, Any], add_generation_prompt: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    named = {"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **named}
    (byte_level_dir / "tokenizer_config.json").write_text(json.dumps(config))
    oracle = transformers.AutoTokenizer.from_pretrained(byte_level_dir)
    tokenizer = Tokenizer.from_dir(byte_level_dir)

    options = {"add_generation_prompt": add_generation_prompt, **extra}
    expected = oracle.apply_chat_template(MESSAGES, tokenize=False, **options)
    assert tokenizer.render_chat(MESSAGES, **options) == expected
    expected_ids = oracle.apply_chat_template(MESSAGES, tokenize=True, **options)["input_ids"]
    assert tokenizer.apply_chat(MESSAGES, **options) == expected_ids


def render(sources: dict[str, str], **options: Any) -> str:
    return ChatTemplate(sources, {}).render(MESSAGES, **options)


def test_templates_may_be_a_list_with_names(byte_level_dir: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    (byte_level_dir / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    tokenizer = Tokenizer.from_dir(byte_level_dir)
    assert tokenizer.render_chat(MESSAGES) == "plain"
    assert tokenizer.render_chat(MESSAGES, tools=TOOLS) == "with tools"


def test_template_files_win_over_the_config(byte_level_dir: Path) -> None:
    (byte_level_dir / "tokenizer_config.json").write_text('{"chat_template": "from the config"}')
    (byte_level_dir / "chat_template.jinja").write_text("from the file")
    (byte_level_dir / "additional_chat_templates").mkdir()
    (byte_level_dir / "additional_chat_templates" / "tool_use.jinja").write_text("for tools")
    tokenizer = Tokenizer.from_dir(byte_level_dir)
    assert tokenizer.render_chat(MESSAGES) == "from the file"
    assert tokenizer.render_chat(MESSAGES, tools=TOOLS) == "for tools"


def test_no_template() -> None:
    with pytest.raises(ChatTemplateError, match="no chat template: give it a text prompt"):
        render({})
    with pytest.raises(ChatTemplateError, match="only templates named rag"):
        render({"rag": ""})


def test_a_templates_own_refusal_reaches_the_user() -> None:
    with pytest.raises(ChatTemplateError, match="Roles must alternate"):
        render({"default": "{{ raise_exception('Roles must alternate') }}"})


def test_a_template_that_cannot_be_parsed() -> None:
    with pytest.raises(ChatTemplateError, match="chat template, line 2"):
        render({"default": "\n{% if %}"})


def test_messages_must_be_plain_data() -> None:
    with pytest.raises(ChatTemplateError, match="plain data"):
        ChatTemplate({"default": ""}, {}).render([{"role": "user", "content": object()}])


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__['os'] }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(attack: str) -> None:
    with pytest.raises(ChatTemplateError):
        render({"default": attack})


def test_messages_are_not_changed(byte_level_dir: Path) -> None:
    before = json.dumps(MESSAGES)
    render({"default": "{% set m = messages[0] %}{% set m = {'role': 'x'} %}"})
    assert json.dumps(MESSAGES) == before
