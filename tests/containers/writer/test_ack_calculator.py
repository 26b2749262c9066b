from hypothesis import given
from hypothesis import strategies as st

from containers.writer.backlog import AckCalculator
from segmentstore.contracts.identifiers import SequenceNumber


@given(consumed=st.integers(0, 50), held_back=st.lists(st.integers(1, 60)))
def test_h13_the_highest_number_below_everything_held_back(
    consumed: int, held_back: list[int]
) -> None:
    calculator = AckCalculator(SequenceNumber(consumed))
    for number in held_back:
        calculator.hold_back(SequenceNumber(number))
    assert calculator.result == min([consumed, *(number - 1 for number in held_back)])
