"""The reference page of the routes is what the declarations say."""

from flowfabric.server.routes import ROUTES
from tests.server.rest_page import PAGE, page_text


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page_text(), "run make pages"


def test_every_route_is_on_the_page() -> None:
    text = PAGE.read_text()
    for route in ROUTES:
        assert f"### `{route.method} {route.path}`\n\n{route.summary}" in text
