"""What must be known of JSON schemas here: where there are others in them, and what in them asserts nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

WHITE_SPACE = {"whitespace_pattern": r"\x20"}
"""Between the parts of JSON there may be a space. With more, a model that has lost its way goes on for ever."""
FORMATS = {
    *(
        "date-time",
        "date",
        "time",
        "duration",
        "email",
        "idn-email",
        "hostname",
        "idn-hostname",
        "ipv4",
        "ipv6",
    ),
    *("uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "regex"),
    "relative-json-pointer",
}
"""That JSON Schema defines."""
NOTES = {"title", "description", "examples", "default", "$comment"}


def parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas inside a schema, and where they stand."""
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            named = [(f"{key}.{name}", part) for name, part in value.items()]
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems", "items") and isinstance(value, list):
            named = [(f"{key}[{place}]", part) for place, part in enumerate(value)]
        elif key in ("items", "additionalProperties"):
            named = [(key, value)]
        else:
            continue
        yield from ((name, part) for name, part in named if isinstance(part, dict))


def without_notes(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema, less what asserts nothing: descriptions, which may be long; and what the compiler of grammars
    refuses all the same, formats of somebody's own and items that need not be unique."""
    plain: dict[str, Any] = json.loads(json.dumps(schema))
    todo = [plain]
    while todo:
        part = todo.pop()
        for note in NOTES & part.keys():
            del part[note]
        if part.get("uniqueItems") is False:
            del part["uniqueItems"]
        if isinstance(named := part.get("format"), str) and named not in FORMATS:
            del part["format"]
        todo += [inner for _, inner in parts(part)]
    return plain
