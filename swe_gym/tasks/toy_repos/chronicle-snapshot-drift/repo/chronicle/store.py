"""The store: streams of events that only ever grow."""

from .errors import ConcurrencyError


class EventStore:
    """Streams of events in memory, one for each key."""

    def __init__(self):
        self._streams = {}
        self._followers = []

    def append(self, key, events, expected):
        """Append events to a stream that is at version `expected`.

        Raises:
            ConcurrencyError: It is at another version; nothing was appended.
        """
        stream = self._streams.setdefault(key, [])
        if len(stream) != expected:
            raise ConcurrencyError("{!r} is at version {}, not {}".format(key, len(stream), expected))
        stream.extend(events)
        for event in events:
            for follower in self._followers:
                follower(event)

    def read(self, key, after=0):
        """The events of a stream that come after a version."""
        return list(self._streams.get(key, ())[after:])

    def follow(self, follower):
        """Call `follower` with each event from now on."""
        self._followers.append(follower)
