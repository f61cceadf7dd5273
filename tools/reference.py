"""Makes the generated pages of the site's reference. `make docs` puts them into the site.

- commands.md: every command, argument and option of the command line
- http-operations.md: every operation of the HTTP API
- http-documents.md: every document that the HTTP API takes or returns
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import typer
import typer.main

from mainspring import Scheduler
from mainspring.cli.program import app as program

METHODS = ("get", "post", "put", "patch", "delete")
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
    yield "and which exit codes they return."
    yield ""
    root = typer.main.get_command(program)
    yield from _command(root, "mainspring")


def _command(command: Any, name: str) -> Iterator[str]:
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
    if shown:
        yield "| | |"
        yield "|---|---|"
        yield from (_parameter(one) for one in shown)
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
            yield from _command(sub, f"{name} {part}")


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
    parts: list[tuple[str, Callable[[str], bool]]] = [
        ("Version 1", lambda path: path.startswith("/api/v1/")),
        ("Probes and metrics", lambda path: not path.startswith("/api/")),
        (
            "Compatibility",
            lambda path: path.startswith("/api/") and not path.startswith("/api/v1/"),
        ),
    ]
    for title, belongs in parts:
        yield f"## {title}"
        yield ""
        for path, item in api["paths"].items():
            if belongs(path):
                for method in METHODS:
                    if method in item:
                        yield from _operation(method, path, item[method])


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### {method.upper()} {path}"
    yield ""
    summary = operation.get("summary", "").rstrip(".")
    yield f"{summary}. {_paragraphs(operation.get('description'))}".strip()
    yield ""
    if parameters := operation.get("parameters"):
        yield "| parameter | in | type | meaning |"
        yield "|---|---|---|---|"
        for one in parameters:
            schema = one.get("schema", {})
            meaning = one.get("description") or schema.get("description") or ""
            if (default := schema.get("default")) not in (None, False):
                meaning += f" Default: `{json.dumps(default)}`."
            name = f"`{one['name']}`" + (" (required)" if one.get("required") else "")
            yield f"| {name} | {one['in']} | {_cell(_type(schema))} | {_cell(meaning)} |"
        yield ""
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        required = operation["requestBody"].get("required")
        yield f"Body ({media}{'' if required else ', optional'}): {_type(content['schema'])}."
        yield ""
        if "example" in content:
            yield "```json"
            yield json.dumps(content["example"], indent=2, ensure_ascii=False)
            yield "```"
            yield ""
    answers = sorted(operation.get("responses", {}).items())
    good = [(status, answer) for status, answer in answers if status < "400"]
    yield "| status | answer | |"
    yield "|---|---|---|"
    for status, answer in good:
        kinds = [
            _type(content["schema"])
            for content in answer.get("content", {}).values()
            if content.get("schema")
        ]
        told = answer.get("description", "")
        told = "" if told == "Successful Response" else told
        if headers := answer.get("headers"):
            told += " Headers: " + ", ".join(f"`{name}`" for name in headers) + "."
        yield f"| {status} | {_cell(' or '.join(dict.fromkeys(kinds)))} | {_cell(told)} |"
    yield ""
    if bad := [status for status, _ in answers if status >= "400"]:
        yield f"[Errors](http-api.md#errors): {', '.join(bad)}."
        yield ""


def _documents(api: dict[str, Any]) -> Iterator[str]:
    yield "# HTTP documents"
    yield ""
    yield "Every document that [an operation](http-operations.md) of the HTTP API takes or returns."
    yield ""
    shown_lists: dict[str, str] = {}
    for name, schema in sorted(api["components"]["schemas"].items()):
        yield f"## {name}"
        yield ""
        yield _paragraphs(schema.get("description"))
        yield ""
        if "enum" in schema:
            yield "One of " + ", ".join(f"`{json.dumps(one)}`" for one in schema["enum"]) + "."
            yield ""
        if properties := schema.get("properties"):
            required = schema.get("required", ())
            yield "| field | type | meaning |"
            yield "|---|---|---|"
            lists: list[tuple[str, str]] = []
            for field, one in properties.items():
                meaning, _, listed = one.get("description", "").partition(":\n- ")
                if listed:
                    where = shown_lists.setdefault(listed, name)
                    if where == name:
                        meaning += ": see the table below."
                        lists.append((field, listed))
                    else:
                        meaning += f": see [{where}](#{where.lower()})."
                if (default := one.get("default")) is not None:
                    meaning += f" Default: `{json.dumps(default)}`."
                shown = f"`{field}`" + ("" if field in required else " (optional)")
                yield f"| {shown} | {_cell(_type(one))} | {_cell(meaning)} |"
            yield ""
            for field, listed in lists:
                yield from _values(field, listed)


def _values(field: str, listed: str) -> Iterator[str]:
    """A table of the values of a field, from a list in its description."""
    yield f"| `{field}` | meaning |"
    yield "|---|---|"
    for line in listed.split("\n- "):
        value, _, meaning = line.partition(": ")
        yield f"| {value} | {_cell(meaning)} |"
    yield ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](http-documents.md#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            kinds = [_type(one) for one in schema[several]]
            return " or ".join(dict.fromkeys(kinds))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    kind = schema.get("type", "any JSON")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        values = schema["additionalProperties"]
        return f"object of {_type(values)}" if values else "object"
    if schema.get("format"):
        kind += f" ({schema['format']})"
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
