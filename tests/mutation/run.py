#!/usr/bin/env python3
"""Mutation of the numerics: every changed sign, dropped term and swapped index must fail a test.

    tests/mutation/run.py [cpu] [cuda_walk] [reference] [--only TEXT] [--out results.json]

Without names all of these, cuda_walk where there is nvcc; cuda_simt, cuda_mma and cuda_hopper, which need a GPU, where
they are named.
Reads the mutants of an engine from NAME.txt beside this file, in this format: `@ FILE` names a source file; of each
mutant a line `- OLD` and after it `+ NEW`, where OLD is a line, or the part of one, that FILE has exactly once, and NEW
is what stands in its place (nothing: the line goes). Copies the repository's tracked files into build/mutation/, builds
there, and sees the tests pass. Then of each mutant: builds, runs the engine's tests until one fails, takes the change
back. A mutant is caught where a test fails, crashes or hangs; one that does not compile is a mistake in the list. Exit
code 0 where all are caught.

On machines that have none of our packages, or many cores, `--source DIR --build COMMAND... --test COMMAND...` say where
the sources lie and how to build and to test them there, without CMake: one build for all tests, or one before each.
`--jobs N` has N mutants tried at once, each in a copy DIR-JOB of the built sources; commands know which by
FLASHBOB_JOB, from 0, as to choose a GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent

# The programs of an engine's tests, those that fail soonest first.
TESTS = {
    "cpu": [
        "mask_test",
        "elementwise_test",
        "cpu_engine_conformance_test",
        "engine_corners_test",
        "cpu_engine_test",
        "identities_test",
        "conformance_test",
    ],
    "cuda_walk": ["hopper_walk_test"],
    "cuda_simt": ["engine_corners_test", "cuda_conformance_test"],
    "cuda_mma": ["engine_corners_test", "cuda_conformance_test"],
    "cuda_hopper": ["engine_corners_test", "cuda_conformance_test"],
    "reference": ["reference_test", "golden_test", "identities_test", "conformance_test", "engine_corners_test"],
}
# Lists whose tests are of a build with CUDA, which needs nvcc; of these, those whose tests need a GPU too.
WITH_GPU = {"cuda_simt", "cuda_mma", "cuda_hopper"}
WITH_CUDA = {"cuda_walk"} | WITH_GPU
# What one program may take: several times what the slowest of them needs on two cores, or on an H200.
TEST_SECONDS = 1800


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of one line."""

    file: str
    old: str
    new: str

    def check(self, source: Path) -> None:
        """Ends the program where the file has the line not just once."""
        count = (source / self.file).read_text().count(self.old)
        if count != 1:
            raise SystemExit(f"{self.file} has {count} times, not once: {self.old.strip()}")

    def apply(self, source: Path) -> str:
        """Changes the file; returns what was in it before."""
        path = source / self.file
        text = path.read_text()
        path.write_text(text.replace(self.old, self.new))
        return text


def read_mutants(path: Path) -> list[Mutant]:
    """The mutants of one list."""
    mutants = []
    file = ""
    old = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("@ "):
            file = line[2:].strip()
        elif line.startswith("- "):
            old = line[2:]
        elif line == "+" or line.startswith("+ "):
            mutants.append(Mutant(file, old, line[2:]))
        elif line and not line.startswith("#"):
            raise SystemExit(f"{path}:{number}: neither @, -, + nor #: {line}")
    return mutants


def run(command: str, directory: Path, seconds: int | None = None, job: int = 0) -> tuple[bool, str]:
    """Whether a shell command succeeds, and the end of what it printed."""
    try:
        result = subprocess.run(
            ["bash", "-c", command],
            cwd=directory,
            env={**os.environ, "FLASHBOB_JOB": str(job), "FLASHBOB_ANY_PTXAS": "1"},
            timeout=seconds,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no end within {seconds} s"
    return result.returncode == 0, result.stdout[-2000:]


def copy_sources(to: Path) -> None:
    """Brings the tracked files into `to`; those that have not changed keep their times, so that builds are short."""
    tracked = subprocess.run(["git", "-C", str(TOP), "ls-files", "-z"], capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        source, target = TOP / name, to / name
        if not source.is_file():
            continue
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)  # with the right to run scripts


def failed_test(command: str, output: str) -> str:
    """What caught a mutant: GoogleTest's name of the test, or of its program where that crashed or hung."""
    named = re.search(r"^\[  FAILED  \] ([A-Z][\w/]*\.[\w/]+)", output, re.MULTILINE)
    program = next((word for word in command.split() if "/" in word), command.split()[0])
    return named[1] if named else program.split("/")[-1]


def judge(mutant: Mutant, source: Path, steps: list[tuple[str, str]], job: int = 0) -> dict[str, str | float]:
    """Builds and tests one mutant: of each step its build, then its test, until one fails."""
    began = time.monotonic()
    before = mutant.apply(source)
    verdict, by = "survived", ""
    try:
        for build, test in steps:
            built, output = run(build, source, job=job)
            if not built:
                verdict, by = "does not compile", output
                break
            passed, output = run(test, source, TEST_SECONDS, job)
            if not passed:
                verdict, by = "caught", failed_test(test, output)
                break
    finally:
        (source / mutant.file).write_text(before)
    return {
        "file": mutant.file,
        "old": mutant.old.strip(),
        "new": mutant.new.strip(),
        "verdict": verdict,
        "by": by,
        "seconds": round(time.monotonic() - began, 1),
    }


def judge_all(
    mutants: list[Mutant], sources: list[Path], steps: list[tuple[str, str]]
) -> Iterator[dict[str, str | float]]:
    """The results of mutants as they come, of as many at once as there are sources."""
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for job in range(len(sources)):
        free.put(job)

    def judge_one(mutant: Mutant) -> dict[str, str | float]:
        job = free.get()
        try:
            return judge(mutant, sources[job], steps, job)
        finally:
            free.put(job)

    for mutant in mutants:
        mutant.check(sources[0])
    pool = concurrent.futures.ThreadPoolExecutor(len(sources))
    try:
        for future in concurrent.futures.as_completed([pool.submit(judge_one, mutant) for mutant in mutants]):
            yield future.result()
    finally:
        # Where somebody stops it, those under way end and no other begins.
        pool.shutdown(cancel_futures=True)


def main() -> int:
    """Runs the mutants of the engines named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engines = [name for name in sorted(TESTS.keys() - WITH_GPU) if name not in WITH_CUDA or shutil.which("nvcc")]
    parser.add_argument("engines", nargs="*", default=engines, metavar="ENGINE")
    parser.add_argument("--only", default="", help="mutants whose file, old or new text has this")
    parser.add_argument("--out", type=Path, help="results as JSON")
    parser.add_argument("--source", type=Path, help="sources to change, built by --build")
    parser.add_argument("--build", nargs="+", help="shell commands that build, run in the sources")
    parser.add_argument("--test", nargs="+", help="shell commands that test, run in the sources")
    parser.add_argument(
        "--seen-to-pass", action="store_true", help="the tests have passed without mutants: do not run them so first"
    )
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at once, with --source")
    arguments = parser.parse_args()
    if arguments.jobs != 1 and arguments.source is None:
        parser.error("--jobs needs --source: trees of CMake cannot be copied")
    if arguments.test and len(arguments.build or []) not in (1, len(arguments.test)):
        parser.error("--build needs one command, or one for each of --test")

    source = arguments.source or TOP / "build" / "mutation"
    if arguments.source is None:
        copy_sources(source)
    results = []
    for engine in arguments.engines:
        build = "build-cuda" if engine in WITH_CUDA else "build"
        if arguments.source is None:
            # Quick to compile, and no warning for what a mutant leaves unused.
            configured, output = run(
                f"cmake -B {build} -G Ninja -DFLASHBOB_CUDA={'ON' if engine in WITH_CUDA else 'OFF'} "
                '-DCMAKE_CXX_FLAGS=-w -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -DNDEBUG"',
                source,
            )
            if not configured:
                raise SystemExit(output)
        if arguments.test:
            builds = arguments.build * (len(arguments.test) if len(arguments.build) == 1 else 1)
            steps = list(zip(builds, arguments.test, strict=True))
        else:
            steps = [
                (
                    f"cmake --build {build} -j {os.cpu_count()} -t {program}",
                    f"{build}/{program} --gtest_fail_fast --gtest_brief=1",
                )
                for program in TESTS[engine]
            ]
        for command in () if arguments.seen_to_pass else itertools.chain(*steps):
            passed, output = run(command, source)
            if not passed:
                raise SystemExit(f"fails without any mutant: {command}\n{output}")
            if "[  SKIPPED ]" in output:
                raise SystemExit(f"skips tests here, which would let mutants pass: {command}\n{output}")
        sources = [source]
        if arguments.jobs > 1:
            sources = [source.with_name(f"{source.name}-{job}") for job in range(arguments.jobs)]
            for copy in sources:
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(source, copy, symlinks=True)
        mutants = [
            mutant
            for mutant in read_mutants(HERE / f"{engine}.txt")
            if arguments.only in mutant.file + mutant.old + mutant.new
        ]
        for result in judge_all(mutants, sources, steps):
            results.append({"engine": engine, **result})
            print(
                f"{result['verdict']:<16} {result['seconds']:>6} s  {result['file']}: {result['old']}  ->  "
                f"{result['new']}  {result['by']}",
                flush=True,
            )
            if arguments.out:
                arguments.out.write_text(
                    json.dumps({"command": " ".join(sys.argv), "mutants": results}, indent=1) + "\n"
                )
    caught = sum(result["verdict"] == "caught" for result in results)
    print(f"{caught} of {len(results)} mutants caught")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
