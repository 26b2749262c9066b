import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.quantities import format_bytes, format_seconds, parse_bytes, parse_seconds
from segmentstore.host.setting_sources import ResolvedSettings, resolve_settings
from segmentstore.host.settings import (
    BookKeeperPlace,
    ServiceSettings,
    SettingsError,
    parse_bookkeeper_place,
    setting_definitions,
    split_list,
)


def resolve(
    flags: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    toml: str | None = None,
) -> ResolvedSettings:
    return resolve_settings(
        flags=flags or {}, environment=environment or {}, toml_text=toml, toml_name="a.toml"
    )


def problems_of(**sources: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        resolve(**sources)  # type: ignore[arg-type] # the callers below name the sources
    return caught.value.problems


def test_without_any_source_every_setting_has_its_default() -> None:
    resolved = resolve()
    assert resolved.settings == ServiceSettings()
    assert {each.source for each in resolved.each} == {"default"}


def test_the_file_wins_over_defaults_the_environment_over_the_file_and_flags_over_all() -> None:
    toml = """
    [cache]
    bytes_max = "64MiB"
    [tier2]
    worker_thread_count = 2
    codec = "zstd"
    """
    environment = {"SEGMENTSTORE_CACHE_BYTES_MAX": "65MiB", "SEGMENTSTORE_TIER2_CODEC": "none"}
    resolved = resolve({"tier2.codec": "lz4"}, environment, toml)
    assert resolved.settings.tier2.worker_thread_count == 2
    assert resolved.source_of("tier2.worker_thread_count") == "a.toml"
    assert resolved.settings.cache.bytes_max == 65 << 20
    assert resolved.source_of("cache.bytes_max") == "environment SEGMENTSTORE_CACHE_BYTES_MAX"
    assert resolved.settings.tier2.codec == "lz4"
    assert resolved.source_of("tier2.codec") == "flag for tier2.codec"


@pytest.mark.parametrize(
    ("sources", "nearest"),
    [
        ({"flags": {"cache.byte_max": "1"}}, "cache.bytes_max"),
        ({"environment": {"SEGMENTSTORE_CACHE_BYTES": "1"}}, "SEGMENTSTORE_CACHE_BYTES_MAX"),
        ({"toml": "[tier2]\ncodecs = 'lz4'"}, "tier2.codec"),
        ({"toml": "codec = 'lz4'"}, "tier2.codec"),
        ({"flags": {"http.cors_allow_origin": "*"}}, "http.cors_origins"),
        (
            {"environment": {"SEGMENTSTORE_HTTP_CORS_ALLOW_ORIGIN": "*"}},
            "SEGMENTSTORE_HTTP_CORS_ORIGINS",
        ),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest_known_one(
    sources: dict[str, object], nearest: str
) -> None:
    (problem,) = problems_of(**sources)
    assert problem.endswith(f"the nearest is {nearest}")


def test_variables_of_other_programs_and_of_the_command_line_are_left_alone() -> None:
    environment = {
        "PATH": "/bin",
        "SEGMENTSTORE_BOOKKEEPER_JARS": "/opt/jars",
        "SEGMENTSTORE_BOOKKEEPER_PASSWORD": "secret",
        "SEGMENTSTORE_CONFIG": "y",
        "SEGMENTSTORE_CONTROLLER": "tcp://x:9090",
        "SEGMENTSTORE_KAFKA": "x:9092",
        "SEGMENTSTORE_NATIVE": "off",
        "SEGMENTSTORE_S3_ACCESS_KEY": "key",
        "SEGMENTSTORE_S3_SECRET_KEY": "secret",
        "SEGMENTSTORE_SERVER": "http://x",
    }
    assert resolve(environment=environment).settings == ServiceSettings()


def test_all_problems_are_told_at_once() -> None:
    toml = "[store]\ncontainer_count = 0\n[log]\nlevel = 'loud'"
    environment = {"SEGMENTSTORE_WRITER_FLUSH_INTERVAL_SECONDS": "soon"}
    assert len(problems_of(environment=environment, toml=toml)) == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("store.container_count", "0"),
        ("store.container_count", "1025"),
        ("store.container_count", "4.5"),
        ("store.container_count", "many"),
        ("cache.bytes_max", "1KiB"),
        ("cache.bytes_max", "10 parsecs"),
        ("writer.flush_interval_seconds", "64MB"),
        ("log.level", "loud"),
        ("http.address", "9091"),
        ("http.address", "localhost:99999"),
        ("http.cors_origins", "example.org"),
        ("http.cors_origins", "https://example.org/page"),
        ("http.cors_origins", "https://example.org, null"),
        ("http.hosts", "http://example.org"),
        ("tier1.kind", "disk"),
        ("tier1.kind", "bookkeeper"),
        ("tier1.kind", "bookkeeper://"),
        ("tier1.kind", "bookkeeper://zk1,,zk2"),
        ("tier1.kind", "bookkeeper://zk1:99999"),
        ("tier1.kind", "bookkeeper://zk1/ledgers/"),
        ("bookkeeper.root", "segmentstore"),
        ("bookkeeper.root", "/a/../b"),
        ("bookkeeper.ack_quorum_count", "4"),
        ("bookkeeper.write_quorum_count", "4"),
        ("bookkeeper.few_bookies_count", "1"),
        ("bookkeeper.few_bookies_count", "3"),
        ("tier2.place", "s3://"),
        ("tier2.place", "s3:///prefix"),
        ("s3.endpoint_url", "minio:9000"),
        ("s3.endpoint_url", "https://"),
        ("http.address", "http://localhost:80"),
        ("http.address", "my host:80"),
        ("wire.advertised_address", "store.example:0"),
    ],
)
def test_a_value_out_of_range_or_of_another_kind_is_refused(name: str, text: str) -> None:
    (problem,) = problems_of(flags={name: text})
    assert name in problem


def test_lists_are_written_with_commas() -> None:
    flags = {
        "http.hosts": "store.example, 10.0.0.1,",
        "http.cors_origins": "https://a.example:80,*",
    }
    settings = resolve_settings(flags=flags, environment={}).settings.http
    assert split_list(settings.hosts) == ("store.example", "10.0.0.1")
    assert split_list(settings.cors_origins) == ("https://a.example:80", "*")
    assert split_list("") == ()


def test_a_bookkeeper_is_named_by_its_zookeeper_and_the_path_of_its_ledgers() -> None:
    assert parse_bookkeeper_place("bookkeeper://zk1,10.0.0.2:2182,[::1]:2183/pulsar/ledgers") == (
        BookKeeperPlace("zk1:2181,10.0.0.2:2182,[::1]:2183", "/pulsar/ledgers")
    )
    for text in ("bookkeeper://zk1", "bookkeeper://zk1/"):
        assert parse_bookkeeper_place(text) == BookKeeperPlace("zk1:2181", "/ledgers")
    flags = {"tier1.kind": "bookkeeper://zk1", "bookkeeper.few_bookies_count": "2"}
    assert resolve(flags).settings.bookkeeper.few_bookies_count == 2


def test_what_is_no_number_is_in_no_range() -> None:
    (problem,) = problems_of(toml="[writer]\nflush_interval_seconds = nan")
    assert "writer.flush_interval_seconds must be at least 0.001, not nan" in problem


def test_relations_between_settings_are_checked() -> None:
    flags = {"restart.delay_initial_seconds": "10s", "restart.delay_max_seconds": "5s"}
    assert "delay_initial_seconds" in problems_of(flags=flags)[0]


def test_a_file_that_is_not_toml_is_named() -> None:
    (problem,) = problems_of(toml="[[")
    assert problem.startswith("a.toml: not valid TOML")


def test_every_setting_has_a_sentence_a_default_in_range_and_a_unit_for_its_number() -> None:
    units = ("_bytes", "_bytes_max", "_byte_rate", "_seconds", "_count", "bytes_max")
    for definition in setting_definitions():
        assert definition.rule.sentence.endswith("."), definition.full_name
        if definition.type is not str:
            assert definition.name.endswith(units), definition.full_name
            assert definition.rule.minimum is not None, definition.full_name
            assert definition.rule.maximum is not None, definition.full_name


def test_what_is_shown_can_be_given_back_by_every_text_source() -> None:
    shown = {each.definition.full_name: each.shown for each in resolve().each}
    assert resolve(flags=shown).settings == ServiceSettings()


def test_a_rate_of_bytes_is_given_as_a_size_is() -> None:
    flags = {"kafka.producer_byte_rate": "4MiB", "tier2.scrub_byte_rate": "1MB"}
    settings = resolve(flags=flags).settings
    assert settings.kafka.producer_byte_rate == 4 << 20
    assert settings.tier2.scrub_byte_rate == 1_000_000


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("64MB", 64_000_000),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("1.5KiB", 1536),
        ("1_000KB", 1_000_000),
    ],
)
def test_sizes_are_read_as_written(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1.5B", "1XB", "1e3"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10.0), ("250ms", 0.25), ("2min", 120.0), ("1.5h", 5400.0), ("7", 7.0), ("1d", 86400)],
)
def test_durations_are_read_as_written(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@given(size=st.integers(0, 1 << 50))
def test_a_shown_size_reads_back(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@given(duration=st.floats(1e-7, 1e9))
def test_a_shown_duration_reads_back(duration: float) -> None:
    assert parse_seconds(format_seconds(duration)) == duration
