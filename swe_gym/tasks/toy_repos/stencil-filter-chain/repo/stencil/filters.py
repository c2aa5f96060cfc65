"""The built-in filters. Each takes the value, and then the arguments that stand in the template."""


class Safe(str):
    """Text that is HTML already and will not be escaped."""


def text(value):
    """A value as text; nothing for None."""
    return "" if value is None else str(value)


def cut(value, length):
    """At most `length` characters; where some are left out, the last is an ellipsis."""
    value = text(value)
    return value if len(value) <= length else value[: length - 1] + "…"


def default(value, instead):
    """Something else in the place of a missing or empty value."""
    return instead if value is None or value == "" else value


def join(value, separator=""):
    """The items of a list as one text."""
    return separator.join(text(item) for item in value or ())


def lower(value):
    """Small letters."""
    return text(value).lower()


def safe(value):
    """No escaping."""
    return Safe(text(value))


def title(value):
    """A capital letter in front of every word."""
    return text(value).title()


def trim(value):
    """No blanks at both ends."""
    return text(value).strip()


def upper(value):
    """Capital letters."""
    return text(value).upper()


def wrap(value, before, after=""):
    """Text on both sides, unless there is nothing to put it around."""
    value = text(value)
    return before + value + after if value else ""


BUILT_IN = {
    function.__name__: function for function in (cut, default, join, lower, safe, title, trim, upper, wrap)
}
