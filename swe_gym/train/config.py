"""The configuration of a training run: a TOML file, each value of which the command line can override."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, field_serializer, field_validator, model_validator

from ..errors import UsageError, wrong_fields
from ..gateway.agents import AGENTS
from ..toml import check_names, keep_texts, override, read_toml
from ..types import Frozen, JsonMapping, JsonObject

RENAMED = {
    "warm_start": "sft",
    "algorithm.tasks": "algorithm.prompts_per_step",
    "algorithm.attempts": "algorithm.group_size",
    "algorithm.average": "algorithm.loss_agg",
    "algorithm.importance_cap": "algorithm.tis_cap",
    "algorithm.kl": "algorithm.kl_coef",
    "algorithm.kl_estimate": "algorithm.kl_estimator",
    "algorithm.entropy": "algorithm.entropy_coef",
    "algorithm.value": "algorithm.value_coef",
    "algorithm.lam": "algorithm.gae_lambda",
    "algorithm.uninformative": "algorithm.zero_variance_groups",
    "algorithm.overlap": "algorithm.async_rollout",
    "optim.max_norm": "optim.max_grad_norm",
    "optim.micro_tokens": "optim.max_tokens_per_microbatch",
    "optim.warmup": "optim.warmup_steps",
    "model.matmul": "model.matmul_precision",
    "generation.max_gap": "generation.max_logprob_diff",
    "generation.options.push": "generation.options.weight_sync",
    "generation.options.push_folder": "generation.options.weight_sync_folder",
}
"""Former name -> name. A former name is an error."""


class RunConfig(Frozen):
    """The settings of the run as a whole.

    Attributes:
        output: Run folder. A run that is already there resumes.
        seed: Seed of all random number generators.
        updates: Number of updates.
        minutes: Wall-clock limit in minutes, over all resumes. 0 disables it.
        evaluate_every: Updates between evaluations; one runs before the first update. 0 disables them.
        checkpoint_every: Updates between checkpoints. The last update always has one.
        keep: Number of checkpoints to keep.
        keep_episodes: Number of updates whose episodes are kept, without tokens; the last ones. 0 keeps none.
        max_failed: Largest share of an update's episodes that the infrastructure may lose before the run stops.
        trackers: Experiment trackers that receive the logged metrics: "tensorboard", "wandb", "mlflow".
    """

    output: str = "runs/train"
    seed: int = 0
    updates: int = Field(default=50, ge=0)
    minutes: float = Field(default=0.0, ge=0)
    evaluate_every: int = Field(default=10, ge=0)
    checkpoint_every: int = Field(default=10, ge=1)
    keep: int = Field(default=2, ge=1)
    keep_episodes: int = Field(default=20, ge=0)
    max_failed: float = Field(default=0.5, ge=0, le=1)
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()


class ModelConfig(Frozen):
    """The model.

    Attributes:
        path: Hugging Face id or local folder.
        dtype: Data type of the weights. Only LoRA training allows other types than float32.
        precision: Precision in which the layers compute. With "bfloat16", weights, gradients, optimizer, logits and
            losses stay float32.
        matmul_precision: Precision of float32 matrix products, as in `torch.set_float32_matmul_precision`. "high" is
            TF32 on a GPU. "medium" is bfloat16 on CPUs with AMX, which moves log-probabilities by 0.01 and more.
        device: "cpu", "cuda" or "auto".
        lora_rank: Rank of LoRA adapters. 0 trains all weights.
        value_head: Add a value head, which advantage "gae" needs.
        detach_value: Train only the value head with the value loss, not the language model.
        gradient_checkpointing: Trade compute for memory.
        chunk: Number of sampled tokens whose logits are in memory at a time.
    """

    path: str
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    precision: Literal["float32", "bfloat16"] = "float32"
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    device: str = "auto"
    lora_rank: int = Field(default=0, ge=0)
    value_head: bool = False
    detach_value: bool = False
    gradient_checkpointing: bool = False
    chunk: int = Field(default=1024, ge=1)

    @model_validator(mode="after")
    def _check_dtype(self) -> Self:
        if self.dtype != "float32" and not self.lora_rank:
            raise ValueError(
                f"dtype {self.dtype!r} rounds most small optimizer steps to nothing: use float32 with "
                "model.precision = 'bfloat16', or train LoRA adapters (model.lora_rank)"
            )
        return self


class EnvConfig(Frozen):
    """The environment.

    Attributes:
        id: Registered environment id.
        options: Arguments of `gymnasium.make` for training and evaluation.
        train: Additional arguments for training, such as a range of task numbers.
        held_out: Additional arguments for evaluation. They must select other tasks.
        system: System prompt. If empty, a short list of the tools.
        agent: Agent that plays with its own prompts and tools, such as "mini". Empty: the model calls the tools itself.
        agent_options: Options of the agent.
        workers: Number of episodes that run at once.
        executor: Where episodes run: "threads" of this process, worker processes ("process"), "ray", or
            "module:Class". The generator stays here.
        executor_options: Options of the executor, such as `address` of a Ray cluster.
    """

    id: str = "SWE/Micro-v0"
    options: JsonObject = {}
    train: JsonObject = {}
    held_out: JsonObject = {}
    system: str = ""
    agent: str = ""
    agent_options: JsonObject = {}
    workers: int = Field(default=16, ge=1)
    executor: str = "threads"
    executor_options: JsonObject = {}

    @model_validator(mode="after")
    def _check_executor(self) -> Self:
        if self.agent and self.executor != "threads":
            raise ValueError(f"an agent learns with executor 'threads' only, not {self.executor!r}")
        return self


class GenerationConfig(Frozen):
    """The generator and its sampling parameters.

    Attributes:
        backend: "vllm" over HTTP, "hf" in this process, or "module:Class".
        url: Address of a running vLLM server, or of several, separated by blanks. If empty, the trainer starts one.
        options: Options of the backend, such as the server's arguments.
        temperature: Sampling temperature in training.
        max_tokens: Maximum tokens of one answer.
        max_context: Maximum tokens of a conversation, prompt and answers together.
        tool_call_style: Format in which the model writes an agent's tool calls; see `TokenSampler`. Empty: as the
            family of its chat template does.
        max_logprob_diff: Largest mean difference of log-probabilities between sampler and trainer before the run stops.
    """

    backend: str = "vllm"
    url: str = ""
    options: JsonObject = {}
    temperature: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=512, ge=1)
    max_context: int = Field(default=4096, ge=2)
    tool_call_style: str = ""
    max_logprob_diff: float = Field(default=0.3, gt=0)

    @property
    def sleeps(self) -> bool:
        """Whether vLLM sleeps while the trainer learns. One that is no boolean is refused with the options."""
        try:
            return self.backend == "vllm" and TypeAdapter(bool).validate_python(self.options.get("sleep", False))
        except ValidationError:
            return False

    @field_serializer("options")
    def _without_key(self, options: JsonObject) -> JsonObject:
        """Keep the API key out of files and logs."""
        return {name: value for name, value in options.items() if name != "api_key"}


class AlgorithmConfig(Frozen):
    """The policy-gradient algorithm; `objective` has the formulas.

    Attributes:
        advantage: Advantage estimator. "gae" needs a value head; the others compare the episodes of a group.
            "reinforce++" is REINFORCE++-baseline. "gigpo" and "rtmc" compare steps that began in equal states, which
            `StateSignature` names. "tree_grpo" needs collect.branches.
        prompts_per_step: Number of tasks per update.
        group_size: Episodes per task.
        tokens_per_step: Least sampled tokens of an update, within max_refills. It plays prompts_per_step tasks, and
            further ones until its episodes have so many tokens; those of groups that zero_variance_groups drops, of
            masked episodes and older than max_staleness do not count. 0 disables it.
        curriculum: "shuffled", or "thompson": prefer tasks that the policy seems to solve half of the time, by Thompson
            sampling over what it solved before (MoPPS, arXiv 2507.04632).
        pass_rates: Validation record whose pass rates (`swe-gym tasks rate`) "thompson" starts from: FILE, or
            NAME=FILE with the name of the model or policy. Empty: no rate is known at the start.
        loss: "ppo", "gspo" (a ratio per segment; clip far closer to 1, such as clip_low = 3e-4, clip_high = 4e-4) or
            "cispo" (the clipped ratio is a weight).
        epochs: Passes over the batch.
        minibatches: Optimizer steps per pass.
        loss_agg: How the loss weighs tokens: all alike, all episodes alike, or by a constant length (Dr. GRPO).
        loss_length: The constant length in tokens, which "seq-mean-token-sum-norm" needs: as many tokens as an episode
            can sample, for example. verl calls it `loss_scale_factor`.
        clip_low: Lower clip range epsilon: ratio >= 1 - clip_low.
        clip_high: Upper clip range epsilon: ratio <= 1 + clip_high.
        dual_clip: Bound of the loss "ppo" for negative advantages, above 1. 0 disables it.
        tis_cap: Cap of the truncated importance sampling weight between sampler and trainer. 0 disables the correction.
        kl_coef: Coefficient of the KL penalty in the loss. The reference is the model after SFT.
        kl_estimator: KL estimator.
        entropy_coef: Coefficient of the entropy bonus.
        gamma: Discount factor per sampled token, for "gae".
        gae_lambda: Bias-variance trade-off of "gae".
        step_gamma: Discount factor per step, for "gigpo" and "rtmc". 0: that of the paper, 0.95 or 0.99.
        step_weight: Weight of the comparison of steps in "gigpo".
        value_prior: Number of visits that a group's mean reward counts as in the value of a state, for "rtmc".
        value_coef: Coefficient of the value loss.
        value_clip: Value clip range. 0 disables clipping.
        whiten: Whiten the advantages of "gae" over the batch.
        zero_variance_groups: What to do with groups whose rewards are all equal: "keep" them, "drop" them, or "refill":
            drop them and play other tasks in their place (DAPO's dynamic sampling, arXiv 2503.14476).
        max_refills: An update with "refill" or tokens_per_step has at most (1 + max_refills) * prompts_per_step groups.
            "refill" alone plays further groups at most max_refills times.
        cut_episodes: "keep", or "mask" the tokens of episodes that a limit ended (turns, time, context): whether they
            would have been resolved is not known. Their rewards stay in the group's baseline (DeepSWE's compact
            filtering).
        async_rollout: Play episodes while training. Slow ones stay in flight over several updates.
        max_staleness: Maximum age of sampled tokens, in updates. Older ones are masked. With `async_rollout`, up to
            (max_staleness + 1) * prompts_per_step groups are in flight.
    """

    advantage: Literal["rloo", "grpo", "dr_grpo", "reinforce++", "gigpo", "rtmc", "tree_grpo", "gae"] = "rloo"
    prompts_per_step: int = Field(default=16, ge=1)
    group_size: int = Field(default=4, ge=1)
    tokens_per_step: int = Field(default=0, ge=0)
    curriculum: Literal["shuffled", "thompson"] = "shuffled"
    pass_rates: str = ""
    loss: Literal["ppo", "gspo", "cispo"] = "ppo"
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=1, ge=1)
    loss_agg: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = "token-mean"
    loss_length: int = Field(default=0, ge=0)
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float = Field(default=3.0, ge=0)
    tis_cap: float = Field(default=2.0, ge=0)
    kl_coef: float = Field(default=0.0, ge=0)
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coef: float = 0.0
    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    step_gamma: float = Field(default=0.0, ge=0, le=1)
    step_weight: float = Field(default=1.0, ge=0)
    value_prior: float = Field(default=2.0, ge=0)
    value_coef: float = Field(default=0.5, ge=0)
    value_clip: float = Field(default=0.2, ge=0)
    whiten: bool = True
    zero_variance_groups: Literal["drop", "keep", "refill"] = "keep"
    max_refills: int = Field(default=3, ge=1)
    cut_episodes: Literal["keep", "mask"] = "keep"
    async_rollout: bool = False
    max_staleness: int = Field(default=1, ge=0)

    @property
    def signed(self) -> bool:
        """Whether the advantage compares states, so that steps need signatures."""
        return self.advantage in ("gigpo", "rtmc")

    @property
    def discount(self) -> float:
        """Discount factor per step of an advantage that compares states."""
        return self.step_gamma or (0.95 if self.advantage == "gigpo" else 0.99)

    @field_validator("dual_clip")
    @classmethod
    def _check_dual_clip(cls, dual_clip: float) -> float:
        if 0 < dual_clip <= 1:
            raise ValueError("must be above 1, or 0 to disable it: 1 or less removes the gradient of bad actions")
        return dual_clip

    @model_validator(mode="after")
    def _check_loss_length(self) -> Self:
        if (self.loss_agg == "seq-mean-token-sum-norm") != bool(self.loss_length):
            raise ValueError(
                "loss_agg 'seq-mean-token-sum-norm' divides by loss_length, a number of tokens: set both or neither"
            )
        return self

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        users = {"step_gamma": ("gigpo", "rtmc"), "step_weight": ("gigpo",), "value_prior": ("rtmc",)}
        for name, advantages in users.items():
            if getattr(self, name) != type(self).model_fields[name].default and self.advantage not in advantages:
                raise ValueError(
                    f"{name} is for advantage {' and '.join(map(repr, advantages))}, not {self.advantage!r}: leave it "
                    "out"
                )
        if self.signed and self.gamma != 1:
            raise ValueError(
                f"gamma discounts tokens, for advantage 'gae'. {self.advantage!r} discounts steps: set step_gamma "
                "instead"
            )
        return self

    @model_validator(mode="after")
    def _check_curriculum(self) -> Self:
        if self.curriculum == "thompson" and self.async_rollout:
            raise ValueError(
                "curriculum 'thompson' draws by what the last update solved, and async_rollout draws before that: use "
                "curriculum 'shuffled'"
            )
        if self.pass_rates and self.curriculum != "thompson":
            raise ValueError("pass_rates are for curriculum 'thompson': set it, or leave them out")
        return self

    @model_validator(mode="after")
    def _check_refill(self) -> Self:
        if self.zero_variance_groups == "refill" and (self.async_rollout or self.advantage == "gae"):
            wrong = "async_rollout does not wait for" if self.async_rollout else "advantage 'gae' does not need"
            raise ValueError(
                f"zero_variance_groups 'refill' plays more groups before an update, which {wrong}: use 'drop' or 'keep'"
            )
        return self


class CollectConfig(Frozen):
    """How training episodes start; `prefixes` has the formulas.

    Attributes:
        prefixes: Play a group of which no episode was resolved again, from a point of an earlier success of its task.
            The length of the prefix is steered to a pass rate of 1/2 (Prefix Sampling, arXiv 2605.05112).
        demonstrations: Run folder of `swe-gym rollout`, or a trajectory file, whose resolved episodes are successes of
            tasks that this run has not resolved. Their environment must be that of training.
        branches: Episodes that continue each episode of a group, each from one of its turns at random, for advantage
            "tree_grpo". An update has prompts_per_step * group_size * (1 + branches) episodes.
        ignore: Regular expressions of text that may differ when actions are played again, and in the observations of
            equal states ("gigpo" and "rtmc"). The default is the time that pytest and unittest print. May change when
            a run resumes.
    """

    prefixes: bool = False
    demonstrations: str = ""
    branches: int = Field(default=0, ge=0)
    ignore: tuple[str, ...] = (r"in [0-9.]+s",)

    @model_validator(mode="after")
    def _check_prefixes(self) -> Self:
        if self.prefixes and self.branches:
            raise ValueError("collect.prefixes and collect.branches start episodes in two ways: leave out one of them")
        if self.demonstrations and not self.prefixes:
            fix = "leave it out, as collect.branches takes none" if self.branches else "set collect.prefixes = true"
            raise ValueError(f"collect.demonstrations is for prefixes: {fix}")
        for pattern in self.ignore:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"collect.ignore: {pattern!r} is not a regular expression: {error}") from error
        return self


class OptimConfig(Frozen):
    """The AdamW optimizer.

    Attributes:
        lr: Learning rate of the language model.
        value_lr: Learning rate of the value head.
        betas: AdamW betas.
        eps: AdamW epsilon.
        weight_decay: AdamW weight decay.
        warmup_steps: Optimizer steps of linear warmup.
        schedule: The learning rate after the warmup: "constant", or falling along a line ("linear") or half a cosine.
        decay_steps: Optimizer steps in which it falls, which "linear" and "cosine" need, for example
            run.updates * algorithm.epochs * algorithm.minibatches - warmup_steps.
        final_lr: Share of the learning rate that is left then.
        max_grad_norm: Gradient clipping norm.
        max_tokens_per_microbatch: Maximum tokens of one forward pass, prompts included.
        offload: Keep the moments of AdamW in host memory between optimizer steps.
    """

    lr: float = Field(default=1e-6, gt=0)
    value_lr: float = Field(default=1e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    decay_steps: int = Field(default=0, ge=0)
    final_lr: float = Field(default=0.0, ge=0, le=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_tokens_per_microbatch: int = Field(default=8192, ge=1)
    offload: bool = False

    @model_validator(mode="after")
    def _check_decay_steps(self) -> Self:
        if (self.schedule == "constant") != (self.decay_steps == 0):
            raise ValueError(
                f"schedule {self.schedule!r} with decay_steps {self.decay_steps}: 'linear' and 'cosine' fall over "
                "decay_steps optimizer steps, 'constant' does not fall and has 0"
            )
        return self

    def lr_share(self, step: int) -> float:
        """Return the share of the learning rate at an optimizer step, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / self.decay_steps)
        left = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.final_lr + (1 - self.final_lr) * left


class SFTConfig(Frozen):
    """Supervised fine-tuning before the first update.

    Attributes:
        episodes: Number of demonstrations to collect in the training environment. 0 disables SFT.
        policy: Policy that demonstrates: "expert" for generated tasks, "gold" for others.
        trajectories: Run folder of `swe-gym rollout`, or a trajectory file, to learn from instead. Only resolved
            episodes count.
        per_task: Maximum distinct episodes per task, fewest invalid calls and shortest first. 0 takes all.
        epochs: Passes over the episodes.
        lr: Learning rate.
        batch_tokens: Tokens per optimizer step.
    """

    episodes: int = Field(default=0, ge=0)
    policy: str = "expert"
    trajectories: str = ""
    per_task: int = Field(default=0, ge=0)
    epochs: int = Field(default=1, ge=1)
    lr: float = Field(default=2e-5, gt=0)
    batch_tokens: int = Field(default=4096, ge=1)


class EvaluationConfig(Frozen):
    """The evaluation on held-out tasks.

    Attributes:
        tasks: Number of tasks, drawn without replacement; the same in every evaluation.
        attempts: Episodes per task.
        temperature: Sampling temperature. 0 is greedy.
    """

    tasks: int = Field(default=64, ge=1)
    attempts: int = Field(default=1, ge=1)
    temperature: float = Field(default=1.0, ge=0)


class TrainConfig(Frozen):
    """The configuration of a training run."""

    run: RunConfig = RunConfig()
    model: ModelConfig
    env: EnvConfig = EnvConfig()
    generation: GenerationConfig = GenerationConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    collect: CollectConfig = CollectConfig()
    optim: OptimConfig = OptimConfig()
    sft: SFTConfig = SFTConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        algorithm, generation = self.algorithm, self.generation
        episodes = algorithm.prompts_per_step * algorithm.group_size
        if algorithm.advantage == "gae" and not self.model.value_head:
            raise ValueError("algorithm.advantage 'gae' needs a value head: set model.value_head = true")
        if algorithm.advantage != "gae" and algorithm.group_size < 2:
            raise ValueError(
                f"algorithm.advantage {algorithm.advantage!r} compares episodes of one task: "
                f"algorithm.group_size must be at least 2, not {algorithm.group_size}"
            )
        if episodes % algorithm.minibatches:
            raise ValueError(
                f"{episodes} episodes (algorithm.prompts_per_step * algorithm.group_size) do not divide into "
                f"{algorithm.minibatches} equal minibatches: change algorithm.minibatches"
            )
        if generation.max_tokens >= generation.max_context:
            raise ValueError(
                f"generation.max_tokens ({generation.max_tokens}) leaves no room for a prompt "
                f"in generation.max_context ({generation.max_context})"
            )
        if self.optim.max_tokens_per_microbatch < generation.max_context:
            raise ValueError(
                f"optim.max_tokens_per_microbatch ({self.optim.max_tokens_per_microbatch}) is less than "
                f"generation.max_context ({generation.max_context}): a long episode would not fit"
            )
        if self.collect.prefixes and (algorithm.async_rollout or algorithm.advantage == "gae" or self.env.agent):
            wrong = "env.agent" if self.env.agent else "algorithm.async_rollout"
            wrong = "algorithm.advantage 'gae'" if algorithm.advantage == "gae" else wrong
            raise ValueError(
                f"collect.prefixes plays groups again before an update, from points that the model continues, which "
                f"{wrong} does not do: leave out one of both"
            )
        if generation.backend == "hf" and algorithm.async_rollout:
            raise ValueError(
                "generation.backend 'hf' samples from the weights being trained: set algorithm.async_rollout = false"
            )
        if algorithm.async_rollout and algorithm.max_staleness < 1:
            raise ValueError(
                "algorithm.async_rollout trains on tokens of older weights: algorithm.max_staleness must be at least 1"
            )
        if self.run.evaluate_every and self.env.held_out == self.env.train:
            raise ValueError(
                "env.held_out equals env.train, so evaluation would run the training tasks: "
                "choose another range, or set run.evaluate_every = 0"
            )
        return self

    @model_validator(mode="after")
    def _check_sleep(self) -> Self:
        if self.generation.sleeps and self.algorithm.async_rollout:
            raise ValueError(
                "generation.options.sleep stops the server while the trainer learns, and algorithm.async_rollout plays "
                "episodes meanwhile: leave out one of both"
            )
        return self

    @model_validator(mode="after")
    def _check_credit(self) -> Self:
        algorithm, branches = self.algorithm, self.collect.branches
        if algorithm.advantage == "tree_grpo" and self.collect.prefixes:
            raise ValueError(
                "algorithm.advantage 'tree_grpo' compares episodes that branched from one, which collect.prefixes does "
                "not make: set collect.branches in its place, for example to 1"
            )
        if algorithm.advantage == "tree_grpo" and not branches:
            raise ValueError(
                "algorithm.advantage 'tree_grpo' compares episodes that branched from one: set collect.branches, for "
                "example to 1"
            )
        if branches and algorithm.advantage != "tree_grpo":
            raise ValueError(
                f"collect.branches is for algorithm.advantage 'tree_grpo', not {algorithm.advantage!r}: set that "
                "advantage, or leave out collect.branches"
            )
        if branches and algorithm.loss_agg == "seq-mean-token-mean":
            raise ValueError(
                "algorithm.loss_agg 'seq-mean-token-mean' weighs the few tokens of a late branch as a whole episode: "
                "use 'token-mean' with collect.branches"
            )
        usual = self.collect.ignore == CollectConfig.model_fields["ignore"].default
        if not (usual or self.collect.prefixes or branches or algorithm.signed):
            raise ValueError(
                "collect.ignore is for collect.prefixes, collect.branches and the advantages 'gigpo' and 'rtmc': leave "
                "it out, or set collect.prefixes = true"
            )
        if self.env.agent and (algorithm.signed or self.collect.branches):
            raise ValueError(
                f"algorithm.advantage {algorithm.advantage!r} needs the calls of each turn, which env.agent makes by "
                "itself: leave out the agent, or choose an advantage that compares whole episodes"
            )
        if self.collect.branches and algorithm.async_rollout:
            raise ValueError(
                "collect.branches continues episodes before an update, and algorithm.async_rollout does not wait for "
                "them: leave out one of both"
            )
        return self


def check_processes(config: TrainConfig, processes: int) -> None:
    """Check that no setting needs one process where several train.

    Raises:
        UsageError: One does; the message names it.
    """
    alone = {
        "model.lora_rank": config.model.lora_rank,
        "optim.offload": config.optim.offload,
        "generation.options.sleep": config.generation.sleeps,
    }
    for name, value in alone.items():
        if value and processes > 1:
            raise UsageError(f"{name} needs one process: leave out --nproc, or leave out {name}")


def load_config(path: str | Path, changes: Iterable[str] = ()) -> TrainConfig:
    """Load the configuration of a TOML file.

    Args:
        path: The file.
        changes: Overrides such as "optim.lr=1e-5". The value is TOML or a plain word.

    Raises:
        UsageError: The file or an override is invalid; the message names the field.
    """
    values = read_toml(path)
    texts = override(values, changes, example="optim.lr=1e-5")
    keep_texts(values, texts, TrainConfig)
    config = make_config(values)
    if config.env.agent:
        kind = AGENTS.load(config.env.agent)
        keep_texts(config.env.agent_options, texts, kind, within=("env", "agent_options"))
    return config


def make_config(values: JsonMapping) -> TrainConfig:
    """Make a configuration from nested values.

    Raises:
        UsageError: A field is unknown, renamed or invalid, or two contradict each other.
    """
    for name in _dotted(values):
        if name in RENAMED:
            raise UsageError(f"{name} was renamed: use {RENAMED[name]}")
    check_names(values, TrainConfig)
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"the training configuration is invalid: {wrong_fields(error)}") from error


def _dotted(values: JsonMapping, prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of each nested value, sections included."""
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
