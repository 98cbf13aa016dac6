"""From names to blocks."""

from __future__ import annotations

import torch
from torch import nn

from gradiometer.capture.blocks import by_role, find_blocks, named_parameters
from gradiometer.capture.roles import roles_by_names


def infer(names: list[str]) -> dict[str, tuple[int, ...]]:
    return by_role(roles_by_names(names), names)


def members(blocks: object, name: str) -> tuple[int, ...]:
    return blocks.members[blocks.names.index(name)]  # type: ignore[attr-defined]


def test_stable_baselines_names_give_actor_and_critic() -> None:
    names = [
        "mlp_extractor.policy_net.0.weight",
        "mlp_extractor.value_net.0.weight",
        "action_net.weight",
        "value_net.bias",
    ]
    assert infer(names) == {"actor": (0, 2), "critic": (1, 3)}


def test_what_is_neither_actor_nor_critic_is_the_trunk() -> None:
    assert infer(["encoder.0.weight", "pi.weight", "vf.weight"])["trunk"] == (0,)


def test_a_model_with_one_role_only_has_no_named_blocks() -> None:
    assert infer(["policy.0.weight", "policy.2.weight"]) == {}


def test_a_value_head_inside_a_policy_is_the_critic() -> None:
    assert infer(["policy.value_head.weight", "policy.actor.weight"])["critic"] == (0,)


def test_the_names_of_wrappers_are_stripped() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    wrapped = nn.Module()
    wrapped.add_module("module", model)
    assert list(named_parameters(wrapped)) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert next(iter(named_parameters(torch.compile(model)))) == "0.weight"
    inner = nn.ModuleDict({"a": nn.ModuleDict({"_orig_mod": nn.Linear(1, 1)})})
    assert list(named_parameters(inner)) == ["a.weight", "a.bias"]


def test_stripping_never_makes_two_parameters_one() -> None:
    model = nn.ModuleDict(
        {"a": nn.Linear(1, 1), "_orig_mod": nn.ModuleDict({"a": nn.Linear(1, 1)})}
    )
    assert len(named_parameters(model)) == 4


def test_a_shared_parameter_is_counted_once() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["embed"].weight
    assert list(named_parameters(model)) == ["embed.weight"]
    assert list(named_parameters({"a": model, "b": model["head"]})) == ["a.embed.weight"]


def test_blocks_come_as_patterns_modules_or_parameters() -> None:
    model = nn.ModuleDict({"pi": nn.Linear(2, 2), "v": nn.Linear(2, 1)})
    parameters = named_parameters(model)
    blocks = find_blocks(parameters, {"a": r"^pi\.", "b": model["v"], "c": [model["pi"].weight]})
    assert blocks.names == ("all", "a", "b", "c", "layer.pi", "layer.v")
    assert members(blocks, "a") == (0, 1)
    assert members(blocks, "b") == (2, 3)
    assert members(blocks, "c") == (0,)


def test_a_parameter_of_the_model_itself_is_its_own_layer() -> None:
    model = nn.Module()
    model.register_parameter("log_std", nn.Parameter(torch.zeros(2)))
    assert "layer.log_std" in find_blocks(named_parameters(model), None).names


def test_order_and_starts_cut_the_members_apart() -> None:
    blocks = find_blocks(
        named_parameters(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))), {"last": "^1"}
    )
    order, starts = blocks.order(), blocks.starts()
    ends = [*starts[1:], len(order)]
    assert [tuple(order[a:b]) for a, b in zip(starts, ends, strict=True)] == list(blocks.members)
