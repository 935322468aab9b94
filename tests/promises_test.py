#!/usr/bin/env python3
"""Every test that a table of a document names is there: promises_test.py BUILD DOCUMENT...

In the tables of the documents, `Suite.Name` is a test of CTest's, with or without the instance that it is one of, and
`test_file.py::test_name` one of the Python package's. Tests that need nvcc to be built are looked for in their sources.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
GTEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)


def listed_by_ctest(build: str) -> set[str]:
    listing = subprocess.run(["ctest", "--test-dir", build, "-N"], capture_output=True, text=True, check=True).stdout
    tests = set(re.findall(r"Test\s+#\d+: (\S+)", listing))
    # Instance/Suite.Name/Parameter is one of Suite.Name's.
    return tests | {match.group(0) for name in tests if (match := re.search(r"[A-Za-z]\w*\.\w+", name))}


def built_with_cuda_only() -> set[str]:
    sources = [path.read_text(encoding="utf-8") for path in (TESTS / "kernels" / "cuda").glob("*.cc")]
    return {f"{suite}.{name}" for source in sources for suite, name in GTEST.findall(source)}


def of_python(file: str) -> set[str]:
    path = TESTS / "client" / "python" / file
    if not path.exists():
        return set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def main(build: str, documents: list[str]) -> int:
    ctest, cuda = listed_by_ctest(build), built_with_cuda_only()
    missing, found = [], 0
    for document in documents:
        for line in Path(document).read_text(encoding="utf-8").splitlines():
            if not line.startswith("|"):
                continue
            for name in re.findall(r"`([^`]+)`", line):
                if re.fullmatch(r"[A-Z]\w*\.[A-Z]\w*", name):
                    there = name in ctest or name in cuda
                elif match := re.fullmatch(r"(test_\w+\.py)::(test_\w+)", name):
                    there = match[2] in of_python(match[1])
                else:
                    continue
                found += 1
                if not there:
                    missing.append(f"{document}: no test is named {name}")
    print(f"{found} tests are named, {len(missing)} are missing")
    print("\n".join(missing))
    return 0 if found > 0 and not missing else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
