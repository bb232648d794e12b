import pyarrow as pa

from jobs.recommendation_examples import examples
from pipeline.schemas import INTERACTIONS, ITEMS, RECOMMENDATIONS
from pipeline.store import Store


def test_users_with_a_history_and_a_list_are_shown_by_titles(tmp_path):
    store = Store(tmp_path)
    items = [["a", "b", "c", "d"], ["Alpha", "Beta", "", "Delta"], [{}] * 4]
    store.plan("items", {}).write(pa.table(items, schema=ITEMS))
    rows = [
        ("u", "a", 5.0, 1, 1, "train"),
        ("u", "b", 1.0, 0, 2, "train"),
        ("u", "c", 5.0, 1, 3, "train"),
        ("u", "d", 5.0, 1, 9, "test"),  # after all that the list could know
        ("v", "a", 5.0, 1, 1, "train"),
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    store.plan("interactions", {}).write(pa.table(columns, schema=INTERACTIONS))
    lists = [
        {"user_id": "w", "source_events": 0, "item_ids": ["a"]},
        {"user_id": "v", "source_events": 1, "item_ids": []},
        {"user_id": "u", "source_events": 2, "item_ids": ["b", "d"]},
    ]
    blank = {
        name: 0 if pa.types.is_integer(kind) or pa.types.is_floating(kind) else []
        for name, kind in zip(RECOMMENDATIONS.names, RECOMMENDATIONS.types, strict=True)
    }
    blank |= {"exit_reason": "", "error": "", "asof": 5}
    table = pa.Table.from_pylist([blank | own for own in lists], schema=RECOMMENDATIONS)
    store.plan("recommendations", {}).write(table)
    assert list(examples(store)) == ["user u liked Alpha, c; next: Beta, Delta"]
