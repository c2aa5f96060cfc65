import unittest

from chronicle import ChronicleError
from chronicle.stock import StockItem


class StockItemTest(unittest.TestCase):
    def setUp(self):
        self.item = StockItem("tea")
        self.item.receive(10)

    def test_reserve(self):
        self.item.reserve("A1", 4)
        self.item.reserve("A1", 1)
        self.assertEqual((self.item.on_hand, self.item.reserved, self.item.available), (10, 5, 5))

    def test_not_enough(self):
        with self.assertRaises(ChronicleError):
            self.item.reserve("A1", 11)
        self.assertEqual(self.item.version, 1)

    def test_ship(self):
        self.item.reserve("A1", 4)
        self.item.ship("A1")
        self.assertEqual((self.item.on_hand, self.item.reserved, self.item.shipped), (6, 0, ["A1"]))
        with self.assertRaises(ChronicleError):
            self.item.ship("A1")
