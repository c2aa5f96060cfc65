"""The reference trainer, in modules that also work alone.

`loop` combines them: `config` holds the settings, `generators` sample tokens, `sampler` shares them, `collect` and
`async_collect` run episodes, `batch` packs them, `advantages` and `losses` are the mathematics, `learner` and `model`
the weights, `ranks` several processes, `update` one update, `agreement` the checks between sampler and trainer, `sft`
supervised fine-tuning, `state`, `checkpoint` and `log` the run folder, `evaluate` the held-out tasks.
"""
