"""A planner whose plans are out of date: what it names is gone, as after a compaction that came between plan and read.

python stale_planner.py            only plans are out of date; who asks again is told the truth
python stale_planner.py for-ever   every answer is
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from segmentstore.spark.jvm import planner_server as plan_export
from segmentstore.spark.jvm.block_locations import ResolvedBlockCache
from segmentstore.spark.python_worker import LoopRunner

_answer = plan_export.answer
_FOR_EVER = "for-ever" in sys.argv


def answer(
    question: plan_export.Question, runner: LoopRunner, placed: ResolvedBlockCache
) -> tuple[plan_export.Fields, bytes]:
    """The true answer, with the files of its places moved away."""
    fields, content = _answer(question, runner, placed)
    places = fields.get("places")
    if isinstance(places, list) and (question.verb == "plan" or _FOR_EVER):
        fields["places"] = [name + ".gone" if name.startswith("/") else name for name in places]
    return fields, content


plan_export.answer = answer
plan_export.main()
