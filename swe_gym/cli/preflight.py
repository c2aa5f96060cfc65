"""Checks before a run: its tasks on their backend, images, disk, and the model's server. Nothing is started."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..envs.group import task_spec
from ..errors import TaskError, Unsupported, UsageError
from ..gateway.agents import make_agent
from ..gateway.kits import kit_bytes
from ..rollout.budget import check_price
from ..rollout.engine import RolloutOptions
from ..rollout.plan import Plan
from ..rollout.policies import make_policies
from ..sandboxes import BACKENDS, SandboxSpec
from ..sandboxes.container import default_image
from ..sandboxes.images import ImageStore
from ..sandboxes.images.names import ImageName
from ..sandboxes.local.image import check_built, choose_overlay
from ..tasks import TaskSource
from ..trajectories.run_folder import check_servers
from ..types import JsonMapping, JsonObject, Task
from .agents import ready_kit

if TYPE_CHECKING:
    from ..rollout.policies.llm import LLMPolicies
    from ..rollout.policies.server_check import ServerFacts
    from ..sandboxes.docker import DockerSandbox
    from ..trajectories.trajectory import Prices

MOST_TASKS = 5000
"""Number of tasks whose images are checked."""

ENGINE_SECONDS = 4.0
REGISTRY_SECONDS = 4.0
SERVICE_SECONDS = 8.0
IMAGE_MB = 390
"""Disk space of an image of SWE-bench Verified, on average over all 500, in MiB."""


class Fact(NamedTuple):
    """A line of the report, such as "images", "12 present"."""

    what: str
    said: str


def read_tasks(source: TaskSource, ids: Sequence[str]) -> list[Task]:
    """Read tasks. Broken rows are left out: they fail alone, by name.

    Raises:
        TaskError: The first one is broken.
    """
    first = source.get(ids[0])
    found = [first]
    for task_id in itertools.islice(ids, 1, MOST_TASKS):
        try:
            found.append(source.get(task_id))
        except TaskError:
            continue
    return found


def backend_for(tasks: Sequence[Task]) -> str:
    """Return the backend of tasks if the user names none."""
    return "docker" if any(task.image and task.workspace is None for task in tasks) else "local"


def check_sandboxes(plan: Plan, tasks: Sequence[Task]) -> Iterator[Fact]:
    """Check that the backend can run every task.

    Raises:
        UsageError: It cannot, or the cluster or service does not answer.
        SandboxStartError: The Docker engine does not answer, its disk is full, or an image does not exist.
    """
    config = plan.config()["env"]
    backend, options = config["backend"], config["sandbox_options"]
    yield Fact("tasks", f"{len(plan.tasks or ())} from {plan.source}, backend {backend}")
    kind = BACKENDS.load(backend)
    boxes = []
    for task in tasks:
        try:
            boxes.append(kind(task_spec(task, options)))
        except Unsupported as error:
            raise UsageError(f"backend {backend!r} cannot run task {task.task_id}: {error}") from error
    if backend == "docker":
        from ..sandboxes.docker import DockerSandbox

        yield _check_images([box for box in boxes if isinstance(box, DockerSandbox)])
    if backend == "kubernetes":
        yield _check_cluster(options.get("options", {}))
    if backend == "e2b":
        from ..sandboxes.e2b.service import check_service

        yield Fact("service", f"{check_service(options.get('options', {}), SERVICE_SECONDS)} answers")
    if backend == "local":
        specs = {box.spec.image: box.spec for box in boxes if box.spec.image and box.spec.workspace is None}
        if specs:
            yield _check_stored(list(specs.values()))


def _check_cluster(options: JsonMapping) -> Fact:
    from ..sandboxes.kubernetes.doctor import examine

    findings = examine(options)
    for found in findings:
        if not found.works:
            raise UsageError(f"{found.what}: {found.detail}. Fix: {found.fix}")
    return Fact("cluster", findings[0].detail)


def _check_images(boxes: Sequence["DockerSandbox"]) -> Fact:
    from ..sandboxes.docker.engine import connect, engine_errors, free_megabytes
    from ..sandboxes.docker.images import check_disk, check_pull, find_image

    options = boxes[0].options
    needed = {
        box.spec.image or box.options.default_image or default_image(box.spec.python): box.spec.build for box in boxes
    }
    with closing(connect(options.base_url, ENGINE_SECONDS)) as engine:
        absent = [image for image in needed if find_image(engine, image) is None]
        if not absent:
            return Fact("images", f"all {len(needed)} present")
        missing = [image for image in absent if needed[image] is None]
        said = f"{len(needed) - len(absent)} present"
        said += f", {len(absent) - len(missing)} to build" if len(missing) < len(absent) else ""
        if not missing:
            return Fact("images", said)
        if options.pull == "never":
            raise UsageError(
                f"{len(missing)} of {len(needed)} images are missing, such as {missing[0]}, and pull=never"
            )
        check_disk(engine, missing[0], options.min_free_mb)
        unknown = check_pull(engine, missing[0])
        with engine_errors("report its disk"):
            free = free_megabytes(engine)
    needs = len(missing) * IMAGE_MB
    if free is not None and options.min_free_mb and free - options.min_free_mb < needs:
        raise UsageError(
            f"{len(missing)} of {len(needed)} images are missing. At {IMAGE_MB} MiB each, as in SWE-bench, they need "
            f"about {needs / 1024:,.0f} GiB, and the Docker engine's disk has {free / 1024:,.0f} GiB. Free space, "
            "choose fewer tasks, or omit this check: --sandbox-option 'options={\"min_free_mb\": 0}'"
        )
    room = "" if free is None else f"; {free / 1024:,.0f} GiB free on the engine's disk"
    doubt = f"; the registry could not be asked about {missing[0]}: {unknown}" if unknown else ""
    return Fact("images", f"{said}, {len(missing)} to pull{room}{doubt}")


def _check_stored(specs: Sequence[SandboxSpec]) -> Fact:
    """Check that local sandboxes can run images, and that the first missing one can be fetched."""
    from ..sandboxes.images.sources import RegistrySource

    images = [str(spec.image) for spec in specs]
    kind, why = choose_overlay()
    if not kind:
        raise UsageError(
            f"the tasks need container images, such as {images[0]}, and local sandboxes cannot run them on this "
            f"machine: {why}. Use --backend docker, or see `swe-gym doctor`"
        )
    store = ImageStore()
    try:
        for spec in specs:
            check_built(spec, store)
    except Unsupported as error:
        raise UsageError(str(error)) from error
    missing = [image for image in images if store.find(image) is None]
    if missing:
        with closing(RegistrySource(ImageName.parse(missing[0]), time.monotonic() + REGISTRY_SECONDS)):
            pass
    return Fact("images", f"{len(images) - len(missing)} present, {len(missing)} to fetch")


def check_model(plan: Plan, how: RolloutOptions, folder: Path) -> Fact | None:
    """Ask the server of the policy `llm` once. Return what it told; None for another policy.

    Args:
        plan: The plan.
        how: How the plan is run.
        folder: The run folder.

    Raises:
        UsageError: The server, the key, the model or a setting is wrong; or the cost is limited and no price is known;
            or the folder holds attempts of another server.
    """
    if plan.policy != "llm":
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
        from ..rollout.policies.llm import LLMPolicies, is_native  # an extra, which `make_policies` has checked
        from ..rollout.policies.server_check import check_server

        assert isinstance(made, LLMPolicies)
        native = bool(plan.agent) or is_native(made.calls, plan.config()["env"]["action_format"])
        told = check_server(made, native=native)
        if plan.agent and not told.note:
            from ..gateway.server_shapes import check_shapes  # the extra "agents"

            check_shapes(made, plan.agent, make_agent(plan.agent, plan.agent_options))
        check_price(made.price, f"{made.model!r} at {made.server}", plan.budget, how.budget)
        if told.counts is False and any(one.tokens or one.cost for one in (plan.budget, how.budget)):
            raise UsageError(f"a budget limits tokens or cost, but {made.server} counts no tokens: omit it")
        if not how.any_server:
            check_servers(folder, [told.server])
        return Fact("model", _told(made, told))


def check_agent(plan: Plan) -> None:
    """Check the name and the options of a plan's agent.

    Raises:
        UsageError: The agent or an option is unknown or invalid, or the policy is another one than "llm".
    """
    if plan.agent:
        make_agent(plan.agent, plan.agent_options)
        if plan.policy != "llm":
            raise UsageError(f"the agent {plan.agent!r} asks a model: omit the policy {plan.policy!r}, give --model")


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


def start_agent(plan: Plan, executor: str) -> None:
    """Start a plan's agent on the first task, if it has options of the user: only the agent knows its arguments.

    Raises:
        UsageError: It ended before it asked its model.
        SandboxError: The sandbox did not start, or was lost.
    """
    if plan.agent_options and plan.tasks and executor == "threads":
        from ..gateway.rehearsal import rehearse  # the extra "agents"

        with closing(plan.make_env()) as env:
            rehearse(env, plan.agent, plan.agent_options, plan.tasks[0])


def _told(made: "LLMPolicies", told: "ServerFacts") -> str:
    called = {True: "calls tools", False: "accepts tools, but called none in a short request", None: "tools in text"}
    price = made.price
    parts = [
        f"{made.model} at {made.server}",
        f"context {told.context:,} tokens" if told.context else "context length unknown",
        told.note or called[told.called],
        "counts no tokens" if told.counts is False else "",
        "unknown price" if price is None else _priced(price),
    ]
    return ", ".join(filter(None, parts))


def _priced(price: "Prices") -> str:
    cached = "" if price.cached is None else f"${price.cached:g} cached, "
    checked = f" (as of {price.date})" if price.date else ""
    return f"${price.input:g} in, {cached}${price.output:g} out per million tokens{checked}"
