"""Making and validating tasks."""

from typing import TYPE_CHECKING

from ..registry import load as _load

if TYPE_CHECKING:  # read by `registry`: a name is imported when it is first used
    from .audit import AuditRecord as AuditRecord
    from .audit import audit_tasks as audit_tasks
    from .audit import read_audits as read_audits
    from .audit import repair_task as repair_task
    from .bundle import check_bundle as check_bundle
    from .bundle import pack_bundle as pack_bundle
    from .harbor import export_harbor as export_harbor
    from .mutants import make_mutants as make_mutants
    from .new_task import BuildOptions as BuildOptions
    from .new_task import build_commit_task as build_commit_task
    from .new_task import build_release_task as build_release_task
    from .new_task import find_commits as find_commits
    from .new_task import find_releases as find_releases
    from .new_task import make_change_tasks as make_change_tasks
    from .validation import judge_diff as judge_diff
    from .validation import rate_tasks as rate_tasks
    from .validation import validate as validate

else:

    def __getattr__(name: str) -> object:
        return _load(__name__, name)
