"""A table of gcovr's summary, a row for each folder: coverage_table.py SUMMARY.json"""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path

COUNTS = ("line_covered", "line_total", "branch_covered", "branch_total")


def percent(part: int, whole: int) -> str:
    """A share in percent; of nothing, a dash."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def main() -> None:
    """Prints the table."""
    folders: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for file in json.loads(Path(sys.argv[1]).read_text())["files"]:
        counts = collections.Counter({name: file[name] for name in COUNTS})
        folders[str(Path(file["filename"]).parent)] += counts
        folders["all"] += counts
    print("| folder | lines | covered | branches covered |")
    print("|---|---|---|---|")
    for folder, counts in sorted(folders.items(), key=lambda item: (item[0] == "all", item[0])):
        print(
            f"| {folder} | {counts['line_total']} | {percent(counts['line_covered'], counts['line_total'])} "
            f"| {percent(counts['branch_covered'], counts['branch_total'])} |"
        )


if __name__ == "__main__":
    main()
