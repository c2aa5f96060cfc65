"""The variables of a template while it is being rendered."""


class Context:
    """Variables in layers: a loop puts one on top and takes it away again."""

    def __init__(self, variables):
        self._layers = [variables]

    def push(self, layer):
        """Put a layer of variables on top."""
        self._layers.append(layer)

    def pop(self):
        """Take the top layer away."""
        self._layers.pop()

    def lookup(self, path):
        """The value of a dotted name; None where a part of it is missing."""
        first, *rest = path.split(".")
        value = next((layer[first] for layer in reversed(self._layers) if first in layer), None)
        for part in rest:
            value = _member(value, part)
        return value


def _member(value, name):
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, (list, tuple)) and name.isdigit():
        return value[int(name)] if int(name) < len(value) else None
    return getattr(value, name, None)
