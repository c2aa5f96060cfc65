"""What can go wrong."""


class RoutingError(Exception):
    """Base of all errors of this package."""

    status = 500


class PatternError(RoutingError):
    """A route's pattern makes no sense."""


class BuildError(RoutingError):
    """No path can be built from this name and these values."""


class NotFound(RoutingError):
    """There is no route for the path."""

    status = 404


class MethodNotAllowed(RoutingError):
    """There are routes for the path, but for other methods.

    Attributes:
        allowed: The methods that would do, sorted.
    """

    status = 405

    def __init__(self, message, allowed):
        super().__init__(message)
        self.allowed = allowed
