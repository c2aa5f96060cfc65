"""Software-engineering tasks as Gymnasium environments."""

__version__ = "0.1.0"
