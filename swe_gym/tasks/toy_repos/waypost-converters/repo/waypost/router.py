"""Routes and how they are found."""

from typing import Any, Callable, Dict, NamedTuple, Optional

from .errors import BuildError, MethodNotAllowed, NotFound, PatternError
from .pattern import Pattern


class Route(NamedTuple):
    """A method, a pattern and who handles them."""

    method: str
    pattern: Pattern
    handler: Callable[..., Any]
    name: Optional[str]

    def allows(self, method):
        """Whether the route answers requests of this method."""
        return method == self.method or (method == "HEAD" and self.method == "GET")


class Match(NamedTuple):
    """The handler of a request and the values of the placeholders."""

    handler: Callable[..., Any]
    params: Dict[str, Any]


class Router:
    """A list of routes, tried from first to last."""

    def __init__(self):
        self._routes = []
        self._named = {}

    def add(self, method, path, handler, name=None):
        """Add a route.

        Raises:
            PatternError: The path makes no sense, or the name is taken.
        """
        self._add(Route(method.upper(), Pattern(path), handler, name))

    def route(self, method, path, name=None):
        """Decorator: add a route to the decorated function."""

        def decorate(handler):
            self.add(method, path, handler, name)
            return handler

        return decorate

    def mount(self, prefix, router):
        """Add all routes that another router has by now, under a prefix without a slash at its end."""
        for route in router._routes:
            self._add(route._replace(pattern=Pattern(prefix + route.pattern.text)))

    def match(self, method, path):
        """The match for a request.

        Raises:
            NotFound: No route has such a path.
            MethodNotAllowed: Only routes of other methods have such a path.
        """
        allowed = set()
        for route in self._routes:
            params = route.pattern.match(path)
            if params is None:
                continue
            if route.allows(method.upper()):
                return Match(route.handler, params)
            allowed.add(route.method)
        if not allowed:
            raise NotFound("no route for {!r}".format(path))
        raise MethodNotAllowed("{} is not allowed for {!r}".format(method.upper(), path), sorted(allowed))

    def url_for(self, name, /, **values):
        """The path of the route of that name, with values for its placeholders.

        Raises:
            BuildError: There is no such route, or the values do not fit it.
        """
        if name not in self._named:
            raise BuildError("there is no route named {!r}".format(name))
        return self._named[name].pattern.build(values)

    def _add(self, route):
        if route.name is not None:
            if route.name in self._named:
                raise PatternError("there are two routes named {!r}".format(route.name))
            self._named[route.name] = route
        self._routes.append(route)
