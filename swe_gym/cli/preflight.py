"""Checks before a run: extras, folders, its tasks on their backend, and the model's server. Nothing is started."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..cache import check_room
from ..envs import task_spec, verifier_spec
from ..errors import TaskError, Unsupported, UsageError
from ..gateway import kit_bytes
from ..gateway.agents import check_network, check_steps, make_agent
from ..rollout import Plan, RolloutOptions, check_price
from ..rollout.executors import EXECUTORS, ON_THIS_MACHINE
from ..rollout.policies import POLICIES, check_policy, make_policies
from ..sandboxes import Finding, Sandbox, SandboxSpec, default_backend, load_backend
from ..tasks import TaskSource
from ..trajectories.run_folder import check_servers
from ..types import JsonObject, Task
from .agents import ready_kit

if TYPE_CHECKING:
    from ..rollout.policies import LLMPolicies, ServerFacts
    from ..trajectories import Prices

MOST_TASKS = 5000
"""Number of tasks that are checked."""


class Fact(NamedTuple):
    """A line of the report, such as "images", "12 present"."""

    what: str
    said: str


def check_machine(
    folder: Path | None,
    *,
    what: str = "the run folder",
    fix: str = "choose another folder: --output",
    backend: str = "",
    policy: str = "",
    executor: str = "threads",
) -> None:
    """Check that the extras of a run are installed, and that results have a place.

    Args:
        folder: Folder of the results; None if nothing is written.
        what: What the folder is, for messages.
        fix: What to do if it cannot be used, for messages.
        backend: Backend of the sandboxes; empty if it is not known yet.
        policy: Policy; empty if there is none.
        executor: Where episodes run.

    Raises:
        UsageError: A name is unknown, or a folder cannot be written to or has no room.
        MissingDependency: An extra is not installed.
    """
    EXECUTORS.load(executor)
    if policy:
        POLICIES.load(policy)
    if backend:
        load_backend(backend)
    if folder is not None:
        check_room(folder, what, fix)


def read_tasks(source: TaskSource, ids: Sequence[str]) -> list[Task]:
    """Read tasks. Broken rows are left out: they fail alone, by name."""
    found = []
    for task_id in ids[:MOST_TASKS]:
        try:
            found.append(source.get(task_id))
        except TaskError:
            continue
    return found


def backend_for(tasks: Sequence[Task]) -> str:
    """Return the backend of tasks if the user names none."""
    return default_backend(images=any(task.image and task.workspace is None for task in tasks))


def check_sandboxes(
    backend: str, options: JsonObject, tasks: Sequence[Task], *, executor: str = "threads"
) -> list[Finding]:
    """Check that the backend can run every task. Return what it found; nothing is started.

    Args:
        backend: Name of the backend.
        options: The user's `sandbox_options`.
        tasks: Tasks to run.
        executor: Where the episodes run. Nodes of a cluster have their own engines, images and caches.

    Raises:
        UsageError: It cannot, or its service does not answer.
        SandboxStartError: Its engine does not answer, its disk is full, or an image does not exist.
    """
    kind, specs = load_backend(backend), []
    for task in tasks:
        for spec in filter(None, (task_spec(task, options), verifier_spec(task, options))):
            try:
                kind.for_spec(spec)
            except Unsupported as error:
                raise UsageError(f"backend {backend!r} cannot run task {task.task_id}: {error}") from error
            specs.append(spec)
    return check_backend(kind, specs, executor)


def check_backend(kind: type[Sandbox], specs: Sequence[SandboxSpec], executor: str) -> list[Finding]:
    """Check that what sandboxes need is there, except on the nodes of a cluster.

    Raises:
        UsageError, SandboxStartError: See `check_sandboxes`.
    """
    if not specs or (kind.on_this_machine and executor not in ON_THIS_MACHINE):
        return []
    try:
        findings = kind.check(specs)
    except Unsupported as error:
        raise UsageError(str(error)) from error
    for found in findings:
        if found.needed and not found.works:
            raise UsageError(f"{found.what}: {found.detail}. Fix: {found.fix}")
    return findings


def check_model(plan: Plan, how: RolloutOptions, folder: Path) -> Fact | None:
    """Check the policy's options, and ask the server of `llm` once. Return what it told; None for another policy.

    Args:
        plan: The plan.
        how: How the plan is run.
        folder: The run folder.

    Raises:
        UsageError: An option of the policy, the server, the key or the model is wrong; or the cost is limited and no
            price is known; or the folder holds attempts of another server.
    """
    if plan.policy != "llm":
        check_policy(plan.policy, plan.policy_options)
        return None
    options = {"model": "", **plan.policy_options}
    try:
        return _ask_model(plan, options, how, folder)
    except UsageError as error:
        if options["model"] or "--model" in str(error):
            raise
        raise UsageError(f"no model: add --model NAME. Its server: {error}") from error


def _ask_model(plan: Plan, options: JsonObject, how: RolloutOptions, folder: Path) -> Fact:
    with closing(make_policies("llm", options)) as made:
        from ..rollout.policies import (  # an extra, which `make_policies` has checked
            LLMPolicies,
            check_server,
            is_native,
        )

        assert isinstance(made, LLMPolicies)
        native = bool(plan.agent) or is_native(made.calls, plan.config()["env"]["action_format"])
        told = check_server(made, native=native)
        if plan.agent and not told.note:
            from ..gateway import check_shapes  # the extra "agents"

            check_shapes(made, plan.agent, make_agent(plan.agent, plan.agent_options))
        check_price(made.price, f"{made.model!r} at {made.server}", plan.budget, how.budget)
        if told.counts is False and any(one.tokens or one.cost for one in (plan.budget, how.budget)):
            raise UsageError(f"a budget limits tokens or cost, but {made.server} counts no tokens: omit it")
        if not how.any_server:
            check_servers(folder, [told.server])
        return Fact("model", _describe_server(made, told))


def check_agent(plan: Plan, tasks: Sequence[Task]) -> None:
    """Check the name and the options of a plan's agent, and that agents can play the tasks.

    Raises:
        TaskError: A task has several steps.
        UsageError: The agent or an option is unknown or invalid, or the policy is another one than "llm".
    """
    if plan.agent:
        agent = make_agent(plan.agent, plan.agent_options)
        check_network(plan.agent, agent, plan.env.get("sandbox_options", {}))
        if plan.policy != "llm":
            raise UsageError(f"the agent {plan.agent!r} asks a model: omit the policy {plan.policy!r}, give --model")
        for task in tasks:
            check_steps(task)
    elif plan.agent_options:
        raise UsageError(f"options of an agent ({', '.join(plan.agent_options)}) need its name: add --agent")


def bring_kit(plan: Plan) -> Fact | None:
    """Build the kit of a plan's agent unless it is cached. Return what it is; None without an agent.

    Raises:
        SandboxStartError: The kit cannot be built.
    """
    if not plan.agent:
        return None
    agent = make_agent(plan.agent, plan.agent_options)
    kit = f", kit of {kit_bytes(ready_kit(plan.agent, agent.kit)) / 1e6:,.0f} MB" if agent.kit else ""
    return Fact("agent", f"{plan.agent} {agent.version}".rstrip() + kit)


def rehearse_agent(plan: Plan, executor: str) -> None:
    """Start a plan's agent on the first task, if it has options of the user: only the agent knows its arguments.

    Raises:
        UsageError: It ended before it asked its model.
        SandboxError: The sandbox did not start, or was lost.
    """
    if plan.agent_options and plan.tasks and executor in ON_THIS_MACHINE:
        from ..gateway import rehearse  # the extra "agents"

        with closing(plan.make_env()) as env:
            rehearse(env, plan.agent, plan.agent_options, plan.tasks[0])


def _describe_server(made: "LLMPolicies", told: "ServerFacts") -> str:
    called = {True: "calls tools", False: "accepts tools, but called none in a short request", None: "tools in text"}
    price = made.price
    parts = [
        f"{made.model} at {made.server}",
        f"context {told.context:,} tokens" if told.context else "context length unknown",
        told.note or called[told.called],
        "counts no tokens" if told.counts is False else "",
        "unknown price" if price is None else _describe_price(price),
    ]
    return ", ".join(filter(None, parts))


def _describe_price(price: "Prices") -> str:
    cached = "" if price.cached is None else f"${price.cached:g} cached, "
    checked = f" (as of {price.date})" if price.date else ""
    return f"${price.input:g} in, {cached}${price.output:g} out per million tokens{checked}"
