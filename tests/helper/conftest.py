from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helper.server import Server, Zygote
from tests.helper.tree import Tree


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def server(tree: Tree, zygote: Zygote) -> Iterator[Server]:
    made = Server(tree, zygote)
    yield made
    made.listener.close()
