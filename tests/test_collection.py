"""What pytest finds here."""

import pytest


def test_a_test_module_with_a_broken_import_is_an_error_and_no_skip(
    pytestconfig: pytest.Config,
) -> None:
    # With both, a test module that cannot be imported is skipped as if it were docstrings only.
    assert pytestconfig.getoption("doctestmodules")
    assert not pytestconfig.getoption("doctest_ignore_import_errors")
