"""A run that may be looked at as every stage looks at it, and that none can write."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from pipeline.store import Plan, Store


class NotMade(Exception):
    """A stage asked for a dataset that is not there as wanted: it would make it."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.name)
        self.plan = plan

    @property
    def why(self) -> str:
        """Missing, unfinished, or made from something else: what changed is named."""
        store, name = self.plan.store, self.plan.name
        manifest = store.manifest(name)
        if manifest is None:
            rows = store.files.stored_rows(name)
            return "not made yet" if not rows else f"unfinished, {rows:,} rows stored"
        wanted, made = self.plan.settings, manifest.settings
        keys = [key for key in {**wanted, **made} if wanted.get(key) != made.get(key)]
        inputs = [
            one for one in self.plan.inputs if manifest.inputs.get(one) != self.plan.inputs[one]
        ]
        changed = [*(f"`{key}`" for key in keys), *inputs]
        return f"changed: {', '.join(changed)}" if changed else "made by another version"


class PlannedStore(Store):
    """A store whose plans are either done or raise, so that a stage ends before its work."""

    def plan(
        self, name: str, settings: Mapping[str, BaseModel | Any], inputs: Sequence[str] = ()
    ) -> Plan:
        """As `Store.plan`.

        Raises:
            NotMade: the dataset is not up to date.
        """
        plan = super().plan(name, settings, inputs)
        if not plan.is_done:
            raise NotMade(plan)
        return plan
