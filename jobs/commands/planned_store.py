"""A run that every stage may look at as it does, and none can write."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pydantic import BaseModel

from jobs.stage_order import MEASURES
from pipeline.mirrored_files import MirroredFiles
from pipeline.store import Plan, Store


class WouldWork(Exception):
    """Where a stage would begin to work, and why it would."""


class PlannedStore(Store):
    """A store whose plans are either done or raise, so that a stage ends before its work."""

    def __init__(self, store: Store) -> None:
        mirror = store.files.mirror if isinstance(store.files, MirroredFiles) else None
        super().__init__(store.root, mirror)
        for change in ("write", "remove", "publish", "publish_all", "take_over", "set_aside"):
            setattr(self.files, change, _refuse)

    def plan(
        self, name: str, settings: Mapping[str, BaseModel | Any], inputs: Sequence[str] = ()
    ) -> Plan:
        """As `Store.plan`.

        Raises:
            WouldWork: the dataset is not up to date, or a measurement.
        """
        plan = super().plan(name, settings, inputs)
        if name in MEASURES.values():  # what measures does not ask whether it has measured
            raise WouldWork(f"{name}: measured anew whenever it is asked for")
        if not plan.is_done:
            raise WouldWork(f"{name}: {_why(plan)}")
        return plan

    def set_aside(self, name: str, why: str = "is to be made anew") -> NoReturn:
        """Refuse: a stage that sets a dataset aside makes it anew.

        Raises:
            WouldWork: always.
        """
        raise WouldWork(f"{name}: {why}")


def _refuse(*_: object) -> NoReturn:
    raise WouldWork("it would write")


def _why(plan: Plan) -> str:
    """Missing, unfinished, or made from something else: what changed is named."""
    store, name = plan.store, plan.name
    manifest = store.manifest(name)
    if manifest is None:
        rows = store.files.stored_rows(name)
        return f"unfinished, {rows:,} rows stored" if rows else "not made yet"
    wanted, made = plan.settings, manifest.settings
    keys = [f"`{key}`" for key in {**wanted, **made} if wanted.get(key) != made.get(key)]
    inputs = [one for one in plan.inputs if manifest.inputs.get(one) != plan.inputs[one]]
    changed = ", ".join([*keys, *inputs])
    return f"changed: {changed}" if changed else "made by another version"
