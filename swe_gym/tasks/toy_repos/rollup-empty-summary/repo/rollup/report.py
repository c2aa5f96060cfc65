"""Reports: a few sections about the same records."""


class Report:
    """A report.

    Args:
        sections: What it consists of, in order.
    """

    def __init__(self, sections):
        self.sections = list(sections)

    def render(self, records):
        """The report about the given records, as text."""
        parts = []
        for section in self.sections:
            parts.append("\n".join([section.title, *section.lines(records)]))
        return "\n\n".join(parts)
