"""A tiny hybrid with random weights and a token for each byte: quick to make, and it never ends by itself."""

from __future__ import annotations

import atexit
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SEED = 20240917
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ENDOFTEXT, IM_START, IM_END = range(256, 256 + len(SPECIAL_TOKENS))

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "dtype": "float32",
    "vocab_size": 256 + len(SPECIAL_TOKENS),
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": IM_END,
    "pad_token_id": ENDOFTEXT,
}

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


@functools.cache
def random_model() -> Path:
    """Its directory, made once. Not to be changed."""
    scratch = tempfile.TemporaryDirectory(prefix="holdfast-random-")
    atexit.register(scratch.cleanup)
    write_random_model(Path(scratch.name))
    return Path(scratch.name)


def write_random_model(directory: Path) -> None:
    save_file(_weights(), directory / "model.safetensors", metadata={"format": "pt"})
    byte_tokenizer(*SPECIAL_TOKENS).save(str(directory / "tokenizer.json"))
    _write_json(directory / "config.json", CONFIG)
    _write_json(
        directory / "generation_config.json",
        {"eos_token_id": [IM_END, ENDOFTEXT], "pad_token_id": ENDOFTEXT},
    )
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONFIG["max_position_embeddings"],
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(SEED)
    hidden, wide = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    weights = {
        "model.embed_tokens.weight": _normal(random, (CONFIG["vocab_size"], hidden), 1.0),
        "model.norm.weight": _zeros(hidden),  # these norms multiply by 1 + weight
        "lm_head.weight": _head(random),
    }
    for number, kind in enumerate(CONFIG["layer_types"]):
        mixer = _delta_net(random) if kind == "linear_attention" else _attention(random)
        layer = {
            "input_layernorm.weight": _zeros(hidden),
            "post_attention_layernorm.weight": _zeros(hidden),
            "mlp.gate_proj.weight": _linear(random, wide, hidden),
            "mlp.up_proj.weight": _linear(random, wide, hidden),
            "mlp.down_proj.weight": _linear(random, hidden, wide),
            **mixer,
        }
        weights |= {f"model.layers.{number}.{name}": tensor for name, tensor in layer.items()}
    return weights


def _delta_net(random: np.random.Generator) -> dict[str, np.ndarray]:
    hidden, heads = CONFIG["hidden_size"], CONFIG["linear_num_value_heads"]
    key = CONFIG["linear_num_key_heads"] * CONFIG["linear_key_head_dim"]
    value = heads * CONFIG["linear_value_head_dim"]
    mixer = {
        "in_proj_qkv.weight": _linear(random, 2 * key + value, hidden),
        "in_proj_z.weight": _linear(random, value, hidden),
        "in_proj_a.weight": _linear(random, heads, hidden),
        "in_proj_b.weight": _linear(random, heads, hidden),
        "conv1d.weight": _normal(random, (2 * key + value, 1, CONFIG["linear_conv_kernel_dim"]), 0.5),
        # slow decays: a state that forgets at once would make this a hybrid in name only
        "A_log": np.log(random.uniform(0.02, 0.5, heads)).astype(np.float32),
        "dt_bias": np.ones(heads, np.float32),
        "norm.weight": np.ones(CONFIG["linear_value_head_dim"], np.float32),
        "out_proj.weight": _linear(random, hidden, value),
    }
    return {f"linear_attn.{name}": tensor for name, tensor in mixer.items()}


def _attention(random: np.random.Generator) -> dict[str, np.ndarray]:
    hidden, head = CONFIG["hidden_size"], CONFIG["head_dim"]
    query, kv = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    mixer = {
        "q_proj.weight": _linear(random, 2 * query, hidden),  # queries and their output gate
        "k_proj.weight": _linear(random, kv, hidden),
        "v_proj.weight": _linear(random, kv, hidden),
        "o_proj.weight": _linear(random, hidden, query),
        "q_norm.weight": _zeros(head),
        "k_norm.weight": _zeros(head),
    }
    return {f"self_attn.{name}": tensor for name, tensor in mixer.items()}


def _head(random: np.random.Generator) -> np.ndarray:
    """Unprintable bytes get zero rows: noise a terminal can show."""
    head = _normal(random, (CONFIG["vocab_size"], CONFIG["hidden_size"]), 0.25)
    printable = {*range(32, 127), ord("\n"), IM_END}
    head[[token for token in range(CONFIG["vocab_size"]) if token not in printable]] = 0.0
    return head


def _linear(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return _normal(random, (rows, columns), columns**-0.5)


def _normal(random: np.random.Generator, shape: tuple[int, ...], scale: float) -> np.ndarray:
    return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)


def _zeros(size: int) -> np.ndarray:
    return np.zeros(size, np.float32)


def byte_tokenizer(*special: str) -> Tokenizer:
    """One token for each byte, its id the byte's value, and the special tokens after them."""
    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def write_byte_tokenizer(directory: Path) -> None:
    """For a model of 256 tokens. What ends a text is a byte that no text has."""
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    _write_json(directory / "generation_config.json", {"eos_token_id": 255})


def _byte_characters() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    substitutes = iter(range(256, 512))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]
