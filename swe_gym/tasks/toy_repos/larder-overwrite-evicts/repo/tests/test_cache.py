import unittest

from larder import Cache, ManualClock


class CacheTest(unittest.TestCase):
    def test_returns_what_was_put(self):
        cache = Cache(capacity=2)
        cache.put("a", 1)
        self.assertEqual(cache.get("a"), 1)
        self.assertIsNone(cache.get("b"))
        self.assertEqual(cache.get("b", "nothing"), "nothing")

    def test_least_recently_used_goes_first(self):
        cache = Cache(capacity=2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.get("a")
        cache.put("c", 3)
        self.assertEqual(cache.keys(), ["a", "c"])
        self.assertEqual(cache.stats.evictions, 1)

    def test_capacity_must_be_positive(self):
        with self.assertRaises(ValueError):
            Cache(capacity=0)

    def test_delete(self):
        cache = Cache(capacity=2)
        cache.put("a", 1)
        self.assertTrue(cache.delete("a"))
        self.assertFalse(cache.delete("a"))


class ExpiryTest(unittest.TestCase):
    def setUp(self):
        self.clock = ManualClock()
        self.cache = Cache(capacity=2, ttl=10, clock=self.clock)

    def test_entry_expires(self):
        self.cache.put("a", 1)
        self.clock.advance(9)
        self.assertIn("a", self.cache)
        self.clock.advance(1)
        self.assertNotIn("a", self.cache)
        self.assertIsNone(self.cache.get("a"))
        self.assertEqual(self.cache.stats.expirations, 1)

    def test_ttl_of_one_entry(self):
        self.cache.put("a", 1, ttl=60)
        self.clock.advance(30)
        self.assertEqual(self.cache.get("a"), 1)

    def test_expired_entries_make_room(self):
        self.cache.put("short", 1, ttl=1)
        self.cache.put("long", 2)
        self.clock.advance(5)
        self.cache.put("new", 3)
        self.assertEqual(self.cache.keys(), ["long", "new"])
        self.assertEqual(self.cache.stats.evictions, 0)
