"""Which changes of the two sides have to be looked at together."""


class Region:
    """Lines `start` to `end` of the base, and all changes of both sides within.

    A region grows from a first change by those that overlap or touch it.
    """

    def __init__(self, start):
        self.start = start
        self.end = start
        self.ours = []
        self.theirs = []

    def add(self, change, is_ours):
        """Take in a change."""
        (self.ours if is_ours else self.theirs).append(change)
        self.end = change.end

    def __repr__(self):
        return "<Region {}-{}>".format(self.start, self.end)


def find_regions(ours, theirs):
    """The regions of two lists of changes, in order. They do not touch each other."""
    tagged = [(change, True) for change in ours] + [(change, False) for change in theirs]
    tagged.sort(key=lambda item: (item[0].start, item[0].end))
    regions = []
    for change, is_ours in tagged:
        if not regions or change.start > regions[-1].end:
            regions.append(Region(change.start))
        regions[-1].add(change, is_ours)
    return regions
