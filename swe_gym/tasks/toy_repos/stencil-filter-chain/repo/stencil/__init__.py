"""A small template language for mails and pages."""

from .environment import Environment, Template
from .errors import TemplateError

__all__ = ["Environment", "Template", "TemplateError", "render"]

_DEFAULT = Environment()


def render(text, variables):
    """Render the template `text` with a mapping of variables, and with the built-in filters."""
    return _DEFAULT.template(text).render(variables)
