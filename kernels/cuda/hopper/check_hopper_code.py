#!/usr/bin/env python3
"""Checks the machine code of the kernels for sm_90a for what costs speed, or hangs, and no test of results sees.

    check_hopper_code.py path/to/libflashbob_hopper_kernels.a [--cuobjdump PROGRAM]

In every kernel that moves registers between warpgroups (the tensor-core kernels all do):
  * no instruction touches local memory (a spill);
  * every loop that rounds scores (F2FP: it works on tiles, and is hot) issues warpgroup products (HGMMA), and there is
    one;
  * no product is a warp's own (HMMA);
  * the producer's code uses no register past what it keeps: nothing but the hardware checks that.
Prints a line a kernel; exits with 1 where one fails, and with 77 where there is no cuobjdump.
"""

import argparse
import re
import shutil
import subprocess
import sys

INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,6})\*/\s+(.*?)\s*;")
BRANCH = re.compile(r"\b(?:BRA|BRX|JMP)\b.*?(0x[0-9a-f]+)")


def parse(sass):
    """Instructions of every kernel: {kernel: [(address, text)]}."""
    kernels = {}
    body = None
    for line in sass.splitlines():
        function = re.search(r"Function : (\S+)", line)
        if function:
            body = kernels.setdefault(function.group(1), [])
            continue
        instruction = INSTRUCTION.search(line)
        if instruction and body is not None:
            body.append((int(instruction.group(1), 16), instruction.group(2)))
    return kernels


def successors(body):
    """Of every instruction, the positions of those that may follow it."""
    position = {address: i for i, (address, _) in enumerate(body)}
    follow = []
    for i, (_, text) in enumerate(body):
        branch = BRANCH.search(text)
        conditional = text.startswith("@") or re.search(r"\bBRA(?:\.\S+)?\s+!?U?P\d", text)
        ends = (branch or re.search(r"\b(?:EXIT|RET)\b", text)) and not conditional
        next_ones = [] if ends or i + 1 == len(body) else [i + 1]
        if branch:
            next_ones.append(position[int(branch.group(1), 16)])
        follow.append(next_ones)
    return follow


def loops(body):
    """Texts of every loop, nested ones as one: the strongly connected parts of the flow (Tarjan's algorithm)."""
    follow = successors(body)
    index = {}
    low = {}
    on_stack = set()
    stack = []
    found = []
    for root in range(len(body)):
        if root in index:
            continue
        work = [(root, 0)]
        while work:
            node, edge = work.pop()
            if edge == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            elif follow[node][edge - 1] in on_stack:
                low[node] = min(low[node], low[follow[node][edge - 1]])
            for i in range(edge, len(follow[node])):
                if follow[node][i] not in index:
                    work.append((node, i + 1))
                    work.append((follow[node][i], 0))
                    break
                if follow[node][i] in on_stack:
                    low[node] = min(low[node], index[follow[node][i]])
            else:
                if low[node] == index[node]:
                    part = []
                    while not part or part[-1] != node:
                        part.append(stack.pop())
                        on_stack.discard(part[-1])
                    if len(part) > 1:
                        found.append([body[i][1] for i in part])
    return found


def reachable(body, start):
    """Texts of all that may run from `start` on."""
    follow = successors(body)
    seen = set()
    todo = [start]
    while todo:
        i = todo.pop()
        if i not in seen:
            seen.add(i)
            todo += follow[i]
    return [body[i][1] for i in seen]


def highest_register(texts):
    """The highest number of a register in `texts`, -1 where there is none."""
    highest = -1
    for text in texts:
        for number, wide in re.findall(r"\bR(\d+)(\.64)?", text):
            highest = max(highest, int(number) + (1 if wide else 0))
    return highest


def check(body):
    """What is wrong with a kernel, and what it is made of."""
    faults = []
    texts = [text for _, text in body]
    if any(re.search(r"\b(?:LDL|STL)\b", text) for text in texts):
        faults.append("touches local memory")
    if any(re.search(r"\bHMMA\b", text) for text in texts):
        faults.append("has products of single warps")
    hot = [loop for loop in loops(body) if any("F2FP" in text for text in loop)]
    if not hot:
        faults.append("has no loop over tiles")
    cold = [loop for loop in hot if not any("HGMMA" in text for text in loop)]
    if cold:
        faults.append(f"{len(cold)} of {len(hot)} hot loops have no HGMMA")
    for i, text in enumerate(texts):
        release = re.search(r"USETMAXREG\.DEALLOC\S*\s+(0x[0-9a-f]+)", text)
        if release:
            kept = int(release.group(1), 16)
            highest = highest_register(reachable(body, i))
            if highest >= kept:
                faults.append(f"the producer uses register {highest} and keeps {kept}")
    products = sum("HGMMA" in text for text in texts)
    return faults, f"{len(hot)} hot loops, {products} HGMMA"


def demangle(names):
    """Names as people write them, where c++filt is there."""
    program = shutil.which("c++filt")
    if program is None:
        return names
    lines = subprocess.run([program], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return [re.sub(r"flashbob::cuda::hopper::|\(anonymous namespace\)::|void ", "", x) for x in lines.splitlines()]


def main():
    """Checks one binary; answers the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="an object, a library or a program")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    arguments = parser.parse_args()
    program = shutil.which(arguments.cuobjdump)
    if program is None:
        print("no cuobjdump: nothing is checked")
        return 77
    sass = subprocess.run([program, "-sass", "-arch", "sm_90a", arguments.binary], capture_output=True, text=True)
    kernels = {name: body for name, body in parse(sass.stdout).items() if any("USETMAXREG" in t for _, t in body)}
    if not kernels:
        print(f"{arguments.binary}: no kernel of sm_90a found; cuobjdump said: {sass.stderr.strip()}")
        return 1
    failed = 0
    for name, body in zip(demangle(list(kernels)), kernels.values(), strict=True):
        faults, summary = check(body)
        print(f"{'FAIL' if faults else 'ok  '} {name}: {'; '.join(faults) or summary}")
        failed += bool(faults)
    print(f"{len(kernels)} kernels, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
