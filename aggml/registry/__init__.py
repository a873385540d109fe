"""Registry: the families and devices of this process, and the plug-ins they come from.

Here: the public names. Not here: the table of registered families and devices (table.py), looking
them up (finding.py), opening a backend by name (opening.py), listing files and entry points
(candidates.py), choosing, loading and unloading plug-ins (loading.py), the report (report.py).
"""

from aggml.registry.finding import (
    best_device,
    get_device,
    get_family,
    list_devices,
    list_families,
    register_device,
    register_family,
    unregister_device,
)
from aggml.registry.loading import load, load_all, load_report, search_path, unload
from aggml.registry.opening import (
    init_backend,
    init_best,
    init_by_name,
    init_by_type,
    split_backend_text,
)
from aggml.registry.report import LoadReport, LoadResult

__all__ = [
    "LoadReport",
    "LoadResult",
    "best_device",
    "get_device",
    "get_family",
    "init_backend",
    "init_best",
    "init_by_name",
    "init_by_type",
    "list_devices",
    "list_families",
    "load",
    "load_all",
    "load_report",
    "register_device",
    "register_family",
    "search_path",
    "split_backend_text",
    "unload",
    "unregister_device",
]


def __dir__() -> list[str]:
    return __all__
