"""The reference trainer, in modules that also work alone.

`loop` combines them: `config` holds the settings, `generators` sample tokens, `sampler` shares them, `collect` and
`async_collect` run episodes, `batch` packs them, `advantages` and `losses` are the mathematics, `learner` and `model`
the weights, `ranks` several processes, `update` one update, `agreement` the checks between sampler and trainer, `sft`
supervised fine-tuning, `state`, `checkpoint` and `log` the run folder, `evaluate` the held-out tasks.
"""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .config import load_config as load_config
    from .loop import train as train

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)
