import unittest

from chronicle import Aggregate, ConcurrencyError, EventStore, Repository
from chronicle.stock import StockItem


class SnapshotCase(unittest.TestCase):
    def setUp(self):
        self.store = EventStore()
        self.repository = Repository(self.store, StockItem, snapshot_every=5)
        item = self.repository.load("tea")
        item.receive(100)
        for order in ("A1", "A2", "A3", "A4"):
            item.reserve(order, 5)
        self.item = item
        self.repository.save(item)

    def check(self, key="tea"):
        """Loading gives what replaying all events gives. Texts are compared, so types count."""
        replayed = Repository(self.store, StockItem, snapshot_every=10**6).load(key)
        loaded = self.repository.load(key)
        self.assertEqual(repr(loaded.version), repr(replayed.version))
        self.assertEqual(repr(sorted(loaded.state.items())), repr(sorted(replayed.state.items())))
        self.assertIs(type(loaded.reserved), int)


class LoadTest(SnapshotCase):
    def test_case_of_the_report(self):
        item = self.repository.load("tea")
        item.reserve("A4", 2)
        self.repository.save(item)
        self.assertEqual(repr([self.repository.load("tea").reserved for _ in range(3)]), "[22, 22, 22]")
        self.assertEqual(repr(self.repository.load("tea").on_hand), "100")

    def test_reading_changes_nothing(self):
        item = self.repository.load("tea")
        item.reserve("A9", 1)
        self.repository.save(item)
        for _ in range(3):
            self.check()

    def test_aggregate_that_made_the_snapshot_goes_on(self):
        self.item.reserve("A1", 10)
        self.assertEqual(repr(self.repository.load("tea").reserved), "20")
        self.repository.save(self.item)
        self.assertEqual(repr(self.repository.load("tea").reserved), "30")
        self.check()

    def test_changes_that_are_thrown_away(self):
        item = self.repository.load("tea")
        item.reserve("A1", 50)
        item.ship("A2")
        self.assertEqual(repr(self.repository.load("tea").reserved), "20")
        self.check()

    def test_failed_save(self):
        first, second = self.repository.load("tea"), self.repository.load("tea")
        first.reserve("A1", 1)
        second.reserve("A1", 2)
        self.repository.save(first)
        with self.assertRaises(ConcurrencyError):
            self.repository.save(second)
        self.assertEqual(repr(self.repository.load("tea").reserved), "21")
        self.check()

    def test_two_loaded_at_once_are_independent(self):
        first, second = self.repository.load("tea"), self.repository.load("tea")
        first.reserve("A1", 7)
        self.assertEqual(repr(second.reserved), "20")

    def test_shipping_after_a_snapshot(self):
        item = self.repository.load("tea")
        item.ship("A1")
        item.ship("A3")
        self.repository.save(item)
        for _ in range(2):
            self.assertEqual(repr(self.repository.load("tea").shipped), "['A1', 'A3']")
        self.check()

    def test_several_snapshots(self):
        for number in range(23):
            item = self.repository.load("tea")
            item.reserve("B{}".format(number % 4), 1)
            self.repository.save(item)
            self.check()
        self.assertEqual(repr(self.repository.snapshots.get("tea").version), "25")

    def test_other_keys_are_not_touched(self):
        pot = self.repository.load("pot")
        for _ in range(6):
            pot.receive(1)
        self.repository.save(pot)
        self.check("pot")
        self.check("tea")


class Outline(Aggregate):
    """An aggregate with a state that is nested deeper."""

    def initial_state(self):
        return {"chapters": {}}

    def on_added(self, chapter, line):
        self.state["chapters"].setdefault(chapter, {"lines": []})["lines"].append(line)


class DeepStateTest(unittest.TestCase):
    def test_deep_state(self):
        repository = Repository(EventStore(), Outline, snapshot_every=2)
        for line in ("a", "b", "c"):
            book = repository.load("book")
            book.record("added", chapter="one", line=line)
            repository.save(book)
        for _ in range(2):
            chapters = repository.load("book").state["chapters"]
            self.assertEqual(repr(chapters), "{'one': {'lines': ['a', 'b', 'c']}}")
