"""Runs as many graphs as wanted, and prints scripts of the failures."""

import argparse
import gc
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from tests.engines.fuzz.compare import TOLERANCE, Outcome, compare
from tests.engines.fuzz.generate import Graph, draw_graph
from tests.engines.fuzz.shrink import script, shrink

_SAID = "right", "refused", "wrong", "alarms", "false alarms", "void"


def _count(counts: Counter[str], graph: Graph, outcome: Outcome) -> None:
    if outcome.void:
        counts["void"] += 1
        return
    counts["wrong" if outcome.wrong else "refused" if outcome.refused else "right"] += 1
    counts["alarms"] += bool(outcome.alarms)
    counts["rounded"] += bool(outcome.rounded)
    if outcome.false_alarms:
        counts["false alarms"] += 1
        counts["false alarms, linear"] += graph.is_linear


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first graph")
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--dtype", choices=list(TOLERANCE), default="float64")
    parser.add_argument("--scripts", type=Path, help="a folder for the scripts of failures")
    parser.add_argument("--shrink", type=float, default=20, help="seconds for each failure")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.reconfigure(line_buffering=True)
    gc.freeze()  # what was imported need not be scanned again and again
    counts, start, done = Counter[str](), time.monotonic(), 0

    def line() -> str:
        said = ", ".join(f"{counts[name]} {name}" for name in _SAID)
        return f"{done}/{options.graphs} {options.dtype}: {said}, {time.monotonic() - start:.0f} s"

    try:
        for seed in range(options.seed, options.seed + options.graphs):
            graph = draw_graph(seed, options.dtype)
            outcome = compare(graph)
            _count(counts, graph, outcome)
            done += 1
            if outcome.refused:
                print(f"\nseed {seed} refused: {outcome.refused[:200]}")
            for alarm in outcome.false_alarms[:1]:
                how = "linear" if graph.is_linear else "not linear"
                print(f"\nseed {seed} false alarm ({how}): {alarm[:300]}")
            if outcome.wrong:
                modes = "; ".join(f"{w.mode}, step {w.step}: {w.what}" for w in outcome.wrong)
                print(f"\nseed {seed} WRONG: {modes}")
                text = script(*shrink(graph, outcome.wrong[0], options.shrink))
                if options.scripts is None:
                    print(text)
                else:
                    options.scripts.mkdir(parents=True, exist_ok=True)
                    (options.scripts / f"{options.dtype}_{seed}.py").write_text(text)
            if sys.stdout.isatty() or done % 100 == 0:
                print(f"\r{line()}", end="" if sys.stdout.isatty() else "\n", flush=True)
    except KeyboardInterrupt:
        print("\nstopped")
    print(f"\n{line()}")
    print({name: count for name, count in counts.items() if name not in _SAID})
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
