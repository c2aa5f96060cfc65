"""The tools that policies call, and presets of them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import UsageError, unknown_name
from ..registry import Registry
from ..registry import load as _load
from .base import Tool, ToolContext, tool

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .text import bound as bound
    from .text import harmless as harmless
    from .text import shorten as shorten

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)


__all__ = ["ENDING", "TOOLS", "TOOLSETS", "Tool", "ToolContext", "bound", "harmless", "make_tools", "shorten", "tool"]

ENDING = ("submit", "finish")
"""Names of tools that end an episode, or a step of its task."""

TOOLS = Registry[object](
    "tool",
    {
        "bash": "swe_gym.tools.shell:bash",
        "view": "swe_gym.tools.view:view",
        "grep": "swe_gym.tools.grep:grep",
        "listdir": "swe_gym.tools.view:listdir",
        "edit": "swe_gym.tools.edit:Edit",
        "rewrite": "swe_gym.tools.edit:rewrite",
        "pdb": "swe_gym.tools.pdb:Pdb",
        "eval": "swe_gym.tools.shell:run_eval",
        "submit": "swe_gym.tools.shell:submit",
        "r2e.file_editor": "swe_gym.tools.presets.r2e:FileEditor",
        "r2e.search": "swe_gym.tools.presets.r2e:search",
        "r2e.execute_bash": "swe_gym.tools.presets.r2e:execute_bash",
        "r2e.finish": "swe_gym.tools.presets.r2e:finish",
        "debug_gym.bash": "swe_gym.tools.presets.debug_gym:bash",
        "debug_gym.view": "swe_gym.tools.presets.debug_gym:view",
        "debug_gym.grep": "swe_gym.tools.presets.debug_gym:grep",
        "debug_gym.edit": "swe_gym.tools.presets.debug_gym:edit",
        "debug_gym.pdb": "swe_gym.tools.presets.debug_gym:DebugGymPdb",
        "str_replace.str_replace_editor": "swe_gym.tools.presets.str_replace:StrReplaceEditor",
        "str_replace.execute_bash": "swe_gym.tools.presets.str_replace:execute_bash",
        "str_replace.think": "swe_gym.tools.presets.str_replace:think",
        "str_replace.finish": "swe_gym.tools.presets.str_replace:finish",
    },
    group="swe_gym.tools",
)

TOOLSETS: Mapping[str, tuple[str, ...]] = {
    "default": ("bash", "view", "grep", "listdir", "edit", "rewrite", "pdb", "eval", "submit"),
    "r2e": ("r2e.file_editor", "r2e.search", "r2e.execute_bash", "r2e.finish"),
    "debug_gym": (
        "debug_gym.bash",
        "debug_gym.view",
        "debug_gym.grep",
        "listdir",
        "rewrite",
        "debug_gym.edit",
        "debug_gym.pdb",
        "eval",
        "submit",
    ),
    "str_replace": ("str_replace.str_replace_editor", "str_replace.execute_bash", "submit"),
    "swe_agent": ("bash", "str_replace.str_replace_editor", "submit"),
    "openhands": (
        "str_replace.execute_bash",
        "str_replace.str_replace_editor",
        "str_replace.think",
        "str_replace.finish",
    ),
}
"""Presets: the default tools, and those of other systems under their own names, so that their trajectories replay."""


def make_tools(tools: str | Sequence[str | Tool]) -> list[Tool]:
    """Return tools for one environment, in the order given. Tools with state are new instances.

    Args:
        tools: The name of a preset, or a list of names of presets, names of tools, dotted paths
            ("package.module:my_tool"), names of entry points and `Tool` objects.

    Raises:
        UsageError: A name is unknown or does not lead to a tool, or two tools have the same name.
    """
    if isinstance(tools, str):
        if tools not in TOOLSETS:
            raise unknown_name("preset of tools", tools, TOOLSETS)
        tools = [tools]
    made: list[Tool] = []
    for item in tools:
        names = TOOLSETS.get(item, (item,)) if isinstance(item, str) else (item,)
        made += [_make(name) for name in names]
    seen: set[str] = set()
    for one in made:
        if not callable(getattr(one, "run", None)):
            raise UsageError(f"tool class {type(one).__name__} has no method `run`")
        if one.name in seen:
            raise UsageError(f"two tools are named {one.name!r}: remove or rename one of them")
        seen.add(one.name)
    return made


def _make(item: str | Tool) -> Tool:
    if isinstance(item, Tool):
        return item
    if not isinstance(item, str):
        raise UsageError(f"invalid tool {item!r}: give its name or a Tool")
    found = TOOLS.load(item)
    if isinstance(found, type) and issubclass(found, Tool):
        return found()
    if not isinstance(found, Tool):
        raise UsageError(f"{item!r} is not a tool but {found!r}: decorate a function with swe_gym.tools.tool")
    return found
