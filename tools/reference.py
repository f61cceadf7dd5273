"""Makes the generated pages of the site's reference. `make docs` puts them into the site.

- commands.md: every command, argument and option of the command line
- http-operations.md: every operation of the HTTP API
- http-documents.md: every document that the HTTP API takes or returns
"""

from __future__ import annotations

import enum
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import typer
import typer.main

from mainspring import Scheduler
from mainspring.cli.program import app as program

METHODS = ("get", "post", "put", "patch", "delete")
COMMON_ERRORS = ("400", "401", "403", "422", "429", "503")
FIRST = ("JobBody",)  # the job document is shown once, as a request takes it
_VALUES: dict[type, str] = {int: "NUMBER", float: "NUMBER"}


def pages() -> dict[str, str]:
    """The text of each generated page, by file name."""
    api = Scheduler("memory://", workers=0).asgi(auth=None).openapi()
    return {
        "commands.md": _page(_commands()),
        "http-operations.md": _page(_operations(api)),
        "http-documents.md": _page(_documents(api)),
    }


def _page(lines: Iterator[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


# The command line


def _commands() -> Iterator[str]:
    yield "# Commands"
    yield ""
    yield "Every command of `mainspring`, with its arguments and options."
    yield "[The command line](command-line.md) says how commands find their store, what they print"
    yield "and which exit codes they return. Every command takes `--json`. Those that inspect or"
    yield "change a store take the two other options below; `store copy` names its stores itself."
    yield ""
    yield "| | |"
    yield "|---|---|"
    root = typer.main.get_command(program)
    common = _common_options(root)
    yield from common
    yield ""
    yield from _command(root, "mainspring", frozenset(common))


def _common_options(command: Any) -> list[str]:
    """The rows that twenty commands or more would repeat."""
    rows = Counter(_parameter(parameter) for parameter in _parameters(command))
    return [row for row, count in rows.items() if count >= 20]


def _parameters(command: Any) -> Iterator[Any]:
    yield from command.params
    for name in getattr(command, "commands", ()):
        yield from _parameters(command.commands[name])


def _command(command: Any, name: str, common: frozenset[str]) -> Iterator[str]:
    context = typer.Context(command, info_name=name)
    parts = command.list_commands(context) if hasattr(command, "list_commands") else []
    yield f"{'##' if name.count(' ') < 2 else '###'} {name}"
    yield ""
    yield _paragraphs(command.help)
    yield ""
    if not parts:
        yield f"    {_usage(command, name)}"
        yield ""
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    if own := [row for row in map(_parameter, shown) if row not in common]:
        yield "| | |"
        yield "|---|---|"
        yield from own
        yield ""
    if command.epilog:
        title, *examples = re.split(r"\n{2,}", command.epilog.replace("\b", ""))
        yield title
        yield ""
        yield from (f"    {' '.join(line.split())}" for line in examples)
        yield ""
    for part in parts:
        sub = command.get_command(context, part)
        if sub is not None and not sub.hidden:
            yield from _command(sub, f"{name} {part}", common)


def _paragraphs(text: str | None) -> str:
    parts = re.split(r"\n{2,}", (text or "").replace("\b", "").strip())
    return "\n\n".join(" ".join(part.split()) for part in parts)


def _usage(command: Any, name: str) -> str:
    words = [name]
    for one in command.params:
        if one.param_type_name == "argument":
            shown = _argument(one)
            words.append(shown if one.required else f"[{shown}]")
    options = [one for one in command.params if one.param_type_name == "option"]
    words += [_option(one) for one in options if one.required]
    if any(not one.required for one in options):
        words.append("[OPTIONS]")
    return " ".join(words)


def _parameter(one: Any) -> str:
    if one.param_type_name == "argument":
        names = f"`{_argument(one)}`"
    else:
        flags = [*one.opts, *one.secondary_opts]
        names = ", ".join(f"`{flag}`" for flag in [*flags[:-1], _option(one)])
    facts = [(getattr(one, "help", None) or "").strip()]
    if one.min is not None:
        facts.append(f"{one.min} to {one.max}." if one.max is not None else f"{one.min} or more.")
    if issubclass(_kind(one), enum.Enum):
        facts.append("One of " + ", ".join(f"`{_text(choice)}`" for choice in _kind(one)) + ".")
    default = one.default
    if getattr(one, "show_default", False) and default not in (None, False, (), []):
        facts.append(f"Default: `{_text(default)}`.")
    if one.envvar:
        facts.append(f"Environment: `{one.envvar}`.")
    if one.required:
        facts.append("Required.")
    told = " ".join(fact if fact.endswith(".") else f"{fact}." for fact in facts if fact)
    return f"| {_cell(names)} | {_cell(told)} |"


def _argument(one: Any) -> str:
    return f"{one.metavar or one.name.upper()}{'' if one.nargs == 1 else '...'}"


def _option(one: Any) -> str:
    """The last name of an option, with what stands for its value."""
    value = "" if one.is_flag else " " + (one.metavar or _VALUES.get(_kind(one), "TEXT"))
    return f"{[*one.opts, *one.secondary_opts][-1]}{value}"


def _kind(one: Any) -> type[Any]:
    kind = one.type_descriptor.annotation
    return kind if isinstance(kind, type) else str


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))


# The HTTP API


def _operations(api: dict[str, Any]) -> Iterator[str]:
    yield "# HTTP operations"
    yield ""
    yield "Every operation of the HTTP API, from its OpenAPI document (`/openapi.json`)."
    yield "[The HTTP API](http-api.md) has what is common to all: pages, errors, keys, limits."
    yield "[HTTP documents](http-documents.md) has the fields of each document."
    yield ""
    yield f"Any operation may return the [errors](http-api.md#errors) {', '.join(COMMON_ERRORS)}."
    yield "Only further ones are listed."
    yield ""
    parts: list[tuple[str, Callable[[str], bool]]] = [
        ("Version 1", lambda path: path.startswith("/api/v1/")),
        ("Probes and metrics", lambda path: not path.startswith("/api/")),
        (
            "Compatibility",
            lambda path: path.startswith("/api/") and not path.startswith("/api/v1/"),
        ),
    ]
    schemas = api["components"]["schemas"]
    for title, belongs in parts:
        yield f"## {title}"
        yield ""
        for path, item in api["paths"].items():
            if belongs(path):
                for method in METHODS:
                    if method in item:
                        yield from _operation(method, path, item[method], schemas)


def _operation(
    method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]
) -> Iterator[str]:
    yield f"### {method.upper()} {path}"
    yield ""
    summary = operation.get("summary", "").rstrip(".")
    yield f"{summary}. {_paragraphs(operation.get('description'))}".strip()
    yield ""
    rows = [
        _parameter_row(parameter, schemas)
        for parameter in operation.get("parameters", ())
        if parameter["in"] != "path" or parameter.get("description")
    ]
    if rows:
        yield "| parameter | type | meaning |"
        yield "|---|---|---|"
        yield from rows
        yield ""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        required = operation["requestBody"].get("required")
        yield f"Body{'' if required else ' (optional)'}: {_type(content['schema'], schemas)}."
        body = schemas.get(content["schema"].get("$ref", "").rpartition("/")[2], {})
        for example in body.get("examples", ())[:1]:
            yield f"For example `{json.dumps(example, ensure_ascii=False)}`."
        yield ""
    responses = sorted(operation.get("responses", {}).items())
    good = [_response(status, schemas, told) for status, told in responses if status < "400"]
    further = [status for status, _ in responses if status >= "400" and status not in COMMON_ERRORS]
    yield " ".join(good + ([f"Errors: {', '.join(further)}."] if further else []))
    yield ""


def _parameter_row(parameter: dict[str, Any], schemas: dict[str, Any]) -> str:
    schema = parameter.get("schema", {})
    meaning = parameter.get("description") or schema.get("description") or ""
    if (default := schema.get("default")) not in (None, False):
        meaning += f" Default: `{json.dumps(default)}`."
    name = f"`{parameter['name']}`" + (" (required)" if parameter.get("required") else "")
    name += " (header)" if parameter["in"] == "header" else ""
    kind = _type(schema, schemas).removesuffix(" or null")
    return f"| {name} | {_cell(kind)} | {_cell(meaning)} |"


def _response(status: str, schemas: dict[str, Any], response: dict[str, Any]) -> str:
    kinds = [
        _type(content["schema"], schemas)
        for content in response.get("content", {}).values()
        if content.get("schema")
    ]
    told = response.get("description", "")
    told = "" if told == "Successful Response" else told[:1].lower() + told[1:]
    facts = [" or ".join(dict.fromkeys(kinds)), told]
    if headers := response.get("headers"):
        facts.append("with " + ", ".join(f"`{name}`" for name in headers))
    text = ", ".join(fact.rstrip(".") for fact in facts if fact)
    return f"{status}: {text}." if text else f"{status}."


def _documents(api: dict[str, Any]) -> Iterator[str]:
    yield "# HTTP documents"
    yield ""
    yield "Every document that [an operation](http-operations.md) of the HTTP API takes or returns."
    yield "In a request, a field may be left out unless it is marked as required, and most may be"
    yield "null. A response has every field that is not marked as optional. Where a document shares"
    yield "fields with another, only its own fields are shown. A duration is a number of"
    yield "milliseconds or, in a request, a string such as `30s`."
    yield ""
    schemas = api["components"]["schemas"]
    printed: list[str] = []
    for name in sorted(schemas, key=lambda name: (name not in FIRST, name)):
        if _envelope(name, schemas) is None:
            yield from _document(name, schemas, printed)
            printed.append(name)


def _document(name: str, schemas: dict[str, Any], printed: list[str]) -> Iterator[str]:
    schema = schemas[name]
    own = dict(schema.get("properties", {}))
    difference = ""
    if base := _base(name, schemas, printed):
        shared = schemas[base]["properties"]
        absent = [f"`{field}`" for field in shared if field not in own]
        own = {field: one for field, one in own.items() if not _same(one, shared.get(field))}
        difference = f"The fields of [{base}](#{base.lower()})"
        difference += f", without {', '.join(absent)}" if absent else ""
        difference += ", and:" if own else "."
    yield f"## {name}"
    yield ""
    if own or not difference:
        yield _paragraphs(schema.get("description"))
        yield ""
    yield difference
    yield ""
    if "enum" in schema:
        yield "One of " + ", ".join(f"`{json.dumps(one)}`" for one in schema["enum"]) + "."
        yield ""
    plain = {field: one for field, one in own.items() if not one.get("description")}
    if told := {field: one for field, one in own.items() if field not in plain}:
        yield from _fields(name, told, schemas)
    if plain:
        fields = (f"`{field}` ({_type(one, schemas)})" for field, one in plain.items())
        yield f"{'Also' if told else 'Fields:'} {', '.join(fields)}."
        yield ""


def _fields(name: str, properties: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    required = schemas[name].get("required", ())
    request = name.endswith("Body")
    for field, one in properties.items():
        meaning, _, listed = one.get("description", "").partition(":\n- ")
        if listed:
            meaning += ": see [errors](http-api.md#errors)."
        if (default := one.get("default")) is not None:
            meaning += f" Default: `{json.dumps(default)}`."
        kind = _type(one, schemas)
        shown = f"`{field}`"
        if request:
            shown += " (required)" if field in required else ""
            kind = kind.removesuffix(" or null")
        elif field not in required:
            shown += " (optional)"
        yield f"| {shown} | {_cell(kind)} | {_cell(meaning)} |"
    yield ""


def _same(one: dict[str, Any], other: dict[str, Any] | None) -> bool:
    """Whether two documents mean the same by a field."""
    return other is not None and one.get("description") == other.get("description")


def _base(name: str, schemas: dict[str, Any], printed: list[str]) -> str | None:
    """The document before this one with which it shares at least two thirds of its fields."""
    properties = schemas[name].get("properties", {})
    best, most = None, max(2, 2 * len(properties) / 3)
    for other in printed:
        theirs = schemas[other].get("properties", {})
        shared = sum(
            bool(one.get("description")) and _same(one, theirs.get(field))
            for field, one in properties.items()
        )
        if shared >= most and len(theirs) - shared <= len(properties):
            best, most = other, shared + 1
    return best


def _envelope(name: str, schemas: dict[str, Any]) -> str | None:
    """A list or an envelope of another document, in one line."""
    properties = schemas[name].get("properties", {})
    fields = set(properties)
    if fields in ({"items"}, {"items", "nextCursor"}):
        items = _type(properties["items"]["items"], schemas)
        rest = ', "nextCursor"' if "nextCursor" in fields else ""
        return f'`{{"items": […]{rest}}}` of {items}'
    if fields == {"success", "data"}:
        return f'`{{"success": true, "data": …}}` of {_type(properties["data"], schemas)}'
    return None


def _type(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if (envelope := _envelope(name, schemas)) is not None:
            return envelope
        return f"[{name}](http-documents.md#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            kinds = [_type(one, schemas) for one in schema[several]]
            if kinds[:2] == ["number", "string at most 64 characters"]:
                kinds[:2] = ["duration"]
            return " or ".join(dict.fromkeys(kinds))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    kind = schema.get("type", "any JSON")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"array of {_type(schema.get('items', {}), schemas)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        values = schema["additionalProperties"]
        return f"object of {_type(values, schemas)}" if values else "object"
    kind = schema.get("format") or kind
    bounds = [
        f"{word} {_number(schema[key])}"
        for key, word in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in schema
    ]
    if "maxLength" in schema:
        bounds.append(f"at most {schema['maxLength']} characters")
    return f"{kind} {', '.join(bounds)}".strip()


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else str(value)
