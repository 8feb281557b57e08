"""What the server refuses, and how: one sentence, the right status, and no way to the file system
or from other sites."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from support.browsing import HOSTILE
from unsum.app import shelf
from unsum.data import tags


def encoded(kind: str = "JPEG", size: tuple[int, int] = (300, 200)) -> bytes:
    """A picture whose middle is red and whose sides are blue."""
    picture = Image.new("RGB", size, "blue")
    side = min(size)
    picture.paste("red", ((size[0] - side) // 2, 0, (size[0] + side) // 2, side))
    buffer = io.BytesIO()
    picture.save(buffer, format=kind, quality=95)
    return buffer.getvalue()


def upload(
    client: TestClient, content: bytes, name: str = "photo.jpg", page: str = "upload-page-of-tests"
) -> Any:
    return client.post(
        "/api/photos", params={"name": name}, content=content, headers={"X-Unsum-Page": page}
    )


class TestPhotos:
    def test_a_photo_is_cropped_kept_and_attacked(self, client: TestClient) -> None:
        page = "page-for-one-photo"
        added = upload(client, encoded("JPEG"), page=page)
        assert added.status_code == 201
        order = {"photos": [{"id": added.json()["id"], "label": "dog"}, {"id": "embedded-0"}]}
        answer = client.post("/api/round", json=order, headers={"X-Unsum-Page": page})
        own = f"class {tags().index('dog') + 1}"  # no tag is claimed for what nobody knows
        assert f'"label": "{own}", "found_label": "{own}"' in answer.text
        assert '"label": "cat", "found_label": "cat"' in answer.text

    # where a file blurs colors, the middle's edge has a little of what was beside it
    @pytest.mark.parametrize(("kind", "edge"), [("PNG", 0), ("JPEG", 16), ("WEBP", 16)])
    def test_the_middle_is_what_stays(self, client: TestClient, kind: str, edge: int) -> None:
        kept = shelf.Shelf(128).add(encoded(kind), "photo", "page")[1].pixels
        assert kept.shape == (3, 128, 128)
        inside = kept[:, edge : 128 - edge, edge : 128 - edge]
        assert inside[0].min() > 0.98  # red from side to side
        assert inside[2].max() < 0.02
        assert upload(client, encoded(kind)).status_code == 201

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"no picture",
            encoded("BMP"),
            encoded("GIF"),
            encoded("PNG")[:200],
            b"<svg/>",
            b"%!PS\n",
        ],
        ids=["empty", "text", "bmp", "gif", "truncated", "svg", "postscript"],
    )
    def test_what_is_no_photo_is_refused_in_a_sentence(
        self, client: TestClient, content: bytes
    ) -> None:
        refused = upload(client, content, "holiday.jpg")
        assert refused.status_code == 422
        assert refused.json()["error"].startswith(
            "'holiday.jpg' cannot be read as a JPEG, PNG or WebP photo"
        )

    def test_a_bomb_is_refused_before_it_is_unpacked(self, client: TestClient) -> None:
        buffer = io.BytesIO()
        Image.new("1", (8000, 8000)).save(buffer, format="PNG")
        assert len(buffer.getvalue()) < 100_000
        refused = upload(client, buffer.getvalue())
        assert refused.status_code == 422
        assert "at most 50 million pixels" in refused.json()["error"]

    def test_too_many_bytes(self, client: TestClient) -> None:
        refused = upload(client, bytes(shelf.MOST_BYTES + 1))
        assert refused.status_code == 413
        assert refused.json()["error"] == "A photo may have at most 20 MB; choose a smaller one."

    def test_too_many_photos(self, client: TestClient) -> None:
        small = encoded("PNG", (8, 8))
        keys = [
            upload(client, small, page="page-with-many-photos").json()["id"]
            for _ in range(shelf.MOST_OWN)
        ]
        refused = upload(client, small, page="page-with-many-photos")
        assert refused.status_code == 422
        assert "holds 16 photos of your own already" in refused.json()["error"]
        assert len(set(keys)) == shelf.MOST_OWN
        removed = client.delete(
            f"/api/photos/{keys[0]}", headers={"X-Unsum-Page": "page-with-many-photos"}
        )
        assert removed.status_code == 204
        assert upload(client, small, page="page-with-many-photos").status_code == 201

    def test_the_oldest_photos_of_all_pages_go_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shelf, "MOST_KEPT", 2)
        kept, small = shelf.Shelf(128), encoded("PNG", (8, 8))
        keys = [kept.add(small, "photo", f"page {i}")[0] for i in range(3)]
        with pytest.raises(shelf.UnsumError, match="no longer kept"):
            kept.get(keys[0], "page 0")
        assert kept.get(keys[2], "page 2").title == "photo"

    @pytest.mark.parametrize(
        ("name", "title"),
        [
            ("../../etc/passwd", "passwd"),
            ("C:\\photos\\me.jpg", "me.jpg"),
            ("a\0b\n.jpg", "ab.jpg"),
            ("/", "own photo"),
            ("x" * 500, "x" * 60),
            (HOSTILE[1], HOSTILE[1]),
        ],
    )
    def test_a_name_is_text_and_nothing_else(
        self, client: TestClient, name: str, title: str
    ) -> None:
        added = upload(client, encoded("PNG", (8, 8)), name, f"page-for-a-name-{abs(hash(name))}")
        assert added.json()["title"] == title

    def test_other_pages_do_not_see_it(self, client: TestClient) -> None:
        key = upload(client, encoded("PNG", (8, 8)), page="the-page-that-owns-it").json()["id"]
        order = {"photos": [{"id": key, "label": "dog"}]}
        assert client.post("/api/round", json=order).status_code == 422
        assert client.delete(f"/api/photos/{key}").status_code == 422
        assert upload(client, b"").status_code == 422


class TestOrders:
    @pytest.mark.parametrize(
        ("order", "sentence"),
        [
            ([], "JSON object"),
            ({}, "Choose 1 to 16 photos"),
            ({"photos": []}, "Choose 1 to 16 photos"),
            ({"photos": [{"id": f"embedded-{i}"} for i in range(17)]}, "Choose 1 to 16 photos"),
            ({"photos": [{"id": "embedded-0"}] * 2}, "only once"),
            ({"photos": [{"id": "../../etc/passwd"}]}, "no longer kept"),
            ({"photos": ["embedded-0"]}, "'id' must be a text"),
            ({"photos": [{"id": "embedded-0", "label": "nonsense"}]}, "no label 'nonsense'"),
            ({"photos": [{"id": "embedded-0"}], "same_label": 2}, "At most 1 photos"),
            ({"photos": [{"id": "embedded-0"}], "same_label": 0.5}, "whole number"),
            (
                {"photos": [{"id": "embedded-0"}], "defense": {"name": "nosie"}},
                "did you mean 'noise'",
            ),
            (
                {"photos": [{"id": "embedded-0"}], "defense": {"name": "noise", "stop": 99}},
                "25 stops",
            ),
            ({"photos": [{"id": "embedded-0"}], "defense": "noise"}, "'name' must be a text"),
        ],
    )
    def test_a_wrong_order_is_one_sentence(
        self, client: TestClient, order: Any, sentence: str
    ) -> None:
        refused = client.post("/api/round", json=order)
        assert refused.status_code == 422
        assert sentence in refused.json()["error"]

    def test_what_is_no_json_is_refused(self, client: TestClient) -> None:
        for content in (b"", b"{", b"\xff", b"[" * 50_000):
            assert client.post("/api/round", content=content).status_code == 422
        assert client.post("/api/round", content=b" " * 70_000).status_code == 413


class TestGuard:
    @pytest.mark.parametrize(
        "host",
        ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1"],
    )
    def test_a_foreign_host_is_refused(self, client: TestClient, host: str) -> None:
        refused = client.get("/api/setting", headers={"Host": host})
        assert refused.status_code == 403
        assert "own address" in refused.json()["error"]

    @pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:8765", "[::1]:8765", "LOCALHOST"])
    def test_this_machine_is_not(self, client: TestClient, host: str) -> None:
        assert client.get("/", headers={"Host": host}).status_code == 200

    @pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
    def test_another_sites_page_is_refused(self, client: TestClient, origin: str) -> None:
        assert client.post("/api/round", json={}, headers={"Origin": origin}).status_code == 403
        assert (
            client.post(
                "/api/round", json={}, headers={"Origin": "http://127.0.0.1:8765"}
            ).status_code
            == 422
        )

    @pytest.mark.parametrize(
        "origin",
        [
            "http://evil.localhost:8000",
            "http://localhost:8000.evil",
            "http://localhost:80001",
            "http://localhost",
        ],
    )
    def test_an_origin_that_only_resembles_the_host_is_another_site(
        self, client: TestClient, origin: str
    ) -> None:
        asked = {"Host": "localhost:8000", "Origin": origin}
        refused = client.post("/api/round", json={}, headers=asked)
        assert (refused.status_code, refused.json()["error"]) == (
            403,
            "This server answers its own pages alone.",
        )
        own = client.post(
            "/api/round", json={}, headers=asked | {"Origin": "http://localhost:8000"}
        )
        assert own.status_code == 422  # let in, and an empty order is none

    def test_a_form_of_another_site_lacks_the_pages_name(self, client: TestClient) -> None:
        refused = client.post("/api/photos", content=encoded(), headers={"X-Unsum-Page": ""})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers

    @pytest.mark.parametrize("path", ["/", "/page.js", "/api/setting", "/nowhere", "/api/round"])
    def test_every_answer_carries_the_policy(self, client: TestClient, path: str) -> None:
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:;"
        )
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"

    @pytest.mark.parametrize(
        "path",
        ["/../pyproject.toml", "/%2e%2e/server.py", "/page.js/../server.py", "/..%2fserver.py"],
    )
    def test_no_path_leads_to_a_file(self, client: TestClient, path: str) -> None:
        assert "import" not in client.get(path).text.split("\n")[0]
        assert client.get(path).status_code == 404

    def test_the_page_has_no_inline_script_or_style(self, client: TestClient) -> None:
        html = client.get("/").text
        assert html.count("<script") == 1
        assert "<style" not in html
        assert " style=" not in html
        assert not any(
            f" on{event}=" in html for event in ("click", "load", "change", "input", "error")
        )
        scripts = [
            client.get(f"/{name}.js").text for name in ("page", "photos", "result", "history")
        ]
        assert not any(
            "innerHTML" in script or "insertAdjacent" in script or "http://127" in script
            for script in scripts
        )
