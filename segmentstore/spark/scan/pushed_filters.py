"""Filters that Spark pushes to a reader, whether its setting for that is on or off.

Spark refuses every read through a reader that overrides `pushFilters` as long as its setting
spark.sql.python.filterPushdown.enabled is false, which is the default. So it is not overridden: the attribute is an
object that Spark takes for the inherited method where it looks for an override, and that is called where filters are
pushed. Both ways are held by a test.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from pyspark.sql.datasource import DataSourceReader, Filter

from segmentstore.spark.scan.scan_planner import PushedBounds


class BoundedReader(Protocol):
    """A reader that leaves out what is outside of bounds."""

    bounds: PushedBounds


class PushedFilters:
    """Takes filters for a reader; all of them are handed back, since what is left out is more or less than rows."""

    def __init__(
        self, reader: BoundedReader, bounds_of: Callable[[Iterable[Filter]], PushedBounds]
    ) -> None:
        # As an attribute of the object: one of the class would be bound to it, and be another thing.
        self.__func__ = DataSourceReader.pushFilters
        self._reader = reader
        self._bounds_of = bounds_of

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.bounds = self._bounds_of(filters)
        return filters
