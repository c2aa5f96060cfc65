import unittest

from larder import Cache, cached


class CachedTest(unittest.TestCase):
    def test_function_runs_once_per_argument(self):
        calls = []

        @cached(Cache(capacity=8))
        def double(n):
            calls.append(n)
            return 2 * n

        self.assertEqual([double(2), double(2), double(3)], [4, 4, 6])
        self.assertEqual(calls, [2, 3])

    def test_functions_may_share_a_cache(self):
        shared = Cache(capacity=8)

        @cached(shared)
        def plus(n):
            return n + 1

        @cached(shared)
        def minus(n):
            return n - 1

        self.assertEqual((plus(5), minus(5)), (6, 4))

    def test_key_function(self):
        @cached(Cache(capacity=8), key=str.lower)
        def shout(word):
            return word + "!"

        self.assertEqual(shout("Hi"), "Hi!")
        self.assertEqual(shout("hI"), "Hi!")
