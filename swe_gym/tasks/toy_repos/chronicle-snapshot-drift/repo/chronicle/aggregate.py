"""Things that have a state and record what happens to them."""

from .events import Event


class Aggregate:
    """Base of such things.

    A subclass says what its state is in the beginning (`initial_state`), records events with `record`, and has a method
    `on_<kind>` for each kind of event, which changes the state. Nothing else may change it.
    """

    def __init__(self, key):
        self.key = key
        self.version = 0
        self.state = self.initial_state()
        self.pending = []

    def initial_state(self):
        """The state before the first event: a dict."""
        raise NotImplementedError

    def record(self, kind, **data):
        """Let an event happen. It is stored when the aggregate is saved."""
        event = Event(self.key, self.version + 1, kind, data)
        self.apply(event)
        self.pending.append(event)

    def apply(self, event):
        """Change the state as an event says."""
        getattr(self, "on_" + event.kind)(**event.data)
        self.version = event.version

    def restore(self, version, state):
        """Take over a state from a snapshot."""
        self.version = version
        self.state = state
