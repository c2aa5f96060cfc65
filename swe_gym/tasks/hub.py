"""Datasets of the Hugging Face Hub: files in its local cache, and uploads.

`huggingface_hub` downloads them, so its variables apply: `HF_ENDPOINT` (a mirror), `HF_HOME` (the cache), `HF_TOKEN`
(gated datasets) and `HF_HUB_OFFLINE=1` (use the cache only).
"""

import fnmatch
import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import MissingDependency, TaskError, UsageError
from ..files import SUFFIXES
from ..threads import in_thread
from ..types import JsonObject

NEEDED = "datasets of the Hugging Face Hub need huggingface_hub: pip install 'swe-gym[hf]', or pass a file as path="

HINT = (
    "Set HF_ENDPOINT to a mirror, HF_HOME to a cache that holds it (with HF_HUB_OFFLINE=1), or HF_TOKEN for a gated "
    "dataset; or pass a local file as path="
)


def is_of_split(name: str, split: str) -> bool:
    """Return whether a relative path names a split, as a word of the file name or as a folder."""
    return re.search(rf"(?:^|[/._-]){re.escape(split)}(?:[/.-]|$)", name) is not None


def check_hub() -> None:
    """Raise `MissingDependency` if the package that downloads datasets is not installed."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingDependency(NEEDED)


def fetch_dataset(dataset: str, *, revision: str | None, config: str | None, split: str) -> list[Path]:
    """Return the files of one split of a dataset. They are downloaded unless the cache holds them.

    Args:
        dataset: "owner/name" on the Hub.
        revision: Commit, tag or branch; None is the main branch. Only a commit is reproducible.
        config: Configuration of the dataset; None is its default.
        split: Name of the split, such as "test".

    Raises:
        MissingDependency: `huggingface_hub` is not installed.
        UsageError: The dataset, revision, configuration or split does not exist or is not readable.
        TaskError: The Hub cannot be reached, and the cache does not hold the dataset.
    """
    folder = fetch_files(dataset, revision, ["README.md"])
    patterns = _patterns(folder / "README.md", config, split)
    wanted = [f"*{suffix}" for suffix in SUFFIXES] if patterns is None else patterns
    folder = fetch_files(dataset, revision, wanted)
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.suffix in SUFFIXES)
    if patterns is None:
        chosen = [name for name in names if is_of_split(name, split)]
        chosen = chosen or [name for name in names if config is None or name.startswith(f"{config}/")]
    else:
        chosen = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if not chosen:
        raise UsageError(f"dataset {dataset!r} has no rows of the split {split!r}: {', '.join(names[:10]) or 'none'}")
    return [folder / name for name in chosen]


def push_files(folder: Path, dataset: str, *, private: bool, timeout: float = 3600.0) -> str:
    """Upload a bundle as a dataset, which is made if it does not exist, and return its address.

    Earlier archives are removed; files that a bundle does not have stay.

    Args:
        folder: The bundle.
        dataset: "owner/name" on the Hub.
        private: Whether a new dataset is private.
        timeout: Seconds that the upload may take.

    Raises:
        MissingDependency: `huggingface_hub` is not installed.
        UsageError: The name is invalid, or the token is missing, wrong or not allowed to write.
        TaskError: The Hub cannot be reached, refused the files or did not take them in time.
    """
    hub, errors = _hub()

    def upload() -> Any:
        api = hub.HfApi()
        api.create_repo(dataset, repo_type="dataset", private=private, exist_ok=True)
        return api.upload_folder(repo_id=dataset, repo_type="dataset", folder_path=folder, delete_patterns="sources/*")

    done = in_thread(upload, "push")
    try:
        commit = done.result(timeout)
    except TimeoutError as error:
        if done.done():  # the Hub's own
            raise TaskError(f"cannot upload {folder} to {dataset!r}: {error}") from error
        raise TaskError(
            f"the upload of {folder} to {dataset!r} did not end within {timeout:g} s: push again, with more time "
            "(--timeout). What the Hub has is not sent again"
        ) from error
    except errors.HFValidationError as error:
        raise UsageError(f"{dataset!r} is not a valid dataset id, such as owner/name: {error}") from error
    except errors.LocalTokenNotFoundError as error:
        raise UsageError("the Hub needs a token that may write: set HF_TOKEN, or run `hf auth login`") from error
    except Exception as error:  # the HTTP client, and so its errors, differ between versions of huggingface_hub
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise UsageError(
                f"the token may not write to {dataset!r}: check HF_TOKEN and the owner: {error}"
            ) from error
        raise TaskError(f"cannot upload {folder} to {dataset!r}: {error}") from error
    return str(commit.repo_url)


def fetch_files(dataset: str, revision: str | None, patterns: Sequence[str] = ("*",)) -> Path:
    """Return a folder with the files of a dataset that match. They are downloaded unless the cache holds them.

    Raises:
        MissingDependency, UsageError, TaskError: As `fetch_dataset`.
    """
    hub, errors = _hub()
    try:
        return Path(hub.snapshot_download(dataset, repo_type="dataset", revision=revision, allow_patterns=[*patterns]))
    except errors.HFValidationError as error:
        raise UsageError(f"{dataset!r} is not a valid dataset id: {error}") from error
    except (errors.LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, errors.RevisionNotFoundError):
            raise UsageError(f"dataset {dataset!r} has no revision {revision!r}: {error}") from error
        if isinstance(error, errors.RepositoryNotFoundError):  # or gated
            raise UsageError(f"dataset {dataset!r} does not exist, or needs HF_TOKEN: {error}") from error
        raise TaskError(f"cannot download dataset {dataset!r}: {error}\n{HINT}") from error


def _hub() -> tuple[Any, Any]:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise MissingDependency(NEEDED) from error
    return huggingface_hub, huggingface_hub.errors


def _patterns(readme: Path, config: str | None, split: str) -> list[str] | None:
    """Return the file patterns of a split from the header of a dataset's README; None if it lists none."""
    configs = _configs(readme)
    if not configs:
        return None
    names = [str(entry.get("config_name", "default")) for entry in configs]
    if config is None:
        default = next((entry for entry in configs if entry.get("default")), configs[0])
    elif config in names:
        default = configs[names.index(config)]
    else:
        raise UsageError(f"the dataset has no configuration {config!r}. Known: {', '.join(names)}")
    splits = dict(_splits(default.get("data_files")))
    if not splits:
        return None
    if split not in splits:
        raise UsageError(f"the dataset has no split {split!r}. Known: {', '.join(splits)}")
    return splits[split]


def _configs(readme: Path) -> list[JsonObject]:
    data = _hub()[0].metadata_load(readme) if readme.is_file() else None
    return (data or {}).get("configs") or []


def _splits(files: object) -> Iterator[tuple[str, list[str]]]:
    for entry in files if isinstance(files, list) else []:
        if isinstance(entry, dict) and "split" in entry:
            paths = entry.get("path", [])
            yield str(entry["split"]), [paths] if isinstance(paths, str) else list(paths)
