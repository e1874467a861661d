"""Mechanism `config`: small documents, changed by compare-and-set."""

from collections.abc import Sequence

from flowfabric.backend.base import CONFIG_BELL
from flowfabric.backend.types import ConfigDocument, ConfigPut, PutAnswer
from flowfabric.backend.valkey.bells import StoreBells
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.keys import CONFIG
from flowfabric.backend.valkey.packing import Args
from flowfabric.errors import Bug


class ConfigMechanism:
    _calls: Calls
    _bells: StoreBells

    async def config_get(self, names: Sequence[str]) -> list[ConfigDocument | None]:
        reply = await self._calls.run("config_get", CONFIG, list(names))
        return [
            ConfigDocument(name, answer[0], reply.bodies[answer[2]], answer[1]) if answer else None
            for name, answer in zip(names, reply.head, strict=True)
        ]

    async def config_put(self, puts: Sequence[ConfigPut]) -> list[PutAnswer]:
        args = Args()
        request = [(put.name, put.expected, args.put(put.body), put.due_at) for put in puts]
        reply = await self._calls.run("config_put", CONFIG, request, args)
        answers = []
        for put, answer in zip(puts, reply.head, strict=True):
            if answer[0] == "bug":
                raise Bug(f"config_put: {answer[1]}")
            applied, version, due_at, body = answer
            document = ConfigDocument(put.name, version, reply.bodies[body], due_at)
            answers.append(PutAnswer(applied, document))
        # Who asks in this process behind this call must not be answered from before it.
        self._bells.ring(CONFIG_BELL)
        return answers

    async def config_list(self, prefix: str, after: str, limit: int) -> list[ConfigDocument]:
        reply = await self._calls.run("config_list", CONFIG, (prefix, after, max(0, limit)))
        return [
            ConfigDocument(name, version, reply.bodies[body], due_at)
            for name, version, due_at, body in reply.head
        ]
