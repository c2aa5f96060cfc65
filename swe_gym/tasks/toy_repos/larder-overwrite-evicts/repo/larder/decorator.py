"""Caching the results of a function."""

import functools

_MISSING = object()


def cached(cache, key=None):
    """Keep the results of the decorated function in `cache`.

    Args:
        cache: The cache to use. It may be shared, the function's name is part of the key.
        key: Makes the key from the call's arguments. By default they are used as they are.
    """

    def decorate(function):
        name = "{}.{}".format(function.__module__, function.__qualname__)

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            detail = key(*args, **kwargs) if key else (args, tuple(sorted(kwargs.items())))
            slot = (name, detail)
            value = cache.get(slot, _MISSING)
            if value is _MISSING:
                value = function(*args, **kwargs)
                cache.put(slot, value)
            return value

        wrapper.cache = cache
        return wrapper

    return decorate
