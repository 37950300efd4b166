"""One fresh process that creates tables, commits to them or checks them on one system, and prints JSON.

Runs in the project's environment and in DuckLake's.
"""

from __future__ import annotations

import collections
import gc
import json
import sys
import time
from typing import Any

from commit_peers import PEERS


def main() -> None:
    """The command line is one JSON object: the place and what to do there."""
    asked = json.loads(sys.argv[1])
    peer = PEERS[asked["place"]["kind"]](asked["place"])
    peer.open()
    task, out = asked["task"], {}
    if task == "create":
        peer.create(asked["tables"])
    elif task == "check":
        out = {"states": [peer.state(number) for number in range(asked["tables"])]}
    elif task == "commit":
        out = _commit(peer, asked)
    print(json.dumps(out))


def _commit(peer: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Commits until a number or a time is reached, after some that are not measured."""
    tables: list[int] = asked["tables"]
    commit = (lambda: peer.atomic(tables)) if asked["atomic"] else (lambda: peer.append(tables[0]))
    errors: collections.Counter[str] = collections.Counter()
    took: list[float] = []
    lost: list[float] = []

    def once(into: list[float]) -> None:
        began = time.perf_counter()
        try:
            commit()
        except Exception as error:
            lost.append(_ms(began))
            errors[f"{type(error).__name__}: {error}"[:200]] += 1
        else:
            into.append(_ms(began))

    warm: list[float] = []
    for _ in range(asked["warm"]):
        once(warm)
    gc.collect()  # else a full collection falls into a few of the measured commits
    if asked["together"]:
        print("ready", flush=True)
        sys.stdin.readline()
    began = time.perf_counter()
    end = began + asked["seconds"]
    while len(took) + len(lost) < asked["commits"] and time.perf_counter() < end:
        once(took)
    return {
        "took": took,
        "lost": lost,
        "warm": len(warm),
        "seconds": time.perf_counter() - began,
        "errors": dict(errors.most_common(3)),
    }


def _ms(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)


if __name__ == "__main__":
    main()
