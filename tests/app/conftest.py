"""Fixtures: the application, loaded once, and a way to ask it for a round."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from unsum.app import create_app

PAGE = {"X-Unsum-Page": "a-page-of-the-tests"}
Play = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(), base_url="http://127.0.0.1:8765", headers=PAGE) as opened:
        yield opened


@pytest.fixture(scope="session")
def play(client: TestClient) -> Play:
    """The last answers to a round with the first `count` embedded photos: the result, and its last
    ceiling."""

    def last(count: int = 8, **order: Any) -> dict[str, Any]:
        photos = [{"id": f"embedded-{i}"} for i in range(count)]
        response = client.post("/api/round", json={"photos": photos} | order)
        assert response.status_code == 200, response.text
        answers = [json.loads(line) for line in response.text.splitlines()]
        # a busy machine takes longer
        answers = [answer for answer in answers if answer["kind"] != "search"]
        result = [answer for answer in answers if answer["kind"] == "result"][-1]
        assert result["final"]
        assert (answers[-1]["kind"], answers[-1]["final"]) == ("bound", True)
        return {"answers": answers} | result | answers[-1]

    return last
