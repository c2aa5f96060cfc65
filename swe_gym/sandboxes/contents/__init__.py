"""What a sandbox holds before anything runs in it: a workspace and a Python environment, prepared once and shared."""

from .pythons import find_interpreter, list_installed, pip_environment, prepare_python
from .workspaces import prepare_workspace

__all__ = [
    "find_interpreter",
    "list_installed",
    "pip_environment",
    "prepare_python",
    "prepare_workspace",
]
