"""Delta logs of any size without data files: commits, removes, checkpoints, and the truth beside them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

ROWS_PER_FILE: Final = 1000
DAYS: Final = 100
REGIONS: Final = ("ap", "br", "ca", "cn", "de", "fr", "in", "jp", "uk", "us")
FIRST_COMMIT_MS: Final = 1_767_225_600_000
MS_BETWEEN_COMMITS: Final = 10_000
#: of the files that are ever added, this part is removed again
REMOVED: Final = 0.02
_ALIVE: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a log is.

    Attributes:
        files: Live files at the newest version, exactly.
        commits: Versions.
        checkpoint_every: Versions between two checkpoints.
        seed: Where chance begins.
    """

    files: int
    commits: int
    checkpoint_every: int = 100
    seed: int = 11

    @property
    def added(self) -> int:
        """Files that are ever added."""
        return round(self.files / (1 - REMOVED))

    @property
    def name(self) -> str:
        """A folder's name that says all of it."""
        return f"events-{self.files}-{self.commits}-{self.checkpoint_every}-{self.seed}"


@dataclass(frozen=True, slots=True)
class Truth:
    """What every system has to answer."""

    version: int
    files: int
    day: str
    region: str
    partition_files: int
    first_id: int
    last_id: int
    range_files: int
    below_amount: float
    amount_files: int
    name: str
    name_files: int
    middle_version: int
    middle_files: int
    middle_partition_files: int

    @property
    def partition_predicate(self) -> str:
        """One value of each partition column."""
        return f"day = '{self.day}' AND region = '{self.region}'"

    @property
    def range_predicate(self) -> str:
        """A thousandth of the ids, which lie clustered in the files."""
        return f"id >= {self.first_id} AND id <= {self.last_id}"

    @property
    def unclustered_predicate(self) -> str:
        """Some amounts, which lie in files all over the table: a thousandth of them."""
        return f"amount < {self.below_amount}"

    @property
    def string_predicate(self) -> str:
        """One name, which a thousandth of the files may have."""
        return f"name = '{self.name}'"


def ensure_log(folder: Path, shape: Shape) -> Truth:
    """The log below a folder, written now unless it is there already."""
    note = folder / "truth.json"
    if not note.exists():
        shutil.rmtree(folder, ignore_errors=True)
        truth = _Writer(folder / "table", shape).write()
        note.write_text(json.dumps(asdict(truth), indent=1))
    return Truth(**json.loads(note.read_text()))


class _Writer:
    def __init__(self, root: Path, shape: Shape) -> None:
        self._log = root / "_delta_log"
        self._log.mkdir(parents=True)
        self._shape = shape
        chance = np.random.default_rng(shape.seed)
        n = shape.added
        self._added_in = np.arange(n) * shape.commits // n
        self._removed_in = self._removals(chance)
        days = np.datetime64("2026-01-01") + np.arange(DAYS)
        self._day = days.astype(str)[chance.integers(0, DAYS, n)]
        self._region = np.array(REGIONS)[chance.integers(0, len(REGIONS), n)]
        self._size = chance.integers(10_000, 200_000_000, n)
        self._path = [
            f"day={day}/region={region}/part-{i:05d}-{tag.hex()}-c000.snappy.parquet"
            for i, (day, region, tag) in enumerate(
                zip(self._day, self._region, _chunks(chance.bytes(16 * n), 16), strict=True)
            )
        ]
        self._stats = self._statistics(chance)

    def _removals(self, chance: np.random.Generator) -> np.ndarray[Any, Any]:
        """For each file the version that removes it; removed files were added in an earlier version."""
        n, commits = self._shape.added, self._shape.commits
        gone = np.full(n, _ALIVE)
        candidates = np.flatnonzero(self._added_in < commits - 1)
        for i in chance.choice(candidates, n - self._shape.files, replace=False):
            gone[i] = chance.integers(self._added_in[i] + 1, commits)
        return gone

    def _statistics(self, chance: np.random.Generator) -> list[str]:
        n = self._shape.added
        self._amount = amount = np.round(chance.random(n) * 1e6, 3)
        more = np.round(amount + chance.random(n) * 1e5, 3)
        words = _chunks(chance.bytes(8 * n), 8)
        self._name = np.array(["a" + word[:4].hex() for word in words])
        seen = FIRST_COMMIT_MS + chance.integers(0, 30 * 86_400_000, n)
        since = np.datetime_as_string(seen.astype("datetime64[ms]"))
        until = np.datetime_as_string((seen + 3_600_000).astype("datetime64[ms]"))
        nulls = chance.integers(0, 10, n)
        return [
            json.dumps(
                {
                    "numRecords": ROWS_PER_FILE,
                    "minValues": {
                        "id": ROWS_PER_FILE * i,
                        "amount": float(amount[i]),
                        "name": "a" + words[i][:4].hex(),
                        "seen": f"{since[i]}Z",
                    },
                    "maxValues": {
                        "id": ROWS_PER_FILE * (i + 1) - 1,
                        "amount": float(more[i]),
                        "name": "z" + words[i][4:].hex(),
                        "seen": f"{until[i]}Z",
                    },
                    "nullCount": {"id": 0, "amount": int(nulls[i]), "name": int(nulls[i]), "seen": 0},
                },
                separators=(",", ":"),
            )
            for i in range(n)
        ]

    def write(self) -> Truth:
        """The log's files, and what is true of them."""
        added: dict[int, list[int]] = {}
        removed: dict[int, list[int]] = {}
        for i, version in enumerate(self._added_in.tolist()):
            added.setdefault(version, []).append(i)
        for i in np.flatnonzero(self._removed_in < _ALIVE).tolist():
            removed.setdefault(int(self._removed_in[i]), []).append(i)
        for version in range(self._shape.commits):
            actions = self._commit(version, added.get(version, []), removed.get(version, []))
            text = "".join(json.dumps(a, separators=(",", ":")) + "\n" for a in actions)
            (self._log / f"{version:020d}.json").write_text(text)
        self._columns = self._arrow()
        every = self._shape.checkpoint_every
        for version in range(every, self._shape.commits, every):
            self._checkpoint(version)
        return self._truth()

    def _commit(self, version: int, added: list[int], removed: list[int]) -> list[dict[str, Any]]:
        when = FIRST_COMMIT_MS + version * MS_BETWEEN_COMMITS
        info = {
            "timestamp": when,
            "operation": "WRITE" if version else "CREATE TABLE",
            "operationParameters": {"mode": "Append", "partitionBy": '["day","region"]'},
            "operationMetrics": {"numFiles": str(len(added))},
            "isBlindAppend": not removed,
            "engineInfo": "generated",
        }
        out: list[dict[str, Any]] = [{"commitInfo": info}]
        if version == 0:
            out += [{"protocol": _PROTOCOL}, {"metaData": _METADATA}]
        out += [
            {
                "remove": {
                    "path": self._path[i],
                    "deletionTimestamp": when,
                    "dataChange": True,
                    "extendedFileMetadata": True,
                    "partitionValues": self._values(i),
                    "size": int(self._size[i]),
                }
            }
            for i in removed
        ]
        out += [
            {
                "add": {
                    "path": self._path[i],
                    "partitionValues": self._values(i),
                    "size": int(self._size[i]),
                    "modificationTime": when,
                    "dataChange": True,
                    "stats": self._stats[i],
                }
            }
            for i in added
        ]
        return out

    def _values(self, i: int) -> dict[str, str]:
        return {"day": str(self._day[i]), "region": str(self._region[i])}

    def _arrow(self) -> dict[str, pa.Array]:
        n = self._shape.added
        values = np.empty(2 * n, dtype=object)
        values[0::2], values[1::2] = self._day, self._region
        offsets = pa.array(np.arange(n + 1, dtype=np.int32) * 2)
        keys = pa.array(["day", "region"] * n)
        return {
            "path": pa.array(self._path),
            "partitionValues": pa.MapArray.from_arrays(offsets, keys, pa.array(values, pa.string())),
            "size": pa.array(self._size, pa.int64()),
            "modificationTime": pa.array(FIRST_COMMIT_MS + self._added_in * MS_BETWEEN_COMMITS, pa.int64()),
            "stats": pa.array(self._stats),
        }

    def _checkpoint(self, version: int) -> None:
        old = self._added_in <= version
        live = pa.array(np.flatnonzero(old & (self._removed_in > version)))
        dead = np.flatnonzero(old & (self._removed_in <= version))
        adds = {k: v.take(live) for k, v in self._columns.items()}
        adds["dataChange"] = pa.array(np.zeros(len(live), dtype=bool))
        removes = {k: self._columns[k].take(pa.array(dead)) for k in ("path", "partitionValues", "size")}
        when = FIRST_COMMIT_MS + self._removed_in[dead] * MS_BETWEEN_COMMITS
        removes["deletionTimestamp"] = pa.array(when, pa.int64())
        removes["dataChange"] = pa.array(np.zeros(len(dead), dtype=bool))
        removes["extendedFileMetadata"] = pa.array(np.ones(len(dead), dtype=bool))
        columns = {
            "protocol": pa.array([_PROTOCOL], _PROTOCOL_TYPE),
            "metaData": pa.array([_METADATA | {"format": _FORMAT, "configuration": []}], _METADATA_TYPE),
            "add": pa.StructArray.from_arrays(list(adds.values()), names=list(adds)),
            "remove": pa.StructArray.from_arrays(list(removes.values()), names=list(removes)),
        }
        total, at, placed = sum(map(len, columns.values())), 0, {}
        for name, rows in columns.items():
            after = total - at - len(rows)
            placed[name] = pa.concat_arrays([pa.nulls(at, rows.type), rows, pa.nulls(after, rows.type)])
            at += len(rows)
        file = self._log / f"{version:020d}.checkpoint.parquet"
        pq.write_table(pa.table(placed), file, compression="snappy")
        hint = {"version": version, "size": total, "sizeInBytes": file.stat().st_size}
        (self._log / "_last_checkpoint").write_text(json.dumps(hint))

    def _truth(self) -> Truth:
        n, newest = self._shape.added, self._shape.commits - 1
        live = self._removed_in == _ALIVE
        oldest, pick = (int(np.flatnonzero(live)[k]) for k in (0, int(live.sum()) // 2))
        part = (self._day == self._day[oldest]) & (self._region == self._region[oldest])
        last = min(n, pick + max(1, n // 1000))
        middle = newest // 2
        some = max(1, int(live.sum()) // 1000)
        least, names = np.sort(self._amount[live]), np.sort(self._name[live])
        while (
            least[some] - least[some - 1] < 1e-3 * least[some]
        ):  # nothing near the limit, which may be rounded
            some += 1
        then = (self._added_in <= middle) & (self._removed_in > middle)
        return Truth(
            version=newest,
            files=int(live.sum()),
            day=str(self._day[oldest]),
            region=str(self._region[oldest]),
            partition_files=int((live & part).sum()),
            first_id=ROWS_PER_FILE * pick,
            last_id=ROWS_PER_FILE * last - 1,
            range_files=int(live[pick:last].sum()),
            below_amount=float((least[some - 1] + least[some]) / 2),
            amount_files=some,
            name=f"{names[some - 1]}0",
            name_files=int((names <= names[some - 1]).sum()),
            middle_version=middle,
            middle_files=int(then.sum()),
            middle_partition_files=int((then & part).sum()),
        )


def _chunks(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def _field(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


_FIELDS: Final = (
    ("id", "long"),
    ("amount", "double"),
    ("name", "string"),
    ("seen", "timestamp"),
    ("day", "date"),
    ("region", "string"),
)
_PROTOCOL: Final = {"minReaderVersion": 1, "minWriterVersion": 2}
_METADATA: Final = {
    "id": "6f6c7d2e-5d0a-4d1b-9c3e-000000000011",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps({"type": "struct", "fields": [_field(*f) for f in _FIELDS]}),
    "partitionColumns": ["day", "region"],
    "configuration": {},
    "createdTime": FIRST_COMMIT_MS,
}
_TEXTS: Final = pa.map_(pa.string(), pa.string())
_FORMAT: Final = {"provider": "parquet", "options": []}
_PROTOCOL_TYPE: Final = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
_METADATA_TYPE: Final = pa.struct(
    [
        ("id", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", _TEXTS),
        ("createdTime", pa.int64()),
    ]
)
