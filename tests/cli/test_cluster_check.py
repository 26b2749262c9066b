from segmentstore.cli.cluster import told_by

SOUND = {
    "ready": True,
    "storage_state": "ok",
    "storage_cause": "",
    "throttle": "",
    "complaints": [],
}


def test_a_sound_node_is_told_nothing_of() -> None:
    found = told_by("n-1", SOUND)
    assert (found.problems, found.notes) == ([], [])


def test_what_a_node_says_of_itself_is_told() -> None:
    found = told_by(
        "n-1", SOUND | {"storage_state": "unreachable", "throttle": "cache", "complaints": ["x"]}
    )
    assert found.problems == [
        "node n-1 does not reach Tier 2: unreachable",
        "node n-1 slows writers down: cache",
    ]
    assert found.notes == ["node n-1: x"]


def test_what_a_node_of_another_version_does_not_say_is_unknown_and_no_problem() -> None:
    found = told_by("n-1", {"ready": True, "throttle": "cache"})
    assert found.problems == ["node n-1 slows writers down: cache"]
    (note,) = found.notes
    assert "node n-1 does not say" in note
    assert "storage_state, complaints" in note
