import unittest

from chronicle import ConcurrencyError, EventStore, Repository
from chronicle.stock import StockItem


class RepositoryTest(unittest.TestCase):
    def setUp(self):
        self.store = EventStore()
        self.repository = Repository(self.store, StockItem, snapshot_every=3)

    def test_round_trip(self):
        item = self.repository.load("tea")
        item.receive(10)
        item.reserve("A1", 4)
        self.repository.save(item)
        loaded = self.repository.load("tea")
        self.assertEqual((loaded.version, loaded.available), (2, 6))

    def test_loading_from_a_snapshot(self):
        item = self.repository.load("tea")
        for quantity in (1, 2, 3):
            item.receive(quantity)
        self.repository.save(item)
        self.assertEqual(self.repository.snapshots.get("tea").version, 3)
        self.assertEqual(self.repository.load("tea").on_hand, 6)

    def test_events_after_the_snapshot(self):
        for quantity in (1, 2, 3, 4, 5):
            item = self.repository.load("tea")
            item.receive(quantity)
            self.repository.save(item)
        self.assertEqual(self.repository.load("tea").on_hand, 15)

    def test_concurrency(self):
        first, second = self.repository.load("tea"), self.repository.load("tea")
        first.receive(1)
        second.receive(2)
        self.repository.save(first)
        with self.assertRaises(ConcurrencyError):
            self.repository.save(second)
        self.assertEqual(len(second.pending), 1)
