"""Views across all streams."""


class Projection:
    """Counts the events of each kind, for all streams that it follows.

    Args:
        store: The store to follow from now on.
    """

    def __init__(self, store):
        self.counts = {}
        store.follow(self._count)

    def _count(self, event):
        self.counts[event.kind] = self.counts.get(event.kind, 0) + 1
