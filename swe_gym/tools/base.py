"""A tool is one typed function: its name, description and JSON schema come from the signature and the docstring."""

import dataclasses
import inspect
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints, overload

import pydantic

from ..errors import UsageError
from ..sandboxes import Sandbox
from ..types import Json, JsonMapping, JsonObject, ToolResult, ToolSpec

Examples = Sequence[Mapping[str, object]]
Run = Callable[..., ToolResult]


@dataclasses.dataclass(slots=True)
class ToolContext:
    """The sandbox and the limits that a tool runs with.

    Attributes:
        sandbox: The episode's sandbox.
        eval_cmd: The task's visible test command; empty if the task has none.
        eval_timeout: Seconds before `eval_cmd` is killed.
        max_output: Characters of output to stay under.
        deadline: `time.monotonic()` at which the episode's time limit is reached.
    """

    sandbox: Sandbox
    eval_cmd: str = ""
    eval_timeout: float = 120.0
    max_output: int = 16_000
    deadline: float = float("inf")

    def time_left(self, wanted: float) -> float:
        """Return `wanted` seconds, or what is left of the episode if that is less; at least 0.1."""
        return max(0.1, min(wanted, self.deadline - time.monotonic()))


class Tool:
    """Base class of tools that keep state over an episode. Decorate a function with `tool` if there is no state.

    A subclass writes `run(self, context, ...)`, which returns a `ToolResult`. Its docstring, up to a section such as
    "Args:", is the description that policies read. Its parameters give the JSON schema: annotate them as
    `Annotated[str, "What it is."]`, and give optional ones a default. The policy's arguments are converted and checked
    by the schema before `run`; an optional parameter that the policy left out is not passed. `run` raises `ToolError`
    if the call cannot be done; the message becomes the observation. A `SandboxError` ends the episode without a reward.

    An instance belongs to one environment; `reset` drops its state. `save` and `load` carry it into an episode that
    starts from a checkpoint.

    Attributes:
        name: Name that policies call; by default the class's name in snake case.
        description: Text for policies; by default the docstring of `run`.
        parameters: JSON schema of type "object". Derived from `run`; setting it raises `UsageError`.
        examples: Arguments of harmless, deterministic calls: `action_space.sample()` draws from them.
    """

    name: str = ""
    description: str = ""
    parameters: Mapping[str, object] = {}
    examples: Examples = ()
    run: Run

    def __init_subclass__(cls) -> None:
        if "parameters" in vars(cls):
            raise UsageError(
                f"tool class {cls.__name__} sets `parameters`, which is derived from the signature of `run`: delete it "
                'and annotate the parameters of `run`, as in path: Annotated[str, "The file."]'
            )
        cls.name = vars(cls).get("name") or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        if run := vars(cls).get("run"):
            cls.description = vars(cls).get("description") or description_of(run) or cls.description
            cls.parameters = parameters_of(run, skip=2)
            _check_described(cls.name, cls.description)

    @property
    def spec(self) -> ToolSpec:
        """The tool as policies see it."""
        return ToolSpec(name=self.name, description=self.description, parameters=dict(self.parameters))

    def reset(self) -> None:
        """Drop all state of the episode. Called at reset and at close, also after failures."""

    def save(self, sandbox: Sandbox) -> JsonObject | None:  # noqa: ARG002  for tools
        """Return the state of the episode as plain JSON for `load`; None if it cannot be kept."""
        return None

    def load(self, sandbox: Sandbox, state: JsonObject) -> None:
        """Take over a state that `save` returned in a sandbox with the same files."""


class FunctionTool(Tool):
    """A tool without state, made of a function by `tool`. Environments share it."""

    def __init__(self, run: Run, name: str, examples: Examples) -> None:
        self.run = run
        self.name = name or run.__name__
        self.description = description_of(run)
        self.parameters = parameters_of(run, skip=1)
        self.examples = examples
        _check_described(self.name, self.description)

    def save(self, sandbox: Sandbox) -> JsonObject:  # noqa: ARG002
        """Return an empty state: there is none."""
        return {}


@overload
def tool(run: Run, /) -> FunctionTool: ...
@overload
def tool(*, name: str = "", examples: Examples = ()) -> Callable[[Run], FunctionTool]: ...
def tool(
    run: Run | None = None, /, *, name: str = "", examples: Examples = ()
) -> FunctionTool | Callable[[Run], FunctionTool]:
    """Make a tool of a function `run(context, ...) -> ToolResult`; `Tool` says how its signature is read.

    Args:
        run: The function.
        name: Name that policies call; by default the function's.
        examples: Arguments of harmless, deterministic calls: `action_space.sample()` draws from them.

    Raises:
        UsageError: The function has no docstring, is asynchronous or takes no context, or a parameter has no type or
            is positional-only.
    """
    if run is not None:
        return FunctionTool(run, name, examples)
    return lambda run: FunctionTool(run, name, examples)


def description_of(run: Run) -> str:
    """Return the docstring as one line, up to its first section such as "Args:"."""
    text = inspect.cleandoc(run.__doc__ or "")
    return " ".join(re.split(r"^(?:Args|Raises|Returns|Yields|Example|Examples|Note):$", text, flags=re.M)[0].split())


def parameters_of(run: Run, *, skip: int) -> dict[str, object]:
    """Return the JSON schema of a function's parameters but the first `skip`, as every LLM API takes it.

    Raises:
        UsageError: The function is asynchronous, takes no context, or a parameter has no type, or one that JSON does
            not have.
    """
    _check_callable(run, skip - 1)
    properties: dict[str, object] = {}
    required: list[str] = []
    try:
        hints = get_type_hints(run, include_extras=True)
        for name, parameter in list(inspect.signature(run).parameters.items())[skip:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise UsageError(f"tool {run.__qualname__}: *{name} has no JSON schema: name every parameter")
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise UsageError(
                    f"tool {run.__qualname__}: {name!r} is positional-only, and calls use names: remove `/`"
                )
            properties[name] = _schema_of(hints[name], optional=parameter.default is None)
            required += [name] if parameter.default is parameter.empty else []
    except KeyError as error:
        example = f'{error.args[0]}: Annotated[str, "What it is."]'
        raise UsageError(f"tool {run.__qualname__}: a parameter has no type: write {example}") from None
    except (NameError, RecursionError, pydantic.errors.PydanticUserError) as error:
        raise UsageError(f"tool {run.__qualname__}: no JSON schema for its parameters: {error}") from error
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


JSON_TYPE = re.compile(r"(str|int|float|bool|list|dict|Literal)\b")
"""Beginning of an annotation that belongs to an argument, not to a context."""


def _check_callable(run: Run, place: int) -> None:
    """Raise `UsageError` for a function that cannot be called as a tool. `place` is that of its context."""
    name = run.__qualname__
    if inspect.iscoroutinefunction(run) or inspect.isasyncgenfunction(run):
        raise UsageError(f"tool {name} is asynchronous, and environments call tools synchronously: remove `async`")
    first = dict(enumerate(inspect.signature(run).parameters.values())).get(place)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise UsageError(f"tool {name} has no parameter for its context: add `context: ToolContext` in first place")
    if JSON_TYPE.match(getattr(first.annotation, "__name__", str(first.annotation))):
        raise UsageError(f"tool {name} has {first.name!r} in first place: add `context: ToolContext` before it")


def _schema_of(hint: Any, *, optional: bool) -> JsonObject:
    """Return the schema of one parameter: no titles, no defaults, and no null where leaving it out means the same."""
    schema = pydantic.TypeAdapter(hint).json_schema()
    schema = _inline(schema, schema.get("$defs", {}))
    options = [option for option in schema.pop("anyOf", ()) if not (optional and option == {"type": "null"})]
    if len(options) == 1:
        schema |= options[0]
    elif options:
        schema["anyOf"] = options
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    texts = [text for text in getattr(hint, "__metadata__", ()) if isinstance(text, str)]
    schema |= {"description": texts[0]} if texts else {}
    first = [key for key in ("type", "items", "description") if key in schema]
    return {key: schema[key] for key in (*first, *schema)}


def _inline(node: Json, classes: JsonMapping) -> Json:
    """Return a schema without titles, defaults and references: policies read it whole, as part of a larger one."""
    if isinstance(node, list):
        return [_inline(one, classes) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = {**classes[node["$ref"].rpartition("/")[2]], **node}
    return {
        key: {name: _inline(one, classes) for name, one in value.items()}
        if key == "properties"
        else _inline(value, classes)
        for key, value in node.items()
        if key not in ("title", "default", "$ref", "$defs")
    }


def _check_described(name: str, description: str) -> None:
    if not description:
        raise UsageError(f"tool {name!r} has no description: give its function, or its method `run`, a docstring")
