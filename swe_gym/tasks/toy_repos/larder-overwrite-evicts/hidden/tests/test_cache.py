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


class OverwriteTest(unittest.TestCase):
    def full_cache(self):
        cache = Cache(capacity=3)
        for key, value in [("EUR", 1.0), ("USD", 1.08), ("GBP", 0.85)]:
            cache.put(key, value)
        return cache

    def test_update_of_a_full_cache_evicts_nothing(self):
        cache = self.full_cache()
        cache.put("GBP", 0.86)
        self.assertEqual(repr([cache.get(key) for key in ("EUR", "USD", "GBP")]), "[1.0, 1.08, 0.86]")
        self.assertEqual(repr(cache.stats.evictions), "0")

    def test_repeated_updates_of_all_keys(self):
        cache = self.full_cache()
        for turn in range(5):
            for key in ("EUR", "USD", "GBP"):
                cache.put(key, turn)
        self.assertEqual(sorted(cache.keys()), ["EUR", "GBP", "USD"])
        self.assertIs(type(cache.stats.evictions), int)
        self.assertEqual(cache.stats.evictions, 0)

    def test_written_key_becomes_the_most_recently_used(self):
        cache = Cache(capacity=3)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.put("a", 10)
        cache.put("c", 3)
        cache.put("d", 4)
        self.assertEqual(repr(cache.keys()), "['a', 'c', 'd']")
        self.assertEqual(repr(cache.get("a")), "10")

    def test_order_changes_while_there_is_room(self):
        cache = Cache(capacity=5)
        for key in "abc":
            cache.put(key, key.upper())
        cache.put("a", "AA")
        self.assertEqual(repr(cache.keys()), "['b', 'c', 'a']")

    def test_a_cache_of_one_slot(self):
        cache = Cache(capacity=1)
        cache.put("a", 1)
        cache.put("a", 2)
        self.assertEqual(cache.get("a"), 2)
        self.assertEqual(repr(cache.stats.evictions), "0")
        cache.put("b", 3)
        self.assertEqual(repr(cache.keys()), "['b']")
        self.assertEqual(repr(cache.stats.evictions), "1")

    def test_update_renews_the_deadline(self):
        clock = ManualClock()
        cache = Cache(capacity=2, ttl=10, clock=clock)
        cache.put("a", 1)
        clock.advance(6)
        cache.put("a", 2)
        clock.advance(6)
        self.assertEqual(cache.get("a"), 2)

    def test_a_new_key_still_evicts(self):
        cache = self.full_cache()
        cache.put("CHF", 0.97)
        self.assertEqual(cache.keys(), ["USD", "GBP", "CHF"])
        self.assertEqual(cache.stats.evictions, 1)
