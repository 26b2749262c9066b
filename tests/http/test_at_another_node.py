"""Tests of one node, asked of a node that has none of the containers: answers are the same."""

from collections.abc import AsyncIterator

import pytest

from tests.http.node import Node
from tests.http.nodes_in_cluster import SegmentsOfNode, node_beside_the_owner
from tests.http.test_forks import (
    test_a_fork_that_is_merged_away_gives_its_sources_name_free,
    test_a_json_stream_is_not_forked_inside_a_message,
)
from tests.http.test_plain_append import (
    test_a_plain_append_is_answered_with_the_headers_of_a_judged_one,
    test_an_append_whose_container_stopped_is_not_said_to_be_undone,
    test_an_old_client_is_answered_in_its_version,
    test_requests_sent_ahead_are_answered_in_order,
    test_the_connection_ends_when_the_client_says_so,
)
from tests.http.test_segment_verbs import (
    test_a_conditional_append_stores_all_or_nothing,
    test_a_read_whose_bytes_vanish_is_cut_and_never_looks_whole,
    test_a_sealed_source_goes_to_the_end_of_its_target,
    test_a_segment_lives_through_all_its_verbs,
    test_attribute_updates_are_conditional_when_asked,
    test_requests_that_make_no_sense_get_a_sentence,
    test_the_last_part_is_the_verb_also_when_the_name_ends_like_one,
)
from tests.http.test_stream_append import (
    test_a_client_that_goes_away_does_not_cancel_its_commit,
    test_concurrent_duplicates_of_a_producer_store_once_and_all_succeed,
    test_h25_a_reconnecting_producer_learns_what_became_of_its_append_in_flight,
    test_h73_bytes_producer_sequence_and_close_are_one_operation,
    test_json_that_does_not_parse_moves_neither_producer_nor_sequence,
    test_stream_sequences_compare_as_bytes,
)
from tests.http.test_stream_create import (
    test_h63_of_concurrent_creates_exactly_one_makes_the_stream,
    test_the_location_is_the_path_as_it_was_sent,
)
from tests.http.test_stream_events import (
    test_a_character_split_between_appends_arrives_whole,
    test_octets_arrive_in_base64_event_by_event,
)
from tests.http.test_stream_read import (
    test_a_long_poll_of_a_deleted_stream_ends_with_404,
    test_a_long_poll_returns_as_soon_as_bytes_come,
    test_an_etag_changes_when_the_stream_is_closed_without_new_bytes,
    test_head_says_how_long_a_stream_lives,
    test_stored_html_cannot_run_in_this_origin,
)

ASKED_AT_ANOTHER_NODE = [
    test_a_character_split_between_appends_arrives_whole,
    test_a_client_that_goes_away_does_not_cancel_its_commit,
    test_a_conditional_append_stores_all_or_nothing,
    test_a_fork_that_is_merged_away_gives_its_sources_name_free,
    test_a_json_stream_is_not_forked_inside_a_message,
    test_a_long_poll_of_a_deleted_stream_ends_with_404,
    test_a_long_poll_returns_as_soon_as_bytes_come,
    test_a_plain_append_is_answered_with_the_headers_of_a_judged_one,
    test_a_read_whose_bytes_vanish_is_cut_and_never_looks_whole,
    test_a_sealed_source_goes_to_the_end_of_its_target,
    test_a_segment_lives_through_all_its_verbs,
    test_an_append_whose_container_stopped_is_not_said_to_be_undone,
    test_an_etag_changes_when_the_stream_is_closed_without_new_bytes,
    test_an_old_client_is_answered_in_its_version,
    test_attribute_updates_are_conditional_when_asked,
    test_concurrent_duplicates_of_a_producer_store_once_and_all_succeed,
    test_h25_a_reconnecting_producer_learns_what_became_of_its_append_in_flight,
    test_h63_of_concurrent_creates_exactly_one_makes_the_stream,
    test_h73_bytes_producer_sequence_and_close_are_one_operation,
    test_head_says_how_long_a_stream_lives,
    test_json_that_does_not_parse_moves_neither_producer_nor_sequence,
    test_octets_arrive_in_base64_event_by_event,
    test_requests_sent_ahead_are_answered_in_order,
    test_requests_that_make_no_sense_get_a_sentence,
    test_stored_html_cannot_run_in_this_origin,
    test_stream_sequences_compare_as_bytes,
    test_the_connection_ends_when_the_client_says_so,
    test_the_last_part_is_the_verb_also_when_the_name_ends_like_one,
    test_the_location_is_the_path_as_it_was_sent,
]
"""Imported, they are found here as well, and take the fixtures of this file."""


@pytest.fixture
def segments() -> SegmentsOfNode:
    return SegmentsOfNode(container_count=1)


@pytest.fixture
async def node(segments: SegmentsOfNode) -> AsyncIterator[Node]:
    async with node_beside_the_owner(segments) as running:
        yield running
