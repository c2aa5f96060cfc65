"""Converts and checks a call's arguments by the tool's JSON schema.

It supports `type` (also a list of types), `anyOf`, `enum`, `properties`, `required`, `additionalProperties`, `items`,
`minimum` and `maximum`, and ignores other keywords. Unlike in JSON Schema, unknown parameters are errors unless
`additionalProperties` allows them: they are typos.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from ..errors import ActionError
from ..types import JsonMapping, JsonObject, ToolSpec
from .scan import read_json

Schema = JsonMapping
Arguments = JsonObject

MAX_DEPTH = 64
"""Maximum nesting of an argument, so that every call can be written as JSON again."""

MAX_ITEMS = 10_000
"""Maximum length of a list whose items are checked."""

SHELL_TOOLS = ("bash", "execute_bash")
"""Names of tools that run shell commands."""


def shell_tool(tools: Iterable[ToolSpec]) -> tuple[ToolSpec, str] | None:
    """Return the tool that runs fenced bash, and its one required string parameter; None if there is none."""
    by_name = {spec.name: spec for spec in tools}
    for name in SHELL_TOOLS:
        spec = by_name.get(name)
        required = required_of(spec.parameters) if spec else []
        if spec and len(required) == 1 and types_of(properties_of(spec.parameters).get(required[0])) == ("string",):
            return spec, required[0]
    return None


def properties_of(schema: Schema) -> Schema:
    """Return the named parameters of a schema of type "object"."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def required_of(schema: Schema) -> Sequence[str]:
    """Return the names of the required parameters."""
    return list(schema.get("required") or ())


def convert_arguments(spec: ToolSpec, arguments: Mapping[str, object]) -> Arguments:
    """Convert the arguments of a call by the tool's schema.

    A string becomes a number, boolean, list or object only if the schema asks for that and not for a string. Null (for
    such parameters also the text "null" or "None") leaves out an optional parameter; a required one that may be null
    becomes None.

    Raises:
        ActionError: A parameter is missing, unknown or invalid; the message names it.
    """
    converted = _members(arguments, spec.parameters, spec.name + ":")
    check_text(spec.name, converted)
    return converted


def _members(given: Mapping[str, object], schema: Schema, where: str) -> Arguments:
    """Convert the members of an object."""
    known, required = properties_of(schema), required_of(schema)
    further = schema.get("additionalProperties", False)
    converted: Arguments = {}
    for key, value in given.items():
        if key not in known and (further is False or further is None):
            raise ActionError(f"{where} there is no parameter {key[:60]!r}.{suggest_name(key, known)}")
        member = known.get(key) if key in known else further
        if _is_null(value, member):
            if key not in required:
                continue
            value = None
        converted[key] = _convert(value, member, f"{where} the parameter {key[:60]!r}")
    for key in required:
        if key not in converted and "null" in types_of(known.get(key)):
            converted[key] = None
    missing = [repr(key) for key in required if key not in converted]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ActionError(f"{where} {', '.join(missing)} {verb} required and missing.")
    return converted


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest one, or all."""
    names = list(known)
    near = difflib.get_close_matches(name[:60], names, n=1)
    if near:
        return f" Did you mean {near[0]!r}?"
    listed = ", ".join(names)
    return f" There are: {listed[:200]}{'...' if len(listed) > 200 else ''}." if names else " There are none."


def _is_null(value: object, schema: object) -> bool:
    if value is None:
        return True
    types = types_of(schema)
    if not isinstance(value, str) or not types or "string" in types:
        return False
    return value.strip().lower() in ("null", "none")


# --- one value ------------------------------------------------------------------------------------------

_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a JSON list",
    "object": "a JSON object",
    "null": "null",
}


def types_of(schema: object) -> tuple[str, ...]:
    """Return the types that a schema allows; empty if it has no constraint."""
    if not isinstance(schema, Mapping):
        return ()
    if isinstance(options := schema.get("anyOf"), list):
        each = [types_of(option) for option in options]
        return tuple(dict.fromkeys(name for names in each for name in names)) if all(each) else ()
    named = schema.get("type")
    if isinstance(named, str):
        return (named,) if named in _PYTHON_TYPES else ()
    names = named if isinstance(named, (list, tuple)) else []
    return tuple(name for name in names if isinstance(name, str) and name in _PYTHON_TYPES)


def _has_type(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON_TYPES[name])


def _convert(value: object, schema: object, where: str) -> object:
    if not isinstance(schema, Mapping):
        return value
    types = types_of(schema)
    if isinstance(value, str) and types and "string" not in types:
        value = _from_text(value, types)
    if types and not any(_has_type(value, name) for name in types):
        wanted = " or ".join(_NAMES[name] for name in types)
        raise ActionError(f"{where} must be {wanted}, not {_describe_value(value)}.")
    if isinstance(value, float) and "integer" in types and "number" not in types:
        value = int(value)
    for option in schema.get("anyOf") or ():
        if any(_has_type(value, name) for name in types_of(option)):
            return _convert(value, option, where)
    return _check_constraints(value, schema, where)


def _from_text(text: str, types: Sequence[str]) -> object:
    """Return the text as a value of the first type that fits, else the text itself."""
    stripped = text.strip()
    for name in types:
        found: object = None
        if name == "boolean":
            found = {"true": True, "false": False}.get(stripped.lower())
        elif name in ("integer", "number"):
            found = _number(stripped)
        elif stripped[:1] in ("[", "{"):
            value, flaw = read_json(stripped)
            found = None if flaw else value
        if found is not None and _has_type(found, name):
            return found
    return text


def value_of(text: str, schema: object) -> object:
    """Return an argument that is written as text: None, or a value of a type that its schema allows, else the text."""
    types = types_of(schema)
    if not types or "string" in types:
        return text
    return None if text.strip().lower() == "null" else _from_text(text, types)


_NUMBER = re.compile(r"[+-]?[0-9]{1,100}(\.[0-9]{0,100})?([eE][+-]?[0-9]{1,3})?")


def _number(text: str) -> int | float | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    if match.group(1) is None and match.group(2) is None:
        return int(text)
    value = float(text)
    return value if math.isfinite(value) else None


def _check_constraints(value: object, schema: Schema, where: str) -> object:
    """Return the value if it meets the constraints other than the type."""
    allowed = schema.get("enum")
    if isinstance(allowed, (list, tuple)):
        if isinstance(value, str) and value not in allowed:
            value = value.strip()  # text formats put blanks around a word
        if not any(type(value) is type(one) and value == one for one in allowed):
            listed = ", ".join(str(one) for one in allowed)[:200]
            raise ActionError(f"{where} must be one of {listed}; not {_describe_value(value)}.")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if (least := schema.get("minimum")) is not None and value < least:
            raise ActionError(f"{where} must be at least {least}, not {_describe_value(value)}.")
        if (most := schema.get("maximum")) is not None and value > most:
            raise ActionError(f"{where} must be at most {most}, not {_describe_value(value)}.")
    if isinstance(value, list) and "items" in schema:
        if len(value) > MAX_ITEMS:
            raise ActionError(f"{where} must have at most {MAX_ITEMS} items, not {len(value)}.")
        return [_convert(one, schema["items"], f"{where}, item {number},") for number, one in enumerate(value, 1)]
    if isinstance(value, dict) and properties_of(schema):
        return _members(value, schema, where + ":")
    return value


def _describe_value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return f"the text {value[:60]!r}{'...' if len(value) > 60 else ''}"
    if isinstance(value, (list, dict)):
        return "a JSON list" if isinstance(value, list) else "a JSON object"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)[:60]


def check_text(tool: str, arguments: Mapping[str, object]) -> None:
    """Raise ActionError for text that is not UTF-8 and for nesting deeper than `MAX_DEPTH`."""
    level: list[object] = [arguments]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                below += value
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str) and not _is_text(value):
                raise ActionError(
                    f"{tool}: an argument holds half of a surrogate pair (\\ud800 to \\udfff), which is no character. "
                    "Write the character itself."
                )
        if not below:
            return
        level = below
    raise ActionError(f"{tool}: the arguments are nested deeper than {MAX_DEPTH} levels.")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
