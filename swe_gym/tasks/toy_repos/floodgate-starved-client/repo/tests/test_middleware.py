import unittest

from floodgate import Limiter, ManualClock
from floodgate.middleware import Request, Response, limited


class MiddlewareTest(unittest.TestCase):
    def test_too_many_requests(self):
        clock = ManualClock()

        @limited(Limiter("1/minute", clock=clock))
        def handler(request):
            return Response(200, "hello " + request.client)

        self.assertEqual(handler(Request("ada", "/")).body, "hello ada")
        refused = handler(Request("ada", "/"))
        self.assertEqual((refused.status, refused.headers), (429, {"Retry-After": "60"}))

    def test_key(self):
        clock = ManualClock()

        @limited(Limiter("1/minute", clock=clock), key=lambda request: request.path)
        def handler(request):
            return Response(200)

        statuses = [handler(Request(client, "/a")).status for client in ("ada", "grace")]
        self.assertEqual(statuses, [200, 429])
