"""Records on their way to a report."""


class Pipeline:
    """Records, and what is done with them.

    Each method that changes something gives a new pipeline, so that several can begin with the same records.

    Args:
        records: Dicts with the same keys.
    """

    def __init__(self, records):
        self._records = records

    def __iter__(self):
        return iter(self._records)

    def where(self, condition):
        """Only the records for which the condition is true."""
        return Pipeline(record for record in self if condition(record))

    def derive(self, name, function):
        """Records with one more column, which is computed from the others."""
        return Pipeline({**record, name: function(record)} for record in self)

    def sorted_by(self, name):
        """The records in the order of a column."""
        return Pipeline(sorted(self, key=lambda record: record[name]))
