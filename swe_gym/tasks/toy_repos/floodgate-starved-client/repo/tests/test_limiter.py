import unittest

from floodgate import Limiter, ManualClock


class LimiterTest(unittest.TestCase):
    def setUp(self):
        self.clock = ManualClock(1000.0)

    def test_burst(self):
        limiter = Limiter("3/second", clock=self.clock)
        self.assertEqual([limiter.allow("ada") for _ in range(4)], [True, True, True, False])

    def test_keys_do_not_disturb_each_other(self):
        limiter = Limiter("1/second", clock=self.clock)
        self.assertTrue(limiter.allow("ada"))
        self.assertTrue(limiter.allow("grace"))
        self.assertFalse(limiter.allow("ada"))

    def test_tokens_come_back(self):
        limiter = Limiter("2/second", clock=self.clock)
        limiter.allow("ada")
        limiter.allow("ada")
        self.clock.advance(0.5)
        self.assertEqual(limiter.remaining("ada"), 1)
        self.clock.advance(10)
        self.assertEqual(limiter.remaining("ada"), 2)

    def test_retry_after(self):
        limiter = Limiter("2/second", clock=self.clock)
        self.assertEqual(limiter.retry_after("ada"), 0.0)
        limiter.allow("ada")
        limiter.allow("ada")
        self.assertEqual(limiter.retry_after("ada"), 0.5)

    def test_several_rates(self):
        limiter = Limiter("2/second, 3/minute", clock=self.clock)
        self.assertEqual([limiter.allow("ada") for _ in range(3)], [True, True, False])
        self.clock.advance(1)
        self.assertEqual([limiter.allow("ada") for _ in range(2)], [True, False])
        self.assertEqual(limiter.remaining("ada"), 0)

    def test_sweep(self):
        limiter = Limiter("1/second", clock=self.clock)
        limiter.allow("ada")
        self.assertEqual(limiter.sweep(), 0)
        self.clock.advance(1)
        self.assertEqual(limiter.sweep(), 1)
        self.assertEqual(len(limiter), 0)
