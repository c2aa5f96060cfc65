import unittest

from floodgate import Limiter, ManualClock
from floodgate.middleware import Request, Response, limited


class PollingCase(unittest.TestCase):
    rates = "2/second"

    def setUp(self):
        self.clock = ManualClock(1000.0)
        self.limiter = Limiter(self.rates, clock=self.clock)

    def drain(self, key="ada"):
        for _ in range(10):
            if not self.limiter.allow(key):
                return
        self.fail("the bucket does not get empty")

    def poll(self, seconds, times, key="ada"):
        """The answers to requests at even steps, as text of ones and zeros."""
        answers = []
        for _ in range(times):
            self.clock.advance(seconds)
            answer = self.limiter.allow(key)
            self.assertIs(type(answer), bool)
            answers.append("1" if answer is True else "0")
        return "".join(answers)


class AllowTest(PollingCase):
    def test_polling_twice_per_token(self):
        self.drain()
        self.assertEqual(self.poll(0.25, 8), "01010101")

    def test_polling_eight_times_per_token(self):
        self.drain()
        self.assertEqual(self.poll(0.0625, 24), "000000010000000100000001")

    def test_steps_that_are_no_part_of_the_interval(self):
        self.drain()
        self.assertEqual(self.poll(0.375, 8), "01110111")

    def test_looking_costs_nothing(self):
        self.drain()
        for _ in range(4):
            self.clock.advance(0.125)
            self.limiter.remaining("ada")
            self.limiter.retry_after("ada")
            self.limiter.sweep()
        self.assertIs(self.limiter.allow("ada"), True)
        self.assertIs(self.limiter.allow("ada"), False)

    def test_clients_are_independent(self):
        self.drain("ada")
        self.clock.advance(0.25)
        self.drain("grace")
        self.assertEqual(self.poll(0.25, 2, "ada"), "10")
        self.assertIs(self.limiter.allow("grace"), True)

    def test_never_more_than_the_rate(self):
        self.drain()
        answers = self.poll(0.125, 80)
        self.assertEqual(answers.count("1"), 20)


class RemainingTest(PollingCase):
    def test_counts_whole_tokens(self):
        self.drain()
        seen = []
        for _ in range(6):
            self.clock.advance(0.25)
            seen.append(self.limiter.remaining("ada"))
        self.assertEqual(repr(seen), "[0, 1, 1, 2, 2, 2]")


class RetryAfterTest(PollingCase):
    def check(self, expected):
        seconds = self.limiter.retry_after("ada")
        self.assertIs(type(seconds), float)
        self.assertAlmostEqual(seconds, expected, places=6)

    def test_counts_down(self):
        self.drain()
        self.check(0.5)
        self.clock.advance(0.25)
        self.assertIs(self.limiter.allow("ada"), False)
        self.check(0.25)
        self.clock.advance(0.125)
        self.check(0.125)
        self.check(0.125)
        self.clock.advance(0.125)
        self.check(0.0)

    def test_several_rates(self):
        limiter = self.limiter = Limiter("2/second, 4/minute", clock=self.clock)
        self.assertEqual([limiter.allow("ada") for _ in range(3)], [True, True, False])
        self.clock.advance(1)
        self.assertEqual([limiter.allow("ada") for _ in range(3)], [True, True, False])
        self.check(14.0)
        self.clock.advance(4)
        self.check(10.0)

    def test_middleware(self):
        limiter = Limiter("1/minute", clock=self.clock)
        handler = limited(limiter)(lambda request: Response(200))
        self.assertEqual(handler(Request("ada", "/")).status, 200)
        waits = []
        for _ in range(3):
            self.clock.advance(15)
            response = handler(Request("ada", "/"))
            waits.append((response.status, response.headers["Retry-After"]))
        self.assertEqual(repr(waits), "[(429, '45'), (429, '30'), (429, '15')]")


class FullBucketTest(PollingCase):
    def test_time_is_not_saved_up(self):
        self.clock.advance(3600.25)
        self.assertEqual([self.limiter.allow("ada") for _ in range(3)], [True, True, False])
        self.assertEqual(self.poll(0.25, 4), "0101")

    def test_full_again_after_a_while(self):
        self.drain()
        self.clock.advance(7.375)
        self.assertEqual([self.limiter.allow("ada") for _ in range(3)], [True, True, False])
        self.assertEqual(self.poll(0.125, 4), "0001")

    def test_sweep(self):
        self.drain()
        self.clock.advance(0.75)
        self.assertEqual(self.limiter.sweep(), 0)
        self.clock.advance(0.25)
        self.assertEqual(repr(self.limiter.sweep()), "1")
