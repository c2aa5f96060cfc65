"""A model's API for agents inside sandboxes, which records what it samples.

`Session` is the door of one episode: it speaks the protocols of OpenAI and Anthropic over the connections that a
sandbox forwards. A `Sampler` answers the calls.
"""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .calls import tool_call as tool_call
    from .kits import Kit as Kit
    from .kits import build_kit as build_kit
    from .kits import find_kit as find_kit
    from .kits import kit_bytes as kit_bytes
    from .matrix import find_templates as find_templates
    from .matrix import prove as prove
    from .matrix import render_matrix as render_matrix
    from .model_server import ServerSampler as ServerSampler
    from .model_server import check_shapes as check_shapes
    from .play import AgentPlayer as AgentPlayer
    from .play import rehearse as rehearse
    from .rendering import Renderer as Renderer
    from .sampler import Sampler as Sampler
    from .session import Limits as Limits
    from .session import Session as Session
    from .token_sampler import TokenSampler as TokenSampler

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)
