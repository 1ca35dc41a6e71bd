"""Recipes of peers: read, checked, filled.

Knows nothing about processes.
"""

from pathlib import Path

import pytest

from omlx.bench.failure import BenchError
from omlx.bench.recipes import (
    PLACES,
    Weights,
    fill,
    load_recipe,
    parse_recipe,
    shipped,
    shipped_recipe,
)

SMALL = 'command = ["server", "--port", "{port}"]\n'


def parse(text: str, name: str = "own") -> None:
    parse_recipe(text, name=name, where="own.toml")


def test_the_peers_that_ship() -> None:
    assert shipped() == ("llama-cpp", "mlx-lm", "rapid-mlx", "vllm-mlx")


@pytest.mark.parametrize("name", shipped())
def test_each_that_ships_says_what_a_report_needs(name: str) -> None:
    recipe = shipped_recipe(name)
    assert recipe.name == name and recipe.package and recipe.title
    assert {"memory_cache", "restart", "sharing", "buffering"} <= {*recipe.facts}
    assert recipe.env["HOME"] == "{home}", "what it keeps goes with the bench"


@pytest.mark.parametrize("name", shipped())
def test_no_place_is_left_unfilled(name: str) -> None:
    recipe = shipped_recipe(name)
    command, env, request_model = recipe.filled({place: "7" for place in PLACES})
    text = " ".join([*command, *env.values(), request_model])
    assert not [place for place in PLACES if f"{{{place}}}" in text]


def test_llama_cpp_wants_the_weights_as_gguf() -> None:
    assert shipped_recipe("llama-cpp").weights is Weights.GGUF
    assert shipped_recipe("mlx-lm").weights is Weights.MLX


def test_the_code_of_llama_cpp_is_python() -> None:
    (code,) = [word for word in shipped_recipe("llama-cpp").command if "\n" in word]
    compile(fill(code, {place: "7" for place in PLACES}), "llama-cpp", "exec")


def test_a_small_recipe_has_defaults(tmp_path: Path) -> None:
    path = tmp_path / "My-Server.toml"
    path.write_text(SMALL)
    recipe = load_recipe(path)
    assert recipe.name == "my-server" and recipe.title == "my-server"
    assert recipe.ready == "/v1/models" and recipe.request_model == "{model}"
    assert recipe.weights is Weights.MLX and recipe.ready_s > 0


def test_braces_that_are_no_places_stay() -> None:
    assert fill('{"a": 1} {port} {Port}', {"port": "80"}) == '{"a": 1} 80 {Port}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "command is missing"),
        ('command = "server"', "command is 'server', but must be a list"),
        ('command = ["server"]', "command has no {port}"),
        ('command = ["s", "{port}", 1]', "must be a list of texts"),
        (SMALL + 'comand = ["s"]', "comand is no key"),
        (SMALL + "weights = 'awq'", "weights is 'awq', but must be mlx or gguf"),
        (SMALL + "ready = 'health'", "must be a path"),
        (SMALL + "ready_s = 0", "ready_s is 0, but must be seconds"),
        (SMALL + "stop_s = true", "stop_s is True"),
        (SMALL + "name = 'A B'", "name is 'A B'"),
        (SMALL + "[env]\nA = 1", "env.A is 1, but must be a text"),
        (SMALL + "body = 3", "body is 3, but must be a table"),
        (SMALL + "[env]\nA = '{hom}'", "{hom} is no place"),
        (SMALL + "= 1", "not valid TOML"),
    ],
)
def test_a_wrong_recipe_is_told_where(text: str, words: str) -> None:
    with pytest.raises(BenchError) as caught:
        parse(text)
    assert words in caught.value.message and caught.value.message.startswith("own.toml")


def test_a_near_miss_gets_its_name() -> None:
    with pytest.raises(BenchError) as caught:
        parse(SMALL + "redy = '/'")
    assert caught.value.hint == "did you mean ready?"


def test_an_unknown_peer_is_told_the_known_ones() -> None:
    with pytest.raises(BenchError) as caught:
        shipped_recipe("ollama")
    assert "llama-cpp, mlx-lm" in caught.value.hint


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="can't be read"):
        load_recipe(tmp_path / "none.toml")
