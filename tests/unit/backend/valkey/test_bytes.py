"""Every byte there is comes back as it was given."""

from tests.conformance.driver import Driver

ALL_BYTES = bytes(range(256)) * 3


async def test_input_and_result_keep_all_byte_values(driver: Driver) -> None:
    execution_id = await driver.submit(input=ALL_BYTES)
    claimed = await driver.claim()
    assert claimed.input == ALL_BYTES
    await driver.engine.outcomes.complete(claimed.proof, ALL_BYTES)
    assert await driver.result(execution_id) == ALL_BYTES
