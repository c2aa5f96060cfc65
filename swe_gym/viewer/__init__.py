"""Pages of runs: served by `server`, or written by `report` as one file."""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .report import MOST_EPISODES as MOST_EPISODES
    from .report import PAGE as PAGE
    from .report import Report as Report
    from .report import TrainingReport as TrainingReport
    from .report import write_audits as write_audits
    from .report import write_curves as write_curves
    from .report import write_report as write_report
    from .report import write_site as write_site
    from .report import write_training_report as write_training_report
    from .results import RESULTS as RESULTS
    from .results import write_results as write_results
    from .server import ViewServer as ViewServer
    from .training import is_training as is_training

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)
