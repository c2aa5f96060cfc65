"""Adapters for other libraries, one file each."""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .aio import RowAgent as RowAgent
    from .mcp import HttpPlace as HttpPlace
    from .mcp import serve_mcp as serve_mcp
    from .server import EnvServer as EnvServer
    from .session import make_env as make_env

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)
