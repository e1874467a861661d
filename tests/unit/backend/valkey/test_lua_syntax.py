"""`make check` shows where the function library is wrong."""

from flowfabric.backend.valkey.library import library
from tests.lua_syntax import fault_of
from tests.valkey_server import ValkeyServer


def test_a_sound_library_has_no_fault(server: ValkeyServer) -> None:
    assert fault_of(server, library(test_mode=True)[0]) == ""


def test_a_mistake_is_shown_with_its_line(server: ValkeyServer) -> None:
    fault = fault_of(server, library(test_mode=True)[0] + "\nlocal now = = 3\n")
    assert "unexpected symbol near '='" in fault
    assert fault.endswith("\n    local now = = 3")
