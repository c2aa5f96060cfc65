"""The reference trainer, in modules that also work alone.

`loop` combines them and makes the updates: `config` holds the settings, `generators` sample tokens, `sampler` shares
them and compares sampler and trainer, `collect` runs episodes, `batch` packs them, `objective` is
the mathematics, `learner` and `model` the weights, `ranks` several processes, `sft` supervised fine-tuning,
`checkpoint` and `log` the run folder, `plan` the memory.
"""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .config import TrainConfig as TrainConfig
    from .config import load_config as load_config
    from .loop import train as train
    from .plan import plan_memory as plan_memory

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)
