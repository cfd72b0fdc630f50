# ruff: noqa: E501 - names of tests
"""SECURITY.md's table of who cannot do what: each promise in it has a test that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TESTS: dict[str, list[str]] = {
    "Ray's token, without which it answers 401": [
        "tests/local/test_ray_token.py::test_without_the_token_rays_api_answers_401_and_with_a_wrong_one_403",
    ],
    "other namespaces": [
        "tests/chart/test_permissions.py::test_watched_namespaces_get_a_role_each_and_no_cluster_wide_one",
        "tests/apiserver/test_untrusted.py::test_a_healthy_run_does_not_notice_whatever_others_write",
        "tests/unit/test_controller_polling.py::test_slow_heads_of_one_namespace_keep_no_run_of_another_one_waiting",
        "tests/unit/test_controller_work_queue.py::test_many_runs_of_one_namespace_hold_up_no_run_of_another_one",
    ],
    "the run's tokens, unless they may read Secrets there": [
        "tests/unit/test_controller_head_pods.py::test_a_pod_that_names_the_run_s_ray_cluster_as_its_owner_is_never_sent_the_token",
        "tests/unit/test_controller_head_pods.py::test_a_pod_that_has_taken_the_name_of_a_head_that_is_gone_is_not_polled",
        "tests/unit/test_cli_pods.py::test_a_newer_pod_that_claims_to_be_the_head_gets_no_token_and_names_no_secret",
        "tests/unit/test_rendering_security.py::test_the_token_is_only_ever_a_reference_and_only_on_the_head",
        "tests/unit/test_runtime_progress_server.py::test_without_the_token_nobody_reads_or_suspends",
    ],
    "ending an attempt, using a budget or beginning an attempt by pods that claim to be the run's": [
        "tests/apiserver/test_forged_owners.py::test_pods_that_name_the_live_ray_cluster_as_their_owner_cost_a_run_nothing",
        "tests/apiserver/test_forged_owners.py::test_pods_of_ray_clusters_that_are_not_there_end_no_attempts_of_a_suspended_run",
        "tests/unit/test_reconciling_owners.py::test_a_pod_beside_all_that_kuberay_keeps_ends_and_counts_nothing",
        "tests/unit/test_reconciling_owners.py::test_what_a_forged_pod_requests_costs_the_run_nothing",
    ],
    "running code in the run's pods, files outside the checkpoint's folder": [
        "tests/unit/test_runtime_untrusted_shards.py::test_code_in_a_file_of_tensors_is_not_executed",
        "tests/unit/test_runtime_untrusted_shards.py::test_code_in_what_is_no_tensor_is_not_executed",
        "tests/local/test_untrusted_checkpoints.py::test_a_key_that_leads_out_of_the_folder_is_never_downloaded",
    ],
    "slowing the operator by scrapes": [
        "tests/unit/test_controller_metrics.py::test_many_scrapes_at_once_are_answered_by_one_and_later_ones_anew",
    ],
    "files outside the code's folder": [
        "tests/unit/test_runtime_user_code.py::test_a_file_outside_of_the_folder_is_refused_and_nothing_is_written",
    ],
    "the cluster's API, the operator, other runs, terminals of people": [
        "tests/unit/test_rendering_security.py::test_training_pods_get_no_kubernetes_token",
        "tests/unit/test_controller_polling.py::test_what_no_healthy_head_sends_is_refused_without_a_stop_of_the_event_loop",
        "tests/unit/test_controller_polling.py::test_the_poller_follows_no_redirect_to_another_run",
        "tests/unit/test_controller_tokens.py::test_runs_have_tokens_of_their_own_and_a_key_s_name_reveals_nothing_of_it",
        "tests/unit/test_local_display.py::test_metrics_and_messages_are_neither_control_sequences_nor_markup",
    ],
}
"""By what somebody is not trusted with, as the table says it."""


def promises() -> list[str]:
    """The last column of the table, a promise for each half of a sentence."""
    text = (ROOT / "SECURITY.md").read_text()
    table = text.split("## Who is trusted with what")[1].split("\n\n**")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    cells = [row[2].strip() for row in rows[2:]]
    return [part.strip() for cell in cells for part in cell.split(";") if part.strip()]


def test_each_promise_of_the_table_has_tests_and_no_other_one_has() -> None:
    assert sorted(promises()) == sorted(TESTS)


@pytest.mark.parametrize("test", [test for tests in TESTS.values() for test in tests])
def test_the_tests_of_the_table_are_there(test: str) -> None:
    path, name = test.split("::")
    found = re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
    assert found, f"{test} is gone: what else shows the promise?"
