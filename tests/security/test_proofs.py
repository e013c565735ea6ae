"""Every test of this folder proves that its act works when the guard is away, or says why there is no act.

A test proves it itself, if it has both cases (`is_guarded`), a part without the guard (a name with `unguarded` in it),
or is about nothing else (`without_the_guard` in its name). Every other test stands in a table below.
"""

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
GUIDE = FOLDER.parents[1] / "docs" / "how-to" / "security.md"
_FUZZED = "fuzzing/test_fuzzed_consumers.py::test_a_consumer_is_ended_without_the_guard"
Table = dict[str, dict[str, str]]
"""File -> test -> what is said of it."""

HERE: Table = {
    "web/test_accounts.py": {
        "test_browsers_are_told_to_use_tls_alone": "without TLS a browser could not come back",
        "test_a_viewer_sees_the_rule_but_not_what_it_read": "assert ruling.values == {",
        "test_a_viewer_reads_no_key_of_an_effect": "assert SECRET in str(effect)",
    },
    "doors/test_mcp.py": {
        "test_nobody_goes_on_with_the_session_of_another": "its owner does",
        "test_a_role_that_is_taken_away_ends_within_the_session": 'startswith("NO_DOCTOR: ")',
        "test_an_oversized_message_is_turned_away": 'olga.whole("packets"',
        "test_what_changed_since_it_was_shown_is_not_done": "the newer protocol asks again",
        "test_garbage_on_standard_input_ends_nothing": "Nothing but messages is ever written",
        "test_a_line_is_kept_up_to_the_limit": "Without the limit a line of any length",
    },
    "web/test_contents.py": {
        "test_a_huge_content_costs_what_its_line_shows": "100_000 < Counted.looked_at",
    },
    "database/test_fence.py": {
        "test_only_the_owner_places_and_moves": 'succeeded(connection, "apc_owner", ACTS[0])',
    },
    "log/test_joined_databases.py": {
        "test_a_reader_reads_the_log_of_all_databases": "> 0",
        "test_a_reader_goes_no_other_way": "fetchval(READS) > 0",
        "test_a_reader_does_not_see_the_password": "fetchval(READS) > 0",
        "test_the_foreign_login_reads_as_a_reader_even_for_the_owner": "SET updatable 'true'",
        "test_a_url_cannot_add_options_of_the_server": "options=-c%20role%3Dpostgres",
    },
    "database/test_shard_places.py": {
        "test_an_agent_moves_no_shard_and_a_mover_does_it_in_the_own_name": 'row["orchestrator"] == "gate-1"',
    },
    "doors/test_a2a_access.py": {
        "test_nobody_is_let_in_and_nothing_is_stored": "the act works with a token",
        "test_a_foreign_an_unknown_and_a_malformed_id_are_answered_alike": 'running.ida.task(asked["id"])',
        "test_a_revoked_caller_and_one_of_another_door_are_nobody": "status_of(running.ida) == 200",
        "test_a_token_of_the_web_console_is_none_of_the_door_and_the_other_way_round": 'name_of(token) == "ida"',
        "test_a_file_that_others_can_read_lets_nobody_in": 'name_of("secret") == "ida"',
        "test_a_token_of_an_issuer_is_of_one_door_and_one_time": 'door.name_of(token()) == "ida"',
        "test_bombs_and_oversized_parts_are_refused_before_they_are_parsed": '== "COMPLETED"',
        "test_a_replayed_message_answers_no_second_question": "for expected in (200, -32004)",
        "test_what_fails_inside_is_told_without_its_words": "password=hunter2",
        "test_callers_in_a_mounted_secret_are_read_unless_others_may_write_them": 'name_of("secret") == "ida"',
    },
    "doors/test_tokens_across_doors.py": {
        "test_a_token_opens_its_own_door_alone": "works at its own door",
        "test_a_digest_that_is_copied_to_the_file_of_another_door_opens_it_for_nobody": "the same account at both",
    },
    "doors/test_a2a_certificates.py": {
        "test_a_certificate_names_its_caller_and_nobody_else": 'state_of(asked) == "INPUT_REQUIRED"',
        "test_a_certificate_of_another_authority_or_of_yesterday_ends_the_connection": "where the door trusts",
    },
    "doors/test_a2a_strangers.py": {
        "test_streams_that_nobody_reads_or_that_are_cut_give_their_places_back": 'b" 200 " in await reader',
        "test_credentials_smuggle_no_header_to_a_receiver": "the act works with a good one",
    },
    "doors/test_a2a_push.py": {
        "test_no_private_address_is_told": 'PushHosts(["hooks.example"], resolve=private)',
        "test_a_name_that_moves_between_check_and_connection_moves_nothing": "where.pinned ==",
        "test_each_send_checks_again_and_connects_to_what_it_checked": "(request,) = sent",
    },
    "gate/test_answer_fields.py": {
        "test_an_answer_of_a_megabyte_reaches_no_handler": 'content=FITTING) == ("accepted", None, None)',
    },
    "gate/test_effect_tampering.py": {
        "test_a_tampering_with_an_effect_is_found": "assert (await verify_shard(connection, 0, key)).findings == []",
    },
    "web/test_waiting_work.py": {
        "test_nobody_acknowledges_for_another": "whatever else the request says",
        "test_the_page_makes_no_html_of_texts": "assert len(sources) > 80",
    },
    "web/test_verification.py": {
        "test_one_verification_runs_however_many_are_started": "the next one starts",
        "test_a_stranger_starts_ends_and_sees_no_verification": "client.post(PATH, headers=BEARER)",
        "test_the_address_of_the_database_is_in_no_process_list": "python -m apc_web.verification_process",
    },
    "agents/test_forged_deliveries.py": {
        "test_what_another_user_published_is_read_strictly": "assert taken(body, ORCHESTRATOR)",
        "test_bytes_that_are_no_packet_are_refused_from_everybody": "the bytes are what is refused",
        "test_no_agent_has_the_right_to_publish_into_an_inbox": "anyone who has this right can publish",
        "test_no_agent_gets_the_orchestrators_user": "anyone who has this user publishes",
        "test_nobody_publishes_under_the_user_id_of_another": "connect(ORCHESTRATOR).publish(forged)",
    },
    "agents/test_hosts.py": {
        "test_a_host_reaches_no_inbox_but_its_own": "anyone who has this right",
        "test_one_key_for_all_agents_of_a_host_is_refused": "without the refusal each signs as the other",
        "test_a_packet_for_another_agent_is_handled_by_nobody": "its recipient handles it",
        "test_a_child_process_handles_the_packet_of_its_agent_alone": "the agent itself takes it",
    },
    "agents/test_pydantic_agent.py": {
        "test_a_tool_runs_for_whom_its_rule_allows": "bool(clerk.paid) is is_allowed",
    },
    "agents/test_two_users.py": {
        "test_a_user_is_shown_the_their_own_tasks": "without the owner the session alone",
    },
    "artifacts/test_uploads.py": {
        "test_a_full_disk_is_not_filled": "without the bound it is stored",
        "test_without_a_broker_only_this_machine_brings_artifacts": "asks nobody for a login",
    },
    "bus/test_hostile_login.py": {
        "test_an_agent_that_fills_the_broker_does_not_prevent_its_own_revocation": "lambda: is_refused(bus)",
    },
    "automl/test_model_bytes.py": {
        "test_a_hostile_node_is_found_however_deep_it_stands": "without the guard it is run",
        "test_types_that_skops_trusts_and_no_model_needs_are_refused": "is map",
        "test_every_loader_that_no_model_needs_is_refused": "asked_without_the_guard(",
        "test_a_trusted_loader_builds_no_type_of_another": "asked_without_the_guard(",
        "test_older_formats_have_older_loaders_and_are_refused": "skops itself reads it",
        "test_a_compressed_entry_is_refused_before_it_grows": "skops itself unpacks it",
        "test_two_entries_of_one_name_are_refused": "would not see is run",
    },
    "automl/test_model_reader.py": {
        "test_a_confined_process_can_do_nothing_of_what_an_open_one_can": '== {"done"}',
        "test_a_model_that_ends_the_process_is_refused": "it would end anyone who reads",
        "test_an_answer_too_large_is_a_refusal": "within the bound it is taken",
    },
    "automl/test_table_files.py": {
        "test_what_is_counted_is_at_least_what_reading_takes": "taken <= counted",
        "test_a_table_that_unpacks_beyond_the_bound_is_refused": "without the bound it is read",
        "test_many_small_cells_between_spaces_are_refused_before_they_are_cut": "without the bound it is read",
    },
    "automl/test_tampered_records.py": {
        "test_a_broken_record_is_a_refusal_with_the_remedy": "unchanged it is read",
        "test_no_bytes_in_the_place_of_a_record_end_in_a_traceback": "unchanged it is read",
    },
    "cli/test_deployment_secrets.py": {
        "test_a_folder_that_others_may_enter_is_refused": "the same act works",
        "test_a_link_in_the_place_of_a_secret_is_not_written_through": "goes through the link",
        "test_a_link_in_the_place_of_a_compose_file_is_not_written_through": "goes through the link",
    },
    "cli/test_paths.py": {
        "test_a_key_is_written_for_an_agent_id_alone": "of a name it is written",
        "test_the_folders_of_the_sample_table_are_private": "an ordinary folder",
    },
    "gate/test_last_resort.py": {
        "test_an_error_that_nobody_classified_costs_one_input": "with others, and then alone",
        "test_an_input_that_waits_for_its_session_is_judged_alone_all_the_same": "before, and then alone",
    },
    "database/test_login_function.py": {
        "test_nobody_but_a_registrar_may_call_it": "the acts work for a registrar",
        "test_a_revoked_login_is_sent_away_and_cannot_come_back": "make_login(logins.admin, agent_id",
        "test_an_agent_does_not_prevent_its_own_revocation": "with pytest.raises(asyncpg.LockNotAvailableError)",
    },
    "database/test_host_rows.py": {
        "test_a_host_has_the_rows_of_its_agents_alone": "once the guard is away",
        "test_the_rows_of_an_agent_move_with_it": "once the guard is away",
        "test_a_host_makes_no_objects_of_the_database": "DROP EVENT TRIGGER",
    },
    "database/test_own_rows.py": {
        "test_a_task_for_another_agent_is_refused": "once the guard is away",
        "test_the_level_of_a_row_does_not_authorise_its_tool": "the act works for a runner",
        "test_the_tasks_of_another_are_neither_seen_nor_changed": "work without the guard",
        "test_an_effect_of_another_is_not_claimed": "logins.open_to_all(",
        "test_the_id_of_anothers_task_is_not_taken": "the act works where the key is the id alone",
        "test_no_table_can_be_locked": "the act works with either right",
        "test_no_table_is_locked_by_a_command_without_the_right": "it waits, the act works",
        "test_locks_that_anybody_can_name_keep_nobody_waiting": "the act works against who asks for the same",
        "test_one_agent_does_not_take_all_connections": "the act works without the limit",
        "test_what_an_agent_plants_in_a_conversation_is_known_as_its_own": "the act works where a row is not",
        "test_an_agent_keeps_nobody_from_a_conversation": "with pytest.raises(asyncpg.LockNotAvailableError)",
        "test_a_schedule_of_another_is_not_moved": "logins.open_to_all(",
        "test_the_state_of_another_is_not_reached_by_naming_its_owner": "once the guard is away",
        "test_the_conversation_of_another_is_neither_seen_nor_changed": "once the guard is away",
        "test_a_state_of_another_agent_cannot_be_planted": "logins.open_to_all(",
        "test_other_sessions_names_do_not_help": "logins.open_to_all(",
    },
    "gate/test_memory.py": {
        "test_sessions_that_do_not_exist_have_one_bound_in_bytes": "is (bound == 1 << 40)",
    },
    "log/test_archive_attacks.py": {
        "test_an_object_with_other_bytes": "write_bytes(",
        "test_a_missing_object": "unlink()",
        "test_a_missing_segment": "rmtree(",
        "test_a_swapped_manifest": "shutil.copy(",
        "test_an_older_object": "shutil.copy(",
        "test_a_lying_archiver_changes_an_entry_and_the_manifest_along": "sign_off(",
        "test_a_lying_archiver_changes_the_leaves_too": "sign_off(",
        "test_a_body_that_is_not_the_one_of_its_entry": "sign_off(",
        "test_a_column_that_hides_a_row_from_readers": "sign_off(",
        "test_a_column_of_an_id_that_hides_a_row": "sign_off(",
        "test_an_id_that_leads_elsewhere": "sign_off(",
        "test_an_id_that_stands_twice": "sign_off(",
        "test_what_expired_by_an_entry_is_no_finding_and_stays_provable": "unlink()",
        "test_a_stranger_signs_the_manifests_checkpoint": "sign_off(",
        "test_a_digest_that_is_a_path_names_no_file": "write_bytes(",
        "test_an_object_that_is_no_table_is_a_finding": "sign_off(",
        "test_parquet_of_another_shape_is_not_decoded": "spoil(table, path)",
        "test_no_byte_of_a_footer_or_header_ends_the_reading": "path.write_bytes(",
        "test_made_up_entries_of_the_log_in_a_manifest_are_findings": "sign_off(",
        "test_an_entry_of_the_log_that_is_no_text_is_a_finding": "write_bytes(",
        "test_leaves_without_end_are_not_read": "write_bytes(",
        "test_more_rows_than_entries_are_not_read": "sign_off(",
    },
    "log/test_findings.py": {
        "test_one_change_is_one_finding_that_names_it": "disable_guards(",
        "test_an_entry_that_was_changed_is_named_beside_its_tile": "disable_guards(",
        "test_what_no_writer_signs_in_time_is_a_finding": "disable_guards(",
        "test_a_row_beside_the_log_is_named_with_its_column": "disable_guards(",
        "test_a_bundle_with_a_changed_contract_is_not_written": "assert await anext(bundle_lines(",
    },
    "log/test_forged_rows.py": {
        "test_an_edge_that_stands_for_its_root_has_the_signed_root": "is_well_formed",
    },
    "log/test_registry.py": {
        "test_an_edit_of_the_registry_is_obeyed_where_it_is_a_table": "BY_TABLE",
        "test_a_forged_change_is_not_obeyed_and_is_named": "obeyed where the tree is said to hold it",
        "test_doctor_reports_a_change_beside_an_entry": "the act works",
        "test_a_change_in_a_shard_that_is_no_log_is_not_obeyed": "obeyed where a tree is said to hold it",
    },
    "log/test_session_tampering.py": {
        "test_each_tampering_with_a_session_is_found": "Tamperer.open(",
        "test_what_was_spoiled_is_rebuilt_from_the_entries": "!= before",
        "test_a_contract_that_was_changed_is_found": "DROP CONSTRAINT",
    },
    "log/test_tampering.py": {
        "test_each_tampering_is_found_with_its_place": "_tamper(",
    },
    "log/test_verify_command.py": {
        "test_each_is_found": "disable_guards(",
        "test_an_export_says_what_its_bundle_does_not_hold": "disable_guards(",
    },
    "registry/test_handmade_rules.py": {
        "test_what_is_wrong_in_a_section_made_by_hand_is_refused": "assert objection_to(document) is None",
    },
    "machine/test_files_beside_the_data.py": {
        "test_what_an_older_release_left_open_is_closed": "touch(0o644)",
    },
    "machine/test_embedded_postgres.py": {
        "test_a_stranger_does_not_get_in": "let_everybody_in(",
        "test_a_restart_closes_what_was_open": "let_everybody_in(",
        "test_an_ordinary_users_server_is_closed_too": "let_everybody_in(",
    },
    "web/test_access.py": {
        "test_no_route_answers_without_the_token_of_this_start": "is_guarded=False",
        "test_answers_forbid_scripts_frames_and_referrers_and_set_no_cookie": "is_guarded=False",
        "test_the_link_is_for_its_owner_alone": "an ordinary file may be read",
    },
    "web/test_local_token.py": {
        "test_what_a_page_sends_is_of_no_use_to_who_hears_it": "which pages sent before, would be known",
        "test_the_token_is_in_no_log_process_list_or_referrer": "a printed link would hold it",
    },
    "web/test_chat_abuse.py": {
        "test_another_users_conversation_is_not_there": "its owner has it",
        "test_messages_and_names_have_limits": "within them it is taken",
    },
}
"""Test -> the words in it by which the act is carried out without the guard.

A tampering with the log is found, not refused: there the act is carried out, with the guards of the database off.
"""

PICKLE = "automl/test_model_bytes.py::test_a_pickle_with_a_dotted_name_runs_a_command_only_without_the_guard"
FOREIGN_PAGE = "http/test_http_server.py::test_what_a_foreign_page_can_send_is_refused"
CALL = "test_a_tree_that_calls_a_function_runs_it_only_without_the_guard"
_ALLOWED = "test_no_private_address_is_told"
ELSEWHERE: Table = {
    "doors/test_a2a_access.py": {
        "test_a_page_of_another_origin_or_name_is_refused": FOREIGN_PAGE,
    },
    "doors/test_a2a_strangers.py": {
        "test_headers_and_paths_smuggle_nothing": (
            "doors/test_a2a_access.py::test_nobody_is_let_in_and_nothing_is_stored"
        ),
    },
    "doors/test_a2a_push.py": {
        "test_a_url_that_is_none_of_a_receiver": _ALLOWED,
        "test_numbers_that_the_resolver_reads_as_private_addresses": _ALLOWED,
        "test_a_door_refuses_private_receivers_at_every_place_that_takes_one": _ALLOWED,
    },
    "machine/test_files_beside_the_data.py": {
        "test_no_file_beside_the_data_is_open_to_others": "test_nobody_else_keeps_a_system_from_its_start",
    },
    "gate/test_effects.py": {
        "test_only_an_operator_settles_for_another_and_says_no_more": "test_nobody_reports_the_effect_of_another",
    },
    "agents/test_injection.py": {
        "test_only_allowed_tools_run": "test_without_the_guards_the_act_works",
        "test_only_allowed_tools_run_for_every_text_in_every_way": "test_without_the_guards_the_act_works",
    },
    "bus/test_raw_messages.py": {
        "test_the_consumer_of_a_queue_goes_on": _FUZZED,
        "test_a_gate_records_what_a_broker_confirms_and_keeps_its_shard": _FUZZED,
    },
    "fuzzing/test_fuzzed_consumers.py": {
        "test_no_bytes_end_a_consumer": "test_a_consumer_is_ended_without_the_guard",
        "test_no_bytes_that_come_back_cost_a_publisher_its_answer": "test_a_consumer_is_ended_without_the_guard",
    },
    "artifacts/test_uploads.py": {
        "test_what_is_there_is_never_overwritten": "test_without_the_guards_it_is_overwritten",
        "test_odd_requests_are_refused": "test_sizes_and_methods_are_accepted_without_the_guard",
        "test_the_broker_knows_the_logins": "test_only_agents_with_a_login_bring_artifacts",
    },
    "automl/test_model_bytes.py": {
        "test_what_skops_itself_does_not_trust_stays_refused_by_it": CALL,
    },
    "automl/test_model_reader.py": {
        "test_the_process_that_reads_models_refuses_and_goes_on": PICKLE,
    },
    "cli/test_terminal_escapes.py": {
        "test_no_command_shows_what_acts_on_a_terminal": "test_without_the_guard_the_terminal_would_be_reached",
    },
    "log/test_forged_rows.py": {
        "test_forged_rows_stop_the_writer_and_are_named": "test_forged_rows_are_signed_without_the_guard",
        "test_doctor_reports_forged_rows": "test_forged_rows_are_signed_without_the_guard",
        "test_forged_leaves_stop_the_writer": "test_forged_leaves_are_signed_without_the_guard",
        "test_a_head_that_was_moved_is_found": "test_the_writer_goes_on_behind_a_gap",
    },
    "log/test_registry.py": {
        "test_an_edit_of_the_registry_is_refused": "test_an_edit_of_the_registry_is_obeyed_where_it_is_a_table",
    },
    "web/test_access.py": {
        "test_a_foreign_name_or_page_gets_nothing_even_with_the_token": FOREIGN_PAGE,
        "test_requests_have_limits": "test_without_the_guards_a_request_may_ask_for_anything",
    },
}
"""Test -> the test that carries its act out without the guard."""

NO_ACT: Table = {
    "log/test_archive_attacks.py": {
        "test_the_archive_as_it_is_has_no_finding": "honest use",
        "test_a_folder_of_any_name_is_read": "honest use",
    },
    "web/test_local_token.py": {
        "test_links_outlive_a_restart_and_the_file_is_for_its_owner_alone": "honest use",
        "test_page_and_server_prove_alike": "honest use",
    },
    "agents/test_scheduled_starts.py": {
        "test_the_session_of_a_schedule_is_opened": "honest use",
    },
    "artifacts/test_uploads.py": {
        "test_an_agent_stores_and_reads_without_writing_the_folder": "honest use",
        "test_many_who_bring_the_same_bytes_store_them_once": "honest use",
        "test_a_client_that_breaks_off_is_no_fault_of_the_store": "what the log says",
        "test_a_service_that_is_away_is_named": "a fault, no act",
        "test_an_upload_waits_for_a_broker_that_is_away": "a fault, no act",
        "test_a_start_clears_what_a_crash_left": "a fault, no act",
    },
    "registry/test_operators.py": {
        "test_a_person_with_the_right_acts_through_each_of_their_users": "honest use",
        "test_two_people_in_one_message_are_two_acts": "honest use",
        "test_a_person_has_no_right_but_to_operate": "a registration that nobody could use",
    },
    "automl/test_model_bytes.py": {
        "test_broken_bytes_are_refused": "nothing could be built from them",
    },
    "automl/test_model_reader.py": {
        "test_a_process_that_does_not_start_is_no_fault_of_the_model": "a fault, no act",
    },
    "clients/test_keyed_starts.py": {
        "test_a_start_whose_input_was_refused_is_not_taken_for_started": "what is told",
        "test_an_encrypted_input_cannot_be_compared_without_the_key": "what is told",
    },
    "clients/test_runs.py": {
        "test_runs_share_the_keys_of_their_broker_user": "honest use",
        "test_the_key_of_a_run_that_ended_before_its_input_is_told": "what is told",
    },
    "cli/test_paths.py": {
        "test_results_that_cannot_be_written_are_refused_before_the_work": "a mistake of the operator",
    },
    "database/test_login_function.py": {
        "test_it_makes_members_of_apc_agent": "honest use",
        "test_the_functions_of_an_older_release_are_replaced": "honest use",
    },
    "database/test_own_rows.py": {
        "test_agents_of_a_session_add_to_one_conversation": "honest use",
    },
    "gate/test_causes.py": {
        "test_a_cause_that_was_delivered_is_stored": "honest use",
        "test_everybody_has_got_what_the_substrate_holds": "honest use",
        "test_a_repeat_of_a_claim_is_a_repeat": "honest use",
    },
    "log/test_swapped_approvals.py": {
        "test_a_bundle_of_today_is_not_checked_as_an_old_one": "unchanged it is checked, as the first test does",
    },
    "gate/test_approved_words.py": {
        "test_words_that_were_approved_are_sent": "honest use",
        "test_an_approval_of_other_words_is_none_of_the_content_alone": "the same hash",
    },
    "gate/test_claimed_texts.py": {
        "test_a_text_that_no_rule_reads_may_be_in_the_store": "honest use",
    },
    "bus/test_handmade_bundles.py": {
        "test_a_part_harms_only_itself": "nothing is refused as a whole: the other parts are judged",
        "test_what_dies_in_a_bundle_leaves_its_own_bytes": "what is kept",
    },
    "gate/test_contract_files.py": {
        "test_links_within_the_folder_are_followed": "honest use",
        "test_links_to_nothing_are_told": "what is told",
    },
    "gate/test_memory.py": {
        "test_an_entry_is_about_as_large_as_it_is_said": "what the bounds are counted with",
        "test_inputs_beyond_a_full_batch_come_into_the_next": "what happens at a bound",
    },
    "gate/test_odd_properties.py": {
        "test_odd_properties_stop_no_gate": "nothing is refused: the gate goes on",
    },
    "gate/test_room.py": {
        "test_what_is_counted_is_the_same_after_a_takeover": "what the bounds are counted with",
    },
    "http/test_http_server.py": {
        "test_what_our_own_frontend_sends_is_answered": "honest use",
    },
    "log/test_findings.py": {
        "test_a_finding_about_a_session_prints_no_text_that_somebody_wrote": "what is told",
    },
    "log/test_forged_rows.py": {
        "test_what_the_guard_recorded_is_signed": "honest use",
    },
    "log/test_session_tampering.py": {
        "test_a_session_without_its_contract_is_not_compared": "what cannot be compared",
        "test_a_session_without_its_contract_is_left_as_it_is": "what cannot be compared",
    },
    "log/test_verify_command.py": {
        "test_the_exported_checkpoints_are_compared_by_default": "honest use",
        "test_a_checkpoint_that_is_being_written_is_passed_over": "honest use",
        "test_a_reader_may_verify": "honest use",
        "test_what_is_not_covered_is_printed": "what is told",
    },
    "machine/test_files_beside_the_data.py": {
        "test_a_lock_outlives_the_closing_of_its_file_to_others": "what must go on",
    },
    "machine/test_embedded_postgres.py": {
        "test_the_stranger_is_another_user": "what the other tests begin with",
    },
    "machine/test_act_socket.py": {
        "test_a_start_takes_the_place_of_a_dead_socket_and_follows_no_link": "what a start replaces",
        "test_a_file_of_somebody_is_not_removed_for_a_socket": "what a start does not replace",
        "test_what_is_published_is_the_operators": "what the gate then judges",
    },
    "web/test_acting.py": {
        "test_a_registered_person_acts_in_their_own_name": "honest use",
        "test_two_operators_requeue_one_dead_letter_once": "honest use",
    },
    "web/test_access.py": {
        "test_what_is_not_there_is_told_apart_by_nothing": "answers to names that do not exist",
    },
    "web/test_cookies.py": {
        "test_a_login_is_recognised_among_other_cookies": "honest use",
    },
    "web/test_verification.py": {
        "test_a_verification_ends_with_its_server": "what ends with it",
    },
    "web/test_verification_held.py": {
        "test_a_database_that_fails_is_told_of_without_its_address": "what is told",
        "test_a_key_that_broke_is_told_without_its_place": "what is told",
    },
    "web/test_chat_abuse.py": {
        "test_a_server_without_an_agent_says_why": "what is told",
        "test_a_conversation_of_nobody_cannot_be_stopped": "answers to names that do not exist",
    },
    "doors/test_a2a_certificates.py": {
        "test_certificates_need_a_door_that_speaks_tls": "settings that do not go together",
    },
    "doors/test_a2a_strangers.py": {
        "test_no_text_at_any_place_makes_the_door_fail": "what is answered",
        "test_the_card_says_nothing_that_a_request_says": "what the card says",
        "test_names_that_nobody_has_are_looked_up_together": "how often the registry is read",
        "test_a_name_server_that_does_not_answer_holds_no_request": "how long a request waits",
    },
}
"""Test -> why it refuses nothing."""


def _flat(table: Table) -> dict[str, str]:
    return {f"{file}::{test}": said for file, tests in table.items() for test, said in tests.items()}


def _tests() -> dict[str, tuple[str, bool]]:
    """Return each test's source, and whether it proves its act itself."""
    found: dict[str, tuple[str, bool]] = {}
    for path in FOLDER.rglob("test_*.py"):
        if path == Path(__file__):
            continue
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                found[f"{path.relative_to(FOLDER)}::{node.name}"] = (source, _is_proof(node))
    return found


def _is_proof(node: ast.AST) -> bool:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    names |= {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    is_named_so = "without_the_guard" in getattr(node, "name", "")
    return is_named_so or "is_guarded" in names or any("unguarded" in name for name in names)


TESTS = _tests()


def test_every_test_proves_its_act_or_says_where() -> None:
    listed = [*_flat(HERE), *_flat(ELSEWHERE), *_flat(NO_ACT)]
    assert len(listed) == len(set(listed))
    assert set(listed) == {name for name, (_, is_proof) in TESTS.items() if not is_proof}


@pytest.mark.parametrize(("name", "words"), _flat(HERE).items(), ids=_flat(HERE))
def test_the_proof_stands_in_the_test(name: str, words: str) -> None:
    assert words in TESTS[name][0]


def test_the_proof_elsewhere_is_one() -> None:
    for test, proof in _flat(ELSEWHERE).items():
        name = proof if "::" in proof else f"{test.partition('::')[0]}::{proof}"
        assert TESTS[name][1] or name in _flat(HERE), name


def test_the_guide_names_every_file_with_an_act() -> None:
    guide = GUIDE.read_text()
    bounds = (GUIDE.parents[1] / "reference" / "gate-memory.md").read_text()
    files = {name.partition("::")[0] for name in TESTS.keys() - _flat(NO_ACT).keys()}
    assert sorted(file for file in files if file not in guide and file not in bounds) == []
