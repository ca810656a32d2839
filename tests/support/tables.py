"""Writes a table of two columns, in groups of rows, to the file named: ``python tables.py x.parquet``. Run in ``.venv-clients``."""

from __future__ import annotations

import sys

ROWS = 5000

if __name__ == "__main__":
    import pyarrow
    import pyarrow.parquet as parquet

    columns = {"a": list(range(ROWS)), "b": [number * number for number in range(ROWS)]}
    parquet.write_table(pyarrow.table(columns), sys.argv[1], row_group_size=500)
    print("true")
