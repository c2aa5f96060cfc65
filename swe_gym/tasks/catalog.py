"""The table of task sources that ship with the package, and of their environment ids."""

from typing import NamedTuple


class CatalogEntry(NamedTuple):
    """One task source.

    Attributes:
        target: Its class, as "module:Class".
        family: Name of its environment id `SWE/{family}-v0`; empty if it has none.
        about: First line of that environment's documentation, for a source of a dataset. The environment's class is
            made from it; other families have one in `swe_gym.envs.families`.
    """

    target: str
    family: str = ""
    about: str = ""


CATALOG = {
    "toy": CatalogEntry("swe_gym.tasks.toy:ToySource", "Toy"),
    "micro": CatalogEntry("swe_gym.tasks.micro:MicroSource", "Micro"),
    "file": CatalogEntry("swe_gym.tasks.file:FileSource", "Tasks"),
    "local": CatalogEntry("swe_gym.tasks.local:LocalSource", "Local"),
    "debug_gym": CatalogEntry(
        "swe_gym.tasks.debug_gym:DebugGymSource", "DebugGym", "debug-gym's rows; `path` is required."
    ),
    "graph_planner": CatalogEntry(
        "swe_gym.tasks.graph_planner:GraphPlannerSource",
        "GraphPlanner",
        "Graph Planner's JSON lines and parquet files; `path` is required.",
    ),
    "harbor": CatalogEntry("swe_gym.tasks.harbor:HarborSource", "Harbor", "Harbor's task folders; `path` is required."),
    "multi_swe_bench": CatalogEntry(
        "swe_gym.tasks.multi_swe_bench:MultiSWEBenchSource",
        "MultiSWEBench",
        "Multi-SWE-bench and Multi-SWE-RL: pull requests of seven languages.",
    ),
    "r2e": CatalogEntry(
        "swe_gym.tasks.r2e:R2ESource",
        "R2E",
        "R2E-Gym: commits of Python repositories. Each test must end as it did after the commit.",
    ),
    "swe_bench_live": CatalogEntry(
        "swe_gym.tasks.swe_bench_live:SWEBenchLiveSource",
        "SWEBenchLive",
        "SWE-bench-Live: recent issues, newer than the models under evaluation.",
    ),
    "swe_bench_pro": CatalogEntry(
        "swe_gym.tasks.swe_bench_pro:SWEBenchProSource",
        "SWEBenchPro",
        "SWE-bench Pro: long tasks, judged by scripts in their rows.",
    ),
    "swe_rebench": CatalogEntry(
        "swe_gym.tasks.swe_rebench:SWERebenchSource",
        "SWERebench",
        "SWE-rebench V1 and V2: issues of thousands of repositories, in V2 of twenty languages.",
    ),
    "swebench": CatalogEntry(
        "swe_gym.tasks.swebench:SWEBenchSource",
        "SWEBench",
        "SWE-bench in any edition: GitHub issues, and the tests of the pull requests that fixed them.",
    ),
    "swebench-verified": CatalogEntry("swe_gym.tasks.swebench:SWEBenchSource"),
    "swebench-lite": CatalogEntry("swe_gym.tasks.swebench:SWEBenchLite"),
    "swebench-full": CatalogEntry("swe_gym.tasks.swebench:SWEBenchFull"),
    "swebench-multilingual": CatalogEntry("swe_gym.tasks.swebench:SWEBenchMultilingual"),
    "swebench-multimodal": CatalogEntry("swe_gym.tasks.swebench:SWEBenchMultimodal"),
    "swegym": CatalogEntry(
        "swe_gym.tasks.swegym:SWEGymSource",
        "SWEGym",
        "SWE-Gym: issues of eleven Python repositories that SWE-bench does not cover.",
    ),
    "swesmith": CatalogEntry(
        "swe_gym.tasks.swesmith:SWESmithSource", "SWESmith", "SWE-smith: working repositories with a bug inserted."
    ),
}
"""Name -> entry."""

ENV_IDS = {
    f"SWE/{entry.family}-v0": f"swe_gym.envs.families:{entry.family}Env" for entry in CATALOG.values() if entry.family
}
"""Environment id -> entry point."""
