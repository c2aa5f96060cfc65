"""Programs in other processes: worker processes and Ray actors, and the links to them."""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .link import END_TIMEOUT as END_TIMEOUT
    from .link import START_TIMEOUT as START_TIMEOUT
    from .link import Host as Host
    from .link import HostLink as HostLink
    from .link import Launcher as Launcher
    from .link import NodeLost as NodeLost
    from .link import ProcessLauncher as ProcessLauncher
    from .link import ask as ask
    from .ray_cluster import RayLauncher as RayLauncher
    from .ray_cluster import RayLink as RayLink
    from .ray_cluster import Setup as Setup
    from .ray_cluster import check_cpus as check_cpus
    from .ray_cluster import connect as connect
    from .ray_cluster import losses as losses

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)
