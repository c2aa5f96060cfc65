"""A tool of your own, used beside the ones that ship."""

import argparse
import json
from typing import Annotated

import gymnasium

from swe_gym import ToolContext, ToolResult
from swe_gym.tools import tool
from swe_gym.tools.files import read_document


@tool(examples=[{"path": "README.md"}])
def line_count(context: ToolContext, path: Annotated[str, "The file."]) -> ToolResult:
    """Count the lines of a file."""
    return ToolResult(text=f"{path} has {read_document(context, path).line_count} lines.")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    with gymnasium.make("SWE/Toy-v0", tools=["bash", "submit", "custom_tool:line_count"]) as env:
        env.reset(seed=0)
        for path in ("README.md", "larder/README.md"):
            call = {"name": "line_count", "arguments": {"path": path}}
            observation, *_ = env.step(json.dumps(call))
            print(observation)
