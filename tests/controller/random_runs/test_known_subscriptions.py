"""The keeper of a group knows which streams the group surely holds back: no more than what it was told."""

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as api
from tests.controller.random_runs.group_keeper import GroupKeeper
from tests.controller.random_runs.keeping import Subscription
from tests.controller.random_runs.random_world import NoAnswerError, RandomWorld
from tests.controller.random_runs.settings import draw_settings
from tests.controller.random_runs.stream_model import Stage, StreamModel
from tests.controller.random_runs.theatre import SCOPE, Theatre

STREAM = "stream0"


class Answers:
    """A world that answers what the test lays down; None is a client that waits no longer."""

    def __init__(self) -> None:
        self.random = Always(1)
        self.settings = draw_settings(Random(1))
        self.loop = SimpleNamespace(time=lambda: 1.0)
        self.next: list[Callable[[Any], Message] | None] = []

    async def call(self, _name: str, request: Message, _answer: type[Message]) -> Message:
        answer = self.next.pop(0)
        if answer is None:
            raise NoAnswerError("the client waits no longer")
        return answer(request)


class Always(Random):
    """Groups subscribe to everything, for ever."""

    def random(self) -> float:
        return 0.65

    def choice(self, seq: Any) -> Any:
        return seq[-1]


def keeper_of(answers: Answers) -> GroupKeeper:
    theatre = Theatre(cast(RandomWorld, answers), answers.settings)
    keeper = GroupKeeper(theatre, "group", [STREAM])
    be_born(keeper, 0)
    return keeper


def be_born(keeper: GroupKeeper, incarnation: int) -> StreamModel:
    model = StreamModel(keeper.ledger, SCOPE, STREAM, incarnation)
    model.stage = Stage.ACTIVE
    keeper.theatre.models[STREAM] = model
    return model


def created(asked: api.ReaderGroupConfiguration) -> Message:
    return api.CreateReaderGroupResponse(
        status=api.CreateReaderGroupResponse.Status.SUCCESS, config=asked
    )


def refused(_asked: api.ReaderGroupConfiguration) -> Message:
    return api.UpdateReaderGroupResponse(
        status=api.UpdateReaderGroupResponse.Status.INVALID_CONFIG, generation=1
    )


async def create_unanswered(keeper: GroupKeeper, answers: Answers) -> None:
    answers.next.append(None)
    with pytest.raises(NoAnswerError):
        await keeper.step()


async def test_a_stream_that_was_there_at_the_first_attempt_is_held_back() -> None:
    answers = Answers()
    keeper = keeper_of(answers)
    await create_unanswered(keeper, answers)
    answers.next.append(created)
    await keeper.step()
    assert keeper.theatre.models[STREAM].keeping.subscription is not None


async def test_a_stream_that_was_born_between_two_attempts_may_not_be_held_back() -> None:
    answers = Answers()
    keeper = keeper_of(answers)
    await create_unanswered(keeper, answers)
    # The first attempt was done before the stream was deleted, and created again.
    again = be_born(keeper, 1)
    answers.next.append(created)
    await keeper.step()
    assert again.keeping.subscription is None


async def test_an_update_that_was_done_at_the_first_attempt_is_not_one_of_a_stream_born_behind_it() -> (
    None
):
    answers = Answers()
    keeper = keeper_of(answers)
    answers.next += [created, None]
    await keeper.step()
    with pytest.raises(NoAnswerError):
        await keeper.step()
    again = be_born(keeper, 1)
    answers.next.append(refused)
    await keeper.step()
    assert again.keeping.subscription is None


async def test_what_a_group_consumed_before_its_reset_excuses_nothing_that_goes_later() -> None:
    held = Subscription(since=1)
    held.consumed.append({0: 50})
    held.begin_generation({0: 10})
    assert held.excuses == [{0: 10}, {0: 50}], "retention may have looked before the reset"
    held.reset_from = {0: 20}
    assert held.excuses == [{0: 10}, {0: 20}]
    held.begin_generation(None)
    assert {0: 50} in held.excuses, "it is not known yet where this generation began"
