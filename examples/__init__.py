"""Programs that show one thing each; the tests run every one of them."""
