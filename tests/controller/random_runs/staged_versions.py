"""What is known of versions of applications: transactions that were staged, and committed together once.

An attempt is a set of stages that a driver wants to commit under a version. A driver that was not answered may ask
again, or stage everything anew: of all attempts of a version one is committed, the first whose commit arrived.

Invariants:

- Of a version at most one attempt is in the stream, however often and with whatever stages its commit was asked for.
- An attempt is in the stream whole or not at all.
"""

from dataclasses import dataclass, field

from tests.controller.random_runs.ledger import Fate, KnownEvent, KnownTransaction
from tests.sim.attempts import ModelBreachError


@dataclass(slots=True, eq=False)
class KnownAttempt:
    """Stages in the order in which they are committed."""

    version: "KnownVersion"
    number: int
    stages: list[KnownTransaction] = field(default_factory=list)
    asked: bool = False
    """Its commit was asked for, and may have arrived."""

    @property
    def events(self) -> list[KnownEvent]:
        return [event for stage in self.stages for event in stage.events]

    @property
    def is_found(self) -> bool:
        return any(event.found is not None for event in self.events)

    def learn(self, fate: Fate) -> None:
        for stage in self.stages:
            stage.learn(fate)


@dataclass(slots=True, eq=False)
class KnownVersion:
    """One version of an application."""

    application: str
    version: int
    attempts: list[KnownAttempt] = field(default_factory=list)
    is_committed: bool = False
    """Somebody was told so."""
    committed: KnownAttempt | None = None
    """The one, if it is known."""

    def new_attempt(self) -> KnownAttempt:
        attempt = KnownAttempt(self, len(self.attempts))
        self.attempts.append(attempt)
        return attempt

    def add_stage(self, attempt: KnownAttempt, stage: KnownTransaction) -> None:
        attempt.stages.append(stage)
        stage.shown = lambda event: self._shown(attempt, event)

    def ask(self, attempt: KnownAttempt) -> None:
        """Its commit is about to be asked for."""
        attempt.asked = True
        if self.committed is None:
            attempt.learn(Fate.UNKNOWN)

    def answer(self, attempt: KnownAttempt, *, duplicate: bool, asked_before: bool) -> None:
        """The commit of the attempt was answered; `asked_before` is what `attempt.asked` was before this call."""
        if not duplicate:
            if self.is_committed:
                raise ModelBreachError(f"{self} is committed again")
            self._decide(attempt)
            return
        maybe = [
            each
            for each in self.attempts
            if each.asked and (each is not attempt or asked_before) and not self._is_out(each)
        ]
        if not maybe:
            raise ModelBreachError(f"{self} is a duplicate, though nobody committed it")
        self.is_committed = True
        if len(maybe) == 1:
            self._decide(maybe[0])
        elif not asked_before:
            # Its own stages came too late.
            attempt.learn(Fate.ABORTED)

    def refuse(self, attempt: KnownAttempt) -> None:
        """None of its stages is committed, and none ever will be."""
        if self.committed is attempt:
            raise ModelBreachError(f"{self} is committed and refused")
        attempt.learn(Fate.ABORTED)

    def __str__(self) -> str:
        return f"version {self.version} of {self.application}"

    def _is_out(self, attempt: KnownAttempt) -> bool:
        return any(stage.fate is Fate.ABORTED for stage in attempt.stages)

    def _decide(self, attempt: KnownAttempt) -> None:
        if self.committed not in (None, attempt):
            raise ModelBreachError(f"{self} is committed as another attempt")
        self.is_committed, self.committed = True, attempt
        attempt.learn(Fate.COMMITTED)
        for each in self.attempts:
            if each is not attempt:
                each.learn(Fate.ABORTED)

    def _shown(self, attempt: KnownAttempt, event: KnownEvent) -> None:
        for each in self.attempts:
            if each is not attempt and each.is_found:
                raise ModelBreachError(f"{self} is there twice: {event}")
