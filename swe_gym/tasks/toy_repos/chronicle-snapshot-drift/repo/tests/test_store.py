import unittest

from chronicle import ConcurrencyError, Event, EventStore, Projection


class EventStoreTest(unittest.TestCase):
    def setUp(self):
        self.store = EventStore()
        self.events = [Event("tea", version, "received", {"quantity": version}) for version in (1, 2)]

    def test_append_and_read(self):
        self.store.append("tea", self.events, expected=0)
        self.assertEqual(self.store.read("tea"), self.events)
        self.assertEqual(self.store.read("tea", after=1), self.events[1:])
        self.assertEqual(self.store.read("pot"), [])

    def test_concurrency(self):
        self.store.append("tea", self.events[:1], expected=0)
        with self.assertRaises(ConcurrencyError):
            self.store.append("tea", self.events[1:], expected=0)
        self.assertEqual(len(self.store.read("tea")), 1)

    def test_projection(self):
        projection = Projection(self.store)
        self.store.append("tea", self.events, expected=0)
        self.assertEqual(projection.counts, {"received": 2})
