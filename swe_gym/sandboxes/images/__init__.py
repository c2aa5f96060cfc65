"""Container images without a container engine: fetched and unpacked once, shared by all sandboxes."""

from .ranges import id_ranges
from .store import ImageStore, StoredImage, copies_folder

__all__ = ["ImageStore", "StoredImage", "copies_folder", "id_ranges"]
