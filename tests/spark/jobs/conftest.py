"""A generated Tier 2, made once and copied for each test."""

from pathlib import Path

import pytest

from tests.spark.jobs.generated_store import GeneratedStore


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> GeneratedStore:
    generated = GeneratedStore(tmp_path_factory.mktemp("generated") / "tier2")
    generated.fill()
    return generated


@pytest.fixture
def store(filled: GeneratedStore, tmp_path: Path) -> GeneratedStore:
    return filled.copied_to(tmp_path / "tier2")
