"""Files. They are UTF-8."""


def load(path):
    """The document in a file.

    Raises:
        ParseError: A line makes no sense.
        OSError: The file cannot be read.
    """
    from .document import Document  # a document saves itself with the function below

    with open(path, encoding="utf-8") as file:
        return Document.parse(file.read())


def save(path, text):
    """Write a text to a file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
