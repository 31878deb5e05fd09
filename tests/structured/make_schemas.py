"""Makes schemas.json: `python tests/structured/make_schemas.py`. The same bytes every time.

Two hundred schemas as programs ask models for them: records of twenty trades, each in ten shapes. They
were written for these tests, and belong to Holdfast under its licence. Texts, lists and numbers have bounds: the
small model that answers them would otherwise go on for ever, which is an honest answer, but shows nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "schemas.json"
Schema = dict[str, Any]


def text(most: int = 24, least: int = 0) -> Schema:
    return {"type": "string", "maxLength": most} | ({"minLength": least} if least else {})


def whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def amount(most: int) -> Schema:
    return {"type": "number", "minimum": 0, "maximum": most, "multipleOf": 0.01}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def several(items: Schema, most: int = 3, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "maxItems": most} | ({"minItems": least} if least else {})


def part(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def by_name(values: Schema, most: int) -> Schema:
    names = {"type": "object", "patternProperties": {"^[a-z]{2,6}$": values}, "additionalProperties": False}
    return names | {"maxProperties": most}


def form(name: str) -> Schema:
    return {"type": "string", "format": name}


def shaped(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


YES_NO: Schema = {"type": "boolean"}
DATE, TIME, MOMENT, UUID, ADDRESS = map(form, ("date", "time", "date-time", "uuid", "ipv4"))
CURRENCY = one_of("EUR", "USD", "NOK", "JPY")
COUNTRY = shaped("^[A-Z]{2}$")
PLACE: Schema = {
    "type": "object",
    "properties": {
        "latitude": {"type": "number", "minimum": -90, "maximum": 90, "multipleOf": 0.001},
        "longitude": {"type": "number", "minimum": -180, "maximum": 180, "multipleOf": 0.001},
    },
    "required": ["latitude", "longitude"],
    "additionalProperties": False,
}

TRADES: dict[str, dict[str, Schema]] = {
    "person": {
        "name": text(least=1),
        "age": whole(0, 120),
        "born": DATE,
        "phone": shaped(r"^\+[0-9]{8,12}$"),
        "languages": several(one_of("en", "no", "de", "fr")),
        "married": YES_NO,
    },
    "invoice": {
        "number": shaped("^INV-[0-9]{6}$"),
        "issued": DATE,
        "currency": CURRENCY,
        "total": amount(99999),
        "paid": YES_NO,
        "lines": several(part(item=text(), count=whole(1, 99))),
    },
    "weather": {
        "city": text(),
        "unit": one_of("celsius", "fahrenheit"),
        "temperature": {"type": "number", "minimum": -60, "maximum": 60, "multipleOf": 0.1},
        "wind": part(**{"speed": whole(0, 80), "from": one_of("N", "E", "S", "W")}),
        "hours": several(whole(0, 23), 4),
    },
    "recipe": {
        "title": text(40),
        "serves": whole(1, 12),
        "ingredients": several(part(name=text(), grams=whole(1, 2000))),
        "steps": several(text(60), 3, 1),
        "diet": several(one_of("vegan", "kosher", "halal", "gluten-free"), 2),
    },
    "ticket": {
        "id": shaped("^[A-Z]{3}-[1-9][0-9]{0,4}$"),
        "summary": text(60),
        "priority": one_of("low", "normal", "high", "urgent"),
        "assignee": {"anyOf": [text(), {"type": "null"}]},
        "opened": MOMENT,
        "labels": several(shaped("^[a-z]{2,8}$")),
    },
    "device": {
        "serial": UUID,
        "address": ADDRESS,
        "firmware": shaped(r"^[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,3}$"),
        "online": YES_NO,
        "sensors": by_name(whole(0, 100), 3),
    },
    "flight": {
        "number": shaped("^[A-Z]{2}[0-9]{2,4}$"),
        "from": shaped("^[A-Z]{3}$"),
        "to": shaped("^[A-Z]{3}$"),
        "departs": TIME,
        "stops": several(shaped("^[A-Z]{3}$"), 2),
        "cabin": one_of("economy", "business", "first"),
    },
    "book": {
        "title": text(50),
        "authors": several(text(), 3, 1),
        "isbn": shaped("^97[89]-[0-9]{10}$"),
        "year": whole(1450, 2030),
        "genre": one_of("novel", "poetry", "science", "history"),
        "in_print": YES_NO,
    },
    "order": {
        "reference": UUID,
        "placed": MOMENT,
        "status": one_of("open", "paid", "sent", "returned"),
        "items": several(part(sku=shaped("^[A-Z0-9]{6}$"), count=whole(1, 50))),
        "ship_to": part(street=text(), country=COUNTRY),
    },
    "event": {
        "name": text(40),
        "starts": MOMENT,
        "place": PLACE,
        "capacity": whole(1, 50000),
        "speakers": several(part(name=text(), keynote=YES_NO)),
    },
    "patient": {
        "record": shaped("^P[0-9]{7}$"),
        "blood": one_of("A+", "A-", "B+", "B-", "AB+", "AB-", "O+", "O-"),
        "allergies": several(text(16)),
        "pulse": whole(30, 220),
        "admitted": {"anyOf": [DATE, {"type": "null"}]},
    },
    "repository": {
        "name": shaped("^[a-z][a-z0-9-]{1,20}$"),
        "stars": whole(0, 500000),
        "licence": one_of("MIT", "Apache-2.0", "BSD-3-Clause", None),
        "topics": several(shaped("^[a-z]{3,10}$")),
        "archived": YES_NO,
    },
    "review": {
        "stars": whole(1, 5),
        "sentiment": one_of("positive", "neutral", "negative"),
        "quote": text(80),
        "aspects": several(part(name=text(12), score=whole(-2, 2))),
    },
    "move": {
        "tool": {"const": "move"},
        "x": {"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.01},
        "y": {"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.01},
        "path": several(
            {"type": "array", "prefixItems": [whole(0, 9), whole(0, 9)], "items": False, "minItems": 2}
        ),
    },
    "query": {
        "table": one_of("users", "orders", "events"),
        "columns": several(shaped("^[a-z_]{2,12}$"), 4, 1),
        "limit": whole(1, 1000),
        "where": by_name({"anyOf": [text(10), whole(0, 99)]}, 2),
        "descending": YES_NO,
    },
    "policy": {
        "effect": one_of("Allow", "Deny"),
        "actions": several(shaped("^[a-z]{2,6}:[A-Z][a-z]{2,8}$"), 3, 1),
        "expires": {"anyOf": [DATE, {"const": "never"}]},
        "priority": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100},
    },
    "lesson": {
        "subject": one_of("maths", "music", "chemistry"),
        "level": whole(1, 6),
        "goals": several(text(40), 3),
        "quiz": several(part(question=text(50), answer=YES_NO), 2),
    },
    "vehicle": {
        "plate": shaped("^[A-Z]{2} [0-9]{5}$"),
        "wheels": one_of(2, 3, 4, 6),
        "fuel": one_of("petrol", "diesel", "electric"),
        "kilometres": whole(0, 999999),
        "inspected": DATE,
        "owner": part(name=text(), country=COUNTRY),
    },
    "cell": {
        "address": shaped("^[A-Z]{1,2}[1-9][0-9]{0,3}$"),
        "value": {"anyOf": [text(12), amount(9999), YES_NO, {"type": "null"}]},
        "style": part(bold=YES_NO, colour=shaped("^#[0-9a-f]{6}$")),
    },
    "reading": {
        "gauge": text(12),
        "taken": MOMENT,
        "metres": {"type": "number", "minimum": -5, "maximum": 15, "multipleOf": 0.01},
        "trend": one_of("rising", "falling", "slack"),
        "quality": {"type": "array", "items": one_of("ok", "late", "guess"), "minItems": 1, "maxItems": 2},
    },
}


def record(fields: dict[str, Schema], draw: random.Random) -> Schema:
    """Some of the fields in some order, some of them required."""
    names = draw.sample(list(fields), draw.randint(2, len(fields)))
    required = [name for name in names if draw.random() < 0.6]
    made: Schema = {"type": "object", "properties": {name: fields[name] for name in names}}
    if required:
        made["required"] = required
    return made | {"additionalProperties": False}


def described(fields: dict[str, Schema], draw: random.Random) -> Schema:
    made = record(fields, draw)
    for name, field in made["properties"].items():
        made["properties"][name] = {"description": f"The {name} of it.", **field}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Record", **made}


def listed(fields: dict[str, Schema], draw: random.Random) -> Schema:
    return {"type": "array", "items": record(fields, draw), "minItems": 1, "maxItems": 2}


def wrapped(fields: dict[str, Schema], draw: random.Random) -> Schema:
    properties = {
        "ok": YES_NO,
        "data": record(fields, draw),
        "error": {"anyOf": [text(20), {"type": "null"}]},
    }
    return {
        "type": "object",
        "properties": properties,
        "required": ["ok", "data"],
        "additionalProperties": False,
    }


def referred(fields: dict[str, Schema], draw: random.Random) -> Schema:
    here = {"$ref": "#/$defs/record"}
    properties = {"first": here, "others": several(here, 1)}
    made = {"type": "object", "properties": properties, "required": ["first"], "additionalProperties": False}
    return made | {"$defs": {"record": record(fields, draw)}}


def either(fields: dict[str, Schema], draw: random.Random) -> Schema:
    kinds = [
        ("found", record(fields, draw)),
        ("missing", part(why=text(20))),
    ]
    return {
        "anyOf": [
            made | {"properties": {"kind": {"const": kind}, **made["properties"]}, "required": ["kind"]}
            for kind, made in kinds
        ]
    }


SHAPED: list[Callable[[dict[str, Schema], random.Random], Schema]] = [
    *(record, record, record, described, described, listed, wrapped, wrapped, referred, either)
]


def make() -> dict[str, Schema]:
    return {
        f"{trade} {number}": shape(fields, random.Random(f"{number} {trade}"))
        for trade, fields in TRADES.items()
        for number, shape in enumerate(SHAPED)
    }


def written(schemas: dict[str, Schema]) -> str:
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in schemas.items())
    return "{\n" + lines + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(written(make()), encoding="utf-8")
