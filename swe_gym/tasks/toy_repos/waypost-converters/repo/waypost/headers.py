"""Header fields: a multi-dict that ignores case and keeps the order."""


class Headers:
    """The header fields of a message.

    >>> headers = Headers([("Accept", "text/html")])
    >>> headers.add("Allow", "GET")
    >>> headers["accept"]
    'text/html'
    """

    def __init__(self, fields=()):
        self._fields = [(name, value) for name, value in fields]

    def add(self, name, value):
        """Append a field, whether or not there is one of that name."""
        self._fields.append((name, value))

    def set(self, name, value):
        """Put one field in the place of all of that name."""
        self._fields = [field for field in self._fields if field[0].lower() != name.lower()]
        self.add(name, value)

    def all(self, name):
        """The values of all fields of that name, in order."""
        return [value for other, value in self._fields if other.lower() == name.lower()]

    def get(self, name, default=None):
        """The first value of that name, or `default`."""
        values = self.all(name)
        return values[0] if values else default

    def __getitem__(self, name):
        values = self.all(name)
        if not values:
            raise KeyError(name)
        return values[0]

    def __contains__(self, name):
        return bool(self.all(name))

    def __iter__(self):
        return iter(self._fields)

    def __len__(self):
        return len(self._fields)
