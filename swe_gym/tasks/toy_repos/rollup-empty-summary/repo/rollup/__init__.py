"""Small reports from CSV files."""

from .pipeline import Pipeline
from .reader import InputError, read_csv
from .report import Report
from .sections import ByKey, Detail

__all__ = ["ByKey", "Detail", "InputError", "Pipeline", "Report", "read_csv"]
