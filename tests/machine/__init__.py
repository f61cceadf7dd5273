import pytest

# Before their import, so that a failed comparison shows its values.
pytest.register_assert_rewrite("tests.machine.machine")
