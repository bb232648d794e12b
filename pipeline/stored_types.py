"""Whether a table is what its schema says, to the last value of its vectors.

Casting to the schema would not do: it makes numbers of texts, and leaves nulls and NaN as they are.
"""

import numpy as np
import pyarrow as pa
import pyarrow.types as pt


def misfit(table: pa.Table, schema: pa.Schema) -> str:
    """What is wrong with a table, "" if nothing is.

    Types, nulls (also within lists), and vectors: of one width, and of finite numbers.
    """
    if table.schema.names != schema.names:
        return f"columns are {table.schema.names}, expected {schema.names}"
    for field in schema:
        column = table[field.name]
        if column.null_count:
            return f"column {field.name} has {column.null_count} null values"
        if field.name == "vector":
            problem = _vector_misfit(column, field.type)
        elif column.type != field.type:
            problem = f"is {column.type}, not {field.type}"
        else:
            problem = _null_within(column)
        if problem:
            return f"column {field.name} {problem}"
    return ""


def _vector_misfit(column: pa.ChunkedArray, expected: pa.ListType) -> str:
    if not len(column) and column.type == expected:  # no rows know no width
        return ""
    wanted = expected.value_type
    if not pt.is_fixed_size_list(column.type) or column.type.value_type != wanted:
        return f"is {column.type}, not {wanted} of one width"
    if problem := _null_within(column):
        return problem
    for chunk in column.chunks:
        if not np.isfinite(chunk.flatten().to_numpy()).all():
            return "holds numbers that are not finite"
    return ""


def _null_within(column: pa.ChunkedArray) -> str:
    is_list = pt.is_list(column.type) or pt.is_fixed_size_list(column.type)
    nulls = sum(chunk.flatten().null_count for chunk in column.chunks) if is_list else 0
    return f"has {nulls} null values in its lists" if nulls else ""
