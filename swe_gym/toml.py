"""Configurations: a TOML file, overrides such as `run.retries=0`, and clear errors for unknown fields."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel

from .errors import UsageError, unknown_name
from .types import JsonMapping, JsonObject


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


def override(values: JsonObject, overrides: Iterable[str], example: str) -> None:
    """Set nested values by overrides such as "optim.lr=1e-5". A value is TOML or a plain word.

    Raises:
        UsageError: An override is invalid. The message shows `example`.
    """
    for text in overrides:
        name, equals, value = text.partition("=")
        *sections, field = name.strip().split(".")
        if not equals or not all(part.isidentifier() for part in (*sections, field)):
            raise UsageError(f"invalid override {text!r}: write section.field=value, for example {example}")
        section = values
        for part in sections:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise UsageError(f"invalid override {text!r}: {part!r} is a field, not a section")
        try:
            section[field] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            section[field] = value.strip()


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
