"""The machine a benchmark ran on, in words that carry no name and no path."""

from __future__ import annotations

import os
import platform
import re
from datetime import date
from pathlib import Path

import numpy as np
from speeds import median_s

COPIED_BYTES = 256 * 2**20


def describe() -> dict[str, str | float]:
    """Processor, memory, Python and date; and how busy the machine was when the run began."""
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_gib, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "date": date.today().isoformat(),
        "load": round(os.getloadavg()[0], 1),
        "memory_bytes_per_s": float(f"{memory_bytes_per_s():.3g}"),
    }


def processor() -> str:
    """The model of the processor, as the system states it."""
    cpuinfo = Path("/proc/cpuinfo")
    stated = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return stated[1] if stated else platform.processor() or platform.machine()


def memory_bytes_per_s() -> float:
    """The bandwidth of memory as one thread sees it: a copy reads each byte and writes it again."""
    source = np.ones(COPIED_BYTES, dtype=np.uint8)
    target = np.empty_like(source)
    return 2 * COPIED_BYTES / median_s(lambda: np.copyto(target, source))
