"""Configurations: a TOML file, settings such as `run.retries=0`, variables of this machine, clear errors."""

import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from .errors import UsageError, unknown_name
from .types import JsonMapping, JsonObject

VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
"""A value that is taken from a variable of this machine. Other values are literal, as in Harbor."""


def read_toml(path: str | Path) -> JsonObject:
    """Return the content of a TOML file.

    Raises:
        UsageError: The file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error


Texts = dict[tuple[str, ...], str]
"""Path of a field -> the text of its override, if its value is not a string."""


def override(values: JsonObject, overrides: Iterable[str], example: str) -> Texts:
    """Set nested values by overrides such as "optim.lr=1e-5". A value is TOML or a plain word.

    Returns:
        The texts for `keep_texts`.

    Raises:
        UsageError: An override is invalid. The message shows `example`.
    """
    texts: Texts = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        *sections, field = name.strip().split(".")
        if not equals or not all(part.isidentifier() for part in (*sections, field)):
            raise UsageError(f"invalid override {text!r}: write section.field=value, for example {example}")
        section = _section(values, sections, f"invalid override {text!r}")
        try:
            section[field] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            section[field] = value.strip()
        if not isinstance(section[field], str):
            texts[*sections, field] = value.strip()
    return texts


def keep_texts(values: JsonObject, texts: Texts, model: type[BaseModel], within: tuple[str, ...] = ()) -> None:
    """Set fields that do not take the value of their override to its text: a shell removes the quotes of `name='2024'`.

    Args:
        values: Values for the model.
        texts: Result of `override`.
        model: The model.
        within: Path of the values in the configuration.
    """
    try:
        model.model_validate(values)
    except ValidationError as error:
        wrong = [one["loc"] for one in error.errors() if one["type"] != "extra_forbidden"]
        for path, text in texts.items():
            own = path[len(within) :]
            if path[: len(within)] == within and own and any(place[: len(own)] == own for place in wrong):
                section = values
                for name in own[:-1]:
                    section = section[name]
                section[own[-1]] = text


def parse_pairs(option: str, pairs: Iterable[str] | None) -> JsonObject:
    """Parse `["memory_mb=512", "options.pull=never"]`. A value is JSON or plain text.

    Raises:
        UsageError: A pair is invalid. The message names `option`.
    """
    found: JsonObject = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{option} {pair!r} is not NAME=VALUE")
        *sections, field = name.split(".")
        section = _section(found, sections, f"{option} {pair!r}")
        try:
            section[field] = json.loads(value)
        except ValueError:
            section[field] = value
    return found


def _section(values: JsonObject, names: Iterable[str], what: str) -> JsonObject:
    """Return a nested section, made if it is missing. `what` begins the error."""
    for name in names:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise UsageError(f"{what}: {name!r} has the value {values!r} already")
    return values


def check_names(values: JsonMapping, model: type[BaseModel], section: str = "") -> None:
    """Refuse a name that is not a field of the model.

    Raises:
        UsageError: A field is unknown. The message lists those of its section.
    """
    for name, value in values.items():
        if name not in model.model_fields:
            raise unknown_name("field of the configuration", section + name, map(section.__add__, model.model_fields))
        kind = model.model_fields[name].annotation
        if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, BaseModel):
            check_names(value, kind, f"{section}{name}.")


def resolve_variables(env: Mapping[str, str], allowed: Collection[str], place: str, option: str) -> dict[str, str]:
    """Return variables with the values of this machine where they name one that is allowed.

    Args:
        env: Variables. A value `${NAME}` or `${NAME:-default}` is that of another variable.
        allowed: Names of this machine's variables that may be read. With a default, others are not read.
        place: File and field, for messages.
        option: What gives `variables` on the command line, such as "agent.variables", for messages.

    Raises:
        UsageError: A variable is not allowed or not set, and has no default.
    """
    values = {}
    for name, value in env.items():
        match = VARIABLE.fullmatch(value)
        if match is None:
            values[name] = value
            continue
        wanted, default = match.groups()
        found = os.environ.get(wanted) if wanted in allowed else None
        if found is None and default is None:
            raise UsageError(
                f"{place}.{name} = {value!r}: the variable {wanted} "
                + (
                    "is not set on this machine"
                    if wanted in allowed
                    else f"may not be read. Pass variables=[{wanted!r}], or {option}='[\"{wanted}\"]'"
                )
            )
        values[name] = default if found is None else found
    return values
