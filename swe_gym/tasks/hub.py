"""Datasets of the Hugging Face Hub, as files in its own cache on this machine.

`huggingface_hub` does the work, so what its users set holds here: `HF_ENDPOINT` for a mirror, `HF_HOME` for the cache,
`HF_TOKEN` for datasets that ask for one, `HF_HUB_OFFLINE=1` to use only what was fetched before.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import MissingDependency, TaskError, UsageError
from ..tables import SUFFIXES
from .rows import is_of_split

HINT = (
    "HF_ENDPOINT names a mirror, HF_HOME the folder of what was fetched before, HF_HUB_OFFLINE=1 uses nothing else, "
    "HF_TOKEN is for datasets that ask for one; or give a file as path="
)


def fetch_dataset(dataset: str, *, revision: str | None, config: str | None, split: str) -> list[Path]:
    """The files of one split of a dataset, fetched unless they were before.

    Args:
        dataset: "owner/name" on the Hub.
        revision: A commit, tag or branch; None is the main branch. Only a commit means the same for ever.
        config: One of the dataset's configurations; None is its default.
        split: Its name there, as in "test".

    Raises:
        MissingDependency: `huggingface_hub` is not installed.
        UsageError: There is no such dataset, revision, configuration or split, or it may not be read.
        TaskError: The Hub could not be reached, and the cache does not hold the dataset.
    """
    folder = _snapshot(dataset, revision, ["README.md"])
    patterns = _patterns(folder / "README.md", config, split)
    wanted = [f"*{suffix}" for suffix in SUFFIXES] if patterns is None else patterns
    folder = _snapshot(dataset, revision, wanted)
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.suffix in SUFFIXES)
    if patterns is None:
        chosen = [name for name in names if is_of_split(name, split)]
        chosen = chosen or [name for name in names if config is None or name.startswith(f"{config}/")]
    else:
        chosen = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if not chosen:
        raise UsageError(f"dataset {dataset!r} has no rows of the split {split!r}: {', '.join(names[:10]) or 'none'}")
    return [folder / name for name in chosen]


def _snapshot(dataset: str, revision: str | None, patterns: list[str]) -> Path:
    hub, errors = _hub()
    try:
        return Path(hub.snapshot_download(dataset, repo_type="dataset", revision=revision, allow_patterns=patterns))
    except errors.HFValidationError as error:
        raise UsageError(f"{dataset!r} is no dataset of the Hugging Face Hub: {error}") from error
    except (errors.LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, errors.RevisionNotFoundError):
            raise UsageError(f"dataset {dataset!r} has no revision {revision!r}: {error}") from error
        if isinstance(error, errors.RepositoryNotFoundError):  # a gated one too
            raise UsageError(f"dataset {dataset!r} does not exist, or needs HF_TOKEN: {error}") from error
        raise TaskError(f"dataset {dataset!r} could not be fetched: {error}\n{HINT}") from error


def _hub() -> tuple[Any, Any]:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise MissingDependency("datasets of the Hugging Face Hub need: pip install 'swe-gym[hf]'") from error
    return huggingface_hub, huggingface_hub.errors


def _patterns(readme: Path, config: str | None, split: str) -> list[str] | None:
    """The files of a split as the head of a dataset's README lists them; None where it does not."""
    configs = _configs(readme)
    if not configs:
        return None
    names = [str(entry.get("config_name", "default")) for entry in configs]
    if config is None:
        default = next((entry for entry in configs if entry.get("default")), configs[0])
    elif config in names:
        default = configs[names.index(config)]
    else:
        raise UsageError(f"the dataset has no configuration {config!r}, but {', '.join(names)}")
    splits = dict(_splits(default.get("data_files")))
    if not splits:
        return None
    if split not in splits:
        raise UsageError(f"the dataset has no split {split!r}, but {', '.join(splits)}")
    return splits[split]


def _configs(readme: Path) -> list[dict[str, Any]]:
    if not readme.is_file():
        return []
    head = re.match(r"---\s*\n(.*?)\n---", readme.read_text(encoding="utf-8"), re.DOTALL)
    import yaml  # it comes with huggingface_hub

    data = yaml.safe_load(head[1]) if head else None
    return data.get("configs") or [] if isinstance(data, dict) else []


def _splits(files: Any) -> Iterator[tuple[str, list[str]]]:
    for entry in files if isinstance(files, list) else []:
        if isinstance(entry, dict) and "split" in entry:
            paths = entry.get("path", [])
            yield str(entry["split"]), [paths] if isinstance(paths, str) else list(paths)
