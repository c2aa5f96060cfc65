"""debug-gym's `trajectory.json`."""

from ...actions import render_call
from ...types import JsonObject, ToolCall
from ..trajectory import PolicyInfo, Trajectory, Turn, Usage
from .chat import end_episode, text_of, tool_spec

NO_CALL = "empty_tool_response"
"""Name of a missing tool call in newer versions."""


def from_debug_gym(row: JsonObject, name: str) -> Trajectory:
    """Return the trajectory of a debug-gym episode. Step 0 is the reset; the others are turns.

    debug-gym ends an episode when the tests pass. An episode without success reached its step limit.

    Raises:
        KeyError, TypeError, ValueError: The row does not have this format.
    """
    first, *steps = row["log"]
    success = row["success"]
    if not isinstance(success, bool):
        raise ValueError(f"success must be true or false, not {success!r}")
    config = row.get("config") or {}
    turns = [_turn(step) for step in steps]
    return Trajectory(
        task_id=str(row.get("problem") or name),
        experiment=str(row.get("uuid") or ""),
        policy=PolicyInfo(name=str(row.get("agent_type") or "debug-gym"), model=str(config.get("llm_name") or "")),
        tools=tuple(tool_spec(spec) for spec in row.get("tools") or ()),
        seed=config.get("random_seed"),
        observation="\n\n".join(filter(None, [text_of(first.get("problem_message") or {}), first["obs"]])),
        turns=end_episode(turns, reward=float(success), submitted=success),
        outcome="submitted" if success else "agent_limit",
        reason="submit" if success else "turns",
        reward_valid=True,
        resolved=success,
        reward=float(success),
        usage=sum((turn.usage for turn in turns), Usage()),
    )


def _turn(step: JsonObject) -> Turn:
    """Return a turn. Its thought is the text around the call, if that version of debug-gym recorded it."""
    answers = step.get("prompt_response_pairs") or []
    said = (step.get("reasoning"), step.get("content"))
    if not any(said) and answers:  # older versions stored it only with the prompts
        said = (answers[-1].get("reasoning_response"), answers[-1].get("response"))
    thought = "\n\n".join(filter(None, said))
    call = step["action"]
    text, tool, arguments = "", "", {}
    if isinstance(call, str):  # the oldest versions had commands instead of calls
        text = call
    elif call is not None and call["name"] != NO_CALL:
        tool, arguments = call["name"], call["arguments"]
        text = render_call(ToolCall(name=tool, arguments=arguments, call_id=call.get("id")))
    return Turn(
        action="\n\n".join(filter(None, [thought, text])),
        thought=thought,
        tool=tool,
        arguments=arguments,
        observation=step["obs"],
        usage=sum((_usage(answer) for answer in answers), Usage()),
    )


def _usage(answer: JsonObject) -> Usage:
    tokens = answer.get("token_usage") or {}
    return Usage(
        prompt_tokens=int(tokens.get("prompt") or 0), completion_tokens=int(tokens.get("response") or 0), calls=1
    )
