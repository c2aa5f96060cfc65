"""The record of episodes: trajectories, and what they look like on disk and as data frames.

`trajectories.run_folder` has the folders of runs, `trajectories.comparison` compares runs, `trajectories.formats` has
the formats of other systems.
"""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .statistics import frame as frame
    from .statistics import mean_interval as mean_interval
    from .statistics import pass_curve as pass_curve
    from .trajectory import CUT as CUT
    from .trajectory import MAX_DROPPED as MAX_DROPPED
    from .trajectory import MAX_PATCH as MAX_PATCH
    from .trajectory import MAX_TEXT as MAX_TEXT
    from .trajectory import MAX_TURNS as MAX_TURNS
    from .trajectory import SHORT_TEXT as SHORT_TEXT
    from .trajectory import ModelServer as ModelServer
    from .trajectory import PolicyInfo as PolicyInfo
    from .trajectory import Prices as Prices
    from .trajectory import Segment as Segment
    from .trajectory import Trajectory as Trajectory
    from .trajectory import Turn as Turn
    from .trajectory import Usage as Usage
    from .trajectory import find_records as find_records
    from .trajectory import join_record as join_record
    from .trajectory import kind_of as kind_of
    from .trajectory import parse_line as parse_line
    from .trajectory import shortened as shortened
    from .trajectory import shortened_like as shortened_like
    from .trajectory import split_record as split_record
    from .trajectory import why_ended as why_ended

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)
