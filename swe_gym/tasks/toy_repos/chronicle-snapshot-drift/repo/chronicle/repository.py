"""Loading and saving aggregates."""

from .snapshots import Snapshots


class Repository:
    """Aggregates of one kind.

    Args:
        store: Where the events are.
        factory: Makes a new aggregate of a key.
        snapshot_every: Keep a snapshot each time so many events have come together.
    """

    def __init__(self, store, factory, snapshot_every=50):
        self.store = store
        self.factory = factory
        self.snapshot_every = snapshot_every
        self.snapshots = Snapshots()

    def load(self, key):
        """The aggregate as it is by its events; a new one if there are none."""
        aggregate = self.factory(key)
        snapshot = self.snapshots.get(key)
        if snapshot is not None:
            aggregate.restore(snapshot.version, dict(snapshot.state))
        for event in self.store.read(key, after=aggregate.version):
            aggregate.apply(event)
        return aggregate

    def save(self, aggregate):
        """Store the events that the aggregate has recorded.

        Raises:
            ConcurrencyError: Somebody else has saved it since it was loaded; nothing was stored.
        """
        before = aggregate.version - len(aggregate.pending)
        self.store.append(aggregate.key, aggregate.pending, expected=before)
        aggregate.pending = []
        if aggregate.version // self.snapshot_every > before // self.snapshot_every:
            self.snapshots.put(aggregate.key, aggregate.version, aggregate.state)
