"""The training loop: roll out, evaluate, update, sync the weights, repeat."""

import concurrent.futures
import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from ..atomic import write_text
from ..rollout.tokens import ChatTemplate
from ..trajectories.run_folder import LOCK, take_lock
from .agreement import TrainingStopped, sync_weights
from .checkpoint import Checkpoints
from .collect import Collector, Played, Slot
from .config import TrainConfig
from .evaluate import check_tasks, evaluation_slots, summarize
from .generators import TrainGenerator, make_generator
from .learner import Learner
from .loading import load_policy, load_tokenizer, seed_everything
from .log import Log
from .sft import run_sft
from .state import RunState, check_folder
from .trackers import make_tracker
from .update import make_update

logger = logging.getLogger(__name__)

REFERENCE = "reference.pt"
"""File in the run folder: the weights after SFT, if the loss has a KL penalty."""


class Trainer:
    """A training run. It resumes from the last checkpoint of its run folder.

    Args:
        config: The configuration.

    Raises:
        UsageError: The run folder holds a run of another configuration, or the configuration names something missing.
        MissingDependency: transformers or vLLM is not installed.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.folder = Path(config.run.output)
        self.checkpoints = Checkpoints(self.folder, config.run.keep)
        check_folder(self.folder, self.checkpoints, config)
        check_tasks(config)  # before the model, which takes longer
        self.log = Log(self.folder)
        values = config.model_dump(mode="json")
        try:
            for name in config.run.trackers:
                self.log.trackers.append(make_tracker(name, self.folder, values))
            self._load_model()
        except BaseException:
            self.log.close(failed=True)
            raise
        self.state = RunState(config.run.seed)
        self._generator: TrainGenerator | None = None

    def _load_model(self) -> None:
        config = self.config
        seed_everything(config.run.seed)
        torch.set_float32_matmul_precision(config.model.matmul_precision)
        self.tokenizer = load_tokenizer(config.model.path)
        self.template = ChatTemplate(self.tokenizer)
        self.model = load_policy(config.model)
        self.model.check()
        penalized = config.algorithm.kl_coef > 0
        self._reference = load_policy(config.model).requires_grad_(False).eval() if penalized else None
        self.learner = Learner(self.model, config.optim, config.algorithm, self._reference)

    def run(self) -> None:
        """Train to the end. A killed run resumes with the next call.

        Raises:
            UsageError: Another process trains in this folder.
            TrainingStopped: Too many episodes were lost, or sampler and trainer do not agree.
            PolicyError: The generator failed.
        """
        failed = True
        try:
            with take_lock(self.folder / LOCK):
                check_folder(self.folder, self.checkpoints, self.config)
                write_text(self.folder / "config.json", self.config.model_dump_json(indent=2) + "\n")
                self._train()
            failed = False
        finally:
            if self._generator is not None:
                self._generator.close()
            self.log.close(failed=failed)

    def export(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder."""
        self.model.export(folder, self.tokenizer)

    def _train(self) -> None:
        resumed = self.state.resume(self.checkpoints, self.learner)
        self.log.truncate(self.state.update if resumed else -1)
        if resumed:
            logger.info("resuming %s after update %d", self.folder, self.state.update)
        if not resumed:
            (self.folder / REFERENCE).unlink(missing_ok=True)  # left by a run without a checkpoint
            self._sft()
        self._load_reference()
        generator = self._generator = make_generator(self.config.generation, self.model, self.tokenizer)
        with self._collectors(generator) as (train, held_out):
            self._sync_weights(generator)
            if not resumed:
                self._evaluate(held_out)
                self._save()
            done = self._done()
            while not done:
                self._update(train, generator)
                if self.config.run.evaluate_every and self.state.update % self.config.run.evaluate_every == 0:
                    self._evaluate(held_out)
                done = self._done()
                if done or self.state.update % self.config.run.checkpoint_every == 0:
                    self._save()

    def _done(self) -> bool:
        limit = self.config.run.minutes
        return self.state.update >= self.config.run.updates or bool(limit and self.state.minutes >= limit)

    @contextlib.contextmanager
    def _collectors(self, generator: TrainGenerator) -> Iterator[tuple[Collector, Collector]]:
        parts = (self.config.env, self.config.generation, generator, self.template)
        with contextlib.closing(Collector(*parts, self.config.env.train)) as train:
            if not self.config.run.evaluate_every:
                yield train, train
                return
            with contextlib.closing(Collector(*parts, self.config.env.held_out)) as held_out:
                yield train, held_out

    def _sft(self) -> None:
        """Fine-tune, and keep the result as the reference of the KL penalty: a resumed run has no other copy."""
        trained = run_sft(self.config, self.model, self.template, self.tokenizer.eos_token_id, self.log)
        if trained and self._reference is not None:
            partial = self.folder / "reference.part"
            torch.save(self.learner.state()["model"], partial)
            partial.replace(self.folder / REFERENCE)

    def _load_reference(self) -> None:
        path = self.folder / REFERENCE
        if self._reference is not None and path.exists():
            self._reference.load_state_dict(torch.load(path, map_location="cpu", weights_only=True), strict=False)

    def _sync_weights(self, generator: TrainGenerator) -> float:
        limit = self.config.generation.max_logprob_diff
        return sync_weights(generator, self.learner, self.template, version=self.state.update, limit=limit)

    def _update(self, train: Collector, generator: TrainGenerator) -> None:
        started = time.monotonic()
        self.learner.seconds = dict.fromkeys(self.learner.seconds, 0.0)
        played = self.state.pending or self._collect(train)
        waited = time.monotonic() - started
        with self._prefetch(train) as following:
            metrics = make_update(played, self.learner, self.config, self.state)
            waiting = time.monotonic()
            self.state.pending = following.result() if following is not None else None
            waited += time.monotonic() - waiting
        self.state.update += 1
        learning = dict(self.learner.seconds)  # without the forward pass of the weight-sync check
        syncing = time.monotonic()
        metrics["sync_logprob_diff"] = self._sync_weights(generator)
        metrics["seconds"] = {
            **played.seconds,
            **learning,
            "waited": waited,
            "weight_sync": time.monotonic() - syncing,
            "update": time.monotonic() - started,
        }
        self.log.add("update", self.state.update, minutes=self.state.minutes, **metrics)

    @contextlib.contextmanager
    def _prefetch(self, train: Collector) -> Iterator[concurrent.futures.Future[Played] | None]:
        """Collect the next batch in a thread if `async_rollout` is set. An error does not wait for it."""
        if not self.config.algorithm.async_rollout:
            yield None
            return
        thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="next-batch")
        try:
            yield thread.submit(self._collect, train)
        except BaseException:
            train.close()
            raise
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    def _collect(self, train: Collector) -> Played:
        """Run the episodes of one update.

        Raises:
            TrainingStopped: Too many of them were lost.
        """
        algorithm, draw = self.config.algorithm, self.state.tasks
        tasks = [train.task_ids[draw.randrange(len(train.task_ids))] for _ in range(algorithm.prompts_per_step)]
        slots = [
            Slot(task_id, group, draw.getrandbits(31))
            for group, task_id in enumerate(tasks)
            for _ in range(algorithm.group_size)
        ]
        played = train.play(slots, temperature=self.config.generation.temperature)
        if len(played.lost) > self.config.run.max_failed * len(slots):
            raise TrainingStopped(
                f"update {self.state.update + 1}: the infrastructure lost {len(played.lost)} of {len(slots)} episodes, "
                f"more than run.max_failed allows; the first failure: {played.lost[0]}"
            )
        return played

    def _evaluate(self, held_out: Collector) -> None:
        if not self.config.run.evaluate_every:
            return
        evaluation, started = self.config.evaluation, time.monotonic()
        slots = evaluation_slots(held_out.task_ids, evaluation)
        played = held_out.play(slots, temperature=evaluation.temperature)
        metrics = summarize(played, ks=sorted({1, evaluation.attempts}))
        seconds = time.monotonic() - started
        self.log.add("evaluation", self.state.update, minutes=self.state.minutes, seconds=seconds, **metrics)

    def _save(self) -> None:
        started = time.monotonic()
        self.state.save(self.checkpoints, self.learner)
        seconds = time.monotonic() - started
        self.log.add("checkpoint", self.state.update, minutes=self.state.minutes, seconds=seconds)


def train(config: TrainConfig) -> Path:
    """Run a configuration to its end and export the model.

    Returns:
        The Hugging Face folder of the trained model.

    Raises:
        UsageError: The configuration names something missing or contradicts the run folder.
        TrainingStopped: Training cannot continue.
        PolicyError: The generator failed.
    """
    trainer = Trainer(config)
    trainer.run()
    folder = trainer.folder / "model"
    trainer.export(folder)
    return folder
