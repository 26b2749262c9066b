"""No module needs itself, by whatever way round: imports for types and inside functions count as well."""

from graphlib import TopologicalSorter

import grimp

ROOMS = ("segmentstore", "pyspark_segmentstore", "containers", "tier1", "tier2")


def test_no_modules_import_one_another_in_a_circle() -> None:
    graph = grimp.build_graph(*ROOMS, cache_dir=None)
    needs = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    TopologicalSorter(needs).prepare()  # raises CycleError, which names the circle
