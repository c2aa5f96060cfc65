"""A tool of your own, used beside the ones that ship."""

import gymnasium

from swe_gym import Tool, ToolContext, ToolResult


class LineCount(Tool):
    name = "line_count"
    description = "Count the lines of a file."
    parameters = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "The file."}},
        "required": ["path"],
        "additionalProperties": False,
    }

    def run(self, context: ToolContext, path: str) -> ToolResult:
        text = context.sandbox.read_file(path)
        lines = text.count(b"\n")
        return ToolResult(text=f"{path} has {lines} lines.")


if __name__ == "__main__":
    with gymnasium.make("SWE/Toy-v0", tools=["bash", "submit", "custom_tool:LineCount"]) as env:
        env.reset(seed=0)
        observation, *_ = env.step('{"name": "line_count", "arguments": {"path": "README.md"}}')
        print(observation)
