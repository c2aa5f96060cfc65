"""Container images without a container engine: fetched and unpacked once, shared by all sandboxes."""

from .names import ImageName
from .ranges import id_ranges
from .sources import ArchiveSource, ImageSource, engine_source
from .store import ImageStore, StoredImage, copies_folder

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
