"""An example: items in a warehouse."""

from .aggregate import Aggregate
from .errors import ChronicleError


class StockItem(Aggregate):
    """An item, how many there are, and for which orders they are reserved."""

    def initial_state(self):
        """Nothing on hand, nothing reserved."""
        return {"on_hand": 0, "reservations": {}, "shipped": []}

    @property
    def on_hand(self):
        """How many lie in the warehouse."""
        return self.state["on_hand"]

    @property
    def reserved(self):
        """How many of them are reserved."""
        return sum(self.state["reservations"].values())

    @property
    def available(self):
        """How many of them can still be reserved."""
        return self.on_hand - self.reserved

    @property
    def shipped(self):
        """The orders that have been shipped, in order."""
        return list(self.state["shipped"])

    def receive(self, quantity):
        """Put some into the warehouse."""
        self.record("received", quantity=quantity)

    def reserve(self, order, quantity):
        """Reserve some for an order, on top of what it has already."""
        if quantity > self.available:
            raise ChronicleError("only {} of {!r} available".format(self.available, self.key))
        self.record("reserved", order=order, quantity=quantity)

    def ship(self, order):
        """Send an order all that is reserved for it."""
        if order not in self.state["reservations"]:
            raise ChronicleError("nothing of {!r} is reserved for {!r}".format(self.key, order))
        self.record("shipped", order=order)

    def on_received(self, quantity):
        """Event: some were put into the warehouse."""
        self.state["on_hand"] += quantity

    def on_reserved(self, order, quantity):
        """Event: some were reserved."""
        reservations = self.state["reservations"]
        reservations[order] = reservations.get(order, 0) + quantity

    def on_shipped(self, order):
        """Event: an order was sent."""
        self.state["on_hand"] -= self.state["reservations"].pop(order)
        self.state["shipped"].append(order)
