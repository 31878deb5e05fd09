"""The OpenAPI document, made from what the requests are decoded with."""

from __future__ import annotations

from typing import Any

import msgspec

from .protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

BODIES: dict[str, tuple[type, str]] = {
    "/v1/chat/completions": (ChatRequest, "the next turn of a conversation"),
    "/v1/completions": (CompletionRequest, "continuations of prompts"),
    "/tokenize": (TokenizeRequest, "a text or a conversation as token ids"),
    "/detokenize": (DetokenizeRequest, "token ids as a text"),
}
PLAIN = {
    "/v1/models": ("get", "the model that is served"),
    "/health": ("get", "whether the engine answers"),
    "/version": ("get", "of the server"),
    "/metrics": ("get", "for Prometheus"),
    "/plan": ("get", "what memory is given to, and how much fits"),
    "/requests": ("get", "what runs and what waits, in numbers"),
    "/reset_prefix_cache": ("post", "forget all prefixes"),
}
PROMPT = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "minItems": 1, "items": {"type": "string"}},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        },
    ]
}


def document(version: str) -> dict[str, Any]:
    kinds = [kind for kind, _ in BODIES.values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    components["CompletionRequest"]["properties"]["prompt"] = PROMPT
    paths = {
        path: {"post": _operation(told, schema)}
        for (path, (_, told)), schema in zip(BODIES.items(), schemas, strict=True)
    }
    paths |= {path: {method: _operation(told)} for path, (method, told) in PLAIN.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": version},
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
        "paths": paths,
    }


def _operation(told: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    described = {
        "200": "done",
        "400": "it was not understood, or can never run",
        "401": "the API key is missing or wrong",
        "404": "there is no such model",
        "408": "the request was too slow to come",
        "413": "the body is too large",
        "429": "too many wait already; Retry-After says when to come again",
        "503": "the engine is not there; Retry-After says when to come again",
        "504": "it took too long",
    }
    operation: dict[str, Any] = {
        "summary": told,
        "responses": {status: {"description": text} for status, text in described.items()},
    }
    if schema:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation
