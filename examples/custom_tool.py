"""A tool of your own, used beside the ones that ship."""

import json

import gymnasium

from swe_gym import Tool, ToolContext, ToolResult
from swe_gym.tools.files import read_document


class LineCount(Tool):
    """Counts lines."""

    name = "line_count"
    description = "Count the lines of a file."
    parameters = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "The file."}},
        "required": ["path"],
        "additionalProperties": False,
    }
    examples = ({"path": "README.md"},)

    def run(self, context: ToolContext, path: str) -> ToolResult:
        document = read_document(context, path)
        return ToolResult(text=f"{path} has {document.line_count} lines.")


if __name__ == "__main__":
    with gymnasium.make("SWE/Toy-v0", tools=["bash", "submit", "custom_tool:LineCount"]) as env:
        env.reset(seed=0)
        for path in ("README.md", "larder/README.md"):
            call = {"name": "line_count", "arguments": {"path": path}}
            observation, *_ = env.step(json.dumps(call))
            print(observation)
