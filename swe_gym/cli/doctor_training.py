"""`swe-gym doctor --training`: checks the configuration of a training run before its GPUs are rented."""

import http.client
import importlib.util
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.version import Version

from ..adapters import RowAgent
from ..envs import check_sandbox
from ..errors import MissingDependency, SweGymError, UsageError
from ..files import scan_table
from ..sandboxes import Finding, load_backend
from ..types import Json, JsonObject

DATASETS = "4.5"
"""Oldest version of `datasets` that reads the nested fields of R2E-Gym."""

HUB = "https://huggingface.co"
HUB_SECONDS = 5.0
MOST_FILES = 3

SECTIONS = ("actor_rollout_ref", "data", "rllm", "trainer")
"""Sections of verl and rLLM. A configuration of either has one of them."""

ENV_ARGS = ("env_args", "rllm.workflow.workflow_args.agent.env_args", "rllm.env.env_args")
"""Sections that may hold the arguments of the environment."""

RLLM_AGENT = "rllm.workflow.workflow_args.agent"
"""Section of rLLM that has all settings of the agent."""


HYDRA = "pip install 'swe-gym[verl]', or run this where the training will run"

UNREAD = "tokens per GPU, batch, trainer, rows, agent, sandboxes, backend, hub"
"""Checks that need the composed configuration."""


class RunNeeds(NamedTuple):
    """What the checks of machine and backend need to know.

    Attributes:
        at_once: Sandboxes that run at once.
        total: Sandboxes of the whole run; None if unknown.
        total_as: How that number comes about.
        env_args: Arguments of the environment.
        model: Path or hub id of the model.
    """

    at_once: int
    total: int | None
    total_as: str
    env_args: JsonObject
    model: str


def examine(file: Path, changes: Sequence[str], quota: int | None) -> Iterator[Finding]:
    """Check a configuration: Hydra's in YAML for verl or rLLM, or TOML for `swe-gym train`.

    Args:
        file: The file.
        changes: Overrides such as "trainer.n_gpus_per_node=4".
        quota: Sandboxes that the account may run at once; None if unknown.

    Without Hydra, the checks of a YAML file fail as one that names them, and those of the machine run.

    Raises:
        UsageError: The file is missing or invalid.
    """
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    if file.suffix == ".toml":
        yield from _run(_read_own_run(file, changes), quota)
    elif importlib.util.find_spec("hydra"):
        config = HydraConfig(file, changes)
        yield from _lengths(config)
        yield _rows(config)
        yield _agent(config)
        yield from _run(_verl_run(config), quota)
    else:
        yield _needed("configuration", False, f"not checked, because Hydra is not installed here: {UNREAD}", HYDRA)
    yield _numpy()
    yield _datasets()
    yield _ray()


def _run(run: RunNeeds, quota: int | None) -> Iterator[Finding]:
    yield _sandboxes(run, quota)
    yield from _backend(run.env_args)
    yield _hub(run.model)


# --- reading ------------------------------------------------------------------------------------------------


class HydraConfig:
    """Fields of a configuration by dotted name, as Hydra composes it from the file, its `defaults` and overrides.

    Args:
        file: The file.
        changes: Hydra's overrides.

    Raises:
        UsageError: Hydra cannot compose it, or it is not a configuration of verl or rLLM.
    """

    def __init__(self, file: Path, changes: Sequence[str]) -> None:
        import hydra
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError

        errors = (hydra.errors.HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError)
        try:
            with hydra.initialize_config_dir(str(file.parent.absolute()), version_base=None):
                self._data = hydra.compose(file.stem, overrides=list(changes))
        except errors as error:
            raise UsageError(f"Hydra cannot compose {file}: {error}") from error
        if not any(section in self._data for section in SECTIONS):
            raise UsageError(f"{file} is not a configuration of verl or rLLM: it has no section {', '.join(SECTIONS)}")

    def get(self, name: str) -> Json:
        """Return a field, with its references resolved; None if it is missing.

        Raises:
            UsageError: A reference cannot be resolved.
        """
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            value: Any = OmegaConf.select(self._data, name)
            return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except OmegaConfBaseException as error:
            raise UsageError(f"{name} cannot be resolved: {error}") from error

    def whole(self, name: str) -> int:
        """Return a field that is a count. Raises UsageError if it is not."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{name}={value!r} must be a whole number, at least 1")
        return value


def _verl_run(config: HydraConfig) -> RunNeeds:
    batch, n = config.whole("data.train_batch_size"), config.whole("actor_rollout_ref.rollout.n")
    epochs = config.whole("trainer.total_epochs")
    rows = [_count(Path(file)) for file in _files(config, "data.train_files")]
    known = sum(count for count in rows if count) if rows and None not in rows else None
    total = None if known is None else known * epochs * n
    return RunNeeds(
        batch * n,
        total,
        f"{known} rows x {epochs} epochs x {n}",
        _env_args(config),
        str(config.get("actor_rollout_ref.model.path") or ""),
    )


def _env_args(config: HydraConfig) -> JsonObject:
    return next((found for name in ENV_ARGS if isinstance(found := config.get(name), dict)), {})


def _files(config: HydraConfig, name: str) -> list[str]:
    files = config.get(name) or []
    return [str(file) for file in (files if isinstance(files, list) else [files])]


def _count(file: Path) -> int | None:
    return sum(1 for _ in scan_table(file.expanduser())) if file.expanduser().is_file() else None


def _read_own_run(file: Path, changes: Sequence[str]) -> RunNeeds:
    from ..train import load_config  # without torch

    config = load_config(file, changes)
    group = config.algorithm.prompts_per_step * config.algorithm.group_size * (1 + config.collect.branches)
    total_as = f"{config.run.updates} updates x {group} episodes"
    return RunNeeds(config.env.workers, config.run.updates * group, total_as, config.env.options, config.model.path)


# --- the configuration --------------------------------------------------------------------------------------


def _lengths(config: HydraConfig) -> Iterator[Finding]:
    name = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    most, prompt = config.whole(name), config.whole("data.max_prompt_length")
    response = config.whole("data.max_response_length")
    fix = f"{name}={(prompt + response) // 4096 * 4096 + 4096}"
    yield _needed("tokens per GPU", most > prompt + response, f"{most}; prompt + response: {prompt + response}", fix)
    batch, n = config.whole("data.train_batch_size"), config.whole("actor_rollout_ref.rollout.n")
    gpus = config.whole("trainer.n_gpus_per_node") * config.whole("trainer.nnodes")
    better = next(size for size in range(batch, batch + gpus + 1) if size * n % gpus == 0)
    fix = f"data.train_batch_size={better}, or trainer.n_gpus_per_node={n}"
    yield _needed("batch", batch * n % gpus == 0, f"{batch} rows x {n} episodes = {batch * n}, on {gpus} GPUs", fix)
    v1 = bool(config.get("trainer.use_v1"))
    yield _needed("trainer", v1, "V1" if v1 else "V0 ends if an episode is left out", "trainer.use_v1=True")


def _rows(config: HydraConfig) -> Finding:
    training = _files(config, "data.train_files")
    files = training + _files(config, "data.val_files")
    missing = [file for file in files if not Path(file).expanduser().is_file()]
    detail = f"not found: {', '.join(missing[:MOST_FILES])}" if missing else ", ".join(files[:MOST_FILES])
    fix = f"swe-gym tasks export {missing[0] if missing else 'train.parquet'} --to verl --source SOURCE"
    return _needed("rows", bool(training) and not missing, detail if training else "data.train_files is empty", fix)


def _agent(config: HydraConfig) -> Finding:
    """Make the agent and its environment as the adapter does, without its backend: that one has its own check."""
    settings = config.get(RLLM_AGENT) or {"env_id": config.get("env_id"), **(config.get("agent_args") or {})}
    env_args = {name: value for name, value in _env_args(config).items() if name not in ("backend", "sandbox_options")}
    try:
        RowAgent.make({**settings, "env_args": env_args}).make_env({"source": "toy"}).close()
    except SweGymError as error:
        what, _, fix = str(error).partition(". ")
        return _needed("agent", False, what, fix or "correct env_args, env_id or agent_args")
    return _needed("agent", True, "env_args, env_id and agent_args are valid")


def _sandboxes(run: RunNeeds, quota: int | None) -> Finding:
    if quota is None:
        with suppress(SweGymError):  # `_backend` reports it
            quota = load_backend(str(run.env_args.get("backend", "local"))).quota
    total = "" if run.total is None else f"; {run.total} in all ({run.total_as})"
    limit = "; pass --quota to compare it with your account's" if quota is None else f", of {quota} that are allowed"
    fix = "fewer rows or episodes in a step (data.train_batch_size, rollout.n), or a higher quota: then pass --quota"
    return _needed("sandboxes", quota is None or run.at_once <= quota, f"{run.at_once} at once{limit}{total}", fix)


# --- the backend and the machine ----------------------------------------------------------------------------


def _backend(env_args: JsonObject) -> Iterator[Finding]:
    backend, options = env_args.get("backend", "local"), env_args.get("sandbox_options") or {}
    try:
        check_sandbox(backend, options)
    except MissingDependency as error:
        what, _, fix = str(error).partition(": ")
        yield _needed(f"backend {backend}", False, what, fix)
        return
    except SweGymError as error:
        what, _, fix = str(error).partition(". ")
        yield _needed(f"backend {backend}", False, what, fix or "correct env_args")
        return
    yield _needed(f"backend {backend}", True, "options are valid and credentials are present")


def _numpy() -> Finding:
    try:
        rules = [rule for rule in map(Requirement, distribution("numba").requires or ()) if rule.name == "numpy"]
    except PackageNotFoundError:
        return _needed("numpy", True, "numba, which vLLM needs, is not installed here")
    have = version("numpy")
    works = all(rule.specifier.contains(have, prereleases=True) for rule in rules)
    needs = ", ".join(map(str, rules))
    return _needed("numpy", works, f"{have}; numba {version('numba')} needs {needs or 'any'}", f"pip install '{needs}'")


def _datasets() -> Finding:
    try:
        have = version("datasets")
    except PackageNotFoundError:
        return _needed("datasets", True, "not installed here")
    fix = f"pip install 'datasets>={DATASETS}'"
    return _needed("datasets", Version(have) >= Version(DATASETS), f"{have}, needs {DATASETS} or newer", fix)


def _ray() -> Finding:
    found = []
    for name in Path("/proc").glob("[0-9]*/comm"):
        try:
            if name.read_text().strip() in ("raylet", "gcs_server"):
                found.append(name.parent.name)
        except OSError:
            continue  # it has ended
    detail = f"processes {', '.join(found)} of an earlier run" if found else "no process of an earlier run"
    return _needed("Ray", not found, detail, "ray stop --force")


def _hub(model: str) -> Finding:
    """Check that the hub answers, if the model comes from it."""
    if not model:
        return _needed("hub", False, "no model is named", "actor_rollout_ref.model.path=NAME")
    if Path(model).expanduser().is_dir():
        return _needed("hub", True, f"not needed: {model} is a folder")
    address = os.environ.get("HF_ENDPOINT") or HUB
    fix = f"name a mirror: export HF_ENDPOINT=https://...; or download {model or 'the model'} and name its folder"
    try:
        urllib.request.urlopen(f"{address}/api/models/{model}", timeout=HUB_SECONDS).close()
    except urllib.error.HTTPError as error:
        return _needed(
            "hub", False, f"{address} answers {error.code} for {model}", f"set HF_TOKEN if it is private; {fix}"
        )
    except (OSError, ValueError, http.client.HTTPException) as error:
        return _needed("hub", False, f"{address} does not answer: {error}", fix)
    return _needed("hub", True, f"{address} has {model}")


def _needed(what: str, works: bool, detail: str, fix: str = "") -> Finding:
    return Finding(what, works, detail, fix, main=True)
