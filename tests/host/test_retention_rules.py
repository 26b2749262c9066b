import pytest

from containers.container_settings import RetentionRule
from segmentstore.host.settings import parse_retention_rules


def test_rules_are_read_in_their_order_with_age_size_or_both() -> None:
    assert parse_retention_rules("logs/=7d+100GiB; a=b=2h;=1TB;") == (
        RetentionRule("logs/", 7 * 86400.0, 100 << 30),
        RetentionRule("a=b", 7200.0, None),
        RetentionRule("", None, 10**12),
    )
    assert parse_retention_rules("") == ()


@pytest.mark.parametrize("text", ["logs/", "logs/=7", "logs/=7x", "a=1d+2d", "a=1GB+2GB", "a="])
def test_a_rule_that_says_nothing_clear_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"rule|limit|unit|number"):
        parse_retention_rules(text)
