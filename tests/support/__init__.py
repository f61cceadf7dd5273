"""What tests share and is not a test: servers, fixtures, fakes, simulations, planted bugs."""

import pytest

# Registered before its import, so that a failed comparison shows the values it compared.
pytest.register_assert_rewrite("tests.support.store_machine")
