"""Container images without a container engine: fetched and unpacked once, shared by all sandboxes."""

from .sources import ArchiveSource, ImageName, ImageSource, engine_source
from .store import ImageStore, StoredImage, copies_folder, id_ranges

__all__ = [
    "ArchiveSource",
    "ImageName",
    "ImageSource",
    "ImageStore",
    "StoredImage",
    "copies_folder",
    "engine_source",
    "id_ranges",
]
