"""Reads the keyed state of a checkpoint or savepoint with DuckDB alone: what docs/checkpoints.md says of the format is all
that is needed.

    python read_state.py DIRECTORY      # with _metadata in it; prints one JSON object to standard output

For each operator and state: its rows as [key columns and accumulators by name], and how many files and rows were read.
"""

import base64
import json
import pathlib
import sys
import tempfile

import duckdb


def files_of(directory, metadata, scratch):
    """The files of each state in the order in which they are to be read: {(uid, state): [(path, is a delta)]}."""
    states = {}
    for operator in metadata["operators"]:
        for handle in operator.get("keyed", []):
            files = states.setdefault((operator["uid"], handle["name"]), {"full": [], "delta": []})
            data = handle["data"]
            if "path" in data:
                path = directory / data["path"]
            else:
                path = scratch / f"inline-{len(list(scratch.iterdir()))}.parquet"
                path.write_bytes(base64.b64decode(data["bytes"]))
            files[handle.get("kind", "full")].append(path)
    return states


def read(connection, files):
    """A delta's rows take the place of earlier ones with their keys; those marked as deleted are gone."""
    every = files["full"] + files["delta"]
    named = connection.execute(
        "SELECT decode(value) FROM parquet_kv_metadata(?) WHERE decode(key) = 'sluice.key_columns'", [str(every[0])]
    ).fetchone()
    if named is None and files["delta"]:
        raise SystemExit(f"{every[0]} does not name its key columns, so no delta can be laid over it")
    layers = " UNION ALL BY NAME ".join(
        f"SELECT *, {number} AS \"$layer\" FROM read_parquet('{path}')" for number, path in enumerate(every)
    )
    deleted = 'COALESCE("$deleted", FALSE)' if files["delta"] else "FALSE"
    by_key = ", ".join(f'"{key}"' for key in json.loads(named[0] if named else "[]"))
    newest = f'QUALIFY row_number() OVER (PARTITION BY {by_key} ORDER BY "$layer" DESC) = 1' if by_key else ""
    merged = f"SELECT *, {deleted} AS \"$gone\" FROM ({layers}) {newest}"
    result = connection.execute(f'SELECT * FROM ({merged}) WHERE NOT "$gone"')
    names = [column[0] for column in result.description]
    shown = [index for index, name in enumerate(names) if name not in ("$layer", "$deleted", "$gone")]
    rows = [[row[index] for index in shown] for row in result.fetchall()]
    (total, dead) = connection.execute(
        f"SELECT COUNT(*), COUNT(*) FILTER (WHERE {deleted}) FROM ({layers})"
    ).fetchone()
    return {
        "columns": [names[index] for index in shown],
        "rows": rows,
        "files": {kind: len(paths) for kind, paths in files.items()},
        "rowsInFiles": total,
        "deletions": dead,
    }


def main(directory):
    directory = pathlib.Path(directory)
    metadata = json.loads((directory / "_metadata").read_text())
    connection = duckdb.connect()
    with tempfile.TemporaryDirectory() as scratch:
        states = files_of(directory, metadata, pathlib.Path(scratch))
        result = {f"{uid}/{state}": read(connection, files) for (uid, state), files in states.items()}
    json.dump(result, sys.stdout, default=str)


main(sys.argv[1])
