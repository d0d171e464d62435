"""Nobody is paid by a store that can count nothing: what is read-only asks no model."""

from pathlib import Path

import pytest

from forkpoint import AsyncConversation
from forkpoint.errors import StoreUnusable
from forkpoint.testing import Reply, Script

pytestmark = pytest.mark.anyio


async def test_no_model_is_asked_where_nothing_can_be_counted(tmp_path: Path) -> None:
    script = Script([Reply("hello"), Reply("never asked for")])
    where = f"sqlite:///{tmp_path}/store.db"
    async with AsyncConversation(script.register("counted"), conversation_id="it", store=where) as conversation:
        await conversation.run("hi")
    assert script.taken == 1
    async with await AsyncConversation.open("it", store=f"{where}?mode=ro") as conversation:
        for act in (conversation.run("more"), conversation.ask("?"), conversation.condense()):
            with pytest.raises(StoreUnusable) as refused:
                await act
            assert StoreUnusable.opened_to_read.made(refused.value)
    assert script.taken == 1
